//! The machine: packages, NUMA nodes, cores and cpus; binding of threads and memory to them.
//!
//! - [`Topology`] knows what the machine has, and which of its cpus this process may use.
//! - [`Place`] names a part of it, for example `numa:1`; [`Topology::cpus_of`] finds its cpus.
//! - [`AffinityPattern`] is Argobots' way to spread xstreams over cpus.
//! - [`bind_this_thread`] and [`bind_memory`] act on it.
//!
//! ```
//! use ult::{Place, Topology, topology};
//!
//! let machine = Topology::get()?;
//! print!("{machine}");
//! let place: Place = "package:0".parse()?;
//! let cpus = machine.cpus_of(&place)?;
//! std::thread::spawn(move || topology::bind_this_thread(&cpus)).join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Numbers
//!
//! | thing | its number | example |
//! |---|---|---|
//! | cpu (a hardware thread) | the kernel's, as `taskset` takes it | `cpu:0-3` |
//! | NUMA node | the kernel's, as `numactl` takes it | `numa:1` |
//! | package (socket), core, L3 group | counted from 0 in the order described at [`Topology`] | `core:2` |
//!
//! # Sources
//!
//! Sysfs, read by plain file access (`sysfs.rs`). With the feature `hwlocality`, off by default,
//! the hwloc library instead (`hwloc.rs`); if it fails, sysfs, with a note. Both fill the same
//! record (`raw.rs`). Nothing here runs on a hot path, and nothing is shared but the read-only
//! topology of [`Topology::get`].

mod bind;
mod cpuset;
mod error;
#[cfg(feature = "hwlocality")]
mod hwloc;
mod pattern;
mod place;
mod raw;
mod sysfs;

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

pub use bind::{MemoryPolicy, bind_memory, bind_this_thread, current_binding, node_of_page};
pub use cpuset::CpuSet;
pub use error::TopologyError;
pub use pattern::AffinityPattern;
pub use place::Place;

/// A processor package (socket).
///
/// ```
/// use ult::Topology;
///
/// let machine = Topology::get()?;
/// for package in machine.packages() {
///     println!("package:{} has the cpus {}", package.index, package.cpus);
/// }
/// let cpus: usize = machine.packages().iter().map(|package| package.cpus.len()).sum();
/// assert_eq!(cpus, machine.online().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Package {
    /// The number, as in `package:0`.
    pub index: usize,
    /// The cpus that are online.
    pub cpus: CpuSet,
}

/// A NUMA node: memory, and the cpus that are nearest to it.
///
/// ```
/// use ult::Topology;
///
/// let machine = Topology::get()?;
/// for node in machine.numa_nodes() {
///     println!("numa:{} has the cpus {}, {} bytes", node.id, node.cpus, node.memory_bytes);
///     for (other, distance) in node.distances() {
///         assert_eq!(machine.distance(node.id, other), Some(distance));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumaNode {
    /// The number, as in `numa:0`; given by the kernel, and not always without gaps.
    pub id: u32,
    /// The cpus that are online. None if the node is memory only.
    pub cpus: CpuSet,
    /// The memory in bytes. 0 if the node has cpus only.
    pub memory_bytes: u64,
    /// Number and distance of every node, this one included (10).
    distances: Vec<(u32, u32)>,
}

/// A core: the cpus (hardware threads) that share its execution units.
///
/// ```
/// use ult::Topology;
///
/// let machine = Topology::get()?;
/// // One cpu of each core, for work that gains nothing from hardware threads.
/// let cpus: Vec<_> = machine.cores().iter().filter_map(|core| core.cpus.first()).collect();
/// assert_eq!(cpus.len(), machine.cores().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Core {
    /// The number, as in `core:2`.
    pub index: usize,
    /// The number of its package.
    pub package: usize,
    /// The cpus that are online.
    pub cpus: CpuSet,
}

/// The cpus that share a third-level cache.
///
/// ```
/// use ult::Topology;
///
/// let machine = Topology::get()?;
/// // Where cpus share caches; none in some virtual machines.
/// for group in machine.l3_groups() {
///     println!("l3:{} has the cpus {}", group.index, group.cpus);
///     assert!(group.cpus.is_subset(machine.online()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheGroup {
    /// The number, as in `l3:0`.
    pub index: usize,
    /// The cpus that are online.
    pub cpus: CpuSet,
}

