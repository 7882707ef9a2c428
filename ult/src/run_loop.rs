//! The loop of an xstream: mail, timers, idle waiters, then what the scheduler picks.
//!
//! Each round looks at the inbox (two loads), at the clock only every few rounds and only if
//! there are timers, and at idle waiters only if there are some. When the scheduler has nothing,
//! [`sleep`](mod@crate::sleep) takes over until something is runnable.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::descriptor::UltPtr;
use crate::error::panic_message;
use crate::idle::OTHERS_MAX;
use crate::sched::{Basic, PoolView, Scheduler, Step};
use crate::switch;
use crate::trace::event::EventKind;
use crate::xstream::Xstream;

/// How many rounds may pass between two looks at the clock.
///
/// A look costs as much as several short units, so it is shared by many of them; but if those
/// rounds took long, the next look comes sooner, so that long units delay timers by little more
/// than one unit.
#[derive(Debug)]
pub(crate) struct ClockBudget {
    rounds: Cell<u32>,
    left: Cell<u32>,
    last: Cell<Option<Instant>>,
}

const ROUNDS_MAX: u32 = 32;
const ROUNDS_TOO_LONG: Duration = Duration::from_micros(100);

impl Default for ClockBudget {
    fn default() -> Self {
        Self { rounds: Cell::new(1), left: Cell::new(1), last: Cell::new(None) }
    }
}

impl ClockBudget {
    /// Counts a round; returns the time if it is time to look.
    #[inline]
    fn tick(&self) -> Option<Instant> {
        let left = self.left.get().saturating_sub(1);
        self.left.set(left);
        if left > 0 { None } else { Some(self.look()) }
    }

    fn look(&self) -> Instant {
        let now = Instant::now();
        let last = self.last.replace(Some(now));
        let is_long = last.is_none_or(|last| now.duration_since(last) > ROUNDS_TOO_LONG);
        let rounds = self.rounds.get();
        let rounds = if is_long { (rounds / 4).max(1) } else { (rounds * 2).min(ROUNDS_MAX) };
        self.rounds.set(rounds);
        self.left.set(rounds);
        now
    }
}

impl Xstream {
    /// Runs until the runtime ends.
    pub(crate) fn main(&self, mut scheduler: Box<dyn Scheduler>) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.serve(&mut *scheduler))) {
                Ok(()) => return,
                Err(panic) => {
                    let (xstream, message) = (&*self.shared().name, panic_message(&panic));
                    tracing::error!(xstream, message, "a scheduler or pool panicked");
                    scheduler = Box::new(Basic::new());
                }
            }
        }
    }

    fn serve(&self, scheduler: &mut dyn Scheduler) {
        let shared = self.shared();
        let views: Vec<PoolView<'_>> = self
            .slots
            .iter()
            .zip(&shared.slots)
            .map(|(slot, of_slot)| PoolView::new(&self.core.pools[slot.pool], slot, of_slot))
            .collect();
        loop {
            if shared.has_mail() {
                self.read_mail();
            }
            if self.timers.borrow().len() > 0
                && let Some(now) = self.clock.tick()
            {
                self.fire_timers(now);
            }
            if self.idle.is_overdue(self.units_run.get()) {
                self.resume_idle(OTHERS_MAX);
            }
            match scheduler.next(&views) {
                Step::Run(unit) => {
                    self.units_run.set(self.units_run.get() + 1);
                    self.run(unit.into_ult());
                }
                Step::Idle => {
                    if self.exiting.get() {
                        return;
                    }
                    self.on_idle();
                }
            }
        }
    }

    /// Resumes every ULT whose deadline is not after `now`. Returns whether there was one.
    pub(crate) fn fire_timers(&self, now: Instant) -> bool {
        let mut any = false;
        loop {
            let Some(ult) = self.timers.borrow_mut().fire(now) else { return any };
            any = true;
            switch::resume(ult);
        }
    }

    /// Runs each idle waiter past which at least `others` units have run, directly and not through
    /// its pool. Returns whether there was one.
    pub(crate) fn resume_idle(&self, others: u64) -> bool {
        let mut any = false;
        while let Some(ult) = self.idle.take_passed(self.units_run.get(), others) {
            any = true;
            self.run_idle(ult);
        }
        any
    }

    /// Runs an idle waiter whose end has been set, unless it has been queued already.
    pub(crate) fn run_idle(&self, ult: UltPtr) {
        if ult.cell.resume() {
            self.on_event(ult, EventKind::Resume);
            self.run(ult);
        }
    }

    /// See [`has_runnable`](crate::has_runnable).
    pub(crate) fn has_runnable(&self) -> bool {
        self.is_runnable() || self.is_timer_due()
    }

    /// Whether a round could find something: mail, or a unit in a pool.
    #[inline]
    pub(crate) fn is_runnable(&self) -> bool {
        self.shared().has_mail()
            || self.slots.iter().any(|slot| {
                let object = self.core.pools[slot.pool].object();
                !slot.list.is_empty() || object.is_some_and(|object| !object.is_empty())
            })
    }

    fn is_timer_due(&self) -> bool {
        const CALLS_PER_LOOK: u32 = 64;
        let Some(next) = self.timers.borrow().next() else { return false };
        let calls = self.due_calls.get().wrapping_add(1);
        self.due_calls.set(calls);
        calls.is_multiple_of(CALLS_PER_LOOK) && next <= Instant::now()
    }
}
