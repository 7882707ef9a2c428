//! A store and those who use it: applies groups of batches, commits them, shows what was committed,
//! and reopens a store whose disk was full.
//!
//! | state | who writes | who reads |
//! |---|---|---|
//! | [`Shown::view`] | the committer, after each commit of a store on disk | every reader |
//! | [`Shown::counters`] | the committer | [`Database::stats`](super::Database::stats) |
//! | [`Shown::note`] | the committer | snapshots, and the provider when it starts |
//!
//! A store is not used again after an error. If its disk was full it is opened again, which shows
//! whether the commit was made nevertheless; readers go on, and changes are refused until one is
//! tried again, at most each [`RETRY`]. After any other error the database is closed for good: what
//! the kernel does with pages that it could not write is anyone's guess.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::contain::Health;
use super::copy;
use super::group::{Group, Limits, TakenRecord};
use super::sealed::random_id;
use super::store::interface::{Keeps, Store, Usage, Writes, Written};
use super::view::{Record, View};
use crate::members::Served;
use crate::model::{Batch, Durability, Outcomes};
use crate::{KvError, StoreConfig, SyncPolicy};

/// How long changes are refused without trying, after one that found the disk full.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes of changes that a store may keep in memory until it is synced, whatever its policy.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;

/// Opens a store, for the first time or again.
pub(super) type Open = Box<dyn Fn(&Health) -> Result<Box<dyn Store>, KvError> + Send>;

/// The part of a database that readers see.
pub(super) struct Shown {
    pub(super) health: Health,
    view: RwLock<Result<Arc<dyn View>, KvError>>,
    counters: Mutex<Counters>,
    note: Mutex<Option<Vec<u8>>>,
}

/// The id of the database, its usage, and counts since it was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) id: u64,
    pub(super) usage: Usage,
    pub(super) version: u64,
    pub(super) commits: u64,
    pub(super) changes: u64,
    pub(super) synced_at: Option<Instant>,
}

impl Shown {
    pub(super) fn view(&self) -> Result<Arc<dyn View>, KvError> {
        self.health.check()?;
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn counters(&self) -> Counters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that the database was given to keep with its records.
    pub(super) fn note(&self) -> Option<Vec<u8>> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_note(&self, note: Option<Vec<u8>>) {
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    fn show(&self, view: Result<Arc<dyn View>, KvError>) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A batch, and how safe it has to be.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) batch: Batch,
    pub(super) durability: Option<Durability>,
    /// The members that the caller knows of, for ranges of keys.
    pub(super) epoch: u64,
    /// A file that the database, which is empty, is filled with before.
    pub(super) snapshot: Option<PathBuf>,
    pub(super) order: Option<Order>,
}

/// A step of a change of the members; it is made in its turn among the batches.
#[derive(Debug)]
pub(crate) enum Order {
    /// Other keys are served from here on.
    Serve {
        served: Arc<Served>,
        /// Kept with the records, on the disk, before it is acknowledged.
        note: Option<Vec<u8>>,
        /// Changes have higher versions than this from now on.
        least: u64,
    },
    /// Records are set and erased, whether their keys are served or not.
    Take(Vec<TakenRecord>),
}

/// The one who writes.
pub(super) struct Committer {
    open: Open,
    /// `None` while it could not be opened again, and after an error.
    store: Option<Box<dyn Store>>,
    limits: Limits,
    policy: SyncPolicy,
    /// The version of the last change that was acknowledged, also if the store has lost it.
    version: u64,
    /// Bytes of keys and values that were committed since the last sync, and when the first were.
    unsynced: Option<(u64, Instant)>,
    /// An error after which the database is closed, or of a full disk, and when that was.
    trouble: Option<(KvError, Instant)>,
    served: Arc<Served>,
    shown: Arc<Shown>,
}

/// All that a group of requests comes to.
struct Work {
    writes: Writes,
    version: u64,
    /// Keys that were set or erased.
    changes: u64,
    note: Option<Vec<u8>>,
    synced: bool,
}

impl Committer {
    pub(super) fn new(open: Open, config: &StoreConfig) -> Result<Self, KvError> {
        let health = Health::default();
        let store = open(&health)?;
        let id = config.id.or_else(|| store.id()).unwrap_or_else(random_id);
        let (usage, version) = (store.usage(), store.version());
        let counters = Counters { id, usage, version, ..Counters::default() };
        let (view, counters) = (RwLock::new(Ok(store.view()?)), Mutex::new(counters));
        let note = Mutex::new(store.note().map(<[u8]>::to_vec));
        Ok(Self {
            open,
            limits: Limits::new(config),
            policy: config.sync,
            version,
            unsynced: None,
            trouble: None,
            store: Some(store),
            served: Arc::default(),
            shown: Arc::new(Shown { health, view, counters, note }),
        })
    }

    pub(super) fn shown(&self) -> &Arc<Shown> {
        &self.shown
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.keeps() == Some(Keeps::Nothing)
    }

    fn keeps(&self) -> Option<Keeps> {
        self.store.as_ref().map(|store| store.keeps())
    }

