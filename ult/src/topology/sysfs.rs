//! Reads the topology from sysfs, or from a tree of files that looks like it.
//!
//! | below the root | tells | where it is missing |
//! |---|---|---|
//! | `devices/system/cpu/online` | the cpus that are on | the `cpuN` folders; without those, the allowed cpus |
//! | `devices/system/cpu/present` | the cpus that exist | the online ones |
//! | `devices/system/cpu/cpuN/topology/physical_package_id` | the package | one package |
//! | `…/thread_siblings_list`, else `core_id` and `die_id` | the core | each cpu is a core |
//! | `…/cpuN/cache/index3/shared_cpu_list` | who shares the third-level cache | no L3 groups |
//! | `devices/system/node/nodeN/cpulist` | cpus of a node | no cpus |
//! | `…/nodeN/meminfo` | memory of a node | no memory |
//! | `…/nodeN/distance` | distances | 10 to itself, 20 to others |
//!
//! No `node` folder (a kernel without NUMA) means one node with all cpus, and the memory that
//! `proc/meminfo` beside the root tells. What was missing and matters is in
//! [`Topology::notes`](super::Topology::notes). A file that is there and makes no sense is an error
//! that names it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cpuset::{CpuSet, ID_MAX, parse_list};
use super::error::TopologyError;
use super::raw::{Raw, RawCpu, RawNode};

/// So much of a garbled file is shown.
const SHOWN_CHARS: usize = 40;

/// Reads everything below `root`, which is `/sys` on a real machine.
pub(crate) fn read(root: &Path, allowed: CpuSet) -> Result<Raw, TopologyError> {
    let mut notes = Vec::new();
    let cpu_dir = root.join("devices/system/cpu");
    let online = online(&cpu_dir, &allowed, &mut notes)?;
    let present = cpu_list(&cpu_dir.join("present"))?.unwrap_or_else(|| online.clone());
    let cpus = read_cpus(&cpu_dir, &online)?;
    let node_dir = root.join("devices/system/node");
    let mut nodes = read_nodes(&node_dir, &mut notes)?;
    if nodes.is_empty() {
        notes.push(format!("{}: no nodes; taken as one NUMA node", node_dir.display()));
        // Beside `/sys` is `/proc`, whose file has the same line.
        let proc = root.parent().map(|parent| memory_bytes(&parent.join("proc/meminfo")));
        let memory_bytes = proc.transpose()?.flatten().unwrap_or(0);
        nodes.push(RawNode { id: 0, cpus: online.clone(), memory_bytes, distances: Vec::new() });
    }
    Ok(Raw { source: "sysfs", present, online, allowed, cpus, nodes, notes })
}

fn online(dir: &Path, allowed: &CpuSet, notes: &mut Vec<String>) -> Result<CpuSet, TopologyError> {
    if let Some(online) = cpu_list(&dir.join("online"))? {
        return Ok(online);
    }
    let found: CpuSet = numbered(dir, "cpu")?.into_iter().collect();
    let what = if found.is_empty() { "the cpus that are allowed" } else { "all cpus it lists" };
    notes.push(format!("{}: no file `online`; {what} are taken as online", dir.display()));
    Ok(if found.is_empty() { allowed.clone() } else { found })
}

/// A core by numbers, where the kernel does not list the cpus of a core.
type CoreKey = (i64, Option<i64>, i64);

fn read_cpus(dir: &Path, online: &CpuSet) -> Result<Vec<RawCpu>, TopologyError> {
    let mut cpus = Vec::new();
    let mut keys: BTreeMap<CoreKey, CpuSet> = BTreeMap::new();
    let mut unlisted: Vec<(usize, CoreKey)> = Vec::new();
    for cpu in online.iter() {
        let own = dir.join(format!("cpu{cpu}"));
        let topology = own.join("topology");
        // Old ARM kernels say -1 where firmware does not tell.
        let package = number(&topology.join("physical_package_id"))?.unwrap_or(0).max(0);
        let mut core = [cpu].into_iter().collect::<CpuSet>();
        if let Some(siblings) = cpu_list(&topology.join("thread_siblings_list"))? {
            core = core.union(&siblings);
        } else if let Some(core_id) = number(&topology.join("core_id"))? {
            let key = (package, number(&topology.join("die_id"))?, core_id);
            keys.entry(key).or_default().insert(cpu);
            unlisted.push((cpus.len(), key));
        }
        let l3 = cpu_list(&own.join("cache/index3/shared_cpu_list"))?.unwrap_or_default();
        cpus.push(RawCpu { cpu, package, core, l3 });
    }
    for (at, key) in unlisted {
        if let Some(core) = keys.get(&key) {
            cpus[at].core = core.clone();
        }
    }
    Ok(cpus)
}

