//! The choice of an adapter for a process that names none, where several adapters lead to the same
//! fabric.
//!
//! The candidates are the adapters on the NUMA nodes whose CPUs the caller may use, or on an
//! unknown node; if there are none, all adapters. The one that is taken has the place in
//! libfabric's list that is the caller's first CPU modulo their number. So processes that are bound
//! to different cores spread over the adapters, and each process takes the same one whenever it
//! starts there.
//!
//! Source: `na_ofi_verify_info` in `na_ofi.c`, which finds near adapters with hwloc
//! (`na_loc_check_pcidev`), and fails if there are none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ofi_sys::raw;

/// The most CPUs that the system is asked about.
const CPUS_MAX: usize = rustix::thread::CpuSet::MAX_CPU;

/// An adapter's address on its bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pci {
    pub(crate) domain: u16,
    pub(crate) bus: u8,
    pub(crate) device: u8,
    pub(crate) function: u8,
}

impl Pci {
    /// Returns the address of the adapter that an info describes, if the info gives it.
    pub(crate) fn of(info: &raw::fi_info) -> Option<Self> {
        // SAFETY: null, or a part of a live info, which lives as long.
        let nic = unsafe { info.nic.as_ref()? };
        // SAFETY: as above.
        let bus = unsafe { nic.bus_attr.as_ref()? };
        if bus.bus_type != raw::FI_BUS_PCI {
            return None;
        }
        // SAFETY: of that kind of bus.
        let raw::fi_pci_attr { domain_id, bus_id, device_id, function_id } =
            unsafe { bus.attr.pci };
        Some(Self { domain: domain_id, bus: bus_id, device: device_id, function: function_id })
    }

