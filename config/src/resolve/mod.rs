//! Turns the contents of the document into the layout that the runtime builds.
//!
//! Order, which also decides the indices of pools and xstreams:
//!
//! 1. pools, then xstreams of the document, in their order (`declared`);
//! 2. `__primary__`, when no xstream of that name is described (`roles`, like the next two), unless
//!    the program made the xstreams;
//! 3. the pool and xstream of `use_progress_thread`, unless `progress_pool` is given;
//! 4. the pool and xstreams of `rpc_thread_count`, unless `rpc_pool` is given;
//! 5. a pool and an xstream for each further shard of `margo.shards`, unless that lists pools;
//! 6. providers (`providers`), and rules about them (`security`);
//! 7. the layout as a whole: what could starve an RPC (`layout`).
//!
//! Every step reports into [`Findings`] and goes on with what it has, so that one run finds all
//! errors. A step that lacks something because of an error reported before stays silent about it,
//! also where that was found when the document was read (`lacks.rs`).

mod admission;
mod declared;
mod dependencies;
mod effective;
mod fabric_security;
mod layout;
mod names;
mod network;
mod providers;
mod roles;
mod scalars;
mod security;
mod tcp_security;
mod trace;

use std::time::Duration;

use serde_json::{Map, Value};

use crate::document::admission::ResolvedAdmission;
use crate::document::affinity::Affinity;
use crate::document::config::{Config, PoolAccess, PoolKind, SchedulerKind};
use crate::document::dependency::Dependency;
use crate::document::device::DeviceOptions;
use crate::document::margo::{
    BulkOptions, DumpSignal, LogLevel, MercuryBuild, MetricsOptions, PayloadChecksum, Priority,
};
use crate::document::mercury::Mercury;
use crate::document::monitoring::MonitoringOptions;
use crate::document::network::{NetworkOptions, ProcOptions};
use crate::document::security::ResolvedSecurity;
use crate::document::subnet::IpSubnet;
use crate::document::trace::TraceOptions;
use crate::read::lacks::Lacks;
use crate::report::error::{Error, Errors, REPORTED_MAX, Warning};

pub use effective::ConfigFlags;
pub use roles::{SHARDS_MAX, XSTREAMS_MAX};
pub use scalars::{EAGER_SIZE_MAX, EAGER_SIZE_MIN, STACK_BYTES_MAX, STACK_BYTES_MIN};

/// The name of the primary xstream and of the pool added for it.
pub(crate) const PRIMARY: &str = "__primary__";

