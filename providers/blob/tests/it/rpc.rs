//! The provider through its client, over every transport, in one process.

use std::time::{Duration, SystemTime};

use crate::common::{PATIENCE, on_each, pattern, refusal};
use margo::{
    Access, ForwardError, Instance, ProviderHandle, ProviderId, config::Config,
    errors::IdentityError,
};
use margo_provider_blob::{
    APPEND, AppendArgs, BlobClient, BlobComponent, BlobConfig, BlobEntry, BlobError, BlobProvider,
    Checksum, ClientError, EXTENTS_MAX, Extent, LIST, ListArgs, PUT, PutArgs, READ, ReadArgs,
    ReadDone,
};

#[test]
fn blobs_of_all_sizes_come_back_intact() {
    const CHUNK: usize = 64 << 10;
    on_each(
        |config| config.chunk_bytes = CHUNK,
        |pair, _| {
            for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1_000_003] {
                let data = pattern(len, len as u64);
                let name = format!("sizes/{len}");
                pair.blobs.put(&name, &data, PATIENCE).unwrap();
                assert!(pair.blobs.get(&name, PATIENCE).unwrap() == data, "{len}");
                let stat = pair.blobs.checksum(&name, PATIENCE).unwrap();
                assert_eq!((stat.len, stat.checksum), (len as u64, Some(Checksum::of(&data))));
            }
        },
    );
}

#[test]
fn large_blobs_in_default_chunks() {
    on_each(
        |config| config.sync = true,
        |pair, _| {
            let data = pattern((5 << 20) + 17, 1);
            pair.blobs.put("large", &data, PATIENCE).unwrap();
            assert!(pair.blobs.get("large", PATIENCE).unwrap() == data);
        },
    );
}

#[test]
fn create_put_stat_remove() {
    on_each(
        |_| {},
        |pair, _| {
            let blobs = &pair.blobs;
            let before = SystemTime::now() - Duration::from_secs(60);
            blobs.create("a/b", PATIENCE).unwrap();
            let exists = BlobError::AlreadyExists { name: "a/b".into() };
            assert_eq!(refusal(blobs.create("a/b", PATIENCE)), exists);
            assert_eq!(refusal(blobs.put_new("a/b", b"x", PATIENCE)), exists);
            assert_eq!(blobs.get("a/b", PATIENCE).unwrap(), b"");

            blobs.put("a/b", b"hello", PATIENCE).unwrap();
            blobs.put_new("a/c", b"", PATIENCE).unwrap();
            let stat = blobs.stat("a/b", PATIENCE).unwrap();
            assert_eq!((stat.len, stat.checksum), (5, None));
            assert!(stat.modified() > before, "{stat:?}");

            blobs.remove("a/b", PATIENCE).unwrap();
            let missing = BlobError::NotFound { name: "a/b".into() };
            assert_eq!(refusal(blobs.remove("a/b", PATIENCE)), missing);
            assert_eq!(refusal(blobs.get("a/b", PATIENCE)), missing);
            assert_eq!(refusal(blobs.stat("a/b", PATIENCE)), missing);
            let error = refusal(blobs.put("a", b"", PATIENCE));
            assert!(matches!(error, BlobError::Conflict { .. }), "{error}");
        },
    );
}

#[test]
fn parts_of_a_blob() {
    on_each(
        |config| config.chunk_bytes = 64 << 10,
        |pair, _| {
            let data = pattern(200_000, 7);
            pair.blobs.put("blob", &data, PATIENCE).unwrap();
            for (offset, room) in
                [(0, 1), (1, 199_999), (65_535, 65_538), (199_999, 5), (200_000, 5), (3, 0)]
            {
                let mut part = vec![0xEE; room];
                let done = pair.blobs.read("blob", offset as u64, &mut part, PATIENCE).unwrap();
                let bytes = room.min(data.len() - offset);
                assert_eq!(done, ReadDone { bytes: bytes as u64, total: 200_000 });
                assert_eq!(part[..bytes], data[offset..offset + bytes]);
                assert!(part[bytes..].iter().all(|&byte| byte == 0xEE), "wrote behind the end");
            }
            let error = refusal(pair.blobs.read("blob", 200_001, &mut [0], PATIENCE));
            assert!(matches!(error, BlobError::OutOfRange { size: 200_000, .. }), "{error}");
            refusal(pair.blobs.read("blob", u64::MAX, &mut [0], PATIENCE));
        },
    );
}

