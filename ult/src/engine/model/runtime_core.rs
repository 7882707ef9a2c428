//! The part of a runtime that every thread may use.
//!
//! What is known of a pool or an xstream stays here also after it has been removed (less than 1 KiB
//! each, and nothing of the system's), so plain pointers to it stay valid. This part is kept alive
//! by the `Runtime`, by every `PoolRef` and `XstreamRef`, by the xstreams, and by every slab of
//! descriptors (hence by everything that may still wake a ULT). Closing the depot at the end of a
//! shutdown breaks the circle between the depot and its idle descriptors.
//!
//! # Phases
//!
//! | phase | meaning | left by |
//! |---|---|---|
//! | open | spawns are accepted | shutdown |
//! | + `WATCHED` | the same; every end of a ULT is reported to the shutdown that waits | shutdown |
//! | + `CLOSING` | spawns are refused; the rest runs to its end | shutdown (or open again) |
//! | + `EXIT` | nothing is alive; xstreams leave their loops | never |
//!
//! The phase word also counts its changes. An xstream copies the flags when it is signalled, so the
//! spawn path of a ULT reads its own xstream's copy only, and stores the word it has seen; the
//! shutdown waits until all have seen the new one. Threads that are no xstream pass a `gate` while
//! they spawn: they enter, look at the phase, push, and leave. pair: GATE-DEKKER

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::base::wait_kind::WaitKind;
use crate::engine::helpers::Helpers;
use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::Ult;
use crate::engine::model::waiter::{ChangeSignal, RawMutex};
use crate::engine::model::xstream_shared::XstreamShared;
use crate::stack::memory::StackClass;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use crate::sync::{Arc, Mutex, lock};
use crate::topology::CpuSet;

/// Every end of a unit is reported.
pub(crate) const WATCHED: u64 = 1;
/// Spawns are refused.
pub(crate) const CLOSING: u64 = 2;
/// Xstreams leave.
pub(crate) const EXIT: u64 = 4;
/// Xstreams write down their suspended ULTs.
pub(crate) const REPORT: u64 = 8;
const FLAGS: u64 = WATCHED | CLOSING | EXIT | REPORT;
const CHANGE: u64 = 16;

/// Numbers that an xstream draws at once.
pub(crate) const IDS_PER_DRAW: u64 = 1024;

/// Pools and xstreams. What looks at all of them again and again looks at those that there are.
#[derive(Default)]
pub(crate) struct LayoutState {
    /// All pools by index, also those that have been removed.
    pub(crate) pools: Vec<Arc<PoolShared>>,
    pub(crate) xstreams: Vec<Arc<XstreamShared>>,
    /// The pools that have not been removed, in the same order.
    living_pools: Vec<Arc<PoolShared>>,
    pub(in crate::engine) living_xstreams: Vec<Arc<XstreamShared>>,
    /// Totals of the pools that have been removed.
    past: UnitTotals,
    /// Indices of pools that have been removed and still have their queues.
    unswept: Vec<usize>,
}

/// Beginnings and ends of units.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnitTotals {
    pub(crate) spawned: u64,
    pub(crate) ended: u64,
}

/// See the module documentation.
pub(crate) struct RuntimeCore {
    /// Held for a few instructions; changes are made under the lock of the layout.
    pub(crate) parts: Mutex<LayoutState>,
    /// One change of pools and xstreams at a time.
    pub(in crate::engine) layout: RawMutex,
    pub(crate) depot: Depot,
    pub(crate) spin_max: Duration,
    pub(crate) stack_cache_max: usize,
    /// Stacks for which neither the spawn nor the pool says another.
    pub(crate) class: StackClass,
    /// Processors of xstreams that are bound to none in particular.
    pub(crate) cpus: CpuSet,
    /// Threads that run what may block.
    pub(crate) helpers: Arc<Helpers>,
    /// Xstreams that sleep or are about to.
    pub(crate) sleeping: AtomicUsize,
    /// There have been jobs of [`join`](crate::join()).
    pub(crate) has_jobs: AtomicBool,
    /// Where units asked to migrate to, by their descriptor.
    pub(crate) migrations: Mutex<HashMap<usize, Arc<PoolShared>>>,
    next_id: AtomicU64,
    phase: AtomicU64,
    gate: AtomicUsize,
    /// Changes that shutdowns and joins of xstreams wait for.
    pub(crate) news: ChangeSignal,
    /// Filled by the xstreams while the phase says `REPORT`.
    stuck: Mutex<Vec<StuckUlt>>,
    pub(crate) diag: crate::engine::pulse::Shared,
}

