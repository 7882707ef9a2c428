//! Progress that spins only while operations are in flight (`margo.progress_when_needed`).

use std::sync::Arc;
use std::time::Instant;

use crate::call_support::{HOLD, Held, SUM};
use crate::common::{PATIENCE, TRANSPORTS, bounded};
use margo::{Bulk, ForwardError, Instance, InstanceBuilder, ProviderHandle, Rpc, config::Config};
use ult::Eventual;

/// A client whose progress has an xstream of its own, and polls without a break when it polls.
fn client(transport: &str, when_needed: bool) -> Instance {
    let mut config = Config::default();
    config.margo.address = format!("{}://", transport.split("://").next().unwrap());
    config.margo.listen = false;
    config.margo.progress_when_needed = when_needed;
    config.mercury.na_no_block = true;
    InstanceBuilder::from_config(config).use_progress_thread(true).start().unwrap()
}

fn target(client: &Instance, service: &Instance) -> ProviderHandle {
    client.lookup(service.self_addr().uri()).unwrap().into()
}

/// How often the xstream of the client's progress has slept, and switched.
fn counts(client: &Instance) -> (u64, u64) {
    let pool = client.layout().progress_pool();
    let name = pool.xstreams().into_iter().next().unwrap();
    let stats = client.runtime().xstream(&name).unwrap().stats();
    (stats.sleeps, stats.executed)
}

fn until(what: &str, client: &Instance, holds: impl Fn(u64, u64) -> bool) {
    let begun = Instant::now();
    loop {
        let (sleeps, executed) = counts(client);
        if holds(sleeps, executed) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {sleeps} sleeps, {executed} switches");
        std::thread::yield_now();
    }
}

/// It polls: a sleeping xstream switches to nothing.
fn until_it_polls(client: &Instance) {
    let (_, before) = counts(client);
    until("polls", client, |_, executed| executed > before + 100);
}

#[test]
fn progress_polls_during_calls_and_sleeps_between_them() {
    for transport in TRANSPORTS {
        let service = Instance::builder(transport).start().unwrap();
        let held = Held::serve(&service);
        let client = client(transport, true);
        let target = target(&client, &service);
        assert!(client.layout().progress_when_needed());
        until("sleeps before the first call", &client, |sleeps, _| sleeps > 0);
        for n in 0..5 {
            let call = client.rpc(HOLD, &target, &n).start().unwrap();
            held.begun(1);
            until_it_polls(&client);
            let (slept, _) = counts(&client);
            held.go(1);
            assert_eq!(call.wait().unwrap(), n);
            until("sleeps after a call", &client, |sleeps, _| sleeps > slept);
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn it_is_switched_on_and_off_at_run_time() {
    let service = Instance::builder("na+sm://").start().unwrap();
    let _held = Held::serve(&service);
    let client = client("na+sm://", false);
    let target = target(&client, &service);
    assert!(!client.layout().progress_when_needed());
    until_it_polls(&client);
    client.layout().set_progress_when_needed(true);
    until("sleeps", &client, |sleeps, _| sleeps > 0);
    client.layout().set_progress_when_needed(false);
    assert_eq!(client.forward(SUM, &target, &(1, 2)).unwrap(), 3);
    // Awake, it stays so.
    until_it_polls(&client);
    let (slept, _) = counts(&client);
    until_it_polls(&client);
    assert_eq!(counts(&client).0, slept);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn all_kinds_of_operations_wake_it() {
    const FETCH: Rpc<Bulk, u64> = Rpc::new("fetch");
    for transport in TRANSPORTS {
        let service = Instance::builder(transport).start().unwrap();
        let held = Held::serve(&service);
        service
            .serve(FETCH)
            .returning(|handle| {
                let len = handle.args().len() as usize;
                let mut local = handle.instance().memory().bulk_buffer(len).unwrap();
                handle.pull(handle.args(), 0, &mut local, 0..len).unwrap();
                local.iter().map(|byte| u64::from(*byte)).sum()
            })
            .unwrap();
        let client = client(transport, true);
        let target = target(&client, &service);
        let last = std::cell::Cell::new(0);
        // It has slept since the last time; whether it still does, the calls do not depend on.
        let asleep = || {
            until("sleeps", &client, |sleeps, _| sleeps > last.get());
            last.set(counts(&client).0);
        };
        for n in 0..20 {
            asleep();
            assert_eq!(client.forward(SUM, &target, &(n, 1)).unwrap(), n + 1);
            asleep();
            let ult = {
                let (client, target) = (client.clone(), target.clone());
                client.layout().rpc_pool().spawn(move || client.forward(SUM, &target, &(n, 2)))
            };
            assert_eq!(ult.unwrap().join().unwrap().unwrap(), n + 2);
            asleep();
            let (answer, told) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
            let (set, may_end) = (answer.clone(), told.clone());
            let callback = move |result| {
                set.set(result).unwrap();
                may_end.set(()).unwrap();
            };
            drop(client.rpc(SUM, &target, &(n, 3)).call_back(callback).unwrap());
            bounded("the callback", move || told.wait_ready());
            assert!(matches!(answer.wait(), Ok(sum) if *sum == n + 3), "{:?}", answer.wait());
            asleep();
            let sum = client
                .memory()
                .expose_ref(&[3; 10_000], |bulk| client.forward(FETCH, &target, bulk));
            assert_eq!(sum.unwrap().unwrap(), 30_000);
        }
        // Deadlines and cancels, which come while nothing else happens.
        held.begun_in_time(&service, |limit| {
            let soon = client.forward_timed(HOLD, &target, &1, limit);
            assert!(matches!(soon, Err(ForwardError::TimedOut { .. })), "{soon:?}");
        });
        let call = client.rpc(HOLD, &target, &2).start().unwrap();
        held.begun(1);
        call.cancel();
        let end = call.wait();
        assert!(matches!(end, Err(ForwardError::Canceled { .. })), "{end:?}");
        held.go(2);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn an_idle_instance_serves_what_peers_want() {
    for transport in TRANSPORTS {
        // A server with it: warned, but served.
        let mut config = Config::default();
        config.margo.address = transport.to_owned();
        config.margo.progress_when_needed = true;
        let service = Instance::from_config(&config).unwrap();
        let _held = Held::serve(&service);
        let client = client(transport, false);
        let target = target(&client, &service);
        for n in 0..20 {
            assert_eq!(client.forward(SUM, &target, &(n, 1)).unwrap(), n + 1);
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn with_several_shards_each_wakes_its_own() {
    let service = Instance::builder("na+sm://").start().unwrap();
    let _held = Held::serve(&service);
    let document = r#"{ "mercury": { "na_no_block": true },
        "margo": { "shards": 3, "listen": false, "progress_when_needed": true },
        "rpc_thread_count": 2 }"#;
    let client = margo::init(document).unwrap();
    let target = target(&client, &service);
    until("sleeps", &client, |sleeps, _| sleeps > 0);
    for round in 0..20 {
        let pools = client.layout().progress_pools().chain([client.layout().rpc_pool()]);
        let calls: Vec<_> = pools
            .map(|pool| {
                let (client, target) = (client.clone(), target.clone());
                pool.spawn(move || client.forward(SUM, &target, &(round, 1))).unwrap()
            })
            .collect();
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap(), round + 1);
        }
        assert_eq!(client.forward(SUM, &target, &(round, 2)).unwrap(), round + 2);
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
