//! The state by which observers learn of the engine: recorders, sinks and the monitor.
//!
//! | part | one per | writer | readers |
//! |---|---|---|---|
//! | [`Pulse`] | xstream | the xstream; `flags`: whoever changes the plan | any thread |
//! | [`Local`] | xstream | the xstream | the xstream |
//! | [`Shared`] | runtime | any thread | any thread |
//!
//! The [`Plan`] names the recorder and the sinks. It is replaced as a whole, under a lock, and
//! numbered; an xstream keeps a copy and looks at the number before it uses it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::contain::{caught, log};
use crate::engine::listener::Listener;
use crate::engine::monitor_stop::MonitorStop;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use crate::sync::{Arc, Mutex, lock};
use crate::trace::event::{Event, EventMask};
use crate::trace::recorder::{NameCache, Recorder};

/// There is a recording or a sink.
pub(in crate::engine) const TRACE: u8 = 1;

/// There is a monitor.
pub(in crate::engine) const WATCH: u8 = 2;

/// The recorder and the sinks that receive events.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) sinks: Vec<Arc<Listener>>,
    /// The kinds of events that at least one sink wants.
    pub(crate) mask: EventMask,
}

/// Diagnostic state that all parts of a runtime share; in `RuntimeCore`.
#[repr(align(64))]
pub(crate) struct Shared {
    /// `TRACE` and `WATCH`; written under the lock of the plan.
    pub(in crate::engine) flags: AtomicU8,
    /// Coarse time for `Ult::waits_since`: nanoseconds since `epoch`, as of the monitor's last
    /// look. Zero: there is no monitor.
    pub(in crate::engine) tick: AtomicU64,
    pub(crate) epoch: Instant,
    pub(in crate::engine) number: AtomicU64,
    pub(in crate::engine) plan: Mutex<Arc<Plan>>,
    /// Threads that are no xstream and may be in a sink.
    pub(in crate::engine) others_in_sink: AtomicUsize,
    pub(crate) monitor: MonitorStop,
}

impl Default for Shared {
    fn default() -> Self {
        let plan = Plan { number: 0, recorder: None, sinks: Vec::new(), mask: EventMask::NONE };
        Self {
            flags: AtomicU8::new(0),
            tick: AtomicU64::new(0),
            epoch: Instant::now(),
            number: AtomicU64::new(0),
            plan: Mutex::new(Arc::new(plan)),
            others_in_sink: AtomicUsize::new(0),
            monitor: MonitorStop::default(),
        }
    }
}

impl Shared {
    #[inline]
    pub(in crate::engine) fn is_traced(&self) -> bool {
        self.flags.load(Relaxed) & TRACE != 0
    }

    pub(in crate::engine) fn plan(&self) -> Arc<Plan> {
        lock(&self.plan).clone()
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
    /// Calls the sinks that want this event.
    pub(crate) fn call_sinks(&self, event: &Event<'_>) {
        for listener in &self.sinks {
            if listener.mask.contains(event.kind) {
                // SAFETY:
                // - no writer: only the remover writes, after `wait_for_sinks`, which waits for us.
                let Some(sink) = listener.sink.with(|sink| unsafe { &*sink }) else { continue };
                if let Err(message) = caught(|| sink.event(event)) {
                    log!(ERROR, kind = %event.kind, message, "an event sink panicked");
                }
            }
        }
    }
}

/// How an xstream sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rest {
    /// The xstream runs something.
    Awake,
    /// The xstream has nothing to do and looks for something.
    Looking,
    /// The xstream sleeps until a timer is due, a descriptor is ready, or another thread wakes it.
    Waiting,
    /// The xstream sleeps until another thread wakes it.
    Forever,
}

/// The activity of an xstream as other threads see it; in `XstreamShared`. Values that change with
/// every switch are written only while somebody records, listens or watches.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// `TRACE` and `WATCH`.
    pub(in crate::engine) flags: AtomicU8,
    /// A sink is being called, or is about to be.
    pub(in crate::engine) in_sink: AtomicBool,
    /// A [`Rest`].
    pub(in crate::engine) rest: AtomicU8,
    /// Switches to a unit.
    pub(in crate::engine) runs: AtomicU64,
    /// The unit that runs now, or zero.
    pub(in crate::engine) running: AtomicU64,
    /// Pool of the last unit that ran.
    pub(in crate::engine) pool: AtomicUsize,
    /// Name of the last unit that ran, see [`pack`].
    pub(in crate::engine) name: AtomicU64,
    /// Name and pool of the last unit that [`announce`]d itself, whether or not somebody watches.
    pub(in crate::engine) announced: AtomicU64,
    pub(in crate::engine) announced_pool: AtomicUsize,
}

