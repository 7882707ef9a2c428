//! Schedulers: they pick the unit that runs next.
//!
//! A [`Scheduler`] decides; the xstream's loop ([`run_loop`](crate::engine::run::run_loop))
//! acts: it switches, looks at timers, shutdown and idle waiters, and sleeps. A policy is therefore
//! a few lines and cannot lose a wake-up.

use std::fmt;
use std::ptr;

use crate::base::contain::Foreign;
use crate::engine::model::pool::Queue;
use crate::engine::pool::slot::PoolSlot;
use crate::engine::pool::spec::PopBy;
use crate::engine::unit::handle::Unit;
use crate::engine::xstream::owner::XstreamShared;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// The next step of an xstream.
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
    /// Chooses the next step. Must not block and must not run user code.
    ///
    /// # Panics
    ///
    /// If it panics, the xstream logs an error, drops the scheduler and goes on with [`Basic`] over
    /// the same pools; a scheduler of [`PoolRef::push_scheduler`](crate::PoolRef::push_scheduler)
    /// ends, with the panic as the outcome of its unit. Units that the scheduler had in hand are
    /// dropped with it (see [`Unit`]). Panics of pools do not reach it: a pop finds nothing then. A
    /// panic of its destructor is logged, too.
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step;

    /// The default policy, if this is it: xstreams run a copy of their loop with it compiled in.
    #[doc(hidden)]
    fn as_basic(&mut self) -> Option<&mut Basic> {
        None
    }
}

/// A scheduler that an xstream has for good.
pub(crate) type OwnScheduler = Foreign<Box<dyn Scheduler>>;

pub(crate) fn own(scheduler: Box<dyn Scheduler>) -> OwnScheduler {
    Foreign::new(scheduler, "the destructor of a scheduler")
}

/// A pool as the scheduler of one xstream sees it.
///
/// A pool that several xstreams serve holds the units that may still start anywhere; those that
/// have started on this xstream wait in a list of its own. A pop takes from both in turn.
#[derive(Clone, Copy)]
pub struct PoolView<'a> {
    slot: &'a PoolSlot,
    /// The xstream whose view it is. Whether it owns the pool may change while it has the view.
    me: *mut XstreamShared,
    /// It is a FIFO whose units stand in this xstream's list.
    mostly_list: bool,
}

/// How many pops of an owner prefer its own list before one prefers the pool's queue, where only
/// units stand that came while the owner changed.
const OWN_POPS: u32 = 64;

impl<'a> PoolView<'a> {
    /// A view for the xstream `me`; `is_owner` says whether it owns the pool now.
    pub(crate) fn new(slot: &'a PoolSlot, me: *mut XstreamShared, is_owner: bool) -> Self {
        let mostly_list = is_owner && matches!(slot.pool.queue(), Queue::Fifo(_));
        Self { slot, me, mostly_list }
    }

    fn is_owner(&self) -> bool {
        let owner = self.slot.pool.owner.load(Acquire); // pair: POOL-OWNER
        // A pool may have no owner, and nobody is not its owner.
        !self.me.is_null() && ptr::eq(owner, self.me)
    }

    /// Takes the next unit.
    #[inline]
    pub fn pop(&self) -> Option<Unit> {
        self.pop_as(PopBy::Owner)
    }

    /// Takes a unit as one that has run out of work of its own: from a work-stealing pool the
    /// oldest instead of the newest.
    pub fn steal(&self) -> Option<Unit> {
        self.pop_as(PopBy::Thief)
    }

    /// Appends up to `max` units to `into`, as that many pops would.
    pub fn pop_many(&self, max: usize, into: &mut Vec<Unit>) {
        into.extend(std::iter::from_fn(|| self.pop()).take(max));
    }

    /// How many of the next pops take from the xstream's list if it is not empty.
    #[inline]
    pub(crate) fn pops_from_list(&self) -> u32 {
        if self.mostly_list { OWN_POPS - 1 - self.slot.pops.get() % OWN_POPS } else { 0 }
    }

    #[inline]
    fn pop_as(&self, who: PopBy) -> Option<Unit> {
        let pops = self.slot.pops.get().wrapping_add(1);
        self.slot.pops.set(pops);
        if self.mostly_list
            && !pops.is_multiple_of(OWN_POPS)
            && let Some(ult) = self.slot.pop_front()
        {
            return Some(Unit::from_ult(ult));
        }
        self.pop_slow(pops, who)
    }

    #[inline(never)]
    fn pop_slow(&self, pops: u32, who: PopBy) -> Option<Unit> {
        let unit = if pops & 1 == 0 && !self.mostly_list {
            self.slot.pop_front().or_else(|| self.pop_queue(who))
        } else {
            self.pop_queue(who).or_else(|| self.slot.pop_front())
        };
        unit.map(Unit::from_ult)
    }

    #[inline]
    fn pop_queue(&self, who: PopBy) -> Option<crate::engine::model::unit::UltPtr> {
        match self.slot.pool.queue() {
            Queue::Fifo(pool) => pool.pop_ult(),
            Queue::Deque(deque) if who == PopBy::Owner && self.is_owner() => {
                // SAFETY: views are used by their xstream's thread only, and it is the owner: it
                // gives that up by itself, between two units.
                unsafe { deque.pop_own() }
            }
            other => other.pop(who),
        }
    }

