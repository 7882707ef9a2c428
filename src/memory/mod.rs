//! Memory for bulk transfers: who owns it, who may use it, and how it comes back.
//!
//! May import the folders up to `admission`; starts no transfer. Read `buffer.rs`,
//! then `exposed.rs`, `releasing.rs` and `segments.rs`, then `pool/`, then `copy_pool.rs` and
//! `copy_claims.rs`, by which other execution streams help with large copies, and
//! `device.rs`, memory that this host cannot read, and `lending.rs`, such memory of two processes.

pub(crate) mod buffer;
pub(crate) mod copy_claims;
pub(crate) mod copy_pool;
pub(crate) mod device;
pub(crate) mod exposed;
pub(crate) mod lending;
pub(crate) mod pool;
pub(crate) mod releasing;
pub(crate) mod segments;
