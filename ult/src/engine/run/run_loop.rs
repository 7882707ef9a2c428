//! The loop of an xstream: mail, timers, idle waiters, then what the scheduler picks.
//!
//! Each round looks at the inbox (two loads), at the clock only every few rounds and only if
//! there are timers, and at idle waiters only if there are some. When the scheduler has nothing,
//! [`sleep`](mod@crate::engine::run::sleep) takes over until something is runnable.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::base::contain::{caught, log, no_unwind};
use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::UltPtr;
use crate::engine::pool::slot::PoolSlot;
use crate::engine::run::idle_wait::OTHERS_MAX;
use crate::engine::run::sched::{Basic, OwnScheduler, PoolView, Scheduler, Step, own};
use crate::engine::xstream::owner::{State, Xstream};
use crate::engine::xstream::switch;
use crate::engine::xstream::timer::Due;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::trace::event::EventKind;

/// The reason why the loop ended.
enum Leave {
    /// The scheduler or the pools have changed.
    Reconfigure,
    Exit,
}

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

/// After so many units an xstream that may never be idle looks at its idle stacks.
const UNITS_PER_REMINDER: u64 = 1024;

/// The number of timers that fire at most at one look at the clock.
const FIRED_MAX: usize = 256;

/// Rounds between two looks at slots that the scheduler does not serve.
const ODD_EVERY: u32 = 16;

impl Xstream {
    /// Runs until the runtime ends or the xstream has been asked to leave. Gives the scheduler
    /// back.
    pub(crate) fn main(&self, mut scheduler: OwnScheduler) -> OwnScheduler {
        loop {
            let has_changed = self.reconfigured.replace(false);
            if let Some(new) = self.shared().take_scheduler() {
                scheduler = new;
            }
            match caught(|| self.serve_by(&mut **scheduler, has_changed)) {
                Ok(Leave::Reconfigure) => {}
                Ok(Leave::Exit) => return scheduler,
                Err(message) => {
                    let xstream = &*self.shared().name;
                    log!(ERROR, xstream, message, "a scheduler panicked; `Basic` takes its place");
                    scheduler = own(Box::new(Basic::new()));
                }
            }
        }
    }

    fn serve_by(&self, scheduler: &mut dyn Scheduler, has_changed: bool) -> Leave {
        match scheduler.as_basic() {
            Some(basic) => self.serve(
                basic,
                has_changed,
                |basic, pools| self.begin_streak(basic, pools),
                |basic, pools| self.end_streak(basic, pools),
            ),
            None => self.serve(scheduler, has_changed, |_, _| {}, |_, _| {}),
        }
    }

