//! The word in which a unit that ends, its handle, and its waiters meet.
//!
//! | word | meaning |
//! |---|---|
//! | null | not ended, nobody waits |
//! | a waiter | not ended; the newest waiter, the others are linked behind it |
//! | a waiter + `LOCKED` | as above; a waiter is unlinking itself, everybody else retries |
//! | `DETACHED` | the handle is gone, or there never was one |
//! | `DONE` | the outcome is there, and belongs to the handle |
//!
//! # Who may touch what
//!
//! - The unit calls [`publish`](JoinWord::publish) once. It touches the word no more once that has
//!   stored `DONE`, so a party that sees `DONE` may free the word.
//! - The owner of the handle calls [`detach`](JoinWord::detach) when nobody waits any more: a
//!   waiter borrows the handle, or owns it. So `DETACHED` never replaces a waiter.
//! - Of `publish` and `detach` one comes second and is told so: that party drops what both had in
//!   common.
//! - Waiters are linked by their party, and unlinked by it (deadline, cancel, a future that is
//!   dropped) or all at once by `publish`, which must wake them.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use std::ptr::NonNull;
use std::time::Instant;

use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{DETACHED, DONE, JoinWord, UNJOINED, Waiter, Word};
use crate::engine::waiting::list::{next_of, remove_from, set_first};
use crate::engine::waiting::waiter::Deferred;
use crate::engine::waiting::watch::Watch;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::relax;

/// A bit that addresses of waiters leave free.
const LOCKED: usize = 4;

/// The parties that a unit met at its end.
#[derive(Debug)]
#[must_use = "whoever is told of waiters must wake them"]
pub enum Published {
    /// There were no waiters. The handle comes second.
    First,
    /// The handle is gone: the unit comes second.
    Detached,
    /// There were waiters. The handle comes second.
    Waited(Waiters),
}

/// The waiters that were taken out of the word.
#[derive(Debug)]
#[must_use = "whoever takes waiters out must wake them"]
pub struct Waiters(NonNull<Waiter>);

