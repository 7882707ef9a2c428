//! The ways of units into queues.
//!
//! A unit that has not started goes to its pool ([`push`]): to the list of the calling xstream if
//! that owns the pool, to the inbox of the owner, or into the pool's queue, as does one that may be
//! stolen ([`push_open`]). A ULT that has started goes home ([`resume`]). On the way stacked
//! schedulers are told, which end when their pools have no units.

use std::ptr;

use crate::engine::model::interfaces::{PushReason, Unit};
use crate::engine::model::pool::{PoolShared, PoolSlot, Queue, bump};
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::unit::{UltPtr, UnitKind};
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::xstream::change_pool;
use crate::engine::xstream::change_pool::tell_stacks;
use crate::engine::xstream::current;
use crate::engine::xstream::diag;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};
use crate::trace::event::EventKind;

/// Queues a unit that belongs to no xstream, and whose queue membership the caller has.
pub(crate) fn enqueue(ult: UltPtr, why: PushReason) {
    let here = current::xstream_in(&ult.core);
    // An xstream is waited for before the queue of a pool goes; others hold the pool, since the
    // unit may have ended, and the pool have been removed, before this returns.
    let _held = here.is_none().then(|| ult.core.pool_arc(ult.pool()));
    push(ult, ult.pool(), here, why);
}

#[inline]
pub(crate) fn push(ult: UltPtr, pool: &PoolShared, here: Option<&Xstream>, why: PushReason) {
    match here.and_then(|xstream| Some((xstream, xstream.own_slot(pool)?))) {
        Some((xstream, slot)) => xstream.push_own(ult, slot),
        None => push_foreign(ult, pool, here, why),
    }
}

/// Queues a unit where the caller has no private end.
#[inline(never)]
fn push_foreign(ult: UltPtr, pool: &PoolShared, here: Option<&Xstream>, why: PushReason) {
    // An xstream of the runtime keeps the shared part alive; other threads hold a `PoolRef`, or
    // are here for a unit that a pool of another runtime had swallowed.
    let _held = here.is_none().then(|| Arc::clone(&ult.core));
    // SAFETY:
    // - valid: xstreams live as long as the shared part.
    let owner = unsafe { pool.owner.load(Acquire).as_ref() }; // pair: POOL-OWNER
    if let Some(owner) = owner {
        pool.foreign.0.sent.fetch_add(1, Release); // pair: POOL-LEN
        if owner.send(ult).is_ok() {
            return;
        }
        // It has left meanwhile.
        pool.foreign.0.sent.fetch_sub(1, Relaxed);
    }
    push_open(ult, pool, here, why);
}

/// Queues an unstarted unit where whoever looks finds it, also beside an owner.
#[inline]
pub(crate) fn push_open(ult: UltPtr, pool: &PoolShared, here: Option<&Xstream>, why: PushReason) {
    // As in `push_foreign`: the unit may have ended before this returns.
    let held = here.is_none().then(|| Arc::clone(&ult.core));
    let core = match (&held, here) {
        (Some(core), _) => core,
        (None, Some(xstream)) => &xstream.core,
        (None, None) => return,
    };
    pool.queue().push(ult, why);
    wake_another(core, pool, here);
}

/// Queues a unit that was to run next.
pub(crate) fn requeue(xstream: &Xstream, ult: UltPtr) {
    if ult.home.load(Relaxed).is_null() {
        enqueue(ult, PushReason::Yield);
    } else if xstream.is_home_of(ult) {
        xstream.requeue(ult, PushReason::Yield);
    } else {
        push_again(ult, false);
    }
}

/// A unit has ended on the calling xstream, whose slot this is. Tells stacked schedulers, which end
/// when their pools have no units.
#[inline]
pub(crate) fn tell_end(slot: &PoolSlot) {
    if slot.pool.stacks.load(Relaxed) > 0 {
        tell_end_slow(slot);
    }
}

#[cold]
fn tell_end_slow(slot: &PoolSlot) {
    slot.wake_sleepers();
    // As a rule there is one, and it is here.
    if slot.pool.stacks.load(Relaxed) > slot.stacked() {
        tell_stacks(&slot.pool);
    }
}

/// As [`wake_one`](RuntimeCore::wake_one), unless `here`, the xstream of the caller, is the only
/// one that serves `pool`.
fn wake_another(core: &RuntimeCore, pool: &PoolShared, here: Option<&Xstream>) {
    // One fence for this look as well: another xstream may just have become the only server.
    fence(SeqCst); // pair: PARK-DEKKER, SOLE-DEKKER
    let is_sole = here.is_some_and(|xstream| xstream.serves_alone(pool));
    if !is_sole && core.sleeping.load(Relaxed) > 0 {
        core.wake_one_slow(pool);
    }
}

/// Resumes a ULT whose condition has been fulfilled; it looks for itself. May be called early,
/// late and more than once.
///
/// The caller keeps the ULT's descriptor alive, or runs on its home xstream.
#[inline]
pub(crate) fn resume(ult: UltPtr) {
    if ult.state.cell.resume() {
        diag::tell(ult, EventKind::Resume);
        push_resumed(ult);
    }
}

/// Queues a ULT that the caller has claimed
/// ([`SuspendCell::claim`](crate::base::suspend::SuspendCell)).
#[inline]
pub(crate) fn push_claimed(ult: UltPtr) {
    diag::tell(ult, EventKind::Resume);
    // Once it is queued it may end, and its runtime with it, while its home is still being woken.
    // A thread of that runtime keeps it; others hold it meanwhile.
    let is_ours = current::xstream_in(&ult.core).is_some();
    let held = (!is_ours).then(|| Arc::clone(&ult.core));
    push_resumed(ult);
    drop(held);
}

