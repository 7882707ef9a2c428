//! From a configuration to a running instance: pools and execution streams, the network endpoint,
//! the RPC layer, the progress ULT, in this order. They are undone in reverse when one of them
//! fails. A failure after that finalizes the instance, and waits for its end.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hg::{Core, Membership};
use margo_config::{Config, Resolved, ResolvedFabricSecurity};
use na::fork::Process;
use ult::{MonitorSpec, PoolRef, Report, Runtime, StartError};

use crate::admission::counters::Counters;
use crate::admission::gates::Gates;
use crate::admission::identities::Identities;
use crate::admission::moved_requests::MovedRequests;
use crate::admission::request_shares::RequestShares;
use crate::admission::rules::Rules;
use crate::api::{monitoring, profiling};
use crate::bulk::staged;
use crate::elastic::{Elastic, RuntimeOwner};
use crate::instance::descriptions::Descriptions;
use crate::instance::inner::Inner;
use crate::instance::instance_tree::InstanceTree;
use crate::instance::provider_configs::ProviderConfigs;
use crate::instance::shutdown::{Shutdown, own_grace};
use crate::layout::network_check::{check_network, not_opened};
use crate::layout::options::{hg_options, na_options, start_warnings};
use crate::lifecycle::builder::InstanceBuilder;
use crate::lifecycle::runtime_source::{self, RuntimeSource};
use crate::lifecycle::{child, remote_shutdown, shutdown};
use crate::memory::{copy_pool, device::Devices, pool::Pools};
use crate::observe::audit::Audit;
use crate::observe::dump_signal::DumpOnSignal;
use crate::observe::metrics::{self, Listener, Watched};
use crate::observe::monitor::{self, InitialMonitors, Monitoring};
use crate::observe::profile::{self, Profile};
use crate::observe::trace::Tracer;
use crate::operation::cancel::Cancels;
use crate::operation::standing_transfers::StandingTransfers;
use crate::operation::token::Token;
use crate::polling::driver;
use crate::progress::shards::{Shard, Shards};
use crate::progress::surplus::Surplus;
use crate::progress::when_needed::WhenNeeded;
use crate::report::{ping, port, remote, state_dump};
use crate::support::log::{Log, log};
use crate::timer::Timers;
use crate::{AddressFile, InitError, Instance, Layout};

/// Starts an instance from a JSON document.
///
/// All keys are optional; `{}` listens on `na+sm://` with one execution stream. The keys are those
/// of C Margo plus an own object `margo`; see `docs/configuration.md` and `config/samples/`.
///
/// # Errors
///
/// [`InitError`]: all that is wrong with the document at once, or what could not be started.
///
/// Counterpart: `margo_init_ext`.
pub fn init(json: &str) -> Result<Instance, InitError> {
    Instance::from_config(&Config::from_json(json)?)
}

impl InstanceBuilder {
    /// Starts the instance.
    ///
    /// # Errors
    ///
    /// As [`init`].
    pub fn start(self) -> Result<Instance, InitError> {
        let config = self.home.complete(&self.config)?;
        let resolved = config.resolve(&|key| std::env::var(key).ok())?;
        let log = crate::support::log::configured(resolved.log_level);
        let is_own = |path: &str| is_own(&self.home, path);
        for warning in resolved.warnings.iter().filter(|warning| is_own(&warning.path)) {
            log!(log, WARN, "{warning}");
        }
        let (instance, listener) = start(resolved, &self.home, (log, self.monitors))?;
        let parent = self.home.parent();
        let done = complete(&instance, listener, parent)
            .and_then(|()| staged::make_ready(&instance, self.driver))
            .and_then(|()| write_address_file(&instance));
        match done {
            Ok(()) => Ok(instance),
            Err(error) => {
                // Its address and ports are free again when this returns. What did not end in its
                // grace period has been logged; in a tasklet, which cannot wait, it ends later.
                let _ = instance.finalize_and_wait();
                Err(error)
            }
        }
    }
}