impl JoinWord {
    /// Returns whether the handle is gone, which is final as long as the unit has not ended.
    #[inline]
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.0.load(Acquire) == DETACHED // pair: JOIN-DETACH
    }

    /// Gives up the handle. `true`: the unit has ended, and the outcome is the caller's.
    #[inline]
    pub fn detach(&self) -> bool {
        // pair: JOIN-DONE, JOIN-DETACH
        self.is_done() || self.0.swap(DETACHED, AcqRel) == DONE
    }

    /// [`publish`](Self::publish) where nobody waits and the handle is there: `Published::First`,
    /// in one step. `false`: nothing has happened.
    #[inline]
    pub fn publish_unwatched(&self) -> bool {
        // pair: JOIN-DONE
        self.0.compare_exchange(UNJOINED, DONE, AcqRel, Relaxed).is_ok()
    }

    /// The unit has ended and its outcome is written. The last access of the unit to the word,
    /// except after [`Published::Detached`].
    #[inline]
    pub fn publish(&self) -> Published {
        let word = self.0.load(Relaxed);
        // pair: JOIN-DONE, JOIN-WAITER, JOIN-DETACH
        let word =
            if !is_locked(word) && self.0.compare_exchange(word, DONE, AcqRel, Relaxed).is_ok() {
                word
            } else {
                self.publish_slowly()
            };
        match NonNull::new(word) {
            None => Published::First,
            Some(_) if word == DETACHED => Published::Detached,
            Some(newest) => Published::Waited(Waiters(newest)),
        }
    }

    #[cold]
    fn publish_slowly(&self) -> Word {
        let mut round = 0;
        let mut word = self.0.load(Relaxed);
        loop {
            if is_locked(word) {
                relax(&mut round);
                word = self.0.load(Relaxed);
                continue;
            }
            // pair: JOIN-DONE, JOIN-WAITER, JOIN-DETACH
            match self.0.compare_exchange_weak(word, DONE, AcqRel, Relaxed) {
                Ok(_) => return word,
                Err(seen) => word = seen,
            }
        }
    }

    /// Waits until the unit has ended (`true`) or `deadline` has passed.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        if self.is_done() {
            return true;
        }
        let waiter = Waiter::new(WaitKind::Join);
        let node = NonNull::from(&waiter);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or unlinked (`settle`).
        !unsafe { self.link(node) } || waiter.settle(deadline, || self.unlink(node))
    }

    /// Waits until the unit has ended, also if the caller is cancelled meanwhile.
    pub fn wait_fully(&self) {
        let waiter = Waiter::new(WaitKind::Join);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken.
        if unsafe { self.link(NonNull::from(&waiter)) } {
            waiter.block_fully();
        }
    }

    /// Adds a waiter. `false`: the unit has ended, and the waiter is not linked.
    ///
    /// # Safety
    ///
    /// It is in no list, and stays alive and where it is until it is woken or unlinked.
    #[inline]
    unsafe fn link(&self, node: NonNull<Waiter>) -> bool {
        let mut round = 0;
        let mut word = self.0.load(Acquire); // pair: JOIN-DONE
        loop {
            if word == DONE {
                return false;
            }
            if is_locked(word) {
                relax(&mut round);
                word = self.0.load(Acquire); // pair: JOIN-DONE
                continue;
            }
            // SAFETY:
            // - alive: duty of the caller; ours until the exchange below publishes it.
            unsafe { set_first(node, word) };
            // pair: JOIN-WAITER, JOIN-DONE
            match self.0.compare_exchange_weak(word, node.as_ptr(), Release, Acquire) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Takes a waiter out that its party has linked. `false`: the unit has taken it, and wakes it.
    #[cold]
    fn unlink(&self, node: NonNull<Waiter>) -> bool {
        let mut round = 0;
        let mut word = self.0.load(Acquire); // pair: JOIN-DONE
        loop {
            if word == DONE {
                return false;
            }
            if is_locked(word) {
                relax(&mut round);
                word = self.0.load(Acquire); // pair: JOIN-DONE
                continue;
            }
            let locked = word.map_addr(|addr| addr | LOCKED);
            // pair: JOIN-WAITER, JOIN-DONE
            match self.0.compare_exchange_weak(word, locked, AcqRel, Acquire) {
                Ok(_) => break,
                Err(seen) => word = seen,
            }
        }
        // SAFETY:
        // - alive: linked waiters stay until they are unlinked or woken, both of which need the
        //   word, and `node` is still linked;
        // - links: only the holder of `LOCKED` writes those of the chain.
        let rest = unsafe { remove_from(word, node) };
        // Nobody changes the word while LOCKED is set, so a store is enough.
        self.0.store(rest, Release); // pair: JOIN-WAITER
        true
    }
}

/// Ready when the unit has ended.
impl Watch for JoinWord {
    fn is_ready(&self) -> bool {
        self.is_done()
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.link(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.unlink(node)
    }
}

#[cfg(loom)]
impl Drop for JoinWord {
    fn drop(&mut self) {
        // The model then reports every access that is not ordered before this.
        self.0.with_mut(|_| ());
    }
}

#[inline]
fn is_locked(word: Word) -> bool {
    word.addr() & LOCKED != 0
}

impl Waiters {
    /// Wakes all, async tasks after all others.
    #[inline]
    pub fn wake(self) {
        // SAFETY:
        // - alive: not yet woken; no writer: the chain is ours.
        if unsafe { next_of(self.0) }.is_null() {
            // SAFETY:
            // - alive, unlinked: not yet woken, taken by `publish`; not touched afterwards.
            return unsafe { Waiter::wake(self.0) };
        }
        self.wake_several();
    }

    #[cold]
    fn wake_several(self) {
        let mut deferred = Deferred::new();
        let mut next = self.0.as_ptr();
        while let Some(node) = NonNull::new(next) {
            // SAFETY:
            // - alive: not yet woken; no writer: the chain is ours.
            next = unsafe { next_of(node) };
            // SAFETY:
            // - alive, unlinked: not yet woken, taken by `publish`; not touched afterwards.
            unsafe { Waiter::wake_among(node, &mut deferred) };
        }
        deferred.fire();
    }
}
