//! Execution streams: OS threads that run units.
//!
//! Split by the threads that may touch it:
//!
//! - [`XstreamShared`](crate::engine::model::xstream_shared): the inbox, the park word and counters; any
//!   thread.
//! - [`Xstream`]: everything else; only its own thread, through the pointer in
//!   [`current`](mod@crate::engine::xstream::current). No locks, no atomic read-modify-writes.
//!
//! [`run_loop`](crate::engine::run::run_loop) has the loop,
//! [`sleep`](mod@crate::engine::run::sleep) what it does when idle; here is what happens to one
//! unit: [`Xstream::run`] switches to it, and carries out the command with which it switches back.
//! Only then is its stack quiet, and only then may others see it (publish after switch). A ULT that
//! runs another one as its child calls the same function; then it is that ULT's stack on which the
//! command is carried out.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::ptr;

use crate::base::contain::{NoUnwind, log};
use crate::engine::error::StuckUlt;
use crate::engine::model::pool::{PoolShared, Queue};
use crate::engine::model::runtime_core::{
    CLOSING, EXIT, IDS_PER_DRAW, REPORT, RuntimeCore, WATCHED,
};
use crate::engine::model::unit::{Kind, UltPtr, UltRef};
use crate::engine::pool::slot::{PoolSlot, bump};
use crate::engine::pool::spec::PushReason;
use crate::engine::run::idle_wait::IdleSet;
use crate::engine::run::run_loop::ClockBudget;
use crate::engine::run::sleep::Spin;
use crate::engine::unit::handle::Unit;
use crate::engine::waiting::cancel::Why;
use crate::engine::xstream::current;
use crate::engine::xstream::descriptor_cache::{DescriptorCache, recycle_at};
use crate::engine::xstream::streak::Streak;
use crate::engine::xstream::switch;
use crate::engine::xstream::timer::TimerHeap;
use crate::stack::block::{BlockPtr, StackClass};
use crate::stack::cache::StackCache;
use crate::stack::context::{CAN_HAND_OVER, Command, Wakeup};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::trace::event::EventKind;
use prim::prefetch;

pub(crate) use crate::engine::model::xstream_shared::{State, XstreamShared};

/// Every so many switches from ULT to ULT in a row, one returns to the code that resumed the stack.
const HOPS_MAX: u32 = 32;
/// After so many returns in a row the next ULT has to queue, because the xstream has other things
/// to do, too (mail, timers, other units).
const CHAIN_MAX: u32 = 8;

