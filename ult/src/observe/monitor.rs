//! The monitor: one thread per runtime that looks for stalls and deadlocks.
//!
//! It looks at the pulse of each xstream ([`diag`](crate::engine::xstream::diag)) once per tick,
//! and compares with what it saw before:
//!
//! | found | meaning | reported |
//! |---|---|---|
//! | the same unit, no switch since | a stall | once when it passes the limit, once when it ends |
//! | units wait in a pool, and none of it has run since | starvation ([`starve`](crate::observe::starve)) | once per episode |
//! | all asleep without timer or descriptor, ULTs suspended | perhaps a deadlock | once per episode |
//!
//! A lazy monitor leaves the pulses off, which cost some instructions with each switch, and looks
//! at the counters that there are anyway: ends of runs, and sleeps. They tell that a unit holds its
//! xstream, but not which, beyond a guess: the last unit that announced itself there. At the first
//! stall it turns the pulses on, until there has been none for a while; so the next one has a name.
//!
//! [`Watchdog`] draws the conclusions from the pulses; it reads no clock and no shared state. The
//! thread holds the runtime's shared part and leaves when the xstreams are told to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::base::contain::{caught, contained_alone, log};
use crate::engine::error::StartError;
use crate::engine::model::pool::PoolCounters;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::xstream_shared::XstreamShared;
use crate::engine::pulse::Beat;
use crate::observe::backtrace::{DumpOptions, ask_list};
use crate::observe::report::{Deadlock, Report, Stall, Starvation};
use crate::observe::report_log::ReportLog;
use crate::observe::starve::{PoolBeat, PoolWatch};
use crate::observe::system_call::system_call;
use crate::runtime::builder::{RuntimeBuilder, StartsWith};
use crate::runtime::handle::Runtime;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, lock, thread};

/// The configuration of a runtime's monitor; see [`RuntimeBuilder::monitor`].
///
/// ```
/// use std::time::Duration;
/// use ult::{MonitorSpec, PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .monitor(
///         MonitorSpec::new()
///             .stall_limit(Duration::from_millis(500))
///             // Its ULTs wait for other threads, however long that takes.
///             .deadlock_limit(None)
///             .on_report(|report| eprintln!("{report}")),
///     )
///     .start()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MonitorSpec {
    stall_limit: Duration,
    starve_limit: Option<Duration>,
    deadlock_limit: Option<Duration>,
    tick: Duration,
    is_lazy: bool,
    on_report: Option<Arc<OnReport>>,
    on_tick: Option<Arc<OnTick>>,
}

type OnReport = dyn Fn(&Report) + Send + Sync;
type OnTick = dyn Fn() + Send + Sync;

impl Default for MonitorSpec {
    fn default() -> Self {
        Self {
            stall_limit: Duration::from_millis(100),
            starve_limit: None,
            is_lazy: false,
            deadlock_limit: Some(Duration::from_secs(1)),
            tick: Duration::from_millis(50),
            on_report: None,
            on_tick: None,
        }
    }
}

impl MonitorSpec {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a unit may run without a switch before it is reported. Default 100 ms.
    #[must_use]
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.stall_limit = limit;
        self
    }

    /// How long units may wait in a pool, while none of that pool runs, before that is reported.
    /// `None`: that is not looked at. Default `None`.
    #[must_use]
    pub fn starve_limit(mut self, limit: Option<Duration>) -> Self {
        self.starve_limit = limit;
        self
    }

    /// Costs nothing until there is a stall: the first one is reported without the number and name
    /// of its unit (with that of one which it may be, see
    /// [`announce`](crate::integration::announce)), those in the minute after one with them. There
    /// are no reports of deadlocks, and no times in dumps. Default: off.
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// How long nothing may move, while ULTs are suspended and no xstream waits for a timer or a
    /// descriptor, before that is reported. `None`: never; right for a runtime whose ULTs may wait
    /// long for other threads. Default 1 s.
    #[must_use]
    pub fn deadlock_limit(mut self, limit: Option<Duration>) -> Self {
        self.deadlock_limit = limit;
        self
    }

    /// How often to look; also the precision of all times that the monitor tells. Default 50 ms,
    /// which costs less than 0.1 % of a processor.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Called with each report, on the monitor's thread, after it has been logged with
    /// `tracing::warn!`. Of stalls at one xstream by units of one name, and of starvations of one
    /// pool, the first ten are logged, and then the 16th, the 32nd, and so on, with their number;
    /// this is called with all. A panic in it is caught and logged. It must not hold a
    /// [`Runtime`], which could then not end when its last user drops it.
    #[must_use]
    pub fn on_report(mut self, call: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.on_report = Some(Arc::new(call));
        self
    }

    /// Called after each look, by the monitor's thread; for what is to be noted from time to time.
    /// Default: nothing. As short as a report's callback, and under the same conditions.
    #[must_use]
    pub fn on_tick(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_tick = Some(Arc::new(call));
        self
    }

    fn check(&self) -> Result<(), StartError> {
        let what = if self.tick.is_zero() {
            "tick"
        } else if self.stall_limit.is_zero() {
            "stall_limit"
        } else if self.starve_limit.is_some_and(|limit| limit.is_zero()) {
            "starve_limit"
        } else if self.deadlock_limit.is_some_and(|limit| limit.is_zero()) {
            "deadlock_limit"
        } else {
            return Ok(());
        };
        Err(StartError::MonitorZero { what })
    }
}

