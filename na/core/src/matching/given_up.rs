//! Canceled expected receives whose message may still come.

use std::collections::HashMap;

use rangemap::RangeInclusiveMap;

use super::lists::Key;
use crate::base::cheap::IntBuildHasher;

/// How many runs of tags are remembered, of all peers together: a few MiB.
pub(super) const RUNS_MAX: usize = 64 << 10;

/// How often each tag was canceled, by peer.
///
/// A caller takes the tags for one peer one after the other. So however many of its calls are
/// canceled while that peer is stopped, they are one run. At the bound, the peer that brings
/// another run forgets its run of the lowest tags.
#[derive(Default)]
pub(super) struct GivenUp {
    by_peer: HashMap<u64, RangeInclusiveMap<u32, u32>, IntBuildHasher>,
    /// Runs in all of `by_peer`, of which none is empty.
    runs: usize,
}

impl GivenUp {
    pub(super) fn add(&mut self, key: Key) {
        let (runs, tag) = (self.by_peer.entry(key.peer).or_default(), key.tag.0);
        let before = runs.len();
        let times = runs.get(&tag).map_or(1, |times| times.saturating_add(1));
        runs.insert(tag..=tag, times);
        self.runs = self.runs - before + runs.len();
        while self.runs > RUNS_MAX
            && let Some(lowest) = runs.first_range_value().map(|(range, _)| range.clone())
        {
            runs.remove(lowest);
            self.runs -= 1;
        }
        self.tidy(key.peer);
    }

    /// Returns whether a message under `key` was given up; forgets one cancel.
    pub(super) fn take(&mut self, key: Key) -> bool {
        let Some(runs) = self.by_peer.get_mut(&key.peer) else { return false };
        let (before, tag) = (runs.len(), key.tag.0);
        let Some(times) = runs.get(&tag).copied() else { return false };
        match times {
            0 | 1 => runs.remove(tag..=tag),
            _ => runs.insert(tag..=tag, times - 1),
        }
        self.runs = self.runs - before + runs.len();
        self.tidy(key.peer);
        true
    }

    /// Returns whether a message under `key` was given up.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.by_peer.get(&key.peer).is_some_and(|runs| runs.contains_key(&key.tag.0))
    }

    pub(super) fn forget_peer(&mut self, peer: u64) {
        self.runs -= self.by_peer.remove(&peer).map_or(0, |runs| runs.len());
    }

    fn tidy(&mut self, peer: u64) {
        if self.by_peer.get(&peer).is_some_and(|runs| runs.is_empty()) {
            self.by_peer.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Tag;

    fn key(peer: u64, tag: u32) -> Key {
        Key { peer, tag: Tag(tag) }
    }

    fn is_empty(given_up: &GivenUp) -> bool {
        given_up.by_peer.is_empty() && given_up.runs == 0
    }

    #[test]
    fn calls_that_follow_each_other_are_one_run_however_many() {
        let mut given_up = GivenUp::default();
        let tags = || u32::MAX - 300_000..=u32::MAX;
        tags().for_each(|tag| given_up.add(key(7, tag)));
        assert_eq!(given_up.runs, 1);
        assert!(!given_up.take(key(8, u32::MAX)), "of that peer only");
        assert!(tags().all(|tag| given_up.take(key(7, tag))));
        assert!(!given_up.take(key(7, u32::MAX)) && is_empty(&given_up));
    }

    #[test]
    fn at_the_bound_the_lowest_tags_of_that_peer_are_forgotten() {
        let mut given_up = GivenUp::default();
        (0..100).for_each(|tag| given_up.add(key(1, 2 * tag)));
        (0..RUNS_MAX as u32).for_each(|tag| given_up.add(key(2, 2 * tag)));
        assert_eq!(given_up.runs, RUNS_MAX);
        assert!((0..100).all(|tag| given_up.take(key(1, 2 * tag))), "the other's stay");
        assert!(!given_up.take(key(2, 198)) && given_up.take(key(2, 200)));
        assert!(given_up.take(key(2, 2 * RUNS_MAX as u32 - 2)));
        given_up.forget_peer(2);
        assert!(is_empty(&given_up));
    }

    proptest::proptest! {
        /// As a table of counts does.
        #[test]
        fn each_cancel_is_taken_once(
            steps in proptest::collection::vec((proptest::bool::ANY, 0..2u64, 0..6u32), 0..200),
        ) {
            let mut given_up = GivenUp::default();
            let mut counts: HashMap<(u64, u32), u32> = HashMap::new();
            for (add, peer, tag) in steps {
                let count = counts.entry((peer, tag)).or_default();
                if add {
                    given_up.add(key(peer, tag));
                    *count += 1;
                } else {
                    assert_eq!(given_up.take(key(peer, tag)), *count > 0);
                    *count = count.saturating_sub(1);
                }
                let runs: usize = given_up.by_peer.values().map(|runs| runs.len()).sum();
                assert_eq!(given_up.runs, runs);
            }
        }
    }
}
