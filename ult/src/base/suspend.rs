//! The handshake between a ULT that suspends and the party that resumes it.
//!
//! A ULT suspends in two steps. On its own stack it announces what it waits for (a queue entry, a
//! flag); then it switches to its xstream, which calls [`SuspendCell::commit_suspend`] when the
//! ULT's stack is quiet. A resume may arrive before, between or after these steps. Exactly one
//! side must put the ULT back into a queue, and nobody may run it before its stack is quiet.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `RUNNING` | runs, or is queued to run | `commit_suspend` -> `PARKED`; `resume` -> `NOTIFIED` |
//! | `PARKED` | stack quiet, in no queue | `resume` -> `RUNNING`, and that caller pushes |
//! | `NOTIFIED` | a resume came while it ran | `commit_suspend` -> `RUNNING`, the xstream pushes |
//!
//! A resume is only a hint: the resumed ULT looks at its own condition again and may suspend once
//! more. So resumes may merge and stale ones are harmless, but one that follows the fulfilment of
//! the condition is never lost: every `resume` is a read-modify-write even if it changes nothing
//! (`NOTIFIED` -> `NOTIFIED`), and so is the consumption in `commit_suspend`. The latter therefore
//! reads the last resume, and the ULT sees what that caller wrote before. A plain load there
//! would let the caller's flag sit in its store buffer while the ULT goes to sleep.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use crate::sync::atomic::AtomicU8;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const RUNNING: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Decides which side puts a suspending ULT back into its queue.
#[derive(Debug)]
pub struct SuspendCell(AtomicU8);

impl SuspendCell {
    /// A cell of a ULT that is running or queued.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU8::new(RUNNING))
    }

    /// Makes the cell ready for the next ULT in the same descriptor. Nobody else may hold it.
    #[inline]
    pub fn reset(&self) {
        self.0.store(RUNNING, Relaxed);
    }

    /// Called by the xstream, on its own stack, after the ULT's registers are saved.
    ///
    /// `true`: the ULT stays parked, and from now on belongs to the party that resumes it.
    /// `false`: a resume came first; push it back now.
    ///
    /// # Panics
    ///
    /// If the ULT was parked already, which would mean that somebody ran it without the right to.
    #[inline]
    #[must_use]
    pub fn commit_suspend(&self) -> bool {
        // pair: ULT-PARKED (what the ULT wrote before is visible to its resumer)
        match self.0.compare_exchange(RUNNING, PARKED, AcqRel, Acquire) {
            Ok(_) => true,
            Err(state) => {
                assert_eq!(state, NOTIFIED, "a parked ULT was run");
                // pair: ULT-NOTIFIED
                self.0.swap(RUNNING, AcqRel);
                false
            }
        }
    }

    /// Returns whether the ULT stands still now. A snapshot.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.0.load(Relaxed) == PARKED
    }

    /// Takes the right to run a parked ULT, so that the caller may fulfil its condition and push it
    /// without another look at the cell. `false`: it is not parked; fulfil the condition, then
    /// [`resume`](Self::resume).
    #[inline]
    #[must_use]
    pub fn claim(&self) -> bool {
        // pair: ULT-PARKED
        self.0.compare_exchange(PARKED, RUNNING, AcqRel, Relaxed).is_ok()
    }

    /// Called by the party that ends the wait. `true`: the caller must push the ULT, exactly once.
    #[inline]
    #[must_use]
    pub fn resume(&self) -> bool {
        // Not loaded first: that would fetch the cache line twice, once to read and once to write.
        let mut state = PARKED;
        loop {
            let next = if state == PARKED { RUNNING } else { NOTIFIED };
            // pair: ULT-PARKED, ULT-NOTIFIED
            match self.0.compare_exchange_weak(state, next, AcqRel, Relaxed) {
                Ok(_) => return state == PARKED,
                Err(seen) => state = seen,
            }
        }
    }
}

impl Default for SuspendCell {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::SuspendCell;

    #[test]
    fn resume_before_suspend_is_kept() {
        let cell = SuspendCell::new();
        assert!(!cell.resume());
        assert!(!cell.resume(), "two early resumes merge");
        assert!(!cell.commit_suspend());
        assert!(cell.commit_suspend(), "the merged resume was consumed");
    }

    #[test]
    fn only_the_first_resume_pushes() {
        let cell = SuspendCell::new();
        assert!(cell.commit_suspend());
        assert!(cell.resume());
        assert!(!cell.resume());
    }
}
