//! The contract between a transport and everything above it.
//!
//! - Imports: `base`, `address`, `memory`, `message`, `options`.
//! - Reading order: `operation.rs` (operations and their ends) · `contract.rs` (an open endpoint) ·
//!   `plugin.rs` (a transport, which opens endpoints) · `stats.rs` (what an endpoint has in hand) ·
//!   `fuzz_target.rs` (an endpoint for fuzzers to drive).

pub mod contract;
pub mod fuzz_target;
pub mod operation;
pub mod plugin;
pub mod stats;
