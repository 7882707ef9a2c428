//! Every pool kind, scheduler and access mode of the document, in services that answer RPCs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::process::again;
use margo::ult;
use margo::{
    InitError, Instance, ProviderHandle, ProviderId, RegisterError, Rpc, config::Config,
    elasticity::Layout, errors::TimerError, timers::TimerSpec,
};

const SQUARE: Rpc<u64, u64> = Rpc::new("square");
/// Calls `SQUARE` of its own instance, so that started handlers wait.
const RELAY: Rpc<u64, u64> = Rpc::new("relay");

/// Far more than a test needs, so that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

fn register(service: &Instance, pool: &margo::Pool) -> margo::Provider {
    let provider = service.provider(ProviderId::new(1), pool);
    provider
        .register(SQUARE, |request| {
            ult::yield_now();
            let _ = request.respond(&(*request.args() * *request.args()));
        })
        .unwrap();
    provider
        .register(RELAY, |request| {
            let own = request.instance();
            let target = ProviderHandle::new(own.self_addr(), ProviderId::new(1));
            let square = own.forward_timed(SQUARE, &target, request.args(), PATIENCE);
            let _ = request.respond(&square.unwrap());
        })
        .unwrap();
    provider
}

/// Many calls at a time, from ULTs of a client, some of which call on.
fn call(service: &Instance) {
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target =
        ProviderHandle::new(client.lookup(service.self_addr().uri()).unwrap(), ProviderId::new(1));
    let right = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..64u64)
        .map(|n| {
            let (client, target, right) = (client.clone(), target.clone(), right.clone());
            client.layout().rpc_pool().spawn(move || {
                let rpc = if n % 2 == 0 { SQUARE } else { RELAY };
                let square = client.forward_timed(rpc, &target, &n, PATIENCE).unwrap();
                right.fetch_add(usize::from(square == n * n), Ordering::Relaxed);
            })
        })
        .collect();
    for call in calls {
        call.unwrap().join().unwrap();
    }
    assert_eq!(right.load(Ordering::Relaxed), 64);
    client.finalize_and_wait().unwrap();
}

fn serve(document: &str) {
    let service = margo::init(document).unwrap_or_else(|error| panic!("{document}: {error}"));
    let provider = register(&service, &service.layout().rpc_pool());
    call(&service);
    // 64 calls, half of which call on. A handler answers before it ends, so ends are no measure.
    let handlers = service.layout().rpc_pool().stats().created;
    assert!(handlers >= 96, "handlers run in the pool of the document: {handlers}");
    drop(provider);
    service.finalize_and_wait().unwrap();
}

/// Where handlers of a pool ran.
#[derive(Debug, Default, PartialEq)]
struct Found {
    cpus: BTreeSet<usize>,
    /// NUMA nodes of the memory of their stacks, where the system tells.
    stacks_on: BTreeSet<u32>,
}

impl Found {
    fn cpus(of: [Self; 2]) -> [BTreeSet<usize>; 2] {
        of.map(|found| found.cpus)
    }
}

/// The NUMA node of the page of the caller's stack; `None`: the system does not tell.
fn node_of_stack() -> Option<u32> {
    let here = 0u8;
    ult::topology::node_of_page(&raw const *std::hint::black_box(&here)).ok().flatten()
}

fn where_handlers_run(service: &Instance, pools: [&str; 2]) -> [Found; 2] {
    const WHERE: Rpc<(), (u64, Option<u32>)> = Rpc::new("where");
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let addr = client.lookup(service.self_addr().uri()).unwrap();
    let providers = pools.map(|name| {
        let id = ProviderId::new(pools.iter().position(|pool| *pool == name).unwrap() as u16);
        let provider = service.provider(id, &service.layout().pool(name).unwrap());
        provider
            .register(WHERE, |request| {
                // The handler waits, and comes back to the same xstream.
                ult::yield_now();
                let _ = request.respond(&(rustix::thread::sched_getcpu() as u64, node_of_stack()));
            })
            .unwrap();
        provider
    });
    let found = providers.each_ref().map(|provider| {
        let target = ProviderHandle::new(addr.clone(), provider.id());
        let mut found = Found::default();
        for _ in 0..100 {
            let (cpu, node) = client.forward_timed(WHERE, &target, &(), PATIENCE).unwrap();
            found.cpus.insert(cpu as usize);
            found.stacks_on.extend(node);
        }
        found
    });
    drop(providers);
    client.finalize_and_wait().unwrap();
    found
}