/// A configuration with all names given, all references checked and turned into indices.
///
/// ```
/// use margo_config::{Config, process_env};
///
/// let config = Config::from_json(r#"{ "use_progress_thread": true }"#)?;
/// let resolved = config.resolve(&process_env)?;
/// for warning in &resolved.warnings {
///     eprintln!("{warning}");
/// }
/// assert_eq!(resolved.pools[resolved.rpc_pool].name, "__primary__");
/// assert_eq!(resolved.xstreams.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resolved {
    /// All pools: the document's, then those added.
    pub pools: Vec<ResolvedPool>,
    /// All xstreams: the document's, then those added. One is called `__primary__`, unless the
    /// program made them.
    pub xstreams: Vec<ResolvedXstream>,
    /// True if all pools and xstreams were there before: those of a runtime that the program made.
    pub external_layout: bool,
    /// Index of the pool in which the progress ULT of shard 0 runs.
    pub progress_pool: usize,
    /// Indices of the pools in which those of shards 1, 2 and so on run.
    pub more_progress_pools: Vec<usize>,
    /// Index of the pool in which handlers run unless their provider has its own.
    pub rpc_pool: usize,
    /// From how many units that wait in the pool of a shard on handlers may start in that of
    /// another one; `None`: they may not.
    pub share_from: Option<usize>,
    /// Default size of a ULT stack in bytes, a multiple of 4096.
    pub stack_bytes: usize,
    /// ULT stacks that each xstream keeps for reuse.
    pub stack_cache_max: usize,
    /// Where profiles go.
    pub profiling_dir: String,
    /// Counts what pools and xstreams do.
    pub enable_abt_profiling: bool,
    /// Address to open, not empty and without blanks; otherwise as given.
    pub address: String,
    /// Accepts RPCs from others.
    pub listen: bool,
    /// File to write the instance's address to.
    pub address_file: Option<String>,
    /// Lets peers shut the instance down.
    pub remote_shutdown: bool,
    /// Lets those whom the rules name change it while it runs.
    pub remote_admin: bool,
    /// Lets progress spin only while operations are in flight.
    pub progress_when_needed: bool,
    /// How others see what it does.
    pub metrics: MetricsOptions,
    /// The least severe messages that reach the log; `None`: all.
    pub log_level: Option<LogLevel>,
    /// How long a unit may hold its xstream, or a runnable one may wait, before the log says so;
    /// `None`: nobody looks.
    pub stall_limit: Option<Duration>,
    /// How long a shutdown waits for running handlers, and for each step and callback that follows.
    pub grace: Duration,
    /// At which signal the state is written to standard error.
    pub dump_on_signal: Option<DumpSignal>,
    /// Which calls are recorded, and where, environment variables included.
    pub trace: TraceOptions,
    /// Network settings, without the output-only keys.
    pub mercury: Mercury,
    /// The subnet of `mercury.ip_subnet`.
    pub ip_subnet: Option<IpSubnet>,
    /// Largest arguments that travel inside the message, in bytes; `None`: the transport's limit.
    pub eager_size: Option<usize>,
    /// Longest arguments or result, in bytes.
    pub overflow_bytes_max: u64,
    /// Most bytes of long arguments that are held at once.
    pub overflow_held_max: u64,
    /// Most requests whose arguments have not been decoded.
    pub requests_max: usize,
    /// How many requests each pool may have in hand.
    pub admission: ResolvedAdmission,
    /// Checksum of arguments and results.
    pub payload_checksum: PayloadChecksum,
    /// Which of Mercury's header layouts; `None`: as the checksum level needs it.
    pub mercury_build: Option<MercuryBuild>,
    /// How bulk data moves; for the pool see `copy_pool`.
    pub bulk: BulkOptions,
    /// How memory of devices moves.
    pub device: DeviceOptions,
    /// Bounds of what is encoded.
    pub proc: ProcOptions,
    /// How the transport treats its peers.
    pub network: NetworkOptions,
    /// The rules of who may call what; `None`: everybody may call everything.
    pub security: Option<ResolvedSecurity>,
    /// Index of the pool whose xstreams take part in large copies.
    pub copy_pool: Option<usize>,
    /// Without effect, see the document.
    pub handle_cache_size: usize,
    /// Longest time an idle xstream looks for work before it sleeps.
    pub spin_max: Duration,
    /// Most threads that run closures of `ult::blocking` at once.
    pub blocking_threads_max: usize,
    /// How long the progress ULT keeps polling after the last activity.
    pub progress_spindown: Duration,
    /// Zero: progress never sleeps. Otherwise without effect, see the document.
    pub progress_timeout_max: Duration,
    /// Settings of the monitor, as given.
    pub monitoring: Option<Map<String, Value>>,
    /// The tasks of the default monitor; `None`: it is off.
    pub monitor: Option<MonitoringOptions>,
    /// Services to start, as listed; see [`start_order`](Self::start_order).
    pub providers: Vec<ResolvedProvider>,
    /// Settings that are allowed but probably not meant. Show them to the user.
    pub warnings: Vec<Warning>,
}

/// One pool to create.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "argobots": { "pools": [{ "name": "__primary__", "stack_bytes": 20000 }] } }"#;
/// let resolved = Config::from_json(text)?.resolve(&|_| None)?;
/// assert_eq!(resolved.pools[0].stack_bytes, Some(20480), "whole pages");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedPool {
    /// A C identifier, unique among pools.
    pub name: String,
    /// In which order units leave.
    pub kind: PoolKind,
    /// How many threads may push and pop.
    pub access: PoolAccess,
    /// Stack size of this pool's ULTs in bytes, a multiple of 4096; `None`: the default size.
    pub stack_bytes: Option<usize>,
    /// NUMA node for the memory of its stacks; `None`: that of the xstreams that run it.
    pub numa_node: Option<u32>,
    /// True if the program made it and only told of it. Never from a document.
    pub external: bool,
    /// The pool's index: its place, unless it is a parent's; see
    /// [`Pool::index`](crate::Pool::index). References in this structure are places.
    pub index: usize,
}

