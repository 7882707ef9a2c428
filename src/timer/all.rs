//! The timers of an instance, as its end needs to know them.
//!
//! A timer is entered when it is made and leaves when it is dropped, so arming one does not touch
//! this table.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ult::{Eventual, PoolRef};

use super::TimerState;
use super::state::TimerShared;
use crate::support::log::Log;

/// The timers of an instance.
pub(crate) struct Timers {
    table: Mutex<TimerTable>,
    pub(super) log: Log,
}

#[derive(Default)]
struct TimerTable {
    /// By address, which a timer keeps as long as it is here.
    timers: HashMap<usize, Weak<TimerShared>>,
    closed: bool,
}

fn key(timer: &Arc<TimerShared>) -> usize {
    Arc::as_ptr(timer).addr()
}

impl Timers {
    pub(crate) fn new(log: Log) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), log })
    }

    fn table(&self) -> MutexGuard<'_, TimerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn admit(&self, timer: &Arc<TimerShared>) {
        let mut table = self.table();
        if !table.closed {
            table.timers.insert(key(timer), Arc::downgrade(timer));
            return;
        }
        drop(table);
        timer.close();
    }

    fn all(&self) -> Vec<Arc<TimerShared>> {
        self.table().timers.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the timers that are armed to run in that pool, in words.
    pub(crate) fn armed_in(&self, pool: &PoolRef) -> Vec<String> {
        let timers = self.all();
        let mut names = BTreeMap::new();
        for timer in timers.iter().filter(|timer| timer.is_armed_in(pool)) {
            *names.entry(timer.name()).or_insert(0) += 1;
        }
        let words = |(name, count): (&str, usize)| match count {
            1 => format!("timer `{name}`"),
            _ => format!("{count} timers `{name}`"),
        };
        names.into_iter().map(words).collect()
    }

    /// All of them, for people.
    pub(crate) fn list(&self, now: Instant) -> Vec<TimerState> {
        let mut list: Vec<_> = self.all().iter().map(|timer| timer.describe(now)).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    pub(super) fn forget(&self, timer: &Arc<TimerShared>) {
        self.table().timers.remove(&key(timer));
    }

    /// Disarms all of them for good. The ends of the callbacks that run, to wait for.
    pub(crate) fn close(&self) -> Vec<Arc<Eventual<()>>> {
        let timers = {
            let mut table = self.table();
            table.closed = true;
            std::mem::take(&mut table.timers)
        };
        let timers: Vec<_> = timers.into_values().filter_map(|timer| timer.upgrade()).collect();
        timers
            .iter()
            .filter_map(|timer| {
                timer.close();
                timer.run_end().ok().flatten()
            })
            .collect()
    }
}
