//! Mutual exclusion among ULTs and OS threads, first come first served.
//!
//! # States
//!
//! | `state` | meaning |
//! |---|---|
//! | null | unlocked |
//! | `LOCKED` | locked, nobody came since the holder last looked |
//! | waiter + `LOCKED` | locked; waiters that came since, newest first |
//!
//! The `queue` of older waiters belongs to the holder, as the protected value does. Unlock takes
//! the newcomers, appends them oldest first, and hands the lock to the front of the queue: the
//! state stays `LOCKED`, and only that one waiter wakes up, already holding the lock. Nobody can
//! overtake, and no herd wakes for one lock.
//!
//! An uncontended lock or unlock is one compare-exchange and never yields. The last thing that
//! unlock touches is either the state (when it becomes null) or the woken waiter, so the next
//! holder may free the mutex at once.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::wait::Waiter;
use crate::wait_kind::WaitKind;

const LOCKED: usize = 1;

type Word = *mut Waiter;

fn locked(head: Word) -> Word {
    head.map_addr(|addr| addr | LOCKED)
}

fn head(word: Word) -> Word {
    word.map_addr(|addr| addr & !LOCKED)
}

/// A mutex that suspends a waiting ULT and blocks a waiting OS thread.
///
/// Fair (first come, first served), not recursive, and without poisoning: a panic while the lock
/// is held unlocks it. It may be held across a suspension, since it belongs to the guard and not to
/// a thread; the guard itself does not leave its ULT (`!Send`).
///
/// Counterpart: `ABT_mutex`.
pub struct Mutex<T> {
    state: AtomicPtr<Waiter>,
    /// First of the chain of waiters in the order in which they get the lock; the holder's.
    queue: UnsafeCell<Word>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one party at a time access to the value, from any thread, hence `Send`;
// `&T` is only handed out through a guard.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: an unborrowed mutex has no waiters, so it is its value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self {
            state: AtomicPtr::new(ptr::null_mut()),
            queue: UnsafeCell::new(ptr::null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// An unlocked mutex.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            state: AtomicPtr::new(ptr::null_mut()),
            queue: UnsafeCell::new(ptr::null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, waiting for its turn if it is held.
    ///
    /// Locking twice in the same ULT waits forever.
    ///
    /// Counterpart: `ABT_mutex_lock`.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.acquire();
        MutexGuard { mutex: self, not_send: PhantomData }
    }

    /// Takes the lock if it is free. Never waits.
    ///
    /// Counterpart: `ABT_mutex_trylock`.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.try_acquire().then(|| MutexGuard { mutex: self, not_send: PhantomData })
    }

    /// The value, without locking: `&mut self` proves that nobody else is here.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY:
        // - no alias: `&mut self`; the borrow is tied to it.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    fn try_acquire(&self) -> bool {
        let free = ptr::null_mut();
        // pair: MUTEX-HANDOVER
        self.state.compare_exchange(free, locked(free), Acquire, Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn acquire(&self) {
        if !self.try_acquire() {
            self.acquire_slow();
        }
    }

    #[cold]
    fn acquire_slow(&self) {
        let waiter = Waiter::new(WaitKind::Mutex);
        let node = ptr::from_ref(&waiter).cast_mut();
        let mut word = self.state.load(Relaxed);
        loop {
            if word.is_null() {
                if self.try_acquire() {
                    return;
                }
                word = self.state.load(Relaxed);
                continue;
            }
            waiter.next.store(head(word), Relaxed);
            // pair: MUTEX-NEWCOMERS
            match self.state.compare_exchange_weak(word, locked(node), Release, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        // The lock is handed over with the wake-up.
        waiter.block(None);
    }

    /// Gives the lock to the next waiter, or frees it. The caller holds it.
    #[inline]
    pub(crate) fn release(&self) {
        if let Some(next) = self.pop_waiter() {
            return Self::hand_over(next);
        }
        let free = ptr::null_mut();
        // pair: MUTEX-HANDOVER
        if self.state.compare_exchange(locked(free), free, Release, Relaxed).is_err() {
            self.release_slow();
        }
    }

    /// Takes the newcomers into the queue, which is empty, and hands the lock to the oldest.
    #[cold]
    fn release_slow(&self) {
        // pair: MUTEX-NEWCOMERS
        let newcomers = head(self.state.swap(locked(ptr::null_mut()), Acquire));
        // SAFETY:
        // - alive: linked waiters stay until they are woken; the swap made the chain ours.
        let oldest = unsafe { Waiter::reverse(newcomers) };
        // SAFETY:
        // - no alias: only the holder of the lock touches the queue, and the caller holds it.
        self.queue.with_mut(|queue| unsafe { *queue = oldest });
        if let Some(next) = self.pop_waiter() {
            Self::hand_over(next);
        }
    }

    /// Wakes `next`, which holds the lock from then on and may free the mutex.
    fn hand_over(next: NonNull<Waiter>) {
        // SAFETY:
        // - alive, unlinked: it was in the queue, and `pop_waiter` took it out;
        // - not touched afterwards.
        unsafe { Waiter::wake(next) };
    }

    /// Takes the oldest waiter out of the holder's queue.
    fn pop_waiter(&self) -> Option<NonNull<Waiter>> {
        self.queue.with_mut(|queue| {
            // SAFETY:
            // - no alias: only the holder of the lock touches the queue, and the caller holds it.
            let queue = unsafe { &mut *queue };
            let waiter = NonNull::new(*queue)?;
            // SAFETY:
            // - alive: queued waiters stay until they are woken.
            *queue = unsafe { waiter.as_ref() }.next.load(Relaxed);
            Some(waiter)
        })
    }
}

#[cfg(loom)]
impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        // The model then reports every access that is not ordered before this.
        self.state.with_mut(|_| ());
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
    #[cfg(not(loom))]
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
    fn drop(&mut self) {
        self.mutex.release();
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
