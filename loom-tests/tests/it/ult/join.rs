//! The join word of a unit that ends and its handle. Does exactly one of them come second, does it
//! see the other's writes, and is every waiter woken, and none that has left?
//!
//! As in `eventual.rs`, at most one party leaves at a time while another one changes the word.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use margo_loom_tests::check;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};
use ult::WaitKind;
use ult::loom_exports::{JoinWord, Published, TaskWait};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

/// State that a unit and its handle share. The one that comes second frees it, by hand, so that
/// loom reports an access that comes later.
struct Unit {
    word: JoinWord,
    outcome: UnsafeCell<u32>,
}

#[derive(Clone, Copy)]
struct Shared(*const Unit);

// SAFETY: `JoinWord` is `Sync`; it orders the accesses to the outcome, which loom checks.
unsafe impl Send for Shared {}

/// The value that the unit leaves.
const OUTCOME: u32 = 9;

impl Shared {
    fn new() -> Self {
        let unit = Unit { word: JoinWord::new(), outcome: UnsafeCell::new(0) };
        Self(Box::into_raw(Box::new(unit)))
    }

    fn unit(&self) -> &Unit {
        // SAFETY: the party that calls this has not come second yet, or is the last one.
        unsafe { &*self.0 }
    }

    fn word(&self) -> &JoinWord {
        &self.unit().word
    }

    fn free(self) {
        // SAFETY: from a box; only whoever comes second does this.
        drop(unsafe { Box::from_raw(self.0.cast_mut()) });
    }

    /// The handle has seen the end: it reads the outcome and frees the rest.
    fn take(self) {
        // SAFETY: no writer: the unit has published, which loom checks.
        let outcome = self.unit().outcome.with(|outcome| unsafe { *outcome });
        assert_eq!(outcome, OUTCOME);
        self.free();
    }

    /// The unit: leaves its outcome, and frees all if the handle is gone.
    fn end(self) {
        // SAFETY: no reader before the end is published, which loom checks.
        self.unit().outcome.with_mut(|outcome| unsafe { *outcome = OUTCOME });
        if self.word().is_detached() {
            return self.free();
        }
        match self.word().publish() {
            Published::First => {}
            Published::Detached => self.free(),
            Published::Waited(waiters) => waiters.wake(),
        }
    }

    /// The handle is dropped.
    fn detach(self) {
        if self.word().detach() {
            self.take();
        }
    }
}

/// Runs the unit beside the owner of its handle.
fn against_exit(handle: impl FnOnce(Shared)) {
    let shared = Shared::new();
    let unit = {
        let shared = shared;
        thread::spawn(move || {
            let shared = shared;
            shared.end();
        })
    };
    handle(shared);
    unit.join().unwrap();
}

/// A waker that counts. What precedes the call happens before the poll, as in every executor.
#[derive(Default)]
struct Count(AtomicUsize);

/// `std::task::Wake` wants an `Arc` of the standard library.
struct CountWaker(Arc<Count>);

impl Wake for CountWaker {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.0.fetch_add(1, Ordering::Release);
    }
}

