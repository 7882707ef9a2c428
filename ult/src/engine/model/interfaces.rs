//! The interfaces at which code of the program takes part: what a pool and a scheduler have to do,
//! and what they get into their hands.

use std::fmt;
use std::ptr;

use crate::base::contain::Foreign;
use crate::base::priority::Priority;
use crate::engine::model::pool::{PoolSlot, Queue};
use crate::engine::model::unit::UltPtr;
use crate::engine::model::xstream_shared::XstreamShared;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// A runnable ULT or tasklet on its way through a pool; the right to run it once.
///
/// Pools store units and give them back, schedulers pass them to their xstream. Dropping one does
/// not lose control: an unstarted unit is cancelled (its closure is dropped, and `join` reports
/// [`JoinError::Lost`](crate::JoinError::Lost)), a started one returns to its xstream.
///
/// ```
/// use ult::PoolSpec;
///
/// # use ult::{Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let spare = runtime.add_pool(PoolSpec::new("spare"))?;
/// let worker = spare.ult().name("worker").spawn(|| 42)?;
/// let unit = spare.pop().expect("no xstream takes it");
/// assert_eq!((unit.name(), unit.is_started()), (Some("worker"), false));
/// // Whoever has a unit passes it on, to a pool in this case.
/// pool.push(unit).map_err(|(_, error)| error)?;
/// assert_eq!(worker.join()?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_unit`.
#[must_use = "dropping a unit cancels an unstarted one"]
pub struct Unit(UltPtr);

impl Unit {
    /// The caller hands over the queue membership of `ult`.
    #[inline]
    pub(crate) fn from_ult(ult: UltPtr) -> Self {
        Self(ult)
    }

    /// The other direction: the caller must queue or run the ULT.
    #[inline]
    pub(crate) fn into_ult(self) -> UltPtr {
        let ult = self.0;
        std::mem::forget(self);
        ult
    }

    pub(crate) fn ptr(&self) -> UltPtr {
        self.0
    }

    /// Number of the unit, unique in its runtime and never used again; increases with creation
    /// time, except that each xstream draws its numbers in blocks.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id.get()
    }

    /// The name given at spawn.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name()
    }

    /// Name of the pool that the unit belongs to.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.0.pool().name
    }

    /// Returns whether the unit has run before. It then runs only on its home xstream, unless it is
    /// migratable.
    #[must_use]
    pub fn is_started(&self) -> bool {
        !self.0.home.load(Relaxed).is_null()
    }

    /// Returns whether the unit is a tasklet.
    #[inline]
    #[must_use]
    pub fn is_tasklet(&self) -> bool {
        self.0.is_tasklet()
    }

    /// The priority given at spawn.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.0.priority()
    }

    /// How often the ULT has been put back into a user-written or priority pool after its start, up
    /// to 8191.
    #[must_use]
    pub fn pushes(&self) -> u32 {
        self.0.pushes()
    }
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("pool", &self.pool())
            .field("started", &self.is_started())
            .finish()
    }
}

/// The reason why a unit becomes runnable; a pool may order units by it.
///
/// ```
/// # use std::collections::VecDeque;
/// # use std::sync::{Mutex, PoisonError};
/// # use ult::PopBy;
/// use ult::{Pool, PushReason, Unit};
///
/// # struct Resumed(Mutex<VecDeque<Unit>>);
/// impl Pool for Resumed {
///     // What has been suspended goes on before other work begins.
///     fn push(&self, unit: Unit, why: PushReason) {
///         let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         match why {
///             PushReason::Resume => units.push_front(unit),
///             _ => units.push_back(unit),
///         }
///     }
/// #     fn pop(&self, _: PopBy) -> Option<Unit> {
/// #         self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
/// #     }
/// #     fn len(&self) -> usize {
/// #         self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
/// #     }
/// }
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::custom("main", Box::new(Resumed(Mutex::default()))))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # runtime.pool("main").expect("defined above").spawn(ult::yield_now)?.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushReason {
    /// It has just been spawned.
    Create,
    /// It yielded.
    Yield,
    /// It had been suspended and was resumed.
    Resume,
    /// It came from another pool.
    Migrate,
}

