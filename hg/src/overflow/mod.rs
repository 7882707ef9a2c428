//! Payloads that do not fit into a message, of both sides.
//!
//! - Imports: all folders before it.
//! - Reading order: `fetch.rs` (the protocol, and how such a payload is fetched) · `expose.rs` (how
//!   it is described to the peer) · `results.rs` (which results give way to others) ·
//!   `too_long.rs` (messages that are too long for the peer).

mod expose;
mod fetch;
pub(crate) mod results;
mod too_long;
