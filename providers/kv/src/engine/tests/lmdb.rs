//! Tests of LMDB alone: its directory, its map, read transactions for one thread at a time.

use std::sync::Barrier;

use super::*;
use crate::Integrity;
use crate::engine::Health;
use crate::engine::store::interface::Store;
use crate::engine::store::lmdb::{LmdbStore, Sizes};

fn config(path: &Path) -> StoreConfig {
    StoreConfig::new(StoreKind::Lmdb, path)
}

fn refusal(path: &Path) -> String {
    let error = Database::open(&config(path)).map(drop).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    error
}

fn open_with(path: &Path, sizes: Sizes) -> Database {
    let own = path.to_owned();
    let open = move |health: &Health| -> Result<Box<dyn Store>, KvError> {
        Ok(Box::new(LmdbStore::open_with(&own, sizes, Integrity::Get, health)?))
    };
    Database::open_with(Box::new(open), &config(path)).unwrap()
}

#[test]
fn files_of_others_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    std::fs::write(place("text"), "a text").unwrap();
    assert!(refusal(&place("text")).contains("is a file"));
    std::fs::create_dir(place("others")).unwrap();
    std::fs::write(place("others/text"), "a text").unwrap();
    assert!(refusal(&place("others")).contains("with other files"));
    assert!(refusal(&place("missing/folder")).contains("No such file"));

    std::fs::create_dir(place("garbage")).unwrap();
    std::fs::write(place("garbage/data.mdb"), [1; 10_000]).unwrap();
    assert!(refusal(&place("garbage")).contains("is no database of LMDB"));

    let open = Database::open(&config(&place("open"))).unwrap();
    assert!(refusal(&place("open")).contains("is open already"));
    drop(open);
    drop(Database::open(&config(&place("open"))).unwrap());
}

#[test]
fn a_key_is_no_longer_than_the_store_holds() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(&config(&dir.path().join("keys"))).unwrap();
    let put_of = |len: usize| database.one(put("k".repeat(len), ""));
    put_of(0).unwrap();
    put_of(510).unwrap();
    assert!(matches!(put_of(511), Err(KvError::TooLong { len: 511, most: 510, .. })));
    assert_eq!(database.keys().len(), 2);
}

#[test]
fn the_map_grows_and_views_of_before_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let database = open_with(&path, Sizes { map_bytes: 1 << 20, ..Sizes::default() });
    database.one(put("first", "1")).unwrap();
    let before = database.view().unwrap();
    let value = |number: usize| format!("{number:02}").repeat(50_000);
    for number in 0..50 {
        database.one(put(format!("key {number:02}"), value(number))).unwrap();
    }
    let error = before.get(b"first", &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("was closed meanwhile"), "{error}");
    drop(database);
    let database = Database::open(&config(&path)).unwrap();
    assert_eq!((database.stats().keys, database.stats().bytes), (51, 6 + 50 * 100_006));
    for number in 0..50 {
        assert_eq!(database.value(format!("key {number:02}")), Some(value(number).into_bytes()));
    }
}

#[test]
fn a_damaged_record_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged");
    let database = Database::open(&config(&path)).unwrap();
    database.now(all(vec![put("a", "a value that is known"), put("b", "2")])).unwrap();
    drop(database);
    let data = path.join("data.mdb");
    let mut bytes = std::fs::read(&data).unwrap();
    let known = b"value that is known";
    let at = bytes.windows(known.len()).position(|found| found == known).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    {
        let database = Database::open(&config(&path)).unwrap();
        assert!(matches!(database.get("a"), Err(KvError::Corrupted(_))));
        assert_eq!(database.value("b"), Some(b"2".to_vec()));
    }
    let config = StoreConfig { integrity: Integrity::Open, ..config(&path) };
    assert!(matches!(Database::open(&config), Err(KvError::Corrupted(_))));
}

#[test]
fn more_threads_than_transactions_read_one_view() {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(&config(&dir.path().join("threads"))).unwrap();
    let puts = |value: &str| (0..2000).map(|n| put(format!("{n:04}"), value)).collect();
    database.now(all(puts(&"1".repeat(100)))).unwrap();
    let (view, begin) = (database.view().unwrap(), Barrier::new(25));
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let (view, begin) = (&view, &begin);
            scope.spawn(move || {
                begin.wait();
                for number in 0..2000 {
                    let number = (number + 83 * thread) % 2000;
                    let is_there = view.get(format!("{number:04}").as_bytes(), &mut |found| {
                        assert_eq!((found.value.len(), found.value[0]), (100, b'1'));
                    });
                    assert_eq!(is_there, Ok(true));
                }
                let (mut count, backwards) = (0, thread % 2 == 0);
                let all = (Bound::Unbounded, Bound::Unbounded);
                view.scan(all, backwards, &mut |key, found| {
                    let number = if backwards { 1999 - count } else { count };
                    assert_eq!(key, format!("{number:04}").as_bytes());
                    assert_eq!(found.value[0], b'1');
                    count += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(count, 2000);
            });
        }
        begin.wait();
        for value in ["2", "3"] {
            database.now(all(puts(value))).unwrap();
        }
    });
    assert_eq!(database.value("1000"), Some(b"3".to_vec()));
}

#[test]
fn where_readers_are_scarce_the_oldest_view_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get().min(8);
    // Two whole views, and a small one.
    let readers = u32::try_from(2 * cpus + 1).unwrap();
    let database = open_with(&dir.path().join("x"), Sizes { readers, ..Sizes::default() });
    let views: Vec<_> = (0..10)
        .map(|number| {
            database.one(put("a", number.to_string())).unwrap();
            assert_eq!(database.value("a"), Some(number.to_string().into_bytes()));
            database.view().unwrap()
        })
        .collect();
    let shown = views.iter().map(|view| view.get(b"a", &mut |_| ()));
    let (left, closed): (Vec<_>, Vec<_>) = shown.partition(Result::is_ok);
    assert!(left.len() >= 2 && !closed.is_empty(), "{left:?} {closed:?}");
    for error in closed {
        assert!(error.unwrap_err().to_string().contains("was closed meanwhile"));
    }
    assert_eq!(views[9].get(b"a", &mut |found| assert_eq!(found.value, b"9")), Ok(true));
}
