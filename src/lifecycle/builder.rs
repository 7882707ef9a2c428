//! The builder of an instance: what its configuration is, before it starts.

use std::sync::Arc;
use std::time::Duration;

use margo_config::{
    Config, DumpSignal, FabricSecurityMode, FabricSecurityOptions, LogLevel, PoolRef as PoolName,
    TcpSecurityMode, TcpSecurityOptions,
};
use ult::Runtime;

use crate::Instance;
use crate::lifecycle::runtime_source::RuntimeSource;
use crate::observe::monitor::{InitialMonitors, Monitor};

/// Collects settings for an instance; nothing is started before [`start`](Self::start).
///
/// A thin layer over [`Config`], which is the only home of defaults.
///
/// ```
/// use std::time::Duration;
///
/// use margo::Instance;
///
/// let instance = Instance::builder("na+sm://")
///     .use_progress_thread(true)
///     .rpc_thread_count(2)
///     .grace(Duration::from_secs(1))
///     .start()?;
/// // The primary execution stream, that of progress, and two for handlers.
/// assert_eq!(instance.layout().xstreams().len(), 4);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct InstanceBuilder {
    pub(super) config: Config,
    pub(super) home: RuntimeSource,
    pub(super) monitors: InitialMonitors,
    pub(super) driver: Option<device::Driver>,
}

impl InstanceBuilder {
    /// Starts from an existing configuration.
    pub fn from_config(config: Config) -> Self {
        let (home, monitors) = (RuntimeSource::default(), InitialMonitors::default());
        Self { config, home, monitors, driver: None }
    }

    /// The driver of the devices that `mercury.na_request_mem_device` asks for. Default: that of
    /// the machine. For tests.
    #[doc(hidden)]
    pub fn device_driver(mut self, driver: device::Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    fn config_mut(&mut self) -> &mut Config {
        &mut self.config
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

    /// Lets any peer that can reach this instance shut it down. Default: as configured, which is
    /// `false`. See
    /// [`InstanceNetwork::shutdown_remote`](crate::groups::InstanceNetwork::shutdown_remote).
    pub fn remote_shutdown(mut self, on: bool) -> Self {
        self.config.margo.remote_shutdown = on;
        self
    }

    /// Serves Prometheus at this address and port, such as `"127.0.0.1:9100"`; port 0 takes a free
    /// one, see
    /// [`InstanceMonitoring::metrics_addr`](crate::groups::InstanceMonitoring::metrics_addr).
    /// Default: as configured in `margo.metrics.listen`, which is not at all.
    pub fn metrics_listen(mut self, address: impl Into<String>) -> Self {
        self.config.margo.metrics.listen = Some(address.into());
        self
    }

    /// Lets any peer that can reach this instance read its metrics. Default: as configured in
    /// `margo.metrics.remote`, which is `false`. See
    /// [`InstanceNetwork::metrics_of`](crate::groups::InstanceNetwork::metrics_of).
    pub fn remote_metrics(mut self, on: bool) -> Self {
        self.config.margo.metrics.remote = on;
        self
    }

    /// Asks everybody for proof that they know the secret in this file. Over `na+tcp` that keeps
    /// connections private, too; over `ofi+…` and `ucx+…` nothing is encrypted. Default: as
    /// configured in `margo.security.tcp` and `margo.security.fabrics`, which is not; then an
    /// instance that other hosts reach over `na+tcp` does not start.
    ///
    /// ```no_run
    /// let service = margo::Instance::builder("na+tcp://0.0.0.0:7000")
    ///     .cluster_secret("/etc/margo/secret")
    ///     .start()?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Counterpart: none.
    pub fn cluster_secret(mut self, file: impl Into<String>) -> Self {
        let secret = Some(file.into());
        let address = &self.config.margo.address;
        let is_fabric = FabricSecurityOptions::concern(address);
        let security = self.config.margo.security.get_or_insert_default();
        if is_fabric {
            let mode = FabricSecurityMode::ClusterSecret;
            security.fabrics =
                Some(FabricSecurityOptions { mode, secret, ..FabricSecurityOptions::default() });
        } else {
            let mode = TcpSecurityMode::ClusterSecret;
            security.tcp =
                Some(TcpSecurityOptions { mode, secret, ..TcpSecurityOptions::default() });
        }
        self
    }

    /// How long a shutdown waits for running handlers, and again for each step and each callback
    /// that follows; see [`Instance::finalize`]. margo's own ULTs and the execution streams have at
    /// least 1 s. Rounded up to milliseconds. Default: as configured in `margo.grace_msec`, which
    /// is 5 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        let msec = grace.as_nanos().div_ceil(1_000_000);
        self.config.margo.grace_msec = u32::try_from(msec).unwrap_or(u32::MAX);
        self
    }

    /// Attaches a monitor before anything can happen; see
    /// [`InstanceMonitoring::add_monitor`](crate::groups::InstanceMonitoring::add_monitor). It
    /// stays for as long as the instance lives.
    ///
    /// Counterpart: `monitor` of `margo_init_info`.
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitors.0.push(monitor);
        self
    }

