//! The state of an endpoint: its peers, and the driver, which has all of it.
//!
//! - Imports: `wire`, `addressing`, `operations`, `ucp`.
//! - Reading order: `group.rs` (the endpoints behind one address) · `peer.rs` · `discards.rs`
//!   (connections that UCX ends) · `driver.rs`.

mod discards;
pub(crate) mod driver;
pub(crate) mod group;
pub(crate) mod peer;
