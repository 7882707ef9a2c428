//! The only source of atomics, cells and locks in this crate.
//!
//! Under `--cfg loom` they are loom's; otherwise std's, with loom's signatures. Only a module that
//! goes through here can be model-checked, so `clippy.toml` bans the std types elsewhere.
#![allow(
    clippy::disallowed_types,
    dead_code,
    unused_imports,
    reason = "this is the shim; a build without a transport uses only part of it"
)]

pub(crate) use imp::*;

#[cfg(loom)]
mod imp {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use loom::{hint, thread};
}

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard, RwLock, atomic};
    pub(crate) use std::{hint, thread};

    /// Same two-closure shape as loom's cell, so callers compile under both.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
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

/// Locks `mutex`, whether or not a panic happened while it was held.
///
/// The critical sections of this crate restore their invariants before anything that can panic, so
/// a poisoned lock carries no broken state.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
