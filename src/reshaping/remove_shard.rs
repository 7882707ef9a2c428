//! Removing a shard from an instance that runs.
//!
//! The network places no connection there any more (`na::Endpoint::retire`), callers start their
//! operations at other shards, and its progress ULT moves into the pool of another shard. There it
//! goes on for the connections that are left: no call is disturbed, nothing is asked of peers, and
//! nothing waits for one that is stopped or dead. So pool and xstream of the shard are free at
//! once. What is left takes turns with the polls of that other shard, until the instance ends: a
//! caller may have chosen the shard just before it was removed.

use margo_config::Shards;
use prim::sync::lock;

use crate::InstanceLayout;
use crate::dispatch::admit;
use crate::dispatch::registered_rpc::RegisteredRpc;
use crate::support::log::log;
use crate::{ElasticityError, PoolInfo};

impl InstanceLayout<'_> {
    /// Removes a shard while calls and handlers run; none of them fails for that. Its pool has
    /// nothing of the shard any more when this returns, and can be
    /// [removed](Self::remove_pool), its xstream before it, once handlers that had begun there have
    /// ended.
    ///
    /// Connections that the shard has are served in the pool of another one, by what is left of it,
    /// as long as their peers keep them; a peer that connects again comes to another shard. So
    /// the load of clients that stay connected does not vanish: it moves as a whole, to the shard
    /// that has got the least of such before. What is left takes turns with the polls of that one.
    /// Callers next to the shard call through others at once. The number is not given to
    /// another shard; a request that names it is handled elsewhere.
    ///
    /// ```
    /// let service = margo::init("{}")?;
    /// let shard = service.layout().add_shard()?;
    /// let pool = service.layout().progress_pools().nth(shard).unwrap();
    /// service.layout().remove_shard(shard)?;
    /// service.layout().remove_xstream(&pool.xstreams()[0])?;
    /// service.layout().remove_pool(&pool)?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ElasticityError::NoSuchShard`]; `FirstShard`: shard 0 stays.
    /// - [`ElasticityError::ShardInUse`]: it has parts of [sharded
    ///   providers](crate::Instance::sharded_provider). Close these before.
    /// - [`ElasticityError::Shard`]: the transport cannot do that (ucx).
    /// - [`ElasticityError::NoStack`], `Spawn`: there is no memory for the progress ULT in the
    ///   other pool. The shard is removed then, but what is left of it stays in its pool; to remove
    ///   the shard again moves it.
    /// - [`ElasticityError::Inline`], `Closing`, `Forked`.
    ///
    /// Counterpart: none.
    pub fn remove_shard(&self, shard: usize) -> Result<(), ElasticityError> {
        // Dropped after the layout was let go of: an entry's data is the user's.
        let mut outdated = Vec::new();
        let _one_at_a_time = self.change()?;
        let (inner, elastic) = (self.inner(), self.instance.elastic());
        if let Some(old) = self.left_behind(shard) {
            return self.move_retired(old, &self.host_for(shard)?.1);
        }
        let old = self.progress_of(shard)?;
        if shard == 0 {
            return Err(ElasticityError::FirstShard);
        }
        let by = self.users_of_shard(shard);
        if !by.is_empty() {
            return Err(ElasticityError::ShardInUse { shard, by });
        }
        self.check_without_shard(shard)?;
        let (host, home) = self.host_for(shard)?;
        let leaves = inner.shards.get(shard as u8);
        let retired = leaves.core.endpoint().retire();
        retired.map_err(|error| ElasticityError::Shard(hg::HgError::Na(error)))?;
        leaves.remove();
        {
            let mut table = elastic.table();
            table.progress.remove(&shard);
            table.retired.insert(shard, old);
        }
        {
            let mut pools = lock(&inner.shard_pools);
            let of = |shard: usize| pools.get(shard).cloned();
            if let (Some(left), Some(of_host)) = (of(shard), of(host)) {
                // Shards that were removed before may have been beside this one.
                let here = pools.iter_mut().filter(|pool| **pool == left);
                here.for_each(|pool| *pool = of_host.clone());
            }
        }
        self.instance.renew_registrations(&mut outdated);
        log!(inner.log, INFO, shard, served_in = home.name(), "a shard was removed");
        self.move_retired(old, &home)
    }

    /// Returns the pool in which a removed shard was left, if no shard is there.
    fn left_behind(&self, shard: usize) -> Option<usize> {
        let table = self.instance.elastic().table();
        let left = table.retired.get(&shard).copied();
        left.filter(|pool| !table.progress.values().any(|other| other == pool))
    }

    fn check_without_shard(&self, shard: usize) -> Result<(), ElasticityError> {
        let place = self.instance.elastic().table().progress.range(..shard).count();
        self.instance.elastic().checked(self.checks(), "", |document| {
            if let Some(Shards::Pools(pools)) = &mut document.margo.shards {
                pools.remove(place);
            }
        })?;
        Ok(())
    }

    /// The providers with a part at a shard, in words.
    fn users_of_shard(&self, shard: usize) -> Vec<String> {
        let mut users = Vec::new();
        for registration in self.inner().core.registrations() {
            let entry = registration.data_as::<RegisteredRpc>();
            let with_part = entry.filter(|entry| usize::from(entry.parts) > shard);
            users.extend(with_part.map(|entry| format!("a part of provider {}", entry.provider)));
            admit::let_go(self.inner(), registration);
        }
        users.sort();
        users.dedup();
        users
    }

    /// The shard beside which what is left of another one is to run: that with the least of such.
    fn host_for(&self, leaving: usize) -> Result<(usize, PoolInfo), ElasticityError> {
        let table = self.instance.list()?;
        let hosts = table.progress.iter().filter(|(shard, _)| **shard != leaving);
        let guests = |pool: &usize| table.retired.values().filter(|there| *there == pool).count();
        let least = hosts.min_by_key(|(_, pool)| guests(pool));
        let found = least.and_then(|(shard, pool)| Some((*shard, table.pool_info(*pool)?)));
        found.ok_or(ElasticityError::FirstShard)
    }
}
