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
//! A unit that another thread makes runnable goes to the inbox of the home xstream or of the owner;
//! units for a [`Pool`] object are pushed directly, and then one sleeping xstream that serves the
//! pool is woken. [`PoolView`](crate::PoolView) puts list and object together again.
//!
//! Which xstreams serve a pool may change while units are on their way. So the finder of a unit
//! checks that it belongs there, and passes it on if not: an inbox that holds an unstarted unit of
//! a pool whose owner has changed queues it anew, and an object that holds a started ULT of another
//! xstream sends it home.

use std::cell::Cell;
use std::fmt;
use std::ptr;

use crate::engine::model::runtime_core::UnitTotals;
use crate::engine::model::unit::UltPtr;
use crate::engine::pool::custom::CustomPool;
use crate::engine::pool::deque::DequePool;
use crate::engine::pool::earliest::EarliestPool;
use crate::engine::pool::fifo::FifoPool;
use crate::engine::pool::prio::PrioPool;
use crate::engine::pool::slot::{PoolCounters, PoolSlot, REMOVED};
use crate::engine::pool::spec::{Access, Pool, PoolKind, PoolSpec, PopBy, PushReason};
use crate::engine::unit::handle::Unit;
use crate::engine::xstream::owner::XstreamShared;
use crate::stack::block::StackClass;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
use crate::sync::{Arc, Mutex, UnsafeCell, lock, relax};

/// The queue of those units of a pool that are not in a list of an xstream.
#[allow(clippy::large_enum_variant, reason = "few, and in place so that a look costs no jump")]
pub(crate) enum Queue {
    Fifo(FifoPool),
    Deque(DequePool),
    /// A queue with an order of its own, which holds for started ULTs, too, if all of them are in
    /// it.
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
    pub(crate) owner_slot: Cell<*const PoolSlot>,
    /// The only xstream that serves the pool; null: none or several.
    pub(crate) sole: AtomicPtr<XstreamShared>,
    pub(crate) servers: Mutex<Vec<Arc<XstreamShared>>>,
    /// One for each xstream that has served the pool, and one for all of those that were removed.
    slots: Mutex<Vec<Arc<PoolCounters>>>,
    /// Units spawned by threads that do not serve this pool.
    pub(crate) foreign_created: AtomicU64,
    /// As [`PoolCounters::fired`], by xstreams that do not serve this pool.
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
