//! Hooks by which the core reports events to recorders, sinks and the monitor.
//!
//! The core calls one hook per event. Each hook looks at one byte of the xstream: whether somebody
//! records, listens or watches. Everything else, the pulse for the monitor included, is out of
//! line. The state behind the hooks is in [`pulse`](crate::engine::pulse).

use std::time::Instant;

use crate::base::payload::Stage;
use crate::base::unwind::Why;
use crate::engine::listener::InSink;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::unit::{Ult, UltPtr};
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::pulse::{Beat, Plan, PlanCopy, Pulse, Rest, Shared, TRACE, WATCH, pack};
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::stack::block::BlockPtr;
use crate::stack::context::{Answer, Command, Wakeup};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock, relax};
use crate::trace::clock;
use crate::trace::event::{Event, EventKind};
use crate::trace::recorder::Subject;

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
        let watch = self.flags.load(Relaxed) & WATCH;
        self.set_flags(core, if is_on { watch | TRACE } else { watch });
        drop(place);
        drop(old);
        // Lets the xstreams drop their copies of the old plan.
        for xstream in core.xstreams() {
            xstream.signal();
        }
    }

    /// Has the xstreams tell what they run, from the next unit on. For the monitor.
    pub(crate) fn watch(&self, core: &RuntimeCore) {
        let _place = lock(&self.plan);
        self.set_flags(core, self.flags.load(Relaxed) | WATCH);
    }

    /// Ends [`watch`](Self::watch).
    pub(crate) fn unwatch(&self, core: &RuntimeCore) {
        let _place = lock(&self.plan);
        self.set_flags(core, self.flags.load(Relaxed) & !WATCH);
    }

    /// The caller holds the lock of the plan.
    fn set_flags(&self, core: &RuntimeCore, flags: u8) {
        self.flags.store(flags, Relaxed);
        for xstream in core.xstreams() {
            if !xstream.diag.is_on() {
                xstream.diag.forget_unit();
            }
            xstream.diag.flags.store(flags, Relaxed);
        }
    }

    /// Takes in an xstream that has just been added.
    pub(crate) fn admit(&self, xstream: &XstreamShared) {
        let _place = lock(&self.plan);
        xstream.diag.flags.store(self.flags.load(Relaxed), Relaxed);
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
        for xstream in core.xstreams() {
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
            recorder.record_other(ticks, kind, Some(subject(&ult)), None);
        }
        if plan.mask.contains(kind)
            && let Some(_inside) = InSink::enter()
        {
            plan.tell(self.epoch, kind, Some(ult), None);
        }
        drop(plan);
        self.others_in_sink.fetch_sub(1, Release); // pair: SINK-QUIET
    }
}

/// A unit as a recording notes it.
fn subject(ult: &Ult) -> Subject<'_> {
    Subject { id: ult.id.get(), pool: ult.pool().index, name: ult.name() }
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

/// Leaves the name and pool of the calling unit where a [lazy](crate::MonitorSpec::lazy) monitor
/// finds them, until the next one of its xstream does the same: if the xstream is held by a unit
/// that began before the monitor watched, its report says that it is perhaps this one. For units
/// that run code of others, when they begin. Costs two stores; nothing happens on other threads.
pub fn announce() {
    let Some(xstream) = current::xstream() else { return };
    let Some(ult) = xstream.current.get() else { return };
    let pulse = &xstream.shared().diag;
    // A look between the two sees a pool of another unit, in a report that says "perhaps".
    pulse.announced_pool.store(ult.pool().index, Relaxed);
    pulse.announced.store(pack(ult.literal_name()), Relaxed);
}

impl XstreamShared {
    /// Returns whether it has nothing to do: it sleeps, or looks for something.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_asleep() || self.diag.rest.load(Relaxed) == Rest::Looking as u8
    }

    /// Returns the reading that the monitor judges this xstream by. An xstream that has left counts
    /// as at rest.
    pub(crate) fn beat(&self) -> Beat {
        let beat = self.diag.read();
        match self.state() {
            State::Terminated | State::Removed => {
                Beat { running: None, name: None, sleeps_forever: true, ..beat }
            }
            _ => beat,
        }
    }

    /// A [`beat`](Self::beat) from counters that exist whether or not a monitor watches. `executed`
    /// is the number of runs that have ended here.
    pub(crate) fn lazy_beat(&self, executed: u64) -> Beat {
        let has_left = matches!(self.state(), State::Terminated | State::Removed);
        let is_at_rest = self.is_idle() || has_left;
        let seen = self.diag.read();
        Beat {
            // One that sleeps and wakes between two looks has not been held, either.
            runs: executed.wrapping_add(self.sleeps.load(Relaxed)),
            running: if is_at_rest { None } else { Some(seen.running.unwrap_or_default()) },
            name: seen.name.filter(|_| !is_at_rest),
            sleeps_forever: false,
            announced: seen.announced,
        }
    }
}

/// An event of a unit that may happen on any thread. The caller holds the unit, or a count on it.
#[inline]
pub(crate) fn tell(ult: UltPtr, kind: EventKind) {
    if is_traced(ult) {
        tell_slowly(ult, kind);
    }
}

