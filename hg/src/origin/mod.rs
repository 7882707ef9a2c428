//! Calls: the origin's side of an RPC.
//!
//! - Imports: all folders before it.
//! - Reading order: `forward.rs` (a call from its arguments to its end) · `ask_build.rs` (the
//!   question to a peer before the first call) · `introduce.rs` (who we are, where transports do
//!   not tell). The state of a call is in `ops/call.rs`.

mod ask_build;
pub(crate) mod forward;
pub(crate) mod introduce;
