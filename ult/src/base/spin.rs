//! A lock for critical sections of a few instructions that never run user code.
//!
//! Test-and-test-and-set: waiters read until the lock looks free, so they do not pull the line away
//! from its holder, and give the processor away after a while in case the holder was preempted.

use std::ops::Deref;

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{UnsafeCell, relax};

/// The lock. Its content is used through a shared reference (lists and cells).
#[derive(Debug)]
pub(crate) struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: owns its value.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Access to the value while the lock is held.
#[derive(Debug)]
pub(crate) struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// An unlocked lock.
    #[must_use]
    pub(crate) fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        let mut round = 0;
        // pair: SPIN-LOCK
        while self.locked.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            while self.locked.load(Relaxed) {
                relax(&mut round);
            }
        }
        SpinGuard(self)
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY:
        // - no writer: the guard holds the lock; the borrow is tied to the guard.
        self.0.value.with(|value| unsafe { &*value })
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.locked.store(false, Release); // pair: SPIN-LOCK
    }
}
