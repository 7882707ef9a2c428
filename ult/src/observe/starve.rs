//! Starvation: the monitor finds runnable units that no xstream runs, by the counters of pools.
//!
//! A pool in which units wait, and none of whose units has run since, is starved: its xstreams are
//! held by units of other pools, serve more urgent pools without a break, or there are none.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::model::pool::PoolShared;

/// A reading of a pool's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolBeat {
    /// Units that wait for their turn.
    pub(crate) waiting: usize,
    /// Runs of its units that have ended.
    pub(crate) executed: u64,
}

impl PoolBeat {
    /// Reads the counters of `pool`. A pool whose `len` has panicked reports no waiting units.
    pub(crate) fn of(pool: &PoolShared) -> Self {
        Self { waiting: pool.len(), executed: pool.stats().executed }
    }
}

/// State that the monitor keeps about the pools.
#[derive(Debug)]
pub(crate) struct PoolWatch {
    limit: Option<Duration>,
    /// By index.
    pools: BTreeMap<usize, SeenPool>,
}

#[derive(Debug, Clone, Copy)]
struct SeenPool {
    beat: PoolBeat,
    since: Duration,
    is_reported: bool,
}

/// A starved pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Starved {
    pub(crate) pool: usize,
    pub(crate) waiting: usize,
    pub(crate) lasted: Duration,
}

impl PoolWatch {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, pools: BTreeMap::new() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.limit.is_some()
    }

    /// Compares with the last look. `beats` has the index of each pool; one that is not there any
    /// more is forgotten. Each pool is found once per episode.
    pub(crate) fn look(&mut self, now: Duration, beats: &[(usize, PoolBeat)]) -> Vec<Starved> {
        let Some(limit) = self.limit else { return Vec::new() };
        let mut found = Vec::new();
        let mut before = std::mem::take(&mut self.pools);
        for &(pool, beat) in beats {
            let is_still = |seen: &SeenPool| {
                beat.waiting > 0 && seen.beat.waiting > 0 && beat.executed == seen.beat.executed
            };
            let new = SeenPool { beat, since: now, is_reported: false };
            let mut seen = before.remove(&pool).filter(is_still).unwrap_or(new);
            seen.beat = beat;
            let lasted = now.saturating_sub(seen.since);
            if beat.waiting > 0 && lasted >= limit && !seen.is_reported {
                seen.is_reported = true;
                found.push(Starved { pool, waiting: beat.waiting, lasted });
            }
            self.pools.insert(pool, seen);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn beat(waiting: usize, executed: u64) -> PoolBeat {
        PoolBeat { waiting, executed }
    }

    #[test]
    fn units_that_wait_while_none_runs_are_told_once_per_episode() {
        let mut watch = PoolWatch::new(Some(ms(100)));
        let mut look = |at, [a, b]: [PoolBeat; 2]| watch.look(ms(at), &[(0, a), (1, b)]);
        let busy = |at: u64| beat(5, at);
        assert_eq!(look(0, [busy(0), beat(0, 7)]), []);
        assert_eq!(look(50, [busy(1), beat(2, 7)]), []);
        assert_eq!(look(149, [busy(2), beat(3, 7)]), []);
        let starved = |waiting, lasted| Starved { pool: 1, waiting, lasted: ms(lasted) };
        assert_eq!(look(150, [busy(3), beat(3, 7)]), [starved(3, 100)]);
        assert_eq!(look(400, [busy(4), beat(3, 7)]), []);
        assert_eq!(look(450, [busy(5), beat(3, 8)]), [], "one has run");
        assert_eq!(look(550, [busy(6), beat(2, 8)]), [starved(2, 100)]);
        assert_eq!(look(600, [busy(7), beat(0, 8)]), []);
        assert_eq!(look(900, [busy(8), beat(1, 8)]), [], "it has only just come");
    }

    #[test]
    fn a_pool_that_has_been_removed_is_forgotten_and_the_others_are_not() {
        let mut watch = PoolWatch::new(Some(ms(100)));
        assert_eq!(watch.look(ms(0), &[(0, beat(1, 0)), (1, beat(1, 0))]), []);
        assert_eq!(watch.look(ms(50), &[(1, beat(1, 0))]), []);
        let starved = Starved { pool: 1, waiting: 1, lasted: ms(100) };
        assert_eq!(watch.look(ms(100), &[(1, beat(1, 0)), (2, beat(1, 0))]), [starved]);
        assert_eq!(watch.pools.len(), 2);
    }

    #[test]
    fn without_a_limit_nothing_is_found() {
        let mut watch = PoolWatch::new(None);
        assert!(!watch.is_on());
        assert_eq!(watch.look(ms(0), &[(0, beat(1, 0))]), []);
        assert_eq!(watch.look(ms(u64::MAX), &[(0, beat(1, 0))]), []);
    }
}