impl fmt::Debug for MonitorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MonitorSpec")
            .field("stall_limit", &self.stall_limit)
            .field("starve_limit", &self.starve_limit)
            .field("is_lazy", &self.is_lazy)
            .field("deadlock_limit", &self.deadlock_limit)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// Watches the runtime with a thread of its own. Default: no monitor.
    pub fn monitor(mut self, spec: MonitorSpec) -> Self {
        self.monitor = Some(Box::new(spec));
        self
    }
}

impl StartsWith for MonitorSpec {
    fn start(self: Box<Self>, core: &Arc<RuntimeCore>) -> Result<(), StartError> {
        start(core, *self)
    }
}

impl Runtime {
    /// Watches a runtime that was started without a monitor, as [`RuntimeBuilder::monitor`] does.
    /// ULTs that wait already have no times in dumps. Does nothing in a runtime that has ended.
    ///
    /// # Errors
    ///
    /// [`StartError::Monitored`], and the other errors about monitors.
    pub fn watch(&self, spec: MonitorSpec) -> Result<(), StartError> {
        start(&self.owner.core, spec)
    }
}

/// Starts the thread. It ends with the xstreams. The party that joins it has told it to leave
/// before: the thread is in its place by then, or sees that.
fn start(core: &Arc<RuntimeCore>, spec: MonitorSpec) -> Result<(), StartError> {
    spec.check()?;
    let mut place = lock(&core.diag.monitor.thread);
    if place.is_some() {
        return Err(StartError::Monitored);
    }
    if core.diag.monitor.is_over() {
        return Ok(());
    }
    let thread_core = core.clone();
    if !spec.is_lazy {
        // Before any ULT can wait.
        core.diag.set_tick(core.diag.epoch.elapsed());
        core.diag.watch(core);
    }
    let thread = thread::Builder::new()
        .name("ult-monitor".to_owned())
        .spawn(move || run(&thread_core, &spec))
        .map_err(|source| StartError::Monitor { source })?;
    *place = Some(thread);
    Ok(())
}

/// How long a lazy monitor goes on watching after a stall.
const WATCH_AFTER: Duration = Duration::from_secs(60);

fn run(core: &RuntimeCore, spec: &MonitorSpec) {
    let mut watch = Watchdog::new(spec.stall_limit, spec.deadlock_limit.filter(|_| !spec.is_lazy));
    let mut log = ReportLog::default();
    let mut pools = PoolWatch::new(spec.starve_limit);
    let stop = &core.diag.monitor;
    let mut clock = Clock::new(core.diag.epoch.elapsed(), spec.tick);
    let mut watched_since = None;
    while !stop.is_over() {
        let real_now = core.diag.epoch.elapsed();
        let now = clock.advance(real_now);
        let (xstreams, beats) = if spec.is_lazy {
            lazy_beats(core)
        } else {
            core.diag.set_tick(real_now);
            let xstreams = core.xstreams();
            let beats = xstreams.iter().map(|xstream| (xstream.index, xstream.beat())).collect();
            (xstreams, beats)
        };
        // Threads that run closures go on, and will resume ULTs.
        let are_suspended = || {
            core.helpers.stats().running == 0
                && xstreams.iter().any(|xstream| xstream.ults.load(Relaxed) > 0)
        };
        for finding in watch.look(now, &beats, are_suspended) {
            if spec.is_lazy {
                core.diag.watch(core);
                watched_since = Some(now);
            }
            tell(spec, &mut log, &report(core, &finding));
        }
        if watched_since.is_some_and(|since| now.saturating_sub(since) >= WATCH_AFTER) {
            core.diag.unwatch(core);
            watched_since = None;
        }
        if pools.is_on() {
            look_at_pools(core, spec, &mut log, &mut pools, now);
        }
        if let Some(on_tick) = &spec.on_tick {
            // The panic hook has printed it.
            drop(caught(|| on_tick()));
        }
        stop.parker.park(Some(spec.tick));
    }
}

