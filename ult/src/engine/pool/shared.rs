//! Pools: where runnable units wait.
//!
//! # Where a unit of a pool really stands (decision of a started ULT staying on its xstream)
//!
//! | pool | unstarted units | started ULTs |
//! |---|---|---|
//! | built-in FIFO served by one xstream, its *owner* | the owner's unit list | the same list |
//! | work-stealing deque | the deque; its owner has one end | unit list of the home xstream |
//! | other, served by one xstream | the [`Pool`] object | the same object |
//! | served by several xstreams | the [`Pool`] object | unit list of the home xstream |
//!
//! What another thread makes runnable goes to the inbox of the home xstream or of the owner; units
//! for a [`Pool`] object are pushed directly, and then one sleeping xstream that serves the pool is
//! woken. [`PoolView`](crate::PoolView) puts list and object together again.
//!
//! Which xstreams serve a pool may change while units are on their way. So whoever finds a unit
//! looks whether it belongs there, and passes it on if not: an inbox that holds an unstarted unit
//! of a pool whose owner has changed queues it anew, and an object that holds a started ULT of
//! another xstream sends it home.

use std::cell::Cell;
use std::fmt;
use std::ptr;

use crate::engine::error::SpawnError;
use crate::engine::pool::custom::CustomPool;
use crate::engine::pool::deque::DequePool;
use crate::engine::pool::earliest::EarliestPool;
use crate::engine::pool::fifo::FifoPool;
use crate::engine::pool::prio::PrioPool;
use crate::engine::pool::slot::{REMOVED, Slot, SlotShared};
use crate::engine::runtime_core::{Books, RuntimeCore};
use crate::engine::stack::block::StackClass;
use crate::engine::unit::descriptor::UltPtr;
use crate::engine::unit::handle::Unit;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::XstreamShared;
use crate::spawn::join::JoinHandle;
use crate::spawn::ult_builder::UltBuilder;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
use crate::sync::{Arc, Mutex, UnsafeCell, lock, relax};

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
/// unstarted ones. Methods are called by many threads, on the stack of a ULT or of an xstream. They
/// cannot suspend, [`push`](Self::push) included: in there [`current`](crate::current()) knows no
/// unit, and what waits, for a [`Mutex`](crate::Mutex) of this crate or for anything else, blocks
/// the whole xstream. So they must not wait for units. Do not drop units (see [`Unit`]).
///
/// # Panics
///
/// A panic of a method, or of the destructor, ends there and is logged as an error (of one pool the
/// first, the second, the fourth and so on): whoever spawned, resumed or moved the unit, or runs
/// next, does not notice. The runtime goes on as well as it can, with the pool in place:
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
    /// Whether nothing is queued.
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
    /// Made with [`PoolSpec::custom`].
    Custom,
}

/// Who may use a pool; a promise by the user that saves locks.
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
    /// Whether only one xstream may serve the pool.
    #[must_use]
    pub fn is_single_consumer(self) -> bool {
        matches!(self, Self::Private | Self::Spsc | Self::Mpsc)
    }
}

/// What a pool shall be; see [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool).
pub struct PoolSpec {
    pub(crate) name: String,
    pub(crate) kind: PoolKind,
    pub(crate) access: Access,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) custom: Option<Box<dyn Pool>>,
}

impl PoolSpec {
    /// A pool of the default kind ([`PoolKind::FifoWait`]).
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: PoolKind::default(),
            access: Access::default(),
            stack_bytes: None,
            numa_node: None,
            custom: None,
        }
    }

    /// A pool of the user's own making.
    pub fn custom(name: impl Into<String>, pool: Box<dyn Pool>) -> Self {
        Self { kind: PoolKind::Custom, custom: Some(pool), ..Self::new(name) }
    }

    /// Chooses the kind. Without effect on a custom pool.
    #[must_use]
    pub fn kind(mut self, kind: PoolKind) -> Self {
        if self.custom.is_none() && kind != PoolKind::Custom {
            self.kind = kind;
        }
        self
    }

    /// Promises who will use the pool. Default: [`Access::Mpmc`], no promise.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Stack size in bytes of ULTs that are spawned into this pool, unless the spawn says
    /// otherwise. Default: that of the runtime.
    #[must_use]
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = Some(bytes);
        self
    }

    /// NUMA node whose memory the stacks of this pool's ULTs shall use. Default: the node of the
    /// core that touches a stack first. If the system refuses, that is warned about once, and the
    /// default applies.
    #[must_use]
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }
}

