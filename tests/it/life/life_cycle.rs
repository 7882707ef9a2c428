//! The end of instances: callbacks, the places from which it may be requested, parents and
//! children.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::time::Duration;

use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{
    self, PATIENCE, TRANSPORTS, bounded, builder, on_each, once_free, start_again,
};
use margo::monitor::{LifeEvent, Monitor};
use margo::{
    ForwardError, InitError, Instance, InstanceBuilder, OneWay, ProviderHandle, Rpc,
    SignalFinalizer, errors::ShutdownRemoteError, errors::StageOver, ult,
};
use ult::Eventual;

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const END: Rpc<(), ()> = Rpc::new("end");
const TELL: OneWay<()> = OneWay::new("tell");

fn instance() -> Instance {
    builder("na+sm://").start().unwrap()
}

fn serve_sum(service: &Instance) {
    service
        .register(SUM, |request| {
            let (a, b) = *request.args();
            let _ = request.respond(&(a + b));
        })
        .unwrap();
}

fn end(instance: &Instance) {
    let own = instance.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

#[test]
fn callbacks_run_last_one_first_before_and_after_the_network_closes() {
    on_each(|pair| {
        serve_sum(&pair.service);
        let order = Arc::new(Mutex::new(Vec::new()));
        for index in 0..3 {
            let (order, target) = (order.clone(), pair.target());
            pair.client
                .on_prefinalize(move |own| {
                    let sum = own.forward(SUM, &target, &(index, 1)).unwrap();
                    order.lock().unwrap().push(format!("before {sum}"));
                })
                .unwrap()
                .keep();
        }
        for index in 0..3 {
            let (order, target) = (order.clone(), pair.target());
            pair.client
                .on_finalize(move |own| {
                    let error = own.forward(SUM, &target, &(index, 1)).unwrap_err();
                    assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
                    // ULTs still run, and what can be read can be read.
                    assert_eq!(own.layout().rpc_pool().spawn(|| 1).unwrap().join().unwrap(), 1);
                    assert!(own.monitoring().stats().requests_sent >= 3);
                    order.lock().unwrap().push(format!("after {index}"));
                })
                .unwrap()
                .keep();
        }
        end(&pair.client);
        let order = order.lock().unwrap().clone();
        assert_eq!(order, ["before 3", "before 2", "before 1", "after 2", "after 1", "after 0"]);
        assert_eq!(pair.client.on_prefinalize(|_| ()).unwrap_err(), StageOver);
        assert_eq!(pair.client.on_finalize(|_| ()).unwrap_err(), StageOver);
        pair.service.finalize_and_wait().unwrap();
    });
}

#[test]
fn a_callback_goes_with_its_owner() {
    let own = instance();
    let value = Arc::new(());
    let ran = Arc::new(AtomicUsize::new(0));
    let enter = |bit: usize| {
        let (value, ran) = (value.clone(), ran.clone());
        own.on_finalize(move |_| {
            let _ = &value;
            ran.fetch_add(bit, Ordering::SeqCst);
        })
        .unwrap()
    };
    let (dropped, kept, removed, owned) = (enter(1), enter(2), enter(4), enter(8));
    kept.keep();
    drop(dropped);
    assert!(removed.remove(), "it had not run");
    assert_eq!(Arc::strong_count(&value), 3, "what a removed callback owns is dropped with it");
    end(&own);
    assert_eq!(ran.load(Ordering::SeqCst), 2 + 8);
    assert!(!owned.remove(), "it has run");
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn callbacks_may_enter_callbacks_and_panic() {
    let own = instance();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |text: &'static str| {
        let order = order.clone();
        move |_: &Instance| order.lock().unwrap().push(text)
    };
    own.on_finalize(note("first")).unwrap().keep();
    own.on_finalize(|_| panic!("contained")).unwrap().keep();
    let (inner, late) = (note("entered by a callback"), note("entered before the network closes"));
    own.on_finalize(move |own| own.on_finalize(inner).unwrap().keep()).unwrap().keep();
    own.on_prefinalize(move |own| own.on_finalize(late).unwrap().keep()).unwrap().keep();
    end(&own);
    let order = order.lock().unwrap().clone();
    assert_eq!(order, ["entered before the network closes", "entered by a callback", "first"]);
}

#[test]
fn a_callback_that_does_not_end_holds_up_nobody() {
    let own = builder("na+sm://").grace(Duration::from_millis(500)).start().unwrap();
    let gate = Arc::new(Eventual::new());
    let (opens, ran) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let after = ran.clone();
    own.on_prefinalize(move |_| opens.wait_ready()).unwrap().keep();
    own.on_finalize(move |_| {
        after.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap()
    .keep();
    end(&own);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    gate.set(()).unwrap();
}

#[test]
fn callbacks_run_when_the_last_user_drops_the_instance() {
    let own = instance();
    let (sender, ran) = mpsc::channel();
    own.on_prefinalize(move |own| sender.send(own.is_finalizing()).unwrap()).unwrap().keep();
    drop(own);
    assert!(ran.recv_timeout(PATIENCE).unwrap());
}

#[test]
fn everybody_may_finalize_at_once_and_callbacks_run_once() {
    for round in 0..20 {
        let own = builder("na+sm://").rpc_thread_count(2).start().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let counts = ran.clone();
        own.on_prefinalize(move |_| {
            counts.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap()
        .keep();
        let counts = ran.clone();
        own.on_finalize(move |_| {
            counts.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap()
        .keep();
        // Two handlers that end at the same moment, each asking for the end.
        let meet = Arc::new(Barrier::new(2));
        own.register(END, move |request| {
            meet.wait();
            request.instance().finalize();
            request.respond(&()).unwrap();
        })
        .unwrap();
        let target = ProviderHandle::from(own.self_addr());
        let (own, waiters) = (&own, round % 3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let target = &target;
                scope.spawn(move || own.forward(END, target, &()).unwrap());
            }
            for _ in 0..waiters {
                scope.spawn(|| own.wait_for_finalize().unwrap());
            }
        });
        end(own);
        own.finalize();
        own.finalize_and_wait().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 2, "round {round}");
        assert!(own.is_finalized());
    }
}

#[test]
fn an_instance_is_ended_by_a_ult_of_another_one() {
    let (own, other) = (instance(), instance());
    let ends = own.clone();
    let ult = other.layout().rpc_pool().spawn(move || ends.finalize_and_wait().unwrap()).unwrap();
    bounded("a ULT that ends another instance", move || ult.join().unwrap());
    assert!(own.is_finalized() && !other.is_finalizing());
    end(&other);
}

#[test]
fn the_object_is_usable_after_the_end() {
    each_layout().for_each(is_usable_after_the_end);
}

fn is_usable_after_the_end(own: Instance) {
    let pools = own.layout().pools().len();
    let clone = own.clone();
    assert!(!clone.is_finalized());
    let address = own.self_addr().uri().to_owned();
    end(&own);
    drop(own);
    assert!(clone.is_finalized() && clone.is_finalizing());
    assert_eq!(clone.self_addr().uri(), address);
    assert_eq!(clone.config().margo.address, "na+sm://");
    assert_eq!(clone.monitoring().stats().requests_sent, 0);
    assert_eq!(clone.layout().pools().len(), pools);
    let error = clone.forward(SUM, &ProviderHandle::from(clone.self_addr()), &(1, 1)).unwrap_err();
    assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
}

static ON_SIGNAL: OnceLock<SignalFinalizer> = OnceLock::new();

extern "C" fn on_signal(_signal: libc::c_int) {
    if let Some(stop) = ON_SIGNAL.get() {
        stop.finalize();
        stop.finalize();
    }
}

#[test]
fn an_instance_is_ended_by_a_signal() {
    let own = instance();
    ON_SIGNAL.set(own.signal_finalizer().unwrap()).unwrap();
    let handler = on_signal as extern "C" fn(libc::c_int);
    // SAFETY: the handler writes to a descriptor and reads an initialised static, both of which may
    // be done in a signal handler. No other test uses this signal.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
    // SAFETY: a signal to the calling thread, which handles it before this returns.
    unsafe { libc::raise(libc::SIGUSR2) };
    let waiter = own.clone();
    bounded("an end by signal", move || waiter.wait_for_finalize().unwrap());
    // It outlives the instance, and does nothing then.
    ON_SIGNAL.get().unwrap().finalize();
    own.signal_finalizer().unwrap().finalize();
}

#[test]
fn a_peer_ends_an_instance_if_that_allows_it() {
    on_each(|pair| {
        let target = pair.target();
        let error = pair.client.network().shutdown_remote(target.addr()).unwrap_err();
        assert!(matches!(error, ShutdownRemoteError::NotEnabled { .. }), "{error}");
        assert!(error.to_string().contains("margo.remote_shutdown"), "{error}");
        assert!(!pair.service.is_finalizing());
        pair.service.network().enable_remote_shutdown();
        pair.client.network().shutdown_remote(target.addr()).unwrap();
        let service = pair.service.clone();
        bounded("the end of the peer", move || service.wait_for_finalize().unwrap());
        // Over ofi nobody says that the peer is gone.
        let limit = Duration::from_secs(1);
        let error = pair.client.network().shutdown_remote_timed(target.addr(), limit).unwrap_err();
        assert!(matches!(error, ShutdownRemoteError::Forward(_)), "{error}");
        pair.end();
    });
}

/// Not a test by itself: the service of another process.
#[test]
fn service_process() {
    serve_if_asked(|service| {
        serve_sum(service);
        service.network().enable_remote_shutdown();
        service.on_finalize(|_| println!("callback ran")).unwrap().keep();
    });
}

#[test]
fn a_process_is_ended_by_another_one() {
    for transport in TRANSPORTS {
        bounded("a process that is told to end", move || {
            let mut service = Service::start(module_path!(), transport);
            let client = client_for(&service.address);
            let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
            assert_eq!(client.forward(SUM, &target, &(1, 1)).unwrap(), 2);
            client.network().shutdown_remote(target.addr()).unwrap();
            service.line_after("callback ran");
            assert!(service.wait());
            client.finalize_and_wait().unwrap();
        });
    }
}

#[test]
fn remote_shutdown_is_configured_in_the_document_or_by_the_builder() {
    for (document, on) in [(r"{}", false), (r#"{ "margo": { "remote_shutdown": true } }"#, true)] {
        let service = margo::init(document).unwrap();
        let client = builder("na+sm://").listen(false).start().unwrap();
        let peer = client.lookup(service.self_addr().uri()).unwrap();
        assert_eq!(client.network().shutdown_remote(&peer).is_ok(), on, "{document}");
        assert_eq!(service.config().margo.remote_shutdown, on);
        end(&service);
        end(&client);
    }
    let own = builder("na+sm://").remote_shutdown(true).start().unwrap();
    own.network().shutdown_remote(&own.self_addr()).unwrap();
    end(&own);
}

#[test]
fn a_child_runs_in_the_pools_of_its_parent_over_another_transport() {
    for [transport, other] in [TRANSPORTS, [TRANSPORTS[1], TRANSPORTS[0]]] {
        let parent = builder(transport).rpc_thread_count(1).start().unwrap();
        let child = Instance::builder(other).parent(&parent).start().unwrap();
        assert_eq!(child.layout().rpc_pool(), parent.layout().rpc_pool());
        assert_eq!(child.layout().progress_pool(), parent.layout().progress_pool());
        assert_eq!(child.runtime().xstreams().len(), parent.runtime().xstreams().len());
        for service in [&parent, &child] {
            serve_sum(service);
            let own = service.self_addr().uri().split("://").next().unwrap().to_owned();
            let client = builder(format!("{own}://")).listen(false).start().unwrap();
            let target = client.lookup(service.self_addr().uri()).unwrap().into();
            assert_eq!(client.forward(SUM, &target, &(40, 2)).unwrap(), 42);
            end(&client);
        }
        let received = |own: &Instance| own.monitoring().stats().requests_received;
        assert_eq!((received(&parent), received(&child)), (1, 1));
        // The effective document of a child is one that a child may have.
        let again = InstanceBuilder::from_config(child.config().clone()).parent(&parent);
        let again = again.start().unwrap();
        let without_address = |own: &Instance| {
            let mut config = own.config();
            assert_eq!(config.mercury.address.take().as_deref(), Some(own.self_addr().uri()));
            config
        };
        assert_eq!(without_address(&again), without_address(&child));
        end(&again);
        end(&child);
        assert!(!parent.is_finalizing(), "a child's end is its own");
        let target = ProviderHandle::from(parent.self_addr());
        assert_eq!(parent.forward(SUM, &target, &(1, 1)).unwrap(), 2);
        end(&parent);
    }
}

#[test]
fn a_child_names_pools_of_its_parent() {
    let layout = r#"{ "argobots": {
        "pools": [{ "name": "__primary__" }, { "name": "work" }],
        "xstreams": [
            { "name": "__primary__", "scheduler": { "pools": ["__primary__"] } },
            { "scheduler": { "pools": ["work"] } } ] },
        "rpc_pool": "__primary__" }"#;
    let parent = margo::init(layout).unwrap();
    for pool in [r#""work""#, "1"] {
        let document = format!(r#"{{ "progress_pool": {pool}, "rpc_pool": {pool} }}"#);
        let child = parent.init_child(&document).unwrap();
        assert_eq!(
            (child.layout().rpc_pool().name(), child.layout().progress_pool().name()),
            ("work", "work")
        );
        serve_sum(&child);
        let target = ProviderHandle::from(child.self_addr());
        assert_eq!(child.forward(SUM, &target, &(1, 2)).unwrap(), 3);
        end(&child);
    }
    let error = parent.init_child(r#"{ "rpc_pool": "wrok" }"#).unwrap_err();
    assert!(error.to_string().contains("wrok") && error.to_string().contains("work"), "{error}");
    end(&parent);
}

#[test]
fn a_child_has_no_layout_of_its_own() {
    let parent = instance();
    for (key, document) in [
        ("argobots", r#"{ "argobots": { "pools": [{}] } }"#),
        ("argobots", r#"{ "argobots": { "abt_thread_stacksize": 65536 } }"#),
        ("use_progress_thread", r#"{ "use_progress_thread": true }"#),
        ("rpc_thread_count", r#"{ "rpc_thread_count": -1 }"#),
        ("mercury.max_contexts", r#"{ "mercury": { "max_contexts": 2 } }"#),
        ("margo.shards", r#"{ "margo": { "shards": "auto" } }"#),
    ] {
        for error in [
            parent.init_child(document).unwrap_err(),
            InstanceBuilder::from_config(margo::config::Config::from_json(document).unwrap())
                .parent(&parent)
                .start()
                .unwrap_err(),
        ] {
            let InitError::Config(errors) = &error else { panic!("{error}") };
            assert_eq!(errors.as_slice()[0].path, key);
        }
    }
    end(&parent);
    let error = Instance::builder("na+sm://").parent(&parent).start().unwrap_err();
    assert!(matches!(error, InitError::ParentClosing), "{error}");
}

#[test]
fn children_end_before_their_parent_whoever_asks() {
    let parent = instance();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |instance: &Instance, text: &'static str| {
        let order = order.clone();
        instance.on_prefinalize(move |_| order.lock().unwrap().push(text)).unwrap().keep();
    };
    let child = Instance::builder("na+tcp://127.0.0.1:0").parent(&parent).start().unwrap();
    let grandchild = Instance::builder("na+sm://").parent(&child).start().unwrap();
    note(&grandchild, "grandchild");
    note(&child, "child");
    note(&parent, "parent");
    // From a ULT of the execution streams that all of them share.
    let asks = parent.clone();
    parent
        .layout()
        .rpc_pool()
        .spawn(move || asks.finalize_and_wait().unwrap())
        .unwrap()
        .join()
        .unwrap();
    end(&parent);
    assert!(child.is_finalized() && grandchild.is_finalized());
    assert_eq!(*order.lock().unwrap(), ["grandchild", "child", "parent"]);
}

#[test]
fn a_child_ends_while_its_ult_waits_and_the_parent_goes_on() {
    let parent = instance();
    let child = Instance::builder("na+sm://").parent(&parent).start().unwrap();
    let own = child.clone();
    let ult = parent.layout().rpc_pool().spawn(move || own.finalize_and_wait()).unwrap();
    bounded("a ULT that waits for a child", move || ult.join().unwrap().unwrap());
    assert!(child.is_finalized());
    end(&parent);
}

#[test]
fn a_child_keeps_its_parent_running_and_lets_it_go() {
    let parent = instance();
    let (sender, ended) = mpsc::channel();
    parent.on_finalize(move |_| sender.send(()).unwrap()).unwrap().keep();
    let child = Instance::builder("na+sm://").parent(&parent).start().unwrap();
    serve_sum(&child);
    drop(parent);
    let target = ProviderHandle::from(child.self_addr());
    assert_eq!(child.forward(SUM, &target, &(1, 1)).unwrap(), 2);
    assert!(ended.try_recv().is_err(), "the parent lives");
    end(&child);
    // The child is still there as an object.
    ended.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn an_instance_starts_and_ends_again_and_again() {
    for listen in [true, false] {
        for progress in [false, true] {
            for count in [0, 1, 2, -1] {
                for _ in 0..2 {
                    let own = builder("na+sm://")
                        .listen(listen)
                        .use_progress_thread(progress)
                        .rpc_thread_count(count);
                    end(&own.start().unwrap());
                }
            }
        }
    }
}

/// Progress and handlers on execution streams of their own and not, as C Margo's tests have it.
fn each_layout() -> impl Iterator<Item = Instance> {
    [false, true].into_iter().flat_map(|progress| {
        [0, 1, 2, -1].map(|count| {
            let own = builder("na+sm://").use_progress_thread(progress);
            own.rpc_thread_count(count).start().unwrap()
        })
    })
}

#[test]
fn finalize_waits_for_handlers_that_nobody_waits_for() {
    for (one_way, idle) in [(true, true), (true, false), (false, true), (false, false)] {
        each_layout().for_each(|own| waits_for_a_handler(&own, one_way, idle));
        let runtime = ult::Runtime::builder()
            .pool(ult::PoolSpec::new("all"))
            .xstream(ult::XstreamSpec::new("x").pools(["all"]))
            .start()
            .unwrap();
        for _ in 0..3 {
            let own = Instance::builder("na+sm://").runtime(&runtime).start().unwrap();
            waits_for_a_handler(&own, one_way, idle);
        }
        runtime.shutdown().unwrap();
    }
}

/// Checks that `finalize` waits for a handler of a call to oneself that has no answer, or was
/// answered early. `idle`: the handler has ended before; otherwise it goes on until the end has
/// begun.
fn waits_for_a_handler(own: &Instance, one_way: bool, idle: bool) {
    let (begun, gate) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (begins, opens, ended) = (begun.clone(), gate.clone(), Arc::new(AtomicUsize::new(0)));
    let counts = ended.clone();
    let hold = move || {
        begins.set(()).unwrap();
        opens.wait();
        // Whoever does not wait for it comes first.
        (0..1000).for_each(|_| ult::yield_now());
        counts.fetch_add(1, Ordering::SeqCst);
    };
    let (before, at_the_end) = (ended, Arc::new(OnceLock::new()));
    let tells = at_the_end.clone();
    let note = move |_: &Instance| tells.set(before.load(Ordering::SeqCst)).unwrap();
    own.on_prefinalize(note).unwrap().keep();
    let to = ProviderHandle::from(own.self_addr());
    if one_way {
        let tell = own.serve(TELL).handler(move |request| {
            assert!(!request.wants_response());
            hold();
        });
        tell.unwrap();
        own.send(TELL, &to, &()).unwrap();
    } else {
        let answer = own.register(END, move |request| {
            // For the origin it is over.
            request.respond(&()).unwrap();
            hold();
        });
        answer.unwrap();
        own.forward(END, &to, &()).unwrap();
    }
    begun.wait();
    if idle {
        gate.set(()).unwrap();
        let handled = own.clone();
        bounded("a handler", move || {
            while handled.monitoring().stats().handlers_run == 0 {
                std::thread::yield_now();
            }
        });
    }
    own.finalize();
    assert!(idle || !own.is_finalized());
    let _ = gate.set(());
    end(own);
    assert_eq!(at_the_end.get(), Some(&1));
}

/// A frame of its own, whose name is there without debug information, too.
#[inline(never)]
fn waits_in_a_handler(gate: &Eventual<()>) -> Eventual<()> {
    gate.wait();
    // Not a tail call.
    std::hint::black_box(Eventual::new())
}

#[test]
fn a_state_dump_tells_what_waits_where() {
    let own = builder("na+sm://").rpc_thread_count(1).start().unwrap();
    let (begun, gate) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (begins, opens) = (begun.clone(), gate.clone());
    own.register(END, move |request| {
        let _ = begins.set(());
        drop(waits_in_a_handler(&opens));
        request.respond(&()).unwrap();
    })
    .unwrap();
    let timer = own.timer_with(margo::timers::TimerSpec::new().name("far"), |_| ());
    timer.start(Duration::from_secs(3600)).unwrap();
    let (caller, target) = (own.clone(), ProviderHandle::from(own.self_addr()));
    let call = std::thread::spawn(move || caller.forward(END, &target, &()));
    begun.wait();
    // The handler suspends soon after it has said that it runs.
    let dump = loop {
        let dump = own.monitoring().state_dump();
        if dump.ults.iter().any(|ult| ult.name.as_deref() == Some("end")) {
            break dump;
        }
    };
    assert_eq!(
        (dump.metrics.phase, dump.metrics.handlers_running),
        (margo::metrics::Phase::Running, 1)
    );
    assert_eq!(dump.metrics.address, own.self_addr().to_string());
    let handler = dump.ults.iter().find(|ult| ult.name.as_deref() == Some("end")).unwrap();
    assert_eq!(handler.pool, own.layout().rpc_pool().name());
    assert!(handler.state.contains("eventual"), "{}", handler.state);
    assert!(handler.stack.is_empty());
    assert!(dump.ults.iter().any(|ult| ult.name.as_deref() == Some("margo progress")));
    let pool =
        dump.metrics.pools.iter().find(|pool| pool.name == own.layout().rpc_pool().name()).unwrap();
    assert!(pool.alive >= 1 && pool.xstreams.len() == 1, "{pool:?}");
    let shards = &dump.metrics.shards;
    assert_eq!(shards.len(), common::shards() as usize);
    assert!(shards.iter().any(|shard| shard.in_flight >= 1), "{shards:?}");
    assert!(shards.iter().all(|shard| shard.receives_posted > 0), "{shards:?}");
    let far = &dump.timers[0];
    assert!(far.name == "far" && far.due_in_msec.unwrap() > 3_000_000 && !far.is_running);
    // As text it is JSON, with the configuration in it.
    let json: serde_json::Value = serde_json::from_str(&dump.to_string()).unwrap();
    assert_eq!(json["xstreams"].as_array().unwrap().len(), dump.metrics.xstreams.len());
    assert_eq!(json["config"]["margo"]["address"], "na+sm://");

    let dump = own.monitoring().state_dump_with_stacks();
    let handler = dump.ults.iter().find(|ult| ult.name.as_deref() == Some("end")).unwrap();
    let is_ours = |frame: &String| frame.contains("waits_in_a_handler");
    assert!(handler.stack.iter().any(is_ours), "{:#?}", handler.stack);
    // From a ULT of its own.
    let asks = own.clone();
    let dump = own
        .layout()
        .rpc_pool()
        .spawn(move || asks.monitoring().state_dump())
        .unwrap()
        .join()
        .unwrap();
    assert!(!dump.metrics.pools.is_empty());
    gate.set(()).unwrap();
    call.join().unwrap().unwrap();
    end(&own);
    assert_eq!(own.monitoring().state_dump().metrics.phase, margo::metrics::Phase::Finalized);
}

#[test]
fn a_handler_that_holds_its_execution_stream_is_noticed() {
    let own = margo::init(r#"{ "margo": { "stall_limit_msec": 10 } }"#).unwrap();
    let watches = own.clone();
    own.register(END, move |request| {
        // Waits in a way that no other ULT can use.
        let before = watches.monitoring().stats().stalls;
        while watches.monitoring().stats().stalls == before {
            std::thread::yield_now();
        }
        request.respond(&()).unwrap();
    })
    .unwrap();
    let (caller, target) = (own.clone(), ProviderHandle::from(own.self_addr()));
    bounded("the stall detector", move || caller.forward(END, &target, &()).unwrap());
    end(&own);
}

/// To the stall detector, which looks at counters of switches, polling is no stall.
#[test]
fn progress_that_polls_all_the_time_switches_now_and_then() {
    let document = r#"{ "mercury": { "na_no_block": true }, "use_progress_thread": true }"#;
    let own = margo::init(document).unwrap();
    let served = own.layout().progress_pool().xstreams();
    let xstream = own.runtime().xstream(&served[0]).unwrap();
    let before = xstream.stats().executed;
    bounded("a poll without a switch", move || {
        while xstream.stats().executed < before + 3 {
            std::thread::yield_now();
        }
    });
    end(&own);
}

#[test]
fn destructors_that_panic_do_not_stop_the_end() {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let own = instance();
    let (in_timer, in_handler, in_callback) = (Loud, Loud, Loud);
    let timer = own.timer(move |_| {
        let _ = &in_timer;
    });
    timer.start(Duration::from_secs(3600)).unwrap();
    own.on_prefinalize(move |_| drop(in_callback)).unwrap().keep();
    own.register(END, move |_| {
        let _ = &in_handler;
    })
    .unwrap();
    end(&own);
    assert!(own.is_finalized());
}

/// Whatever waits in the first pool of an execution stream is run, although the second one has
/// progress and handlers, which look for work all the time.
#[test]
fn progress_in_the_second_pool_of_an_execution_stream_holds_up_nobody() {
    let layout = r#"{ "argobots": {
        "pools": [{ "name": "__primary__" }, { "name": "second" }],
        "xstreams": [{ "name": "__primary__",
                       "scheduler": { "type": "basic_wait", "pools": [0, "second"] } }] },
        "progress_pool": "second", "rpc_pool": "second" }"#;
    let own = margo::init(layout).unwrap();
    serve_sum(&own);
    let (first, caller) = (own.layout().pool("__primary__").unwrap(), own.clone());
    bounded("a join in the first pool", move || {
        for round in 0..100 {
            let target = ProviderHandle::from(caller.self_addr());
            let calls = caller.clone();
            let ult = first.spawn(move || calls.forward(SUM, &target, &(round, 1)).unwrap());
            assert_eq!(ult.unwrap().join().unwrap(), round + 1);
            assert_eq!(first.spawn(move || round).unwrap().join().unwrap(), round);
        }
    });
    end(&own);
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing_behind() {
    for address in ["cxi", "cxi://", "na+nothing://", "na+tcp://no such host:1", "na+tcp://:99999"]
    {
        let error = builder(address).start().unwrap_err();
        assert!(!matches!(error, InitError::Progress(_)), "{address}: {error}");
        let parent = instance();
        let error = Instance::builder(address).parent(&parent).start().unwrap_err();
        assert!(!matches!(error, InitError::ParentClosing), "{address}: {error}");
        // The parent does not suffer from a child that could not be.
        assert_eq!(parent.layout().rpc_pool().spawn(|| 1).unwrap().join().unwrap(), 1);
        end(&parent);
    }
}

#[test]
fn the_address_file_is_there_while_the_instance_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("address");
    let start = |path: &std::path::Path, listen: bool| {
        let path = path.to_str().unwrap();
        margo::init(
            &serde_json::json!({"margo": {"address_file": path, "listen": listen}}).to_string(),
        )
    };
    let own = start(&path, true).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", own.self_addr().uri()));
    // A callback sees it gone: whoever looks for the service now must not find it.
    let (file, there) = (path.clone(), Arc::new(OnceLock::new()));
    let tell = there.clone();
    own.on_prefinalize(move |_| tell.set(file.exists()).unwrap()).unwrap().keep();
    end(&own);
    assert_eq!(there.get(), Some(&false));

    let client = start(&path, false).unwrap();
    assert!(!path.exists(), "nobody can call it");
    end(&client);

    let nowhere = dir.path().join("missing/address");
    let error = start(&nowhere, true).unwrap_err();
    assert!(matches!(error, InitError::AddressFile { .. }), "{error}");
    assert!(error.to_string().contains(nowhere.to_str().unwrap()), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left over");
}

/// Notes the end of an instance.
#[derive(Default)]
struct Ended(AtomicUsize);

impl Monitor for Ended {
    fn on_event(&self, event: &LifeEvent<'_>) {
        if matches!(event, LifeEvent::Finalized) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_start_that_fails_late_has_given_everything_back() {
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let dir = tempfile::tempdir().unwrap();
    let later = dir.path().join("later");
    let margo = serde_json::json!({
        "address": format!("na+tcp://{}", free()),
        "metrics": { "listen": free() },
        "address_file": later.join("address"),
    });
    let document = serde_json::json!({ "margo": margo }).to_string();
    let config = margo::config::Config::from_json(&document).unwrap();
    let (error, ended) = bounded("init", move || {
        let last = RefCell::<Arc<Ended>>::default();
        let started = once_free(|| {
            last.take();
            InstanceBuilder::from_config(config.clone()).monitor(last.borrow().clone()).start()
        });
        (started.unwrap_err(), last.take())
    });
    assert!(matches!(error, InitError::AddressFile { .. }), "{error}");
    assert_eq!(ended.0.load(Ordering::SeqCst), 1, "it has not ended");
    std::fs::create_dir(later).unwrap();
    end(&start_again(|| margo::init(&document)));
}
