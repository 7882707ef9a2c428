//! The stacks of one xstream: those in use, and those that wait for their next ULT.
//!
//! A ULT gets its stack when it first runs, from the xstream that runs it, and as a started ULT
//! stays there, the stack comes back to the same cache. So only the xstream's own thread touches
//! this, without a lock and without atomics, and a unit that has not started costs no stack.
//!
//! - Idle stacks wait last used first, because those are warm. While the xstream is busy, up to
//!   [`BURST_FACTOR`] times `max` wait; what exceeds that goes back to the system at once.
//! - When the xstream has had nothing to do for [`TRIM_AFTER`], all but `max` go back to the
//!   system, and of the rest the pages further than 16 KiB from the top.
//!
//! A ULT of [`UltBuilder::spawn_migratable`](crate::UltBuilder::spawn_migratable) takes its stack
//! along: it leaves the register here and enters the one of the next xstream.

use std::io;
use std::time::Duration;

use crate::stack::{BlockPtr, StackClass, map_stack, trim_stack, unmap_stack};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::Relaxed;

/// How many times `max` stacks may wait while the xstream is busy.
const BURST_FACTOR: usize = 32;
/// How long an xstream sleeps before it trims idle stacks.
pub(crate) const TRIM_AFTER: Duration = Duration::from_secs(1);

/// See the module documentation.
pub(crate) struct StackCache {
    default: StackClass,
    max: usize,
    /// Idle ones of the default class, and of others.
    idle: Vec<BlockPtr>,
    others: Vec<BlockPtr>,
    /// All that are here, in use or idle.
    register: Vec<BlockPtr>,
    /// Stacks came back since the last trim.
    dirty: bool,
}

impl StackCache {
    pub(crate) fn new(default: StackClass, max: usize) -> Self {
        let idle = Vec::with_capacity(max.min(4096));
        Self { default, max, idle, others: Vec::new(), register: Vec::new(), dirty: false }
    }

    /// An idle stack, or a fresh one. `count` is the number of stacks that exist.
    #[inline]
    pub(crate) fn take(&mut self, class: StackClass, count: &AtomicUsize) -> io::Result<BlockPtr> {
        if class == self.default
            && let Some(block) = self.idle.pop()
        {
            return Ok(block);
        }
        self.take_slow(class, count)
    }

    #[cold]
    fn take_slow(&mut self, class: StackClass, count: &AtomicUsize) -> io::Result<BlockPtr> {
        if let Some(at) = self.others.iter().rposition(|block| block.class == class) {
            return Ok(self.others.remove(at));
        }
        let block = map_stack(class)?;
        self.register(block, count);
        Ok(block)
    }

    /// Takes in a stack that was made or carried here.
    pub(crate) fn register(&mut self, block: BlockPtr, count: &AtomicUsize) {
        block.registered_at.set(self.register.len());
        self.register.push(block);
        count.store(self.register.len(), Relaxed);
    }

    /// Lets a stack go elsewhere.
    pub(crate) fn unregister(&mut self, block: BlockPtr, count: &AtomicUsize) {
        let at = block.registered_at.get();
        self.register.swap_remove(at);
        if let Some(moved) = self.register.get(at) {
            moved.registered_at.set(at);
        }
        count.store(self.register.len(), Relaxed);
    }

    /// Takes back a stack on which nobody lives any more.
    #[inline]
    pub(crate) fn put(&mut self, block: BlockPtr, count: &AtomicUsize) {
        self.dirty = true;
        if block.class == self.default && self.idle.len() < self.max {
            self.idle.push(block);
        } else {
            self.put_slow(block, count);
        }
    }

    #[cold]
    fn put_slow(&mut self, block: BlockPtr, count: &AtomicUsize) {
        let room = self.max.saturating_mul(BURST_FACTOR);
        let list = if block.class == self.default { &mut self.idle } else { &mut self.others };
        if list.len() < room && !block.class.is_users() {
            list.push(block);
        } else {
            self.destroy(block, count);
        }
    }

    fn destroy(&mut self, block: BlockPtr, count: &AtomicUsize) {
        self.unregister(block, count);
        // SAFETY: it was handed to us idle, and is in no list any more.
        unsafe { unmap_stack(block) };
    }

    /// Whether a trim could give something back.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// See the module documentation.
    pub(crate) fn trim(&mut self, count: &AtomicUsize) {
        self.dirty = false;
        self.shrink(self.max, count);
        for block in self.idle.iter().chain(&self.others) {
            // SAFETY: cached stacks are ours, and nobody lives on them.
            unsafe { trim_stack(*block) };
        }
    }

    /// Gives all idle stacks back; the xstream ends.
    pub(crate) fn drain(&mut self, count: &AtomicUsize) {
        self.shrink(0, count);
    }

    fn shrink(&mut self, max: usize, count: &AtomicUsize) {
        // The ones that came first have waited longest and are cold.
        let idle_surplus = self.idle.len().saturating_sub(max);
        let others_surplus = self.others.len().saturating_sub(max);
        let mut surplus: Vec<_> = self.idle.drain(..idle_surplus).collect();
        surplus.extend(self.others.drain(..others_surplus));
        for block in surplus {
            self.destroy(block, count);
        }
    }

    /// Every stack that is here.
    pub(crate) fn all(&self) -> &[BlockPtr] {
        &self.register
    }
}
