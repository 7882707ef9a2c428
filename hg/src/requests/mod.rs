//! Requests: the target's side of an RPC.
//!
//! - Imports: all folders before it but `origin`.
//! - Reading order: `request.rs` (a request from its message to its answer) · `raw_request.rs`
//!   (what it says of itself) · `prove.rs` (who has sent it, where transports do not tell).

pub(crate) mod prove;
pub(crate) mod raw_request;
pub(crate) mod request;