#[test]
fn names_that_lead_elsewhere_are_refused_by_the_target() {
    on_each(
        |_| {},
        |pair, dir| {
            std::os::unix::fs::symlink("/etc", dir.join("etc")).unwrap();
            for name in ["", "/etc/hostname", "../x", "a/../../x", "a\0", ".margo-tmp-1", "a\\b"] {
                let error = refusal(pair.blobs.put(name, b"x", PATIENCE));
                assert!(matches!(error, BlobError::BadName { .. }), "{name}: {error}");
                assert_eq!(refusal(pair.blobs.get(name, PATIENCE)), error);
                assert_eq!(refusal(pair.blobs.remove(name, PATIENCE)), error);
                assert_eq!(refusal(pair.blobs.create(name, PATIENCE)), error);
            }
            for name in ["etc/hostname", "etc"] {
                let error = refusal(pair.blobs.get(name, PATIENCE));
                assert!(matches!(error, BlobError::Conflict { .. }), "{name}: {error}");
            }
            assert_eq!(pair.blobs.list("", PATIENCE).unwrap(), []);
            assert_eq!(pair.blobs.list("../", PATIENCE).unwrap(), []);
        },
    );
}

#[test]
fn lists_span_pages_and_folders() {
    on_each(
        |_| {},
        |pair, dir| {
            // Written past the provider: it is about listing, and thousands of calls are slow.
            pair.blobs.put("one", b"xyz", PATIENCE).unwrap();
            for folder in ["a", "b-", "b"] {
                std::fs::create_dir(dir.join(folder)).unwrap();
                for number in 0..900 {
                    let path = dir.join(format!("{folder}/{number:04}"));
                    std::fs::copy(dir.join("one"), path).unwrap();
                }
            }
            let all = pair.blobs.list("", PATIENCE).unwrap();
            assert_eq!(all.len(), 2701);
            assert!(all.is_sorted_by(|a, b| a.name < b.name));
            assert!(all.iter().all(|entry| entry.len == 3));
            let some = pair.blobs.list("b/08", PATIENCE).unwrap();
            assert_eq!(some.len(), 100);
            assert_eq!(some[0], BlobEntry { name: "b/0800".into(), len: 3 });
            let page = pair.blobs.list_page("b", "b-/0898", 2, PATIENCE).unwrap();
            let names: Vec<_> = page.blobs.iter().map(|entry| entry.name.as_str()).collect();
            assert_eq!((names, page.more), (vec!["b-/0899", "b/0000"], true));
        },
    );
}

#[test]
fn a_limit_on_the_size_is_kept() {
    on_each(
        |config| config.max_blob_bytes = Some(10),
        |pair, _| {
            pair.blobs.put("ten", &[1; 10], PATIENCE).unwrap();
            let error = refusal(pair.blobs.put("eleven", &[1; 11], PATIENCE));
            assert_eq!(error, BlobError::TooLarge { len: 11, max: 10 });
            assert_eq!(pair.blobs.list("", PATIENCE).unwrap().len(), 1);
        },
    );
}

