//! The only source of atomics, cells, locks and threads in this crate.
//!
//! Under `--cfg loom` they are loom's; otherwise std's with loom's signatures. Code that is
//! checked by a loom model takes everything from here, so the model sees all of it.

pub(crate) use imp::*;

#[cfg(loom)]
mod imp {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint;
    pub(crate) use loom::sync::{Arc, Condvar as OsCondvar, Mutex, MutexGuard, atomic};
    pub(crate) use loom::thread;
}

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::hint;
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic};
    pub(crate) use std::thread;

    /// Same two-closure shape as loom's cell, so callers compile under both.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    #[allow(clippy::disallowed_types, reason = "this is the shim")]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[allow(clippy::disallowed_types, reason = "this is the shim")]
    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner()
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Locks an internal OS mutex. A panic never leaves the data behind such a lock half-changed
/// (no user code runs under one), so poisoning is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// One step of a short wait for another thread that is inside a critical section of a few
/// instructions: spins first, then gives the processor away in case that thread was preempted.
pub(crate) fn relax(round: &mut u32) {
    *round += 1;
    if cfg!(loom) || *round > 64 {
        thread::yield_now();
    } else {
        hint::spin_loop();
    }
}
