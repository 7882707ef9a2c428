//! The queue of a store on disk: many callers, bounds, deadlines, syncs.
//!
//! The store is one that stops in `commit` until the test lets it go on, so nothing depends on how
//! fast a disk is.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::SyncPolicy;
use crate::engine::store::hashed::HashedStore;
use crate::engine::store::interface::{Keeps, Store, Usage, Writes};
use crate::engine::{Open, View};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A commit or a sync that the store has been asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Commit { keys: usize, synced: bool },
    Sync,
}

/// A store in memory that says it is a disk.
struct SteppedStore {
    inner: HashedStore,
    asked: Sender<Asked>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl SteppedStore {
    fn step(&self, asked: Asked) {
        // Both fail when the test has ended: the database is closed without it.
        let _ = self.asked.send(asked);
        let _ = self.go_on.lock().unwrap().recv();
    }
}

impl Store for SteppedStore {
    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn view(&self) -> Result<Arc<dyn View>, KvError> {
        self.inner.view()
    }

    fn commit(&mut self, writes: Writes, version: u64, synced: bool) -> Result<(), KvError> {
        self.step(Asked::Commit { keys: writes.len(), synced });
        self.inner.commit(writes, version, synced)
    }

    fn sync(&mut self) -> Result<(), KvError> {
        self.step(Asked::Sync);
        Ok(())
    }

    fn keeps(&self) -> Keeps {
        Keeps::Committed
    }
}

/// A database over such a store, and the test's ends of it.
struct Stepped {
    database: Arc<Database>,
    asked: Receiver<Asked>,
    go_on: Sender<()>,
}

impl Stepped {
    fn new(config: &StoreConfig) -> Self {
        let (asking, asked) = channel();
        let (go_on, going_on) = channel();
        let going_on = Arc::new(Mutex::new(going_on));
        let open: Open = Box::new(move |_| {
            let (asked, go_on) = (asking.clone(), going_on.clone());
            Ok(Box::new(SteppedStore { inner: HashedStore::new(), asked, go_on }))
        });
        let database = Arc::new(Database::open_with(open, config).unwrap());
        Self { database, asked, go_on }
    }

    fn asked(&self) -> Asked {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }

    /// Calls from a thread of its own.
    fn start(
        &self,
        batch: Batch,
        durability: Option<Durability>,
        deadline: Option<Instant>,
    ) -> std::thread::JoinHandle<Result<Outcomes, KvError>> {
        let database = self.database.clone();
        std::thread::spawn(move || database.apply(batch, 0, durability, deadline))
    }

    fn wait_until_queued(&self, requests: usize) {
        let until = Instant::now() + PATIENCE;
        while self.database.stats().queued_requests != requests {
            assert!(Instant::now() < until, "{:?}", self.database.stats());
            std::thread::yield_now();
        }
    }
}

fn on_disk() -> StoreConfig {
    StoreConfig::new(StoreKind::Fjall, "unused")
}

#[test]
fn what_waits_goes_together_and_failures_stop_nobody() {
    let stepped = Stepped::new(&on_disk());
    let first = stepped.start(each(vec![put("first", "")]), None, None);
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: true });
    let absent = || put_when("same", "", Condition::Absent);
    let callers: Vec<_> = (0..10)
        .map(|number| {
            let changes = vec![put(format!("{number}"), ""), absent()];
            let caller = stepped.start(all(changes), None, None);
            stepped.wait_until_queued(number + 1);
            caller
        })
        .collect();
    // Nobody sees what is not committed.
    assert_eq!(stepped.database.value("first"), None);
    stepped.go_on.send(()).unwrap();
    first.join().unwrap().unwrap();
    assert_eq!(stepped.database.keys(), ["first"]);
    // One of the ten was first, and the other nine are undone.
    assert_eq!(stepped.asked(), Asked::Commit { keys: 2, synced: true });
    stepped.go_on.send(()).unwrap();
    let mut outcomes = callers.into_iter().map(|caller| caller.join().unwrap());
    outcomes.next().unwrap().unwrap();
    assert!(outcomes.all(|outcome| outcome == Err(KvError::Exists)));
    assert_eq!(stepped.database.keys(), ["0", "first", "same"]);
    let stats = stepped.database.stats();
    assert_eq!((stats.commits, stats.changes, stats.queued_bytes), (2, 3, 0));
    assert!(stats.since_sync.is_some());
}

