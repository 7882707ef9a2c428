//! Where descriptors wait for their next unit.
//!
//! - Each xstream has a [`DescriptorCache`] that only it touches: create and end on the same
//!   xstream cost a pop and a push. It holds at most [`CACHE_MAX`] descriptors, last used first.
//! - The runtime has one [`Depot`] behind a lock. A full cache moves half of its content there, an
//!   empty one refills from there, and other threads use it directly. So descriptors that are
//!   made on one xstream and ended on another flow back in batches. It holds at most [`DEPOT_MAX`].
//! - What exceeds both is freed at once, and an idle xstream gives its own back to the depot.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::descriptor::{Ult, UltPtr};
use crate::shared::RuntimeCore;
use crate::sync::{Arc, Mutex, lock};
use crate::xstream::Xstream;

/// Descriptors that wait at an xstream. Less than 400 KiB.
pub(crate) const CACHE_MAX: usize = 1024;
/// How many move at once between a cache and the depot.
const BATCH: usize = CACHE_MAX / 2;
/// Descriptors that wait for all xstreams together.
pub(crate) const DEPOT_MAX: usize = 16 * CACHE_MAX;

/// Idle descriptors of one xstream.
pub(crate) struct DescriptorCache(Vec<UltPtr>);

impl DescriptorCache {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(CACHE_MAX))
    }

    /// An idle descriptor, or a fresh one.
    #[inline]
    pub(crate) fn take(&mut self, core: &Arc<RuntimeCore>) -> UltPtr {
        match self.0.pop() {
            Some(ult) => ult,
            None => self.take_slow(core),
        }
    }

    #[cold]
    fn take_slow(&mut self, core: &Arc<RuntimeCore>) -> UltPtr {
        core.depot.refill(&mut self.0);
        self.0.pop().unwrap_or_else(|| make(core))
    }

    #[inline]
    fn put(&mut self, depot: &Depot, ult: UltPtr) {
        if self.0.len() == CACHE_MAX {
            // The oldest are the coldest.
            depot.put_all(self.0.drain(..BATCH));
        }
        self.0.push(ult);
    }

    /// Moves everything to the depot; the xstream ends, or has had nothing to do for a while.
    pub(crate) fn drain(&mut self, depot: &Depot) {
        depot.put_all(self.0.drain(..));
    }
}

/// Idle descriptors of a runtime.
pub(crate) struct Depot(Mutex<Idle>);

struct Idle {
    ults: Vec<UltPtr>,
    closed: bool,
}

impl Depot {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Idle { ults: Vec::new(), closed: false }))
    }

    /// An idle descriptor, or a fresh one.
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>) -> UltPtr {
        let idle = lock(&self.0).ults.pop();
        idle.unwrap_or_else(|| make(core))
    }

    fn refill(&self, cache: &mut Vec<UltPtr>) {
        let ults = &mut lock(&self.0).ults;
        let rest = ults.len().saturating_sub(BATCH);
        cache.extend(ults.drain(rest..));
    }

    fn put_all(&self, ults: impl Iterator<Item = UltPtr>) {
        let mut surplus = Vec::new();
        {
            let mut idle = lock(&self.0);
            for ult in ults {
                if idle.closed || idle.ults.len() >= DEPOT_MAX {
                    surplus.push(ult);
                } else {
                    idle.ults.push(ult);
                }
            }
        }
        for ult in surplus {
            // SAFETY: it was handed to us, is idle, and is in no cache.
            unsafe { free(ult) };
        }
    }

    /// From now on returned descriptors are freed. Ends the circle in which idle ones keep the
    /// shared part alive that keeps them.
    pub(crate) fn close(&self) {
        let ults = {
            let mut idle = lock(&self.0);
            idle.closed = true;
            std::mem::take(&mut idle.ults)
        };
        for ult in ults {
            // SAFETY: it was in the depot, hence idle, and is now in no cache.
            unsafe { free(ult) };
        }
    }
}

/// Takes the descriptor of a unit that has ended on `xstream`, of the same runtime, and has no
/// handle.
#[inline]
pub(crate) fn recycle_at(xstream: &Xstream, ult: UltPtr) {
    if ult.is_last_ref() {
        ult.clear();
        xstream.descriptors.borrow_mut().put(&xstream.core.depot, ult);
    }
}

/// Takes the descriptor of a unit that nobody keeps any more.
#[inline]
pub(crate) fn recycle(ult: UltPtr) {
    ult.clear();
    match crate::current::xstream_in(&ult.core) {
        Some(xstream) => xstream.descriptors.borrow_mut().put(&xstream.core.depot, ult),
        None => {
            // Keeps the depot alive while the descriptor, which may be the last owner, is freed.
            let core = Arc::clone(&ult.core);
            core.depot.put_all(std::iter::once(ult));
        }
    }
}

fn make(core: &Arc<RuntimeCore>) -> UltPtr {
    let layout = Layout::new::<Ult>();
    // SAFETY: the layout is not of size zero.
    let place = unsafe { alloc(layout) }.cast::<Ult>();
    let Some(place) = NonNull::new(place) else { handle_alloc_error(layout) };
    // SAFETY:
    // - room and alignment: allocated with its layout; exclusive: fresh.
    unsafe { place.write(Ult::new(core.clone())) };
    // SAFETY:
    // - a live descriptor: just written; `free` ends it.
    unsafe { UltPtr::new(place) }
}

/// # Safety
///
/// The caller owns the descriptor: nobody keeps it, it has been cleared, and is in no cache.
unsafe fn free(ult: UltPtr) {
    let mut place = ult.as_non_null();
    // SAFETY:
    // - exclusive: the caller owns it.
    let core = unsafe { &mut place.as_mut().core };
    // SAFETY: taken once; the descriptor ends here. Its other fields own nothing once cleared; the
    // payload is empty when a unit has ended.
    let core = unsafe { ManuallyDrop::take(core) };
    // SAFETY: allocated by `make` with the same layout.
    unsafe { dealloc(place.as_ptr().cast(), Layout::new::<Ult>()) };
    drop(core);
}
