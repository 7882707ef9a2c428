//! A condition variable for ULTs and OS threads.
//!
//! Waiters stand in a FIFO list behind an OS mutex that is held for a few instructions and never
//! across a suspension. `wait` enters the list before it unlocks the user's mutex, so a notify by
//! whoever changes the condition under that mutex cannot slip in between. Whoever takes a waiter
//! out of the list decides how its wait ends: a notify wakes it, a deadline lets it go.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::time::Instant;

use crate::mutex::MutexGuard;
use crate::sync::{Mutex, lock};
use crate::wait::Waiter;
use crate::wait_kind::WaitKind;

/// A condition variable to use with [`Mutex`](crate::Mutex).
///
/// Waits end only by a notify or the deadline, never without cause; still, test the condition in
/// a loop, because another party may have taken it meanwhile. Waiters are notified first come first
/// served.
///
/// Counterpart: `ABT_cond`.
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: Mutex<VecDeque<Entry>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry(NonNull<Waiter>);

// SAFETY: the entry is a claim to wake a waiter, which may be done from any thread.
unsafe impl Send for Entry {}

impl Condvar {
    /// A condition variable that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: Mutex::new(VecDeque::new()) }
    }

    /// Unlocks, waits for a notify, and locks again.
    ///
    /// Counterpart: `ABT_cond_wait`.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_until(guard, None).0
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

    /// Wakes the party that has waited longest, if any.
    ///
    /// Counterpart: `ABT_cond_signal`.
    pub fn notify_one(&self) {
        let first = lock(&self.waiters).pop_front();
        if let Some(Entry(waiter)) = first {
            // SAFETY:
            // - alive, unlinked: it was in the list, and we took it out;
            // - not touched afterwards.
            unsafe { Waiter::wake(waiter) };
        }
    }

    /// Wakes everybody who waits.
    ///
    /// Counterpart: `ABT_cond_broadcast`.
    pub fn notify_all(&self) {
        let all = std::mem::take(&mut *lock(&self.waiters));
        for Entry(waiter) in all {
            // SAFETY:
            // - alive, unlinked: it was in the list, which we took whole;
            // - not touched afterwards.
            unsafe { Waiter::wake(waiter) };
        }
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
    ) -> (MutexGuard<'a, T>, bool) {
        let waiter = Waiter::new(WaitKind::Condvar);
        let entry = Entry(NonNull::from(&waiter));
        let mutex = guard.mutex();
        lock(&self.waiters).push_back(Entry(entry.0));
        drop(guard);
        let notified = waiter.block(deadline) || {
            let mut waiters = lock(&self.waiters);
            match waiters.iter().position(|other| *other == entry) {
                Some(at) => {
                    waiters.remove(at);
                    false
                }
                None => {
                    drop(waiters);
                    // A notify has taken it and is about to wake it.
                    waiter.block(None)
                }
            }
        };
        (mutex.lock(), notified)
    }
}