impl fmt::Debug for PoolSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSpec")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("access", &self.access)
            .field("stack_bytes", &self.stack_bytes)
            .field("numa_node", &self.numa_node)
            .finish_non_exhaustive()
    }
}

/// Where units of a pool are queued that are not in a list of an xstream.
#[allow(clippy::large_enum_variant, reason = "few, and in place so that a look costs no jump")]
pub(crate) enum Queue {
    Fifo(FifoPool),
    Deque(DequePool),
    /// With an order of its own, which holds for started ULTs, too, if it has all of them.
    Object(Box<dyn Pool>),
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Fifo(pool) => pool.is_empty(),
            Self::Deque(pool) => pool.is_empty(),
            Self::Object(pool) => pool.is_empty(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fifo(pool) => pool.len(),
            Self::Deque(pool) => pool.len(),
            Self::Object(pool) => pool.len(),
        }
    }

    /// For a caller that does not own the pool.
    pub(crate) fn push(&self, ult: UltPtr, why: PushReason) {
        match self {
            Self::Fifo(pool) => pool.push_ult(ult),
            Self::Deque(pool) => pool.inject(ult),
            Self::Object(pool) => pool.push(Unit::from_ult(ult), why),
        }
    }

    /// For a caller that does not own the pool.
    #[inline]
    pub(crate) fn pop(&self, who: PopBy) -> Option<UltPtr> {
        match self {
            Self::Fifo(pool) => pool.pop_ult(),
            Self::Deque(pool) => pool.steal(),
            Self::Object(pool) => pool.pop(who).map(Unit::into_ult),
        }
    }

    pub(crate) fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        match self {
            Self::Fifo(pool) => pool.for_each(see),
            Self::Deque(_) => {}
            Self::Object(pool) => pool.for_each(see),
        }
    }
}

/// The part of a pool that every thread may use. Lives as long as its runtime's shared part, also
/// after the pool has been removed.
pub(crate) struct PoolShared {
    pub(crate) name: Box<str>,
    pub(crate) index: usize,
    pub(crate) kind: PoolKind,
    pub(crate) access: Access,
    queue: UnsafeCell<Queue>,
    /// Stacks of ULTs spawned here.
    pub(crate) class: StackClass,
    /// The xstream that has the private end of the pool; null: nobody, as after a removal.
    pub(crate) owner: AtomicPtr<XstreamShared>,
    /// The xstream that shall have it; see [`layout`](crate::runtime::layout).
    pub(crate) heir: AtomicPtr<XstreamShared>,
    /// Several xstreams have served the pool.
    pub(crate) was_shared: AtomicBool,
    /// The owner's slot; touched by the owner's thread only.
    pub(crate) owner_slot: Cell<*const Slot>,
    /// The only xstream that serves the pool; null: none or several.
    pub(crate) sole: AtomicPtr<XstreamShared>,
    pub(crate) servers: Mutex<Vec<Arc<XstreamShared>>>,
    /// One for each xstream that has served the pool, and one for all of those that were removed.
    slots: Mutex<Vec<Arc<SlotShared>>>,
    /// Units spawned by threads that do not serve this pool.
    pub(crate) foreign_created: AtomicU64,
    /// As [`SlotShared::fired`], by xstreams that do not serve this pool.
    pub(crate) foreign_fired: AtomicU64,
    /// Units dropped before they started.
    pub(crate) dropped: AtomicU64,
    /// Units that came from other pools, less those that went to others.
    pub(crate) moved: AtomicU64,
    /// Unstarted units on their way through an owner's inbox.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) removed: AtomicBool,
    /// A removal is about to find out whether there are units, a few instructions from now.
    pub(crate) removing: AtomicBool,
    /// Stacked schedulers over this pool.
    pub(crate) stacks: AtomicUsize,
}

