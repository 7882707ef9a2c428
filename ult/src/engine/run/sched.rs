//! Schedulers: they pick the unit that runs next.
//!
//! A [`Scheduler`] decides; the xstream's loop ([`run_loop`](crate::engine::run::run_loop))
//! acts: it switches, looks at timers, shutdown and idle waiters, and sleeps. A policy is therefore
//! a few lines and cannot lose a wake-up.

use crate::engine::model::interfaces::{Basic, PoolView, Scheduler, Step, Unit};

/// How many picks in strict order come before one that starts elsewhere.
pub(super) const STRICT_PICKS: u32 = 63;

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

    fn strict_picks(&mut self) -> Option<&mut u32> {
        Some(&mut self.picks)
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
/// ```
/// use ult::{BasicWait, PoolSpec, Runtime, XstreamSpec};
///
/// // The scheduler of an xstream for which no other is chosen.
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]).scheduler(Box::new(BasicWait::new())))
///     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # assert_eq!(pool.spawn(|| 42)?.join()?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    fn strict_picks(&mut self) -> Option<&mut u32> {
        self.0.strict_picks()
    }
}

/// Strict priorities: the first pool that has a unit wins, always.
///
/// A pool that never runs empty starves all behind it; use [`Basic`] or [`RoundRobin`] if that is
/// not what you want. For programs that ask for it: `prio` in a Margo configuration is [`Basic`],
/// because no configuration may starve network progress.
///
/// ```
/// use ult::{Prio, XstreamSpec};
///
/// # use ult::{Mutex, PoolRef, PoolSpec, Runtime};
/// # static ORDER: Mutex<String> = Mutex::new(String::new());
/// let spec = XstreamSpec::new("x0").pools(["a", "b"]).scheduler(Box::new(Prio::new()));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("a"))
/// #     .pool(PoolSpec::new("b"))
/// #     .xstream(spec)
/// #     .start()?;
/// # let [a, b] = ["a", "b"].map(|name| runtime.pool(name).expect("defined above"));
/// # let spawner = a.clone();
/// # let units = spawner.spawn(move || {
/// #     let note = |pool: &PoolRef, name| pool.spawn(move || ORDER.lock().push(name));
/// #     [note(&b, 'b'), note(&b, 'b'), note(&a, 'a'), note(&a, 'a')]
/// # })?;
/// # for unit in units.join()? {
/// #     unit?.join()?;
/// # }
/// // Two units of each pool, all spawned by a unit of `a`, run in this order.
/// assert_eq!(*ORDER.lock(), "aabb");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// use ult::{RoundRobin, XstreamSpec};
///
/// # use ult::{Mutex, PoolRef, PoolSpec, Runtime};
/// # static ORDER: Mutex<String> = Mutex::new(String::new());
/// let spec = XstreamSpec::new("x0").pools(["a", "b"]).scheduler(Box::new(RoundRobin::new()));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("a"))
/// #     .pool(PoolSpec::new("b"))
/// #     .xstream(spec)
/// #     .start()?;
/// # let [a, b] = ["a", "b"].map(|name| runtime.pool(name).expect("defined above"));
/// # let spawner = a.clone();
/// # let units = spawner.spawn(move || {
/// #     let note = |pool: &PoolRef, name| pool.spawn(move || ORDER.lock().push(name));
/// #     [note(&b, 'b'), note(&b, 'b'), note(&a, 'a'), note(&a, 'a')]
/// # })?;
/// # for unit in units.join()? {
/// #     unit?.join()?;
/// # }
/// // Two units of each pool, all spawned by a unit of `a`, run in this order.
/// assert_eq!(*ORDER.lock(), "baba");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
/// ```
/// use ult::{PoolKind, PoolSpec, RandWs, Runtime, XstreamSpec};
///
/// // Each xstream has a pool of its own, and steals from that of the other.
/// let xstream = |name, pools: [&str; 2]| {
///     XstreamSpec::new(name).pools(pools).scheduler(Box::new(RandWs::new()))
/// };
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("p0").kind(PoolKind::RandWs))
///     .pool(PoolSpec::new("p1").kind(PoolKind::RandWs))
///     .xstream(xstream("x0", ["p0", "p1"]))
///     .xstream(xstream("x1", ["p1", "p0"]))
///     .start()?;
/// let pool = runtime.pool("p0").expect("defined above");
/// let sum = pool.spawn(|| ult::join(|| (1..50).sum::<u32>(), || (50..100).sum::<u32>()))?;
/// assert_eq!(sum.join()?, (1225, 3725));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        self.picks += 1;
        let unit = if self.picks > STRICT_PICKS {
            self.picks = 0;
            self.steal(others).or_else(|| own.pop())
        } else {
            own.pop().or_else(|| self.steal(others))
        };
        unit.map_or(Step::Idle, Step::Run)
    }

    fn strict_picks(&mut self) -> Option<&mut u32> {
        Some(&mut self.picks)
    }
}
