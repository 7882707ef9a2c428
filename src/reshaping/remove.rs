//! Removing pools and xstreams, and the users that prevent it.

use std::collections::BTreeSet;

use ult::XstreamState;

use crate::InstanceLayout;
use crate::elastic::{Elastic, ElasticTable, LEAVING};
use crate::observe::monitor::LifeEvent;
use crate::support::log::log;
use crate::{ElasticityError, PoolKey, XstreamInfo, XstreamKey};

/// The xstream that stays.
const PRIMARY: &str = "__primary__";

impl ElasticTable {
    /// Returns the users of a pool, RPCs apart.
    fn pool_users(&self, index: usize) -> Vec<String> {
        let mut users = Vec::new();
        let here = |(_, pool): &(&usize, &usize)| **pool == index;
        let shards = self.progress.iter().filter(here);
        users.extend(shards.map(|(shard, _)| format!("the progress ULT of shard {shard}")));
        let retired = self.retired.iter().filter(here).map(|(shard, _)| shard);
        users.extend(retired.map(|shard| format!("what is left of shard {shard}")));
        if self.rpc == index {
            users.push("handlers without a pool of their own (`rpc_pool`)".to_owned());
        }
        if self.copies == Some(index) {
            users.push("large copies (`margo.bulk.copy_pool`)".to_owned());
        }
        if let Some(entry) = self.pools.get(&index) {
            users.extend(entry.holds.values().cloned());
        }
        users
    }

    /// Marks a pool as leaving, unless one of those uses it.
    fn pool_leaves(&mut self, index: usize) -> Vec<String> {
        let users = self.pool_users(index);
        if let Some(entry) = self.pools.get_mut(&index) {
            entry.leaving = users.is_empty();
        }
        users
    }

    /// Returns the holders of an xstream, and the caller that is removing it.
    fn xstream_holds(&self, index: usize) -> Vec<String> {
        let Some(entry) = self.xstreams.get(&index) else { return Vec::new() };
        let leaving = entry.leaving.then(|| LEAVING.to_owned());
        entry.holds.values().cloned().chain(leaving).collect()
    }

    /// Marks an xstream as leaving, unless one of those holds it.
    fn xstream_leaves(&mut self, index: usize) -> Vec<String> {
        let holds = self.xstream_holds(index);
        if let Some(entry) = self.xstreams.get_mut(&index).filter(|_| holds.is_empty()) {
            entry.leaving = true;
        }
        holds
    }
}

impl Elastic {
    /// Returns all users of a pool, xstreams apart. The caller keeps the layout still.
    fn users(&self, index: usize, outside: Vec<String>) -> Vec<String> {
        let mut users = self.table().pool_users(index);
        users.extend(outside);
        users
    }

    fn xstream_stays(&self, index: usize) {
        if let Some(entry) = self.table().xstreams.get_mut(&index) {
            entry.leaving = false;
        }
    }

    fn pool_stays(&self, index: usize) {
        if let Some(entry) = self.table().pools.get_mut(&index) {
            entry.leaving = false;
        }
    }
}