// SAFETY: `queue` changes once, when nobody uses it; `owner_slot` is touched only by the thread of
// the xstream that `owner` names; a change of owners passes through the locks and mails of both.
unsafe impl Sync for PoolShared {}
// SAFETY: as above; the rest is `Send`.
unsafe impl Send for PoolShared {}

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PoolShared {
    pub(crate) fn new(spec: PoolSpec, index: usize, stack_bytes: usize) -> Self {
        let queue = match (spec.custom, spec.kind) {
            (Some(custom), _) => Queue::Object(Box::new(CustomPool::new(&spec.name, custom))),
            (None, PoolKind::PrioWait) => Queue::Object(Box::new(PrioPool::default())),
            (None, PoolKind::EarliestFirst) => Queue::Object(Box::new(EarliestPool::default())),
            (None, PoolKind::RandWs) => Queue::Deque(DequePool::new()),
            (None, _) => Queue::Fifo(FifoPool::new()),
        };
        Self {
            name: spec.name.into(),
            index,
            kind: spec.kind,
            access: spec.access,
            queue: UnsafeCell::new(queue),
            class: StackClass::new(spec.stack_bytes.unwrap_or(stack_bytes), spec.numa_node),
            owner: AtomicPtr::new(ptr::null_mut()),
            heir: AtomicPtr::new(ptr::null_mut()),
            was_shared: AtomicBool::new(false),
            owner_slot: Cell::new(ptr::null()),
            sole: AtomicPtr::new(ptr::null_mut()),
            servers: Mutex::new(Vec::new()),
            slots: Mutex::new(Vec::new()),
            foreign_created: AtomicU64::new(0),
            foreign_fired: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            stacks: AtomicUsize::new(0),
        }
    }

    /// Where its units are queued. The caller holds a count on the pool or a unit of it, or is on
    /// an xstream between two looks at its mail.
    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        // SAFETY:
        // - no writer: `take_queue` waits for all callers.
        self.queue.with(|queue| unsafe { &*queue })
    }

    /// Takes the queue out, for its destructor, which may be a user's.
    ///
    /// # Safety
    ///
    /// The pool has been removed, and no caller of [`queue`](Self::queue) is left or will come.
    pub(crate) unsafe fn take_queue(&self) -> Queue {
        // SAFETY:
        // - exclusive, valid: duty of the caller.
        self.queue.with_mut(|queue| unsafe { queue.replace(Queue::Fifo(FifoPool::new())) })
    }

    /// Whether the pool's own order holds for the started ULTs of `home`, too: it has one, and
    /// `home` alone serves it.
    #[inline]
    pub(crate) fn orders_started(&self, home: *mut XstreamShared) -> bool {
        matches!(self.queue(), Queue::Object(_)) && self.sole.load(Relaxed) == home
    }

    /// What a new slot of an xstream shows. A revived one counts on.
    pub(crate) fn add_slot(&self, xstream: usize) -> Arc<SlotShared> {
        slot_of(&mut lock(&self.slots), xstream)
    }

    /// An xstream that has left has been removed.
    pub(crate) fn forget_xstream(&self, xstream: usize) {
        let mut slots = lock(&self.slots);
        if let Some(at) = slots.iter().position(|slot| slot.xstream == xstream) {
            let slot = slots.swap_remove(at);
            slot_of(&mut slots, REMOVED).take_over(&slot);
        }
    }

    /// Whether `xstream` has counted anything here.
    pub(crate) fn has_slot_of(&self, xstream: &XstreamShared) -> bool {
        lock(&self.slots).iter().any(|slot| slot.xstream == xstream.index)
    }

    /// Calls `see` with what each xstream has counted.
    pub(crate) fn for_each_slot(&self, mut see: impl FnMut(&SlotShared)) {
        lock(&self.slots).iter().for_each(|slot| see(slot));
    }

    fn sum(&self, of: impl Fn(&SlotShared) -> u64) -> u64 {
        lock(&self.slots).iter().map(|slot| of(slot)).sum()
    }

    /// After a unit was counted here: whether the pool stays while that unit does. Either a removal
    /// sees the unit, or the removal is seen here.
    pub(crate) fn outlives_removal(&self) -> bool {
        fence(SeqCst); // pair: REMOVE-DEKKER
        let mut round = 0;
        // pair: REMOVE-DECIDED
        while self.removing.load(Acquire) {
            relax(&mut round);
        }
        !self.removed.load(Relaxed)
    }

    /// Units that have ended. Read it before [`created`](Self::created).
    pub(crate) fn ended(&self) -> u64 {
        let dropped = self.dropped.load(Acquire); // pair: POOL-ENDED
        // pair: POOL-ENDED
        self.sum(|slot| slot.finished.load(Acquire)).wrapping_add(dropped)
    }

    /// Units that have been spawned here.
    pub(crate) fn spawned(&self) -> u64 {
        let foreign = self.foreign_created.load(Relaxed);
        self.sum(|slot| slot.created.load(Relaxed)).wrapping_add(foreign)
    }

    /// Units that have been spawned here, or have come from other pools, less those that have gone
    /// to others.
    pub(crate) fn created(&self) -> u64 {
        self.spawned().wrapping_add(self.moved.load(Relaxed))
    }

    /// For a removal, while [`removing`](Self::removing) says so: its books, and how many units
    /// there are. If there are none, nothing that changes the books counts any more.
    pub(crate) fn close_books(&self) -> (Books, u64) {
        let ended = self.ended();
        let spawned = self.spawned();
        // What those that have gone to other pools did here happens before.
        let moved = self.moved.load(Acquire); // pair: POOL-MOVED
        (Books { spawned, ended }, spawned.wrapping_add(moved).saturating_sub(ended))
    }

    /// Units that wait. [`stats`](Self::stats) that are read afterwards have counted how each of
    /// them came to wait.
    pub(crate) fn len(&self) -> usize {
        // pair: POOL-LEN
        let lists: usize = lock(&self.slots).iter().map(|slot| slot.len.load(Acquire)).sum();
        self.queue().len() + lists + self.in_flight.load(Acquire) // pair: POOL-LEN
    }

    pub(crate) fn stats(&self) -> PoolStats {
        // Ends before beginnings, so that `alive` is never negative.
        let dropped = self.dropped.load(Acquire); // pair: POOL-ENDED
        let mut stats = PoolStats { dropped, ..PoolStats::default() };
        let mut fired = self.foreign_fired.load(Relaxed);
        self.for_each_slot(|slot| {
            stats.finished += slot.finished.load(Acquire); // pair: POOL-ENDED
            stats.executed += slot.parked.load(Relaxed);
            stats.yields += slot.yields.load(Relaxed);
            // After `parked`, so that nobody seems blocked who is not.
            stats.resumed += slot.resumed.load(Relaxed);
            stats.run_at_once += slot.run_at_once.load(Relaxed);
            fired += slot.fired.load(Relaxed);
        });
        // A run ends in one of three ways.
        stats.executed += stats.yields + stats.finished;
        stats.created = self.created();
        stats.pushed = stats.created + stats.yields + stats.resumed + fired;
        stats
    }
}