fn read_nodes(dir: &Path, notes: &mut Vec<String>) -> Result<Vec<RawNode>, TopologyError> {
    let ids = numbered(dir, "node")?;
    let mut nodes: Vec<RawNode> = Vec::new();
    let mut taken = CpuSet::new();
    for &id in &ids {
        let own = dir.join(format!("node{id}"));
        let list = own.join("cpulist");
        let cpus = cpu_list(&list)?.unwrap_or_default();
        let twice = cpus.intersection(&taken);
        if !twice.is_empty() {
            let what = format!("cpu {twice} is in another node already");
            return Err(garbled(&list, &cpus.to_string(), what));
        }
        taken = taken.union(&cpus);
        let memory = memory_bytes(&own.join("meminfo"))?;
        if memory.is_none() {
            notes.push(format!("{}: no file `meminfo`; taken as without memory", own.display()));
        }
        nodes.push(RawNode {
            id: u32::try_from(id).unwrap_or(u32::MAX),
            cpus,
            memory_bytes: memory.unwrap_or(0),
            distances: distances(&own.join("distance"), ids.len())?,
        });
    }
    Ok(nodes)
}

/// The bytes after `MemTotal:`.
fn memory_bytes(path: &Path) -> Result<Option<u64>, TopologyError> {
    let Some(text) = text(path)? else { return Ok(None) };
    let Some((_, rest)) = text.split_once("MemTotal:") else {
        return Err(garbled(path, &text, "there is no `MemTotal:` in it".into()));
    };
    let mut words = rest.split_whitespace();
    let kib = words.next().and_then(|word| word.parse::<u64>().ok());
    match (kib.and_then(|kib| kib.checked_mul(1024)), words.next()) {
        (Some(bytes), Some("kB")) => Ok(Some(bytes)),
        _ => {
            let line = rest.lines().next().unwrap_or_default();
            Err(garbled(path, line, "expected a number and `kB` after `MemTotal:`".into()))
        }
    }
}

fn distances(path: &Path, nodes: usize) -> Result<Vec<u32>, TopologyError> {
    let Some(text) = text(path)? else { return Ok(Vec::new()) };
    let row: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    match row {
        Ok(row) if row.len() == nodes => Ok(row),
        Ok(row) => {
            let what = format!("{} distances for {nodes} nodes", row.len());
            Err(garbled(path, &text, what))
        }
        Err(_) => Err(garbled(path, &text, "expected numbers with spaces between".into())),
    }
}

/// A file with a cpu list. An empty file is an empty set: a node without cpus has one.
fn cpu_list(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let Some(text) = text(path)? else { return Ok(None) };
    if text.trim().is_empty() {
        return Ok(Some(CpuSet::new()));
    }
    match parse_list(text.trim()) {
        Ok(set) => Ok(Some(set)),
        Err(fault) => {
            Err(garbled(path, &text, format!("expected a cpu list such as 0-3,8: {}", fault.what)))
        }
    }
}

fn number(path: &Path) -> Result<Option<i64>, TopologyError> {
    let Some(text) = text(path)? else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(garbled(path, &text, "expected a number".into())),
    }
}

/// The content of a file, or nothing if there is no such file.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                Err(garbled(path, &text, "it is not text".into()))
            }
        },
        Err(error) => absent(path, error).map(|()| None),
    }
}

/// The numbers N of the entries `prefixN`, ascending.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<usize>, TopologyError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return absent(dir, error).map(|()| Vec::new()),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| TopologyError::Read { path: dir.into(), source })?;
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if let Some(Ok(number)) = digits.map(str::parse::<usize>)
            && number <= ID_MAX
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A file that is not there is no error.
fn absent(path: &Path, error: io::Error) -> Result<(), TopologyError> {
    // A cpu that is switched off while we read answers ENXIO or ENODEV for its open files.
    let gone = matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::ENOTDIR));
    if gone || error.kind() == io::ErrorKind::NotFound {
        return Ok(());
    }
    Err(TopologyError::Read { path: path.into(), source: error })
}

fn garbled(path: &Path, text: &str, what: String) -> TopologyError {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut shown: String = line.chars().take(SHOWN_CHARS).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    TopologyError::Garbled { path: PathBuf::from(path), text: shown, what }
}
