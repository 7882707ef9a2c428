//! The place of a span in its trace, and where it began.

use std::fmt;

use hg::TraceParent;

use super::context::{SpanId, TraceContext, from_wire};

/// The place of a call, of a request, or of a transfer in its trace.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use margo::monitor::{Monitor, TargetSpan};
/// use margo::trace::{self, SpanOfTrace, TraceContext};
///
/// #[derive(Default)]
/// struct Traced(Mutex<Vec<SpanOfTrace>>);
///
/// impl Monitor for Traced {
///     fn on_target_call(&self, span: &TargetSpan) {
///         self.0.lock().unwrap().extend(span.trace);
///     }
/// }
/// # use margo::{Instance, Rpc};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// # let traced = Arc::new(Traced::default());
/// # let instance = Instance::builder("na+sm://").monitor(traced.clone()).start()?;
/// # instance.serve(PING).function(|()| ())?;
/// let context = TraceContext::begin();
/// let target = instance.self_addr().into();
/// trace::within(Some(context), || instance.forward(PING, &target, &()))?;
/// # instance.finalize_and_wait()?;
/// assert_eq!(traced.0.lock().unwrap()[0].context.trace_id, context.trace_id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    pub(crate) place: SliceStart,
    /// The handler whose ULT waits for it.
    pub(crate) within: Option<Within>,
}

impl SpanOfTrace {
    fn new(context: TraceContext, parent: Option<SpanId>) -> Self {
        Self { context, parent, place: SliceStart::default(), within: None }
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

/// Where a slice began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SliceStart {
    /// The xstream's index; `None`: on an OS thread that is none.
    pub(super) xstream: Option<usize>,
    /// The number of the ULT.
    pub(super) ult: Option<u64>,
}

impl SliceStart {
    /// Returns the place of the caller.
    pub(crate) fn here() -> Self {
        match ult::integration::current_ids() {
            Some((ult, xstream)) => Self { xstream: Some(xstream), ult: Some(ult) },
            None => Self::default(),
        }
    }
}

/// A handler, seen from its own ULT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within {
    pub(crate) span_id: SpanId,
    /// When its ULT began.
    pub(crate) begin: u64,
}
