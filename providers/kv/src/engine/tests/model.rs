//! Random batches over every store, beside a map that says what they have to come to.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Map = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// The simplest database that there is.
#[derive(Default, Clone)]
struct Model {
    map: Map,
    version: u64,
}

impl Model {
    fn check(&self, key: &[u8], when: &Condition) -> Result<(), KvError> {
        match (when, self.map.get(key)) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {
                Ok(())
            }
            (Condition::Absent, Some(_)) => Err(KvError::Exists),
            (_, None) => Err(KvError::NotFound),
            (Condition::Version(wanted), Some((version, _))) if wanted == version => Ok(()),
            (Condition::Value(wanted), Some((_, value))) if wanted.0 == *value => Ok(()),
            (_, Some((version, _))) => Err(KvError::Conflict { version: *version }),
        }
    }

    fn change(&mut self, change: Change) -> Result<Changed, KvError> {
        match change {
            Change::Put { key, value, when } => {
                self.check(&key, &when)?;
                self.version += 1;
                self.map.insert(key.0, (self.version, value.0));
                Ok(Changed::Put { version: self.version })
            }
            Change::Append { key, value, when } => {
                self.check(&key, &when)?;
                self.version += 1;
                let record = self.map.entry(key.0).or_default();
                record.0 = self.version;
                record.1.extend_from_slice(&value);
                Ok(Changed::Put { version: self.version })
            }
            Change::Erase { key, when, take } => {
                self.check(&key, &when)?;
                let Some((version, value)) = self.map.remove(&*key) else {
                    let nothing = Changed::Erased { count: 0 };
                    return if take { Err(KvError::NotFound) } else { Ok(nothing) };
                };
                self.version += 1;
                let taken = Changed::Taken { version, value: Bytes(value) };
                Ok(if take { taken } else { Changed::Erased { count: 1 } })
            }
            Change::EraseRange(KeyRange { from, to }) => {
                let range = (from.as_ref().map(|key| &key.0), to.as_ref().map(|key| &key.0));
                let before = self.map.len();
                self.map.retain(|key, _| !std::ops::RangeBounds::contains(&range, &key));
                let count = (before - self.map.len()) as u64;
                self.version += count;
                Ok(Changed::Erased { count })
            }
        }
    }

    fn apply(&mut self, batch: Batch) -> Result<Outcomes, KvError> {
        batch.only_if.iter().try_for_each(|(key, when)| self.check(key, when))?;
        let before = self.clone();
        let outcomes: Outcomes = batch.changes.into_iter().map(|it| self.change(it)).collect();
        match outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
            Some(error) if batch.is_atomic => {
                *self = before;
                Err(error.clone())
            }
            _ => Ok(outcomes),
        }
    }
}

fn key() -> impl Strategy<Value = Bytes> {
    // Few, so that they meet; one is longer than what lies in a node of a tree.
    prop_oneof![
        8 => "[a-c]{0,2}".prop_map(bytes),
        1 => Just(bytes([b'b'; 40])),
    ]
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(0..3_u8, 0..3).prop_map(Bytes)
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::Always),
        1 => Just(Condition::Absent),
        2 => Just(Condition::Present),
        2 => (0..40_u64).prop_map(Condition::Version),
        1 => value().prop_map(Condition::Value),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Bytes>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (key(), value(), condition())
            .prop_map(|(key, value, when)| Change::Put { key, value, when }),
        3 => (key(), value(), condition())
            .prop_map(|(key, value, when)| Change::Append { key, value, when }),
        3 => (key(), condition(), any::<bool>())
            .prop_map(|(key, when, take)| Change::Erase { key, when, take }),
        1 => (bound(), bound()).prop_map(|(from, to)| Change::EraseRange(KeyRange { from, to })),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let only_if = prop::collection::vec((key(), condition()), 0..2);
    (any::<bool>(), only_if, prop::collection::vec(change(), 0..6))
        .prop_map(|(is_atomic, only_if, changes)| Batch { is_atomic, only_if, changes })
}

/// Runs the batches; after `reopen_at` of them a store on disk is closed and opened.
fn compare(
    config: &StoreConfig,
    batches: &[Batch],
    reopen_at: usize,
    range: (Bound<Bytes>, Bound<Bytes>),
) {
    let mut model = Model::default();
    let mut database = Database::open(config).unwrap();
    for (at, batch) in batches.iter().enumerate() {
        if at == reopen_at && config.kind != StoreKind::Memory {
            drop(database);
            database = Database::open(config).unwrap();
        }
        assert_eq!(database.now(batch.clone()), model.apply(batch.clone()), "{batch:?}");
    }
    let records = model.map.iter().map(|(key, it)| (key.clone(), it.0, it.1.clone()));
    let expected: Vec<_> = records.collect();
    assert_eq!(database.all_records().unwrap(), expected);
    for (key, version, value) in &expected {
        assert_eq!(database.get(key).unwrap(), Some((*version, value.clone())));
    }
    let there = expected
        .iter()
        .map(|(key, version, value)| (key.clone(), Ok(Some((*version, value.clone())))));
    let missing = ["no key", "", "aa"].map(|key| key.as_bytes().to_vec()).into_iter();
    let missing = missing.filter(|key| !model.map.contains_key(key)).map(|key| (key, Ok(None)));
    let (keys, found): (Vec<_>, Vec<_>) = missing.chain(there).unzip();
    assert_eq!(database.get_each(&keys), found);
    // As many as are looked up together.
    assert_eq!(database.get_each(&vec![keys; 64].concat()), vec![found; 64].concat());
    let owned = (range.0.as_ref().map(|key| &key[..]), range.1.as_ref().map(|key| &key[..]));
    let is_in = |record: &&(Vec<u8>, u64, Vec<u8>)| {
        std::ops::RangeBounds::<[u8]>::contains(&owned, record.0.as_slice())
    };
    let mut within: Vec<_> = expected.iter().filter(is_in).cloned().collect();
    assert_eq!(database.records(owned, false).unwrap(), within);
    within.reverse();
    assert_eq!(database.records(owned, true).unwrap(), within);
    if config.kind != StoreKind::Fjall {
        let stats = database.stats();
        let bytes: usize = expected.iter().map(|(key, _, value)| key.len() + value.len()).sum();
        assert_eq!((stats.keys, stats.bytes), (expected.len() as u64, bytes as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn each_store_does_what_the_model_does(
        batches in prop::collection::vec(batch(), 0..16),
        reopen_at in 0..16_usize,
        range in (bound(), bound()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        for mut config in every_store(dir.path()) {
            // Crashes have tests of their own.
            config.sync = crate::SyncPolicy::Never;
            compare(&config, &batches, reopen_at, range.clone());
        }
    }
}
