//! From a configuration to a running instance: pools and execution streams, the network endpoint,
//! the RPC layer, the progress ULT, in this order; undone in reverse when one of them fails.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use margo_config::{Config, Resolved};
use ult::{PoolRef, Runtime};

use crate::contexts::Context;
use crate::hg::Core;
use crate::identity::Identities;
use crate::instance::{Counters, Inner};
use crate::options::{hg_options, na_options, without_effect};
use crate::progress::{self, Progress, Token};
use crate::shutdown::Shutdown;
use crate::{InitError, Instance, Layout};

/// How long a shutdown waits for running handlers, unless
/// [`InstanceBuilder::grace`] says otherwise.
const GRACE: Duration = Duration::from_secs(5);

/// Starts an instance from a JSON document.
///
/// All keys are optional; `{}` listens on `na+sm://` with one execution stream. The keys are those
/// of C Margo plus an own object `margo`; see the README and `config/samples/`.
///
/// # Errors
///
/// [`InitError`]: all that is wrong with the document at once, or what could not be started.
///
/// Counterpart: `margo_init_ext`.
pub fn init(json: &str) -> Result<Instance, InitError> {
    Instance::from_config(&Config::from_json(json)?)
}

/// Collects settings for an instance; nothing is started before [`start`](Self::start).
///
/// A thin layer over [`Config`], which is the only home of defaults.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct InstanceBuilder {
    config: Config,
    grace: Duration,
}

impl InstanceBuilder {
    /// Starts from an existing configuration.
    pub fn from_config(config: Config) -> Self {
        Self { config, grace: GRACE }
    }

    /// Accepts incoming RPCs. Default: as configured, which is `true`.
    pub fn listen(mut self, on: bool) -> Self {
        self.config.margo.listen = on;
        self
    }

    /// Gives progress an execution stream of its own. Default `false`: it shares the primary one
    /// with the handlers.
    pub fn use_progress_thread(mut self, on: bool) -> Self {
        self.config.use_progress_thread = on;
        self
    }

    /// How many execution streams of their own the handlers get. Default 0: they share the primary
    /// one; negative: they share that of progress.
    pub fn rpc_thread_count(mut self, count: i32) -> Self {
        self.config.rpc_thread_count = count;
        self
    }

    /// How long a shutdown waits for running handlers, and again for other ULTs. Default 5 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts the instance.
    ///
    /// # Errors
    ///
    /// As [`init`].
    pub fn start(self) -> Result<Instance, InitError> {
        let resolved = self.config.resolve(&|key| std::env::var(key).ok())?;
        for warning in &resolved.warnings {
            tracing::warn!("{warning}");
        }
        start(resolved, self.grace)
    }
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

fn start(resolved: Resolved, grace: Duration) -> Result<Instance, InitError> {
    for key in without_effect(&resolved) {
        tracing::warn!("{key}: has no effect in this version");
    }
    let runtime = start_runtime(&resolved)?;
    let undo = StopOnDrop(Some(runtime.clone()));
    let pools =
        resolved.pools.iter().filter_map(|pool| runtime.pool(&pool.name)).collect::<Vec<_>>();
    let core = start_core(&resolved, &pools)?;
    let more_contexts = more_contexts(&resolved, &core)?;
    let inner = Arc::new(Inner {
        config: resolved.effective(),
        runtime,
        pools,
        core,
        progress: OnceLock::new(),
        shutdown: Shutdown::new(grace, more_contexts.len() + 1),
        more_contexts,
        counters: Counters::default(),
        identities: Identities::default(),
        resolved,
    });
    for (id, pool) in inner.resolved.progress_pools().enumerate() {
        if let Err(error) = start_progress(&inner, id, &inner.pools[pool]) {
            crate::shutdown::stop_progress(&inner);
            return Err(error);
        }
    }
    undo.keep();
    Ok(Instance::new(inner))
}

/// Ends the execution streams again when a later step of `start` fails.
struct StopOnDrop(Option<Runtime>);

impl StopOnDrop {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take()
            && let Err(error) = runtime.shutdown_timeout(GRACE)
        {
            tracing::error!(%error, "cannot undo a failed start");
        }
    }
}

/// Pools that no xstream serves are added afterwards: the runtime takes them for a mistake, while
/// in C Margo an xstream may come later ([`Instance::runtime`]). The configuration has warned.
fn start_runtime(resolved: &Resolved) -> Result<Runtime, InitError> {
    let layout = Layout::plan(resolved)?;
    let mut builder = Runtime::builder()
        .stack_bytes(resolved.stack_bytes)
        .stack_cache_max(resolved.stack_cache_max)
        .spin_max(resolved.spin_max);
    let (served, unserved): (Vec<_>, Vec<_>) =
        layout.pools.iter().partition(|pool| !pool.xstreams.is_empty());
    for pool in served {
        builder = builder.pool(pool.spec());
    }
    for xstream in &layout.xstreams {
        builder = builder.xstream(xstream.spec());
    }
    let runtime = builder.start().map_err(|error| layout.locate(error))?;
    let undo = StopOnDrop(Some(runtime.clone()));
    for pool in unserved {
        runtime.add_pool(pool.spec()).map_err(|error| layout.locate(error))?;
    }
    undo.keep();
    Ok(runtime)
}

fn start_core(resolved: &Resolved, pools: &[PoolRef]) -> Result<Arc<Core<Token>>, InitError> {
    let address = &resolved.address;
    let hg_options = hg_options(resolved)?;
    let mut options = na_options(resolved);
    options.copy_helper =
        resolved.copy_pool.map(|pool| crate::copy_pool::helper(pools[pool].clone()));
    let endpoint = na::open(address, &options)
        .map_err(|source| InitError::Network { address: address.clone(), source })?;
    Core::new(endpoint, hg_options)
        .map_err(|source| InitError::Rpc { address: address.clone(), source })
}

/// Contexts beside context 0, in the order of their progress pools.
fn more_contexts(
    resolved: &Resolved,
    core: &Arc<Core<Token>>,
) -> Result<Box<[Context]>, InitError> {
    let make = |_| core.context().map(Context::new);
    resolved
        .more_progress_pools
        .iter()
        .map(make)
        .collect::<Result<_, _>>()
        .map_err(|source| InitError::Rpc { address: resolved.address.clone(), source })
}

fn start_progress(inner: &Arc<Inner>, context: usize, pool: &PoolRef) -> Result<(), InitError> {
    let own = inner.clone();
    let handed_over = Arc::new(ult::Eventual::new());
    let mine = handed_over.clone();
    pool.ult().name("margo progress").spawn_detached(move || {
        let (core, progress) = own.context(context);
        let rank = own.runtime.rank_here().unwrap_or_default();
        let progress = progress.get_or_init(|| Progress::new(ult::unparker(), rank));
        let _ = mine.set(());
        progress::run(&own, core, progress);
    })?;
    handed_over.wait();
    Ok(())
}
