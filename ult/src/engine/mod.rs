//! The engine: units, pools, xstreams, and the switch from one unit to the next.
//!
//! | folder | what lives there |
//! |---|---|
//! | [`unit`](mod@unit) | the descriptor of a unit and what it owns |
//! | [`pool`] | pools and their queues |
//! | [`xstream`] | what an OS thread does: schedule, switch, sleep |
//! | [`waiting`] | waiters, lists of them, the join word, and cancel |
//!
//! These folders point at each other: a unit knows its pool and its xstream, and each of them knows
//! the units that it holds. So they are one layer. The engine may import [`base`](crate::base),
//! [`topology`](crate::topology), [`trace`](crate::trace) and the stacks below it; nothing above
//! it.
//!
//! Read `unit/descriptor.rs` first, then `pool/slot.rs`, `xstream/owner.rs`, `xstream/switch.rs`
//! and `xstream/run_loop.rs`. `runtime_core.rs` is what the xstreams of a runtime share. The hooks
//! for observers are in `diag.rs`; `inspect.rs`, `listener.rs` and `monitor_stop.rs` are the
//! engine's part of dumps, sinks and the monitor.

#[cfg(not(loom))]
pub(crate) mod contain;
#[cfg(not(loom))]
pub(crate) mod error;
#[cfg(not(loom))]
pub(crate) mod listener;
#[cfg(not(loom))]
pub(crate) mod model;
#[cfg(not(loom))]
pub(crate) mod monitor_stop;
#[cfg(not(loom))]
pub(crate) mod pool;
#[cfg(not(loom))]
pub(crate) mod run;
#[cfg(not(loom))]
pub(crate) mod unit;
pub(crate) mod waiting;
#[cfg(not(loom))]
pub(crate) mod xstream;
