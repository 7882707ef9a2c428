//! A lock for models of what stands under it: the protocols have models of their own.

use crate::sync::{Mutex, MutexGuard};

/// A value that is reached by one at a time.
#[derive(Debug)]
pub struct ModelLock<T>(Mutex<T>);

impl<T> ModelLock<T> {
    /// Not held.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        crate::sync::lock(&self.0)
    }
}
