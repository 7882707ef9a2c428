//! The hooks of requests at their target.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use hg::{HgError, ProviderId, RawRequest, ReturnCode, RpcId, margo};
use na::Endpoint;
use ult::{PoolRef, UltLocal};

use super::cell::Cell;
use super::monitoring::{ATTACHED, Monitoring, TRACING};
use super::rows::{About, CountedCall, Key};
use crate::observe::clock::Moment;
use crate::observe::span::{BulkOfRequest, RequestOutcome, TargetSpan};
use crate::observe::trace::{SliceStart, SpanOfTrace, TraceContext, Within};
use crate::{Addr, observe::parent};

/// A request's access to its span and to its row in the statistics, while it is handled.
#[derive(Default)]
pub(crate) struct RequestWatch {
    /// The number of the row; 0: none.
    row: u32,
    span: Option<SpanOfRequest>,
}

/// The span of a request, shared by all that works for it.
#[derive(Clone)]
pub(crate) struct SpanOfRequest(pub(super) Arc<Cell<TargetSpan>>);

impl fmt::Debug for SpanOfRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanOfRequest")
    }
}

impl SpanOfRequest {
    /// The network has taken the response.
    pub(crate) fn sent(&self) {
        self.0.span().sent = Some(Moment::now());
    }
}

/// The span of the request whose handler's ULT the caller is.
static HERE: UltLocal<RefCell<Option<SpanOfRequest>>> = UltLocal::new(|| RefCell::new(None));

/// That, if there is one. Costs a nanosecond where there is none.
pub(super) fn span_here() -> Option<SpanOfRequest> {
    if !ult::integration::is_tasklet_or_has_locals() {
        return None;
    }
    HERE.with_existing(|here| here.borrow().clone()).flatten()
}

/// That request's handler, for operations that its ULT waits for, if it is part of a trace.
pub(super) fn within_here() -> Option<Within> {
    let here = span_here()?;
    let span = here.0.span();
    Some(Within { span_id: span.trace?.context.span_id, begin: span.started?.ticks() })
}

/// The RPC of a request, and where its handlers run.
#[derive(Clone, Copy)]
pub(crate) struct Serving<'a> {
    pub(crate) rpc: &'static str,
    pub(crate) provider: ProviderId,
    pub(crate) pool: &'a PoolRef,
    /// By which it has come.
    pub(crate) endpoint: &'a dyn Endpoint,
}

impl Monitoring {
    /// Returns the trace that a request is part of; if this instance records, the request may begin
    /// one.
    fn trace_of(&self, request: &RawRequest) -> Option<SpanOfTrace> {
        let tracer = self.recorder();
        match request.trace() {
            Some(said) => SpanOfTrace::of_request(said, tracer.is_some()),
            None => tracer?.sample_request().map(SpanOfTrace::root),
        }
    }

    /// The weight of a request that has a span because it is recorded as part of a trace.
    fn recorded(&self, trace: Option<SpanOfTrace>) -> Option<u32> {
        trace.filter(|_| self.is_tracing()).map(|_| 1)
    }

    /// When a request arrived, for those that have to wait.
    #[inline]
    pub(crate) fn arrival(&self) -> Option<Moment> {
        if self.mode() == 0 { None } else { Some(Moment::now()) }
    }