/// Two pools on two CPUs, by number and by name; measured where handlers run.
#[test]
fn handlers_run_on_the_cpus_that_their_pool_is_pinned_to() {
    let allowed: Vec<_> = ult::Topology::get().unwrap().allowed().iter().collect();
    let (one, other) = (allowed[0], *allowed.last().unwrap());
    if one == other {
        println!("SKIPPED in part: handlers have no other CPU here than CPU {one}");
    }
    for (first, second) in [
        (format!("\"cpubind\": {one}"), format!("\"cpubind\": {other}")),
        (format!("\"affinity\": [{one}]"), format!("\"affinity\": \"cpu:{other}\"")),
    ] {
        let service = margo::init(&format!(
            r#"{{ "argobots": {{ "pools": [ {{ "name": "a" }}, {{ "name": "b" }} ],
                 "xstreams": [
                     {{ "name": "x", {first}, "scheduler": {{ "pools": ["a"] }} }},
                     {{ "name": "y", {second}, "scheduler": {{ "pools": ["b"] }} }} ] }} }}"#
        ))
        .unwrap();
        let found = Found::cpus(where_handlers_run(&service, ["a", "b"]));
        assert_eq!(found, [BTreeSet::from([one]), BTreeSet::from([other])]);
        // Pinned while it runs, too.
        service.layout().remove_xstream("y").unwrap();
        let json = format!(r#"{{ "name": "z", {first}, "scheduler": {{ "pools": ["b"] }} }}"#);
        service.layout().add_xstream_from_json(&json).unwrap();
        let found = Found::cpus(where_handlers_run(&service, ["a", "b"]));
        assert_eq!(found, [BTreeSet::from([one]), BTreeSet::from([one])]);
        service.finalize_and_wait().unwrap();
    }
}

/// Pools on two NUMA nodes; on a machine with one node, on two of its CPUs. The stacks of the
/// handlers are in the memory of their node.
#[test]
fn handlers_run_on_the_numa_nodes_that_their_pool_is_pinned_to() {
    let machine = ult::Topology::get().unwrap();
    let cpus_of = |place: &str| {
        let cpus = machine.cpus_of(&place.parse().unwrap()).unwrap();
        cpus.iter().collect::<BTreeSet<_>>()
    };
    let nodes = machine.numa_nodes().iter().map(|node| format!("numa:{}", node.id));
    let nodes: Vec<_> = nodes.filter(|place| !cpus_of(place).is_empty()).collect();
    let places = match &nodes[..] {
        [] => return println!("SKIPPED: the system tells of no NUMA node with a CPU"),
        [only] => {
            let cpus = cpus_of(only);
            let part = |cpu: Option<&usize>| format!("{only} & cpu:{}", cpu.unwrap());
            [part(cpus.first()), part(cpus.last())]
        }
        [first, .., last] => [first.clone(), last.clone()],
    };
    let [left, right] = &places;
    let service = margo::init(&format!(
        r#"{{ "argobots": {{ "pools": [ {{ "name": "left" }}, {{ "name": "right" }} ],
             "xstreams": [
                 {{ "name": "x", "affinity": "{left}", "scheduler": {{ "pools": ["left"] }} }},
                 {{ "name": "y", "affinity": "{right}", "scheduler": {{ "pools": ["right"] }} }}
             ] }} }}"#
    ))
    .unwrap();
    let found = where_handlers_run(&service, ["left", "right"]);
    // A sandbox may forbid to ask where memory is, or to say where it shall be.
    let probe = 1u8;
    let can_tell = ult::topology::node_of_page(&raw const probe).is_ok();
    if !can_tell {
        println!("SKIPPED in part: the system does not tell on which node memory is");
    }
    for (Found { cpus, stacks_on }, place) in found.iter().zip(&places) {
        assert!(!cpus.is_empty() && cpus.is_subset(&cpus_of(place)), "{place}: {cpus:?}");
        let node = machine.memory_node_of(&machine.cpus_of(&place.parse().unwrap()).unwrap());
        if can_tell && node.is_some() {
            assert_eq!(*stacks_on, node.into_iter().collect(), "stacks of {place}");
        }
    }
    let found = Found::cpus(found);
    if cpus_of(left) != cpus_of(right) {
        assert!(found[0].is_disjoint(&found[1]), "{found:?}");
    } else {
        println!("SKIPPED in part: `{left}` and `{right}` are the same CPU");
    }
    service.finalize_and_wait().unwrap();
}

