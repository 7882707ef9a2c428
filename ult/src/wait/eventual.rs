//! A value that is set once and awaited by any number of ULTs and OS threads.
//!
//! # States
//!
//! One word holds the head of the waiter list and three flags:
//!
//! | flag | meaning |
//! |---|---|
//! | `LOCKED` | a waiter whose deadline passed is unlinking itself; everybody else retries |
//! | `CLAIMED` | a `set` has won and is writing the value |
//! | `READY` | the value is there; final, and the list is empty |
//!
//! # Why a waiter may free the eventual at once
//!
//! `set` ends with one compare-exchange to `READY`, which also takes the waiter list, and touches
//! the eventual no more. The list is then woken node by node; the nodes live on the waiters' own
//! stacks and each is dead once it is woken (see [`wait`](crate::engine::waiting::waiter)). So a
//! waiter that owns the eventual, for example on its own stack, may drop it as soon as it sees
//! `READY`.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::list::{next_of, remove_from, set_first, set_next};
use crate::engine::waiting::waiter::{Deferred, after};
use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{UnsafeCell, relax};
use prim::prefetch;

const LOCKED: usize = 1;
const CLAIMED: usize = 2;
const READY: usize = 4;
const FLAGS: usize = LOCKED | CLAIMED | READY;

type Word = *mut Waiter;

fn flags(word: Word) -> usize {
    word.addr() & FLAGS
}

fn head(word: Word) -> Word {
    word.map_addr(|addr| addr & !FLAGS)
}

fn with_flags(head: Word, flags: usize) -> Word {
    head.map_addr(|addr| addr | flags)
}

/// A single-assignment value.
///
/// Works between ULTs of any xstream and ordinary OS threads, in any mixture: a ULT that waits
/// suspends, an OS thread blocks.
///
/// ```
/// let answer = std::sync::Arc::new(ult::Eventual::new());
/// let setter = answer.clone();
/// std::thread::spawn(move || setter.set(42));
/// assert_eq!(*answer.wait(), 42);
/// ```
///
/// Counterpart: `ABT_eventual`, but typed, with deadlines, and set at most once.
#[derive(Debug)]
pub struct Eventual<T> {
    state: AtomicPtr<Waiter>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: `set` moves a `T` in from any thread and `into_inner` or `drop` moves it out on another
// (needs `T: Send`). Methods that hand out `&T` ask for `T: Sync` themselves. `state` orders them.
unsafe impl<T: Send> Sync for Eventual<T> {}
// SAFETY: it owns a `T` and pointers to waiters, which may be woken from any thread.
unsafe impl<T: Send> Send for Eventual<T> {}

impl<T> Eventual<T> {
    const_new! {
        /// An eventual without a value.
        #[must_use]
        pub fn new() -> Self {
            Self {
                state: AtomicPtr::new(ptr::null_mut()),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }
    }

    const_new! {
        /// An eventual that has been set.
        pub(crate) fn new_ready(value: T) -> Self {
            Self {
                state: AtomicPtr::new(ptr::without_provenance_mut(READY)),
                value: UnsafeCell::new(MaybeUninit::new(value)),
            }
        }
    }

    /// Returns whether the value is there.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // pair: EVENTUAL-READY
        flags(self.state.load(Acquire)) & READY != 0
    }

    /// Sets the value and wakes all waiters. Never blocks.
    ///
    /// The eventual is not touched any more once a waiter can see the value, so a waiter may free
    /// it while this call is still waking others.
    ///
    /// # Errors
    ///
    /// Gives `value` back if the eventual has been set before.
    ///
    /// Counterpart: `ABT_eventual_set`.
    pub fn set(&self, value: T) -> Result<(), T> {
        prefetch::for_write(&raw const self.state);
        if !self.claim() {
            return Err(value);
        }
        // SAFETY: `claim` succeeds once, so it has not been set, and nobody else sets it.
        unsafe { self.set_alone(value) };
        Ok(())
    }

