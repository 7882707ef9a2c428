//! Bulk transfers.
//!
//! - Imports: all folders before it but `origin` and `requests`.
//! - Reading order: `handles.rs` (handles to our memory, owners of others) · `pieces.rs` (one
//!   transfer, several puts or gets of the network). The state is in `ops/transfer.rs`.

mod handles;
mod pieces;
