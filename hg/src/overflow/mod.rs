//! Payloads that do not fit into a message.
//!
//! - Imports: the folders before it.
//! - Reading order: `fetch.rs` (how such a payload is fetched, with the protocol) · `results.rs`
//!   (results that are kept until they are fetched) · `too_long.rs` (messages that are too long for
//!   the peer).

pub(crate) mod fetch;
pub(crate) mod results;
mod too_long;
