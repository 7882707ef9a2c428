//! Bulk handles, which name exposed memory in the arguments of an RPC.
//!
//! - Imports: `base`, `proc`.
//! - Reading order: `handle.rs` ([`Bulk`], made of memory or of a descriptor) · `bind.rs` (the
//!   owner's address within it, for third parties) · `attr.rs` (which kind of memory it is) ·
//!   `local.rs` (the segments at the owner, and embedded data, without a copy). The bytes of a
//!   descriptor are in `proc/descriptor.rs`.

mod attr;
pub(crate) mod bind;
mod handle;
mod local;

pub use crate::proc::descriptor as desc;

pub(crate) use self::handle::RemotePart;
pub use self::{
    attr::{MemoryAttr, MemoryKind},
    desc::BulkDesc,
    handle::{Bulk, BulkOp},
    local::{LocalBytes, LocalPart},
};