/// The party that asks a pool for a unit.
///
/// ```
/// # use std::collections::VecDeque;
/// # use std::sync::{Mutex, PoisonError};
/// # use ult::PushReason;
/// use ult::{Pool, PopBy, Unit};
///
/// # struct Deque(Mutex<VecDeque<Unit>>);
/// impl Pool for Deque {
///     // The owner takes the newest unit, and a thief the oldest.
///     fn pop(&self, who: PopBy) -> Option<Unit> {
///         let mut units = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         match who {
///             PopBy::Thief => units.pop_front(),
///             _ => units.pop_back(),
///         }
///     }
/// #     fn push(&self, unit: Unit, _: PushReason) {
/// #         self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(unit);
/// #     }
/// #     fn len(&self) -> usize {
/// #         self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
/// #     }
/// }
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::custom("main", Box::new(Deque(Mutex::default()))))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # runtime.pool("main").expect("defined above").spawn(ult::yield_now)?.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PopBy {
    /// An xstream whose scheduler serves the pool in its normal order.
    Owner,
    /// An xstream that has run out of work elsewhere and steals.
    Thief,
}

/// A queue of runnable units, for users who want their own order.
///
/// A pool that is served by one xstream gets all units; one that is served by several gets only
/// unstarted ones. Methods are called by many threads, on the stack of a ULT or of an xstream. They
/// cannot suspend, [`push`](Self::push) included: in there [`current`](crate::current()) knows no
/// unit, and what waits, for a [`Mutex`](crate::Mutex) of this crate or for anything else, blocks
/// the whole xstream. So they must not wait for units. Do not drop units (see [`Unit`]).
///
/// ```
/// use std::sync::{Mutex, MutexGuard, PoisonError};
/// use ult::{Pool, PoolSpec, PopBy, PushReason, Runtime, Unit, XstreamSpec};
///
/// /// Last in, first out.
/// #[derive(Default)]
/// struct Lifo(Mutex<Vec<Unit>>);
///
/// impl Lifo {
///     fn units(&self) -> MutexGuard<'_, Vec<Unit>> {
///         self.0.lock().unwrap_or_else(PoisonError::into_inner)
///     }
/// }
///
/// impl Pool for Lifo {
///     fn push(&self, unit: Unit, _: PushReason) {
///         self.units().push(unit);
///     }
///
///     fn pop(&self, _: PopBy) -> Option<Unit> {
///         self.units().pop()
///     }
///
///     fn len(&self) -> usize {
///         self.units().len()
///     }
/// }
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::custom("main", Box::new(Lifo::default())))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # assert_eq!(pool.spawn(|| 42)?.join()?, 42);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// A panic of a method, or of the destructor, ends there and is logged as an error (of one pool the
/// first, the second, the fourth and so on): the party that spawned, resumed or moved the unit, or
/// that runs next, does not notice. The runtime goes on as well as it can, with the pool in place:
///
/// | method | what becomes of the units |
/// |---|---|
/// | `push` | The unit is the pool's if the pool has kept it. If the unwinding drops it, a ULT that has started goes on in the list of its xstream, past the pool, and a unit that has not is lost: a `spawn` has succeeded, and `join` reports [`JoinError::Lost`](crate::JoinError::Lost). |
/// | `pop` | Nothing comes out; a unit that the unwinding drops fares as above. After 16 panics in a row it is called when units have been pushed, or an xstream is awake anyway. |
/// | `len`, `is_empty` | Neither is called again. The runtime takes the pool for non-empty from each push on until a pop finds nothing, and shows a length of zero. |
/// | `for_each` | The units that have been shown are all that are listed. |
///
/// A pool that locks by `lock().unwrap()` panics for ever after its first panic, and the units in
/// it never run: take the content of a poisoned lock.
///
/// Counterpart: `ABT_pool_user_def`.
pub trait Pool: Send + Sync {
    /// Makes `unit` runnable.
    fn push(&self, unit: Unit, why: PushReason);
    /// Takes the next unit by this pool's own order.
    fn pop(&self, who: PopBy) -> Option<Unit>;
    /// Number of queued units. After a `push` has returned, and until the unit is popped, this must
    /// not be zero: xstreams look at it before they sleep.
    fn len(&self) -> usize;
    /// Returns whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes several units runnable, the first one first. Default: one after the other.
    fn push_many(&self, units: &mut dyn Iterator<Item = Unit>, why: PushReason) {
        units.for_each(|unit| self.push(unit, why));
    }
    /// Appends up to `max` units to `into`. Default: one after the other.
    fn pop_many(&self, max: usize, who: PopBy, into: &mut Vec<Unit>) {
        for _ in 0..max {
            let Some(unit) = self.pop(who) else { return };
            into.push(unit);
        }
    }
    /// Shows the queued units, for debugging. Default: none.
    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let _ = see;
    }
}

