//! Counts of requests and handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Counted by this layer; the rest of [`Stats`](crate::metrics::Stats) comes from the RPC layer.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Places in pools that were, or are about to be, given back without a handler having run.
    pub(crate) handlers_not_run: AtomicU64,
    /// The most that was told of [`Stats::handlers_run`](crate::metrics::Stats::handlers_run).
    pub(crate) handlers_told: AtomicU64,
    pub(crate) handlers_panicked: AtomicU64,
    pub(crate) requests_closing: AtomicU64,
    pub(crate) requests_no_ult: AtomicU64,
    pub(crate) requests_not_allowed: AtomicU64,
    pub(crate) requests_over_limit: AtomicU64,
    pub(crate) requests_abandoned: AtomicU64,
    pub(crate) arguments_undecodable: AtomicU64,
    /// Requests whose unit could not be made; not those that were refused with them.
    pub(crate) units_not_made: AtomicU64,
    /// Times that a peer asked for the end of this instance, and may not.
    pub(crate) shutdowns_refused: AtomicU64,
    /// Shared with the stall detector.
    pub(crate) stalls: Arc<AtomicU64>,
}

impl Counters {
    /// Counts one; how many that makes.
    pub(crate) fn add(counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// No handler runs in a place that the caller gives back afterwards.
    pub(crate) fn handler_not_run(&self) {
        Self::add(&self.handlers_not_run);
        // Whoever sees that the place was given back sees this, too.
        fence(Ordering::Release); // pair: NOT-RUN
    }

    /// How many have, if so many places were given back. Never less than before: for a moment
    /// those in which none does are known and not given back.
    pub(crate) fn handlers_run(&self, ended: u64) -> u64 {
        fence(Ordering::Acquire); // pair: NOT-RUN
        let run = ended.saturating_sub(self.handlers_not_run.load(Ordering::Relaxed));
        self.handlers_told.fetch_max(run, Ordering::Relaxed).max(run)
    }
}
