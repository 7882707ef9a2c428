//! Requests: the target's side of an RPC.
//!
//! - Imports: all folders before it but `origin`.
//! - Reading order: `arrival.rs` (from a message to what the sink gets) · `raw_request.rs` (a
//!   request in hand, and how it is answered) · `handle.rs` (the same, with its origin and core).

mod arrival;
pub(crate) mod handle;
pub(crate) mod raw_request;
