//! The part of an xstream that only its own thread touches: no locks, no atomic
//! read-modify-writes. The part that any thread may touch is
//! [`XstreamShared`](crate::engine::model::xstream_shared).

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::ptr;

use crate::engine::model::pool::{PoolShared, PoolSlot};
use crate::engine::model::runtime_core::{IDS_PER_DRAW, RuntimeCore};
use crate::engine::model::unit::UltPtr;
use crate::engine::model::xstream_shared::XstreamShared;
use crate::engine::pulse::Local;
use crate::engine::xstream::budget::{ClockBudget, Spin};
use crate::engine::xstream::descriptor_cache::DescriptorCache;
use crate::engine::xstream::idle_set::IdleSet;
use crate::engine::xstream::streak::Streak;
use crate::engine::xstream::timer::TimerHeap;
use crate::stack::cache::StackCache;
use crate::stack::context::Command;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// The part of an xstream that only its own thread touches.
pub(crate) struct Xstream {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) shared: Arc<XstreamShared>,
    /// For its sleep in `poll`.
    pub(crate) eventfd: Arc<OwnedFd>,
    /// Points to the same object as `shared`.
    me: *mut XstreamShared,
    /// The unit that runs now; none while the scheduler does.
    pub(crate) current: Cell<Option<UltPtr>>,
    /// The unit that runs next, past the scheduler; set by a ULT that is about to switch away.
    pub(crate) next: Cell<Option<UltPtr>>,
    /// The ULT that handed over to the one that runs now, and its command.
    pub(crate) before: Cell<Option<(UltPtr, Command)>>,
    /// `current` may be another one than was resumed last, because that one has handed over.
    pub(crate) handed: Cell<bool>,
    /// New ULTs on the stack of one that has ended.
    pub(crate) streak: Streak,
    /// Joiners may pass the scheduler by; see [`joined`](crate::engine::run::joined).
    pub(crate) may_pass_by: Cell<bool>,
    /// Switches from ULT to ULT.
    pub(crate) hops: Cell<u32>,
    /// In the order in which they were made; shrinks between two units only ([`drop_slots`]).
    ///
    /// [`drop_slots`]: Self::drop_slots
    #[allow(clippy::vec_box, reason = "units and views point to slots, which must not move")]
    slots: RefCell<Vec<Box<PoolSlot>>>,
    pub(crate) timers: RefCell<TimerHeap>,
    pub(crate) idle: IdleSet,
    pub(crate) stacks: StackCache,
    pub(crate) descriptors: DescriptorCache,
    pub(crate) clock: ClockBudget,
    pub(crate) spin: Spin,
    /// Units that the scheduler picked, idle waiters not counted.
    pub(crate) units_run: Cell<u64>,
    /// Count of `units_run` at which the idle stacks come to mind.
    pub(crate) remind_at: Cell<u64>,
    pub(crate) odd_rounds: Cell<u32>,
    /// `do_chores` shall look at the idle stacks.
    pub(crate) tends_stacks: Cell<bool>,
    /// There are timers, idle waiters, odd slots or stacks to look at.
    pub(crate) has_chores: Cell<bool>,
    /// There are slots that no scheduler serves, or that a stacked one does.
    pub(crate) has_odd_slots: Cell<bool>,
    /// The scheduler or the pools have changed.
    pub(crate) reconfigured: Cell<bool>,
    /// Copies of the phase flags.
    pub(crate) closing: Cell<bool>,
    pub(crate) watched: Cell<bool>,
    pub(crate) exiting: Cell<bool>,
    /// Numbers drawn and not yet used: next and end.
    ids: Cell<(u64, u64)>,
    /// Calls of `has_runnable` while there were timers.
    pub(crate) due_calls: Cell<u32>,
    /// The unit on whose stack a sink may be running, which is not the current one meanwhile.
    pub(crate) caller: Cell<Option<UltPtr>>,
    pub(crate) diag: Local,
}