/// One xstream to start.
///
/// ```
/// use margo_config::Config;
///
/// let resolved = Config::from_json(r#"{ "rpc_thread_count": 2 }"#)?.resolve(&|_| None)?;
/// let handlers = resolved.xstreams.iter().filter(|one| one.pools.contains(&resolved.rpc_pool));
/// assert_eq!(handlers.count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedXstream {
    /// A C identifier, unique among xstreams.
    pub name: String,
    /// CPU to run on; `None`: unbound.
    pub cpubind: Option<usize>,
    /// CPUs to stay on, when `cpubind` is `None`. A place is text that nobody has looked at yet.
    pub affinity: Affinity,
    /// The scheduling policy.
    pub scheduler: SchedulerKind,
    /// Indices of its pools, most urgent first; at least one.
    pub pools: Vec<usize>,
    /// True if the program made it and only told of it. Never from a document.
    pub external: bool,
    /// As [`ResolvedPool::index`].
    pub index: usize,
}

/// One service to start.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1 }] } }"#;
/// let resolved = Config::from_json(text)?.resolve(&|_| None)?;
/// let echo = &resolved.providers[0];
/// assert_eq!((echo.name.as_str(), echo.pool), ("echo_1", resolved.rpc_pool));
/// assert_eq!(echo.config, serde_json::json!({}));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ResolvedProvider {
    /// The type of the provider.
    pub type_name: String,
    /// A C identifier, unique among providers.
    pub name: String,
    /// By which number clients address it, at most 65534.
    pub provider_id: u16,
    /// Index of the pool in which its handlers run.
    pub pool: usize,
    /// Which of its requests go first.
    pub priority: Priority,
    /// Other providers that it works with, ordered by key.
    pub dependencies: Vec<ResolvedDependency>,
    /// The provider's own settings, always a JSON object.
    pub config: Value,
}

/// A key of a provider's `dependencies`.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "margo": { "providers": [
///     { "type": "index", "provider_id": 2, "dependencies": { "data": "blob_1" } },
///     { "type": "blob", "provider_id": 1 },
/// ] } }"#)?;
/// let resolved = config.resolve(&|_| None)?;
/// let data = &resolved.providers[0].dependencies[0];
/// assert_eq!((data.key.as_str(), data.given.texts()), ("data", &["blob_1".to_owned()][..]));
/// assert_eq!(resolved.start_order(), [1, 0], "what is depended on starts first");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedDependency {
    /// The name under which the provider asks for it.
    pub key: String,
    /// As it is written.
    pub given: Dependency,
    /// The providers that are meant, in that order.
    pub targets: Vec<DependencyTarget>,
}

/// A provider that another one needs.
///
/// ```
/// use margo_config::{Config, DependencyTarget};
///
/// let config = Config::from_json(r#"{ "margo": { "providers": [
///     { "type": "index", "provider_id": 2, "dependencies": { "data": ["blob_1",
///         "blob:7@na+tcp://node2:7000"] } },
///     { "type": "blob", "provider_id": 1 },
/// ] } }"#)?;
/// let targets = &config.resolve(&|_| None)?.providers[0].dependencies[0].targets;
/// assert_eq!(targets[0], DependencyTarget::Local(1));
/// assert!(matches!(&targets[1], DependencyTarget::Remote { provider_id: 7, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DependencyTarget {
    /// Place in [`Resolved::providers`].
    Local(usize),
    /// One of another process. Nobody has asked it yet.
    Remote {
        /// The type that it is said to be of.
        type_name: String,
        /// By which number it is addressed, at most 65534.
        provider_id: u16,
        /// Where.
        address: String,
    },
}

