//! The outcome of resolution, written back as a complete document.

use serde_json::{Map, Value};

use super::Resolved;
use crate::document::config::{Argobots, Config, Pool, Scheduler, Xstream};
use crate::document::margo::{BulkOptions, MargoOptions, Priority, Provider};
use crate::document::pool_ref::PoolRef;
use crate::document::shards::Shards;

/// How a configuration is printed. The default: everything, pools by index.
///
/// ```
/// use margo_config::{Config, ConfigFlags, PoolRef};
///
/// let resolved = Config::default().resolve(&|_| None)?;
/// assert_eq!(resolved.effective().rpc_pool, Some(PoolRef::Index(0)));
///
/// let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
/// assert_eq!(resolved.effective_as(flags).rpc_pool, Some(PoolRef::from("__primary__")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `MARGO_CONFIG_USE_NAMES`, `MARGO_CONFIG_HIDE_EXTERNAL`; for
/// `MARGO_CONFIG_PRETTY_JSON` see [`Config::to_json_pretty`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfigFlags {
    /// Refers to pools by name instead of by index, which is easier to read and to edit.
    pub use_names: bool,
    /// Leaves out pools and xstreams that the program made itself
    /// ([`ResolvedPool::external`](crate::ResolvedPool::external)), references to them, and
    /// xstreams that have no other pool.
    pub hide_external: bool,
}

impl Resolved {
    /// The complete configuration that is in effect, with pools referred to by index.
    ///
    /// It is itself valid input, and resolving it gives the same document again.
    ///
    /// Counterpart: `margo_get_config` (Margo).
    pub fn effective(&self) -> Config {
        self.effective_as(ConfigFlags::default())
    }

    /// As [`Resolved::effective`], with pools referred to by name.
    pub fn effective_with_names(&self) -> Config {
        self.effective_as(ConfigFlags { use_names: true, ..ConfigFlags::default() })
    }

    /// As [`Resolved::effective`], as the flags say. Indices count the pools of the document.
    ///
    /// Counterpart: `margo_get_config_opt` (Margo).
    pub fn effective_as(&self, flags: ConfigFlags) -> Config {
        let hidden = |external: bool| external && flags.hide_external;
        let mut places = Vec::with_capacity(self.pools.len());
        let mut next = 0;
        for pool in &self.pools {
            places.push((!hidden(pool.external)).then_some(next));
            next += usize::from(!hidden(pool.external));
        }
        self.document(&hidden, &|pool| {
            let place = (*places.get(pool)?)?;
            Some(match flags.use_names {
                true => PoolRef::Name(self.pools[pool].name.clone()),
                false => PoolRef::Index(place),
            })
        })
    }

