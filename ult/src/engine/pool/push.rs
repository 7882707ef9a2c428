//! Pushes of units that belong to no xstream into their pools, and the notice to stacked schedulers
//! when a unit leaves its pool.

use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::UltPtr;
use crate::engine::pool::slot::PoolSlot;
use crate::engine::pool::spec::PushReason;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::switch::push_again;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};

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
    let held = here.is_none().then(|| Arc::clone(&ult.core));
    let core = match (&held, here) {
        (Some(core), _) => core,
        (None, Some(xstream)) => &xstream.core,
        (None, None) => return,
    };
    // SAFETY:
    // - valid: xstreams live as long as `core`.
    let owner = unsafe { pool.owner.load(Acquire).as_ref() }; // pair: POOL-OWNER
    if let Some(owner) = owner {
        pool.in_flight.fetch_add(1, Release); // pair: POOL-LEN
        if owner.send(ult).is_ok() {
            return;
        }
        // It has left meanwhile.
        pool.in_flight.fetch_sub(1, Relaxed);
    }
    pool.queue().push(ult, why);
    core.wake_another(pool, here);
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

/// A unit of `pool` went elsewhere, or never ran. As [`tell_end`], from anywhere.
pub(crate) fn tell_loss(pool: &PoolShared) {
    fence(SeqCst); // pair: STACK-DEKKER
    if pool.stacks.load(Relaxed) > 0 {
        tell_stacks(pool);
    }
}

/// Units end often, so this is not a request each time.
#[cold]
pub(crate) fn tell_stacks(pool: &PoolShared) {
    lock(&pool.servers).iter().for_each(|server| server.wake_stacks());
}
