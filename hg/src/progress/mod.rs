//! Progress and trigger: from a completion of the network to the next step of its operation, and to
//! a call of the sink.
//!
//! - Imports: all folders before it.
//! - Reading order: `poll.rs`.

pub(crate) mod poll;
