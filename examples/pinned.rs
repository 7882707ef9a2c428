//! A document pins two pools to different parts of the machine, and the handlers say where they
//! run: on two NUMA nodes if there are two, otherwise on two CPUs.
//!
//! ```text
//! cargo run --example pinned
//! ```
//!
//! Prints a line for each pool, such as
//! `left, pinned to numa:0: 1000 handlers ran on CPUs 0-3 of NUMA nodes 0`, and fails if a handler
//! ran elsewhere.

use margo::ult::Topology;
use margo::ult::topology::{CpuSet, Place};
use margo::{ProviderHandle, ProviderId, Rpc};

/// The CPU on which the handler runs.
const WHERE: Rpc<(), usize> = Rpc::new("where");

const CALLS: usize = 1000;

/// Two different places of this machine, or the same one twice if it is that small.
fn places(machine: &Topology) -> [String; 2] {
    let has_cpus = |node: &u32| machine.cpus_of(&Place::numa(*node)).is_ok_and(|c| !c.is_empty());
    let nodes: Vec<_> = machine.numa_nodes().iter().map(|node| node.id).filter(has_cpus).collect();
    if let [left, .., right] = nodes[..] {
        return [format!("numa:{left}"), format!("numa:{right}")];
    }
    let cpus: Vec<_> = machine.allowed().iter().collect();
    [cpus.first(), cpus.last()].map(|cpu| format!("cpu:{}", cpu.copied().unwrap_or_default()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = Topology::get()?;
    let [left, right] = places(machine);
    let margo = margo::init(&format!(
        r#"{{
            "argobots": {{
                "pools": [ {{ "name": "left" }}, {{ "name": "right" }} ],
                "xstreams": [
                    {{ "affinity": "{left}",  "scheduler": {{ "pools": ["left"] }} }},
                    {{ "affinity": "{right}", "scheduler": {{ "pools": ["right"] }} }}
                ]
            }},
            "margo": {{ "address": "na+sm://" }}
        }}"#
    ))?;
    for (id, (pool, place)) in (1..).zip([("left", left), ("right", right)]) {
        let pinned_to = machine.cpus_of(&place.parse()?)?;
        let provider = margo.provider(
            ProviderId::new(id),
            &margo.layout().pool(pool).ok_or("the document has it")?,
        );
        provider.serve(WHERE).function(|()| rustix::thread::sched_getcpu())?;
        let target = ProviderHandle::new(margo.self_addr(), ProviderId::new(id));
        let mut ran_on = CpuSet::default();
        for _ in 0..CALLS {
            ran_on.insert(margo.forward(WHERE, &target, &())?);
        }
        let nodes = ran_on.iter().filter_map(|cpu| machine.node_of_cpu(cpu));
        let nodes: CpuSet = nodes.map(|node| node as usize).collect();
        println!(
            "{pool}, pinned to {place}: {CALLS} handlers ran on CPUs {ran_on} of NUMA nodes {nodes}"
        );
        if !ran_on.is_subset(&pinned_to) {
            return Err(format!("a handler of pool {pool} ran outside of {place}").into());
        }
    }
    margo.finalize_and_wait()?;
    Ok(())
}
