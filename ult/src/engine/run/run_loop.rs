//! The loop of an xstream: mail, timers, idle waiters, then what the scheduler picks.
//!
//! Each round looks at the inbox (two loads), at the clock only every few rounds and only if
//! there are timers, and at idle waiters only if there are some. When the scheduler has nothing,
//! [`sleep`](mod@crate::engine::run::sleep) takes over until something is runnable.

use std::time::Instant;

use crate::base::contain::{caught, log, no_unwind};
use crate::engine::model::interfaces::{Basic, OwnScheduler, PoolView, Scheduler, Step, own};
use crate::engine::model::pool::{PoolShared, PoolSlot};
use crate::engine::model::xstream_shared::State;
use crate::engine::run::sched::STRICT_PICKS;
use crate::engine::xstream::idle_set::OTHERS_MAX;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// The reason why the loop ended.
enum Leave {
    /// The scheduler or the pools have changed.
    Reconfigure,
    Exit,
}

/// After so many units an xstream that may never be idle looks at its idle stacks.
const UNITS_PER_REMINDER: u64 = 1024;

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
        self.may_pass_by.set(scheduler.strict_picks().is_some());
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
                        self.remind_of_others(scheduler);
                    }
                }
                Step::Idle => {
                    if self.exiting.get() || self.may_leave() {
                        return Leave::Exit;
                    }
                    no_unwind(|| {
                        let has_run = self.has_odd_slots.get() && self.run_odd() || self.run_job();
                        if !has_run {
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

    /// Joiners may have passed the scheduler by for a long time: its next pick begins elsewhere
    /// than at its first pool.
    #[cold]
    fn remind_of_others<S: Scheduler + ?Sized>(&self, scheduler: &mut S) {
        if let Some(picks) = scheduler.strict_picks() {
            *picks = STRICT_PICKS;
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
}
