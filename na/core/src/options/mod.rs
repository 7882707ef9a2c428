//! How an endpoint is opened, as its user says it.
//!
//! - Imports: `base`, `address`, `limits`, `memory`.
//! - Reading order: `open.rs` (all options) · `network.rs` (kinds of traffic, forms of addresses,
//!   subnets) · `sm.rs`, `tcp.rs`, `ucx.rs` (what one transport looks at) ·
//!   `sessions.rs` (who is told of peers that come and go).

pub mod network;
pub mod open;
pub mod sessions;
pub mod sm;
pub mod tcp;
pub mod ucx;
