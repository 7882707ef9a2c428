//! The hooks of calls at their origin.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hg::{HgError, ProviderId, RpcId, margo};

use super::cell::Cell;
use super::monitoring::{ATTACHED, Monitoring};
use super::rows::{About, CountedCall, Key};
use super::target::within_here;
use crate::observe::clock::Moment;
use crate::observe::span::{CallOutcome, OriginSpan};
use crate::observe::trace::{SliceStart, SpanOfTrace};
use crate::support::why_over::WhyOver;
use crate::{Addr, observe::parent};

/// A call's access to its span and to its row in the statistics.
#[derive(Default)]
pub(crate) struct CallWatch {
    is_waited_for: bool,
    /// The number of the row, 0 if there is none; and `HAS_SPAN`. Written before the network can
    /// know of the call.
    row: AtomicU32,
    span: OnceLock<Arc<Cell<OriginSpan>>>,
}

const HAS_SPAN: u32 = 1 << 31;

impl fmt::Debug for CallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallWatch").field("row", &self.row).finish_non_exhaustive()
    }
}

/// The facts of a call that its row and its span begin with.
#[derive(Clone, Copy)]
pub(crate) struct CallAbout<'a> {
    pub(crate) rpc: &'static str,
    pub(crate) id: RpcId,
    pub(crate) provider: ProviderId,
    pub(crate) parent: RpcId,
    pub(crate) peer: &'a Addr,
    pub(crate) one_way: bool,
    pub(crate) trace: Option<&'a SpanOfTrace>,
}

impl CallAbout<'_> {
    /// A name for its row.
    #[cold]
    fn row(&self) -> About {
        let (id, parent) = (self.id.0, self.parent.0);
        About { rpc: self.rpc.to_owned(), id, parent, peer: self.peer.uri().to_owned() }
    }

    /// Makes the span of a call. `watch` tells whether the caller waits, which the trace records.
    #[inline(never)]
    fn span(self, watch: &CallWatch, weight: u32) -> OriginSpan {
        let Self { rpc, id, provider, peer, one_way, trace, .. } = self;
        let trace = trace.map(|trace| {
            let within = if watch.is_waited_for { within_here() } else { None };
            SpanOfTrace { place: SliceStart::here(), within, ..*trace }
        });
        OriginSpan {
            rpc,
            rpc_id: id,
            provider,
            parent: parent::from_wire(self.parent.0),
            peer: peer.clone(),
            one_way,
            trace,
            outcome: CallOutcome::Encode,
            bytes_out: 0,
            bytes_in: None,
            weight,
            created: Moment::now(),
            encode_start: None,
            encode_end: None,
            sent: None,
            arrived: None,
            resumed: None,
            decoded: None,
        }
    }
}

/// A call that begins. One that is dropped without [`end`](Self::end) was not sent, because its
/// arguments panicked.
pub(crate) struct Starting<'a> {
    on: Option<On<'a>>,
}

/// A call that is observed.
struct On<'a> {
    monitoring: &'a Monitoring,
    row: u32,
    span: Option<Arc<Cell<OriginSpan>>>,
}

impl Starting<'_> {
    #[inline]
    fn cell(&self) -> Option<&Cell<OriginSpan>> {
        self.on.as_ref()?.span.as_deref()
    }

    /// The arguments are being encoded.
    #[inline]
    pub(crate) fn encoding(&self) {
        if let Some(cell) = self.cell() {
            cell.span().encode_start = Some(Moment::now());
        }
    }

    /// They have been, to so many bytes, what stands before them included.
    #[inline]
    pub(crate) fn encoded(&self, bytes: usize) {
        if let Some(cell) = self.cell() {
            let mut span = cell.span();
            span.encode_end = Some(Moment::now());
            span.bytes_out = bytes.saturating_sub(size_of::<u64>()) as u64;
        }
    }

    /// The call has begun, or will not.
    #[inline]
    pub(crate) fn end(mut self, error: Option<&HgError>) {
        if let Some(on) = self.on.take()
            && (error.is_some() || on.span.is_some())
        {
            on.end(error);
        }
    }
}

impl Drop for Starting<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(on) = self.on.take() {
            on.not_sent(CallOutcome::Encode);
        }
    }
}

impl On<'_> {
    #[inline(never)]
    fn end(self, error: Option<&HgError>) {
        match (error, self.span.as_deref()) {
            (None, Some(cell)) => cell.span().sent = Some(Moment::now()),
            (None, None) => {}
            (Some(error), _) => self.not_sent(CallOutcome::of_error(error)),
        }
    }

    #[cold]
    fn not_sent(self, outcome: CallOutcome) {
        if let Some(cell) = &self.span {
            cell.span().outcome = outcome;
        }
        self.monitoring.end_call(self.row, outcome);
    }
}

