//! The state that an xstream keeps for one pool whose units it runs.
//!
//! A slot is made when the xstream first serves the pool, or first runs a unit of it, and stays
//! until the xstream ends, or until the pool has been removed and no ULT that started here points
//! to it ([`Xstream::drop_slots`](crate::engine::xstream::owner::Xstream::drop_slots)). A slot
//! whose pool the xstream no longer serves still holds such ULTs; they are run between the others
//! ("strays").

use std::cell::{Cell, RefCell};

use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::UltPtr;
use crate::engine::unit::list::UnitList;
use crate::stack::block::StackClass;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// The counters of a slot, which anybody may read. One writer: the xstream.
#[derive(Debug, Default)]
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
}

/// [`PoolCounters::xstream`] of what stands for all xstreams that have been removed.
pub(crate) const REMOVED: usize = usize::MAX;

impl PoolCounters {
    fn counters(&self) -> [&AtomicU64; 7] {
        let Self { xstream: _, len: _, created, parked, yields, resumed, run_at_once, .. } = self;
        [created, parked, yields, resumed, run_at_once, &self.finished, &self.fired]
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

/// Only the xstream's own thread touches it.
pub(crate) struct PoolSlot {
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) shared: Arc<PoolCounters>,
    /// Units that are ready here; see [`pool`](crate::engine::model::pool) for which.
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
    sleepers: RefCell<Vec<UltPtr>>,
    has_sleepers: Cell<bool>,
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
        }
    }

    /// Appends to the list.
    #[inline]
    pub(crate) fn push_back(&self, ult: UltPtr) {
        self.list.push_back(ult, &self.shared.len);
        if self.has_sleepers.get() {
            self.wake_sleepers();
        }
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

    /// Wakes the stacked schedulers over this slot. `false`: none sleeps.
    #[cold]
    pub(crate) fn wake_sleepers(&self) -> bool {
        self.has_sleepers.set(false);
        let sleepers = std::mem::take(&mut *self.sleepers.borrow_mut());
        // They are at home here, and have not ended.
        sleepers.iter().for_each(|sleeper| crate::engine::xstream::switch::resume(*sleeper));
        !sleepers.is_empty()
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
