//! From the pools and xstreams of a configuration to those of a runtime on this machine.
//!
//! [`Layout::plan`] is the only place that knows how names of the document map to parts of [`ult`],
//! and what this machine has. It starts nothing, so it also serves to look at a document
//! ([`Layout::of`]).
//!
//! | document | runtime |
//! |---|---|
//! | `kind` | [`ult::PoolKind`] of the same name |
//! | `access` | [`ult::Access`] of the same name; `private` is `mpsc` for the progress pool, because the progress ULT is spawned from outside, and for a pool at whose bounds requests wait, because whoever answers one lets the next one in |
//! | `scheduler.type` | `basic`, `prio`, `randws`: the scheduler of that name; `basic_wait` and `default`: [`ult::BasicWait`] |
//! | `cpubind`, `affinity` | the CPUs, after a look at [`Topology`] |
//! | `numa_node` | memory of stacks; by default the node that all xstreams of the pool are bound to |

mod explain;

use std::fmt;

use margo_config::{Affinity, Config, Overload, PoolAccess, PoolKind, Resolved, SchedulerKind};
use margo_config::{ResolvedPool, ResolvedXstream};
use serde::Serialize;
use ult::{CpuSet, Place, PoolSpec, StartError, Topology, TopologyError, XstreamSpec};

use crate::InitError;
use crate::error::{LayoutError, LayoutErrors, chain};

/// The layout that a configuration leads to on this machine: pools, xstreams, and where they are
/// bound.
///
/// `Display` prints it for people, a line each.
///
/// ```
/// use margo::{config::Config, elasticity::Layout};
///
/// let layout = Layout::of(&Config::from_json(r#"{ "use_progress_thread": true }"#)?)?;
/// assert_eq!(layout.xstreams.len(), 2);
/// print!("{layout}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Layout {
    /// The pools, in the order of the effective configuration.
    pub pools: Vec<LayoutPool>,
    /// The xstreams, in the order of the effective configuration.
    pub xstreams: Vec<LayoutXstream>,
}

/// One pool of a [`Layout`].
///
/// ```
/// use margo::{config::Config, elasticity::Layout};
///
/// let layout = Layout::of(&Config::from_json(r#"{ "use_progress_thread": true }"#)?)?;
/// let of_handlers = layout.pools.iter().find(|pool| pool.handlers).expect("there is one");
/// assert_eq!(of_handlers.name, "__primary__");
/// assert!(!of_handlers.progress, "progress has a pool of its own");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayoutPool {
    /// The name.
    pub name: String,
    /// The order in which units leave.
    pub kind: PoolKind,
    /// The access to the pool, as configured: who may push and pop.
    pub access: PoolAccess,
    /// Stack size of its ULTs, bytes.
    pub stack_bytes: usize,
    /// NUMA node of these stacks; `None`: wherever they are touched first.
    pub numa_node: Option<u32>,
    /// Names of the xstreams that run it. None: what it holds waits for one that is added later.
    pub xstreams: Vec<String>,
    /// A progress ULT runs here.
    pub progress: bool,
    /// Requests wait at its bounds (`margo.admission`).
    #[serde(skip)]
    pub(crate) requests_wait: bool,
    /// Handlers run here, unless their provider has another pool.
    pub handlers: bool,
    /// From how many units that wait here on handlers may start in the pool of another shard;
    /// `None`: they may not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_from: Option<usize>,
    /// Names of the providers of the document whose handlers run here.
    pub providers: Vec<String>,
}

/// One xstream of a [`Layout`].
///
/// ```
/// use margo::{config::Config, elasticity::Layout};
///
/// let layout = Layout::of(&Config::from_json("{}")?)?;
/// let primary = &layout.xstreams[0];
/// assert_eq!(primary.pools, ["__primary__"]);
/// assert!(primary.cpus.is_empty(), "it may run on any CPU");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayoutXstream {
    /// The name.
    pub name: String,
    /// The policy.
    pub scheduler: SchedulerKind,
    /// Names of its pools, most urgent first.
    pub pools: Vec<String>,
    /// CPUs that it stays on; empty: every one that the process may use.
    pub cpus: Vec<usize>,
    /// NUMA node of these CPUs, if they have one in common.
    pub numa_node: Option<u32>,
}

impl Layout {
    /// Returns the layout that `config` leads to here. Starts nothing.
    ///
    /// # Errors
    ///
    /// [`InitError::Config`] and [`InitError::Layout`], as from [`init`](crate::init).
    pub fn of(config: &Config) -> Result<Self, InitError> {
        Self::plan(&config.resolve(&margo_config::process_env)?)
    }

