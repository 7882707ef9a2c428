//! Work-stealing deques (Chase and Lev, 2005; the implementation is crossbeam's).
//!
//! One xstream owns a deque. It pushes and pops at the same end (last in, first out: what is still
//! in its cache), thieves take the oldest at the other end.
//!
//! [`StealDeque`] is that alone, for the jobs of [`join`](crate::join()). [`WorkDeque`] is the
//! queue of a pool ([`PoolKind::RandWs`](crate::PoolKind::RandWs)), whose owner is the first
//! xstream that names the pool as its first one. What others spawn there goes to the owner's inbox,
//! or to an injector as long as there is no owner.

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::sync::UnsafeCell;

/// See the module documentation.
pub(crate) struct StealDeque<T> {
    own: UnsafeCell<Worker<T>>,
    stealer: Stealer<T>,
}

// SAFETY: `own` is touched by one thread at a time (contract of `push_own` and `pop_own`, and of
// the change of owners, which is ordered); the other part is made to be shared.
unsafe impl<T: Send> Sync for StealDeque<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for StealDeque<T> {}

impl<T> StealDeque<T> {
    pub(crate) fn new() -> Self {
        let own = Worker::new_lifo();
        let stealer = own.stealer();
        Self { own: UnsafeCell::new(own), stealer }
    }

    /// # Safety
    ///
    /// The caller is the thread of the xstream that owns the deque.
    #[inline]
    pub(crate) unsafe fn push_own(&self, item: T) {
        // SAFETY:
        // - no alias: duty of the caller, and `Worker` is not left while it is used.
        self.own.with(|own| unsafe { &*own }.push(item));
    }

    /// Takes the newest item.
    ///
    /// # Safety
    ///
    /// As for [`push_own`](Self::push_own).
    #[inline]
    pub(crate) unsafe fn pop_own(&self) -> Option<T> {
        // SAFETY: as above.
        self.own.with(|own| unsafe { &*own }.pop())
    }

    /// Takes the oldest item.
    pub(crate) fn steal(&self) -> Option<T> {
        steal(|| self.stealer.steal())
    }

    pub(crate) fn len(&self) -> usize {
        self.stealer.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.stealer.is_empty()
    }
}

/// See the module documentation.
pub(crate) struct WorkDeque<T> {
    deque: StealDeque<T>,
    injector: Injector<T>,
}

impl<T> WorkDeque<T> {
    pub(crate) fn new() -> Self {
        Self { deque: StealDeque::new(), injector: Injector::new() }
    }

    /// # Safety
    ///
    /// The caller is the thread of the xstream that owns the pool.
    #[inline]
    pub(crate) unsafe fn push_own(&self, ult: T) {
        // SAFETY: the same duty.
        unsafe { self.deque.push_own(ult) };
    }

    /// # Safety
    ///
    /// As for [`push_own`](Self::push_own).
    #[inline]
    pub(crate) unsafe fn pop_own(&self) -> Option<T> {
        // SAFETY: the same duty.
        unsafe { self.pop_newest() }.or_else(|| steal(|| self.injector.steal()))
    }

    /// Takes the newest of what the owner has pushed.
    ///
    /// # Safety
    ///
    /// As for [`push_own`](Self::push_own).
    #[inline]
    pub(crate) unsafe fn pop_newest(&self) -> Option<T> {
        // SAFETY: the same duty.
        unsafe { self.deque.pop_own() }
    }

    pub(crate) fn inject(&self, ult: T) {
        self.injector.push(ult);
    }

    /// Takes the oldest unit.
    pub(crate) fn steal(&self) -> Option<T> {
        self.deque.steal().or_else(|| steal(|| self.injector.steal()))
    }

    pub(crate) fn len(&self) -> usize {
        self.deque.len() + self.injector.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.deque.is_empty() && self.injector.is_empty()
    }
}

fn steal<T>(attempt: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(item) => return Some(item),
            Steal::Empty => return None,
            Steal::Retry => {}
        }
    }
}
