//! The rules of one timer.
//!
//! | field of `ArmedState` | meaning |
//! |---|---|
//! | `armed` | when the callback is to run next; what users see as armed |
//! | `unit` | the unit that stands for it in the timer heap of an execution stream |
//! | `callback` | taken out while it runs, so it cannot run twice; gone for good with the timer |
//! | `runner` | the ULT or tasklet that runs the callback |
//!
//! All are under one lock, which is held for a few instructions, never while user code runs.
//!
//! A unit carries a number. When its time has come it takes the lock and does nothing if another
//! unit has taken its place; so it does not matter whether a cancel of the unit came in time. It
//! looks at `armed` only then, and if that is later, a new unit is made for the rest: a timer that
//! is pushed out again and again keeps its unit. While the callback runs there is no unit; a time
//! that was set meanwhile gets one at the end of the run.
//!
//! A unit whose time has come and that gets no stack is dropped by its execution stream. That run
//! is left out, and a periodic timer gets a unit for the next one ([`Fire`]).

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use na::fork::Process;
use ult::{Eventual, PoolRef, TimerHandle};

use super::TimerState;
use super::{Tick, Timers, Wish, after};
use crate::elastic::{Elastic, may_spawn};
use crate::support::contain::contain;
use crate::support::log::{Log, log};
use crate::{TimerError, observe::trace};

pub(super) type Callback = Box<dyn FnMut(&mut Tick) + Send>;

/// When the callback is to run next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Armed {
    due: Instant,
    period: Option<Duration>,
    /// Runs that were left out since the last one.
    missed: u64,
}

impl Armed {
    pub(super) fn once(due: Instant) -> Self {
        Self { due, period: None, missed: 0 }
    }

    pub(super) fn every(due: Instant, period: Duration) -> Self {
        Self { due, period: Some(period), missed: 0 }
    }

    /// Returns the run that follows this one by itself: the next tick that is not over at `now`.
    fn next(&self, now: Instant) -> Option<Self> {
        let period = self.period?;
        let late = now.saturating_duration_since(self.due).as_nanos();
        let missed = late / period.as_nanos();
        let phase = u64::try_from(late % period.as_nanos()).unwrap_or(u64::MAX);
        let last = now.checked_sub(Duration::from_nanos(phase)).unwrap_or(now);
        let due = if missed == 0 { self.due } else { last };
        let due = due.checked_add(period).unwrap_or_else(|| after(period));
        Some(Self { due, period: self.period, missed: u64::try_from(missed).unwrap_or(u64::MAX) })
    }

    /// Returns the run that follows if this one is left out as well.
    fn without_this(&self, now: Instant) -> Option<Self> {
        let next = self.next(now)?;
        Some(Self { missed: self.missed + 1 + next.missed, ..next })
    }
}

/// The rule for arming a timer that may be armed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arming {
    IfFree,
    Anyway,
}

/// A unit that waits for its time.
struct Unit {
    number: u64,
    due: Instant,
    /// It counts as a unit of this one.
    pool: PoolRef,
    handle: TimerHandle<()>,
}

struct ArmedState {
    armed: Option<Armed>,
    unit: Option<Unit>,
    /// Number of the last unit.
    units: u64,
    /// Changed by each arming and disarming.
    changes: u64,
    callback: Option<Callback>,
    runner: Option<Runner>,
    /// For who waits for the end of the run.
    run_end: Option<Arc<Eventual<()>>>,
    /// The timer is no more, or the instance.
    closed: bool,
}

/// Where the callback runs.
pub(super) enum Home {
    Given(PoolRef),
    /// With the handlers of the instance that has this list, if the thread that arms the timer may
    /// spawn there.
    Handlers(Arc<Elastic>),
}

