//! 50 instances in a simulated network whose nodes crash and restart, lose power, are cut off, and
//! slow down: every call ends in an answer or an error by its deadline, no handler runs twice, an
//! error that says "never ran" is true, and nothing is left behind.
//!
//! They are whole instances, children of one, so all their ULTs share one execution stream: one
//! thread, and a clock that stands still while they compute. With every fourth seed they have up
//! to three shards, each in a pool of its own. So a seed is a run, as long as nobody dies (see
//! `Trouble`). Calls are made as users make them, with `forward_timed`: the clock of the whole
//! program is the network's (`cluster_support/clock.rs`).
//!
//! `MARGO_SIM_SEEDS=n` runs n seeds instead of the usual number; `MARGO_SIM_SEED=s` runs the one,
//! which a failure prints. Each test has a process, and so a clock, of its own.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

#[path = "common/alone.rs"]
mod alone;
mod cluster_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alone::alone;
use cluster_support::{Cluster, Random, clock, name_of};
use na::sim::{LinkOptions, Network, Trace, TraceEntry};

/// Nodes of a run in which they die, and of one that is made twice.
const NODES: usize = 50;
const FEW_NODES: usize = 20;
/// ULTs of each node that make calls, and how many each makes.
const CALLERS: usize = 2;
const CALLS: usize = 12;
/// Faults in one run, and when the last one begins.
const FAULTS: usize = 40;
const TROUBLE: u64 = 1_500_000;
/// Turns in a row in which nothing happens, before the next event: what one event leads to must be
/// over by then, or it would depend on whose turn it is. Progress takes a turn off now and then.
const TURNS: usize = 4;

/// One caller: calls to anybody, itself included, short and long, quick and slow, on their own or
/// through others, and news.
fn make_calls(cluster: &Cluster, (node, nodes): (usize, usize), mut random: Random) {
    for _ in 0..CALLS {
        cluster.sleep(random.micros(10, 2 * TROUBLE / CALLS as u64));
        let to = random.below(nodes as u64) as usize;
        let limit = match random.below(4) {
            0 => random.micros(20, 500),
            _ => random.micros(1_000, 600_000),
        };
        let wait = match random.below(4) {
            0 => random.below(400_000),
            1 => random.below(500),
            _ => 0,
        };
        let hops = random.below(8).saturating_sub(4);
        let route = (0..hops).map(|_| random.below(nodes as u64) as usize).collect();
        let bytes = vec![7; if random.below(8) == 0 { 20_000 } else { random.below(300) as usize }];
        // A dead node makes no calls; it may be back for the next one.
        let Some(own) = cluster.instance(node) else { continue };
        match random.below(10) {
            0 => cluster.send(&own, to),
            _ => cluster.call(&own, to, (0, wait, route, bytes), limit),
        }
    }
}

/// The kinds of faults in a run.
#[derive(Clone, Copy)]
enum Trouble {
    /// Everything.
    All,
    /// Links and slow nodes: no node dies. An instance that dies is ended by a thread of its own,
    /// and when the system runs that thread no seed says.
    Links,
}

impl Trouble {
    fn nodes(self) -> usize {
        match self {
            Self::All => NODES,
            Self::Links => FEW_NODES,
        }
    }
}

/// Everything that goes wrong, at times that the seed gives, and how each ends.
fn plan_faults(cluster: &Arc<Cluster>, trouble: Trouble, random: &mut Random) {
    let kinds = match trouble {
        Trouble::All => 0..6,
        Trouble::Links => 2..6,
    };
    let nodes = trouble.nodes() as u64;
    for _ in 0..FAULTS {
        let node = random.below(nodes) as usize;
        let (name, other) = (name_of(node), name_of(random.below(nodes) as usize));
        let begin = random.micros(1, TROUBLE);
        let end = begin + random.micros(100, 700_000);
        let own = Arc::downgrade(cluster);
        let again = own.clone();
        match kinds.start + random.below(kinds.end - kinds.start) {
            kind @ (0 | 1) => {
                cluster.network.schedule(begin, move |_| {
                    own.upgrade().into_iter().for_each(|own| own.kill(node, kind == 1));
                });
                cluster.network.schedule(end, move |_| {
                    again.upgrade().into_iter().for_each(|own| own.start(node));
                });
            }
            2 => {
                let (there, back) = (name.clone(), other.clone());
                cluster.network.schedule(begin, move |network| network.partition(&there, &back));
                cluster.network.schedule(end, move |network| network.heal_between(&name, &other));
            }
            3 => {
                let cut = move |network: &Network| network.partition_one_way(&name, &other);
                cluster.network.schedule(begin, cut);
            }
            4 => {
                cluster.network.schedule(begin, move |network| network.isolate(&name));
                cluster.network.schedule(end, Network::heal);
            }
            _ => {
                let cost = random.micros(10, 2_000);
                cluster.network.schedule(begin, move |network| {
                    network.set_operation_cost(&name, cost);
                    network.set_link(&name, &other, LinkOptions::unreliable(0.3)).unwrap();
                });
            }
        }
    }
}

/// Gives everybody turns until no ULT has been made, resumed or ended for some. Called in the
/// least urgent pool: who is in another one has stepped aside then, and comes back after `ASIDE`
/// units.
fn settle(pools: &[ult::PoolRef]) {
    const ASIDE: u64 = 32;
    let happened = || {
        let stats = pools.iter().map(|pool| pool.stats());
        stats.map(|stats| stats.created + stats.resumed + stats.finished).sum::<u64>()
    };
    let turn = if pools.len() > 1 { ASIDE } else { 1 };
    let (mut quiet, mut before) = (0, happened());
    while quiet < TURNS {
        let units = ult::integration::units_run();
        while {
            ult::yield_now();
            ult::integration::units_run() - units < turn
        } {}
        let now = happened();
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
    }
}