/// Bits of an address in user space, on all machines that this runs on.
const ADDRESS_BITS: u32 = 48;

/// A literal as one word, which can be shared without a lock: address and length. Zero: none, or
/// one that is too long for that.
pub(in crate::engine) fn pack(name: Option<&'static str>) -> u64 {
    let Some(name) = name else { return 0 };
    let (address, len) = (name.as_ptr().expose_provenance() as u64, name.len() as u64);
    let fits = address >> ADDRESS_BITS == 0 && len >> (u64::BITS - ADDRESS_BITS) == 0;
    if fits { address | len << ADDRESS_BITS } else { 0 }
}

fn unpack(word: u64) -> Option<&'static str> {
    let address = usize::try_from(word & ((1 << ADDRESS_BITS) - 1)).ok()?;
    let len = usize::try_from(word >> ADDRESS_BITS).ok()?;
    if address == 0 {
        return None;
    }
    let bytes = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY:
    // - valid: `pack` made the word, whole, of a literal, which lives for ever and never changes;
    //   its provenance was exposed there.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    std::str::from_utf8(bytes).ok()
}

/// A reading of a [`Pulse`], taken field by field and so not at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) runs: u64,
    /// Number and pool of the unit that runs. The number is zero if it began before it was watched.
    pub(crate) running: Option<(u64, usize)>,
    /// The name, if that is a literal.
    pub(crate) name: Option<&'static str>,
    pub(crate) sleeps_forever: bool,
    /// Name and pool of the last unit that announced itself.
    pub(crate) announced: Option<(&'static str, usize)>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            flags: AtomicU8::new(0),
            in_sink: AtomicBool::new(false),
            rest: AtomicU8::new(Rest::Awake as u8),
            runs: AtomicU64::new(0),
            running: AtomicU64::new(0),
            pool: AtomicUsize::new(0),
            name: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            announced_pool: AtomicUsize::new(0),
        }
    }
}

impl Pulse {
    #[inline]
    pub(in crate::engine) fn is_on(&self) -> bool {
        self.flags.load(Relaxed) != 0
    }

    #[inline]
    pub(in crate::engine) fn is_traced(&self) -> bool {
        self.flags.load(Relaxed) & TRACE != 0
    }

    pub(in crate::engine) fn end(&self, outer: u64) {
        self.runs.store(self.runs.load(Relaxed) + 1, Relaxed);
        self.running.store(outer, Relaxed);
    }

    /// Number, pool and name of the unit that runs, if somebody has it told.
    pub(crate) fn known_unit(&self) -> Option<(u64, usize, Option<&'static str>)> {
        let beat = self.read();
        let (id, pool) = beat.running.filter(|_| self.is_on())?;
        Some((id, pool, beat.name))
    }

    /// Forgets the unit that was announced last: no observer asks for it any more, and it will soon
    /// be wrong.
    pub(in crate::engine) fn forget_unit(&self) {
        self.running.store(0, Relaxed);
    }

    pub(crate) fn read(&self) -> Beat {
        let runs = self.runs.load(Relaxed);
        let id = self.running.load(Relaxed);
        Beat {
            runs,
            running: (id != 0).then(|| (id, self.pool.load(Relaxed))),
            name: unpack(self.name.load(Relaxed)).filter(|_| id != 0),
            sleeps_forever: self.rest.load(Relaxed) == Rest::Forever as u8,
            announced: unpack(self.announced.load(Relaxed))
                .map(|name| (name, self.announced_pool.load(Relaxed))),
        }
    }
}

/// Diagnostic state that only the xstream itself uses; in `Xstream`.
#[derive(Default)]
pub(crate) struct Local {
    pub(in crate::engine) copy: RefCell<PlanCopy>,
    pub(crate) capture: RefCell<Capture>,
}

#[derive(Default)]
pub(in crate::engine) struct PlanCopy {
    pub(in crate::engine) plan: Option<Arc<Plan>>,
    pub(in crate::engine) names: NameCache,
}

impl PlanCopy {
    /// The plan as of now.
    #[inline]
    pub(in crate::engine) fn renew(&mut self, shared: &Shared) {
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

/// Memory for one walk up the stack of a ULT.
#[derive(Default)]
pub(crate) struct Capture {
    pub(crate) pointers: Vec<usize>,
    pub(crate) frames_max: usize,
    pub(crate) no_room: Option<usize>,
}
