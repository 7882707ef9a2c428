//! Changes, conditions and batches, over every store.

use super::*;
use std::time::Instant;

#[test]
fn conditions_of_a_put() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        let when = |condition| database.one(put_when("a", "x", condition));
        assert_eq!(when(Condition::Present), Err(KvError::NotFound));
        assert_eq!(when(Condition::Version(1)), Err(KvError::NotFound));
        assert_eq!(when(Condition::Value(bytes(""))), Err(KvError::NotFound));
        assert_eq!(when(Condition::Absent), Ok(Changed::Put { version: 1 }));
        assert_eq!(when(Condition::Absent), Err(KvError::Exists));
        assert_eq!(when(Condition::Version(7)), Err(KvError::Conflict { version: 1 }));
        assert_eq!(when(Condition::Value(bytes("y"))), Err(KvError::Conflict { version: 1 }));
        assert_eq!(when(Condition::Version(1)), Ok(Changed::Put { version: 2 }));
        assert_eq!(when(Condition::Value(bytes("x"))), Ok(Changed::Put { version: 3 }));
        assert_eq!(when(Condition::Present), Ok(Changed::Put { version: 4 }));
        assert_eq!(when(Condition::Always), Ok(Changed::Put { version: 5 }));
        assert_eq!(database.get("a").unwrap(), Some((5, b"x".to_vec())));
    });
}

#[test]
fn appends_erases_and_takes() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        assert_eq!(database.one(append("a", "1")), Ok(Changed::Put { version: 1 }));
        assert_eq!(database.one(append("a", "23")), Ok(Changed::Put { version: 2 }));
        assert_eq!(database.value("a").unwrap(), b"123");
        assert_eq!(database.one(take("b")), Err(KvError::NotFound));
        assert_eq!(database.one(erase("b")), Ok(Changed::Erased { count: 0 }));
        let taken = Changed::Taken { version: 2, value: bytes("123") };
        assert_eq!(database.one(take("a")), Ok(taken));
        assert_eq!(database.value("a"), None);
        // Empty keys and values are as good as others.
        database.one(put("", "")).unwrap();
        assert_eq!(database.value(""), Some(Vec::new()));
        assert_eq!(database.keys(), [""]);
        let wrong = Change::Erase { key: bytes(""), when: Condition::Version(1), take: false };
        let version = database.get("").unwrap().unwrap().0;
        assert_eq!(database.one(wrong), Err(KvError::Conflict { version }));
        assert_eq!(database.one(erase("")), Ok(Changed::Erased { count: 1 }));
        assert!(database.keys().is_empty());
    });
}

#[test]
fn ranges_and_their_order() {
    use Bound::{Excluded, Included, Unbounded};
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        let keys: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
        database.now(each(keys.iter().map(|key| put(key, key)).collect())).unwrap();
        assert_eq!(database.keys(), keys);
        let range = (Excluded(&b"010"[..]), Included(&b"290"[..]));
        let found = |backwards| -> Vec<_> {
            let records = database.records(range, backwards).unwrap();
            records.into_iter().map(|(key, ..)| String::from_utf8(key).unwrap()).collect()
        };
        assert_eq!(found(false), keys[11..=290]);
        assert!(found(true).iter().rev().eq(&keys[11..=290]));
        for range in [
            (Included(&b"2"[..]), Included(&b"1"[..])),
            (Excluded(b"1"), Excluded(b"1")),
            (Included(b"1"), Excluded(b"1")),
        ] {
            assert_eq!(database.records(range, false), Ok(Vec::new()));
        }
        let mut seen = 0;
        let all = (Unbounded, Unbounded);
        let visit = &mut |_: &[u8], _: Record<'_>| {
            seen += 1;
            if seen == 200 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        database.view().unwrap().scan(all, true, visit).unwrap();
        assert_eq!(seen, 200);

        let erased = |from, to| database.one(erase_range(from, to));
        assert_eq!(erased(Included("2"), Included("1")), Ok(Changed::Erased { count: 0 }));
        assert_eq!(erased(Excluded("010"), Included("020")), Ok(Changed::Erased { count: 10 }));
        assert_eq!(erased(Unbounded, Excluded("100")), Ok(Changed::Erased { count: 90 }));
        assert_eq!(database.keys(), keys[100..]);
        // One in a batch sees what stands before it there.
        let outcomes = database.now(each(vec![
            put("x", "1"),
            erase("100"),
            erase_range(Unbounded, Unbounded),
            put("y", "2"),
        ]));
        assert_eq!(outcomes.unwrap()[2], Ok(Changed::Erased { count: 200 }));
        assert_eq!(database.keys(), ["y"]);
    });
}