    /// `has_changed`: it has just carried out a change, so a unit goes before the next one. Changes
    /// that come faster than they are carried out must not keep units from running.
    ///
    /// `before` and `after` are called around units that have not started; more units may run
    /// meanwhile, and `after` may run some, if the scheduler would pick just them.
    fn serve<S: Scheduler + ?Sized>(
        &self,
        scheduler: &mut S,
        mut has_changed: bool,
        before: impl Fn(&mut S, &[PoolView<'_>]),
        after: impl Fn(&mut S, &[PoolView<'_>]),
    ) -> Leave {
        let shared = self.shared();
        let pools = self.enter_pools();
        let views: Vec<PoolView<'_>> = pools.iter().map(|pool| self.view(pool)).collect();
        loop {
            if !std::mem::take(&mut has_changed) && shared.has_mail() {
                no_unwind(|| self.read_mail());
                if self.reconfigured.get() {
                    return Leave::Reconfigure;
                }
            }
            if self.has_chores.get() {
                no_unwind(|| self.do_chores());
            }
            match scheduler.next(&views) {
                Step::Run(unit) => {
                    self.units_run.set(self.units_run.get() + 1);
                    let is_fresh = !unit.is_started();
                    if is_fresh {
                        before(scheduler, &views);
                    }
                    self.run(unit.into_ult());
                    if is_fresh {
                        after(scheduler, &views);
                    }
                    if self.units_run.get() >= self.remind_at.get() {
                        self.remind_of_stacks();
                    }
                }
                Step::Idle => {
                    if self.exiting.get() || self.may_leave() {
                        return Leave::Exit;
                    }
                    no_unwind(|| {
                        if !(self.has_odd_slots.get() && self.run_odd()) {
                            self.on_idle();
                        }
                    });
                }
            }
        }
    }

    /// How many of the next picks of `basic` are for the list of its first pool.
    #[inline]
    fn streak_max(basic: &Basic, first: &PoolView<'_>) -> u32 {
        first.pops_from_list().min(basic.strict_picks_left())
    }

    /// Lets new ULTs follow the one that comes next on its stack.
    #[inline]
    fn begin_streak(&self, basic: &Basic, pools: &[PoolView<'_>]) {
        if let Some(first) = pools.first() {
            self.streak.begin(first.slot(), Self::streak_max(basic, first));
        }
    }

    #[inline]
    fn end_streak(&self, basic: &mut Basic, pools: &[PoolView<'_>]) {
        let followed = self.streak.end();
        if let Some(first) = pools.first() {
            self.count_picks(basic, first.slot(), followed);
            self.run_tasklets(basic, first);
        }
    }

    /// Units ran that `basic` would have picked.
    #[inline]
    fn count_picks(&self, basic: &mut Basic, slot: &PoolSlot, count: u32) {
        basic.count_strict_picks(count);
        slot.pops.set(slot.pops.get().wrapping_add(count));
        self.units_run.set(self.units_run.get() + u64::from(count));
    }

    /// Runs the tasklets at the head of the first pool, as long as `basic` would pick just them and
    /// there is nothing else to look at: this is the loop of `serve` with all of that left out.
    #[inline(never)]
    fn run_tasklets(&self, basic: &mut Basic, first: &PoolView<'_>) {
        let (slot, max) = (first.slot(), Self::streak_max(basic, first));
        let mut count = 0;
        while count < max
            && !self.shared().has_mail()
            && !self.has_chores.get()
            && !self.is_watched()
            && let Some(ult) = slot.pop_tasklet()
        {
            count += 1;
            self.run_tasklet_unseen(ult, slot);
        }
        self.count_picks(basic, slot, count);
    }

    /// Handles the chores that come up between units: timers, idle waiters, odd slots.
    #[inline(never)]
    fn do_chores(&self) {
        let has_timers = self.timers.borrow().len() > 0;
        if has_timers && let Some(now) = self.clock.tick() {
            self.fire_timers(now);
        }
        if self.idle.is_overdue(self.units_run.get()) {
            self.resume_idle(OTHERS_MAX);
        }
        if self.has_odd_slots.get() && self.is_odd_round() {
            self.run_odd();
        }
        if self.tends_stacks.get() {
            self.tends_stacks.set(self.tend_stacks(Instant::now()));
        }
        let has_odd = self.has_odd_slots.get() || self.tends_stacks.get();
        self.has_chores.set(has_timers || !self.idle.is_empty() || has_odd);
    }

    /// For an xstream that is never idle: the stacks are to be looked at before the next unit, if
    /// any came back since the last look.
    #[cold]
    fn remind_of_stacks(&self) {
        self.remind_at.set(self.units_run.get() + UNITS_PER_REMINDER);
        if self.stacks.is_dirty() {
            self.tends_stacks.set(true);
            self.has_chores.set(true);
        }
    }

    fn is_odd_round(&self) -> bool {
        self.odd_rounds.set(self.odd_rounds.get().wrapping_add(1));
        self.odd_rounds.get().is_multiple_of(ODD_EVERY)
    }

    /// Returns the view of a pool that a scheduler of this xstream gets.
    pub(crate) fn view(&self, pool: &PoolShared) -> PoolView<'_> {
        let is_owner = std::ptr::eq(pool.owner.load(Acquire), self.me()); // pair: POOL-OWNER
        PoolView::new(self.slot_for(pool), self.me(), is_owner)
    }

    /// Runs one unit of each slot that the scheduler does not serve, and wakes stacked schedulers
    /// that have something to do. Returns whether there was anything.
    #[cold]
    fn run_odd(&self) -> bool {
        let mut any = false;
        self.any_slot(|slot| {
            if slot.is_stacked() {
                any |= !slot.is_empty() && slot.wake_sleepers();
            } else if !slot.served.get()
                && let Some(ult) = slot.pop_front()
            {
                any = true;
                self.run(ult);
            }
            false
        });
        any
    }

    /// Returns whether the xstream has been asked to leave, and may: nothing calls it home, and
    /// nothing is on its way here. Closes the inbox.
    fn may_leave(&self) -> bool {
        let shared = self.shared();
        // A request that comes later stays until it is revived or removed.
        if shared.state() != State::Joining
            || shared.has_mail()
            || shared.ults.load(Relaxed) > 0
            || !shared.change_state(State::Joining, State::Leaving)
        {
            return false;
        }
        let leaves = shared.inbox.close();
        if !leaves {
            shared.set_state(State::Joining);
        }
        leaves
    }

    /// Resumes ULTs, and starts units, whose deadline is not after `now`, the earliest first.
    /// Returns whether there was one. If there are very many, the rest waits for the next look, so
    /// that units which are runnable, and idle waiters, get their turns in between.
    pub(crate) fn fire_timers(&self, now: Instant) -> bool {
        for fired in 0..FIRED_MAX {
            let due = self.timers.borrow_mut().fire(now);
            match due {
                None => return fired > 0,
                Some(Due::Ult(ult)) => switch::resume(ult),
                Some(Due::Timed(timed)) => timed.fire(self),
            }
        }
        true
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
        if ult.state.cell.resume() {
            self.on_event(ult, EventKind::Resume);
            self.count_run_at_once(ult);
            self.run(ult);
        }
    }

    /// See [`has_runnable`](crate::has_runnable).
    pub(crate) fn has_runnable(&self) -> bool {
        self.is_runnable() || self.is_timer_due()
    }

    /// See [`has_runnable_beyond`](crate::has_runnable_beyond).
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

    /// See [`has_runnable_behind`](crate::has_runnable_behind).
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