/// Starts the parts of an instance that need progress.
fn complete(
    instance: &Instance,
    listener: Option<Listener>,
    parent: Option<&Instance>,
) -> Result<(), InitError> {
    answer_signal(instance.inner())?;
    if let Some(listener) = listener {
        serve_metrics(instance, listener)?;
    }
    monitoring::start(instance);
    profiling::start(instance);
    remote_shutdown::register(instance)?;
    remote::register(instance)?;
    ping::register(instance)?;
    if let Some(parent) = parent {
        child::enter(instance, parent)?;
    }
    Ok(())
}

impl Instance {
    /// Starts from the defaults for `address`, for example `na+sm://` or `na+tcp://127.0.0.1:0`.
    ///
    /// Counterpart: `margo_init`.
    pub fn builder(address: impl Into<String>) -> InstanceBuilder {
        let mut config = Config::default();
        config.margo.address = address.into();
        InstanceBuilder::from_config(config)
    }

    /// Starts an instance from a configuration value.
    ///
    /// # Errors
    ///
    /// As [`init`].
    pub fn from_config(config: &Config) -> Result<Self, InitError> {
        InstanceBuilder::from_config(config.clone()).start()
    }
}

fn start(
    resolved: Resolved,
    home: &RuntimeSource,
    (log, monitors): (Log, InitialMonitors),
) -> Result<(Instance, Option<Listener>), InitError> {
    na::keep_standard_descriptors();
    check(&resolved)?;
    warn_of_settings(&resolved, home, &monitors, &log);
    let dump_on_signal = resolved.dump_on_signal.map(DumpOnSignal::register).transpose()?;
    // A port that is taken is found before anything is started.
    let bind = |listen: &String| Listener::bind(listen).map_err(no_metrics(listen));
    let listener = resolved.metrics.listen.as_ref().map(bind).transpose()?;
    let stalls = Arc::new(AtomicU64::new(0));
    let watched = watched(home);
    let detector = resolved.stall_limit.map(|limit| stall_detector(limit, &stalls, &watched));
    let (runtime, undo) = runtime_of(home, &resolved, detector, &log)?;
    let pools = runtime_source::pools(&resolved, &runtime)?;
    if home.runtime_owner() == RuntimeOwner::Program {
        runtime_source::warn_of_small_stacks(&resolved, &pools, &log);
    }
    let audit = open_audit(&resolved, &log)?;
    let cores = start_cores(&resolved, &pools, (audit.as_ref(), &log))?;
    let core = cores[0].clone();
    log.set_name(core.self_addr().uri());
    audit.iter().for_each(|audit| audit.started(core.self_addr().uri()));
    let shard = |core| Shard::new(core, RequestShares::of_shard(&resolved));
    let shards = Shards::new(cores.into_iter().map(shard).collect());
    let shard_pools = shard_pools(&resolved, &pools);
    let inner = Arc::new(Inner {
        elastic: Arc::new(Elastic::new(&resolved, &runtime, &pools)),
        runtime,
        surplus: resolved.share_from.and_then(|from| Surplus::new(from, &shard_pools)),
        shard_pools: Mutex::new(shard_pools),
        pools,
        cancels: Cancels::new(core.idle_watches_max()),
        core,
        shutdown: Shutdown::new(resolved.grace, shards.count()),
        begin_end: shutdown::begin,
        callbacks: Arc::default(),
        rules: resolved.security.clone().filter(|given| given.has_rules()).map(Rules::new),
        audit,
        gates: Gates::new(shards.are_several()),
        standing_transfers: StandingTransfers::new(resolved.bulk.timeout_msec),
        moved_requests: MovedRequests::default(),
        shards,
        counters: Counters { stalls, ..Counters::default() },
        timers: Timers::new(log.clone()),
        tree: InstanceTree::new(home.parent()),
        runtime_owner: home.runtime_owner(),
        process: Process::current(),
        remote_shutdown: AtomicBool::new(resolved.remote_shutdown),
        address_file: OnceLock::new(),
        when_needed: WhenNeeded::new(resolved.progress_when_needed),
        identities: Identities::default(),
        descriptions: Descriptions::default(),
        provider_configs: ProviderConfigs::default(),
        metrics: metrics::MetricsState::new(watched, resolved.metrics.remote),
        monitoring: Monitoring::new(monitors, log.clone()),
        dump_on_signal,
        log,
        sampling: OnceLock::new(),
        bulk_pools: Pools::default(),
        devices: Devices::default(),
        profile: Profile::default(),
        resolved,
    });
    na::run_blocking_by(ult::integration::blocking_reserved);
    start_trace(&inner)?;
    inner.metrics.watched.add(Arc::downgrade(&inner) as _);
    start_progress(&inner)?;
    undo.keep();
    Ok((Instance::new(inner), listener))
}

