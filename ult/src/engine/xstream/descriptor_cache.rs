//! Where descriptors wait for their next unit.
//!
//! Idle descriptors form chains, linked through the field that links them in queues. After Bonwick,
//! "Magazines and Vmem" (2001):
//!
//! - Each xstream has a [`DescriptorCache`] of two chains that only it touches: create and end on
//!   the same xstream take from and add to the first one. A chain holds at most [`CHAIN_MAX`], last
//!   used first.
//! - The runtime has one [`Depot`] of chains behind a lock. A cache with two full chains moves one
//!   there, an empty one takes one from there, so descriptors that are made on one xstream and
//!   ended on another flow back in batches. Other threads use the depot directly. It holds at most
//!   [`DEPOT_MAX`] descriptors.
//! - What exceeds both is freed at once, and an idle xstream gives its own back to the depot.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::base::inbox::Linked;
use crate::engine::model::runtime_core::{Depot, DescriptorChain, RuntimeCore};
use crate::engine::model::unit::{Ult, UltPtr};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, lock};

/// Descriptors in one chain. Less than 200 KiB.
pub(crate) const CHAIN_MAX: usize = 512;
/// Descriptors that wait for all xstreams together.
pub(crate) const DEPOT_MAX: usize = 32 * CHAIN_MAX;

impl DescriptorChain {
    #[inline]
    fn take(&self) -> Option<UltPtr> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY:
        // - a live descriptor: idle ones are freed only after they have been taken out.
        let ult = unsafe { UltPtr::new(first) };
        self.first.set(ult.link().load(Relaxed));
        self.len.set(self.len.get() - 1);
        Some(ult)
    }

    #[inline]
    fn put(&self, ult: UltPtr) {
        ult.link().store(self.first.get(), Relaxed);
        self.first.set(ult.as_non_null().as_ptr());
        self.len.set(self.len.get() + 1);
    }

    fn swap(&self, other: &Self) {
        self.first.swap(&other.first);
        self.len.swap(&other.len);
    }

    /// Moves its content into a chain of its own.
    fn split(&self) -> Self {
        let all = Self::new();
        self.swap(&all);
        all
    }

    fn free(&self) {
        while let Some(ult) = self.take() {
            // SAFETY: it was idle, and is in no chain now.
            unsafe { free(ult) };
        }
    }
}

/// Idle descriptors of one xstream.
pub(crate) struct DescriptorCache {
    chain: DescriptorChain,
    /// Empty or full, or left over from a time when this was `chain`.
    spare: DescriptorChain,
}

impl DescriptorCache {
    pub(crate) fn new() -> Self {
        Self { chain: DescriptorChain::new(), spare: DescriptorChain::new() }
    }

    /// An idle descriptor, or a fresh one.
    #[inline]
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>) -> UltPtr {
        match self.chain.take() {
            Some(ult) => ult,
            None => self.take_slow(core),
        }
    }

    #[cold]
    fn take_slow(&self, core: &Arc<RuntimeCore>) -> UltPtr {
        self.chain.swap(&self.spare);
        if self.chain.len.get() == 0
            && let Some(chain) = core.depot.take_chain()
        {
            self.chain.swap(&chain);
        }
        self.chain.take().unwrap_or_else(|| make(core))
    }

    #[inline]
    pub(crate) fn put(&self, depot: &Depot, ult: UltPtr) {
        if self.chain.len.get() == CHAIN_MAX {
            self.make_room(depot);
        }
        self.chain.put(ult);
    }

    #[cold]
    fn make_room(&self, depot: &Depot) {
        self.chain.swap(&self.spare);
        if self.chain.len.get() > 0 {
            depot.put_chain(self.chain.split());
        }
    }

    /// Moves everything to the depot; the xstream ends, or has had nothing to do for a while.
    pub(crate) fn drain(&self, depot: &Depot) {
        depot.put_chain(self.chain.split());
        depot.put_chain(self.spare.split());
    }
}

impl Depot {
    /// An idle descriptor, or a fresh one.
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>) -> UltPtr {
        let idle = {
            let mut idle = lock(&self.0);
            if idle.loose.len.get() == 0
                && let Some(chain) = idle.chains.pop()
            {
                idle.loose = chain;
            }
            let taken = idle.loose.take();
            idle.len -= usize::from(taken.is_some());
            taken
        };
        idle.unwrap_or_else(|| make(core))
    }

    fn take_chain(&self) -> Option<DescriptorChain> {
        let mut idle = lock(&self.0);
        let chain = idle.chains.pop()?;
        idle.len -= chain.len.get();
        Some(chain)
    }

    fn put_chain(&self, chain: DescriptorChain) {
        let len = chain.len.get();
        if len == 0 {
            return;
        }
        {
            let mut idle = lock(&self.0);
            if !idle.closed && idle.len + len <= DEPOT_MAX {
                idle.len += len;
                idle.chains.push(chain);
                return;
            }
        }
        chain.free();
    }

    pub(crate) fn put(&self, ult: UltPtr) {
        {
            let mut idle = lock(&self.0);
            if !idle.closed && idle.len < DEPOT_MAX {
                idle.len += 1;
                idle.loose.put(ult);
                if idle.loose.len.get() == CHAIN_MAX {
                    let full = idle.loose.split();
                    idle.chains.push(full);
                }
                return;
            }
        }
        // SAFETY: it was handed to us, is idle, and is in no chain.
        unsafe { free(ult) };
    }

    /// From now on returned descriptors are freed. Ends the circle in which idle ones keep the
    /// shared part alive that keeps them.
    pub(crate) fn close(&self) {
        let (chains, loose) = {
            let mut idle = lock(&self.0);
            idle.closed = true;
            idle.len = 0;
            (std::mem::take(&mut idle.chains), idle.loose.split())
        };
        chains.iter().chain([&loose]).for_each(DescriptorChain::free);
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

impl RuntimeCore {
    /// Ends the circles in which idle descriptors keep this part alive, and pools and xstreams each
    /// other. No xstream runs any more.
    pub(crate) fn bury(&self) {
        self.depot.close();
        let (pools, xstreams) = {
            let parts = lock(&self.parts);
            (parts.pools.clone(), parts.xstreams.clone())
        };
        for pool in pools {
            let servers = std::mem::take(&mut *lock(&pool.servers));
            drop(servers);
        }
        xstreams.iter().for_each(|xstream| xstream.bury());
    }
}
