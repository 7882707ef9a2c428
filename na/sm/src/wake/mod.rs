//! Waking: how a side that sleeps learns that there is work, and how little it costs when nobody
//! sleeps.
//!
//! - Imports: of `sm`, `mapping.rs`; of the crate, `base`, `limits` and `memory`.
//! - Reading order: `doorbell.rs` (the handshake before a sleep, model-checked) · `board.rs` (one
//!   bit for each of many peers) · `ready.rs`, `reports.rs` (completions that did not come out of
//!   the poll).

#[cfg(not(loom))]
pub(super) mod board;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod doorbell;
#[cfg(not(loom))]
pub(super) mod ready;
#[allow(unreachable_pub, reason = "public for the models only")]
pub mod reports;