    /// Applies batches one after the other, and commits them together. Returns the outcome of each.
    pub(super) fn commit(&mut self, requests: Vec<Request>) -> Vec<Result<Outcomes, KvError>> {
        let count = requests.len();
        let restored = requests.iter().map(|request| self.restore(request.snapshot.as_deref()));
        let restored: Vec<_> = restored.collect();
        let mut outcomes = Vec::with_capacity(count);
        if let Err(error) = self.try_commit(requests, |outcome| outcomes.push(outcome)) {
            outcomes = vec![Err(error); count];
        }
        outcomes
            .into_iter()
            .zip(restored)
            .map(|(outcome, restored)| restored.and(outcome))
            .collect()
    }

    /// As [`commit`](Self::commit), of one.
    pub(super) fn commit_one(&mut self, request: Request) -> Result<Outcomes, KvError> {
        self.restore(request.snapshot.as_deref())?;
        let mut told = Ok(Outcomes::new());
        self.try_commit([request], |outcome| told = outcome)?;
        told
    }

    /// Sets the value of a key in a store in memory, unless that needs the whole of
    /// [`try_commit`](Self::try_commit).
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Option<u64>, KvError> {
        let Some(store) = self.store.as_mut().filter(|_| self.trouble.is_none()) else {
            return Ok(None);
        };
        if self.limits.bound_all() || self.served.dirty.is_some() {
            return Ok(None);
        }
        self.served.changes(key)?;
        self.limits.check(key, value, 0)?;
        let version = self.version + 1;
        if !store.put(key, Record { version, value }) {
            return Ok(None);
        }
        self.version = version;
        let usage = store.usage();
        self.shown.count(|counters| {
            (counters.usage, counters.version) = (usage, version);
            counters.commits += 1;
            counters.changes += 1;
        });
        Ok(Some(version))
    }

    /// Tells the outcome of each request before they are committed.
    ///
    /// # Errors
    ///
    /// The store's. No outcome holds then, since each may rest on changes before it.
    fn try_commit(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        mut tell: impl FnMut(Result<Outcomes, KvError>),
    ) -> Result<(), KvError> {
        let store = self.ready()?;
        let (usage, keeps) = (store.usage(), store.keeps());
        let view = self.shown.view()?;
        let served = self.served.clone();
        let mut group = Group::new(&*view, self.version, usage, self.limits, served);
        let (mut synced, mut noted) = (self.policy == SyncPolicy::Always, None);
        for Request { batch, durability, epoch, order, .. } in requests {
            synced |= match durability {
                Some(Durability::Synced) => true,
                Some(Durability::Written) => keeps == Keeps::Synced,
                None => false,
            };
            tell(match order {
                None => group.apply(batch, epoch),
                Some(Order::Take(records)) => group.take(records).map(|()| Outcomes::new()),
                Some(Order::Serve { served, note, least }) => {
                    let keeps = note.is_some() || least > 0;
                    (synced, noted) = (synced || keeps, note.or(noted.take()));
                    group.serve(served, keeps.then_some(least));
                    Ok(Outcomes::new())
                }
            });
        }
        let Group { writes, version, changes, served, .. } = group;
        drop(view);
        let changed: Vec<_> = match served.dirty {
            Some(_) => writes.keys().filter(|key| served.leaves(key).is_some()).cloned().collect(),
            None => Vec::new(),
        };
        let written = self.write(Work { writes, version, changes, note: noted, synced });
        // Now views show them, also if nobody knows whether they are made; and before they are
        // acknowledged.
        if let Some(dirty) = &served.dirty {
            dirty.add(changed);
        }
        written?;
        self.served = served;
        Ok(())
    }

    /// Fills the store with a snapshot, if there is one.
    fn restore(&mut self, snapshot: Option<&Path>) -> Result<(), KvError> {
        let Some(snapshot) = snapshot else { return Ok(()) };
        let from = copy::open(snapshot)?;
        let id = from.id().unwrap_or_else(random_id);
        let is_empty = self.ready()?.version() == 0;
        let Some(store) = self.store.as_mut().filter(|_| is_empty) else {
            let place = snapshot.display();
            return Err(KvError::Failed(format!("{place}: is restored to an empty database only")));
        };
        let note = from.note();
        let copied = from.view().and_then(|view| copy::copy(&*view, (id, note), &mut **store));
        if let Err(error) = copied {
            // Some of it may be there.
            return self.fail(error, u64::MAX);
        }
        let (version, usage, view) = (store.version(), store.usage(), store.view());
        self.version = version;
        self.shown.count(|counters| {
            (counters.id, counters.usage, counters.version) = (id, usage, version);
        });
        self.shown.set_note(note.map(<[u8]>::to_vec));
        self.shown.show(view);
        Ok(())
    }

