//! Instances in a runtime that the program made.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::{self, bounded};
use margo::ult::{
    self, Access, Eventual, MonitorSpec, PoolSpec, Runtime, RuntimeBuilder, ShutdownError,
    XstreamSpec,
};
use margo::{
    ForwardError, InitError, Instance, ProviderHandle, Rpc, config::Config, config::ConfigFlags,
    elasticity::ElasticityError,
};

const WHERE: Rpc<(), Option<usize>> = Rpc::new("where");

/// Xstream `a`, of rank 0, for progress; `b`, of rank 1, for handlers.
fn described() -> RuntimeBuilder {
    Runtime::builder()
        .pool(PoolSpec::new("net"))
        .pool(PoolSpec::new("work").stack_bytes(1 << 18))
        .xstream(XstreamSpec::new("a").pools(["net"]))
        .xstream(XstreamSpec::new("b").pools(["work"]))
}

fn in_runtime(runtime: &Runtime) -> Instance {
    let builder = Instance::builder("na+sm://").runtime(runtime);
    builder.progress_pool("net").rpc_pool("work").start().unwrap()
}

/// Serves [`WHERE`]: the rank of the xstream on which the handler runs.
fn serve(instance: &Instance, runtime: &Runtime) {
    let runtime = runtime.clone();
    instance.serve(WHERE).function(move |()| runtime.rank_here()).unwrap();
}

fn ask(from: &Instance, whom: &Instance) -> Option<usize> {
    let target = ProviderHandle::from(from.lookup(whom.self_addr().uri()).unwrap());
    from.forward(WHERE, &target, &()).unwrap()
}

fn refused(runtime: &Runtime, document: &str) -> String {
    let builder = margo::InstanceBuilder::from_config(serde_json::from_str(document).unwrap());
    builder.runtime(runtime).start().unwrap_err().to_string()
}

#[test]
fn handlers_run_on_the_programs_xstreams_which_go_on_after_the_end() {
    let runtime = described().start().unwrap();
    let (go, stays) = (Arc::new(Eventual::new()), runtime.pool("work").unwrap());
    let own = go.clone();
    let ult = stays.spawn(move || *own.wait()).unwrap();
    // One after the other, and two at once.
    for _ in 0..2 {
        let (one, two) = (in_runtime(&runtime), in_runtime(&runtime));
        for instance in [&one, &two] {
            serve(instance, &runtime);
            assert_eq!(instance.layout().progress_pool().name(), "net");
            assert_eq!(instance.layout().rpc_pool(), stays);
        }
        assert_eq!((ask(&one, &two), ask(&two, &one)), (Some(1), Some(1)));
        one.finalize_and_wait().unwrap();
        assert_eq!(ask(&two, &two), Some(1), "it has nothing to do with the other");
        two.finalize_and_wait().unwrap();
    }
    let xstreams: Vec<_> = runtime.xstreams().iter().map(|one| one.name().to_owned()).collect();
    assert_eq!(xstreams, ["a", "b"]);
    go.set(7).unwrap();
    assert_eq!(ult.join().unwrap(), 7);
    runtime.shutdown().unwrap();
}

