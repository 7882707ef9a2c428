//! The state of progress: the shards of an instance, how the progress ULT of each is woken, moved
//! and stopped, and how long it polls.
//!
//! May import the folders up to `operation`; polls nothing. Read `control.rs`, then
//! `spin_window.rs` and `when_needed.rs` (how long it polls), `progress_group.rs` (several of
//! them), `caller_polling.rs`; `shards.rs`, `surplus.rs` (handlers that shards share).

pub(crate) mod caller_polling;
pub(crate) mod control;
pub(crate) mod progress_group;
pub(crate) mod resting_shards;
pub(crate) mod shards;
pub(crate) mod spin_window;
pub(crate) mod surplus;
pub(crate) mod when_needed;
