//! The lock in [`Mutex`](crate::Mutex) and [`ReentrantMutex`](crate::ReentrantMutex).
//!
//! # States
//!
//! | flag of `state` | meaning | changed by |
//! |---|---|---|
//! | `LOCKED` | somebody holds the lock | whoever takes or frees it |
//! | `QUEUED` | the queue is not empty | under the lock of the queue |
//! | `COMPETING` | one waiter has been woken to compete for the lock | unlock; that waiter |
//!
//! Lock and unlock that wait for nobody and wake nobody are one atomic instruction each, whatever
//! the other flags say.
//!
//! # Who gets it next
//!
//! A strict hand-over would leave the lock idle until the next holder runs: on another xstream
//! until that core has noticed, and on the same one until the ULT that unlocks suspends. So unlock
//! frees the lock and wakes the first waiter to *compete* for it. Until that runs others may take
//! the lock, but they wake nobody else meanwhile (`COMPETING`). If it comes in vain it goes back to
//! the front of the queue and demands a *hand-over*, which it gets at the next unlock: the lock
//! stays `LOCKED`, and the waiter owns it when it wakes.
//!
//! So everybody in the queue is overtaken for one wake-up and one short spin at most, and then no
//! more; and within the queue it is first come, first served.
//!
//! Before it queues, a newcomer spins: for a fraction of a microsecond, and, while its xstream has
//! nothing else to run, for some microseconds. It does not spin past waiters in the queue.
//!
//! # Why the next holder may free the mutex at once
//!
//! The last thing that unlock touches is either the state, when it clears `LOCKED`, or the waiter
//! that owns the lock from then on. All that it does to the queue is done while it still holds the
//! lock. A waiter that is about to compete is inside `lock`, so nobody frees the mutex under it.

use std::ptr::NonNull;
use std::time::Instant;

use crate::base::wait_kind::WaitKind;
#[cfg(not(loom))]
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::waiter::{RawMutex, WaitList, Waiter};
use crate::engine::waiting::waiter::{SpinFor, spin};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::lock;

const LOCKED: usize = 1;
const QUEUED: usize = 2;
const COMPETING: usize = 4;

/// Tag of a waiter that is not overtaken any more.
const DEMANDS: usize = 1;

/// Notes to a woken waiter.
const HANDED_OVER: usize = 1;
const COMPETE: usize = 2;

/// Returns whether an unlock has to wake a waiter: the queue is not empty, and nobody is awake that
/// will take care of it.
#[inline]
fn wakes(word: usize) -> bool {
    word & (QUEUED | COMPETING) == QUEUED
}

/// The lock while it is held, for locks that protect no value of their own.
#[cfg(not(loom))]
#[must_use = "the lock is freed when this is dropped"]
pub(crate) struct RawGuard<'a>(&'a RawMutex);