/// Two xstreams that share two pools of handlers, beside one for progress.
fn shared(kind: &str, scheduler: &str) -> String {
    format!(
        r#"{{ "argobots": {{
            "pools": [ {{ "name": "net" }}, {{ "name": "a", "kind": "{kind}" }},
                       {{ "name": "b", "kind": "{kind}" }} ],
            "xstreams": [
                {{ "name": "net", "scheduler": {{ "pools": ["net"] }} }},
                {{ "name": "x", "scheduler": {{ "type": "{scheduler}", "pools": ["a", "b"] }} }},
                {{ "name": "y", "scheduler": {{ "type": "{scheduler}", "pools": ["b", "a"] }} }}
            ] }}, "progress_pool": "net", "rpc_pool": "a" }}"#
    )
}

#[test]
fn services_with_shared_fifo_pools() {
    serve(&shared("fifo", "basic"));
    serve(&shared("fifo_wait", "basic_wait"));
}

#[test]
fn services_with_a_shared_prio_wait_pool() {
    serve(&shared("prio_wait", "prio"));
    serve(&shared("prio_wait", "default"));
}

#[test]
fn a_service_with_earliest_first_pools_and_the_randws_scheduler() {
    serve(&shared("earliest_first", "randws"));
}

#[test]
fn a_service_with_work_stealing_pools() {
    serve(&shared("randws", "randws"));
}

/// Progress and handlers in one pool on one xstream.
#[test]
fn services_of_one_xstream_for_every_kind_and_scheduler() {
    for kind in ["fifo", "fifo_wait", "prio_wait", "earliest_first", "randws"] {
        for scheduler in ["default", "basic", "basic_wait", "prio", "randws"] {
            serve(&format!(
                r#"{{ "argobots": {{
                    "pools": [ {{ "name": "__primary__", "kind": "{kind}" }} ],
                    "xstreams": [ {{ "name": "__primary__",
                        "scheduler": {{ "type": "{scheduler}", "pools": [0] }} }} ] }} }}"#
            ));
        }
    }
}

/// Progress before handlers, on one xstream, by an order that knows no turns or few: a handler that
/// yields is not held up by a progress ULT that never sleeps.
#[test]
fn handlers_behind_progress_have_their_turn() {
    const YIELDS: u64 = 200;
    const POLLS: Rpc<(), u64> = Rpc::new("polls");
    for scheduler in ["basic", "basic_wait", "prio"] {
        let service = margo::init(&format!(
            r#"{{ "argobots": {{
                "pools": [ {{ "name": "__primary__" }}, {{ "name": "h" }} ],
                "xstreams": [ {{ "name": "__primary__",
                    "scheduler": {{ "type": "{scheduler}", "pools": [0, "h"] }} }} ] }},
                "rpc_pool": "h", "mercury": {{ "na_no_block": true }} }}"#
        ));
        let service = service.unwrap();
        let serves = service.serve(POLLS).returning(|request| {
            let polls = || request.instance().metrics().shards[0].polls;
            let before = polls();
            (0..YIELDS).for_each(|_| ult::yield_now());
            polls() - before
        });
        serves.unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for _ in 0..3 {
            let polls = client.forward_timed(POLLS, &target, &(), PATIENCE).unwrap();
            // They are counted by the hundreds.
            assert!(polls <= 3 * YIELDS, "{scheduler}: {polls} polls while a handler yields");
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

/// A handler that looks and yields keeps its pool from ever being empty. Progress behind it has its
/// turns, or the call for which it looks would never end.
#[test]
fn progress_behind_handlers_has_its_turn() {
    const LOOKS: Rpc<u64, u64> = Rpc::new("looks");
    let peer = Instance::builder("na+sm://").start().unwrap();
    let provider = register(&peer, &peer.layout().rpc_pool());
    for scheduler in ["default", "basic", "basic_wait", "prio", "randws"] {
        let service = margo::init(&format!(
            r#"{{ "argobots": {{
                "pools": [ {{ "name": "__primary__" }}, {{ "name": "net" }} ],
                "xstreams": [ {{ "name": "__primary__",
                    "scheduler": {{ "type": "{scheduler}", "pools": [0, "net"] }} }} ] }},
                "progress_pool": "net" }}"#
        ));
        let service = service.unwrap();
        let addr = service.lookup(peer.self_addr().uri()).unwrap();
        let other = ProviderHandle::new(addr, ProviderId::new(1));
        let serves = service.serve(LOOKS).returning(move |request| {
            let square = request.instance().rpc(SQUARE, &other, request.args()).start().unwrap();
            let end = Instant::now() + PATIENCE;
            while !square.test() {
                assert!(Instant::now() < end, "progress starves");
                ult::yield_now();
            }
            square.wait().unwrap()
        });
        serves.unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let square = client.forward_timed(LOOKS, &target, &9, 2 * PATIENCE);
        assert_eq!(square.unwrap_or_else(|error| panic!("{scheduler}: {error}")), 81);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
    drop(provider);
    peer.finalize_and_wait().unwrap();
}

