//! The pools and execution streams of an instance: finding, holding, and where units may be made.
//!
//! `elastic/mod.rs` has the list of them; `reshaping/` changes it.

use std::sync::{Arc, MutexGuard};

use ult::{PoolRef, XstreamRef, XstreamState};

use crate::InstanceLayout;
use crate::elastic::{Elastic, ElasticTable, LEAVING, may_spawn};
use crate::instance::inner::Inner;
use crate::{
    ElasticityError, Instance, PoolHold, PoolInfo, PoolKey, XstreamHold, XstreamInfo, XstreamKey,
};

impl Inner {
    /// All pools; in a child process that was forked off, as the others: those of the start.
    pub(crate) fn pools(&self) -> Vec<PoolRef> {
        if self.is_forked() { self.pools.clone() } else { self.elastic.pools() }
    }

    pub(crate) fn rpc_pool(&self) -> PoolRef {
        match self.is_forked() {
            true => self.pools[self.resolved.rpc_pool].clone(),
            false => self.elastic.rpc_pool(),
        }
    }

    pub(crate) fn progress_pool(&self) -> PoolRef {
        match self.is_forked() {
            true => self.pools[self.resolved.progress_pool].clone(),
            false => self.elastic.progress_pool(),
        }
    }

    /// The pools into which the caller may spawn, a private one only from its own execution stream:
    /// those of `first`, then all. Each is looked up when it has its turn.
    pub(crate) fn pools_for_units<const N: usize>(
        &self,
        first: [fn(&Self) -> PoolRef; N],
    ) -> impl Iterator<Item = PoolRef> {
        let first = first.into_iter().map(|pool| pool(self));
        let all = std::iter::once_with(|| self.pools()).flatten();
        first.chain(all).filter(may_spawn)
    }
}

impl Instance {
    pub(crate) fn elastic(&self) -> &Arc<Elastic> {
        &self.inner().elastic
    }

    /// The list with the xstreams. A child's xstreams are its parent's, which alone removes any.
    /// Their indices are the same. Before its lock, as in [`list`](Self::list).
    pub(crate) fn xstream_list(&self) -> Result<Arc<Elastic>, ElasticityError> {
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        match self.inner().tree.parent() {
            Some(parent) => parent.xstream_list(),
            None => Ok(self.elastic().clone()),
        }
    }

    /// The list, if it can be looked at: before its lock, which may be held for ever in a child
    /// process.
    pub(crate) fn list(&self) -> Result<MutexGuard<'_, ElasticTable>, ElasticityError> {
        if self.inner().is_forked() {
            return Err(ElasticityError::Forked);
        }
        Ok(self.elastic().table())
    }

    /// Returns whether an xstream that runs, and stays, runs the pool, other than this one.
    pub(crate) fn others_run(&self, pool: &PoolRef, this: &str) -> bool {
        let leaving: Vec<_> = {
            // Nobody runs anything in a child process that was forked off.
            let Ok(list) = self.xstream_list() else { return false };
            let table = list.table();
            let leaving = table.xstreams.values().filter(|entry| entry.leaving);
            leaving.map(|entry| entry.xstream.clone()).collect()
        };
        // One that was joined still has its pools, for when it is revived.
        let runs = |name: &String| {
            let xstream = self.inner().runtime.xstream(name);
            xstream.is_some_and(|xstream| {
                matches!(xstream.state(), XstreamState::Running | XstreamState::Idle)
                    && !leaving.contains(&xstream)
            })
        };
        pool.xstreams().iter().any(|name| name != this && runs(name))
    }

    /// Returns whether an xstream runs the pool, and stays.
    pub(crate) fn is_served(&self, pool: &PoolRef) -> bool {
        self.others_run(pool, "")
    }
}