impl Home {
    fn pool(&self) -> Result<PoolRef, TimerError> {
        let wanted = match self {
            Self::Given(pool) => pool.clone(),
            Self::Handlers(elastic) => elastic.rpc_pool(),
        };
        if may_spawn(&wanted) {
            return Ok(wanted);
        }
        let any = match self {
            Self::Given(_) => None,
            Self::Handlers(elastic) => elastic.pools().into_iter().find(may_spawn),
        };
        any.ok_or_else(|| TimerError::PrivatePool { pool: wanted.name().to_owned() })
    }
}

/// The state that a timer and its unit share.
pub(super) struct TimerShared {
    timers: Weak<Timers>,
    home: Home,
    inline: bool,
    name: Arc<str>,
    process: Process,
    log: Log,
    state: Mutex<ArmedState>,
}

impl TimerShared {
    pub(super) fn new(
        timers: &Arc<Timers>,
        process: Process,
        home: Home,
        inline: bool,
        name: Arc<str>,
        callback: Callback,
    ) -> Arc<Self> {
        let state = ArmedState {
            armed: None,
            unit: None,
            units: 0,
            changes: 0,
            callback: Some(callback),
            runner: None,
            run_end: None,
            closed: false,
        };
        Arc::new(Self {
            timers: Arc::downgrade(timers),
            home,
            inline,
            name,
            process,
            log: timers.log.clone(),
            state: Mutex::new(state),
        })
    }

    /// In a child process the lock may be held for ever.
    fn check_process(&self) -> Result<(), TimerError> {
        if self.process.is_other() { Err(TimerError::Forked) } else { Ok(()) }
    }

