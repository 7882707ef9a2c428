//! Machines that exist only as files, for tests.

use std::fs;
use std::path::Path;

use ult::Topology;

/// CPUs 0 and 1 are package 0 and node 0; CPUs 2 and 3 are package 1 and node 1; CPU 4 is off.
pub(crate) fn two_nodes(allowed: &str) -> Topology {
    let folder = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = folder.path().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    file("cpu/present", "0-4");
    file("cpu/possible", "0-4");
    file("cpu/online", "0-3");
    for cpu in 0..4 {
        let dir = format!("cpu/cpu{cpu}/topology");
        file(&format!("{dir}/physical_package_id"), &(cpu / 2).to_string());
        file(&format!("{dir}/core_id"), &(cpu % 2).to_string());
        file(&format!("{dir}/thread_siblings_list"), &cpu.to_string());
    }
    file("node/online", "0-1");
    file("node/possible", "0-1");
    for (node, cpus, distance) in [(0, "0-1", "10 20"), (1, "2-3", "20 10")] {
        let dir = format!("node/node{node}");
        file(&format!("{dir}/cpulist"), cpus);
        file(&format!("{dir}/meminfo"), &format!("Node {node} MemTotal: 1048576 kB"));
        file(&format!("{dir}/distance"), distance);
    }
    Topology::load_sysfs(folder.path(), &allowed.parse().unwrap()).unwrap()
}