/// The errors and warnings of the steps.
#[derive(Debug)]
struct Findings<'l> {
    errors: Vec<Error>,
    warnings: Vec<Warning>,
    /// The values that are not there because they were wrong.
    lacks: &'l Lacks,
}

/// The values found of a document, some of which may not be there.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The resolved configuration, as far as it exists. With errors: enough for checks of other
    /// kinds.
    pub(crate) resolved: Option<Resolved>,
    /// Errors without positions. Some may be explained by values that were left out
    /// ([`Lacks::explain`]).
    pub(crate) errors: Vec<Error>,
}

impl<'l> Findings<'l> {
    fn new(lacks: &'l Lacks) -> Self {
        Self { errors: Vec::new(), warnings: Vec::new(), lacks }
    }

    fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.push(Error::new(path, message));
    }

    fn push(&mut self, error: Error) {
        if !self.is_full() {
            self.errors.push(error);
        }
    }

    /// Returns true if no further error is kept, so that one which costs something need not be
    /// made.
    fn is_full(&self) -> bool {
        self.errors.len() >= REPORTED_MAX
    }

    fn warn(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.warnings.len() < REPORTED_MAX {
            self.warnings.push(Warning::new(path, message));
        }
    }
}

/// Returns the tasks of the default monitor.
fn monitor(
    config: &Config,
    env: &dyn Fn(&str) -> Option<String>,
    found: &mut Findings,
) -> Option<MonitoringOptions> {
    let given = config.monitoring.as_ref();
    let monitor = MonitoringOptions::effective(given, env).unwrap_or_else(|errors| {
        errors.into_iter().for_each(|error| found.push(error));
        None
    });
    let warnings = given.filter(|_| monitor.is_some()).map(MonitoringOptions::warnings);
    for warning in warnings.into_iter().flatten() {
        found.warn(warning.path, warning.message);
    }
    monitor
}

impl Resolved {
    /// Places of the [`providers`](Self::providers) in the order in which they start: as they are
    /// listed, but each after those of this document that it depends on.
    pub fn start_order(&self) -> Vec<usize> {
        // A circle was refused.
        let needs = self.providers.iter().map(|one| dependencies::locals(&one.dependencies));
        dependencies::order(&needs.collect::<Vec<_>>())
    }

    /// Indices of the pools in which progress ULTs run, one for each shard.
    pub fn progress_pools(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(self.progress_pool).chain(self.more_progress_pools.iter().copied())
    }

    /// From how many units that wait in this pool on its handlers may start in that of another
    /// shard; `None`: they may not.
    pub fn share_from_of(&self, pool: usize) -> Option<usize> {
        let is_fifo = matches!(self.pools[pool].kind, PoolKind::Fifo | PoolKind::FifoWait);
        let is_by_shard = !self.more_progress_pools.is_empty()
            && self.rpc_pool == self.progress_pool
            && self.progress_pools().any(|of_shard| of_shard == pool);
        self.share_from.filter(|_| is_fifo && is_by_shard)
    }
}

fn millis(value: u32) -> Duration {
    Duration::from_millis(value.into())
}

