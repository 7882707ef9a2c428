//! Blobs that are changed in place, over every transport and in each store.

use std::future::IntoFuture;
use std::os::unix::fs::FileExt;

use crate::common::{PATIENCE, Pair, TRANSPORTS, pattern, refusal};
use margo::{Access, ForwardError};
use margo_provider_blob::{APPEND, AppendArgs, BlobConfig, BlobError, Extent, ReadDone, Scrubbed};

const BLOCK: usize = 64 << 10;

/// Runs `body` with the smallest pieces, for each transport and store.
fn on_each(change: impl Fn(&mut BlobConfig), body: impl Fn(&Pair)) {
    let dir = tempfile::tempdir().unwrap();
    for (number, transport) in TRANSPORTS.into_iter().enumerate() {
        let path = dir.path().join(number.to_string());
        for mut config in [BlobConfig::new(path), BlobConfig::in_memory(1 << 40)] {
            config.chunk_bytes = BLOCK;
            change(&mut config);
            let pair = Pair::new(transport, &config);
            body(&pair);
            pair.end();
        }
    }
}

fn put(model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    model.resize(model.len().max(offset + data.len()), 0);
    model[offset..offset + data.len()].copy_from_slice(data);
}

#[test]
fn data_goes_where_it_belongs_however_long_it_is() {
    for buffers in [1, 2, 32] {
        on_each(
            |config| config.buffers = buffers,
            |pair| {
                let blobs = &pair.blobs;
                blobs.create("blob", PATIENCE).unwrap();
                let mut model = Vec::new();
                // Beyond one piece, beyond the window, beyond all buffers; at any offset.
                for (seed, (offset, len)) in [
                    (0, 1),
                    (7, BLOCK),
                    (BLOCK - 1, 2),
                    (3 * BLOCK, 40 * BLOCK + 17),
                    (5, 9 * BLOCK),
                    (60 * BLOCK + 3, 0),
                ]
                .into_iter()
                .enumerate()
                {
                    let data = pattern(len, seed as u64);
                    blobs.write("blob", offset as u64, &data, PATIENCE).unwrap();
                    if len > 0 {
                        put(&mut model, offset, &data);
                    }
                    assert!(blobs.get("blob", PATIENCE).unwrap() == model, "{len} at {offset}");
                }
                for (seed, len) in [3, 40 * BLOCK + 1, 0].into_iter().enumerate() {
                    let data = pattern(len, 100 + seed as u64);
                    let at = blobs.append("blob", &data, PATIENCE).unwrap();
                    assert_eq!(at, model.len() as u64);
                    model.extend(data);
                    assert!(blobs.get("blob", PATIENCE).unwrap() == model, "{len} appended");
                }
                for len in [2 * BLOCK + 9, 5 * BLOCK, 0] {
                    blobs.truncate("blob", len as u64, PATIENCE).unwrap();
                    model.resize(len, 0);
                    assert!(blobs.get("blob", PATIENCE).unwrap() == model, "{len} left");
                }
                blobs.persist("blob", PATIENCE).unwrap();
                blobs.remove("blob", PATIENCE).unwrap();
                let missing = BlobError::NotFound { name: "blob".into() };
                assert_eq!(refusal(blobs.write("blob", 0, b"x", PATIENCE)), missing);
                assert_eq!(refusal(blobs.append("blob", b"x", PATIENCE)), missing);
                assert_eq!(refusal(blobs.truncate("blob", 0, PATIENCE)), missing);
                assert_eq!(refusal(blobs.persist("blob", PATIENCE)), missing);
                assert_eq!(refusal(blobs.scrub("blob", PATIENCE)), missing);
            },
        );
    }
}

