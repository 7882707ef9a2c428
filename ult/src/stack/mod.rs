//! Stacks of ULTs, and switching between them.
//!
//! A stack is mapped once, used by many ULTs one after another, and kept in the cache of its
//! xstream meanwhile. It knows no unit: the engine says which units run on it
//! (`StackBlock::run_ults`). This folder may import [`base`](crate::base) and
//! [`topology`](crate::topology).
//!
//! Read `memory.rs` (mapping, guard page), `block.rs`, `cache.rs`, then `context/`. `user.rs` has
//! stacks that the program supplies.

pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod context;
pub(crate) mod memory;
pub(crate) mod user;
