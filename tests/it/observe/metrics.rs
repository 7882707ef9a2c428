//! An instance as others see it: the snapshot, the server for Prometheus, the RPC.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::metrics_support::{self, ask, parse, scrape, value};
use crate::common::{PATIENCE, Pair, TRANSPORTS, bounded, on_each};
use margo::{
    Instance, InstanceBuilder, ProviderHandle, ProviderId, Rpc, errors::MetricsError,
    metrics::GateKind, metrics::Phase,
};
use ult::Eventual;
use ult::topology::{CpuSet, current_binding};

const WAIT: Rpc<(), ()> = Rpc::new("wait");
const ECHO: Rpc<u32, u32> = Rpc::new("echo");

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not seen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_snapshot_shows_who_waits_for_whom() {
    on_each(|pair| {
        let (begun, gate) = (Arc::new(ult::Semaphore::new(0)), Arc::new(Eventual::new()));
        let (begins, opens) = (begun.clone(), gate.clone());
        let provider = pair.service.provider(ProviderId::new(7), &pair.service.layout().rpc_pool());
        let bounds = margo::config::Admission::new(5);
        provider
            .serve(WAIT)
            .admission(bounds)
            .handler(move |request| {
                begins.release(1);
                opens.wait();
                let _ = request.respond(&());
            })
            .unwrap();
        let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(7));
        let before = pair.client.metrics();
        assert_eq!((before.phase, before.peers.calls_in_flight), (Phase::Running, 0));
        let calls: Vec<_> =
            (0..3).map(|_| pair.client.rpc(WAIT, &target, &()).start().unwrap()).collect();
        begun.acquire(3).forget();

        // The origin: to whom, and since when.
        let seen = until("an age", || {
            let seen = pair.client.metrics();
            let age = seen.peers.oldest_call_sec?;
            (age > 0.0).then_some(seen)
        });
        let peer = &seen.peers.list[0];
        assert_eq!(peer.address, pair.service.self_addr().uri());
        assert_eq!((peer.calls_in_flight, peer.link.as_str()), (3, "connected"));
        assert_eq!(seen.peers.oldest_call_sec, peer.oldest_call_sec);
        assert!(peer.oldest_call_sec.unwrap() < PATIENCE.as_secs_f64());
        // Libraries of fabrics do not tell.
        if peer.address.starts_with("na+") {
            assert!(peer.sent_bytes.unwrap() > 0);
            // A request each, and no answer yet.
            let messages = (peer.sent_messages, peer.received_messages);
            assert_eq!(messages, (Some(3), Some(0)), "{peer:?}");
        }
        assert_eq!(seen.network.requests_sent, before.network.requests_sent + 3);
        assert_eq!(seen.shards[0].in_flight, 3);

        // The target: handlers that are suspended, in a pool and behind two gates.
        let seen = until("three that are blocked", || {
            let seen = pair.service.metrics();
            let pool = seen.pools.iter().find(|pool| pool.name == "__primary__")?;
            (pool.blocked >= 3).then_some(seen)
        });
        assert_eq!(seen.handlers_running, 3);
        let pool = &seen.pools[0];
        assert!(pool.alive >= 3 && pool.kind == "fifo_wait", "{pool:?}");
        let gate_of = |kind| seen.gates.iter().find(|gate| gate.kind == kind).unwrap();
        assert_eq!(gate_of(GateKind::Pool).in_hand, 3);
        let own = gate_of(GateKind::Rpc);
        assert_eq!((own.name.as_str(), own.provider, own.in_hand), ("wait", Some(7), 3));
        assert_eq!(own.handlers_max, 5);
        assert_eq!(seen.peers.connected().values().sum::<usize>(), 1, "{:?}", seen.peers);
        let peer = &seen.peers.list[0];
        assert_eq!(peer.calls_in_flight, 0, "it has none of its own");
        let who = peer.principal.as_ref().expect("it has called");
        let expected = if peer.transport == "sm" { "user " } else { "host 127.0.0.1" };
        assert!(who.starts_with(expected), "{peer:?}");
        assert!(seen.memory.stacks >= 3 && seen.memory.regions < 1000);
        assert_eq!(seen.process.id, std::process::id());

        gate.set(()).unwrap();
        margo::wait_all(calls).into_iter().for_each(|end| end.unwrap());
        let after = pair.client.metrics();
        assert_eq!((after.peers.calls_in_flight, after.peers.oldest_call_sec), (0, None));
        assert!(after.shards[0].events > before.shards[0].events);
        drop(provider);
        let service = pair.service.clone();
        pair.end();
        assert_eq!(service.metrics().phase, Phase::Finalized);
    });
}

