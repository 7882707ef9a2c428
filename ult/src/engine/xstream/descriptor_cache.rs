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
//!   ended on another flow back in batches.
//! - Descriptors that are in no chain wait in their slabs
//!   ([`descriptor_slab`](super::descriptor_slab)). The depot takes from those before it maps
//!   another slab, and other threads use them directly, one descriptor at a time.
//!
//! So many descriptors wait in chains as there were units at once. Like its stacks
//! ([`stack::cache`](crate::stack::cache)), an xstream that has moved some to the depot looks at
//! them once in [`LOOK_EVERY`]: chains that nobody has taken since the last look are cold. They are
//! taken apart into their slabs, one chain at a time, and so are those of the xstream itself. Of
//! slabs that have all their descriptors again the depot keeps [`WHOLE_MAX`], and the system gets
//! the others back.

use std::time::{Duration, Instant};

use crate::engine::model::runtime_core::{Depot, DescriptorChain, Idle, RuntimeCore, SlabPtr};
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::descriptor_slab::{CHAIN_MAX, SLAB_BYTES};
use crate::sync::{Arc, lock};

/// Slabs that wait with all their descriptors.
const WHOLE_MAX: usize = (6 << 20) / SLAB_BYTES;
/// How long a chain waits before it is cold.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

    /// An idle descriptor, or a fresh one; `None`: there is no memory, see [`SlabPtr::map`].
    #[inline]
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>) -> Option<UltPtr> {
        match self.chain.take() {
            None => self.take_slow(core),
            idle => idle,
        }
    }

    #[cold]
    fn take_slow(&self, core: &Arc<RuntimeCore>) -> Option<UltPtr> {
        self.chain.swap(&self.spare);
        if self.chain.len.get() == 0
            && let Some(chain) = core.depot.take_chain()
        {
            self.chain.swap(&chain);
        }
        if let Some(ult) = self.chain.take() {
            return Some(ult);
        }
        let (first, rest) = SlabPtr::map(core)?;
        self.chain.swap(&rest);
        Some(first)
    }

    /// Returns whether there is no room in the first chain.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.chain.len.get() == CHAIN_MAX
    }

    /// Makes room in the first chain. Returns whether the depot got the other one.
    pub(crate) fn make_room(&self, depot: &Depot) -> bool {
        self.chain.swap(&self.spare);
        let is_full = self.chain.len.get() > 0;
        if is_full {
            depot.put_chain(self.chain.split());
        }
        is_full
    }

    /// Puts one into the first chain, which has room.
    #[inline]
    pub(crate) fn put(&self, ult: UltPtr) {
        self.chain.put(ult);
    }

    /// Takes the chains apart, into their slabs.
    pub(crate) fn drain(&self, depot: &Depot) {
        depot.take_apart([self.chain.split(), self.spare.split()]);
    }
}