#[test]
fn an_atomic_batch_is_made_whole_or_not_at_all() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        database.now(each(vec![put("a", "1"), put("b", "2"), put("c", "3")])).unwrap();
        let before = database.all_records().unwrap();
        let changes = || {
            vec![
                put("a", "9"),
                put("a", "8"),
                erase("b"),
                append("new", "7"),
                append("new", "7"),
                erase_range(Bound::Included("c"), Bound::Unbounded),
                put_when("b", "6", Condition::Present),
            ]
        };
        assert_eq!(database.now(all(changes())), Err(KvError::NotFound));
        assert_eq!(database.all_records().unwrap(), before);
        // Its versions are those of the next one.
        assert_eq!(database.one(put("a", "4")), Ok(Changed::Put { version: 4 }));

        let outcomes = database.now(each(changes())).unwrap();
        let failed: Vec<_> = outcomes.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, false, false, false, false, false, true]);
        assert_eq!(database.keys(), ["a"]);
        assert_eq!(database.value("a").unwrap(), b"8");
    });
}

#[test]
fn preconditions_hold_before_the_first_change() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        let batch = |only_if: Vec<(&str, Condition)>, changes| {
            let only_if = only_if.into_iter().map(|(key, when)| (bytes(key), when)).collect();
            database.now(Batch { only_if, changes, is_atomic: false })
        };
        let one = vec![("a", Condition::Absent), ("b", Condition::Absent)];
        batch(one.clone(), vec![put("a", "1"), put("c", "2")]).unwrap();
        assert_eq!(batch(one, vec![put("c", "3")]), Err(KvError::Exists));
        let other = vec![("a", Condition::Value(bytes("1"))), ("c", Condition::Present)];
        batch(other.clone(), vec![put("a", "4")]).unwrap();
        let version = database.get("a").unwrap().unwrap().0;
        assert_eq!(batch(other, vec![put("c", "3")]), Err(KvError::Conflict { version }));
        assert_eq!(database.value("c").unwrap(), b"2");
    });
}

#[test]
fn lengths_and_sizes_have_bounds() {
    over_every_store(|config| {
        let mut config = config.clone();
        (config.max_key_bytes, config.max_value_bytes) = (3, 5);
        let on_disk_of_fjall = config.kind == StoreKind::Fjall;
        config.max_bytes = if on_disk_of_fjall { None } else { Some(20) };
        let database = Database::open(&config).unwrap();
        let too_long =
            |what: &str, len, most| KvError::TooLong { what: what.to_owned(), len, most };
        let outcome = database.one(put("1234", ""));
        assert_eq!(outcome, Err(too_long("a key", 4, 3)));
        let outcome = database.one(put("123", "123456"));
        assert_eq!(outcome, Err(too_long("a value", 6, 5)));
        database.one(put("123", "12345")).unwrap();
        let outcome = database.one(append("123", "6"));
        assert_eq!(outcome, Err(too_long("a value", 6, 5)));
        let outcome = database.now(all(vec![put("1234", "")]));
        assert_eq!(outcome, Err(too_long("a key", 4, 3)));
        if on_disk_of_fjall {
            return;
        }
        database.one(put("456", "12345")).unwrap();
        let stats = database.stats();
        assert_eq!((stats.keys, stats.bytes), (2, 16));
        let full = Err(KvError::Full("it may have 20 bytes".into()));
        assert_eq!(database.one(put("7", "1234")), full);
        assert_eq!(database.one(append("7", "1234")), full);
        // What takes no more than before may be set, and erasing makes room.
        database.one(put("456", "54321")).unwrap();
        database.one(put("7", "123")).unwrap();
        assert_eq!(database.one(put("8", "")), full);
        database.now(all(vec![erase("123"), put("8", "123")])).unwrap();
        assert_eq!(database.stats().bytes, 8 + 4 + 4);
    });
}