impl RuntimeCore {
    pub(crate) fn new(
        spin_max: Duration,
        stack_cache_max: usize,
        class: StackClass,
        cpus: CpuSet,
        blocking_threads_max: usize,
    ) -> Self {
        let helpers = Arc::new(Helpers::new(blocking_threads_max, cpus.clone()));
        Self {
            parts: Mutex::default(),
            layout: RawMutex::new(),
            depot: Depot::new(),
            spin_max,
            stack_cache_max,
            class,
            cpus,
            helpers,
            sleeping: AtomicUsize::new(0),
            has_jobs: AtomicBool::new(false),
            migrations: Mutex::default(),
            next_id: AtomicU64::new(1),
            phase: AtomicU64::new(0),
            gate: AtomicUsize::new(0),
            news: ChangeSignal::new(),
            stuck: Mutex::new(Vec::new()),
            diag: crate::engine::pulse::Shared::default(),
        }
    }

    /// All pools that have not been removed.
    pub(crate) fn pools(&self) -> Vec<Arc<PoolShared>> {
        lock(&self.parts).living_pools.clone()
    }

    /// All pools that have not been removed, and what `past` reads of those that have: of one
    /// moment, so that none is missed and none counts twice.
    pub(crate) fn pools_and<T>(&self, past: impl FnOnce() -> T) -> (Vec<Arc<PoolShared>>, T) {
        let parts = lock(&self.parts);
        (parts.living_pools.clone(), past())
    }

    /// All xstreams that have not been removed.
    pub(crate) fn xstreams(&self) -> Vec<Arc<XstreamShared>> {
        lock(&self.parts).living_xstreams.clone()
    }

    /// Adds a pool, made for this index. The caller holds the lock of the layout, or is the only
    /// one who knows this part.
    pub(crate) fn add_pool(&self, make: impl FnOnce(usize) -> PoolShared) -> Arc<PoolShared> {
        let mut parts = lock(&self.parts);
        let pool = Arc::new(make(parts.pools.len()));
        parts.pools.push(pool.clone());
        parts.living_pools.push(pool.clone());
        pool
    }

    /// `pool` has been removed, when its books were these: the runtime keeps the sums, and looks
    /// at the pool no more.
    pub(crate) fn forget_pool(&self, pool: &PoolShared, books: UnitTotals) {
        let mut parts = lock(&self.parts);
        parts.living_pools.retain(|other| other.index != pool.index);
        parts.past.spawned = parts.past.spawned.wrapping_add(books.spawned);
        parts.past.ended = parts.past.ended.wrapping_add(books.ended);
        parts.unswept.push(pool.index);
        pool.for_each_slot(|slot| {
            if let Some(xstream) = parts.xstreams.get(slot.xstream) {
                xstream.past.take_over(slot);
            }
        });
    }

    /// Drops the queues of removed pools that nobody can reach any more: nobody but this part has a
    /// count on them, so there are neither handles nor slots, and every xstream has looked at its
    /// mail since the removal. Without a lock: the destructor may be a user's.
    pub(crate) fn sweep_pools(&self) {
        let mut parts = lock(&self.parts);
        let LayoutState { pools, unswept, .. } = &mut *parts;
        let mut swept = Vec::new();
        unswept.retain(|index| {
            let pool = &pools[*index];
            let is_last = Arc::strong_count(pool) == 1;
            if is_last {
                // What others did with their counts happens before: `Arc` releases each.
                fence(Acquire); // pair: POOL-COUNT
                // SAFETY:
                // - removed: it stands in `unswept`;
                // - no caller of `queue`: those with a count are gone, and it gets no new one, as
                //   it is not among the living and has no units; threads that are no xstreams have
                //   one while they queue a unit; each xstream has had one in its mail since the
                //   removal, so it is through with what it queued before: nothing is suspended in
                //   there (`CustomPool`).
                swept.push(unsafe { pool.take_queue() });
            }
            !is_last
        });
        drop(parts);
        drop(swept);
    }