#[test]
fn extents_are_read_and_written_in_one_call() {
    on_each(
        |_| {},
        |pair| {
            let blobs = &pair.blobs;
            let long = 3 * BLOCK as u64 + 5;
            let extents = [
                Extent::new(2 * BLOCK as u64 - 3, long),
                Extent::new(10, 4),
                Extent::new(7, 0),
                Extent::new(12, 1),
                Extent::new(9 * BLOCK as u64, 100),
            ];
            let data = pattern(extents.iter().map(|extent| extent.len as usize).sum(), 3);
            let len = 20 * BLOCK;
            let mut model = vec![0; len];
            let mut rest = &data[..];
            for extent in extents {
                let (now, later) = rest.split_at(extent.len as usize);
                put(&mut model, extent.offset as usize, now);
                rest = later;
            }
            blobs.create_write("new", len as u64, &extents, &data, PATIENCE).unwrap();
            assert!(blobs.get("new", PATIENCE).unwrap() == model);
            let exists = BlobError::AlreadyExists { name: "new".into() };
            let again = blobs.create_write("new", len as u64, &extents, &data, PATIENCE);
            assert_eq!(refusal(again), exists);

            blobs.create_sparse("old", len as u64, PATIENCE).unwrap();
            assert!(blobs.get("old", PATIENCE).unwrap() == vec![0; len]);
            let sparse = blobs.stat("old", PATIENCE).unwrap();
            assert_eq!(sparse.len, len as u64);
            blobs.write_extents("old", &extents, &data, PATIENCE).unwrap();
            assert!(blobs.get("old", PATIENCE).unwrap() == model);
            let less = blobs.stat("old", PATIENCE).unwrap().allocated;
            blobs.put("old", &pattern(len, 1), PATIENCE).unwrap();
            let all = blobs.stat("old", PATIENCE).unwrap().allocated;
            assert!(sparse.allocated < less && less < all, "{} {less} {all}", sparse.allocated);
            blobs.put("old", &model, PATIENCE).unwrap();

            // The second one of the two that overlap has the byte of both.
            let mut back = vec![0xEE; data.len()];
            let done = blobs.read_extents("old", &extents, &mut back, PATIENCE).unwrap();
            assert_eq!(done, ReadDone { bytes: data.len() as u64, total: len as u64 });
            let mut expected = data.clone();
            expected[long as usize + 2] = data[long as usize + 4];
            assert!(back == expected);

            // One that leaves the blob is read as far as that goes, in its own place.
            blobs.truncate("old", 9 * BLOCK as u64 + 10, PATIENCE).unwrap();
            let leaving = [extents[4], extents[1]];
            let mut back = [0xEE; 104];
            let done = blobs.read_extents("old", &leaving, &mut back, PATIENCE).unwrap();
            assert_eq!(done.bytes, 14);
            assert_eq!(back[..10], model[9 * BLOCK..9 * BLOCK + 10]);
            assert!(back[10..100].iter().all(|byte| *byte == 0xEE), "wrote behind the end");
            assert_eq!(back[100..], model[10..14]);
            let many = vec![Extent::new(0, 0); 1025];
            let error = refusal(blobs.read_extents("old", &many, &mut [], PATIENCE));
            assert!(matches!(error, BlobError::BadExtents { .. }), "{error}");
        },
    );
}

