//! The state of an endpoint: its peers, and the operations that libfabric or a queue has.
//!
//! - Imports: `providers`, `fabrics`, `buffers`.
//! - Reading order: `bounds.rs` (how much waits for a peer that takes nothing) · `peers.rs` ·
//!   `lookup.rs` (finding an operation to cancel) · `slots.rs` (operations at libfabric) ·
//!   `sinks.rs` (for late messages) · `transfer_state.rs` · `core.rs` (all of it).

pub(crate) mod bounds;
pub(crate) mod core;
mod lookup;
pub(crate) mod peers;
mod sinks;
pub(crate) mod slots;
pub(crate) mod transfer_state;
