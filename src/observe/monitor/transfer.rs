//! The hooks of bulk transfers.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hg::{BulkOp, HgError, RpcId};

use super::cell::Cell;
use super::current_rpc_id;
use super::monitoring::{ATTACHED, Monitoring};
use super::rows::{About, Key};
use super::target::{SpanOfRequest, span_here, within_here};
use crate::Addr;
use crate::observe::clock::Moment;
use crate::observe::span::{BulkDirection, BulkOutcome, BulkSpan, RequestOfBulk};
use crate::observe::trace::{self, SliceStart, SpanOfTrace};
use crate::support::why_over::WhyOver;

/// A transfer's access to its span and to its row in the statistics.
#[derive(Default)]
pub(crate) struct BulkWatch {
    is_waited_for: bool,
    /// The number of the row; 0: none. Taken out by the end.
    row: AtomicU32,
    span: OnceLock<Seen>,
}

struct Seen {
    cell: Arc<Cell<BulkSpan>>,
    /// The request to which the transfer belongs.
    request: Option<SpanOfRequest>,
}

impl fmt::Debug for BulkWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkWatch").field("is_on", &self.span.get().is_some()).finish()
    }
}

impl Monitoring {
    /// A transfer begins.
    #[inline]
    pub(crate) fn transfer_starts(&self, watch: &BulkWatch, op: BulkOp, peer: &Addr, bytes: u64) {
        match self.mode() {
            0 => {}
            mode => self.observe_transfer(mode, watch, op, peer, bytes),
        }
    }

    /// Counts a transfer; how many transfers it stands for if it has a span.
    fn begin_transfer(
        &self,
        mode: u8,
        watch: &BulkWatch,
        direction: BulkDirection,
        peer: &Addr,
        bytes: u64,
    ) -> Option<u32> {
        let attached = (mode & ATTACHED != 0).then_some(1);
        let Some(store) = self.counting(mode) else { return attached };
        let rpc = current_rpc_id().unwrap_or(RpcId(0));
        let key = Key::new(rpc, RpcId(direction as u64), peer);
        let about = || {
            let (id, parent) = (key.id, key.parent);
            About { rpc: String::new(), id, parent, peer: peer.uri().to_owned() }
        };
        let begun = store.bulk.begin(key, about, store.every());
        if let Some(row) = store.bulk.row(begun.row) {
            row.bytes(bytes);
        }
        watch.row.store(begun.row, Ordering::Relaxed);
        attached.or(begun.weight())
    }

    #[inline(never)]
    fn observe_transfer(&self, mode: u8, watch: &BulkWatch, op: BulkOp, peer: &Addr, bytes: u64) {
        let direction = match op {
            BulkOp::Pull => BulkDirection::Pull,
            BulkOp::Push => BulkDirection::Push,
        };
        let weight = self.begin_transfer(mode, watch, direction, peer, bytes);
        let trace = trace::current().filter(|_| self.is_tracing()).map(|context| {
            let within = if watch.is_waited_for { within_here() } else { None };
            SpanOfTrace { place: SliceStart::here(), within, ..SpanOfTrace::part_of(context) }
        });
        let request = span_here();
        // Requests that have a span know all of their transfers.
        if weight.is_none() && request.is_none() && trace.is_none() {
            return;
        }
        let row = if weight.is_some() { watch.row.load(Ordering::Relaxed) } else { 0 };
        let about = |span: &SpanOfRequest| {
            let span = span.0.span();
            let (parent, peer, trace) = (span.parent, span.peer.clone(), span.trace);
            RequestOfBulk { parent, peer, arrived: span.arrived, started: span.started, trace }
        };
        let span = BulkSpan {
            direction,
            peer: peer.clone(),
            bytes,
            rpc_id: current_rpc_id(),
            trace,
            request: request.as_ref().map(about),
            outcome: BulkOutcome::Failed,
            weight: weight.unwrap_or(1),
            created: Moment::now(),
            started: None,
            ended: None,
            resumed: None,
        };
        let cell = Cell::new(&self.shared, row, span);
        // Each transfer begins once.
        let _ = watch.span.set(Seen { cell, request });
    }
}

impl BulkWatch {
    /// Makes the watch of a transfer whose caller does nothing else meanwhile.
    pub(crate) fn waited_for() -> Self {
        Self { is_waited_for: true, ..Self::default() }
    }

    /// The network was asked for it.
    #[inline]
    pub(crate) fn started(&self) {
        if let Some(Seen { cell, .. }) = self.span.get() {
            cell.span().started = Some(Moment::now());
        }
    }

    /// It is over. The first time counts.
    #[inline]
    pub(crate) fn over(
        &self,
        monitoring: &Monitoring,
        why: &WhyOver,
        result: &Result<u64, HgError>,
    ) {
        if let Some(seen) = self.span.get() {
            seen.over(outcome_of(why, result));
        }
        if self.row.load(Ordering::Relaxed) != 0
            && let row @ 1.. = self.row.swap(0, Ordering::Relaxed)
            && let Some(store) = monitoring.shared.store.get()
        {
            store.bulk.end(row, outcome_of(why, result) as u8);
        }
    }

    /// The caller looks at the end, so that nothing follows.
    #[inline]
    pub(crate) fn resumed(&self) {
        if let Some(Seen { cell, .. }) = self.span.get() {
            cell.span().resumed = Some(Moment::now());
            cell.finish();
        }
    }
}

fn outcome_of(why: &WhyOver, result: &Result<u64, HgError>) -> BulkOutcome {
    match result {
        Ok(_) => BulkOutcome::Ok,
        Err(HgError::Canceled) if why.timed_out() => BulkOutcome::TimedOut,
        Err(HgError::Canceled) => BulkOutcome::Canceled,
        Err(_) => BulkOutcome::Failed,
    }
}

impl Seen {
    fn over(&self, outcome: BulkOutcome) {
        let now = Moment::now();
        let mut span = self.cell.span();
        if span.ended.replace(now).is_some() {
            return;
        }
        span.outcome = outcome;
        if let Some(request) = &self.request {
            let bulk = &mut request.0.span().bulk;
            bulk.transfers += 1;
            bulk.bytes += span.bytes;
            bulk.nanos += now.nanos_since(span.created);
        }
    }
}
