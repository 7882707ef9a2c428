//! The things that every other file uses: failures, deadlines, cores, samples, and the figure of a
//! row with its floor and its target.
//!
//! Imports nothing of this crate. Read `failure.rs`, `wait.rs`, `stats.rs` (how time is taken),
//! then `row.rs`; `cores.rs` and `cpu_time.rs` when a row needs them.

mod cores;
pub(crate) mod cpu_time;
mod failure;
mod row;
mod say;
mod stats;
mod wait;

pub(crate) use cores::{Cores, pin};
pub(crate) use failure::{Doing, Failure, OrFail, Result, ensure, fail};
pub(crate) use row::{Figure, Row, Target, Unit};
pub(crate) use say::{UNREAD, say};
#[cfg(test)]
pub(crate) use stats::Distribution;
pub(crate) use stats::{Effort, Round, Samples, clock_read_ns};
pub(crate) use wait::Deadline;
