//! The types that name each other: units, pools, xstreams, waiters, and what a runtime shares.
//!
//! A unit knows its pool and its xstream, and each of them knows the units that it holds. So these
//! six files are one circle, the only one of the engine. They have the state, tables of who may
//! touch which field, and functions that touch nothing else. What is done with them, from a push to
//! the loop of an xstream, is in the folders above.
//!
//! Read `unit.rs` first (the descriptor), then `pool.rs` (queues, and the slot that an xstream
//! keeps for a pool), `xstream_shared.rs`, and `runtime_core.rs`. `waiter.rs` has the records of
//! waiting parties; `interfaces.rs` has what the program may bring: pools and schedulers.

#[cfg(not(loom))]
pub(crate) mod interfaces;
#[cfg(not(loom))]
pub(crate) mod pool;
#[cfg(not(loom))]
pub(crate) mod runtime_core;
#[cfg(not(loom))]
pub(crate) mod unit;
pub(crate) mod waiter;
#[cfg(not(loom))]
pub(crate) mod xstream_shared;
