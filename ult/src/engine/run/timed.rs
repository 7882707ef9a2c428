//! The timer of a unit that starts at a given time.
//!
//! Such a unit is made at once, and so counts as alive from then on, but has no stack and is in no
//! queue: a timer of an xstream stands for it. When that fires, the unit goes to its pool like any
//! other.
//!
//! 1. If the spawner is on an xstream of the runtime, the timer is one of that xstream's.
//! 2. Otherwise the unit goes through its pool with the request bit `TIMED`, and the xstream that
//!    would start it makes a timer for it instead ([`settle`]). The same happens when an xstream
//!    leaves before its timers have fired.
//!
//! [`TimerState`] decides between the clock and a cancel. A cancel on the timer's xstream removes
//! the timer from the heap. One from elsewhere cannot, and leaves a stale entry behind, which is
//! dropped when its time has come, or when half of the heap is stale.

use std::ptr;
use std::time::Instant;

use crate::base::timer_state::Cancel;
use crate::base::unwind::Why;
use crate::engine::model::interfaces::PushReason;
use crate::engine::model::pool::bump;
use crate::engine::model::unit::{TIMED, Timed, UltPtr};
use crate::engine::unit::end::lose;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::push::resume;
use crate::engine::xstream::timer::Due;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// The number of timers that fire at most at one look at the clock.
const FIRED_MAX: usize = 256;

impl Timed {
    /// The time has come; the timer has been taken out of the heap.
    pub(crate) fn fire(&self, xstream: &Xstream) {
        if !self.state.fire() {
            xstream.shared().stale_timers.fetch_sub(1, Relaxed);
            return;
        }
        count_fired(self.ult, xstream);
        crate::engine::xstream::push::enqueue(self.ult, PushReason::Create);
    }

    /// The xstream leaves; the timer has been taken out of the heap.
    fn hand_over(this: Arc<Self>, xstream: &Xstream) {
        // Before the change: a cancel that comes after it has no claim to the unit.
        let ult = this.ult;
        if !this.state.requeue() {
            xstream.shared().stale_timers.fetch_sub(1, Relaxed);
            return;
        }
        count_fired(ult, xstream);
        enqueue_timed(ult, this, PushReason::Migrate);
    }

    pub(crate) fn cancel(&self) -> bool {
        let result = self.state.cancel();
        if result == Cancel::Yours {
            self.drop_timer();
            lose(self.ult, Why::Cancelled);
        }
        result != Cancel::TooLate
    }

    /// The timer stands for nothing any more. The caller has the unit.
    fn drop_timer(&self) {
        let home = self.home.load(Relaxed);
        if let Some(xstream) = current::xstream().filter(|xstream| ptr::eq(xstream.me(), home)) {
            xstream.timers.borrow_mut().remove_timed(self);
            return;
        }
        // SAFETY:
        // - valid: there is a timer, so this has been set; xstreams live as long as the runtime's
        //   shared part, which the descriptor keeps.
        unsafe { &*home }.stale_timers.fetch_add(1, Relaxed);
    }
}

impl Xstream {
    /// Resumes ULTs, and starts units, whose deadline is not after `now`, the earliest first.
    /// Returns whether there was one. If there are very many, the rest waits for the next look, so
    /// that units which are runnable, and idle waiters, get their turns in between.
    pub(crate) fn fire_timers(&self, now: Instant) -> bool {
        for fired in 0..FIRED_MAX {
            let due = self.timers.borrow_mut().fire(now);
            match due {
                None => return fired > 0,
                Some(Due::Ult(ult)) => resume(ult),
                Some(Due::Timed(timed)) => timed.fire(self),
            }
        }
        true
    }

    pub(crate) fn insert_timed(&self, timed: Arc<Timed>) {
        /// Fewer are not worth a sweep.
        const STALE_MIN: isize = 64;
        let mut timers = self.timers.borrow_mut();
        let stale = self.shared().stale_timers.load(Relaxed);
        if stale >= STALE_MIN && stale.unsigned_abs() > timers.len() / 2 {
            let swept = timers.sweep();
            self.shared().stale_timers.fetch_sub(swept.cast_signed(), Relaxed);
        }
        timers.insert_timed(timed);
        self.has_chores.set(true);
    }

    /// Lets other xstreams take care of the units that wait for a time; this one leaves.
    pub(crate) fn give_up_timers(&self) {
        loop {
            let timed = self.timers.borrow_mut().take_timed();
            let Some(timed) = timed else { return };
            Timed::hand_over(timed, self);
        }
    }
}

/// Counts a unit that is about to be queued, long after its spawn was counted.
fn count_fired(ult: UltPtr, xstream: &Xstream) {
    let pool = ult.pool();
    match xstream.slot_of(pool) {
        Some(slot) => bump(&slot.shared.fired),
        None => {
            pool.foreign_fired.fetch_add(1, Relaxed);
        }
    }
}

/// Sends a unit to an xstream that makes a timer for it. The caller has the unit.
pub(crate) fn enqueue_timed(ult: UltPtr, timed: Arc<Timed>, why: PushReason) {
    ult.with_extra(|extra| extra.timed = Some(timed));
    ult.request(TIMED);
    crate::engine::xstream::push::enqueue(ult, why);
}

/// An unstarted unit with the request bit `TIMED` has been picked to start here; the caller took
/// the bit. Makes a timer for it. `false`: it does not start now.
#[cold]
pub(crate) fn settle(ult: UltPtr) -> bool {
    let timed = ult.with_extra(|extra| extra.timed.take());
    let Some((timed, xstream)) = timed.zip(current::xstream()) else { return true };
    timed.home.store(xstream.me(), Relaxed);
    if timed.state.arm() {
        xstream.insert_timed(timed);
    } else {
        lose(ult, Why::Cancelled);
    }
    false
}
