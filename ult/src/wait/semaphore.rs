//! A counting semaphore for ULTs and OS threads, first come, first served.
//!
//! The word of the [`gate`](crate::wait::fair_queue) holds the number of free permits, in units of
//! `PERMIT`. The front of the queue takes its permits when there are enough of them, and nobody
//! passes it: so a large request is not starved by small ones.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::after;
use crate::engine::waiting::watch::Watch;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::wait::fair_queue::{FairQueue, QUEUED, WATCHED};
use crate::wait::select::Selectable;

const FLAGS: usize = QUEUED | WATCHED;
const PERMIT: usize = 4;

/// A number of permits that parties take and give back.
///
/// Fair: first come, first served, whatever the sizes of the requests. Without contention each call
/// is one atomic operation and never yields. A waiting ULT suspends, an OS thread blocks.
///
/// A request for more permits than there will ever be waits forever, and so does everybody
/// behind it.
///
/// ```
/// use ult::Semaphore;
///
/// static DOWNLOADS: Semaphore = Semaphore::new(4);
///
/// let one = DOWNLOADS.acquire(1);
/// let three = DOWNLOADS.acquire(3);
/// // Nothing is free; `acquire` would wait.
/// assert!(DOWNLOADS.try_acquire(1).is_none());
/// drop(one);
/// assert_eq!(DOWNLOADS.available(), 1);
/// ```
pub struct Semaphore {
    gate: FairQueue,
}

impl Semaphore {
    /// The largest number of permits.
    pub const MAX_PERMITS: usize = usize::MAX / PERMIT;

    const_new! {
        /// A semaphore with `permits` free permits.
        ///
        /// # Panics
        ///
        /// If `permits` is above [`MAX_PERMITS`](Self::MAX_PERMITS).
        #[must_use]
        pub fn new(permits: usize) -> Self {
            assert!(permits <= Self::MAX_PERMITS, "more permits than Semaphore::MAX_PERMITS");
            Self { gate: FairQueue::new(permits * PERMIT) }
        }
    }

    /// Free permits. A snapshot: stale as soon as it is read.
    #[must_use]
    pub fn available(&self) -> usize {
        self.gate.word.load(Relaxed) / PERMIT
    }

    /// Takes `count` permits, waiting until they are free. They are given back when the result is
    /// dropped.
    pub fn acquire(&self, count: usize) -> Permit<'_> {
        self.take_until(count, None);
        Permit { semaphore: self, count }
    }

    /// Takes `count` permits if they are free and nobody waits.
    pub fn try_acquire(&self, count: usize) -> Option<Permit<'_>> {
        self.take_newcomer(count).then(|| Permit { semaphore: self, count })
    }

    /// Takes `count` permits, waiting no longer than until `deadline`. `None`: too late.
    pub fn acquire_deadline(&self, count: usize, deadline: Instant) -> Option<Permit<'_>> {
        self.take_until(count, Some(deadline)).then(|| Permit { semaphore: self, count })
    }

    /// Like [`acquire_deadline`](Self::acquire_deadline), counted from now.
    pub fn acquire_timeout(&self, count: usize, timeout: Duration) -> Option<Permit<'_>> {
        self.take_until(count, after(timeout)).then(|| Permit { semaphore: self, count })
    }

    /// Adds `count` permits, or gives back those of a [`Permit::forget`]. Never blocks.
    ///
    /// # Panics
    ///
    /// If there would be more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub fn release(&self, count: usize) {
        let more = count.checked_mul(PERMIT);
        let add = |word: usize| more.and_then(|more| word.checked_add(more));
        // pair: SEMAPHORE-FREE
        let old = self.gate.word.fetch_update(Release, Relaxed, add);
        let old = old.expect("more permits released than a Semaphore can count");
        if old & FLAGS != 0 {
            self.gate.admit(|wants| self.take_queued(wants));
        }
    }

    /// For [`wait_any`](crate::wait_any): ready when `count` permits are free and nobody waits.
    /// Take them with [`try_acquire`](Self::try_acquire).
    #[must_use]
    pub fn ready(&self, count: usize) -> SemaphoreReady<'_> {
        SemaphoreReady { semaphore: self, count }
    }

    fn take_until(&self, count: usize, deadline: Option<Instant>) -> bool {
        if self.take_newcomer(count) {
            return true;
        }
        let waiter = Waiter::new(WaitKind::Semaphore).with_number(count);
        self.gate.wait(&waiter, deadline, |wants| self.take_queued(wants))
    }

    fn take_newcomer(&self, count: usize) -> bool {
        self.take(count, QUEUED)
    }

    /// Takes permits for the front of the queue.
    fn take_queued(&self, count: usize) -> bool {
        self.take(count, 0)
    }

    fn take(&self, count: usize, unless: usize) -> bool {
        let mut word = self.gate.word.load(Relaxed);
        loop {
            if word & unless != 0 || word / PERMIT < count {
                return false;
            }
            let next = word - count * PERMIT;
            // pair: SEMAPHORE-FREE
            match self.gate.word.compare_exchange_weak(word, next, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    fn has_free(&self, count: usize) -> bool {
        let word = self.gate.word.load(Relaxed);
        word & QUEUED == 0 && word / PERMIT >= count
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish()
    }
}

/// Permits of a [`Semaphore`]; given back when dropped.
///
/// ```
/// let semaphore = ult::Semaphore::new(3);
/// let permit = semaphore.acquire(2);
/// assert_eq!((permit.count(), semaphore.available()), (2, 1));
/// drop(permit);
/// // For good.
/// semaphore.acquire(1).forget();
/// assert_eq!(semaphore.available(), 2);
/// ```
#[derive(Debug)]
#[must_use = "the permits are given back when this is dropped"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Permit<'_> {
    /// How many permits.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps the permits taken; [`Semaphore::release`] gives them back.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.count != 0 {
            self.semaphore.release(self.count);
        }
    }
}

/// See [`Semaphore::ready`].
///
/// ```
/// use ult::{Eventual, Semaphore, wait_any};
///
/// let (stop, slots) = (Eventual::<()>::new(), Semaphore::new(2));
/// // The end of the program, or two free slots.
/// assert_eq!(wait_any(&[&stop, &slots.ready(2)], None), Some(1));
/// let permit = slots.try_acquire(2);
/// assert!(permit.is_some());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SemaphoreReady<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Selectable for SemaphoreReady<'_> {}

impl Watch for SemaphoreReady<'_> {
    fn is_ready(&self) -> bool {
        self.semaphore.has_free(self.count)
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.semaphore.gate.watch(node, || self.semaphore.has_free(self.count)) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.semaphore.gate.unwatch(node)
    }
}
