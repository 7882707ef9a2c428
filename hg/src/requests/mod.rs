//! Requests: the target's side of an RPC.
//!
//! - Imports: all folders before it but `origin`.
//! - Reading order: `request.rs` (from a message to a request in hand, and its answer) ·
//!   `handle.rs` (a request with its origin and core).

pub(crate) mod handle;
pub(crate) mod request;
