//! Objects to wait for: locks, events, channels, and the ways to wait for several.
//!
//! They may import [`engine`](crate::engine) and what is below it. Each keeps lists of waiters and
//! does not know what stands behind one: a ULT, an OS thread, or an async task.
//!
//! Read `eventual.rs` first, then `mutex.rs` and `remutex.rs`, `fair_queue.rs` (below `rwlock.rs`
//! and `semaphore.rs`), `select.rs`, and `channel/`. `park_token.rs` needs no waiter, and `to.rs`
//! switches to a unit of the caller's choice instead of waiting for one; `block_on.rs` polls
//! futures in a ULT; `blocking.rs` has a thread run what blocks.

pub(crate) mod barrier;
#[cfg(not(loom))]
pub(crate) mod block_on;
#[cfg(not(loom))]
pub(crate) mod blocking;
pub mod channel;
pub(crate) mod condvar;
pub(crate) mod countdown;
pub(crate) mod eventual;
pub(crate) mod fair_queue;
pub(crate) mod mutex;
pub(crate) mod once;
#[cfg(not(loom))]
pub(crate) mod park_token;
pub(crate) mod party;
pub(crate) mod remutex;
pub(crate) mod rwlock;
pub(crate) mod select;
pub(crate) mod semaphore;
pub(crate) mod task_wait;
#[cfg(not(loom))]
pub(crate) mod to;