/// The cpus, cores, caches and NUMA nodes of a machine, and which of them this process may use.
///
/// Packages are numbered in the order of their lowest cpu; L3 groups by package, then by lowest
/// cpu; cores by package, L3 group and lowest cpu. NUMA nodes keep the kernel's numbers.
///
/// [`Display`](fmt::Display) prints it: a line with the sums, then a line per package, NUMA node
/// and L3 group, then the notes.
///
/// ```
/// use ult::{Place, Topology};
///
/// let machine = Topology::get()?;
/// print!("{machine}");
/// assert!(machine.allowed().is_subset(machine.online()));
/// // The cpus of a part of the machine that this process may use.
/// let cpus = machine.cpus_of(&Place::all())?;
/// assert!(!cpus.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Topology {
    source: &'static str,
    present: CpuSet,
    online: CpuSet,
    allowed: CpuSet,
    /// The cpus that threads can be bound to. For another machine: `allowed`; for this one: set by
    /// the first call of [`bindable`](Self::bindable).
    bindable: OnceLock<CpuSet>,
    packages: Vec<Package>,
    nodes: Vec<NumaNode>,
    cores: Vec<Core>,
    l3_groups: Vec<CacheGroup>,
    notes: Vec<String>,
}

impl Topology {
    /// The topology of this machine, read at the first call and then kept.
    ///
    /// # Errors
    ///
    /// Like [`load`](Self::load). An error is not kept: the next call tries again.
    pub fn get() -> Result<&'static Self, TopologyError> {
        static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
        if let Some(topology) = TOPOLOGY.get() {
            return Ok(topology);
        }
        let loaded = Self::load()?;
        Ok(TOPOLOGY.get_or_init(|| loaded))
    }

    /// Reads the topology of this machine now.
    ///
    /// The allowed cpus are those of the process's first thread and of the calling one. Call it
    /// (or [`get`](Self::get)) before these are bound, else it takes the binding for a limit.
    ///
    /// # Errors
    ///
    /// A file of sysfs that cannot be read or makes no sense is named in the error. A file that
    /// is missing is no error; see [`notes`](Self::notes).
    pub fn load() -> Result<Self, TopologyError> {
        let allowed = bind::allowed_cpus()?;
        #[cfg(feature = "hwlocality")]
        let failed = match hwloc::read(allowed.clone()) {
            Ok(raw) => return Ok(raw::assemble(raw)),
            Err(error) => error,
        };
        #[cfg_attr(not(feature = "hwlocality"), allow(unused_mut, reason = "only then a note"))]
        let mut raw = sysfs::read(Path::new("/sys"), allowed)?;
        #[cfg(feature = "hwlocality")]
        raw.notes.push(format!("{failed}; read from sysfs instead"));
        Ok(raw::assemble(raw))
    }

    /// Reads a tree of files that looks like `/sys`, for a process that may use the cpus
    /// `allowed`. For tests, and for looking at another machine's topology.
    ///
    /// # Errors
    ///
    /// Like [`load`](Self::load).
    pub fn load_sysfs(root: &Path, allowed: &CpuSet) -> Result<Self, TopologyError> {
        let topology = raw::assemble(sysfs::read(root, allowed.clone())?);
        // Nobody can try there.
        topology.bindable.get_or_init(|| topology.allowed.clone());
        Ok(topology)
    }

    /// Where it was read: "sysfs" or "hwloc".
    #[must_use]
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The cpus that exist, whether online or not.
    #[must_use]
    pub fn present(&self) -> &CpuSet {
        &self.present
    }

    /// The cpus that are switched on.
    #[must_use]
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The online cpus that this process may use (affinity mask and cgroup).
    #[must_use]
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// The online cpus that threads of this process can be bound to by number: also those outside
    /// of the affinity mask that it was started with (by `taskset`, a launcher of jobs, or an
    /// OpenMP runtime), as long as its cgroup has them. At least [`allowed`](Self::allowed). The
    /// first call starts a thread that tries, which takes some tens of microseconds.
    #[must_use]
    pub fn bindable(&self) -> &CpuSet {
        self.bindable.get_or_init(|| match bind::bindable_cpus(&self.online) {
            Some(cpus) => cpus.union(&self.allowed),
            None => self.allowed.clone(),
        })
    }

    /// The packages, by number.
    #[must_use]
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// The NUMA nodes, ascending. At least one, also on machines without NUMA.
    #[must_use]
    pub fn numa_nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The cores, by number.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The groups of cpus that share a third-level cache, by number. None where the system shows
    /// no such cache.
    #[must_use]
    pub fn l3_groups(&self) -> &[CacheGroup] {
        &self.l3_groups
    }

    /// Returns the facts that were missing and had to be assumed, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The NUMA node with this number.
    #[must_use]
    pub fn numa_node(&self, id: u32) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that a cpu belongs to; `None` if the cpu is in none.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }

    /// Distance between two nodes as the firmware tells it: 10 is local, 20 means that access
    /// takes twice as long. `None` if one of them does not exist.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let row = &self.numa_node(from)?.distances;
        row.iter().find(|(id, _)| *id == to).map(|(_, distance)| *distance)
    }

    /// The node whose memory is nearest to a cpu: its own, unless that has no memory. `None` if
    /// the cpu is in no node, or no node has memory.
    #[must_use]
    pub fn nearest_memory_node(&self, cpu: usize) -> Option<u32> {
        let own = self.node_of_cpu(cpu)?;
        self.nodes
            .iter()
            .filter(|node| node.memory_bytes > 0)
            .filter_map(|node| Some((self.distance(own, node.id)?, node.id)))
            .min()
            .map(|(_, id)| id)
    }

    /// The node where memory for these cpus belongs: the nearest one, if it is the same for all of
    /// them. `None` means that there is no such node and memory is best left where it is touched
    /// first.
    #[must_use]
    pub fn memory_node_of(&self, cpus: &CpuSet) -> Option<u32> {
        let mut nodes = cpus.iter().map(|cpu| self.nearest_memory_node(cpu));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// The cpus of a place that this process may use; never empty.
    ///
    /// # Errors
    ///
    /// - [`Unknown`](TopologyError::Unknown): the machine has no such cpu, core, node, …;
    /// - [`Offline`](TopologyError::Offline): a cpu that was asked for by number is off;
    /// - [`NotAllowed`](TopologyError::NotAllowed): such a cpu is not for this process, or none
    ///   of the place's cpus is;
    /// - [`NoCpus`](TopologyError::NoCpus): a NUMA node with memory only;
    /// - [`Disjoint`](TopologyError::Disjoint): the parts of the place have nothing in common.
    pub fn cpus_of(&self, place: &Place) -> Result<CpuSet, TopologyError> {
        place::resolve(place, self)
    }
}

