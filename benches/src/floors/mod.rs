//! Floors: the cost of the same work on this machine without margo. Each is a row of its own, and
//! each is measured again in the run of the row that it belongs to.

pub(crate) mod attach;
pub(crate) mod channel;
pub(crate) mod coroutine;
pub(crate) mod fabric;
pub(crate) mod futex;
pub(crate) mod lines;
pub(crate) mod memcpy;
pub(crate) mod rtt;
mod stack;
pub(crate) mod stream;
pub(crate) mod tcp;