    pub(crate) fn plan(resolved: &Resolved) -> Result<Self, InitError> {
        Self::plan_on(resolved, &Machine::here()).map_err(InitError::Layout)
    }

    fn plan_on(resolved: &Resolved, machine: &Machine<'_>) -> Result<Self, LayoutErrors> {
        let mut wrong = Vec::new();
        let xstreams: Vec<_> = resolved
            .xstreams
            .iter()
            .enumerate()
            .map(|(index, xstream)| machine.xstream(index, xstream, resolved, &mut wrong))
            .collect();
        let pools = resolved
            .pools
            .iter()
            .enumerate()
            .map(|(index, pool)| machine.pool(index, pool, resolved, &xstreams, &mut wrong))
            .collect();
        if wrong.is_empty() { Ok(Self { pools, xstreams }) } else { Err(LayoutErrors(wrong)) }
    }

    /// Says which part of the document the runtime complains about. That is the exception: what
    /// can be known beforehand has been checked.
    pub(crate) fn locate(&self, resolved: &Resolved, error: StartError) -> InitError {
        let xstream = |name: &str, key: &str| {
            let index = self.xstreams.iter().position(|xstream| xstream.name == name);
            index.map(|index| format!("argobots.xstreams[{index}].{key}"))
        };
        let cpus_of = |name: &str| {
            let about = resolved.xstreams.iter().find(|xstream| xstream.name == name);
            let is_one = about.is_some_and(|xstream| xstream.cpubind.is_some());
            xstream(name, if is_one { "cpubind" } else { "affinity" })
        };
        let pool = |name: &str, key: &str| {
            let index = self.pools.iter().position(|pool| pool.name == name);
            index.map(|index| format!("argobots.pools[{index}].{key}"))
        };
        let path = match &error {
            StartError::Cpu { xstream: name, .. }
            | StartError::NoCpu { xstream: name }
            | StartError::Place { xstream: name, .. } => cpus_of(name),
            StartError::DuplicateXstream { xstream: name } => xstream(name, "name"),
            StartError::NoPool { xstream: name }
            | StartError::UnknownPool { xstream: name, .. }
            | StartError::RepeatedPool { xstream: name, .. } => xstream(name, "scheduler.pools"),
            StartError::Access { pool: name, .. } => pool(name, "access"),
            StartError::DuplicatePool { pool: name } => pool(name, "name"),
            StartError::NoStack { pool: Some(name) } => pool(name, "stack_bytes"),
            StartError::NumaNode { pool: name, .. } | StartError::Topology { pool: name, .. } => {
                pool(name, "numa_node")
            }
            _ => None,
        };
        match path {
            Some(path) => {
                InitError::Layout(LayoutErrors(vec![LayoutError { path, message: chain(&error) }]))
            }
            None => InitError::Ult(error),
        }
    }
}

/// The xstreams that are to be bound outside of the affinity mask that the process was started
/// with, in words: C binds them there, too, but who set the mask may have meant it.
pub(crate) fn outside_of_mask(resolved: &Resolved) -> Vec<String> {
    Machine::here().outside_of_mask(resolved)
}

/// The CPUs that the document gives an xstream by number, and by which of its keys.
fn numbered(xstream: &ResolvedXstream) -> (&'static str, Vec<usize>) {
    match (xstream.cpubind, &xstream.affinity) {
        (Some(cpu), _) => ("cpubind", vec![cpu]),
        (None, Affinity::Cpus(cpus)) => {
            ("affinity", cpus.iter().map(|cpu| *cpu as usize).collect())
        }
        (None, Affinity::Place(_)) => ("affinity", Vec::new()),
    }
}

/// The machine as far as it is known. It need not be, if the document asks for no part of it.
struct Machine<'m> {
    topology: Result<&'m Topology, TopologyError>,
    /// [`Topology::bindable`], but for tests.
    bindable: fn(&Topology) -> CpuSet,
}

impl Machine<'static> {
    fn here() -> Self {
        let bindable = |topology: &Topology| topology.bindable().clone();
        Self { topology: Topology::get(), bindable }
    }
}

