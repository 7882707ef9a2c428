//! Peers, and their connections as senders see them.
//!
//! - Imports: of `sm`, `transfer/` and what that imports; of the crate below, everything.
//! - Reading order: `peer.rs` (a peer and the table of all) · `tx.rs` (a connection, for those that
//!   send).

pub(crate) mod peer;
pub(crate) mod tx;