/// A unit has been made, and not yet been queued.
#[inline]
pub(crate) fn created(ult: UltPtr, core: &RuntimeCore, here: Option<&Xstream>) {
    match here {
        Some(xstream) => xstream.on_event(ult, EventKind::Create),
        None if core.diag.is_traced() => core.diag.trace_other(EventKind::Create, ult),
        None => {}
    }
}

/// A ULT, the caller, has ended, and is about to say so.
#[inline]
pub(crate) fn finishing(ult: UltPtr) {
    if is_traced(ult) {
        let is_cancelled = matches!(ult.payload.stage(), Stage::Gone(Why::Cancelled));
        tell_slowly(ult, if is_cancelled { EventKind::Cancel } else { EventKind::Finish });
    }
}

#[inline]
fn is_traced(ult: UltPtr) -> bool {
    let home = ult.home.load(Relaxed);
    // The shared part is further away than the home, which the caller needs anyway.
    if home.addr() <= XstreamShared::nowhere().addr() {
        return ult.core.diag.is_traced();
    }
    // SAFETY:
    // - valid: set when the ULT settled there, and xstreams live as long as the runtime's shared
    //   part, which the descriptor keeps alive.
    unsafe { &*home }.diag.is_traced()
}

#[cold]
#[inline(never)]
fn tell_slowly(ult: UltPtr, kind: EventKind) {
    match current::xstream_in(&ult.core) {
        Some(xstream) => xstream.trace(kind, Some(ult)),
        None => ult.core.diag.trace_other(kind, ult),
    }
}

impl Xstream {
    /// Switches to `ult`, until it switches back.
    ///
    /// # Safety
    ///
    /// As for [`Context::resume`](crate::stack::context::Context::resume), with the context
    /// of `block`, which is the stack of `ult`.
    #[inline(always)]
    pub(crate) unsafe fn resume(&self, ult: UltPtr, block: BlockPtr) -> Answer {
        if self.shared().diag.is_on() {
            // SAFETY: duty of the caller.
            return unsafe { self.resume_seen(ult, block) };
        }
        // SAFETY: duty of the caller.
        unsafe { block.context.resume(Wakeup::Run) }
    }

    /// # Safety
    ///
    /// As for [`resume`](Self::resume).
    #[cold]
    #[inline(never)]
    unsafe fn resume_seen(&self, ult: UltPtr, block: BlockPtr) -> Answer {
        let outer = self.shared().diag.begin(ult);
        self.on_event(ult, EventKind::Run);
        // SAFETY: duty of the caller.
        let answer = unsafe { block.context.resume(Wakeup::Run) };
        self.shared().diag.end(outer);
        match answer.command() {
            Command::Yield => self.on_event(ult, EventKind::Yield),
            Command::Park => {
                ult.waits_since.set(self.core.diag.tick());
                self.on_event(ult, EventKind::Block(ult.state.waits.get()));
            }
            // It has told so itself, and may be gone.
            Command::Finish => {}
        }
        answer
    }

    /// Returns whether somebody wants to know about every switch.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.shared().diag.is_on()
    }

    /// An event of a unit on this xstream.
    #[inline]
    pub(crate) fn on_event(&self, ult: UltPtr, kind: EventKind) {
        if self.shared().diag.is_traced() {
            self.trace(kind, Some(ult));
        }
    }

    /// Called around a spin.
    #[inline]
    pub(crate) fn looks(&self, looks: bool) {
        let rest = if looks { Rest::Looking } else { Rest::Awake };
        self.shared().diag.rest.store(rest as u8, Relaxed);
    }

    /// Called before a sleep, and with [`Rest::Awake`] after it.
    pub(crate) fn on_rest(&self, rest: Rest) {
        let pulse = &self.shared().diag;
        pulse.rest.store(rest as u8, Relaxed);
        if pulse.is_traced() {
            let is_awake = rest == Rest::Awake;
            self.trace(if is_awake { EventKind::Wake } else { EventKind::Sleep }, None);
        }
    }

    /// The xstream has been signalled.
    pub(crate) fn on_signal(&self) {
        if !self.shared().diag.is_traced()
            && let Ok(mut copy) = self.diag.copy.try_borrow_mut()
        {
            *copy = PlanCopy::default();
        }
    }

    /// Returns whether this thread is in a sink.
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
            let ult = ult.as_deref().map(subject);
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
        // A sink that waits in spite of its contract shall block the thread: the stack may be the
        // xstream's, or that of a ULT in the middle of something.
        let caller = self.current.take();
        let outer_caller = self.caller.replace(caller);
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
        self.caller.set(outer_caller);
        self.current.set(caller);
    }
}

impl Pulse {
    /// A unit starts to run. Returns the unit inside which it does.
    pub(in crate::engine) fn begin(&self, ult: UltPtr) -> u64 {
        self.runs.store(self.runs.load(Relaxed) + 1, Relaxed);
        self.pool.store(ult.pool().index, Relaxed);
        self.name.store(pack(ult.literal_name()), Relaxed);
        let outer = self.running.load(Relaxed);
        self.running.store(ult.id.get(), Relaxed);
        outer
    }
}
