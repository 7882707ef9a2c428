//! The end of a unit and whoever waits for it.
//!
//! The join word of the descriptor is one of
//!
//! | word | meaning |
//! |---|---|
//! | null | not ended, nobody waits |
//! | a waiter | not ended, that party waits (there is one handle, hence one waiter) |
//! | `DETACHED` | the handle is gone, or there never was one |
//! | `DONE` | the payload holds the outcome, and belongs to the handle |
//!
//! The unit publishes `DONE` on its own stack and touches its descriptor no more: whoever comes
//! second, the unit or its handle, drops what both have in common. If the word was `DETACHED` the
//! unit drops the outcome itself, so that a destructor may suspend.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::time::Instant;

use crate::cancel::Why;
use crate::descriptor::{CANCEL, UltPtr, UltRef};
use crate::error::{JoinError, MigrateError, PanicPayload, SpawnError, panic_message};
use crate::payload::Stage;
use crate::pool::PoolRef;
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
    /// Keeps the descriptor together with the unit itself; dropped by whoever comes second.
    ult: ManuallyDrop<UltRef>,
    outcome: PhantomData<fn() -> T>,
}

// SAFETY: the handle moves a `T` out of the descriptor on whatever thread it is (needs `T: Send`).
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: shared access only reads the join word and constants.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    ///
    /// The closure of `ult` returns a `T`, and this is its only handle. `ult` is what the unit and
    /// its handle have in common.
    pub(crate) unsafe fn new(ult: UltRef) -> Self {
        Self { ult: ManuallyDrop::new(ult), outcome: PhantomData }
    }

    /// Number of the ULT, unique in its runtime.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.ult.ptr().id.get()
    }

    /// Whether the outcome is there, so that [`join`](Self::join) would not wait.
    #[must_use]
    #[inline]
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
    #[inline]
    pub fn join(self) -> Result<T, JoinError> {
        if self.is_finished() || self.wait_end() {
            return self.outcome();
        }
        Err(JoinError::Deadlock)
    }

    /// Waits for the end. `false`: the caller is the unit itself.
    #[inline(never)]
    fn wait_end(&self) -> bool {
        let ult = self.ult.ptr();
        crate::current::ult() != Some(ult) && wait_done(ult, None)
    }

    /// Waits for the end like [`join`](Self::join), and keeps the unit, so that it can be started
    /// again.
    ///
    /// # Errors
    ///
    /// [`JoinError::Deadlock`] as the outcome, and nothing kept, if the caller is the unit itself.
    pub fn join_keep(self) -> (Result<T, JoinError>, Option<Ended>) {
        let ult = self.ult.ptr();
        if crate::current::ult() == Some(ult) {
            return (Err(JoinError::Deadlock), None);
        }
        wait_done(ult, None);
        let ended = self.into_ended();
        // SAFETY: promise of `new`; DONE has been seen.
        let outcome = unsafe { take_outcome(&ended.0) };
        (outcome, Some(ended))
    }

    /// Gives up the handle of a unit that has ended.
    fn into_ended(self) -> Ended {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is not used afterwards.
        Ended(unsafe { ManuallyDrop::take(&mut this.ult) })
    }

    /// Waits for the end like [`join`](Self::join), but no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// Gives the handle back if the unit has not ended by then, or is the caller itself.
    pub fn join_deadline(self, deadline: Instant) -> Result<Result<T, JoinError>, Self> {
        let ult = self.ult.ptr();
        if crate::current::ult() == Some(ult) || !wait_done(ult, Some(deadline)) {
            return Err(self);
        }
        Ok(self.outcome())
    }

    /// Takes the outcome of a unit that has ended.
    fn outcome(self) -> Result<T, JoinError> {
        // The unit has ended, so the handle comes second and drops what both have in common.
        let ended = self.into_ended();
        // SAFETY: promise of `new`; DONE has been seen.
        unsafe { take_outcome(&ended.0) }
    }

    /// Asks the unit to end. Never blocks.
    ///
    /// A unit that has not started never will. A ULT that has started unwinds at the next point at
    /// which it waits or yields, or at once if it waits now: destructors run, and
    /// [`join`](Self::join) says [`JoinError::Cancelled`]. Waiting for a lock is no such point, so
    /// that code which holds several locks stays in order. A ULT that never waits is not stopped.
    /// Without effect on a unit that has ended.
    ///
    /// Counterpart: `ABT_thread_cancel`, which does not unwind.
    pub fn cancel(&self) {
        let ult = self.ult.ptr();
        let held = UltRef::share(ult);
        ult.request(CANCEL);
        crate::switch::resume(held.ptr());
    }

    /// Asks the unit to go on in another pool of the same runtime. Never blocks; of several
    /// requests the last one counts.
    ///
    /// A unit that has not started moves when its turn comes. A started ULT stays on its xstream;
    /// it moves if that xstream serves the other pool, at the next point at which it yields or is
    /// resumed, and otherwise the request waits. A ULT of
    /// [`UltBuilder::spawn_migratable`](crate::UltBuilder::spawn_migratable) moves wherever the
    /// pool is served. See [`UltBuilder::on_migrate`](crate::UltBuilder::on_migrate).
    ///
    /// # Errors
    ///
    /// [`MigrateError`] if the pool belongs to another runtime or has been removed.
    ///
    /// Counterpart: `ABT_thread_migrate_to_pool`.
    pub fn migrate_to(&self, pool: &PoolRef) -> Result<(), MigrateError> {
        crate::migrate::request(self.ult.ptr(), pool)
    }
}

