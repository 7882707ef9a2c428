//! Execution streams: OS threads that run units.
//!
//! Read `owner.rs` first (the state that only the thread itself touches, and how it runs a unit),
//! `shared.rs` (the state that any thread may touch), `switch.rs` (how a unit gives up its thread)
//! and `run_loop.rs`, which asks the scheduler of `sched.rs`.
//!
//! `streak.rs` switches past the scheduler. `sleep.rs`, `idle.rs`, `timer.rs` and `timed.rs` are
//! for xstreams with nothing to run. `current.rs` finds the xstream of the calling thread,
//! `stats.rs` has its counters, and `overflow.rs` reports stacks that were too small.

pub(crate) mod current;
pub(crate) mod descriptor_cache;
pub(crate) mod diag;
pub(crate) mod inspect;
pub(crate) mod owner;
pub(crate) mod stats;
pub(crate) mod streak;
pub(crate) mod switch;
pub(crate) mod timer;
