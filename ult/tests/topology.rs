//! Topology, places and binding: over trees of files that look like `/sys`, and on this machine.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

use std::fs;
use std::io;
use std::path::Path;
use std::thread;

use tempfile::TempDir;
use ult::topology::{MemoryPolicy, bind_memory, bind_this_thread, current_binding, node_of_page};
use ult::{AffinityPattern, CpuSet, Place, Topology, TopologyError};

/// A tree of files that looks like `/sys`.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.root().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn without(self, path: &str) -> Self {
        let path = self.root().join("devices/system").join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        self
    }

    fn cpu(self, cpu: usize, package: i64, core: usize, siblings: &str, l3: &str) -> Self {
        let dir = format!("cpu/cpu{cpu}");
        self.with(&format!("{dir}/topology/physical_package_id"), format!("{package}\n"))
            .with(&format!("{dir}/topology/core_id"), format!("{core}\n"))
            .with(&format!("{dir}/topology/die_id"), "0\n")
            .with(&format!("{dir}/topology/thread_siblings_list"), format!("{siblings}\n"))
            .with(&format!("{dir}/cache/index3/shared_cpu_list"), format!("{l3}\n"))
    }

    fn node(self, id: u32, cpus: &str, kib: u64, distances: &str) -> Self {
        let dir = format!("node/node{id}");
        let meminfo = format!(
            "Node {id} MemTotal:       {kib} kB\nNode {id} MemFree:        {} kB\n",
            kib / 2
        );
        self.with(&format!("{dir}/cpulist"), format!("{cpus}\n"))
            .with(&format!("{dir}/meminfo"), meminfo)
            .with(&format!("{dir}/distance"), format!("{distances}\n"))
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn load(&self, allowed: &str) -> Result<Topology, TopologyError> {
        Topology::load_sysfs(self.root(), &set(allowed))
    }

    /// Returns the error of a tree that cannot be loaded.
    fn refused(&self) -> String {
        match self.load("0-7") {
            Err(error) => error.to_string(),
            Ok(topology) => panic!("loaded:\n{topology}"),
        }
    }
}

/// Two packages of two cores with two threads; a node per package. The kernel deals the cpus to
/// the packages in turn, and the second threads come last:
///
/// | | core | core |
/// |---|---|---|
/// | package 0, node 0 | cpus 0, 4 | cpus 2, 6 |
/// | package 1, node 1 | cpus 1, 5 | cpus 3, 7 |
fn two_packages() -> Tree {
    let mut tree = Tree::new().with("cpu/online", "0-7\n").with("cpu/present", "0-7\n");
    for cpu in 0..8usize {
        let package = cpu % 2;
        let (low, l3) = (cpu % 4, if package == 0 { "0,2,4,6" } else { "1,3,5,7" });
        let siblings = format!("{low},{}", low + 4);
        tree = tree.cpu(cpu, i64::try_from(package).unwrap(), low / 2, &siblings, l3);
    }
    tree.node(0, "0,2,4,6", 1 << 20, "10 21").node(1, "1,3,5,7", 2 << 20, "21 10")
}

fn one_cpu() -> Tree {
    Tree::new()
        .with("cpu/online", "0\n")
        .with("cpu/present", "0\n")
        .cpu(0, 0, 0, "0", "0")
        .node(0, "0", 512, "10")
}

fn set(text: &str) -> CpuSet {
    if text.is_empty() { CpuSet::new() } else { text.parse().unwrap() }
}

fn place(text: &str) -> Place {
    text.parse().unwrap()
}

fn cpus(topology: &Topology, text: &str) -> String {
    topology.cpus_of(&place(text)).unwrap_or_else(|error| panic!("{error}")).to_string()
}

fn refused(topology: &Topology, text: &str) -> TopologyError {
    match topology.cpus_of(&place(text)) {
        Err(error) => error,
        Ok(cpus) => panic!("`{text}` is {cpus}"),
    }
}

