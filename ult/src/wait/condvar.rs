//! A condition variable for ULTs and OS threads.
//!
//! Waiters stand in a FIFO list behind an OS mutex that is held for a few instructions and never
//! across a suspension. `wait` enters the list before it unlocks the user's mutex, so a notify by a
//! party that changes the condition under that mutex cannot slip in between. The party that takes a
//! waiter out of the list decides how its wait ends: a notify wakes it, a deadline lets it go.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::const_new::const_new;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::{WaitList, Waiter};
use crate::engine::waiting::waiter::after;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex as OsMutex, lock};
use crate::wait::mutex::MutexGuard;

/// A condition variable to use with [`Mutex`](crate::Mutex).
///
/// Waits end only by a notify or the deadline, never without cause; still, test the condition in
/// a loop ([`wait_while`](Self::wait_while)), because another party may have taken it meanwhile.
/// Waiters are notified first come first served.
///
/// The condition must be changed with the mutex locked; the notify itself may come after the
/// unlock. A cancelled ULT leaves without the lock.
///
/// ```
/// use std::sync::Arc;
/// use ult::{Condvar, Mutex};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let stock = Arc::new((Mutex::new(0), Condvar::new()));
/// let buyer = stock.clone();
/// let bought = pool.spawn(move || {
///     let (count, has_come) = &*buyer;
///     let mut count = has_come.wait_while(count.lock(), |count| *count == 0);
///     *count -= 1;
/// })?;
/// *stock.0.lock() += 1;
/// stock.1.notify_one();
/// bought.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_cond`.
#[derive(Debug)]
pub struct Condvar {
    /// True if the list has somebody in it. Written under the lock of the list, and before a waiter
    /// unlocks the user's mutex: that orders it before the notify of the party that locks it next.
    is_waited_for: AtomicBool,
    waiters: OsMutex<WaitList>,
}

impl Condvar {
    const_new! {
        /// A condition variable that nobody waits for.
        #[must_use]
        pub fn new() -> Self {
            Self {
                is_waited_for: AtomicBool::new(false),
                waiters: OsMutex::new(WaitList::new()),
            }
        }
    }

    /// Unlocks, waits for a notify, and locks again.
    ///
    /// Counterpart: `ABT_cond_wait`.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_until(guard, None).0
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Like [`wait`](Self::wait), but no longer than until `deadline`. `true`: it was notified.
    ///
    /// Taking the lock again is not bounded by the deadline.
    ///
    /// Counterpart: `ABT_cond_timedwait`.
    pub fn wait_deadline<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_until(guard, Some(deadline))
    }

    /// Like [`wait_deadline`](Self::wait_deadline), counted from now.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_until(guard, after(timeout))
    }

    /// Waits as long as `condition` holds, but no longer than until `deadline`. `true`: it does not
    /// hold any more.
    pub fn wait_while_deadline<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        deadline: Instant,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let mut is_early = true;
        loop {
            if !condition(&mut guard) {
                return (guard, true);
            }
            if !is_early {
                return (guard, false);
            }
            (guard, is_early) = self.wait_deadline(guard, deadline);
        }
    }

    /// Wakes the party that has waited longest, if any.
    ///
    /// Counterpart: `ABT_cond_signal`.
    pub fn notify_one(&self) {
        if !self.is_waited_for.load(Relaxed) {
            return;
        }
        let mut waiters = lock(&self.waiters);
        let first = waiters.pop_front();
        self.is_waited_for.store(!waiters.is_empty(), Relaxed);
        drop(waiters);
        if let Some(waiter) = first {
            // SAFETY:
            // - alive, unlinked: it was in the list, and we took it out;
            // - not touched afterwards.
            unsafe { Waiter::wake(waiter) };
        }
    }

    /// Wakes all waiters.
    ///
    /// Counterpart: `ABT_cond_broadcast`.
    pub fn notify_all(&self) {
        if !self.is_waited_for.load(Relaxed) {
            return;
        }
        let mut waiters = lock(&self.waiters);
        let all = waiters.take_all();
        self.is_waited_for.store(false, Relaxed);
        drop(waiters);
        all.wake();
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, T>, bool) {
        let waiter = Waiter::new(WaitKind::Condvar);
        let node = NonNull::from(&waiter);
        let mutex = guard.mutex();
        let mut waiters = lock(&self.waiters);
        // SAFETY:
        // - in no list: fresh; it stays until it is woken or has left the list (`settle`).
        unsafe { waiters.push_back(node) };
        self.is_waited_for.store(true, Relaxed);
        drop(waiters);
        drop(guard);
        let notified = waiter.settle(deadline, || self.leave(node));
        (mutex.lock(), notified)
    }

    /// Takes a waiter out. `false`: a notify has it.
    fn leave(&self, node: NonNull<Waiter>) -> bool {
        let mut waiters = lock(&self.waiters);
        // SAFETY:
        // - alive: the caller is its party; it was put into this list.
        let was_linked = unsafe { waiters.remove(node) };
        self.is_waited_for.store(!waiters.is_empty(), Relaxed);
        was_linked
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}
