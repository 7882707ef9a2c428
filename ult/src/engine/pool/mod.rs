//! Pools: where units wait to run.
//!
//! A pool has a queue that any thread may push to, and a slot in each xstream that serves it: a
//! list that only this xstream touches.
//!
//! Read `spec.rs` (what a pool shall be), `shared.rs` (the part of a pool that any thread may
//! touch), and `slot.rs`. `push.rs` gets units into their pool, `migrate.rs` into another one. The
//! kinds of queues are `fifo.rs`, `prio.rs`, `deque.rs` and `earliest.rs`; `custom.rs` has those of
//! the program, and `handle.rs` what the program has of a pool.

pub(crate) mod custom;
pub(crate) mod deque;
pub(crate) mod earliest;
pub(crate) mod fifo;
pub(crate) mod handle;
pub(crate) mod migrate;
pub(crate) mod prio;
pub(crate) mod push;
pub(crate) mod slot;
pub(crate) mod spec;
