//! See [`PoolKind::RandWs`](crate::PoolKind::RandWs): a work-stealing deque (Chase and Lev, 2005;
//! the implementation is crossbeam's).
//!
//! One xstream owns the deque: the first that names the pool as its first one. It pushes and pops
//! at the same end (last in, first out: the unit that is still in its cache), thieves take the
//! oldest at the other end. What others spawn goes to the owner's inbox, or to an injector as
//! long as there is no owner.

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::sync::UnsafeCell;

/// See the module documentation.
pub(crate) struct WorkDeque<T> {
    own: UnsafeCell<Worker<T>>,
    stealer: Stealer<T>,
    injector: Injector<T>,
}

// SAFETY: `own` is touched by one thread at a time (contract of `push_own` and `pop_own`, and of
// the change of owners, which is ordered); the other parts are made to be shared.
unsafe impl<T: Send> Sync for WorkDeque<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for WorkDeque<T> {}

impl<T> WorkDeque<T> {
    pub(crate) fn new() -> Self {
        let own = Worker::new_lifo();
        let stealer = own.stealer();
        Self { own: UnsafeCell::new(own), stealer, injector: Injector::new() }
    }

    /// # Safety
    ///
    /// The caller is the thread of the xstream that owns the pool.
    #[inline]
    pub(crate) unsafe fn push_own(&self, ult: T) {
        // SAFETY:
        // - no alias: duty of the caller, and `Worker` is not left while it is used.
        self.own.with(|own| unsafe { &*own }.push(ult));
    }

    /// # Safety
    ///
    /// As for [`push_own`](Self::push_own).
    #[inline]
    pub(crate) unsafe fn pop_own(&self) -> Option<T> {
        // SAFETY: as above.
        self.own.with(|own| unsafe { &*own }.pop()).or_else(|| steal(|| self.injector.steal()))
    }

    pub(crate) fn inject(&self, ult: T) {
        self.injector.push(ult);
    }

    /// Takes the oldest unit.
    pub(crate) fn steal(&self) -> Option<T> {
        steal(|| self.stealer.steal()).or_else(|| steal(|| self.injector.steal()))
    }

    pub(crate) fn len(&self) -> usize {
        self.stealer.len() + self.injector.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.stealer.is_empty() && self.injector.is_empty()
    }
}

fn steal<T>(attempt: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(ult) => return Some(ult),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}