impl Monitoring {
    /// A call begins.
    #[inline]
    pub(crate) fn call_starts<'a>(
        &'a self,
        watch: &CallWatch,
        about: CallAbout<'_>,
    ) -> Starting<'a> {
        let mode = self.mode();
        if mode == 0 {
            return Starting { on: None };
        }
        let begun = match self.counting(mode) {
            Some(store) => {
                let Key { id, parent, peer } = Key::new(about.id, about.parent, about.peer);
                store.origin.begin_again(id, parent, peer, store.every())
            }
            None => CountedCall::NOT,
        };
        if begun.is_all() && mode & ATTACHED == 0 && about.trace.is_none() {
            watch.row.store(begun.row, Ordering::Relaxed);
            return Starting { on: Some(On { monitoring: self, row: begun.row, span: None }) };
        }
        Starting { on: Some(self.observe_call(mode, begun, watch, about)) }
    }

    /// `begun`: as what it was counted, if it was.
    #[inline(never)]
    fn observe_call<'a>(
        &'a self,
        mode: u8,
        begun: CountedCall,
        watch: &CallWatch,
        about: CallAbout<'_>,
    ) -> On<'a> {
        let begun = match self.counting(mode) {
            Some(store) if begun == CountedCall::NOT => {
                let key = Key::new(about.id, about.parent, about.peer);
                store.origin.begin(key, || about.row(), store.every())
            }
            _ => begun,
        };
        let row = begun.row;
        let weight = if mode & ATTACHED == 0 { begun.weight() } else { Some(1) };
        let span = match weight {
            Some(weight) => Some(Cell::new(&self.shared, row, about.span(watch, weight))),
            // Statistics do not look at it.
            None if about.trace.is_some() => Some(Cell::new(&self.shared, 0, about.span(watch, 1))),
            None => None,
        };
        let has_span = if span.is_some() { HAS_SPAN } else { 0 };
        watch.row.store(row | has_span, Ordering::Relaxed);
        if let Some(cell) = &span {
            // Each call begins once.
            let _ = watch.span.set(cell.clone());
        }
        On { monitoring: self, row, span }
    }

    /// The answer to a call is here.
    #[inline]
    pub(crate) fn call_answered(&self, watch: &CallWatch, payload: &[u8]) {
        let row = watch.row.load(Ordering::Relaxed);
        if row & HAS_SPAN != 0 {
            self.note_over(row, watch, outcome_of(payload), Some(payload.len()));
        } else if row != 0 {
            self.end_call(row, outcome_of(payload));
        }
    }

    /// A call has failed.
    pub(crate) fn call_failed(&self, watch: &CallWatch, why: &WhyOver, error: &HgError) {
        let row = watch.row.load(Ordering::Relaxed);
        if row != 0 {
            let how = match error {
                HgError::Canceled if why.timed_out() => CallOutcome::TimedOut,
                error => CallOutcome::of_error(error),
            };
            self.note_over(row, watch, how, None);
        }
    }

    #[inline(never)]
    fn note_over(&self, row: u32, watch: &CallWatch, how: CallOutcome, payload: Option<usize>) {
        if row & HAS_SPAN != 0
            && let Some(cell) = watch.span.get()
        {
            over(&mut cell.span(), how, payload);
        }
        self.end_call(row & !HAS_SPAN, how);
    }

    #[inline]
    fn end_call(&self, row: u32, how: CallOutcome) {
        if let Some(store) = self.shared.store.get() {
            store.origin.end(row, how as u8);
        }
    }

    /// The result of a call was decoded, or cannot be.
    #[inline]
    pub(crate) fn call_decoded(&self, watch: &CallWatch, well: bool) {
        let row = watch.row.load(Ordering::Relaxed);
        if row & HAS_SPAN != 0
            && let Some(cell) = watch.span.get()
        {
            let mut span = cell.span();
            span.decoded = Some(Moment::now());
            if !well {
                span.outcome = CallOutcome::Decode;
            }
        }
        if !well {
            self.count_undecodable(row & !HAS_SPAN);
        }
    }

    #[cold]
    fn count_undecodable(&self, row: u32) {
        let Some(store) = self.shared.store.get() else { return };
        if let Some(row) = store.origin.row(row) {
            row.not_ended(CallOutcome::Ok as u8);
        }
        store.origin.end(row, CallOutcome::Decode as u8);
    }
}

impl CallWatch {
    /// Makes the watch of a call whose caller does nothing else meanwhile.
    #[inline]
    pub(crate) fn waited_for() -> Self {
        Self { is_waited_for: true, ..Self::default() }
    }

    /// The caller looks at the end.
    #[inline]
    pub(crate) fn resumed(&self) {
        if self.row.load(Ordering::Relaxed) & HAS_SPAN != 0
            && let Some(cell) = self.span.get()
        {
            cell.span().resumed = Some(Moment::now());
        }
    }

    /// The caller has looked at the end.
    #[inline]
    pub(crate) fn read(&self) {
        if self.row.load(Ordering::Relaxed) & HAS_SPAN != 0 {
            self.finish();
        }
    }

    #[inline(never)]
    fn finish(&self) {
        if let Some(cell) = self.span.get() {
            cell.finish();
        }
    }
}

/// The outcome as it stands before the result is decoded.
#[inline]
fn outcome_of(payload: &[u8]) -> CallOutcome {
    // Nearly always.
    if payload.starts_with(&[0; 4]) {
        return CallOutcome::Ok;
    }
    match margo::split_response(payload) {
        Ok((code, body)) => margo::read_failure(body)
            .map_or(CallOutcome::Failed, |detail| CallOutcome::of_answer(code, &detail)),
        // One that has no response has no code.
        Err(_) => CallOutcome::Ok,
    }
}

fn over(span: &mut OriginSpan, how: CallOutcome, payload: Option<usize>) {
    span.arrived = Some(Moment::now());
    span.outcome = how;
    if let Some(bytes) = payload.filter(|_| !span.one_way) {
        span.bytes_in = Some(bytes.saturating_sub(size_of::<i32>()) as u64);
    }
}
