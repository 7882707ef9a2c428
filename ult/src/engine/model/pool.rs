//! Pools: where runnable units wait.
//!
//! # Where a unit of a pool really stands (decision of a started ULT staying on its xstream)
//!
//! | pool | unstarted units | started ULTs |
//! |---|---|---|
//! | built-in FIFO served by one xstream, its *owner* | the owner's unit list; those that may be stolen: the [`Pool`] object | the same list |
//! | work-stealing deque | the deque; its owner has one end | unit list of the home xstream |
//! | other, served by one xstream | the [`Pool`] object | the same object |
//! | served by several xstreams | the [`Pool`] object | unit list of the home xstream |
//!
//! A unit that another thread makes runnable goes to the inbox of the home xstream or of the owner;
//! units for a [`Pool`] object are pushed directly, and then one sleeping xstream that serves the
//! pool is woken. [`PoolView`](crate::PoolView) puts list and object together again.
//!
//! Which xstreams serve a pool may change while units are on their way. So the finder of a unit
//! checks that it belongs there, and passes it on if not: an inbox that holds an unstarted unit of
//! a pool whose owner has changed queues it anew, and an object that holds a started ULT of another
//! xstream sends it home.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use crate::base::inbox::Linked;
use crate::base::job_queues::{JobQueue, JobQueues};
use crate::base::spin::SpinLock;
use crate::base::work_deque::WorkDeque;
use crate::engine::model::interfaces::{Access, Pool, PoolKind, PopBy, PushReason, Unit};
use crate::engine::model::runtime_core::UnitTotals;
use crate::engine::model::unit::{Ult, UltPtr};
use crate::engine::model::xstream_shared::XstreamShared;
use crate::stack::memory::StackClass;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
use crate::sync::{Arc, Mutex, UnsafeCell, lock, relax};
use prim::OwnLine;

