//! Units that start at a given time.
//!
//! Such a unit is made at once, and so counts as alive from then on, but has no stack and is in no
//! queue: a timer of an xstream stands for it. When that fires, the unit goes to its pool like any
//! other.
//!
//! 1. If the spawner is on an xstream of the runtime, the timer is one of that xstream's.
//! 2. Otherwise the unit goes through its pool with the request bit `TIMED`, and the xstream that
//!    would start it makes a timer for it instead ([`settle`]). The same happens when an xstream
//!    leaves before its timers have fired.
//!
//! [`TimerState`] decides between the clock and a cancel. A cancel on the timer's xstream removes
//! the timer from the heap. One from elsewhere cannot, and leaves a stale entry behind, which is
//! dropped when its time has come, or when half of the heap is stale.

use std::fmt;
use std::ptr;
use std::time::{Duration, Instant};

use crate::base::timer_state::{Cancel, TimerState};
use crate::engine::error::{JoinError, SpawnError};
use crate::engine::pool::shared::{PoolRef, PushReason};
use crate::engine::pool::slot::bump;
use crate::engine::unit::descriptor::{TIMED, UltPtr, UltRef};
use crate::engine::waiting::cancel::Why;
use crate::engine::waiting::join_word::UNJOINED;
use crate::engine::waiting::waiter::Waiter;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::{Xstream, XstreamShared};
use crate::engine::xstream::switch;
use crate::engine::xstream::timer::{Place, saturating_add};
use crate::spawn::future::JoinFuture;
use crate::spawn::join::JoinHandle;
use crate::spawn::ult_builder::{Start, UltBuilder};
use crate::sync::Arc;
use crate::sync::atomic::AtomicPtr;
use crate::sync::atomic::Ordering::Relaxed;
use crate::wait::select::{Selectable, Watch};

/// What the timer of a unit and its handle have in common.
#[derive(Debug)]
pub(crate) struct Timed {
    state: TimerState,
    pub(crate) deadline: Instant,
    /// Only for whoever has the unit, by the word of `state`.
    ult: UltPtr,
    /// The xstream with the timer. Written by whoever has the unit, before the timer exists.
    home: AtomicPtr<XstreamShared>,
    /// Where in the heap. Touched by the home xstream only.
    pub(crate) place: Place,
}

impl Timed {
    fn new(ult: UltPtr, deadline: Instant, state: TimerState, home: *mut XstreamShared) -> Self {
        let home = AtomicPtr::new(home);
        Self { state, deadline, ult, home, place: Place::nowhere() }
    }

    /// Whether the timer in the heap stands for nothing any more.
    pub(crate) fn is_stale(&self) -> bool {
        self.state.is_cancelled()
    }

    /// The time has come; the timer has been taken out of the heap.
    pub(crate) fn fire(&self, xstream: &Xstream) {
        if !self.state.fire() {
            xstream.shared().stale_timers.fetch_sub(1, Relaxed);
            return;
        }
        count_fired(self.ult, xstream);
        crate::spawn::ult_builder::enqueue(self.ult, PushReason::Create);
    }

    /// The xstream leaves; the timer has been taken out of the heap.
    fn hand_over(this: Arc<Self>, xstream: &Xstream) {
        // Before the change: a cancel that comes after it has no claim to the unit.
        let ult = this.ult;
        if !this.state.requeue() {
            xstream.shared().stale_timers.fetch_sub(1, Relaxed);
            return;
        }
        count_fired(ult, xstream);
        enqueue_timed(ult, this, PushReason::Migrate);
    }

    pub(crate) fn cancel(&self) -> bool {
        let result = self.state.cancel();
        if result == Cancel::Yours {
            self.drop_timer();
            switch::lose(self.ult, Why::Cancelled);
        }
        result != Cancel::TooLate
    }

    /// The timer stands for nothing any more. The caller has the unit.
    fn drop_timer(&self) {
        let home = self.home.load(Relaxed);
        if let Some(xstream) = current::xstream().filter(|xstream| ptr::eq(xstream.me(), home)) {
            xstream.timers.borrow_mut().remove_timed(self);
            return;
        }
        // SAFETY:
        // - valid: there is a timer, so this has been set; xstreams live as long as the runtime's
        //   shared part, which the descriptor keeps.
        unsafe { &*home }.stale_timers.fetch_add(1, Relaxed);
    }
}

impl Xstream {
    fn insert_timed(&self, timed: Arc<Timed>) {
        /// Fewer are not worth a sweep.
        const STALE_MIN: isize = 64;
        let mut timers = self.timers.borrow_mut();
        let stale = self.shared().stale_timers.load(Relaxed);
        if stale >= STALE_MIN && stale.unsigned_abs() > timers.len() / 2 {
            let swept = timers.sweep();
            self.shared().stale_timers.fetch_sub(swept.cast_signed(), Relaxed);
        }
        timers.insert_timed(timed);
        self.has_chores.set(true);
    }

    /// Lets other xstreams take care of the units that wait for a time; this one leaves.
    pub(crate) fn give_up_timers(&self) {
        loop {
            let timed = self.timers.borrow_mut().take_timed();
            let Some(timed) = timed else { return };
            Timed::hand_over(timed, self);
        }
    }
}

/// Counts a unit that is about to be queued, long after its spawn was counted.
fn count_fired(ult: UltPtr, xstream: &Xstream) {
    let pool = ult.pool();
    match xstream.slot_of(pool) {
        Some(slot) => bump(&slot.shared.fired),
        None => {
            pool.foreign_fired.fetch_add(1, Relaxed);
        }
    }
}

/// Sends a unit to an xstream that makes a timer for it. The caller has the unit.
fn enqueue_timed(ult: UltPtr, timed: Arc<Timed>, why: PushReason) {
    ult.with_extra(|extra| extra.timed = Some(timed));
    ult.request(TIMED);
    crate::spawn::ult_builder::enqueue(ult, why);
}

