//! The contract between a transport and everything above it.
//!
//! - Imports: `base`, `address`, `memory`, `message`, `options`.
//! - Reading order: `operation.rs` (operations and their ends) · `contract.rs` (an open endpoint) ·
//!   `plugin.rs` (a transport, which opens endpoints) · `stats.rs` (what an endpoint has in hand) ·
//!   `fuzz_target.rs` (an endpoint for fuzzers to drive).

pub(crate) mod contract;
#[cfg(any(feature = "sm", feature = "tcp"))]
pub(crate) mod fuzz_target;
pub(crate) mod operation;
pub(crate) mod plugin;
pub(crate) mod stats;