    /// A request was admitted.
    #[inline]
    pub(crate) fn request_starts<'s>(
        &self,
        (origin, request): (&Addr, &RawRequest),
        served: impl Fn() -> Option<Serving<'s>>,
        arrived: Option<Moment>,
    ) -> RequestWatch {
        let mode = self.mode();
        if mode == 0 {
            return RequestWatch::default();
        }
        let begun = match self.counting(mode) {
            Some(store) => {
                let Key { id, parent, peer } = key_of(origin, request);
                store.target.begin_again(id, parent, peer, store.every())
            }
            None => CountedCall::NOT,
        };
        if begun.is_all() && mode & (ATTACHED | TRACING) == 0 {
            return RequestWatch { row: begun.row, span: None };
        }
        self.observe_request((mode, begun), (origin, request), served, arrived)
    }

    /// `begun`: as what it was counted, if it was.
    #[inline(never)]
    fn observe_request<'s>(
        &self,
        (mode, begun): (u8, CountedCall),
        (origin, request): (&Addr, &RawRequest),
        served: impl Fn() -> Option<Serving<'s>>,
        arrived: Option<Moment>,
    ) -> RequestWatch {
        let rpc = || served().map_or("", |served| served.rpc);
        let (row, weight) = self.begin_request(mode, begun, (origin, request), rpc);
        let trace = self.trace_of(request);
        // Statistics do not look at one that is only part of a trace.
        let row_of_span = if weight.is_some() { row } else { 0 };
        let weight = weight.or(self.recorded(trace));
        let span = weight.zip(weight.and_then(|_| served())).map(|(weight, served)| {
            let now = Moment::now();
            let about = (origin, request, served);
            let mut span = new_span(about, arrived.unwrap_or(now), weight, trace);
            span.admitted = Some(now);
            SpanOfRequest(Cell::new(&self.shared, row_of_span, span))
        });
        RequestWatch { row, span }
    }

    /// Counts a request, if it was not: its row, and how many requests it stands for if it has a
    /// span.
    fn begin_request(
        &self,
        mode: u8,
        begun: CountedCall,
        (origin, request): (&Addr, &RawRequest),
        rpc: impl FnOnce() -> &'static str,
    ) -> (u32, Option<u32>) {
        let attached = (mode & ATTACHED != 0).then_some(1);
        let begun = match self.counting(mode) {
            Some(store) if begun == CountedCall::NOT => {
                let about = || row_of(origin, request, rpc());
                store.target.begin(key_of(origin, request), about, store.every())
            }
            _ => begun,
        };
        (begun.row, attached.or(begun.weight()))
    }

    /// A request is refused before it is handled.
    #[inline]
    pub(crate) fn refused(
        &self,
        (origin, request): (&Addr, &RawRequest),
        served: Serving<'_>,
        arrived: Option<Moment>,
        outcome: RequestOutcome,
    ) {
        match self.mode() {
            0 => {}
            mode => self.observe_refusal(mode, (origin, request), served, arrived, outcome),
        }
    }

    #[cold]
    fn observe_refusal(
        &self,
        mode: u8,
        (origin, request): (&Addr, &RawRequest),
        served: Serving<'_>,
        arrived: Option<Moment>,
        outcome: RequestOutcome,
    ) {
        let rpc = || served.rpc;
        let (row, weight) = self.begin_request(mode, CountedCall::NOT, (origin, request), rpc);
        let trace = self.trace_of(request);
        let row_of_span = if weight.is_some() { row } else { 0 };
        self.end_request(row, outcome);
        if let Some(weight) = weight.or(self.recorded(trace)) {
            let now = Moment::now();
            let about = (origin, request, served);
            let mut span = new_span(about, arrived.unwrap_or(now), weight, trace);
            span.outcome = outcome;
            span.respond_start = Some(now);
            drop(Cell::new(&self.shared, row_of_span, span));
        }
    }

    #[inline]
    fn end_request(&self, row: u32, how: RequestOutcome) {
        if row != 0
            && let Some(store) = self.shared.store.get()
        {
            store.target.end(row, how as u8);
        }
    }
}

/// As the request says it.
#[inline]
fn parent_of(request: &RawRequest) -> RpcId {
    margo::split_request(request.payload()).map_or(margo::NO_PARENT, |(parent, _)| parent)
}

#[inline]
fn key_of(origin: &Addr, request: &RawRequest) -> Key {
    Key::new(request.id(), parent_of(request), origin)
}

#[cold]
fn row_of(origin: &Addr, request: &RawRequest, rpc: &str) -> About {
    let (id, parent) = (request.id().0, parent_of(request).0);
    About { rpc: rpc.to_owned(), id, parent, peer: origin.uri().to_owned() }
}

