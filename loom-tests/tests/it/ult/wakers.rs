//! One ULT, its xstream, and several parties that unpark or cancel it: can it sleep for ever, run
//! twice, or end its wait in two ways?
//!
//! The cells are the real ones: suspend cell, inbox, park word. The rest is a model of
//! `switch::suspend_until`, `switch::resume` and the loop of an xstream with one ULT.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, fence};
use loom::thread;
use margo_loom_tests::check_bounded;
use ult::loom_exports::{Inbox, Linked, ParkMode, ParkWord, SuspendCell, ThreadParker};

const CANCEL: u8 = 1;

struct Ult {
    link: AtomicPtr<Ult>,
    cell: SuspendCell,
    token: AtomicBool,
    requests: AtomicU8,
    /// The stack; written by each party that runs it.
    stack: UnsafeCell<u32>,
}

// SAFETY: `link` is one field, written by the inbox only.
unsafe impl Linked for Ult {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

struct Home {
    ult: Ult,
    inbox: Inbox<Ult>,
    word: ParkWord,
}

impl Home {
    fn new() -> Arc<Self> {
        let ult = Ult {
            link: AtomicPtr::default(),
            cell: SuspendCell::new(),
            token: AtomicBool::new(false),
            requests: AtomicU8::new(0),
            stack: UnsafeCell::new(0),
        };
        Arc::new(Self { ult, inbox: Inbox::new(), word: ParkWord::new() })
    }

    /// Resumes the ULT from another thread.
    fn resume(&self) {
        if !self.ult.cell.resume() {
            return;
        }
        // SAFETY:
        // - in no queue: the cell gave the right to queue it;
        // - alive: `Home` is.
        if unsafe { self.inbox.push(NonNull::from(&self.ult)) }.unwrap() {
            fence(SeqCst);
            if self.word.looks_asleep() && self.word.notify().is_some() {
                self.word.wake_futex();
            }
        }
    }

    fn unpark(&self) {
        self.ult.token.swap(true, Release);
        self.resume();
    }

    fn cancel(&self) {
        self.ult.requests.fetch_or(CANCEL, Release);
        self.resume();
    }

    /// Called by the ULT, on its home: switches away until it is run again.
    fn suspend(&self) {
        // SAFETY: checked by loom.
        self.ult.stack.with_mut(|stack| unsafe { *stack += 1 });
        if self.ult.cell.commit_suspend() {
            while self.inbox.take_all().next().is_none() {
                if self.word.begin(ParkMode::Futex) {
                    if self.inbox.is_empty() {
                        self.word.sleep_futex(None);
                    }
                    self.word.end();
                }
            }
        }
        // SAFETY: checked by loom.
        self.ult.stack.with_mut(|stack| unsafe { *stack += 1 });
    }

    fn take_token(&self) -> bool {
        self.ult.token.load(Relaxed) && self.ult.token.swap(false, Acquire)
    }

    fn is_cancelled(&self) -> bool {
        self.ult.requests.load(Acquire) & CANCEL != 0
    }

    /// `false`: cancelled, and no token taken.
    fn park(&self) -> bool {
        loop {
            if self.take_token() {
                return true;
            }
            if self.is_cancelled() {
                return false;
            }
            self.suspend();
        }
    }
}

/// Tokens merge, but what their givers wrote does not.
#[test]
fn every_unpark_is_seen() {
    check_bounded(2, || {
        let shared = Arc::new((Home::new(), [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let wakers = [0, 1].map(|at| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1[at].store(1, Relaxed);
                shared.0.unpark();
            })
        });
        while shared.1.iter().any(|flag| flag.load(Relaxed) == 0) {
            assert!(shared.0.park());
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert!(shared.0.inbox.take_all().next().is_none(), "it is queued, and runs");
    });
}

/// Tokens of an OS thread merge, but what their givers wrote does not.
#[test]
fn every_unpark_of_a_thread_is_seen() {
    check_bounded(2, || {
        let flags = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let shared = Arc::new((ThreadParker::new(), flags));
        let wakers = [0, 1].map(|at| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1[at].store(1, Relaxed);
                shared.0.leave_token();
            })
        });
        while shared.1.iter().any(|flag| flag.load(Relaxed) == 0) {
            while !shared.0.take_token() {
                shared.0.park(None);
            }
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

#[test]
fn a_cancel_is_not_lost_to_an_unpark() {
    check_bounded(2, || {
        let home = Home::new();
        let waker = {
            let home = home.clone();
            thread::spawn(move || home.unpark())
        };
        let canceller = {
            let home = home.clone();
            thread::spawn(move || home.cancel())
        };
        // The token ends at most one of them.
        let mut tokens = 0;
        while home.park() {
            tokens += 1;
        }
        assert!(tokens <= 1);
        waker.join().unwrap();
        canceller.join().unwrap();
        assert_eq!(tokens + usize::from(home.take_token()), 1, "the token is still there");
    });
}

/// A lock-like object hands something to a waiter while a cancel takes the waiter back: it is
/// handed over, or still there for the next one.
#[test]
fn a_cancelled_waiter_takes_nothing_along() {
    const LINKED: u8 = 1;
    const GIVEN: u8 = 2;
    check_bounded(2, || {
        let shared = Arc::new((Home::new(), AtomicU8::new(LINKED)));
        let giver = {
            let shared = shared.clone();
            thread::spawn(move || {
                let given = shared.1.compare_exchange(LINKED, GIVEN, AcqRel, Acquire).is_ok();
                if given {
                    shared.0.resume();
                }
                given
            })
        };
        let canceller = {
            let shared = shared.clone();
            thread::spawn(move || shared.0.cancel())
        };
        let (home, waiter) = &*shared;
        let has_it = loop {
            if waiter.load(Acquire) == GIVEN {
                break true;
            }
            if home.is_cancelled() {
                // Taken back, unless it has been given meanwhile.
                break waiter.compare_exchange(LINKED, 0, AcqRel, Acquire).is_err();
            }
            home.suspend();
        };
        assert_eq!(giver.join().unwrap(), has_it);
        canceller.join().unwrap();
    });
}