    /// Number of units that a pop of this xstream could get. A snapshot.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slot.shared.len.load(Relaxed) + self.slot.pool.queue().len()
    }

    /// Returns whether nothing is there. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slot.is_empty()
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.slot.pool.name
    }

    pub(crate) fn slot(&self) -> &'a PoolSlot {
        self.slot
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
/// pool, each in turn. `basic` in a Margo configuration, and `prio`; in C, later pools do starve.
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
        self.picks += 1;
        if self.picks <= STRICT_PICKS
            && let Some(unit) = pools.first().and_then(PoolView::pop)
        {
            return Step::Run(unit);
        }
        self.next_slow(pools)
    }

    fn as_basic(&mut self) -> Option<&mut Basic> {
        Some(self)
    }
}

impl Basic {
    /// How many of the next picks go to the first pool if it has a unit.
    #[inline]
    pub(crate) fn strict_picks_left(&self) -> u32 {
        STRICT_PICKS.saturating_sub(self.picks)
    }

    /// The caller has picked so many of the first pool by itself.
    #[inline]
    pub(crate) fn count_strict_picks(&mut self, count: u32) {
        self.picks += count;
    }

    #[inline(never)]
    fn next_slow(&mut self, pools: &[PoolView<'_>]) -> Step {
        let mut start = 0;
        if self.picks > STRICT_PICKS {
            self.picks = 0;
            self.turn = (self.turn + 1) % pools.len().max(1);
            start = self.turn;
        }
        let (before, from) = pools.split_at(start);
        from.iter().chain(before).find_map(PoolView::pop).map_or(Step::Idle, Step::Run)
    }
}

/// The default policy, which orders units as [`Basic`] does.
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

    fn as_basic(&mut self) -> Option<&mut Basic> {
        Some(&mut self.0)
    }
}

/// Strict priorities: the first pool that has a unit wins, always.
///
/// A pool that never runs empty starves all behind it; use [`Basic`] or [`RoundRobin`] if that is
/// not what you want. For programs that ask for it: `prio` in a Margo configuration is [`Basic`],
/// because no configuration may starve network progress.
///
/// Counterpart: `ABT_SCHED_PRIO`.
#[derive(Debug, Default)]
pub struct Prio(());

impl Prio {
    /// The policy, which has no state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for Prio {
    #[inline]
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        pools.iter().find_map(PoolView::pop).map_or(Step::Idle, Step::Run)
    }
}

/// Every pool in turn, each with a quota of units. No pool can starve another.
#[derive(Debug)]
pub struct RoundRobin {
    quotas: Vec<u32>,
    turn: usize,
    used: u32,
}

impl RoundRobin {
    /// One unit of each pool in turn.
    #[must_use]
    pub fn new() -> Self {
        Self::with_quotas([])
    }

    /// So many units of each pool in turn, in the order of the xstream's pools. Pools without
    /// a quota, and those with a quota of zero, have a quota of one.
    #[must_use]
    pub fn with_quotas(quotas: impl IntoIterator<Item = u32>) -> Self {
        Self { quotas: quotas.into_iter().collect(), turn: 0, used: 0 }
    }

    fn quota(&self, pool: usize) -> u32 {
        self.quotas.get(pool).map_or(1, |quota| (*quota).max(1))
    }
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheduler for RoundRobin {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        for _ in 0..=pools.len() {
            let turn = self.turn % pools.len().max(1);
            if self.used < self.quota(turn)
                && let Some(unit) = pools.get(turn).and_then(PoolView::pop)
            {
                self.used += 1;
                return Step::Run(unit);
            }
            self.turn = turn + 1;
            self.used = 0;
        }
        Step::Idle
    }
}

/// Work stealing: the first pool is the xstream's own; when it is empty, a unit is stolen from one
/// of the others, beginning with one chosen at random.
///
/// Every 64th pick looks at the others first, so that what only this xstream can run there is not
/// forgotten. Use it with pools of [`PoolKind::RandWs`](crate::PoolKind::RandWs).
///
/// Counterpart: `ABT_SCHED_RANDWS`.
#[derive(Debug)]
pub struct RandWs {
    picks: u32,
    random: fastrand::Rng,
}

impl RandWs {
    /// The policy with a random seed of its own.
    #[must_use]
    pub fn new() -> Self {
        Self { picks: 0, random: fastrand::Rng::new() }
    }

    fn steal(&mut self, others: &[PoolView<'_>]) -> Option<Unit> {
        if others.is_empty() {
            return None;
        }
        let (before, from) = others.split_at(self.random.usize(..others.len()));
        from.iter().chain(before).find_map(PoolView::steal)
    }
}

impl Default for RandWs {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheduler for RandWs {
    #[inline]
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let Some((own, others)) = pools.split_first() else { return Step::Idle };
        self.picks = self.picks.wrapping_add(1);
        let unit = if self.picks.is_multiple_of(STRICT_PICKS + 1) {
            self.steal(others).or_else(|| own.pop())
        } else {
            own.pop().or_else(|| self.steal(others))
        };
        unit.map_or(Step::Idle, Step::Run)
    }
}