impl Machine<'_> {
    fn outside_of_mask(&self, resolved: &Resolved) -> Vec<String> {
        let Ok(topology) = &self.topology else { return Vec::new() };
        let allowed = topology.allowed();
        let xstreams = resolved.xstreams.iter().enumerate();
        let outside = xstreams.filter_map(|(index, xstream)| {
            let (key, cpus) = numbered(xstream);
            // Others cannot be used at all, which is an error.
            let is_outside =
                |cpu: &usize| !allowed.contains(*cpu) && (self.bindable)(topology).contains(*cpu);
            let cpus: CpuSet = cpus.into_iter().filter(is_outside).collect();
            (!cpus.is_empty()).then(|| {
                format!(
                    "argobots.xstreams[{index}].{key}: CPU {cpus} is outside of the affinity mask \
                     that this process was started with, {allowed}; the xstream is bound there all \
                     the same"
                )
            })
        });
        outside.collect()
    }

    fn xstream(
        &self,
        index: usize,
        xstream: &ResolvedXstream,
        resolved: &Resolved,
        wrong: &mut Vec<LayoutError>,
    ) -> LayoutXstream {
        let path = format!("argobots.xstreams[{index}]");
        let cpus = match (xstream.cpubind, &xstream.affinity) {
            (Some(cpu), _) => self.cpus(&format!("{path}.cpubind"), &[(cpu, None)], wrong),
            (None, Affinity::Cpus(cpus)) => {
                let cpus = cpus.iter().enumerate().map(|(at, cpu)| (*cpu as usize, Some(at)));
                self.cpus(&format!("{path}.affinity"), &cpus.collect::<Vec<_>>(), wrong)
            }
            (None, Affinity::Place(place)) => {
                self.place(format!("{path}.affinity"), place, wrong).unwrap_or_default()
            }
        };
        let numa_node =
            self.topology.as_ref().ok().and_then(|topology| topology.memory_node_of(&cpus));
        let pool = |pool: &usize| resolved.pools[*pool].name.clone();
        LayoutXstream {
            name: xstream.name.clone(),
            scheduler: xstream.scheduler,
            pools: xstream.pools.iter().map(pool).collect(),
            cpus: cpus.iter().collect(),
            numa_node,
        }
    }

    /// Checks CPUs that are given by number, each perhaps with its place in a list.
    fn cpus(
        &self,
        path: &str,
        cpus: &[(usize, Option<usize>)],
        wrong: &mut Vec<LayoutError>,
    ) -> CpuSet {
        if cpus.is_empty() {
            return CpuSet::new();
        }
        let topology = match &self.topology {
            Ok(topology) => topology,
            Err(error) => {
                wrong.push(LayoutError { path: path.to_owned(), message: chain(error) });
                return CpuSet::new();
            }
        };
        let mut found = CpuSet::new();
        for &(cpu, at) in cpus {
            if topology.allowed().contains(cpu) || (self.bindable)(topology).contains(cpu) {
                found.insert(cpu);
                continue;
            }
            let path = at.map_or_else(|| path.to_owned(), |at| format!("{path}[{at}]"));
            let why = if !topology.present().contains(cpu) {
                "does not exist"
            } else if !topology.online().contains(cpu) {
                "is switched off"
            } else {
                "is not allowed for this process"
            };
            let message = format!("CPU {cpu} {why}; use one of {}", (self.bindable)(topology));
            wrong.push(LayoutError { path, message });
        }
        found
    }

    /// The CPUs of a part of the machine.
    fn place(&self, path: String, place: &str, wrong: &mut Vec<LayoutError>) -> Option<CpuSet> {
        let cpus = match (place.parse::<Place>(), &self.topology) {
            (Err(error), _) => Err(chain(&error)),
            (Ok(_), Err(error)) => Err(chain(error)),
            (Ok(place), Ok(topology)) => topology.cpus_of(&place).map_err(|error| chain(&error)),
        };
        cpus.map_err(|message| wrong.push(LayoutError { path, message })).ok()
    }

    fn pool(
        &self,
        index: usize,
        pool: &ResolvedPool,
        resolved: &Resolved,
        xstreams: &[LayoutXstream],
        wrong: &mut Vec<LayoutError>,
    ) -> LayoutPool {
        let homes: Vec<_> =
            xstreams.iter().filter(|xstream| xstream.pools.contains(&pool.name)).collect();
        let numa_node = match pool.numa_node {
            Some(node) => self.numa_node(format!("argobots.pools[{index}].numa_node"), node, wrong),
            None => self.node_of(&homes),
        };
        let of_pool = |provider: &&margo_config::ResolvedProvider| provider.pool == index;
        let providers = resolved.providers.iter().filter(of_pool);
        LayoutPool {
            name: pool.name.clone(),
            kind: pool.kind,
            access: pool.access,
            stack_bytes: pool.stack_bytes.unwrap_or(resolved.stack_bytes),
            numa_node,
            xstreams: homes.iter().map(|xstream| xstream.name.clone()).collect(),
            progress: resolved.progress_pools().any(|pool| pool == index),
            requests_wait: resolved.admission.of(index).overload == Overload::Wait,
            handlers: resolved.rpc_pool == index
                // Those of a shard run in its pool, if they have no other one.
                || resolved.rpc_pool == resolved.progress_pool
                    && resolved.more_progress_pools.contains(&index),
            share_from: resolved.share_from_of(index),
            providers: providers.map(|provider| provider.name.clone()).collect(),
        }
    }

    fn numa_node(&self, path: String, node: u32, wrong: &mut Vec<LayoutError>) -> Option<u32> {
        let message = match &self.topology {
            Ok(topology) if topology.numa_node(node).is_some() => return Some(node),
            Ok(topology) => {
                let ids = topology.numa_nodes().iter().map(|node| node.id as usize);
                let have: CpuSet = ids.collect();
                format!("there is no NUMA node {node}; use one of {have}")
            }
            Err(error) => chain(error),
        };
        wrong.push(LayoutError { path, message });
        None
    }

    /// The node that all these xstreams are bound to, on a machine that has several.
    fn node_of(&self, homes: &[&LayoutXstream]) -> Option<u32> {
        let several = self.topology.as_ref().is_ok_and(|topology| topology.numa_nodes().len() > 1);
        let first = homes.first().filter(|_| several)?.numa_node?;
        homes.iter().all(|xstream| xstream.numa_node == Some(first)).then_some(first)
    }
}