impl Config {
    /// Names everything, turns references into indices, applies the precedence rules and checks
    /// the whole.
    ///
    /// `env` looks up an environment variable (outside of tests:
    /// [`process_env`](crate::process_env)). `ABT_MEM_MAX_NUM_STACKS`, `ABT_THREAD_STACKSIZE` and
    /// `MARGO_LOG_LEVEL` win over the document, as in C, and so do those of `margo.trace`.
    /// `MARGO_ENABLE_MONITORING` switches the default monitor on, and
    /// `MARGO_MONITORING_FILENAME_PREFIX`, `MARGO_MONITORING_DISABLE_STATISTICS` and
    /// `MARGO_MONITORING_DISABLE_TIME_SERIES` speak where the document does not.
    ///
    /// # Errors
    ///
    /// All of them at once: references to pools that do not exist, names that are no identifiers
    /// or not unique, values out of range, and layouts in which handlers or progress could never
    /// run. Without positions, because a `Config` need not come from text; [`Config::from_json`]
    /// and [`Config::check`] add them.
    pub fn resolve(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<Resolved, Errors> {
        match self.look(env, &Lacks::default()) {
            Looked { resolved: Some(resolved), errors } if errors.is_empty() => Ok(resolved),
            Looked { errors, .. } => Err(Errors::new(errors)),
        }
    }

    /// Does the work of [`resolve`](Self::resolve) for a document some of whose values were left
    /// out. Errors concern the rest.
    pub(crate) fn look(&self, env: &dyn Fn(&str) -> Option<String>, lacks: &Lacks) -> Looked {
        let mut found = Findings::new(lacks);
        let stacks = scalars::stacks(&self.argobots, env, &mut found);
        let mut layout = declared::layout(&self.argobots, &mut found);
        let roles = roles::assign(self, &mut layout, &mut found);
        let share_from = roles::share_from(self, &layout, &roles, &mut found);
        let providers = providers::resolve(self, &layout, roles.rpc, &mut found);
        scalars::check_options(&self.margo, &mut found);
        let trace = trace::resolve(&self.margo.trace, env, &mut found);
        let log_level = scalars::log_level(&self.margo, env, &mut found);
        let ip_subnet = network::subnet(&self.mercury, &mut found);
        let copy_pool = network::check(self, &layout, &mut found);
        let monitor = monitor(self, env, &mut found);
        let admission = admission::resolve(&self.margo.admission, &layout, &mut found);
        let security = security::resolve(self, &providers, &mut found);
        layout::check(self, &layout, &roles, &mut found);

        let Findings { errors, warnings, .. } = found;
        if layout.pools.is_empty() {
            return Looked { resolved: None, errors };
        }
        // With errors the first one stands in for one that was not found.
        let [progress_pool, rpc_pool] = [roles.progress, roles.rpc].map(Option::unwrap_or_default);
        let resolved = Resolved {
            pools: layout.pools,
            xstreams: layout.xstreams,
            external_layout: self.argobots.external,
            progress_pool,
            more_progress_pools: roles.more_progress,
            rpc_pool,
            share_from,
            stack_bytes: stacks.bytes,
            stack_cache_max: stacks.cache_max as usize,
            profiling_dir: self.argobots.profiling_dir.clone(),
            enable_abt_profiling: self.enable_abt_profiling,
            address: self.margo.address.clone(),
            listen: self.margo.listen,
            address_file: self.margo.address_file.clone(),
            remote_shutdown: self.margo.remote_shutdown,
            remote_admin: self.margo.remote_admin,
            progress_when_needed: self.margo.progress_when_needed,
            metrics: self.margo.metrics.clone(),
            log_level,
            stall_limit: Some(millis(self.margo.stall_limit_msec)).filter(|time| !time.is_zero()),
            grace: millis(self.margo.grace_msec),
            dump_on_signal: self.margo.dump_on_signal,
            trace,
            mercury: self.mercury.in_effect(network::requests_max(self)),
            ip_subnet,
            eager_size: self.margo.eager_size,
            overflow_bytes_max: self.margo.overflow_bytes_max,
            overflow_held_max: self.margo.overflow_held_max,
            requests_max: network::requests_max(self),
            admission,
            payload_checksum: self.margo.payload_checksum,
            mercury_build: self.margo.mercury_build,
            bulk: self.margo.bulk.clone(),
            device: self.margo.device.clone(),
            proc: self.margo.proc.clone(),
            network: self.margo.network.clone(),
            security,
            copy_pool,
            handle_cache_size: self.handle_cache_size as usize,
            spin_max: Duration::from_micros(self.margo.spin_max_usec.into()),
            blocking_threads_max: self.margo.blocking_threads_max as usize,
            progress_spindown: millis(self.progress_spindown_msec),
            progress_timeout_max: millis(self.progress_timeout_ub_msec),
            monitoring: self.monitoring.clone(),
            monitor,
            providers,
            warnings,
        };
        Looked { resolved: Some(resolved), errors }
    }
}
