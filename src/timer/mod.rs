//! Timers: a callback after a time, once or at a period.
//!
//! A [`Timer`] is armed, disarmed and armed again as often as one likes, from any thread. While it
//! is armed, a unit of [`ult`] that starts at a given time stands for it. That unit has no stack,
//! and its place is in the timer heap of an execution stream, the one that also ends sleeps and
//! timed waits. There is no queue of timers here, no tick, and nothing that polls a clock. The
//! rules of a single timer are in `timer/state.rs`, those of all timers of an instance in
//! `timer/all.rs`.
//!
//! | call | cost | waits |
//! |---|---|---|
//! | [`Timer::start`], [`restart`](Timer::restart) | a unit is made: O(log n) in the number of deadlines of the execution stream | no |
//! | `restart` to a later time | a lock: the unit there looks again when its time comes | no |
//! | [`Timer::disarm`], drop | O(log n) | no |
//! | [`Timer::cancel`], [`cancel_many`](Timer::cancel_many) | as `disarm` | for a callback that runs |
//!
//! The policy follows Margo's timers, whose list takes O(n) and whose lock is held while callbacks
//! run.

mod all;
mod state;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::fork::Process;
use ult::PoolRef;

pub(crate) use self::all::Timers;
use self::state::{Armed, Arming, Callback, Home, TimerShared};
use crate::TimerError;
use crate::elastic::Elastic;

/// Where and how the callback of a timer runs; see
/// [`Instance::timer_with`](crate::Instance::timer_with).
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use margo::timers::TimerSpec;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let (sender, fired) = mpsc::channel();
/// // The callback only sends, so it needs no ULT of its own.
/// let spec = TimerSpec::new().name("heartbeat").inline();
/// let timer = instance.timer_with(spec, move |_| {
///     let _ = sender.send(());
/// });
/// timer.start(Duration::ZERO)?;
/// fired.recv()?;
/// assert_eq!(timer.name(), "heartbeat");
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a description does nothing by itself"]
pub struct TimerSpec {
    pub(crate) pool: Option<PoolRef>,
    pub(crate) inline: bool,
    pub(crate) name: Option<String>,
}

/// One timer.
///
/// ```
/// use std::time::Duration;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let timer = instance.timer(|_| {});
/// timer.start(Duration::from_secs(3600))?;
/// let dump = instance.monitoring().state_dump();
/// let state = dump.timers.iter().find(|timer| timer.name == "timer").expect("it has that name");
/// assert!(state.due_in_msec.is_some_and(|msec| msec <= 3_600_000));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct TimerState {
    /// The name.
    pub name: String,
    /// Milliseconds until its next run, 0 if that is due; `None`: not armed.
    pub due_in_msec: Option<u64>,
    /// The callback runs.
    pub is_running: bool,
}

impl TimerSpec {
    /// The defaults: a ULT in the pool of the handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The pool in which the callback runs. If its access is `private`, only ULTs of its execution
    /// stream may arm the timer. Default:
    /// [`InstanceLayout::rpc_pool`](crate::groups::InstanceLayout::rpc_pool), or, where that is
    /// private and the timer is armed elsewhere, the first pool of the instance that is not. While
    /// the timer is armed it is one of the pool's users
    /// ([`InstanceLayout::pool_users`](crate::groups::InstanceLayout::pool_users)), and keeps it
    /// from being removed.
    pub fn pool(mut self, pool: &PoolRef) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Runs the callback without a ULT of its own, directly on the execution stream (as a tasklet).
    /// That costs less, and it must not wait: nothing else would run there meanwhile. Operations
    /// that would wait for the network or for a shutdown fail there with an error that says so, or,
    /// where they would have to give back memory that a transfer still has, with such a panic.
    ///
    /// Counterpart: `margo_timer_create_with_pool` without a pool.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// A name for logs and state dumps. Default `timer`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

/// One run of a callback.
///
/// Requests made through it ([`again_after`](Self::again_after), [`stop`](Self::stop)) take effect
/// when the callback has returned, unless the timer was armed or disarmed meanwhile.
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let (sender, done) = mpsc::channel();
/// let mut tries = 0;
/// let timer = instance.timer(move |tick| {
///     tries += 1;
///     if tries < 3 {
///         tick.again_after(Duration::from_millis(tries));
///     } else {
///         let _ = sender.send(tries);
///     }
/// });
/// timer.start(Duration::ZERO)?;
/// assert_eq!(done.recv()?, 3);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tick {
    due: Instant,
    missed: u64,
    wish: Wish,
}

/// The wish of a callback for what happens when it has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    AsArmed,
    Again(Duration),
    Stop,
}

impl Tick {
    /// Returns when this run was due. The time since then is how late it is.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// How many runs of a periodic timer were left out before this one, because the run before took
    /// longer than the period or the execution stream was busy.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Runs the callback once more, so long after the end of this run. A periodic timer becomes one
    /// that runs once. For retries whose distance grows.
    pub fn again_after(&mut self, delay: Duration) {
        self.wish = Wish::Again(delay);
    }

    /// Ends the period: this run is the last one.
    pub fn stop(&mut self) {
        self.wish = Wish::Stop;
    }
}

