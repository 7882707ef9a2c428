//! The question of what else could run on an xstream now.

use std::time::Instant;

use crate::engine::model::pool::{PoolShared, PoolSlot};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;

impl Xstream {
    /// See [`has_runnable`](crate::integration::has_runnable).
    pub(crate) fn has_runnable(&self) -> bool {
        self.is_runnable() || self.is_timer_due()
    }

    /// See [`has_runnable_beyond`](crate::integration::has_runnable_beyond).
    pub(crate) fn has_runnable_beyond(&self, known: usize) -> bool {
        let mut left = known;
        let is_more = |slot: &PoolSlot| {
            let is_served = slot.served.get() || slot.is_stacked();
            match left.checked_sub(slot.waiting(is_served)) {
                Some(rest) => {
                    left = rest;
                    false
                }
                None => true,
            }
        };
        let waits = || self.shared().has_mail() || !self.idle.is_empty();
        waits() || self.any_slot(is_more) || self.is_timer_due()
    }

    /// Returns whether a round could find something: mail, or a unit in a pool.
    #[inline]
    pub(crate) fn is_runnable(&self) -> bool {
        self.shared().has_mail()
            || self.any_slot(|slot| {
                if slot.served.get() || slot.is_stacked() {
                    !slot.is_empty()
                } else {
                    !slot.list.is_empty()
                }
            })
    }

    /// See [`has_runnable_behind`](crate::integration::has_runnable_behind).
    #[inline]
    pub(crate) fn has_runnable_behind(&self, pool: &PoolShared) -> bool {
        self.slot_of(pool).is_some_and(|own| !own.is_last.get() && self.is_runnable_after(own))
    }

    fn is_runnable_after(&self, own: &PoolSlot) -> bool {
        let rank = own.rank.get();
        self.any_slot(|slot| slot.served.get() && slot.rank.get() > rank && !slot.is_empty())
    }

    fn is_timer_due(&self) -> bool {
        const CALLS_PER_LOOK: u32 = 64;
        let Some(next) = self.timers.borrow().next() else { return false };
        let calls = self.due_calls.get().wrapping_add(1);
        self.due_calls.set(calls);
        calls.is_multiple_of(CALLS_PER_LOOK) && next <= Instant::now()
    }
}

/// Returns whether anything else could run on this xstream now: runnable units, resumed or new ones
/// from elsewhere, or a shutdown that wants attention. Always `false` on an OS thread.
///
/// Costs a few loads; a ULT that polls something may ask this between polls instead of yielding.
/// Timers that are due count, but the clock is looked at only every 64th call.
#[must_use]
pub fn has_runnable() -> bool {
    current::xstream().is_some_and(|xstream| xstream.has_runnable())
}

/// Returns whether anything could run on this xstream beside `known` units, which the caller knows
/// to be runnable: other units, as for [`has_runnable`], or idle waiters
/// ([`idle`](crate::integration::idle())), which run after some others have. For a ULT that does
/// the work of another one, which waits for its turn, as long as no third one waits.
#[must_use]
pub fn has_runnable_beyond(known: usize) -> bool {
    current::xstream().is_some_and(|xstream| xstream.has_runnable_beyond(known))
}

/// Returns whether a unit waits in a pool that comes after the caller's in the list of this
/// xstream. In a strict order such units have no turn while the caller yields and yields; one that
/// polls lets them have it by [`idle`](crate::integration::idle()), with an `arm` that answers
/// `false`. Always `false` on an OS thread.
#[must_use]
pub fn has_runnable_behind() -> bool {
    let here = current::xstream().zip(current::ult());
    here.is_some_and(|(xstream, ult)| xstream.has_runnable_behind(ult.pool()))
}
