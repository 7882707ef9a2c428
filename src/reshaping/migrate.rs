//! Moving a progress ULT to another pool.
//!
//! A started ULT stays on its execution stream, so the ULT itself does not move. The running one
//! makes its successor in the other pool, polls on until that one runs, and ends
//! (`polling/driver.rs`). Nothing is lost in between:
//! messages that arrive wait in the network until the successor polls.

use std::sync::Arc;

use margo_config::Shards;
use ult::{Eventual, PoolRef};

use crate::InstanceLayout;
use crate::dispatch::admit;
use crate::dispatch::registered_rpc::RegisteredRpc;
use crate::progress::control::MoveError;
use crate::support::own_rpcs;
use crate::{ElasticityError, PoolInfo, PoolKey, Rpc};

impl InstanceLayout<'_> {
    /// Moves the progress ULT of shard 0 to another pool, while calls and handlers run. Returns
    /// when it runs there; until the xstream of that pool has time for it, there is progress in the
    /// old one.
    ///
    /// # Errors
    ///
    /// [`ElasticityError::Unserved`] when no xstream runs the pool (one that was joined does not),
    /// `PrivatePool`, `NoSuchPool`, `OwnProgress`, `Closing`; `PoolInUse` when the progress ULT of
    /// another shard is there; `Description` when the layout would be one that `init` refuses;
    /// `NoStack` when the system has no memory for its stack there. Progress goes on where it was
    /// then.
    ///
    /// Counterpart: `margo_migrate_progress_loop`.
    pub fn migrate_progress<'k>(&self, to: impl Into<PoolKey<'k>>) -> Result<(), ElasticityError> {
        self.migrate_progress_of(0, to)
    }

    /// As [`migrate_progress`](Self::migrate_progress), of any shard.
    ///
    /// # Errors
    ///
    /// As there, and [`ElasticityError::NoSuchShard`].
    pub fn migrate_progress_of<'k>(
        &self,
        shard: usize,
        to: impl Into<PoolKey<'k>>,
    ) -> Result<(), ElasticityError> {
        let _one_at_a_time = self.change()?;
        let old = self.progress_of(shard)?;
        let info = self.find_pool(to)?;
        if old == info.index {
            return Ok(());
        }
        self.check_move(shard, old, &info)?;
        self.move_progress(shard, &info)?;
        if shard == 0 {
            self.own_rpcs_follow(&info.pool);
        }
        self.move_retired(old, &info)
    }

    /// Returns the index of the pool of a shard's progress ULT.
    pub(super) fn progress_of(&self, shard: usize) -> Result<usize, ElasticityError> {
        let table = self.instance.list()?;
        let count = table.progress.len();
        let there = table.progress.get(&shard).copied();
        there.ok_or(ElasticityError::NoSuchShard { shard, count })
    }

    /// Moves what is left of removed shards from a pool.
    pub(super) fn move_retired(&self, old: usize, to: &PoolInfo) -> Result<(), ElasticityError> {
        let retired = self.instance.elastic().table().retired.clone();
        let here = retired.iter().filter(|(_, pool)| **pool == old);
        here.map(|(shard, _)| *shard).try_for_each(|shard| self.move_progress(shard, to))
    }

    /// Moves the progress ULT of a shard, removed or not.
    fn move_progress(&self, shard: usize, info: &PoolInfo) -> Result<(), ElasticityError> {
        let inner = self.inner();
        let Some(progress) = inner.shards.get(shard as u8).progress.get() else {
            return Err(ElasticityError::Closing);
        };
        if inner.runtime.is_current() && progress.is_caller() {
            return Err(ElasticityError::OwnProgress);
        }
        let arrived = Arc::new(Eventual::new());
        progress.ask_to_move(info.pool.clone(), arrived.clone());
        match arrived.wait() {
            Ok(()) => Ok(()),
            Err(MoveError::Closing) => Err(ElasticityError::Closing),
            Err(MoveError::Spawn(error)) => Err(error.clone().into()),
            Err(MoveError::NoStack) => {
                let bytes = info.pool.stack_bytes();
                Err(ElasticityError::NoStack { pool: info.name().to_owned(), bytes })
            }
        }
    }

    /// Progress has moved: the pool that it left may be removed.
    fn own_rpcs_follow(&self, pool: &PoolRef) {
        for (name, provider) in own_rpcs::all() {
            // Not served by an instance that does not listen.
            let rpc = Rpc::<(), ()>::new(name);
            let _ = self.instance.move_handlers(rpc, provider, pool, &mut Vec::new());
        }
    }

    fn check_move(&self, shard: usize, old: usize, to: &PoolInfo) -> Result<(), ElasticityError> {
        self.check_progress_pool(to, "move to it")?;
        let same_xstreams =
            self.find_pool(old).is_ok_and(|old| old.pool.xstreams() == to.pool.xstreams());
        if let Some(pool) = self.private_handler_pool().filter(|_| !same_xstreams) {
            let (pool, what) = (pool.name().to_owned(), "move to another xstream than its own");
            return Err(ElasticityError::PrivatePool { pool, what });
        }
        self.instance.elastic().checked(self.checks(), "", |document| {
            let place = self.instance.elastic().table().progress.range(..shard).count();
            if let Some(Shards::Pools(pools)) = &mut document.margo.shards {
                pools[place] = to.name().into();
            }
            if shard == 0 {
                document.progress_pool = Some(to.name().into());
            }
        })?;
        Ok(())
    }

    /// Refuses a pool that cannot have a progress ULT, or has that of another shard. `what` it
    /// cannot do if the pool is private.
    pub(super) fn check_progress_pool(
        &self,
        to: &PoolInfo,
        what: &'static str,
    ) -> Result<(), ElasticityError> {
        let pool = to.name().to_owned();
        let others = self.instance.elastic().table().progress.clone();
        if let Some((other, _)) = others.iter().find(|(_, index)| **index == to.index) {
            let by = vec![format!("the progress ULT of shard {other}")];
            return Err(ElasticityError::PoolInUse { pool, by });
        }
        if !self.instance.is_served(&to.pool) {
            return Err(ElasticityError::Unserved { pool });
        }
        if to.pool.access() == ult::Access::Private {
            return Err(ElasticityError::PrivatePool { pool, what });
        }
        Ok(())
    }

    /// Returns a private pool in which handlers run: only its xstream makes them.
    pub(super) fn private_handler_pool(&self) -> Option<PoolRef> {
        let mut found = None;
        for registration in self.inner().core.registrations() {
            let private = |entry: &&RegisteredRpc| entry.pool.access() == ult::Access::Private;
            let of = registration.data_as::<RegisteredRpc>().filter(private);
            found = found.or_else(|| of.map(|entry| entry.pool.clone()));
            admit::let_go(self.inner(), registration);
        }
        found
    }
}
