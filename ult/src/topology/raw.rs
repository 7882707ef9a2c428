//! The raw report of a topology source, and the [`Topology`] that is made from it.
//!
//! Sysfs and hwloc both fill [`Raw`]; [`assemble`] numbers things the same way for both.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::cpuset::CpuSet;
use super::{CacheGroup, Core, NumaNode, Package, Topology};

/// The distance of a node to itself (ACPI SLIT).
pub(crate) const DISTANCE_LOCAL: u32 = 10;
/// The distance between nodes where the system does not say; what Linux assumes, too.
pub(crate) const DISTANCE_REMOTE: u32 = 20;

/// The facts as they were found.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    /// The source's name, for people.
    pub(crate) source: &'static str,
    /// All cpus that exist, switched on or off.
    pub(crate) present: CpuSet,
    pub(crate) online: CpuSet,
    /// The cpus that the process may use.
    pub(crate) allowed: CpuSet,
    /// One per online cpu, ascending.
    pub(crate) cpus: Vec<RawCpu>,
    /// Ascending by number.
    pub(crate) nodes: Vec<RawNode>,
    pub(crate) notes: Vec<String>,
}

/// Facts about an online cpu.
#[derive(Debug, Default)]
pub(crate) struct RawCpu {
    pub(crate) cpu: usize,
    /// The system's number of its package; 0 where it has none.
    pub(crate) package: i64,
    /// The cpus of its core, itself included.
    pub(crate) core: CpuSet,
    /// The cpus that share its third-level cache; empty where there is none.
    pub(crate) l3: CpuSet,
}

/// A NUMA node.
#[derive(Debug, Default)]
pub(crate) struct RawNode {
    pub(crate) id: u32,
    pub(crate) cpus: CpuSet,
    pub(crate) memory_bytes: u64,
    /// To each node, in the order of the nodes; empty where the system does not say.
    pub(crate) distances: Vec<u32>,
}

/// Numbers packages, cores and caches.
///
/// Packages come in the order of their lowest cpu; cores and caches by package, then by cache,
/// then by lowest cpu. So neighbouring numbers are near each other, even where the kernel deals
/// its cpu numbers to the packages in turn. (It is the order of hwloc's logical indexes.)
pub(crate) fn assemble(raw: Raw) -> Topology {
    let mut packages: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in &raw.cpus {
        packages.entry(cpu.package).or_default().insert(cpu.cpu);
    }
    let mut packages: Vec<CpuSet> = packages.into_values().collect();
    packages.sort_by_key(CpuSet::first);
    let place_of = |set: &CpuSet, groups: &[CpuSet]| {
        let first = set.first()?;
        groups.iter().position(|group| group.contains(first))
    };

    let mut l3s = groups(raw.cpus.iter().map(|cpu| &cpu.l3), &raw.online);
    l3s.sort_by_key(|l3| (place_of(l3, &packages), l3.first()));
    let mut cores = groups(raw.cpus.iter().map(|cpu| &cpu.core), &raw.online);
    cores.sort_by_key(|core| (place_of(core, &packages), place_of(core, &l3s), core.first()));
    let core_packages: Vec<_> =
        cores.iter().map(|core| place_of(core, &packages).unwrap_or(0)).collect();

    Topology {
        source: raw.source,
        present: raw.present.union(&raw.online),
        allowed: raw.allowed.intersection(&raw.online),
        bindable: OnceLock::new(),
        nodes: nodes(&raw.nodes, &raw.online),
        packages: packages
            .into_iter()
            .enumerate()
            .map(|(index, cpus)| Package { index, cpus })
            .collect(),
        cores: cores
            .into_iter()
            .zip(core_packages)
            .enumerate()
            .map(|(index, (cpus, package))| Core { index, package, cpus })
            .collect(),
        l3_groups: l3s
            .into_iter()
            .enumerate()
            .map(|(index, cpus)| CacheGroup { index, cpus })
            .collect(),
        online: raw.online,
        notes: raw.notes,
    }
}

/// The different sets among `sets`, each cpu in the first set that claims it.
fn groups<'a>(sets: impl Iterator<Item = &'a CpuSet>, online: &CpuSet) -> Vec<CpuSet> {
    let mut taken = CpuSet::new();
    let mut groups = Vec::new();
    for set in sets {
        let group = set.intersection(online).difference(&taken);
        if !group.is_empty() {
            taken = taken.union(&group);
            groups.push(group);
        }
    }
    groups
}

fn nodes(raw: &[RawNode], online: &CpuSet) -> Vec<NumaNode> {
    let ids: Vec<u32> = raw.iter().map(|node| node.id).collect();
    raw.iter()
        .map(|node| NumaNode {
            id: node.id,
            cpus: node.cpus.intersection(online),
            memory_bytes: node.memory_bytes,
            distances: ids
                .iter()
                .enumerate()
                .map(|(at, other)| {
                    let known = node.distances.get(at).copied();
                    let local = *other == node.id;
                    let assumed = if local { DISTANCE_LOCAL } else { DISTANCE_REMOTE };
                    (*other, known.unwrap_or(assumed))
                })
                .collect(),
        })
        .collect()
}