    /// Adds an xstream. The caller as above.
    pub(crate) fn add_xstream(&self, xstream: &Arc<XstreamShared>) {
        let mut parts = lock(&self.parts);
        parts.xstreams.push(xstream.clone());
        parts.living_xstreams.push(xstream.clone());
    }

    /// A handle of one of our pools.
    pub(crate) fn pool_arc(&self, pool: &PoolShared) -> Arc<PoolShared> {
        lock(&self.parts).pools[pool.index].clone()
    }

    /// The next `count` numbers for units.
    pub(crate) fn draw_ids(&self, count: u64) -> u64 {
        self.next_id.fetch_add(count, Relaxed)
    }

    /// Wakes one sleeping xstream that serves `pool`. The caller has made a unit visible before.
    #[inline]
    pub(crate) fn wake_one(&self, pool: &PoolShared) {
        // One fence for all the looks below; forbids that they are done before the unit is
        // visible.
        fence(SeqCst); // pair: PARK-DEKKER
        if self.sleeping.load(Relaxed) > 0 {
            self.wake_one_slow(pool);
        }
    }

    #[cold]
    pub(crate) fn wake_one_slow(&self, pool: &PoolShared) {
        for server in lock(&pool.servers).iter() {
            if server.wake_after_fence() {
                return;
            }
        }
    }

    /// The current flags, and the word that xstreams acknowledge.
    pub(crate) fn phase(&self) -> (u64, u64) {
        let word = self.phase.load(Acquire); // pair: PHASE
        (word & FLAGS, word)
    }

    /// Changes the flags and makes every xstream look. Returns the word to be acknowledged.
    /// Only one shutdown at a time calls this.
    pub(crate) fn set_phase(&self, flags: u64) -> u64 {
        let word = (self.phase.load(Relaxed) & !FLAGS) + CHANGE + flags;
        self.phase.store(word, Release); // pair: PHASE
        fence(SeqCst); // pair: GATE-DEKKER
        for xstream in self.xstreams() {
            xstream.signal();
        }
        if flags & EXIT != 0 {
            self.diag.monitor.end();
        }
        word
    }

    /// Returns whether every xstream that runs has seen `word`.
    pub(crate) fn is_seen(&self, word: u64) -> bool {
        self.xstreams().iter().all(|xstream| xstream.has_seen(word))
    }

    /// Lets a thread that is no xstream of this runtime spawn, while the result lives.
    pub(crate) fn enter_gate(&self) -> Option<GatePass<'_>> {
        self.gate.fetch_add(1, Relaxed);
        let pass = GatePass(self);
        fence(SeqCst); // pair: GATE-DEKKER
        let (flags, _) = self.phase();
        (flags & (CLOSING | EXIT) == 0).then_some(pass)
    }

    /// Returns whether no foreign thread is in the middle of a spawn.
    pub(crate) fn is_gate_empty(&self) -> bool {
        self.gate.load(Acquire) == 0 // pair: GATE
    }

    /// Units that have been spawned and have not ended. Exact once spawns are refused and everybody
    /// has seen it; before that, an estimate.
    pub(crate) fn alive(&self) -> u64 {
        let (pools, past) = {
            let parts = lock(&self.parts);
            (parts.living_pools.clone(), parts.past)
        };
        // Removed pools as well: units that have left them have ended in other books.
        let add = |sum: u64, more: u64| sum.wrapping_add(more);
        // Ends before beginnings: what ends in between is then counted as alive. Moves from pool
        // to pool do not count: two pools cannot be read at one moment.
        let ended = pools.iter().map(|pool| pool.ended()).fold(past.ended, add);
        let spawned = pools.iter().map(|pool| pool.spawned()).fold(past.spawned, add);
        spawned.saturating_sub(ended)
    }

    /// Returns whether nothing is alive, and no ULT that has ended still cleans up. As exact as
    /// [`alive`](Self::alive).
    pub(crate) fn is_quiet(&self) -> bool {
        // pair: ULTS
        self.alive() == 0 && self.xstreams().iter().all(|x| x.ults.load(Acquire) == 0)
    }

    /// The name of the pool with this index.
    pub(crate) fn pool_name(&self, index: usize) -> Option<String> {
        lock(&self.parts).pools.get(index).map(|pool| pool.name.to_string())
    }

    /// Adds to the report of a shutdown that gave up.
    pub(crate) fn report_stuck(&self, ults: Vec<StuckUlt>) {
        lock(&self.stuck).extend(ults);
    }

    /// Takes the report.
    pub(crate) fn take_stuck(&self) -> Vec<StuckUlt> {
        std::mem::take(&mut lock(&self.stuck))
    }
}

