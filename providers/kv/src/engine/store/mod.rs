//! The stores. Each is a file that implements [`Store`](interface::Store) and nothing else: what
//! changes, conditions and batches mean is decided above, once for all of them.
//!
//! Imports from the folder above reads ([`View`](super::view::View)), the bytes of records and the
//! containment of panics. Read `interface` first, then `hashed`, the shortest.

pub(super) mod fjall;
pub(super) mod hashed;
pub(super) mod interface;
#[cfg(feature = "lmdb")]
pub(super) mod lmdb;
mod one_tree;
pub(super) mod ordered;
pub(super) mod redb;
mod row;
