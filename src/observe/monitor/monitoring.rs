//! The monitors, statistics and records of an instance, and the byte that says which there are.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use ult::PoolRef;

use super::series::Series;
use super::served::{Served, ToTell};
use super::statistics::{Statistics, Store};
use super::user::{InitialMonitors, LifeEvent, Monitor, Monitors};
use crate::observe::clock;
use crate::observe::span::{BulkSpan, OriginSpan, TargetSpan};
use crate::observe::trace::Tracer;
use crate::support::log::Log;

/// A monitor is attached: each call has a span.
pub(super) const ATTACHED: u8 = 1;
/// Calls are counted, and some of them have a span.
pub(super) const COUNTED: u8 = 2;

/// Calls that are part of a trace have a span.
pub(super) const TRACING: u8 = 0x80;

/// The observation of the calls of one instance.
pub(crate) struct Monitoring {
    /// The parts that are on: `ATTACHED`, `COUNTED`, `TRACING`. Zero: nothing.
    mode: AtomicU8,
    pub(super) shared: Arc<SpanShared>,
}

/// The part that spans keep alive.
#[derive(Default)]
pub(super) struct SpanShared {
    pub(super) monitors: Monitors,
    pub(super) to_tell: ToTell,
    pub(super) tracer: OnceLock<Tracer>,
    /// Once statistics have been on.
    pub(super) store: OnceLock<Store>,
    pub(super) series: Series,
    /// Tells its files from those of other instances of the process.
    pub(super) file_number: OnceLock<u32>,
}

impl Monitoring {
    pub(crate) fn new(monitors: InitialMonitors, log: Log) -> Self {
        let shared = SpanShared { monitors: Monitors::new(log), ..SpanShared::default() };
        let own = Self { mode: AtomicU8::new(0), shared: Arc::new(shared) };
        for monitor in monitors.0 {
            own.attach(monitor);
        }
        own
    }

    /// From now on what is part of a trace is recorded; once.
    pub(crate) fn trace_with<E>(
        &self,
        start: impl FnOnce() -> Result<Tracer, E>,
    ) -> Result<&Tracer, E> {
        clock::prepare();
        // First: its thread may stop it as soon as it is there.
        self.mode.fetch_or(TRACING, Ordering::Relaxed);
        let tracer = start()?;
        Ok(self.shared.tracer.get_or_init(|| tracer))
    }

    /// Records nothing that begins from now on: what it is part of is handed on, as by an instance
    /// that never did.
    pub(crate) fn stop_tracing(&self) {
        self.mode.fetch_and(!TRACING, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_tracing(&self) -> bool {
        self.mode() & TRACING != 0
    }

    /// Returns the tracer that records calls which begin now, if any.
    pub(crate) fn recorder(&self) -> Option<&Tracer> {
        if self.is_tracing() { self.tracer() } else { None }
    }

    /// The one that records, or has.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.shared.tracer.get()
    }

    #[inline]
    pub(super) fn mode(&self) -> u8 {
        // A call that begins while this changes may have a span or not.
        self.mode.load(Ordering::Relaxed)
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.mode() & COUNTED != 0
    }

    /// Returns the store in which calls are counted, if they are.
    #[inline]
    pub(super) fn counting(&self, mode: u8) -> Option<&Store> {
        if mode & COUNTED == 0 { None } else { self.shared.store.get() }
    }

    /// Counts calls from now on, or goes on counting, and looks at one in `every`.
    pub(crate) fn count(&self, rows_max: usize, every: u32, progress_every: u32) {
        clock::prepare();
        let store = self.shared.store.get_or_init(|| Store::new(rows_max));
        store.set_every(every, progress_every);
        self.mode.fetch_or(COUNTED, Ordering::Relaxed);
    }

    /// Counts no calls that begin from now on.
    pub(crate) fn stop_counting(&self) {
        self.mode.fetch_and(!COUNTED, Ordering::Relaxed);
    }

    /// Returns the statistics so far.
    pub(crate) fn read(&self, address: String, reset: bool) -> Statistics {
        match self.shared.store.get() {
            Some(store) => store.read(address, reset),
            None => Statistics { address, ..Statistics::default() },
        }
    }

    /// The number.
    pub(crate) fn attach(&self, monitor: Arc<dyn Monitor>) -> u64 {
        clock::prepare();
        self.shared.monitors.add(monitor, || {
            self.mode.fetch_or(ATTACHED, Ordering::Relaxed);
        })
    }

    pub(crate) fn detach(&self, number: u64) {
        self.shared.monitors.remove(number, || {
            self.mode.fetch_and(!ATTACHED, Ordering::Relaxed);
        });
    }

    /// Returns whether a monitor is told what becomes of the instance.
    pub(crate) fn has_monitors(&self) -> bool {
        self.mode() & ATTACHED != 0
    }

    /// Something has become of the instance.
    pub(crate) fn tell(&self, event: &LifeEvent<'_>) {
        if self.has_monitors() {
            self.shared.monitors.each(|monitor| monitor.on_event(event));
        }
    }

    /// Keeps so many entries of each series; the caller takes them ([`sample`](Self::sample)).
    pub(crate) fn keep_series(&self, entries_max: usize) {
        self.shared.series.kept().entries_max = entries_max;
    }

    /// Takes an entry of each series.
    pub(crate) fn sample<'p>(&self, pools: impl Iterator<Item = &'p PoolRef>) {
        self.shared.series.sample(self.shared.store.get(), pools);
    }

    /// Does `change`, which runs no code of users, and tells its outcome. If another thread is
    /// telling an earlier change just now, that one goes on with this one.
    pub(crate) fn of_change<R>(&self, change: impl FnOnce() -> (R, Option<Served>)) -> R {
        let mut state = self.shared.to_tell.state();
        let (result, event) = change();
        state.due.extend(event);
        if state.is_being_told {
            return result;
        }
        while let Some(event) = state.due.pop_front() {
            state.is_being_told = true;
            drop(state);
            // What panics in there is contained.
            self.tell(&event.event());
            state = self.shared.to_tell.state();
        }
        state.is_being_told = false;
        result
    }
}

impl SpanShared {
    pub(super) fn origin_call_ended(&self, row: u32, span: &OriginSpan) {
        if let Some((tracer, trace)) = self.tracer.get().zip(span.trace.as_ref()) {
            tracer.call(span, trace);
        }
        if let Some(store) = self.store.get() {
            store.note_origin(row, span);
        }
        self.monitors.each(|monitor| monitor.on_origin_call(span));
    }

    pub(super) fn target_call_ended(&self, row: u32, span: &TargetSpan) {
        if let Some((tracer, trace)) = self.tracer.get().zip(span.trace.as_ref()) {
            tracer.request(span, trace);
        }
        if let Some(store) = self.store.get() {
            store.note_target(row, span);
        }
        self.monitors.each(|monitor| monitor.on_target_call(span));
    }

    pub(super) fn bulk_ended(&self, row: u32, span: &BulkSpan) {
        if let Some((tracer, trace)) = self.tracer.get().zip(span.trace.as_ref()) {
            tracer.bulk(span, trace);
        }
        if let Some(store) = self.store.get() {
            store.note_bulk(row, span);
        }
        self.monitors.each(|monitor| monitor.on_bulk(span));
    }
}

impl fmt::Debug for Monitoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitoring").field("mode", &self.mode()).finish_non_exhaustive()
    }
}