#[test]
fn appenders_share_a_blob() {
    on_each(
        |_| {},
        |pair| {
            pair.blobs.create("log", PATIENCE).unwrap();
            let len = |writer: u8| if writer == 0 { 5 * BLOCK + 3 } else { 1000 };
            let mut places: Vec<(usize, u8)> = std::thread::scope(|scope| {
                let append = |writer: u8| {
                    let data = vec![writer + 1; len(writer)];
                    let at = pair.blobs.append("log", &data, PATIENCE).unwrap();
                    (at as usize, writer)
                };
                let threads: Vec<_> = (0..4)
                    .map(|writer| {
                        scope.spawn(move || (0..20).map(|_| append(writer)).collect::<Vec<_>>())
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            places.sort_unstable();
            let data = pair.blobs.get("log", PATIENCE).unwrap();
            let mut end = 0;
            for (at, writer) in places {
                assert_eq!(at, end, "a gap, or a place that two have");
                end = at + len(writer);
                assert!(data[at..end].iter().all(|byte| *byte == writer + 1));
            }
            assert_eq!(data.len(), end);
        },
    );
}

#[test]
fn an_append_without_its_data_leaves_no_trace() {
    on_each(
        |_| {},
        |pair| {
            pair.blobs.put("log", b"begun", PATIENCE).unwrap();
            let short = pair.client.expose(vec![7; 3 * BLOCK], Access::ReadOnly).unwrap();
            let bulk = short.bulk().clone();
            short.release().unwrap();
            let args =
                AppendArgs { name: "log".into(), len: 3 * BLOCK as u64, bulk, persist: false };
            let target = pair.blobs.target();
            let answer = pair.client.forward_timed(APPEND, target, &args, PATIENCE).unwrap();
            assert!(matches!(answer, Err(BlobError::Transfer { .. })), "{answer:?}");
            assert_eq!(pair.blobs.get("log", PATIENCE).unwrap(), b"begun");
        },
    );
}

#[test]
fn quotas_are_told_by_name() {
    on_each(
        |config| (config.max_bytes, config.max_blobs) = (Some(3 * BLOCK as u64), Some(1)),
        |pair| {
            let blobs = &pair.blobs;
            let data = pattern(BLOCK, 1);
            blobs.put("a", &data, PATIENCE).unwrap();
            let error = refusal(blobs.create("b", PATIENCE));
            let (name, what) = ("b".to_owned(), "blobs".to_owned());
            assert_eq!(error, BlobError::OverQuota { name, what, needed: 2, max: 1 });
            let (name, what) = ("a".to_owned(), "bytes".to_owned());
            let (needed, max) = (3 * BLOCK as u64 + 1, 3 * BLOCK as u64);
            let over = BlobError::OverQuota { name, what, needed, max };
            assert_eq!(refusal(blobs.write("a", max, b"x", PATIENCE)), over);
            assert_eq!(refusal(blobs.truncate("a", max + 1, PATIENCE)), over);
            assert_eq!(refusal(blobs.append("a", &[7; 2 * BLOCK + 1], PATIENCE)), over);
            assert_eq!(refusal(blobs.put("a", &[7; 2 * BLOCK + 1], PATIENCE)), over);
            assert!(blobs.get("a", PATIENCE).unwrap() == data);
            blobs.put("a", &[7; 2 * BLOCK], PATIENCE).unwrap();
            blobs.remove("a", PATIENCE).unwrap();
            blobs.put("c", &[7; 3 * BLOCK], PATIENCE).unwrap();
            blobs.remove("c", PATIENCE).unwrap();
        },
    );
}

#[test]
fn damage_is_found_by_who_reads_and_by_a_scrub() {
    for transport in TRANSPORTS {
        let dir = tempfile::tempdir().unwrap();
        let pair = Pair::new(transport, &BlobConfig::new(dir.path()));
        let blobs = &pair.blobs;
        let data = pattern(5 * BLOCK, 1);
        blobs.put("f/blob", &data, PATIENCE).unwrap();
        let found = blobs.scrub("f/blob", PATIENCE).unwrap();
        assert_eq!(found, Scrubbed { blocks: 5, sealed: 0, damaged: vec![], next: None });

        let file = std::fs::File::options().write(true).open(dir.path().join("f/blob")).unwrap();
        let place = 4096 + 3 * BLOCK;
        file.write_all_at(&[!data[3 * BLOCK]], place as u64).unwrap();
        let damaged = BlobError::Damaged { name: "f/blob".into(), block: 3, bytes: BLOCK as u64 };
        assert_eq!(refusal(blobs.get("f/blob", PATIENCE)), damaged);
        assert_eq!(refusal(blobs.checksum("f/blob", PATIENCE)), damaged);
        assert_eq!(refusal(blobs.write("f/blob", place as u64, b"x", PATIENCE)), damaged);
        let mut others = vec![0; 3 * BLOCK];
        blobs.read("f/blob", 0, &mut others, PATIENCE).unwrap();
        assert!(others == data[..3 * BLOCK]);
        assert_eq!(blobs.scrub("f/blob", PATIENCE).unwrap().damaged, [3]);

        let (start, block) = (3 * BLOCK, &data[3 * BLOCK..4 * BLOCK]);
        blobs.write("f/blob", start as u64, block, PATIENCE).unwrap();
        assert!(blobs.get("f/blob", PATIENCE).unwrap() == data);
        assert_eq!(blobs.scrub("f/blob", PATIENCE).unwrap().damaged, Vec::<u64>::new());
        pair.end();
    }
}

#[test]
fn calls_go_on_while_their_caller_does() {
    on_each(
        |_| {},
        |pair| {
            let blobs = &pair.blobs;
            let data = pattern(10 * BLOCK, 9);
            let source = pair.client.expose(data.clone(), Access::ReadOnly).unwrap();
            let create = blobs.start_create("a", 5, PATIENCE).unwrap();
            let put = blobs.start_put("b", source.bulk(), PATIENCE).unwrap();
            let all = [Extent::new(3, data.len() as u64)];
            let new = blobs.start_create_write("c", 1 << 20, &all, source.bulk(), PATIENCE);
            create.wait().unwrap().unwrap();
            assert_eq!(put.wait().unwrap().unwrap(), data.len() as u64);
            assert_eq!(new.unwrap().wait().unwrap().unwrap(), data.len() as u64);

            let write = blobs.start_write("a", &all, source.bulk(), PATIENCE).unwrap();
            let append = blobs.start_append("b", source.bulk(), PATIENCE).unwrap();
            let task = async { (write.into_future().await, append.await) };
            let (written, at) = margo::ult::block_on(task);
            assert_eq!(written.unwrap().unwrap(), data.len() as u64);
            assert_eq!(at.unwrap().unwrap(), data.len() as u64);
            source.release().unwrap();

            let sink = pair.client.expose(vec![0; data.len()], Access::WriteOnly).unwrap();
            let read = blobs.start_read("a", &all, sink.bulk(), PATIENCE).unwrap();
            let total = data.len() as u64 + 3;
            let done = ReadDone { bytes: data.len() as u64, total };
            assert_eq!(read.wait().unwrap().unwrap(), done);
            assert!(sink.release().unwrap() == data);

            blobs.start_truncate("a", 7, PATIENCE).unwrap().wait().unwrap().unwrap();
            blobs.start_persist("a", PATIENCE).unwrap().wait().unwrap().unwrap();
            let stat = blobs.start_stat("a", PATIENCE).unwrap().wait().unwrap().unwrap();
            assert_eq!(stat.len, 7);
            let page = blobs.start_list_page("", "a", 1, PATIENCE).unwrap().wait();
            let page = page.unwrap().unwrap();
            assert_eq!((page.blobs[0].name.as_str(), page.more), ("b", true));
            for blob in ["a", "b", "c"] {
                blobs.start_remove(blob, PATIENCE).unwrap().wait().unwrap().unwrap();
            }
            let canceled = blobs.start_stat("a", PATIENCE).unwrap();
            canceled.cancel();
            let result = canceled.wait();
            let expected = matches!(
                result,
                Ok(Err(BlobError::NotFound { .. })) | Err(ForwardError::Canceled { .. })
            );
            assert!(expected, "{result:?}");
        },
    );
}
