//! The stacks of one xstream: those in use, and those that wait for their next ULT.
//!
//! A ULT gets its stack when it first runs, from the xstream that runs it, and as a started ULT
//! stays there, the stack comes back to the same cache. So only the xstream's own thread touches
//! this, without a lock and without atomics, and a unit that has not started costs no stack.
//!
//! - Idle stacks wait last used first, because those are warm. While the xstream is busy, up to
//!   [`BURST_FACTOR`] times `max` wait; what exceeds that goes back to the system at once.
//! - Once in [`LOOK_EVERY`] the xstream looks which of them nobody has used since the last look,
//!   however much else it has done: those are cold. All but `max` idle ones go back to the system
//!   if they are cold, and of the other cold ones the pages further than 16 KiB from the top. It
//!   does so in steps of [`STEP`] stacks, between which it does what else there is.
//! - What the system does not take back, because the process has too many mappings, waits without
//!   its pages for its next ULT, and is tried again after the next look.
//!
//! A ULT of [`UltBuilder::spawn_migratable`](crate::UltBuilder::spawn_migratable) takes its stack
//! along: it leaves the register here and enters the one of the next xstream.
//!
//! - Fresh stacks come out of a reserve of address space, which grows with the number of stacks: so
//!   an xstream with many ULTs asks the system less often.

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use crate::base::contain::log;
use crate::stack::block::{BlockPtr, Reserve, StackBlock, trim_stack, unmap_stack};
use crate::stack::memory::StackClass;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::Relaxed;

/// How many times `max` stacks may wait while the xstream is busy.
const BURST_FACTOR: usize = 32;
/// How long a stack stays idle before it is cold.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many cold stacks are given back in one go.
const STEP: usize = 16;
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
    /// The least that `idle_len` was since the last look: so many at the end are cold.
    idle_low: Cell<usize>,
    /// Stacks came back since the last look, or another one is needed for another reason.
    dirty: Cell<bool>,
    /// Cold stacks may be left that no step has dealt with.
    is_stepping: Cell<bool>,
    /// When the next look is due.
    next_look: Cell<Option<Instant>>,
    rest: RefCell<OtherStacks>,
}