fn watched(home: &RuntimeSource) -> Arc<Watched> {
    match home {
        RuntimeSource::Own => Arc::default(),
        RuntimeSource::Parent(parent) => parent.inner().metrics.watched.clone(),
        RuntimeSource::Program(runtime) => Watched::of_program(runtime),
    }
}

/// Refuses what could not be opened, and files that could not be written at the end, before
/// anything is started.
fn check(resolved: &Resolved) -> Result<(), InitError> {
    check_network(resolved)?;
    monitor::files::check(resolved)?;
    profile::check(resolved)
}

/// Returns whether a warning is this instance's to tell. Those of a parent's layout have been told
/// when it started; a program's is its own affair.
fn is_own(home: &RuntimeSource, path: &str) -> bool {
    home.runtime_owner() == RuntimeOwner::Own || !path.starts_with("argobots")
}

/// Says which settings of the document come to nothing, or to something else than in C.
fn warn_of_settings(
    resolved: &Resolved,
    home: &RuntimeSource,
    monitors: &InitialMonitors,
    log: &Log,
) {
    for line in start_warnings(resolved).iter().filter(|line| is_own(home, line)) {
        log!(log, WARN, "{line}");
    }
    let other = resolved.monitoring.as_ref().filter(|_| resolved.monitor.is_none());
    if let Some(name) = other.and_then(|monitoring| monitoring.get("name"))
        && monitors.0.is_empty()
    {
        log!(log, WARN, "monitoring.name: {name} is not here: the program attaches no monitor");
    }
}

/// Writes the file of `margo.address_file`. Last, when clients that read it can be served.
fn write_address_file(instance: &Instance) -> Result<(), InitError> {
    let inner = instance.inner();
    let resolved = &inner.resolved;
    let Some(path) = resolved.address_file.as_ref().filter(|_| resolved.listen) else {
        return Ok(());
    };
    let file = AddressFile::write(path, instance.self_addr().uri())
        .map_err(|source| InitError::AddressFile { path: path.into(), source })?;
    // Nobody was here before.
    let _ = inner.address_file.set(file);
    Ok(())
}

/// Starts the thread of `margo.dump_on_signal`.
fn answer_signal(inner: &Arc<Inner>) -> Result<(), InitError> {
    match (&inner.dump_on_signal, inner.resolved.dump_on_signal) {
        (Some(dump), Some(signal)) => {
            // Not a count of the instance while it waits.
            let own = Arc::downgrade(inner);
            let take =
                move || own.upgrade().map(|inner| state_dump::with_stacks(&inner).to_string());
            dump.answer_for(signal, inner.log.clone(), take)
        }
        _ => Ok(()),
    }
}

/// Begins the file of `margo.trace`, if there is to be one.
fn start_trace(inner: &Arc<Inner>) -> Result<(), InitError> {
    let options = &inner.resolved.trace;
    if !options.enable {
        return Ok(());
    }
    let address = inner.core.self_addr().to_string();
    let start =
        || Tracer::start(options, address, Arc::new(Arc::downgrade(inner)), inner.log.clone());
    let tracer = inner.monitoring.trace_with(start);
    let tracer = tracer.map_err(|(path, source)| InitError::Trace { path, source })?;
    log!(inner.log, INFO, path = %tracer.path().display(), "recording calls");
    Ok(())
}

