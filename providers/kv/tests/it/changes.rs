//! Changes of keys: alone, under conditions, in batches.

use margo_provider_kv::{Changed, Condition, Durability, KvError, Selection};

use crate::common::{PATIENCE, client_of, on_each, refusal};

#[test]
fn keys_are_put_appended_to_and_erased() {
    on_each(|pair| {
        let kv = &pair.kv;
        assert_eq!(refusal(kv.get(b"a", PATIENCE)), KvError::NotFound);
        assert!(!kv.exists(b"a", PATIENCE).unwrap());
        let first = kv.put(b"a", b"one", PATIENCE).unwrap();
        let second = kv.append(b"a", b", two", PATIENCE).unwrap();
        assert!(first < second);
        let found = kv.get(b"a", PATIENCE).unwrap();
        assert_eq!((found.version, &*found.value.0), (second, &b"one, two"[..]));
        let meta = kv.measure(b"a", PATIENCE).unwrap().unwrap();
        assert_eq!((meta.version, meta.len), (second, 8));
        kv.append(b"new", b"x", PATIENCE).unwrap();
        assert_eq!(kv.get(b"new", PATIENCE).unwrap().value.0, b"x");

        // Empty keys and values are keys and values.
        kv.put(b"", b"", PATIENCE).unwrap();
        assert_eq!(kv.get(b"", PATIENCE).unwrap().value.0, b"");

        assert!(kv.erase(b"a", PATIENCE).unwrap());
        assert!(!kv.erase(b"a", PATIENCE).unwrap());
        assert_eq!(kv.take(b"new", PATIENCE).unwrap().value.0, b"x");
        assert_eq!(refusal(kv.take(b"new", PATIENCE)), KvError::NotFound);
        kv.with_durability(Durability::Synced).put(b"b", b"", PATIENCE).unwrap();
        kv.flush(PATIENCE).unwrap();
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 2);
    });
}

#[test]
fn conditions_hold_or_nothing_is_changed() {
    on_each(|pair| {
        let kv = &pair.kv;
        let put = |value: &[u8], when| kv.put_if(b"k", value, when, PATIENCE);
        assert_eq!(refusal(put(b"x", Condition::Present)), KvError::NotFound);
        assert_eq!(refusal(put(b"x", Condition::Version(1))), KvError::NotFound);
        let version = put(b"1", Condition::Absent).unwrap();
        assert_eq!(refusal(put(b"2", Condition::Absent)), KvError::Exists);
        let conflict = KvError::Conflict { version };
        assert_eq!(refusal(put(b"2", Condition::Version(version + 1))), conflict);
        assert_eq!(refusal(put(b"2", Condition::Value(b"2"))), conflict);
        assert_eq!(refusal(kv.erase_if(b"k", Condition::Version(version + 1), PATIENCE)), conflict);
        assert_eq!(kv.get(b"k", PATIENCE).unwrap().value.0, b"1");
        put(b"2", Condition::Value(b"1")).unwrap();
        let version = put(b"3", Condition::Present).unwrap();
        assert!(kv.erase_if(b"k", Condition::Version(version), PATIENCE).unwrap());
    });
}

