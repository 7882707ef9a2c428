//! The pools that come with the runtime, as far as they are queues of their own.

pub(crate) mod deque;
pub(crate) mod earliest;
pub(crate) mod fifo;
pub(crate) mod prio;
