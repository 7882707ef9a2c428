//! Pools and xstreams of a running instance: added, found, held, removed, moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, bounded};
use margo::config::{Pool, Scheduler, Xstream};
use margo::ult::{self, Eventual};
use margo::{
    Instance, ProviderHandle, ProviderId, RegisterError, Rpc, config::Config, config::ConfigFlags,
    elasticity::ElasticityError, errors::LayoutError, timers::TimerSpec,
};

pub(super) const ECHO: Rpc<u64, u64> = Rpc::new("echo");

/// When nothing of this is there any more.
const FAR: Duration = Duration::from_secs(3600);

/// Three pools: `__primary__`, one for progress, one for handlers; six xstreams.
pub(super) fn started() -> Instance {
    margo::init(r#"{ "use_progress_thread": true, "rpc_thread_count": 4 }"#).unwrap()
}

pub(super) fn pool(json: &str) -> Pool {
    Pool::from_json(json).unwrap()
}

/// An xstream with these pools.
pub(super) fn running(pools: &[&str]) -> Xstream {
    let pools = pools.iter().map(|name| (*name).into()).collect();
    Xstream { scheduler: Some(Scheduler { pools, ..Scheduler::default() }), ..Xstream::default() }
}

pub(super) fn text<T: std::fmt::Debug>(result: Result<T, ElasticityError>) -> String {
    result.unwrap_err().to_string()
}

pub(super) fn named(margo: &Instance) -> serde_json::Value {
    let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    serde_json::to_value(margo.layout().config_as(flags)).unwrap()
}

#[test]
fn pools_are_added_from_json_and_found_by_name_index_and_handle() {
    let margo = started();
    let added =
        margo.layout().add_pool_from_json(r#"{ "name": "my_pool", "kind": "prio_wait" }"#).unwrap();
    assert_eq!((added.index, added.name()), (3, "my_pool"));
    assert_eq!(added.pool.kind(), ult::PoolKind::PrioWait);
    for found in [
        margo.layout().find_pool("my_pool"),
        margo.layout().find_pool(3),
        margo.layout().find_pool(&added.pool),
        margo.layout().find_pool(&added),
    ] {
        assert_eq!(found.unwrap(), added);
    }
    let again = text(margo.layout().add_pool_from_json(r#"{ "name": "my_pool" }"#));
    assert!(again.contains("name: the name \"my_pool\" is already taken by"), "{again}");
    for (json, index) in [("{}", 4), ("", 5), ("null", 6)] {
        let added = margo.layout().add_pool_from_json(json);
        if json == "null" {
            assert!(text(added).contains("expected an object, found null"));
            continue;
        }
        let added = added.unwrap();
        assert_eq!((added.index, added.name()), (index, &*format!("__pool_{index}__")));
    }
    assert_eq!(margo.layout().pools().len(), 6);
    let wanted = text(margo.layout().find_pool("my_pol"));
    assert!(wanted.contains("no pool `my_pol`") && wanted.contains("3 my_pool"), "{wanted}");
    assert!(text(margo.layout().find_pool(6)).contains("no pool 6"));
    margo.finalize_and_wait().unwrap();
}

#[test]
fn a_wrong_description_says_where_and_changes_nothing() {
    let margo = started();
    let before = margo.config();
    for (json, expected) in [
        ("{", "EOF while parsing an object at line 1 column 1"),
        (r#"{ "nam": "x" }"#, "nam: unknown key (allowed: name, kind"),
        (r#"{ "kind": "lifo" }"#, "did you mean \"fifo\"? at line 1 column 11"),
        (r#"{ "name": "2x" }"#, "name: \"2x\" is no valid name"),
        (r#"{ "stack_bytes": 1 }"#, "stack_bytes: a stack of 1 bytes is not allowed"),
        (r#"{ "numa_node": 4095 }"#, "numa_node: there is no NUMA node 4095"),
    ] {
        let error = text(margo.layout().add_pool_from_json(json));
        assert!(error.contains(expected), "{json}: {error}");
    }
    for (json, expected) in [
        ("", "EOF while parsing a value"),
        ("{}", "missing key `scheduler`"),
        (r#"{ "scheduler": { "pools": [] } }"#, "scheduler.pools: an xstream needs at least one"),
        (
            r#"{ "scheduler": { "pools": ["x"] } }"#,
            "scheduler.pools[0]: no pool named \"x\" (have:",
        ),
        (
            r#"{ "scheduler": { "pools": [9] } }"#,
            "this instance has no pool 9 (it has: 0 __primary__",
        ),
        (
            r#"{ "name": "__primary__", "scheduler": { "pools": [0] } }"#,
            "name: the name \"__primary__\" is already taken",
        ),
        (
            r#"{ "cpubind": 100000, "scheduler": { "pools": [0] } }"#,
            "cpubind: CPU 100000 does not exist",
        ),
        (
            r#"{ "affinity": "numa:4095", "scheduler": { "pools": [0] } }"#,
            "affinity: place `numa:4095`",
        ),
    ] {
        let error = text(margo.layout().add_xstream_from_json(json));
        assert!(error.contains(expected), "{json}: {error}");
    }
    let one = margo.layout().add_pool(pool(r#"{ "name": "one", "access": "mpsc" }"#)).unwrap();
    let first = margo.layout().add_xstream(running(&["one"])).unwrap();
    let second = text(margo.layout().add_xstream(running(&["one"])));
    assert!(second.contains("promises a single consumer but 2 xstreams"), "{second}");
    margo.layout().remove_xstream(&first).unwrap();
    margo.layout().remove_pool(&one).unwrap();
    assert_eq!(margo.config(), before);
    margo.finalize_and_wait().unwrap();
}

#[test]
fn xstreams_are_added_and_run_their_pools() {
    let margo = started();
    let work = margo.layout().add_pool(pool(r#"{ "name": "work" }"#)).unwrap();
    let waits = work.pool.spawn(|| ult::current().unwrap().xstream).unwrap();
    let json = r#"{ "name": "mine", "scheduler": { "type": "basic", "pools": ["work", 0] } }"#;
    let added = margo.layout().add_xstream_from_json(json).unwrap();
    assert_eq!((added.index, added.name()), (6, "mine"));
    assert_eq!(waits.join().unwrap(), "mine");
    assert_eq!(added.xstream.pools(), ["work", "__primary__"]);
    for found in [
        margo.layout().find_xstream("mine"),
        margo.layout().find_xstream(6),
        margo.layout().find_xstream(&added.xstream),
    ] {
        assert_eq!(found.unwrap(), added);
    }
    assert!(text(margo.layout().add_xstream_from_json(json)).contains("already taken"));
    let unnamed = margo.layout().add_xstream(running(&["work"])).unwrap();
    assert_eq!((unnamed.index, unnamed.name()), (7, "__xstream_7__"));
    assert_eq!(margo.layout().xstreams().len(), 8);
    assert!(text(margo.layout().find_xstream("x")).contains("no xstream `x`"));
    margo.finalize_and_wait().unwrap();
}

#[test]
fn a_removed_pool_leaves_no_gate_behind() {
    let margo = started();
    margo.serve(ECHO).function(|number| number).unwrap();
    let to = ProviderHandle::from(margo.self_addr());
    let gates = || {
        let gates = margo.metrics().gates;
        gates.iter().filter(|gate| gate.name == "again").count()
    };
    for round in 1..=3 {
        let own = margo.layout().add_pool(pool(r#"{ "name": "again" }"#)).unwrap();
        let xstream = margo.layout().add_xstream(running(&["again"])).unwrap();
        margo.layout().set_handler_pool(ECHO, ProviderId::DEFAULT, &own.pool).unwrap();
        assert_eq!(margo.forward(ECHO, &to, &round).unwrap(), round);
        assert_eq!(gates(), 1);
        margo
            .layout()
            .set_handler_pool(ECHO, ProviderId::DEFAULT, &margo.layout().rpc_pool())
            .unwrap();
        // Ends when the handler has.
        margo.layout().remove_xstream(&xstream).unwrap();
        margo.layout().remove_pool(&own).unwrap();
        assert_eq!(gates(), 0);
        assert_eq!(margo.monitoring().stats().handlers_run, round, "what was counted there stays");
        assert_eq!(margo.monitoring().load(&own.pool), None);
    }
    margo.finalize_and_wait().unwrap();
}

/// It falls back to the pool of all handlers, which knows no priorities.
#[test]
fn the_priority_of_a_provider_that_was_never_started_goes_with_its_pool() {
    let margo = margo::init(
        r#"{ "argobots": {
                "pools": [{ "name": "__primary__" }, { "name": "p", "kind": "prio_wait" }],
                "xstreams": [{ "name": "x", "scheduler": { "pools": ["p"] } }] },
             "margo": { "providers": [
                { "type": "a", "provider_id": 1, "pool": "p", "priority": "high" } ] } }"#,
    )
    .unwrap();
    let provider = |margo: &Instance| named(margo)["margo"]["providers"][0].clone();
    assert_eq!(provider(&margo)["pool"], "p");
    assert_eq!(provider(&margo)["priority"], "high");
    margo.layout().remove_xstream("x").unwrap();
    assert_eq!(provider(&margo)["pool"], "__primary__");
    Config::from_json(&margo.config().to_json()).unwrap();
    margo.layout().remove_pool("p").unwrap();
    Config::from_json(&margo.config().to_json()).unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn an_index_is_never_given_to_another() {
    let margo = started();
    let first = margo.layout().add_pool(Pool::default()).unwrap();
    let second = margo.layout().add_pool(pool(r#"{ "name": "second" }"#)).unwrap();
    margo.layout().remove_pool(&first).unwrap();
    assert!(matches!(margo.layout().find_pool(3), Err(ElasticityError::NoSuchPool { .. })));
    assert!(matches!(margo.layout().find_pool(&first), Err(ElasticityError::NoSuchPool { .. })));
    assert_eq!(margo.layout().find_pool(4).unwrap(), second);
    let third = margo.layout().add_pool(pool(r#"{ "name": "__pool_3__" }"#)).unwrap();
    assert_eq!(third.index, 5, "a name is free again, its index is not");
    assert_ne!(third.pool, first.pool);
    let xstream = margo.layout().add_xstream(running(&["second"])).unwrap();
    margo.layout().remove_xstream(xstream.index).unwrap();
    assert_eq!(margo.layout().add_xstream(running(&["second"])).unwrap().name(), "__xstream_7__");
    // In the document a place is a place.
    let printed = serde_json::to_value(margo.config()).unwrap();
    assert_eq!(printed["argobots"]["pools"][3]["name"], "second");
    assert_eq!(printed["argobots"]["xstreams"][6]["scheduler"]["pools"][0], 3);
    let again = margo.config().to_json();
    margo.finalize_and_wait().unwrap();
    margo::init(&again).unwrap().finalize_and_wait().unwrap();
}

#[test]
fn what_is_in_use_is_not_removed_and_the_error_says_by_whom() {
    let margo = started();
    let in_use = |error: String, by: &str| assert!(error.contains(by), "{by}: {error}");
    in_use(text(margo.layout().remove_pool("__primary__")), "in use by xstream `__primary__`");
    in_use(
        text(margo.layout().remove_pool(1)),
        "by the progress ULT of shard 0, xstream `__xstream_1__`",
    );
    in_use(
        text(margo.layout().remove_pool(2)),
        "by handlers without a pool of their own (`rpc_pool`), xs",
    );
    in_use(text(margo.layout().remove_pool(99)), "no pool 99");

    let own = margo.layout().add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let provider = margo.provider(ProviderId::new(7), &own.pool);
    in_use(text(margo.layout().remove_pool("own")), "pool `own` is in use by provider 7");
    provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    in_use(text(margo.layout().remove_pool("own")), "RPC `echo` of provider 7");
    assert_eq!(
        margo.layout().pool_users("own").unwrap(),
        ["provider 7", "RPC `echo` of provider 7"]
    );
    drop(provider);

    let hold = margo.layout().hold_pool("own", "the compaction").unwrap();
    let second = margo.layout().hold_pool(&own, "the scrubber").unwrap();
    in_use(text(margo.layout().remove_pool("own")), "by the compaction, the scrubber");
    drop(second);
    in_use(text(margo.layout().remove_pool("own")), "by the compaction");
    assert_eq!(hold.pool(), &own.pool);
    drop(hold);

    let xstream = margo.layout().add_xstream(running(&["own"])).unwrap();
    in_use(text(margo.layout().remove_pool("own")), "by xstream `__xstream_6__`");
    let hold = margo.layout().hold_xstream(&xstream, "the benchmark").unwrap();
    in_use(text(margo.layout().remove_xstream(&xstream)), "is in use by the benchmark");
    drop(hold);
    margo.layout().remove_xstream(&xstream).unwrap();
    in_use(text(margo.layout().remove_xstream(&xstream)), "no xstream `__xstream_6__`");
    in_use(text(margo.layout().remove_xstream("__primary__")), "the primary one and stays");
    in_use(text(margo.layout().remove_xstream("__xstream_1__")), "by the progress ULT of shard 0");

    let pools = margo.layout().pools().len();
    margo.layout().remove_pool("own").unwrap();
    assert_eq!(margo.layout().pools().len(), pools - 1);
    in_use(text(margo.layout().find_pool("own")), "no pool `own`");
    // A handle that is left over is refused.
    assert!(own.pool.spawn(|| ()).is_err());
    let provider = margo.provider(ProviderId::new(8), &own.pool);
    let refused = provider.register(ECHO, |_| ()).unwrap_err();
    assert!(matches!(refused, RegisterError::PoolRemoved { .. }), "{refused}");
    margo.finalize_and_wait().unwrap();
}

#[test]
fn handlers_stay_within_their_instance() {
    let (margo, other) = (started(), started());
    let provider = margo.provider(ProviderId::new(8), &other.layout().rpc_pool());
    let refused = provider.register(ECHO, |_| ()).unwrap_err();
    let RegisterError::OtherRuntime { own, .. } = &refused else { panic!("{refused:?}") };
    assert!(own.contains(&format!("`{}`", margo.layout().rpc_pool().name())), "{refused}");
    let registered = margo.serve(ECHO).handler(|request| drop(request.respond(request.args())));
    registered.unwrap();
    let moved =
        margo.layout().set_handler_pool(ECHO, ProviderId::DEFAULT, &other.layout().rpc_pool());
    assert!(matches!(moved, Err(RegisterError::OtherRuntime { .. })), "{moved:?}");
    // A child has no execution streams but those.
    let child = Instance::builder("na+sm://").parent(&other).start().unwrap();
    let registered = child.serve(ECHO).pool(&other.layout().rpc_pool());
    registered.handler(|request| drop(request.respond(request.args()))).unwrap();
    child.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn the_last_xstream_of_a_used_pool_stays() {
    let margo = started();
    let own = margo.layout().add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let first = margo.layout().add_xstream(running(&["own"])).unwrap();
    let second = margo.layout().add_xstream(running(&["own"])).unwrap();
    let provider = margo.provider(ProviderId::new(7), &own.pool);
    provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    margo.layout().remove_xstream(&first).unwrap();
    let error = text(margo.layout().remove_xstream(&second));
    let expected = "xstream `__xstream_7__` alone runs pool `own`, which is in use by provider 7, \
                    RPC `echo` of provider 7";
    assert_eq!(error, expected);
    let target = ProviderHandle::new(margo.self_addr(), ProviderId::new(7));
    assert_eq!(margo.forward_timed(ECHO, &target, &5, PATIENCE).unwrap(), 5);
    drop(provider);
    margo.layout().remove_xstream(&second).unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn content_moves_to_another_pool_before_one_is_removed() {
    let margo = started();
    margo.layout().add_pool(pool(r#"{ "name": "from" }"#)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let count = count.clone();
            let add = move || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            margo.layout().pool("from").unwrap().spawn(add).unwrap()
        })
        .collect();
    let error = margo.layout().remove_pool("from").unwrap_err();
    assert!(matches!(error, ElasticityError::PoolNotEmpty { units: 5, .. }), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert_eq!(margo.layout().transfer_pool_content("from", "__primary__").unwrap(), 5);
    waiting.into_iter().for_each(|unit| unit.join().unwrap());
    assert_eq!(count.load(Ordering::Relaxed), 5);
    margo.layout().remove_pool("from").unwrap();
    assert!(text(margo.layout().transfer_pool_content("from", 0)).contains("no pool `from`"));
    margo.finalize_and_wait().unwrap();
}

/// A pool `q`, and an xstream that runs it.
fn with_a_pool(margo: &Instance) -> (ult::PoolRef, String) {
    let q = margo.layout().add_pool(pool(r#"{ "name": "q" }"#)).unwrap();
    let xstream = margo.layout().add_xstream(running(&["q"])).unwrap();
    (q.pool, xstream.name().to_owned())
}

#[test]
fn an_armed_timer_uses_its_pool_and_is_named() {
    let margo = started();
    let (q, x) = with_a_pool(&margo);
    let users = || margo.layout().pool_users("q").unwrap();
    let ran = Arc::new(Eventual::new());
    let tell = ran.clone();
    let spec = |name: &str| TimerSpec::new().pool(&q).name(name);
    let beat = margo.timer_with(spec("beat"), move |_| _ = tell.set(()));
    let others = [(); 2].map(|()| margo.timer_with(spec("other").inline(), |_| ()));
    assert_eq!(users(), [format!("xstream `{x}`")], "none is armed");
    beat.start(FAR).unwrap();
    others[0].start_every(FAR).unwrap();
    others[1].start(FAR).unwrap();
    assert_eq!(users()[..2], ["timer `beat`", "2 timers `other`"]);
    assert!(others.iter().all(margo::timers::Timer::disarm));
    let error = margo.layout().remove_xstream(&*x).unwrap_err();
    assert!(matches!(error, ElasticityError::XstreamNeeded { .. }), "{error}");
    let expected = "alone runs pool `q`, which is in use by timer `beat`";
    assert_eq!(error.to_string(), format!("xstream `{x}` {expected}"));
    // Another xstream takes it over, and runs it.
    let second = margo.layout().add_xstream(running(&["q"])).unwrap();
    margo.layout().remove_xstream(&*x).unwrap();
    beat.restart(Duration::ZERO).unwrap();
    ran.wait();
    beat.restart(FAR).unwrap();
    assert!(margo.layout().remove_xstream(&second).is_err());
    assert!(beat.disarm());
    margo.layout().remove_xstream(&second).unwrap();
    beat.start(FAR).unwrap();
    let error = text(margo.layout().remove_pool("q"));
    assert_eq!(error, "pool `q` is in use by timer `beat`");
    assert!(beat.disarm());
    // There is no xstream that would drop what stood for it.
    assert_eq!(margo.layout().transfer_pool_content("q", 0).unwrap(), 1);
    margo.layout().remove_pool("q").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn a_periodic_timer_uses_its_pool_also_while_it_runs() {
    let margo = started();
    let (q, x) = with_a_pool(&margo);
    let (begun, gate) = (Arc::new(Eventual::new()), Arc::new(Eventual::<()>::new()));
    let (begins, opens) = (begun.clone(), gate.clone());
    let beat = margo.timer_with(TimerSpec::new().pool(&q).name("beat"), move |_| {
        let _ = begins.set(());
        opens.wait_ready();
    });
    beat.start_every(Duration::from_millis(1)).unwrap();
    begun.wait();
    assert!(text(margo.layout().remove_xstream(&*x)).contains("in use by timer `beat`"));
    gate.set(()).unwrap();
    beat.cancel().unwrap();
    margo.layout().remove_xstream(&*x).unwrap();
    margo.layout().remove_pool("q").unwrap();
    // In the pool of the handlers, where it is by default, it is known as well.
    let quiet = margo.timer_with(TimerSpec::new().name("quiet"), |_| ());
    quiet.start(FAR).unwrap();
    assert!(
        margo
            .layout()
            .pool_users(&margo.layout().rpc_pool())
            .unwrap()
            .contains(&"timer `quiet`".to_owned())
    );
    margo.finalize_and_wait().unwrap();
}

#[test]
fn what_a_child_does_in_a_pool_of_later_is_known_too() {
    let margo = started();
    let child = Instance::builder("na+sm://").parent(&margo).start().unwrap();
    let (q, x) = with_a_pool(&margo);
    let timer = child.timer_with(TimerSpec::new().pool(&q), |_| ());
    timer.start(FAR).unwrap();
    child.serve(ECHO).pool(&q).function(|number| number).unwrap();
    let error = text(margo.layout().remove_xstream(&*x));
    let of = format!(" of child instance {}", child.self_addr().uri());
    let expected = format!("RPC `echo` of provider 65535{of}, timer `timer`{of}");
    assert!(error.ends_with(&format!("in use by {expected}")), "{error}");
    child.finalize_and_wait().unwrap();
    margo.layout().remove_xstream(&*x).unwrap();
    margo.layout().remove_pool("q").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn units_that_start_later_are_counted_and_not_waited_for() {
    let margo = started();
    let (q, x) = with_a_pool(&margo);
    let later = q.spawn_after(FAR, || ()).unwrap();
    let left = |error: &ElasticityError| error.to_string().contains("pool `q` has 1 units");
    let error = margo.layout().remove_xstream(&*x).unwrap_err();
    assert!(matches!(error, ElasticityError::Remove(_)) && left(&error), "{error}");
    assert_eq!(q.spawn(|| 1).unwrap().join().unwrap(), 1, "it goes on");
    assert!(later.cancel());
    // A unit that has been called off counts until an xstream has dropped it.
    bounded("a unit that is called off", {
        let (own, x) = (margo.clone(), x.clone());
        move || while own.layout().remove_xstream(&*x).is_err_and(|error| left(&error)) {}
    });
    assert!(margo.layout().find_xstream(&*x).is_err());
    margo.layout().remove_pool("q").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn an_xstream_that_does_not_come_to_an_end_goes_on() {
    let margo = started();
    let own = margo.layout().add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let xstream = margo.layout().add_xstream(running(&["own"])).unwrap();
    let remover = margo.clone();
    let from_inside = own
        .pool
        .spawn(move || {
            (
                ult::current().unwrap().xstream,
                text(remover.layout().remove_xstream("__xstream_6__")),
            )
        })
        .unwrap();
    let (here, error) = from_inside.join().unwrap();
    assert_eq!(here, xstream.name());
    assert!(error.contains("would wait for itself"), "{error}");
    assert_eq!(own.pool.spawn(|| 1).unwrap().join().unwrap(), 1);
    drop(margo.layout().hold_xstream(&xstream, "not leaving any more").unwrap());
    margo.finalize_and_wait().unwrap();
}

#[test]
fn pools_and_xstreams_of_the_program_become_part_of_the_instance() {
    let margo = started();
    let made = margo.runtime().add_pool(ult::PoolSpec::new("made")).unwrap();
    let info = margo.layout().add_external_pool(&made).unwrap();
    assert_eq!((info.index, &info.pool), (3, &made));
    assert!(text(margo.layout().add_external_pool(&made)).contains("pool `made` is already part"));
    assert!(
        text(margo.layout().add_pool_from_json(r#"{ "name": "made" }"#)).contains("already taken")
    );
    let spec = |name: &str, pools: &[&str]| ult::XstreamSpec::new(name).pools(pools.to_vec());
    let xstream = margo.runtime().add_xstream(spec("worker", &["made"])).unwrap();
    assert_eq!(margo.layout().add_external_xstream(&xstream).unwrap().index, 6);
    assert!(
        text(margo.layout().add_external_xstream(&xstream)).contains("xstream `worker` is already")
    );

    let unknown = margo.runtime().add_pool(ult::PoolSpec::new("unknown")).unwrap();
    let other = margo.runtime().add_xstream(spec("other", &["unknown"])).unwrap();
    assert!(text(margo.layout().add_external_xstream(&other)).contains("no pool `unknown`"));
    let stranger = started();
    assert!(
        text(margo.layout().add_external_pool(&stranger.layout().rpc_pool()))
            .contains("not part of this")
    );
    stranger.finalize_and_wait().unwrap();

    // Part of the document, unless they are to be left out.
    let printed = named(&margo);
    assert_eq!(printed["argobots"]["pools"][3]["name"], "made");
    assert_eq!(printed["argobots"]["xstreams"][6]["scheduler"]["pools"][0], "made");
    let hidden =
        margo.layout().config_as(ConfigFlags { hide_external: true, ..ConfigFlags::default() });
    assert_eq!((hidden.argobots.pools.len(), hidden.argobots.xstreams.len()), (3, 6));

    // Removed from the instance, they go on.
    assert!(text(margo.layout().remove_pool(&made)).contains("in use by xstream `worker`"));
    margo.layout().remove_xstream("worker").unwrap();
    margo.layout().remove_pool("made").unwrap();
    assert_eq!(made.spawn(|| 3).unwrap().join().unwrap(), 3);
    drop(unknown);
    margo.finalize_and_wait().unwrap();
}

/// Handlers that wait in a pool keep it, and its xstream, until they have ended.
#[test]
fn a_pool_with_a_handler_that_waits_is_not_removed() {
    let margo = started();
    let own = margo.layout().add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let xstream = margo.layout().add_xstream(running(&["own"])).unwrap();
    let (go, begun) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let provider = margo.provider(ProviderId::new(1), &own.pool);
    let (may_end, has_begun) = (go.clone(), begun.clone());
    provider
        .register(ECHO, move |request| {
            let _ = has_begun.set(());
            may_end.wait();
            let _ = request.respond(request.args());
        })
        .unwrap();
    let target = ProviderHandle::new(margo.self_addr(), ProviderId::new(1));
    let caller = margo.clone();
    let call = std::thread::spawn(move || caller.forward_timed(ECHO, &target, &9, PATIENCE));
    begun.wait();
    drop(provider);
    let left = margo.clone();
    let removing = std::thread::spawn(move || left.layout().remove_xstream(&xstream));
    go.set(()).unwrap();
    assert_eq!(call.join().unwrap().unwrap(), 9);
    removing.join().unwrap().unwrap();
    margo.layout().remove_pool("own").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn errors_of_the_machine_are_typed() {
    let margo = started();
    let error = margo.layout().add_pool_from_json(r#"{ "numa_node": 4095 }"#).unwrap_err();
    let ElasticityError::Layout(errors) = error else { panic!("{error}") };
    let [LayoutError { path, .. }] = errors.as_slice() else { panic!("{errors}") };
    assert_eq!(path, "numa_node");
    margo.finalize_and_wait().unwrap();
}

/// Threads and handlers that change the layout at the same time, while progress moves to and fro.
#[test]
fn many_change_the_layout_at_once() {
    bounded("many changes", || {
        let margo = started();
        let grown = Arc::new(AtomicUsize::new(0));
        let done = Arc::new(AtomicBool::new(false));
        // One of its handlers grows and shrinks the instance that it runs in.
        let counted = grown.clone();
        let grow = move |own: &Instance, id: u16| {
            let name = format!("own_{id}");
            let added = own.layout().add_pool(pool(&format!(r#"{{ "name": "{name}" }}"#))).unwrap();
            let xstream = own.layout().add_xstream(running(&[&name])).unwrap();
            let provider = own.provider(ProviderId::new(id), &added.pool);
            provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
            let target = ProviderHandle::new(own.self_addr(), ProviderId::new(id));
            assert_eq!(own.forward_timed(ECHO, &target, &7, PATIENCE).unwrap(), 7);
            assert!(own.layout().remove_pool(&added).is_err());
            drop(provider);
            own.layout().remove_xstream(&xstream).unwrap();
            own.layout().remove_pool(&added).unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let in_handler = grow.clone();
        margo
            .register(ECHO, move |request| {
                in_handler(request.instance(), *request.args() as u16);
                let _ = request.respond(request.args());
            })
            .unwrap();
        let threads: Vec<_> = (0..3u16)
            .map(|thread| {
                let (own, grow) = (margo.clone(), grow.clone());
                std::thread::spawn(move || {
                    for _ in 0..10 {
                        grow(&own, thread);
                        let target = ProviderHandle::from(own.self_addr());
                        let id = u64::from(thread) + 10;
                        assert_eq!(own.forward_timed(ECHO, &target, &id, PATIENCE).unwrap(), id);
                    }
                })
            })
            .collect();
        let (mover, until) = (margo.clone(), done.clone());
        let moving = std::thread::spawn(move || {
            let mut moves = 0;
            while !until.load(Ordering::Relaxed) || moves < 4 {
                mover.layout().migrate_progress(["__primary__", "__pool_1__"][moves % 2]).unwrap();
                // Whatever is printed at any time is a document that `init` would take.
                margo::config::Config::from_json(&mover.config().to_json()).unwrap();
                moves += 1;
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        moving.join().unwrap();
        assert_eq!(grown.load(Ordering::Relaxed), 60);
        assert_eq!((margo.layout().pools().len(), margo.layout().xstreams().len()), (3, 6));
        margo.finalize_and_wait().unwrap();
    });
}

#[test]
fn a_child_keeps_its_parents_pools_and_changes_none() {
    let margo = started();
    let spare = margo.layout().add_pool(pool(r#"{ "name": "spare" }"#)).unwrap();
    let child = margo::Instance::builder("na+sm://").parent(&margo).start().unwrap();
    assert!(child.layout().pools().contains(&spare.pool));
    let in_use = margo.layout().remove_pool(&spare).unwrap_err().to_string();
    assert!(in_use.contains("child instance na+sm://"), "{in_use}");
    assert!(matches!(child.layout().add_pool(pool("{}")), Err(ElasticityError::Child)));
    assert!(matches!(child.layout().remove_pool("spare"), Err(ElasticityError::Child)));
    assert!(!child.config().to_json().contains("spare"), "the layout is the parent's");
    child.finalize_and_wait().unwrap();
    margo.layout().remove_pool(&spare).unwrap();
    margo.finalize_and_wait().unwrap();
}
