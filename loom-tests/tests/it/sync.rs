//! Loom's atomics, and a lock, for the files of `src/` that the models of `margo` include: there
//! the module of this name has the standard library's.

pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}

/// The lock has a model of its own (`na/biased_lock.rs`).
#[derive(Debug)]
pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}
