//! One waiting party of a sync object, on the stack of whoever waits.
//!
//! All sync objects (eventual, mutex, condition variable, join) keep lists of [`Waiter`]s and do
//! not know whether a ULT or an OS thread stands behind one. A waiter is `woken` once; a ULT that
//! waits suspends, an OS thread sleeps on its futex.
//!
//! # Who may touch what
//!
//! - The waiting party creates the waiter, links it into one object, and calls [`Waiter::block`].
//! - Whoever unlinks it from the object owns the right to wake it, exactly once ([`Waiter::wake`]).
//! - `woken` is the last thing that the waker touches: the waiting party may return, and its
//!   stack may be gone, as soon as it is set. So the waker first takes what it needs to wake the
//!   party: a count on the ULT's descriptor or on the thread's parker. A ULT of the waker's own
//!   xstream cannot run meanwhile and needs no count.
//! - After a timeout the waiting party must unlink the waiter itself; if that fails, a waker has
//!   it and `block(None)` ends soon.

use std::ptr::{self, NonNull};
use std::time::Instant;

use crate::park::ThreadParker;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicPtr};
use crate::wait_kind::WaitKind;

#[cfg(not(loom))]
use crate::descriptor::{UltPtr, UltRef};

/// Who waits.
#[derive(Debug)]
enum Party {
    #[cfg(not(loom))]
    Ult(UltPtr),
    Thread(Arc<ThreadParker>),
}

/// What a waker keeps after the waiter is out of its hands.
enum Wake {
    /// A ULT of the waker's own xstream.
    #[cfg(not(loom))]
    Here(UltPtr),
    #[cfg(not(loom))]
    Ult(UltRef),
    Thread(Arc<ThreadParker>),
}

/// A waiting party. Aligned so that three low bits of its address are free for flags.
#[derive(Debug)]
#[repr(align(8))]
pub(crate) struct Waiter {
    /// Next waiter in the list of the object; written by whoever owns the list at that moment.
    pub(crate) next: AtomicPtr<Waiter>,
    woken: AtomicBool,
    party: Party,
    #[cfg_attr(loom, allow(dead_code, reason = "only ULTs announce it"))]
    kind: WaitKind,
}

impl Waiter {
    /// A waiter for the calling ULT, or for the calling thread if no ULT runs here or if the ULT
    /// must not be suspended because it is unwinding.
    pub(crate) fn new(kind: WaitKind) -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            woken: AtomicBool::new(false),
            party: Party::current(),
            kind,
        }
    }

    /// Waits until woken. `false`: `deadline` passed first, and the waiter is still linked unless
    /// a waker has just taken it.
    pub(crate) fn block(&self, deadline: Option<Instant>) -> bool {
        match &self.party {
            #[cfg(not(loom))]
            Party::Ult(ult) => {
                crate::diag::announce(*ult, self.kind);
                crate::switch::suspend_until(*ult, deadline, || self.is_woken())
            }
            Party::Thread(parker) => loop {
                if self.is_woken() {
                    return true;
                }
                let limit = deadline.map(|d| d.saturating_duration_since(Instant::now()));
                if limit.is_some_and(|left| left.is_zero()) {
                    return self.is_woken();
                }
                parker.park(limit);
            },
        }
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Acquire) // pair: WAITER-WOKEN
    }

    /// Ends the wait.
    ///
    /// # Safety
    ///
    /// - `waiter` is alive and not yet woken, and the caller unlinked it from its object.
    /// - The caller does not touch it, or anything it may own, afterwards.
    pub(crate) unsafe fn wake(waiter: NonNull<Self>) {
        // SAFETY:
        // - alive: first duty of the caller, and it stays so until `woken` is set below;
        // - shared access only.
        let this = unsafe { waiter.as_ref() };
        let wake = this.party.prepare();
        this.woken.store(true, Release); // pair: WAITER-WOKEN
        wake.fire();
    }

    /// Wakes every waiter of a chain that is linked by `next`, `first` first.
    ///
    /// # Safety
    ///
    /// As for [`wake`](Self::wake), for each of the chain.
    pub(crate) unsafe fn wake_chain(first: *mut Self) {
        let mut next = first;
        while let Some(waiter) = NonNull::new(next) {
            // SAFETY:
            // - alive: not yet woken (duty of the caller); read before it is woken.
            next = unsafe { waiter.as_ref() }.next.load(Relaxed);
            // SAFETY:
            // - alive, unlinked: duty of the caller; not touched afterwards.
            unsafe { Self::wake(waiter) };
        }
    }

    /// Turns a chain around. The caller owns the chain.
    ///
    /// # Safety
    ///
    /// All of the chain are alive, and nobody else touches their links.
    pub(crate) unsafe fn reverse(first: *mut Self) -> *mut Self {
        let mut node = first;
        let mut done = ptr::null_mut();
        while let Some(waiter) = NonNull::new(node) {
            // SAFETY:
            // - alive: duty of the caller; shared access only.
            let link = &unsafe { waiter.as_ref() }.next;
            node = link.load(Relaxed);
            link.store(done, Relaxed);
            done = waiter.as_ptr();
        }
        done
    }
}

impl Party {
    #[cfg(not(loom))]
    fn current() -> Self {
        match crate::current::suspendable() {
            Some(ult) => Self::Ult(ult),
            None => Self::Thread(thread_parker()),
        }
    }

    #[cfg(loom)]
    fn current() -> Self {
        Self::Thread(Arc::new(ThreadParker::new()))
    }

    fn prepare(&self) -> Wake {
        match self {
            #[cfg(not(loom))]
            Self::Ult(ult) if crate::current::is_home_of(*ult) => Wake::Here(*ult),
            #[cfg(not(loom))]
            Self::Ult(ult) => Wake::Ult(UltRef::share(*ult)),
            Self::Thread(parker) => Wake::Thread(parker.clone()),
        }
    }
}

impl Wake {
    fn fire(self) {
        match self {
            #[cfg(not(loom))]
            Self::Here(ult) => crate::switch::resume(ult),
            #[cfg(not(loom))]
            Self::Ult(ult) => crate::switch::resume(ult.ptr()),
            Self::Thread(parker) => parker.unpark(),
        }
    }
}

/// The parker of the calling OS thread. One per thread, and a fresh one while the thread is
/// running its last destructors.
#[cfg(not(loom))]
pub(crate) fn thread_parker() -> Arc<ThreadParker> {
    thread_local! {
        static PARKER: Arc<ThreadParker> = Arc::new(ThreadParker::new());
    }
    PARKER.try_with(Arc::clone).unwrap_or_else(|_| Arc::new(ThreadParker::new()))
}
