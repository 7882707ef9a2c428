//! Where the core tells what happens, and who listens.
//!
//! The core calls one hook per happening. Each stores what the monitor reads, which is one word
//! per switch, and looks at one flag: whether somebody records or listens. Everything else is out
//! of line.
//!
//! | part | one per | writer | readers |
//! |---|---|---|---|
//! | [`Pulse`] | xstream | the xstream; `on`: whoever changes the plan | any thread |
//! | [`Local`] | xstream | the xstream | the xstream |
//! | [`Shared`] | runtime | any thread | any thread |
//! | [`WaitNote`] | ULT | the ULT | its home xstream |
//!
//! The [`Plan`] says who listens. It is replaced as a whole, under a lock, and numbered; an xstream
//! keeps a copy and looks at the number before it uses it.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use crate::backtrace::{Capture, Requests};
use crate::current;
use crate::descriptor::{Command, UltPtr};
use crate::monitor::MonitorStop;
use crate::shared::RuntimeCore;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
use crate::sync::{Arc, Mutex, lock, relax};
use crate::trace::clock;
use crate::trace::event::{Event, EventKind, EventMask};
use crate::trace::record::{NameCache, Recorder};
use crate::trace::sink::{InSink, Listener};
use crate::wait_kind::WaitKind;
use crate::xstream::Xstream;

/// Who listens.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) sinks: Vec<Arc<Listener>>,
    /// What the sinks want, together.
    pub(crate) mask: EventMask,
}

/// What the parts of a runtime share; in `RuntimeCore`.
#[repr(align(64))]
pub(crate) struct Shared {
    /// Whether somebody listens.
    on: AtomicBool,
    /// Coarse time for [`WaitNote`]: nanoseconds since `epoch`, as of the monitor's last look.
    /// Zero: there is no monitor.
    tick: AtomicU64,
    pub(crate) epoch: Instant,
    number: AtomicU64,
    plan: Mutex<Arc<Plan>>,
    /// Threads that are no xstream and may be in a sink.
    others_in_sink: AtomicUsize,
    pub(crate) requests: Requests,
    pub(crate) monitor: MonitorStop,
}

impl Default for Shared {
    fn default() -> Self {
        let plan = Plan { number: 0, recorder: None, sinks: Vec::new(), mask: EventMask::NONE };
        Self {
            on: AtomicBool::new(false),
            tick: AtomicU64::new(0),
            epoch: Instant::now(),
            number: AtomicU64::new(0),
            plan: Mutex::new(Arc::new(plan)),
            others_in_sink: AtomicUsize::new(0),
            requests: Requests::default(),
            monitor: MonitorStop::default(),
        }
    }
}

impl Shared {
    /// Replaces the plan, unless `change` says `None`.
    pub(crate) fn change(&self, core: &RuntimeCore, change: impl FnOnce(&Plan) -> Option<Plan>) {
        let mut place = lock(&self.plan);
        let Some(mut plan) = change(&place) else { return };
        plan.number = place.number + 1;
        let is_on = plan.recorder.is_some() || !plan.sinks.is_empty();
        let number = plan.number;
        // The last count on a sink may go with it, and its destructor is the user's.
        let old = std::mem::replace(&mut *place, Arc::new(plan));
        // Before `on`: whoever sees that finds the plan (or an even newer one) under the lock.
        self.number.store(number, Release); // pair: PLAN-NUMBER
        self.on.store(is_on, Relaxed);
        for xstream in &core.xstreams {
            xstream.diag.on.store(is_on, Relaxed);
        }
        drop(place);
        drop(old);
        // Lets the xstreams drop their copies of the old plan.
        for xstream in &core.xstreams {
            xstream.signal();
        }
    }

    fn plan(&self) -> Arc<Plan> {
        lock(&self.plan).clone()
    }

    /// Waits until no call of a sink goes on that began before the plan was changed. `false`: the
    /// caller is in a sink itself, and might wait for itself.
    #[must_use]
    pub(crate) fn wait_for_sinks(&self, core: &RuntimeCore) -> bool {
        if InSink::is_inside() || current::xstream().is_some_and(Xstream::is_in_sink) {
            return false;
        }
        fence(SeqCst); // pair: SINK-DEKKER
        let mut round = 0;
        for xstream in &core.xstreams {
            // pair: SINK-QUIET
            while xstream.diag.in_sink.load(Acquire) {
                relax(&mut round);
            }
        }
        // pair: SINK-QUIET
        while self.others_in_sink.load(Acquire) > 0 {
            relax(&mut round);
        }
        true
    }

