//! Progress and trigger: from a completion of the network to the next step of its operation, and to
//! a call of the sink.
//!
//! - Imports: all folders before it.
//! - Reading order: `sink.rs` (whom events are told) · `poll.rs` (the loop, and the next step of an
//!   operation).

mod poll;
pub(crate) mod sink;