/// Requests that a client of another make might send.
#[test]
fn requests_that_make_no_sense_are_answered() {
    on_each(
        |_| {},
        |pair, _| {
            let exposed = pair.client.expose(vec![7; 100], Access::ReadOnly).unwrap();
            let target = pair.blobs.target();
            let put = |len, extents: &[Extent]| {
                let (name, extents, bulk) = ("w".into(), extents.into(), exposed.bulk().clone());
                let args = PutArgs { name, len, extents, bulk, overwrite: true };
                pair.client.forward_timed(PUT, target, &args, PATIENCE).unwrap()
            };
            for (len, extents) in [
                (101, &[Extent::new(0, 101)][..]),
                (u64::MAX, &[Extent::new(0, u64::MAX)]),
                (200, &[Extent::new(0, 60), Extent::new(60, 41)]),
                (10, &[Extent::new(1, 10)]),
                (10, &[Extent::new(11, 0)]),
            ] {
                let answer = put(len, extents);
                assert!(matches!(answer, Err(BlobError::OutOfRange { .. })), "{answer:?}");
            }
            let many = vec![Extent::new(0, 0); EXTENTS_MAX + 1];
            for extents in [&[Extent::new(u64::MAX, 1)][..], &[Extent::new(1 << 62, 1)], &many] {
                let answer = put(10, extents);
                assert!(matches!(answer, Err(BlobError::BadExtents { .. })), "{answer:?}");
            }
            for len in [u64::MAX, (1 << 62) + 1] {
                let answer = put(len, &[]);
                assert!(matches!(answer, Err(BlobError::TooLarge { .. })), "{answer:?}");
                refusal(pair.blobs.create_sparse("w", len, PATIENCE));
            }
            pair.blobs.put("r", &[1; 200], PATIENCE).unwrap();
            for (len, what) in [(101, "too short"), (50, "not writable")] {
                let (extents, bulk) = (vec![Extent::new(0, len)], exposed.bulk().clone());
                let args = ReadArgs { name: "r".into(), extents, bulk };
                let answer = pair.client.forward_timed(READ, target, &args, PATIENCE).unwrap();
                let expected = matches!(
                    (len, &answer),
                    (101, Err(BlobError::OutOfRange { .. }))
                        | (50, Err(BlobError::Transfer { .. }))
                );
                assert!(expected, "{what}: {answer:?}");
            }
            // Memory that was taken back.
            let bulk = exposed.bulk().clone();
            assert_eq!(exposed.release().unwrap(), [7; 100]);
            let (name, extents) = ("w".to_owned(), vec![Extent::new(0, 100)]);
            let args = PutArgs { name, len: 100, extents, bulk: bulk.clone(), overwrite: true };
            let answer = pair.client.forward_timed(PUT, target, &args, PATIENCE).unwrap();
            assert!(matches!(answer, Err(BlobError::Transfer { .. })), "{answer:?}");
            let args = AppendArgs { name: "r".into(), len: 100, bulk, persist: false };
            let answer = pair.client.forward_timed(APPEND, target, &args, PATIENCE).unwrap();
            assert!(matches!(answer, Err(BlobError::Transfer { .. })), "{answer:?}");
            assert_eq!(pair.blobs.stat("r", PATIENCE).unwrap().len, 200, "nothing is appended");

            let args = ListArgs { prefix: String::new(), after: String::new(), max: 0 };
            let page = pair.client.forward_timed(LIST, target, &args, PATIENCE).unwrap().unwrap();
            assert_eq!(page.blobs.len(), 1, "a page is never empty while there is more");
            assert_eq!(pair.blobs.list("w", PATIENCE).unwrap(), [], "nothing half-written is left");
        },
    );
}