#[test]
fn what_was_committed_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    for config in &every_store(dir.path())[2..] {
        let version = {
            let database = Database::open(config).unwrap();
            database.now(each(vec![put("a", "1"), put("b", "2"), erase("b")])).unwrap();
            database.apply(each(vec![put("c", "3")]), 0, Some(Durability::Synced), None).unwrap();
            database.get("c").unwrap().unwrap().0
        };
        let database = Database::open(config).unwrap();
        assert_eq!(database.keys(), ["a", "c"]);
        assert_eq!(database.one(put("d", "")), Ok(Changed::Put { version: version + 1 }));
        if config.kind == StoreKind::Redb {
            let stats = database.stats();
            assert_eq!((stats.keys, stats.bytes), (3, 5));
        }
    }
}

#[test]
fn views_on_disk_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    for config in &every_store(dir.path())[2..] {
        let database = Database::open(config).unwrap();
        database.now(each(vec![put("a", "1"), put("b", "2")])).unwrap();
        let view = database.view().unwrap();
        database.now(each(vec![put("a", "3"), erase("b"), put("c", "4")])).unwrap();
        let mut seen = Vec::new();
        view.scan((Bound::Unbounded, Bound::Unbounded), false, &mut |key, record| {
            seen.push((key.to_vec(), record.value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
        assert_eq!(database.keys(), ["a", "c"]);
    }
}

#[test]
fn a_put_without_a_batch_is_as_one_with_it() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        let put_alone = |key: &str, value: &str| database.put(key.as_bytes(), value.as_bytes());
        let first = database.one(put("a", "1"));
        let Ok(Changed::Put { version }) = first else { panic!("{first:?}") };
        if config.kind != StoreKind::Memory {
            assert_eq!(put_alone("a", "2"), Ok(None), "a disk is for the thread that writes");
            return;
        }
        assert_eq!(put_alone("a", "22"), Ok(Some(version + 1)));
        assert_eq!(put_alone("b", ""), Ok(Some(version + 2)));
        assert_eq!(database.one(put("c", "3")), Ok(Changed::Put { version: version + 3 }));
        assert_eq!(database.get("a"), Ok(Some((version + 1, b"22".to_vec()))));
        let stats = database.stats();
        assert_eq!((stats.version, stats.keys, stats.bytes), (version + 3, 3, 6));
        assert_eq!((stats.commits, stats.changes), (4, 4));

        let long = "k".repeat(config.max_key_bytes + 1);
        assert!(matches!(put_alone(&long, ""), Err(KvError::TooLong { .. })));
        let bounded = StoreConfig { max_bytes: Some(10), ..config.clone() };
        let bounded = Database::open(&bounded).unwrap();
        assert_eq!(bounded.put(b"a", b"1"), Ok(None), "all of it has to be counted");
    });
}

#[test]
fn a_deadline_that_has_passed() {
    over_every_store(|config| {
        let database = Database::open(config).unwrap();
        let late = database.apply(each(vec![put("a", "1")]), 0, None, Some(Instant::now()));
        assert_eq!(late, Err(KvError::Deadline));
        database.flush(None).unwrap();
        assert_eq!(database.value("a"), None);
    });
}
