//! The only source of atomics, cells, locks and threads in the crates that models check.
//!
//! Under `--cfg loom` they are loom's; otherwise std's, with loom's signatures. A model sees only
//! what goes through here, so `tests/tidy` forbids to name the std types elsewhere.

pub use imp::*;

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::{Arc, Condvar as OsCondvar, Mutex, MutexGuard, RwLock, atomic};
    pub use loom::{hint, thread, thread_local};
}

#[cfg(not(loom))]
mod imp {
    pub use std::sync::{Arc, Condvar as OsCondvar, Mutex, MutexGuard, RwLock, atomic};
    pub use std::{hint, thread};

    /// A cell with the two-closure interface of loom's, so that callers compile under both.
    ///
    /// ```
    /// use prim::sync::UnsafeCell;
    ///
    /// let cell = UnsafeCell::new(1);
    /// // SAFETY: nobody else has the cell.
    /// cell.with_mut(|value| unsafe { *value += 1 });
    /// assert_eq!(cell.into_inner(), 2);
    /// ```
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell with that value.
        #[inline(always)]
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// The value, out of the cell.
        #[inline(always)]
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }

        /// Passes a pointer to read the value by.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Passes a pointer to write the value by.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Locks `mutex`, also if a panic happened while it was held.
///
/// The critical sections of these crates restore their invariants before anything that can panic
/// and run no code of users, so a poisoned lock carries no broken state.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// One step of a short wait for another thread that is inside a critical section of a few
/// instructions: spins first, then gives the processor away in case that thread was preempted.
#[inline]
pub fn relax(round: &mut u32) {
    *round += 1;
    if cfg!(loom) || *round > 64 {
        thread::yield_now();
    } else {
        hint::spin_loop();
    }
}
