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

//! - Fresh stacks come out of a reserve of address space, which grows with the number of stacks: so
//!   an xstream with many ULTs asks the system less often.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr;
use std::time::Duration;

use crate::stack::{BlockPtr, Reserve, StackBlock, StackClass, trim_stack, unmap_stack};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::Relaxed;

/// How many times `max` stacks may wait while the xstream is busy.
const BURST_FACTOR: usize = 32;
/// How long an xstream sleeps before it trims idle stacks.
pub(crate) const TRIM_AFTER: Duration = Duration::from_secs(1);
/// Largest reserve, in stacks, and which part of the existing ones it is below that.
const RESERVE_MAX: usize = 64;
const RESERVE_PART: usize = 4;

/// See the module documentation.
pub(crate) struct StackCache {
    default: StackClass,
    max: usize,
    /// Idle ones of the default class, linked through their blocks.
    idle: Cell<*const StackBlock>,
    idle_len: Cell<usize>,
    /// Stacks came back since the last trim.
    dirty: Cell<bool>,
    rest: RefCell<Rest>,
}

/// What is not needed while stacks come and go.
#[derive(Default)]
struct Rest {
    /// Idle ones of other classes.
    others: Vec<BlockPtr>,
    /// All that are here, in use or idle.
    register: Vec<BlockPtr>,
    /// For stacks of the default class.
    reserve: Option<Reserve>,
}

impl StackCache {
    pub(crate) fn new(default: StackClass, max: usize) -> Self {
        Self {
            default,
            max,
            idle: Cell::new(ptr::null()),
            idle_len: Cell::new(0),
            dirty: Cell::new(false),
            rest: RefCell::default(),
        }
    }

    /// An idle stack, if `class` is the default and there is one.
    #[inline]
    pub(crate) fn take_default(&self, class: StackClass) -> Option<BlockPtr> {
        if class == self.default { self.take_idle() } else { None }
    }

    #[inline]
    fn take_idle(&self) -> Option<BlockPtr> {
        // SAFETY:
        // - valid: idle stacks are unmapped only after they have been taken out.
        let block = unsafe { BlockPtr::from_ptr(self.idle.get()) }?;
        self.idle.set(block.next.get());
        self.idle_len.set(self.idle_len.get() - 1);
        Some(block)
    }

    /// An idle stack of another class, or a fresh one. `count` is the number of stacks that exist.
    pub(crate) fn take(&self, class: StackClass, count: &AtomicUsize) -> io::Result<BlockPtr> {
        let mut rest = self.rest.borrow_mut();
        if let Some(at) = rest.others.iter().rposition(|block| block.class == class) {
            return Ok(rest.others.remove(at));
        }
        let block = rest.make(class, class == self.default)?;
        rest.register(block, count);
        Ok(block)
    }

    /// Takes in a stack that was made or carried here.
    pub(crate) fn register(&self, block: BlockPtr, count: &AtomicUsize) {
        self.rest.borrow_mut().register(block, count);
    }

    /// Lets a stack go elsewhere.
    pub(crate) fn unregister(&self, block: BlockPtr, count: &AtomicUsize) {
        self.rest.borrow_mut().unregister(block, count);
    }

    /// Takes back a stack on which nobody lives any more.
    #[inline]
    pub(crate) fn put(&self, block: BlockPtr, count: &AtomicUsize) {
        self.dirty.set(true);
        if block.class == self.default && self.idle_len.get() < self.max {
            self.put_idle(block);
        } else {
            self.put_slow(block, count);
        }
    }

    #[inline]
    fn put_idle(&self, block: BlockPtr) {
        block.next.set(self.idle.replace(block.as_ptr()));
        self.idle_len.set(self.idle_len.get() + 1);
    }

