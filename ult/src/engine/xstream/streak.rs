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

use crate::engine::model::pool::PoolSlot;

/// The present streak: how long it may go on, and how far it has come.
#[derive(Debug)]
pub(crate) struct Streak {
    /// How many units more it may take.
    pub(crate) left: Cell<u32>,
    /// How many it has taken.
    pub(crate) taken: Cell<u32>,
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
    pub(crate) fn slot(&self) -> Option<&PoolSlot> {
        if self.left.get() == 0 {
            return None;
        }
        // SAFETY:
        // - valid: `begin` set it, and slots that are served stay until the loop is left, which
        //   `drop_slots` has follow by a `stop`.
        unsafe { self.slot.get().as_ref() }
    }
}
