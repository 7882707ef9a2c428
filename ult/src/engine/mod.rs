//! The engine: units, pools, xstreams, and the switch from one unit to the next.
//!
//! | folder | what lives there |
//! |---|---|
//! | [`model`] | the types that name each other, with their state |
//! | [`xstream`] | the own state of an xstream, pushes into queues, and the switch |
//! | [`waiting`] | waiters, lists of them, the join word, and the lock in all mutexes |
//! | [`unit`](mod@unit) | values of a unit, and its end |
//! | [`run`] | the loop of an xstream: schedule, run, sleep |
//! | [`pool`] | pools, as the program makes and uses them |
//!
//! The state of units, pools and xstreams is at the bottom, in `model`, because these types point
//! at each other; what is done with it stands above. The order, in which each imports those before
//! it, is: `listener`, `monitor_stop`, `pulse`, `helpers`, `model`, `contain`, `error`, `xstream`,
//! `waiting`, `unit`, `run`, `pool`.
//!
//! `pulse.rs`, `listener.rs` and `monitor_stop.rs` are the engine's part of recorders, sinks and
//! the monitor; `helpers.rs` has the threads that run what blocks. The engine may import
//! [`base`](crate::base), [`topology`](crate::topology), [`trace`](crate::trace) and the stacks
//! below it; nothing above it.
//!
//! Read `model/unit.rs` first, then `model/pool.rs`, `xstream/owner.rs`, `xstream/switch.rs`,
//! `run/run_unit.rs` and `run/run_loop.rs`.

#[cfg(not(loom))]
pub(crate) mod contain;
#[cfg(not(loom))]
pub(crate) mod error;
#[cfg(not(loom))]
pub(crate) mod helpers;
#[cfg(not(loom))]
pub(crate) mod listener;
pub(crate) mod model;
#[cfg(not(loom))]
pub(crate) mod monitor_stop;
#[cfg(not(loom))]
pub(crate) mod pool;
#[cfg(not(loom))]
pub(crate) mod pulse;
#[cfg(not(loom))]
pub(crate) mod run;
#[cfg(not(loom))]
pub(crate) mod unit;
pub(crate) mod waiting;
#[cfg(not(loom))]
pub(crate) mod xstream;
