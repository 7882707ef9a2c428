//! The loop of an xstream, and its sleep.

pub(crate) mod idle_wait;
pub(crate) mod run_loop;
pub(crate) mod sched;
pub(crate) mod sleep;
pub(crate) mod stack_overflow;
pub(crate) mod timed;
