//! The pools and execution streams that an instance runs in: its own, those of another instance
//! ([`child`]), or those of a runtime that the program made.
//!
//! The last two are one case: the layout is there already, so the document only places roles in it,
//! and the end of the instance leaves it alone. They differ in the description of the layout: the
//! parent's document, or [`describe`].

use std::borrow::Cow;
use std::collections::BTreeSet;

use margo_config::{Argobots, Config, Resolved, ResolvedPool};
use ult::{Runtime, XstreamRef, XstreamState};

use crate::elastic::RuntimeOwner;
use crate::reshaping::change::{described, described_xstream};
use crate::support::log::{Log, log};
use crate::{InitError, Instance, lifecycle::child};

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
    pub(crate) fn runtime_owner(&self) -> RuntimeOwner {
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