/// A custom pool whose `len` hangs while the gate is closed, on any thread that is no execution
/// stream.
struct Hangs {
    units: Mutex<VecDeque<ult::Unit>>,
    /// Gets the processors of the thread that asks.
    asked: Arc<Eventual<CpuSet>>,
    gate: Arc<Eventual<()>>,
}

impl ult::Pool for Hangs {
    fn push(&self, unit: ult::Unit, _: ult::PushReason) {
        self.units.lock().unwrap().push_back(unit);
    }

    fn pop(&self, _: ult::PopBy) -> Option<ult::Unit> {
        self.units.lock().unwrap().pop_front()
    }

    fn len(&self) -> usize {
        if std::thread::current().name().is_some_and(|name| name.starts_with("margo-metrics")) {
            let _ = self.asked.set(current_binding().unwrap());
            self.gate.wait();
        }
        self.units.lock().unwrap().len()
    }
}

/// The eventuals of a [`Hangs`].
type AskedAndGate = (Arc<Eventual<CpuSet>>, Arc<Eventual<()>>);

/// An instance whose pool `hangs` is of [`Hangs`].
fn with_pool_that_hangs(instance: InstanceBuilder) -> (Instance, ult::Runtime, AskedAndGate) {
    let (asked, gate) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let pool = Hangs { units: Mutex::default(), asked: asked.clone(), gate: gate.clone() };
    let first = current_binding().unwrap().first().unwrap();
    let runtime = ult::Runtime::builder()
        .pool(ult::PoolSpec::new("net"))
        .pool(ult::PoolSpec::custom("hangs", Box::new(pool)))
        .xstream(ult::XstreamSpec::new("x").pools(["net", "hangs"]).cpubind(first))
        .start()
        .unwrap();
    let instance = instance.runtime(&runtime).progress_pool("net").rpc_pool("net");
    (instance.start().unwrap(), runtime, (asked, gate))
}

#[test]
fn the_end_does_not_wait_for_a_pool_that_does_not_answer_the_metrics_server() {
    let builder = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0");
    let grace = Duration::from_millis(20);
    let (instance, runtime, (asked, gate)) = with_pool_that_hangs(builder.grace(grace));
    let address = instance.monitoring().metrics_addr().unwrap();
    let scraper = std::thread::spawn(move || ask(address, b"GET /metrics HTTP/1.1\r\n\r\n"));
    until("a scrape", || asked.is_ready().then_some(()));
    let ends = instance.clone();
    bounded("the end", move || ends.finalize_and_wait().unwrap());
    assert_eq!(instance.monitoring().metrics_addr(), None);
    gate.set(()).unwrap();
    // Whatever it is told.
    let _ = scraper.join().unwrap();
    until("the port is free", || TcpListener::bind(address).ok());
    runtime.shutdown().unwrap();
}

