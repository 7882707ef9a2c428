//! The atomics, and the lock, of what `loom-tests` includes from here, where the module of this
//! name has loom's.

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) use na::lock::Lock;
