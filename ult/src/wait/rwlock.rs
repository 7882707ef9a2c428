//! Shared or exclusive access for ULTs and OS threads, first come, first served.
//!
//! # The word
//!
//! | part | meaning |
//! |---|---|
//! | `QUEUED` | somebody waits, so newcomers queue, too ([`gate`](crate::wait::fair_queue)) |
//! | `WRITER` | held exclusively |
//! | the rest | number of readers that hold it, in units of `READER` |
//!
//! Neighbouring readers in the queue are admitted together. So readers and writers take turns in
//! the order in which they came, and neither can starve the other.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::{SpinFor, after, spin};
use crate::sync::UnsafeCell;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::wait::fair_queue::{FairQueue, QUEUED, WATCHED};

const FLAGS: usize = QUEUED | WATCHED;
const WRITER: usize = 4;
const READER: usize = 8;

/// Tags of waiters.
const WANTS_READ: usize = 0;
const WANTS_WRITE: usize = 1;

/// A lock with many readers or one writer, which suspends a waiting ULT and blocks a waiting OS
/// thread.
///
/// Fair: requests are served in the order in which they came, and readers next to each other in the
/// queue go together. A reader that comes while a writer waits queues behind it; so a party that
/// holds read access must not ask for it again, or both wait forever. Without contention each call
/// is one atomic operation and never yields.
///
/// There is no poisoning. Guards may be held across a suspension, but do not leave their ULT.
///
/// ```
/// let table = ult::RwLock::new(vec![1, 2, 3]);
/// table.write().push(4);
/// // Any number of readers at a time.
/// let (one, other) = (table.read(), table.read());
/// assert_eq!(one.len() + other.len(), 8);
/// assert!(table.try_write().is_none());
/// ```
///
/// Counterpart: `ABT_rwlock`.
pub struct RwLock<T> {
    gate: FairQueue,
    value: UnsafeCell<T>,
}

// SAFETY: writers move between threads what they leave in the value (`T: Send`); readers share it
// (`T: Sync`).
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}
// SAFETY: an unborrowed lock has no waiters, so it is its value.
unsafe impl<T: Send> Send for RwLock<T> {}

impl<T> RwLock<T> {
    const_new! {
        /// A lock that nobody holds.
        #[must_use]
        pub fn new(value: T) -> Self {
            Self { gate: FairQueue::new(0), value: UnsafeCell::new(value) }
        }
    }