/// Queues a resumed ULT at its home xstream. The caller has the right to queue it, and keeps the
/// shared part of its runtime alive, by its descriptor or as an xstream of that runtime.
fn push_resumed(ult: UltPtr) {
    if let Some(xstream) = home_here(ult) {
        return xstream.queue_resumed(ult);
    }
    let Some(home) = home_elsewhere(ult) else {
        return enqueue(ult, PushReason::Migrate);
    };
    let sent = home.send(ult);
    debug_assert!(sent.is_ok(), "an xstream that is home to a ULT does not leave");
}

/// Where a started ULT is at home, if it is anywhere. The caller keeps the shared part of its
/// runtime alive.
fn home_elsewhere<'a>(ult: UltPtr) -> Option<&'a XstreamShared> {
    let home = ult.home.load(Relaxed);
    // SAFETY:
    // - valid: set when the ULT settled there, and xstreams live as long as the runtime's shared
    //   part (duty of the caller).
    (home != XstreamShared::nowhere()).then(|| unsafe { &*home })
}

/// Queues a started ULT that somebody took out of its queue and did not run. It had not been
/// suspended, so this is no resume, and does not count as one. For the caller: as [`push_resumed`].
///
/// With `bypass` it goes to the xstream's own list even if its pool is an object, because that
/// object has just dropped it, and would perhaps do so again.
pub(crate) fn push_again(ult: UltPtr, bypass: bool) {
    match home_here(ult) {
        Some(xstream) if bypass => xstream.home_slot(ult).push_back(ult),
        Some(xstream) => xstream.requeue(ult, PushReason::Resume),
        None if bypass && ult.home.load(Relaxed) == XstreamShared::nowhere() => send_anywhere(ult),
        None => send_again(ult),
    }
}

/// Gives a migratable ULT, which is at home nowhere, to an xstream that serves its pool.
#[cold]
fn send_anywhere(ult: UltPtr) {
    if let Some(xstream) = current::xstream_in(&ult.core)
        && xstream.slot_of(ult.pool()).is_some_and(|slot| slot.served.get())
    {
        return xstream.take_in(ult);
    }
    let servers = lock(&ult.pool().servers).clone();
    let mut xstreams = servers.into_iter().chain(ult.core.xstreams());
    let running = xstreams.clone().find(|xstream| xstream.state() == State::Running);
    // One that has left comes to it when it is revived, or passes it on when it is removed.
    let Some(xstream) = running.or_else(|| xstreams.next()) else {
        return enqueue(ult, PushReason::Migrate);
    };
    let unit = Unit::from_ult(ult);
    xstream.ask(move |xstream| xstream.take_in(unit.into_ult()));
}

/// Sends a ULT home past the inbox, whose ULTs count as resumed.
#[cold]
fn send_again(ult: UltPtr) {
    let Some(home) = home_elsewhere(ult) else {
        return enqueue(ult, PushReason::Migrate);
    };
    let unit = Unit::from_ult(ult);
    home.ask(move |xstream| xstream.requeue(unit.into_ult(), PushReason::Resume));
}

/// Returns whether the calling thread runs `ult`'s home.
#[inline]
pub(crate) fn home_here<'a>(ult: UltPtr) -> Option<&'a Xstream> {
    current::xstream().filter(|xstream| xstream.is_home_of(ult))
}

impl Xstream {
    /// Makes this xstream the home of a ULT that has started, and is at home nowhere.
    pub(crate) fn move_in(&self, ult: UltPtr) -> &PoolSlot {
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
    pub(crate) fn settle(&self, ult: UltPtr, slot: &PoolSlot) {
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
    pub(crate) fn is_plain(&self, ult: UltPtr) -> bool {
        ult.kind() != UnitKind::Migratable
            && !ult.has_requests()
            && !ult.pool().orders_started(self.me())
    }

    #[cold]
    fn requeue_slow(&self, ult: UltPtr, why: PushReason) {
        let moved = change_pool::settle_started(self, ult);
        let why = if moved { PushReason::Migrate } else { why };
        let pool = ult.pool();
        if !ptr::eq(&*self.home_slot(ult).pool, pool) {
            // It was moved while it stood in a queue.
            ult.slot.set(self.slot_for(pool));
        }
        if ult.may_move() && !self.serves_alone(pool) {
            self.let_go(ult);
            enqueue(ult, why);
            return;
        }
        match pool.queue() {
            Queue::Object(object) if pool.orders_started(self.me()) => {
                ult.count_push();
                object.push(Unit::from_ult(ult), why);
                wake_another(&self.core, pool, Some(self));
            }
            _ => self.home_slot(ult).push_back(ult),
        }
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
}

impl PoolSlot {
    /// Appends to the list.
    #[inline]
    pub(crate) fn push_back(&self, ult: UltPtr) {
        self.list.push_back(ult, &self.shared.len);
        if self.has_sleepers.get() {
            self.wake_sleepers();
        }
    }

    /// Wakes the stacked schedulers over this slot. `false`: none sleeps.
    #[cold]
    pub(crate) fn wake_sleepers(&self) -> bool {
        self.has_sleepers.set(false);
        let sleepers = std::mem::take(&mut *self.sleepers.borrow_mut());
        // They are at home here, and have not ended.
        sleepers.iter().for_each(|sleeper| resume(*sleeper));
        !sleepers.is_empty()
    }
}
