//! Pools, as the program makes and uses them.
//!
//! Read `spec.rs` (what a pool shall be, and how it is made) and `handle.rs` (what the program has
//! of it). `migrate.rs` has the requests to move units into another one. Pools with an order of
//! their own are `prio.rs` and `earliest.rs`; `custom.rs` has those of the program.

pub(crate) mod custom;
pub(crate) mod earliest;
pub(crate) mod handle;
pub(crate) mod migrate;
pub(crate) mod prio;
pub(crate) mod spec;
