//! Requests to move a unit to another pool. They are settled by the xstream that holds the unit;
//! see [`change_pool`](crate::engine::xstream::change_pool).

use std::ptr;

use crate::engine::error::MigrateError;
use crate::engine::model::unit::{MIGRATE, UltPtr};
use crate::engine::pool::handle::PoolRef;
use crate::engine::xstream::change_pool::{enter, has_ended, key, move_at_home};
use crate::engine::xstream::current;
use crate::sync::atomic::Ordering::Relaxed;
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