/// Moves the clock until all callers have ended; `false`: some never will.
fn drive(cluster: &Cluster, callers: &AtomicUsize) -> bool {
    let mut quiet_since = None;
    while callers.load(Ordering::SeqCst) > 0 {
        settle(cluster.pools());
        if cluster.step() {
            quiet_since = None;
        } else if callers.load(Ordering::SeqCst) > 0 {
            // Nothing will happen in the network any more; only threads that end a dead instance
            // could still tell somebody something.
            let since = *quiet_since.get_or_insert_with(clock::real);
            if clock::real() - since > Duration::from_secs(20) {
                return false;
            }
        }
    }
    // What handlers do for which nobody waits, and what the network still carries.
    cluster.network.heal();
    loop {
        (0..10).for_each(|_| settle(cluster.pools()));
        if !cluster.step() {
            return true;
        }
    }
}

/// Most shards of a node: every fourth seed has nodes with one, two and three.
fn shards_of(seed: u64) -> usize {
    if seed % 4 == 1 { 3 } else { 1 }
}

fn run(seed: u64, trouble: Trouble) -> (BTreeMap<String, u32>, Trace) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("cluster-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut random = Random::new(seed);
    let nodes = trouble.nodes();
    let cluster = Cluster::new(&name, seed, nodes, shards_of(seed));
    let _explain = cluster.network.trace_on_panic(40);
    plan_faults(&cluster, trouble, &mut random);
    let callers = Arc::new(AtomicUsize::new(nodes * CALLERS));
    let own = cluster.clone();
    let driver = cluster.pools()[0].spawn(move || {
        for caller in 0..nodes * CALLERS {
            let (all, left) = (own.clone(), callers.clone());
            let random = Random::new(random.below(u64::MAX >> 1));
            let calls = move || {
                make_calls(&all, (caller % nodes, nodes), random);
                left.fetch_sub(1, Ordering::SeqCst);
            };
            let pool = &own.pools()[caller % own.pools().len()];
            pool.ult().spawn_detached(calls).unwrap();
        }
        drive(&own, &callers)
    });
    let all_ended = driver.unwrap().join().unwrap();
    assert!(all_ended, "calls hang: {:#?}", cluster.hanging());
    let kinds = cluster.assert_all_is_over();
    let trace = cluster.network.trace();
    cluster.end();
    assert_eq!(Arc::weak_count(&cluster), 0, "a handler, with what it holds, was not dropped");
    (kinds, trace)
}

/// Runs a seed. If it fails, prints how to run it again.
fn run_or_tell(seed: u64, trouble: Trouble) -> (BTreeMap<String, u32>, Trace) {
    let run = std::panic::catch_unwind(|| run(seed, trouble));
    run.unwrap_or_else(|panic| {
        eprintln!("to repeat: MARGO_SIM_SEED={seed} cargo test -p margo --test sim_cluster");
        std::panic::resume_unwind(panic)
    })
}

// Slow: four runs of 50 instances.
#[test]
fn every_call_of_a_cluster_in_trouble_ends_by_its_deadline_and_no_handler_runs_twice() {
    let test = "every_call_of_a_cluster_in_trouble_ends_by_its_deadline_and_no_handler_runs_twice";
    alone(module_path!(), test, every_call_ends_and_no_handler_runs_twice);
}

fn every_call_ends_and_no_handler_runs_twice() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match (number("MARGO_SIM_SEED"), number("MARGO_SIM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(4),
    };
    let mut all: BTreeMap<String, u32> = BTreeMap::new();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let (kinds, _) = run_or_tell(seed, Trouble::All);
        kinds.into_iter().for_each(|(kind, count)| *all.entry(kind).or_default() += count);
    }
    println!("{all:?}");
    // That the trouble was some.
    let of = |kind: &str| all.get(kind).copied().unwrap_or(0);
    if count >= 4 {
        assert!(of("answered") > 500 && of("TimedOut") > 50 && of("Network") > 20, "{all:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run_of_the_whole_runtime() {
    let test = "the_same_seed_is_the_same_run_of_the_whole_runtime";
    alone(module_path!(), test, || is_repeated(2));
}

#[test]
fn the_same_seed_is_the_same_run_of_instances_with_several_shards() {
    let test = "the_same_seed_is_the_same_run_of_instances_with_several_shards";
    alone(module_path!(), test, || is_repeated(1));
}

fn is_repeated(seed: u64) {
    let (first, again) = (run_or_tell(seed, Trouble::Links), run_or_tell(seed, Trouble::Links));
    assert_eq!(first.0, again.0);
    let lines = |trace: &Trace| trace.entries().map(without_tag).collect::<Vec<_>>();
    let (first, again) = (lines(&first.1), lines(&again.1));
    assert!(first.len() > 2_000, "{} entries", first.len());
    let differs = first.iter().zip(&again).find(|(first, again)| first != again);
    assert_eq!(differs, None);
    assert_eq!(first.len(), again.len());
}

/// Tags count up from a random number.
fn without_tag(entry: &TraceEntry) -> String {
    let text = entry.to_string();
    match text.split_once(" tag ") {
        Some((before, after)) => format!("{before}{}", after.trim_start_matches(char::is_numeric)),
        None => text,
    }
}
