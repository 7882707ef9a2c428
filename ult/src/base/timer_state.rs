//! The state of a unit that waits for a time: decides between the clock and a cancel.
//!
//! | state | the unit | left by |
//! |---|---|---|
//! | `QUEUED` | on its way to an xstream, in a queue | [`arm`](TimerState::arm) by the xstream that finds it; [`cancel`](TimerState::cancel) |
//! | `ARMED` | in no queue; a timer of an xstream stands for it | [`fire`](TimerState::fire), [`requeue`](TimerState::requeue) by that xstream; `cancel` |
//! | `FIRED` | runs, or is queued to run | final |
//! | `CANCELLED` | will not run | final |
//!
//! Each change is one compare-exchange, and the party that makes it has the unit: to queue it, to
//! insert its timer, or to lose it. A unit that was cancelled while `QUEUED` is lost by the xstream
//! that finds it.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{AcqRel, Acquire};

const QUEUED: u8 = 0;
const ARMED: u8 = 1;
const FIRED: u8 = 2;
const CANCELLED: u8 = 3;

/// The state. See the module documentation.
#[derive(Debug)]
pub struct TimerState(AtomicU8);

/// Outcome of [`TimerState::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The unit is the caller's, which must lose it.
    Yours,
    /// The xstream that finds the unit will lose it, or the unit has been cancelled before.
    Done,
    /// It has been started.
    TooLate,
}

impl TimerState {
    /// The state of a unit that is queued.
    #[must_use]
    pub fn queued() -> Self {
        Self(AtomicU8::new(QUEUED))
    }

    /// The state of a unit whose timer is about to be inserted.
    #[must_use]
    pub fn armed() -> Self {
        Self(AtomicU8::new(ARMED))
    }

    fn change(&self, from: u8, to: u8) -> Result<u8, u8> {
        // pair: TIMER-STATE
        self.0.compare_exchange(from, to, AcqRel, Acquire)
    }

    /// The unit has been taken from its queue. `true`: the caller inserts a timer. `false`: the
    /// caller loses it.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.change(QUEUED, ARMED).is_ok()
    }

    /// The time has come. `true`: the caller queues the unit to run. `false`: it is gone.
    #[must_use]
    pub fn fire(&self) -> bool {
        self.change(ARMED, FIRED).is_ok()
    }

    /// The xstream of the timer leaves. `true`: the caller queues the unit. `false`: it is gone.
    #[must_use]
    pub fn requeue(&self) -> bool {
        self.change(ARMED, QUEUED).is_ok()
    }

    /// Prevents the run, unless it is too late.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        let mut from = ARMED;
        loop {
            match self.change(from, CANCELLED) {
                Ok(ARMED) => return Cancel::Yours,
                Ok(_) | Err(CANCELLED) => return Cancel::Done,
                Err(FIRED) => return Cancel::TooLate,
                Err(seen) => from = seen,
            }
        }
    }

    /// Returns whether the unit will not run. A snapshot unless it says yes.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Acquire) == CANCELLED // pair: TIMER-STATE
    }
}
