//! Moving units to other pools.
//!
//! A request is a bit in the descriptor and a pool in a table of the runtime; the latest request
//! wins. It is settled where the unit passes on its way to run (unstarted units) or back into a
//! queue (started ULTs), by the xstream that holds it then. A started ULT stays on its xstream, so
//! only a move to a pool that this xstream serves is settled; unless it is migratable.

use std::ptr;

use crate::engine::contain::contained;
use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::{MIGRATE, UltPtr};
use crate::engine::xstream::diag;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::atomic::fence;
use crate::sync::{Arc, lock};
use crate::trace::event::EventKind;

pub(crate) fn key(ult: UltPtr) -> usize {
    ult.as_non_null().as_ptr().addr()
}

/// Takes the pool that `ult` asked to move to, if it is another one.
pub(crate) fn take_target(ult: UltPtr) -> Option<Arc<PoolShared>> {
    if !ult.take_request(MIGRATE) {
        return None;
    }
    let target = lock(&ult.core.migrations).remove(&key(ult))?;
    (!ptr::eq(&*target, ult.pool()) && enter(&target)).then_some(target)
}

/// Counts a unit in the books of the pool that it goes to, unless that has been removed: nobody
/// would find it there.
pub(crate) fn enter(target: &PoolShared) -> bool {
    target.moved.fetch_add(1, Relaxed);
    if target.outlives_removal() {
        return true;
    }
    target.moved.fetch_sub(1, Relaxed);
    false
}

/// Returns whether `ult`, which has started and is to move, has been counted as ended, and only
/// drops an outcome that nobody wants any more: another pool's books would count it for ever.
pub(crate) fn has_ended(ult: UltPtr) -> bool {
    ult.join.is_done()
}

/// Carries out the request of a ULT that is at home on `xstream` and about to be queued. Returns
/// whether it has moved.
#[cold]
pub(crate) fn settle_started(xstream: &Xstream, ult: UltPtr) -> bool {
    if !ult.is_requested(MIGRATE) {
        return false;
    }
    let target = lock(&ult.core.migrations).get(&key(ult)).cloned();
    let Some(target) = target else { return false };
    let serves = xstream.slot_of(&target).is_some_and(|slot| slot.served.get());
    if !serves && !ult.may_move() {
        return false;
    }
    let Some(target) = take_target(ult) else { return false };
    move_at_home(xstream, ult, &target);
    true
}

/// Gives a ULT that is at home on `xstream` another pool, and a slot there.
pub(crate) fn move_at_home(xstream: &Xstream, ult: UltPtr, target: &PoolShared) {
    adopt(ult, target);
    let slot = xstream.slot_for(target);
    ult.slot.set(slot);
}

/// Changes the pool of a unit that the caller holds and that has [entered](enter) `target`, and
/// tells its callback.
pub(crate) fn adopt(ult: UltPtr, target: &PoolShared) {
    // The unit ends in the target's books.
    let source = ult.pool();
    source.moved.fetch_sub(1, Release); // pair: POOL-MOVED
    ult.set_pool(target);
    tell_loss(source);
    diag::tell(ult, EventKind::Migrate);
    if ult.has_extra() {
        // The callback is out of its place while it runs, so that it may do what it likes.
        let callback = ult.with_extra(|extra| extra.on_migrate.take());
        if let Some(mut callback) = callback {
            // The unit is in no queue now: to unwind from here would lose it.
            contained(Some(ult), "the callback of a migration", || callback(&target.name));
            ult.with_extra(|extra| extra.on_migrate = Some(callback));
        }
    }
}

/// A unit of `pool` went elsewhere, or never ran. As
/// [`tell_end`](crate::engine::xstream::push::tell_end), from anywhere.
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
