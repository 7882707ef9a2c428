//! Several shards in one instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::support::{PULL, WHERE, serve, start, target};
use crate::common::{PATIENCE, bounded};
use margo::ult::Eventual;
use margo::{Access, Bulk, ForwardError, Instance, ProviderHandle, Rpc, cancel::CancelReason};

const NEVER: Rpc<(), ()> = Rpc::new("never");

fn pair(transport: &str, shards: usize) -> (Instance, Instance, ProviderHandle) {
    let service = start(transport, true, shards);
    serve(&service);
    let own = transport.split("://").next().unwrap();
    let client = start(&format!("{own}://"), false, shards);
    let target = target(&client, &service);
    (service, client, target)
}

/// The networks that have groups of endpoints.
const ADDRESSES: [&str; 3] = ["na+sm://", "na+tcp://127.0.0.1:0", "na+sim://"];

/// Calls from a ULT next to each progress ULT, and from this thread.
#[test]
fn every_shard_calls_and_is_called() {
    for transport in ADDRESSES {
        bounded(transport, move || {
            let (service, client, target) = pair(transport, 3);
            let pools: Vec<_> =
                service.layout().progress_pools().map(|pool| pool.name().to_owned()).collect();
            assert_eq!(pools.len(), 3);
            let own_pools = pools.clone();
            let ask = move |client: &Instance, target: &ProviderHandle| {
                let (at_first, _) = client.forward(WHERE, target, &()).unwrap();
                for wanted in (0..3).cycle().take(20) {
                    let there = target.clone().in_shard(wanted);
                    let (found, pool) = client.forward(WHERE, &there, &()).unwrap();
                    assert_eq!(found, wanted);
                    assert_eq!(
                        pool,
                        own_pools[usize::from(found)],
                        "a handler in its shard's pool"
                    );
                    let (found, _) = client.forward(WHERE, target, &()).unwrap();
                    assert_eq!(found, at_first, "a connection stays where it is");
                    let exposed = client.expose(vec![1; 100_000], Access::ReadOnly).unwrap();
                    assert_eq!(client.forward(PULL, &there, exposed.bulk()).unwrap(), 100_000);
                }
            };
            let callers: Vec<_> = client
                .layout()
                .progress_pools()
                .map(|pool| {
                    let (client, target) = (client.clone(), target.clone());
                    let ask = ask.clone();
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
fn an_instance_calls_itself_in_every_shard() {
    for transport in ADDRESSES {
        bounded(transport, move || {
            let service = start(transport, true, 2);
            serve(&service);
            let callers: Vec<_> = service
                .layout()
                .progress_pools()
                .map(|pool| {
                    let own = service.clone();
                    pool.spawn(move || {
                        for shard in (0..2).cycle().take(40) {
                            let target = ProviderHandle::from(own.self_addr()).in_shard(shard);
                            assert_eq!(own.forward(WHERE, &target, &()).unwrap().0, shard);
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

/// A deadline cancels the call in the shard that started it.
#[test]
fn calls_of_every_shard_can_time_out() {
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
    for pool in client.layout().progress_pools() {
        let (client, target) = (client.clone(), target.clone());
        let timed_out = pool.spawn(move || client.forward_timed(NEVER, &target, &(), limit));
        let error = timed_out.unwrap().join().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
    }
    waiting.set(()).unwrap();
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

/// The target is told of a cancel, whichever shard has made the call.
#[test]
fn calls_of_every_shard_can_be_canceled() {
    for transport in ADDRESSES {
        bounded(transport, move || {
            let (service, client, target) = pair(transport, 3);
            let (begun, canceled) =
                (Arc::new(margo::ult::Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let (has_begun, count) = (begun.clone(), canceled.clone());
            service
                .register(NEVER, move |request| {
                    has_begun.release(1);
                    if request.cancel_token().wait() == CancelReason::Canceled {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = request.respond(&());
                })
                .unwrap();
            for shard in [None, Some(0), Some(2)] {
                let to = match shard {
                    Some(shard) => target.clone().in_shard(shard),
                    None => target.clone(),
                };
                for pool in client.layout().progress_pools() {
                    let (client, to, begun) = (client.clone(), to.clone(), begun.clone());
                    let ended = pool.spawn(move || {
                        let call = client.rpc(NEVER, &to, &()).start().unwrap();
                        begun.acquire(1).forget();
                        call.cancel();
                        call.wait()
                    });
                    let error = ended.unwrap().join().unwrap().unwrap_err();
                    assert!(matches!(error, ForwardError::Canceled { .. }), "{error}");
                }
            }
            while canceled.load(Ordering::Relaxed) < 9 {
                std::thread::yield_now();
            }
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        });
    }
}

/// Waiters in every shard are told of the end, and the instance ends.
#[test]
fn finalize_ends_what_waits_in_every_shard() {
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
        .layout()
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

/// The document names the pools; a call stays in the shard beside its caller.
#[test]
fn named_pools_have_the_progress_of_their_shards() {
    let document = r#"{ "argobots": {
        "pools": [ { "name": "net0" }, { "name": "net1" } ],
        "xstreams": [ { "name": "x0", "scheduler": { "pools": ["net0"] } },
                      { "name": "x1", "scheduler": { "pools": ["net1"] } } ] },
        "margo": { "address": "na+sim://", "shards": ["net0", "net1"] } }"#;
    let service = margo::init(document).unwrap();
    let names: Vec<_> =
        service.layout().progress_pools().map(|pool| pool.name().to_owned()).collect();
    assert_eq!(names, ["net0", "net1"]);
    // The document in effect is a document of the same meaning.
    let printed = service.config().to_json();
    service.finalize_and_wait().unwrap();
    let again = margo::init(&printed).unwrap();
    assert_eq!(again.layout().progress_pools().count(), 2);
    again.finalize_and_wait().unwrap();
}

#[test]
fn the_sample_with_several_shards_starts() {
    let samples = margo::config::samples();
    let (_, text) = samples.iter().find(|(name, _)| *name == "several-shards.json").unwrap();
    let service = margo::init(text).unwrap();
    assert_eq!(service.layout().progress_pools().count(), 2);
    service.finalize_and_wait().unwrap();
}

/// Memory of a peer that does not listen, which is within reach only over the connection that it
/// has made, is pulled by ULTs of all shards, and of another thread.
#[test]
fn a_peer_that_does_not_listen_is_reached_from_every_shard() {
    const PULL_BY: Rpc<(Bulk, u64), u64> = Rpc::new("pull_by");
    for transport in ADDRESSES {
        bounded(transport, move || {
            let service = start(transport, true, 3);
            let pools: Vec<_> = service.layout().progress_pools().collect();
            service
                .register(PULL_BY, move |request| {
                    let ((bulk, by), origin) = (request.args().clone(), request.origin().clone());
                    let own = request.instance().clone();
                    let pull = move || {
                        let len = bulk.len() as usize;
                        let mut buffer = own.memory().bulk_buffer(len).unwrap();
                        own.pull(&origin, &bulk, 0, &mut buffer, 0..len).unwrap();
                        buffer.iter().map(|byte| u64::from(*byte)).sum::<u64>()
                    };
                    let sum = match pools.get(by as usize) {
                        Some(pool) => pool.spawn(pull).unwrap().join().unwrap(),
                        // Joined by a ULT, so that the execution stream goes on.
                        None => {
                            let pulled = Arc::new(Eventual::new());
                            let end = pulled.clone();
                            std::thread::spawn(move || end.set(pull()).unwrap());
                            *pulled.wait()
                        }
                    };
                    request.respond(&sum).unwrap();
                })
                .unwrap();
            let own = transport.split("://").next().unwrap();
            let client = start(&format!("{own}://"), false, 1);
            let target = client.lookup(service.self_addr().uri()).unwrap();
            let exposed = client.expose(vec![1; 50_000], Access::ReadOnly).unwrap();
            for shard in 0..3 {
                let to = ProviderHandle::from(target.clone()).in_shard(shard);
                for by in 0..4 {
                    let args = (exposed.bulk().clone(), by);
                    assert_eq!(client.forward(PULL_BY, &to, &args).unwrap(), 50_000);
                }
            }
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        });
    }
}

/// The lease of a shard, which its handlers count, does not keep the instance running.
#[test]
fn an_instance_of_shards_ends_with_its_last_user() {
    bounded("the end", || {
        let service = start("na+sm://", true, 2);
        serve(&service);
        let ended = Arc::new(Eventual::new());
        let (end, weak) = (ended.clone(), service.downgrade());
        service.on_finalize(move |_| _ = end.set(())).unwrap().keep();
        let client = start("na+sm://", false, 1);
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for shard in [0, 1].into_iter().cycle().take(100) {
            let there = target.clone().in_shard(shard);
            assert_eq!(client.forward(WHERE, &there, &()).unwrap().0, shard);
        }
        drop(service);
        assert!(ended.wait_ready_timeout(PATIENCE), "something keeps it running");
        assert!(weak.upgrade().is_none());
        client.finalize_and_wait().unwrap();
    });
}
