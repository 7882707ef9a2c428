//! Properties of the process: its descriptors, and the children that are forked off it.
//!
//! - Imports: `sync`.
//! - Reading order: `fork.rs` (tells a process from its children) · `lost.rs` (wake-ups through a
//!   descriptor, and the end of the process if other code closed it) · `standard.rs` (keeps the
//!   numbers of standard input, output and error taken) · `signals.rs` (keeps them off a thread).

#[cfg(not(loom))]
pub mod fork;
pub mod lost;
pub mod signals;
pub mod standard;
