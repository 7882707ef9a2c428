//! Shards that are removed while an instance runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::support::{WHERE, serve, start, target};
use crate::common::bounded;
use margo::config::Shards;
use margo::ult::Eventual;
use margo::{
    Instance, ProviderHandle, ProviderId, Rpc, elasticity::ElasticityError, sharded::ShardPlace,
};

const WAIT: Rpc<(), ()> = Rpc::new("wait");

/// The networks whose groups of endpoints change, the last one beside shared memory.
const ADDRESSES: [&str; 4] =
    ["na+sm://", "na+tcp://127.0.0.1:0", "na+sim://", "auto na+tcp://127.0.0.1:0"];

/// Shards come and go, with their pools and xstreams; clients, the service itself, and peers that
/// it calls go on.
#[test]
fn no_call_fails_while_shards_come_and_go() {
    for address in ADDRESSES {
        bounded(address, move || {
            let (service, other) = (start(address, true, 1), start(address, true, 1));
            serve(&service);
            serve(&other);
            let stop = Arc::new(AtomicBool::new(false));
            let call_on = |from: Instance, to: ProviderHandle| {
                let stop = stop.clone();
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        from.forward(WHERE, &to, &()).unwrap();
                    }
                })
            };
            let mut callers = vec![
                call_on(service.clone(), service.self_addr().into()),
                call_on(service.clone(), target(&service, &other)),
                call_on(other.clone(), target(&other, &service)),
            ];
            let mut clients = Vec::new();
            for round in 0..4 {
                let shards =
                    [service.layout().add_shard().unwrap(), service.layout().add_shard().unwrap()];
                let pools: Vec<_> = service.layout().progress_pools().collect();
                assert_eq!(pools.len(), 3);
                for _ in 0..3 {
                    let client = start(address, false, 1);
                    callers.push(call_on(client.clone(), target(&client, &service)));
                    clients.push(client);
                }
                // What has connections is removed, and what has none.
                let client = &clients[0];
                for shard in shards {
                    let there = target(client, &service).in_shard(shard as u8);
                    let (found, _) = client.forward(WHERE, &there, &()).unwrap();
                    assert_eq!(usize::from(found), shard);
                }
                for (shard, pool) in shards.into_iter().zip(&pools[1..]) {
                    service.layout().remove_shard(shard).unwrap();
                    let to = target(client, &service);
                    // Over the connection that is there, in a pool that is left.
                    let there = to.clone().in_shard(shard as u8);
                    let (found, ran_in) = client.forward(WHERE, &there, &()).unwrap();
                    assert_eq!(usize::from(found), shard);
                    assert!(ran_in != pool.name(), "{ran_in}");
                    for xstream in pool.xstreams() {
                        service.layout().remove_xstream(&xstream).unwrap();
                    }
                    service.layout().remove_pool(pool).unwrap();
                }
                // A new one that names a removed shard comes to another.
                let late = start(address, false, 1);
                let there = target(&late, &service).in_shard(shards[0] as u8);
                assert_eq!(late.forward(WHERE, &there, &()).unwrap().0, 0);
                late.finalize_and_wait().unwrap();
                assert_eq!(service.layout().progress_pools().count(), 1);
                let seen = service.metrics().shards;
                let removed = seen.iter().filter(|shard| shard.removed).map(|shard| shard.index);
                assert!(removed.eq(1..3 + 2 * round));
            }
            stop.store(true, Ordering::Relaxed);
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            clients.iter().for_each(|client| client.finalize_and_wait().unwrap());
            service.finalize_and_wait().unwrap();
            other.finalize_and_wait().unwrap();
        });
    }
}

/// Calls that are in hand in both directions end as if nothing had happened.
#[test]
fn calls_in_hand_go_on() {
    for address in ADDRESSES {
        bounded(address, move || {
            let (service, client) = (start(address, true, 2), start(address, false, 2));
            let (go, begun) = (Arc::new(Eventual::new()), Arc::new(margo::ult::Semaphore::new(0)));
            let (waits, has_begun) = (go.clone(), begun.clone());
            service
                .register(WAIT, move |request| {
                    has_begun.release(1);
                    waits.wait();
                    request.respond(&()).unwrap();
                })
                .unwrap();
            let there = target(&client, &service).in_shard(1);
            let pools: Vec<_> = client.layout().progress_pools().collect();
            let calls: Vec<_> = pools
                .iter()
                .map(|pool| {
                    let (client, there) = (client.clone(), there.clone());
                    pool.spawn(move || client.forward(WAIT, &there, &())).unwrap()
                })
                .collect();
            calls.iter().for_each(|_| begun.acquire(1).forget());
            service.layout().remove_shard(1).unwrap();
            client.layout().remove_shard(1).unwrap();
            go.set(()).unwrap();
            for call in calls {
                call.join().unwrap().unwrap();
            }
            // Whoever stays where the shard was calls through another one.
            let (own, to) = (client.clone(), there.clone());
            pools[1].spawn(move || own.forward(WAIT, &to, &())).unwrap().join().unwrap().unwrap();
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        });
    }
}

#[test]
fn a_shard_that_is_needed_stays() {
    let service = start("na+sm://", true, 3);
    let refused = |shard| service.layout().remove_shard(shard).unwrap_err();
    assert!(matches!(refused(0), ElasticityError::FirstShard));
    assert!(matches!(refused(3), ElasticityError::NoSuchShard { shard: 3, count: 3 }));
    let provider = service.sharded_provider(ProviderId::new(5), ShardPlace::index).unwrap();
    let ElasticityError::ShardInUse { shard: 2, by } = refused(2) else { panic!("it has a part") };
    assert_eq!(by, ["a part of provider 5"]);
    drop(provider);
    service.layout().remove_shard(1).unwrap();
    assert!(matches!(refused(1), ElasticityError::NoSuchShard { shard: 1, count: 2 }));
    // A provider has parts up to there.
    let provider = service.sharded_provider(ProviderId::new(5), ShardPlace::index).unwrap();
    assert_eq!(provider.object().parts(), 1);
    service.layout().remove_shard(2).unwrap();
    assert_eq!(service.layout().add_shard().unwrap(), 3, "no number is used again");
    drop(provider);
    service.finalize_and_wait().unwrap();
    assert!(matches!(refused(3), ElasticityError::Closing));
}

#[test]
fn the_document_in_effect_is_without_removed_shards() {
    let service = start("na+sm://", true, 3);
    let pools: Vec<_> = service.layout().progress_pools().collect();
    service.layout().remove_shard(1).unwrap();
    // Named by their places, which are those of before.
    let printed = service.config();
    assert!(matches!(&printed.margo.shards, Some(Shards::Pools(pools)) if pools.len() == 2));
    // Where it is now goes with the shard that it is beside.
    let other = service.layout().add_pool_from_json(r#"{ "name": "other" }"#).unwrap();
    service.layout().add_xstream_from_json(r#"{ "scheduler": { "pools": ["other"] } }"#).unwrap();
    let users = service.layout().pool_users(&pools[0]).unwrap();
    assert!(users.contains(&"what is left of shard 1".to_owned()), "{users:?}");
    service.layout().migrate_progress(&other).unwrap();
    let users = service.layout().pool_users(&other).unwrap();
    assert!(users.contains(&"what is left of shard 1".to_owned()), "{users:?}");
    service.layout().migrate_progress_of(2, &pools[1]).unwrap();
    service.layout().remove_shard(2).unwrap();
    service.finalize_and_wait().unwrap();
    let again = Instance::from_config(&printed).unwrap();
    assert_eq!(again.layout().progress_pools().count(), 2);
    again.finalize_and_wait().unwrap();
}