    fn document(
        &self,
        hidden: &dyn Fn(bool) -> bool,
        pool_ref: &dyn Fn(usize) -> Option<PoolRef>,
    ) -> Config {
        // A document names the pools of all shards or of none. Where there is one, `progress_pool`
        // does.
        let count = self.progress_pools().count();
        let of_shards: Option<Vec<_>> = self.progress_pools().map(pool_ref).collect();
        let shards = match of_shards {
            _ if count == 1 => None,
            Some(pools) => Some(Shards::Pools(pools)),
            None => Some(Shards::Count(saturate(count as u128))),
        };
        Config {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            margo: MargoOptions {
                address: self.address.clone(),
                listen: self.listen,
                spin_max_usec: saturate(self.spin_max.as_micros()),
                blocking_threads_max: saturate(self.blocking_threads_max as u128),
                eager_size: self.eager_size,
                overflow_bytes_max: self.overflow_bytes_max,
                overflow_held_max: self.overflow_held_max,
                requests_max: self.requests_max,
                admission: self.admission.document(pool_ref),
                payload_checksum: self.payload_checksum,
                mercury_build: self.mercury_build,
                bulk: BulkOptions {
                    copy_pool: self.copy_pool.and_then(pool_ref),
                    ..self.bulk.clone()
                },
                device: self.device.clone(),
                proc: self.proc.clone(),
                network: self.network.clone(),
                security: self.security.as_ref().map(|security| security.options.clone()),
                address_file: self.address_file.clone(),
                remote_shutdown: self.remote_shutdown,
                remote_admin: self.remote_admin,
                progress_when_needed: self.progress_when_needed,
                metrics: self.metrics.clone(),
                log_level: self.log_level,
                stall_limit_msec: saturate(self.stall_limit.unwrap_or_default().as_millis()),
                grace_msec: saturate(self.grace.as_millis()),
                dump_on_signal: self.dump_on_signal,
                trace: self.trace.clone(),
                shards,
                share_from: self.share_from.map(|units| saturate(units as u128)),
                providers: self.provider_entries(pool_ref),
            },
            argobots: Argobots {
                version: None,
                pools: self.pool_entries(hidden),
                xstreams: self.xstream_entries(hidden, pool_ref),
                abt_mem_max_num_stacks: saturate(self.stack_cache_max as u128),
                abt_thread_stacksize: self.stack_bytes,
                profiling_dir: self.profiling_dir.clone(),
                lazy_stack_alloc: None,
                external: self.external_layout,
            },
            mercury: self.mercury.clone(),
            progress_pool: pool_ref(self.progress_pool),
            rpc_pool: pool_ref(self.rpc_pool),
            use_progress_thread: false,
            rpc_thread_count: 0,
            progress_timeout_ub_msec: saturate(self.progress_timeout_max.as_millis()),
            progress_spindown_msec: saturate(self.progress_spindown.as_millis()),
            handle_cache_size: saturate(self.handle_cache_size as u128),
            enable_abt_profiling: self.enable_abt_profiling,
            monitoring: self.monitoring.clone(),
            schema: None,
        }
    }

    fn pool_entries(&self, hidden: &dyn Fn(bool) -> bool) -> Vec<Pool> {
        let entry = |(place, pool): (usize, &super::ResolvedPool)| Pool {
            name: Some(pool.name.clone()),
            kind: pool.kind,
            access: pool.access,
            stack_bytes: pool.stack_bytes,
            numa_node: pool.numa_node,
            index: (pool.index != place).then_some(pool.index),
        };
        let shown = self.pools.iter().filter(|pool| !hidden(pool.external));
        shown.enumerate().map(entry).collect()
    }

    fn xstream_entries(
        &self,
        hidden: &dyn Fn(bool) -> bool,
        pool_ref: &dyn Fn(usize) -> Option<PoolRef>,
    ) -> Vec<Xstream> {
        let entry = |xstream: &super::ResolvedXstream| {
            let pools: Vec<_> = xstream.pools.iter().filter_map(|&pool| pool_ref(pool)).collect();
            let shown = !hidden(xstream.external) && !pools.is_empty();
            shown.then(|| Xstream {
                name: Some(xstream.name.clone()),
                cpubind: xstream.cpubind.and_then(|cpu| i32::try_from(cpu).ok()).unwrap_or(-1),
                affinity: xstream.affinity.clone(),
                scheduler: Some(Scheduler { kind: xstream.scheduler, pools }),
                index: Some(xstream.index),
            })
        };
        let mut entries: Vec<_> = self.xstreams.iter().filter_map(entry).collect();
        for (place, entry) in entries.iter_mut().enumerate() {
            entry.index = entry.index.filter(|index| *index != place);
        }
        entries
    }

    fn provider_entries(&self, pool_ref: &dyn Fn(usize) -> Option<PoolRef>) -> Vec<Provider> {
        let entry = |provider: &super::ResolvedProvider| {
            let pool = pool_ref(provider.pool);
            Provider {
                type_name: provider.type_name.clone(),
                name: Some(provider.name.clone()),
                provider_id: Some(provider.provider_id),
                // Only pools of one kind have priorities, and the one in its stead may be another.
                priority: pool.as_ref().map_or(Priority::Normal, |_| provider.priority),
                pool,
                dependencies: provider
                    .dependencies
                    .iter()
                    .map(|dependency| (dependency.key.clone(), dependency.given.clone()))
                    .collect(),
                config: match &provider.config {
                    Value::Object(config) => config.clone(),
                    _ => Map::new(),
                },
            }
        };
        self.providers.iter().map(entry).collect()
    }
}

/// These numbers came from a `u32`; a caller that enlarged one gets the largest that fits.
fn saturate(value: u128) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