#[test]
fn a_full_queue_is_busy_and_a_withdrawn_change_is_not_made() {
    let mut config = on_disk();
    (config.max_queued_requests, config.max_queued_bytes) = (2, 100);
    let stepped = Stepped::new(&config);
    let first = stepped.start(each(vec![put("a", "")]), None, None);
    stepped.asked();
    // Alone it may be larger than the bound.
    let large = stepped.start(each(vec![put("large", [0; 200])]), None, None);
    stepped.wait_until_queued(1);
    assert_eq!(stepped.database.now(each(vec![put("c", "")])), Err(KvError::Busy));
    stepped.go_on.send(()).unwrap();
    first.join().unwrap().unwrap();
    stepped.asked();

    let soon = Some(Instant::now() + Duration::from_millis(5));
    let late = stepped.start(each(vec![put("late", "")]), None, soon);
    assert_eq!(late.join().unwrap(), Err(KvError::Deadline));
    let next = stepped.start(each(vec![put("next", "")]), None, Some(Instant::now() + PATIENCE));
    stepped.wait_until_queued(2);
    assert_eq!(stepped.database.now(each(vec![put("d", "")])), Err(KvError::Busy));
    stepped.go_on.send(()).unwrap();
    large.join().unwrap().unwrap();
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: true });
    stepped.go_on.send(()).unwrap();
    next.join().unwrap().unwrap();
    assert_eq!(stepped.database.keys(), ["a", "large", "next"]);
}

#[test]
fn what_was_taken_is_made_after_its_deadline() {
    let stepped = Stepped::new(&on_disk());
    let soon = Instant::now() + Duration::from_millis(300);
    let caller = stepped.start(each(vec![put("a", "")]), None, Some(soon));
    // A machine that is so slow that it has not been taken shows nothing.
    let Ok(_) = stepped.asked.recv_timeout(Duration::from_secs(1)) else { return };
    while Instant::now() <= soon {
        std::thread::yield_now();
    }
    stepped.go_on.send(()).unwrap();
    caller.join().unwrap().unwrap();
    assert_eq!(stepped.database.keys(), ["a"]);
}

#[test]
fn syncs_are_made_when_they_are_asked_for() {
    let mut config = on_disk();
    config.sync = SyncPolicy::Never;
    let stepped = Stepped::new(&config);
    for _ in 0..100 {
        stepped.go_on.send(()).unwrap();
    }
    // Nothing to sync.
    stepped.database.flush(None).unwrap();
    stepped.database.now(each(vec![put("a", "")])).unwrap();
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: false });
    assert_eq!(stepped.database.stats().since_sync, None);
    let apply =
        |durability| stepped.database.apply(each(vec![put("a", "")]), 0, Some(durability), None);
    apply(Durability::Written).unwrap();
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: false });
    apply(Durability::Synced).unwrap();
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: true });
    stepped.database.now(each(vec![put("b", "")])).unwrap();
    stepped.database.flush(None).unwrap();
    stepped.database.flush(None).unwrap();
    stepped.database.now(each(vec![put("c", "")])).unwrap();
    let Stepped { database, asked, .. } = stepped;
    drop(database);
    let rest: Vec<_> = asked.into_iter().collect();
    let commit = || Asked::Commit { keys: 1, synced: false };
    // The last one is of the end.
    assert_eq!(rest, [commit(), Asked::Sync, commit(), Asked::Sync]);
}

#[test]
fn an_interval_ends_with_a_sync() {
    let mut config = on_disk();
    config.sync = SyncPolicy::IntervalMsec(1);
    let stepped = Stepped::new(&config);
    for _ in 0..100 {
        stepped.go_on.send(()).unwrap();
    }
    stepped.database.now(each(vec![put("a", "")])).unwrap();
    assert_eq!(stepped.asked(), Asked::Commit { keys: 1, synced: false });
    assert_eq!(stepped.asked(), Asked::Sync);
}

#[test]
fn ults_wait_without_holding_their_xstream() {
    let stepped = Stepped::new(&on_disk());
    let instance = margo::init(r#"{ "rpc_thread_count": 1 }"#).unwrap();
    let pool = instance.layout().rpc_pool();
    let waits = {
        let database = stepped.database.clone();
        pool.spawn(move || database.now(each(vec![put("a", "")]))).unwrap()
    };
    stepped.asked();
    // The one xstream runs others meanwhile.
    pool.spawn(|| ()).unwrap().join().unwrap();
    stepped.go_on.send(()).unwrap();
    waits.join().unwrap().unwrap();
    assert_eq!(stepped.database.keys(), ["a"]);

    // One that is canceled before it was taken changes nothing.
    let next = stepped.start(each(vec![put("next", "")]), None, None);
    stepped.asked();
    let canceled = {
        let database = stepped.database.clone();
        pool.spawn(move || database.now(each(vec![put("canceled", "")]))).unwrap()
    };
    stepped.wait_until_queued(1);
    canceled.cancel();
    assert!(canceled.join().is_err());
    stepped.go_on.send(()).unwrap();
    next.join().unwrap().unwrap();
    stepped.database.flush(None).unwrap();
    assert_eq!(stepped.database.keys(), ["a", "next"]);
    drop(stepped);
    instance.finalize_and_wait().unwrap();
}
