//! Units that their joiner runs, so that a fork and a join by units cost little.
//!
//! A ULT that joins a unit which it has spawned a moment ago finds it, as a rule, at the near end
//! of the queue of its xstream. To suspend, to have the scheduler pick the unit, and to be queued
//! and picked again at its end would take two more switches, two more trips through queues, and a
//! read-modify-write at each meeting on the way. So the joiner takes the unit out and runs it as
//! its child, on a stack of its own, as [`run_unit`](crate::run_unit) does. As a rule the child
//! comes back when it has ended. One that waits comes back, too; then the joiner waits for it like
//! for any other, and whoever runs the joiner as a child gets that back, and so on down to the
//! scheduler.
//!
//! The joiner does so only where the scheduler would pick just that unit, and there is nothing else
//! to look at: the scheduler is one of this crate that begins at its first pool, the joiner is of
//! that pool, and there is no mail, no timer, no idle waiter and no observer. A ULT of the same
//! pool that can go on gets its turn first, as another child. Every so many units the scheduler
//! gets its turn if there are others that nobody but this xstream would run, and it begins with
//! those; now and then it gets its turn in any case.

use std::ptr;

use crate::base::contain::NoUnwind;
use crate::engine::model::pool::{PoolSlot, Queue};
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::Relaxed;

/// Units between two looks at what else could run.
const LOOK_EVERY: u64 = 64;

impl Xstream {
    /// Runs `ult`, which `me`, the calling ULT, is about to wait for, as the child of `me`, if it
    /// is what runs next. `true`: it was, and may have ended.
    #[inline(always)]
    pub(crate) fn run_joined(&self, me: UltPtr, ult: UltPtr) -> bool {
        let slot = self.home_slot(me);
        let pool = &*slot.pool;
        if !self.owns(pool) {
            return false;
        }
        match pool.queue() {
            Queue::Deque(deque) if !deque.is_empty() && self.may_run_child(me, slot) => {
                if let Some(ready) = slot.pop_front() {
                    self.run_other(ready);
                    if ult.join.is_done() {
                        return true;
                    }
                }
                // SAFETY: this is the thread of the owner.
                let Some(newest) = (unsafe { deque.pop_newest() }) else { return false };
                if newest != ult || !ult.is_plain_fresh() {
                    self.push_own(newest, slot);
                    return false;
                }
            }
            Queue::Fifo(_) if slot.list.is_only(ult) && self.may_run_child(me, slot) => {
                if !self.is_home_of(ult) && !ult.is_plain_fresh() {
                    return false;
                }
                slot.pop_front();
            }
            _ => return false,
        }
        self.run_child(me, ult, slot);
        true
    }

    /// Returns whether the scheduler would have nothing else to do than to run units of `own`.
    #[inline]
    fn may_run_child(&self, me: UltPtr, own: &PoolSlot) -> bool {
        self.may_pass_by.get()
            && own.served.get()
            && own.rank.get() == 0
            && !self.shared().has_mail()
            && !self.has_chores.get()
            && self.next.get().is_none()
            && !self.is_watched()
            && !me.has_requests()
            && (!self.units_run.get().is_multiple_of(LOOK_EVERY) || !self.is_more_beside(own))
    }

    /// Returns whether the scheduler should have its turn, after so many units that it has not
    /// picked: there are units of other pools, or it had none for long.
    #[cold]
    fn is_more_beside(&self, own: &PoolSlot) -> bool {
        let is_more = self.any_slot(|slot| {
            let (pool, is_own) = (&*slot.pool, ptr::eq(slot, own));
            // Another xstream comes to what is in its own deque.
            let has_owner =
                matches!(pool.queue(), Queue::Deque(_)) && !pool.owner.load(Relaxed).is_null();
            !is_own && (!slot.list.is_empty() || !has_owner && !pool.queue().is_empty())
        });
        if is_more {
            // So that its next pick is one of those.
            self.remind_at.set(0);
        }
        self.units_run.get() >= self.remind_at.get()
    }

    /// Runs `ult`, which is at home here or is a plain ULT of `slot` that has not started, as the
    /// child of `me`, until it switches away, and then what it wants to run next.
    #[inline(always)]
    fn run_child(&self, me: UltPtr, ult: UltPtr, slot: &PoolSlot) {
        self.units_run.set(self.units_run.get() + 1);
        self.streak.stop();
        let guard = NoUnwind::begin();
        if self.is_home_of(ult) || self.start(ult, slot) {
            self.switch_to(ult, Some(me));
        }
        guard.defuse();
        if let Some(next) = self.next.take() {
            self.run_other(next);
        }
    }

    #[cold]
    #[inline(never)]
    fn run_other(&self, ult: UltPtr) {
        self.units_run.set(self.units_run.get() + 1);
        self.streak.stop();
        self.run(ult);
    }
}
