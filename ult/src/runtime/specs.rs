//! The description of an xstream, and the checks of a pool and of an xstream that need no runtime.

use std::fmt;

use crate::engine::error::StartError;
use crate::engine::model::interfaces::Scheduler;
use crate::engine::pool::spec::PoolSpec;
use crate::topology::{CpuSet, Place, Topology};

/// The description of an xstream to be made; see
/// [`RuntimeBuilder::xstream`](crate::RuntimeBuilder::xstream).
///
/// ```
/// use ult::{PoolSpec, RoundRobin, Runtime, XstreamSpec};
///
/// let spec = XstreamSpec::new("x0").pools(["rpc", "io"]).scheduler(Box::new(RoundRobin::new()));
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("rpc"))
///     .pool(PoolSpec::new("io"))
///     .xstream(spec)
///     .start()?;
/// let x0 = runtime.xstream("x0").expect("defined above");
/// assert_eq!(x0.pools(), ["rpc", "io"]);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct XstreamSpec {
    pub(crate) name: String,
    pub(crate) pools: Vec<String>,
    pub(crate) scheduler: Option<Box<dyn Scheduler>>,
    cpus: Vec<usize>,
    place: Option<Place>,
    pub(crate) rank: Option<usize>,
}

impl XstreamSpec {
    /// An xstream with the default scheduler ([`BasicWait`](crate::BasicWait)), not bound to a
    /// processor.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pools: Vec::new(),
            scheduler: None,
            cpus: Vec::new(),
            place: None,
            rank: None,
        }
    }

    /// The pools that it serves, in the scheduler's order.
    #[must_use]
    pub fn pools<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.pools = names.into_iter().map(Into::into).collect();
        self
    }

    /// The scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Box<dyn Scheduler>) -> Self {
        self.scheduler = Some(scheduler);
        self
    }

    /// Binds it to one processor.
    ///
    /// Counterpart: `ABT_xstream_set_cpubind`.
    #[must_use]
    pub fn cpubind(self, cpu: usize) -> Self {
        self.affinity(vec![cpu])
    }

    /// Restricts it to these processors; an empty list means all that the process may use.
    ///
    /// Counterpart: `ABT_xstream_set_affinity`.
    #[must_use]
    pub fn affinity(mut self, cpus: Vec<usize>) -> Self {
        self.cpus = cpus;
        self.place = None;
        self
    }

    /// Restricts it to a part of the machine: a core, a NUMA node, a package. See [`Place`].
    #[must_use]
    pub fn place(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// The rank, a number that no other xstream has. Default: the lowest that is free.
    ///
    /// Counterpart: `ABT_xstream_create_with_rank`.
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The processors that it is restricted to; empty: all. `allowed`: those of the runtime.
    pub(crate) fn resolve_cpus(&self, allowed: &CpuSet) -> Result<Vec<usize>, StartError> {
        let xstream = || self.name.clone();
        if let Some(place) = &self.place {
            let cpus = Topology::get().and_then(|topology| topology.cpus_of(place));
            let cpus = cpus.map_err(|source| StartError::Place { xstream: xstream(), source })?;
            return Ok(cpus.iter().collect());
        }
        check_cpus(&self.name, &self.cpus, allowed)?;
        Ok(self.cpus.clone())
    }
}

/// Checks that an xstream can be bound to these processors. `allowed`: those of the runtime.
///
/// The process can use more than the thread that started the runtime, if that one was bound.
pub(crate) fn check_cpus(
    xstream: &str,
    cpus: &[usize],
    allowed: &CpuSet,
) -> Result<(), StartError> {
    if cpus.iter().all(|cpu| allowed.contains(*cpu)) {
        return Ok(());
    }
    let allowed = match Topology::get() {
        Ok(topology) => topology.bindable().union(allowed),
        Err(_) => allowed.clone(),
    };
    match cpus.iter().find(|cpu| !allowed.contains(**cpu)) {
        Some(cpu) => {
            let (xstream, have) = (xstream.to_owned(), allowed.to_string());
            Err(StartError::Cpu { xstream, cpu: *cpu, have })
        }
        None => Ok(()),
    }
}

impl fmt::Debug for XstreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XstreamSpec")
            .field("name", &self.name)
            .field("pools", &self.pools)
            .field("cpus", &self.cpus)
            .field("place", &self.place)
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// Checks what a pool's description says by itself.
pub(crate) fn check_pool(spec: &PoolSpec) -> Result<(), StartError> {
    let pool = || spec.name.clone();
    if spec.stack_bytes == Some(0) {
        return Err(StartError::NoStack { pool: Some(pool()) });
    }
    let Some(node) = spec.numa_node else { return Ok(()) };
    let topology = Topology::get();
    let topology = topology.map_err(|source| StartError::Topology { pool: pool(), source })?;
    if topology.numa_node(node).is_none() {
        let ids: Vec<String> = topology.numa_nodes().iter().map(|n| n.id.to_string()).collect();
        return Err(StartError::NumaNode { pool: pool(), node, have: ids.join(", ") });
    }
    Ok(())
}
