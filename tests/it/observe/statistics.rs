//! Statistics: exact counts at both ends, times that cannot be too short, C's layout, time series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, Pair, TRANSPORTS, on_each};
use margo::config::Admission;
use margo::monitor::{
    BulkDirection, BulkOutcome, CallOutcome, OriginStatistics, RequestOutcome, Statistics,
    TargetStatistics,
};
use margo::{
    Access, Bulk, ForwardError, InitError, Instance, OneWay, ProviderHandle, ProviderId, Rpc,
};
use serde_json::{Value, json};
use ult::Semaphore;

const ECHO: Rpc<Vec<u8>, Vec<u8>> = Rpc::new("echo");
const PANIC: Rpc<(), ()> = Rpc::new("panic");
const FAIL: Rpc<(), ()> = Rpc::new("fail");
const HOLD: Rpc<(), ()> = Rpc::new("hold");
const RELAY: Rpc<(), ()> = Rpc::new("relay");
const FETCH: Rpc<Bulk, ()> = Rpc::new("fetch");
const LOG: OneWay<u32> = OneWay::new("log");

fn counted(pair: Pair, every: u32) -> Pair {
    pair.service.monitoring().start_statistics(every);
    pair.client.monitoring().start_statistics(every);
    pair
}

fn origin<'a>(statistics: &'a Statistics, rpc: &str) -> &'a OriginStatistics {
    let mut rows = statistics.origin.iter().filter(|row| row.rpc.name == rpc);
    let row = rows.next().unwrap_or_else(|| panic!("`{rpc}` was not called: {statistics:#?}"));
    assert!(rows.next().is_none(), "`{rpc}` has one row");
    row
}

fn target<'a>(statistics: &'a Statistics, rpc: &str) -> &'a TargetStatistics {
    let mut rows = statistics.target.iter().filter(|row| row.rpc.name == rpc);
    let row = rows.next().unwrap_or_else(|| panic!("`{rpc}` did not come: {statistics:#?}"));
    assert!(rows.next().is_none(), "`{rpc}` has one row");
    row
}

