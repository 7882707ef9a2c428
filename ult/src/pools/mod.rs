//! The pools that come with the runtime, as far as they are queues of their own, and how a user's
//! is called.

pub(crate) mod custom;
pub(crate) mod deque;
pub(crate) mod earliest;
pub(crate) mod fifo;
pub(crate) mod prio;
