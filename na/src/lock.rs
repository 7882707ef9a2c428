//! The lock of the hot path: one atomic read-modify-write per critical section.
//!
//! A mutex needs a second one to learn, at unlock, whether somebody sleeps. Here nobody sleeps: a
//! waiter spins shortly and then gives its processor away between looks, so a holder that lost its
//! processor gets on. Sections under it are short, but for the poll's, which has one caller at a
//! time by contract.

#[cfg(not(loom))]
use std::fmt;
#[cfg(not(loom))]
use std::ops::{Deref, DerefMut};

#[cfg(not(loom))]
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{hint, thread};

/// Looks at a held lock before giving the processor away.
const SPINS: u32 = 100;

/// The protocol, without the value.
#[derive(Debug)]
pub struct RawLock(AtomicBool);

impl RawLock {
    /// Not held.
    #[allow(clippy::new_without_default, reason = "a lock alone is of no use to anybody else")]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Takes the lock if it is free.
    #[inline]
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        // pair: LOCK
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn acquire(&self) {
        while !self.try_acquire() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.0.load(Ordering::Relaxed) {
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Gives it back; only for who has acquired it.
    #[inline]
    pub fn release(&self) {
        // pair: LOCK (everything done under the lock first)
        self.0.store(false, Ordering::Release);
    }
}

/// A value behind a [`RawLock`].
#[cfg(not(loom))]
pub struct Lock<T> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time (`RawLock`), which is a move if `T: Send`.
#[cfg(not(loom))]
unsafe impl<T: Send> Sync for Lock<T> {}

#[cfg(not(loom))]
impl<T> Lock<T> {
    /// Not held.
    pub fn new(value: T) -> Self {
        Self { raw: RawLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. It is given back when the guard is dropped, also by a panic.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.raw.acquire();
        Guard { lock: self }
    }

    /// The value, which nobody else can reach.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: valid and unshared: `&mut self`, and the guards borrow the lock.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// The lock, if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.raw.try_acquire().then(|| Guard { lock: self })
    }
}

#[cfg(not(loom))]
impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock(..)")
    }
}

/// Access to the value of a held [`Lock`].
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

#[cfg(not(loom))]
impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY:
        // - valid: the cell is part of the lock, which the guard borrows;
        // - aliasing: only the holder of the lock makes references, and a mutable one needs
        //   `&mut self`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

#[cfg(not(loom))]
impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - valid: the cell is part of the lock, which the guard borrows;
        // - aliasing: only the holder of the lock makes references, and `&mut self` is exclusive.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

#[cfg(not(loom))]
impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.release();
    }
}
