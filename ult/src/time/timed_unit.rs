//! Units that start at a given time.
//!
//! The timer that stands for one until then is in [`timed`](crate::engine::run::timed).

use std::fmt;
use std::ptr;
use std::time::{Duration, Instant};

use crate::base::timer_state::TimerState;
use crate::engine::error::{JoinError, SpawnError};
use crate::engine::model::interfaces::PushReason;
use crate::engine::model::unit::{Timed, UltRef};
use crate::engine::model::waiter::{UNJOINED, Waiter};
use crate::engine::pool::handle::PoolRef;
use crate::engine::run::timed::enqueue_timed;
use crate::engine::waiting::watch::Watch;
use crate::engine::xstream::current;
use crate::engine::xstream::timer::saturating_add;
use crate::spawn::future::JoinFuture;
use crate::spawn::join::JoinHandle;
use crate::spawn::ult_builder::{Placement, UltBuilder};
use crate::sync::Arc;
use crate::wait::select::Selectable;

/// Owns the outcome of a unit that starts at a given time, and can prevent that. Dropping it lets
/// the unit run on its own, when its time has come.
///
/// Awaiting it gives the outcome, as with a [`JoinHandle`]; and it can be one of the objects of
/// [`wait_any`](crate::wait_any).
///
/// ```
/// use std::time::Duration;
/// use ult::JoinError;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let timeout = pool.spawn_after(Duration::from_secs(60), || println!("too late"))?;
/// // What the timeout is for has come in time.
/// assert!(timeout.cancel());
/// assert!(matches!(timeout.join(), Err(JoinError::Cancelled)));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// Returns whether the outcome is there, so that [`join`](Self::join) would not wait.
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
        let ult = unsafe { self.make(f, Placement::Keep, UNJOINED) }?;
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
