//! Waiting for a number of arrivals.
//!
//! The count is one atomic; the arrival that takes it to zero runs the callback and then sets an
//! [`Eventual`], which is what the waiters wait for. No lock is held while the callback runs.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::after;
use crate::engine::waiting::watch::Watch;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};
use crate::sync::{Mutex as OsMutex, lock};
use crate::wait::eventual::Eventual;
use crate::wait::select::Selectable;

type Callback = Box<dyn FnOnce() + Send>;

/// All arrivals that a [`CountDown`] was made for have come already.
///
/// ```
/// let done = ult::CountDown::new(2);
/// done.arrive()?;
/// let error = done.arrive_many(2).unwrap_err();
/// assert_eq!((error.arrivals, error.remaining), (2, 1));
/// // None of the two has been counted.
/// assert!(!done.is_ready());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{arrivals} more arrivals at a countdown that expects {remaining}")]
#[non_exhaustive]
pub struct TooManyArrivals {
    /// How many arrivals were announced with the failing call; none of them counts.
    pub arrivals: usize,
    /// How many arrivals the countdown still expected.
    pub remaining: usize,
}

/// Becomes ready with the last of a number of arrivals. Any number of parties may wait for that.
///
/// ```
/// let done = std::sync::Arc::new(ult::CountDown::new(2));
/// for _ in 0..2 {
///     let done = done.clone();
///     std::thread::spawn(move || done.arrive());
/// }
/// done.wait();
/// ```
///
/// Counterpart: `ABT_future`, whose compartments are arrivals here.
pub struct CountDown {
    remaining: AtomicUsize,
    ready: Eventual<()>,
    /// Taken out by the last arrival, or by nobody.
    callback: OsMutex<Option<Callback>>,
}

impl CountDown {
    const_new! {
        /// Expects `count` arrivals. With zero it is ready at once.
        #[must_use]
        pub fn new(count: usize) -> Self {
            Self {
                remaining: AtomicUsize::new(count),
                ready: if count == 0 { Eventual::new_ready(()) } else { Eventual::new() },
                callback: OsMutex::new(None),
            }
        }
    }

    /// Expects `count` arrivals. The last one calls `callback`, exactly once, before a waiter goes
    /// on. With zero there is no last arrival, and `callback` is never called.
    ///
    /// If `callback` panics, the panic goes to the last arrival, and the countdown is ready.
    #[must_use]
    pub fn with_callback(count: usize, callback: impl FnOnce() + Send + 'static) -> Self {
        let this = Self::new(count);
        *lock(&this.callback) = Some(Box::new(callback));
        this
    }

    /// Counts one arrival; the last one runs the callback and wakes all waiters.
    ///
    /// Never waits, except for what the callback does. What a party did before it arrives happens
    /// before the callback, and before the waiters go on.
    ///
    /// # Errors
    ///
    /// If all arrivals have come already.
    ///
    /// Counterpart: `ABT_future_set`.
    pub fn arrive(&self) -> Result<(), TooManyArrivals> {
        self.arrive_many(1)
    }

    /// Counts `count` arrivals at once; see [`arrive`](Self::arrive).
    ///
    /// # Errors
    ///
    /// If fewer than `count` arrivals are still expected; then none is counted.
    pub fn arrive_many(&self, count: usize) -> Result<(), TooManyArrivals> {
        let mut remaining = self.remaining.load(Relaxed);
        loop {
            let Some(left) = remaining.checked_sub(count) else {
                return Err(TooManyArrivals { arrivals: count, remaining });
            };
            // pair: COUNTDOWN (all arrivals happen before the last one)
            match self.remaining.compare_exchange_weak(remaining, left, AcqRel, Relaxed) {
                Ok(_) if left == 0 && count != 0 => break,
                Ok(_) => return Ok(()),
                Err(seen) => remaining = seen, // pair: COUNTDOWN
            }
        }
        let finish = Finish(&self.ready);
        let callback = lock(&self.callback).take();
        if let Some(callback) = callback {
            callback();
        }
        drop(finish);
        Ok(())
    }

    /// Arrivals that are still expected. A snapshot: stale as soon as it is read.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.remaining.load(Relaxed)
    }

    /// Returns whether all have arrived and the callback has been called.
    ///
    /// Counterpart: `ABT_future_test`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.is_ready()
    }

    /// Waits for the last arrival. A ULT suspends, an OS thread blocks.
    ///
    /// Counterpart: `ABT_future_wait`.
    pub fn wait(&self) {
        self.ready.wait_ready_as(WaitKind::CountDown, None);
    }

    /// Waits for the last arrival until `deadline`. `true`: it has come.
    pub fn wait_deadline(&self, deadline: Instant) -> bool {
        self.ready.wait_ready_as(WaitKind::CountDown, Some(deadline))
    }

    /// Like [`wait_deadline`](Self::wait_deadline), counted from now.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.ready.wait_ready_as(WaitKind::CountDown, after(timeout))
    }

    /// Expects `count` arrivals again, without a callback. `&mut self` proves that nobody waits.
    ///
    /// Counterpart: `ABT_future_reset`.
    pub fn reset(&mut self, count: usize) {
        *self = Self::new(count);
    }
}

/// Makes the countdown ready, also if the callback panics.
struct Finish<'a>(&'a Eventual<()>);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        // Only the last arrival comes here.
        let _ = self.0.set(());
    }
}

impl fmt::Debug for CountDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDown").field("remaining", &self.remaining()).finish()
    }
}

impl Selectable for CountDown {}

impl Watch for CountDown {
    fn is_ready(&self) -> bool {
        self.ready.is_ready()
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.ready.link(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.ready.unlink(node)
    }
}