#[test]
fn who_looks_from_afar_does_not_hold_up_progress() {
    let builder = Instance::builder("na+sm://").remote_metrics(true);
    let (service, runtime, (asked, gate)) = with_pool_that_hangs(builder);
    service.serve(ECHO).function(|value| value).unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = client.lookup(service.self_addr().uri()).unwrap();
    let look = || {
        let (client, target) = (client.clone(), target.clone());
        std::thread::spawn(move || client.network().metrics_of(&target).unwrap())
    };
    let first = look();
    let cpus = until("a thread that takes a snapshot", || asked.try_get().cloned());
    assert_eq!(cpus, current_binding().unwrap(), "it shares the processor of progress");
    let second = look();
    // In the same pool as theirs.
    let provider = ProviderHandle::from(target.clone());
    assert_eq!(client.forward_timed(ECHO, &provider, &7, PATIENCE).unwrap(), 7);
    gate.set(()).unwrap();
    for looks in [first, second] {
        let seen = bounded("a snapshot", move || looks.join().unwrap());
        assert!(seen.pools.iter().any(|pool| pool.name == "hangs"));
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
    runtime.shutdown().unwrap();
}

/// The progress rests, is woken and steps aside, all of which are waits that end.
#[test]
fn progress_that_goes_on_is_not_blocked() {
    let pair = Pair::new("na+sm://");
    pair.service
        .register(ECHO, |request| {
            let value = *request.args();
            let _ = request.respond(&value);
        })
        .unwrap();
    let target = pair.target();
    for own in [&pair.service, &pair.client] {
        let pool = own.layout().progress_pool();
        for number in 0..50 {
            assert_eq!(pair.client.forward(ECHO, &target, &number).unwrap(), number);
            // Seen by a unit of the pool, while nothing else of its execution stream runs.
            let looked = pool.clone();
            let stats = pool.spawn(move || looked.stats()).unwrap().join().unwrap();
            assert!(stats.blocked() < stats.alive(), "{stats:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(pool.stats().run_at_once > 0, "it never rested");
    }
    pair.end();
}

/// A client that makes no progress fetches nothing.
#[test]
fn results_that_nobody_fetches_are_shown_in_every_way() {
    const LONG: Rpc<(), Vec<u8>> = Rpc::new("long");
    for transport in TRANSPORTS {
        let json = format!(
            r#"{{ "margo": {{ "address": "{transport}", "metrics": {{ "remote": true }} }} }}"#
        );
        let service = margo::init(&json).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = || Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let (lazy, looks) = (client(), client());
        let (enter, entered) = std::sync::mpsc::channel();
        let go = Arc::new(Eventual::new());
        let goes = go.clone();
        service
            .serve(LONG)
            .function(move |()| {
                enter.send(()).unwrap();
                goes.wait();
                vec![7; 1_000_000]
            })
            .unwrap();
        let whom = |from: &Instance| from.lookup(service.self_addr().uri()).unwrap();
        let call = lazy.rpc(LONG, &ProviderHandle::from(whom(&lazy)), &()).start().unwrap();
        entered.recv_timeout(PATIENCE).unwrap();
        // Its only execution stream.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (holds, held) = std::sync::mpsc::channel();
        let stuck = lazy.layout().rpc_pool().spawn(move || {
            holds.send(()).unwrap();
            let _ = stopped.recv();
        });
        held.recv_timeout(PATIENCE).unwrap();
        assert_eq!(service.metrics().memory.result_bytes_kept, 0);
        go.set(()).unwrap();
        let kept = until("what is kept", || {
            Some(service.metrics().memory.result_bytes_kept).filter(|kept| *kept > 0)
        });
        assert!((1_000_000..1_001_000).contains(&kept), "{kept}");
        let families = parse(&service.metrics().prometheus());
        assert_eq!(value(&families, "margo_memory_result_bytes_kept", &[]), kept as f64);
        assert_eq!(service.monitoring().state_dump().metrics.memory.result_bytes_kept, kept);
        let told = looks.network().metrics_of(&whom(&looks)).unwrap().memory;
        // The answer itself may be such a result.
        assert!(told.result_bytes_kept >= kept, "{told:?}");
        drop(stop);
        stuck.unwrap().join().unwrap();
        assert_eq!(call.wait().unwrap().len(), 1_000_000);
        until("nothing is kept", || {
            (service.metrics().memory.result_bytes_kept == 0).then_some(())
        });
        for own in [&lazy, &looks, &service] {
            own.finalize_and_wait().unwrap();
        }
    }
}

#[test]
fn a_call_grows_older() {
    let pair = Pair::new("na+sm://");
    let gate = Arc::new(Eventual::new());
    let opens = gate.clone();
    pair.service
        .register(WAIT, move |request| {
            opens.wait();
            let _ = request.respond(&());
        })
        .unwrap();
    let started = Instant::now();
    let call = pair.client.rpc(WAIT, &pair.target(), &()).start().unwrap();
    let mut last = 0.0;
    for _ in 0..3 {
        let grown = until("a higher age", || {
            let age = pair.client.metrics().peers.oldest_call_sec?;
            (age > last + 0.1).then_some(age)
        });
        assert!(grown <= started.elapsed().as_secs_f64(), "older than it is");
        last = grown;
    }
    gate.set(()).unwrap();
    call.wait().unwrap();
    pair.end();
}

#[test]
fn a_unit_that_waits_for_its_turn_grows_older() {
    let own = Instance::builder("na+sm://").rpc_thread_count(1).start().unwrap();
    let pool = own.layout().rpc_pool();
    let (held, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (holds, opens) = (held.clone(), gate.clone());
    let holder = pool.spawn(move || {
        holds.store(true, Ordering::Release);
        // Not for other ULTs.
        while !opens.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    until("the execution stream is held", || held.load(Ordering::Acquire).then_some(()));
    let of = |metrics: &margo::Metrics| {
        let mut pools = metrics.pools.iter();
        pools.find(|one| one.name == pool.name()).unwrap().oldest_wait_sec
    };
    assert_eq!(of(&own.metrics()), None, "nobody waits");
    let started = Instant::now();
    let waits = pool.spawn(|| ()).unwrap();
    let mut last = 0.0;
    for _ in 0..3 {
        let grown = until("a higher age", || of(&own.metrics()).filter(|age| *age > last + 0.1));
        assert!(grown <= started.elapsed().as_secs_f64(), "older than it is");
        last = grown;
    }
    // The dump of the state has it, too, and Prometheus. Old notes thin out.
    assert!(of(&own.monitoring().state_dump().metrics).unwrap() >= last / 2.0);
    let families = parse(&own.metrics().prometheus());
    let labels = [("pool", pool.name())];
    assert!(value(&families, "margo_pool_oldest_wait_seconds", &labels) >= last / 2.0);
    gate.store(true, Ordering::Release);
    holder.unwrap().join().unwrap();
    waits.join().unwrap();
    assert_eq!(of(&own.metrics()), None);
    own.finalize_and_wait().unwrap();
}

#[test]
fn time_asleep_is_counted_and_never_goes_back() {
    let own = Instance::builder("na+sm://").start().unwrap();
    let mut last = own.metrics();
    for _ in 0..5 {
        let now = until("sleep", || {
            let now = own.metrics();
            (now.xstreams[0].slept_sec > last.xstreams[0].slept_sec + 0.02).then_some(now)
        });
        assert!(now.xstreams[0].slept_sec <= now.uptime_sec + 1.0, "{now:?}");
        assert!(now.xstreams[0].sleeps >= last.xstreams[0].sleeps);
        last = now;
    }
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_snapshot_is_read_back_from_json_of_this_and_of_other_versions() {
    let own = Instance::builder("na+sm://").start().unwrap();
    let seen = own.metrics();
    let text = serde_json::to_string(&seen).unwrap();
    let read: margo::Metrics = serde_json::from_str(&text).unwrap();
    assert_eq!((&read.pools, &read.gates, &read.memory), (&seen.pools, &seen.gates, &seen.memory));
    assert_eq!((&read.stats, &read.network), (&seen.stats, &seen.network));
    assert_eq!((&read.address, read.phase), (&seen.address, seen.phase));
    // The last digit of a fraction may be another one.
    assert!((read.uptime_sec - seen.uptime_sec).abs() < 1e-9);
    let slept = |metrics: &margo::Metrics| metrics.xstreams[0].slept_sec;
    assert!((slept(&read) - slept(&seen)).abs() < 1e-9);
    let other = r#"{ "version": "9.9", "of_the_future": [1], "pools": [ { "name": "x" } ] }"#;
    let read: margo::Metrics = serde_json::from_str(other).unwrap();
    assert_eq!((read.version.as_str(), read.pools[0].name.as_str()), ("9.9", "x"));
    own.finalize_and_wait().unwrap();
}

#[test]
fn prometheus_reads_what_happened() {
    let own = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    own.register(ECHO, |request| {
        let value = *request.args();
        let _ = request.respond(&value);
    })
    .unwrap();
    let pool = own
        .memory()
        .bulk_pool(&margo::bulk_memory::BulkPoolSpec::geometric(2, 3, 4096, 4))
        .unwrap();
    let _buffer = pool.get(5000).unwrap();
    let address = own.monitoring().metrics_addr().unwrap();
    assert_ne!(address.port(), 0);
    let before = scrape(address);
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(own.self_addr().uri()).unwrap());
    for number in 0..10 {
        assert_eq!(client.forward(ECHO, &target, &number).unwrap(), number);
    }
    const NONE: Rpc<(), ()> = Rpc::new("no such RPC");
    let error = client.forward(NONE, &target, &()).unwrap_err();
    assert!(matches!(error, margo::ForwardError::NotRegistered { .. }));
    let after = scrape(address);
    let grown = |name: &str, labels: &[(&str, &str)]| {
        value(&after, name, labels) - value(&before, name, labels)
    };
    assert_eq!(grown("margo_requests_total", &[("direction", "received")]), 11.0);
    assert_eq!(grown("margo_requests_refused_total", &[("reason", "not_registered")]), 1.0);
    assert!(grown("margo_handlers_total", &[]) >= 9.0, "the last one may not have ended");
    assert!(grown("margo_pool_created_total", &[("pool", "__primary__")]) >= 10.0);
    assert!(grown("margo_progress_events_total", &[("shard", "0")]) >= 10.0);
    assert_eq!(value(&after, "margo_peers", &[("link", "connected")]), 1.0);
    let free = |bytes: &str| value(&after, "margo_bulk_pool_free", &[("bytes", bytes)]);
    assert_eq!((free("4096"), free("16384")), (3.0, 2.0));
    let states = after["margo_xstream_state"].samples.values().sum::<f64>();
    assert_eq!(states, own.metrics().xstreams.len() as f64, "one state each");
    assert!(value(&after, "process_resident_memory_bytes", &[]) > 1e6);
    // The same as text, without a server.
    let names: Vec<_> = parse(&own.metrics().prometheus()).into_keys().collect();
    assert_eq!(names, after.keys().cloned().collect::<Vec<_>>());
    // A closed pool has no buffers any more, whoever has a clone.
    pool.close();
    let pools = own.metrics().memory.bulk_pools;
    assert!(pools.is_empty(), "{pools:?}");
    client.finalize_and_wait().unwrap();
    own.finalize_and_wait().unwrap();
    assert_eq!(own.monitoring().metrics_addr(), None);
    // Another process may have had it in between.
    drop(until("the port is free again", || TcpListener::bind(address).ok()));
}

#[test]
fn the_manual_has_every_family() {
    let own = Instance::builder("na+sm://").start().unwrap();
    let _pool = own
        .memory()
        .bulk_pool(&margo::bulk_memory::BulkPoolSpec::geometric(1, 1, 4096, 1))
        .unwrap();
    own.monitoring().start_statistics(1);
    own.register(ECHO, |request| {
        let value = *request.args();
        let _ = request.respond(&value);
    })
    .unwrap();
    own.forward(ECHO, &ProviderHandle::from(own.self_addr()), &1).unwrap();
    let _peer = own.lookup("na+sm://somebody").unwrap();
    let manual = include_str!("../../../docs/metrics.md");
    let mut metrics = own.metrics();
    metrics.certificate_expires_unix_sec = Some(1_796_000_000);
    metrics.memory.device_staged_bytes = 1;
    let families = parse(&metrics.prometheus());
    let missing: Vec<_> =
        families.keys().filter(|name| !manual.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/metrics.md lacks {missing:?}");
    let listed = manual.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed = listed.filter(|name| name.starts_with("margo_") || name.starts_with("process_"));
    for name in listed {
        assert!(families.contains_key(name), "docs/metrics.md has `{name}`, which there is not");
    }
    own.finalize_and_wait().unwrap();
}

#[test]
fn statistics_are_told_by_rpc_while_they_are_on() {
    on_each(|pair| {
        pair.service
            .register(ECHO, |request| {
                let value = *request.args();
                assert_ne!(value, 3, "on purpose");
                let _ = request.respond(&value);
            })
            .unwrap();
        let target = pair.target();
        pair.client.forward(ECHO, &target, &0).unwrap();
        assert_eq!(pair.service.metrics().rpcs, [], "they are off");
        pair.service.monitoring().start_statistics(1);
        pair.client.monitoring().start_statistics(1);
        for value in 0..5 {
            assert_eq!(pair.client.forward(ECHO, &target, &value).is_ok(), value != 3);
        }
        // The last one is counted when its answer is gone.
        let served = until("the last one", || {
            let seen = pair.service.metrics();
            let own = seen.rpcs.iter().find(|rpc| rpc.name == "echo")?;
            (own.in_flight == 0 && own.phases["total"].count == 5).then_some(seen)
        });
        let families = parse(&served.prometheus());
        let echo = ("rpc", "echo");
        let handled = |outcome| value(&families, "margo_rpc_handled_total", &[echo, outcome]);
        assert_eq!(handled(("outcome", "ok")), 4.0);
        assert_eq!(handled(("outcome", "panicked")), 1.0);
        let of_run = |part: &str, le: &[(&str, &str)]| {
            let labels = [&[echo, ("phase", "run"), ("", part)], le].concat();
            value(&families, "margo_rpc_duration_seconds", &labels)
        };
        let all = of_run("margo_rpc_duration_seconds_bucket", &[("le", "+Inf")]);
        assert_eq!(all, of_run("margo_rpc_duration_seconds_count", &[]));
        assert!(of_run("margo_rpc_duration_seconds_sum", &[]) > 0.0 && all >= 4.0);
        let called = parse(&pair.client.metrics().prometheus());
        assert_eq!(value(&called, "margo_rpc_calls_total", &[echo, ("outcome", "ok")]), 4.0);
        assert_eq!(value(&called, "margo_rpc_in_flight", &[echo]), 0.0);
        pair.end();
    });
}

#[test]
fn scrapes_are_answered_while_every_execution_stream_is_held() {
    let own = Instance::builder("na+sm://")
        .rpc_thread_count(2)
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    let address = own.monitoring().metrics_addr().unwrap();
    let free = Arc::new(AtomicBool::new(false));
    let held = Arc::new(ult::Semaphore::new(0));
    let pools = [own.layout().progress_pool(), own.layout().rpc_pool(), own.layout().rpc_pool()];
    let units: Vec<_> = pools
        .iter()
        .map(|pool| {
            let (free, held) = (free.clone(), held.clone());
            pool.spawn(move || {
                held.release(1);
                while !free.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .unwrap()
        })
        .collect();
    held.acquire(3).forget();
    for _ in 0..3 {
        let seen = scrape(address);
        let is_running = |name: &str| {
            value(&seen, "margo_xstream_state", &[("xstream", name), ("state", "running")])
        };
        let names: Vec<_> = own.metrics().xstreams.into_iter().map(|one| one.name).collect();
        assert!(names.iter().all(|name| is_running(name) == 1.0), "{names:?}");
    }
    free.store(true, Ordering::Relaxed);
    units.into_iter().for_each(|unit| unit.join().unwrap());
    own.finalize_and_wait().unwrap();
}

#[test]
fn scrapes_do_not_disturb_calls() {
    let own = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    own.register(ECHO, |request| {
        let value = *request.args();
        let _ = request.respond(&value);
    })
    .unwrap();
    let address = own.monitoring().metrics_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (caller, ends) = (own.clone(), over.clone());
    let calls = std::thread::spawn(move || {
        let target = ProviderHandle::from(caller.self_addr());
        let mut made = 0u32;
        while !ends.load(Ordering::Relaxed) {
            assert_eq!(caller.forward(ECHO, &target, &made).unwrap(), made);
            made += 1;
        }
        made
    });
    let mut last = 0.0;
    for _ in 0..50 {
        let handlers = value(&scrape(address), "margo_handlers_total", &[]);
        assert!(handlers >= last, "a counter went back");
        last = handlers;
    }
    over.store(true, Ordering::Relaxed);
    assert!(calls.join().unwrap() > 0);
    own.finalize_and_wait().unwrap();
}

// Slow: the server gives a client that says nothing five seconds.
#[test]
fn garbage_gets_an_error_and_a_slow_client_holds_up_nobody() {
    let own = Instance::builder("na+sm://").metrics_listen("[::1]:0").start();
    // A machine may have no IPv6.
    let own = own.unwrap_or_else(|_| {
        Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap()
    });
    let address = own.monitoring().metrics_addr().unwrap();
    let status = |request: &[u8]| {
        let answer = ask(address, request).unwrap();
        answer.split(' ').nth(1).map(str::to_owned).unwrap_or_default()
    };
    assert_eq!(status(b"GET /other HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status(b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "405");
    assert_eq!(status(b"\0\0\0\0"), "400");
    assert_eq!(status(b"GET /metrics\r\n\r\n"), "400");
    let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
    long.resize(64 << 10, b'x');
    // It may be told before it has sent everything.
    if let Ok(answer) = ask(address, &long) {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    // One that asks letter by letter, one that never reads, one that leaves at once.
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET /met").unwrap();
    let mut deaf = TcpStream::connect(address).unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut gone = TcpStream::connect(address).unwrap();
    gone.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    gone.shutdown(Shutdown::Both).unwrap();
    drop(gone);
    scrape(address);
    slow.write_all(b"rics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    drop(deaf);
    // One that says nothing is sent away.
    let mut silent = TcpStream::connect(address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_thousand_connections_do_not_keep_a_scrape_out() {
    let own = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    let address = own.monitoring().metrics_addr().unwrap();
    let fds = own.metrics().process.open_fds.unwrap();
    // A thousand, unless this process may have few descriptors.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let connections = limit.map_or(1000, |limit| 1000.min(limit / 4));
    let mut crowd = Vec::new();
    for number in 0..connections {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET ");
        }
        // The kernel's queue of those who wait to be let in must not overflow.
        if number % 50 == 0 {
            scrape(address);
        }
        crowd.push(stream);
    }
    let seen = scrape(address);
    // Ours and theirs; the server keeps a few of the crowd, and other tests have some.
    let open = value(&seen, "process_open_fds", &[]);
    assert!(open < (fds + connections + 500) as f64, "{open} descriptors");
    drop(crowd);
    bounded("the end", move || own.finalize_and_wait().unwrap());
}

#[test]
fn a_port_that_cannot_be_had_is_an_error_that_names_the_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    for listen in [listen.as_str(), "192.0.2.1:9100", "no-such-host.invalid:9100"] {
        let error = Instance::builder("na+sm://").metrics_listen(listen).start().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("margo.metrics.listen: ") && text.contains(listen), "{text}");
    }
    let error = Instance::builder("na+sm://").metrics_listen("nonsense").start().unwrap_err();
    assert!(error.to_string().contains("margo.metrics.listen"), "{error}");
}

#[test]
fn a_peer_may_read_the_metrics_only_if_that_was_allowed() {
    on_each(|pair| {
        let target = pair.client.lookup(pair.service.self_addr().uri()).unwrap();
        let error = pair.client.network().metrics_of(&target).unwrap_err();
        assert!(matches!(error, MetricsError::NotEnabled { .. }));
        assert!(error.to_string().contains("`margo.metrics.remote`"), "{error}");
        pair.service.network().enable_remote_metrics();
        let seen = pair.client.network().metrics_of_timed(&target, PATIENCE).unwrap();
        assert_eq!(seen.address, pair.service.self_addr().uri());
        assert!(seen.network.requests_received >= 2);
        let error =
            pair.client.network().metrics_of_timed(&target, Duration::from_nanos(1)).unwrap_err();
        assert!(matches!(error, MetricsError::Forward(margo::ForwardError::TimedOut { .. })));
        pair.end();
    });
}

/// Takes what an RPC core tells, and does nothing.
struct Deaf;

impl margo::hg::Sink<()> for Deaf {
    fn request(&mut self, _: margo::hg::RequestHandle<()>) {}
    fn response(&mut self, (): (), _: Result<margo::hg::Response, margo::HgError>) {}
    fn responded(&mut self, (): (), _: Result<(), margo::HgError>) {}
    fn bulk(&mut self, (): (), _: Result<u64, margo::HgError>) {}
}

#[test]
fn a_peer_that_does_not_know_the_rpc_is_called_old_or_c() {
    let endpoint = margo::na::open("na+sm://", &margo::na::OpenOptions::listening(true)).unwrap();
    let mut options = margo::hg::HgOptions::default();
    options.listen = true;
    let core = margo::hg::Core::new(endpoint, options).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                core.poll(64, &mut Deaf).unwrap();
            }
        });
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = client.lookup(core.self_addr().uri()).unwrap();
        let error = client.network().metrics_of_timed(&target, PATIENCE).unwrap_err();
        over.store(true, Ordering::Relaxed);
        assert!(matches!(error, MetricsError::Unknown { .. }), "{error}");
        client.finalize_and_wait().unwrap();
    });
}

#[test]
fn peers_read_the_metrics_while_no_handler_can_run_and_after_progress_has_moved() {
    let service = margo::init(
        r#"{ "use_progress_thread": true, "margo": { "metrics": { "remote": true } } }"#,
    )
    .unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = client.lookup(service.self_addr().uri()).unwrap();
    let free = Arc::new(AtomicBool::new(false));
    let holds = free.clone();
    let unit = service.layout().rpc_pool().spawn(move || {
        while !holds.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert_ne!(service.layout().rpc_pool().name(), service.layout().progress_pool().name());
    let seen = client.network().metrics_of_timed(&target, PATIENCE).unwrap();
    assert_eq!(seen.shards[0].progress_pool, service.layout().progress_pool().name());
    free.store(true, Ordering::Relaxed);
    unit.unwrap().join().unwrap();
    let old = service.layout().progress_pool();
    service.layout().migrate_progress(service.layout().rpc_pool().name()).unwrap();
    let users = service.layout().pool_users(old.name()).unwrap();
    assert!(!users.iter().any(|user| user.contains("metrics")), "{users:?}");
    let seen = client.network().metrics_of_timed(&target, PATIENCE).unwrap();
    assert_eq!(seen.shards[0].progress_pool, service.layout().rpc_pool().name());
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_child_has_metrics_of_its_own() {
    let parent = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    let child = Instance::builder("na+tcp://127.0.0.1:0")
        .parent(&parent)
        .metrics_listen("127.0.0.1:0")
        .start()
        .unwrap();
    let (of_parent, of_child) =
        (parent.monitoring().metrics_addr().unwrap(), child.monitoring().metrics_addr().unwrap());
    let address = |families: &metrics_support::Families| {
        let key = families["margo_info"].samples.keys().next().unwrap().clone();
        key.into_iter().find(|(label, _)| label == "address").unwrap().1
    };
    assert_eq!(address(&scrape(of_parent)), parent.self_addr().uri());
    assert_eq!(address(&scrape(of_child)), child.self_addr().uri());
    parent.finalize_and_wait().unwrap();
    assert_eq!(
        (parent.monitoring().metrics_addr(), child.monitoring().metrics_addr()),
        (None, None)
    );
}

/// Each has called the address of the other: over tcp by two connections.
#[test]
fn a_peer_that_calls_and_is_called_has_one_row() {
    let [one, other] = [(); 2].map(|()| Instance::builder("na+tcp://127.0.0.1:0").start().unwrap());
    for instance in [&one, &other] {
        instance.serve(ECHO).function(|value| value).unwrap();
    }
    for (from, to) in [(&one, &other), (&other, &one)] {
        let to = ProviderHandle::from(from.lookup(to.self_addr().uri()).unwrap());
        assert_eq!(from.forward_timed(ECHO, &to, &7, PATIENCE).unwrap(), 7);
    }
    let peers = one.metrics().peers;
    assert_eq!(peers.connected().values().sum::<usize>(), 1, "{peers:?}");
    let [peer] = &peers.list[..] else { panic!("{peers:?}") };
    assert_eq!(peer.address, other.self_addr().uri());
    // A call and an answer on either connection.
    assert_eq!((peer.sent_messages, peer.received_messages), (Some(2), Some(2)), "{peer:?}");
    one.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
}
