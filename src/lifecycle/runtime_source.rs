//! The pools and execution streams that an instance runs in: its own, those of another instance
//! ([`child`]), or those of a runtime that the program made.
//!
//! The last two are one case: the layout is there already, so the document only places roles in it,
//! and the end of the instance leaves it alone. They differ in the description of the layout: the
//! parent's document, or [`describe`].

use std::borrow::Cow;
use std::collections::BTreeSet;

use margo_config::{Argobots, Config, PoolRef as PoolName, Resolved, ResolvedPool};
use ult::{Runtime, XstreamRef, XstreamState};

use crate::elastic::{RuntimeOwner, described, described_xstream};
use crate::support::log::{Log, log};
use crate::{InitError, Instance, InstanceBuilder, lifecycle::child};

/// The owner of the pools and execution streams that an instance uses.
#[derive(Debug, Clone, Default)]
pub(crate) enum RuntimeSource {
    /// The instance's own: it makes and ends them.
    #[default]
    Own,
    /// Those in which this instance runs.
    Parent(Instance),
    /// The program's.
    Program(Runtime),
}

impl RuntimeSource {
    pub(crate) fn landlord(&self) -> RuntimeOwner {
        match self {
            Self::Own => RuntimeOwner::Own,
            Self::Parent(_) => RuntimeOwner::Parent,
            Self::Program(_) => RuntimeOwner::Program,
        }
    }

    pub(crate) fn parent(&self) -> Option<&Instance> {
        match self {
            Self::Parent(parent) => Some(parent),
            _ => None,
        }
    }

    /// The document with the layout that it is for.
    pub(crate) fn complete<'c>(&self, config: &'c Config) -> Result<Cow<'c, Config>, InitError> {
        let waits_for = |runtime: &Runtime| ult::is_tasklet() && runtime.is_current();
        match self {
            Self::Parent(parent) if waits_for(parent.runtime()) => Err(InitError::Inline),
            Self::Program(runtime) if waits_for(runtime) => Err(InitError::Inline),
            Self::Own => Ok(config.with_places_as_indices()),
            Self::Parent(parent) => Ok(Cow::Owned(child::adopt(config, parent)?)),
            Self::Program(runtime) => Ok(Cow::Owned(config.with_layout_of(&describe(runtime))?)),
        }
    }
}

/// The pools of a resolved document in a runtime that is there already, as the document numbers
/// them.
pub(crate) fn pools(
    resolved: &Resolved,
    runtime: &Runtime,
) -> Result<Vec<ult::PoolRef>, InitError> {
    let find = |pool: &ResolvedPool| {
        let found = runtime.pool(&pool.name);
        found.ok_or_else(|| InitError::PoolGone { pool: pool.name.clone() })
    };
    resolved.pools.iter().map(find).collect()
}

/// Warns of small stacks in a runtime that the program made. Handlers are written for stacks as
/// large as a document's are by default, or as the environment says; one that needs more than it
/// has ends the process.
pub(crate) fn warn_of_small_stacks(resolved: &Resolved, pools: &[ult::PoolRef], log: &Log) {
    let wanted = resolved.stack_bytes;
    let of_providers = resolved.providers.iter().map(|provider| provider.pool);
    let used: BTreeSet<_> = of_providers.chain([resolved.rpc_pool]).collect();
    for pool in used.into_iter().map(|pool| &pools[pool]) {
        let (name, bytes) = (pool.name(), pool.stack_bytes());
        if bytes < wanted {
            log!(
                log,
                WARN,
                "pool `{name}`: handlers have stacks of {bytes} bytes there, and not of {wanted}; \
                 see `RuntimeBuilder::stack_bytes`, or say what is enough in ABT_THREAD_STACKSIZE"
            );
        }
    }
}

/// A document that says of a runtime what a document can.
fn describe(runtime: &Runtime) -> Config {
    let runs = |xstream: &XstreamRef| {
        matches!(xstream.state(), XstreamState::Running | XstreamState::Idle)
    };
    let xstreams = runtime.xstreams();
    let xstreams = xstreams.iter().filter(|xstream| runs(xstream)).map(described_xstream);
    Config {
        argobots: Argobots {
            pools: runtime.pools().iter().map(described).collect(),
            xstreams: xstreams.collect(),
            external: true,
            ..Argobots::default()
        },
        ..Config::default()
    }
}

impl InstanceBuilder {
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
    /// [`add_external_pool`](Instance::add_external_pool) and
    /// [`add_external_xstream`](Instance::add_external_xstream).
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
    /// Of [`start`](Self::start): [`InitError::Config`] if a pool or xstream has a name that no
    /// document could have (`argobots.pools[0]` is the first pool of the runtime), or no xstream
    /// runs a pool that is needed; [`InitError::PrivatePool`]; [`InitError::Progress`] if the
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
}