fn lazy_beats(core: &RuntimeCore) -> (Vec<Arc<XstreamShared>>, Vec<(usize, Beat)>) {
    let runs = |slot: &PoolCounters| {
        slot.finished.load(Relaxed) + slot.yields.load(Relaxed) + slot.parked.load(Relaxed)
    };
    let xstreams = core.xstreams();
    let past = || xstreams.iter().map(|xstream| (xstream.index, runs(&xstream.past))).collect();
    let (pools, mut executed): (_, BTreeMap<usize, u64>) = core.pools_and(past);
    for pool in pools {
        pool.for_each_slot(|slot| {
            if let Some(sum) = executed.get_mut(&slot.xstream) {
                *sum += runs(slot);
            }
        });
    }
    let beat =
        |xstream: &Arc<XstreamShared>| (xstream.index, xstream.lazy_beat(executed[&xstream.index]));
    let beats = xstreams.iter().map(beat).collect();
    (xstreams, beats)
}

fn look_at_pools(
    core: &RuntimeCore,
    spec: &MonitorSpec,
    log: &mut ReportLog,
    watch: &mut PoolWatch,
    now: Duration,
) {
    let pools = core.pools();
    let beats: Vec<_> = pools.iter().map(|pool| (pool.index, PoolBeat::of(pool))).collect();
    for starved in watch.look(now, &beats) {
        let Some(pool) = pools.iter().find(|pool| pool.index == starved.pool) else { continue };
        let report = Report::Starvation(Starvation {
            pool: pool.name.to_string(),
            waiting: starved.waiting,
            xstreams: lock(&pool.servers).iter().map(|x| x.name.to_string()).collect(),
            lasted: starved.lasted,
        });
        tell(spec, log, &report);
    }
}

/// Time in which this process ran: a pause of all of it, by a signal or a debugger, counts as two
/// ticks at most, since the units pause as well.
#[derive(Debug)]
struct Clock {
    counted: Duration,
    looked_at: Duration,
    step_max: Duration,
}

impl Clock {
    fn new(now: Duration, tick: Duration) -> Self {
        Self { counted: Duration::ZERO, looked_at: now, step_max: tick.saturating_mul(2) }
    }

    fn advance(&mut self, now: Duration) -> Duration {
        self.counted += now.saturating_sub(self.looked_at).min(self.step_max);
        self.looked_at = now;
        self.counted
    }
}

fn report(core: &RuntimeCore, finding: &Finding) -> Report {
    let xstream = |index: usize| lock(&core.parts).xstreams[index].clone();
    let stall = |stuck: &Stuck| Stall {
        ult: Some(stuck.ult).filter(|ult| *ult != 0),
        name: stuck.name,
        pool: core.pool_name(stuck.pool).filter(|_| stuck.ult != 0),
        perhaps: (stuck.perhaps.filter(|_| stuck.ult == 0))
            .and_then(|(name, pool)| Some((name, core.pool_name(pool)?))),
        xstream: xstream(stuck.xstream).name.to_string(),
        lasted: stuck.lasted,
        system_call: None,
    };
    match finding {
        Finding::Stall(stuck) => {
            let thread = xstream(stuck.xstream).system_thread.load(Relaxed);
            Report::Stall(Stall { system_call: system_call(thread), ..stall(stuck) })
        }
        Finding::StallEnd(stuck) => Report::StallEnd(stall(stuck)),
        Finding::Deadlock(lasted) => {
            let ults = ask_list(core, &DumpOptions::new().stacks(false));
            Report::Deadlock(Deadlock { lasted: *lasted, ults })
        }
    }
}

