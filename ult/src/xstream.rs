//! Execution streams: OS threads that run ULTs.
//!
//! Split by who may touch it:
//!
//! - [`XstreamShared`]: the inbox, the park word and counters; any thread.
//! - [`Xstream`]: everything else; only its own thread, through the pointer in
//!   [`current`](mod@crate::current). No locks, no atomic read-modify-writes.
//!
//! [`run_loop`](crate::run_loop) has the loop, [`sleep`](mod@crate::sleep) what it does when idle;
//! here is what happens to one ULT: [`Xstream::run`] switches to it, and carries out the command
//! with which it switches back. Only then is its stack quiet, and only then may others see it
//! (publish after switch).

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;

use corosensei::CoroutineResult;

use crate::descriptor::{Command, Ult, UltPtr, UltRef, Wakeup};
use crate::diag;
use crate::error::StuckUlt;
use crate::idle::IdleSet;
use crate::inbox::Inbox;
use crate::park::{Bed, ParkWord};
use crate::pool::PushReason;
use crate::run_loop::ClockBudget;
use crate::sched::Slot;
use crate::shared::{CLOSING, EXIT, IDS_PER_DRAW, REPORT, RuntimeCore, WATCHED};
use crate::sleep::Spin;
use crate::stack_cache::StackCache;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use crate::timer::TimerHeap;
use crate::trace::event::EventKind;
use crate::unit::Unit;

/// What an xstream shows of one pool that it serves. One writer: the xstream.
#[derive(Debug, Default)]
pub(crate) struct SlotShared {
    /// Length of the unit list.
    pub(crate) len: AtomicUsize,
    pub(crate) created: AtomicU64,
    pub(crate) executed: AtomicU64,
    pub(crate) yields: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) finished: AtomicU64,
}

/// Adds one to a counter that has one writer.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// The part of an xstream that every thread may use.
#[repr(align(128))]
pub(crate) struct XstreamShared {
    inbox: Inbox<Ult>,
    word: ParkWord,
    /// The phase has changed; look at it.
    signalled: AtomicBool,
    /// The last phase word that the xstream has seen.
    seen: AtomicU64,
    pub(crate) eventfd: OwnedFd,
    pub(crate) name: Box<str>,
    pub(crate) index: usize,
    pub(crate) cpus: Box<[usize]>,
    /// One per served pool, in the scheduler's order.
    pub(crate) slots: Box<[SlotShared]>,
    /// Indices of the pools, in the same order.
    pub(crate) pools: Box<[usize]>,
    pub(crate) diag: diag::Pulse,
}

impl XstreamShared {
    pub(crate) fn new(
        name: String,
        index: usize,
        cpus: Vec<usize>,
        pools: Vec<usize>,
    ) -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            inbox: Inbox::new(),
            word: ParkWord::new(),
            signalled: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            name: name.into(),
            index,
            cpus: cpus.into(),
            slots: pools.iter().map(|_| SlotShared::default()).collect(),
            pools: pools.into(),
            diag: diag::Pulse::default(),
        })
    }

    /// Whether the inbox or the signal wants attention. Two loads.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        !self.inbox.is_empty() || self.signalled.load(Relaxed)
    }

    /// Hands a ULT to this xstream: a resumed one that is at home here, or an unstarted one of a
    /// pool that only this xstream serves. The ULT's queue membership passes to the inbox.
    ///
    /// The caller keeps the shared part of the runtime alive.
    pub(crate) fn send(&self, ult: UltPtr) {
        // SAFETY:
        // - in no queue: its membership is handed over;
        // - valid until taken: it has not finished, so the runtime's count keeps it.
        let was_empty = unsafe { self.inbox.push(ult.as_non_null()) };
        // Otherwise an earlier sender is about to look.
        if was_empty {
            fence(SeqCst); // pair: PARK-DEKKER
            self.wake_after_fence();
        }
    }

    /// Makes the xstream look at the phase.
    pub(crate) fn signal(&self) {
        self.signalled.store(true, Release); // pair: SIGNAL
        fence(SeqCst); // pair: PARK-DEKKER
        self.wake_after_fence();
    }

    /// Wakes the xstream if it sleeps, and tells whether it did. The caller has published work and
    /// put a `fence(SeqCst)` behind it.
    pub(crate) fn wake_after_fence(&self) -> bool {
        if !self.word.looks_asleep() {
            return false;
        }
        match self.word.notify() {
            None => return false,
            Some(Bed::Futex) => self.word.wake_futex(),
            Some(Bed::Poll) => {
                // Fails only when the counter is about to overflow; then it is readable anyway.
                let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
            }
        }
        true
    }

    /// For the owner's sleep.
    pub(crate) fn word(&self) -> &ParkWord {
        &self.word
    }

    pub(crate) fn has_seen(&self, word: u64) -> bool {
        self.seen.load(Acquire) >= word // pair: PHASE-SEEN
    }
}

