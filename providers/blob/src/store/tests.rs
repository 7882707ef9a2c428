//! Both stores by the same calls.

use proptest::prelude::*;

use super::*;

const WANTED: Wanted<'static> = &|| true;
const BLOCK: u64 = BLOCK_BYTES;

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

/// Runs `body` with a store of each kind, which `change` may bound.
fn on_each(change: impl Fn(&mut BlobConfig), body: impl Fn(&dyn Store)) {
    let dir = tempfile::tempdir().unwrap();
    for mut config in [BlobConfig::new(dir.path()), BlobConfig::in_memory(1 << 40)] {
        change(&mut config);
        body(&*open(&config).unwrap());
    }
}

fn put(store: &dyn Store, blob: &str, data: &[u8]) -> Result<(), BlobError> {
    let incoming = store.begin(&name(blob))?;
    incoming.blob().write_at(0, data)?;
    incoming.publish(true, WANTED)
}

fn read(blob: &dyn Blob) -> Vec<u8> {
    let mut data = vec![0xEE; usize::try_from(blob.stat().unwrap().len).unwrap()];
    blob.read_at(0, &mut data).unwrap();
    data
}

#[test]
fn holes_take_no_space_and_read_as_zeros() {
    on_each(
        |_| {},
        |store| {
            let incoming = store.begin(&name("sparse")).unwrap();
            incoming.blob().set_len(1 << 36).unwrap();
            incoming.publish(false, WANTED).unwrap();
            let blob = store.open(&name("sparse")).unwrap();
            blob.write_at(1 << 35, b"middle").unwrap();
            let stat = blob.stat().unwrap();
            assert_eq!(stat.len, 1 << 36);
            assert!((1..4 << 20).contains(&stat.allocated), "{stat:?}");
            let mut around = [1; 10];
            blob.read_at((1 << 35) - 2, &mut around).unwrap();
            assert_eq!(&around, b"\0\0middle\0\0");
            blob.set_len((1 << 35) + 3).unwrap();
            blob.set_len((1 << 35) + 6).unwrap();
            blob.read_at((1 << 35) - 2, &mut around).unwrap();
            assert_eq!(&around, b"\0\0mid\0\0\0\0\0");
        },
    );
}

#[test]
fn a_quota_is_kept_and_given_back() {
    let bounds = |config: &mut BlobConfig| {
        config.max_bytes = Some(100);
        config.max_blobs = Some(2);
        config.max_blob_bytes = Some(90);
    };
    let over = |blob: &str, what: &str, needed, max| {
        let (name, what) = (blob.to_owned(), what.to_owned());
        Err(BlobError::OverQuota { name, what, needed, max })
    };
    on_each(bounds, |store| {
        for _ in 0..3 {
            assert_eq!(put(store, "a", &[1; 91]), Err(BlobError::TooLarge { len: 91, max: 90 }));
            put(store, "a", &[1; 40]).unwrap();
            put(store, "b", &[1; 30]).unwrap();
            // The new one beside the old one.
            assert_eq!(put(store, "b", &[1; 31]), over("b", "bytes", 101, 100));
            put(store, "b", &[1; 30]).unwrap();
            assert_eq!(put(store, "c", b""), over("c", "blobs", 3, 2));
            let blob = store.open(&name("a")).unwrap();
            assert_eq!(blob.append(&[1; 31], 31).map(drop), over("a", "bytes", 101, 100));
            assert_eq!(blob.append(&[1; 30], 30).unwrap(), 40);
            assert_eq!(blob.write_at(70, b"x"), over("a", "bytes", 101, 100));
            assert_eq!(blob.set_len(71), over("a", "bytes", 101, 100));
            blob.set_len(0).unwrap();
            blob.take_back(0, 7).unwrap();
            blob.write_at(60, &[1; 10]).unwrap();
            blob.take_back(60, 70).unwrap();
            assert_eq!(blob.stat().unwrap().len, 60);
            blob.set_len(70).unwrap();
            drop(blob);
            for blob in ["a", "b"] {
                store.remove(&name(blob), WANTED).unwrap();
            }
            // All of it is free again.
            put(store, "d", &[1; 90]).unwrap();
            store.remove(&name("d"), WANTED).unwrap();
        }
    });
}

#[test]
fn what_is_there_at_the_start_counts() {
    let dir = tempfile::tempdir().unwrap();
    put(&*open(&BlobConfig::new(dir.path())).unwrap(), "f/a", &[1; 60]).unwrap();
    let mut config = BlobConfig::new(dir.path());
    config.max_bytes = Some(100);
    let store = open(&config).unwrap();
    let error = put(&*store, "b", &[1; 41]).unwrap_err();
    assert!(matches!(error, BlobError::OverQuota { needed: 101, .. }), "{error}");
    put(&*store, "b", &[1; 40]).unwrap();
}

