//! Where idle blocks wait for their next ULT.
//!
//! - Each xstream has a [`StackCache`] that only it touches: create and finish on the same xstream
//!   cost a pop and a push. It holds at most `stack_cache_max` blocks of the runtime's default
//!   size and as many of other sizes, last used first.
//! - The runtime has one [`Depot`] behind a lock. A full cache moves half of its blocks there, an
//!   empty one refills from there, and other threads use it directly. So blocks that are created on
//!   one xstream and freed on another flow back. It holds at most
//!   [`DEPOT_FACTOR`] times `stack_cache_max` blocks.
//! - What exceeds both goes back to the system at once.
//!
//! Pages that a deep ULT has touched stay with its block while its xstream is busy. An xstream that
//! has had nothing to do for [`TRIM_AFTER`] gives back those of its own cache and of the depot,
//! once, and keeps the 16 KiB nearest the top of each stack. A thread that is no xstream, and may
//! never come by again, does so at once for each block that it returns.

use std::io;
use std::time::Duration;

use crate::descriptor::{UltName, UltPtr};
use crate::payload::Stage;
use crate::shared::RuntimeCore;
use crate::stack::{map_block, trim_block, unmap_block};
use crate::sync::{Arc, Mutex, lock};

/// Size of the depot in units of `stack_cache_max`.
const DEPOT_FACTOR: usize = 32;
/// How long an xstream sleeps before it trims idle stacks.
pub(crate) const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Idle blocks of one xstream.
pub(crate) struct StackCache {
    default_bytes: usize,
    max: usize,
    blocks: Vec<UltPtr>,
    others: Vec<UltPtr>,
    /// Blocks came back since the last trim.
    dirty: bool,
}

impl StackCache {
    pub(crate) fn new(default_bytes: usize, max: usize) -> Self {
        let blocks = Vec::with_capacity(max.min(4096));
        Self { default_bytes, max, blocks, others: Vec::new(), dirty: false }
    }

    /// An idle block of class `bytes`, or a fresh one.
    #[inline]
    pub(crate) fn take(&mut self, core: &Arc<RuntimeCore>, bytes: usize) -> io::Result<UltPtr> {
        if bytes == self.default_bytes {
            if let Some(block) = self.blocks.pop() {
                return Ok(block);
            }
            core.depot.refill(bytes, self.max / 2, &mut self.blocks);
            if let Some(block) = self.blocks.pop() {
                return Ok(block);
            }
            return map_block(core, bytes);
        }
        match self.others.iter().rposition(|block| block.stack.bytes == bytes) {
            Some(at) => Ok(self.others.remove(at)),
            None => core.depot.take(core, bytes),
        }
    }

    #[inline]
    fn put(&mut self, depot: &Depot, block: UltPtr) {
        self.dirty = true;
        let is_default = block.stack.bytes == self.default_bytes;
        let list = if is_default { &mut self.blocks } else { &mut self.others };
        if list.len() < self.max {
            list.push(block);
        } else if self.max == 0 {
            depot.put(block);
        } else {
            // The oldest are the coldest.
            depot.put_all(list.drain(..self.max.div_ceil(2)));
            list.push(block);
        }
    }

    /// Whether a trim could give something back.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// See the module documentation.
    pub(crate) fn trim(&mut self, depot: &Depot) {
        self.dirty = false;
        for block in self.blocks.iter().chain(&self.others) {
            // SAFETY: cached blocks belong to the cache and are idle.
            unsafe { trim_block(*block) };
        }
        depot.trim();
    }

    /// Moves everything to the depot; the xstream ends.
    pub(crate) fn drain(&mut self, depot: &Depot) {
        depot.put_all(self.blocks.drain(..));
        depot.put_all(self.others.drain(..));
    }
}

/// Idle blocks of a runtime, and the register of all its blocks.
pub(crate) struct Depot {
    max: usize,
    idle: Mutex<Idle>,
    register: Mutex<Vec<UltPtr>>,
}

struct Idle {
    blocks: Vec<UltPtr>,
    closed: bool,
    dirty: bool,
}

