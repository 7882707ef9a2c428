//! Mutual exclusion among ULTs and OS threads. The lock itself is in
//! [`raw_mutex`](crate::engine::waiting::raw_mutex); here is the value that it protects.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::RawMutex;
use crate::engine::waiting::waiter::after;
use crate::sync::UnsafeCell;

/// A mutex that suspends a waiting ULT and blocks a waiting OS thread.
///
/// It may be held across a suspension, since it belongs to the guard and not to a thread; the guard
/// itself does not leave its ULT (`!Send`). Not recursive (see
/// [`ReentrantMutex`](crate::ReentrantMutex)), and without poisoning: a panic while the lock is
/// held unlocks it.
///
/// ```
/// use ult::Mutex;
///
/// static HITS: Mutex<Vec<&str>> = Mutex::new(Vec::new());
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // A ULT that finds it locked suspends.
/// let hits = ["/", "/about"].map(|page| pool.spawn(move || HITS.lock().push(page)));
/// for hit in hits {
///     hit?.join()?;
/// }
/// assert_eq!(HITS.lock().len(), 2);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Who gets it next
///
/// Unlock wakes the waiter that came first. Until that runs, others may take the lock, so that it
/// is not idle while a core wakes up or a ULT waits for its turn to run. A waiter that comes too
/// late goes back to the front of the queue, and the next unlock hands it the lock. So nobody
/// starves, also not behind a ULT of its own xstream, and waiters in the queue are served in the
/// order of their arrival.
///
/// A static works before any runtime exists and after it has ended.
///
/// Counterpart: `ABT_mutex`.
pub struct Mutex<T> {
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one party at a time access to the value, from any thread, hence `Send`;
// `&T` is only handed out through a guard.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: an unborrowed mutex has no waiters, so it is its value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    const_new! {
        /// An unlocked mutex.
        #[must_use]
        pub fn new(value: T) -> Self {
            Self { raw: RawMutex::new(), value: UnsafeCell::new(value) }
        }
    }

    /// Takes the lock, waiting for it if it is held.
    ///
    /// Locking twice in the same ULT waits forever. Not a cancellation point: a cancelled ULT gets
    /// the lock first.
    ///
    /// Counterpart: `ABT_mutex_lock`.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock(WaitKind::Mutex);
        self.guard()
    }

    /// Takes the lock if it is free. Never waits.
    ///
    /// Counterpart: `ABT_mutex_trylock`.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock().then(|| self.guard())
    }

    /// Takes the lock, waiting for it no longer than until `deadline`. `None`: too late.
    ///
    /// If the lock comes at the same moment as the deadline, it is returned. A free lock is taken
    /// even if the deadline has passed.
    pub fn lock_deadline(&self, deadline: Instant) -> Option<MutexGuard<'_, T>> {
        self.raw.lock_until(WaitKind::Mutex, Some(deadline)).then(|| self.guard())
    }

    /// Like [`lock_deadline`](Self::lock_deadline), counted from now.
    pub fn lock_timeout(&self, timeout: Duration) -> Option<MutexGuard<'_, T>> {
        self.raw.lock_until(WaitKind::Mutex, after(timeout)).then(|| self.guard())
    }

    /// The value, without locking: `&mut self` proves that nobody else is here.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY:
        // - no alias: `&mut self`; the borrow is tied to it.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// The value, when the mutex is not needed any more.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// The caller has taken the lock.
    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, not_send: PhantomData }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

/// Access to the value of a locked [`Mutex`]; unlocks when dropped.
///
/// ```
/// let account = ult::Mutex::new(100);
/// let mut guard = account.lock();
/// *guard -= 30;
/// assert!(account.try_lock().is_none());
/// drop(guard);
/// assert_eq!(*account.lock(), 70);
/// ```
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// A guard stays in its ULT or thread, which is what users of locks expect.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives out `&T` only.
unsafe impl<T: Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T> MutexGuard<'a, T> {
    /// The mutex that this guard keeps locked.
    pub(crate) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY:
        // - no writer: the guard holds the lock; the borrow is tied to the guard.
        self.mutex.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - no alias: the guard holds the lock; the borrow is tied to `&mut` of the guard.
        self.mutex.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
