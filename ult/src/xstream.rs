//! Execution streams: OS threads that run units.
//!
//! Split by who may touch it:
//!
//! - [`XstreamShared`](crate::xstream_shared): the inbox, the park word and counters; any thread.
//! - [`Xstream`]: everything else; only its own thread, through the pointer in
//!   [`current`](mod@crate::current). No locks, no atomic read-modify-writes.
//!
//! [`run_loop`](crate::run_loop) has the loop, [`sleep`](mod@crate::sleep) what it does when idle;
//! here is what happens to one unit: [`Xstream::run`] switches to it, and carries out the command
//! with which it switches back. Only then is its stack quiet, and only then may others see it
//! (publish after switch). A ULT that runs another one as its child calls the same function; then
//! it is that ULT's stack on which the command is carried out.

use std::cell::{Cell, RefCell};
use std::ptr;

use crate::cancel::Why;
use crate::context::{Command, Wakeup};
use crate::current;
use crate::descriptor::{Kind, UltPtr, UltRef};
use crate::descriptor_cache::{DescriptorCache, recycle_at};
use crate::error::StuckUlt;
use crate::idle::IdleSet;
use crate::pool::{PoolShared, PushReason, Queue};
use crate::run_loop::ClockBudget;
use crate::shared::{CLOSING, EXIT, IDS_PER_DRAW, REPORT, RuntimeCore, WATCHED};
use crate::sleep::Spin;
use crate::slot::{Slot, bump};
use crate::stack::BlockPtr;
use crate::stack_cache::StackCache;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::timer::TimerHeap;
use crate::unit::Unit;

pub(crate) use crate::xstream_shared::{State, XstreamShared};

/// The part of an xstream that only its own thread touches.
pub(crate) struct Xstream {
    pub(crate) core: Arc<RuntimeCore>,
    shared: Arc<XstreamShared>,
    /// The unit that runs now; none while the scheduler does.
    pub(crate) current: Cell<Option<UltPtr>>,
    /// What runs next, past the scheduler; set by a ULT that is about to switch away.
    pub(crate) next: Cell<Option<UltPtr>>,
    /// In the order in which they were made; never shrinks.
    slots: RefCell<Vec<Box<Slot>>>,
    pub(crate) timers: RefCell<TimerHeap>,
    pub(crate) idle: IdleSet,
    pub(crate) stacks: RefCell<StackCache>,
    pub(crate) descriptors: RefCell<DescriptorCache>,
    pub(crate) clock: ClockBudget,
    pub(crate) spin: Spin,
    /// Units that the scheduler picked, idle waiters not counted.
    pub(crate) units_run: Cell<u64>,
    pub(crate) odd_rounds: Cell<u32>,
    /// There are timers, idle waiters or odd slots.
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
}

