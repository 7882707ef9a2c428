//! Units that start at a given time, and intervals.
//!
//! It may import [`spawn`](crate::spawn) and what is below it. Deadlines of waits need nothing of
//! this folder: they are nodes in the timer of an xstream, `engine/xstream/timer.rs`.
//!
//! Read `timed_unit.rs`, then `interval.rs`.

pub(crate) mod interval;
pub(crate) mod timed_unit;
