//! The counters of an xstream, as the program sees them.

use std::time::Duration;

/// Counters of an xstream; see [`XstreamRef::stats`](crate::XstreamRef::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct XstreamStats {
    /// Times that a unit has run here until it yielded, suspended or ended.
    pub executed: u64,
    /// Units that ended here.
    pub finished: u64,
    /// Times that a ULT yielded.
    pub yields: u64,
    /// Times that a ULT suspended itself.
    pub parked: u64,
    /// Times that a suspended ULT was resumed and queued.
    pub resumed: u64,
    /// Times that a suspended ULT was run at once instead, past the queue.
    pub run_at_once: u64,
    /// Times that the xstream slept because there was nothing to run.
    pub sleeps: u64,
    /// For how long it has slept, a sleep that goes on included. The rest of the time it has run
    /// units or looked for some. Never goes back.
    pub slept: Duration,
    /// ULTs that have started here and not ended.
    pub ults: usize,
    /// Stacks that exist here, in use or idle.
    pub stacks: usize,
}