/// Handlers before progress, on one xstream.
fn serve_with_every_access_mode(kind: &str) {
    for access in ["private", "spsc", "mpsc", "spmc", "mpmc"] {
        serve(&format!(
            r#"{{ "argobots": {{
                "pools": [ {{ "name": "__primary__", "kind": "{kind}", "access": "{access}" }},
                           {{ "name": "net", "access": "{access}" }} ],
                "xstreams": [ {{ "name": "__primary__",
                    "scheduler": {{ "pools": [0, "net"] }} }} ] }},
                "progress_pool": "net" }}"#
        ));
    }
}

#[test]
fn services_with_fifo_pools_of_every_access_mode() {
    serve_with_every_access_mode("fifo_wait");
}

#[test]
fn services_with_prio_wait_pools_of_every_access_mode() {
    serve_with_every_access_mode("prio_wait");
}

#[test]
fn services_with_work_stealing_pools_of_every_access_mode() {
    serve_with_every_access_mode("randws");
}

#[test]
fn a_service_bound_by_place_and_by_cpu() {
    let cpu = ult::Topology::get().unwrap().allowed().first().unwrap();
    let document = format!(
        r#"{{ "argobots": {{ "pools": [ {{ "name": "net" }}, {{ "name": "h" }} ],
            "xstreams": [
                {{ "name": "net", "cpubind": {cpu}, "scheduler": {{ "pools": ["net"] }} }},
                {{ "name": "h", "affinity": "all", "scheduler": {{ "pools": ["h"] }} }}
            ] }}, "progress_pool": "net", "rpc_pool": "h" }}"#
    );
    let service = margo::init(&document).unwrap();
    assert_eq!(service.runtime().xstream("net").unwrap().cpus(), [cpu]);
    let bound =
        service.layout().progress_pool().spawn(|| ult::topology::current_binding().unwrap());
    assert_eq!(bound.unwrap().join().unwrap().iter().collect::<Vec<_>>(), [cpu]);
    service.finalize_and_wait().unwrap();
    serve(&document);
}

/// Set in the process that `a_cpu_outside_of_the_mask_is_used_by_number` starts: a CPU.
const OUTSIDE: &str = "MARGO_TEST_CPU_OUTSIDE";

/// Started on one CPU, as by `taskset` or a launcher of jobs, C binds to others all the same.
#[test]
fn a_cpu_outside_of_the_mask_is_used_by_number() {
    if let Ok(cpu) = std::env::var(OUTSIDE) {
        return bind_outside_of_the_mask(cpu.parse().unwrap());
    }
    let allowed: Vec<_> = ult::Topology::get().unwrap().allowed().iter().collect();
    let (first, last) = (allowed[0], *allowed.last().unwrap());
    if first == last {
        return println!("SKIPPED: there is no other CPU here than CPU {first}");
    }
    // A process begins with the mask of the thread that starts it.
    let child = std::thread::spawn(move || {
        ult::topology::bind_this_thread(&[first].into_iter().collect()).unwrap();
        again(module_path!(), "a_cpu_outside_of_the_mask_is_used_by_number")
            .env(OUTSIDE, last.to_string())
            .output()
            .unwrap()
    });
    let child = child.join().unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("bound outside"), "{text}\n{errors}");
}