    #[cold]
    fn put_slow(&self, block: BlockPtr, count: &AtomicUsize) {
        let room = self.max.saturating_mul(BURST_FACTOR);
        let mut rest = self.rest.borrow_mut();
        if block.class == self.default && self.idle_len.get() < room {
            self.put_idle(block);
        } else if block.class != self.default && !block.class.is_users() && rest.others.len() < room
        {
            rest.others.push(block);
        } else {
            rest.destroy(block, count);
        }
    }

    /// Whether a trim could give something back.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// See the module documentation.
    pub(crate) fn trim(&self, count: &AtomicUsize) {
        self.dirty.set(false);
        self.shrink(self.max, count);
        let mut idle = self.idle.get();
        // SAFETY:
        // - valid: idle stacks are unmapped only after they have been taken out.
        while let Some(block) = unsafe { BlockPtr::from_ptr(idle) } {
            // SAFETY: cached stacks are ours, and nobody lives on them.
            unsafe { trim_stack(block) };
            idle = block.next.get();
        }
        for block in &self.rest.borrow().others {
            // SAFETY: as above.
            unsafe { trim_stack(*block) };
        }
    }

    /// Gives all idle stacks back; the xstream ends.
    pub(crate) fn drain(&self, count: &AtomicUsize) {
        self.shrink(0, count);
    }

    fn shrink(&self, max: usize, count: &AtomicUsize) {
        let mut rest = self.rest.borrow_mut();
        rest.reserve = None;
        // The ones behind, which came first, have waited longest and are cold.
        let mut kept: Vec<_> = std::iter::from_fn(|| self.take_idle()).collect();
        let surplus = kept.split_off(max.min(kept.len()));
        kept.into_iter().rev().for_each(|block| self.put_idle(block));
        let others_surplus = rest.others.len().saturating_sub(max);
        let others: Vec<_> = rest.others.drain(..others_surplus).collect();
        for block in surplus.into_iter().chain(others) {
            rest.destroy(block, count);
        }
    }

    /// How many stacks are here.
    pub(crate) fn len(&self) -> usize {
        self.rest.borrow().register.len()
    }

    /// The one in that place. When a stack goes, the last one takes its place.
    pub(crate) fn get(&self, at: usize) -> Option<BlockPtr> {
        self.rest.borrow().register.get(at).copied()
    }

    /// Calls `f` for every stack that is here.
    pub(crate) fn for_each(&self, f: impl FnMut(BlockPtr)) {
        self.rest.borrow().register.iter().copied().for_each(f);
    }
}

impl Rest {
    fn make(&mut self, class: StackClass, is_default: bool) -> io::Result<BlockPtr> {
        if is_default
            && let Some(reserve) = &mut self.reserve
            && let Some(block) = reserve.make()?
        {
            return Ok(block);
        }
        let count = (self.register.len() / RESERVE_PART).clamp(1, RESERVE_MAX);
        let mut reserve = match Reserve::map(class, if is_default { count } else { 1 }) {
            // Perhaps there is address space for one.
            Err(_) if is_default && count > 1 => Reserve::map(class, 1),
            other => other,
        }?;
        let block = reserve.make()?;
        if is_default {
            self.reserve = Some(reserve);
        }
        block.ok_or_else(|| io::Error::other("a reserve of stacks was empty"))
    }

    fn register(&mut self, block: BlockPtr, count: &AtomicUsize) {
        block.registered_at.set(self.register.len());
        self.register.push(block);
        count.store(self.register.len(), Relaxed);
    }

    fn unregister(&mut self, block: BlockPtr, count: &AtomicUsize) {
        let at = block.registered_at.get();
        self.register.swap_remove(at);
        if let Some(moved) = self.register.get(at) {
            moved.registered_at.set(at);
        }
        count.store(self.register.len(), Relaxed);
    }

    fn destroy(&mut self, block: BlockPtr, count: &AtomicUsize) {
        self.unregister(block, count);
        // SAFETY: it was handed to us idle, and is in no list any more.
        unsafe { unmap_stack(block) };
    }
}
