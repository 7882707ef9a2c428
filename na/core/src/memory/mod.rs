//! Memory that peers may read or write: its owners, its registration, and copies of it.
//!
//! - Imports: `base`, `limits`.
//! - Reading order: `segment.rs` · `handles.rs` (what users hold) · `region.rs`, `keys.rs` (what is
//!   registered, and the numbers by which peers name it), `terms.rs` (who may use it, until when) ·
//!   `alloc.rs` (memory that processes of one host can map) · `handed.rs` (descriptors of other
//!   memory) · `copy_bytes.rs`, `copy.rs`, `helper.rs` (copies in user space).

pub mod alloc;
pub mod copy;
/// For the layer above, too.
pub mod copy_bytes;
pub mod handed;
pub mod handles;
pub mod helper;
pub mod keys;
pub mod region;
pub mod segment;
pub mod terms;
