//! The record of one waiting party, and the places that hold such records: lists, the lock of all
//! mutexes, the signal of changes, and the join word of a unit.
//!
//! What is done with them is in [`waiting`](crate::engine::waiting). All of it but the signal
//! compiles for the models in `loom-tests`, where only OS threads and tasks wait.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use std::ptr;
#[cfg(not(loom))]
use std::ptr::NonNull;
use std::task::Waker;

use crate::base::const_new::const_new;
use crate::base::park_word::ThreadParker;
use crate::base::wait_kind::WaitKind;
#[cfg(not(loom))]
use crate::engine::model::unit::UltPtr;
#[cfg(not(loom))]
use crate::engine::model::xstream_shared::XstreamShared;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};
use crate::sync::atomic::{AtomicPtr, AtomicUsize};
use crate::sync::{Arc, Mutex, UnsafeCell};

/// A waiting party. Aligned so that three low bits of its address are free for flags.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Waiter {
    /// The place in the list of the object.
    pub(crate) links: UnsafeCell<Links>,
    /// Zero until woken, then the note of the waker.
    pub(in crate::engine) woken: AtomicUsize,
    pub(in crate::engine) party: Party,
    /// The home of the ULT, in the same cache line for a waker to ask for it early.
    #[cfg(not(loom))]
    pub(in crate::engine) home: *const XstreamShared,
    /// A value that the object attaches to the wait: how many permits it asks for, where the item
    /// goes. Constant while the waiter is linked.
    pub(crate) tag: *mut (),
    pub(in crate::engine) kind: WaitKind,
}

/// The waiting party: a ULT, an OS thread or an async task.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Party {
    #[cfg(not(loom))]
    Ult(UltPtr),
    Thread(Arc<ThreadParker>),
    Task(Waker),
}

/// The place of a waiter in a list.
#[derive(Debug)]
pub(crate) struct Links {
    pub(in crate::engine) prev: *mut Waiter,
    pub(crate) next: *mut Waiter,
    pub(in crate::engine) is_linked: bool,
}

impl Links {
    pub(crate) const fn new() -> Self {
        Self { prev: ptr::null_mut(), next: ptr::null_mut(), is_linked: false }
    }
}

/// A list of waiters, first come, first served; see [`list`](crate::engine::waiting::list).
#[derive(Debug)]
pub(crate) struct WaitList {
    pub(in crate::engine) first: *mut Waiter,
    pub(in crate::engine) last: *mut Waiter,
}

// SAFETY: the list is a claim to waiters, which may be woken from any thread.
unsafe impl Send for WaitList {}

impl WaitList {
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null_mut(), last: ptr::null_mut() }
    }
}

/// The lock in all mutexes; see [`raw_mutex`](crate::engine::waiting::raw_mutex).
#[derive(Debug)]
pub(crate) struct RawMutex {
    pub(in crate::engine) state: AtomicUsize,
    pub(in crate::engine) queue: Mutex<WaitList>,
}

impl RawMutex {
    const_new! {
        pub(crate) fn new() -> Self {
            Self { state: AtomicUsize::new(0), queue: Mutex::new(WaitList::new()) }
        }
    }
}

/// A place to wait until something has changed; see
/// [`change_signal`](crate::engine::waiting::change_signal).
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct ChangeSignal(pub(in crate::engine) Mutex<Vec<ParkedWaiter>>);

#[cfg(not(loom))]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParkedWaiter(pub(in crate::engine) NonNull<Waiter>);

// SAFETY: the claim to wake a waiter, which may be done from any thread.
#[cfg(not(loom))]
unsafe impl Send for ParkedWaiter {}

#[cfg(not(loom))]
impl ChangeSignal {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

pub(crate) type Word = *mut Waiter;

/// The first word of a unit that has a handle.
pub(crate) const UNJOINED: Word = ptr::null_mut();

/// The first word of a unit that never has one.
pub(crate) const DETACHED: Word = ptr::without_provenance_mut(1);

/// The word of a unit that has ended, and whose outcome is there.
pub(in crate::engine) const DONE: Word = ptr::without_provenance_mut(2);

/// The word in which a unit that ends, its handle, and its waiters meet; see
/// [`join_word`](crate::engine::waiting::join_word).
#[derive(Debug)]
pub struct JoinWord(pub(in crate::engine) AtomicPtr<Waiter>);

impl JoinWord {
    /// The word of a unit that has not ended and has a handle.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicPtr::new(UNJOINED))
    }

    /// Makes the word ready for the next unit. Nobody else may use it.
    #[cfg_attr(loom, allow(dead_code, reason = "the models make a new word each time"))]
    #[inline]
    pub(crate) fn reset(&self, first: Word) {
        self.0.store(first, Relaxed);
    }

    /// Returns whether the outcome is there.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.load(Acquire) == DONE // pair: JOIN-DONE
    }
}

impl Default for JoinWord {
    fn default() -> Self {
        Self::new()
    }
}