#[test]
fn packages_nodes_cores_and_threads_are_told_apart() {
    let topology = two_packages().load("0-7").unwrap();
    assert_eq!(topology.source(), "sysfs");
    assert_eq!(topology.packages().len(), 2);
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(topology.l3_groups().len(), 2);
    assert_eq!(topology.numa_nodes().len(), 2);
    assert_eq!(topology.notes(), [] as [String; 0]);
    assert_eq!(topology.numa_node(1).unwrap().memory_bytes, 2 << 30);
    assert_eq!(topology.distance(0, 1), Some(21));
    assert_eq!(topology.distance(1, 1), Some(10));
    assert_eq!(topology.distance(0, 2), None);
    assert_eq!(topology.node_of_cpu(6), Some(0));
    assert_eq!(topology.node_of_cpu(8), None);
}

#[test]
fn places_name_cpus() {
    let topology = two_packages().load("0-7").unwrap();
    for (place, expected) in [
        ("all", "0-7"),
        ("cpu:3", "3"),
        ("cpu:0-2,7", "0-2,7"),
        ("core:0", "0,4"),
        ("core:1", "2,6"),
        ("core:2", "1,5"),
        ("core:1-2", "1-2,5-6"),
        ("numa:1", "1,3,5,7"),
        ("node:0-1", "0-7"),
        ("package:0", "0,2,4,6"),
        ("socket:1", "1,3,5,7"),
        ("l3:1", "1,3,5,7"),
        ("numa:0&cpu:0-3", "0,2"),
        ("package:1&core:3&cpu:7", "7"),
    ] {
        assert_eq!(cpus(&topology, place), expected, "{place}");
    }
}

#[test]
fn cores_near_each_other_have_neighbouring_numbers() {
    let topology = two_packages().load("0-7").unwrap();
    let packages: Vec<usize> = topology.cores().iter().map(|core| core.package).collect();
    assert_eq!(packages, [0, 0, 1, 1]);
}

