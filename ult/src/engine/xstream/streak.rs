//! Streaks: new ULTs that run one after the other on one stack.
//!
//! When a ULT has ended, its stack is as good as new, and the next unit to run is often a ULT that
//! has not started. To switch to the scheduler, give the stack back, take the next ULT and a stack,
//! and switch again would lead to the same place. So the frame at the bottom of the stack goes on
//! with that ULT by itself, and the scheduler's loop sees only the last one of the streak.
//!
//! It does so only where the scheduler would pick just that unit, and there is nothing else to look
//! at: the scheduler is `basic`, which says how many of its next picks are for the list of its
//! first pool ([`Streak::begin`]), and there is no mail, no timer, no idle waiter and no observer.
//! Everything that runs units by itself ends the streak: a stacked scheduler or a ULT that runs a
//! child must get back what it has resumed.
//!
//! All of this belongs to the xstream's own thread. `run_tasklets` does the same for tasklets,
//! which have no stack at all.

use std::cell::Cell;
use std::ptr;

use crate::engine::model::unit::UltPtr;
use crate::engine::pool::slot::PoolSlot;
use crate::engine::unit::end::run_and_publish;
use crate::engine::xstream::descriptor_cache::recycle_at;
use crate::engine::xstream::owner::Xstream;
use crate::stack::block::{BlockPtr, StackBlock};
use crate::sync::atomic::Ordering::Relaxed;

/// The present streak: how long it may go on, and how far it has come.
#[derive(Debug)]
pub(crate) struct Streak {
    /// How many units more it may take.
    left: Cell<u32>,
    /// How many it has taken.
    taken: Cell<u32>,
    /// The slot that the units come from; valid while `left` is not zero.
    slot: Cell<*const PoolSlot>,
}

impl Streak {
    pub(crate) const fn new() -> Self {
        Self { left: Cell::new(0), taken: Cell::new(0), slot: Cell::new(ptr::null()) }
    }

    /// The scheduler's loop is about to start a unit; up to `max` others of `slot` may follow it.
    #[inline]
    pub(crate) fn begin(&self, slot: &PoolSlot, max: u32) {
        self.slot.set(slot);
        self.left.set(max);
    }

    /// The loop goes on. How many units have followed.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.left.set(0);
        self.taken.replace(0)
    }

    /// Ends the streak. Code that runs units by itself calls this first.
    #[inline]
    pub(crate) fn stop(&self) {
        self.left.set(0);
    }

    #[inline]
    fn slot(&self) -> Option<&PoolSlot> {
        if self.left.get() == 0 {
            return None;
        }
        // SAFETY:
        // - valid: `begin` set it, and slots that are served stay until the loop is left, which
        //   `drop_slots` has follow by a `stop`.
        unsafe { self.slot.get().as_ref() }
    }
}

impl Xstream {
    /// The ULT that lived on `block` has ended, and `root` asks for the next one to run there:
    /// settled, and out of its queue. None: back to the stack's resumer.
    #[inline]
    pub(crate) fn follow(&self, block: BlockPtr) -> Option<UltPtr> {
        let slot = self.streak.slot()?;
        let shared = self.shared();
        if shared.has_mail()
            || self.has_chores.get()
            || self.next.get().is_some()
            || self.is_watched()
        {
            return None;
        }
        let ended = block.ult();
        // What it leaves may be dropped by code of a user, which must not find itself in the next.
        if ended.is_some_and(|ended| ended.leaves_much()) {
            return None;
        }
        let next = slot.pop_fresh(block.class)?;
        self.streak.left.set(self.streak.left.get() - 1);
        self.streak.taken.set(self.streak.taken.get() + 1);
        // What `finish` does for the one and `start` for the other, where these differ.
        if let Some(ended) = ended {
            recycle_at(self, ended);
        }
        self.tell_end();
        next.slot.set(slot);
        next.home.store(self.me(), Relaxed);
        next.set_block(Some(block));
        block.set_ult(Some(next));
        self.current.set(Some(next));
        self.handed.set(true);
        Some(next)
    }
}

impl StackBlock {
    /// Runs one ULT, from its closure to its published result, and those that may follow it at
    /// once: the body of the frame at the bottom of every stack. If the descriptor of the last one
    /// is left to nobody, it stands in the block. Without a ULT it does nothing.
    #[inline(never)]
    pub(crate) fn run_ults(&self) {
        let Some(mut ult) = self.ult() else { return };
        loop {
            if run_and_publish(ult) {
                self.set_ult(Some(ult));
            }
            match follow(self) {
                Some(next) => ult = next,
                None => return,
            }
        }
    }
}

/// See [`Xstream::follow`]. `block` is the stack of the caller.
#[inline]
fn follow(block: &StackBlock) -> Option<UltPtr> {
    // SAFETY:
    // - valid: it is in its place, at the top of the stack that the caller runs on.
    let block = unsafe { BlockPtr::from_ptr(block) }?;
    crate::engine::xstream::current::xstream()?.follow(block)
}
