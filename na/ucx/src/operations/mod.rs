//! Operations: all that is under way, in UCX's hands or ours, as plain state.
//!
//! - Imports: `wire`.
//! - Reading order: `peer_ref.rs` · `slots.rs` (operations that UCX has) · `transfer_state.rs`,
//!   `transfer_sinks.rs` (transfers, and their destinations) · `keys.rs`, `remote_key.rs` (which
//!   peer has which key, and the memory behind it) · `offer.rs` (offers that UCX keeps for us) ·
//!   `inbox.rs` (what callbacks leave).

pub(crate) mod inbox;
pub(crate) mod keys;
pub(crate) mod offer;
pub(crate) mod peer_ref;
pub(crate) mod remote_key;
pub(crate) mod slots;
pub(crate) mod transfer_sinks;
pub(crate) mod transfer_state;
