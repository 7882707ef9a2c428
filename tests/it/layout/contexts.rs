//! Several network contexts in one instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, TRANSPORTS, bounded};
use margo::ult::Eventual;
use margo::{Access, Bulk, ForwardError, Instance, ProviderHandle, Rpc};

/// Answers with the context that took the request.
const WHERE: Rpc<(), u8> = Rpc::new("where");
/// Pulls what is exposed, and answers with the sum of its bytes.
const PULL: Rpc<Bulk, u64> = Rpc::new("pull");
const NEVER: Rpc<(), ()> = Rpc::new("never");

/// An instance with that many contexts, which sleeps as soon as there is nothing to do.
fn start(address: &str, listen: bool, contexts: usize) -> Instance {
    let (auto_sm, address) = match address.strip_prefix("auto ") {
        Some(address) => (true, address),
        None => (false, address),
    };
    margo::init(&format!(
        r#"{{ "margo": {{ "address": "{address}", "listen": {listen} }}, "rpc_thread_count": 1,
              "progress_spindown_msec": 0,
              "mercury": {{ "max_contexts": {contexts}, "auto_sm": {auto_sm} }} }}"#
    ))
    .unwrap()
}

fn serve(service: &Instance) {
    service.register(WHERE, |request| request.respond(&request.context()).unwrap()).unwrap();
    service
        .register(PULL, |request| {
            let len = request.args().len() as usize;
            let mut buffer = request.instance().bulk_buffer(len).unwrap();
            request.pull(request.args(), 0, &mut buffer, 0..len).unwrap();
            request.respond(&buffer.iter().map(|byte| u64::from(*byte)).sum()).unwrap();
        })
        .unwrap();
}

fn pair(transport: &str, contexts: usize) -> (Instance, Instance, ProviderHandle) {
    let service = start(transport, true, contexts);
    serve(&service);
    let own = transport.split("://").next().unwrap();
    let client = start(&format!("{own}://"), false, contexts);
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    (service, client, target)
}

/// The networks, one with shared memory beside it, and one that is simulated.
const ADDRESSES: [&str; 4] =
    [TRANSPORTS[0], TRANSPORTS[1], "auto na+tcp://127.0.0.1:0", "na+sim://"];

/// Calls from a ULT next to each progress ULT, and from this thread.
#[test]
fn every_context_calls_and_is_called() {
    for transport in ADDRESSES {
        bounded(transport, move || {
            let (service, client, target) = pair(transport, 3);
            assert_eq!(service.progress_pools().count(), 3);
            let ask = move |client: &Instance, target: &ProviderHandle| {
                for round in 0..20u8 {
                    let wanted = round % 4;
                    // One that is not there is context 0.
                    let found = if wanted == 3 { 0 } else { wanted };
                    let there = target.clone().in_context(wanted);
                    assert_eq!(client.forward(WHERE, &there, &()).unwrap(), found);
                    assert_eq!(client.forward(WHERE, target, &()).unwrap(), 0);
                    let exposed = client.expose(vec![1; 100_000], Access::ReadOnly).unwrap();
                    assert_eq!(client.forward(PULL, &there, exposed.bulk()).unwrap(), 100_000);
                }
            };
            let callers: Vec<_> = client
                .progress_pools()
                .map(|pool| {
                    let (client, target) = (client.clone(), target.clone());
                    pool.spawn(move || ask(&client, &target)).unwrap()
                })
                .collect();
            ask(&client, &target);
            for caller in callers {
                caller.join().unwrap();
            }
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        });
    }
}

#[test]
fn an_instance_calls_itself_in_every_context() {
    for transport in ADDRESSES {
        bounded(transport, move || {
            let service = start(transport, true, 2);
            serve(&service);
            let callers: Vec<_> = service
                .progress_pools()
                .map(|pool| {
                    let own = service.clone();
                    pool.spawn(move || {
                        for context in (0..2).cycle().take(40) {
                            let target = ProviderHandle::from(own.self_addr()).in_context(context);
                            assert_eq!(own.forward(WHERE, &target, &()).unwrap(), context);
                        }
                    })
                    .unwrap()
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            service.finalize_and_wait().unwrap();
        });
    }
}

/// A deadline cancels the call in the context that started it.
#[test]
fn calls_of_every_context_can_time_out() {
    for transport in ADDRESSES {
        bounded(transport, move || calls_time_out(transport));
    }
}

fn calls_time_out(transport: &str) {
    let (service, client, target) = pair(transport, 2);
    let waiting = Arc::new(Eventual::new());
    let go = waiting.clone();
    service
        .register(NEVER, move |request| {
            go.wait();
            let _ = request.respond(&());
        })
        .unwrap();
    let limit = Duration::from_millis(20);
    for pool in client.progress_pools() {
        let (client, target) = (client.clone(), target.clone());
        let timed_out = pool.spawn(move || client.forward_timed(NEVER, &target, &(), limit));
        let error = timed_out.unwrap().join().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
    }
    waiting.set(()).unwrap();
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

/// Waiters in every context are told of the end, and the instance ends.
#[test]
fn finalize_ends_what_waits_in_every_context() {
    for transport in ADDRESSES {
        bounded(transport, move || finalize_ends_what_waits(transport));
    }
}

fn finalize_ends_what_waits(transport: &str) {
    let (service, client, target) = pair(transport, 3);
    let (waiting, begun) = (Arc::new(Eventual::new()), Arc::new(AtomicUsize::new(0)));
    let (go, count) = (waiting.clone(), begun.clone());
    service
        .register(NEVER, move |request| {
            count.fetch_add(1, Ordering::Relaxed);
            go.wait();
            let _ = request.respond(&());
        })
        .unwrap();
    let callers: Vec<_> = client
        .progress_pools()
        .map(|pool| {
            let (client, target) = (client.clone(), target.clone());
            pool.spawn(move || client.forward_timed(NEVER, &target, &(), PATIENCE)).unwrap()
        })
        .collect();
    while begun.load(Ordering::Relaxed) < 3 {
        std::thread::yield_now();
    }
    client.finalize();
    for caller in callers {
        let error = caller.join().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
    }
    client.finalize_and_wait().unwrap();
    waiting.set(()).unwrap();
    service.finalize_and_wait().unwrap();
}

/// The document names the pools; a call stays in the context beside its caller.
#[test]
fn named_pools_have_the_progress_of_their_contexts() {
    let document = r#"{ "argobots": {
        "pools": [ { "name": "net0" }, { "name": "net1" } ],
        "xstreams": [ { "name": "x0", "scheduler": { "pools": ["net0"] } },
                      { "name": "x1", "scheduler": { "pools": ["net1"] } } ] },
        "progress_pool": "net0", "margo": { "more_progress_pools": ["net1"] } }"#;
    let service = margo::init(document).unwrap();
    let names: Vec<_> = service.progress_pools().map(|pool| pool.name().to_owned()).collect();
    assert_eq!(names, ["net0", "net1"]);
    // The document in effect is a document of the same meaning.
    let printed = service.config().to_json();
    service.finalize_and_wait().unwrap();
    let again = margo::init(&printed).unwrap();
    assert_eq!(again.progress_pools().count(), 2);
    again.finalize_and_wait().unwrap();
}

#[test]
fn the_sample_with_several_contexts_starts() {
    let samples = margo::config::samples();
    let (_, text) = samples.iter().find(|(name, _)| *name == "several-contexts.json").unwrap();
    let service = margo::init(text).unwrap();
    assert_eq!(service.progress_pools().count(), 2);
    service.finalize_and_wait().unwrap();
}