    fn state(&self) -> MutexGuard<'_, ArmedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_armed(&self) -> bool {
        !self.process.is_other() && self.state().armed.is_some()
    }

    /// Returns whether a run is to come in that pool.
    pub(super) fn is_armed_in(&self, pool: &PoolRef) -> bool {
        let state = self.state();
        match &state.unit {
            Some(unit) => unit.pool == *pool,
            // The callback runs, and there will be a unit when it has ended.
            None => state.armed.is_some() && matches!(&self.home, Home::Given(own) if own == pool),
        }
    }

    pub(super) fn describe(&self, now: Instant) -> TimerState {
        let state = self.state();
        let left = state.armed.map(|armed| armed.due.saturating_duration_since(now).as_millis());
        TimerState {
            name: self.name.to_string(),
            due_in_msec: left.map(|left| u64::try_from(left).unwrap_or(u64::MAX)),
            is_running: state.runner.is_some(),
        }
    }

    pub(super) fn arm(self: &Arc<Self>, armed: Armed, how: Arming) -> Result<(), TimerError> {
        self.check_process()?;
        let mut state = self.state();
        if state.closed {
            return Err(TimerError::Closing);
        }
        if state.armed.is_some() && how == Arming::IfFree {
            return Err(TimerError::Armed);
        }
        state.changes += 1;
        state.armed = Some(armed);
        let old = self.cover(&mut state)?;
        // Its closure is dropped here, and looks at the state.
        drop(state);
        if let Some(old) = old {
            old.handle.cancel();
        }
        Ok(())
    }

    /// Sees to a unit for the time that was armed, unless the callback runs. Returns the unit that
    /// it replaces, which can only be where a timer was armed anew.
    fn cover(self: &Arc<Self>, state: &mut ArmedState) -> Result<Option<Unit>, TimerError> {
        let Some(armed) = state.armed.filter(|_| state.runner.is_none()) else { return Ok(None) };
        if state.unit.as_ref().is_some_and(|unit| unit.due <= armed.due) {
            return Ok(None);
        }
        let pool = match self.home.pool() {
            Ok(pool) => pool,
            Err(error) => {
                state.armed = None;
                return Err(error);
            }
        };
        state.units += 1;
        let number = state.units;
        let fire = Fire { timer: Some(self.clone()), number };
        let builder = if self.inline { pool.tasklet() } else { pool.ult() };
        let builder = builder.name(self.name.clone());
        MAKES_UNIT.set(true);
        let spawned = builder.spawn_at(armed.due, move || fire.fire());
        MAKES_UNIT.set(false);
        match spawned {
            Ok(handle) => Ok(state.unit.replace(Unit { number, due: armed.due, pool, handle })),
            Err(error) => {
                state.armed = None;
                Err(TimerError::Spawn(error))
            }
        }
    }

    /// As [`cover`](Self::cover), where there is no caller to tell.
    fn cover_or_log(self: &Arc<Self>, state: &mut ArmedState) {
        if let Err(error) = self.cover(state) {
            log!(self.log, ERROR, timer = &*self.name, %error, "a timer was disarmed");
        }
    }

    pub(super) fn disarm(&self) -> bool {
        if self.process.is_other() {
            return false;
        }
        let (was_armed, unit) = {
            let mut state = self.state();
            state.changes += 1;
            (state.armed.take().is_some(), state.unit.take())
        };
        if let Some(unit) = unit {
            unit.handle.cancel();
        }
        was_armed
    }

    /// Disarms for good. The callback's values are dropped here, or at the end of its run.
    pub(super) fn close(&self) {
        let callback = {
            let mut state = self.state();
            state.closed = true;
            state.callback.take()
        };
        self.disarm();
        contain(&self.log, "a destructor of the callback of a timer", || drop(callback));
    }

    /// The user's timer is dropped.
    pub(super) fn abandon(self: &Arc<Self>) {
        if self.process.is_other() {
            return;
        }
        self.close();
        if let Some(timers) = self.timers.upgrade() {
            timers.forget(self);
        }
    }

    /// Waits for the end of the run, if the callback runs.
    pub(super) fn wait_for_callback(&self) -> Result<(), TimerError> {
        match self.run_end()? {
            Some(end) if ult::is_tasklet() => {
                drop(end);
                Err(TimerError::Inline)
            }
            Some(end) => {
                end.wait_ready();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Set when the callback that runs has ended; `None`: none runs.
    pub(super) fn run_end(&self) -> Result<Option<Arc<Eventual<()>>>, TimerError> {
        self.check_process()?;
        let mut state = self.state();
        let Some(runner) = state.runner else { return Ok(None) };
        if runner_here() == Some(runner) {
            return Err(TimerError::OwnCallback);
        }
        Ok(Some(state.run_end.get_or_insert_with(|| Arc::new(Eventual::new())).clone()))
    }

    /// The time of a unit has come.
    fn unit_due(self: &Arc<Self>, number: u64) {
        let Some((armed, callback, changes)) = self.begin_run(number) else { return };
        let mut callback = callback;
        let mut tick = Tick { due: armed.due, missed: armed.missed, wish: Wish::AsArmed };
        let what = format_args!("the callback of timer `{}`", self.name);
        contain(&self.log, what, || callback(&mut tick));
        self.end_run(callback, tick.wish, changes);
    }

    /// A unit was dropped in place of being started, perhaps long after another one stands in its
    /// place.
    #[cold]
    fn unit_lost(self: &Arc<Self>, number: u64) {
        if self.process.is_other() {
            return;
        }
        let mut state = self.state();
        if state.unit.as_ref().is_none_or(|unit| unit.number != number) {
            return;
        }
        state.unit = None;
        let now = Instant::now();
        if let Some(armed) = state.armed.filter(|armed| armed.due <= now) {
            let timer = &*self.name;
            log!(self.log, ERROR, timer, "no stack for the callback of a timer: it does not run");
            state.armed = armed.without_this(now);
        }
        self.cover_or_log(&mut state);
    }

    /// Takes the callback out if it is due.
    fn begin_run(self: &Arc<Self>, number: u64) -> Option<(Armed, Callback, u64)> {
        let mut state = self.state();
        if state.unit.as_ref().is_none_or(|unit| unit.number != number) {
            return None;
        }
        state.unit = None;
        let armed = state.armed?;
        let now = Instant::now();
        if armed.due > now {
            self.cover_or_log(&mut state);
            return None;
        }
        let callback = state.callback.take()?;
        state.armed = armed.next(now);
        state.runner = runner_here();
        Some((armed, callback, state.changes))
    }

    fn end_run(self: &Arc<Self>, callback: Callback, wish: Wish, changes: u64) {
        let mut callback = Some(callback);
        let end = {
            let mut state = self.state();
            if !state.closed {
                state.callback = callback.take();
                if state.changes == changes {
                    match wish {
                        Wish::AsArmed => catch_up(&mut state.armed),
                        Wish::Stop => state.armed = None,
                        Wish::Again(delay) => state.armed = Some(Armed::once(after(delay))),
                    }
                }
            }
            state.runner = None;
            self.cover_or_log(&mut state);
            state.run_end.take()
        };
        // Before the end is told: whoever waited for it may rely on the values being gone.
        contain(&self.log, "a destructor of the callback of a timer", || drop(callback));
        if let Some(end) = end {
            let _ = end.set(());
        }
    }
}

/// Leaves out the ticks that passed during a run.
fn catch_up(armed: &mut Option<Armed>) {
    let now = Instant::now();
    if let Some(late) = armed.filter(|armed| armed.due <= now) {
        *armed = late.without_this(now);
    }
}

/// The duty of a unit when its time has come, started or not.
struct Fire {
    /// Until it starts.
    timer: Option<Arc<TimerShared>>,
    number: u64,
}

thread_local! {
    /// Under the lock of a timer, this thread makes a unit for it. One that is dropped meanwhile is
    /// that one, which was refused.
    static MAKES_UNIT: Cell<bool> = const { Cell::new(false) };
}

impl Fire {
    fn fire(mut self) {
        // Not of whoever has armed it last, which may have been a handler long ago.
        trace::begin_unit(0, None);
        if let Some(timer) = self.timer.take() {
            timer.unit_due(self.number);
        }
    }
}

impl Drop for Fire {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take()
            && !MAKES_UNIT.get()
        {
            timer.unit_lost(self.number);
        }
    }
}

/// A ULT or tasklet. Its number is unique in its runtime, and a thread belongs to one runtime; a
/// ULT stays on its thread.
type Runner = (ThreadId, u64);

/// The calling ULT or tasklet.
fn runner_here() -> Option<Runner> {
    ult::current().map(|unit| (std::thread::current().id(), unit.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_timer_that_runs_once_has_no_next_run() {
        let now = Instant::now();
        assert!(Armed::once(now).next(now + MS).is_none());
    }

    #[test]
    fn runs_for_which_there_was_no_time_are_left_out() {
        let start = Instant::now();
        let armed = Armed::every(start, 10 * MS);
        let next = |at: u32| {
            let next = armed.next(start + at * MS).unwrap();
            (next.due.duration_since(start).as_millis(), next.missed)
        };
        assert_eq!(next(0), (10, 0));
        assert_eq!(next(9), (10, 0));
        assert_eq!(next(10), (20, 1));
        assert_eq!(next(35), (40, 3));
    }

    proptest! {
        /// However late the runs are, ticks keep their phase and none is counted twice.
        #[test]
        fn ticks_keep_their_phase(delays in prop::collection::vec(0u32..50, 1..40)) {
            let start = Instant::now();
            let mut armed = Armed::every(start, 10 * MS);
            let mut seen = 0;
            for delay in delays {
                let now = armed.due + delay * MS;
                seen += 1 + armed.missed;
                armed = armed.next(now).unwrap();
                prop_assert!(armed.due > now);
                let due = armed.due.duration_since(start).as_millis() as u64;
                prop_assert_eq!(due, 10 * (seen + armed.missed));
            }
        }
    }
}
