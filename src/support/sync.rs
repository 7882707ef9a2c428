//! The atomics, and the lock, of the files that `loom-tests` includes from here; there the module
//! of this name has loom's.

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

pub(crate) use na::lock::Lock;
