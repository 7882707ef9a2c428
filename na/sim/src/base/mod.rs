//! Settings, names and the trace: plain data, and nothing that moves.
//!
//! - Imports: no other folder.
//! - Reading order: `options.rs` (of links and networks, and virtual time) · `address.rs` (names of
//!   networks and nodes) · `trace.rs` (a record of each packet, and of its fate).

pub(crate) mod address;
pub(crate) mod options;
pub(crate) mod trace;