impl InstanceLayout<'_> {
    /// All pools, in the order of their indices. In a child process that was forked off: those that
    /// there were at the start.
    ///
    /// Counterpart: `margo_get_num_pools`.
    pub fn pools(&self) -> Vec<PoolRef> {
        self.inner().pools()
    }

    /// All xstreams, in the order of their indices; of a child those of its parent. In a child
    /// process that was forked off, which has none of them: none.
    ///
    /// Counterpart: `margo_get_num_xstreams`.
    pub fn xstreams(&self) -> Vec<XstreamRef> {
        let Ok(list) = self.instance.xstream_list() else { return Vec::new() };
        let table = list.table();
        table.xstreams.values().map(|entry| entry.xstream.clone()).collect()
    }

    /// The pool of that name. See [`find_pool`](Self::find_pool) for other ways to name one.
    pub fn pool(&self, name: &str) -> Option<PoolRef> {
        self.find_pool(name).ok().map(|info| info.pool)
    }

    /// Finds a pool by name, index or handle.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`], with the pools that there are;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_find_pool_by_name`, `_by_index`, `_by_handle`.
    pub fn find_pool<'k>(&self, key: impl Into<PoolKey<'k>>) -> Result<PoolInfo, ElasticityError> {
        let table = self.instance.list()?;
        let index = table.find_pool(key.into())?;
        Ok(PoolInfo { index, pool: table.pools[&index].pool.clone() })
    }

    /// Finds an xstream by name, index or handle.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchXstream`], with the xstreams that there are;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_find_xstream_by_name`, `_by_index`, `_by_handle`.
    pub fn find_xstream<'k>(
        &self,
        key: impl Into<XstreamKey<'k>>,
    ) -> Result<XstreamInfo, ElasticityError> {
        let list = self.instance.xstream_list()?;
        let table = list.table();
        let index = table.find_xstream(key.into())?;
        Ok(XstreamInfo { index, xstream: table.xstreams[&index].xstream.clone() })
    }

    /// Returns the pool of handlers that were registered without one. Counterpart:
    /// `margo_get_handler_pool`.
    pub fn rpc_pool(&self) -> PoolRef {
        self.inner().rpc_pool()
    }

    /// Returns the pool of shard 0's progress ULT. Counterpart: `margo_get_progress_pool`.
    pub fn progress_pool(&self) -> PoolRef {
        self.inner().progress_pool()
    }

    /// Returns the pools of the progress ULTs: of shard 0, shard 1 and so on, those apart that were
    /// removed.
    pub fn progress_pools(&self) -> impl Iterator<Item = PoolRef> + use<> {
        let inner = self.inner();
        let pools = match inner.is_forked() {
            false => self.instance.elastic().progress_pools(),
            true => inner.resolved.progress_pools().map(|at| inner.pools[at].clone()).collect(),
        };
        pools.into_iter()
    }

    /// Keeps a pool from being removed for as long as the value lives. `by` is what an error says
    /// that would remove it.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchPool`]; [`ElasticityError::PoolInUse`] if it is being removed;
    /// [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_pool_ref_incr`; dropping the value is `margo_pool_release`.
    pub fn hold_pool<'k>(
        &self,
        key: impl Into<PoolKey<'k>>,
        by: impl Into<String>,
    ) -> Result<PoolHold, ElasticityError> {
        let mut table = self.instance.list()?;
        let index = table.find_pool(key.into())?;
        let id = table.next_hold;
        table.next_hold += 1;
        let info = table.pool_info(index);
        let (Some(info), Some(entry)) = (info, table.pools.get_mut(&index)) else {
            return Err(ElasticityError::Closing);
        };
        if entry.leaving {
            return Err(ElasticityError::PoolInUse {
                pool: info.name().to_owned(),
                by: vec![LEAVING.to_owned()],
            });
        }
        entry.holds.insert(id, by.into());
        drop(table);
        Ok(PoolHold { info, id, elastic: self.instance.elastic().clone() })
    }

    /// Keeps an xstream from being removed for as long as the value lives, also one of the parent.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::NoSuchXstream`]; [`ElasticityError::XstreamInUse`] if it is being
    /// removed; [`ElasticityError::Forked`].
    ///
    /// Counterpart: `margo_xstream_ref_incr`; dropping the value is `margo_xstream_release`.
    pub fn hold_xstream<'k>(
        &self,
        key: impl Into<XstreamKey<'k>>,
        by: impl Into<String>,
    ) -> Result<XstreamHold, ElasticityError> {
        let list = self.instance.xstream_list()?;
        let mut table = list.table();
        let index = table.find_xstream(key.into())?;
        let id = table.next_hold;
        table.next_hold += 1;
        let info = table.xstream_info(index);
        let (Some(info), Some(entry)) = (info, table.xstreams.get_mut(&index)) else {
            return Err(ElasticityError::Closing);
        };
        if entry.leaving {
            return Err(ElasticityError::XstreamInUse {
                xstream: info.name().to_owned(),
                by: vec![LEAVING.to_owned()],
            });
        }
        entry.holds.insert(id, by.into());
        drop(table);
        Ok(XstreamHold { info, id, elastic: list })
    }
}