impl Depot {
    /// An idle descriptor, or a fresh one; `None`: there is no memory, see [`SlabPtr::map`].
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>) -> Option<UltPtr> {
        let waiting = lock(&self.0).take();
        if waiting.is_some() {
            return waiting;
        }
        let (first, rest) = SlabPtr::map(core)?;
        self.take_apart([rest]);
        Some(first)
    }

    fn take_chain(&self) -> Option<DescriptorChain> {
        lock(&self.0).take_chain()
    }

    fn put_chain(&self, chain: DescriptorChain) {
        let mut idle = lock(&self.0);
        if !idle.closed {
            return idle.chains.push_back(chain);
        }
        drop(idle);
        self.take_apart([chain]);
    }

    pub(crate) fn put(&self, ult: UltPtr) {
        let chain = DescriptorChain::new();
        chain.put(ult);
        self.take_apart([chain]);
    }

    /// Finds out which chains are cold. Returns whether there are chains, and so another look is
    /// due.
    pub(crate) fn look(&self, now: Instant) -> bool {
        let mut idle = lock(&self.0);
        if idle.next_look.is_none_or(|at| now >= at) {
            idle.cold = idle.low;
            idle.low = idle.chains.len();
            idle.next_look = Some(now + LOOK_EVERY);
        }
        !idle.chains.is_empty()
    }

    /// Takes the next cold chain apart. Returns whether there may be more.
    pub(crate) fn step(&self) -> bool {
        let mut idle = lock(&self.0);
        if idle.cold == 0 {
            return false;
        }
        (idle.cold, idle.low) = (idle.cold - 1, idle.low.saturating_sub(1));
        let chain = idle.chains.pop_front();
        drop(idle);
        self.take_apart(chain);
        true
    }

    /// Moves all that waits in chains into the slabs.
    pub(crate) fn take_chains_apart(&self) {
        let chains = {
            let mut idle = lock(&self.0);
            (idle.cold, idle.low) = (0, 0);
            std::mem::take(&mut idle.chains)
        };
        // One by one, since others want the lock.
        chains.into_iter().for_each(|chain| self.take_apart([chain]));
    }

    /// From now on slabs go back to the system as soon as they are whole. Ends the circle in which
    /// idle ones keep the shared part alive that keeps them.
    pub(crate) fn close(&self) {
        let chains = {
            let mut idle = lock(&self.0);
            idle.closed = true;
            (idle.cold, idle.whole) = (0, 0);
            let mut chains = std::mem::take(&mut idle.chains);
            chains.extend(std::mem::take(&mut idle.slabs).iter().map(|slab| slab.idle.split()));
            chains
        };
        self.take_apart(chains);
    }

    /// Moves descriptors into their slabs.
    fn take_apart(&self, chains: impl IntoIterator<Item = DescriptorChain>) {
        let mut over = Vec::new();
        {
            let mut idle = lock(&self.0);
            for chain in chains {
                over.extend(std::iter::from_fn(|| chain.take()).filter_map(|ult| idle.put(ult)));
            }
        }
        // SAFETY: whole, and in no list any more.
        over.into_iter().for_each(|slab| unsafe { slab.unmap() });
    }
}

impl Idle {
    fn take_chain(&mut self) -> Option<DescriptorChain> {
        self.pop_chain().or_else(|| {
            let slab = self.slabs.pop()?;
            self.whole -= usize::from(slab.is_whole());
            Some(slab.idle.split())
        })
    }

    fn pop_chain(&mut self) -> Option<DescriptorChain> {
        let chain = self.chains.pop_back()?;
        let len = self.chains.len();
        (self.low, self.cold) = (self.low.min(len), self.cold.min(len));
        Some(chain)
    }

    fn take(&mut self) -> Option<UltPtr> {
        let Some(slab) = self.slabs.last().copied() else {
            let chain = self.pop_chain()?;
            let ult = chain.take();
            if chain.len.get() > 0 {
                self.chains.push_back(chain);
            }
            return ult;
        };
        self.whole -= usize::from(slab.is_whole());
        let ult = slab.idle.take();
        if slab.idle.len.get() == 0 {
            self.slabs.pop();
        }
        ult
    }

    /// Puts a descriptor into its slab. Returns the slab if it is to be unmapped.
    fn put(&mut self, ult: UltPtr) -> Option<SlabPtr> {
        let slab = ult.slab();
        if slab.idle.len.get() == 0 {
            slab.at.set(self.slabs.len());
            self.slabs.push(slab);
        }
        slab.idle.put(ult);
        if !slab.is_whole() {
            return None;
        }
        if !self.closed && self.whole < WHOLE_MAX {
            self.whole += 1;
            return None;
        }
        let at = slab.at.get();
        self.slabs.swap_remove(at);
        if let Some(moved) = self.slabs.get(at) {
            moved.at.set(at);
        }
        Some(slab)
    }
}

impl RuntimeCore {
    /// Ends the circles in which idle descriptors keep this part alive, and pools and xstreams each
    /// other. No xstream runs any more.
    pub(crate) fn bury(&self) {
        self.depot.close();
        self.helpers.end();
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