#[test]
fn a_copy_is_of_all_blobs_and_has_their_holes() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(&BlobConfig::new(dir.path())).unwrap();
    let memory = || open(&BlobConfig::in_memory(1 << 40)).unwrap();
    let (first, last) = (memory(), memory());
    put(&*first, "f/a", b"data").unwrap();
    put(&*first, "empty", b"").unwrap();
    put(&*first, "sparse", &[7; 3 * BLOCK as usize]).unwrap();
    first.open(&name("sparse")).unwrap().set_len(1 << 24).unwrap();
    copy(&*first, &*files).unwrap();
    copy(&*files, &*last).unwrap();
    for store in [files, last] {
        assert_eq!(store.list("", "", 9, WANTED).unwrap().blobs.len(), 3);
        assert_eq!(read(&*store.open(&name("f/a")).unwrap()), b"data");
        assert_eq!(read(&*store.open(&name("empty")).unwrap()), b"");
        let sparse = store.open(&name("sparse")).unwrap();
        let stat = sparse.stat().unwrap();
        assert!(stat.len == 1 << 24 && stat.allocated < 4 << 20, "{stat:?}");
        let mut edge = [0xEE; 4];
        sparse.read_at(3 * BLOCK - 2, &mut edge).unwrap();
        assert_eq!(edge, [7, 7, 0, 0]);
    }
}

#[test]
fn appenders_get_places_of_their_own() {
    on_each(
        |_| {},
        |store| {
            put(store, "log", b"").unwrap();
            std::thread::scope(|scope| {
                for writer in 1..=4u8 {
                    scope.spawn(move || {
                        let blob = store.open(&name("log")).unwrap();
                        for _ in 0..200 {
                            let at = blob.append(&[writer; 100], 100).unwrap();
                            let mut own = [0; 100];
                            blob.read_at(at, &mut own).unwrap();
                            assert_eq!(own, [writer; 100]);
                        }
                    });
                }
            });
            let data = read(&*store.open(&name("log")).unwrap());
            assert_eq!(data.len(), 4 * 200 * 100);
            assert!(data.chunks(100).all(|part| part.iter().all(|byte| *byte == part[0])));
        },
    );
}

#[test]
fn a_reader_sees_all_of_a_piece_or_nothing() {
    on_each(
        |_| {},
        |store| {
            let len = 2 * BLOCK as usize + 100;
            put(store, "blob", &vec![0; len]).unwrap();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let blob = store.open(&name("blob")).unwrap();
                    (1..=100u8).for_each(|byte| blob.write_at(0, &vec![byte; len]).unwrap());
                });
                let blob = store.open(&name("blob")).unwrap();
                loop {
                    let is_last = writer.is_finished();
                    let data = read(&*blob);
                    assert!(data.iter().all(|byte| *byte == data[0]), "a mixture");
                    if is_last {
                        break assert_eq!(data[0], 100);
                    }
                }
            });
        },
    );
}

#[test]
fn names_are_listed_in_order_by_pages() {
    on_each(
        |_| {},
        |store| {
            for blob in ["b/2", "a", "b-", "b/1", "c"] {
                put(store, blob, b"xy").unwrap();
            }
            let list = |prefix: &str, after: &str, max| {
                let page = store.list(prefix, after, max, WANTED).unwrap();
                let names: Vec<_> = page.blobs.into_iter().map(|blob| blob.name).collect();
                (names.join(" "), page.more)
            };
            assert_eq!(list("", "", 9), ("a b- b/1 b/2 c".to_owned(), false));
            assert_eq!(list("", "a", 2), ("b- b/1".to_owned(), true));
            assert_eq!(list("b/", "", 1), ("b/1".to_owned(), true));
            assert_eq!(list("b/", "b/1", 1), ("b/2".to_owned(), false));
            assert_eq!(list("b", "b/2", 0), (String::new(), false));
            assert_eq!(list("b", "z", 0), (String::new(), false));
        },
    );
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, usize),
    Append(usize, u64),
    Len(u64),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..3 * BLOCK, 0..100_000usize).prop_map(|(at, len)| Change::Write(at, len)),
        (0..100_000usize, 0..1000u64).prop_map(|(len, more)| Change::Append(len, more)),
        (0..4 * BLOCK).prop_map(Change::Len),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_blob_is_a_vector(changes in proptest::collection::vec(any_change(), 1..8)) {
        on_each(|_| {}, |store| {
            put(store, "blob", b"").unwrap();
            let blob = store.open(&name("blob")).unwrap();
            let mut model = Vec::new();
            for (byte, change) in (1..).zip(&changes) {
                match *change {
                    Change::Write(at, len) => {
                        blob.write_at(at, &vec![byte; len]).unwrap();
                        let end = at as usize + len;
                        model.resize(model.len().max(if len == 0 { 0 } else { end }), 0);
                        model[end - len..][..len].fill(byte);
                    }
                    Change::Append(len, more) => {
                        let at = blob.append(&vec![byte; len], len as u64 + more).unwrap();
                        assert_eq!(at, model.len() as u64);
                        model.resize(model.len() + len, byte);
                        model.resize(model.len() + more as usize, 0);
                    }
                    Change::Len(len) => {
                        blob.set_len(len).unwrap();
                        model.resize(len as usize, 0);
                    }
                }
                assert!(read(&*blob) == model);
            }
            store.remove(&name("blob"), WANTED).unwrap();
        });
    }
}
