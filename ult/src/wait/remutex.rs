//! A mutex that its holder may lock again.
//!
//! # Who may touch what
//!
//! | field | who |
//! |---|---|
//! | `owner` | written by the holder of `raw`; anybody may ask whether it is himself: only the holder can find his own number there |
//! | `count` | the holder of `raw` |

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::RawMutex;
use crate::engine::waiting::waiter::after;
use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::wait::party::party_id;

/// A recursive mutex: the ULT, or the OS thread outside of ULTs, that holds it may lock it again,
/// and it is free when all guards are gone.
///
/// Several guards may exist, so they give shared access; put a `Cell` or `RefCell` inside to
/// change the value. Waiting, fairness and panics are as for [`Mutex`](crate::Mutex). Two ULTs of
/// one xstream are two parties, although they share an OS thread. A party that leaks a guard holds
/// the lock for ever: nobody else is taken for it after its end, not even the same unit
/// [revived](crate::Ended::revive).
///
/// ```
/// use std::cell::Cell;
/// use ult::ReentrantMutex;
///
/// static DEPTH: ReentrantMutex<Cell<u32>> = ReentrantMutex::new(Cell::new(0));
///
/// fn walk(levels: u32) {
///     // Locks again at each level.
///     let depth = DEPTH.lock();
///     depth.set(depth.get().max(levels));
///     if levels > 0 {
///         walk(levels - 1);
///     }
/// }
/// walk(3);
/// assert_eq!(DEPTH.lock().get(), 3);
/// ```
///
/// Counterpart: `ABT_mutex` with the recursive attribute.
pub struct ReentrantMutex<T> {
    raw: RawMutex,
    /// The holder's [`party_id`], zero while nobody holds it.
    owner: AtomicU64,
    /// Number of guards.
    count: UnsafeCell<usize>,
    value: T,
}

// SAFETY: the lock gives one party at a time access to the value, from any thread, hence `Send`;
// `&T` does not leave that party.
unsafe impl<T: Send> Sync for ReentrantMutex<T> {}
// SAFETY: an unborrowed mutex has no waiters, so it is its value.
unsafe impl<T: Send> Send for ReentrantMutex<T> {}

impl<T> ReentrantMutex<T> {
    const_new! {
        /// An unlocked mutex.
        #[must_use]
        pub fn new(value: T) -> Self {
            Self {
                raw: RawMutex::new(),
                owner: AtomicU64::new(0),
                count: UnsafeCell::new(0),
                value,
            }
        }
    }

    /// Takes the lock once more, waiting for it if another party holds it. Not a cancellation
    /// point.
    ///
    /// Counterpart: `ABT_mutex_lock`.
    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        let me = party_id();
        if !self.is_mine(me) {
            self.raw.lock(WaitKind::ReentrantMutex);
        }
        self.enter(me)
    }

    /// Takes the lock once more unless another party holds it. Never waits.
    pub fn try_lock(&self) -> Option<ReentrantMutexGuard<'_, T>> {
        let me = party_id();
        (self.is_mine(me) || self.raw.try_lock()).then(|| self.enter(me))
    }

    /// Takes the lock once more, waiting no longer than until `deadline`. `None`: too late.
    pub fn lock_deadline(&self, deadline: Instant) -> Option<ReentrantMutexGuard<'_, T>> {
        self.lock_until(Some(deadline))
    }

    /// Like [`lock_deadline`](Self::lock_deadline), counted from now.
    pub fn lock_timeout(&self, timeout: Duration) -> Option<ReentrantMutexGuard<'_, T>> {
        self.lock_until(after(timeout))
    }

    /// How many guards the caller has; zero if it does not hold the lock.
    #[must_use]
    pub fn lock_count(&self) -> usize {
        if !self.is_mine(party_id()) {
            return 0;
        }
        // SAFETY:
        // - no writer: the caller holds the lock.
        self.count.with(|count| unsafe { *count })
    }

    /// The value, without locking: `&mut self` proves that nobody else is here.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// The value, when the mutex is not needed any more.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value
    }

    fn lock_until(&self, deadline: Option<Instant>) -> Option<ReentrantMutexGuard<'_, T>> {
        let me = party_id();
        let is_held = self.is_mine(me) || self.raw.lock_until(WaitKind::ReentrantMutex, deadline);
        is_held.then(|| self.enter(me))
    }

    fn is_mine(&self, me: u64) -> bool {
        self.owner.load(Relaxed) == me
    }

    /// The caller holds the lock.
    fn enter(&self, me: u64) -> ReentrantMutexGuard<'_, T> {
        self.owner.store(me, Relaxed);
        self.count.with_mut(|count| {
            // SAFETY:
            // - no alias: only the holder touches the count, and the caller is it.
            let count = unsafe { &mut *count };
            *count = count.checked_add(1).expect("too many guards of one ReentrantMutex");
        });
        ReentrantMutexGuard { mutex: self, not_send: PhantomData }
    }

    fn leave(&self) {
        let is_last = self.count.with_mut(|count| {
            // SAFETY:
            // - no alias: only the holder touches the count, and the caller is it.
            let count = unsafe { &mut *count };
            *count -= 1;
            *count == 0
        });
        if is_last {
            self.owner.store(0, Relaxed);
            self.raw.unlock();
        }
    }
}

impl<T: Default> Default for ReentrantMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for ReentrantMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("ReentrantMutex").field(&&*guard).finish(),
            None => f.write_str("ReentrantMutex(<locked>)"),
        }
    }
}

/// Shared access to the value of a locked [`ReentrantMutex`]; unlocks once when dropped.
///
/// ```
/// let mutex = ult::ReentrantMutex::new("value");
/// let (first, second) = (mutex.lock(), mutex.lock());
/// assert_eq!((*first, *second), ("value", "value"));
/// drop(first);
/// // Locked until the last guard is gone.
/// assert_eq!(mutex.lock_count(), 1);
/// ```
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct ReentrantMutexGuard<'a, T> {
    mutex: &'a ReentrantMutex<T>,
    /// The lock belongs to the ULT or thread that took it. A shared guard must not leave it
    /// either: `T` need not be `Sync`.
    not_send: PhantomData<*const ()>,
}

impl<T> Deref for ReentrantMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.mutex.value
    }
}

impl<T> Drop for ReentrantMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.leave();
    }
}

impl<T: fmt::Debug> fmt::Debug for ReentrantMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