#[test]
fn a_handler_whose_pool_the_program_has_removed_is_refused_for_that() {
    let runtime = described().start().unwrap();
    let instance = in_runtime(&runtime);
    let spare = runtime.add_pool(PoolSpec::new("spare")).unwrap();
    instance.serve(WHERE).pool(&spare).function(|()| None).unwrap();
    runtime.remove_pool(&spare).unwrap();
    let target = ProviderHandle::from(instance.self_addr());
    let error = instance.forward(WHERE, &target, &()).unwrap_err();
    let ForwardError::Busy { detail, .. } = &error else { panic!("{error:?}") };
    assert!(detail.ends_with("its pool has been removed") && error.never_ran(), "{error}");
    assert!(error.to_string().contains("did not take `where`: no ULT"), "{error}");
    let metrics = instance.metrics();
    let stats = metrics.stats;
    assert_eq!((stats.requests_refused, stats.requests_no_ult, stats.handlers_run), (1, 1, 0));
    let text = metrics.prometheus();
    for (reason, count) in [("no_ult", 1), ("closing", 0)] {
        let sample = format!("margo_requests_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(text.contains(&sample), "{reason}: {text}");
    }
    instance.finalize_and_wait().unwrap();
    runtime.shutdown().unwrap();
}

#[test]
fn by_default_both_roles_are_in_the_first_pool_of_the_primary_or_first_xstream() {
    let first = described().start().unwrap();
    let more = described().xstream(XstreamSpec::new("__primary__").pools(["work", "net"]));
    for (runtime, expected) in [(first, "net"), (more.start().unwrap(), "work")] {
        let instance = Instance::builder("na+sm://").runtime(&runtime).start().unwrap();
        assert_eq!(instance.layout().progress_pool().name(), expected);
        assert_eq!(instance.layout().rpc_pool().name(), expected);
        assert_eq!(instance.layout().pools(), runtime.pools());
        assert_eq!(instance.layout().xstreams(), runtime.xstreams());
        instance.finalize_and_wait().unwrap();
        runtime.shutdown().unwrap();
    }
}

#[test]
fn a_program_whose_main_is_a_ult_starts_calls_and_finalizes_there() {
    let answer = bounded("main as a ULT", || {
        let builder = Runtime::builder()
            .pool(PoolSpec::new("all"))
            .xstream(XstreamSpec::new("__primary__").pools(["all"]));
        builder.run(|runtime| {
            let instance = Instance::builder("na+tcp://127.0.0.1:0").runtime(runtime);
            let instance = instance.start().unwrap();
            serve(&instance, runtime);
            let answer = ask(&instance, &instance);
            instance.finalize_and_wait().unwrap();
            assert!(instance.is_finalized());
            answer
        })
    });
    assert_eq!(answer.unwrap(), Some(0));
}

#[test]
fn the_configuration_names_them_and_starts_the_like_again() {
    let runtime = described().start().unwrap();
    let instance = in_runtime(&runtime);
    let names = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    let printed = instance.layout().config_as(names);
    let json = serde_json::to_value(&printed).unwrap();
    assert_eq!(json["progress_pool"], "net");
    assert_eq!(json["rpc_pool"], "work");
    assert_eq!(json["argobots"]["pools"][1]["name"], "work");
    assert_eq!(json["argobots"]["pools"][1]["stack_bytes"], 1 << 18);
    assert_eq!(json["argobots"]["pools"].as_array().unwrap().len(), 2);
    assert_eq!(json["argobots"]["xstreams"][1]["name"], "b");
    assert_eq!(json["argobots"]["xstreams"][1]["scheduler"]["pools"][0], "work");
    assert_eq!(json["argobots"]["xstreams"].as_array().unwrap().len(), 2);
    // Without the program: pools and xstreams of its own, of the same names.
    let own = Instance::from_config(&Config::from_json(&printed.to_json()).unwrap()).unwrap();
    assert_eq!(own.layout().rpc_pool().name(), "work");
    assert_ne!(own.layout().rpc_pool(), instance.layout().rpc_pool());
    own.finalize_and_wait().unwrap();
    // And in the same runtime.
    for use_names in [true, false] {
        let hidden = instance.layout().config_as(ConfigFlags { hide_external: true, use_names });
        assert!(hidden.argobots.pools.is_empty() && hidden.argobots.xstreams.is_empty());
        let again = margo::InstanceBuilder::from_config(hidden).runtime(&runtime).start().unwrap();
        assert_eq!(again.layout().progress_pool(), instance.layout().progress_pool());
        assert_eq!(again.layout().rpc_pool(), instance.layout().rpc_pool());
        again.finalize_and_wait().unwrap();
    }
    instance.finalize_and_wait().unwrap();
    runtime.shutdown().unwrap();
}

#[test]
fn what_does_not_fit_the_runtime_is_said() {
    let runtime = described().start().unwrap();
    runtime.add_pool(PoolSpec::new("nobody")).unwrap();
    runtime.add_pool(PoolSpec::new("private").access(Access::Private)).unwrap();
    runtime.add_xstream(XstreamSpec::new("c").pools(["private"])).unwrap();
    for (document, expected) in [
        (r#"{ "rpc_thread_count": 1 }"#, "rpc_thread_count: the instance runs in pools"),
        (r#"{ "use_progress_thread": true }"#, "use_progress_thread: the instance runs in pools"),
        (
            r#"{ "argobots": { "abt_thread_stacksize": 65536 } }"#,
            "argobots: the instance runs in pools and xstreams",
        ),
        (
            r#"{ "argobots": { "abt_mem_max_num_stacks": 4 } }"#,
            "argobots: the instance runs in pools and xstreams",
        ),
        (
            r#"{ "argobots": { "pools": [{ "name": "mine" }] } }"#,
            "argobots: the instance runs in pools and xstreams that its parent, or the program,",
        ),
        (r#"{ "rpc_pool": "wrok" }"#, "(have: net, work, nobody, private); did you mean \"work\"?"),
        (r#"{ "rpc_pool": 9 }"#, "rpc_pool: there is no pool 9"),
        (
            r#"{ "rpc_pool": "nobody" }"#,
            "pool \"nobody\" is attached to no xstream: no handler would ever run",
        ),
        (
            r#"{ "progress_pool": "nobody" }"#,
            "pool \"nobody\" is attached to no xstream: there would be no network progress",
        ),
        (r#"{ "progress_pool": "private" }"#, "pool `private` is private; make it mpsc or mpmc"),
    ] {
        let error = refused(&runtime, document);
        assert!(error.contains(expected), "{document}: {error}");
    }
    runtime.add_pool(PoolSpec::new("no name")).unwrap();
    let error = refused(&runtime, "{}");
    assert!(error.contains("argobots.pools[4].name: \"no name\" is no valid name"), "{error}");
    runtime.shutdown().unwrap();
    let over = Instance::builder("na+sm://").runtime(&runtime).start().unwrap_err();
    assert!(matches!(over, InitError::Config(_) | InitError::Progress(_)), "{over}");
}

#[test]
fn the_program_makes_pools_and_tells_of_them() {
    let runtime = described().start().unwrap();
    let instance = in_runtime(&runtime);
    for refused in [
        instance.layout().add_pool_from_json("{}").map(drop),
        instance
            .layout()
            .add_xstream_from_json(r#"{ "scheduler": { "pools": ["work"] } }"#)
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ElasticityError::Program), "{error}");
        assert!(error.to_string().contains("add_external_pool"), "{error}");
    }
    let pool = runtime.add_pool(PoolSpec::new("late")).unwrap();
    let xstream = runtime.add_xstream(XstreamSpec::new("c").pools(["late"])).unwrap();
    instance.layout().add_external_pool(&pool).unwrap();
    instance.layout().add_external_xstream(&xstream).unwrap();
    let own = runtime.clone();
    instance.serve(WHERE).pool(&pool).function(move |()| own.rank_here()).unwrap();
    assert_eq!(ask(&instance, &instance), Some(2));
    instance.layout().migrate_progress("late").unwrap();
    assert_eq!(ask(&instance, &instance), Some(2));
    // A child of it runs there as well.
    let child = Instance::builder("na+sm://").parent(&instance).start().unwrap();
    assert_eq!(child.layout().progress_pool(), pool);
    assert_eq!(ask(&child, &instance), Some(2));
    child.finalize_and_wait().unwrap();
    // What is only forgotten stays in the runtime.
    instance.layout().remove_xstream("a").unwrap();
    assert!(runtime.xstream("a").is_some());
    instance.finalize_and_wait().unwrap();
    assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1);
    runtime.shutdown().unwrap();
}

#[test]
fn the_instance_keeps_the_runtime_and_stands_in_the_way_of_its_end() {
    let runtime = described().start().unwrap();
    let instance = in_runtime(&runtime);
    let Err(ShutdownError::StillAlive(alive)) = runtime.shutdown_timeout(Duration::from_millis(20))
    else {
        panic!("the progress ULT was gone");
    };
    assert!(alive.to_string().contains("progress"), "{alive}");
    serve(&instance, &runtime);
    assert_eq!(ask(&instance, &instance), Some(1), "both go on as before");
    let pool = runtime.pool("work").unwrap();
    let own = instance.clone();
    drop(runtime);
    drop(instance);
    assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1);
    own.finalize_and_wait().unwrap();
    let runtime = own.runtime().clone();
    runtime.shutdown().unwrap();
}

#[test]
fn a_runtime_without_a_monitor_gets_the_stall_detector_and_one_with_keeps_its_own() {
    let (found, reports) = mpsc::channel();
    let tell = move |report: &ult::Report| drop(found.send(report.to_string()));
    let limit = Duration::from_millis(10);
    let own = MonitorSpec::new().stall_limit(limit).tick(limit / 4).on_report(tell);
    let document = r#"{ "margo": { "stall_limit_msec": 10 } }"#;
    for (runtime, is_margos) in [
        (described().start().unwrap(), true),
        (described().monitor(own.deadlock_limit(None)).start().unwrap(), false),
    ] {
        let config =
            Config { rpc_pool: Some("work".into()), ..Config::from_json(document).unwrap() };
        let instance = margo::InstanceBuilder::from_config(config).runtime(&runtime);
        let instance = instance.start().unwrap();
        let counted = instance.clone();
        let (stop, stopped) = mpsc::channel::<()>();
        let hog = instance.layout().rpc_pool().spawn(move || stopped.recv().is_err()).unwrap();
        if is_margos {
            bounded("the stall is counted", move || {
                while counted.monitoring().stats().stalls == 0 {
                    std::thread::yield_now();
                }
            });
        } else {
            let report = reports.recv_timeout(common::PATIENCE).unwrap();
            assert!(report.contains("xstream `b` is stalled"), "{report}");
            assert_eq!(instance.monitoring().stats().stalls, 0);
        }
        drop(stop);
        assert!(hog.join().unwrap());
        instance.finalize_and_wait().unwrap();
        runtime.shutdown().unwrap();
    }
}
