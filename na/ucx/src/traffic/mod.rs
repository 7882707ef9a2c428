//! Traffic: messages and transfers, as methods of the driver.
//!
//! - Imports: all folders before it.
//! - Reading order: `messages.rs` · `transfers.rs` (in chunks) · `rendezvous.rs` (in pieces that
//!   UCX moves) · `remote.rs` (by remote keys).

mod messages;
mod remote;
#[cfg(test)]
mod remote_tests;
pub(crate) mod rendezvous;
pub(crate) mod transfers;