/// See [`RuntimeCore::enter_gate`].
pub(crate) struct GatePass<'a>(&'a RuntimeCore);

impl Drop for GatePass<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_sub(1, Release); // pair: GATE
    }
}

/// Idle descriptors, which it owns.
pub(crate) struct DescriptorChain {
    pub(in crate::engine) first: Cell<*mut Ult>,
    pub(in crate::engine) len: Cell<usize>,
}

// SAFETY: the chain owns its descriptors, and nobody else keeps them.
unsafe impl Send for DescriptorChain {}

/// The head of a mapping that is full of descriptors. The lock of the depot guards all but `core`.
#[repr(C, align(128))]
pub(crate) struct Slab {
    /// The count that its descriptors have in common.
    pub(in crate::engine) core: ManuallyDrop<Arc<RuntimeCore>>,
    /// Descriptors that wait here, and in no chain.
    pub(in crate::engine) idle: DescriptorChain,
    /// Place in [`Idle::slabs`], if any wait.
    pub(in crate::engine) at: Cell<usize>,
}

/// A pointer to a slab, one of whose descriptors the holder owns, or which stands in a depot.
#[derive(Clone, Copy)]
pub(crate) struct SlabPtr(pub(in crate::engine) NonNull<Slab>);

// SAFETY: a pointer to what the lock of the depot guards.
unsafe impl Send for SlabPtr {}

/// Idle descriptors of a runtime.
pub(crate) struct Depot(pub(in crate::engine) Mutex<Idle>);

#[derive(Default)]
pub(crate) struct Idle {
    /// Chains that xstreams had too many of, last used last.
    pub(in crate::engine) chains: VecDeque<DescriptorChain>,
    /// The least number of chains since the last look: so many in front are cold.
    pub(in crate::engine) low: usize,
    /// Cold chains, in front, that are still to be taken apart.
    pub(in crate::engine) cold: usize,
    pub(in crate::engine) next_look: Option<Instant>,
    /// Slabs where descriptors wait.
    pub(in crate::engine) slabs: Vec<SlabPtr>,
    /// How many of `slabs` have all their descriptors.
    pub(in crate::engine) whole: usize,
    pub(in crate::engine) closed: bool,
}

impl DescriptorChain {
    pub(crate) const fn new() -> Self {
        Self { first: Cell::new(ptr::null_mut()), len: Cell::new(0) }
    }
}

impl Depot {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }
}

/// A ULT that has started and not finished.
///
/// ```
/// # use std::time::Duration;
/// # use ult::ShutdownError;
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let error = runtime.shutdown_timeout(Duration::from_millis(1)).unwrap_err();
/// if let ShutdownError::StillAlive(left) = error {
///     let ult = &left.suspended[0];
///     assert_eq!((ult.name.as_deref(), &*ult.xstream), (Some("waiter"), "x0"));
///     println!("{ult}");
/// }
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckUlt {
    /// Number of the ULT.
    pub id: u64,
    /// Name given at spawn.
    pub name: Option<String>,
    /// The pool it was spawned into.
    pub pool: String,
    /// The home xstream.
    pub xstream: String,
    /// The kind of its wait; `None`: it is ready to run.
    pub waits_for: Option<WaitKind>,
}

impl fmt::Display for StuckUlt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("(unnamed)");
        let Self { id, pool, xstream, .. } = self;
        write!(f, "`{name}` (id {id}) of pool `{pool}` on xstream `{xstream}`")?;
        match self.waits_for {
            Some(kind) => write!(f, ", which waits for: {kind}"),
            None => f.write_str(", which is ready"),
        }
    }
}
