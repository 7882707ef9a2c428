//! Names of endpoints, and the users and hosts behind them.
//!
//! - Imports: `base`.
//! - Reading order: `uri.rs` (the syntax) · `addr.rs` (a peer, as an endpoint hands it out) ·
//!   `users.rs`, `composed.rs` (two addresses in one: shared memory, and a network) ·
//!   `principal.rs` (who is behind a peer, as far as the kernel knows).

pub(crate) mod addr;
pub(crate) mod composed;
pub(crate) mod principal;
pub(crate) mod uri;
pub(crate) mod users;
