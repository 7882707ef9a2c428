//! Bulk transfers.
//!
//! - Imports: the folders before it; nothing of `origin` and `requests`.
//! - Reading order: `pieces.rs` (one transfer, several puts or gets of the network).

pub(crate) mod pieces;
