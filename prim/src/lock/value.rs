//! A value behind one of the lock protocols.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::barrier::thread_token;
use super::biased::{Hold, RawBiasedLock};
use super::plain::RawLock;
use crate::sync::UnsafeCell;

/// A lock protocol, which lets one holder at a time reach the value.
///
/// # Safety
///
/// From when `acquire`, or `try_acquire` with success, returns until `release` is called with what
/// it returned, on the same thread, no other call of them returns with success; and everything done
/// in between is visible to the next holder.
pub unsafe trait Protocol {
    /// The token that the holder must give back.
    type Hold: Copy;
    /// Has the alignment that the lock is to have.
    type Place: Default;

    /// Not held.
    fn free() -> Self;
    /// Waits until it is free, and takes it.
    fn acquire(&self) -> Self::Hold;
    /// Takes it if it is free.
    fn try_acquire(&self) -> Option<Self::Hold>;
    /// Gives it back; only for who holds it.
    fn release(&self, held: Self::Hold);
}

// SAFETY: the protocol's promise, which a loom model checks.
unsafe impl Protocol for RawLock {
    type Hold = ();
    type Place = ();

    fn free() -> Self {
        Self::new()
    }

    #[inline(always)]
    fn acquire(&self) {
        Self::acquire(self);
    }

    #[inline(always)]
    fn try_acquire(&self) -> Option<()> {
        Self::try_acquire(self).then_some(())
    }

    #[inline(always)]
    fn release(&self, (): ()) {
        Self::release(self);
    }
}

// SAFETY: the protocol's promise, which loom models check; it asks that the token is that of the
// calling thread, which this is, and that the thread is the same for `release`.
unsafe impl Protocol for RawBiasedLock {
    type Hold = Hold;
    type Place = OwnLines;

    fn free() -> Self {
        Self::new()
    }

    #[inline(always)]
    fn acquire(&self) -> Hold {
        Self::acquire(self, thread_token())
    }

    #[inline(always)]
    fn try_acquire(&self) -> Option<Hold> {
        Self::try_acquire(self, thread_token())
    }

    #[inline(always)]
    fn release(&self, held: Hold) {
        Self::release(self, held);
    }
}

/// Keeps what is taken and given back with each message away from what stands beside it: other
/// threads read that, and would wait for the line each time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLines;

/// A value that is reached by one at a time.
///
/// ```
/// use prim::lock::Lock;
///
/// let lock: Lock<u32> = Lock::new(1);
/// *lock.lock() += 1;
/// let held = lock.try_lock();
/// assert!(held.is_some_and(|value| *value == 2));
/// ```
pub struct Lock<T, P: Protocol = RawLock> {
    _place: P::Place,
    raw: P,
    value: UnsafeCell<T>,
}

/// A value that mostly one thread reaches.
///
/// ```
/// use prim::lock::BiasedLock;
///
/// let lock = BiasedLock::new(0);
/// for _ in 0..1000 {
///     *lock.lock() += 1; // cheaper, once it is seen that nobody else comes
/// }
/// assert_eq!(*lock.lock(), 1000);
/// ```
pub type BiasedLock<T> = Lock<T, RawBiasedLock>;

// SAFETY: the value is reached by one thread at a time (`Protocol`), which is a move if `T: Send`.
unsafe impl<T: Send, P: Protocol + Sync> Sync for Lock<T, P> {}

impl<T, P: Protocol> Lock<T, P> {
    /// Not held.
    pub fn new(value: T) -> Self {
        Self { _place: P::Place::default(), raw: P::free(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. It is given back when the guard is dropped, also by a panic. A thread
    /// that holds it already waits for ever.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, P> {
        Guard { held: self.raw.acquire(), lock: self, thread: PhantomData }
    }

    /// The lock, if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T, P>> {
        let held = self.raw.try_acquire()?;
        Some(Guard { held, lock: self, thread: PhantomData })
    }

    /// The value, which nobody else can reach.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: valid and unshared: `&mut self`, and the guards borrow the lock.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> BiasedLock<T> {
    /// The place of the calling thread, if it is favoured still ([`RawBiasedLock::place_of`]).
    #[inline]
    pub fn our_place(&self) -> Option<usize> {
        self.raw.place_of(thread_token())
    }
}

impl<T> BiasedGuard<'_, T> {
    /// The place of the thread, if it has the lock by favour.
    #[inline]
    pub fn place(&self) -> Option<usize> {
        match self.held {
            Hold::Inside(place) => Some(place.into()),
            Hold::Plain | Hold::Last => None,
        }
    }
}

impl<T: Default, P: Protocol> Default for Lock<T, P> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, P: Protocol> fmt::Debug for Lock<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock(..)")
    }
}

/// Access to the value of a held [`Lock`].
///
/// ```
/// use prim::lock::Lock;
///
/// let lock: Lock<u32> = Lock::new(1);
/// let guard = lock.lock();
/// assert!(lock.try_lock().is_none());
/// drop(guard);
/// assert!(lock.try_lock().is_some());
/// ```
pub struct Guard<'a, T, P: Protocol = RawLock> {
    lock: &'a Lock<T, P>,
    held: P::Hold,
    /// Given back by the thread that took it ([`Protocol`]).
    thread: PhantomData<*const ()>,
}

/// The guard of a [`BiasedLock`].
///
/// ```
/// use prim::lock::{BiasedGuard, BiasedLock};
///
/// fn push(mut list: BiasedGuard<'_, Vec<u32>>) {
///     list.push(7);
/// }
/// let list = BiasedLock::new(Vec::new());
/// push(list.lock());
/// assert_eq!(*list.lock(), [7]);
/// ```
pub type BiasedGuard<'a, T> = Guard<'a, T, RawBiasedLock>;

impl<T, P: Protocol> fmt::Debug for Guard<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}

impl<T, P: Protocol> Deref for Guard<'_, T, P> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY:
        // - valid: the cell is part of the lock, which the guard borrows;
        // - aliasing: only the holder of the lock makes references, and a mutable one needs
        //   `&mut self`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, P: Protocol> DerefMut for Guard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - valid: the cell is part of the lock, which the guard borrows;
        // - aliasing: only the holder of the lock makes references, and `&mut self` is exclusive.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, P: Protocol> Drop for Guard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.release(self.held);
    }
}
