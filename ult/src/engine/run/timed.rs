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

use crate::base::timer_state::{Cancel, TimerState};
use crate::engine::model::unit::{TIMED, UltPtr};
use crate::engine::pool::slot::bump;
use crate::engine::pool::spec::PushReason;
use crate::engine::waiting::cancel::Why;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::{Xstream, XstreamShared};
use crate::engine::xstream::switch;
use crate::engine::xstream::timer::Place;
use crate::sync::Arc;
use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::Ordering::Relaxed;

/// State that the timer of a unit shares with the unit's handle.
#[derive(Debug)]
pub(crate) struct Timed {
    state: TimerState,
    pub(crate) deadline: Instant,
    /// Only for the party that has the unit, by the word of `state`.
    ult: UltPtr,
    /// The xstream with the timer. Written by the party that has the unit, before the timer exists.
    home: AtomicPtr<XstreamShared>,
    /// The place in the heap. Touched by the home xstream only.
    pub(crate) place: Place,
}

impl Timed {
    pub(crate) fn new(
        ult: UltPtr,
        deadline: Instant,
        state: TimerState,
        home: *mut XstreamShared,
    ) -> Self {
        let home = AtomicPtr::new(home);
        Self { state, deadline, ult, home, place: Place::nowhere() }
    }

    /// Returns whether the timer in the heap stands for nothing any more.
    pub(crate) fn is_stale(&self) -> bool {
        self.state.is_cancelled()
    }

    /// The time has come; the timer has been taken out of the heap.
    pub(crate) fn fire(&self, xstream: &Xstream) {
        if !self.state.fire() {
            xstream.shared().stale_timers.fetch_sub(1, Relaxed);
            return;
        }
        count_fired(self.ult, xstream);
        crate::engine::pool::push::enqueue(self.ult, PushReason::Create);
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
            switch::lose(self.ult, Why::Cancelled);
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
    crate::engine::pool::push::enqueue(ult, why);
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
        switch::lose(ult, Why::Cancelled);
    }
    false
}