/// That of an xstream, made if need be.
fn slot_of(slots: &mut Vec<Arc<SlotShared>>, xstream: usize) -> Arc<SlotShared> {
    if let Some(slot) = slots.iter().find(|slot| slot.xstream == xstream) {
        return slot.clone();
    }
    let slot = Arc::new(SlotShared { xstream, ..SlotShared::default() });
    slots.push(slot.clone());
    slot
}

/// A handle to a pool of a [`Runtime`](crate::Runtime). Cheap to clone.
///
/// It does not keep the runtime open: when the last `Runtime` is gone, spawns fail as soon as the
/// units that were there have ended.
///
/// Counterpart: `ABT_pool`.
#[derive(Clone)]
pub struct PoolRef {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) pool: Arc<PoolShared>,
}

impl PoolRef {
    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pool.name
    }

    /// The kind in the configuration.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.pool.kind
    }

    /// The promise in the configuration.
    #[must_use]
    pub fn access(&self) -> Access {
        self.pool.access
    }

    /// Whether it has been removed from its runtime ([`Runtime::remove_pool`]), so that spawns
    /// fail.
    ///
    /// [`Runtime::remove_pool`]: crate::Runtime::remove_pool
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.pool.removed.load(Relaxed)
    }

    /// Stack size in bytes of ULTs whose spawn says no other.
    #[must_use]
    pub fn stack_bytes(&self) -> usize {
        self.pool.class.bytes()
    }

    /// Names of the xstreams that serve the pool.
    #[must_use]
    pub fn xstreams(&self) -> Vec<String> {
        lock(&self.pool.servers).iter().map(|xstream| xstream.name.to_string()).collect()
    }

    /// Number of runnable units. A snapshot: stale as soon as it is read. Resumed units that their
    /// xstream has not yet seen are not counted.
    ///
    /// Counterpart: `ABT_pool_get_size`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Whether no unit is runnable. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of units that belong to the pool and have not ended: runnable, running and
    /// suspended. A snapshot.
    ///
    /// Counterpart: `ABT_pool_get_total_size`.
    #[must_use]
    pub fn total_len(&self) -> usize {
        let ended = self.pool.ended();
        usize::try_from(self.pool.created().saturating_sub(ended)).unwrap_or(usize::MAX)
    }

    /// Counters since the start of the runtime. Each is exact, but they are not read at one
    /// moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Whether units that are spawned here now start on the calling xstream, and on no other one. A
    /// snapshot.
    #[inline]
    #[must_use]
    pub fn is_only_here(&self) -> bool {
        current::xstream_in(&self.core).is_some_and(|xstream| xstream.serves_alone(&self.pool))
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
    #[inline]
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.ult().spawn(f)
    }

    /// Starts the description of a ULT with a name or a stack size of its own.
    #[inline]
    pub fn ult(&self) -> UltBuilder<'_> {
        UltBuilder::new(self, false)
    }

    /// Starts the description of a tasklet: a unit without a stack, which runs to its end on the
    /// stack of its xstream.
    ///
    /// It costs half of what a ULT costs. It may use every call of this crate, but where a ULT
    /// would suspend, a tasklet blocks its whole xstream; so use it for closures that never wait.
    ///
    /// Counterpart: `ABT_task_create`.
    #[inline]
    pub fn tasklet(&self) -> UltBuilder<'_> {
        UltBuilder::new(self, true)
    }
}