/// The statistics of `instance`, once nothing is in flight or in hand.
fn settled(instance: &Instance) -> Statistics {
    let started = Instant::now();
    loop {
        let statistics = instance.monitoring().statistics();
        let in_flight = statistics.origin.iter().map(|row| row.in_flight).sum::<u64>()
            + statistics.target.iter().map(|row| row.in_hand).sum::<u64>()
            + statistics.bulk.iter().map(|row| row.in_flight).sum::<u64>();
        // The last one to let go of a call or request notes its times.
        let all_noted = statistics.sample_rpcs_every != 1
            || statistics.origin.iter().all(|row| row.figures.total.count == row.calls)
                && statistics.target.iter().all(|row| row.figures.bytes_in.count == row.requests)
                && statistics.bulk.iter().all(|row| row.figures.size.count == row.transfers);
        if in_flight == 0
            && all_noted
            && instance
                .monitoring()
                .load(&instance.layout().rpc_pool())
                .is_none_or(|l| l.in_hand == 0)
        {
            return statistics;
        }
        assert!(started.elapsed() < PATIENCE, "{statistics:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn until_in_hand(service: &Instance) {
    let started = Instant::now();
    while service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap().in_hand == 0 {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn every_outcome_is_counted_once_at_both_ends_whatever_is_looked_at() {
    for every in [0, 1, 3, 64] {
        on_each(|pair| {
            let pair = counted(pair, every);
            let Pair { service, client } = &pair;
            service.register(PANIC, |_| panic!("on purpose")).unwrap();
            service.register(FAIL, |handle| drop(handle.fail("no"))).unwrap();
            service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
            service.serve(LOG).handler(drop).unwrap();
            let go = Arc::new(Semaphore::new(0));
            let may_go = go.clone();
            service
                .serve(HOLD)
                .admission(Admission::new(1))
                .handler(move |handle| {
                    may_go.acquire(1).forget();
                    let _ = handle.respond(&());
                })
                .unwrap();
            let to = pair.target();
            for n in 0..100 {
                assert_eq!(client.forward(ECHO, &to, &vec![n]).unwrap(), [n]);
                client.send(LOG, &to, &5).unwrap();
            }
            for _ in 0..4 {
                // Its handler answers all the same.
                client.send(ECHO.without_response(), &to, &vec![]).unwrap();
                client.forward(PANIC, &to, &()).unwrap_err();
                client.forward(FAIL, &to, &()).unwrap_err();
                client.forward(Rpc::<(), ()>::new("missing"), &to, &()).unwrap_err();
                client.forward(Rpc::<(), ()>::new("echo"), &to, &()).unwrap_err();
                client.forward(Rpc::<_, (u64, u64)>::new("echo"), &to, &vec![0u8; 0]).unwrap_err();
            }
            client.rpc(ECHO, &to, &vec![]).start().unwrap().detach();
            let first = client.rpc(HOLD, &to, &()).start().unwrap();
            until_in_hand(service);
            let busy = client.forward(HOLD, &to, &()).unwrap_err();
            assert!(matches!(busy, ForwardError::Busy { .. }), "{busy}");
            assert_eq!(origin(&client.monitoring().statistics(), "hold").in_flight, 1);
            assert_eq!(target(&service.monitoring().statistics(), "hold").in_hand, 1);
            first.cancel();
            first.wait().unwrap_err();
            go.release(1);

            use {CallOutcome as C, RequestOutcome as R};
            let (at_origin, at_target) = (settled(client), settled(service));
            let told = |rpc| &origin(&at_origin, rpc).outcomes;
            assert_eq!(*told("echo"), [(C::Ok, 105), (C::BadArguments, 4), (C::Decode, 4)].into());
            assert_eq!(*told("panic"), [(C::Panicked, 4)].into());
            assert_eq!(*told("fail"), [(C::Failed, 4)].into());
            assert_eq!(*told("missing"), [(C::NotRegistered, 4)].into());
            assert_eq!(*told("log"), [(C::Ok, 100)].into());
            assert_eq!(*told("hold"), [(C::Busy, 1), (C::Canceled, 1)].into());
            let told = |rpc| &target(&at_target, rpc).outcomes;
            assert_eq!(*told("echo"), [(R::Ok, 109), (R::BadArguments, 4)].into());
            assert_eq!(*told("panic"), [(R::Panicked, 4)].into());
            assert_eq!(*told("fail"), [(R::Failed, 4)].into());
            assert_eq!(*told("log"), [(R::Ok, 100)].into());
            assert_eq!(*told("hold"), [(R::Ok, 1), (R::Busy, 1)].into());
            for row in &at_target.target {
                assert_eq!(row.requests, origin(&at_origin, &row.rpc.name).calls, "{row:#?}");
                assert_eq!(row.requests, row.outcomes.values().sum::<u64>());
            }
            let figures = &origin(&at_origin, "echo").figures;
            match every {
                0 => assert_eq!(figures.total.count, 0),
                1 => assert_eq!((figures.total.count, figures.encode.count), (113, 113)),
                // Each stands for those before it.
                _ => assert!((30..=113).contains(&figures.total.count), "{figures:#?}"),
            }
            pair.end();
        });
    }
}

#[test]
fn nested_calls_are_edges_of_the_call_graph() {
    on_each(|pair| {
        let pair = counted(pair, 1);
        let Pair { service, client } = &pair;
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let own = ProviderHandle::from(service.self_addr());
        service
            .register(RELAY, move |handle| {
                for _ in 0..3 {
                    handle.instance().forward(ECHO, &own, &vec![]).unwrap();
                }
                let _ = handle.respond(&());
            })
            .unwrap();
        client.forward(RELAY, &pair.target(), &()).unwrap();
        client.forward(ECHO, &pair.target(), &vec![]).unwrap();
        let (at_origin, at_target) = (settled(client), settled(service));
        let of_origin = |statistics: &Statistics| {
            let parent = |row: &OriginStatistics| row.parent.as_ref().map(|rpc| rpc.name.clone());
            let edge = |row: &OriginStatistics| (row.rpc.name.clone(), parent(row), row.calls);
            statistics.origin.iter().map(edge).collect::<Vec<_>>()
        };
        let of_target = |statistics: &Statistics| {
            let parent = |row: &TargetStatistics| row.parent.as_ref().map(|rpc| rpc.name.clone());
            let edge = |row: &TargetStatistics| (row.rpc.name.clone(), parent(row), row.requests);
            let mut edges: Vec<_> = statistics.target.iter().map(edge).collect();
            edges.sort();
            edges
        };
        let edge = |rpc: &str, parent: Option<&str>, count| {
            (rpc.to_owned(), parent.map(str::to_owned), count)
        };
        let nested = edge("echo", Some("relay"), 3);
        let outer = [edge("echo", None, 1), edge("relay", None, 1)];
        assert_eq!(of_origin(&at_origin), outer);
        assert_eq!(of_origin(&at_target), std::slice::from_ref(&nested));
        assert_eq!(of_target(&at_target), [outer[0].clone(), nested, outer[1].clone()]);
        pair.end();
    });
}

#[test]
fn times_are_not_shorter_than_what_is_known_to_have_passed() {
    const SERVED: Duration = Duration::from_millis(20);
    on_each(|pair| {
        let pair = counted(pair, 1);
        let Pair { service, client } = &pair;
        service
            .register(HOLD, |handle| {
                let begun = Instant::now();
                while begun.elapsed() < SERVED {
                    ult::sleep(SERVED);
                }
                let _ = handle.respond(&());
            })
            .unwrap();
        for _ in 0..10 {
            client.forward(HOLD, &pair.target(), &()).unwrap();
        }
        let (at_origin, at_target) = (settled(client), settled(service));
        let nanos = SERVED.as_nanos() as u64;
        // The two clocks agree better than this.
        let least = nanos - nanos / 100;
        let (origin, target) = (origin(&at_origin, "hold"), target(&at_target, "hold"));
        // The network may have brought the request to the service before the client notes that it
        // was taken, so that time has no least value.
        assert_eq!(origin.figures.network.count, 10);
        for figures in [&origin.figures.total, &target.figures.run] {
            assert_eq!(figures.count, 10);
            assert!(figures.min >= least && figures.mean >= least as f64, "{figures:?}");
            assert!(figures.p50 >= least && figures.p999 >= figures.p50, "{figures:?}");
            assert!(figures.p999 <= figures.max && figures.buckets.len() <= 10);
        }
        assert!(target.figures.queue.count == 10 && target.figures.respond.count == 10);
        assert_eq!(target.figures.bulk.count, 0);
        pair.end();
    });
}

#[test]
fn transfers_are_counted_with_their_bytes() {
    on_each(|pair| {
        let pair = counted(pair, 1);
        let Pair { service, client } = &pair;
        service
            .register(FETCH, |handle| {
                let mut buffer = handle.instance().memory().bulk_buffer(1000).unwrap();
                handle.pull(handle.args(), 0, &mut buffer, 0..1000).unwrap();
                handle.push(handle.args(), 0, &mut buffer, 0..10).unwrap_err();
                let _ = handle.respond(&());
            })
            .unwrap();
        let exposed = client.expose(vec![1; 1000], Access::ReadOnly).unwrap();
        for _ in 0..5 {
            client.forward(FETCH, &pair.target(), exposed.bulk()).unwrap();
        }
        let statistics = settled(service);
        let row = |direction| {
            let found = statistics.bulk.iter().find(|row| row.direction == direction).unwrap();
            assert_eq!(found.rpc.as_ref().unwrap().name, "fetch");
            assert_eq!(found.transfers, 5);
            (found.bytes, found.outcomes.clone(), found.figures.size.max)
        };
        assert_eq!(row(BulkDirection::Pull), (5000, [(BulkOutcome::Ok, 5)].into(), 1000));
        assert_eq!(row(BulkDirection::Push), (50, [(BulkOutcome::Failed, 5)].into(), 10));
        assert_eq!(target(&statistics, "fetch").figures.bulk.count, 5);
        pair.end();
    });
}

#[test]
fn a_reset_begins_anew_and_loses_nothing() {
    on_each(|pair| {
        let pair = counted(pair, 1);
        let Pair { service, client } = &pair;
        service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let to = pair.target();
        let call = || drop(client.forward(ECHO, &to, &vec![1]).unwrap());
        call();
        let since_first = Instant::now();
        let first = client.monitoring().reset_statistics();
        assert_eq!(origin(&first, "echo").calls, 1);
        assert!(client.monitoring().statistics().origin.is_empty());
        (0..3).for_each(|_| call());
        let (second, elapsed) = (client.monitoring().reset_statistics(), since_first.elapsed());
        let row = origin(&second, "echo");
        assert_eq!((row.calls, row.figures.total.count), (3, 3));
        // From one reset to the next, and no longer.
        assert!(first.seconds > 0.0 && second.seconds > 0.0);
        assert!(second.seconds <= elapsed.as_secs_f64());
        // Told as one that went well, and then its result cannot be decoded.
        let damaged =
            client.rpc(Rpc::<_, (u64, u64)>::new("echo"), &to, &vec![0u8; 0]).start().unwrap();
        let started = Instant::now();
        while origin(&client.monitoring().statistics(), "echo").in_flight > 0 {
            assert!(started.elapsed() < PATIENCE, "no answer");
            std::thread::yield_now();
        }
        assert_eq!(
            origin(&client.monitoring().reset_statistics(), "echo").outcomes,
            [(CallOutcome::Ok, 1)].into()
        );
        damaged.wait().unwrap_err();
        let third = client.monitoring().reset_statistics();
        assert_eq!(origin(&third, "echo").outcomes, [(CallOutcome::Decode, 1)].into());
        client.monitoring().stop_statistics();
        call();
        assert!(client.monitoring().statistics().origin.is_empty());
        client.monitoring().start_statistics(1);
        call();
        assert_eq!(origin(&client.monitoring().statistics(), "echo").calls, 1);
        pair.end();
    });
}

#[test]
fn statistics_outlive_their_rpc_and_their_instance() {
    on_each(|pair| {
        let pair = counted(pair, 1);
        let provider = pair.service.provider(ProviderId::new(7), &pair.service.layout().rpc_pool());
        provider.serve(ECHO).function(|bytes| bytes).unwrap();
        let to = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(7));
        pair.client.forward(ECHO, &to, &vec![1]).unwrap();
        drop(provider);
        let gone = pair.client.forward(ECHO, &to, &vec![1]).unwrap_err();
        assert!(matches!(gone, ForwardError::NotRegistered { .. }), "{gone}");
        let (service, client) = (pair.service.clone(), pair.client.clone());
        pair.end();
        let row = target(&service.monitoring().statistics(), "echo").clone();
        assert_eq!((row.rpc.provider, row.requests), (7, 1));
        let outcomes = origin(&client.monitoring().statistics(), "echo").outcomes.clone();
        assert_eq!(outcomes, [(CallOutcome::Ok, 1), (CallOutcome::NotRegistered, 1)].into());
    });
}

/// The service that is killed.
#[test]
fn service_process() {
    common::process::serve_if_asked(|service| {
        service.register(HOLD, |_handle| ult::Eventual::<()>::new().wait_ready()).unwrap();
    });
}

#[test]
fn calls_of_a_peer_that_is_killed_are_counted() {
    for transport in TRANSPORTS {
        let service = common::process::Service::start(module_path!(), transport);
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        client.monitoring().start_statistics(1);
        let to = ProviderHandle::from(client.lookup(&service.address).unwrap());
        let short = Duration::from_millis(20);
        client.forward_timed(HOLD, &to, &(), short).unwrap_err();
        let calls: Vec<_> = (0..3).map(|_| client.rpc(HOLD, &to, &()).start().unwrap()).collect();
        drop(service);
        assert!(margo::wait_all(calls).iter().all(Result::is_err));
        let outcomes = origin(&settled(&client), "hold").outcomes.clone();
        assert_eq!(outcomes, [(CallOutcome::TimedOut, 1), (CallOutcome::Network, 3)].into());
        client.finalize_and_wait().unwrap();
    }
}

#[test]
fn several_threads_and_xstreams_count_exactly() {
    const CALLS: u64 = 200;
    const CALLERS: u64 = 8;
    let service = Instance::builder("na+sm://").rpc_thread_count(2).start().unwrap();
    let client = Instance::builder("na+sm://").rpc_thread_count(2).start().unwrap();
    service.monitoring().start_statistics(8);
    client.monitoring().start_statistics(8);
    service.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
    let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let call = || {
        let (client, to) = (client.clone(), to.clone());
        move || (0..CALLS).for_each(|_| drop(client.forward(ECHO, &to, &vec![]).unwrap()))
    };
    let threads: Vec<_> = (0..CALLERS).map(|_| std::thread::spawn(call())).collect();
    let pool = client.layout().rpc_pool();
    let ults: Vec<_> = (0..CALLERS).map(|_| pool.spawn(call()).unwrap()).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ults.into_iter().for_each(|ult| ult.join().unwrap());
    let all = 2 * CALLERS * CALLS;
    assert_eq!(origin(&settled(&client), "echo").outcomes, [(CallOutcome::Ok, all)].into());
    let requests = target(&settled(&service), "echo").clone();
    assert_eq!((requests.requests, requests.outcomes[&RequestOutcome::Ok]), (all, all));
    let seen = requests.figures.total.count;
    assert!(seen > all / 4 && seen <= all, "{seen} of {all}");
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_snapshot_can_be_sent_and_written() {
    on_each(|pair| {
        const ASK: Rpc<(), Statistics> = Rpc::new("statistics");
        let pair = counted(pair, 1);
        pair.service
            .serve(ASK)
            .returning(|handle| handle.instance().monitoring().statistics())
            .unwrap();
        pair.client.forward(ASK, &pair.target(), &()).unwrap();
        let told = pair.client.forward(ASK, &pair.target(), &()).unwrap();
        assert!(target(&told, "statistics").requests >= 1);
        let text = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Statistics>(&text).unwrap(), told);
        pair.end();
    });
}

/// All keys of an object, as paths; addresses and call paths made equal.
fn keys(value: &Value, path: &str, names: &BTreeMap<String, &str>, all: &mut BTreeSet<String>) {
    if let Value::Object(map) = value {
        for (key, value) in map {
            let key = names.iter().fold(key.clone(), |key, (from, to)| key.replace(from, to));
            let path = if path.is_empty() { key } else { format!("{path} / {key}") };
            keys(value, &path, names, all);
            all.insert(path);
        }
    }
}

/// Statistics that a tool which reads C Margo's files looks for.
const PHASES: &[&str] = &[
    "origin / sent to SERVICE / iforward / duration",
    "origin / sent to SERVICE / iforward / relative_timestamp_from_create",
    "origin / sent to SERVICE / forward_cb / duration",
    "origin / sent to SERVICE / forward_cb / relative_timestamp_from_iforward_start",
    "origin / sent to SERVICE / iforward_wait / duration",
    "origin / sent to SERVICE / iforward_wait / relative_timestamp_from_iforward_end",
    "origin / sent to SERVICE / set_input / duration",
    "origin / sent to SERVICE / set_input / relative_timestamp_from_iforward_start",
    "origin / sent to SERVICE / get_output / duration",
    "origin / sent to SERVICE / get_output / relative_timestamp_from_wait_end",
    "target / received from SERVICE / handler / duration",
    "target / received from SERVICE / ult / duration",
    "target / received from SERVICE / ult / relative_timestamp_from_handler_start",
    "target / received from SERVICE / irespond / duration",
    "target / received from SERVICE / irespond / relative_timestamp_from_ult_start",
    "target / received from SERVICE / respond_cb / duration",
    "target / received from SERVICE / respond_cb / relative_timestamp_from_irespond_start",
    "target / received from SERVICE / irespond_wait / duration",
    "target / received from SERVICE / irespond_wait / relative_timestamp_from_irespond_end",
    "target / received from SERVICE / set_output / duration",
    "target / received from SERVICE / set_output / relative_timestamp_from_irespond_start",
    "target / received from SERVICE / get_input / duration",
    "target / received from SERVICE / get_input / relative_timestamp_from_ult_start",
    "BULK / itransfer / duration",
    "BULK / itransfer / size",
    "BULK / transfer_cb / duration",
    "BULK / transfer_cb / relative_timestamp_from_itransfer_start",
    "BULK / itransfer_wait / duration",
    "BULK / itransfer_wait / relative_timestamp_from_itransfer_end",
];

const LEAF: [&str; 6] = ["num", "min", "max", "avg", "var", "sum"];

/// Returns whether the entry of a call path has all keys of C, no others, and figures that can be.
fn check_phases(entry: &Value, address: &str, about: &Value) {
    let names = BTreeMap::from([(address.to_owned(), "SERVICE")]);
    let mut there = BTreeSet::new();
    keys(entry, "", &names, &mut there);
    let mut expected = BTreeSet::new();
    for path in PHASES {
        let path =
            &path.replace("BULK", "target / received from SERVICE / bulk / pull from SERVICE");
        let parts: Vec<_> = path.split(" / ").collect();
        expected.extend((1..=parts.len()).map(|n| parts[..n].join(" / ")));
        expected.extend(LEAF.iter().map(|leaf| format!("{path} / {leaf}")));
        let pointer = path.replace("SERVICE", &address.replace('~', "~0").replace('/', "~1"));
        let pointer = format!("/{}", pointer.replace(" / ", "/"));
        let leaf = entry.pointer(&pointer).unwrap_or_else(|| panic!("{pointer}"));
        assert_eq!(leaf["num"], 3, "{path}: {leaf}");
        let number = |key: &str| leaf[key].as_f64().unwrap();
        assert!(number("min") <= number("avg") && number("avg") <= number("max"), "{leaf}");
        assert!((number("sum") - 3.0 * number("avg")).abs() <= 1e-8, "{leaf}");
    }
    expected.extend(about.as_object().unwrap().keys().cloned());
    assert_eq!(there, expected);
}

fn check_rest(dump: &Value, address: &str) {
    let stats = &dump["stats"];
    assert_eq!(stats["address"], address);
    assert_eq!(stats["pid"], std::process::id());
    assert!(stats["hostname"].is_string() && stats["cmdline"][0].is_string());
    for key in [
        "progress_with_timeout",
        "progress_timeout_value_msec",
        "progress_without_timeout",
        "trigger",
    ] {
        let leaf = stats["progress_loop"][key].as_object().unwrap();
        assert!(LEAF.iter().all(|part| leaf[*part].is_number()), "{key}");
    }
}

/// The service calls itself, in C's test too.
fn dump_of(provider: u16, relayed: bool, reset: bool) {
    let service = Instance::builder("na+sm://").start().unwrap();
    service.monitoring().start_statistics(1);
    let provider_id = ProviderId::new(provider);
    let (own, id) = (ProviderHandle::new(service.self_addr(), provider_id), provider_id);
    let provided = service.provider(id, &service.layout().rpc_pool());
    provided
        .serve(FETCH)
        .returning(|handle| {
            let mut buffer = handle.instance().memory().bulk_buffer(1000).unwrap();
            handle.pull(handle.args(), 0, &mut buffer, 0..1000).unwrap();
        })
        .unwrap();
    let to = own.clone();
    const RELAY_BULK: Rpc<Bulk, ()> = Rpc::new("relay_bulk");
    provided
        .serve(RELAY_BULK)
        .returning(move |handle| handle.instance().forward(FETCH, &to, handle.args()).unwrap())
        .unwrap();
    let exposed = service.expose(vec![1; 1000], Access::ReadOnly).unwrap();
    for _ in 0..3 {
        let rpc = if relayed { RELAY_BULK } else { FETCH };
        service.forward(rpc, &own, exposed.bulk()).unwrap();
    }
    settled(&service);
    let dump = service.monitoring().monitor_dump(reset);
    let address = service.self_addr().uri().to_owned();
    let fetch = FETCH.id(id).0;
    let parent = if relayed { RELAY_BULK.id(id).0 | 0xffff } else { 65535 };
    let parent_provider = if relayed { u64::from(provider) } else { 65535 };
    let path = format!("{parent}:{parent_provider}:{}:{provider}", fetch | 0xffff);
    let entry = &dump["stats"]["rpcs"][&path];
    let about = json!({
        "rpc_id": fetch | 0xffff, "provider_id": provider, "parent_rpc_id": parent,
        "parent_provider_id": parent_provider, "name": "fetch",
    });
    for (key, value) in about.as_object().unwrap() {
        assert_eq!(&entry[key], value, "{key} of {path}");
    }
    check_phases(entry, &address, &about);
    check_rest(&dump, &address);
    assert_eq!(dump["stats"]["rpcs"].as_object().unwrap().len(), if relayed { 2 } else { 1 });
    assert!(dump["series"]["rpcs"].is_object() && dump["series"]["pools"].is_object());
    let left = service.monitoring().monitor_dump(false)["stats"]["rpcs"].as_object().unwrap().len();
    assert_eq!(left == 0, reset);
    service.finalize_and_wait().unwrap();
}

#[test]
fn the_dump_has_the_keys_of_c_and_says_what_happened() {
    for provider in [42, 0, ProviderId::DEFAULT.get()] {
        for relayed in [false, true] {
            for reset in [false, true] {
                dump_of(provider, relayed, reset);
            }
        }
    }
}

fn document(prefix: &str, more: &str) -> String {
    format!(
        r#"{{ "margo": {{ "address": "na+sm://" }},
            "monitoring": {{ "config": {{ "filename_prefix": "{prefix}" {more} }} }} }}"#
    )
}

fn files_in(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns whether some number has more than three digits behind its point. Variances, which are
/// not rounded, do not count.
fn has_micros(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            let millis = number.as_f64().unwrap() * 1000.0;
            (millis - millis.round()).abs() > 1e-6
        }
        Value::Array(values) => values.iter().any(has_micros),
        Value::Object(values) => {
            values.iter().any(|(key, value)| key != "var" && has_micros(value))
        }
        _ => false,
    }
}