/// The kinds of pool that come with the runtime.
///
/// ```
/// use ult::{PoolKind, PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("rpc").kind(PoolKind::EarliestFirst))
///     .pool(PoolSpec::new("other"))
///     .xstream(XstreamSpec::new("x0").pools(["rpc", "other"]))
///     .start()?;
/// let kinds: Vec<_> = runtime.pools().iter().map(|pool| pool.kind()).collect();
/// assert_eq!(kinds, [PoolKind::EarliestFirst, PoolKind::FifoWait]);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolKind {
    /// First in, first out. `fifo` in a Margo configuration.
    Fifo,
    /// Behaves like [`Fifo`](Self::Fifo); the name exists because C Margo has two. `fifo_wait`
    /// there.
    #[default]
    FifoWait,
    /// Two queues: ULTs that have run before go first, so that started work ends before new work
    /// begins. A ULT that came back 25 times counts as new, and every 256th pop prefers new
    /// ones. `prio_wait` in a Margo configuration.
    ///
    /// That is so where one xstream serves the pool. Where several do, a ULT that has started stays
    /// on its xstream, which takes those and new ones in turn, while there are new ones.
    ///
    /// New ones go by their [`Priority`](crate::Priority), and in order among equals; every 8th of
    /// them is taken from those of normal priority first, and every 64th from those of low
    /// priority, so that nobody waits for ever.
    PrioWait,
    /// The unit that was spawned first goes first, so that started work ends before new work
    /// begins. ULTs that came back 32 times wait in a FIFO instead; pops take from heap and FIFO in
    /// turn. Age goes by the number of the unit, which grows with time among the spawns of one
    /// xstream. Where several xstreams serve the pool, each takes ULTs that have started there and
    /// new ones in turn. `earliest_first` in a Margo configuration.
    EarliestFirst,
    /// A work-stealing deque. The xstream that names the pool first in its list runs the unit that
    /// was spawned last, others that name it steal the one that was spawned first. For many small
    /// units that spawn each other; use it with [`RandWs`](crate::RandWs). Walks do not show its
    /// content.
    RandWs,
    /// Made with [`PoolSpec::custom`](crate::PoolSpec::custom).
    Custom,
}

/// The parties that may use a pool; a promise by the user that saves locks.
///
/// ```
/// use ult::{Access, PoolSpec, Runtime, StartError, XstreamSpec};
///
/// let refused = Runtime::builder()
///     .pool(PoolSpec::new("main").access(Access::Mpsc))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .xstream(XstreamSpec::new("x1").pools(["main"]))
///     .start();
/// // The promise was that one xstream serves the pool.
/// assert!(matches!(refused, Err(StartError::Access { access: Access::Mpsc, .. })));
/// ```
///
/// Counterpart: `ABT_pool_access`, whose promises are not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// One xstream spawns into the pool and serves it. No atomic operation is needed. A spawn by
    /// anybody else works in release builds, and panics in debug builds.
    Private,
    /// One xstream serves it, one thread spawns. Not checked further than [`Mpsc`](Self::Mpsc).
    Spsc,
    /// One xstream serves it, anybody spawns. A second xstream is refused.
    Mpsc,
    /// Several xstreams serve it, one thread spawns. Treated like [`Mpmc`](Self::Mpmc).
    Spmc,
    /// No promise. As long as one xstream serves the pool, it costs as little as `Mpsc`.
    #[default]
    Mpmc,
}

impl Access {
    /// Returns whether only one xstream may serve the pool.
    #[must_use]
    pub fn is_single_consumer(self) -> bool {
        matches!(self, Self::Private | Self::Spsc | Self::Mpsc)
    }
}