impl PartialEq for PoolRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
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
    /// Units spawned.
    pub created: u64,
    /// Units made runnable: created, yielded and resumed. One that was spawned for a later time
    /// counts when it is spawned, and again when its time comes.
    pub pushed: u64,
    /// Times that a unit has run until it yielded, suspended or ended.
    pub executed: u64,
    /// Times that a ULT yielded.
    pub yields: u64,
    /// Times that a suspended ULT was resumed and queued.
    pub resumed: u64,
    /// Times that a suspended ULT was run at once instead, past the queue: an idle waiter
    /// ([`idle`](crate::idle())), or one that another ULT switched to
    /// ([`Unparker::yield_to`](crate::Unparker::yield_to)).
    pub run_at_once: u64,
    /// Units that ran to their end.
    pub finished: u64,
    /// Units dropped before they started.
    pub dropped: u64,
}

impl PoolStats {
    /// ULTs that have suspended themselves and were not resumed: they wait for something.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        let parked = self.executed.saturating_sub(self.yields + self.finished);
        parked.saturating_sub(self.resumed + self.run_at_once)
    }

    /// units that have been spawned and have not ended.
    #[must_use]
    pub fn alive(&self) -> u64 {
        self.created.saturating_sub(self.finished + self.dropped)
    }
}
