//! The things that every other file uses: failures, deadlines, samples, cores, the figure of a row.
//!
//! Imports nothing of this crate. Read `failure.rs`, `wait.rs`, `stats.rs` (how time is taken),
//! then `row.rs`.

pub(crate) mod cpu_time;
pub(crate) mod failure;
pub(crate) mod row;
pub(crate) mod stats;
pub(crate) mod wait;
