//! Gets whose data is in the ring, for which the requester has yet to say how long taking it took:
//! only then is their cost known (`costs.rs`).
//!
//! The requester may leave the answer out, or lie. The list is short and forgets the oldest; an
//! answer that nobody waits for is ignored; times saturate. A lie makes a way look dear or cheap
//! for the liar's own transfers.

use std::collections::VecDeque;
use std::time::Duration;

/// Gets that are remembered.
const UNTAKEN_MAX: usize = 16;

/// Those of one connection, the last one first.
#[derive(Debug, Default)]
pub(crate) struct AwaitedReports(VecDeque<Get>);

/// A get that has ended here.
#[derive(Debug)]
pub(crate) struct Get {
    pub(crate) part: u64,
    pub(crate) len: u64,
    /// How long we copied.
    pub(crate) copied: Duration,
    /// From its begin to the end of our work, if it had no other beside it.
    pub(crate) alone: Option<Duration>,
}

impl AwaitedReports {
    /// All data of a get is in the ring.
    pub(crate) fn push(&mut self, get: Get) {
        self.0.truncate(UNTAKEN_MAX - 1);
        self.0.push_front(get);
    }

    /// The requester copied for `nanos`, the last of it for `last`. Returns the get's length and
    /// what it cost.
    pub(crate) fn take(&mut self, part: u64, nanos: u64, last: u64) -> Option<(u64, Duration)> {
        let at = self.0.iter().position(|get| get.part == part)?;
        let get = self.0.remove(at)?;
        Some((get.len, get.cost(Duration::from_nanos(nanos), Duration::from_nanos(last))))
    }
}

impl Get {
    fn cost(&self, taken: Duration, last: Duration) -> Duration {
        match self.alone {
            // Both copy at the same time: the slower one counts.
            None => self.copied.max(taken),
            // What the requester copies after our last chunk comes on top: that chunk, or all that
            // it is behind.
            Some(ours) => ours.saturating_add(last.max(taken.saturating_sub(ours))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(part: u64, copied: u64, alone: Option<u64>) -> Get {
        let (copied, alone) = (Duration::from_nanos(copied), alone.map(Duration::from_nanos));
        Get { part, len: 1 << 16, copied, alone }
    }

    #[track_caller]
    fn expect_cost(get: Get, (taken, last): (u64, u64), cost: u64) {
        let (part, mut untaken) = (get.part, AwaitedReports::default());
        untaken.push(get);
        let found = untaken.take(part, taken, last);
        assert_eq!(found, Some((1 << 16, Duration::from_nanos(cost))));
        assert_eq!(untaken.take(part, taken, last), None, "told once");
    }

    #[test]
    fn the_slower_copy_counts_and_of_a_lone_get_what_comes_after_ours() {
        expect_cost(get(1, 700, None), (400, 100), 700);
        expect_cost(get(1, 400, None), (700, 100), 700);
        // One chunk, copied twice.
        expect_cost(get(1, 300, Some(350)), (500, 500), 850);
        // Many: the requester keeps up, or falls behind.
        expect_cost(get(1, 900, Some(1000)), (800, 100), 1100);
        expect_cost(get(1, 900, Some(1000)), (3000, 100), 3000);
    }

    #[test]
    fn impossible_times_saturate() {
        let mut untaken = AwaitedReports::default();
        untaken.push(Get { alone: Some(Duration::MAX), ..get(1, u64::MAX, None) });
        assert_eq!(untaken.take(1, u64::MAX, u64::MAX), Some((1 << 16, Duration::MAX)));
    }

    #[test]
    fn the_oldest_is_forgotten_and_unknown_ones_are_ignored() {
        let mut untaken = AwaitedReports::default();
        for part in 0..1000 {
            untaken.push(get(part, 1, None));
        }
        assert_eq!(untaken.0.len(), UNTAKEN_MAX);
        assert_eq!(untaken.take(3, 1, 1), None);
        assert!(untaken.take(1000 - UNTAKEN_MAX as u64, 1, 1).is_some());
        assert!(untaken.take(999, 1, 1).is_some());
    }
}
