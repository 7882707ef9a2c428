//! A store in a directory, by `fjall`: a log-structured merge tree.
//!
//! All is in one tree (`one_tree`). `fjall` keeps a checksum of each block as well, so that a block
//! that is damaged costs its own keys, which answer with an error.
//!
//! Where its manifest is damaged, it aborts the process when it opens it: its destructor panics in
//! the midst of a panic. The end of a log that is damaged counts as a write that was not finished.
//!
//! A commit without a sync is in the log of the file system: it survives the process, not a power
//! cut. `fjall` sleeps in the writing thread when it merges slower than it is written to.

use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use fjall::{Database, Error, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use super::interface::{Keeps, Store, Usage, Writes};
use super::one_tree::{NOTE_KEY, STATE_KEY, key_of, stored_key, stored_range};
use crate::engine::contain::{Health, io_error};
use crate::engine::sealed::{StoreState, seal, seal_note, unseal, unseal_note};
use crate::engine::view::{Bounds, Record, View, is_empty};
use crate::{Integrity, KvError};

const TREE: &str = "margo_kv";

/// The file by which a directory is known to be one of `fjall`.
const MARKER: &str = "version";

/// Threads that flush and merge.
const WORKERS: usize = 2;

/// The store.
pub(crate) struct FjallStore {
    database: Database,
    /// Shared with the views, since whoever has it keeps the lock of the directory: closing takes
    /// it from them.
    tree: Arc<RwLock<Option<Keyspace>>>,
    place: Arc<str>,
    health: Health,
    id: u64,
    version: u64,
    note: Option<Vec<u8>>,
    /// The note is not on the disk yet.
    is_note_new: bool,
}

impl FjallStore {
    /// Opens a directory, or makes it.
    pub(crate) fn open(
        path: &Path,
        cache_bytes: usize,
        integrity: Integrity,
        health: &Health,
    ) -> Result<Self, KvError> {
        let place: Arc<str> = path.display().to_string().into();
        check_is_fjall(path, &place)?;
        let open = || -> Result<_, Error> {
            let builder = Database::builder(path).worker_threads(WORKERS);
            let database = builder.cache_size(cache_bytes as u64).open()?;
            let tree = database.keyspace(TREE, KeyspaceCreateOptions::default)?;
            if tree.is_empty()? {
                tree.insert(STATE_KEY, StoreState::new().seal())?;
                database.persist(PersistMode::SyncAll)?;
            }
            let state = tree.get(STATE_KEY)?.map(|state| state.to_vec());
            let note = tree.get(NOTE_KEY)?.map(|note| note.to_vec());
            Ok((database, tree, state.unwrap_or_default(), note))
        };
        let opened = Health::default().contain(|| open().map_err(|error| error_of(&place, &error)));
        let (database, tree, state, note) = opened?;
        let StoreState { id, version, .. } = StoreState::unseal(&place, &state)?;
        let note = note.map(|note| unseal_note(&place, &note)).transpose()?;
        let (tree, health) = (Arc::new(RwLock::new(Some(tree))), health.clone());
        let is_note_new = false;
        let store = Self { database, tree, place, health, id, version, note, is_note_new };
        if integrity == Integrity::Open {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let checked = store.view()?.scan(all, false, &mut |_, _| ControlFlow::Continue(()));
            checked.map_err(|error| KvError::Corrupted(format!("{}: {error}", store.place)))?;
        }
        Ok(store)
    }

    fn call<T>(&self, call: impl FnOnce(&Keyspace) -> Result<T, Error>) -> Result<T, KvError> {
        with_tree(&self.tree, &self.health, &self.place, call)
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        self.tree.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn check_is_fjall(path: &Path, place: &str) -> Result<(), KvError> {
    let failed = |message: &str| Err(KvError::Failed(format!("{place}: {message}")));
    match path.read_dir() {
        Ok(mut entries) => {
            let is_fjall = path.join(MARKER).exists() || entries.next().is_none();
            if is_fjall { Ok(()) } else { failed("is a directory with other files than fjall's") }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            failed("is a file; a database of fjall is a directory")
        }
        Err(error) => Err(io_error(place, &error)),
    }
}

fn error_of(place: &str, error: &Error) -> KvError {
    match error {
        Error::Io(error) | Error::Storage(fjall::LsmError::Io(error)) => io_error(place, error),
        Error::Locked => {
            KvError::Failed(format!("{place}: is open already, here or in another process"))
        }
        Error::InvalidVersion(_) => {
            KvError::Failed(format!("{place}: was written by another version of fjall"))
        }
        Error::Poisoned | Error::KeyspaceDeleted => KvError::Failed(format!("{place}: {error}")),
        error => KvError::Corrupted(format!("{place}: {error}")),
    }
}

/// Calls into `fjall` with its tree, unless that was closed.
fn with_tree<T>(
    tree: &RwLock<Option<Keyspace>>,
    health: &Health,
    place: &str,
    call: impl FnOnce(&Keyspace) -> Result<T, Error>,
) -> Result<T, KvError> {
    let tree = tree.read().unwrap_or_else(PoisonError::into_inner);
    let closed = || KvError::Failed(format!("{place}: was closed meanwhile"));
    let tree = tree.as_ref().ok_or_else(closed)?;
    health.contain(|| call(tree).map_err(|error| error_of(place, &error)))
}

impl Store for FjallStore {
    fn id(&self) -> Option<u64> {
        Some(self.id)
    }

    fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    fn note(&self) -> Option<&[u8]> {
        self.note.as_deref()
    }

    fn set_note(&mut self, note: Vec<u8>) {
        (self.note, self.is_note_new) = (Some(note), true);
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn usage(&self) -> Usage {
        let usage = self.call(|tree| {
            // The numbers of the store and the note are no records.
            let others = 1 + u64::from(self.note.is_some());
            let keys = (tree.approximate_len() as u64).saturating_sub(others);
            Ok(Usage { keys, bytes: tree.disk_space() })
        });
        usage.unwrap_or_default()
    }

    fn view(&self) -> Result<Arc<dyn View>, KvError> {
        let (tree, place) = (self.tree.clone(), self.place.clone());
        let snapshot = self.call(|_| Ok(self.database.snapshot()))?;
        Ok(Arc::new(FjallView { snapshot, tree, place, health: self.health.clone() }))
    }

    fn commit(&mut self, writes: Writes, version: u64, synced: bool) -> Result<(), KvError> {
        let mode = if synced { PersistMode::SyncAll } else { PersistMode::Buffer };
        self.call(|tree| {
            let mut batch = self.database.batch().durability(Some(mode));
            let mut sealed = Vec::new();
            for (key, written) in &writes {
                let stored = stored_key(key);
                match written {
                    Some(written) => {
                        sealed.clear();
                        seal(&mut sealed, key, written.record());
                        batch.insert(tree, stored, sealed.as_slice());
                    }
                    None => batch.remove(tree, stored),
                }
            }
            batch.insert(tree, STATE_KEY, StoreState { id: self.id, version, bytes: 0 }.seal());
            if let Some(note) = self.note.as_ref().filter(|_| self.is_note_new) {
                batch.insert(tree, NOTE_KEY, seal_note(note));
            }
            batch.commit()
        })?;
        (self.version, self.is_note_new) = (version, false);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), KvError> {
        self.call(|_| self.database.persist(PersistMode::SyncAll))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Committed
    }
}

struct FjallView {
    snapshot: Snapshot,
    tree: Arc<RwLock<Option<Keyspace>>>,
    place: Arc<str>,
    health: Health,
}

impl View for FjallView {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError> {
        let get = |tree: &Keyspace| self.snapshot.get(tree, stored_key(key));
        let Some(sealed) = with_tree(&self.tree, &self.health, &self.place, get)? else {
            return Ok(false);
        };
        found(unseal(key, &sealed)?);
        Ok(true)
    }

    fn scan(
        &self,
        range: Bounds<'_>,
        backwards: bool,
        visit: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        if is_empty(range) {
            return Ok(());
        }
        let range = stored_range(range);
        let mut records = with_tree(&self.tree, &self.health, &self.place, |tree| {
            Ok(self.snapshot.range(tree, range))
        })?;
        let mut next = || {
            let next = if backwards { records.next_back() } else { records.next() };
            let next = next.map(fjall::Guard::into_inner).transpose();
            next.map_err(|error| error_of(&self.place, &error))
        };
        while let Some((stored, sealed)) = self.health.contain(&mut next)? {
            let key = key_of(&stored);
            if visit(key, unseal(key, &sealed)?).is_break() {
                break;
            }
        }
        Ok(())
    }
}
