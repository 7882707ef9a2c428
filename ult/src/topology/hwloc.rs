//! Reads the topology through the hwloc library (feature `hwlocality`).
//!
//! hwloc knows machines whose sysfs is wrong or incomplete, and honours `HWLOC_XMLFILE` and
//! `HWLOC_SYNTHETIC`. Which cpus the process may use comes from its affinity mask, as with sysfs.

use std::fmt::Display;

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder};

use super::cpuset::{CpuSet, ID_MAX};
use super::error::TopologyError;
use super::raw::{Raw, RawCpu, RawNode};

/// Reads this machine.
pub(crate) fn read(allowed: CpuSet) -> Result<Raw, TopologyError> {
    read_from(TopologyBuilder::new(), allowed)
}

fn read_from(builder: TopologyBuilder, allowed: CpuSet) -> Result<Raw, TopologyError> {
    // Else a cpu that is not for this process looks like one that does not exist.
    let builder = builder.with_flags(BuildFlags::INCLUDE_DISALLOWED).map_err(failed)?;
    let hwloc = builder.build().map_err(failed)?;
    let set = |object: &TopologyObject| {
        object.cpuset().map(|cpus| to_set(cpus.iter_set().map(usize::from))).unwrap_or_default()
    };
    let sets = |kind| hwloc.objects_with_type(kind).map(set).collect::<Vec<_>>();
    let (packages, cores, l3s) =
        (sets(ObjectType::Package), sets(ObjectType::Core), sets(ObjectType::L3Cache));
    let online = to_set(hwloc.cpuset().iter_set().map(usize::from));
    let present = to_set(hwloc.complete_cpuset().iter_set().map(usize::from));
    let group = |groups: &[CpuSet], cpu| groups.iter().position(|group| group.contains(cpu));
    let cpus = online.iter().map(|cpu| RawCpu {
        cpu,
        package: group(&packages, cpu).and_then(|at| i64::try_from(at).ok()).unwrap_or(0),
        core: match group(&cores, cpu) {
            Some(at) => cores[at].clone(),
            None => [cpu].into_iter().collect(),
        },
        l3: group(&l3s, cpu).map(|at| l3s[at].clone()).unwrap_or_default(),
    });
    let cpus = cpus.collect();
    let mut nodes: Vec<RawNode> = hwloc
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|object| {
            let id = object.os_index().and_then(|id| u32::try_from(id).ok())?;
            let memory_bytes = match object.attributes() {
                Some(ObjectAttributes::NUMANode(node)) => {
                    node.local_memory().map_or(0, std::num::NonZeroU64::get)
                }
                _ => 0,
            };
            Some(RawNode { id, cpus: set(object), memory_bytes, distances: Vec::new() })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    own_cpus_only(&mut nodes);
    let mut notes = Vec::new();
    if nodes.len() > 1 {
        read_distances(&hwloc, &mut nodes, &mut notes)?;
    }
    Ok(Raw { source: "hwloc", present, online, allowed, cpus, nodes, notes })
}

/// To hwloc, a node of memory only has the cpus it is attached to. Sysfs gives each cpu to one
/// node, and so do we: the lowest.
fn own_cpus_only(nodes: &mut [RawNode]) {
    let mut taken = CpuSet::new();
    for node in nodes {
        node.cpus = node.cpus.difference(&taken);
        taken = taken.union(&node.cpus);
    }
}

fn read_distances(
    hwloc: &Hwloc,
    nodes: &mut [RawNode],
    notes: &mut Vec<String>,
) -> Result<(), TopologyError> {
    let kind = Some(DistancesKind::MEANS_LATENCY);
    let tables = hwloc.distances_with_type(kind, ObjectType::NUMANode).map_err(failed)?;
    let Some(table) = tables.first() else {
        notes.push("hwloc knows no distances between NUMA nodes".to_owned());
        return Ok(());
    };
    let ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
    let objects: Vec<Option<u32>> = table
        .objects()
        .map(|object| object?.os_index().and_then(|id| u32::try_from(id).ok()))
        .collect();
    let id = |at: usize| objects.get(at).copied().flatten();
    let known: Vec<(Option<u32>, Option<u32>, u64)> = table
        .enumerate_distances()
        .map(|((from, to), distance)| (id(from), id(to), distance))
        .collect();
    for node in nodes {
        let find = |other: &u32| {
            let pair = (Some(node.id), Some(*other));
            let entry = known.iter().find(|(from, to, _)| (*from, *to) == pair);
            entry.and_then(|(_, _, distance)| u32::try_from(*distance).ok())
        };
        // A row with gaps is no row.
        node.distances = ids.iter().map(find).collect::<Option<Vec<u32>>>().unwrap_or_default();
    }
    Ok(())
}

fn to_set(ids: impl Iterator<Item = usize>) -> CpuSet {
    ids.take_while(|id| *id <= ID_MAX).collect()
}

fn failed(error: impl Display) -> TopologyError {
    TopologyError::Hwloc { what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::raw::assemble;

    #[test]
    fn a_described_machine_is_numbered_like_one_from_sysfs() {
        let machine = "pack:2 [numa(memory=1073741824)] l3:2 core:2 pu:2";
        let builder = TopologyBuilder::new().from_synthetic(machine).unwrap();
        let raw = read_from(builder, (0..16).collect()).unwrap();
        let topology = assemble(raw);
        assert_eq!(topology.source(), "hwloc");
        assert_eq!(topology.packages().len(), 2);
        assert_eq!(topology.numa_nodes().len(), 2);
        assert_eq!(topology.l3_groups().len(), 4);
        assert_eq!(topology.cores().len(), 8);
        let cpus = |place: &str| topology.cpus_of(&place.parse().unwrap()).unwrap().to_string();
        assert_eq!(cpus("numa:1"), "8-15");
        assert_eq!(cpus("l3:1"), "4-7");
        assert_eq!(cpus("core:2"), "4-5");
        assert_eq!(topology.numa_nodes()[0].memory_bytes, 1 << 30);
    }

    /// Two packages of one cpu with their memory, as hwloc exports a machine.
    const TWO_NODES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" gp_index="1" cpuset="0x3" complete_cpuset="0x3"
  allowed_cpuset="0x3" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3">
  <object type="Package" os_index="0" gp_index="2" cpuset="0x1" complete_cpuset="0x1"
   nodeset="0x1" complete_nodeset="0x1">
   <object type="NUMANode" os_index="0" gp_index="3" cpuset="0x1" complete_cpuset="0x1"
    nodeset="0x1" complete_nodeset="0x1" local_memory="4096"/>
   <object type="PU" os_index="0" gp_index="4" cpuset="0x1" complete_cpuset="0x1"
    nodeset="0x1" complete_nodeset="0x1"/>
  </object>
  <object type="Package" os_index="1" gp_index="5" cpuset="0x2" complete_cpuset="0x2"
   nodeset="0x2" complete_nodeset="0x2">
   <object type="NUMANode" os_index="1" gp_index="6" cpuset="0x2" complete_cpuset="0x2"
    nodeset="0x2" complete_nodeset="0x2" local_memory="8192"/>
   <object type="PU" os_index="1" gp_index="7" cpuset="0x2" complete_cpuset="0x2"
    nodeset="0x2" complete_nodeset="0x2"/>
  </object>
 </object>
 <distances2 type="NUMANode" nbobjs="2" kind="5" indexing="os">
  <indexes length="4">0 1 </indexes>
  <u64values length="12">10 21 31 10 </u64values>
 </distances2>
</topology>
"#;

    #[test]
    fn distances_keep_their_direction() {
        let builder = TopologyBuilder::new().from_xml(TWO_NODES).unwrap();
        let topology = assemble(read_from(builder, (0..2).collect()).unwrap());
        assert_eq!(topology.distance(0, 1), Some(21));
        assert_eq!(topology.distance(1, 0), Some(31));
        assert_eq!(topology.distance(1, 1), Some(10));
        assert_eq!(topology.numa_node(1).unwrap().memory_bytes, 8192);
        assert_eq!(topology.notes(), [] as [String; 0]);
        // No cores are described: each cpu is one.
        assert_eq!(topology.cores().len(), 2);
    }

    #[test]
    fn both_sources_agree_about_this_machine() {
        let allowed = crate::topology::bind::allowed_cpus().unwrap();
        let ours = assemble(read(allowed.clone()).unwrap());
        let theirs = crate::Topology::load_sysfs(std::path::Path::new("/sys"), &allowed).unwrap();
        assert_eq!(ours.online(), theirs.online());
        assert_eq!(ours.allowed(), theirs.allowed());
        assert_eq!(ours.packages(), theirs.packages());
        assert_eq!(ours.cores(), theirs.cores());
        for node in theirs.numa_nodes() {
            assert_eq!(ours.numa_node(node.id).unwrap().cpus, node.cpus);
        }
    }
}