impl NumaNode {
    /// Number and distance of every node, this one included, ascending by number.
    pub fn distances(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.distances.iter().copied()
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {}, {}, {} online ({}), {} allowed ({}), read from {}",
            count(self.packages.len(), "package"),
            count(self.nodes.len(), "NUMA node"),
            count(self.cores.len(), "core"),
            count(self.online.len(), "cpu"),
            self.online,
            self.allowed.len(),
            self.allowed,
            self.source,
        )?;
        for Package { index, cpus } in &self.packages {
            let cores = self.cores.iter().filter(|core| core.package == *index).count();
            writeln!(f, "package {index}: cpus {cpus}, {}", count(cores, "core"))?;
        }
        for node in &self.nodes {
            let memory = Bytes(node.memory_bytes);
            write!(f, "numa {}: cpus {}, memory {memory}, distances", node.id, node.cpus)?;
            for (id, distance) in node.distances() {
                write!(f, " {id}:{distance}")?;
            }
            writeln!(f)?;
        }
        for CacheGroup { index, cpus } in &self.l3_groups {
            writeln!(f, "l3 {index}: cpus {cpus}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number of bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => {
                let tenths = u128::from(self.0) * 10 / (1 << shift);
                write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
            }
            None if self.0 == 0 => f.write_str("none"),
            None => write!(f, "{} B", self.0),
        }
    }
}
