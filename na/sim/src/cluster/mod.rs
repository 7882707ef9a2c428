//! The simulated cluster: its clock, links and machines, and the nodes that run on them.
//!
//! - Imports: `base`, `protocol`.
//! - Reading order: `wire.rs` (clock, links, faults) · `peer.rs`, `node.rs` (the state) ·
//!   `inbound.rs` (arriving packets) · `ends.rs` (ends of connections and nodes) · `world.rs`
//!   (events) · `network.rs` (the handle, with the one lock).

mod ends;
mod inbound;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod peer;
pub(crate) mod wire;
pub(crate) mod world;