fn open_audit(resolved: &Resolved, log: &Log) -> Result<Option<Arc<Audit>>, InitError> {
    let options = resolved.security.as_ref().and_then(|security| security.options.audit.as_ref());
    let start = |options| Audit::start(options, log.clone()).map(Arc::new);
    options.map(start).transpose().map_err(|(path, source)| InitError::Audit { path, source })
}

fn no_metrics(listen: &str) -> impl Fn(std::io::Error) -> InitError {
    move |source| InitError::Metrics { listen: listen.to_owned(), source }
}

fn serve_metrics(instance: &Instance, listener: Listener) -> Result<(), InitError> {
    let inner = instance.inner();
    let weak = Arc::downgrade(inner);
    let body = move |content| Some(port::body(&*weak.upgrade()?, content));
    let listen = inner.resolved.metrics.listen.as_deref().unwrap_or_default();
    inner.metrics.server.start(listener, inner.log.clone(), body).map_err(no_metrics(listen))?;
    if let Some(address) = inner.metrics.server.address() {
        log!(inner.log, INFO, "metrics are at http://{address}/metrics");
    }
    Ok(())
}

/// The runtime of the instance, and what ends it again.
fn runtime_of(
    home: &RuntimeSource,
    resolved: &Resolved,
    detector: Option<MonitorSpec>,
    log: &Log,
) -> Result<(Runtime, StopOnDrop), InitError> {
    Ok(match home {
        RuntimeSource::Own => {
            let runtime = start_runtime(resolved, detector)?;
            (runtime.clone(), StopOnDrop(Some((runtime, resolved.grace))))
        }
        RuntimeSource::Parent(parent) => (parent.runtime().clone(), StopOnDrop(None)),
        RuntimeSource::Program(runtime) => {
            watch(runtime, detector, log)?;
            (runtime.clone(), StopOnDrop(None))
        }
    })
}

/// Ends the execution streams again when a later step of `start` fails.
struct StopOnDrop(Option<(Runtime, Duration)>);

impl StopOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some((runtime, grace)) = self.0.take()
            && let Err(error) = runtime.shutdown_timeout(own_grace(grace))
        {
            tracing::tell(|| tracing::error!(%error, "cannot undo a failed start"));
        }
    }
}

/// Pools that no xstream serves are added afterwards: the runtime takes them for a mistake, while
/// in C Margo an xstream may come later ([`Instance::runtime`]). The configuration has warned.
fn start_runtime(resolved: &Resolved, detector: Option<MonitorSpec>) -> Result<Runtime, InitError> {
    let layout = Layout::plan(resolved)?;
    let mut builder = Runtime::builder()
        .stack_bytes(resolved.stack_bytes)
        .stack_cache_max(resolved.stack_cache_max)
        .spin_max(resolved.spin_max)
        .blocking_threads_max(resolved.blocking_threads_max);
    if let Some(detector) = detector {
        builder = builder.monitor(detector);
    }
    let (served, unserved): (Vec<_>, Vec<_>) =
        layout.pools.iter().partition(|pool| !pool.xstreams.is_empty());
    for pool in served {
        builder = builder.pool(pool.spec());
    }
    for xstream in &layout.xstreams {
        builder = builder.xstream(xstream.spec());
    }
    let runtime = builder.start().map_err(|error| layout.locate(resolved, error))?;
    let undo = StopOnDrop(Some((runtime.clone(), resolved.grace)));
    for pool in unserved {
        runtime.add_pool(pool.spec()).map_err(|error| layout.locate(resolved, error))?;
    }
    undo.keep();
    Ok(runtime)
}

/// Looks at counters only, so that it costs nothing elsewhere; logs, and counts in `stalls`.
fn stall_detector(limit: Duration, stalls: &Arc<AtomicU64>, watched: &Arc<Watched>) -> MonitorSpec {
    const TICK_MAX: Duration = Duration::from_millis(250);
    let (stalls, watched) = (stalls.clone(), watched.clone());
    MonitorSpec::new()
        .lazy()
        .stall_limit(limit)
        .starve_limit(Some(limit))
        .tick((limit / 4).min(TICK_MAX))
        .on_report(move |report| {
            if let Report::Stall(_) | Report::Starvation(_) = report {
                Counters::add(&stalls);
            }
        })
        .on_tick(move || watched.note())
}