/// The queue of those units of a pool that are not in a list of an xstream.
#[allow(clippy::large_enum_variant, reason = "few, and in place so that a look costs no jump")]
pub(crate) enum Queue {
    Fifo(FifoPool),
    Deque(WorkDeque<UltPtr>),
    /// A queue with an order of its own, which holds for started ULTs, too, if all of them are in
    /// it.
    Object(Box<dyn Pool>),
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Fifo(pool) => pool.len() == 0,
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

/// Counters of threads that do not serve a pool.
#[derive(Default)]
pub(crate) struct ForeignCounters {
    /// Units spawned.
    pub(crate) created: AtomicU64,
    /// Unstarted units that were put into an owner's inbox. Those that no slot has counted as
    /// received are on their way.
    pub(crate) sent: AtomicU64,
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
    pub(crate) owner_slot: Cell<*const PoolSlot>,
    /// The only xstream that serves the pool; null: none or several.
    pub(crate) sole: AtomicPtr<XstreamShared>,
    pub(crate) servers: Mutex<Vec<Arc<XstreamShared>>>,
    /// One for each xstream that has served the pool, and one for all of those that were removed.
    slots: Mutex<Vec<Arc<PoolCounters>>>,
    /// Counters of threads that do not serve this pool.
    // On a line of their own: those threads must not take one that the owner reads for each unit.
    pub(crate) foreign: OwnLine<ForeignCounters>,
    /// As [`PoolCounters::fired`], by xstreams that do not serve this pool.
    pub(crate) foreign_fired: AtomicU64,
    /// Units dropped before they started.
    pub(crate) dropped: AtomicU64,
    /// Units that came from other pools, less those that went to others.
    pub(crate) moved: AtomicU64,
    pub(crate) removed: AtomicBool,
    /// A removal is about to find out whether there are units, a few instructions from now.
    pub(crate) removing: AtomicBool,
    /// Stacked schedulers over this pool.
    pub(crate) stacks: AtomicUsize,
    /// Jobs of [`join`](crate::join()) that its ULTs have left.
    pub(crate) jobs: JobQueues,
    /// Xstreams that serve it and sleep, or are about to; counted from the first job of the runtime
    /// on.
    pub(crate) sleepers: AtomicUsize,
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
    /// A pool that nobody serves yet. Stacks of ULTs spawned here are of `class`.
    pub(crate) fn new(
        name: &str,
        index: usize,
        (kind, access): (PoolKind, Access),
        queue: Queue,
        class: StackClass,
    ) -> Self {
        Self {
            name: name.into(),
            index,
            kind,
            access,
            queue: UnsafeCell::new(queue),
            class,
            owner: AtomicPtr::new(ptr::null_mut()),
            heir: AtomicPtr::new(ptr::null_mut()),
            was_shared: AtomicBool::new(false),
            owner_slot: Cell::new(ptr::null()),
            sole: AtomicPtr::new(ptr::null_mut()),
            servers: Mutex::new(Vec::new()),
            slots: Mutex::new(Vec::new()),
            foreign: OwnLine::default(),
            foreign_fired: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            stacks: AtomicUsize::new(0),
            jobs: JobQueues::new(),
            sleepers: AtomicUsize::new(0),
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

    /// Returns whether the pool's own order holds for the started ULTs of `home`, too: it has one,
    /// and `home` alone serves it.
    #[inline]
    pub(crate) fn orders_started(&self, home: *mut XstreamShared) -> bool {
        matches!(self.queue(), Queue::Object(_)) && self.sole.load(Relaxed) == home
    }

    /// Returns the counters for a slot of `xstream`, made if need be. A revived xstream goes on
    /// with its old ones.
    pub(crate) fn add_slot(&self, xstream: usize) -> Arc<PoolCounters> {
        slot_of(&mut lock(&self.slots), xstream)
    }

    /// An xstream that has left has been removed.
    pub(crate) fn forget_xstream(&self, xstream: usize) {
        self.jobs.give_up(xstream);
        let mut slots = lock(&self.slots);
        if let Some(at) = slots.iter().position(|slot| slot.xstream == xstream) {
            let slot = slots.swap_remove(at);
            slot_of(&mut slots, REMOVED).take_over(&slot);
        }
    }

    /// Returns whether `xstream` has counted anything here.
    pub(crate) fn has_slot_of(&self, xstream: &XstreamShared) -> bool {
        lock(&self.slots).iter().any(|slot| slot.xstream == xstream.index)
    }

    /// Calls `see` with what each xstream has counted.
    pub(crate) fn for_each_slot(&self, mut see: impl FnMut(&PoolCounters)) {
        lock(&self.slots).iter().for_each(|slot| see(slot));
    }

    fn sum(&self, of: impl Fn(&PoolCounters) -> u64) -> u64 {
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
        let foreign = self.foreign.0.created.load(Relaxed);
        self.sum(|slot| slot.created.load(Relaxed)).wrapping_add(foreign)
    }

    /// Units that have been spawned here, or have come from other pools, less those that have gone
    /// to others.
    pub(crate) fn created(&self) -> u64 {
        self.spawned().wrapping_add(self.moved.load(Relaxed))
    }

    /// For a removal, while [`removing`](Self::removing) says so: its books, and how many units
    /// there are. If there are none, nothing that changes the books counts any more.
    pub(crate) fn close_books(&self) -> (UnitTotals, u64) {
        let ended = self.ended();
        let spawned = self.spawned();
        // What those that have gone to other pools did here happens before.
        let moved = self.moved.load(Acquire); // pair: POOL-MOVED
        (UnitTotals { spawned, ended }, spawned.wrapping_add(moved).saturating_sub(ended))
    }

    /// Units that wait. [`stats`](Self::stats) that are read afterwards have counted how each of
    /// them came to wait.
    pub(crate) fn len(&self) -> usize {
        // pair: POOL-LEN
        let lists: usize = lock(&self.slots).iter().map(|slot| slot.len.load(Acquire)).sum();
        // Before `sent`, so that none is received that was not sent.
        let received = self.sum(|slot| slot.received.load(Acquire)); // pair: POOL-LEN
        let in_flight = self.foreign.0.sent.load(Acquire).wrapping_sub(received); // pair: POOL-LEN
        self.queue().len() + lists + usize::try_from(in_flight).unwrap_or(0)
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

/// Returns the counters of `xstream`, made if need be.
fn slot_of(slots: &mut Vec<Arc<PoolCounters>>, xstream: usize) -> Arc<PoolCounters> {
    if let Some(slot) = slots.iter().find(|slot| slot.xstream == xstream) {
        return slot.clone();
    }
    let slot = Arc::new(PoolCounters { xstream, ..PoolCounters::default() });
    slots.push(slot.clone());
    slot
}

/// Counters of a pool; see [`PoolRef::stats`](crate::PoolRef::stats).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// pool.spawn(ult::yield_now)?.join()?;
/// pool.spawn(|| ())?.join()?;
/// let stats = pool.stats();
/// assert_eq!((stats.created, stats.finished, stats.yields), (2, 2, 1));
/// assert_eq!((stats.alive(), stats.blocked()), (0, 0));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// ([`idle`](crate::integration::idle())), or one that another ULT switched to
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

    /// Units that have been spawned and have not ended.
    #[must_use]
    pub fn alive(&self) -> u64 {
        self.created.saturating_sub(self.finished + self.dropped)
    }
}

/// The counters of a slot, which anybody may read. One writer: the xstream.
// Apart from those of other xstreams, which are made at the same time: each switch writes some.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PoolCounters {
    /// Number of the xstream.
    pub(crate) xstream: usize,
    /// Length of the unit list.
    pub(crate) len: AtomicUsize,
    pub(crate) created: AtomicU64,
    /// Times that a ULT suspended itself.
    pub(crate) parked: AtomicU64,
    pub(crate) yields: AtomicU64,
    /// Times that a ULT that had suspended itself was queued.
    pub(crate) resumed: AtomicU64,
    /// Times that such a ULT was run at once instead, past its queue.
    pub(crate) run_at_once: AtomicU64,
    pub(crate) finished: AtomicU64,
    /// Times that a timer made a unit runnable that was spawned for that time.
    pub(crate) fired: AtomicU64,
    /// Unstarted units that came through the inbox of the xstream.
    pub(crate) received: AtomicU64,
}

/// [`PoolCounters::xstream`] of what stands for all xstreams that have been removed.
pub(crate) const REMOVED: usize = usize::MAX;

impl PoolCounters {
    fn counters(&self) -> [&AtomicU64; 8] {
        let Self { xstream: _, len: _, created, parked, yields, resumed, run_at_once, .. } = self;
        [created, parked, yields, resumed, run_at_once, &self.finished, &self.fired, &self.received]
    }

    /// Adds what another one has counted that counts no more.
    pub(crate) fn take_over(&self, other: &Self) {
        for (own, other) in self.counters().into_iter().zip(other.counters()) {
            own.fetch_add(other.load(Relaxed), Relaxed);
        }
    }
}

/// Adds one to a counter that has one writer.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// The state that an xstream keeps for one pool whose units it runs. Only its own thread touches
/// it.
///
/// A slot is made when the xstream first serves the pool, or first runs a unit of it, and stays
/// until the xstream ends, or until the pool has been removed and no ULT that started here points
/// to it ([`drop_slots`](crate::engine::xstream::owner::Xstream::drop_slots)). A slot whose pool
/// the xstream no longer serves still holds such ULTs; they are run between the others ("strays").
pub(crate) struct PoolSlot {
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) shared: Arc<PoolCounters>,
    /// Units that are ready here; see the module documentation for which.
    pub(crate) list: UnitList,
    /// True if a scheduler of this xstream serves the pool.
    pub(crate) served: Cell<bool>,
    /// If the slot is served: how many pools come before its own in the list of the xstream.
    pub(crate) rank: Cell<usize>,
    /// No pool comes after it there.
    pub(crate) is_last: Cell<bool>,
    /// Pops since the start; decides whether list or pool object is tried first.
    pub(crate) pops: Cell<u32>,
    /// Stacked schedulers over this slot.
    stacked: Cell<usize>,
    /// Stacked schedulers that sleep, and whether there are any.
    pub(in crate::engine) sleepers: RefCell<Vec<UltPtr>>,
    pub(in crate::engine) has_sleepers: Cell<bool>,
    /// Where ULTs that run here leave jobs; null before the first one.
    job_queue: Cell<*const JobQueue>,
}

impl PoolSlot {
    pub(crate) fn new(pool: Arc<PoolShared>, xstream: usize) -> Self {
        let shared = pool.add_slot(xstream);
        Self {
            pool,
            shared,
            list: UnitList::new(),
            served: Cell::new(false),
            rank: Cell::new(0),
            is_last: Cell::new(false),
            pops: Cell::new(0),
            stacked: Cell::new(0),
            sleepers: RefCell::default(),
            has_sleepers: Cell::new(false),
            job_queue: Cell::new(ptr::null()),
        }
    }

