//! The outcome of resolution, written back as a complete document.

use serde_json::{Map, Value};

use crate::config::{Argobots, Config, Pool, Scheduler, Xstream};
use crate::margo::{BulkOptions, MargoOptions, Provider};
use crate::pool_ref::PoolRef;
use crate::resolve::Resolved;

impl Resolved {
    /// The complete configuration that is in effect, with pools referred to by index.
    ///
    /// It is itself valid input, and resolving it gives the same document again.
    ///
    /// Counterpart: `margo_get_config` (Margo).
    pub fn effective(&self) -> Config {
        self.document(&PoolRef::Index)
    }

    /// As [`Resolved::effective`], with pools referred to by name, which is easier to read and
    /// to edit.
    ///
    /// Counterpart: `margo_get_config_opt` with `MARGO_CONFIG_USE_NAMES` (Margo).
    pub fn effective_with_names(&self) -> Config {
        self.document(&|index| PoolRef::Name(self.pools[index].name.clone()))
    }

    fn document(&self, pool_ref: &dyn Fn(usize) -> PoolRef) -> Config {
        Config {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            margo: MargoOptions {
                address: self.address.clone(),
                listen: self.listen,
                spin_max_usec: saturate(self.spin_max.as_micros()),
                eager_size: self.eager_size,
                overflow_bytes_max: self.overflow_bytes_max,
                overflow_held_max: self.overflow_held_max,
                requests_max: self.requests_max,
                admission: self.admission.document(pool_ref),
                payload_checksum: self.payload_checksum,
                mercury_build: self.mercury_build,
                bulk: BulkOptions { copy_pool: self.copy_pool.map(pool_ref), ..self.bulk.clone() },
                proc: self.proc.clone(),
                network: self.network.clone(),
                address_file: self.address_file.clone(),
                more_progress_pools: self
                    .more_progress_pools
                    .iter()
                    .map(|&pool| pool_ref(pool))
                    .collect(),
                providers: self.provider_entries(pool_ref),
            },
            argobots: Argobots {
                version: None,
                pools: self.pool_entries(),
                xstreams: self.xstream_entries(pool_ref),
                abt_mem_max_num_stacks: saturate(self.stack_cache_max as u128),
                abt_thread_stacksize: self.stack_bytes,
                profiling_dir: self.profiling_dir.clone(),
                lazy_stack_alloc: None,
            },
            mercury: self.mercury.clone(),
            progress_pool: Some(pool_ref(self.progress_pool)),
            rpc_pool: Some(pool_ref(self.rpc_pool)),
            use_progress_thread: false,
            rpc_thread_count: 0,
            progress_timeout_ub_msec: saturate(self.progress_timeout_max.as_millis()),
            progress_spindown_msec: saturate(self.progress_spindown.as_millis()),
            handle_cache_size: saturate(self.handle_cache_size as u128),
            enable_abt_profiling: self.enable_abt_profiling,
            monitoring: self.monitoring.clone(),
        }
    }

    fn pool_entries(&self) -> Vec<Pool> {
        let entry = |pool: &crate::ResolvedPool| Pool {
            name: Some(pool.name.clone()),
            kind: pool.kind,
            access: pool.access,
            stack_bytes: pool.stack_bytes,
            numa_node: pool.numa_node,
        };
        self.pools.iter().map(entry).collect()
    }

    fn xstream_entries(&self, pool_ref: &dyn Fn(usize) -> PoolRef) -> Vec<Xstream> {
        let entry = |xstream: &crate::ResolvedXstream| Xstream {
            name: Some(xstream.name.clone()),
            cpubind: xstream.cpubind.and_then(|cpu| i32::try_from(cpu).ok()).unwrap_or(-1),
            affinity: xstream.affinity.clone(),
            scheduler: Some(Scheduler {
                kind: xstream.scheduler,
                pools: xstream.pools.iter().map(|&pool| pool_ref(pool)).collect(),
            }),
        };
        self.xstreams.iter().map(entry).collect()
    }

    fn provider_entries(&self, pool_ref: &dyn Fn(usize) -> PoolRef) -> Vec<Provider> {
        let entry = |provider: &crate::ResolvedProvider| Provider {
            type_name: provider.type_name.clone(),
            name: Some(provider.name.clone()),
            provider_id: Some(provider.provider_id),
            pool: Some(pool_ref(provider.pool)),
            config: match &provider.config {
                Value::Object(config) => config.clone(),
                _ => Map::new(),
            },
        };
        self.providers.iter().map(entry).collect()
    }
}

/// These numbers came from a `u32`; a caller that enlarged one gets the largest that fits.
fn saturate(value: u128) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