/// A callback that runs when a time has come. Dropping it disarms it and does not wait; a callback
/// that runs then goes on to its end.
///
/// The callback never runs twice at the same time. A panic in it is caught and logged, and a
/// periodic timer goes on.
///
/// A timer does not keep its instance running. At [`finalize`](crate::Instance::finalize) it works
/// on
/// while the handlers end; then it is disarmed and **does not run**, callbacks that run have the
/// rest of the grace period, and every further [`start`](Self::start) is an error. (C Margo runs
/// the callbacks of all armed timers early, in order to release who sleeps; here a sleep is no
/// timer.)
///
/// Lateness is that of the kernel's timers, some 10 to 60 us, on an execution stream that is idle;
/// a busy one looks at its timers between two units. The execution stream is that of the ULT which
/// armed the timer, or for other threads one that serves the pool.
///
/// ```
/// use std::time::Duration;
/// use margo::Instance;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let instance = Instance::builder("na+sm://").start()?;
/// let (sender, ticks) = std::sync::mpsc::channel();
/// let timer = instance.timer(move |tick| {
///     let _ = sender.send(tick.due());
/// });
/// timer.start_every(Duration::from_millis(1))?;
/// let (first, second) = (ticks.recv()?, ticks.recv()?);
/// assert!(second - first >= Duration::from_millis(1));
/// assert!(timer.cancel()?, "it was armed, and runs no more");
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
///
/// Counterpart: `margo_timer_t`.
pub struct Timer {
    shared: Arc<TimerShared>,
}

impl Timer {
    pub(crate) fn new(
        timers: &Arc<Timers>,
        process: Process,
        elastic: &Arc<Elastic>,
        spec: TimerSpec,
        callback: Callback,
    ) -> Self {
        let home = match spec.pool {
            Some(pool) => Home::Given(pool),
            None => Home::Handlers(elastic.clone()),
        };
        let name = spec.name.unwrap_or_else(|| "timer".to_owned()).into();
        let shared = TimerShared::new(timers, process, home, spec.inline, name, callback);
        // Where the lock may be held for ever nobody needs to know of it.
        if !process.is_other() {
            timers.admit(&shared);
        }
        Self { shared }
    }

    /// Arms the timer: the callback runs once, `delay` from now; at once if that is zero.
    ///
    /// # Errors
    ///
    /// - [`TimerError::Armed`] if it is armed, and stays as it is; see [`restart`](Self::restart).
    /// - [`TimerError::Closing`], [`TimerError::PrivatePool`], [`TimerError::Spawn`].
    ///
    /// Counterpart: `margo_timer_start`.
    pub fn start(&self, delay: Duration) -> Result<(), TimerError> {
        self.shared.arm(Armed::once(after(delay)), Arming::IfFree)
    }

    /// Like [`start`](Self::start), at a point in time.
    ///
    /// # Errors
    ///
    /// As `start`.
    pub fn start_at(&self, due: Instant) -> Result<(), TimerError> {
        self.shared.arm(Armed::once(due), Arming::IfFree)
    }

    /// Arms the timer: the callback runs each `period` from now on, for the first time after one.
    ///
    /// The runs do not drift, however late each of them is. Runs for which there was no time are
    /// left out, see [`Tick::missed`].
    ///
    /// # Errors
    ///
    /// As `start`, and [`TimerError::ZeroPeriod`].
    pub fn start_every(&self, period: Duration) -> Result<(), TimerError> {
        if period.is_zero() {
            return Err(TimerError::ZeroPeriod);
        }
        self.shared.arm(Armed::every(after(period), period), Arming::IfFree)
    }

    /// Arms the timer, armed or not, to run once, `delay` from now. This replaces the time that it
    /// was armed for. Made to be called often, as by a watchdog.
    ///
    /// # Errors
    ///
    /// As `start`, but never [`TimerError::Armed`].
    pub fn restart(&self, delay: Duration) -> Result<(), TimerError> {
        self.shared.arm(Armed::once(after(delay)), Arming::Anyway)
    }

    /// Disarms the timer and does not wait. `true`: it was armed, and that run will not happen.
    /// `false`: it was not armed, or its callback is just running. May be called anywhere.
    pub fn disarm(&self) -> bool {
        self.shared.disarm()
    }

    /// [`disarm`](Self::disarm), then waits for the callback if it runs: afterwards nothing of it
    /// runs until the timer is armed again. A ULT suspends, an OS thread blocks.
    ///
    /// # Errors
    ///
    /// The timer is disarmed, but this did not wait: [`TimerError::OwnCallback`] in the timer's own
    /// callback, which would wait for itself, and [`TimerError::Inline`] in any inline callback.
    ///
    /// Counterpart: `margo_timer_cancel`.
    pub fn cancel(&self) -> Result<bool, TimerError> {
        let was_armed = self.disarm();
        self.shared.wait_for_callback().map(|()| was_armed)
    }

    /// [`cancel`](Self::cancel) for several timers: disarms all of them before it waits for any.
    /// How many were armed.
    ///
    /// # Errors
    ///
    /// As `cancel`. All of them are disarmed, and waited for as far as possible.
    ///
    /// Counterpart: `margo_timer_cancel_many`.
    pub fn cancel_many<'a>(
        timers: impl IntoIterator<Item = &'a Self>,
    ) -> Result<usize, TimerError> {
        let timers: Vec<&Self> = timers.into_iter().collect();
        let armed = timers.iter().filter(|timer| timer.disarm()).count();
        let mut result = Ok(armed);
        for timer in timers {
            if let Err(error) = timer.shared.wait_for_callback() {
                result = Err(error);
            }
        }
        result
    }

    /// Returns whether a run is to come. A snapshot.
    pub fn is_armed(&self) -> bool {
        self.shared.is_armed()
    }

    /// The name for logs.
    pub fn name(&self) -> &str {
        self.shared.name()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("name", &self.name())
            .field("is_armed", &self.is_armed())
            .finish_non_exhaustive()
    }
}

/// That time from now. A time that never comes in practice if it is beyond the clock's range.
fn after(delay: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(delay).or_else(|| now.checked_add(NEVER)).unwrap_or(now)
}
