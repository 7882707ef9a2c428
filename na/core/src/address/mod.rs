//! Names of endpoints, and the users and hosts behind them.
//!
//! - Imports: `base`.
//! - Reading order: `uri.rs` (the syntax) · `addr.rs` (a peer, as an endpoint hands it out) ·
//!   `users.rs`, `composed.rs` (two addresses in one: shared memory, and a network) ·
//!   `principal.rs` (who is behind a peer, as far as the kernel knows).

pub mod addr;
pub mod composed;
pub mod principal;
pub mod uri;
pub mod users;
