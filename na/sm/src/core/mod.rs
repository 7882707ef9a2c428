//! The endpoint: what its threads share, the calls that start operations, and the poll.
//!
//! - Imports: of `sm`, `peers/` and what that imports; of the crate below, everything.
//! - Reading order: `endpoint.rs` (the calls), `open.rs` · `rx.rs`, `links.rs` (connections, as the
//!   poll sees them) · `connect.rs`, `poll.rs`, `teardown.rs` (progress).

mod connect;
pub(crate) mod endpoint;
mod links;
pub(crate) mod open;
mod poll;
mod rx;
mod teardown;