#[cfg(not(loom))]
impl Drop for RawGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl RawMutex {
    /// Takes the lock, waiting for it if it is held, and frees it when the guard is dropped.
    #[cfg(not(loom))]
    pub(crate) fn hold(&self, kind: WaitKind) -> RawGuard<'_> {
        self.lock(kind);
        RawGuard(self)
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.state.load(Relaxed) & LOCKED == 0 && self.grab()
    }

    /// Takes the lock if it is free, past the queue: one instruction, which cannot fail because of
    /// the other flags.
    #[inline]
    fn grab(&self) -> bool {
        self.state.fetch_or(LOCKED, Acquire) & LOCKED == 0 // pair: MUTEX-FREE
    }

    /// Takes the lock. Not a cancellation point.
    #[inline]
    pub(crate) fn lock(&self, kind: WaitKind) {
        if !self.grab() {
            self.lock_slow(kind, |waiter, _| {
                waiter.block_fully();
                true
            });
        }
    }

    /// Takes the lock unless that lasts until after `deadline` (`None`: no limit). A cancellation
    /// point. `false`: too late.
    #[inline]
    pub(crate) fn lock_until(&self, kind: WaitKind, deadline: Option<Instant>) -> bool {
        self.grab()
            || self.lock_slow(kind, |waiter, node| waiter.settle(deadline, || self.leave(node)))
    }

    /// `wait` blocks a queued waiter and tells whether it was woken.
    #[cold]
    fn lock_slow(&self, kind: WaitKind, wait: impl Fn(&Waiter, NonNull<Waiter>) -> bool) -> bool {
        if self.spin_for_it() {
            return true;
        }
        let mut has_competed = false;
        loop {
            let waiter = Waiter::new(kind).with_number(usize::from(has_competed));
            let node = NonNull::from(&waiter);
            if self.take_or_enqueue(node, has_competed) {
                return true;
            }
            if !wait(&waiter, node) {
                return false;
            }
            if waiter.note() == HANDED_OVER {
                return true;
            }
            has_competed = true;
            if spin(SpinFor::Holder, || self.try_win()) {
                return true;
            }
        }
    }

    /// A newcomer's short wait. Not past waiters in the queue.
    fn spin_for_it(&self) -> bool {
        let mut is_queued = false;
        let got_it = spin(SpinFor::Holder, || {
            is_queued = self.state.load(Relaxed) & QUEUED != 0;
            is_queued || self.try_lock()
        });
        got_it && !is_queued
    }

    /// Takes the lock if it is free, and competes no more.
    fn try_win(&self) -> bool {
        let mut word = self.state.load(Relaxed);
        while word & LOCKED == 0 {
            let next = (word | LOCKED) & !COMPETING;
            // pair: MUTEX-FREE
            match self.state.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    /// Takes the lock if it has become free (`true`), or queues: at the back, or, for a waiter that
    /// has competed, at the front. Either way that waiter does not compete any more.
    fn take_or_enqueue(&self, node: NonNull<Waiter>, has_competed: bool) -> bool {
        let flag = if has_competed { COMPETING } else { 0 };
        let mut queue = lock(&self.queue);
        let mut word = self.state.load(Relaxed);
        loop {
            let is_free = word & LOCKED == 0;
            let next = (if is_free { word | LOCKED } else { word | QUEUED }) & !flag;
            // pair: MUTEX-FREE
            match self.state.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) if is_free => return true,
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        if has_competed {
            // SAFETY:
            // - in no list: fresh; it stays until it is woken, or has left the queue (`leave`).
            unsafe { queue.push_front(node) };
        } else {
            // SAFETY: as above.
            unsafe { queue.push_back(node) };
        }
        false
    }

    /// Takes a waiter whose deadline has passed out of the queue. `false`: it has been woken.
    fn leave(&self, node: NonNull<Waiter>) -> bool {
        let mut queue = lock(&self.queue);
        // SAFETY:
        // - alive: the caller is its party; it was put into this queue.
        let was_queued = unsafe { queue.remove(node) };
        self.update_queued(&queue);
        was_queued
    }

    fn update_queued(&self, queue: &WaitList) {
        if queue.is_empty() {
            self.state.fetch_and(!QUEUED, Relaxed);
        }
    }

    /// Frees the lock, or gives it to the next. The caller holds it.
    #[inline]
    pub(crate) fn unlock(&self) {
        let word = self.state.load(Relaxed);
        // pair: MUTEX-FREE
        if !wakes(word)
            && self.state.compare_exchange(word, word & !LOCKED, Release, Relaxed).is_ok()
        {
            return;
        }
        self.unlock_slow();
    }

    #[cold]
    fn unlock_slow(&self) {
        let mut word = self.state.load(Relaxed);
        loop {
            if wakes(word) {
                if self.wake_next() {
                    return;
                }
                word = self.state.load(Relaxed);
                continue;
            }
            // pair: MUTEX-FREE
            match self.state.compare_exchange_weak(word, word & !LOCKED, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => word = seen,
            }
        }
    }

    /// Unlocks in favour of the first in the queue. `false`: there is none any more.
    fn wake_next(&self) -> bool {
        let mut queue = lock(&self.queue);
        let Some(first) = queue.first() else { return false };
        let hands_over = first.tag.addr() == DEMANDS;
        let Some(next) = queue.pop_front() else { return false };
        self.update_queued(&queue);
        let note = if hands_over {
            drop(queue);
            HANDED_OVER
        } else {
            self.state.fetch_or(COMPETING, Relaxed);
            drop(queue);
            self.state.fetch_and(!LOCKED, Release); // pair: MUTEX-FREE
            COMPETE
        };
        // After a hand-over `self` may be gone as soon as `next` is awake.
        //
        // SAFETY:
        // - alive, unlinked: popped above; not touched afterwards.
        unsafe { Waiter::wake_with(next, note) };
        true
    }
}

#[cfg(not(loom))]
impl RuntimeCore {
    /// Waits for the right to change the layout. A ULT suspends meanwhile.
    pub(crate) fn lock_layout(&self) -> RawGuard<'_> {
        self.layout.hold(WaitKind::Mutex)
    }
}

#[cfg(loom)]
impl Drop for RawMutex {
    fn drop(&mut self) {
        // The model then reports every access that is not ordered before this.
        self.state.with_mut(|_| ());
    }
}