    /// Takes shared access, waiting for it. Not a cancellation point.
    ///
    /// Counterpart: `ABT_rwlock_rdlock`.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if !self.take_read() && !self.spin(WANTS_READ) {
            self.wait_fully(WANTS_READ);
        }
        self.read_guard()
    }

    /// Takes shared access if that needs no waiting.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.take_read().then(|| self.read_guard())
    }

    /// Takes shared access, waiting no longer than until `deadline`. `None`: too late.
    pub fn read_deadline(&self, deadline: Instant) -> Option<RwLockReadGuard<'_, T>> {
        (self.take_read() || self.wait(WANTS_READ, Some(deadline))).then(|| self.read_guard())
    }

    /// Like [`read_deadline`](Self::read_deadline), counted from now.
    pub fn read_timeout(&self, timeout: Duration) -> Option<RwLockReadGuard<'_, T>> {
        (self.take_read() || self.wait(WANTS_READ, after(timeout))).then(|| self.read_guard())
    }

    /// Takes exclusive access, waiting for it. Not a cancellation point.
    ///
    /// Counterpart: `ABT_rwlock_wrlock`.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if !self.take_write() && !self.spin(WANTS_WRITE) {
            self.wait_fully(WANTS_WRITE);
        }
        self.write_guard()
    }

    /// Takes exclusive access if that needs no waiting.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.take_write().then(|| self.write_guard())
    }

    /// Takes exclusive access, waiting no longer than until `deadline`. `None`: too late.
    pub fn write_deadline(&self, deadline: Instant) -> Option<RwLockWriteGuard<'_, T>> {
        (self.take_write() || self.wait(WANTS_WRITE, Some(deadline))).then(|| self.write_guard())
    }

    /// Like [`write_deadline`](Self::write_deadline), counted from now.
    pub fn write_timeout(&self, timeout: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        (self.take_write() || self.wait(WANTS_WRITE, after(timeout))).then(|| self.write_guard())
    }

    /// The value, without locking: `&mut self` proves that nobody else is here.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY:
        // - no alias: `&mut self`; the borrow is tied to it.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// The value, when the lock is not needed any more.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    #[inline]
    fn take_read(&self) -> bool {
        let mut word = self.gate.word.load(Relaxed);
        while word & (WRITER | QUEUED) == 0 {
            let next = word.checked_add(READER).expect("too many readers of one RwLock");
            // pair: RWLOCK-FREE
            match self.gate.word.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
    }

    #[inline]
    fn take_write(&self) -> bool {
        // pair: RWLOCK-FREE
        self.gate.word.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok()
    }

    /// A newcomer's short wait. Not past waiters in the queue.
    #[cold]
    fn spin(&self, wants: usize) -> bool {
        let mut got_it = false;
        spin(SpinFor::Holder, || {
            got_it = if wants == WANTS_WRITE { self.take_write() } else { self.take_read() };
            got_it || self.gate.word.load(Relaxed) & QUEUED != 0
        });
        got_it
    }

    fn wait_fully(&self, wants: usize) {
        self.gate.wait_fully(&waiter(wants), |wants| self.take_queued(wants));
    }

    #[cold]
    fn wait(&self, wants: usize, deadline: Option<Instant>) -> bool {
        self.spin(wants)
            || self.gate.wait(&waiter(wants), deadline, |wants| self.take_queued(wants))
    }

    /// Takes access for the front of the queue: `QUEUED` is set, so only readers that leave and
    /// waiters that watch change the word meanwhile.
    fn take_queued(&self, wants: usize) -> bool {
        let mut word = self.gate.word.load(Relaxed);
        loop {
            let (blocked, next) = match wants {
                WANTS_WRITE => (word & !FLAGS != 0, word | WRITER),
                _ => (word & WRITER != 0, word + READER),
            };
            if blocked {
                return false;
            }
            // Acquires for the waiter, which gets it with the wake-up.
            // pair: RWLOCK-FREE
            match self.gate.word.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    #[inline]
    fn release(&self, held: usize) {
        let word = self.gate.word.fetch_sub(held, Release) - held; // pair: RWLOCK-FREE
        if word & QUEUED != 0 && word & !FLAGS == 0 {
            self.gate.admit(|wants| self.take_queued(wants));
        }
    }

    fn read_guard(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, not_send: PhantomData }
    }

    fn write_guard(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, not_send: PhantomData }
    }
}

fn waiter(wants: usize) -> Waiter {
    let kind = if wants == WANTS_WRITE { WaitKind::RwLockWrite } else { WaitKind::RwLockRead };
    Waiter::new(kind).with_number(wants)
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_read() {
            Some(guard) => f.debug_tuple("RwLock").field(&&*guard).finish(),
            None => f.write_str("RwLock(<locked>)"),
        }
    }
}

/// Shared access to the value of a [`RwLock`]; given back when dropped.
///
/// ```
/// let limit = ult::RwLock::new(10);
/// let guard = limit.read();
/// assert_eq!(*guard, 10);
/// // A writer waits until the guard is gone.
/// assert!(limit.try_write().is_none());
/// drop(guard);
/// *limit.write() = 20;
/// ```
#[must_use = "the access is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T> {
    lock: &'a RwLock<T>,
    /// A guard stays in its ULT or thread, which is what users of locks expect.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives out `&T` only.
unsafe impl<T: Sync> Sync for RwLockReadGuard<'_, T> {}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY:
        // - no writer: the guard holds shared access; the borrow is tied to the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.release(READER);
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Exclusive access to the value of a [`RwLock`]; given back when dropped.
///
/// ```
/// let limit = ult::RwLock::new(10);
/// let mut guard = limit.write();
/// *guard *= 2;
/// assert!(limit.try_read().is_none());
/// drop(guard);
/// assert_eq!(*limit.read(), 20);
/// ```
#[must_use = "the access is given back when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T> {
    lock: &'a RwLock<T>,
    /// A guard stays in its ULT or thread, which is what users of locks expect.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives out `&T` only.
unsafe impl<T: Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY:
        // - no writer: the guard holds exclusive access; the borrow is tied to the guard.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - no alias: the guard holds exclusive access; the borrow is tied to `&mut` of the guard.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.release(WRITER);
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
