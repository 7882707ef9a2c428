//! Barriers: nobody goes on before all have come.
//!
//! | type | who waits | what blocks |
//! |---|---|---|
//! | [`Barrier`] | ULTs and OS threads, mixed | the ULT, or the thread outside of ULTs |
//! | [`XstreamBarrier`] | OS threads, xstreams among them | the whole OS thread, always |
//!
//! The last party to arrive takes the whole list of waiters and starts the next round before it
//! wakes them, so a waiter that is woken may arrive again at once.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::waiter::after;
use crate::sync::{Mutex as OsMutex, lock};

/// A barrier was asked for that nobody could pass.
///
/// ```
/// use ult::{Barrier, NoParties};
///
/// // A number of workers from elsewhere, for example.
/// let workers = 0;
/// assert_eq!(Barrier::new(workers).err(), Some(NoParties));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a barrier for 0 parties: give the number of parties that wait, 1 or more")]
pub struct NoParties;

/// A barrier for a fixed number of ULTs and OS threads. It can be used any number of times.
///
/// ```
/// use std::sync::Arc;
/// use ult::Barrier;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let phase = Arc::new(Barrier::new(2)?);
/// let other = phase.clone();
/// let worker = pool.spawn(move || other.wait())?;
/// // Both have come: one of them is told to be the last.
/// let is_last = phase.wait();
/// assert_ne!(is_last, worker.join()?);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_barrier`.
pub struct Barrier {
    parties: usize,
    round: OsMutex<Round>,
}

struct Round {
    arrived: usize,
    waiters: WaitList,
}

impl Barrier {
    const_new! {
        /// A barrier that `parties` parties pass together. With one party it never waits.
        ///
        /// # Errors
        ///
        /// If `parties` is zero.
        pub fn new(parties: usize) -> Result<Self, NoParties> {
            if parties == 0 {
                return Err(NoParties);
            }
            let round = Round { arrived: 0, waiters: WaitList::new() };
            Ok(Self { parties, round: OsMutex::new(round) })
        }
    }

    /// Waits until all parties have come. `true` for the one that came last.
    ///
    /// A cancelled ULT leaves; the barrier then waits for another party in its place.
    ///
    /// Counterpart: `ABT_barrier_wait`.
    pub fn wait(&self) -> bool {
        self.wait_until(None) == Some(true)
    }

    /// Like [`wait`](Self::wait), but no longer than until `deadline`. `None`: too late, and this
    /// party does not count as arrived any more.
    pub fn wait_deadline(&self, deadline: Instant) -> Option<bool> {
        self.wait_until(Some(deadline))
    }

    /// Like [`wait_deadline`](Self::wait_deadline), counted from now.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<bool> {
        self.wait_until(after(timeout))
    }

    /// How many parties pass together.
    #[must_use]
    pub fn parties(&self) -> usize {
        self.parties
    }

    /// How many parties wait now. A snapshot: stale as soon as it is read.
    ///
    /// Counterpart: `ABT_barrier_get_num_waiters`.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.round).arrived
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Option<bool> {
        let mut round = lock(&self.round);
        if round.arrived + 1 == self.parties {
            round.arrived = 0;
            let all = round.waiters.take_all();
            drop(round);
            all.wake();
            return Some(true);
        }
        let waiter = Waiter::new(WaitKind::Barrier);
        let node = NonNull::from(&waiter);
        round.arrived += 1;
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or has left the list (`settle`).
        unsafe { round.waiters.push_back(node) };
        drop(round);
        waiter.settle(deadline, || self.leave(node)).then_some(false)
    }

    /// Takes a waiter out. `false`: the last party has come.
    fn leave(&self, node: NonNull<Waiter>) -> bool {
        let mut round = lock(&self.round);
        // SAFETY:
        // - alive: the caller is its party; it was put into this list.
        let was_linked = unsafe { round.waiters.remove(node) };
        if was_linked {
            round.arrived -= 1;
        }
        was_linked
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting();
        f.debug_struct("Barrier")
            .field("parties", &self.parties)
            .field("waiting", &waiting)
            .finish()
    }
}

/// A barrier that blocks whole OS threads, also when a ULT or tasklet waits at it: nothing else
/// runs on that xstream until all have come.
///
/// It is for phases of xstreams, one party on each. Two parties on one xstream block each other
/// forever; use [`Barrier`] for ULTs.
///
/// ```
/// use std::sync::Arc;
/// use ult::XstreamBarrier;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // One party on the xstream, one on this thread.
/// let phase = Arc::new(XstreamBarrier::new(2)?);
/// let other = phase.clone();
/// let worker = pool.spawn(move || other.wait())?;
/// let is_leader = phase.wait();
/// assert_ne!(is_leader, worker.join()?);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_xstream_barrier`.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct XstreamBarrier {
    barrier: std::sync::Barrier,
}

#[cfg(not(loom))]
impl XstreamBarrier {
    /// A barrier that `parties` OS threads pass together. With one party it never waits.
    ///
    /// # Errors
    ///
    /// If `parties` is zero.
    pub const fn new(parties: usize) -> Result<Self, NoParties> {
        if parties == 0 {
            return Err(NoParties);
        }
        Ok(Self { barrier: std::sync::Barrier::new(parties) })
    }

    /// Blocks the OS thread until all parties have come. `true` for one of them. It can be used any
    /// number of times. Not a cancellation point.
    ///
    /// Counterpart: `ABT_xstream_barrier_wait`.
    pub fn wait(&self) -> bool {
        self.barrier.wait().is_leader()
    }
}