impl Depot {
    pub(crate) fn new(stack_cache_max: usize) -> Self {
        let idle = Idle { blocks: Vec::new(), closed: false, dirty: false };
        Self {
            max: stack_cache_max.saturating_mul(DEPOT_FACTOR),
            idle: Mutex::new(idle),
            register: Mutex::new(Vec::new()),
        }
    }

    /// An idle block of class `bytes`, or a fresh one.
    pub(crate) fn take(&self, core: &Arc<RuntimeCore>, bytes: usize) -> io::Result<UltPtr> {
        let idle = {
            let blocks = &mut lock(&self.idle).blocks;
            let at = blocks.iter().rposition(|block| block.stack.bytes == bytes);
            at.map(|at| blocks.swap_remove(at))
        };
        match idle {
            Some(block) => Ok(block),
            None => map_block(core, bytes),
        }
    }

    /// Moves up to `count` blocks (at least one) of class `bytes` into `cache`.
    fn refill(&self, bytes: usize, count: usize, cache: &mut Vec<UltPtr>) {
        let mut idle = lock(&self.idle);
        let mut at = idle.blocks.len();
        while at > 0 && cache.len() < count.max(1) {
            at -= 1;
            if idle.blocks[at].stack.bytes == bytes {
                cache.push(idle.blocks.swap_remove(at));
            }
        }
    }

    fn put(&self, block: UltPtr) {
        self.put_all(std::iter::once(block));
    }

    fn put_all(&self, blocks: impl Iterator<Item = UltPtr>) {
        let mut surplus = Vec::new();
        {
            let mut idle = lock(&self.idle);
            for block in blocks {
                if idle.closed || idle.blocks.len() >= self.max {
                    surplus.push(block);
                } else {
                    idle.dirty = true;
                    idle.blocks.push(block);
                }
            }
        }
        for block in surplus {
            // SAFETY: it was handed to us, is idle, and is in no cache.
            unsafe { unmap_block(block) };
        }
    }

    fn trim(&self) {
        let mut idle = lock(&self.idle);
        if std::mem::take(&mut idle.dirty) {
            for block in &idle.blocks {
                // SAFETY: blocks in the depot belong to it and are idle.
                unsafe { trim_block(*block) };
            }
        }
    }

    /// From now on returned blocks go back to the system. Ends the circle in which idle blocks
    /// keep the shared part alive that keeps them.
    pub(crate) fn close(&self) {
        let blocks = {
            let mut idle = lock(&self.idle);
            idle.closed = true;
            std::mem::take(&mut idle.blocks)
        };
        for block in blocks {
            // SAFETY: it was in the depot, hence idle, and is now in no cache.
            unsafe { unmap_block(block) };
        }
    }

    /// Number of blocks that exist, idle or not.
    pub(crate) fn mapped(&self) -> usize {
        lock(&self.register).len()
    }

    pub(crate) fn register(&self, block: UltPtr) {
        let mut register = lock(&self.register);
        block.registered_at.set(register.len());
        register.push(block);
    }

    pub(crate) fn unregister(&self, block: UltPtr) {
        let mut register = lock(&self.register);
        let at = block.registered_at.get();
        register.swap_remove(at);
        if let Some(moved) = register.get(at) {
            moved.registered_at.set(at);
        }
    }

    /// Calls `f` for every block while none of them can be unmapped.
    pub(crate) fn for_each(&self, f: impl FnMut(UltPtr)) {
        lock(&self.register).iter().copied().for_each(f);
    }
}

/// Takes the block of a ULT whose last count is gone, and makes it ready for the next one.
#[inline]
pub(crate) fn recycle(block: UltPtr) {
    debug_assert!(matches!(block.payload.stage(), Stage::Empty | Stage::Lost));
    block.set_name(UltName::default());
    match crate::current::xstream_in(&block.core) {
        Some(xstream) => xstream.cache.borrow_mut().put(&xstream.core.depot, block),
        None => {
            // Keeps the depot alive while the block, which may be the last owner, is unmapped.
            let core = Arc::clone(&block.core);
            // SAFETY: the last count is gone, so the block is ours and idle.
            unsafe { trim_block(block) };
            core.depot.put(block);
        }
    }
}
