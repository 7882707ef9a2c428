//! Calls: the origin's side of an RPC.
//!
//! - Imports: all folders before it.
//! - Reading order: `forward.rs` (from the arguments to the message) · `ask_build.rs` (the question
//!   to a peer before the first call) · `response.rs` (from a message to the end of the call). The
//!   state of a call is in `ops/call.rs`.

mod ask_build;
pub(crate) mod forward;
mod response;
