//! Adding a shard to an instance that runs.
//!
//! The new shard's progress ULT opens its endpoint (`na::Endpoint::open_another`) and its RPC core,
//! publishes the shard, and polls (`polling/driver.rs`). From then on the network gives it
//! connections and callers next to it start their operations there; what others have begun stays
//! where it is. Last, RPCs whose handlers run in the pools of shards get its pool as well: until
//! then its requests run in that of shard 0.
//!
//! With the second shard an instance is no longer one whose gates have a single writer
//! (`admission/gates.rs`): that is settled first.

use std::sync::Arc;

use margo_config::{Affinity, Pool, Scheduler, Shards, Xstream};
use prim::sync::lock;

use crate::InstanceLayout;
use crate::admission::request_shares::RequestShares;
use crate::polling::driver::{self, NotAdded};
use crate::progress::shards::Shard;
use crate::support::log::log;
use crate::{ElasticityError, PoolInfo, PoolKey, XstreamInfo};

/// The beginning of the places to which `"auto"` binds the xstreams of shards.
const BOUND: &str = "allowed:";

impl InstanceLayout<'_> {
    /// Adds a shard on a pool and an xstream that are made for it, as those of `margo.shards`: see
    /// [`add_shard_in`](Self::add_shard_in). The xstream is bound to a CPU where that of shard 0 is
    /// because of `"auto"`, as long as there is another CPU. Returns the number of the shard.
    ///
    /// ```
    /// let service = margo::init("{}")?;
    /// assert_eq!(service.layout().add_shard()?, 1);
    /// assert_eq!(service.layout().progress_pools().count(), 2);
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`add_pool`](Self::add_pool), [`add_xstream`](Self::add_xstream) and
    /// [`add_shard_in`](Self::add_shard_in). Nothing is left behind.
    ///
    /// Counterpart: none.
    pub fn add_shard(&self) -> Result<usize, ElasticityError> {
        let pool = self.add_pool(Pool::default())?;
        let added = self.add_home(&pool).and_then(|xstream| {
            let added = self.add_shard_in(&pool);
            added.inspect_err(|_| self.take_back("xstream", self.remove_xstream(&xstream)))
        });
        added.inspect_err(|_| self.take_back("pool", self.remove_pool(&pool)))
    }

    /// Adds the xstream of a shard.
    fn add_home(&self, pool: &PoolInfo) -> Result<XstreamInfo, ElasticityError> {
        let number = self.inner().shards.count();
        let has_cpu = std::thread::available_parallelism().is_ok_and(|cpus| number < cpus.get());
        let affinity = match self.is_bound_by_number() && has_cpu {
            true => Affinity::Place(format!("{BOUND}{number}")),
            false => Affinity::default(),
        };
        let scheduler = Scheduler { pools: vec![pool.name().into()], ..Scheduler::default() };
        self.add_xstream(Xstream { affinity, scheduler: Some(scheduler), ..Xstream::default() })
    }

    /// Returns whether the xstream of shard 0 was bound as `"auto"` does it.
    fn is_bound_by_number(&self) -> bool {
        let first = self.progress_pool();
        self.instance.elastic().table().xstreams.values().any(|entry| {
            let is_home = || entry.xstream.pools().iter().any(|pool| pool == first.name());
            matches!(&entry.about.affinity, Affinity::Place(place) if place.starts_with(BOUND))
                && is_home()
        })
    }

    fn take_back(&self, what: &'static str, removed: Result<(), ElasticityError>) {
        // An instance that ends takes everything along.
        if let Err(error) = removed
            && !self.instance.is_finalizing()
        {
            log!(self.inner().log, WARN, %error, "what was made for a shard stays: {what}");
        }
    }

    /// Adds a shard whose progress ULT runs in that pool, while calls and handlers run. Returns its
    /// number, which no other shard of the instance ever has, once it has progress.
    ///
    /// Later connections are shared out among all shards; this one has the fewest, so it gets the
    /// next ones. Connections that are there stay with their shards: clients that called before
    /// go on there, and get another one when they connect again or name the shard
    /// ([`ProviderHandle::in_shard`](crate::ProviderHandle::in_shard)). ULTs on the pool's xstream
    /// make their calls through the new shard. Handlers of the requests that arrive there run in
    /// the pool, where those of other shards run in theirs; of a
    /// [sharded provider](crate::Instance::sharded_provider), in the pool of shard 0, for its parts
    /// stay as they are. The shard has as large a part of the bounds about requests
    /// (`margo.requests_max`) as each one has that was there at the start, on top of theirs.
    ///
    /// The document in effect ([`config`](crate::Instance::config)) has the pool in `margo.shards`.
    ///
    /// # Errors
    ///
    /// - [`ElasticityError::NoSuchPool`]; `Unserved` when no xstream runs the pool; `PrivatePool`
    ///   when it is private, or handlers run in a private pool.
    /// - [`ElasticityError::PoolInUse`]: a shard's progress ULT is there already.
    /// - [`ElasticityError::Description`]: the layout would be one that `init` refuses, as with
    ///   more than 128 shards.
    /// - [`ElasticityError::Shard`]: the transport has no groups of endpoints (ofi), or cannot add
    ///   to them (ucx); or the network refuses.
    /// - [`ElasticityError::NoStack`], `Spawn`, `Inline`, `Closing`, `Forked`.
    ///
    /// Counterpart: none; `HG_Context_create` before others have begun.
    pub fn add_shard_in<'k>(&self, pool: impl Into<PoolKey<'k>>) -> Result<usize, ElasticityError> {
        // Dropped after the layout was let go of: an entry's data is the user's.
        let mut outdated = Vec::new();
        let _one_at_a_time = self.change()?;
        let info = self.find_pool(pool)?;
        self.check_new_shard(&info)?;
        self.become_several();
        let shard = self.start_shard(&info)?;
        let inner = self.inner();
        {
            let mut pools = lock(&inner.shard_pools);
            if !pools.is_empty() {
                pools.push(info.pool.clone());
            }
        }
        if let Some(surplus) = &inner.surplus {
            surplus.add(&info.pool);
            inner.shards.iter().last().into_iter().for_each(Shard::kick);
        }
        self.instance.renew_registrations(&mut outdated);
        log!(inner.log, INFO, shard, pool = info.name(), "a shard was added");
        Ok(shard)
    }

    fn check_new_shard(&self, home: &PoolInfo) -> Result<(), ElasticityError> {
        self.check_progress_pool(home, "run in it")?;
        let served_by_others = |pool: &ult::PoolRef| pool.xstreams() != home.pool.xstreams();
        if let Some(pool) = self.private_handler_pool().filter(served_by_others) {
            let (pool, what) = (pool.name().to_owned(), "make its handlers from another xstream");
            return Err(ElasticityError::PrivatePool { pool, what });
        }
        self.instance.elastic().checked(self.checks(), "", |document| {
            let mut pools = match document.margo.shards.take() {
                Some(Shards::Pools(pools)) => pools,
                _ => document.progress_pool.iter().cloned().collect(),
            };
            pools.push(home.name().into());
            document.margo.shards = Some(Shards::Pools(pools));
        })?;
        Ok(())
    }

    /// Has the gates know that more than one progress ULT is going to let requests in.
    fn become_several(&self) {
        let inner = self.inner();
        if !inner.shards.are_several() {
            inner.gates.become_several();
            inner.shards.first().progress.get().into_iter().for_each(|progress| progress.pass());
        }
    }

    fn start_shard(&self, home: &PoolInfo) -> Result<usize, ElasticityError> {
        let (inner, added) = (self.inner(), Arc::new(ult::Eventual::new()));
        driver::start_another(
            inner,
            &home.pool,
            move |inner| {
                let endpoint = inner.core.endpoint().open_another().map_err(hg::HgError::Na)?;
                let core = inner.core.add_shard(endpoint)?;
                Ok(Shard::new(core, RequestShares::of_shard(&inner.resolved)))
            },
            added.clone(),
        )?;
        match added.wait() {
            Ok(shard) => Ok((*shard).into()),
            Err(NotAdded::Closing) => Err(ElasticityError::Closing),
            Err(NotAdded::Refused(error)) => Err(ElasticityError::Shard(error.clone())),
            Err(NotAdded::NoStack) => {
                let (pool, bytes) = (home.name().to_owned(), home.pool.stack_bytes());
                Err(ElasticityError::NoStack { pool, bytes })
            }
        }
    }
}
