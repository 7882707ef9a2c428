//! Pools and xstreams of a running instance: added, found, held, removed, moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, bounded, on_each};
use margo::config::{Pool, Scheduler, Xstream};
use margo::ult::{self, Eventual};
use margo::{
    Config, ConfigFlags, ElasticityError, Instance, LayoutError, ProviderHandle, ProviderId,
    RegisterError, Rpc, TimerSpec,
};

const ECHO: Rpc<u64, u64> = Rpc::new("echo");

/// When nothing of this is there any more.
const FAR: Duration = Duration::from_secs(3600);

/// Three pools: `__primary__`, one for progress, one for handlers; six xstreams.
fn started() -> Instance {
    margo::init(r#"{ "use_progress_thread": true, "rpc_thread_count": 4 }"#).unwrap()
}

fn pool(json: &str) -> Pool {
    Pool::from_json(json).unwrap()
}

/// An xstream with these pools.
fn running(pools: &[&str]) -> Xstream {
    let pools = pools.iter().map(|name| (*name).into()).collect();
    Xstream { scheduler: Some(Scheduler { pools, ..Scheduler::default() }), ..Xstream::default() }
}

fn text<T: std::fmt::Debug>(result: Result<T, ElasticityError>) -> String {
    result.unwrap_err().to_string()
}

fn named(margo: &Instance) -> serde_json::Value {
    let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    serde_json::to_value(margo.config_as(flags)).unwrap()
}

#[test]
fn pools_are_added_from_json_and_found_by_name_index_and_handle() {
    let margo = started();
    let added = margo.add_pool_from_json(r#"{ "name": "my_pool", "kind": "prio_wait" }"#).unwrap();
    assert_eq!((added.index, added.name()), (3, "my_pool"));
    assert_eq!(added.pool.kind(), ult::PoolKind::PrioWait);
    for found in [
        margo.find_pool("my_pool"),
        margo.find_pool(3),
        margo.find_pool(&added.pool),
        margo.find_pool(&added),
    ] {
        assert_eq!(found.unwrap(), added);
    }
    let again = text(margo.add_pool_from_json(r#"{ "name": "my_pool" }"#));
    assert!(again.contains("name: the name \"my_pool\" is already taken by"), "{again}");
    for (json, index) in [("{}", 4), ("", 5), ("null", 6)] {
        let added = margo.add_pool_from_json(json);
        if json == "null" {
            assert!(text(added).contains("expected an object, found null"));
            continue;
        }
        let added = added.unwrap();
        assert_eq!((added.index, added.name()), (index, &*format!("__pool_{index}__")));
    }
    assert_eq!(margo.pools().len(), 6);
    let wanted = text(margo.find_pool("my_pol"));
    assert!(wanted.contains("no pool `my_pol`") && wanted.contains("3 my_pool"), "{wanted}");
    assert!(text(margo.find_pool(6)).contains("no pool 6"));
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
        let error = text(margo.add_pool_from_json(json));
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
        let error = text(margo.add_xstream_from_json(json));
        assert!(error.contains(expected), "{json}: {error}");
    }
    let one = margo.add_pool(pool(r#"{ "name": "one", "access": "mpsc" }"#)).unwrap();
    let first = margo.add_xstream(running(&["one"])).unwrap();
    let second = text(margo.add_xstream(running(&["one"])));
    assert!(second.contains("promises a single consumer but 2 xstreams"), "{second}");
    margo.remove_xstream(&first).unwrap();
    margo.remove_pool(&one).unwrap();
    assert_eq!(margo.config(), before);
    margo.finalize_and_wait().unwrap();
}

#[test]
fn xstreams_are_added_and_run_their_pools() {
    let margo = started();
    let work = margo.add_pool(pool(r#"{ "name": "work" }"#)).unwrap();
    let waits = work.pool.spawn(|| ult::current().unwrap().xstream).unwrap();
    let json = r#"{ "name": "mine", "scheduler": { "type": "basic", "pools": ["work", 0] } }"#;
    let added = margo.add_xstream_from_json(json).unwrap();
    assert_eq!((added.index, added.name()), (6, "mine"));
    assert_eq!(waits.join().unwrap(), "mine");
    assert_eq!(added.xstream.pools(), ["work", "__primary__"]);
    for found in
        [margo.find_xstream("mine"), margo.find_xstream(6), margo.find_xstream(&added.xstream)]
    {
        assert_eq!(found.unwrap(), added);
    }
    assert!(text(margo.add_xstream_from_json(json)).contains("already taken"));
    let unnamed = margo.add_xstream(running(&["work"])).unwrap();
    assert_eq!((unnamed.index, unnamed.name()), (7, "__xstream_7__"));
    assert_eq!(margo.xstreams().len(), 8);
    assert!(text(margo.find_xstream("x")).contains("no xstream `x`"));
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
        let own = margo.add_pool(pool(r#"{ "name": "again" }"#)).unwrap();
        let xstream = margo.add_xstream(running(&["again"])).unwrap();
        margo.set_handler_pool(ECHO, ProviderId::DEFAULT, &own.pool).unwrap();
        assert_eq!(margo.forward(ECHO, &to, &round).unwrap(), round);
        assert_eq!(gates(), 1);
        margo.set_handler_pool(ECHO, ProviderId::DEFAULT, &margo.rpc_pool()).unwrap();
        // Ends when the handler has.
        margo.remove_xstream(&xstream).unwrap();
        margo.remove_pool(&own).unwrap();
        assert_eq!(gates(), 0);
        assert_eq!(margo.stats().handlers_run, round, "what was counted there stays");
        assert_eq!(margo.load(&own.pool), None);
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
    margo.remove_xstream("x").unwrap();
    assert_eq!(provider(&margo)["pool"], "__primary__");
    Config::from_json(&margo.config().to_json()).unwrap();
    margo.remove_pool("p").unwrap();
    Config::from_json(&margo.config().to_json()).unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn an_index_is_never_given_to_another() {
    let margo = started();
    let first = margo.add_pool(Pool::default()).unwrap();
    let second = margo.add_pool(pool(r#"{ "name": "second" }"#)).unwrap();
    margo.remove_pool(&first).unwrap();
    assert!(matches!(margo.find_pool(3), Err(ElasticityError::NoSuchPool { .. })));
    assert!(matches!(margo.find_pool(&first), Err(ElasticityError::NoSuchPool { .. })));
    assert_eq!(margo.find_pool(4).unwrap(), second);
    let third = margo.add_pool(pool(r#"{ "name": "__pool_3__" }"#)).unwrap();
    assert_eq!(third.index, 5, "a name is free again, its index is not");
    assert_ne!(third.pool, first.pool);
    let xstream = margo.add_xstream(running(&["second"])).unwrap();
    margo.remove_xstream(xstream.index).unwrap();
    assert_eq!(margo.add_xstream(running(&["second"])).unwrap().name(), "__xstream_7__");
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
    in_use(text(margo.remove_pool("__primary__")), "in use by xstream `__primary__`");
    in_use(text(margo.remove_pool(1)), "by the progress ULT of shard 0, xstream `__xstream_1__`");
    in_use(text(margo.remove_pool(2)), "by handlers without a pool of their own (`rpc_pool`), xs");
    in_use(text(margo.remove_pool(99)), "no pool 99");

    let own = margo.add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let provider = margo.provider(ProviderId::new(7), &own.pool);
    in_use(text(margo.remove_pool("own")), "pool `own` is in use by provider 7");
    provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    in_use(text(margo.remove_pool("own")), "RPC `echo` of provider 7");
    assert_eq!(margo.pool_users("own").unwrap(), ["provider 7", "RPC `echo` of provider 7"]);
    drop(provider);

    let hold = margo.hold_pool("own", "the compaction").unwrap();
    let second = margo.hold_pool(&own, "the scrubber").unwrap();
    in_use(text(margo.remove_pool("own")), "by the compaction, the scrubber");
    drop(second);
    in_use(text(margo.remove_pool("own")), "by the compaction");
    assert_eq!(hold.pool(), &own.pool);
    drop(hold);

    let xstream = margo.add_xstream(running(&["own"])).unwrap();
    in_use(text(margo.remove_pool("own")), "by xstream `__xstream_6__`");
    let hold = margo.hold_xstream(&xstream, "the benchmark").unwrap();
    in_use(text(margo.remove_xstream(&xstream)), "is in use by the benchmark");
    drop(hold);
    margo.remove_xstream(&xstream).unwrap();
    in_use(text(margo.remove_xstream(&xstream)), "no xstream `__xstream_6__`");
    in_use(text(margo.remove_xstream("__primary__")), "the primary one and stays");
    in_use(text(margo.remove_xstream("__xstream_1__")), "by the progress ULT of shard 0");

    let pools = margo.pools().len();
    margo.remove_pool("own").unwrap();
    assert_eq!(margo.pools().len(), pools - 1);
    in_use(text(margo.find_pool("own")), "no pool `own`");
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
    let provider = margo.provider(ProviderId::new(8), &other.rpc_pool());
    let refused = provider.register(ECHO, |_| ()).unwrap_err();
    let RegisterError::OtherRuntime { own, .. } = &refused else { panic!("{refused:?}") };
    assert!(own.contains(&format!("`{}`", margo.rpc_pool().name())), "{refused}");
    let registered = margo.serve(ECHO).handler(|request| drop(request.respond(request.args())));
    registered.unwrap();
    let moved = margo.set_handler_pool(ECHO, ProviderId::DEFAULT, &other.rpc_pool());
    assert!(matches!(moved, Err(RegisterError::OtherRuntime { .. })), "{moved:?}");
    // A child has no execution streams but those.
    let child = Instance::builder("na+sm://").parent(&other).start().unwrap();
    let registered = child.serve(ECHO).pool(&other.rpc_pool());
    registered.handler(|request| drop(request.respond(request.args()))).unwrap();
    child.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn the_last_xstream_of_a_used_pool_stays() {
    let margo = started();
    let own = margo.add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let first = margo.add_xstream(running(&["own"])).unwrap();
    let second = margo.add_xstream(running(&["own"])).unwrap();
    let provider = margo.provider(ProviderId::new(7), &own.pool);
    provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    margo.remove_xstream(&first).unwrap();
    let error = text(margo.remove_xstream(&second));
    let expected = "xstream `__xstream_7__` alone runs pool `own`, which is in use by provider 7, \
                    RPC `echo` of provider 7";
    assert_eq!(error, expected);
    let target = ProviderHandle::new(margo.self_addr(), ProviderId::new(7));
    assert_eq!(margo.forward_timed(ECHO, &target, &5, PATIENCE).unwrap(), 5);
    drop(provider);
    margo.remove_xstream(&second).unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn content_moves_to_another_pool_before_one_is_removed() {
    let margo = started();
    margo.add_pool(pool(r#"{ "name": "from" }"#)).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let count = count.clone();
            let add = move || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            margo.pool("from").unwrap().spawn(add).unwrap()
        })
        .collect();
    let error = margo.remove_pool("from").unwrap_err();
    assert!(matches!(error, ElasticityError::PoolNotEmpty { units: 5, .. }), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 0);
    assert_eq!(margo.transfer_pool_content("from", "__primary__").unwrap(), 5);
    waiting.into_iter().for_each(|unit| unit.join().unwrap());
    assert_eq!(count.load(Ordering::Relaxed), 5);
    margo.remove_pool("from").unwrap();
    assert!(text(margo.transfer_pool_content("from", 0)).contains("no pool `from`"));
    margo.finalize_and_wait().unwrap();
}

/// A pool `q`, and an xstream that runs it.
fn with_a_pool(margo: &Instance) -> (ult::PoolRef, String) {
    let q = margo.add_pool(pool(r#"{ "name": "q" }"#)).unwrap();
    let xstream = margo.add_xstream(running(&["q"])).unwrap();
    (q.pool, xstream.name().to_owned())
}

#[test]
fn an_armed_timer_uses_its_pool_and_is_named() {
    let margo = started();
    let (q, x) = with_a_pool(&margo);
    let users = || margo.pool_users("q").unwrap();
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
    assert!(others.iter().all(margo::Timer::disarm));
    let error = margo.remove_xstream(&*x).unwrap_err();
    assert!(matches!(error, ElasticityError::XstreamNeeded { .. }), "{error}");
    let expected = "alone runs pool `q`, which is in use by timer `beat`";
    assert_eq!(error.to_string(), format!("xstream `{x}` {expected}"));
    // Another xstream takes it over, and runs it.
    let second = margo.add_xstream(running(&["q"])).unwrap();
    margo.remove_xstream(&*x).unwrap();
    beat.restart(Duration::ZERO).unwrap();
    ran.wait();
    beat.restart(FAR).unwrap();
    assert!(margo.remove_xstream(&second).is_err());
    assert!(beat.disarm());
    margo.remove_xstream(&second).unwrap();
    beat.start(FAR).unwrap();
    let error = text(margo.remove_pool("q"));
    assert_eq!(error, "pool `q` is in use by timer `beat`");
    assert!(beat.disarm());
    // There is no xstream that would drop what stood for it.
    assert_eq!(margo.transfer_pool_content("q", 0).unwrap(), 1);
    margo.remove_pool("q").unwrap();
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
    assert!(text(margo.remove_xstream(&*x)).contains("in use by timer `beat`"));
    gate.set(()).unwrap();
    beat.cancel().unwrap();
    margo.remove_xstream(&*x).unwrap();
    margo.remove_pool("q").unwrap();
    // In the pool of the handlers, where it is by default, it is known as well.
    let quiet = margo.timer_with(TimerSpec::new().name("quiet"), |_| ());
    quiet.start(FAR).unwrap();
    assert!(margo.pool_users(&margo.rpc_pool()).unwrap().contains(&"timer `quiet`".to_owned()));
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
    let error = text(margo.remove_xstream(&*x));
    let of = format!(" of child instance {}", child.self_addr().uri());
    let expected = format!("RPC `echo` of provider 65535{of}, timer `timer`{of}");
    assert!(error.ends_with(&format!("in use by {expected}")), "{error}");
    child.finalize_and_wait().unwrap();
    margo.remove_xstream(&*x).unwrap();
    margo.remove_pool("q").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn units_that_start_later_are_counted_and_not_waited_for() {
    let margo = started();
    let (q, x) = with_a_pool(&margo);
    let later = q.spawn_after(FAR, || ()).unwrap();
    let left = |error: &ElasticityError| error.to_string().contains("pool `q` has 1 units");
    let error = margo.remove_xstream(&*x).unwrap_err();
    assert!(matches!(error, ElasticityError::Remove(_)) && left(&error), "{error}");
    assert_eq!(q.spawn(|| 1).unwrap().join().unwrap(), 1, "it goes on");
    assert!(later.cancel());
    // A unit that has been called off counts until an xstream has dropped it.
    bounded("a unit that is called off", {
        let (own, x) = (margo.clone(), x.clone());
        move || while own.remove_xstream(&*x).is_err_and(|error| left(&error)) {}
    });
    assert!(margo.find_xstream(&*x).is_err());
    margo.remove_pool("q").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn an_xstream_that_does_not_come_to_an_end_goes_on() {
    let margo = started();
    let own = margo.add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let xstream = margo.add_xstream(running(&["own"])).unwrap();
    let remover = margo.clone();
    let from_inside = own
        .pool
        .spawn(move || {
            (ult::current().unwrap().xstream, text(remover.remove_xstream("__xstream_6__")))
        })
        .unwrap();
    let (here, error) = from_inside.join().unwrap();
    assert_eq!(here, xstream.name());
    assert!(error.contains("would wait for itself"), "{error}");
    assert_eq!(own.pool.spawn(|| 1).unwrap().join().unwrap(), 1);
    drop(margo.hold_xstream(&xstream, "not leaving any more").unwrap());
    margo.finalize_and_wait().unwrap();
}

#[test]
fn pools_and_xstreams_of_the_program_become_part_of_the_instance() {
    let margo = started();
    let made = margo.runtime().add_pool(ult::PoolSpec::new("made")).unwrap();
    let info = margo.add_external_pool(&made).unwrap();
    assert_eq!((info.index, &info.pool), (3, &made));
    assert!(text(margo.add_external_pool(&made)).contains("pool `made` is already part"));
    assert!(text(margo.add_pool_from_json(r#"{ "name": "made" }"#)).contains("already taken"));
    let spec = |name: &str, pools: &[&str]| ult::XstreamSpec::new(name).pools(pools.to_vec());
    let xstream = margo.runtime().add_xstream(spec("worker", &["made"])).unwrap();
    assert_eq!(margo.add_external_xstream(&xstream).unwrap().index, 6);
    assert!(text(margo.add_external_xstream(&xstream)).contains("xstream `worker` is already"));

    let unknown = margo.runtime().add_pool(ult::PoolSpec::new("unknown")).unwrap();
    let other = margo.runtime().add_xstream(spec("other", &["unknown"])).unwrap();
    assert!(text(margo.add_external_xstream(&other)).contains("no pool `unknown`"));
    let stranger = started();
    assert!(text(margo.add_external_pool(&stranger.rpc_pool())).contains("not part of this"));
    stranger.finalize_and_wait().unwrap();

    // Part of the document, unless they are to be left out.
    let printed = named(&margo);
    assert_eq!(printed["argobots"]["pools"][3]["name"], "made");
    assert_eq!(printed["argobots"]["xstreams"][6]["scheduler"]["pools"][0], "made");
    let hidden = margo.config_as(ConfigFlags { hide_external: true, ..ConfigFlags::default() });
    assert_eq!((hidden.argobots.pools.len(), hidden.argobots.xstreams.len()), (3, 6));

    // Removed from the instance, they go on.
    assert!(text(margo.remove_pool(&made)).contains("in use by xstream `worker`"));
    margo.remove_xstream("worker").unwrap();
    margo.remove_pool("made").unwrap();
    assert_eq!(made.spawn(|| 3).unwrap().join().unwrap(), 3);
    drop(unknown);
    margo.finalize_and_wait().unwrap();
}

/// Calls that go on until they are told to stop; all of them must succeed.
struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    callers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn new(client: &Instance, target: &ProviderHandle) -> Self {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let callers = (0..2)
            .map(|_| {
                let (stop, calls) = (stop.clone(), calls.clone());
                let (client, target) = (client.clone(), target.clone());
                std::thread::spawn(move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.forward_timed(ECHO, &target, &number, PATIENCE);
                        assert_eq!(answer.unwrap(), number);
                        calls.fetch_add(1, Ordering::Relaxed);
                        number += 1;
                    }
                })
            })
            .collect();
        Self { stop, calls, callers }
    }

    /// Waits until more calls have been answered.
    fn some_more(&self) {
        let enough = self.calls.load(Ordering::Relaxed) + 20;
        while self.calls.load(Ordering::Relaxed) < enough {
            assert!(self.callers.iter().all(|caller| !caller.is_finished()), "a call failed");
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
}

/// C's own case, under load: new pool and xstream, progress moves there, the old ones go.
#[test]
fn progress_moves_to_another_pool_while_calls_run() {
    on_each(|pair| {
        bounded("migrating progress", move || {
            let service = &pair.service;
            service.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
            let load = Load::new(&pair.client, &pair.target());
            load.some_more();
            for round in 0..3 {
                for side in [&pair.service, &pair.client] {
                    let old = side.progress_pool();
                    let name = format!("net_{round}");
                    side.add_pool(pool(&format!(r#"{{ "name": "{name}" }}"#))).unwrap();
                    let error = side.migrate_progress(&name).unwrap_err();
                    assert!(matches!(error, ElasticityError::Unserved { .. }), "{error}");
                    let xstream = Xstream { name: Some(name.clone()), ..running(&[&name]) };
                    side.add_xstream(xstream).unwrap();
                    side.migrate_progress(&name).unwrap();
                    assert_eq!(side.progress_pool().name(), name);
                    assert_eq!(named(side)["progress_pool"], name);
                    load.some_more();
                    if old.name() != "__primary__" {
                        side.remove_xstream(old.name()).unwrap();
                        side.remove_pool(old.name()).unwrap();
                    }
                }
            }
            load.some_more();
            load.end();
            pair.end();
        });
    });
}

/// The change waits for the tasklet's xstream, so that the tasklet must not wait for the change.
#[test]
fn a_tasklet_that_registers_while_progress_moves_is_refused() {
    const OTHER: Rpc<(), ()> = Rpc::new("other");
    bounded("a tasklet and a move of progress", || {
        let service = started();
        service.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
        let to = service.add_pool(pool(r#"{ "name": "to" }"#)).unwrap().pool;
        service.add_xstream(running(&["to"])).unwrap();
        let (begun, instance) = (Arc::new(Eventual::new()), service.clone());
        let begins = begun.clone();
        let tasklet = to.tasklet().spawn(move || {
            let pool = instance.rpc_pool();
            // Nothing is in its way: that is as everywhere.
            instance.set_handler_pool(ECHO, ProviderId::DEFAULT, &pool).unwrap();
            begins.set(()).unwrap();
            let moves = || instance.set_handler_pool(ECHO, ProviderId::DEFAULT, &pool);
            while !matches!(moves(), Err(RegisterError::Inline { rpc: "echo" })) {}
            instance.register(OTHER, |_| ()).unwrap_err()
        });
        begun.wait();
        service.migrate_progress("to").unwrap();
        let refused = tasklet.unwrap().join().unwrap();
        assert!(matches!(refused, RegisterError::Inline { rpc: "other" }), "{refused}");
        service.register(OTHER, |_| ()).unwrap();
        service.finalize_and_wait().unwrap();
    });
}

#[test]
fn progress_moves_only_where_it_can_run() {
    let margo = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "__primary__" }, { "name": "net1" } ],
             "xstreams": [ { "name": "x1", "scheduler": { "pools": ["net1"] } } ] },
             "margo": { "shards": ["__primary__", "net1"] } }"#,
    )
    .unwrap();
    margo.add_pool(pool(r#"{ "name": "alone", "access": "private" }"#)).unwrap();
    margo.add_xstream(running(&["alone"])).unwrap();
    let error = text(margo.migrate_progress("alone"));
    assert!(error.contains("pool `alone` is private"), "{error}");
    let error = text(margo.migrate_progress("net1"));
    assert!(error.contains("in use by the progress ULT of shard 1"), "{error}");
    assert!(text(margo.migrate_progress("x")).contains("no pool `x`"));
    let error = text(margo.migrate_progress_of(2, "net1"));
    assert!(error.contains("no shard 2: this instance has 2"), "{error}");
    margo.migrate_progress("__primary__").unwrap();

    margo.add_pool(pool(r#"{ "name": "net2" }"#)).unwrap();
    margo.add_xstream(running(&["net2"])).unwrap();
    margo.migrate_progress_of(1, "net2").unwrap();
    margo.remove_xstream("x1").unwrap();
    margo.remove_pool("net1").unwrap();
    let names: Vec<_> = margo.progress_pools().map(|pool| pool.name().to_owned()).collect();
    assert_eq!(names, ["__primary__", "net2"]);
    margo.finalize_and_wait().unwrap();
    assert!(matches!(margo.migrate_progress("net2"), Err(ElasticityError::Closing)));
    assert!(matches!(margo.add_pool(Pool::default()), Err(ElasticityError::Closing)));
}

#[test]
fn private_handlers_keep_progress_where_it_is() {
    let margo = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "__primary__", "access": "private" } ] } }"#,
    )
    .unwrap();
    margo.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    margo.add_pool(pool(r#"{ "name": "net" }"#)).unwrap();
    margo.add_xstream(running(&["net"])).unwrap();
    let error = text(margo.migrate_progress("net"));
    assert!(error.contains("private"), "{error}");
    let target = ProviderHandle::from(margo.self_addr());
    assert_eq!(margo.forward_timed(ECHO, &target, &1, PATIENCE).unwrap(), 1);
    margo.finalize_and_wait().unwrap();
}

/// Finalize does not wait for a move, and a move not for an instance that ends.
#[test]
fn a_move_and_the_end_at_the_same_time() {
    bounded("a move at the end", || {
        for _ in 0..20 {
            let margo = started();
            margo.add_pool(pool(r#"{ "name": "net" }"#)).unwrap();
            margo.add_xstream(running(&["net"])).unwrap();
            let mover = margo.clone();
            let moving = std::thread::spawn(move || {
                for to in ["net", "__pool_1__"].iter().cycle() {
                    if let Err(error) = mover.migrate_progress(*to) {
                        return error;
                    }
                }
                unreachable!("it ends with an error")
            });
            margo.finalize_and_wait().unwrap();
            let error = moving.join().unwrap();
            let closing = matches!(error, ElasticityError::Closing | ElasticityError::Spawn(_));
            assert!(closing, "{error}");
        }
    });
}

/// Handlers that wait in a pool keep it, and its xstream, until they have ended.
#[test]
fn a_pool_with_a_handler_that_waits_is_not_removed() {
    let margo = started();
    let own = margo.add_pool(pool(r#"{ "name": "own" }"#)).unwrap();
    let xstream = margo.add_xstream(running(&["own"])).unwrap();
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
    let removing = std::thread::spawn(move || left.remove_xstream(&xstream));
    go.set(()).unwrap();
    assert_eq!(call.join().unwrap().unwrap(), 9);
    removing.join().unwrap().unwrap();
    margo.remove_pool("own").unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn errors_of_the_machine_are_typed() {
    let margo = started();
    let error = margo.add_pool_from_json(r#"{ "numa_node": 4095 }"#).unwrap_err();
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
            let added = own.add_pool(pool(&format!(r#"{{ "name": "{name}" }}"#))).unwrap();
            let xstream = own.add_xstream(running(&[&name])).unwrap();
            let provider = own.provider(ProviderId::new(id), &added.pool);
            provider.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
            let target = ProviderHandle::new(own.self_addr(), ProviderId::new(id));
            assert_eq!(own.forward_timed(ECHO, &target, &7, PATIENCE).unwrap(), 7);
            assert!(own.remove_pool(&added).is_err());
            drop(provider);
            own.remove_xstream(&xstream).unwrap();
            own.remove_pool(&added).unwrap();
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
                mover.migrate_progress(["__primary__", "__pool_1__"][moves % 2]).unwrap();
                // Whatever is printed at any time is a document that `init` would take.
                margo::Config::from_json(&mover.config().to_json()).unwrap();
                moves += 1;
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        moving.join().unwrap();
        assert_eq!(grown.load(Ordering::Relaxed), 60);
        assert_eq!((margo.pools().len(), margo.xstreams().len()), (3, 6));
        margo.finalize_and_wait().unwrap();
    });
}

#[test]
fn a_child_keeps_its_parents_pools_and_changes_none() {
    let margo = started();
    let spare = margo.add_pool(pool(r#"{ "name": "spare" }"#)).unwrap();
    let child = margo::Instance::builder("na+sm://").parent(&margo).start().unwrap();
    assert!(child.pools().contains(&spare.pool));
    let in_use = margo.remove_pool(&spare).unwrap_err().to_string();
    assert!(in_use.contains("child instance na+sm://"), "{in_use}");
    assert!(matches!(child.add_pool(pool("{}")), Err(ElasticityError::Child)));
    assert!(matches!(child.remove_pool("spare"), Err(ElasticityError::Child)));
    assert!(!child.config().to_json().contains("spare"), "the layout is the parent's");
    child.finalize_and_wait().unwrap();
    margo.remove_pool(&spare).unwrap();
    margo.finalize_and_wait().unwrap();
}
