//! A store in a directory, by LMDB (crate `heed`): a B-tree that is mapped into memory.
//!
//! All is in one tree (`one_tree`). LMDB has no checksums: a damaged record is found by its own,
//! and a damaged page may hide keys, or end the process, as a file does that is cut while it is
//! mapped (`SIGBUS`).
//!
//! The map is much larger than the file, takes no memory, and grows when the file has filled it.
//! Readers of before are told then that it was closed.
//!
//! Each commit waits for its data, and one that is synced for the page that names them as well, so
//! that the file is whole at every moment, also after a power cut.
//!
//! A read transaction is for one thread at a time. So each view has several of the same moment, of
//! which a reader takes one that is free, and scans copy what they show, since none may be held
//! while their caller waits for something else. Where all that there may be are taken, the oldest
//! view is closed.

#![allow(unsafe_code, reason = "LMDB trusts whoever opens a file to keep others away from it")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError as Taken, Weak};

use heed::types::Bytes;
use heed::{
    CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, Error, MdbError, RoTxn, WithoutTls,
};

use super::interface::{Keeps, Store, Usage, Writes};
use super::one_tree::{NOTE_KEY, STATE_KEY, key_of, stored_key, stored_range};
use crate::engine::contain::{Health, io_error};
use crate::engine::sealed::{HEADER_BYTES, StoreState, seal, seal_note, unseal, unseal_note};
use crate::engine::view::{Bounds, Record, View, is_empty};
use crate::{Integrity, KvError};

type Tree = Database<'static, Bytes, Bytes>;
type ReadTransaction = RoTxn<'static, WithoutTls>;

/// The file by which a directory is known to be one of LMDB.
const DATA: &str = "data.mdb";
/// The file whose lock the one has who uses the database.
const LOCK: &str = "margo.lock";

/// Bytes of the smallest map that is tried where addresses are scarce.
const MAP_BYTES_MIN: usize = 1 << 20;

/// Most read transactions of a view.
const READERS_OF_VIEW: usize = 8;

/// Bytes that a scan copies at once, at first and at most.
const COPIED_BYTES: usize = 4 << 10;
const COPIED_BYTES_MAX: usize = 256 << 10;

/// The sizes that a database is opened with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Bytes of a new map.
    pub(crate) map_bytes: usize,
    /// Read transactions that there may be.
    pub(crate) readers: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { map_bytes: 1 << 40, readers: 1 << 14 }
    }
}

/// The store.
pub(crate) struct LmdbStore {
    /// `None` if it could not be opened with a larger map.
    opened: Option<Opened>,
    path: PathBuf,
    sizes: Sizes,
    /// As many as threads that read at the same time.
    readers_of_view: usize,
    place: Arc<str>,
    health: Health,
    /// Closed with the map, which they hold; the oldest first.
    views: RefCell<VecDeque<Weak<LmdbView>>>,
    state: StoreState,
    keys: u64,
    note: Option<Vec<u8>>,
    /// The note is not in the file yet.
    is_note_new: bool,
    /// Dropped last.
    _lock: File,
}

struct Opened {
    env: Env<WithoutTls>,
    tree: Tree,
}

impl LmdbStore {
    /// Opens a directory, or makes it.
    pub(crate) fn open(
        path: &Path,
        integrity: Integrity,
        health: &Health,
    ) -> Result<Self, KvError> {
        Self::open_with(path, Sizes::default(), integrity, health)
    }

    /// As [`open`](Self::open), with other sizes.
    pub(crate) fn open_with(
        path: &Path,
        sizes: Sizes,
        integrity: Integrity,
        health: &Health,
    ) -> Result<Self, KvError> {
        let place: Arc<str> = path.display().to_string().into();
        let lock = lock(path, &place)?;
        let opened = map(path, &place, sizes)?;
        let (state, keys, note) = prepare(&place, &opened)?;
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
        let store = Self {
            opened: Some(opened),
            path: path.to_owned(),
            sizes,
            readers_of_view: cpus.min(READERS_OF_VIEW),
            place,
            health: health.clone(),
            views: RefCell::default(),
            state,
            keys,
            note,
            is_note_new: false,
            _lock: lock,
        };
        if integrity == Integrity::Open {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let checked = store.view()?.scan(all, false, &mut |_, _| ControlFlow::Continue(()));
            checked.map_err(|error| KvError::Corrupted(format!("{}: {error}", store.place)))?;
        }
        Ok(store)
    }

