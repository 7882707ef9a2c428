//! Spans that are being filled in.
//!
//! A call and everything that works for it share one cell. The caller that has read the result
//! knows that nothing can follow, and hands the span out. Otherwise the last of them to let go of
//! the cell does: the progress ULT if nobody reads the result, the handler's ULT, or the network
//! that has taken an answer. So a span is handed out once, and complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use na::lock::{Guard, Lock};

use super::monitoring::SpanShared;
use crate::observe::span::{BulkSpan, OriginSpan, TargetSpan};

/// A span, which is handed out at the end.
pub(super) trait Span {
    fn hand_out(&self, row: u32, to: &SpanShared);
}

impl Span for OriginSpan {
    fn hand_out(&self, row: u32, to: &SpanShared) {
        to.origin_call_ended(row, self);
    }
}

impl Span for TargetSpan {
    fn hand_out(&self, row: u32, to: &SpanShared) {
        to.target_call_ended(row, self);
    }
}

impl Span for BulkSpan {
    fn hand_out(&self, row: u32, to: &SpanShared) {
        to.bulk_ended(row, self);
    }
}

/// See the module's documentation.
pub(super) struct Cell<S: Span> {
    shared: Arc<SpanShared>,
    span: Lock<S>,
    /// The row in the statistics; 0: none.
    row: u32,
    is_out: AtomicBool,
}

impl<S: Span> Cell<S> {
    pub(super) fn new(shared: &Arc<SpanShared>, row: u32, span: S) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            span: Lock::new(span),
            row,
            is_out: AtomicBool::new(false),
        })
    }

    /// No foreign code runs under this lock.
    pub(super) fn span(&self) -> Guard<'_, S> {
        self.span.lock()
    }

    /// Nothing follows: hands the span out, unless that was done.
    pub(super) fn finish(&self)
    where
        S: Clone,
    {
        // What is handed out is read under the lock.
        if !self.is_out.swap(true, Ordering::Relaxed) {
            let span = self.span().clone();
            span.hand_out(self.row, &self.shared);
        }
    }
}

impl<S: Span> Drop for Cell<S> {
    fn drop(&mut self) {
        if !*self.is_out.get_mut() {
            self.span.get_mut().hand_out(self.row, &self.shared);
        }
    }
}
