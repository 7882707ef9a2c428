//! Pools: where runnable ULTs wait.
//!
//! # Where a unit of a pool really stands (decision of a started ULT staying on its xstream)
//!
//! | pool | unstarted units | started units |
//! |---|---|---|
//! | built-in FIFO served by one xstream | that xstream's unit list | the same list |
//! | other pool served by one xstream | the [`Pool`] object | the same object |
//! | pool served by several xstreams | the [`Pool`] object | unit list of the home xstream |
//!
//! What another thread makes runnable goes to the home xstream's inbox first, except for unstarted
//! units of a [`Pool`] object, which are pushed directly; then one sleeping xstream that serves
//! the pool is woken. [`PoolView`](crate::PoolView) puts list and object together again.

use std::collections::VecDeque;
use std::fmt;

use crate::descriptor::UltName;
use crate::error::SpawnError;
use crate::join::JoinHandle;
use crate::shared::RuntimeCore;
use crate::spawn::UltBuilder;
use crate::stack::class_of;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Arc, Mutex, lock};
use crate::unit::Unit;

/// Why a unit becomes runnable; a pool may order units by it.
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

/// Who asks for a unit.
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
/// unstarted ones. Methods are called by many threads, on the stack of a ULT or of an xstream, and
/// must not suspend or panic. Do not drop units (see [`Unit`]).
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
    /// Whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The kinds of pool that come with the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolKind {
    /// First in, first out. `fifo` in a Margo configuration.
    Fifo,
    /// The same queue; the name exists because C Margo has two. `fifo_wait` there.
    #[default]
    FifoWait,
    /// Two queues: ULTs that have run before go first, so that started work ends before new work
    /// begins. A ULT that came back 25 times counts as new, and every 256th pop prefers new
    /// ones. `prio_wait` in a Margo configuration.
    PrioWait,
    /// Made with [`PoolSpec::custom`].
    Custom,
}

/// What a pool shall be; see [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool).
pub struct PoolSpec {
    pub(crate) name: String,
    pub(crate) kind: PoolKind,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) custom: Option<Box<dyn Pool>>,
}

impl PoolSpec {
    /// A pool of the default kind ([`PoolKind::FifoWait`]).
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: PoolKind::default(), stack_bytes: None, custom: None }
    }

    /// A pool of the user's own making.
    pub fn custom(name: impl Into<String>, pool: Box<dyn Pool>) -> Self {
        let kind = PoolKind::Custom;
        Self { name: name.into(), kind, stack_bytes: None, custom: Some(pool) }
    }

    /// Chooses the kind. Without effect on a custom pool.
    #[must_use]
    pub fn kind(mut self, kind: PoolKind) -> Self {
        if self.custom.is_none() && kind != PoolKind::Custom {
            self.kind = kind;
        }
        self
    }

    /// Stack size in bytes of ULTs that are spawned into this pool, unless the spawn says
    /// otherwise. Default: that of the runtime.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }
}

impl fmt::Debug for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSpec")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("stack_bytes", &self.stack_bytes)
            .finish_non_exhaustive()
    }
}

/// Where units of a pool are queued.
pub(crate) enum Queue {
    /// In the unit list of the one xstream that serves the pool.
    Local,
    /// In this object (started units of a shared pool excepted).
    Object(Box<dyn Pool>),
}

/// One xstream that serves a pool, and the pool's place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) xstream: usize,
    pub(crate) slot: usize,
}

/// The part of a pool that every thread may use. Lives as long as its runtime's shared part.
pub(crate) struct PoolShared {
    pub(crate) name: Box<str>,
    pub(crate) index: usize,
    pub(crate) kind: PoolKind,
    pub(crate) queue: Queue,
    /// Stack size class of ULTs spawned here.
    pub(crate) stack_bytes: usize,
    pub(crate) servers: Box<[Server]>,
    /// ULTs spawned by threads that do not serve this pool.
    pub(crate) foreign_created: AtomicU64,
    /// Units dropped before they started.
    pub(crate) dropped: AtomicU64,
    /// Units of a `Local` queue on their way through the inbox.
    pub(crate) in_flight: AtomicUsize,
}

impl PoolShared {
    pub(crate) fn new(
        spec: PoolSpec,
        index: usize,
        stack_bytes: usize,
        servers: Vec<Server>,
    ) -> Self {
        let queue = match (spec.custom, spec.kind) {
            (Some(custom), _) => Queue::Object(custom),
            (None, PoolKind::PrioWait) => Queue::Object(Box::new(PrioPool::default())),
            (None, _) if servers.len() == 1 => Queue::Local,
            (None, _) => Queue::Object(Box::new(FifoPool::default())),
        };
        Self {
            name: spec.name.into(),
            index,
            kind: spec.kind,
            queue,
            stack_bytes: class_of(spec.stack_bytes.unwrap_or(stack_bytes)),
            servers: servers.into(),
            foreign_created: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Served by several xstreams: the object holds unstarted units only.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.servers.len() != 1
    }

    /// The object, if there is one.
    #[inline]
    pub(crate) fn object(&self) -> Option<&dyn Pool> {
        match &self.queue {
            Queue::Local => None,
            Queue::Object(pool) => Some(&**pool),
        }
    }
}

/// A handle to a pool of a [`Runtime`](crate::Runtime). Cheap to clone.
///
/// It does not keep the runtime open: when the last `Runtime` is gone, spawns fail as soon as the
/// ULTs that were there have finished.
///
/// Counterpart: `ABT_pool`.
#[derive(Clone)]
pub struct PoolRef {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) index: usize,
}