    fn opened(&self) -> Result<&Opened, KvError> {
        self.opened.as_ref().ok_or_else(|| closed(&self.place))
    }

    /// Makes the writes in a transaction of their own. Returns the usage after them, or that the
    /// map is full.
    fn try_commit(&self, writes: &Writes, version: u64) -> Result<Result<Usage, Full>, KvError> {
        let Opened { env, tree } = self.opened()?;
        let commit = || -> Result<Usage, Error> {
            let mut usage = self.usage();
            let mut transaction = env.write_txn()?;
            let mut sealed = Vec::new();
            for (key, written) in writes {
                let stored = stored_key(key);
                let bytes = |sealed: &[u8]| (key.len() + sealed.len()).saturating_sub(HEADER_BYTES);
                let old = tree.get(&transaction, &stored)?.map(|old| bytes(old) as u64);
                usage.remove(old);
                match written {
                    Some(written) => {
                        sealed.clear();
                        seal(&mut sealed, key, written.record());
                        usage.add(Some(bytes(&sealed) as u64));
                        tree.put(&mut transaction, &stored, &sealed)?;
                    }
                    None => drop(tree.delete(&mut transaction, &stored)?),
                }
            }
            let state = StoreState { version, bytes: usage.bytes, ..self.state };
            tree.put(&mut transaction, STATE_KEY, &state.seal())?;
            if let Some(note) = self.note.as_ref().filter(|_| self.is_note_new) {
                tree.put(&mut transaction, NOTE_KEY, &seal_note(note))?;
            }
            transaction.commit()?;
            Ok(usage)
        };
        self.health.contain(|| match commit() {
            Ok(usage) => Ok(Ok(usage)),
            Err(Error::Mdb(MdbError::MapFull)) => Ok(Err(Full)),
            Err(error) => Err(error_of(&self.place, &error)),
        })
    }

    /// Maps twice as much.
    fn grow(&mut self) -> Result<(), KvError> {
        let before = self.opened()?.env.info().map_size;
        self.close();
        let sizes = Sizes { map_bytes: before.saturating_mul(2), ..self.sizes };
        let opened = self.opened.insert(map(&self.path, &self.place, sizes)?);
        if opened.env.info().map_size > before {
            return Ok(());
        }
        let place = &self.place;
        Err(KvError::Full(format!("{place}: no addresses for a map of more than {before} bytes")))
    }

    /// Closes the map, which all who have a transaction keep open.
    fn close(&mut self) {
        for view in self.views.take().into_iter().filter_map(|view| view.upgrade()) {
            view.close();
        }
        self.opened = None;
    }
}

/// The map has no room for a commit.
struct Full;

