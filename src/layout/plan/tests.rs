//! Documents on a machine with two NUMA nodes, of two CPUs each, that exists only as files.

use super::*;
use crate::support::fake_machine::two_nodes;

fn machine(topology: &Topology) -> Machine<'_> {
    Machine { topology: Ok(topology), bindable: |topology| topology.bindable().clone() }
}

fn plan_on(topology: &Topology, document: &str) -> Result<Layout, String> {
    let resolved = Config::from_json(document).unwrap().resolve(&|_| None).unwrap();
    Layout::plan_on(&resolved, &machine(topology)).map_err(|errors| errors.to_string())
}

fn plan(document: &str) -> Layout {
    plan_on(&two_nodes("0-3"), document).unwrap()
}

/// A document with one pool and an xstream that has these keys.
fn with_xstream(keys: &str) -> String {
    format!(
        r#"{{"argobots": {{"pools": [{{"name": "p"}}],
             "xstreams": [{{"name": "x", {keys}, "scheduler": {{"pools": ["p"]}}}}]}}}}"#
    )
}

#[test]
fn pools_whose_handlers_are_shared_say_so() {
    let shared = |document| {
        let layout = plan(document).to_string();
        layout.matches(", progress, handlers (shared where 3 wait)").count()
    };
    assert_eq!(shared(r#"{"margo": {"shards": 2, "share_from": 3}}"#), 2);
    let ordered = r#"{"argobots": {"pools": [{"name": "__primary__", "kind": "prio_wait"}]},
        "margo": {"shards": 2, "share_from": 3}}"#;
    assert_eq!(shared(ordered), 1);
    for alone in [
        r#"{"margo": {"shards": 2}}"#,
        r#"{"margo": {"share_from": 3}}"#,
        r#"{"rpc_thread_count": 1, "margo": {"shards": 2, "share_from": 3}}"#,
    ] {
        assert_eq!(shared(alone), 0, "{alone}");
    }
}

#[test]
fn every_kind_of_pool_reaches_the_runtime() {
    for (word, kind) in [
        ("fifo", ult::PoolKind::Fifo),
        ("fifo_wait", ult::PoolKind::FifoWait),
        ("prio_wait", ult::PoolKind::PrioWait),
        ("earliest_first", ult::PoolKind::EarliestFirst),
        ("randws", ult::PoolKind::RandWs),
    ] {
        let layout = plan(&format!(
            r#"{{"argobots": {{"pools": [{{"name": "__primary__", "kind": "{word}"}}]}}}}"#
        ));
        let spec = format!("{:?}", layout.pools[0].spec());
        assert!(spec.contains(&format!("kind: {kind:?},")), "{spec}");
        assert!(layout.to_string().contains(&format!("pool __primary__: {word}, ")), "{layout}");
    }
}

#[test]
fn every_access_mode_reaches_the_runtime() {
    for (word, access) in [
        ("private", ult::Access::Private),
        ("spsc", ult::Access::Spsc),
        ("mpsc", ult::Access::Mpsc),
        ("spmc", ult::Access::Spmc),
        ("mpmc", ult::Access::Mpmc),
    ] {
        let layout = plan(&format!(
            r#"{{"argobots": {{"pools": [{{"name": "p", "access": "{word}"}}],
                 "xstreams": [{{"scheduler": {{"pools": ["p"]}}}}]}}}}"#
        ));
        let spec = format!("{:?}", layout.pools[0].spec());
        assert!(spec.contains(&format!("access: {access:?},")), "{spec}");
    }
    let progress =
        plan(r#"{"argobots": {"pools": [{"name": "__primary__", "access": "private"}]}}"#);
    let spec = format!("{:?}", progress.pools[0].spec());
    assert!(spec.contains("access: Mpsc,"), "the progress ULT comes from outside: {spec}");
}