/// Has the detector look at a runtime of the program's, unless one looks already.
fn watch(runtime: &Runtime, detector: Option<MonitorSpec>, log: &Log) -> Result<(), InitError> {
    match detector.map(|detector| runtime.watch(detector)) {
        Some(Err(StartError::Monitored)) => {
            log!(log, DEBUG, "the runtime has a monitor: margo.stall_limit_msec has no effect");
            Ok(())
        }
        Some(result) => Ok(result?),
        None => Ok(()),
    }
}

/// Starts the shards, in the order of their progress pools.
fn start_cores(
    resolved: &Resolved,
    pools: &[PoolRef],
    (audit, log): (Option<&Arc<Audit>>, &Log),
) -> Result<Vec<Arc<Core<Token>>>, InitError> {
    let address = &resolved.address;
    let mut hg_options = hg_options(resolved);
    hg_options.log = log.clone();
    let mut options = na_options(resolved);
    options.copy_helper = resolved.copy_pool.map(|pool| copy_pool::helper(pools[pool].clone()));
    options.sessions = audit.map(|audit| {
        let audit = audit.clone();
        na::SessionObserver::new(move |news| audit.session(news))
    });
    let count = resolved.progress_pools().count();
    let group = na::open_group(address, &options, count);
    let endpoints = group.map_err(|source| not_opened(resolved, source))?;
    hg_options.membership = membership(resolved, options.sessions)?;
    // Who has said which build the peers are need not ask them.
    hg_options.ask_build = resolved.mercury_build.is_none();
    Core::group(endpoints, hg_options)
        .map_err(|source| InitError::Rpc { address: address.clone(), source })
}

/// The proof that is asked of peers over fabrics.
fn membership(
    resolved: &Resolved,
    observer: Option<na::SessionObserver>,
) -> Result<Option<Membership>, InitError> {
    let fabrics = resolved.security.as_ref().map(|security| &security.fabrics);
    let Some(ResolvedFabricSecurity::ClusterSecret { secret, strangers }) = fabrics else {
        return Ok(None);
    };
    let loaded = Membership::load(secret).map_err(|reason| {
        let error = margo_config::Error::new("margo.security.fabrics", reason);
        InitError::Config(error.into())
    })?;
    Ok(Some(loaded.calling_strangers(*strangers).observed_by(observer)))
}

/// The pools of handlers by shard: where handlers without a pool of their own run in that of
/// progress.
fn shard_pools(resolved: &Resolved, pools: &[PoolRef]) -> Vec<PoolRef> {
    let are_by_shard = resolved.rpc_pool == resolved.progress_pool;
    let of_shards = resolved.progress_pools().filter(|_| are_by_shard);
    of_shards.map(|pool| pools[pool].clone()).collect()
}

/// In all shards, or in none.
fn start_progress(inner: &Arc<Inner>) -> Result<(), InitError> {
    inner.shards.iter().for_each(|shard| driver::set_waker(inner, &shard.core));
    let mut pools = (0..).zip(inner.resolved.progress_pools());
    let started =
        pools.try_for_each(|(shard, pool)| start_progress_of(inner, shard, &inner.pools[pool]));
    started.inspect_err(|_| {
        shutdown::stop_progress(inner);
    })
}

fn start_progress_of(inner: &Arc<Inner>, shard: u8, pool: &PoolRef) -> Result<(), InitError> {
    // Ours are not, whatever the document says; see `layout/plan.rs`.
    if pool.access() == ult::Access::Private {
        return Err(InitError::PrivatePool { pool: pool.name().to_owned() });
    }
    let arrived = Arc::new(ult::Eventual::new());
    driver::start(inner, shard, pool, arrived.clone())?;
    match arrived.wait() {
        Ok(()) => Ok(()),
        // The first one has nobody to succeed, so nothing else can be in its way.
        Err(_) => {
            let bytes = pool.stack_bytes();
            Err(InitError::NoStack { pool: pool.name().to_owned(), bytes })
        }
    }
}