impl Drop for LmdbStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Makes the directory if need be, and locks it.
fn lock(path: &Path, place: &str) -> Result<File, KvError> {
    let failed = |message: &str| Err(KvError::Failed(format!("{place}: {message}")));
    let io = |error| io_error(place, &error);
    match path.read_dir() {
        Ok(mut entries) => {
            let is_lmdb = path.join(DATA).exists() || path.join(LOCK).exists();
            if !is_lmdb && entries.next().is_some() {
                return failed("is a directory with other files than LMDB's");
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir(path).map_err(io)?;
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return failed("is a file; a database of LMDB is a directory");
        }
        Err(error) => return Err(io(error)),
    }
    let lock = File::create(path.join(LOCK)).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => failed("is open already, here or in another process"),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

/// Maps the file: so many bytes, or twice what it has, or what addresses there are.
fn map(path: &Path, place: &str, sizes: Sizes) -> Result<Opened, KvError> {
    let file = path.join(DATA).metadata().map_or(0, |data| data.len());
    let mut bytes =
        sizes.map_bytes.max(usize::try_from(file).unwrap_or(usize::MAX).saturating_mul(2));
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.max_readers(sizes.readers);
    // SAFETY: the flag decides when pages are synced. It is none of those by which LMDB trusts its
    // caller: locks, and the memory that it writes, stay its own.
    unsafe { options.flags(EnvFlags::NO_META_SYNC) };
    let error = |error: Error| error_of(place, &error);
    let env = loop {
        options.map_size(bytes.next_multiple_of(MAP_BYTES_MIN));
        // SAFETY: nobody else changes the file: whoever opens it as this does has the lock, which
        // the caller has; the guide says that other programs may not.
        match unsafe { options.open(path) } {
            Err(Error::Io(error))
                if error.kind() == ErrorKind::OutOfMemory && bytes > MAP_BYTES_MIN =>
            {
                bytes /= 2;
            }
            opened => break opened.map_err(error)?,
        }
    };
    let opened = env.write_txn().and_then(|transaction| {
        env.create_databases_and_commit(transaction, |opener, transaction| {
            opener.create_database(transaction, None).map(CommitOrAbort::<_, Infallible>::Commit)
        })
    });
    let CommitOrAbort::Commit(tree) = opened.map_err(error)?;
    Ok(Opened { env, tree })
}

/// Checks that it is a database of ours, or makes it one if it is new. Returns its numbers, its
/// keys, and the note.
fn prepare(
    place: &str,
    Opened { env, tree }: &Opened,
) -> Result<(StoreState, u64, Option<Vec<u8>>), KvError> {
    let find = || -> Result<_, Error> {
        let mut transaction = env.write_txn()?;
        if tree.is_empty(&transaction)? {
            tree.put(&mut transaction, STATE_KEY, &StoreState::new().seal())?;
        }
        let state = tree.get(&transaction, STATE_KEY)?.map(<[u8]>::to_vec);
        let note = tree.get(&transaction, NOTE_KEY)?.map(<[u8]>::to_vec);
        let others = u64::from(state.is_some()) + u64::from(note.is_some());
        let keys = tree.len(&transaction)?.saturating_sub(others);
        transaction.commit()?;
        env.force_sync()?;
        Ok((state, keys, note))
    };
    let (state, keys, note) = find().map_err(|error| error_of(place, &error))?;
    let other = || KvError::Failed(format!("{place}: is a database of another program"));
    let state = StoreState::unseal(place, &state.ok_or_else(other)?)?;
    let note = note.map(|note| unseal_note(place, &note)).transpose()?;
    Ok((state, keys, note))
}

fn closed(place: &str) -> KvError {
    KvError::Failed(format!("{place}: was closed meanwhile"))
}

fn error_of(place: &str, error: &Error) -> KvError {
    match error {
        Error::Io(error) => io_error(place, error),
        Error::Mdb(MdbError::Invalid) => {
            KvError::Failed(format!("{place}: is no database of LMDB"))
        }
        Error::Mdb(MdbError::VersionMismatch) => {
            KvError::Failed(format!("{place}: was written by another version of LMDB"))
        }
        Error::Mdb(MdbError::PageNotFound | MdbError::Corrupted) => {
            KvError::Corrupted(format!("{place}: {error}"))
        }
        error => KvError::Failed(format!("{place}: {error}")),
    }
}

impl Store for LmdbStore {
    fn version(&self) -> u64 {
        self.state.version
    }

    fn usage(&self) -> Usage {
        Usage { keys: self.keys, bytes: self.state.bytes }
    }

    fn id(&self) -> Option<u64> {
        Some(self.state.id)
    }

    fn set_id(&mut self, id: u64) {
        self.state.id = id;
    }

    fn note(&self) -> Option<&[u8]> {
        self.note.as_deref()
    }

    fn set_note(&mut self, note: Vec<u8>) {
        (self.note, self.is_note_new) = (Some(note), true);
    }

    fn view(&self) -> Result<Arc<dyn View>, KvError> {
        let Opened { env, tree } = self.opened()?;
        let (mut transactions, mut views) = (Vec::new(), self.views.borrow_mut());
        views.retain(|view| view.strong_count() > 0);
        self.health.contain(|| {
            while transactions.len() < self.readers_of_view {
                match env.clone().static_read_txn() {
                    Ok(begun) => transactions.push(Mutex::new(Some(begun))),
                    // Those who read wait for each other.
                    Err(Error::Mdb(MdbError::ReadersFull)) if !transactions.is_empty() => break,
                    // A list that goes on in an old view fails, and not the database.
                    Err(Error::Mdb(MdbError::ReadersFull)) if !views.is_empty() => {
                        let oldest = views.pop_front().and_then(|view| view.upgrade());
                        oldest.inspect(|view| view.close());
                    }
                    Err(error) => return Err(error_of(&self.place, &error)),
                }
            }
            Ok(())
        })?;
        let (tree, place, health) = (*tree, self.place.clone(), self.health.clone());
        let view = Arc::new(LmdbView { transactions, tree, place, health });
        views.push_back(Arc::downgrade(&view));
        Ok(view)
    }

    fn commit(&mut self, writes: Writes, version: u64, synced: bool) -> Result<(), KvError> {
        let usage = loop {
            match self.try_commit(&writes, version)? {
                Ok(usage) => break usage,
                Err(Full) => self.grow()?,
            }
        };
        (self.state.version, self.state.bytes, self.keys) = (version, usage.bytes, usage.keys);
        self.is_note_new = false;
        if synced { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), KvError> {
        let env = &self.opened()?.env;
        self.health.contain(|| env.force_sync().map_err(|error| error_of(&self.place, &error)))
    }

    fn keeps(&self) -> Keeps {
        Keeps::Committed
    }
}

/// Read transactions of one moment.
struct LmdbView {
    /// `None` once the map is closed.
    transactions: Vec<Mutex<Option<ReadTransaction>>>,
    tree: Tree,
    place: Arc<str>,
    health: Health,
}

/// The transaction that the calling thread tries first; others come after it.
fn own_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        let place = own.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        own.set(Some(place));
        place
    })
}

