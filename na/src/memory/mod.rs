//! Memory that peers may read or write: its owners, its registration, and copies of it.
//!
//! - Imports: `base`, `limits`.
//! - Reading order: `segment.rs` · `handles.rs` (what users hold) · `region.rs`, `keys.rs` (what is
//!   registered, and the numbers by which peers name it) · `alloc.rs` (memory that processes of one
//!   host can map) · `copy_bytes.rs`, `copy.rs`, `helper.rs` (copies in user space).

pub(crate) mod alloc;
#[cfg(any(feature = "sm", feature = "tcp", feature = "ofi", feature = "ucx"))]
#[cfg_attr(not(feature = "sm"), allow(dead_code, reason = "sm uses more of it than the others"))]
pub(crate) mod copy;
/// For the layer above, too.
pub mod copy_bytes;
pub(crate) mod handles;
pub(crate) mod helper;
pub(crate) mod keys;
pub(crate) mod region;
pub(crate) mod segment;
