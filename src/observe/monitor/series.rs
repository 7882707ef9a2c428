//! Figures over time: how many requests of each RPC came, how much bulk data they moved, and how
//! full the pools were.
//!
//! A timer of the instance takes an entry per interval. The newest `entries_max` entries of each
//! series are kept, and at most [`SERIES_MAX`] series of RPCs: further RPCs are counted together in
//! one. An RPC has entries from the first one on in which it had a request. Pools have the same
//! bound: the series of pools that were removed go first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use ult::PoolRef;

use super::c_layout::rounded;
use super::rows::OTHER_RPCS_NAME;
use super::statistics::Store;

/// Most RPCs that have a series of their own, and most pools.
const SERIES_MAX: usize = 500;

/// The series of pools that have none of their own.
const OTHER_POOLS_NAME: &str = "other pools";

/// The series of an instance, and what fills them.
#[derive(Default)]
pub(super) struct Series {
    kept: Mutex<Kept>,
}

#[derive(Default)]
pub(super) struct Kept {
    pub(super) entries_max: usize,
    /// By `name:provider`.
    rpcs: BTreeMap<String, RpcSeries>,
    pools: BTreeMap<String, VecDeque<PoolSeries>>,
}

#[derive(Default, Clone)]
struct RpcSeries {
    /// Sums so far.
    count: u64,
    bulk_size: u64,
    entries: VecDeque<RpcEntry>,
}

/// Times in seconds since 1970.
#[derive(Clone)]
struct RpcEntry {
    at: f64,
    count: u64,
    bulk_size: u64,
}

#[derive(Clone)]
struct PoolSeries {
    at: f64,
    /// Units that wait for their turn.
    size: usize,
    /// Those, and units that run or are suspended.
    total_size: u64,
}

/// Adds one at the end, and drops those at the beginning that are too many.
fn push<T>(entries: &mut VecDeque<T>, entry: T, max: usize) {
    entries.push_back(entry);
    while entries.len() > max {
        entries.pop_front();
    }
}

impl Series {
    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code of others runs under this lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an entry of each series.
    pub(super) fn sample<'p>(
        &self,
        store: Option<&Store>,
        pools: impl Iterator<Item = &'p PoolRef>,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let sums = store.map(|store| store.by_rpc());
        let pools: Vec<_> = pools
            .map(|pool| {
                let stats = pool.stats();
                let size = pool.len();
                let entry =
                    PoolSeries { at: now, size, total_size: stats.alive().max(size as u64) };
                (pool.name().to_owned(), entry)
            })
            .collect();
        self.kept().enter(now, sums.unwrap_or_default(), pools);
    }

    /// In C's layout; if `reset`, all entries are forgotten.
    pub(super) fn to_json(&self, address: &str, precision: u32, reset: bool) -> Value {
        // Under the lock there is only a copy: the timer waits for it, and its execution stream.
        let (rpcs_kept, pools_kept) = self.kept().copy(reset);
        let mut rpcs = Map::new();
        for (name, RpcSeries { entries, .. }) in rpcs_kept {
            let at: Vec<_> = entries.iter().map(|entry| rounded(entry.at, precision)).collect();
            let count: Vec<_> = entries.iter().map(|entry| entry.count).collect();
            let bulk_size: Vec<_> = entries.iter().map(|entry| entry.bulk_size).collect();
            let series = json!({ "timestamps": at, "count": count, "bulk_size": bulk_size });
            rpcs.insert(name, series);
        }
        let mut pools = Map::new();
        for (name, entries) in pools_kept {
            let at: Vec<_> = entries.iter().map(|entry| rounded(entry.at, precision)).collect();
            let size: Vec<_> = entries.iter().map(|entry| entry.size).collect();
            let total: Vec<_> = entries.iter().map(|entry| entry.total_size).collect();
            let series = json!({ "timestamps": at, "size": size, "total_size": total });
            pools.insert(name, series);
        }
        json!({ "address": address, "rpcs": rpcs, "pools": pools })
    }
}

impl Kept {
    /// Returns copies of the series; if `reset`, their entries are taken.
    fn copy(
        &mut self,
        reset: bool,
    ) -> (BTreeMap<String, RpcSeries>, BTreeMap<String, VecDeque<PoolSeries>>) {
        let rpcs = self.rpcs.clone();
        if !reset {
            return (rpcs, self.pools.clone());
        }
        self.rpcs.values_mut().for_each(|series| series.entries.clear());
        (rpcs, std::mem::take(&mut self.pools))
    }

    fn enter(
        &mut self,
        at: f64,
        mut sums: BTreeMap<String, (u64, u64)>,
        pools: Vec<(String, PoolSeries)>,
    ) {
        let max = self.entries_max.max(1);
        // Those that have no row of their own, and then those that have no series.
        let mut rest = sums.remove(OTHER_RPCS_NAME).unwrap_or_default();
        for (name, (count, bulk_size)) in sums {
            if self.rpcs.len() >= SERIES_MAX && !self.rpcs.contains_key(&name) {
                rest = (rest.0 + count, rest.1 + bulk_size);
                continue;
            }
            self.rpcs.entry(name).or_default().enter(at, count, bulk_size, max);
        }
        if rest != (0, 0) {
            let others = self.rpcs.entry(OTHER_RPCS_NAME.to_owned()).or_default();
            others.enter(at, rest.0, rest.1, max);
        }
        self.make_room(&pools);
        let mut rest: Option<PoolSeries> = None;
        for (name, entry) in pools {
            if self.pools.len() < SERIES_MAX || self.pools.contains_key(&name) {
                push(self.pools.entry(name).or_default(), entry, max);
                continue;
            }
            let sum = rest.get_or_insert(PoolSeries { at, size: 0, total_size: 0 });
            (sum.size, sum.total_size) = (sum.size + entry.size, sum.total_size + entry.total_size);
        }
        if let Some(rest) = rest {
            push(self.pools.entry(OTHER_POOLS_NAME.to_owned()).or_default(), rest, max);
        }
    }