    /// Where ULTs that run here leave jobs. None before the first one.
    #[inline]
    pub(crate) fn job_queue(&self) -> Option<&JobQueue> {
        // SAFETY:
        // - valid: one of the pool's, which live as long as the pool.
        unsafe { self.job_queue.get().as_ref() }
    }

    /// Makes the queue for jobs.
    #[cold]
    pub(crate) fn make_job_queue(&self) -> &JobQueue {
        let queue = self.pool.jobs.of(self.shared.xstream);
        self.job_queue.set(queue);
        queue
    }

    /// How many stacked schedulers run the units of this slot.
    pub(crate) fn stacked(&self) -> usize {
        self.stacked.get()
    }

    /// Returns whether there is one.
    pub(crate) fn is_stacked(&self) -> bool {
        self.stacked() > 0
    }

    /// A stacked scheduler comes.
    pub(crate) fn stack(&self) {
        self.stacked.set(self.stacked.get() + 1);
    }

    /// A stacked scheduler goes.
    pub(crate) fn unstack(&self) {
        self.stacked.set(self.stacked.get() - 1);
    }

    /// `me`, the caller, runs a stacked scheduler over this slot, and is about to sleep.
    pub(crate) fn add_sleeper(&self, me: UltPtr) {
        self.sleepers.borrow_mut().push(me);
        self.has_sleepers.set(true);
    }

