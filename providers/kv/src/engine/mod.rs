//! A database: consistent reads, and changes that are made in order.
//!
//! In reading order: `view`; `store`, whose `interface` says what a store does; `group`, where
//! changes, conditions and batches get their meaning; `committer`, which has a store commit groups;
//! `writer`, the thread of a store on disk. `sealed` has the bytes of a record, `contain` turns
//! panics of stores into errors, `copy` makes snapshots and reads them. Imports the model, the
//! members, the errors and the settings, and of margo no more than
//! [`Eventual`](margo::ult::Eventual).
//!
//! A request for a store on disk waits in the writer's queue; one for a store in memory is made by
//! its caller, under a lock.

mod committer;
mod contain;
mod copy;
mod group;
mod sealed;
mod store;
#[cfg(test)]
mod tests;
mod view;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use committer::Order;
use committer::{Committer, Open, Request, Shown};
use contain::Health;
pub(crate) use group::TakenRecord;
use store::fjall::FjallStore;
use store::hashed::HashedStore;
pub(crate) use store::interface::Written;
use store::interface::{Store, Usage};
#[cfg(feature = "lmdb")]
use store::lmdb::LmdbStore;
use store::ordered::OrderedStore;
use store::redb::RedbStore;
pub(crate) use view::{Record, View};
use writer::Writer;

use crate::model::{Batch, Durability, Outcomes};
#[cfg(not(feature = "lmdb"))]
use crate::store_config::WITHOUT_LMDB;
use crate::{KvError, MemoryOrder, StoreConfig, StoreKind};

/// A database that is open. Its methods suspend the calling ULT while they wait. Dropping it waits
/// until all that was asked for is done, and closes its store.
pub(crate) struct Database {
    shown: Arc<Shown>,
    changes: Changes,
}

/// The side that makes changes.
enum Changes {
    /// Callers, in memory.
    ByCaller(Mutex<Committer>),
    /// A thread, on disk.
    ByThread(Writer),
}

/// The size of a database, and its work since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stats {
    /// By which the database is known: a random number, which on disk stays with it.
    pub(crate) id: u64,
    /// The version of the last change.
    pub(crate) version: u64,
    /// Keys; of fjall an estimate.
    pub(crate) keys: u64,
    /// Bytes of keys and values; of fjall those of its files.
    pub(crate) bytes: u64,
    /// Requests that wait for the thread that writes.
    pub(crate) queued_requests: usize,
    /// Bytes of their keys and values.
    pub(crate) queued_bytes: usize,
    /// Commits. Divides [`changes`](Self::changes) to how many go together.
    pub(crate) commits: u64,
    /// Keys that were set or erased.
    pub(crate) changes: u64,
    /// Time since the disk had all changes, if it had any yet.
    pub(crate) since_sync: Option<Duration>,
}

impl Database {
    /// Opens a database as its settings say, which were checked.
    pub(crate) fn open(config: &StoreConfig) -> Result<Self, KvError> {
        Self::open_with(opening(config), config)
    }

    /// Opens the store that `open` opens.
    fn open_with(open: Open, config: &StoreConfig) -> Result<Self, KvError> {
        let committer = Committer::new(open, config)?;
        let shown = committer.shown().clone();
        let changes = match committer.is_in_memory() {
            true => Changes::ByCaller(Mutex::new(committer)),
            false => Changes::ByThread(Writer::start(committer, config)?),
        };
        Ok(Self { shown, changes })
    }

    /// The database at this moment.
    pub(crate) fn view(&self) -> Result<Arc<dyn View>, KvError> {
        self.shown.view()
    }

    /// The database at this moment, also in memory, where it takes a walk over all keys. Changes
    /// of before are in it whole or not at all.
    pub(crate) fn snapshot(&self) -> Result<Arc<dyn View>, KvError> {
        match &self.changes {
            Changes::ByThread(_) => self.view(),
            Changes::ByCaller(committer) => {
                committer.lock().unwrap_or_else(PoisonError::into_inner).snapshot()
            }
        }
    }

    /// Writes a snapshot to a file, which must not be there: a database of redb, whatever the store
    /// is, with all versions. Returns how many records it has. The file is whole or not there.
    ///
    /// Takes as long as to read and write all: for `ult::blocking`.
    pub(crate) fn snapshot_to(&self, path: &Path) -> Result<u64, KvError> {
        // The note first: what it says that the database has is there.
        let (id, note) = (self.shown.counters().id, self.shown.note());
        copy::snapshot_to(&*self.snapshot()?, (id, note.as_deref()), path)
    }

