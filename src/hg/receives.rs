//! Receives for requests: enough of them posted, and not more requests held than allowed.
//!
//! A request is *posted* while its buffer waits in the network for a message, and *held* from its
//! arrival until it is answered or its arguments are given back. Then a receive takes its place.
//! When no receive is left, more are added; at the limit they are not, and the transport holds the
//! senders back until requests are done with.

/// Counts of one core's requests. Who is told to post does so outside of the lock that protects
/// this.
#[derive(Debug)]
pub(super) struct Receives {
    /// Receives to restore as requests are done with.
    target: usize,
    /// Receives to add when none is left.
    more: usize,
    /// Most requests posted and held together.
    max: usize,
    pub(super) posted: usize,
    pub(super) held: usize,
    /// Receives that failed and were not replaced yet.
    lost: usize,
    /// Receives ever posted.
    total: u64,
}

/// Receives that the caller has to post: their first number, and how many.
pub(super) type Claim = std::ops::Range<u64>;

impl Receives {
    pub(super) fn new(target: usize, more: usize, max: usize) -> Self {
        let max = max.max(target);
        Self { target, more, max, posted: 0, held: 0, lost: 0, total: 0 }
    }

    /// What to post at the beginning.
    pub(super) fn first(&mut self) -> Claim {
        self.claim(self.target)
    }

    /// A posted receive ended with a request.
    pub(super) fn arrived(&mut self) -> Claim {
        self.posted = self.posted.saturating_sub(1);
        self.held += 1;
        if self.posted > 0 {
            return self.claim(0);
        }
        self.lost = 0;
        self.claim(self.more)
    }

    /// A posted receive ended without one, or was refused.
    pub(super) fn failed(&mut self) {
        self.posted = self.posted.saturating_sub(1);
        self.lost += 1;
    }

    /// A request is held no longer.
    pub(super) fn released(&mut self) -> Claim {
        self.held = self.held.saturating_sub(1);
        let wanted = if self.posted < self.target { 1 + self.lost } else { 0 };
        self.lost = 0;
        self.claim(wanted)
    }

    fn claim(&mut self, wanted: usize) -> Claim {
        let count = wanted.min(self.max.saturating_sub(self.posted + self.held));
        self.posted += count;
        let first = self.total;
        self.total += count as u64;
        first..self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_grow_until_the_limit_and_shrink_to_the_target() {
        let mut receives = Receives::new(2, 4, 5);
        assert_eq!(receives.first(), 0..2);
        assert_eq!(receives.arrived(), 2..2, "one is left");
        assert_eq!(receives.arrived(), 2..5, "none is left; the limit");
        for _ in 0..3 {
            assert!(receives.arrived().is_empty());
        }
        assert_eq!((receives.posted, receives.held), (0, 5));
        let posted: usize = (0..5).map(|_| receives.released().count()).sum();
        assert_eq!((posted, receives.posted, receives.held), (2, 2, 0));
    }

    #[test]
    fn without_growth_a_request_keeps_the_place_of_its_receive() {
        let mut receives = Receives::new(1, 0, 100);
        assert_eq!(receives.first().count(), 1);
        assert!(receives.arrived().is_empty());
        assert_eq!(receives.released().count(), 1);
    }

    #[test]
    fn a_receive_that_failed_is_replaced() {
        let mut receives = Receives::new(3, 1, 100);
        receives.first();
        receives.failed();
        receives.failed();
        assert_eq!(receives.arrived().count(), 1, "none is left");
        assert_eq!(receives.released().count(), 1);
        receives.failed();
        receives.arrived();
        assert_eq!(receives.released().count(), 1 + 1 - 1, "at most what was there");
    }
}
