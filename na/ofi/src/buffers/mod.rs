//! Memory that libfabric knows: of the program, and for messages.
//!
//! - Imports: `fabrics`.
//! - Reading order: `memory.rs` (registrations, descriptions for peers) · `local.rs` (registered
//!   buffers for messages) · `unexpected.rs` (buffers for requests).

pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod unexpected;
