//! The loop of an xstream: it picks units, runs them, and sleeps when there are none.
//!
//! Read `run_unit.rs` first (one unit, from its stack to its end), then `run_loop.rs`, which asks
//! the scheduler (`sched.rs`). `joined.rs` has units that their joiner runs. `mail.rs` has what
//! comes from other threads; `timed.rs`, `idle_wait.rs` and `sleep.rs` are for xstreams with
//! nothing to run. `stack_overflow.rs` reports stacks that were too small.

pub(crate) mod idle_wait;
pub(crate) mod jobs;
pub(crate) mod joined;
pub(crate) mod mail;
pub(crate) mod run_loop;
pub(crate) mod run_unit;
pub(crate) mod sched;
pub(crate) mod sleep;
pub(crate) mod stack_overflow;
pub(crate) mod timed;
