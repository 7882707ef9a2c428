//! Calls: the origin's side of an RPC.
//!
//! - Imports: the folders before it.
//! - Reading order: `forward.rs` (from the arguments to the messages) · `ask_build.rs` (the
//!   question to a peer before the first call) · `response.rs` (from a message to the end of a
//!   call) · `notices.rs` (cancels, and answers that came damaged).

pub(crate) mod ask_build;
pub(crate) mod forward;
pub(crate) mod notices;
mod response;