impl LayoutPool {
    pub(crate) fn spec(&self) -> PoolSpec {
        let kind = match self.kind {
            PoolKind::Fifo => ult::PoolKind::Fifo,
            PoolKind::FifoWait => ult::PoolKind::FifoWait,
            PoolKind::PrioWait => ult::PoolKind::PrioWait,
            PoolKind::EarliestFirst => ult::PoolKind::EarliestFirst,
            PoolKind::RandWs => ult::PoolKind::RandWs,
        };
        let access = match self.access {
            PoolAccess::Private if self.progress || self.requests_wait => ult::Access::Mpsc,
            PoolAccess::Private => ult::Access::Private,
            PoolAccess::Spsc => ult::Access::Spsc,
            PoolAccess::Mpsc => ult::Access::Mpsc,
            PoolAccess::Spmc => ult::Access::Spmc,
            PoolAccess::Mpmc => ult::Access::Mpmc,
        };
        let spec =
            PoolSpec::new(&self.name).kind(kind).access(access).stack_bytes(self.stack_bytes);
        match self.numa_node {
            Some(node) => spec.numa_node(node),
            None => spec,
        }
    }
}

impl LayoutXstream {
    pub(crate) fn spec(&self) -> XstreamSpec {
        let scheduler: Box<dyn ult::Scheduler> = match self.scheduler {
            // Strict priorities could starve progress and handlers; see the configuration.
            SchedulerKind::Basic | SchedulerKind::Prio => Box::new(ult::Basic::new()),
            SchedulerKind::Randws => Box::new(ult::RandWs::new()),
            SchedulerKind::BasicWait | SchedulerKind::Default => Box::new(ult::BasicWait::new()),
        };
        XstreamSpec::new(&self.name)
            .pools(&self.pools)
            .scheduler(scheduler)
            .affinity(self.cpus.clone())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self
            .xstreams
            .iter()
            .map(ToString::to_string)
            .chain(self.pools.iter().map(ToString::to_string));
        for (index, line) in lines.enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LayoutXstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, scheduler, pools, cpus, numa_node } = self;
        write!(f, "xstream {name}: ")?;
        match cpus.len() {
            0 => f.write_str("any CPU")?,
            1 => write!(f, "CPU {}", cpus[0])?,
            _ => write!(f, "CPUs {}", cpus.iter().copied().collect::<CpuSet>())?,
        }
        if let Some(node) = numa_node {
            write!(f, " (NUMA node {node})")?;
        }
        write!(f, ", scheduler {}, pools {}", word(scheduler), pools.join(", "))
    }
}

impl fmt::Display for LayoutPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, access) = (word(&self.kind), word(&self.access));
        write!(f, "pool {}: {kind}, {access}, run by ", self.name)?;
        match &self.xstreams[..] {
            [] => f.write_str("nobody")?,
            names => f.write_str(&names.join(", "))?,
        }
        write!(f, ", stacks of {} KiB", self.stack_bytes / 1024)?;
        if let Some(node) = self.numa_node {
            write!(f, " on NUMA node {node}")?;
        }
        let roles = [(self.progress, "progress"), (self.handlers, "handlers")];
        for (_, role) in roles.iter().filter(|(given, _)| *given) {
            write!(f, ", {role}")?;
        }
        if let Some(units) = self.share_from {
            write!(f, " (shared where {units} wait)")?;
        }
        for provider in &self.providers {
            write!(f, ", provider {provider}")?;
        }
        Ok(())
    }
}

/// The word of the document for a value of one of its enums.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
