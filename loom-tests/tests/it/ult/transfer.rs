//! The private end of a pool passes from one xstream to another while units are pushed: can two
//! have it, can the heir be forgotten, can a unit be lost?
//!
//! A model of `layout::settle_servers`, `Xstream::{claim, give_up, enter_pools}` and
//! `spawn::push_foreign`, with real inboxes.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use margo_loom_tests::check_bounded;
use ult::loom_exports::{Inbox, Linked};

const NOBODY: usize = 2;

struct Unit {
    link: AtomicPtr<Unit>,
    number: usize,
}

// SAFETY: `link` is one field, written by the inbox only.
unsafe impl Linked for Unit {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

struct Pool {
    owner: AtomicUsize,
    heir: AtomicUsize,
    /// Touched by the owner alone.
    end: UnsafeCell<usize>,
    /// For each xstream, the list of its slot.
    lists: [UnsafeCell<Vec<usize>>; 2],
    queue: Mutex<Vec<usize>>,
    inboxes: [Inbox<Unit>; 2],
    /// Xstreams that have been asked to look at their pools.
    asked: [AtomicBool; 2],
}

impl Pool {
    fn new(owner: usize) -> Arc<Self> {
        Arc::new(Self {
            owner: AtomicUsize::new(owner),
            heir: AtomicUsize::new(owner),
            end: UnsafeCell::new(0),
            lists: [UnsafeCell::new(Vec::new()), UnsafeCell::new(Vec::new())],
            queue: Mutex::new(Vec::new()),
            inboxes: [Inbox::new(), Inbox::new()],
            asked: [AtomicBool::new(false), AtomicBool::new(false)],
        })
    }

    fn ask(&self, xstream: usize) {
        // Not a store: loom would let a swap that came before it win.
        self.asked[xstream].swap(true, AcqRel);
    }

    fn set_heir(&self, heir: usize) {
        self.heir.store(heir, Release);
        fence(SeqCst);
        let owner = self.owner.load(Acquire);
        if owner == heir {
            return;
        }
        let asked = if owner == NOBODY { heir } else { owner };
        if asked != NOBODY {
            self.ask(asked);
        }
    }

    fn enter(&self, me: usize) {
        let (heir, owner) = (self.heir.load(Acquire), self.owner.load(Acquire));
        if owner == me && heir != me {
            self.give_up(me);
        } else if owner == NOBODY && heir == me {
            self.claim(me);
        }
    }

    fn claim(&self, me: usize) {
        if self.owner.compare_exchange(NOBODY, me, AcqRel, Relaxed).is_err() {
            return;
        }
        // The owner's slot.
        self.touch_end();
        fence(SeqCst);
        if self.heir.load(Acquire) != me {
            self.give_up(me);
        }
    }

    fn give_up(&self, me: usize) {
        self.owner.store(NOBODY, Release);
        fence(SeqCst);
        let heir = self.heir.load(Acquire);
        if heir != NOBODY {
            // Also if it is the giver itself, which has been chosen again meanwhile.
            self.ask(heir);
        }
        // SAFETY: checked by loom.
        let mut units = self.lists[me].with_mut(|list| unsafe { std::mem::take(&mut *list) });
        self.queue.lock().unwrap().append(&mut units);
    }

    fn touch_end(&self) {
        // SAFETY: checked by loom.
        self.end.with_mut(|end| unsafe { *end += 1 });
    }

    fn push_own(&self, me: usize, number: usize) {
        self.touch_end();
        // SAFETY: checked by loom.
        self.lists[me].with_mut(|list| unsafe { (*list).push(number) });
    }

    /// Pushes from any thread but the owner's.
    fn push(&self, number: usize) {
        let owner = self.owner.load(Acquire);
        if owner == NOBODY {
            return self.queue.lock().unwrap().push(number);
        }
        let unit = Box::leak(Box::new(Unit { link: AtomicPtr::default(), number }));
        // SAFETY:
        // - fresh, hence in no queue;
        // - leaked until `read_mail` frees it.
        let sent = unsafe { self.inboxes[owner].push(NonNull::from(unit)) };
        assert!(sent.is_ok(), "nobody closes it");
    }