    /// Runs in the pools of `parent`, an instance of this process, in place of pools and execution
    /// streams of its own. Network, handlers, timers and statistics are its own.
    ///
    /// The configuration then says nothing of the layout: `argobots`, `use_progress_thread` and
    /// `rpc_thread_count` must be absent. `progress_pool`, `rpc_pool`, the pools of providers and
    /// all others are names or indices of the parent's pools, those by which
    /// [`find_pool`](crate::groups::InstanceLayout::find_pool) finds them there and in the child;
    /// the first two default to what they are there. Indices that the parent has given up are
    /// errors.
    ///
    /// A child keeps its parent running, and all pools that the parent had when the child started:
    /// they cannot be removed as long as it lives. Only the parent adds and removes pools and
    /// execution streams. Finalizing the parent finalizes its children first.
    ///
    /// ```
    /// use margo::Instance;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = Instance::builder("na+sm://").start()?;
    /// let remote = Instance::builder("na+tcp://127.0.0.1:0").parent(&local).start()?;
    /// assert_eq!(remote.layout().rpc_pool(), local.layout().rpc_pool());
    ///
    /// local.finalize_and_wait()?;
    /// assert!(remote.is_finalized());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A document for a child is read with [`Instance::init_child`], or with
    /// [`Config::from_json_with_parent`].
    ///
    /// Counterpart: `parent_mid` of `margo_init_ext`.
    pub fn parent(mut self, parent: &Instance) -> Self {
        self.home = RuntimeSource::Parent(parent.clone());
        self
    }