    /// As [`set`](Self::set), for a caller that knows that nobody else sets it: one atomic step
    /// less, and the value need not be able to come back.
    ///
    /// # Safety
    ///
    /// The eventual has not been set, and nobody else sets it.
    // Inlined, so that a large value is made where it stays.
    #[inline(always)]
    pub unsafe fn set_alone(&self, value: T) {
        prefetch::for_write(&raw const self.state);
        // SAFETY:
        // - no alias: nobody else sets (contract), and readers wait for READY.
        self.value.with_mut(|slot| unsafe { slot.cast::<T>().write(value) });
        let waiters = self.publish();
        // From here on `self` may be gone.
        //
        // SAFETY:
        // - alive, unlinked: `publish` took the list, and nobody removes or wakes from it later.
        unsafe { wake_reversed(waiters) };
    }

    /// Waits until the value is there, without looking at it.
    pub fn wait_ready(&self) {
        if !self.is_ready() {
            self.wait_slow(WaitKind::Eventual, None);
        }
    }

    /// Waits until the value is there, whatever happens: not a cancellation point. For what
    /// somebody else uses until then, such as memory.
    pub fn wait_ready_fully(&self) {
        if self.is_ready() {
            return;
        }
        let waiter = Waiter::new(WaitKind::Eventual);
        if waiter.spin_idle(None, || self.is_ready()) {
            return;
        }
        // SAFETY:
        // - in no list: fresh; it stays until it is woken, since the next line returns only then.
        if unsafe { self.link(NonNull::from(&waiter)) } {
            waiter.block_fully();
        }
    }

    /// Waits until the value is there or `deadline` has passed. `true`: it is there.
    pub fn wait_ready_deadline(&self, deadline: Instant) -> bool {
        self.wait_ready_as(WaitKind::Eventual, Some(deadline))
    }

    /// Like [`wait_ready_deadline`](Self::wait_ready_deadline), counted from now.
    pub fn wait_ready_timeout(&self, timeout: Duration) -> bool {
        self.wait_ready_as(WaitKind::Eventual, after(timeout))
    }

    /// For objects that are made of an eventual.
    pub(crate) fn wait_ready_as(&self, kind: WaitKind, deadline: Option<Instant>) -> bool {
        self.is_ready() || self.wait_slow(kind, deadline)
    }

    /// Takes the value out. `None` if it has not been set. The eventual is empty afterwards and
    /// can be set again.
    pub fn take(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        self.state.store(ptr::null_mut(), Relaxed);
        // SAFETY:
        // - initialised: READY was set; read once, since the state is empty again;
        // - no alias: `&mut self`.
        Some(self.value.with_mut(|slot| unsafe { slot.cast::<T>().read() }))
    }

