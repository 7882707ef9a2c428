//! The owner-only FIFO of an xstream: a linked list through the descriptors.
//!
//! No atomics are needed for the links, since only the owner touches queued ULTs; they are stored
//! in the atomic that other queues use, with relaxed accesses, which cost the same as plain ones.
//! `len` is an atomic with one writer, so that anybody may read a snapshot.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::descriptor::{Ult, UltPtr};
use crate::inbox::Linked;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::Relaxed;

/// The queue. The ULTs in it are alive and in no other queue.
#[derive(Debug)]
pub(crate) struct UnitList {
    first: Cell<*mut Ult>,
    last: Cell<*mut Ult>,
}

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
    pub(crate) fn push_back(&self, ult: UltPtr, len: &AtomicUsize) {
        let node = ult.as_non_null().as_ptr();
        ult.link().store(ptr::null_mut(), Relaxed);
        match NonNull::new(self.last.replace(node)) {
            None => self.first.set(node),
            Some(last) => {
                // SAFETY:
                // - valid: ULTs in a queue are alive.
                unsafe { last.as_ref() }.link().store(node, Relaxed);
            }
        }
        len.store(len.load(Relaxed) + 1, Relaxed);
    }

    /// Takes the first ULT; its queue membership passes to the caller.
    #[inline]
    pub(crate) fn pop_front(&self, len: &AtomicUsize) -> Option<UltPtr> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY:
        // - valid: ULTs in a queue are alive.
        let ult = unsafe { UltPtr::new(first) };
        let next = ult.link().load(Relaxed);
        self.first.set(next);
        if next.is_null() {
            self.last.set(ptr::null_mut());
        }
        len.store(len.load(Relaxed) - 1, Relaxed);
        Some(ult)
    }
}
