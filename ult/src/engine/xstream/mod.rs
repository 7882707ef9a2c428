//! Execution streams: their own state, and how units get into queues and give up their thread.
//!
//! Each file imports those that stand before it here:
//!
//! 1. `budget.rs`, `timer.rs`, `idle_set.rs`, `streak.rs`, `descriptor_slab.rs`,
//!    `descriptor_cache.rs`: parts of an xstream.
//! 2. `owner.rs`: the xstream, which only its own thread touches; `current.rs` finds it.
//! 3. `recycle.rs` (descriptors), `diag.rs` (hooks for observers), `inspect.rs` (the walk up a
//!    stack), `cancel.rs`, `runnable.rs`.
//! 4. `change_pool.rs`, then `push.rs`: all ways of a unit into a queue.
//! 5. `switch.rs`: how a unit gives up its thread.

pub(crate) mod budget;
pub(crate) mod cancel;
pub(crate) mod change_pool;
pub(crate) mod current;
pub(crate) mod descriptor_cache;
pub(crate) mod descriptor_slab;
pub(crate) mod diag;
pub(crate) mod idle_set;
pub(crate) mod inspect;
pub(crate) mod owner;
pub(crate) mod push;
pub(crate) mod recycle;
pub(crate) mod runnable;
pub(crate) mod streak;
pub(crate) mod switch;
pub(crate) mod timer;