#[test]
fn compare_and_swap_counts_each_of_many_callers() {
    on_each(|pair| {
        pair.kv.put(b"n", &0_u64.to_be_bytes(), PATIENCE).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let kv = pair.kv.clone();
                scope.spawn(move || {
                    for _ in 0..25 {
                        loop {
                            let found = kv.get(b"n", PATIENCE).unwrap();
                            let next = u64::from_be_bytes((*found.value.0).try_into().unwrap()) + 1;
                            let when = Condition::Version(found.version);
                            if kv.put_if(b"n", &next.to_be_bytes(), when, PATIENCE).is_ok() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(pair.kv.get(b"n", PATIENCE).unwrap().value.0, 100_u64.to_be_bytes());
    });
}

#[test]
fn each_value_that_is_taken_goes_to_one_caller() {
    on_each(|pair| {
        for number in 0..50_u8 {
            pair.kv.put(&[number], &[number], PATIENCE).unwrap();
        }
        let taken: Vec<u8> = std::thread::scope(|scope| {
            let takes: Vec<_> = (0..4)
                .map(|_| {
                    let kv = pair.kv.clone();
                    let take = move |key: u8| Some(kv.take(&[key], PATIENCE).ok()?.value.0[0]);
                    scope.spawn(move || (0..50).filter_map(take).collect::<Vec<_>>())
                })
                .collect();
            takes.into_iter().flat_map(|take| take.join().unwrap()).collect()
        });
        assert_eq!(taken.len(), 50);
    });
}

#[test]
fn a_batch_has_a_result_for_each_change_and_an_atomic_one_all_or_nothing() {
    on_each(|pair| {
        let kv = &pair.kv;
        kv.put(b"old", b"value", PATIENCE).unwrap();
        let batch = || {
            let batch = kv.batch().put(b"a", b"1").put_if(b"old", b"2", Condition::Absent);
            batch.take(b"old").append(b"b", b"3")
        };
        assert_eq!(refusal(batch().atomic().run(PATIENCE)), KvError::Exists);
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 1);
        let when = Condition::Value(&b"other"[..]);
        assert!(matches!(
            refusal(batch().only_if(b"old", when).run(PATIENCE)),
            KvError::Conflict { .. }
        ));
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 1);

        let outcomes = batch().only_if(b"old", Condition::Present).run(PATIENCE).unwrap();
        assert!(matches!(outcomes[0], Ok(Changed::Put { .. })), "{outcomes:?}");
        assert_eq!(outcomes[1], Err(KvError::Exists));
        match &outcomes[2] {
            Ok(Changed::Taken { value, .. }) => assert_eq!(value.0, b"value"),
            other => panic!("{other:?}"),
        }
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 2);
        assert_eq!(kv.batch().run(PATIENCE).unwrap(), []);
    });
}

#[test]
fn ranges_are_erased() {
    on_each(|pair| {
        let kv = &pair.kv;
        for key in [&b"a"[..], b"b", b"b1", b"c", b"d"] {
            kv.put(key, b"", PATIENCE).unwrap();
        }
        assert_eq!(kv.erase_range(&b"b"[..]..&b"c"[..], PATIENCE).unwrap(), 2);
        assert_eq!(kv.erase_range(&b"x"[..].., PATIENCE).unwrap(), 0);
        for range in [(b"d", b"a"), (b"c", b"c")] {
            let (from, to) = (&range.0[..], &range.1[..]);
            assert_eq!(kv.erase_range(from..to, PATIENCE).unwrap(), 0);
        }
        assert_eq!(kv.erase_range(.., PATIENCE).unwrap(), 3);
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 0);
    });
}

#[test]
fn documents_have_numbers_that_are_not_used_again() {
    on_each(|pair| {
        let events = pair.kv.collection("events");
        let other = pair.kv.collection("events2");
        other.append(&[b"of another"], PATIENCE).unwrap();
        assert_eq!(events.append(&[b"a", b"b", b"c"], PATIENCE).unwrap(), 0..3);
        assert!(events.erase(2, PATIENCE).unwrap());
        assert_eq!(events.append(&[b"d"], PATIENCE).unwrap(), 3..4);
        assert_eq!(refusal(events.update(2, b"", PATIENCE)), KvError::NotFound);
        events.update(1, b"B", PATIENCE).unwrap();
        assert_eq!(events.load(1, PATIENCE).unwrap().value.0, b"B");
        assert_eq!(events.measure(3, PATIENCE).unwrap().unwrap().len, 1);
        assert_eq!(events.count(PATIENCE).unwrap(), 3);
        let all: Vec<_> = events.documents(1, PATIENCE).map(Result::unwrap).collect();
        assert_eq!(all, [(1, b"B".to_vec()), (3, b"d".to_vec())]);
        events.clear(PATIENCE).unwrap();
        assert_eq!(events.count(PATIENCE).unwrap(), 0);
        assert_eq!(other.count(PATIENCE).unwrap(), 1);
        let error = refusal(pair.kv.collection("a\0").append(&[b""], PATIENCE));
        assert!(matches!(error, KvError::Invalid(_)), "{error}");
    });
}

#[test]
fn documents_of_many_callers_all_have_a_number() {
    on_each(|pair| {
        let clients: Vec<_> = (0..3).map(|_| client_of(&pair.service)).collect();
        std::thread::scope(|scope| {
            for (_, kv) in &clients {
                let events = kv.collection("events");
                scope.spawn(move || {
                    for _ in 0..10 {
                        events.append(&[b"x", b"y"], PATIENCE).unwrap();
                    }
                });
            }
        });
        let ids: Vec<_> = pair.kv.collection("events").documents(0, PATIENCE).collect();
        let ids: Vec<_> = ids.into_iter().map(|document| document.unwrap().0).collect();
        assert_eq!(ids, (0..60).collect::<Vec<_>>());
        clients.into_iter().for_each(|(client, _)| client.finalize_and_wait().unwrap());
    });
}
