//! The little that a store does: show what was committed, and commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::KvError;
use crate::engine::view::{Record, View};

/// The record that a key has after a group of changes; `None` if it was erased. In the order of
/// keys, which trees like.
pub(crate) type Writes = BTreeMap<Vec<u8>, Option<Written>>;

/// A record that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) version: u64,
    pub(crate) value: Vec<u8>,
}

/// How much a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// An estimate in fjall, which counts erased and overwritten ones until it has merged them.
    pub(crate) keys: u64,
    /// Bytes of keys and values; in fjall of its files.
    pub(crate) bytes: u64,
}

impl Written {
    /// The record, borrowed.
    pub(crate) fn record(&self) -> Record<'_> {
        Record { version: self.version, value: &self.value }
    }
}

impl Usage {
    /// Counts a record of so many bytes, if there is one.
    pub(crate) fn add(&mut self, record: Option<u64>) {
        self.keys += u64::from(record.is_some());
        self.bytes += record.unwrap_or_default();
    }

    /// Counts it no longer.
    pub(crate) fn remove(&mut self, record: Option<u64>) {
        self.keys = self.keys.saturating_sub(u64::from(record.is_some()));
        self.bytes = self.bytes.saturating_sub(record.unwrap_or_default());
    }
}

/// The commits of a store that are left when its process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// None: it is the memory of the process. Its view is always the same one.
    Nothing,
    /// The last one that was synced, and all before it.
    Synced,
    /// All.
    Committed,
}

/// A store: one thread at a time writes, and any number read.
///
/// After an error of `commit` or `sync` it is closed, and not used again. Nobody knows then whether
/// the writes were made, but all of them or none were.
pub(crate) trait Store: Send {
    /// The version of the last commit, which it keeps with the records.
    fn version(&self) -> u64;

    /// How much it holds.
    fn usage(&self) -> Usage;

    /// The id that the database was given when it was made, where that is kept with the records.
    fn id(&self) -> Option<u64> {
        None
    }

    /// Has another id from the next commit on, if it keeps one.
    fn set_id(&mut self, _id: u64) {}

    /// Bytes of its owner that it keeps with the records, if it was given any.
    fn note(&self) -> Option<&[u8]> {
        None
    }

    /// Has other such bytes from the next commit on, if it keeps any.
    fn set_note(&mut self, _note: Vec<u8>) {}

    /// Shows what was committed last. Views of before may fail once the store is closed.
    fn view(&self) -> Result<Arc<dyn View>, KvError>;

    /// Shows what was committed last, and never anything else.
    fn snapshot(&self) -> Result<Arc<dyn View>, KvError> {
        self.view()
    }

    /// Makes all writes or none, and from then on has this version. Synced, they are on the disk
    /// with all before them.
    fn commit(&mut self, writes: Writes, version: u64, synced: bool) -> Result<(), KvError>;

    /// Commits one record, with its version, if that is quicker than a commit of several: in
    /// memory. Returns whether it did.
    fn put(&mut self, _key: &[u8], _record: Record<'_>) -> bool {
        false
    }

    /// Has all that was committed on the disk.
    fn sync(&mut self) -> Result<(), KvError>;

    /// Says what is left when the process ends.
    fn keeps(&self) -> Keeps;
}