    /// Returns the address as the system writes it.
    fn name(self) -> String {
        let Self { domain, bus, device, function } = self;
        format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Questions about the machine.
pub(crate) trait Machine {
    /// The CPUs that the caller may use, in order; none if that is not known.
    fn cpus(&self) -> Vec<usize>;

    /// The NUMA node of a CPU.
    fn node_of_cpu(&self, cpu: usize) -> Option<u32>;

    /// The NUMA node of an adapter.
    fn node_of(&self, adapter: Pci) -> Option<u32>;
}

/// Which of several adapters, by their addresses, if they are known. 0 for none.
pub(crate) fn choose(adapters: &[Option<Pci>], machine: &impl Machine) -> usize {
    let cpus = machine.cpus();
    let Some(first) = cpus.first().filter(|_| adapters.len() > 1) else { return 0 };
    let nodes: BTreeSet<u32> = cpus.iter().filter_map(|cpu| machine.node_of_cpu(*cpu)).collect();
    let is_near = |adapter: &Option<Pci>| {
        let node = adapter.and_then(|adapter| machine.node_of(adapter));
        node.is_none_or(|node| nodes.is_empty() || nodes.contains(&node))
    };
    let mut near: Vec<usize> =
        (0..adapters.len()).filter(|place| is_near(&adapters[*place])).collect();
    if near.is_empty() {
        near = (0..adapters.len()).collect();
    }
    near[first % near.len()]
}

/// The machine as the system describes it below a directory, which is `/sys`.
pub(crate) struct System<P>(pub(crate) P);

impl Machine for System<PathBuf> {
    fn cpus(&self) -> Vec<usize> {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
        (0..CPUS_MAX).filter(|cpu| allowed.is_set(*cpu)).collect()
    }

    fn node_of_cpu(&self, cpu: usize) -> Option<u32> {
        // A link to the node is in the CPU's directory.
        let directory = self.0.join(format!("devices/system/cpu/cpu{cpu}"));
        let names = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
        let node = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
        names.into_iter().find_map(node)
    }

    fn node_of(&self, adapter: Pci) -> Option<u32> {
        let path = self.0.join("bus/pci/devices").join(adapter.name()).join("numa_node");
        // -1 is none.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// This machine.
pub(crate) fn this_machine() -> System<PathBuf> {
    System(Path::new("/sys").to_owned())
}

/// A machine that is made up. CPUs 0 to 3 are on node 0, those up to 7 on node 1; an adapter is on
/// the node that its bus is listed for.
#[cfg(test)]
pub(crate) struct Made {
    pub(crate) cpus: Vec<usize>,
    pub(crate) buses: Vec<(u8, u32)>,
}

#[cfg(test)]
impl Machine for Made {
    fn cpus(&self) -> Vec<usize> {
        self.cpus.clone()
    }

    fn node_of_cpu(&self, cpu: usize) -> Option<u32> {
        (cpu < 8).then_some(u32::from(cpu >= 4))
    }

    fn node_of(&self, adapter: Pci) -> Option<u32> {
        self.buses.iter().find(|(bus, _)| *bus == adapter.bus).map(|(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(bus: u8) -> Pci {
        Pci { domain: 0, bus, device: 0, function: 0 }
    }

    #[test]
    fn the_near_ones_are_shared_by_first_cpu() {
        let four = [10, 11, 12, 13];
        let halves = [(10, 0), (11, 0), (12, 1), (13, 1)];
        type Row<'a> = (&'a [u8], &'a [(u8, u32)], &'a [usize], usize);
        let table: [Row<'_>; 15] = [
            // Nothing to choose, nothing known.
            (&[], &[], &[3], 0),
            (&[10], &halves, &[5], 0),
            (&four, &halves, &[], 0),
            // Bound to one core.
            (&four, &halves, &[0], 0),
            (&four, &halves, &[1], 1),
            (&four, &halves, &[2], 0),
            (&four, &halves, &[4], 2),
            (&four, &halves, &[7], 3),
            // To several, of one node or of both.
            (&four, &halves, &[5, 6, 7], 3),
            (&four, &halves, &[3, 4], 3),
            // No node, as on machines with one: all, by the core.
            (&four, &[], &[6], 2),
            // One without a node is as good as one that is near.
            (&four, &[(10, 1), (11, 0), (12, 1)], &[1], 3),
            // None is near.
            (&[10, 11], &[(10, 1), (11, 1)], &[3], 1),
            // CPUs whose node is not told.
            (&four, &halves, &[9], 1),
            (&[12, 10, 13, 11], &halves, &[1], 3),
        ];
        for (buses, nodes, cpus, wanted) in table {
            let adapters: Vec<_> = buses.iter().map(|bus| Some(at(*bus))).collect();
            let machine = Made { cpus: cpus.to_vec(), buses: nodes.to_vec() };
            assert_eq!(choose(&adapters, &machine), wanted, "{buses:?} {nodes:?} {cpus:?}");
        }
        let machine = Made { cpus: vec![1], buses: vec![(10, 1)] };
        assert_eq!(choose(&[Some(at(10)), None, None], &machine), 2, "no address");
    }

    #[test]
    fn the_system_tells_nodes_of_cpus_and_adapters() {
        let root = std::env::temp_dir().join(format!("margo-na-nearest-{}", std::process::id()));
        let pci = Pci { domain: 0, bus: 0xc1, device: 0, function: 1 };
        assert_eq!(pci.name(), "0000:c1:00.1");
        let device = |name: &str| root.join("bus/pci/devices").join(name);
        for (name, node) in [("0000:c1:00.1", "1\n"), ("0000:c2:00.0", "-1\n")] {
            std::fs::create_dir_all(device(name)).unwrap();
            std::fs::write(device(name).join("numa_node"), node).unwrap();
        }
        for name in ["cpu5/node1", "cpu5/cache", "cpu6/nodes"] {
            std::fs::create_dir_all(root.join("devices/system/cpu").join(name)).unwrap();
        }
        let system = System(root.clone());
        assert_eq!(system.node_of(pci), Some(1));
        assert_eq!(system.node_of(Pci { bus: 0xc2, function: 0, ..pci }), None);
        assert_eq!(system.node_of(Pci { bus: 0xc3, ..pci }), None);
        let nodes = [5, 6, 7].map(|cpu| system.node_of_cpu(cpu));
        assert_eq!(nodes, [Some(1), None, None]);
        std::fs::remove_dir_all(root).unwrap();
        assert!(!this_machine().cpus().is_empty());
    }
}