    /// Fills the database, in which nothing was ever changed, with a snapshot that
    /// [`snapshot_to`](Self::snapshot_to) has written. If that fails half way, some of it is there.
    pub(crate) fn restore(&self, snapshot: &Path) -> Result<(), KvError> {
        let snapshot = Some(snapshot.to_owned());
        self.ask(Request { snapshot, ..Request::default() }, None).map(drop)
    }

    /// Makes changes, in the order in which they are asked for, and returns when they are as safe
    /// as the database's setting, or `durability`, whichever is more, says.
    ///
    /// Once they are being made, the deadline ends the wait no more. In memory they are as safe as
    /// the process is.
    pub(crate) fn apply(
        &self,
        batch: Batch,
        epoch: u64,
        durability: Option<Durability>,
        deadline: Option<Instant>,
    ) -> Result<Outcomes, KvError> {
        self.ask(Request { batch, durability, epoch, ..Request::default() }, deadline)
    }

    /// Sets the value of a key in memory, where nothing else has to be looked at or written down.
    /// `None`: that is not so, and nothing was done.
    // No look at the clock, a twentieth of a call: handlers begin before their deadline.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<Option<u64>, KvError> {
        let Changes::ByCaller(committer) = &self.changes else { return Ok(None) };
        committer.lock().unwrap_or_else(PoisonError::into_inner).put(key, value)
    }

    /// The bytes that it was given to keep with its records.
    pub(crate) fn note(&self) -> Option<Vec<u8>> {
        self.shown.note()
    }

    /// Makes a step of a change of the members, on the disk, behind all changes that were asked for
    /// before.
    pub(crate) fn order(&self, order: Order, deadline: Option<Instant>) -> Result<(), KvError> {
        let durability = Some(Durability::Synced);
        let request = Request { order: Some(order), durability, ..Request::default() };
        self.ask(request, deadline).map(drop)
    }

    fn ask(&self, request: Request, deadline: Option<Instant>) -> Result<Outcomes, KvError> {
        match &self.changes {
            Changes::ByThread(writer) => writer.apply(request, deadline),
            Changes::ByCaller(_) if deadline.is_some_and(|it| it <= Instant::now()) => {
                Err(KvError::Deadline)
            }
            Changes::ByCaller(committer) => {
                let mut committer = committer.lock().unwrap_or_else(PoisonError::into_inner);
                committer.commit_one(request)
            }
        }
    }

    /// Returns when all that was acknowledged is on the disk.
    pub(crate) fn flush(&self, deadline: Option<Instant>) -> Result<(), KvError> {
        self.apply(Batch::default(), 0, Some(Durability::Synced), deadline).map(drop)
    }

    /// The size of the database, and its work.
    pub(crate) fn stats(&self) -> Stats {
        let counters = self.shown.counters();
        let (queued_requests, queued_bytes) = match &self.changes {
            Changes::ByThread(writer) => writer.queued(),
            Changes::ByCaller(_) => (0, 0),
        };
        let Usage { keys, bytes } = counters.usage;
        Stats {
            id: counters.id,
            version: counters.version,
            keys,
            bytes,
            queued_requests,
            queued_bytes,
            commits: counters.commits,
            changes: counters.changes,
            since_sync: counters.synced_at.map(|at| at.elapsed()),
        }
    }
}

impl Default for Database {
    /// An empty one in memory.
    fn default() -> Self {
        let opened = Self::open(&StoreConfig::memory(MemoryOrder::Ordered));
        opened.unwrap_or_else(|error| unreachable!("memory needs no file: {error}"))
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The function that opens the store of these settings.
fn opening(config: &StoreConfig) -> Open {
    let StoreConfig { kind, order, cache_bytes, integrity, .. } = *config;
    let path = config.path.clone().unwrap_or_default();
    let opened = move |health: &Health| -> Result<Box<dyn Store>, KvError> {
        Ok(match (kind, order) {
            (StoreKind::Memory, MemoryOrder::Hashed) => Box::new(HashedStore::new()),
            (StoreKind::Memory, MemoryOrder::Ordered) => Box::new(OrderedStore::default()),
            (StoreKind::Redb, _) => {
                Box::new(RedbStore::open(&path, cache_bytes, integrity, health)?)
            }
            (StoreKind::Fjall, _) => {
                Box::new(FjallStore::open(&path, cache_bytes, integrity, health)?)
            }
            #[cfg(feature = "lmdb")]
            (StoreKind::Lmdb, _) => Box::new(LmdbStore::open(&path, integrity, health)?),
            #[cfg(not(feature = "lmdb"))]
            (StoreKind::Lmdb, _) => return Err(KvError::Failed(WITHOUT_LMDB.into())),
        })
    };
    Box::new(opened)
}
