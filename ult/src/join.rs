//! The end of a ULT and whoever waits for it.
//!
//! The join word of the descriptor is one of
//!
//! | word | meaning |
//! |---|---|
//! | null | running, nobody waits |
//! | a waiter | running, that party waits (there is one handle, hence one waiter) |
//! | `DETACHED` | the handle is gone, or there never was one |
//! | `DONE` | the payload holds the outcome, and belongs to the handle |
//!
//! The ULT publishes `DONE` on its own stack, then ends. If the word was `DETACHED` it drops the
//! outcome itself, as a ULT, so that a destructor may suspend.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use crate::descriptor::{UltPtr, UltRef};
use crate::error::{JoinError, PanicPayload, panic_message};
use crate::payload::Stage;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::wait::Waiter;
use crate::wait_kind::WaitKind;

const DETACHED: *mut Waiter = ptr::without_provenance_mut(1);
const DONE: *mut Waiter = ptr::without_provenance_mut(2);

/// Owns the outcome of a ULT. Dropping it lets the ULT run on its own (detach).
///
/// Counterpart: `ABT_thread` of a named ULT; a dropped handle is `ABT_thread_free` without the
/// wait.
pub struct JoinHandle<T> {
    ult: UltRef,
    outcome: PhantomData<fn() -> T>,
}

// SAFETY: the handle moves a `T` out of the descriptor on whatever thread it is (needs `T: Send`).
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: shared access only reads the join word and constants.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    ///
    /// The closure of `ult` returns a `T`, and this is its only handle.
    pub(crate) unsafe fn new(ult: UltRef) -> Self {
        Self { ult, outcome: PhantomData }
    }

    /// Number of the ULT, unique in its runtime.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.ult.ptr().id.get()
    }

    /// Whether the outcome is there, so that [`join`](Self::join) would not wait.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ult.ptr().join.load(Acquire) == DONE // pair: JOIN-DONE
    }

    /// Waits for the ULT to end and returns its value. A ULT suspends, an OS thread blocks.
    ///
    /// # Errors
    ///
    /// See [`JoinError`]. A panic of the ULT is an error here and nowhere else.
    ///
    /// Counterpart: `ABT_thread_join`.
    pub fn join(self) -> Result<T, JoinError> {
        let ult = self.ult.ptr();
        if crate::current::ult() == Some(ult) {
            return Err(JoinError::Deadlock);
        }
        wait_done(ult);
        match ult.payload.stage() {
            // SAFETY:
            // - type: promise of `new`; the outcome is ours, since DONE has been seen.
            Stage::Value => Ok(unsafe { ult.payload.take_value() }),
            Stage::Panicked => {
                Err(JoinError::Panicked(PanicPayload::new(ult.payload.take_panic())))
            }
            _ => Err(JoinError::Lost),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let ult = self.ult.ptr();
        // pair: JOIN-DONE
        if ult.join.load(Acquire) == DONE || ult.join.swap(DETACHED, AcqRel) == DONE {
            discard(ult);
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("id", &self.id())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// Marks a ULT that has no handle. Before it is first queued.
pub(crate) fn detach_new(ult: UltPtr) {
    ult.join.store(DETACHED, Relaxed);
}

/// Publishes the outcome of the calling ULT.
pub(crate) fn publish(ult: UltPtr) {
    // DETACHED is final, so no read-modify-write is needed to see it.
    // pair: JOIN-DETACH
    if ult.join.load(Acquire) == DETACHED || publish_done(ult) {
        discard(ult);
    }
}

/// Tells whoever joins a ULT that it will never run.
pub(crate) fn publish_lost(ult: UltPtr) {
    publish_done(ult);
}

/// Returns whether nobody wants the outcome.
fn publish_done(ult: UltPtr) -> bool {
    // pair: JOIN-DONE, JOIN-WAITER, JOIN-DETACH
    let word = ult.join.swap(DONE, AcqRel);
    if word == DETACHED {
        return true;
    }
    if let Some(waiter) = NonNull::new(word) {
        // SAFETY:
        // - alive, unlinked: the swap took it, and it waits until it is woken;
        // - not touched afterwards.
        unsafe { Waiter::wake(waiter) };
    }
    false
}

/// Drops an outcome that nobody will look at. A panic is logged, and so is one of a destructor.
fn discard(ult: UltPtr) {
    match ult.payload.stage() {
        Stage::Panicked => {
            log_panic(ult);
            let _ = catch_unwind(AssertUnwindSafe(|| ult.payload.discard()));
        }
        Stage::Value => {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| ult.payload.discard())) {
                let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
                let message = panic_message(&panic);
                tracing::error!(id, name, pool, message, "dropping the value of a ULT panicked");
                // The payload of the panic may have such a destructor, too.
                std::mem::forget(panic);
            }
        }
        _ => {}
    }
}

#[cold]
fn log_panic(ult: UltPtr) {
    let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
    ult.payload.with_panic(|panic| {
        let message = panic_message(panic);
        tracing::error!(id, name, pool, message, "a detached ULT panicked");
    });
}

fn wait_done(ult: UltPtr) {
    // pair: JOIN-DONE
    if ult.join.load(Acquire) == DONE {
        return;
    }
    let waiter = Waiter::new(WaitKind::Join);
    let node = ptr::from_ref(&waiter).cast_mut();
    // pair: JOIN-WAITER, JOIN-DONE
    if ult.join.compare_exchange(ptr::null_mut(), node, Release, Acquire).is_ok() {
        waiter.block(None);
    }
}