    /// `me` does not sleep any more.
    pub(crate) fn remove_sleeper(&self, me: UltPtr) {
        let mut sleepers = self.sleepers.borrow_mut();
        sleepers.retain(|sleeper| *sleeper != me);
        self.has_sleepers.set(!sleepers.is_empty());
    }

    /// Asks the cache for the stack of the first of the list, if it has one: as a rule it runs
    /// next. Where many ULTs take turns, the second-level cache has their stacks, and a switch
    /// would wait for it three times in a row: for the descriptor, the block and the frame.
    #[inline(always)]
    pub(crate) fn prefetch_first(&self) {
        if let Some(block) = self.list.first().and_then(|first| first.block()) {
            block.context.prefetch();
        }
    }

    /// Takes the first of the list.
    #[inline]
    pub(crate) fn pop_front(&self) -> Option<UltPtr> {
        self.list.pop_front(&self.shared.len)
    }

    /// Takes the first of the list, if it is a tasklet that nobody wants anything else of.
    #[inline]
    pub(crate) fn pop_tasklet(&self) -> Option<UltPtr> {
        let is_plain = self.list.first()?.is_plain_tasklet();
        if is_plain { self.pop_front() } else { None }
    }

    /// Takes the first of the list, if it is a ULT that has not started, wants a stack like that of
    /// `class`, and nobody wants anything else of it.
    #[inline]
    pub(crate) fn pop_fresh(&self, class: StackClass) -> Option<UltPtr> {
        let first = self.list.first()?;
        let fits = first.is_plain_fresh() && first.class.get() == class && !class.is_users();
        if fits { self.pop_front() } else { None }
    }

    /// Units in the list and, `with_queue`, in the pool's queue, which others may pop.
    #[inline]
    pub(crate) fn waiting(&self, with_queue: bool) -> usize {
        // Its one writer is this xstream's thread.
        let list = if self.list.is_empty() { 0 } else { self.shared.len.load(Relaxed) };
        let queue = self.pool.queue();
        if with_queue && !queue.is_empty() { list + queue.len().max(1) } else { list }
    }

