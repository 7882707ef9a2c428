//! How often the far endpoint is polled.
//!
//! A look at a network that has nothing is a system call and costs more than a whole message
//! through shared memory. So the far endpoint is polled each time while an operation of ours is in
//! flight there, or something has lately ended there or been done for a transfer of a peer.
//! Otherwise it is polled every sixteenth time.
//!
//! A near endpoint that has something in every poll must not keep the far one out: if it has used
//! up the caller's budget, the far one comes first the next time.

use prim::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// One in so many polls while there is nothing to do.
const RARELY: u32 = 16;
/// Polls in vain after which there is nothing to do.
const PATIENCE: u32 = 256;

/// One caller of [`take`](Self::take) and [`found`](Self::found) at a time, the poll; the counter
/// is everybody's. Nothing here orders anything.
#[derive(Debug, Default)]
pub(super) struct FarPolling {
    in_flight: AtomicUsize,
    in_vain: AtomicU32,
    /// The last turn came with nothing left of the budget.
    owed: AtomicBool,
}

impl FarPolling {
    /// An operation of ours begins at the far endpoint.
    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended, or was refused.
    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether to poll the far endpoint this time.
    pub(super) fn take(&self) -> bool {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        if in_vain < PATIENCE || in_vain.is_multiple_of(RARELY) {
            return true;
        }
        self.count(in_vain);
        false
    }

    /// Returns whether the far endpoint is polled before the near one this time.
    pub(super) fn far_is_first(&self) -> bool {
        self.owed.load(Ordering::Relaxed)
    }

    /// It was polled with `budget`, and reported so much; `served`: it moved bytes for a peer,
    /// which ends nothing here.
    pub(super) fn found(&self, completions: usize, served: bool, budget: usize) {
        self.owed.store(budget == 0, Ordering::Relaxed);
        if completions > 0 || served {
            self.in_vain.store(0, Ordering::Relaxed);
        } else if budget > 0 {
            // Without one it could report nothing: that says nothing about what there is.
            self.count(self.in_vain.load(Ordering::Relaxed));
        }
    }

    fn count(&self, in_vain: u32) {
        // Wraps into rare polls, not into frequent ones.
        let next = in_vain.checked_add(1).unwrap_or(PATIENCE);
        self.in_vain.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_in(turns: &FarPolling, times: usize) -> usize {
        let poll = |_: &usize| {
            let polls = turns.take();
            if polls {
                turns.found(0, false, 1);
            }
            polls
        };
        (0..times).filter(poll).count()
    }

    #[test]
    fn polls_rarely_only_while_there_is_nothing_to_do() {
        let turns = FarPolling::default();
        assert_eq!(polls_in(&turns, 256), 256);
        assert_eq!(polls_in(&turns, 160), 10);
        turns.begin();
        assert_eq!(polls_in(&turns, 160), 160, "something is in flight");
        turns.end();
        assert_eq!(polls_in(&turns, 160), 10);
        turns.found(1, false, 1);
        assert_eq!(polls_in(&turns, 100), 100, "something has arrived");
        assert_eq!(polls_in(&turns, 300), 156 + 9, "and then nothing more");
        turns.found(0, true, 1);
        assert_eq!(polls_in(&turns, 100), 100, "a peer transfers");
    }

    #[test]
    fn who_got_nothing_of_the_budget_comes_first_the_next_time() {
        let turns = FarPolling::default();
        assert!(turns.take() && !turns.far_is_first());
        turns.found(0, false, 0);
        assert!(turns.take() && turns.far_is_first());
        turns.found(1, false, 1);
        assert!(!turns.far_is_first(), "once");
    }
}
