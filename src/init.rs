//! From a configuration to a running instance: pools and execution streams, the network endpoint,
//! the RPC layer, the progress ULT, in this order; undone in reverse when one of them fails.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use margo_config::{ChecksumLevel, Config, NaAddrFormat, Resolved};
use ult::Runtime;

use crate::hg::{self, Core, HgOptions};
use crate::instance::{Counters, Inner};
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

/// Settings of the document that this version reads but cannot act on.
///
/// Each is something that can be lived without, so it is a warning.
fn without_effect(resolved: &Resolved) -> Vec<&'static str> {
    let mercury = &resolved.mercury;
    let given = [
        (mercury.na_no_retry, "mercury.na_no_retry"),
        (mercury.max_contexts > 1, "mercury.max_contexts"),
        (mercury.ip_subnet.is_some(), "mercury.ip_subnet"),
        (mercury.auth_key.is_some(), "mercury.auth_key"),
        (mercury.sm_info_string.is_some() && !mercury.auto_sm, "mercury.sm_info_string"),
        (mercury.na_request_mem_device, "mercury.na_request_mem_device"),
        (mercury.na_addr_format != NaAddrFormat::default(), "mercury.na_addr_format"),
        (resolved.enable_abt_profiling, "enable_abt_profiling"),
        (resolved.monitoring.is_some(), "monitoring"),
    ];
    given.into_iter().filter_map(|(given, key)| given.then_some(key)).collect()
}

fn start(resolved: Resolved, grace: Duration) -> Result<Instance, InitError> {
    for key in without_effect(&resolved) {
        tracing::warn!("{key}: has no effect in this version");
    }
    let runtime = start_runtime(&resolved)?;
    let undo = StopOnDrop(Some(runtime.clone()));
    let pools =
        resolved.pools.iter().filter_map(|pool| runtime.pool(&pool.name)).collect::<Vec<_>>();
    let core = start_core(&resolved)?;
    let inner = Arc::new(Inner {
        config: resolved.effective(),
        runtime,
        pools,
        core,
        progress: OnceLock::new(),
        shutdown: Shutdown::new(grace),
        counters: Counters::default(),
        resolved,
    });
    start_progress(&inner)?;
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

fn unsupported(path: String, what: impl std::fmt::Debug, help: &str) -> InitError {
    InitError::Unsupported { path, what: format!("`{what:?}`"), help: help.to_owned() }
}

fn start_core(resolved: &Resolved) -> Result<Arc<Core<Token>>, InitError> {
    let address = &resolved.address;
    let mercury = &resolved.mercury;
    let hg_options = hg_options(resolved)?;
    let mut options = na::OpenOptions::listening(resolved.listen);
    // Our transports have one limit for both kinds of message; 0 stands for their default.
    let largest = mercury.na_max_unexpected_size.max(mercury.na_max_expected_size) as usize;
    if let Some(bytes) = resolved.eager_size.or((largest > 0).then_some(largest)) {
        options.message_bytes_max = bytes;
    }
    if mercury.auto_sm {
        let name = mercury.sm_info_string.as_deref().unwrap_or_default();
        let is_address = name.contains("://");
        options.auto_sm =
            Some(if is_address { name.to_owned() } else { format!("na+sm://{name}") });
    }
    let endpoint = na::open(address, &options)
        .map_err(|source| InitError::Network { address: address.clone(), source })?;
    Core::new(endpoint, hg_options)
        .map_err(|source| InitError::Rpc { address: address.clone(), source })
}

fn hg_options(resolved: &Resolved) -> Result<HgOptions, InitError> {
    let defaults = HgOptions::default();
    let request_post_init = match resolved.mercury.request_post_init as usize {
        0 => defaults.request_post_init,
        // Each is a message buffer, allocated at once.
        receives if receives > defaults.requests_max => {
            let path = "mercury.request_post_init".to_owned();
            let help = format!("use at most {}", defaults.requests_max);
            return Err(unsupported(path, receives, &help));
        }
        receives => receives,
    };
    let checksum_level = match resolved.mercury.checksum_level {
        ChecksumLevel::None => hg::ChecksumLevel::None,
        ChecksumLevel::RpcHeaders => hg::ChecksumLevel::Headers,
        ChecksumLevel::RpcPayload => hg::ChecksumLevel::Payload,
    };
    // Only headers of a build with checksum support have room for them.
    let protected = checksum_level != hg::ChecksumLevel::None;
    let request_post_incr = match resolved.mercury.request_post_incr as usize {
        0 => defaults.request_post_incr,
        receives => receives,
    };
    Ok(HgOptions {
        build: if protected { hg::Build::Checksum } else { defaults.build },
        checksum_level,
        listen: resolved.listen,
        request_post_init,
        request_post_incr,
        stats: resolved.mercury.stats,
        bulk_eager: !resolved.mercury.no_bulk_eager,
        loopback: !resolved.mercury.no_loopback,
        // A handler may run for long, and wait for other requests.
        release_input_early: true,
        ..defaults
    })
}

fn start_progress(inner: &Arc<Inner>) -> Result<(), InitError> {
    let pool = &inner.pools[inner.resolved.progress_pool];
    let own = inner.clone();
    let handed_over = Arc::new(ult::Eventual::new());
    let mine = handed_over.clone();
    pool.ult().name("margo progress").spawn_detached(move || {
        let progress = own.progress.get_or_init(|| Progress::new(ult::unparker()));
        let _ = mine.set(());
        progress::run(&own, progress);
    })?;
    handed_over.wait();
    Ok(())
}