    /// An event on a thread that is no xstream of this runtime.
    #[cold]
    fn trace_other(&self, kind: EventKind, ult: UltPtr) {
        let ticks = clock::ticks();
        // Ordered by the lock below; see `trace::sink`.
        self.others_in_sink.fetch_add(1, Relaxed);
        let plan = self.plan();
        if let Some(recorder) = &plan.recorder {
            recorder.record_other(ticks, kind, Some(ult));
        }
        if plan.mask.contains(kind)
            && let Some(_inside) = InSink::enter()
        {
            plan.tell(self.epoch, kind, Some(ult), None);
        }
        drop(plan);
        self.others_in_sink.fetch_sub(1, Release); // pair: SINK-QUIET
    }

    /// The coarse time; zero: there is none.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.load(Relaxed)
    }

    /// Sets the coarse time.
    pub(crate) fn set_tick(&self, since_epoch: Duration) {
        let ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        self.tick.store(ns.max(1), Relaxed);
    }
}

impl Plan {
    /// Calls the sinks.
    fn tell(&self, epoch: Instant, kind: EventKind, ult: Option<UltPtr>, xstream: Option<&str>) {
        let ult = ult.as_deref();
        self.call_sinks(&Event {
            at_ns: u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX),
            kind,
            ult: ult.map(|ult| ult.id.get()),
            name: ult.and_then(|ult| ult.name()),
            pool: ult.map(|ult| &*ult.pool().name),
            xstream,
        });
    }
}

/// How an xstream sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rest {
    /// Not at all.
    Awake,
    /// Until a timer is due, a descriptor is ready, or another thread wakes it.
    Waiting,
    /// Until another thread wakes it.
    Forever,
}

/// What an xstream shows of what it does; in `XstreamShared`. On a line of its own, because it is
/// written at every switch and others look at it rarely.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Pulse {
    /// Whether somebody listens.
    on: AtomicBool,
    /// A sink is being called, or is about to be.
    in_sink: AtomicBool,
    /// A [`Rest`].
    rest: AtomicU8,
    /// Switches to a unit.
    runs: AtomicU64,
    /// The unit that runs now, or zero.
    running: AtomicU64,
    /// Pool of the last unit that ran.
    pool: AtomicUsize,
}

/// What [`Pulse::read`] saw; not of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) runs: u64,
    /// Number and pool of the unit that runs.
    pub(crate) running: Option<(u64, usize)>,
    pub(crate) sleeps_forever: bool,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            in_sink: AtomicBool::new(false),
            rest: AtomicU8::new(Rest::Awake as u8),
            runs: AtomicU64::new(0),
            running: AtomicU64::new(0),
            pool: AtomicUsize::new(0),
        }
    }
}

impl Pulse {
    pub(crate) fn read(&self) -> Beat {
        let runs = self.runs.load(Relaxed);
        let id = self.running.load(Relaxed);
        Beat {
            runs,
            running: (id != 0).then(|| (id, self.pool.load(Relaxed))),
            sleeps_forever: self.rest.load(Relaxed) == Rest::Forever as u8,
        }
    }
}

/// What an xstream keeps for diagnostics; in `Xstream`.
#[derive(Default)]
pub(crate) struct Local {
    copy: RefCell<PlanCopy>,
    pub(crate) capture: RefCell<Capture>,
}

#[derive(Default)]
struct PlanCopy {
    plan: Option<Arc<Plan>>,
    names: NameCache,
}

impl PlanCopy {
    /// The plan as of now.
    #[inline]
    fn renew(&mut self, shared: &Shared) {
        let number = shared.number.load(Acquire); // pair: PLAN-NUMBER
        if self.plan.as_ref().is_none_or(|plan| plan.number != number) {
            self.replace(shared);
        }
    }

    #[cold]
    fn replace(&mut self, shared: &Shared) {
        let new = shared.plan();
        let recorder = self.plan.as_ref().and_then(|plan| plan.recorder.as_ref());
        let is_same = match (recorder, &new.recorder) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            _ => false,
        };
        if !is_same {
            self.names = NameCache::default();
        }
        self.plan = Some(new);
    }
}

/// What a ULT says about its wait; in its descriptor.
#[derive(Debug, Default)]
pub(crate) struct WaitNote {
    kind: Cell<WaitKind>,
    since: Cell<u64>,
}

impl WaitNote {
    pub(crate) fn kind(&self) -> WaitKind {
        self.kind.get()
    }