/// The part of an xstream that only its own thread touches.
pub(crate) struct Xstream {
    pub(crate) core: Arc<RuntimeCore>,
    shared: *const XstreamShared,
    /// The ULT that runs now; none while the scheduler does.
    pub(crate) current: Cell<Option<UltPtr>>,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) timers: RefCell<TimerHeap>,
    pub(crate) idle: IdleSet,
    pub(crate) cache: RefCell<StackCache>,
    pub(crate) clock: ClockBudget,
    pub(crate) spin: Spin,
    /// Units that the scheduler picked, idle waiters not counted.
    pub(crate) units_run: Cell<u64>,
    /// Copies of the phase flags.
    pub(crate) closing: Cell<bool>,
    watched: Cell<bool>,
    pub(crate) exiting: Cell<bool>,
    /// Numbers drawn and not yet used: next and end.
    ids: Cell<(u64, u64)>,
    /// Calls of `has_runnable` while there were timers.
    pub(crate) due_calls: Cell<u32>,
    pub(crate) diag: diag::Local,
}

impl Xstream {
    pub(crate) fn new(core: Arc<RuntimeCore>, index: usize) -> Self {
        let shared = ptr::from_ref(&core.xstreams[index]);
        let slots = core.xstreams[index].pools.iter().map(|pool| Slot::new(*pool)).collect();
        let cache = StackCache::new(core.stack_bytes, core.stack_cache_max);
        let spin = Spin::new(core.spin_max);
        Self {
            core,
            shared,
            current: Cell::new(None),
            slots,
            timers: RefCell::default(),
            idle: IdleSet::default(),
            cache: RefCell::new(cache),
            clock: ClockBudget::default(),
            spin,
            units_run: Cell::new(0),
            closing: Cell::new(false),
            watched: Cell::new(false),
            exiting: Cell::new(false),
            ids: Cell::new((0, 0)),
            due_calls: Cell::new(0),
            diag: diag::Local::default(),
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &XstreamShared {
        // SAFETY:
        // - valid: points into `core`, which `self` keeps alive and which never moves it.
        unsafe { &*self.shared }
    }

    /// Whether `ult` has started here.
    #[inline]
    pub(crate) fn is_home_of(&self, ult: UltPtr) -> bool {
        ptr::eq(ult.home.load(Relaxed), self.shared)
    }

    /// A number for a new ULT.
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

    /// The place of a pool of this runtime among the served ones.
    #[inline]
    pub(crate) fn slot_of(&self, pool: usize) -> Option<usize> {
        self.slots.iter().position(|slot| slot.pool == pool)
    }

    /// Runs a ULT until it yields, suspends or ends. The caller has taken it out of its queue.
    pub(crate) fn run(&self, ult: UltPtr) {
        if !self.is_home_of(ult) && !self.adopt(ult) {
            return;
        }
        bump(&self.shared().slots[ult.slot.get() as usize].executed);
        // Before it is current: a sink of the user that waits must not take itself for the ULT.
        self.on_run(ult);
        self.current.set(Some(ult));
        // SAFETY:
        // - no alias: only the home xstream touches `coro`, and it runs one ULT at a time.
        let result = ult.coro.with_mut(|coro| unsafe { &mut *coro }.resume(Wakeup::Run));
        self.current.set(None);
        let CoroutineResult::Yield(command) = result;
        self.on_switched(ult, command);
        match command {
            Command::Yield => {
                bump(&self.shared().slots[ult.slot.get() as usize].yields);
                self.requeue(ult, PushReason::Yield);
            }
            Command::Park => {
                if !ult.cell.commit_suspend() {
                    self.on_event(ult, EventKind::Resume);
                    self.queue_resumed(ult);
                }
            }
            Command::Finish => self.finish(ult),
        }
    }

    /// Makes this xstream the home of an unstarted ULT. `false`: it does not belong here and has
    /// been sent where it does.
    fn adopt(&self, ult: UltPtr) -> bool {
        if !ult.home.load(Relaxed).is_null() {
            // A user's pool or scheduler brought it here; running it would be unsound.
            let held = UltRef::share(ult);
            crate::switch::push_resumed(ult, false);
            drop(held);
            return false;
        }
        let is_ours = Arc::ptr_eq(&self.core, &ult.core);
        let Some(slot) = self.slot_of(ult.pool().index).filter(|_| is_ours) else {
            let (id, pool) = (ult.id.get(), &*ult.pool().name);
            tracing::error!(id, pool, "a scheduler picked a unit of a pool that it does not serve");
            crate::spawn::enqueue(ult);
            return false;
        };
        ult.slot.set(u32::try_from(slot).expect("an xstream serves few pools"));
        ult.home.store(self.shared.cast_mut(), Relaxed);
        true
    }

    /// Queues a resumed ULT that is at home here.
    #[inline]
    pub(crate) fn queue_resumed(&self, ult: UltPtr) {
        bump(&self.shared().slots[ult.slot.get() as usize].resumed);
        self.requeue(ult, PushReason::Resume);
    }

    /// Queues a started ULT that is at home here.
    #[inline]
    pub(crate) fn requeue(&self, ult: UltPtr, why: PushReason) {
        let pool = ult.pool();
        match pool.object() {
            Some(object) if !pool.is_shared() => {
                ult.pushes.set(ult.pushes.get().saturating_add(1));
                object.push(Unit::from_ult(ult), why);
            }
            _ => self.list_back(ult, ult.slot.get() as usize),
        }
    }

    /// Appends to the unit list of a served pool.
    #[inline]
    pub(crate) fn list_back(&self, ult: UltPtr, slot: usize) {
        self.slots[slot].list.push_back(ult, &self.shared().slots[slot].len);
    }

    /// Ends the life of a ULT; its stack is quiet and its result has been published.
    fn finish(&self, ult: UltPtr) {
        let finished = &self.shared().slots[ult.slot.get() as usize].finished;
        // What the ULT did happens before a shutdown that sees the count.
        finished.store(finished.load(Relaxed) + 1, Release); // pair: POOL-ENDED
        ult.home.store(ptr::null_mut(), Relaxed);
        drop(UltRef::adopt(ult));
        if self.watched.get() {
            self.core.tell_news();
        }
    }

    /// Empties the inbox and looks at the phase.
    #[cold]
    pub(crate) fn read_mail(&self) {
        for node in self.shared().inbox.take_all() {
            // SAFETY:
            // - a live descriptor: ULTs that are sent have not finished.
            let ult = unsafe { UltPtr::new(node) };
            if self.is_home_of(ult) {
                self.queue_resumed(ult);
            } else {
                let pool = ult.pool();
                pool.in_flight.fetch_sub(1, Relaxed);
                // Only a pool that this xstream serves alone sends unstarted ULTs here.
                self.list_back(ult, pool.servers[0].slot);
            }
        }
        // pair: SIGNAL
        if self.shared().signalled.swap(false, AcqRel) {
            self.look_at_phase();
            self.on_signal();
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
        self.shared().seen.store(word, Release); // pair: PHASE-SEEN
        self.core.tell_news();
    }

    /// The ULTs that have started here and not finished.
    fn suspended(&self) -> Vec<StuckUlt> {
        let mut found = Vec::new();
        self.core.depot.for_each(|ult| {
            if self.is_home_of(ult) {
                found.push(StuckUlt {
                    id: ult.id.get(),
                    name: ult.name().map(str::to_owned),
                    pool: ult.pool().name.to_string(),
                    xstream: self.shared().name.to_string(),
                });
            }
        });
        found.sort_by_key(|ult| ult.id);
        found
    }
}