    /// The store, if it may be written to.
    fn ready(&mut self) -> Result<&dyn Store, KvError> {
        self.shown.health.check()?;
        if let Some((error, since)) = &mut self.trouble {
            if !matches!(error, KvError::Full(_)) || since.elapsed() < RETRY {
                return Err(error.clone());
            }
            *since = Instant::now();
            if self.store.is_none() {
                self.reopen()?;
            }
        }
        let closed = || KvError::Failed("it is closed".into());
        self.store.as_deref().ok_or_else(closed)
    }

    fn write(&mut self, work: Work) -> Result<(), KvError> {
        let Work { writes, version, changes, note, synced } = work;
        let Some(store) = &mut self.store else { return Ok(()) };
        let is_new = version > self.version;
        let is_due = synced && self.unsynced.is_some();
        if !is_new && !is_due {
            return Ok(());
        }
        if let Some(note) = &note {
            store.set_note(note.clone());
        }
        let value_bytes = |it: &Option<Written>| it.as_ref().map_or(0, |it| it.value.len());
        let sizes = writes.iter().map(|(key, it)| (key.len() + value_bytes(it)) as u64);
        let unsynced = self.unsynced.map_or(0, |(bytes, _)| bytes) + sizes.sum::<u64>();
        let synced = synced || (store.keeps() == Keeps::Synced && unsynced > UNSYNCED_BYTES_MAX);
        let written = match is_new {
            false => store.sync(),
            true => store.commit(writes, version, synced),
        };
        let failed = written.err().map(|error| self.fail(error, version));
        let was_made = failed.is_some();
        failed.transpose()?;
        if note.is_some() {
            self.shown.set_note(note);
        }
        let Some(store) = self.store.as_ref().filter(|_| !was_made) else { return Ok(()) };
        self.version = version;
        // In memory nothing is ever due.
        let now = (store.keeps() != Keeps::Nothing).then(Instant::now);
        let since = self.unsynced.map(|(_, since)| since).or(now);
        self.unsynced = since.filter(|_| !synced).map(|since| (unsynced, since));
        if let Some((error, _)) = self.trouble.take() {
            tracing::info!(%error, "a key-value store has room again, and takes changes");
        }
        let usage = store.usage();
        self.shown.count(|counters| {
            counters.usage = usage;
            counters.version = version;
            counters.commits += u64::from(changes > 0);
            counters.changes += changes;
            counters.synced_at = if synced { now } else { counters.synced_at };
        });
        if store.keeps() != Keeps::Nothing {
            self.shown.show(store.view());
        }
        Ok(())
    }

    /// Closes the store after an error of a commit that would have had this version, and opens it
    /// again if the disk was full. `Ok`: the commit was made nevertheless.
    fn fail(&mut self, error: KvError, version: u64) -> Result<(), KvError> {
        self.close_store();
        self.unsynced = None;
        self.trouble = Some((error.clone(), Instant::now()));
        if !matches!(error, KvError::Full(_)) {
            tracing::error!(%error, "a key-value store has failed, and is closed");
            self.shown.show(Err(error.clone()));
            return Err(error);
        }
        tracing::warn!(%error, "a key-value store takes no changes until it has room");
        self.reopen()?;
        if let Some(store) = &mut self.store
            && store.version() >= version
            && store.sync().is_ok()
        {
            self.version = version;
            self.shown.show(store.view());
            return Ok(());
        }
        Err(error)
    }

    fn reopen(&mut self) -> Result<(), KvError> {
        match (self.open)(&self.shown.health) {
            Ok(store) => {
                self.version = self.version.max(store.version());
                self.shown.show(store.view());
                self.store = Some(store);
                Ok(())
            }
            Err(error) => {
                let message = format!("it cannot be opened again until there is room: {error}");
                self.shown.show(Err(KvError::Full(message.clone())));
                Err(KvError::Full(message))
            }
        }
    }

    fn close_store(&mut self) {
        let store = self.store.take();
        // That of a store which is no more does not matter.
        let _ = Health::default().contain(|| {
            drop(store);
            Ok(())
        });
    }

    /// Shows the store as it is now, and never anything else.
    pub(super) fn snapshot(&self) -> Result<Arc<dyn View>, KvError> {
        match &self.store {
            Some(store) => store.snapshot(),
            None => self.shown.view(),
        }
    }

    /// When the policy wants a sync, if anything is not synced.
    pub(super) fn sync_due(&self) -> Option<Instant> {
        match (self.policy, self.unsynced) {
            (SyncPolicy::IntervalMsec(msec), Some((_, since))) => {
                Some(since + Duration::from_millis(msec))
            }
            _ => None,
        }
    }

    /// Has all that was committed on the disk.
    pub(super) fn sync(&mut self) -> Result<(), KvError> {
        let (writes, version) = (Writes::new(), self.version);
        self.write(Work { writes, version, changes: 0, note: None, synced: true })
    }

    /// Syncs what is not synced, and closes the store. What it shows is closed as well.
    pub(super) fn close(&mut self) {
        if self.sync().is_err() {
            tracing::error!("changes that were not synced may be lost");
        }
        self.shown.show(Err(KvError::Failed("it is closed".into())));
        self.close_store();
    }
}