    /// The tick at which the wait began; zero: not known.
    pub(crate) fn since(&self) -> u64 {
        self.since.get()
    }
}

/// Notes that `ult`, which is the caller, is about to wait.
#[inline]
pub(crate) fn announce(ult: UltPtr, kind: WaitKind) {
    ult.wait.kind.set(kind);
    ult.wait.since.set(ult.core.diag.tick());
}

/// An event of a ULT that may happen on any thread. The caller holds a count on the ULT.
#[inline]
pub(crate) fn tell(ult: UltPtr, kind: EventKind) {
    if ult.core.diag.on.load(Relaxed) {
        tell_slowly(ult, kind);
    }
}

#[cold]
fn tell_slowly(ult: UltPtr, kind: EventKind) {
    match current::xstream_in(&ult.core) {
        Some(xstream) => xstream.trace(kind, Some(ult)),
        None => ult.core.diag.trace_other(kind, ult),
    }
}

impl Xstream {
    /// Before the switch to a ULT.
    #[inline]
    pub(crate) fn on_run(&self, ult: UltPtr) {
        let pulse = &self.shared().diag;
        pulse.runs.store(pulse.runs.load(Relaxed) + 1, Relaxed);
        pulse.pool.store(ult.pool().index, Relaxed);
        pulse.running.store(ult.id.get(), Relaxed);
        if pulse.on.load(Relaxed) {
            self.trace(EventKind::Run, Some(ult));
        }
    }

    /// After the switch back, before the command is carried out.
    #[inline]
    pub(crate) fn on_switched(&self, ult: UltPtr, command: Command) {
        let pulse = &self.shared().diag;
        pulse.running.store(0, Relaxed);
        if pulse.on.load(Relaxed) {
            let kind = match command {
                Command::Yield => EventKind::Yield,
                Command::Park => EventKind::Block(ult.wait.kind()),
                Command::Finish => EventKind::Finish,
            };
            self.trace(kind, Some(ult));
        }
    }

    /// An event of a ULT on this xstream.
    #[inline]
    pub(crate) fn on_event(&self, ult: UltPtr, kind: EventKind) {
        if self.shared().diag.on.load(Relaxed) {
            self.trace(kind, Some(ult));
        }
    }

    /// Around a sleep; [`Rest::Awake`] after it.
    pub(crate) fn on_rest(&self, rest: Rest) {
        let pulse = &self.shared().diag;
        pulse.rest.store(rest as u8, Relaxed);
        if pulse.on.load(Relaxed) {
            let is_awake = rest == Rest::Awake;
            self.trace(if is_awake { EventKind::Wake } else { EventKind::Sleep }, None);
        }
    }

    /// The xstream has been signalled.
    pub(crate) fn on_signal(&self) {
        if !self.shared().diag.on.load(Relaxed)
            && let Ok(mut copy) = self.diag.copy.try_borrow_mut()
        {
            *copy = PlanCopy::default();
        }
        self.answer_requests();
    }

    /// Whether this thread is in a sink.
    fn is_in_sink(&self) -> bool {
        self.shared().diag.in_sink.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn trace(&self, kind: EventKind, ult: Option<UltPtr>) {
        let ticks = clock::ticks();
        // Borrowed already: an old plan is being dropped, and a destructor of the user does this.
        let Ok(mut copy) = self.diag.copy.try_borrow_mut() else { return };
        copy.renew(&self.core.diag);
        let PlanCopy { plan: Some(plan), names } = &mut *copy else { return };
        if let Some(recorder) = &plan.recorder {
            recorder.record(self.shared().index, names, ticks, kind, ult);
        }
        let is_wanted = plan.mask.contains(kind);
        drop(copy);
        if is_wanted && !self.is_in_sink() {
            self.call_sinks(kind, ult);
        }
    }

    fn call_sinks(&self, kind: EventKind, ult: Option<UltPtr>) {
        let pulse = &self.shared().diag;
        pulse.in_sink.store(true, Relaxed);
        // Forbids that the plan is looked up before others can see that we are about to use it.
        fence(SeqCst); // pair: SINK-DEKKER
        let plan = self.diag.copy.try_borrow_mut().ok().and_then(|mut copy| {
            copy.renew(&self.core.diag);
            copy.plan.clone()
        });
        if let Some(plan) = plan {
            plan.tell(self.core.diag.epoch, kind, ult, Some(&self.shared().name));
        }
        pulse.in_sink.store(false, Release); // pair: SINK-QUIET
    }
}