    /// Takes the value out. `None` if it has not been set.
    #[must_use]
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Wins the right to write the value, once.
    #[inline]
    fn claim(&self) -> bool {
        let mut round = 0;
        let mut word = self.state.load(Relaxed);
        loop {
            if flags(word) & (CLAIMED | READY) != 0 {
                return false;
            }
            if flags(word) & LOCKED != 0 {
                relax(&mut round);
                word = self.state.load(Relaxed);
                continue;
            }
            let next = with_flags(word, CLAIMED);
            match self.state.compare_exchange_weak(word, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Makes the value visible and takes the waiter list. The last access to `self` in `set`.
    #[inline]
    fn publish(&self) -> Word {
        let mut round = 0;
        let mut word = self.state.load(Relaxed);
        loop {
            if flags(word) & LOCKED != 0 {
                relax(&mut round);
                word = self.state.load(Relaxed);
                continue;
            }
            let ready = with_flags(ptr::null_mut(), READY);
            // pair: EVENTUAL-READY, EVENTUAL-LIST
            match self.state.compare_exchange_weak(word, ready, AcqRel, Relaxed) {
                Ok(_) => return head(word),
                Err(seen) => word = seen,
            }
        }
    }

    #[cold]
    fn wait_slow(&self, kind: WaitKind, deadline: Option<Instant>) -> bool {
        let waiter = Waiter::new(kind);
        if waiter.spin_idle(deadline, || self.is_ready()) {
            return true;
        }
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or unlinked (`settle`).
        !unsafe { self.link(node) } || waiter.settle(deadline, || self.unlink(node))
    }

    /// Adds `node`. `false`: the value is there.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays alive and where it is until it is woken or unlinked.
    pub(crate) unsafe fn link(&self, node: NonNull<Waiter>) -> bool {
        let mut round = 0;
        let mut word = self.state.load(Acquire); // pair: EVENTUAL-READY
        loop {
            if flags(word) & READY != 0 {
                return false;
            }
            if flags(word) & LOCKED != 0 {
                relax(&mut round);
                word = self.state.load(Acquire); // pair: EVENTUAL-READY
                continue;
            }
            // SAFETY:
            // - alive: duty of the caller; ours until the exchange below publishes it.
            unsafe { set_first(node, head(word)) };
            let next = with_flags(node.as_ptr(), flags(word));
            // pair: EVENTUAL-LIST, EVENTUAL-READY
            match self.state.compare_exchange_weak(word, next, Release, Acquire) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Removes `node`, which its party has linked. `false`: the setter has taken the list.
    pub(crate) fn unlink(&self, node: NonNull<Waiter>) -> bool {
        let mut round = 0;
        let mut word = self.state.load(Acquire); // pair: EVENTUAL-READY
        loop {
            if flags(word) & READY != 0 {
                return false;
            }
            if flags(word) & LOCKED != 0 {
                relax(&mut round);
                word = self.state.load(Acquire); // pair: EVENTUAL-READY
                continue;
            }
            let locked = with_flags(word, LOCKED);
            // pair: EVENTUAL-LIST, EVENTUAL-READY
            match self.state.compare_exchange_weak(word, locked, AcqRel, Acquire) {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        // SAFETY:
        // - alive: linked waiters stay until they are unlinked or woken, both of which need the
        //   word, and `node` is still linked;
        // - links: only the holder of `LOCKED` writes those of the chain.
        let rest = unsafe { remove_from(head(word), node) };
        // Nobody changes the word while LOCKED is set, so a store is enough.
        self.state.store(with_flags(rest, flags(word)), Release); // pair: EVENTUAL-LIST
        true
    }
}

/// Wakes a chain, the last one first, because that came first; async tasks after all others.
///
/// # Safety
///
/// All of it are alive and not woken, and the caller took the whole chain out of its object.
unsafe fn wake_reversed(newest: Word) {
    prefetch::for_write(newest);
    let mut at = newest;
    let mut oldest = ptr::null_mut();
    while let Some(node) = NonNull::new(at) {
        // SAFETY:
        // - alive: duty of the caller; no writer: the chain is ours.
        at = unsafe { next_of(node) };
        // SAFETY: as above.
        unsafe { set_next(node, oldest) };
        oldest = node.as_ptr();
    }
    let mut deferred = Deferred::new();
    while let Some(node) = NonNull::new(oldest) {
        // SAFETY:
        // - alive: not yet woken; read before it is.
        oldest = unsafe { next_of(node) };
        // SAFETY:
        // - alive, unlinked: duty of the caller; not touched afterwards.
        unsafe { Waiter::wake_among(node, &mut deferred) };
    }
    deferred.fire();
}

impl<T: Sync> Eventual<T> {
    /// The value, if it has been set.
    #[must_use]
    pub fn try_get(&self) -> Option<&T> {
        if !self.is_ready() {
            return None;
        }
        // SAFETY:
        // - initialised: READY is published after the value was written, and `is_ready` acquires;
        // - no writer: READY is final while `&self` exists, and `set` refuses;
        // - lifetime: the value lives in `self`, and the borrow is tied to `&self`.
        Some(self.value.with(|slot| unsafe { &*slot.cast::<T>() }))
    }

    /// Waits for the value. A ULT suspends, an OS thread blocks.
    ///
    /// Counterpart: `ABT_eventual_wait`.
    pub fn wait(&self) -> &T {
        loop {
            self.wait_ready();
            if let Some(value) = self.try_get() {
                return value;
            }
        }
    }

    /// Waits for the value until `deadline`. `None`: it has not been set by then.
    ///
    /// Counterpart: `ABT_eventual_timedwait`.
    pub fn wait_deadline(&self, deadline: Instant) -> Option<&T> {
        self.wait_ready_deadline(deadline);
        self.try_get()
    }

    /// Like [`wait_deadline`](Self::wait_deadline), counted from now.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<&T> {
        self.wait_ready_timeout(timeout);
        self.try_get()
    }
}

impl<T> Default for Eventual<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Eventual<T> {
    fn drop(&mut self) {
        drop(self.take());
        // The model then reports every access that is not ordered before this.
        #[cfg(loom)]
        self.state.with_mut(|_| ());
    }
}