impl PoolRef {
    #[inline]
    pub(crate) fn shared(&self) -> &PoolShared {
        &self.core.pools[self.index]
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// The kind in the configuration.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.shared().kind
    }

    /// Number of runnable units. A snapshot: stale as soon as it is read. Resumed units that their
    /// xstream has not yet seen are not counted.
    ///
    /// Counterpart: `ABT_pool_get_size`.
    #[must_use]
    pub fn len(&self) -> usize {
        let pool = self.shared();
        let object = pool.object().map_or(0, Pool::len);
        let lists: usize = self.core.slots_of(pool).map(|slot| slot.len.load(Relaxed)).sum();
        object + lists + pool.in_flight.load(Relaxed)
    }

    /// Whether no unit is runnable. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters since the start of the runtime. Each is exact, but they are not read at one
    /// moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let pool = self.shared();
        // Ends before beginnings, so that `alive` is never negative.
        let dropped = pool.dropped.load(Acquire); // pair: POOL-ENDED
        let mut stats = PoolStats { dropped, ..PoolStats::default() };
        for slot in self.core.slots_of(pool) {
            stats.finished += slot.finished.load(Acquire); // pair: POOL-ENDED
            stats.executed += slot.executed.load(Relaxed);
            stats.yields += slot.yields.load(Relaxed);
            stats.resumed += slot.resumed.load(Relaxed);
        }
        stats.created = pool.foreign_created.load(Relaxed);
        for slot in self.core.slots_of(pool) {
            stats.created += slot.created.load(Relaxed);
        }
        stats.pushed = stats.created + stats.yields + stats.resumed;
        stats
    }

    /// Spawns a ULT that runs `f`. May be called by ULTs of any runtime and by OS threads.
    ///
    /// `f` starts on an xstream that serves the pool, after the units that are queued before it,
    /// and stays there. Dropping the handle lets the ULT run on its own.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    ///
    /// Counterpart: `ABT_thread_create`.
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.ult().spawn(f)
    }

    /// Starts the description of a ULT with a name or a stack size of its own.
    pub fn ult(&self) -> UltBuilder<'_> {
        UltBuilder { pool: self, name: UltName::default(), stack_bytes: None }
    }
}

impl PartialEq for PoolRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core) && self.index == other.index
    }
}

impl Eq for PoolRef {}

impl fmt::Debug for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRef").field("name", &self.name()).field("len", &self.len()).finish()
    }
}

/// Counters of a pool; see [`PoolRef::stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// ULTs spawned.
    pub created: u64,
    /// Units made runnable: created, yielded and resumed.
    pub pushed: u64,
    /// Times that a unit ran, from a switch to it until it yields, suspends or ends.
    pub executed: u64,
    /// Times that a ULT yielded.
    pub yields: u64,
    /// Times that a suspended ULT was resumed.
    pub resumed: u64,
    /// ULTs that ran to their end.
    pub finished: u64,
    /// ULTs dropped before they started.
    pub dropped: u64,
}

impl PoolStats {
    /// ULTs that have been spawned and have not ended.
    #[must_use]
    pub fn alive(&self) -> u64 {
        self.created.saturating_sub(self.finished + self.dropped)
    }
}

/// FIFO for pools that several xstreams serve.
#[derive(Default)]
struct FifoPool {
    units: Mutex<VecDeque<Unit>>,
    /// Length, so that the empty case needs no lock.
    len: AtomicUsize,
}

impl Pool for FifoPool {
    fn push(&self, unit: Unit, _why: PushReason) {
        let mut units = lock(&self.units);
        units.push_back(unit);
        self.len.store(units.len(), Release); // pair: FIFO-LEN
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        // pair: FIFO-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let mut units = lock(&self.units);
        let unit = units.pop_front();
        self.len.store(units.len(), Release); // pair: FIFO-LEN
        unit
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: FIFO-LEN
    }
}

/// See [`PoolKind::PrioWait`].
#[derive(Default)]
struct PrioPool {
    units: Mutex<PrioUnits>,
    len: AtomicUsize,
}

#[derive(Default)]
struct PrioUnits {
    started: VecDeque<Unit>,
    fresh: VecDeque<Unit>,
    pops: u32,
}

/// From this many pushes on a ULT counts as fresh, so that one that yields forever starves nobody.
const PRIO_PUSHES_MAX: u32 = 25;
/// Every so many pops prefer fresh units.
const PRIO_FRESH_EVERY: u32 = 256;

impl Pool for PrioPool {
    fn push(&self, unit: Unit, why: PushReason) {
        let mut units = lock(&self.units);
        let is_fresh = why == PushReason::Create || unit.pushes() >= PRIO_PUSHES_MAX;
        if is_fresh {
            units.fresh.push_back(unit);
        } else {
            units.started.push_back(unit);
        }
        self.len.store(units.fresh.len() + units.started.len(), Release); // pair: PRIO-LEN
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        // pair: PRIO-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let mut units = lock(&self.units);
        units.pops = units.pops.wrapping_add(1);
        let unit = if units.pops.is_multiple_of(PRIO_FRESH_EVERY) {
            units.fresh.pop_front().or_else(|| units.started.pop_front())
        } else {
            units.started.pop_front().or_else(|| units.fresh.pop_front())
        };
        self.len.store(units.fresh.len() + units.started.len(), Release); // pair: PRIO-LEN
        unit
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: PRIO-LEN
    }
}
