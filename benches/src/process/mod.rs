//! Processes: one for each row, and the peer of a row with two sides.
//!
//! Imports from `base`. Read `child.rs` (children, and that none is left behind), `context.rs`,
//! `peer.rs`.

pub(crate) mod child;
pub(crate) mod context;
pub(crate) mod peer;
