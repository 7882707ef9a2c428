//! Stacks of ULTs, and switching between them.
//!
//! A stack is mapped once, used by many ULTs one after another, and kept in the cache of its
//! xstream meanwhile. Beside the engine's contexts and descriptors, this folder imports
//! [`base`](crate::base) and [`topology`](crate::topology).
//!
//! Read `block.rs` (mapping, guard page, reserve), `cache.rs`, then `context/`. `user.rs` has
//! stacks that the program supplies, `overflow.rs` reports those that were too small.

pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod context;
pub(crate) mod overflow;
pub(crate) mod user;
