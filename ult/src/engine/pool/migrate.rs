//! Moving units to other pools.
//!
//! A request is a bit in the descriptor and a pool in a table of the runtime; the latest request
//! wins. It is settled where the unit passes on its way to run (unstarted units) or back into a
//! queue (started ULTs), by the xstream that holds it then. A started ULT stays on its xstream, so
//! only a move to a pool that this xstream serves is settled; unless it is migratable.

use std::ptr;

use crate::engine::contain::contained;
use crate::engine::error::MigrateError;
use crate::engine::model::pool::PoolShared;
use crate::engine::model::unit::{CANCEL, MIGRATE, TIMED, Ult, UltPtr};
use crate::engine::pool::handle::PoolRef;
use crate::engine::pool::spec::PushReason;
use crate::engine::waiting::cancel::Why;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::{Relaxed, Release};
use crate::sync::{Arc, lock};

/// Asks `ult`, which the caller keeps alive, to go to `pool`.
pub(crate) fn request(ult: UltPtr, pool: &PoolRef) -> Result<(), MigrateError> {
    check(ult, pool)?;
    lock(&ult.core.migrations).insert(key(ult), pool.pool.clone());
    ult.request(MIGRATE);
    Ok(())
}

fn check(ult: UltPtr, pool: &PoolRef) -> Result<(), MigrateError> {
    let name = || pool.name().to_owned();
    if !Arc::ptr_eq(&ult.core, &pool.core) {
        return Err(MigrateError::OtherRuntime { pool: name() });
    }
    if pool.pool.removed.load(Relaxed) {
        return Err(MigrateError::Removed { pool: name() });
    }
    Ok(())
}

fn key(ult: UltPtr) -> usize {
    ult.as_non_null().as_ptr().addr()
}

/// Takes the pool that `ult` asked to move to, if it is another one.
fn take_target(ult: UltPtr) -> Option<Arc<PoolShared>> {
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

/// Forgets a request that a unit did not live to see. The caller is the unit, or holds it.
#[cold]
pub(crate) fn forget(ult: &Ult) {
    if ult.take_request(MIGRATE) {
        lock(&ult.core.migrations).remove(&ptr::from_ref(ult).addr());
    }
}

/// Returns whether `ult`, which has started and is to move, has been counted as ended, and only
/// drops an outcome that nobody wants any more: another pool's books would count it for ever.
pub(crate) fn has_ended(ult: UltPtr) -> bool {
    ult.join.is_done()
}

/// Carries out the requests of a unit that is about to start. `false`: it does not start here and
/// now.
#[cold]
pub(crate) fn settle_unstarted(ult: UltPtr) -> bool {
    if ult.take_request(TIMED) && !crate::engine::run::timed::settle(ult) {
        return false;
    }
    if ult.is_requested(CANCEL) {
        forget(&ult);
        crate::engine::xstream::switch::lose(ult, Why::Cancelled);
        return false;
    }
    let Some(target) = take_target(ult) else { return true };
    adopt(ult, &target);
    crate::engine::pool::push::enqueue(ult, PushReason::Migrate);
    false
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
    crate::engine::pool::push::tell_loss(source);
    crate::engine::xstream::diag::tell(ult, crate::trace::event::EventKind::Migrate);
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

/// Makes `pool` the pool of the calling ULT: it goes there when it yields or is resumed.
///
/// The ULT stays on its xstream if that serves the pool. A migratable ULT
/// ([`UltBuilder::spawn_migratable`](crate::UltBuilder::spawn_migratable)) goes on, after its next
/// yield or wait without a deadline, wherever the pool is served.
///
/// # Errors
///
/// [`MigrateError`] if the caller is no ULT, if the pool belongs to another runtime or has been
/// removed, or if it is not served by the caller's xstream and the ULT is not migratable; or if the
/// ULT has ended, and this is the destructor of an outcome whose handle went away meanwhile.
///
/// Counterpart: `ABT_self_set_associated_pool`.
pub fn set_pool(pool: &PoolRef) -> Result<(), MigrateError> {
    let name = || pool.name().to_owned();
    let caller = current::xstream_and_ult();
    let Some((xstream, me)) = caller else {
        return Err(MigrateError::NotUlt { pool: name() });
    };
    check(me, pool)?;
    if ptr::eq(me.pool(), &*pool.pool) {
        return Ok(());
    }
    if has_ended(me) {
        return Err(MigrateError::Ended { pool: name() });
    }
    let serves = xstream.slot_of(&pool.pool).is_some_and(|slot| slot.served.get());
    if !serves && !me.may_move() {
        let xstream = xstream.shared().name.to_string();
        return Err(MigrateError::NotServed { pool: name(), xstream });
    }
    if !enter(&pool.pool) {
        return Err(MigrateError::Removed { pool: name() });
    }
    move_at_home(xstream, me, &pool.pool);
    Ok(())
}
