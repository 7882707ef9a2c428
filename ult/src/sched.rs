//! Schedulers: which unit next.
//!
//! A [`Scheduler`] decides; the xstream's loop ([`run_loop`](crate::run_loop)) acts: it switches,
//! looks at timers, shutdown and idle waiters, and sleeps. A policy is therefore a few lines and
//! cannot lose a wake-up.

use std::cell::Cell;
use std::fmt;

use crate::list::UnitList;
use crate::pool::{Pool, PoolShared, PopBy};
use crate::sync::atomic::Ordering::Relaxed;
use crate::unit::Unit;
use crate::xstream::SlotShared;

/// What an xstream does next.
#[derive(Debug)]
pub enum Step {
    /// Runs this unit.
    Run(Unit),
    /// Nothing is runnable: polls, spins and sleeps by its own rules, then asks again.
    Idle,
}

/// A policy over the ordered list of pools that an xstream serves.
///
/// Counterpart: `ABT_sched_def`.
pub trait Scheduler: Send {
    /// Chooses the next step. Must not block and must not run user code. If it panics, the xstream
    /// logs it and goes on with [`Basic`].
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step;
}

/// A pool as the scheduler of one xstream sees it.
///
/// A pool that several xstreams serve holds the units that may still start anywhere; those that
/// have started on this xstream wait in a list of its own. A pop takes from both in turn.
pub struct PoolView<'a> {
    pool: &'a PoolShared,
    slot: &'a Slot,
    shared: &'a SlotShared,
}

/// What an xstream keeps for one pool that it serves. Only the xstream touches it.
pub(crate) struct Slot {
    pub(crate) pool: usize,
    /// The pool's units, or the started ones if the pool is shared; see [`pool`](crate::pool).
    pub(crate) list: UnitList,
    /// Whether the next pop tries the list first.
    list_first: Cell<bool>,
}

impl Slot {
    pub(crate) fn new(pool: usize) -> Self {
        Self { pool, list: UnitList::new(), list_first: Cell::new(true) }
    }
}

impl<'a> PoolView<'a> {
    pub(crate) fn new(pool: &'a PoolShared, slot: &'a Slot, shared: &'a SlotShared) -> Self {
        Self { pool, slot, shared }
    }

    /// Takes the next unit.
    #[inline]
    pub fn pop(&self) -> Option<Unit> {
        self.pop_as(PopBy::Owner)
    }

    /// Takes a unit as one that has run out of work of its own.
    pub fn steal(&self) -> Option<Unit> {
        self.pop_as(PopBy::Thief)
    }

    #[inline]
    fn pop_as(&self, who: PopBy) -> Option<Unit> {
        let Some(object) = self.pool.object() else {
            return self.pop_list();
        };
        if self.slot.list_first.replace(!self.slot.list_first.get()) {
            self.pop_list().or_else(|| object.pop(who))
        } else {
            object.pop(who).or_else(|| self.pop_list())
        }
    }

    #[inline]
    fn pop_list(&self) -> Option<Unit> {
        self.slot.list.pop_front(&self.shared.len).map(Unit::from_ult)
    }

    /// Number of units that a pop of this xstream could get. A snapshot.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len.load(Relaxed) + self.pool.object().map_or(0, Pool::len)
    }

    /// Whether nothing is there. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slot.list.is_empty() && self.pool.object().is_none_or(Pool::is_empty)
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pool.name
    }
}

impl fmt::Debug for PoolView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolView").field("name", &self.name()).field("len", &self.len()).finish()
    }
}

/// How many picks in strict order come before one that starts elsewhere.
const STRICT_PICKS: u32 = 63;

/// Strict order: the first pool that has a unit wins.
///
/// So that a busy first pool cannot starve the others forever, every 64th pick starts at another
/// pool, each in turn. `basic` in a Margo configuration; there, later pools do starve.
///
/// Counterpart: `ABT_SCHED_BASIC`.
#[derive(Debug, Default)]
pub struct Basic {
    picks: u32,
    turn: usize,
}

impl Basic {
    /// The policy in its initial state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for Basic {
    #[inline]
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let mut start = 0;
        self.picks += 1;
        if self.picks > STRICT_PICKS {
            self.picks = 0;
            self.turn = (self.turn + 1) % pools.len().max(1);
            start = self.turn;
        }
        let (before, from) = pools.split_at(start);
        for pool in from.iter().chain(before) {
            if let Some(unit) = pool.pop() {
                return Step::Run(unit);
            }
        }
        Step::Idle
    }
}

/// The same policy as [`Basic`], and the default.
///
/// In C the two differ in how they wait; here every xstream sleeps when it is idle. `basic_wait` in
/// a Margo configuration.
///
/// Counterpart: `ABT_SCHED_BASIC_WAIT`.
#[derive(Debug, Default)]
pub struct BasicWait(Basic);

impl BasicWait {
    /// The policy in its initial state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for BasicWait {
    #[inline]
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        self.0.next(pools)
    }
}