impl Xstream {
    pub(crate) fn new(core: Arc<RuntimeCore>, shared: Arc<XstreamShared>) -> Self {
        let stacks = StackCache::new(core.class, core.stack_cache_max);
        let spin = Spin::new(core.spin_max);
        Self {
            core,
            shared,
            current: Cell::new(None),
            next: Cell::new(None),
            slots: RefCell::default(),
            timers: RefCell::default(),
            idle: IdleSet::default(),
            stacks: RefCell::new(stacks),
            descriptors: RefCell::new(DescriptorCache::new()),
            clock: ClockBudget::default(),
            spin,
            units_run: Cell::new(0),
            odd_rounds: Cell::new(0),
            has_chores: Cell::new(false),
            has_odd_slots: Cell::new(false),
            reconfigured: Cell::new(false),
            closing: Cell::new(false),
            watched: Cell::new(false),
            exiting: Cell::new(false),
            ids: Cell::new((0, 0)),
            due_calls: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<XstreamShared> {
        &self.shared
    }

    /// For comparisons with what units and pools name.
    #[inline]
    pub(crate) fn me(&self) -> *mut XstreamShared {
        Arc::as_ptr(&self.shared).cast_mut()
    }

    /// Whether `ult` has started here.
    #[inline]
    pub(crate) fn is_home_of(&self, ult: UltPtr) -> bool {
        ptr::eq(ult.home.load(Relaxed), self.me())
    }

    /// Whether this xstream has the private end of `pool`.
    #[inline]
    pub(crate) fn owns(&self, pool: &PoolShared) -> bool {
        ptr::eq(pool.owner.load(Acquire), self.me()) // pair: POOL-OWNER
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

    /// The slot of a pool, if there is one.
    #[inline]
    pub(crate) fn slot_of(&self, pool: &PoolShared) -> Option<&Slot> {
        if self.owns(pool) {
            // SAFETY:
            // - valid: set together with the owner, by this thread; slots are boxed, and live as
            //   long as the xstream.
            return unsafe { pool.owner_slot.get().as_ref() };
        }
        self.search_slot(pool)
    }

    #[inline(never)]
    fn search_slot(&self, pool: &PoolShared) -> Option<&Slot> {
        let slots = self.slots.borrow();
        let slot = slots.iter().find(|slot| ptr::eq(&*slot.pool, pool))?;
        // SAFETY:
        // - valid: as above; the vector may grow, but the boxes stay.
        Some(unsafe { &*ptr::from_ref(&**slot) })
    }

    /// The slot of a pool of this runtime, made if need be.
    #[inline]
    pub(crate) fn slot_for(&self, pool: &PoolShared) -> &Slot {
        self.slot_of(pool).unwrap_or_else(|| self.add_slot(pool))
    }

    #[cold]
    fn add_slot(&self, pool: &PoolShared) -> &Slot {
        let pool = self.core.pool_arc(pool);
        let slot = Box::new(Slot::new(pool));
        let place = ptr::from_ref(&*slot);
        self.slots.borrow_mut().push(slot);
        self.mark_odd();
        // SAFETY:
        // - valid: boxed, and in `slots`, which never shrinks.
        unsafe { &*place }
    }

    /// There is a slot that the scheduler does not serve.
    pub(crate) fn mark_odd(&self) {
        self.has_odd_slots.set(true);
        self.has_chores.set(true);
    }

    /// Calls `f` for each slot until it says `true`. `f` may make new slots.
    pub(crate) fn any_slot(&self, mut f: impl FnMut(&Slot) -> bool) -> bool {
        let mut at = 0;
        loop {
            let Some(slot) = self.slots.borrow().get(at).map(|slot| ptr::from_ref(&**slot)) else {
                return false;
            };
            // SAFETY:
            // - valid: boxed, and in `slots`, which never shrinks.
            if f(unsafe { &*slot }) {
                return true;
            }
            at += 1;
        }
    }

    /// The slot of a unit that has started here.
    #[inline]
    fn home_slot(&self, ult: UltPtr) -> &Slot {
        // SAFETY:
        // - valid: set by `start`, here; slots live as long as the xstream.
        unsafe { &*ult.slot.get() }
    }

    /// Runs a unit until it yields, suspends or ends, and then those that it names to come next.
    /// The caller has taken it out of its queue.
    #[inline]
    pub(crate) fn run(&self, ult: UltPtr) {
        let outer = self.current.get();
        let mut next = Some(ult);
        while let Some(ult) = next {
            self.run_once(ult);
            next = self.next.take();
        }
        self.current.set(outer);
    }

    #[inline]
    fn run_once(&self, ult: UltPtr) {
        if !self.is_home_of(ult) && !self.admit(ult) {
            return;
        }
        let slot = self.home_slot(ult);
        self.current.set(Some(ult));
        let Some(block) = ult.block() else { return };
        // SAFETY:
        // - one resumer: only who runs the ULT touches its context, and it runs in one place;
        // - alive: until `finish`.
        let command = unsafe { block.context.resume(Wakeup::Run) };
        match command {
            Command::Yield => {
                bump(&slot.shared.yields);
                self.requeue(ult, PushReason::Yield);
            }
            Command::Park => {
                bump(&slot.shared.parked);
                if !ult.cell.commit_suspend() {
                    self.queue_resumed(ult);
                }
            }
            // The descriptor may be gone.
            Command::Finish => self.finish(block, slot),
        }
    }

    /// Makes this xstream the home of a unit that is not at home here, and gives it a stack.
    /// `false`: it is not to be switched to: it does not belong here and has been sent where it
    /// does, or it was a tasklet and is over, or it has been cancelled.
    #[inline]
    fn admit(&self, ult: UltPtr) -> bool {
        if ult.home.load(Relaxed).is_null() {
            if ult.has_requests() && !crate::migrate::settle_unstarted(ult) {
                return false;
            }
            let pool = ult.pool();
            if !self.owns(pool) && !ptr::eq(Arc::as_ptr(&ult.core), Arc::as_ptr(&self.core)) {
                self.refuse(ult);
                return false;
            }
            let slot = self.slot_for(pool);
            if ult.is_tasklet() {
                self.run_tasklet(ult, slot);
                return false;
            }
            return self.start(ult, slot);
        }
        self.take_over(ult)
    }

    /// A user's scheduler brought a unit of another runtime here.
    #[cold]
    fn refuse(&self, ult: UltPtr) {
        let (id, pool) = (ult.id.get(), &*ult.pool().name);
        tracing::error!(id, pool, "a scheduler picked a unit of another runtime");
        crate::spawn::enqueue(ult, PushReason::Create);
    }

    /// A ULT that started elsewhere: a migratable one moves in, others are sent home.
    #[cold]
    fn take_over(&self, ult: UltPtr) -> bool {
        let is_ours = Arc::ptr_eq(&self.core, &ult.core);
        if !ult.may_move() || !is_ours {
            // A user's pool or scheduler brought it here; running it would be unsound.
            let held = UltRef::share(ult);
            crate::switch::push_resumed(ult, false);
            drop(held);
            return false;
        }
        let slot = self.slot_for(ult.pool());
        if let Some(block) = ult.block() {
            self.stacks.borrow_mut().register(block, &self.shared.stacks);
        }
        self.settle(ult, slot);
        true
    }

    #[inline]
    fn settle(&self, ult: UltPtr, slot: &Slot) {
        ult.slot.set(slot);
        self.shared.ults.store(self.shared.ults.load(Relaxed) + 1, Relaxed);
        ult.home.store(self.me(), Relaxed);
    }

    /// A migratable ULT that is about to be queued where other xstreams find it.
    pub(crate) fn let_go(&self, ult: UltPtr) {
        self.shared.ults.store(self.shared.ults.load(Relaxed) - 1, Relaxed);
        if let Some(block) = ult.block() {
            self.stacks.borrow_mut().unregister(block, &self.shared.stacks);
        }
        // The null home of an unstarted unit would mean "make a stack"; this one has one, so it
        // keeps the name of its last home until somebody takes it over.
        ult.home.store(XstreamShared::nowhere(), Relaxed);
    }

    #[inline]
    fn start(&self, ult: UltPtr, slot: &Slot) -> bool {
        let class = ult.class.get();
        let taken = if class.is_users() {
            self.furnish_users(ult)
        } else {
            self.stacks.borrow_mut().take(class, &self.shared.stacks)
        };
        match taken {
            Ok(block) => {
                block.ult.set(Some(ult));
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
    fn furnish_users(&self, ult: UltPtr) -> std::io::Result<BlockPtr> {
        let stack = ult.with_extra(|extra| extra.stack.take());
        let stack =
            stack.ok_or_else(|| std::io::Error::other("the stack has been used already"))?;
        let block = stack.furnish()?;
        self.stacks.borrow_mut().register(block, &self.shared.stacks);
        Ok(block)
    }

    #[cold]
    fn no_stack(&self, ult: UltPtr, error: &std::io::Error) {
        let (id, name, pool) = (ult.id.get(), ult.name(), &*ult.pool().name);
        tracing::error!(id, name, pool, %error, "no memory for the stack of a ULT");
        crate::switch::lose(ult, Why::NoStack(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }

    #[inline]
    fn run_tasklet(&self, ult: UltPtr, slot: &Slot) {
        self.current.set(Some(ult));
        if crate::join::run_and_publish(ult) {
            recycle_at(self, ult);
        }
        self.count_finished(slot);
    }

    /// Queues a resumed ULT that is at home here.
    #[inline]
    pub(crate) fn queue_resumed(&self, ult: UltPtr) {
        bump(&self.home_slot(ult).shared.resumed);
        self.requeue(ult, PushReason::Resume);
    }

    /// Queues a started ULT that is at home here.
    #[inline]
    pub(crate) fn requeue(&self, ult: UltPtr, why: PushReason) {
        if ult.kind() == Kind::Migratable || ult.has_requests() || ult.pool().orders_started() {
            return self.requeue_slow(ult, why);
        }
        self.home_slot(ult).push_back(ult);
    }

    #[cold]
    fn requeue_slow(&self, ult: UltPtr, why: PushReason) {
        let moved = crate::migrate::settle_started(self, ult);
        let why = if moved { PushReason::Migrate } else { why };
        let pool = ult.pool();
        if ult.may_move() && !ptr::eq(pool.sole.load(Relaxed), self.me()) {
            self.let_go(ult);
            crate::spawn::enqueue(ult, why);
            return;
        }
        match pool.queue() {
            Queue::Object(object) if pool.orders_started() => {
                ult.count_push();
                object.push(Unit::from_ult(ult), why);
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
    pub(crate) fn push_own(&self, ult: UltPtr, pool: &PoolShared) {
        match pool.queue() {
            Queue::Deque(deque) => {
                // SAFETY: this is the thread of the owner (duty of the caller, checked there).
                unsafe { deque.push_own(ult) };
                if pool.sole.load(Relaxed).is_null() {
                    self.core.wake_one(pool);
                }
            }
            _ => {
                // SAFETY:
                // - valid: this xstream owns the pool, and set its slot.
                unsafe { &*pool.owner_slot.get() }.push_back(ult);
            }
        }
    }

    /// Ends the life of a ULT; its stack is quiet and its result has been published.
    #[inline]
    fn finish(&self, block: BlockPtr, slot: &Slot) {
        if let Some(ult) = block.ult.take() {
            recycle_at(self, ult);
        }
        self.stacks.borrow_mut().put(block, &self.shared.stacks);
        self.shared.ults.store(self.shared.ults.load(Relaxed) - 1, Relaxed);
        self.count_finished(slot);
    }

    #[inline]
    fn count_finished(&self, slot: &Slot) {
        let finished = &slot.shared.finished;
        // What the unit did happens before a shutdown that sees the count.
        finished.store(finished.load(Relaxed) + 1, Release); // pair: POOL-ENDED
        if self.watched.get() {
            self.core.tell_news();
        }
    }

    /// Empties the inbox, carries out requests, and looks at the phase.
    #[cold]
    pub(crate) fn read_mail(&self) {
        for node in self.shared.inbox.take_all() {
            // SAFETY:
            // - a live descriptor: units that are sent have not ended.
            self.sort_mail(unsafe { UltPtr::new(node) });
        }
        if self.shared.take_signal() {
            self.look_at_phase();
            while let Some(request) = self.shared.take_request() {
                request(self);
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
        if self.owns(pool) {
            self.push_own(ult, pool);
        } else {
            // The pool has changed its owner meanwhile.
            crate::spawn::enqueue(ult, PushReason::Create);
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
        let stacks = self.stacks.borrow();
        let ults = stacks.all().iter().filter_map(|block| block.ult.get());
        let mut found: Vec<_> = ults
            .map(|ult| StuckUlt {
                id: ult.id.get(),
                name: ult.name().map(str::to_owned),
                pool: ult.pool().name.to_string(),
                xstream: self.shared.name.to_string(),
                waits_for: crate::switch::waits_for(ult),
            })
            .collect();
        found.sort_by_key(|ult| ult.id);
        found
    }
}

/// Whether the calling thread runs `ult`'s home.
#[inline]
pub(crate) fn home_here<'a>(ult: UltPtr) -> Option<&'a Xstream> {
    current::xstream().filter(|xstream| xstream.is_home_of(ult))
}
