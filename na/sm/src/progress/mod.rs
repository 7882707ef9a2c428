//! The poll: connections begin, move what they carry, and end.
//!
//! - Imports: of `sm`, `state.rs` and what that imports; of the crate below, everything.
//! - Reading order: `poll.rs` (rounds, looks, sleep) · `pump.rs` (what a record does) ·
//!   `connect.rs` · `teardown.rs`.

mod connect;
mod poll;
mod pump;
pub(crate) mod teardown;