impl Xstream {
    pub(crate) fn new(core: Arc<RuntimeCore>, shared: Arc<XstreamShared>) -> Self {
        let stacks = StackCache::new(core.class, core.stack_cache_max);
        let spin = Spin::new(core.spin_max);
        Self {
            eventfd: shared.eventfd().expect("one that was removed does not start"),
            me: Arc::as_ptr(&shared).cast_mut(),
            core,
            shared,
            current: Cell::new(None),
            next: Cell::new(None),
            before: Cell::new(None),
            handed: Cell::new(false),
            streak: Streak::new(),
            may_pass_by: Cell::new(false),
            hops: Cell::new(0),
            slots: RefCell::default(),
            timers: RefCell::default(),
            idle: IdleSet::default(),
            stacks,
            descriptors: DescriptorCache::new(),
            clock: ClockBudget::default(),
            spin,
            units_run: Cell::new(0),
            remind_at: Cell::new(0),
            odd_rounds: Cell::new(0),
            tends_stacks: Cell::new(false),
            has_chores: Cell::new(false),
            has_odd_slots: Cell::new(false),
            reconfigured: Cell::new(false),
            closing: Cell::new(false),
            watched: Cell::new(false),
            exiting: Cell::new(false),
            ids: Cell::new((0, 0)),
            due_calls: Cell::new(0),
            diag: Local::default(),
            caller: Cell::new(None),
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<XstreamShared> {
        &self.shared
    }

    /// For comparisons with what units and pools name.
    #[inline]
    pub(crate) fn me(&self) -> *mut XstreamShared {
        self.me
    }

    /// Returns whether `ult` has started here.
    #[inline]
    pub(crate) fn is_home_of(&self, ult: UltPtr) -> bool {
        ptr::eq(ult.home.load(Relaxed), self.me())
    }

    /// Returns whether this xstream has the private end of `pool`.
    #[inline]
    pub(crate) fn owns(&self, pool: &PoolShared) -> bool {
        ptr::eq(pool.owner.load(Acquire), self.me()) // pair: POOL-OWNER
    }

    /// Returns whether no other xstream serves `pool`.
    pub(crate) fn serves_alone(&self, pool: &PoolShared) -> bool {
        ptr::eq(pool.sole.load(Relaxed), self.me())
    }

    /// A number for a new unit.
    #[inline]
    pub(crate) fn next_id(&self) -> u64 {
        let (mut next, mut end) = self.ids.get();
        if next == end {
            next = self.core.draw_ids(IDS_PER_DRAW);
            end = next + IDS_PER_DRAW;
        }
        self.ids.set((next + 1, end));
        next
    }

    /// The slot of a pool that this xstream owns.
    #[inline]
    pub(crate) fn own_slot(&self, pool: &PoolShared) -> Option<&PoolSlot> {
        // SAFETY:
        // - valid: set together with the owner, by this thread; slots are boxed, and stay while
        //   their pool has an owner.
        self.owns(pool).then(|| unsafe { &*pool.owner_slot.get() })
    }

    /// The slot of a pool, if there is one.
    #[inline]
    pub(crate) fn slot_of(&self, pool: &PoolShared) -> Option<&PoolSlot> {
        self.own_slot(pool).or_else(|| self.search_slot(pool))
    }

    #[inline(never)]
    fn search_slot(&self, pool: &PoolShared) -> Option<&PoolSlot> {
        let slots = self.slots.borrow();
        let slot = slots.iter().find(|slot| ptr::eq(&*slot.pool, pool))?;
        // SAFETY:
        // - valid: as above; the vector may grow, but the boxes stay until the caller is through:
        //   `drop_slots` runs between two units.
        Some(unsafe { &*ptr::from_ref(&**slot) })
    }

    /// The slot of a pool of this runtime, made if need be.
    #[inline]
    pub(crate) fn slot_for(&self, pool: &PoolShared) -> &PoolSlot {
        self.slot_of(pool).unwrap_or_else(|| self.add_slot(pool))
    }

    #[cold]
    fn add_slot(&self, pool: &PoolShared) -> &PoolSlot {
        let pool = self.core.pool_arc(pool);
        let slot = Box::new(PoolSlot::new(pool, self.shared.index));
        let place = ptr::from_ref(&*slot);
        self.slots.borrow_mut().push(slot);
        self.mark_odd();
        // SAFETY:
        // - valid: boxed, and in `slots`; as above.
        unsafe { &*place }
    }

    /// Drops the slots of pools that have been removed. Between two units, when no scheduler holds
    /// views: what still points to a slot is then a ULT that is at home here, perhaps one that has
    /// been counted as ended and whose last destructor waits, or one that another thread has moved
    /// to another pool; or a stacked scheduler.
    pub(crate) fn drop_slots(&self) {
        let mut over: Vec<*const PoolSlot> = Vec::new();
        self.any_slot(|slot| {
            // pair: POOL-REMOVED
            let is_removed = slot.pool.removed.load(Acquire);
            let has_jobs = slot.job_queue().is_some_and(|queue| !queue.jobs.is_empty());
            let is_idle = slot.list.is_empty() && !slot.is_stacked() && !has_jobs;
            if is_removed && is_idle && !slot.served.get() {
                debug_assert!(!self.owns(&slot.pool), "what has been removed has no owner");
                over.push(slot);
            }
            false
        });
        if over.is_empty() {
            return;
        }
        // It may name one, if its loop ended by a panic.
        self.streak.stop();
        // As a rule there are few of these, and many stacks.
        over.sort_unstable();
        self.stacks.all(|block| {
            let used = block.ult().map(|ult| ult.slot.get());
            if let Some(at) = used.and_then(|slot| over.binary_search(&slot).ok()) {
                over.remove(at);
            }
            !over.is_empty()
        });
        let is_over = |slot: &PoolSlot| over.binary_search(&ptr::from_ref(slot)).is_ok();
        self.slots.borrow_mut().retain(|slot| !is_over(slot));
    }

    /// There is a slot that the scheduler does not serve.
    pub(crate) fn mark_odd(&self) {
        self.has_odd_slots.set(true);
        self.has_chores.set(true);
    }

    /// Calls `f` for each slot until it says `true`. `f` may make new slots.
    pub(crate) fn any_slot(&self, mut f: impl FnMut(&PoolSlot) -> bool) -> bool {
        let mut at = 0;
        loop {
            let Some(slot) = self.slots.borrow().get(at).map(|slot| ptr::from_ref(&**slot)) else {
                return false;
            };
            // SAFETY:
            // - valid: boxed, and in `slots`, which shrinks between two units only; `f` does not
            //   make it shrink.
            if f(unsafe { &*slot }) {
                return true;
            }
            at += 1;
        }
    }

    /// The slot of a unit that has started here.
    #[inline]
    pub(crate) fn home_slot(&self, ult: UltPtr) -> &PoolSlot {
        // SAFETY:
        // - valid: set by `start`, here; `drop_slots` leaves those of ULTs that are at home here.
        unsafe { &*ult.slot.get() }
    }
}
