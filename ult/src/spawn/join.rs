//! The handle of a unit: join it, cancel it, or let it run on its own.
//!
//! The unit, its handle and those that wait meet in the [`JoinWord`] of the descriptor. How the
//! unit gets there is in [`end`](crate::engine::unit::end).

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::time::Instant;

use crate::base::payload::Stage;
use crate::base::unwind::Why;
use crate::engine::error::{JoinError, MigrateError, PanicPayload};
use crate::engine::model::unit::{CANCEL, UltRef};
use crate::engine::model::waiter::JoinWord;
use crate::engine::pool::handle::PoolRef;
use crate::engine::unit::end::discard;
use crate::engine::xstream::current;

/// Owns the outcome of a ULT. Dropping it lets the ULT run on its own (detach).
///
/// ```
/// use std::time::{Duration, Instant};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let answer = pool.spawn(|| 6 * 7)?;
/// assert_eq!(answer.join()?, 42);
///
/// let waits = pool.spawn(ult::park)?;
/// // Too early: the handle comes back.
/// let waits = waits.join_deadline(Instant::now() + Duration::from_millis(1)).unwrap_err();
/// waits.cancel();
/// assert!(waits.join().is_err());
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_thread` of a named ULT; a dropped handle is `ABT_thread_free` without the
/// wait.
pub struct JoinHandle<T> {
    /// Keeps the descriptor together with the unit itself; dropped by the one that comes second.
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

    /// Returns whether this is the handle of the calling unit, which cannot wait for itself.
    pub(crate) fn is_own(&self) -> bool {
        current::ult() == Some(self.ult.ptr())
    }

    /// Returns whether the outcome is there, so that [`join`](Self::join) would not wait.
    #[must_use]
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.word().is_done()
    }

    /// Waits for the ULT to end and returns its value. A ULT suspends, an OS thread blocks.
    ///
    /// If the unit is the one that the caller's xstream would run next, it runs at once, past the
    /// scheduler and with the caller suspended below it: it starts, ends and waits as always, but
    /// the two cost half. That is what a ULT finds that joins what it has just spawned into its own
    /// pool, where that is the first one of its xstream, a FIFO or a work-stealing one.
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
        if self.run_as_child() && self.is_finished() || !self.is_own() && self.word().wait(None) {
            return self.outcome();
        }
        Err(JoinError::Deadlock)
    }

    /// Runs the unit as a child of the caller if it is what runs next. Returns whether it has.
    #[inline(always)]
    fn run_as_child(&self) -> bool {
        current::xstream_and_ult().is_some_and(|(here, me)| here.run_joined(me, self.ult.ptr()))
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
        self.run_as_child();
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
        crate::engine::xstream::push::resume(held.ptr());
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
        crate::engine::pool::migrate::request(self.ult.ptr(), pool)
    }
}

/// A unit that has ended, with its number, its name and its memory; see
/// [`JoinHandle::join_keep`].
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (outcome, ended) = pool.ult().name("worker").spawn(|| 1)?.join_keep();
/// assert_eq!(outcome?, 1);
/// let ended = ended.expect("the caller is another unit");
/// assert_eq!(ended.name(), Some("worker"));
/// // The same unit, with another closure.
/// assert_eq!(ended.revive(&pool, || 2)?.join()?, 2);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: an `ABT_thread` in the state `TERMINATED`.
pub struct Ended(pub(super) UltRef);

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

/// The reason why a unit that has ended left no value.
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