/// A unit that has ended, with its number, its name and its memory; see
/// [`JoinHandle::join_keep`].
///
/// Counterpart: an `ABT_thread` in the state `TERMINATED`.
pub struct Ended(UltRef);

// SAFETY: a unit that has ended belongs to whoever has this.
unsafe impl Send for Ended {}
// SAFETY: shared access only reads constants.
unsafe impl Sync for Ended {}

impl Ended {
    /// Number of the unit.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.ptr().id.get()
    }

    /// Name of the unit.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.get().name()
    }

    /// Starts the unit again in `pool` with another closure. It keeps its number, its name and its
    /// stack size, and is a tasklet if it was one.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` and the unit have then been dropped.
    ///
    /// Counterpart: `ABT_thread_revive`, `ABT_task_revive`.
    pub fn revive<F, T>(self, pool: &PoolRef, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        crate::spawn::revive(self.0.ptr(), pool, f)?;
        // SAFETY:
        // - `f` returns a `T`; the only handle of the unit.
        Ok(unsafe { JoinHandle::new(self.0) })
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended").field("id", &self.id()).field("name", &self.name()).finish()
    }
}

/// Joins all of them, in their order; the outcomes are in the same order.
///
/// Counterpart: `ABT_thread_join_many`.
pub fn join_all<T>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<Result<T, JoinError>> {
    handles.into_iter().map(JoinHandle::join).collect()
}

/// # Safety
///
/// The closure of the unit returns a `T`, and DONE has been seen by the owner of its handle.
pub(crate) unsafe fn take_outcome<T>(ult: &UltRef) -> Result<T, JoinError> {
    let payload = &ult.ptr().payload;
    match payload.stage() {
        // SAFETY:
        // - type: duty of the caller; the outcome is ours, since DONE has been seen.
        Stage::Value => Ok(unsafe { payload.take_value() }),
        Stage::Panicked => Err(JoinError::Panicked(PanicPayload::new(payload.take_panic()))),
        Stage::Gone(Why::Cancelled) => Err(JoinError::Cancelled),
        Stage::Gone(Why::Exited) => Err(JoinError::Exited),
        Stage::Gone(Why::NoStack(errno)) => {
            let source = std::io::Error::from_raw_os_error(errno);
            Err(JoinError::NoStack { bytes: ult.ptr().class.get().bytes(), source })
        }
        _ => Err(JoinError::Lost),
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let ult = self.ult.ptr();
        // pair: JOIN-DONE
        if ult.join.load(Acquire) == DONE || ult.join.swap(DETACHED, AcqRel) == DONE {
            discard(ult);
            // SAFETY: taken once, in `drop`. The unit has ended, so the handle comes second.
            drop(unsafe { ManuallyDrop::take(&mut self.ult) });
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

/// Marks a unit that has no handle. Before it is first queued.
#[inline]
pub(crate) fn detach_new(ult: UltPtr) {
    ult.join.store(DETACHED, Relaxed);
}

/// Runs the calling unit, and publishes its outcome. `true`: nobody else keeps the descriptor, the
/// caller recycles it; `false`: it may be gone.
#[inline]
pub(crate) fn run_and_publish(ult: UltPtr) -> bool {
    ult.payload.run();
    if ult.has_extra() {
        crate::local::drop_all(ult);
    }
    if let Some(block) = ult.block() {
        // In `block.ult` it stands for the one who recycles it.
        block.ult.set(None);
        ult.set_block(None);
        ult.home.store(ptr::null_mut(), Relaxed);
    }
    // DETACHED is final, so no read-modify-write is needed to see it.
    // pair: JOIN-DETACH
    if ult.join.load(Acquire) == DETACHED {
        discard(ult);
        return true;
    }
    publish_done(ult)
}

/// Tells whoever joins a unit that it will never run. As [`run_and_publish`].
pub(crate) fn publish_lost(ult: UltPtr) -> bool {
    publish_done(ult)
}

/// The unit comes first: its handle drops the rest. Or it comes second, and does so itself
/// (`true`).
#[inline]
fn publish_done(ult: UltPtr) -> bool {
    // pair: JOIN-DONE, JOIN-WAITER, JOIN-DETACH
    let word = ult.join.swap(DONE, AcqRel);
    if word == DETACHED {
        discard(ult);
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
#[inline]
fn discard(ult: UltPtr) {
    if !ult.payload.discard_plain() {
        discard_slow(ult);
    }
}

#[cold]
fn discard_slow(ult: UltPtr) {
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

/// Waits until the unit has ended or `deadline` has passed. `true`: it has ended.
fn wait_done(ult: UltPtr, deadline: Option<Instant>) -> bool {
    // pair: JOIN-DONE
    if ult.join.load(Acquire) == DONE {
        return true;
    }
    let waiter = Waiter::new(WaitKind::Join);
    let node = ptr::from_ref(&waiter).cast_mut();
    // pair: JOIN-WAITER, JOIN-DONE
    if ult.join.compare_exchange(ptr::null_mut(), node, Release, Acquire).is_err() {
        return true;
    }
    waiter.settle(deadline, || {
        // pair: JOIN-WAITER, JOIN-DONE
        ult.join.compare_exchange(node, ptr::null_mut(), Relaxed, Acquire).is_ok()
    })
}
