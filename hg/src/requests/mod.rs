//! Requests: the target's side of an RPC.
//!
//! - Imports: the folders before it.
//! - Reading order: `raw_request.rs` (a request as it came in, and how it is answered) ·
//!   `handle.rs` (a request with its origin and its core).

pub(crate) mod handle;
pub(crate) mod raw_request;
