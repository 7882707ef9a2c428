//! A store in memory without an order: hash tables, each with a lock, so that readers on several
//! cores seldom meet.
//!
//! | state | who writes | who reads |
//! |---|---|---|
//! | a table | a commit, with its lock | gets and scans, with its lock; rows are looked at without |
//! | `commits` | held by a commit from first to last write | held by a scan while it collects rows |
//!
//! So a scan sees all writes of a commit or none. It walks over every key and sorts those in its
//! range, and commits wait until it has collected them: for keys that are listed often there is
//! [`ordered`](super::ordered).

use std::hash::BuildHasher;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::interface::{Keeps, Store, Usage, Writes};
use super::row::{Row, Rows};
use crate::KvError;
use crate::engine::view::{Bounds, Record, View, get_one_by_one};

const TABLES: usize = 64;

#[derive(Debug)]
struct Tables {
    hasher: RandomState,
    tables: [RwLock<HashTable<Row>>; TABLES],
    commits: Mutex<()>,
}

/// The store.
#[derive(Debug)]
pub(crate) struct HashedStore {
    tables: Arc<Tables>,
    version: u64,
    usage: Usage,
    scratch: Vec<u8>,
}

impl HashedStore {
    pub(crate) fn new() -> Self {
        let tables = std::array::from_fn(|_| RwLock::default());
        let tables = Tables { hasher: RandomState::default(), tables, commits: Mutex::default() };
        let usage = Usage::default();
        Self { tables: Arc::new(tables), version: 0, usage, scratch: Vec::new() }
    }
}

impl Tables {
    /// The place of the table that has the keys of a hash.
    fn place_of(hash: u64) -> usize {
        // The table itself uses the lowest bits and the highest seven.
        (hash >> 48) as usize % TABLES
    }

    fn table_of(&self, hash: u64) -> &RwLock<HashTable<Row>> {
        &self.tables[Self::place_of(hash)]
    }

    /// The rows of a range, at one moment.
    fn rows(&self, range: Bounds<'_>) -> Rows {
        let whole = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = Vec::new();
        for table in &self.tables {
            let table = table.read().unwrap_or_else(PoisonError::into_inner);
            let is_in = |row: &&Row| RangeBounds::<[u8]>::contains(&range, row.key());
            rows.extend(table.iter().filter(is_in).cloned());
        }
        drop(whole);
        Rows::sorted(rows)
    }

    /// Sets or erases a record.
    fn write(&self, key: &[u8], row: Option<Row>, usage: &mut Usage) {
        usage.add(row.as_ref().map(Row::bytes));
        usage.remove(self.replace(key, row).as_ref().map(Row::bytes));
    }

    /// Sets or erases a record, and returns the one before it.
    fn replace(&self, key: &[u8], row: Option<Row>) -> Option<Row> {
        let hash = self.hasher.hash_one(key);
        let mut table = self.table_of(hash).write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |row: &Row| row.key() == key;
        match (table.entry(hash, is_same, |row| self.hasher.hash_one(row.key())), row) {
            (Entry::Occupied(mut old), Some(row)) => Some(std::mem::replace(old.get_mut(), row)),
            (Entry::Occupied(old), None) => Some(old.remove().0),
            (Entry::Vacant(place), Some(row)) => {
                place.insert(row);
                None
            }
            (Entry::Vacant(_), None) => None,
        }
    }
}

impl Store for HashedStore {
    fn version(&self) -> u64 {
        self.version
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn view(&self) -> Result<Arc<dyn View>, KvError> {
        Ok(self.tables.clone())
    }

    fn commit(&mut self, writes: Writes, version: u64, _synced: bool) -> Result<(), KvError> {
        let Self { tables, usage, scratch, .. } = self;
        let _whole = tables.commits.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, written) in writes {
            let row = written.map(|written| Row::new(&key, written.record(), scratch));
            tables.write(&key, row, usage);
        }
        self.version = version;
        Ok(())
    }

    fn put(&mut self, key: &[u8], record: Record<'_>) -> bool {
        let Self { tables, usage, scratch, .. } = self;
        let row = Row::new(key, record, scratch);
        let _whole = tables.commits.lock().unwrap_or_else(PoisonError::into_inner);
        tables.write(key, Some(row), usage);
        self.version = record.version;
        true
    }

    fn snapshot(&self) -> Result<Arc<dyn View>, KvError> {
        Ok(Arc::new(self.tables.rows((Bound::Unbounded, Bound::Unbounded))))
    }

    fn sync(&mut self) -> Result<(), KvError> {
        Ok(())
    }

    fn keeps(&self) -> Keeps {
        Keeps::Nothing
    }
}

impl View for Tables {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError> {
        let hash = self.hasher.hash_one(key);
        let table = self.table_of(hash).read().unwrap_or_else(PoisonError::into_inner);
        let row = table.find(hash, |row| row.key() == key).cloned();
        drop(table);
        Ok(row.inspect(|row| found(row.record())).is_some())
    }

    /// Looks keys up in two rounds. Rows lie anywhere in memory, and nearly all of the time of a
    /// lookup is the wait for it. In the first round no key needs what another one has found, so
    /// the processor waits for those of several at the same time.
    fn get_each(
        &self,
        keys: &[(usize, &[u8])],
        found: &mut dyn FnMut(usize, Result<Record<'_>, KvError>),
    ) {
        if keys.len() < TABLES {
            // All locks would take longer than those of these keys.
            return get_one_by_one(self, keys, found);
        }
        let hashes: Vec<_> = keys.iter().map(|(_, key)| self.hasher.hash_one(*key)).collect();
        // No commit holds more than one of these locks at a time.
        let tables = self.tables.each_ref();
        let tables = tables.map(|table| table.read().unwrap_or_else(PoisonError::into_inner));
        let table = |hash: u64| &tables[Self::place_of(hash)];
        for hash in &hashes {
            // Of the keys that the table has under the hash, most often one, the first.
            std::hint::black_box(
                table(*hash).find(*hash, |_| true).map(|row| row.record().version),
            );
        }
        for ((number, key), hash) in keys.iter().zip(hashes) {
            if let Some(row) = table(hash).find(hash, |row| row.key() == *key) {
                found(*number, Ok(row.record()));
            }
        }
    }

    fn scan(
        &self,
        range: Bounds<'_>,
        backwards: bool,
        visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        self.rows(range).scan((Bound::Unbounded, Bound::Unbounded), backwards, visit)
    }
}
