//! Bounds that the system sets to a process, and those that an endpoint sets to its peers.
//!
//! - Imports: `base`, `address`.
//! - Reading order: `descriptors.rs` (how many connections there can be) · `file_limit.rs` (growing
//!   files under `ulimit -f`) · `budget.rs` (memory that peers make an endpoint hold).

pub mod budget;
pub mod descriptors;
/// For what the layer above writes.
pub mod file_limit;