#[inline(never)]
fn new_span(
    (origin, request, served): (&Addr, &RawRequest, Serving<'_>),
    arrived: Moment,
    weight: u32,
    trace: Option<SpanOfTrace>,
) -> TargetSpan {
    let payload = request.payload();
    TargetSpan {
        rpc: served.rpc,
        rpc_id: request.id(),
        provider: served.provider,
        parent: parent::from_wire(parent_of(request).0),
        peer: origin.clone(),
        caller: request.principal(served.endpoint, origin),
        on_behalf_of: request.on_behalf_of().cloned().map(Box::new),
        one_way: request.is_one_way(),
        trace,
        pool: served.pool.clone(),
        outcome: RequestOutcome::Ok,
        bytes_in: payload.len().saturating_sub(size_of::<u64>()) as u64,
        bytes_out: None,
        weight,
        arrived,
        admitted: None,
        started: None,
        decoded: None,
        respond_start: None,
        encode_end: None,
        respond_end: None,
        sent: None,
        ended: None,
        bulk: BulkOfRequest::default(),
    }
}

impl RequestWatch {
    /// To go with the answer.
    #[inline]
    pub(crate) fn span(&self) -> Option<SpanOfRequest> {
        self.span.clone()
    }

    /// Returns the trace that the handler is part of, and its place there.
    #[inline]
    pub(crate) fn trace(&self) -> Option<TraceContext> {
        self.span.as_ref()?.0.span().trace.map(|trace| trace.context)
    }

    fn with(&self, change: impl FnOnce(&mut TargetSpan)) {
        if let Some(cell) = &self.span {
            change(&mut cell.0.span());
        }
    }

    /// The handler's unit has begun.
    #[inline]
    pub(crate) fn started(&self) {
        if let Some(cell) = &self.span {
            let mut span = cell.0.span();
            span.started = Some(Moment::now());
            if let Some(trace) = &mut span.trace {
                trace.place = SliceStart::here();
            }
            drop(span);
            HERE.with(|here| *here.borrow_mut() = Some(cell.clone()));
        }
    }

    /// The arguments were decoded.
    #[inline]
    pub(crate) fn decoded(&self) {
        self.with(|span| span.decoded = Some(Moment::now()));
    }

    /// The request is answered, for the first time.
    #[inline]
    pub(crate) fn responding(&self) {
        self.with(|span| span.respond_start = Some(Moment::now()));
    }

    /// The result was encoded, to so many bytes, what stands before it included.
    #[inline]
    pub(crate) fn encoded(&self, bytes: usize) {
        self.with(|span| {
            span.encode_end = Some(Moment::now());
            span.bytes_out = Some(bytes.saturating_sub(size_of::<i32>()) as u64);
        });
    }

    /// The result was given to the network; `at_once`: which has taken it.
    #[inline]
    pub(crate) fn responded(&self, at_once: bool) {
        self.with(|span| {
            let now = Some(Moment::now());
            span.respond_end = now;
            if at_once {
                span.sent = now;
            }
        });
    }

    /// How it was answered; told once.
    #[inline]
    pub(crate) fn answered(&self, monitoring: &Monitoring, error: Option<&HgError>) {
        match error {
            // As the span says already.
            None | Some(HgError::NoResponse) => {
                monitoring.end_request(self.row, RequestOutcome::Ok);
            }
            Some(HgError::Proc(_) | HgError::Unfetched { .. }) => {
                self.ends(monitoring, RequestOutcome::Failed)
            }
            Some(_) => self.ends(monitoring, RequestOutcome::Network),
        }
    }

    /// It is answered with an error; told once.
    pub(crate) fn fails(&self, monitoring: &Monitoring, code: ReturnCode) {
        self.ends(monitoring, RequestOutcome::of_code(code));
    }

    #[inline(never)]
    fn ends(&self, monitoring: &Monitoring, outcome: RequestOutcome) {
        self.with(|span| {
            span.outcome = outcome;
            if outcome == RequestOutcome::Network {
                span.bytes_out = None;
            }
        });
        monitoring.end_request(self.row, outcome);
    }

    /// The handler's unit is over.
    #[inline]
    pub(crate) fn ended(&self) {
        if let Some(cell) = &self.span {
            cell.0.span().ended = Some(Moment::now());
            // Who shares the ULT's remaining life is not of this request.
            HERE.with_existing(|here| here.borrow_mut().take());
        }
    }
}