impl Count {
    fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        let waker = Waker::from(std::sync::Arc::new(CountWaker(count.clone())));
        (count, waker)
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

#[test]
fn join_against_exit() {
    check(|| {
        against_exit(|shared| {
            assert!(shared.word().wait(None));
            shared.take();
        });
    });
}

#[test]
fn detach_against_exit() {
    check(|| against_exit(Shared::detach));
}

#[test]
fn a_look_against_exit() {
    check(|| {
        against_exit(|shared| {
            if shared.word().is_done() {
                shared.take();
            } else {
                shared.detach();
            }
        });
    });
}

/// A deadline that has passed: the waiter leaves while the unit ends.
#[test]
fn timed_join_against_exit() {
    check(|| {
        against_exit(|shared| {
            if shared.word().wait(Some(past())) {
                shared.take();
            } else {
                shared.detach();
            }
        });
    });
}

/// The timed join has failed, and is followed by one without a limit.
#[test]
fn a_second_join_against_exit() {
    check(|| {
        against_exit(|shared| {
            let _ = shared.word().wait(Some(past()));
            assert!(shared.word().wait(None));
            shared.take();
        });
    });
}

#[test]
fn a_future_dropped_against_exit() {
    check(|| {
        against_exit(|shared| {
            let (_, waker) = Count::new();
            let mut wait = TaskWait::new();
            // SAFETY: the word stays until `take` or `detach`.
            if unsafe { wait.poll(shared.word(), WaitKind::Join, &waker) } {
                return shared.take();
            }
            wait.leave(shared.word());
            shared.detach();
        });
    });
}

/// Polled until it is ready: each pending poll is followed by a wake-up.
#[test]
fn a_future_awaited_against_exit() {
    check(|| {
        against_exit(|shared| {
            let (count, waker) = Count::new();
            let mut wait = TaskWait::new();
            // SAFETY: the word stays until `take`.
            while !unsafe { wait.poll(shared.word(), WaitKind::Join, &waker) } {
                while count.get() == 0 {
                    thread::yield_now();
                }
            }
            assert!(count.get() <= 1);
            shared.take();
        });
    });
}

/// The task has moved to another waker: the later one must be called, unless the end is seen.
#[test]
fn a_future_with_a_new_waker_against_exit() {
    check(|| {
        against_exit(|shared| {
            let ((_, old), (count, new)) = (Count::new(), Count::new());
            let mut wait = TaskWait::new();
            // SAFETY: the word stays until `take`.
            let is_ready = unsafe { wait.poll(shared.word(), WaitKind::Join, &old) };
            // SAFETY: as above.
            if !is_ready && !unsafe { wait.poll(shared.word(), WaitKind::Join, &new) } {
                while count.get() == 0 {
                    thread::yield_now();
                }
                // SAFETY: as above.
                assert!(unsafe { wait.poll(shared.word(), WaitKind::Join, &new) });
            }
            shared.take();
        });
    });
}

/// The older of two leaves while the unit ends, so the chain is changed in its middle.
#[test]
fn one_of_two_futures_is_dropped_against_exit() {
    check(|| {
        against_exit(|shared| {
            let ((_, gone), (count, stays)) = (Count::new(), Count::new());
            let (mut older, mut newer) = (TaskWait::new(), TaskWait::new());
            // SAFETY: the word stays until `take`.
            let is_over = unsafe { older.poll(shared.word(), WaitKind::Select, &gone) };
            // SAFETY: as above.
            let is_over = unsafe { newer.poll(shared.word(), WaitKind::Join, &stays) } || is_over;
            older.leave(shared.word());
            while !is_over && count.get() == 0 {
                thread::yield_now();
            }
            newer.leave(shared.word());
            assert!(shared.word().is_done());
            shared.take();
        });
    });
}

/// Two leave while the unit ends: the second goes by links that the first has made.
#[test]
fn two_of_three_futures_are_dropped_against_exit() {
    check(|| {
        against_exit(|shared| {
            let ((_, gone), (_, left), (count, stays)) = (Count::new(), Count::new(), Count::new());
            let mut waits = [(); 3].map(|()| TaskWait::new());
            let [oldest, middle, newest] = &mut waits;
            // SAFETY: the word stays until `take`.
            let poll = |wait: &mut TaskWait, waker| unsafe {
                wait.poll(shared.word(), WaitKind::Join, waker)
            };
            let mut is_over = poll(oldest, &gone);
            is_over |= poll(middle, &left);
            is_over |= poll(newest, &stays);
            oldest.leave(shared.word());
            middle.leave(shared.word());
            while !is_over && count.get() == 0 {
                thread::yield_now();
            }
            newest.leave(shared.word());
            assert!(shared.word().is_done());
            shared.take();
        });
    });
}

/// Two that wait are both woken.
#[test]
fn two_watchers_against_exit() {
    check(|| {
        against_exit(|shared| {
            let watcher = {
                let shared = shared;
                thread::spawn(move || {
                    let shared = shared;
                    assert!(shared.word().wait(None));
                })
            };
            assert!(shared.word().wait(None));
            watcher.join().unwrap();
            shared.take();
        });
    });
}