#[test]
fn an_unknown_number_is_answered_with_those_that_exist() {
    let topology = two_packages().load("0-7").unwrap();
    for (place, expected) in [
        ("cpu:8", "place `cpu:8`: this machine has no cpu 8 (have: cpu 0-7)"),
        ("core:4-5", "this machine has no core 4-5 (have: core 0-3)"),
        ("numa:2", "this machine has no numa 2 (have: numa 0-1)"),
        ("package:2", "this machine has no package 2 (have: package 0-1)"),
        ("l3:7", "this machine has no l3 7 (have: l3 0-1)"),
    ] {
        let error = refused(&topology, place);
        assert!(matches!(error, TopologyError::Unknown { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let nothing = topology.cpus_of(&Place::cpus(CpuSet::new())).unwrap_err();
    assert!(matches!(nothing, TopologyError::Unknown { .. }), "{nothing}");
}

#[test]
fn a_cpu_that_is_not_allowed_is_no_unknown_cpu() {
    let topology = two_packages().load("0-3").unwrap();
    assert_eq!(cpus(&topology, "all"), "0-3");
    // Groups give what of them may be used.
    assert_eq!(cpus(&topology, "core:0"), "0");
    assert_eq!(cpus(&topology, "package:1"), "1,3");
    // By number, all of it is meant.
    let error = refused(&topology, "cpu:3-4");
    assert!(matches!(error, TopologyError::NotAllowed { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "place `cpu:3-4`: cpu 4 exists, but this process may not run there: its affinity mask or \
         cgroup allows cpu 0-3"
    );
    let topology = two_packages().load("0,2").unwrap();
    let error = refused(&topology, "numa:1");
    assert!(matches!(error, TopologyError::NotAllowed { .. }), "{error:?}");
}

#[test]
fn parts_without_a_common_cpu_are_an_error() {
    let topology = two_packages().load("0-7").unwrap();
    let error = refused(&topology, "numa:0&package:1");
    assert!(matches!(error, TopologyError::Disjoint { .. }), "{error:?}");
    assert!(error.to_string().contains("`numa:0&package:1`"), "{error}");
}

#[test]
fn a_machine_with_one_cpu_has_one_of_everything() {
    let topology = one_cpu().load("0").unwrap();
    for place in ["all", "cpu:0", "core:0", "numa:0", "package:0", "l3:0"] {
        assert_eq!(cpus(&topology, place), "0", "{place}");
    }
    assert_eq!(topology.memory_node_of(&set("0")), Some(0));
}

#[test]
fn offline_cpus_exist_and_cannot_be_used() {
    // Cpu 5 is off: the kernel removes its topology and lists it nowhere but in `present`.
    let tree = two_packages()
        .with("cpu/online", "0-4,6-7\n")
        .without("cpu/cpu5/topology")
        .without("cpu/cpu5/cache")
        .with("cpu/cpu1/topology/thread_siblings_list", "1\n")
        .with("node/node1/cpulist", "1,3,7\n");
    let topology = tree.load("0-7").unwrap();
    assert_eq!(topology.online().to_string(), "0-4,6-7");
    assert_eq!(topology.present().to_string(), "0-7");
    assert_eq!(cpus(&topology, "core:2"), "1");
    assert_eq!(cpus(&topology, "numa:1"), "1,3,7");
    let error = refused(&topology, "cpu:5");
    assert!(matches!(error, TopologyError::Offline { .. }), "{error:?}");
    assert!(error.to_string().contains("cpu 5 is offline"), "{error}");
    assert!(matches!(refused(&topology, "cpu:8"), TopologyError::Unknown { .. }));
}

#[test]
fn a_node_of_memory_only_has_no_cpus_to_run_on() {
    let tree = two_packages()
        .with("node/node0/distance", "10 21 17\n")
        .with("node/node1/distance", "21 10 28\n")
        .node(2, "", 8 << 20, "17 28 10");
    let topology = tree.load("0-7").unwrap();
    let node = topology.numa_node(2).unwrap();
    assert!(node.cpus.is_empty());
    assert_eq!(node.memory_bytes, 8 << 30);
    let error = refused(&topology, "numa:2");
    assert!(matches!(error, TopologyError::NoCpus { .. }), "{error:?}");
    assert!(error.to_string().contains("NUMA nodes with cpus: 0-1"), "{error}");
    // As a place for memory it is fine.
    assert_eq!(place("numa:2").as_numa_node(), Some(2));
    assert_eq!(cpus(&topology, "numa:1-2"), "1,3,5,7");
}

#[test]
fn cpus_of_a_node_without_memory_are_nearest_to_another_node() {
    let tree = two_packages()
        .with("node/node0/distance", "10 21 17\n")
        .node(1, "1,3,5,7", 0, "21 10 28")
        .node(2, "", 1 << 20, "17 28 10");
    let topology = tree.load("0-7").unwrap();
    assert_eq!(topology.node_of_cpu(1), Some(1));
    assert_eq!(topology.nearest_memory_node(1), Some(0));
    assert_eq!(topology.nearest_memory_node(0), Some(0));
    assert_eq!(topology.memory_node_of(&set("0-7")), Some(0));
}

#[test]
fn cpus_of_several_nodes_have_no_memory_node() {
    let topology = two_packages().load("0-7").unwrap();
    assert_eq!(topology.memory_node_of(&set("1,3")), Some(1));
    assert_eq!(topology.memory_node_of(&set("0-1")), None);
    assert_eq!(topology.memory_node_of(&set("")), None);
    assert_eq!(topology.memory_node_of(&set("99")), None);
}

#[test]
fn a_kernel_without_numa_is_one_node() {
    let topology = two_packages().without("node").load("0-7").unwrap();
    assert_eq!(topology.numa_nodes().len(), 1);
    assert_eq!(cpus(&topology, "numa:0"), "0-7");
    assert_eq!(topology.distance(0, 0), Some(10));
    assert!(topology.notes().iter().any(|note| note.contains("one NUMA node")));
}

#[test]
fn numbers_of_nodes_may_have_gaps() {
    let tree = two_packages().without("node").node(0, "0,2,4,6", 1 << 20, "10 40").node(
        8,
        "1,3,5,7",
        1 << 20,
        "40 10",
    );
    let topology = tree.load("0-7").unwrap();
    assert_eq!(topology.distance(0, 8), Some(40));
    assert_eq!(cpus(&topology, "numa:8"), "1,3,5,7");
    assert!(refused(&topology, "numa:1").to_string().contains("(have: numa 0,8)"));
}

#[test]
fn without_lists_of_siblings_cores_are_told_by_number() {
    let mut tree = two_packages();
    for cpu in 0..8 {
        tree = tree.without(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
    }
    let topology = tree.load("0-7").unwrap();
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(cpus(&topology, "core:1"), "2,6");
    assert_eq!(cpus(&topology, "core:3"), "3,7");
}

#[test]
fn missing_files_leave_a_simpler_machine() {
    let mut tree = two_packages().without("cpu/present").without("cpu/online");
    for cpu in 0..8 {
        tree =
            tree.without(&format!("cpu/cpu{cpu}/topology")).without(&format!("cpu/cpu{cpu}/cache"));
    }
    for node in 0..2 {
        tree = tree
            .without(&format!("node/node{node}/distance"))
            .without(&format!("node/node{node}/meminfo"));
    }
    // The cpus are known by their folders.
    let tree = (0..8).fold(tree, |tree, cpu| tree.with(&format!("cpu/cpu{cpu}/uevent"), ""));
    let topology = tree.load("0-7").unwrap();
    assert_eq!(topology.online().to_string(), "0-7");
    assert_eq!(topology.packages().len(), 1);
    assert_eq!(topology.cores().len(), 8);
    assert!(topology.l3_groups().is_empty());
    assert_eq!(topology.distance(0, 1), Some(20));
    assert_eq!(topology.memory_node_of(&set("0")), None);
    assert!(topology.notes().iter().any(|note| note.contains("meminfo")));
    assert!(refused(&topology, "l3:0").to_string().contains("(have: l3 (none))"));
}

#[test]
fn without_any_files_there_are_the_allowed_cpus() {
    let topology = Tree::new().load("2-3").unwrap();
    assert_eq!(cpus(&topology, "all"), "2-3");
    assert_eq!(cpus(&topology, "numa:0"), "2-3");
    assert_eq!(topology.cores().len(), 2);
    assert_eq!(topology.notes().len(), 2);
}

#[test]
fn more_than_1024_cpus_fit() {
    let tree = Tree::new().with("cpu/online", "0-2047\n").node(0, "0-2047", 1 << 20, "10");
    let topology = tree.load("1000-1500").unwrap();
    assert_eq!(topology.online().len(), 2048);
    assert_eq!(cpus(&topology, "cpu:1024,1500"), "1024,1500");
    assert_eq!(cpus(&topology, "all"), "1000-1500");
}

#[test]
fn garbage_is_reported_with_the_file() {
    for (path, text, part) in [
        ("cpu/online", "zero\n", "holds `zero`: expected a cpu list such as 0-3,8"),
        ("cpu/present", "7-0\n", "runs backwards"),
        ("cpu/cpu3/topology/physical_package_id", "x1\n", "holds `x1`: expected a number"),
        ("cpu/cpu3/topology/thread_siblings_list", "3;7\n", "found `;`"),
        ("cpu/cpu0/cache/index3/shared_cpu_list", "-\n", "a number is missing"),
        ("node/node1/cpulist", "0-4294967295\n", "too large"),
        ("node/node1/cpulist", "1,2\n", "cpu 2 is in another node already"),
        ("node/node0/distance", "10\n", "1 distances for 2 nodes"),
        ("node/node0/distance", "10 far\n", "expected numbers"),
        ("node/node0/meminfo", "Node 0 MemFree: 7 kB\n", "there is no `MemTotal:` in it"),
        ("node/node0/meminfo", "Node 0 MemTotal: lots\n", "expected a number and `kB`"),
        ("node/node0/meminfo", "Node 0 MemTotal: 12 pages\n", "expected a number and `kB`"),
        ("node/node0/meminfo", "", "there is no `MemTotal:`"),
    ] {
        let error = two_packages().with(path, text).refused();
        assert!(error.contains(path) && error.contains(part), "{path} {text:?}: {error}");
    }
    let error = two_packages().with("cpu/online", b"\xff\xfe").refused();
    assert!(error.contains("cpu/online") && error.contains("not text"), "{error}");
    let error = two_packages().with("cpu/online", "x\n".repeat(1000)).refused();
    assert!(error.len() < 400, "shortened: {error}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    // A folder where a file belongs can be read by nobody, whatever the permissions.
    let tree = two_packages().without("cpu/online").with("cpu/online/inside", "");
    let error = tree.load("0-7").unwrap_err();
    assert!(matches!(error, TopologyError::Read { .. }), "{error:?}");
    assert!(error.to_string().contains("cpu/online"), "{error}");
}

#[test]
fn it_prints_a_line_per_part() {
    let topology = two_packages().load("0-3").unwrap();
    let expected = "\
        2 packages, 2 NUMA nodes, 4 cores, 8 cpus online (0-7), 4 allowed (0-3), read from sysfs\n\
        package 0: cpus 0,2,4,6, 2 cores\n\
        package 1: cpus 1,3,5,7, 2 cores\n\
        numa 0: cpus 0,2,4,6, memory 1.0 GiB, distances 0:10 1:21\n\
        numa 1: cpus 1,3,5,7, memory 2.0 GiB, distances 0:21 1:10\n\
        l3 0: cpus 0,2,4,6\n\
        l3 1: cpus 1,3,5,7\n";
    assert_eq!(topology.to_string(), expected);
    let topology = Tree::new().with("cpu/online", "0").load("0").unwrap();
    assert!(topology.to_string().contains("numa 0: cpus 0, memory none, distances 0:10\nnote: "));
}

// This machine.

#[test]
fn this_machine_adds_up() {
    let topology = Topology::load().unwrap();
    assert!(!topology.allowed().is_empty());
    assert!(topology.allowed().is_subset(topology.online()));
    assert!(topology.online().is_subset(topology.present()));
    let sum = |sets: Vec<&CpuSet>| {
        let all = sets.iter().fold(CpuSet::new(), |all, set| all.union(set));
        assert_eq!(all.len(), sets.iter().map(|set| set.len()).sum::<usize>(), "disjoint");
        all
    };
    let nodes = sum(topology.numa_nodes().iter().map(|node| &node.cpus).collect());
    let packages = sum(topology.packages().iter().map(|package| &package.cpus).collect());
    let cores = sum(topology.cores().iter().map(|core| &core.cpus).collect());
    assert_eq!(&nodes, topology.online());
    assert_eq!(&packages, topology.online());
    assert_eq!(&cores, topology.online());
    assert_eq!(&topology.cpus_of(&Place::all()).unwrap(), topology.allowed());
    assert!(topology.numa_nodes().iter().any(|node| node.memory_bytes > 0));
    let available = thread::available_parallelism().unwrap().get();
    assert!(topology.allowed().len() >= available, "{topology}");
}

#[test]
fn the_kept_topology_is_the_same_object() {
    let (first, second) = (Topology::get().unwrap(), Topology::get().unwrap());
    assert!(std::ptr::eq(first, second));
}

#[test]
fn a_thread_is_bound_and_reads_it_back() {
    let allowed = Topology::get().unwrap().allowed().clone();
    for cpu in allowed.iter() {
        let bound = thread::spawn(move || {
            bind_this_thread(&[cpu].into_iter().collect()).unwrap();
            current_binding().unwrap()
        });
        assert_eq!(bound.join().unwrap().to_string(), cpu.to_string());
    }
    // The others stay where they were.
    assert_eq!(current_binding().unwrap(), allowed);
}

#[test]
fn a_bound_thread_still_sees_all_allowed_cpus() {
    let topology = Topology::get().unwrap();
    let first = topology.allowed().first().unwrap();
    let seen = thread::spawn(move || {
        bind_this_thread(&[first].into_iter().collect()).unwrap();
        Topology::load().unwrap()
    });
    assert_eq!(seen.join().unwrap().allowed(), topology.allowed());
}

#[test]
fn binding_to_what_is_not_there_is_an_error() {
    let before = current_binding().unwrap();
    for (cpus, part) in [(set(""), "no cpu at all"), (set("60000"), "none of them exists")] {
        let error = bind_this_thread(&cpus).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(current_binding().unwrap(), before);
}

#[test]
fn a_pattern_binds_xstreams_in_turn() {
    let allowed = Topology::get().unwrap().allowed();
    let pattern: AffinityPattern = format!("0:{}", allowed.len()).parse().unwrap();
    let each: Vec<CpuSet> = (0..allowed.len()).map(|k| pattern.cpus_for(k).unwrap()).collect();
    assert!(each.iter().all(|cpus| cpus.len() == 1));
    assert_eq!(&each.iter().fold(CpuSet::new(), |all, cpus| all.union(cpus)), allowed);
    assert_eq!(pattern.cpus_for(allowed.len()).unwrap(), each[0]);
}

/// A fresh mapping of whole pages, untouched.
struct Pages {
    start: *mut u8,
    bytes: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        let bytes = pages * rustix::param::page_size();
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
        Self { start: start.unwrap().cast(), bytes }
    }

    fn touch(&self) {
        for at in (0..self.bytes).step_by(rustix::param::page_size()) {
            // SAFETY: `at` is within the mapping.
            let page = unsafe { self.start.add(at) };
            // SAFETY: our own writable mapping.
            unsafe { page.write(1) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody else knows.
        unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) }.unwrap();
    }
}

/// Returns whether the machine lets us try; says so if not.
fn permitted(result: io::Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            let refused = [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied];
            assert!(refused.contains(&error.kind()), "{error}");
            println!("SKIPPED: {error}");
            false
        }
    }
}

/// The nodes whose memory this process may use.
fn allowed_nodes() -> CpuSet {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    line.map_or_else(|| set("0"), |list| set(list.trim()))
}

#[test]
fn memory_lies_on_the_node_it_is_bound_to() {
    let allowed = allowed_nodes();
    for node in Topology::get().unwrap().numa_nodes() {
        if node.memory_bytes == 0 || !allowed.contains(node.id as usize) {
            continue;
        }
        for policy in [MemoryPolicy::Preferred, MemoryPolicy::Strict] {
            let pages = Pages::new(4);
            if !permitted(bind_memory(pages.start, pages.bytes, node.id, policy)) {
                return;
            }
            if !permitted(node_of_page(pages.start).map(|node| assert_eq!(node, None))) {
                return;
            }
            // Read only.
            // SAFETY: our own mapping.
            assert_eq!(unsafe { pages.start.read_volatile() }, 0);
            assert_eq!(node_of_page(pages.start).unwrap(), None);
            pages.touch();
            assert_eq!(node_of_page(pages.start).unwrap(), Some(node.id), "{policy:?}");
            // A page has one node, at whichever of its bytes.
            assert_eq!(node_of_page(pages.start.wrapping_add(77)).unwrap(), Some(node.id));
            // Also pages that exist already.
            bind_memory(pages.start, pages.bytes, node.id, policy).unwrap();
        }
    }
}

#[test]
fn memory_that_cannot_be_bound_says_why() {
    let pages = Pages::new(2);
    let policy = MemoryPolicy::Preferred;
    let own = u32::try_from(allowed_nodes().first().unwrap()).unwrap();
    if !permitted(bind_memory(pages.start, pages.bytes, own, policy)) {
        return;
    }
    let error = bind_memory(pages.start.wrapping_add(1), 10, own, policy).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("page boundary"), "{error}");
    for node in [1000, 31_999, 4_000_000_000] {
        let error = bind_memory(pages.start, pages.bytes, node, policy).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(&format!("NUMA node {node}")), "{error}");
    }
    let gone = Pages::new(1);
    let (start, bytes) = (gone.start, gone.bytes);
    drop(gone);
    // Nobody maps the first page.
    let error = node_of_page(std::ptr::without_provenance(16)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("nothing is mapped"), "{error}");
    // Unmapped, unless another thread got the place in between; then the call may succeed.
    if let Err(error) = bind_memory(start, bytes, own, policy) {
        assert!(error.to_string().contains("not mapped"), "{error}");
    }
}
