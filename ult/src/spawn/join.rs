//! The end of a unit and whoever waits for it.
//!
//! The unit, its handle and whoever waits meet in the [`JoinWord`] of the descriptor.
//!
//! The unit publishes its end on its own stack and touches its descriptor no more: whoever comes
//! second, the unit or its handle, drops what both have in common. If the handle was gone, the unit
//! drops the outcome itself, so that a destructor may suspend.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::Instant;

use crate::engine::contain::{contained, log};
use crate::engine::error::{JoinError, MigrateError, PanicPayload, SpawnError, panic_message};
use crate::engine::pool::shared::PoolRef;
use crate::engine::stack::block::BlockPtr;
use crate::engine::unit::descriptor::{CANCEL, UltPtr, UltRef};
use crate::engine::unit::payload::Stage;
use crate::engine::waiting::cancel::Why;
use crate::engine::waiting::join_word::{JoinWord, Published};
use crate::sync::atomic::Ordering::{Relaxed, Release};

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

    /// Where its end is published.
    pub(crate) fn word(&self) -> &JoinWord {
        &self.ult.get().join
    }

    /// Whether this is the handle of the calling unit, which cannot wait for itself.
    pub(crate) fn is_own(&self) -> bool {
        crate::engine::xstream::current::ult() == Some(self.ult.ptr())
    }

    /// Whether the outcome is there, so that [`join`](Self::join) would not wait.
    #[must_use]
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.word().is_done()
    }

    /// Waits for the ULT to end and returns its value. A ULT suspends, an OS thread blocks.
    ///
    /// # Errors
    ///
    /// See [`JoinError`]. A panic of the ULT is an error here and nowhere else.
    ///
    /// Counterpart: `ABT_thread_join`.
    // A unit that has ended is what whoever joins many finds most often: no call for that.
    #[inline(always)]
    pub fn join(self) -> Result<T, JoinError> {
        if self.is_finished() { self.outcome() } else { self.join_unfinished() }
    }

    #[inline(never)]
    fn join_unfinished(self) -> Result<T, JoinError> {
        if !self.is_own() && self.word().wait(None) {
            return self.outcome();
        }
        Err(JoinError::Deadlock)
    }

    /// Waits for the end like [`join`](Self::join), and keeps the unit, so that it can be started
    /// again.
    ///
    /// # Errors
    ///
    /// [`JoinError::Deadlock`] as the outcome, and nothing kept, if the caller is the unit itself.
    pub fn join_keep(self) -> (Result<T, JoinError>, Option<Ended>) {
        if self.is_own() {
            return (Err(JoinError::Deadlock), None);
        }
        self.word().wait(None);
        let ended = self.into_ended();
        // SAFETY: promise of `new`; DONE has been seen.
        let outcome = unsafe { take_outcome(&ended.0) };
        (outcome, Some(ended))
    }

    /// Gives up the handle of a unit that has ended.
    #[inline(always)]
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
        if self.is_own() || !self.word().wait(Some(deadline)) {
            return Err(self);
        }
        Ok(self.outcome())
    }

    /// Takes the outcome of a unit that has ended.
    #[inline(always)]
    pub(crate) fn outcome(self) -> Result<T, JoinError> {
        // The unit has ended, so the handle comes second and drops what both have in common.
        let ended = self.into_ended().0;
        let payload = &ended.ptr().payload;
        if payload.stage() != Stage::Value {
            return Err(why_no_value(&ended));
        }
        // SAFETY:
        // - type: promise of `new`; the outcome is ours, since DONE has been seen.
        let value = unsafe { payload.take_value() };
        // Before the result is built: a result that is written in parts and then moved as a whole
        // stalls the processor for as long as all the rest takes.
        ended.release();
        Ok(value)
    }

    /// Asks the unit to end. Never blocks.
    ///
    /// A unit that has not started never will. A ULT that has started unwinds at the next point at
    /// which it waits or yields, or at once if it waits now: destructors run, and
    /// [`join`](Self::join) says [`JoinError::Cancelled`]. Waiting for a lock is no such point, so
    /// that code which holds several locks stays in order. A ULT that never waits is not stopped.
    /// Without effect on a unit that has ended.
    ///
    /// To the standard library the unwinding is a panic: guards of `std::sync` that the ULT holds
    /// poison what they guard, and a destructor that has to wait blocks the whole xstream, which is
    /// logged as an error if it lasts. In a program that is built with `panic = "abort"`, where
    /// nothing unwinds, the process aborts instead; the first runtime that starts warns of that.
    ///
    /// Counterpart: `ABT_thread_cancel`, which does not unwind.
    pub fn cancel(&self) {
        let ult = self.ult.ptr();
        let held = UltRef::share(ult);
        ult.request(CANCEL);
        crate::engine::xstream::switch::resume(held.ptr());
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
        crate::spawn::migrate::request(self.ult.ptr(), pool)
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
        crate::spawn::ult_builder::revive(self.0.ptr(), pool, f)?;
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
    if payload.stage() == Stage::Value {
        // SAFETY:
        // - type: duty of the caller; the outcome is ours, since DONE has been seen.
        return Ok(unsafe { payload.take_value() });
    }
    Err(why_no_value(ult))
}

