//! The unit: its descriptor, and what is stored there or hangs on it.
//!
//! Units are ULTs and tasklets. Their descriptors are reused, through the cache of each xstream.
//!
//! Read `descriptor.rs` first (who may touch which field), then `payload.rs` (the closure and its
//! outcome), `end.rs` and `descriptor_cache.rs`. `list.rs` links descriptors; `handle.rs` is the
//! unit in the hands of a custom pool or scheduler; `extra.rs`, `local.rs` and `inherited.rs` have
//! what only some units own.

pub(crate) mod end;
pub(crate) mod extra;
pub(crate) mod handle;
pub(crate) mod inherited;
pub(crate) mod list;
pub(crate) mod local;
pub(crate) mod payload;