/// The part of an xstream that only its own thread touches.
pub(crate) struct Xstream {
    pub(crate) core: Arc<RuntimeCore>,
    shared: Arc<XstreamShared>,
    /// For its sleep in `poll`.
    pub(crate) eventfd: Arc<OwnedFd>,
    /// Points to the same object as `shared`.
    me: *mut XstreamShared,
    /// The unit that runs now; none while the scheduler does.
    pub(crate) current: Cell<Option<UltPtr>>,
    /// The unit that runs next, past the scheduler; set by a ULT that is about to switch away.
    pub(crate) next: Cell<Option<UltPtr>>,
    /// The ULT that handed over to the one that runs now, and its command.
    before: Cell<Option<(UltPtr, Command)>>,
    /// `current` may be another one than was resumed last, because that one has handed over.
    pub(crate) handed: Cell<bool>,
    /// New ULTs on the stack of one that has ended.
    pub(crate) streak: Streak,
    /// Switches from ULT to ULT.
    hops: Cell<u32>,
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
    watched: Cell<bool>,
    pub(crate) exiting: Cell<bool>,
    /// Numbers drawn and not yet used: next and end.
    ids: Cell<(u64, u64)>,
    /// Calls of `has_runnable` while there were timers.
    pub(crate) due_calls: Cell<u32>,
    pub(crate) diag: crate::engine::xstream::diag::Local,
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
            diag: crate::engine::xstream::diag::Local::default(),
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
            if is_removed && slot.list.is_empty() && !slot.is_stacked() && !slot.served.get() {
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
    fn home_slot(&self, ult: UltPtr) -> &PoolSlot {
        // SAFETY:
        // - valid: set by `start`, here; `drop_slots` leaves those of ULTs that are at home here.
        unsafe { &*ult.slot.get() }
    }

    /// Runs a unit until it yields, suspends or ends, and then those that it names to come next.
    /// The caller has taken it out of its queue.
    // Always: a frame of its own between the loop and the switch would be left by a `ret` that the
    // processor cannot predict, since the stack of return addresses is that of another ULT by then.
    #[inline(always)]
    pub(crate) fn run(&self, ult: UltPtr) {
        // Who runs it, and hence who does what is to be done when it has switched back.
        let outer = self.current.get();
        let mut next = ult;
        let mut left = CHAIN_MAX;
        let guard = NoUnwind::begin();
        loop {
            if self.is_home_of(next) || self.admit(next, outer) {
                self.switch_to(next, outer);
            }
            match self.next.get() {
                Some(ult) => next = ult,
                None => break,
            }
            self.next.set(None);
            // Those that went past the scheduler count as well.
            self.units_run.set(self.units_run.get() + u64::from(HOPS_MAX));
            left -= 1;
            if left == 0 {
                crate::engine::pool::push::requeue(self, next);
                break;
            }
        }
        guard.defuse();
    }

    /// Switches to a ULT that is at home here and has a stack, and carries out the command with
    /// which it comes back.
    #[inline(always)]
    fn switch_to(&self, ult: UltPtr, outer: Option<UltPtr>) {
        let Some(block) = ult.block() else { return };
        self.current.set(Some(ult));
        // SAFETY:
        // - one resumer: only who runs the ULT touches its context, and it runs in one place;
        // - alive: until `finish`.
        let answer = unsafe { self.resume(ult, block) };
        // Another one may have taken its place. The flag is for speed: to load the one that came
        // back costs ten times as much as to know it.
        let back = if self.handed.get() { self.current.get() } else { Some(ult) };
        // A ULT that runs this one as its child may itself have been switched to.
        self.handed.set(outer.is_some());
        self.current.set(outer);
        match (answer.command(), back) {
            // The descriptor may be gone.
            (Command::Finish, _) => self.finish(answer.finished(block)),
            (Command::Yield, Some(ult)) => self.carry_out_yield(ult),
            (Command::Park, Some(ult)) => self.carry_out_park(ult),
            (_, None) => {}
        }
    }

    /// `ult` has yielded, and its stack is quiet.
    #[inline(always)]
    fn carry_out_yield(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.yields);
        self.requeue(ult, PushReason::Yield);
    }