/// Why a unit that has ended left no value.
#[cold]
fn why_no_value(ult: &UltRef) -> JoinError {
    let payload = &ult.ptr().payload;
    match payload.stage() {
        Stage::Panicked => JoinError::Panicked(PanicPayload::new(payload.take_panic())),
        Stage::Gone(Why::Cancelled) => JoinError::Cancelled,
        Stage::Gone(Why::Exited) => JoinError::Exited,
        Stage::Gone(Why::NoStack(errno)) => {
            let source = std::io::Error::from_raw_os_error(errno);
            JoinError::NoStack { bytes: ult.ptr().class.get().bytes(), source }
        }
        _ => JoinError::Lost,
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let ult = self.ult.ptr();
        if ult.join.detach() {
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

/// Runs the calling unit, and publishes its outcome. `true`: nobody else keeps the descriptor, the
/// caller recycles it; `false`: it may be gone.
#[inline(always)]
pub(crate) fn run_and_publish(ult: UltPtr) -> bool {
    ult.payload.run();
    publish(ult)
}

/// The second half of [`run_and_publish`].
#[inline(always)]
pub(crate) fn publish(ult: UltPtr) -> bool {
    if ult.is_rare() {
        crate::engine::unit::local::drop_all(ult);
    }
    // Detached is final, so no read-modify-write is needed to see it.
    if ult.join.is_detached() {
        // It may wait, so it is still a ULT on a stack.
        discard(ult);
        count_end(ult);
        leave_block(ult);
        return true;
    }
    // Whoever joins it finds it in the counters.
    count_end(ult);
    let block = leave_block(ult);
    let is_ours = publish_done(ult);
    if is_ours {
        discard_late(ult, block);
    }
    is_ours
}

/// Counts the end of the calling unit.
#[inline(always)]
fn count_end(ult: UltPtr) {
    // SAFETY:
    // - valid: the slot where the unit runs, on this xstream; slots are dropped between two units,
    //   and those of ULTs that are at home here are not.
    let slot = unsafe { &*ult.slot.get() };
    let finished = &slot.shared.finished;
    // What the unit did happens before a shutdown that sees the count.
    finished.store(finished.load(Relaxed) + 1, Release); // pair: POOL-ENDED
    crate::spawn::pool_ops::tell_end(slot);
}

/// Drops the outcome of the calling unit, whose handle went away while it published.
#[cold]
fn discard_late(ult: UltPtr, block: Option<BlockPtr>) {
    // It may wait, so it is a ULT on a stack once more. It has been counted as ended; while it is
    // at home here, a shutdown waits for it all the same, and so it stays: here and in its pool.
    let Some(block) = block else { return discard(ult) };
    crate::spawn::migrate::forget(&ult);
    ult.pins.set(ult.pins.get() + 1);
    move_in(ult, block);
    discard(ult);
    part(ult, block);
    ult.pins.set(ult.pins.get() - 1);
}

/// Parts the calling unit from its stack, so that its descriptor may be reused while the stack is
/// still in use.
#[inline(always)]
fn leave_block(ult: UltPtr) -> Option<BlockPtr> {
    let block = ult.block()?;
    crate::engine::diag::finishing(ult);
    part(ult, block);
    Some(block)
}

#[inline]
fn part(ult: UltPtr, block: BlockPtr) {
    // In `block.ult` it stands for the one who recycles it.
    block.ult.set(None);
    ult.set_block(None);
    ult.home.store(ptr::null_mut(), Relaxed);
}

/// Takes [`part`] back.
#[cold]
fn move_in(ult: UltPtr, block: BlockPtr) {
    block.ult.set(Some(ult));
    ult.set_block(Some(block));
    if let Some(xstream) = crate::engine::xstream::current::xstream() {
        ult.home.store(xstream.me(), Relaxed);
    }
}

/// Tells whoever joins a unit that it will never run. As [`run_and_publish`].
pub(crate) fn publish_lost(ult: UltPtr) -> bool {
    // There is no outcome that the unit would have to drop.
    publish_done(ult)
}

/// The unit comes first: its handle drops the rest. Or it comes second, and the caller does so
/// (`true`).
#[inline(always)]
fn publish_done(ult: UltPtr) -> bool {
    if ult.join.publish_unwatched() {
        return false;
    }
    publish_met(ult)
}

/// Somebody waits already, or the handle went away meanwhile.
#[inline(never)]
fn publish_met(ult: UltPtr) -> bool {
    match ult.join.publish() {
        Published::First => false,
        Published::Detached => true,
        Published::Waited(waiters) => {
            waiters.wake();
            false
        }
    }
}

/// Drops an outcome that nobody will look at. A panic is logged, and so is one of a destructor.
#[inline(always)]
fn discard(ult: UltPtr) {
    if !ult.payload.discard_plain() {
        discard_slow(ult);
    }
}

#[cold]
fn discard_slow(ult: UltPtr) {
    // The handle is gone, so there is no other request to come.
    ult.take_request(CANCEL);
    match ult.payload.stage() {
        Stage::Panicked => {
            log_panic(ult);
            ult.payload.discard();
        }
        Stage::Value => {
            contained(Some(ult), "dropping the value of a ULT", || ult.payload.discard());
        }
        _ => {}
    }
}

#[cold]
fn log_panic(ult: UltPtr) {
    let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
    ult.payload.with_panic(|panic| {
        let message = panic_message(panic);
        log!(ERROR, id, name, pool, message, "a detached ULT panicked");
    });
}
