//! Methods of the instance whose state and work stand in the folders below it.
//!
//! May import the folders up to `instance`. One file for each subject: `log.rs`, `monitoring.rs`,
//! `profiling.rs`, `timers.rs`.

pub(crate) mod log;
pub(crate) mod monitoring;
pub(crate) mod profiling;
pub(crate) mod timers;