/// Two paths where there is a row for one.
#[test]
fn rows_beyond_those_of_the_configuration_are_counted_together() {
    const OTHER: Rpc<Vec<u8>, Vec<u8>> = Rpc::new("another");
    for (rows_max, together) in [(1, true), (2, false)] {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("run").display().to_string();
        let more = format!(
            r#", "statistics": {{ "rows_max": {rows_max} }}, "time_series": {{ "disable": true }}"#
        );
        let instance = margo::init(&document(&prefix, &more)).unwrap();
        let to = ProviderHandle::from(instance.self_addr());
        for rpc in [ECHO, OTHER] {
            instance.register(rpc, |handle| drop(handle.respond(handle.args()))).unwrap();
            instance.forward(rpc, &to, &vec![1]).unwrap();
        }
        let dump = instance.monitoring().monitor_dump(false);
        let rpcs = dump["stats"]["rpcs"].to_string();
        assert_eq!(rpcs.contains("other "), together, "{rpcs}");
        instance.finalize_and_wait().unwrap();
    }
}

#[test]
fn files_are_written_at_the_end_as_the_configuration_says() {
    let off = r#", "statistics": { "disable": true }"#;
    let neither = r#", "statistics": { "disable": true }, "time_series": { "disable": true }"#;
    let pretty = r#", "statistics": { "pretty_json": true, "precision": 3 },
        "time_series": { "disable": true }"#;
    let coarse = r#", "time_series": { "precision": 3 }"#;
    for (more, kinds) in [
        ("", vec!["series", "stats"]),
        (off, vec!["series"]),
        (neither, vec![]),
        (pretty, vec!["stats"]),
        (coarse, vec!["series", "stats"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("run").display().to_string();
        let instance = margo::init(&document(&prefix, more)).unwrap();
        instance.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
        let to = ProviderHandle::from(instance.self_addr());
        instance.forward(ECHO, &to, &vec![1]).unwrap();
        instance.finalize_and_wait().unwrap();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = std::process::id();
        let expected: Vec<_> =
            kinds.iter().map(|kind| format!("run.{host}.{process}.{kind}.json")).collect();
        assert_eq!(files_in(folder.path()), expected, "{more}");
        for (name, kind) in expected.iter().zip(kinds) {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let rpcs = value["rpcs"].as_object().unwrap();
            assert_eq!(rpcs.len(), 1, "{text}");
            if kind == "series" {
                let series = &rpcs["echo:65535"];
                let sum: u64 =
                    series["count"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
                assert_eq!(sum, 1, "{text}");
                assert!(value["pools"]["__primary__"]["size"].is_array());
            }
            assert_eq!(text.lines().count() > 1, more == pretty);
            let millis = if kind == "series" { more == coarse } else { more == pretty };
            assert_eq!(has_micros(&value), !millis, "{kind}, {more}: {text}");
        }
    }
}

#[test]
fn files_can_be_written_at_any_time_and_an_error_does_not_stop_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("run");
    let instance = margo::init(&document(&inside.display().to_string(), "")).unwrap();
    let written = instance.monitoring().write_monitor_files().unwrap();
    assert_eq!(written.len(), 2);
    assert!(written.iter().all(|path| path.exists()));
    drop(folder);
    let error = instance.monitoring().write_monitor_files().unwrap_err();
    assert!(error.to_string().contains("run."), "{error}");
    instance.finalize_and_wait().unwrap();
}

#[test]
fn files_that_cannot_be_written_at_the_end_are_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("none/run").display().to_string();
    let off = |part| format!(r#"{part}: {{ "disable": true }}"#);
    let (stats, series) = (off(r#", "statistics""#), off(r#", "time_series""#));
    for (more, kind) in [("", "stats"), (&series, "stats"), (&stats, "series")] {
        let error = margo::init(&document(&prefix, more)).unwrap_err();
        assert!(matches!(error, InitError::Destination { .. }), "{error}");
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let file = format!("{prefix}.{host}.{}.{kind}.json", std::process::id());
        let said = format!("monitoring.config.filename_prefix: cannot write {file}: No such file");
        assert!(error.to_string().starts_with(&said), "{error}");
    }
    // None is to be written.
    let neither = format!("{stats}{series}");
    margo::init(&document(&prefix, &neither)).unwrap().finalize_and_wait().unwrap();
    assert_eq!(files_in(folder.path()), [""; 0]);
}

#[test]
fn a_series_takes_entries_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("run").display().to_string();
    let more = r#", "time_series": { "time_interval_sec": 0.001, "entries_max": 1000 }"#;
    let instance = margo::init(&document(&prefix, more)).unwrap();
    instance.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
    let to = ProviderHandle::from(instance.self_addr());
    let started = Instant::now();
    let mut calls = 0;
    let series = loop {
        instance.forward(ECHO, &to, &vec![1]).unwrap();
        calls += 1;
        std::thread::sleep(Duration::from_micros(200));
        let series = instance.monitoring().monitor_dump(false)["series"].clone();
        // More than C keeps.
        if series["pools"]["__primary__"]["timestamps"].as_array().is_some_and(|t| t.len() >= 300) {
            break series;
        }
        assert!(started.elapsed() < PATIENCE, "{series}");
    };
    let of = &series["rpcs"]["echo:65535"];
    let (at, counts) = (numbers(of, "timestamps"), numbers(of, "count"));
    assert_eq!((at.len(), numbers(of, "bulk_size").len()), (counts.len(), counts.len()));
    assert!(at.is_sorted() && counts.iter().sum::<f64>() <= f64::from(calls));
    assert!(counts.iter().sum::<f64>() > 0.0);
    instance.finalize_and_wait().unwrap();
}

fn numbers(series: &Value, key: &str) -> Vec<f64> {
    let values = series[key].as_array().map(Vec::as_slice).unwrap_or_default();
    values.iter().filter_map(Value::as_f64).collect()
}

#[test]
fn a_reset_takes_the_entries_of_all_series_and_each_call_is_in_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("run").display().to_string();
    let more = r#", "time_series": { "time_interval_sec": 0.001, "entries_max": 100000 }"#;
    let instance = margo::init(&document(&prefix, more)).unwrap();
    instance.register(ECHO, |handle| drop(handle.respond(handle.args()))).unwrap();
    let to = ProviderHandle::from(instance.self_addr());
    let (mut counted, mut last) = (0.0, [0.0; 2]);
    for round in 1..=3 {
        (0..5).for_each(|_| drop(instance.forward(ECHO, &to, &vec![1]).unwrap()));
        let started = Instant::now();
        // Until all that came since the last reset is there; a look changes nothing.
        let there = |series: &Value| -> f64 {
            numbers(&series["rpcs"]["echo:65535"], "count").iter().sum()
        };
        while counted + there(&instance.monitoring().monitor_dump(false)["series"])
            < 5.0 * f64::from(round)
        {
            assert!(started.elapsed() < PATIENCE, "{}", instance.monitoring().monitor_dump(false));
            std::thread::yield_now();
        }
        let dump = instance.monitoring().monitor_dump(true);
        let series = &dump["series"];
        counted += there(series);
        assert_eq!(counted, 5.0 * f64::from(round), "{series}");
        let of = [&series["rpcs"]["echo:65535"], &series["pools"]["__primary__"]];
        for (own, last) in of.into_iter().zip(&mut last) {
            let at = numbers(own, "timestamps");
            assert!(at[0] > *last, "what was told already is told again: {own}");
            *last = *at.last().unwrap();
        }
    }
    instance.finalize_and_wait().unwrap();
}

#[test]
fn polls_that_are_timed_stand_for_those_that_are_not() {
    // Polls without end, for this test to count.
    let own = margo::init(r#"{ "progress_timeout_ub_msec": 0 }"#).unwrap();
    let polled = || own.metrics().shards[0].polls;
    let before_start = polled();
    own.monitoring().start_statistics(0);
    let started = polled();
    let begun = Instant::now();
    while polled() < started + 50_000 {
        assert!(begun.elapsed() < PATIENCE, "it does not poll");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = polled();
    let progress = own.monitoring().statistics().progress;
    let after = polled();
    let timed = progress.idle_poll.count + progress.busy_poll.count;
    // One in 1024 is timed; the snapshots count by the hundred.
    let expected = before - started - 2048..=after - before_start + 2048;
    assert!(expected.contains(&timed), "{timed} of {expected:?}");
    own.finalize_and_wait().unwrap();
}
