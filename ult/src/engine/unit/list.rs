//! A FIFO of units, linked through their descriptors.
//!
//! One party at a time touches it: the owner of an xstream's list, or the holder of a pool's lock.
//! So no atomics are needed for the links; they are stored in the atomic that other queues use,
//! with relaxed accesses, which cost the same as plain ones.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::base::inbox::Linked;
use crate::engine::model::unit::{Ult, UltPtr};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Relaxed, Release};

/// The queue. The units in it are alive and in no other queue.
#[derive(Debug)]
pub(crate) struct UnitList {
    first: Cell<*mut Ult>,
    last: Cell<*mut Ult>,
}

// SAFETY: pointers to units, which may be handed to another thread.
unsafe impl Send for UnitList {}

impl UnitList {
    pub(crate) fn new() -> Self {
        Self { first: Cell::new(ptr::null_mut()), last: Cell::new(ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_null()
    }

    /// Appends `ult`, whose queue membership passes to this list.
    #[inline]
    pub(crate) fn append(&self, ult: UltPtr) {
        let node = ult.as_non_null().as_ptr();
        ult.link().store(ptr::null_mut(), Relaxed);
        match NonNull::new(self.last.replace(node)) {
            None => self.first.set(node),
            Some(last) => {
                // SAFETY:
                // - valid: units in a queue are alive.
                unsafe { last.as_ref() }.link().store(node, Relaxed);
            }
        }
    }

    /// The first unit, which stays.
    #[inline]
    pub(crate) fn first(&self) -> Option<UltPtr> {
        // SAFETY:
        // - valid: units in a queue are alive.
        NonNull::new(self.first.get()).map(|first| unsafe { UltPtr::new(first) })
    }

    /// Takes the first unit; its queue membership passes to the caller.
    #[inline]
    pub(crate) fn take_first(&self) -> Option<UltPtr> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY:
        // - valid: units in a queue are alive.
        let ult = unsafe { UltPtr::new(first) };
        let next = ult.link().load(Relaxed);
        self.first.set(next);
        if next.is_null() {
            self.last.set(ptr::null_mut());
        }
        Some(ult)
    }

    /// Does the work of [`append`](Self::append) and counts the unit in `len`, which has one
    /// writer. A thread that sees the new `len` also sees that the unit was made runnable.
    #[inline]
    pub(crate) fn push_back(&self, ult: UltPtr, len: &AtomicUsize) {
        self.append(ult);
        len.store(len.load(Relaxed) + 1, Release); // pair: POOL-LEN
    }

    /// Does the work of [`take_first`](Self::take_first) and counts the unit out of `len`.
    #[inline]
    pub(crate) fn pop_front(&self, len: &AtomicUsize) -> Option<UltPtr> {
        let ult = self.take_first()?;
        len.store(len.load(Relaxed) - 1, Release); // pair: POOL-LEN
        Some(ult)
    }

    /// Shows every unit, first one first.
    pub(crate) fn for_each(&self, mut see: impl FnMut(UltPtr)) {
        let mut next = self.first.get();
        while let Some(node) = NonNull::new(next) {
            // SAFETY:
            // - valid: units in a queue are alive.
            let ult = unsafe { UltPtr::new(node) };
            next = ult.link().load(Relaxed);
            see(ult);
        }
    }
}