/// The next step of an xstream.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// use ult::{PoolView, Scheduler, Step};
///
/// # struct First;
/// impl Scheduler for First {
///     // It serves the first pool only.
///     fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
///         match pools.first().and_then(|pool| pool.pop()) {
///             Some(unit) => Step::Run(unit),
///             None => Step::Idle,
///         }
///     }
/// }
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]).scheduler(Box::new(First)))
/// #     .start()?;
/// # runtime.pool("main").expect("defined above").spawn(ult::yield_now)?.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Step {
    /// Runs this unit.
    Run(Unit),
    /// Nothing is runnable: polls, spins and sleeps by its own rules, then asks again.
    Idle,
}

/// A policy over the ordered list of pools that an xstream serves.
///
/// ```
/// use ult::{PoolSpec, PoolView, Runtime, Scheduler, Step, XstreamSpec};
///
/// /// The longest queue first.
/// struct Longest;
///
/// impl Scheduler for Longest {
///     fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
///         let longest = pools.iter().max_by_key(|pool| pool.len());
///         longest.and_then(PoolView::pop).map_or(Step::Idle, Step::Run)
///     }
/// }
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("rpc"))
///     .pool(PoolSpec::new("io"))
///     .xstream(XstreamSpec::new("x0").pools(["rpc", "io"]).scheduler(Box::new(Longest)))
///     .start()?;
/// # for pool in runtime.pools() {
/// #     pool.spawn(ult::yield_now)?.join()?;
/// # }
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// The count of its picks since one last began elsewhere than at its first pool, if otherwise
    /// it begins there. Joiners may then run the next unit of that pool without asking.
    #[doc(hidden)]
    fn strict_picks(&mut self) -> Option<&mut u32> {
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
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// use ult::{PoolView, Scheduler, Step};
///
/// # struct Background;
/// impl Scheduler for Background {
///     // The last pool has to wait, but not for ever.
///     fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
///         let Some((last, others)) = pools.split_last() else { return Step::Idle };
///         let others = || others.iter().find_map(PoolView::pop);
///         let unit = if last.len() > 100 {
///             last.pop().or_else(others)
///         } else {
///             others().or_else(|| last.pop())
///         };
///         unit.map_or(Step::Idle, Step::Run)
///     }
/// }
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .pool(PoolSpec::new("background"))
/// #     .xstream(
/// #         XstreamSpec::new("x0").pools(["main", "background"]).scheduler(Box::new(Background)),
/// #     )
/// #     .start()?;
/// # for pool in runtime.pools() {
/// #     pool.spawn(ult::yield_now)?.join()?;
/// # }
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct PoolView<'a> {
    slot: &'a PoolSlot,
    /// The xstream whose view it is. Whether it owns the pool may change while it has the view.
    me: *mut XstreamShared,
    /// It is a FIFO whose units stand in this xstream's list.
    mostly_list: bool,
}

/// How many pops of an owner prefer its own list before one prefers the pool's queue, where as a
/// rule only units stand that came while the owner changed.
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
        if self.mostly_list && unit.is_some() && !self.slot.pool.queue().is_empty() {
            // Units that may be stolen stand there; from here on the two take turns.
            self.slot.pops.set(OWN_POPS - 2);
        }
        unit.map(Unit::from_ult)
    }

    #[inline]
    fn pop_queue(&self, who: PopBy) -> Option<UltPtr> {
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

/// Strict order: the first pool that has a unit wins.
///
/// So that a busy first pool cannot starve the others forever, every 64th pick starts at another
/// pool, each in turn. `basic` in a Margo configuration, and `prio`; in C, later pools do starve.
///
/// ```
/// use ult::{Basic, PoolSpec};
///
/// # use ult::{Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // As a stacked scheduler: a ULT of `main` that runs the units of another pool.
/// let inner = runtime.add_pool(PoolSpec::new("inner"))?;
/// let worker = inner.spawn(|| 42)?;
/// let scheduler = pool.push_scheduler(Box::new(Basic::new()), [inner])?;
/// assert_eq!(worker.join()?, 42);
/// scheduler.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_SCHED_BASIC`.
#[derive(Debug, Default)]
pub struct Basic {
    pub(in crate::engine) picks: u32,
    pub(in crate::engine) turn: usize,
}
