//! A unit is stolen from one pool into another while one of the two is removed: is it lost, does a
//! removed pool have it, do the books forget it?
//!
//! A model of `PoolRef::{steal, push}`, `change_pool::{enter, adopt}`, `layout::close_pool` and
//! `PoolShared::outlives_removal`.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use margo_loom_tests::check;

#[derive(Default)]
struct Pool {
    queue: Mutex<Vec<u64>>,
    spawned: AtomicU64,
    ended: AtomicU64,
    moved: AtomicU64,
    removing: AtomicBool,
    removed: AtomicBool,
}

impl Pool {
    fn spawn(&self, unit: u64) {
        self.spawned.fetch_add(1, Relaxed);
        self.queue.lock().unwrap().push(unit);
    }

    fn pop(&self) -> Option<u64> {
        let mut queue = self.queue.lock().unwrap();
        if queue.is_empty() { None } else { Some(queue.remove(0)) }
    }

    fn enter(&self) -> bool {
        self.moved.fetch_add(1, Relaxed);
        fence(SeqCst);
        while self.removing.load(Acquire) {
            thread::yield_now();
        }
        let is_there = !self.removed.load(Relaxed);
        if !is_there {
            self.moved.fetch_sub(1, Relaxed);
        }
        is_there
    }

    /// Steals a unit into `own`; `false`: there was none, or it was dropped.
    fn steal_into(&self, own: &Self) -> bool {
        let Some(unit) = self.pop() else { return false };
        if !own.enter() {
            // A dropped unit ends in its own pool's books.
            self.ended.fetch_add(1, Release);
            return false;
        }
        self.moved.fetch_sub(1, Release);
        own.queue.lock().unwrap().push(unit);
        true
    }

    fn run_one(&self) -> bool {
        let has_run = self.pop().is_some();
        if has_run {
            self.ended.fetch_add(1, Release);
        }
        has_run
    }

    /// `true`: it was removed, without units.
    fn remove(&self) -> bool {
        self.removing.store(true, Relaxed);
        fence(SeqCst);
        let ended = self.ended.load(Acquire);
        let spawned = self.spawned.load(Relaxed);
        let moved = self.moved.load(Acquire);
        let is_empty = spawned.wrapping_add(moved) == ended;
        if is_empty {
            self.removed.store(true, Release);
        }
        self.removing.store(false, Release);
        is_empty
    }
}

/// The pool is removed from which a unit is stolen.
#[test]
fn a_pool_that_is_stolen_from_is_removed_without_its_unit_or_not_at_all() {
    check(|| {
        let (from, own) = (Arc::new(Pool::default()), Arc::new(Pool::default()));
        from.spawn(1);
        let (source, target) = (from.clone(), own.clone());
        let thief = thread::spawn(move || {
            assert!(source.steal_into(&target), "nobody else takes it");
            assert!(target.run_one());
        });
        let is_removed = from.remove();
        assert!(!is_removed || from.queue.lock().unwrap().is_empty());
        thief.join().unwrap();
        assert!(from.remove() && own.remove(), "the unit counts nowhere any more");
    });
}

/// The owner takes its units, too, and the thief's own pool is removed.
#[test]
fn a_stolen_unit_goes_into_no_pool_that_is_removed() {
    check(|| {
        let (from, own) = (Arc::new(Pool::default()), Arc::new(Pool::default()));
        from.spawn(1);
        let (source, target) = (from.clone(), own.clone());
        let thief = thread::spawn(move || source.steal_into(&target));
        let has_run = from.run_one();
        let is_removed = own.remove();
        let is_stolen = thief.join().unwrap();
        assert!(!(has_run && is_stolen), "it ran twice");
        assert!(!(is_removed && is_stolen), "it was lost");
        assert_eq!(own.run_one(), is_stolen);
        assert!(from.remove() && (is_removed || own.remove()));
    });
}
