//! The records that calls hand to the writer of the file.

use hg::{OnBehalfOf, ProviderId};

use crate::{Addr, Principal};

use super::call_span::{SliceStart, SpanOfTrace, Within};
use super::context::{SpanId, TraceId};

/// One slice, or two, of the file.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) rpc: &'static str,
    /// The provider of calls and requests.
    pub(super) provider: Option<ProviderId>,
    pub(super) peer: Option<Addr>,
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    /// The call whose handling this is, or the handling of a request in which this is a call.
    pub(super) parent: Option<SpanId>,
    pub(super) place: SliceStart,
    /// The handler whose ULT waits for this.
    pub(super) within: Option<Within>,
    /// Ticks of [`Moment`](crate::observe::clock::Moment), like all times here; for the file
    /// nanoseconds, see [`map_times`](Self::map_times).
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) outcome: &'static str,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A call of this instance.
    Call {
        one_way: bool,
        /// The network had taken the request.
        sent: Option<u64>,
        /// The response was here.
        arrived: Option<u64>,
        bytes_out: u64,
        bytes_in: Option<u64>,
    },
    /// A request, from its arrival on.
    Request {
        pool: String,
        caller: Principal,
        on_behalf_of: Option<Box<OnBehalfOf>>,
        /// The handler's ULT began.
        started: Option<u64>,
        /// The handler answered; it may have gone on.
        responded: Option<u64>,
        bytes_in: u64,
        bytes_out: Option<u64>,
    },
    /// A bulk transfer that this instance asked for.
    Bulk { direction: &'static str, bytes: u64 },
}

impl Record {
    /// All but what the span itself says.
    pub(super) fn of(trace: &SpanOfTrace, what: What) -> Self {
        let SpanOfTrace { context, parent, place, within } = *trace;
        Self {
            rpc: "",
            provider: None,
            peer: None,
            trace_id: context.trace_id,
            span_id: context.span_id,
            parent,
            place,
            within,
            begin: 0,
            end: 0,
            outcome: "",
            what,
        }
    }

    pub(super) fn map_times(&mut self, map: impl Fn(u64) -> u64) {
        let apply = |time: &mut u64| *time = map(*time);
        apply(&mut self.begin);
        apply(&mut self.end);
        self.within.iter_mut().for_each(|within| apply(&mut within.begin));
        match &mut self.what {
            What::Call { sent, arrived, .. } => {
                [sent, arrived].into_iter().flatten().for_each(apply);
            }
            What::Request { started, responded, .. } => {
                [started, responded].into_iter().flatten().for_each(apply);
            }
            What::Bulk { .. } => {}
        }
    }
}