    /// Runs in the pools and execution streams of a runtime that the program made, in place of ones
    /// of its own. Several instances may share one.
    ///
    /// As with a [`parent`](Self::parent), the configuration then says nothing of the layout, and
    /// pool references in it are names or indices of the runtime's pools. `progress_pool` and
    /// `rpc_pool` default to the first pool of the xstream `__primary__`, or of the first one.
    ///
    /// The instance keeps the runtime, as a clone does, and ends before it: finalize, then shut the
    /// runtime down. Finalizing leaves pools and execution streams as they are, and ULTs that the
    /// program has spawned go on. A shutdown of the runtime before that fails and names the
    /// progress ULT. Pools and xstreams of the runtime that come later are made known with
    /// [`add_external_pool`](crate::groups::InstanceLayout::add_external_pool) and
    /// [`add_external_xstream`](crate::groups::InstanceLayout::add_external_xstream).
    ///
    /// Pools for handlers with smaller stacks than those of a document have by default (2 MiB,
    /// `ABT_THREAD_STACKSIZE`) are warned of in the log.
    ///
    /// A runtime without a monitor gets the stall detector of the first instance
    /// (`margo.stall_limit_msec`); one that has its own keeps it.
    ///
    /// ```
    /// use margo::{Instance, ProviderHandle, Rpc};
    /// use ult::{PoolSpec, Runtime, XstreamSpec};
    ///
    /// const DOUBLE: Rpc<u32, u32> = Rpc::new("double");
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder()
    ///     .pool(PoolSpec::new("net"))
    ///     .pool(PoolSpec::new("work"))
    ///     .xstream(XstreamSpec::new("a").pools(["net"]))
    ///     .xstream(XstreamSpec::new("b").pools(["work"]))
    ///     .start()?;
    /// let margo = Instance::builder("na+sm://")
    ///     .runtime(&runtime)
    ///     .progress_pool("net")
    ///     .rpc_pool("work")
    ///     .start()?;
    /// margo.serve(DOUBLE).function(|n| 2 * n)?;
    /// assert_eq!(margo.forward(DOUBLE, &ProviderHandle::from(margo.self_addr()), &21)?, 42);
    ///
    /// margo.finalize_and_wait()?;
    /// assert_eq!(runtime.pool("work").unwrap().spawn(|| 6 * 7)?.join()?, 42);
    /// runtime.shutdown()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Of [`start`](Self::start): [`InitError::Config`](crate::InitError::Config) if a pool or
    /// xstream has a name that no
    /// document could have (`argobots.pools[0]` is the first pool of the runtime), or no xstream
    /// runs a pool that is needed; [`InitError::PrivatePool`](crate::InitError::PrivatePool);
    /// [`InitError::Progress`](crate::InitError::Progress) if the
    /// runtime has been shut down.
    ///
    /// Counterpart: `margo_init_ext` after `ABT_init`, with `progress_pool` and `rpc_pool` of
    /// `margo_init_info`.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.home = RuntimeSource::Program(runtime.clone());
        self
    }

    /// The pool in which the progress ULT runs, by name or index. Default: as configured.
    ///
    /// Counterpart: `progress_pool` of `margo_init_info`.
    pub fn progress_pool(mut self, pool: impl Into<PoolName>) -> Self {
        self.config_mut().progress_pool = Some(pool.into());
        self
    }

    /// The pool in which handlers run that are registered without one, by name or index. Default:
    /// as configured.
    ///
    /// Counterpart: `rpc_pool` of `margo_init_info`.
    pub fn rpc_pool(mut self, pool: impl Into<PoolName>) -> Self {
        self.config_mut().rpc_pool = Some(pool.into());
        self
    }

    /// The least severe messages of this instance that reach the log. Default: as configured in
    /// `margo.log_level`, which is all of them; the environment variable `MARGO_LOG_LEVEL` wins.
    /// See [`InstanceMonitoring::set_log_level`](crate::groups::InstanceMonitoring::set_log_level).
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.config_mut().margo.log_level = Some(level);
        self
    }

    /// Writes the state of the instance to standard error at each such signal, with the stacks of
    /// its ULTs, as
    /// [`state_dump_with_stacks`](crate::groups::InstanceMonitoring::state_dump_with_stacks) has
    /// it: one JSON object. Default: as configured in `margo.dump_on_signal`, which is not at all.
    ///
    /// A thread of its own does that, so it works while execution streams are stuck. Several
    /// instances of a process may have the same signal; each answers. Other writers to standard
    /// error may come between the lines of the object. A handler that the program had for the
    /// signal before is called, too; one that it installs later takes its place. After the end of
    /// the instance the signal has no effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use margo::{Instance, config::DumpSignal};
    ///
    /// // Then: kill -USR1 <pid>
    /// let instance = Instance::builder("na+sm://").dump_on_signal(DumpSignal::Usr1).start()?;
    /// # instance.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Counterpart: none; programs of C call `margo_state_dump`.
    pub fn dump_on_signal(mut self, signal: DumpSignal) -> Self {
        self.config_mut().margo.dump_on_signal = Some(signal);
        self
    }
}