impl LmdbView {
    /// Reads with a transaction that no other thread uses.
    fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, KvError>,
    ) -> Result<T, KvError> {
        let transaction = self.free();
        let transaction = transaction.as_ref().ok_or_else(|| closed(&self.place))?;
        self.health.contain(|| read(transaction))
    }

    /// A transaction that is free; the own one when there is none at once.
    fn free(&self) -> MutexGuard<'_, Option<ReadTransaction>> {
        let (before, from) = {
            let own = own_place() % self.transactions.len();
            self.transactions.split_at(own)
        };
        for transaction in from.iter().chain(before) {
            match transaction.try_lock() {
                Ok(free) => return free,
                Err(Taken::Poisoned(free)) => return free.into_inner(),
                Err(Taken::WouldBlock) => {}
            }
        }
        from[0].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies records of a range, up to about so many bytes of them. Returns whether these are all.
    fn copy(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
        bytes: usize,
        copied: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<bool, KvError> {
        let error = |error: Error| error_of(&self.place, &error);
        self.read(|transaction| {
            let mut left = bytes;
            let mut take = |key: &[u8], sealed: &[u8]| {
                left = left.saturating_sub(key.len() + sealed.len());
                copied.push((key.to_vec(), sealed.to_vec()));
                left > 0
            };
            let range = (from, to);
            if backwards {
                for record in self.tree.rev_range(transaction, &range).map_err(error)? {
                    let (key, sealed) = record.map_err(error)?;
                    if !take(key, sealed) {
                        return Ok(false);
                    }
                }
            } else {
                for record in self.tree.range(transaction, &range).map_err(error)? {
                    let (key, sealed) = record.map_err(error)?;
                    if !take(key, sealed) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
    }

    fn close(&self) {
        for transaction in &self.transactions {
            transaction.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl View for LmdbView {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(Record<'_>)) -> Result<bool, KvError> {
        self.read(|transaction| {
            let stored = self.tree.get(transaction, &stored_key(key));
            let Some(sealed) = stored.map_err(|error| error_of(&self.place, &error))? else {
                return Ok(false);
            };
            found(unseal(key, sealed)?);
            Ok(true)
        })
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
        let (mut from, mut to) = stored_range(range);
        let (mut bytes, mut copied) = (COPIED_BYTES, Vec::new());
        loop {
            let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let is_all = self.copy(range, backwards, bytes, &mut copied)?;
            for (stored, sealed) in &copied {
                let key = key_of(stored);
                if visit(key, unseal(key, sealed)?).is_break() {
                    return Ok(());
                }
            }
            let Some((last, _)) = copied.pop().filter(|_| !is_all) else { return Ok(()) };
            *if backwards { &mut to } else { &mut from } = Bound::Excluded(last);
            copied.clear();
            bytes = (2 * bytes).min(COPIED_BYTES_MAX);
        }
    }
}