#[test]
fn cpus_by_number_are_checked_one_by_one() {
    assert_eq!(plan(&with_xstream(r#""cpubind": 2"#)).xstreams[0].cpus, [2]);
    assert_eq!(plan(&with_xstream(r#""affinity": [3, 1]"#)).xstreams[0].cpus, [1, 3]);
    let allowed = two_nodes("0,2-3");
    for (keys, expected) in [
        (
            r#""cpubind": 9"#,
            &["argobots.xstreams[0].cpubind: CPU 9 does not exist; use one of 0,2-3"][..],
        ),
        (r#""cpubind": 1"#, &["argobots.xstreams[0].cpubind: CPU 1 is not allowed"]),
        (r#""cpubind": 4"#, &["argobots.xstreams[0].cpubind: CPU 4 is switched off"]),
        (
            r#""affinity": [0, 1, 4294967295]"#,
            &[
                "argobots.xstreams[0].affinity[1]: CPU 1 is not",
                "argobots.xstreams[0].affinity[2]: CPU 4294967295 does not exist",
            ],
        ),
    ] {
        let error = plan_on(&allowed, &with_xstream(keys)).unwrap_err();
        assert!(expected.iter().all(|part| error.contains(part)), "{keys}: {error}");
        assert_eq!(error.lines().count(), expected.len(), "{error}");
    }
}

/// The cgroup has CPUs 0 to 2; the process was started on CPU 0, as by `taskset`.
#[test]
fn cpus_outside_of_the_mask_are_used_by_number_alone() {
    let topology = two_nodes("0");
    let machine = || Machine { bindable: |_| "0-2".parse().unwrap(), ..machine(&topology) };
    let resolved =
        |keys: &str| Config::from_json(&with_xstream(keys)).unwrap().resolve(&|_| None).unwrap();
    for (keys, cpus, said) in [
        (r#""cpubind": 0"#, &[0][..], None),
        (r#""affinity": "numa:0""#, &[0], None),
        (r#""affinity": "all""#, &[0], None),
        (r#""cpubind": 2"#, &[2], Some("xstreams[0].cpubind: CPU 2 is outside")),
        (r#""affinity": [1, 0, 2]"#, &[0, 1, 2], Some("xstreams[0].affinity: CPU 1-2 is outside")),
    ] {
        let resolved = resolved(keys);
        let layout = Layout::plan_on(&resolved, &machine()).unwrap();
        assert_eq!(layout.xstreams[0].cpus, cpus, "{keys}");
        let outside = machine().outside_of_mask(&resolved);
        assert_eq!(outside.len(), usize::from(said.is_some()), "{outside:?}");
        assert!(outside.iter().all(|line| line.contains(said.unwrap())), "{outside:?}");
    }
    let error = Layout::plan_on(&resolved(r#""cpubind": 3"#), &machine()).unwrap_err().to_string();
    assert!(error.contains("cpubind: CPU 3 is not allowed for this process; use one of 0-2"));
}

#[test]
fn parts_of_the_machine_are_known_by_name() {
    for (place, cpus) in [
        ("numa:1", &[2, 3][..]),
        ("node:0", &[0, 1]),
        ("package:1", &[2, 3]),
        ("core:3", &[3]),
        ("cpu:0,2", &[0, 2]),
        ("numa:1&cpu:3", &[3]),
        ("all", &[0, 1, 2, 3]),
    ] {
        let layout = plan(&with_xstream(&format!(r#""affinity": "{place}""#)));
        assert_eq!(layout.xstreams[0].cpus, cpus, "{place}");
    }
    for (place, expected) in [
        ("numa:7", "argobots.xstreams[0].affinity: place `numa:7`: this machine has no numa 7"),
        ("nuna:0", "argobots.xstreams[0].affinity: place `nuna:0`, character 1"),
        ("", "argobots.xstreams[0].affinity: place ``, character 1: a place is missing"),
        ("cpu:4", "offline"),
    ] {
        let document = with_xstream(&format!(r#""affinity": "{place}""#));
        let error = plan_on(&two_nodes("0-3"), &document).unwrap_err();
        assert!(error.contains(expected), "{place}: {error}");
    }
}

#[test]
fn stacks_lie_on_the_node_of_the_xstreams_that_run_the_pool() {
    let layout = plan(
        r#"{"argobots": {
            "pools": [{"name": "one"}, {"name": "both"}, {"name": "told", "numa_node": 0},
                      {"name": "free"}],
            "xstreams": [
                {"affinity": "numa:1", "scheduler": {"pools": ["one", "both", "told"]}},
                {"cpubind": 3, "scheduler": {"pools": ["one"]}},
                {"cpubind": 0, "scheduler": {"pools": ["both"]}},
                {"scheduler": {"pools": ["free"]}}
            ]}}"#,
    );
    let nodes: Vec<_> = layout.pools.iter().map(|pool| pool.numa_node).collect();
    assert_eq!(nodes, [Some(1), None, Some(0), None, None]);
    assert!(format!("{:?}", layout.pools[0].spec()).contains("numa_node: Some(1)"));
    let mut far = Vec::new();
    layout.far_memory(&mut far);
    let [line] = &far[..] else { panic!("{far:#?}") };
    assert!(line.starts_with("memory: __xstream_0__ runs on NUMA node 1, and stacks of told"));
    let error = plan_on(
        &two_nodes("0-3"),
        r#"{"argobots": {"pools": [{"name": "__primary__", "numa_node": 5}]}}"#,
    );
    let error = error.unwrap_err();
    assert!(error.contains("argobots.pools[0].numa_node: there is no NUMA node 5; use one of 0-1"));
}

#[test]
fn a_machine_that_cannot_be_read_matters_only_if_it_is_asked_for() {
    let unknown = || {
        let topology = Err(TopologyError::Hwloc { what: "out of order".to_owned() });
        Machine { topology, bindable: |_| panic!("nobody knows") }
    };
    let resolve = |text: &str| Config::from_json(text).unwrap().resolve(&|_| None).unwrap();
    Layout::plan_on(&resolve("{}"), &unknown()).unwrap();
    for keys in [r#""cpubind": 0"#, r#""affinity": [0]"#, r#""affinity": "numa:0""#] {
        let error = Layout::plan_on(&resolve(&with_xstream(keys)), &unknown()).unwrap_err();
        assert!(error.to_string().contains("out of order"), "{error}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let error = plan_on(
        &two_nodes("0-3"),
        r#"{"argobots": {"pools": [{"name": "p", "numa_node": 2}],
            "xstreams": [{"cpubind": 7, "scheduler": {"pools": ["p"]}},
                         {"affinity": "l9:1", "scheduler": {"pools": ["p"]}}]}}"#,
    );
    let error = error.unwrap_err();
    for path in ["xstreams[0].cpubind", "xstreams[1].affinity", "pools[0].numa_node"] {
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn what_the_runtime_refuses_is_found_in_the_document() {
    let resolved =
        |keys: &str| Config::from_json(&with_xstream(keys)).unwrap().resolve(&|_| None).unwrap();
    let by_number = resolved(r#""cpubind": 2"#);
    let layout = plan(&with_xstream(r#""cpubind": 2"#));
    let (pool, xstream) = ("p".to_owned(), "x".to_owned());
    for (error, path) in [
        (
            StartError::Cpu { xstream: xstream.clone(), cpu: 2, have: "0".to_owned() },
            "argobots.xstreams[0].cpubind: ",
        ),
        (StartError::DuplicatePool { pool: pool.clone() }, "argobots.pools[0].name: "),
        (StartError::NoPool { xstream }, "argobots.xstreams[0].scheduler.pools: "),
        (StartError::NoStack { pool: Some(pool) }, "argobots.pools[0].stack_bytes: "),
    ] {
        let InitError::Layout(errors) = layout.locate(&by_number, error) else { panic!("{path}") };
        assert!(errors.to_string().starts_with(path), "{errors}");
    }
    let stranger = StartError::DuplicateXstream { xstream: "y".to_owned() };
    assert!(matches!(layout.locate(&by_number, stranger), InitError::Ult(_)));
    let gone = StartError::NoCpu { xstream: "x".to_owned() };
    let error = layout.locate(&resolved(r#""affinity": [2]"#), gone).to_string();
    assert!(error.contains("argobots.xstreams[0].affinity: "), "{error}");
}

#[test]
fn what_the_system_refuses_is_told_with_its_reason_and_what_to_do() {
    let refused = |errno| StartError::System {
        xstream: "x".to_owned(),
        what: "start its thread",
        source: std::io::Error::from_raw_os_error(errno),
    };
    let layout = plan(&with_xstream(r#""cpubind": 0"#));
    let resolved = Config::from_json("{}").unwrap().resolve(&|_| None).unwrap();
    for (errno, advice) in [(libc::EAGAIN, "pids.max"), (libc::EMFILE, "ulimit -n")] {
        let error = layout.locate(&resolved, refused(errno)).to_string();
        let reason = format!("(os error {errno})");
        for part in ["execution streams", "xstream `x`", "start its thread", &reason, advice] {
            assert!(error.contains(part), "{error}");
        }
        let error = crate::ElasticityError::from(refused(errno)).to_string();
        assert!(error.contains(&reason) && error.contains(advice), "{error}");
    }
}