fn tell(spec: &MonitorSpec, log: &mut ReportLog, report: &Report) {
    if let Some(text) = log.text(report) {
        log!(WARN, "{text}");
    }
    let Some(call) = &spec.on_report else { return };
    contained_alone("the callback of the monitor", || call(report));
}

/// State that the monitor keeps from look to look. Times count from any fixed moment.
#[derive(Debug)]
struct Watchdog {
    stall_limit: Duration,
    deadlock_limit: Option<Duration>,
    /// By index.
    xstreams: BTreeMap<usize, Seen>,
    still_since: Option<Duration>,
    is_still_reported: bool,
}

/// One xstream, as last seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    beat: Beat,
    since: Duration,
    is_reported: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Stuck {
    xstream: usize,
    /// Zero: unknown.
    ult: u64,
    name: Option<&'static str>,
    pool: usize,
    perhaps: Option<(&'static str, usize)>,
    lasted: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Stall(Stuck),
    StallEnd(Stuck),
    Deadlock(Duration),
}

impl Watchdog {
    fn new(stall_limit: Duration, deadlock_limit: Option<Duration>) -> Self {
        Self {
            stall_limit,
            deadlock_limit,
            xstreams: BTreeMap::new(),
            still_since: None,
            is_still_reported: false,
        }
    }

    /// Compares with the last look. `beats` has the index of each xstream; one that is not there
    /// any more is forgotten. `are_suspended`: whether there are ULTs that have not ended.
    fn look(
        &mut self,
        now: Duration,
        beats: &[(usize, Beat)],
        are_suspended: impl FnOnce() -> bool,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut before = std::mem::take(&mut self.xstreams);
        let mut has_moved = before.len() != beats.len();
        for (xstream, beat) in beats {
            let seen = match before.remove(xstream) {
                None => {
                    has_moved = true;
                    Seen { beat: *beat, since: now, is_reported: false }
                }
                Some(mut seen) => {
                    has_moved |= seen.beat.runs != beat.runs;
                    findings.extend(seen.look(*xstream, now, *beat, self.stall_limit));
                    seen
                }
            };
            self.xstreams.insert(*xstream, seen);
        }
        let is_still = !has_moved && beats.iter().all(|(_, beat)| beat.sleeps_forever);
        findings.extend(self.look_still(now, is_still, are_suspended));
        findings
    }

    fn look_still(
        &mut self,
        now: Duration,
        is_still: bool,
        are_suspended: impl FnOnce() -> bool,
    ) -> Option<Finding> {
        if !is_still {
            self.still_since = None;
            self.is_still_reported = false;
            return None;
        }
        let since = *self.still_since.get_or_insert(now);
        let lasted = now.saturating_sub(since);
        let is_news = !self.is_still_reported && lasted >= self.deadlock_limit?;
        if !is_news || !are_suspended() {
            return None;
        }
        self.is_still_reported = true;
        Some(Finding::Deadlock(lasted))
    }
}

impl Seen {
    fn look(
        &mut self,
        xstream: usize,
        now: Duration,
        beat: Beat,
        limit: Duration,
    ) -> Option<Finding> {
        let lasted = now.saturating_sub(self.since);
        let name = self.beat.name;
        // Whoever runs has announced itself since the last look, or before.
        let perhaps =
            if beat.runs == self.beat.runs { beat.announced } else { self.beat.announced };
        let of = |(ult, pool)| Stuck { xstream, ult, name, pool, perhaps, lasted };
        let stuck = self.beat.running.map(of);
        if beat.runs == self.beat.runs && beat.running == self.beat.running {
            let stuck = stuck.filter(|_| lasted >= limit && !self.is_reported)?;
            self.is_reported = true;
            self.beat.announced = beat.announced;
            return Some(Finding::Stall(stuck));
        }
        let was_reported = std::mem::take(&mut self.is_reported);
        *self = Self { beat, since: now, is_reported: false };
        stuck.filter(|_| was_reported).map(Finding::StallEnd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn running(runs: u64, ult: u64) -> Beat {
        Beat {
            runs,
            running: Some((ult, 3)),
            name: Some("unit"),
            sleeps_forever: false,
            announced: None,
        }
    }

    fn asleep(runs: u64) -> Beat {
        Beat { runs, running: None, name: None, sleeps_forever: true, announced: None }
    }

    fn stuck(xstream: usize, ult: u64, lasted: u64) -> Stuck {
        Stuck { xstream, ult, name: Some("unit"), pool: 3, perhaps: None, lasted: ms(lasted) }
    }

    /// With their indices.
    fn numbered<const N: usize>(beats: [Beat; N]) -> [(usize, Beat); N] {
        let mut index = 0..;
        beats.map(|beat| (index.next().unwrap(), beat))
    }

    #[test]
    fn an_xstream_that_has_been_removed_is_forgotten_and_the_others_are_not() {
        let mut watch = Watchdog::new(LIMIT, None);
        assert_eq!(watch.look(ms(0), &[(0, asleep(0)), (1, running(1, 7))], || true), []);
        assert_eq!(watch.look(ms(60), &[(1, running(1, 7))], || true), []);
        let found = watch.look(ms(100), &[(1, running(1, 7)), (2, running(1, 7))], || true);
        assert_eq!(found, [Finding::Stall(stuck(1, 7, 100))]);
        assert_eq!(watch.xstreams.len(), 2);
    }

    #[test]
    fn stall_is_reported_once_and_its_end_once() {
        let mut watch = Watchdog::new(LIMIT, None);
        let mut look = |at, beat| watch.look(ms(at), &numbered([asleep(0), beat]), || true);
        assert_eq!(look(0, running(1, 7)), []);
        assert_eq!(look(99, running(1, 7)), []);
        assert_eq!(look(110, running(1, 7)), [Finding::Stall(stuck(1, 7, 110))]);
        assert_eq!(look(200, running(1, 7)), []);
        assert_eq!(look(210, running(2, 7)), [Finding::StallEnd(stuck(1, 7, 210))]);
        assert_eq!(look(220, running(3, 8)), []);
        assert_eq!(look(320, running(3, 8)), [Finding::Stall(stuck(1, 8, 100))], "a new episode");
    }

    #[test]
    fn switching_is_no_stall_even_to_the_same_unit() {
        let mut watch = Watchdog::new(LIMIT, None);
        for at in 0..100 {
            assert_eq!(watch.look(ms(at * 90), &numbered([running(at, 7)]), || true), []);
        }
    }

    #[test]
    fn a_pause_of_the_process_is_no_stall() {
        let mut clock = Clock::new(ms(7), ms(10));
        assert_eq!(clock.advance(ms(12)), ms(5));
        assert_eq!(clock.advance(ms(100_000)), ms(25));
        assert_eq!(clock.advance(ms(100_010)), ms(35));
    }

    #[test]
    fn an_idle_xstream_is_no_stall() {
        let mut watch = Watchdog::new(LIMIT, None);
        let spinning =
            Beat { runs: 5, running: None, name: None, sleeps_forever: false, announced: None };
        for at in 0..10 {
            assert_eq!(watch.look(ms(at * 1000), &numbered([spinning, asleep(3)]), || true), []);
        }
    }

    #[test]
    fn deadlock_is_reported_once_per_episode() {
        let mut watch = Watchdog::new(LIMIT, Some(ms(1000)));
        let mut look = |at, beats: [Beat; 2]| watch.look(ms(at), &numbered(beats), || true);
        let still = [asleep(1), asleep(2)];
        assert_eq!(look(0, still), []);
        assert_eq!(look(10, still), []);
        assert_eq!(look(1000, still), []);
        assert_eq!(look(1010, still), [Finding::Deadlock(ms(1000))]);
        assert_eq!(look(5000, still), []);
        assert_eq!(look(5010, [asleep(1), asleep(3)]), [], "something has moved in between");
        assert_eq!(look(6000, [asleep(1), asleep(3)]), []);
        assert_eq!(look(7000, [asleep(1), asleep(3)]), [Finding::Deadlock(ms(1000))]);
    }

    #[test]
    fn waiting_for_a_timer_or_with_nobody_suspended_is_no_deadlock() {
        let mut watch = Watchdog::new(LIMIT, Some(ms(10)));
        let timed =
            Beat { runs: 1, running: None, name: None, sleeps_forever: false, announced: None };
        for at in 0..10 {
            assert_eq!(watch.look(ms(at * 100), &numbered([asleep(1), timed]), || true), []);
        }
        let mut watch = Watchdog::new(LIMIT, Some(ms(10)));
        for at in 0..10 {
            assert_eq!(watch.look(ms(at * 100), &numbered([asleep(1)]), || false), []);
        }
    }
}
