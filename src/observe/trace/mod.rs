//! Traces: calls that belong together, across processes, and files that show them.
//!
//! A call that is made outside of any handler begins a *trace*, if it is sampled. Everything that
//! its handler does, in whatever process, is part of the trace, and so is the work of handlers that
//! it calls, and so on. [`current`] names the trace that the caller is part of, for logs. Instances
//! whose configuration says so (`margo.trace`, or the environment variable `MARGO_ENABLE_TRACE`)
//! record their part of a trace in a file; `margo trace join` makes one of several, for
//! `ui.perfetto.dev`. See `docs/tracing.md`.
//!
//! | | file |
//! |---|---|
//! | ids; how they go from unit to unit | `context.rs` |
//! | who is sampled; from spans to records | `tracer.rs` |
//! | the queue, and the thread behind it; who wakes it | `queue.rs`, `record.rs`, `wake.rs` |
//! | the file: events, on which track, at what time | `file.rs`, `lanes.rs`, `clock.rs` |
//!
//! A call that is not traced pays for one look: whether the caller has inherited something, or its
//! instance records. A request that is part of a trace says so beside its header
//! (`hg/src/wire/extension.rs`). An instance that does not record passes on what it got.

mod clock;
mod context;
mod file;
mod lanes;
mod queue;
mod record;
mod tracer;
mod wake;

use std::fmt;

use hg::TraceParent;

pub use self::context::{SpanId, TraceContext, TraceId, current, within};
pub(crate) use self::context::{begin_unit, from_wire, to_wire};
pub(crate) use self::record::{Place, Within};
pub(crate) use self::tracer::Tracer;

/// The place of a call, of a request, or of a transfer in its trace.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SpanOfTrace {
    /// The trace, and this place in it. At an instance that does not record, the place is that of
    /// the caller.
    pub context: TraceContext,
    /// The span that this one is part of: of a call, the request in whose handler it was made; of a
    /// request, the call. `None`: there is none, or it is not known.
    pub parent: Option<SpanId>,
    /// Where it began; of a request, where its handler did.
    pub(crate) place: Place,
    /// The handler whose ULT waits for it.
    pub(crate) within: Option<Within>,
}

impl SpanOfTrace {
    fn new(context: TraceContext, parent: Option<SpanId>) -> Self {
        Self { context, parent, place: Place::default(), within: None }
    }

    /// The first of its trace.
    pub(crate) fn root(context: TraceContext) -> Self {
        Self::new(context, None)
    }

    /// A part of the trace that `context` names.
    pub(crate) fn part_of(context: TraceContext) -> Self {
        Self::new(context.at(SpanId::random()), Some(context.span_id))
    }

    /// A request that says this; `recorded`: here.
    pub(crate) fn of_request(said: TraceParent, recorded: bool) -> Option<Self> {
        let (trace_id, call) = from_wire(said)?;
        let span_id = call.filter(|_| !recorded).unwrap_or_else(SpanId::random);
        Some(Self::new(TraceContext { trace_id, span_id }, call))
    }
}

/// The instance, as the thread that writes its trace sees it. It may be gone.
pub(crate) trait Recorded: fmt::Debug + Send + Sync {
    /// The name of an execution stream.
    fn xstream_name(&self, index: usize) -> Option<String>;

    /// Records nothing that begins from now on.
    fn stop_recording(&self);
}
