//! Building blocks that know no unit, no pool and no xstream.
//!
//! They may import `prim` and each other. The concurrency cores among them are
//! checked by the models in `loom-tests`: `inbox`, `park_word`, `suspend` and `timer_state`.
//!
//! Read `park_word` first (how an OS thread sleeps and is woken), then `suspend` (how a ULT does),
//! `inbox`, and `contain` (how code of the program is called and messages are logged). `payload`,
//! `values` and `unwind` are what a unit is made of that needs no unit.

pub(crate) mod const_new;
#[cfg(not(loom))]
pub(crate) mod contain;
pub(crate) mod inbox;
#[cfg(not(loom))]
pub(crate) mod job_queues;
#[cfg(not(loom))]
pub(crate) mod limit;
pub(crate) mod park_word;
#[cfg(not(loom))]
pub(crate) mod payload;
pub(crate) mod priority;
#[cfg(not(loom))]
pub(crate) mod spin;
pub(crate) mod suspend;
pub(crate) mod timer_state;
#[cfg(not(loom))]
pub(crate) mod timespec;
pub(crate) mod unwind;
#[cfg(not(loom))]
pub(crate) mod values;
pub(crate) mod wait_kind;
#[cfg(not(loom))]
pub(crate) mod work_deque;