#[test]
fn readers_get_one_version_or_the_other() {
    const LEN: usize = 256 << 10;
    on_each(
        |config| config.chunk_bytes = 64 << 10,
        |pair, _| {
            pair.blobs.put("blob", &[0; LEN], PATIENCE).unwrap();
            let writer = pair.blobs.clone();
            let writing = std::thread::spawn(move || {
                for version in 1..=100u8 {
                    let data = vec![version; LEN - usize::from(version)];
                    writer.put("blob", &data, PATIENCE).unwrap();
                }
            });
            loop {
                let last = writing.is_finished();
                let data = pair.blobs.get("blob", PATIENCE).unwrap();
                assert!(data.iter().all(|&byte| byte == data[0]), "a mixture of versions");
                assert_eq!(data.len(), LEN - usize::from(data[0]));
                if last {
                    assert_eq!(data[0], 100);
                    break;
                }
            }
            writing.join().unwrap();
        },
    );
}

#[test]
fn many_clients_at_once() {
    on_each(
        |config| config.chunk_bytes = 64 << 10,
        |pair, _| {
            let threads: Vec<_> = (0..16)
                .map(|number| {
                    let blobs = pair.blobs.clone();
                    std::thread::spawn(move || {
                        let name = format!("f/{number}");
                        for round in 0..10 {
                            let data = pattern(20_000 + round, number);
                            blobs.put(&name, &data, PATIENCE).unwrap();
                            assert!(blobs.get(&name, PATIENCE).unwrap() == data);
                        }
                        blobs.remove(&name, PATIENCE).unwrap();
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(pair.blobs.list("", PATIENCE).unwrap(), []);
        },
    );
}

fn service_with(config: &serde_json::Value) -> Instance {
    let json = serde_json::json!({ "margo": {
        "address": "na+sm://",
        "providers": [{ "type": "blob", "provider_id": 3, "config": config }],
    } });
    Instance::from_config(&Config::from_json(&json.to_string()).unwrap()).unwrap()
}

#[test]
fn starts_from_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/blobs");
    let service = service_with(&serde_json::json!({ "path": path }));
    let running = service.start_providers(&[&BlobComponent]).unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = client.lookup(service.self_addr().uri()).unwrap();
    let blobs = BlobClient::new(&client, ProviderHandle::new(target, ProviderId::new(3)));
    blobs.put("x", b"y", PATIENCE).unwrap();
    assert!(path.join("x").is_file());

    drop(running);
    let error = blobs.get("x", PATIENCE).unwrap_err();
    let expected = matches!(&error, ClientError::Forward(ForwardError::NotRegistered { .. }));
    assert!(expected, "{error}");
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_snapshot_starts_another_provider() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let first = service_with(&serde_json::json!({ "path": at("first"), "chunk_bytes": 65536 }));
    let running = first.start_providers(&[&BlobComponent]).unwrap();
    let config = first.config().margo.providers[0].config.clone();
    assert_eq!(config["chunk_bytes"], 65536);
    assert_eq!(config["sync"], false, "defaults are filled in");
    let own = ProviderHandle::new(first.self_addr(), ProviderId::new(3));
    let blobs = BlobClient::new(&first, own.clone());
    for (name, data) in [("a/b", &b"1"[..]), ("c", b""), ("d", &[7; 10_000])] {
        blobs.put(name, data, PATIENCE).unwrap();
    }
    running.drain(PATIENCE).unwrap();
    let error = blobs.get("c", PATIENCE).unwrap_err();
    assert!(matches!(&error, ClientError::Forward(ForwardError::NotRegistered { .. })), "{error}");
    running.snapshot("blob_3", &at("kept")).unwrap();
    let error = running.snapshot("blob_3", &at("kept")).unwrap_err().to_string();
    assert!(error.contains("snapshot: ") && error.contains("File exists"), "{error}");
    // Left by a process that was killed in the midst of one: no snapshot, and not overwritten.
    std::fs::create_dir(at(".again.part")).unwrap();
    let error = running.snapshot("blob_3", &at("again")).unwrap_err().to_string();
    assert!(error.contains(".again.part: File exists") && !at("again").exists(), "{error}");
    std::fs::remove_dir(at(".again.part")).unwrap();
    let error = running.snapshot("blob_4", &at("x")).unwrap_err().to_string();
    assert_eq!(error, "no provider `blob_4` was started (there are: blob_3)");
    drop(running);
    first.finalize_and_wait().unwrap();

    let second = service_with(&serde_json::json!({ "path": at("second") }));
    let running = second.start_providers(&[&BlobComponent]).unwrap();
    let error = running.restore("blob_3", &at("nowhere")).unwrap_err().to_string();
    assert!(error.contains("nowhere: No such file"), "{error}");
    running.restore("blob_3", &at("kept")).unwrap();
    let own = ProviderHandle::new(second.self_addr(), ProviderId::new(3));
    let blobs = BlobClient::new(&second, own);
    assert_eq!(blobs.list("", PATIENCE).unwrap().len(), 3);
    assert_eq!(blobs.get("a/b", PATIENCE).unwrap(), b"1");
    assert_eq!(blobs.get("d", PATIENCE).unwrap(), [7; 10_000]);
    let error = running.restore("blob_3", &at("kept")).unwrap_err().to_string();
    assert!(error.contains("the first is `a/b`; restore into an empty directory"), "{error}");
    drop(running);
    second.finalize_and_wait().unwrap();
}

#[test]
fn a_wrong_configuration_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for (config, expected) in [
        (serde_json::json!({}), "config.path: missing"),
        (serde_json::json!({ "path": dir.path(), "sinc": true }), "config.sinc: unknown key"),
        (serde_json::json!({ "path": file }), "cannot create the directory"),
        (serde_json::json!({ "store": "memory" }), "config.max_bytes: missing"),
    ] {
        let service = service_with(&config);
        let error = service.start_providers(&[&BlobComponent]).unwrap_err().to_string();
        assert!(error.contains("blob_3") && error.contains(expected), "{error}");
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_client_connects_to_a_blob_provider_and_to_nothing_else() {
    on_each(
        |_| {},
        |pair, _| {
            let (target, other) = (pair.blobs.target(), ProviderId::new(9));
            BlobClient::connect(&pair.client, target.clone(), PATIENCE).unwrap();
            let wrong = ProviderHandle::new(target.addr().clone(), other);
            let error = BlobClient::connect(&pair.client, wrong.clone(), PATIENCE).unwrap_err();
            assert!(matches!(error, IdentityError::None { .. }), "{error}");
            pair.service.network().register_identity(other, "kv").unwrap();
            let error = BlobClient::connect(&pair.client, wrong, PATIENCE).unwrap_err();
            assert!(error.to_string().ends_with("is `kv`, not `blob`"), "{error}");
        },
    );
}

#[test]
fn a_closed_provider_has_let_go_of_its_directory() {
    let (dir, id) = (tempfile::tempdir().unwrap(), ProviderId::new(1));
    let config = BlobConfig::new(dir.path());
    let service = Instance::builder("na+sm://").start().unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::new(client.lookup(service.self_addr().uri()).unwrap(), id);
    let data = pattern(8 << 20, 1);
    for _ in 0..5 {
        let provider = service.provider(id, &service.layout().rpc_pool());
        let running = BlobProvider::start(provider, &config).unwrap();
        let blobs = BlobClient::connect(&client, target.clone(), PATIENCE).unwrap();
        let (stored, first) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let error = loop {
                    match blobs.put("x", &data, PATIENCE) {
                        Ok(()) => _ = stored.send(()),
                        Err(error) => break error,
                    }
                };
                let gone =
                    matches!(error, ClientError::Forward(ForwardError::NotRegistered { .. }));
                assert!(gone, "{error}");
            });
            first.recv_timeout(PATIENCE).unwrap();
            running.close(PATIENCE).unwrap();
            // At once, the last call may still be on its way back.
            let next = service.provider(ProviderId::new(2), &service.layout().rpc_pool());
            let next = BlobProvider::start(next, &config).unwrap();
            next.close(Duration::ZERO).unwrap();
        });
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1, "one blob");
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