    /// `ult` has suspended itself, and its stack is quiet.
    #[inline(always)]
    fn carry_out_park(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.parked);
        if !ult.state.cell.commit_suspend() {
            self.on_event(ult, EventKind::Resume);
            self.queue_resumed(ult);
        }
    }

    /// Switches from `me`, the calling ULT, to `next`, whose queue membership the caller has;
    /// `command` is for `me`. Returns when `me` runs again.
    // Always: see `switch::suspend`.
    #[inline(always)]
    pub(crate) fn switch_over(&self, me: UltPtr, next: UltPtr, command: Command) {
        match self.can_hand_over(me, next) {
            Some((from, to)) => {
                self.before.set(Some((me, command)));
                self.handed.set(true);
                self.current.set(Some(next));
                // Not where the scheduler switches: its loop gives the cache enough time.
                self.home_slot(next).prefetch_first();
                // SAFETY:
                // - one resumer: the caller has the right to run `next`; alive: it has not ended;
                // - not at its beginning: it has a stack, on which it has suspended or yielded.
                let wakeup = unsafe { from.context.hand_over(&to.context) };
                if wakeup == Wakeup::After {
                    // `me` does not move, so this is still its xstream.
                    return self.settle_before();
                }
                switch::wake_up(from, wakeup, command);
            }
            None => {
                self.next.set(Some(next));
                switch::suspend(me, command);
            }
        }
    }

    /// The stacks of `me` and `next`, if the switch may go past the scheduler: both are at home
    /// here, `me` goes back to an ordinary list, and nobody watches. Now and then it may not, so
    /// that two ULTs that switch back and forth do not keep the xstream for themselves.
    #[inline]
    fn can_hand_over(&self, me: UltPtr, next: UltPtr) -> Option<(BlockPtr, BlockPtr)> {
        let hops = self.hops.get().wrapping_add(1);
        self.hops.set(hops);
        let may = CAN_HAND_OVER
            && !hops.is_multiple_of(HOPS_MAX)
            && self.is_home_of(next)
            && self.is_plain(me)
            && !self.is_watched();
        if may { me.block().zip(next.block()) } else { None }
    }

    /// Carries out the command of the ULT that handed over to the caller, which is in the middle of
    /// a wait.
    #[inline(always)]
    pub(crate) fn settle_before(&self) {
        let guard = NoUnwind::begin();
        match self.before.get() {
            Some((ult, Command::Yield)) => self.carry_out_yield(ult),
            Some((ult, _)) => self.carry_out_park(ult),
            None => {}
        }
        guard.defuse();
    }

    /// Makes this xstream the home of a unit that is not at home here, and gives it a stack.
    /// `false`: it is not to be switched to: it was a tasklet and is over, or it does not belong
    /// here and has been sent where it does, or it has been cancelled.
    #[inline(never)]
    fn admit(&self, ult: UltPtr, outer: Option<UltPtr>) -> bool {
        if !ult.home.load(Relaxed).is_null() {
            return self.take_over(ult);
        }
        if ult.has_requests() && !crate::engine::pool::migrate::settle_unstarted(ult) {
            return false;
        }
        let pool = ult.pool();
        let slot = match self.own_slot(pool) {
            Some(slot) => slot,
            None if Arc::ptr_eq(&ult.core, &self.core) => self.slot_for(pool),
            None => {
                self.refuse(ult);
                return false;
            }
        };
        if ult.is_tasklet() {
            self.run_tasklet(ult, slot, outer);
            return false;
        }
        self.start(ult, slot)
    }

    /// A user's scheduler brought a unit of another runtime here.
    #[cold]
    fn refuse(&self, ult: UltPtr) {
        let (id, pool) = (ult.id.get(), &*ult.pool().name);
        log!(ERROR, id, pool, "a scheduler picked a unit of another runtime");
        crate::engine::pool::push::enqueue(ult, PushReason::Create);
    }

    /// A ULT that started elsewhere: a migratable one moves in, others are sent home.
    #[cold]
    fn take_over(&self, ult: UltPtr) -> bool {
        let is_ours = Arc::ptr_eq(&self.core, &ult.core);
        // Where its home alone serves its pool, even a migratable one is still registered there.
        let is_free = ult.may_move() && ult.home.load(Relaxed) == XstreamShared::nowhere();
        if !is_free || !is_ours {
            // A user's pool or scheduler brought it here; running it would be unsound.
            let held = UltRef::share(ult);
            crate::engine::xstream::switch::push_again(ult, false);
            drop(held);
            return false;
        }
        self.move_in(ult);
        true
    }

    /// Makes this xstream the home of a ULT that has started, and is at home nowhere.
    fn move_in(&self, ult: UltPtr) -> &PoolSlot {
        let slot = self.slot_for(ult.pool());
        if let Some(block) = ult.block() {
            self.stacks.register(block, &self.shared.stacks);
        }
        self.settle(ult, slot);
        slot
    }

    /// Takes in a migratable ULT that its pool has dropped, past the pool.
    pub(crate) fn take_in(&self, ult: UltPtr) {
        self.move_in(ult).push_back(ult);
    }

    #[inline]
    fn settle(&self, ult: UltPtr, slot: &PoolSlot) {
        ult.slot.set(slot);
        self.shared.ults.store(self.shared.ults.load(Relaxed) + 1, Relaxed);
        ult.home.store(self.me(), Relaxed);
    }

    /// A migratable ULT that is about to be queued where other xstreams find it.
    pub(crate) fn let_go(&self, ult: UltPtr) {
        self.shared.ults.store(self.shared.ults.load(Relaxed) - 1, Relaxed);
        if let Some(block) = ult.block() {
            self.stacks.unregister(block, &self.shared.stacks);
        }
        // The null home of an unstarted unit would mean "make a stack"; this one has one, so it
        // keeps the name of its last home until somebody takes it over.
        ult.home.store(XstreamShared::nowhere(), Relaxed);
    }

    #[inline]
    fn start(&self, ult: UltPtr, slot: &PoolSlot) -> bool {
        let class = ult.class.get();
        let taken = match self.stacks.take_default(class) {
            Some(block) => Ok(block),
            None => self.fetch_stack(ult, class),
        };
        match taken {
            Ok(block) => {
                block.set_ult(Some(ult));
                ult.set_block(Some(block));
                self.settle(ult, slot);
                true
            }
            Err(error) => {
                self.no_stack(ult, &error);
                false
            }
        }
    }

    #[cold]
    fn fetch_stack(&self, ult: UltPtr, class: StackClass) -> std::io::Result<BlockPtr> {
        if class.is_users() {
            self.init_user_stack(ult)
        } else {
            self.stacks.take(class, &self.shared.stacks)
        }
    }

    #[cold]
    fn init_user_stack(&self, ult: UltPtr) -> std::io::Result<BlockPtr> {
        let stack = ult.with_extra(|extra| extra.stack.take());
        let stack =
            stack.ok_or_else(|| std::io::Error::other("the stack has been used already"))?;
        let block = stack.init_stack()?;
        self.stacks.register(block, &self.shared.stacks);
        Ok(block)
    }

    #[cold]
    fn no_stack(&self, ult: UltPtr, error: &std::io::Error) {
        let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
        const WHY: &str = "no memory for the stack of a ULT: lower stack_bytes, start fewer at a \
                           time, or raise the limit that is reached: memory (with \
                           vm.overcommit_memory=2, address space counts against \
                           vm.overcommit_ratio), address space of the process (RLIMIT_AS, \
                           ulimit -v), or mappings (vm.max_map_count)";
        log!(ERROR, id, name, pool, %error, "{WHY}");
        crate::engine::xstream::switch::lose(
            ult,
            Why::NoStack(error.raw_os_error().unwrap_or(libc::ENOMEM)),
        );
    }

    pub(crate) fn run_tasklet(&self, ult: UltPtr, slot: &PoolSlot, outer: Option<UltPtr>) {
        self.run_tasklet_by(ult, slot, outer, |ult| self.run_here(ult));
    }

    /// [`run_tasklet`](Self::run_tasklet) where nobody watches.
    #[inline(always)]
    pub(crate) fn run_tasklet_unseen(&self, ult: UltPtr, slot: &PoolSlot) {
        self.run_tasklet_by(ult, slot, None, crate::engine::unit::end::run_and_publish);
    }

    #[inline(always)]
    fn run_tasklet_by(
        &self,
        ult: UltPtr,
        slot: &PoolSlot,
        outer: Option<UltPtr>,
        run: impl FnOnce(UltPtr) -> bool,
    ) {
        let guard = NoUnwind::begin();
        ult.slot.set(slot);
        self.current.set(Some(ult));
        if run(ult) {
            recycle_at(self, ult);
        }
        self.current.set(outer);
        self.tell_end();
        guard.defuse();
    }

    /// Queues a resumed ULT that is at home here.
    #[inline]
    pub(crate) fn queue_resumed(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.resumed);
        self.requeue(ult, PushReason::Resume);
    }

    /// Counts a resumed ULT that is at home here and runs at once, past its queue.
    #[inline]
    pub(crate) fn count_run_at_once(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.run_at_once);
    }

    /// Queues a started ULT that is at home here.
    #[inline]
    pub(crate) fn requeue(&self, ult: UltPtr, why: PushReason) {
        if !self.is_plain(ult) {
            return self.requeue_slow(ult, why);
        }
        self.home_slot(ult).push_back(ult);
    }

    /// Returns whether a ULT that is at home here goes to its unit list when it can run.
    #[inline]
    fn is_plain(&self, ult: UltPtr) -> bool {
        ult.kind() != Kind::Migratable
            && !ult.has_requests()
            && !ult.pool().orders_started(self.me())
    }

    #[cold]
    fn requeue_slow(&self, ult: UltPtr, why: PushReason) {
        let moved = crate::engine::pool::migrate::settle_started(self, ult);
        let why = if moved { PushReason::Migrate } else { why };
        let pool = ult.pool();
        if !ptr::eq(&*self.home_slot(ult).pool, pool) {
            // It was moved while it stood in a queue.
            ult.slot.set(self.slot_for(pool));
        }
        if ult.may_move() && !self.serves_alone(pool) {
            self.let_go(ult);
            crate::engine::pool::push::enqueue(ult, why);
            return;
        }
        match pool.queue() {
            Queue::Object(object) if pool.orders_started(self.me()) => {
                ult.count_push();
                object.push(Unit::from_ult(ult), why);
                self.core.wake_another(pool, Some(self));
            }
            _ => self.home_slot(ult).push_back(ult),
        }
    }

    /// Appends a ULT that is at home here to its unit list, past its pool.
    pub(crate) fn list_back(&self, ult: UltPtr) {
        self.home_slot(ult).push_back(ult);
    }

    /// Queues an unstarted unit of a pool that this xstream owns.
    #[inline]
    pub(crate) fn push_own(&self, ult: UltPtr, slot: &PoolSlot) {
        let pool = &*slot.pool;
        match pool.queue() {
            Queue::Deque(deque) => {
                // SAFETY: this is the thread of the owner (duty of the caller, checked there).
                unsafe { deque.push_own(ult) };
                if pool.sole.load(Relaxed).is_null() {
                    self.core.wake_one(pool);
                }
            }
            _ => slot.push_back(ult),
        }
    }

    /// Ends the life of a ULT; its stack is quiet and its result has been published.
    #[inline]
    fn finish(&self, block: BlockPtr) {
        if let Some(ult) = block.take_ult() {
            recycle_at(self, ult);
        }
        self.stacks.put(block, &self.shared.stacks);
        self.shared.ults.store(self.shared.ults.load(Relaxed) - 1, Release); // pair: ULTS
        self.tell_end();
    }

    #[inline]
    pub(crate) fn tell_end(&self) {
        if self.watched.get() {
            self.core.tell_news();
        }
    }

    /// Empties the inbox, carries out requests, and looks at the phase.
    #[cold]
    pub(crate) fn read_mail(&self) {
        prefetch::for_write(self.shared.inbox.newest());
        for node in self.shared.inbox.take_all() {
            // SAFETY:
            // - a live descriptor: units that are sent have not ended.
            self.sort_mail(unsafe { UltPtr::new(node) });
        }
        if self.shared.take_signal() {
            self.look_at_phase();
            self.on_signal();
            if self.shared.take_stack_wake() {
                self.any_slot(|slot| {
                    slot.wake_sleepers();
                    false
                });
            }
            // Those of before: what one of them asks for comes after a unit has run.
            for _ in 0..self.shared.requests() {
                if let Some(request) = self.shared.take_request() {
                    request(self);
                }
            }
        }
    }

    fn sort_mail(&self, ult: UltPtr) {
        if self.is_home_of(ult) {
            self.queue_resumed(ult);
            return;
        }
        let pool = ult.pool();
        pool.in_flight.fetch_sub(1, Relaxed);
        match self.own_slot(pool) {
            Some(slot) => self.push_own(ult, slot),
            // The pool has changed its owner meanwhile.
            None => crate::engine::pool::push::enqueue(ult, PushReason::Create),
        }
    }

    fn look_at_phase(&self) {
        let (flags, word) = self.core.phase();
        self.watched.set(flags & WATCHED != 0);
        self.closing.set(flags & CLOSING != 0);
        self.exiting.set(flags & EXIT != 0);
        if flags & REPORT != 0 {
            self.core.report_stuck(self.suspended());
        }
        self.shared.see(word);
        self.core.tell_news();
    }

    /// The ULTs that have started here and not ended.
    fn suspended(&self) -> Vec<StuckUlt> {
        let mut found = Vec::new();
        self.stacks.for_each(|block| {
            found.extend(block.ult().map(|ult| StuckUlt {
                id: ult.id.get(),
                name: ult.name().map(str::to_owned),
                pool: ult.pool().name.to_string(),
                xstream: self.shared.name.to_string(),
                waits_for: crate::engine::xstream::switch::waits_for(ult),
            }));
        });
        found.sort_by_key(|ult| ult.id);
        found
    }
}

/// Returns whether the calling thread runs `ult`'s home.
#[inline]
pub(crate) fn home_here<'a>(ult: UltPtr) -> Option<&'a Xstream> {
    current::xstream().filter(|xstream| xstream.is_home_of(ult))
}