    /// One round of an xstream's loop.
    fn round(&self, me: usize) {
        if self.asked[me].swap(false, AcqRel) {
            self.enter(me);
        }
        for unit in self.inboxes[me].take_all() {
            // SAFETY: leaked by `push`, taken once.
            let unit = unsafe { Box::from_raw(unit.as_ptr()) };
            if self.owner.load(Acquire) == me {
                self.push_own(me, unit.number);
            } else {
                self.push(unit.number);
            }
        }
    }

    fn rounds(&self, me: usize, count: usize) {
        for _ in 0..count {
            self.round(me);
        }
    }

    /// When all others are gone: everything that has been asked for is done.
    fn settle(&self) {
        // A give-up asks, and a unit is passed on, at most so often.
        for _ in 0..4 {
            self.round(0);
            self.round(1);
        }
        assert!(self.asked.iter().all(|asked| !asked.load(Relaxed)));
    }

    /// All units that are there, sorted.
    fn units(&self) -> Vec<usize> {
        let mut units = self.queue.lock().unwrap().clone();
        for list in &self.lists {
            // SAFETY: checked by loom.
            units.extend(list.with(|list| unsafe { (*list).clone() }));
        }
        units.sort_unstable();
        units
    }
}

/// loom complains if two touch the private end.
#[test]
fn no_unit_is_lost_when_the_owner_changes() {
    check_bounded(2, || {
        let pool = Pool::new(0);
        let xstreams = [0, 1].map(|me| {
            let pool = pool.clone();
            thread::spawn(move || pool.rounds(me, 2))
        });
        pool.push(1);
        pool.set_heir(1);
        pool.push(2);
        xstreams.into_iter().for_each(|xstream| xstream.join().unwrap());
        pool.settle();
        assert_eq!(pool.owner.load(Relaxed), 1);
        assert_eq!(pool.units(), [1, 2]);
    });
}

/// The layout changes back while the first change is on its way.
#[test]
fn the_last_heir_gets_the_pool() {
    check_bounded(3, || {
        let pool = Pool::new(0);
        let xstreams = [0, 1].map(|me| {
            let pool = pool.clone();
            thread::spawn(move || pool.rounds(me, 1))
        });
        pool.set_heir(1);
        pool.set_heir(0);
        xstreams.into_iter().for_each(|xstream| xstream.join().unwrap());
        pool.settle();
        assert_eq!(pool.owner.load(Relaxed), 0);
    });
}

/// Two take it at the same time, each having been the heir when it looked.
#[test]
fn one_of_two_claims_wins() {
    check_bounded(3, || {
        let pool = Pool::new(NOBODY);
        let xstreams = [0, 1].map(|me| {
            let pool = pool.clone();
            thread::spawn(move || pool.rounds(me, 1))
        });
        pool.set_heir(0);
        pool.set_heir(1);
        xstreams.into_iter().for_each(|xstream| xstream.join().unwrap());
        pool.settle();
        assert_eq!(pool.owner.load(Relaxed), 1);
    });
}

/// A pool without an heir loses its owner: all units stand in the queue in the end.
#[test]
fn a_shared_pool_has_no_owner() {
    check_bounded(2, || {
        let pool = Pool::new(0);
        let xstream = {
            let pool = pool.clone();
            thread::spawn(move || pool.rounds(0, 2))
        };
        let sender = {
            let pool = pool.clone();
            thread::spawn(move || pool.push(1))
        };
        pool.set_heir(NOBODY);
        xstream.join().unwrap();
        sender.join().unwrap();
        pool.settle();
        assert_eq!(pool.owner.load(Relaxed), NOBODY);
        assert_eq!(*pool.queue.lock().unwrap(), [1]);
    });
}