fn bind_outside_of_the_mask(cpu: usize) {
    let topology = ult::Topology::get().unwrap();
    assert!(!topology.allowed().contains(cpu) && topology.bindable().contains(cpu));
    let document = |keys: &str| {
        format!(
            r#"{{ "argobots": {{ "pools": [ {{ "name": "p" }} ], "xstreams": [
                 {{ "name": "x", {keys}, "scheduler": {{ "pools": ["p"] }} }} ] }} }}"#
        )
    };
    for keys in [format!(r#""cpubind": {cpu}"#), format!(r#""affinity": [{cpu}]"#)] {
        let config = Config::from_json(&document(&keys)).unwrap();
        let warnings = margo::elasticity::start_warnings(&config.resolve(&|_| None).unwrap());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let part = format!("CPU {cpu} is outside of the affinity mask");
        assert!(warnings[0].starts_with("argobots.xstreams[0].") && warnings[0].contains(&part));
        let service = Instance::from_config(&config).unwrap();
        let pool = service.layout().pool("p").unwrap();
        let bound = pool.spawn(|| ult::topology::current_binding().unwrap());
        assert_eq!(bound.unwrap().join().unwrap().iter().collect::<Vec<_>>(), [cpu]);
        service.finalize_and_wait().unwrap();
    }
    // Places are within the mask.
    let all = Config::from_json(&document(r#""affinity": "all""#)).unwrap();
    assert!(!Layout::of(&all).unwrap().xstreams[0].cpus.contains(&cpu));
    println!("bound outside");
}

fn refused(document: &str) -> String {
    match margo::init(document) {
        Ok(_) => panic!("{document} was accepted"),
        Err(error) => error.to_string(),
    }
}

/// The series begins on the thread that calls `init`, and timers are armed by any.
#[test]
fn timers_of_a_service_whose_handlers_have_a_private_pool() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("margo").display().to_string();
    let document = |net: &str| {
        format!(
            r#"{{ "argobots": {{
                "pools": [ {{ "name": "__primary__", "access": "private" }},
                           {{ "name": "net", "access": "{net}" }} ],
                "xstreams": [ {{ "name": "__primary__",
                    "scheduler": {{ "pools": [0, "net"] }} }} ] }},
                "progress_pool": "net",
                "monitoring": {{ "config": {{ "filename_prefix": "{prefix}" }} }} }}"#
        )
    };
    // The pool of progress is never private to its xstream in effect: others push into it.
    for net in ["mpmc", "private"] {
        let service = margo::init(&document(net)).unwrap();
        let (sender, runs) = std::sync::mpsc::channel();
        let tell = sender.clone();
        let timer = service.timer(move |_| tell.send(()).unwrap());
        timer.start(Duration::ZERO).unwrap();
        runs.recv_timeout(PATIENCE).unwrap();
        let spec = TimerSpec::new().pool(&service.layout().rpc_pool());
        let own = Arc::new(service.timer_with(spec, move |_| sender.send(()).unwrap()));
        let error = own.start(Duration::ZERO).unwrap_err();
        assert!(matches!(error, TimerError::PrivatePool { .. }), "{error}");
        assert!(!own.is_armed());
        assert!(error.to_string().contains("pool `__primary__` is private"), "{error}");
        // Whoever runs there may arm it, and it may arm itself.
        let here = own.clone();
        let arms = move |_: &margo::Handle<u64, u64>| {
            here.start(Duration::ZERO).unwrap();
            0
        };
        service.serve(SQUARE).returning(arms).unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        client.forward_timed(SQUARE, &target, &0, PATIENCE).unwrap();
        runs.recv_timeout(PATIENCE).unwrap();
        drop((timer, own));
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn wrong_layouts_are_refused_with_path_value_and_remedy() {
    for (argobots, expected) in [
        (
            r#""pools": [{}], "xstreams": [{"cpubind": 4000, "scheduler": {"pools": [0]}}]"#,
            &["argobots.xstreams[0].cpubind: CPU 4000 does not exist", "use one of"][..],
        ),
        (
            r#""pools": [{}], "xstreams": [{"affinity": "numa:99", "scheduler": {"pools": [0]}}]"#,
            &["argobots.xstreams[0].affinity: place `numa:99`: this machine has no numa 99"],
        ),
        (
            r#""pools": [{"numa_node": 99}], "xstreams": [{"scheduler": {"pools": [0]}}]"#,
            &["argobots.pools[0].numa_node: there is no NUMA node 99; use one of"],
        ),
        (
            r#""pools": [{"name": "p", "access": "private"}], "xstreams": [
                {"scheduler": {"pools": [0]}}, {"scheduler": {"pools": [0]}}]"#,
            &["argobots.pools[0].access: pool \"p\"", "2 xstreams take from it", "use mpmc"],
        ),
        (r#""pools": [{"name": "p"}, {"name": "p"}]"#, &["argobots.pools[1].name", "taken"]),
        (
            r#""pools": [{}], "xstreams": [{"name": "x", "scheduler": {"pools": [0]}},
                {"name": "x", "scheduler": {"pools": [0]}}]"#,
            &["argobots.xstreams[1].name: the name \"x\" is already taken"],
        ),
        (
            r#""pools": [{"name": "p", "stack_bytes": 0}]"#,
            &["argobots.pools[0].stack_bytes: a stack of 0 bytes is not allowed: from 16384"],
        ),
        (r#""abt_thread_stacksize": 0"#, &["argobots.abt_thread_stacksize: a stack of 0 bytes"]),
        (r#""xstreams": [{"scheduler": {"pools": []}}]"#, &["needs at least one pool"]),
    ] {
        let error = refused(&format!(r#"{{"argobots": {{{argobots}}}}}"#));
        assert!(expected.iter().all(|part| error.contains(part)), "{argobots}:\n{error}");
    }
    let nobody = r#"{"rpc_pool": "p", "argobots": {"pools": [{"name": "p"}]}}"#;
    assert!(refused(nobody).contains("rpc_pool: pool \"p\" is attached to no xstream"));
}

#[test]
fn a_pool_that_nobody_needs_waits_for_an_xstream() {
    let service = margo::init(r#"{"argobots": {"pools": [{"name": "later"}]}}"#).unwrap();
    let later = service.layout().pool("later").unwrap();
    assert!(later.xstreams().is_empty());
    let waiting = later.spawn(|| 7).unwrap();
    let spec = ult::XstreamSpec::new("late").pools(["later"]);
    service.runtime().add_xstream(spec).unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_provider_in_a_private_pool_away_from_progress_is_refused() {
    let service = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "mine", "access": "private" } ],
            "xstreams": [ { "name": "x", "scheduler": { "pools": ["mine"] } } ] } }"#,
    )
    .unwrap();
    let provider = service.provider(ProviderId::new(3), &service.layout().pool("mine").unwrap());
    let error = provider.register(SQUARE, |_| {}).unwrap_err();
    assert!(matches!(error, RegisterError::PrivatePool { .. }), "{error}");
    assert!(error.to_string().contains("pool `mine`"), "{error}");
    drop(provider);
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_layout_can_be_looked_at_without_starting_it() {
    let config = Config::from_json(&shared("earliest_first", "randws")).unwrap();
    let layout = Layout::of(&config).unwrap();
    let text = layout.to_string();
    for line in [
        "xstream x: any CPU, scheduler randws, pools a, b",
        "pool net: fifo_wait, mpmc, run by net, stacks of 2048 KiB, progress",
        "pool a: earliest_first, mpmc, run by x, y, stacks of 2048 KiB, handlers",
        "pool __primary__: fifo_wait, mpmc, run by __primary__, stacks of 2048 KiB",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    let wrong = Config::from_json(
        r#"{"argobots": {"pools": [{}], "xstreams": [
            {"cpubind": 4000, "scheduler": {"pools": [0]}}]}}"#,
    );
    let error = Layout::of(&wrong.unwrap()).unwrap_err();
    let InitError::Layout(errors) = &error else { panic!("{error}") };
    assert_eq!(errors.as_slice()[0].path, "argobots.xstreams[0].cpubind");
}