    /// A pool that was removed keeps what it has until others need the room; the one that was
    /// removed first goes first.
    fn make_room(&mut self, there: &[(String, PoolSeries)]) {
        let there: BTreeSet<&str> = there.iter().map(|(name, _)| name.as_str()).collect();
        let new = there.iter().filter(|name| !self.pools.contains_key(**name)).count();
        let too_many = (self.pools.len() + new).saturating_sub(SERIES_MAX);
        if new == 0 || too_many == 0 {
            return;
        }
        let is_removed = |name: &str| name != OTHER_POOLS_NAME && !there.contains(name);
        let removed = self.pools.iter().filter(|(name, _)| is_removed(name));
        let last = |entries: &VecDeque<PoolSeries>| entries.back().map_or(0.0, |entry| entry.at);
        let mut removed: Vec<_> =
            removed.map(|(name, entries)| (last(entries), name.clone())).collect();
        removed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, name) in removed.into_iter().take(too_many) {
            self.pools.remove(&name);
        }
    }
}

impl RpcSeries {
    /// `count` and `bulk_size` are sums so far.
    fn enter(&mut self, at: f64, count: u64, bulk_size: u64, max: usize) {
        let entry = RpcEntry {
            at,
            count: count.saturating_sub(self.count),
            bulk_size: bulk_size.saturating_sub(self.bulk_size),
        };
        (self.count, self.bulk_size) = (count, bulk_size);
        push(&mut self.entries, entry, max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(kept: &mut Kept, at: u32, count: u64) {
        let sums = BTreeMap::from([("sum:1".to_owned(), (count, 10 * count))]);
        let pool = PoolSeries { at: at.into(), size: 1, total_size: 2 };
        kept.enter(at.into(), sums, vec![("main".to_owned(), pool)]);
    }

    #[test]
    fn three_hundred_entries_are_kept_with_what_came_in_each_interval() {
        let series = Series::default();
        series.kept().entries_max = 1000;
        (0..300).for_each(|at| take(&mut series.kept(), at, u64::from(at) * 3));
        let json = series.to_json("na+sm://1", 9, true);
        let rpc = &json["rpcs"]["sum:1"];
        assert_eq!(rpc["timestamps"].as_array().unwrap().len(), 300);
        assert_eq!((&rpc["count"][0], &rpc["count"][299]), (&json!(0), &json!(3)));
        assert_eq!(rpc["bulk_size"][7], 30);
        assert_eq!(json["pools"]["main"]["total_size"].as_array().unwrap().len(), 300);
        // Only what comes after a reset.
        take(&mut series.kept(), 300, 903);
        let json = series.to_json("na+sm://1", 9, false);
        assert_eq!(json["rpcs"]["sum:1"]["count"], json!([6]));
        assert_eq!(json["pools"]["main"]["size"], json!([1]));
    }

    #[test]
    fn the_oldest_entries_go_and_rpcs_beyond_the_bound_are_counted_together() {
        let mut kept = Kept { entries_max: 5, ..Kept::default() };
        (0..12).for_each(|at| take(&mut kept, at, u64::from(at)));
        let entries = &kept.rpcs["sum:1"].entries;
        assert_eq!(
            entries.iter().map(|entry| entry.at as u32).collect::<Vec<_>>(),
            [7, 8, 9, 10, 11]
        );
        assert_eq!(kept.pools["main"].len(), 5);
        let many: BTreeMap<_, _> = (0..600).map(|n| (format!("rpc{n}:1"), (2, 4))).collect();
        kept.enter(12.0, many, Vec::new());
        assert_eq!(kept.rpcs.len(), SERIES_MAX + 1);
        let others = &kept.rpcs[OTHER_RPCS_NAME];
        assert_eq!((others.count, others.bulk_size), (101 * 2, 101 * 4));
    }

    #[test]
    fn series_of_removed_pools_go_first_and_pools_beyond_the_bound_are_counted_together() {
        let mut kept = Kept { entries_max: 5, ..Kept::default() };
        let mut enter = |at: u32, names: &[String]| -> BTreeMap<String, VecDeque<PoolSeries>> {
            let entry = |name: &String| {
                (name.clone(), PoolSeries { at: at.into(), size: 1, total_size: 2 })
            };
            kept.enter(at.into(), BTreeMap::new(), names.iter().map(entry).collect());
            kept.pools.clone()
        };
        let job = |number: u32| format!("job-{number}");
        let mut last = BTreeMap::new();
        for at in 0..600 {
            last = enter(at, &["main".to_owned(), job(at)]);
            assert!(last.len() <= SERIES_MAX);
        }
        assert!(last["main"].len() == 5 && last.contains_key(&job(101)));
        assert!(!last.contains_key(&job(100)), "removed before the others");
        // None of these was removed.
        let many: Vec<_> = (0..600).map(job).collect();
        last = enter(600, &many);
        assert_eq!(last.len(), SERIES_MAX + 1);
        let others = &last[OTHER_POOLS_NAME];
        assert_eq!((others.len(), others[0].size, others[0].total_size), (1, 100, 200));
        last = enter(601, &many);
        assert_eq!((last.len(), last[OTHER_POOLS_NAME].len()), (SERIES_MAX + 1, 2));
    }
}
