//! Pools: where units wait to run.
//!
//! A pool has a queue that any thread may push to, and a slot in each xstream that serves it: a
//! list that only this xstream touches.
//!
//! Read `shared.rs` first (the pool, its specification, its references), then `slot.rs`. The kinds
//! of queues are `fifo.rs`, `prio.rs`, `deque.rs` and `earliest.rs`; `custom.rs` has those of the
//! program.

pub(crate) mod custom;
pub(crate) mod deque;
pub(crate) mod earliest;
pub(crate) mod fifo;
pub(crate) mod prio;
pub(crate) mod shared;
pub(crate) mod slot;