impl InstanceLayout<'_> {
    /// Returns the users of a pool, in words: progress, handlers, xstreams, RPCs, holds, timers
    /// that are armed to run there, and the same of children. A pool that has users cannot be
    /// removed.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`].
    ///
    /// Counterpart: `margo_pool_ref_count`, which counts.
    pub fn pool_users<'k>(
        &self,
        key: impl Into<PoolKey<'k>>,
    ) -> Result<Vec<String>, ElasticityError> {
        let info = self.find_pool(key)?;
        let mut users =
            self.instance.elastic().users(info.index, self.inner().users_of_pool(&info.pool));
        users.extend(info.pool.xstreams().iter().map(|name| format!("xstream `{name}`")));
        Ok(users)
    }

    /// Removes a pool that has no users and that is empty: units that are to start there at a later
    /// time ([`ult::PoolRef::spawn_after`]) count too, and are not waited for. An armed timer uses
    /// its pool. The index of the pool is not used again, for which a record of some 800 bytes
    /// stays, as for each xstream; its name may be used again. Callers that still have a handle of
    /// it get errors when spawning. If an xstream has run the pool, this waits until the xstream
    /// has let go of it, between two units, for at most 30 s (`Remove`).
    ///
    /// A pool that the program made itself is only forgotten.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::PoolInUse`], by whom; `PoolNotEmpty`, `NoSuchPool`, `Remove`, `Closing`.
    ///
    /// Counterpart: `margo_remove_pool`.
    pub fn remove_pool<'k>(&self, key: impl Into<PoolKey<'k>>) -> Result<(), ElasticityError> {
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        let _one_at_a_time = self.change_layout()?;
        let info = self.find_pool(key)?;
        let outside = inner.users_of_pool(&info.pool);
        let (external, by) = {
            let mut table = elastic.table();
            let known: BTreeSet<_> =
                table.xstreams.values().map(|entry| entry.xstream.name().to_owned()).collect();
            let external = table.pools[&info.index].about.external;
            let serving = info.pool.xstreams();
            // Others than ours may go on running a pool that is only forgotten.
            let serving = serving.iter().filter(|name| !external || known.contains(*name));
            let mut by = outside;
            by.extend(serving.map(|name| format!("xstream `{name}`")));
            let listed = if by.is_empty() {
                table.pool_leaves(info.index)
            } else {
                table.pool_users(info.index)
            };
            (external, listed.into_iter().chain(by).collect::<Vec<_>>())
        };
        let pool = info.name().to_owned();
        if !by.is_empty() {
            return Err(ElasticityError::PoolInUse { pool, by });
        }
        if !external && let Err(error) = inner.runtime.remove_pool(&info.pool) {
            elastic.pool_stays(info.index);
            return Err(match error {
                ult::LayoutError::NotEmpty { units, .. } => {
                    ElasticityError::PoolNotEmpty { pool, units }
                }
                other => other.into(),
            });
        }
        elastic.table().pools.remove(&info.index);
        inner.gates.pool_removed(&info.pool);
        inner.monitoring.tell(&LifeEvent::PoolRemoved(&info.pool));
        Ok(())
    }

    /// Removes an xstream: it runs what waits in pools that only it runs and the ULTs that have
    /// started on it, for at most 30 s, and its thread ends. Its index is not used again; its name
    /// may be.
    ///
    /// Units that are to start at a later time are not waited for, however soon that is. Where
    /// another xstream runs the pool too, it takes them over. Where none does, this is an error: a
    /// timer that is armed, periodic ones included, is one of the pool's users, to be disarmed
    /// before (`XstreamNeeded`); units of [`ult::PoolRef::spawn_after`] are counted by their pool
    /// (`Remove`).
    ///
    /// An xstream that the program made itself is only forgotten.
    ///
    /// # Errors
    ///
    /// - [`ElasticityError::Primary`]: `__primary__` stays.
    /// - [`ElasticityError::XstreamInUse`]: the xstream is held, or a progress ULT runs there; move
    ///   that with [`migrate_progress`](Self::migrate_progress) of its instance, which may be a
    ///   child.
    /// - [`ElasticityError::XstreamNeeded`]: it alone runs a pool that is in use.
    /// - [`ElasticityError::Remove`]: it did not come to an end, or units are left that are to
    ///   start later, and it goes on as before; or the caller runs on it.
    /// - [`ElasticityError::Description`]: the layout without it would be one that `init` refuses.
    /// - [`ElasticityError::NoSuchXstream`], [`ElasticityError::Closing`].
    ///
    /// Counterpart: `margo_remove_xstream`.
    pub fn remove_xstream<'k>(
        &self,
        key: impl Into<XstreamKey<'k>>,
    ) -> Result<(), ElasticityError> {
        let elastic = self.instance.elastic();
        let info = {
            let _one_at_a_time = self.change_layout()?;
            let info = self.find_xstream(key)?;
            let external = elastic.table().xstreams[&info.index].about.external;
            self.check_xstream_is_free(&info)?;
            elastic.check_without(self.checks(), &info)?;
            let by = elastic.table().xstream_leaves(info.index);
            if !by.is_empty() {
                let xstream = info.name().to_owned();
                return Err(ElasticityError::XstreamInUse { xstream, by });
            }
            if external {
                elastic.table().xstreams.remove(&info.index);
                self.inner().monitoring.tell(&LifeEvent::XstreamRemoved(&info.xstream));
                return Ok(());
            }
            info
        };
        // In its own time; others change other things meanwhile.
        let left = info.xstream.remove();
        let _one_at_a_time = elastic.hold_still();
        match left {
            Ok(()) => {
                elastic.table().xstreams.remove(&info.index);
                self.inner().monitoring.tell(&LifeEvent::XstreamRemoved(&info.xstream));
                self.warn_of_unserved_pools();
                Ok(())
            }
            Err(error) => {
                if info.xstream.state() == XstreamState::Terminated
                    && let Err(error) = info.xstream.revive()
                {
                    let (log, xstream) = (&self.inner().log, info.name());
                    log!(log, ERROR, %error, xstream, "cannot start it again");
                }
                elastic.xstream_stays(info.index);
                Err(error.into())
            }
        }
    }

    /// Warns of pools that have got users while their last xstream was leaving.
    fn warn_of_unserved_pools(&self) {
        for pool in self.pools().iter().filter(|pool| !self.instance.is_served(pool)) {
            let Ok(users) = self.pool_users(pool) else { continue };
            if !users.is_empty() {
                let (pool, by) = (pool.name(), users.join(", "));
                log!(self.inner().log, WARN, pool, by, "no xstream runs a pool that is in use");
            }
        }
    }

    fn check_xstream_is_free(&self, info: &XstreamInfo) -> Result<(), ElasticityError> {
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        let xstream = info.name().to_owned();
        if info.name() == PRIMARY {
            return Err(ElasticityError::Primary { xstream });
        }
        let mut by = elastic.table().xstream_holds(info.index);
        by.extend(inner.progress_on(&info.xstream));
        if !by.is_empty() {
            return Err(ElasticityError::XstreamInUse { xstream, by });
        }
        for pool in info.xstream.pools() {
            // A pool that the instance does not know is none of its business.
            let Ok(pool) = self.find_pool(&pool) else { continue };
            if self.instance.others_run(&pool.pool, info.name()) {
                continue;
            }
            let by = elastic.users(pool.index, inner.users_of_pool(&pool.pool));
            if !by.is_empty() {
                let pool = pool.name().to_owned();
                return Err(ElasticityError::XstreamNeeded { xstream, pool, by });
            }
        }
        Ok(())
    }

    /// Moves the units that wait in `from` and have not started to `to`, in their order. Returns
    /// how many; those in the private list of an xstream follow a little later and are not counted.
    /// ULTs that have started stay on their xstream.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`], [`ElasticityError::Transfer`].
    ///
    /// Counterpart: `margo_transfer_pool_content`.
    pub fn transfer_pool_content<'f, 't>(
        &self,
        from: impl Into<PoolKey<'f>>,
        to: impl Into<PoolKey<'t>>,
    ) -> Result<usize, ElasticityError> {
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        if ult::is_tasklet() {
            return Err(ElasticityError::Inline);
        }
        let _one_at_a_time = self.instance.elastic().hold_still();
        let (from, to) = (self.find_pool(from)?, self.find_pool(to)?);
        Ok(from.pool.move_all_to(&to.pool)?)
    }
}
