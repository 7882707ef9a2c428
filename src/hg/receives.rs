//! Receives for requests: enough of them posted, and not more requests taken in than can be held.
//!
//! A request is *posted* while its buffer waits in the network for a message, and *held* from its
//! arrival until the layer above has read its arguments. As requests arrive, further receives are
//! posted, so that the network never runs dry; at the limit they are not, and the transport holds
//! the senders back until arguments are read.

use std::sync::Mutex;

use super::buffers::lock;

/// Counts of one core's requests. Who is told to post does so outside of the lock.
#[derive(Debug)]
pub(super) struct Receives {
    /// Receives to keep posted.
    target: usize,
    /// Most requests posted and held together.
    max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    posted: usize,
    held: usize,
    /// Receives ever posted.
    total: u64,
}

impl Receives {
    pub(super) fn new(target: usize, max: usize) -> Self {
        Self { target, max: max.max(target), counts: Mutex::default() }
    }

    /// A posted receive ended with a request.
    pub(super) fn arrived(&self) {
        let mut counts = lock(&self.counts);
        counts.posted = counts.posted.saturating_sub(1);
        counts.held += 1;
    }

    /// A posted receive ended without one, or was refused.
    pub(super) fn failed(&self) {
        let mut counts = lock(&self.counts);
        counts.posted = counts.posted.saturating_sub(1);
    }

    /// A request is held no longer.
    pub(super) fn released(&self) {
        let mut counts = lock(&self.counts);
        counts.held = counts.held.saturating_sub(1);
    }

    /// Claims a receive to post, if there should be one more; returns its number.
    pub(super) fn claim(&self) -> Option<u64> {
        let mut counts = lock(&self.counts);
        let wanted = counts.posted < self.target && counts.posted + counts.held < self.max;
        wanted.then(|| {
            counts.posted += 1;
            counts.total += 1;
            counts.total
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_target_until_the_limit() {
        let receives = Receives::new(2, 3);
        let claimed = |receives: &Receives| std::iter::from_fn(|| receives.claim()).count();
        assert_eq!(claimed(&receives), 2);
        receives.arrived();
        assert_eq!(claimed(&receives), 1, "2 posted, 1 held");
        receives.arrived();
        assert_eq!(claimed(&receives), 0, "1 posted, 2 held: at the limit");
        receives.released();
        assert_eq!(claimed(&receives), 1);
        receives.failed();
        assert_eq!(claimed(&receives), 1);
    }
}