    /// Returns whether a pop of this xstream would find nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.pool.queue().is_empty()
    }
}

/// A FIFO of units, linked through their descriptors. The units in it are alive and in no other
/// queue.
///
/// One party at a time touches it: the owner of an xstream's list, or the holder of a pool's lock.
/// So no atomics are needed for the links; they are stored in the atomic that other queues use,
/// with relaxed accesses, which cost the same as plain ones.
#[derive(Debug)]
pub(crate) struct UnitList {
    first: Cell<*mut Ult>,
    last: Cell<*mut Ult>,
}

// SAFETY: pointers to units, which may be handed to another thread.
unsafe impl Send for UnitList {}

impl UnitList {
    pub(crate) fn new() -> Self {
        Self { first: Cell::new(ptr::null_mut()), last: Cell::new(ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_null()
    }

    /// Appends `ult`, whose queue membership passes to this list.
    #[inline]
    pub(crate) fn append(&self, ult: UltPtr) {
        let node = ult.as_non_null().as_ptr();
        ult.link().store(ptr::null_mut(), Relaxed);
        match NonNull::new(self.last.replace(node)) {
            None => self.first.set(node),
            Some(last) => {
                // SAFETY:
                // - valid: units in a queue are alive.
                unsafe { last.as_ref() }.link().store(node, Relaxed);
            }
        }
    }

    /// The first unit, which stays.
    #[inline]
    pub(crate) fn first(&self) -> Option<UltPtr> {
        // SAFETY:
        // - valid: units in a queue are alive.
        NonNull::new(self.first.get()).map(|first| unsafe { UltPtr::new(first) })
    }

    /// Returns whether `ult` is there, and no other one.
    #[inline]
    pub(crate) fn is_only(&self, ult: UltPtr) -> bool {
        let node = ult.as_non_null().as_ptr();
        ptr::eq(self.first.get(), node) && ptr::eq(self.last.get(), node)
    }

    /// Takes the first unit; its queue membership passes to the caller.
    #[inline]
    pub(crate) fn take_first(&self) -> Option<UltPtr> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY:
        // - valid: units in a queue are alive.
        let ult = unsafe { UltPtr::new(first) };
        let next = ult.link().load(Relaxed);
        self.first.set(next);
        if next.is_null() {
            self.last.set(ptr::null_mut());
        }
        Some(ult)
    }

    /// Does the work of [`append`](Self::append) and counts the unit in `len`, which has one
    /// writer. A thread that sees the new `len` also sees that the unit was made runnable.
    #[inline]
    pub(crate) fn push_back(&self, ult: UltPtr, len: &AtomicUsize) {
        self.append(ult);
        len.store(len.load(Relaxed) + 1, Release); // pair: POOL-LEN
    }

    /// Does the work of [`take_first`](Self::take_first) and counts the unit out of `len`.
    #[inline]
    pub(crate) fn pop_front(&self, len: &AtomicUsize) -> Option<UltPtr> {
        let ult = self.take_first()?;
        len.store(len.load(Relaxed) - 1, Release); // pair: POOL-LEN
        Some(ult)
    }

    /// Shows every unit, first one first.
    pub(crate) fn for_each(&self, mut see: impl FnMut(UltPtr)) {
        let mut next = self.first.get();
        while let Some(node) = NonNull::new(next) {
            // SAFETY:
            // - valid: units in a queue are alive.
            let ult = unsafe { UltPtr::new(node) };
            next = ult.link().load(Relaxed);
            see(ult);
        }
    }
}

/// First in, first out, for any number of xstreams.
///
/// A linked list through the descriptors behind a lock that is held for a few instructions. `len`
/// is read without the lock, so that looking at an empty pool costs one load of a shared line.
// On lines of its own: each push and each pop changes it, while whoever spawns or runs a unit reads
// what the pool is, which stands around it.
#[repr(align(128))]
pub(crate) struct FifoPool {
    list: SpinLock<UnitList>,
    len: AtomicUsize,
}

impl FifoPool {
    pub(crate) fn new() -> Self {
        Self { list: SpinLock::new(UnitList::new()), len: AtomicUsize::new(0) }
    }

    pub(crate) fn push_ult(&self, ult: UltPtr) {
        let list = self.list.lock();
        list.append(ult);
        self.len.store(self.len.load(Relaxed) + 1, Release); // pair: FIFO-LEN
    }

    #[inline]
    pub(crate) fn pop_ult(&self) -> Option<UltPtr> {
        self.pop_if(|_| true)
    }

    /// Takes the first unit, if it may be stolen.
    pub(crate) fn steal_ult(&self) -> Option<UltPtr> {
        self.pop_if(Ult::is_stealable)
    }

    /// Returns whether the first unit may be stolen.
    pub(crate) fn has_stealable(&self) -> bool {
        self.len() > 0 && self.list.lock().first().is_some_and(|first| first.is_stealable())
    }

    #[inline(always)]
    fn pop_if(&self, test: impl FnOnce(&Ult) -> bool) -> Option<UltPtr> {
        // pair: FIFO-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let list = self.list.lock();
        list.first().filter(|first| test(first))?;
        let ult = list.take_first()?;
        self.len.store(self.len.load(Relaxed) - 1, Release); // pair: FIFO-LEN
        Some(ult)
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Acquire) // pair: FIFO-LEN
    }

    pub(crate) fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let list = self.list.lock();
        list.for_each(|ult| see(&ManuallyDrop::new(Unit::from_ult(ult))));
    }
}