/// The part of the cache that is not needed while stacks come and go.
#[derive(Default)]
struct OtherStacks {
    /// Cold ones of the default class, the coldest first, and how many of them are trimmed.
    cold: Vec<BlockPtr>,
    cold_trimmed: usize,
    /// Idle ones of other classes, which came first in front.
    others: Vec<BlockPtr>,
    /// How many of `others` nobody has used since the last look, how many were cold then, and how
    /// many are trimmed; all in front.
    others_low: usize,
    others_cold: usize,
    others_trimmed: usize,
    /// Stacks of any class that the system did not take back, and how many of them to try again.
    refused: Vec<BlockPtr>,
    retries: usize,
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
            idle_low: Cell::new(0),
            dirty: Cell::new(false),
            is_stepping: Cell::new(false),
            next_look: Cell::new(None),
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
        let len = self.idle_len.get() - 1;
        self.idle_len.set(len);
        self.idle_low.set(self.idle_low.get().min(len));
        Some(block)
    }

    /// A cold stack, an idle one of another class, or a fresh one. `count` is the number of stacks
    /// that exist.
    pub(crate) fn take(&self, class: StackClass, count: &AtomicUsize) -> io::Result<BlockPtr> {
        let mut rest = self.rest.borrow_mut();
        if let Some(block) = rest.take_waiting(class, class == self.default) {
            return Ok(block);
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
        let len = self.idle_len.get() + rest.cold.len();
        if block.class == self.default && len < room {
            self.put_idle(block);
        } else if block.class != self.default && !block.class.is_users() && rest.others.len() < room
        {
            rest.others.push(block);
        } else {
            rest.destroy(block, count);
        }
    }

    /// Returns whether there will be something to look at, or to go on with.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get() || self.is_stepping.get()
    }

    /// Another look is needed, for a reason of the caller's.
    pub(crate) fn ask_for_look(&self) {
        self.dirty.set(true);
    }

    /// How long it is to the next look; none if there is nothing to look at.
    pub(crate) fn until_look(&self, now: Instant) -> Option<Duration> {
        let until = |at: Instant| at.saturating_duration_since(now);
        self.dirty.get().then(|| self.next_look.get().map_or(Duration::ZERO, until))
    }

    /// Finds out which stacks are cold. Returns whether all are: nobody has used one since the last
    /// look.
    pub(crate) fn look(&self, now: Instant) -> bool {
        let mut rest = self.rest.borrow_mut();
        let is_quiet =
            self.idle_low.get() == self.idle_len.get() && rest.others_low == rest.others.len();
        if is_quiet {
            rest.reserve = None;
        }
        self.move_cold(&mut rest);
        rest.others_cold = rest.others_low;
        rest.others_low = rest.others.len();
        rest.retries = rest.refused.len();
        self.dirty.set(!is_quiet || rest.retries > 0);
        self.is_stepping.set(true);
        self.next_look.set(Some(now + LOOK_EVERY));
        is_quiet
    }

    fn move_cold(&self, rest: &mut OtherStacks) {
        let hot = self.idle_len.get() - self.idle_low.get();
        if self.idle_low.get() > 0 {
            // The ones behind, which came first, have waited longest.
            let mut all: Vec<_> = std::iter::from_fn(|| self.take_idle()).collect();
            rest.cold.extend(all.drain(hot..).rev());
            all.into_iter().rev().for_each(|block| self.put_idle(block));
        }
        self.idle_low.set(self.idle_len.get());
    }

    /// Gives the next few cold stacks back, or pages of them. Returns whether there may be more.
    pub(crate) fn step(&self, count: &AtomicUsize) -> bool {
        if !self.is_stepping.get() {
            return false;
        }
        let mut rest = self.rest.borrow_mut();
        let max_cold = self.max.saturating_sub(self.idle_len.get());
        let is_more = (0..STEP).all(|_| {
            rest.step_default(max_cold, count)
                || rest.step_others(self.max, count)
                || rest.step_refused(count)
        });
        self.is_stepping.set(is_more);
        is_more
    }

    /// Gives all idle stacks back; the xstream ends.
    pub(crate) fn drain(&self, count: &AtomicUsize) {
        let mut rest = self.rest.borrow_mut();
        rest.reserve = None;
        let mut all: Vec<_> = std::iter::from_fn(|| self.take_idle()).collect();
        all.append(&mut rest.cold);
        all.append(&mut rest.others);
        all.append(&mut rest.refused);
        all.into_iter().for_each(|block| rest.destroy(block, count));
        (rest.cold_trimmed, rest.others_trimmed) = (0, 0);
        (rest.others_low, rest.others_cold) = (0, 0);
        let lost = rest.refused.len();
        if lost > 0 {
            log!(WARN, lost, "stacks that cannot be unmapped stay mapped, without their pages");
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

    /// Returns whether `test` holds for every stack that is here. Ends where it does not.
    pub(crate) fn all(&self, test: impl FnMut(BlockPtr) -> bool) -> bool {
        self.rest.borrow().register.iter().copied().all(test)
    }
}

impl OtherStacks {
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

    /// Takes a waiting stack that is not in the list of the default class.
    fn take_waiting(&mut self, class: StackClass, is_default: bool) -> Option<BlockPtr> {
        let found = if is_default { self.take_cold() } else { self.take_other(class) };
        found.or_else(|| {
            let at = self.refused.iter().rposition(|block| block.class == class)?;
            Some(self.refused.swap_remove(at))
        })
    }

    fn take_cold(&mut self) -> Option<BlockPtr> {
        let block = self.cold.pop()?;
        self.cold_trimmed = self.cold_trimmed.min(self.cold.len());
        Some(block)
    }

    fn take_other(&mut self, class: StackClass) -> Option<BlockPtr> {
        let at = self.others.iter().rposition(|block| block.class == class)?;
        for front in [&mut self.others_low, &mut self.others_cold, &mut self.others_trimmed] {
            *front = at.min(*front);
        }
        Some(self.others.remove(at))
    }

    /// Deals with one cold stack of the default class, of which `max` may stay. `false`: there is
    /// none left.
    fn step_default(&mut self, max: usize, count: &AtomicUsize) -> bool {
        let len = self.cold.len();
        if len == self.cold_trimmed {
            return false;
        }
        if len <= max {
            // SAFETY: cached stacks are ours, and nobody lives on them.
            unsafe { trim_stack(self.cold[self.cold_trimmed]) };
            self.cold_trimmed += 1;
        } else if let Some(block) = self.cold.pop() {
            self.destroy(block, count);
        }
        true
    }

    /// Trims or unmaps one cold stack of the other classes, of which `max` may stay, cold or not.
    /// `false`: there is none left.
    fn step_others(&mut self, max: usize, count: &AtomicUsize) -> bool {
        if self.others_cold > 0 && self.others.len() > max {
            let block = self.others.remove(0);
            self.others_cold -= 1;
            self.others_low = self.others_low.saturating_sub(1);
            self.others_trimmed = self.others_trimmed.saturating_sub(1);
            self.destroy(block, count);
            return true;
        }
        if self.others_trimmed >= self.others_cold {
            return false;
        }
        // SAFETY: as in `step_default`.
        unsafe { trim_stack(self.others[self.others_trimmed]) };
        self.others_trimmed += 1;
        true
    }

    /// Tries once more to unmap one of those that the system refused, until it refuses again.
    fn step_refused(&mut self, count: &AtomicUsize) -> bool {
        self.retries = self.retries.min(self.refused.len());
        if self.retries == 0 {
            return false;
        }
        self.retries -= 1;
        // The first: what is refused again goes behind.
        let block = self.refused.swap_remove(0);
        let len = self.refused.len();
        self.destroy(block, count);
        if self.refused.len() > len {
            self.retries = 0;
        }
        true
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
        if let Some(refused) = unsafe { unmap_stack(block) } {
            self.register(refused, count);
            self.refused.push(refused);
        }
    }
}