/// An unstarted unit with the request bit `TIMED` has been picked to start here; the caller took
/// the bit. Makes a timer for it. `false`: it does not start now.
#[cold]
pub(crate) fn settle(ult: UltPtr) -> bool {
    let timed = ult.with_extra(|extra| extra.timed.take());
    let Some((timed, xstream)) = timed.zip(current::xstream()) else { return true };
    timed.home.store(xstream.me(), Relaxed);
    if timed.state.arm() {
        xstream.insert_timed(timed);
    } else {
        switch::lose(ult, Why::Cancelled);
    }
    false
}

/// Owns the outcome of a unit that starts at a given time, and can prevent that. Dropping it lets
/// the unit run on its own, when its time has come.
///
/// Awaiting it gives the outcome, as with a [`JoinHandle`]; and it can be one of the objects of
/// [`wait_any`](crate::wait_any).
///
/// Counterpart: `margo_timer_t`; there is none in Argobots.
pub struct TimerHandle<T> {
    timed: Arc<Timed>,
    handle: JoinHandle<T>,
}

impl<T> TimerHandle<T> {
    /// Number of the unit, unique in its runtime.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.handle.id()
    }

    /// When the unit starts, unless it is cancelled.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.timed.deadline
    }

    /// Prevents the run. `true`: the unit has not started and never will; its closure is dropped,
    /// at once or a little later, and [`join`](Self::join) says [`JoinError::Cancelled`]. `false`:
    /// it is too late, the unit has been queued to run, runs, or has ended. Never blocks.
    ///
    /// To end one that has started, too, make a future of the handle: [`JoinFuture::cancel`].
    pub fn cancel(&self) -> bool {
        self.timed.cancel()
    }

    /// Whether the outcome is there, so that [`join`](Self::join) would not wait.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for the unit to start and to end; see [`JoinHandle::join`].
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn join(self) -> Result<T, JoinError> {
        self.handle.join()
    }

    /// Waits like [`join`](Self::join), but no longer than until `deadline`.
    ///
    /// # Errors
    ///
    /// Gives the handle back if the unit has not ended by then, or is the caller itself.
    pub fn join_deadline(self, deadline: Instant) -> Result<Result<T, JoinError>, Self> {
        let Self { timed, handle } = self;
        handle.join_deadline(deadline).map_err(|handle| Self { timed, handle })
    }
}

/// Ready when the unit has ended.
impl<T> Selectable for TimerHandle<T> {}

impl<T> Watch for TimerHandle<T> {
    fn is_ready(&self) -> bool {
        self.is_finished()
    }

    unsafe fn register(&self, node: ptr::NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.handle.register(node) }
    }

    fn unregister(&self, node: ptr::NonNull<Waiter>) -> bool {
        self.handle.unregister(node)
    }
}

impl<T> IntoFuture for TimerHandle<T> {
    type Output = Result<T, JoinError>;
    type IntoFuture = JoinFuture<T>;

    fn into_future(self) -> JoinFuture<T> {
        JoinFuture::timed(self.handle, self.timed)
    }
}

impl<T> fmt::Debug for TimerHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHandle")
            .field("id", &self.id())
            .field("deadline", &self.deadline())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

impl PoolRef {
    /// Spawns a ULT that runs `f` after `delay`. See [`UltBuilder::spawn_at`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ult::{PoolSpec, Runtime, XstreamSpec};
    /// # let runtime = Runtime::builder()
    /// #     .pool(PoolSpec::new("main"))
    /// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
    /// #     .start()?;
    /// # let pool = runtime.pool("main").expect("defined above");
    /// let soon = pool.spawn_after(Duration::from_millis(1), || "done")?;
    /// let late = pool.spawn_after(Duration::from_secs(3600), || "never")?;
    /// assert_eq!(soon.join()?, "done");
    /// assert!(late.cancel());
    /// # runtime.shutdown()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `margo_timer_create` and `margo_timer_start`.
    pub fn spawn_after<F, T>(&self, delay: Duration, f: F) -> Result<TimerHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.ult().spawn_after(delay, f)
    }
}

impl UltBuilder<'_> {
    /// Spawns a unit that runs `f` after `delay`. See [`spawn_at`](Self::spawn_at).
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    pub fn spawn_after<F, T>(self, delay: Duration, f: F) -> Result<TimerHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_at(saturating_add(Instant::now(), delay), f)
    }

    /// Spawns a unit that runs `f` at `deadline`, or at once if that has passed.
    ///
    /// Until then it needs a few hundred bytes and no stack. It counts as alive: a shutdown of the
    /// runtime waits for it, unless it is cancelled. Of an xstream that is busy the resolution is
    /// that of [`sleep`](crate::sleep()).
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    pub fn spawn_at<F, T>(self, deadline: Instant, f: F) -> Result<TimerHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let here = current::xstream_in(self.target_core());
        // SAFETY: nothing is borrowed for less than 'static.
        let ult = unsafe { self.make(f, Start::Keep, UNJOINED) }?;
        // SAFETY:
        // - `f` returns a `T`; the only handle of the unit.
        let handle = unsafe { JoinHandle::new(UltRef::adopt(ult)) };
        let (state, home) = match here {
            Some(xstream) => (TimerState::armed(), xstream.me()),
            None => (TimerState::queued(), ptr::null_mut()),
        };
        let timed = Arc::new(Timed::new(ult, deadline, state, home));
        match here {
            Some(xstream) => xstream.insert_timed(timed.clone()),
            None => enqueue_timed(ult, timed.clone(), PushReason::Create),
        }
        Ok(TimerHandle { timed, handle })
    }
}
