//! The protocol of [`Lock`](super::Lock), without the value.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{hint, thread};

/// Looks at a held lock before giving the processor away.
const SPINS: u32 = 100;

/// Waits until `held` says no.
pub(super) fn spin_while(held: impl Fn() -> bool) {
    let mut spins = 0;
    while held() {
        if spins < SPINS {
            spins += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

/// Held by one at a time; one atomic read-modify-write to take it.
///
/// ```
/// use prim::lock::plain::RawLock;
///
/// let lock = RawLock::new();
/// lock.acquire();
/// assert!(!lock.try_acquire());
/// lock.release();
/// ```
#[derive(Debug)]
pub struct RawLock(AtomicBool);

impl RawLock {
    /// A lock that is free.
    #[allow(clippy::new_without_default, reason = "a lock alone is of no use to anybody else")]
    #[inline]
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
        spin_while(|| self.0.load(Ordering::Relaxed));
    }

    /// Gives the lock back. Only its holder may call this.
    #[inline]
    pub fn release(&self) {
        // pair: LOCK (everything done under the lock first)
        self.0.store(false, Ordering::Release);
    }
}
