//! Tests of databases, most of them over every store.

mod batches;
mod copies;
mod faults;
mod full_disk;
mod killed;
#[cfg(feature = "lmdb")]
mod lmdb;
mod model;
mod queue;

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use margo::encoding::Bytes;

use super::{Database, Record};
use crate::model::{Batch, Change, Changed, Condition, Durability, KeyRange, Outcomes};
use crate::{KvError, MemoryOrder, StoreConfig, StoreKind};

fn bytes(text: impl AsRef<[u8]>) -> Bytes {
    Bytes(text.as_ref().to_vec())
}

fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Change {
    put_when(key, value, Condition::Always)
}

fn put_when(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, when: Condition) -> Change {
    Change::Put { key: bytes(key), value: bytes(value), when }
}

fn append(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Change {
    Change::Append { key: bytes(key), value: bytes(value), when: Condition::Always }
}

fn erase(key: impl AsRef<[u8]>) -> Change {
    Change::Erase { key: bytes(key), when: Condition::Always, take: false }
}

fn take(key: impl AsRef<[u8]>) -> Change {
    Change::Erase { key: bytes(key), when: Condition::Always, take: true }
}

fn erase_range(from: Bound<&str>, to: Bound<&str>) -> Change {
    Change::EraseRange(KeyRange { from: from.map(bytes), to: to.map(bytes) })
}

fn each(changes: Vec<Change>) -> Batch {
    Batch { changes, ..Batch::default() }
}

fn all(changes: Vec<Change>) -> Batch {
    Batch { is_atomic: true, ..each(changes) }
}

/// Settings of every store, those on disk under a directory.
fn every_store(dir: &Path) -> Vec<StoreConfig> {
    vec![
        StoreConfig::memory(MemoryOrder::Hashed),
        StoreConfig::memory(MemoryOrder::Ordered),
        StoreConfig::new(StoreKind::Redb, dir.join("redb")),
        StoreConfig::new(StoreKind::Fjall, dir.join("fjall")),
        #[cfg(feature = "lmdb")]
        StoreConfig::new(StoreKind::Lmdb, dir.join("lmdb")),
    ]
}

/// Runs a test over every store.
fn over_every_store(test: impl Fn(&StoreConfig)) {
    let dir = tempfile::tempdir().unwrap();
    for config in every_store(dir.path()) {
        println!("over {:?}", (config.kind, config.order));
        test(&config);
    }
}

/// The batch of a round of a writer: two keys that have to have the same number, one of them of
/// this round alone, so that it is seen which rounds are there.
fn round(writer: u64, number: u64) -> Batch {
    let text = number.to_string().repeat(20);
    all(vec![put(format!("{writer} last"), &text), put(format!("{writer} of {number:06}"), &text)])
}

/// Checks that the database has the rounds of a writer up to a number, each whole, and returns the
/// number.
fn rounds(database: &Database, writer: u64) -> u64 {
    let (from, to) = (format!("{writer} "), format!("{writer}!"));
    let range = (Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
    let records = database.records(range, false).unwrap();
    let Some(((_, _, last), rest)) = records.split_first() else { return 0 };
    for (number, (key, _, value)) in (1..).zip(rest) {
        assert_eq!(*key, format!("{writer} of {number:06}").into_bytes());
        assert_eq!(*value, number.to_string().repeat(20).into_bytes());
    }
    assert_eq!(*last, rest.len().to_string().repeat(20).into_bytes());
    rest.len() as u64
}

/// So many, and a hundred times that in a long run.
fn times(count: u64) -> u64 {
    if std::env::var_os("MARGO_CI_LONG").is_some() { 100 * count } else { count }
}

/// A version and a value.
type Versioned = (u64, Vec<u8>);

/// A key, its version and its value.
type Found = (Vec<u8>, u64, Vec<u8>);

impl Database {
    fn now(&self, batch: Batch) -> Result<Outcomes, KvError> {
        self.apply(batch, 0, None, None)
    }

    /// The outcome of a single change.
    fn one(&self, change: Change) -> Result<Changed, KvError> {
        self.now(each(vec![change])).unwrap().pop().unwrap()
    }

    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<(u64, Vec<u8>)>, KvError> {
        let mut found = None;
        let view = self.view()?;
        let is_there = view.get(key.as_ref(), &mut |Record { version, value }| {
            found = Some((version, value.to_vec()));
        })?;
        assert_eq!(is_there, found.is_some());
        Ok(found)
    }

    /// Versions and values of keys, in their order.
    fn get_each(&self, keys: &[Vec<u8>]) -> Vec<Result<Option<Versioned>, KvError>> {
        let mut all = vec![Ok(None); keys.len()];
        // Numbers are the caller's.
        let numbered = (0..).map(|at| at + 100).zip(keys.iter().map(Vec::as_slice));
        let numbered: Vec<_> = numbered.collect();
        self.view().unwrap().get_each(&numbered, &mut |number, record| {
            let own = |Record { version, value }: Record<'_>| Some((version, value.to_vec()));
            let before = std::mem::replace(&mut all[number - 100], record.map(own));
            assert_eq!(before, Ok(None), "told twice");
        });
        all
    }

    fn value(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.get(key).unwrap().map(|(_, value)| value)
    }

    /// Keys, versions and values of a range.
    fn records(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
    ) -> Result<Vec<Found>, KvError> {
        let mut records = Vec::new();
        self.view()?.scan(range, backwards, &mut |key, Record { version, value }| {
            records.push((key.to_vec(), version, value.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok(records)
    }

    fn all_records(&self) -> Result<Vec<Found>, KvError> {
        self.records((Bound::Unbounded, Bound::Unbounded), false)
    }

    fn keys(&self) -> Vec<String> {
        let records = self.all_records().unwrap().into_iter();
        records.map(|(key, ..)| String::from_utf8(key).unwrap()).collect()
    }
}
