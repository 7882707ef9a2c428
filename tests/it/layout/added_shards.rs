//! Shards that are added while an instance runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::support::{PULL, WHERE, serve, start, target};
use crate::common::bounded;
use margo::config::Shards;
use margo::{
    Access, Instance, ProviderHandle, ProviderId, Rpc, elasticity::ElasticityError,
    sharded::ShardPlace,
};

/// The networks that have groups of endpoints which grow, the last one beside shared memory.
const ADDRESSES: [&str; 4] =
    ["na+sm://", "na+tcp://127.0.0.1:0", "na+sim://", "auto na+tcp://127.0.0.1:0"];

/// A client that calls until it is told to stop; how often it has.
fn calls_on(address: &str, service: &Instance, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let client = start(address, false, 1);
    let (service, stop) = (service.clone(), stop.clone());
    thread::spawn(move || {
        let target = target(&client, &service);
        let exposed = client.expose(vec![1; 20_000], Access::ReadOnly).unwrap();
        let mut calls = 0;
        while !stop.load(Ordering::Relaxed) {
            client.forward(WHERE, &target, &()).unwrap();
            assert_eq!(client.forward(PULL, &target, exposed.bulk()).unwrap(), 20_000);
            calls += 2;
        }
        client.finalize_and_wait().unwrap();
        calls
    })
}

#[test]
fn shards_are_added_while_clients_call() {
    for address in ADDRESSES {
        bounded(address, move || {
            let service = start(address, true, 1);
            serve(&service);
            let stop = Arc::new(AtomicBool::new(false));
            let callers: Vec<_> = (0..3).map(|_| calls_on(address, &service, &stop)).collect();
            for number in 1..4 {
                assert_eq!(service.layout().add_shard().unwrap(), number);
                let late = start(address, false, 1);
                let to = target(&late, &service);
                let pools: Vec<_> = service.layout().progress_pools().collect();
                assert_eq!(pools.len(), number + 1);
                for (shard, of_shard) in (0..).zip(&pools) {
                    let there = to.clone().in_shard(shard);
                    let (found, pool) = late.forward(WHERE, &there, &()).unwrap();
                    assert_eq!((found, &*pool), (shard, of_shard.name()));
                    let exposed = late.expose(vec![1; 50_000], Access::ReadOnly).unwrap();
                    assert_eq!(late.forward(PULL, &there, exposed.bulk()).unwrap(), 50_000);
                }
                // ULTs next to a shard call through it, also the instance itself.
                let (own, me) = (service.clone(), ProviderHandle::from(service.self_addr()));
                let call = move || own.forward(WHERE, &me, &()).unwrap().0;
                let called = pools[number].spawn(call).unwrap().join().unwrap();
                assert_eq!(usize::from(called), number);
                late.finalize_and_wait().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            for caller in callers {
                assert!(caller.join().unwrap() > 0);
            }
            assert_eq!(service.metrics().shards.len(), 4);
            service.finalize_and_wait().unwrap();
        });
    }
}

/// Connections are shared out among the shards that there are when they begin.
#[test]
fn later_clients_come_to_an_added_shard() {
    for address in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        bounded(address, move || {
            let service = start(address, true, 1);
            serve(&service);
            let shard_of = || {
                let client = start(address, false, 1);
                let (shard, _) = client.forward(WHERE, &target(&client, &service), &()).unwrap();
                (client, shard)
            };
            let before: Vec<_> = (0..2).map(|_| shard_of()).collect();
            assert_eq!(before.iter().map(|(_, shard)| *shard).collect::<Vec<_>>(), [0, 0]);
            service.layout().add_shard().unwrap();
            let after: Vec<_> = (0..2).map(|_| shard_of()).collect();
            assert_eq!(after.iter().map(|(_, shard)| *shard).collect::<Vec<_>>(), [1, 1]);
            for (client, _) in &before {
                let (shard, _) = client.forward(WHERE, &target(client, &service), &()).unwrap();
                assert_eq!(shard, 0, "a connection stays");
            }
            for (client, _) in before.into_iter().chain(after) {
                client.finalize_and_wait().unwrap();
            }
            service.finalize_and_wait().unwrap();
        });
    }
}

/// Two instances that call each other all the time grow.
#[test]
fn callers_on_both_sides_get_shards() {
    for address in ADDRESSES {
        bounded(address, move || {
            let both = [start(address, true, 1), start(address, true, 1)];
            both.iter().for_each(serve);
            let stop = Arc::new(AtomicBool::new(false));
            let call = |from: &Instance, to: &Instance| {
                let (from, to, stop) = (from.clone(), target(from, to), stop.clone());
                let exposed = from.expose(vec![1; 9_000], Access::ReadOnly).unwrap();
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        from.forward(WHERE, &to, &()).unwrap();
                        assert_eq!(from.forward(PULL, &to, exposed.bulk()).unwrap(), 9_000);
                    }
                }
            };
            let (here, there) = (&both[0], &both[1]);
            let threads = [thread::spawn(call(here, there)), thread::spawn(call(there, here))];
            let mut ults = Vec::new();
            for _ in 0..2 {
                for (own, other) in [(here, there), (there, here)] {
                    let shard = own.layout().add_shard().unwrap();
                    let pool = own.layout().progress_pools().nth(shard).unwrap();
                    ults.push(pool.spawn(call(own, other)).unwrap());
                    own.forward(WHERE, &target(own, other), &()).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|caller| caller.join().unwrap());
            ults.into_iter().for_each(|caller| caller.join().unwrap());
            both.iter().for_each(|one| one.finalize_and_wait().unwrap());
        });
    }
}

#[test]
fn the_document_in_effect_has_added_shards() {
    let service = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "net" } ],
                           "xstreams": [ { "name": "x", "scheduler": { "pools": ["net"] } } ] } }"#,
    )
    .unwrap();
    assert_eq!(service.layout().add_shard_in("net").unwrap(), 1);
    assert_eq!(service.layout().add_shard().unwrap(), 2);
    let names = |one: &Instance| -> Vec<_> {
        one.layout().progress_pools().map(|pool| pool.name().to_owned()).collect()
    };
    let pools = names(&service);
    assert_eq!(pools[..2], ["__primary__", "net"]);
    let printed = service.config();
    assert!(matches!(&printed.margo.shards, Some(Shards::Pools(pools)) if pools.len() == 3));
    let users = service.layout().pool_users("net").unwrap();
    assert!(users.contains(&"the progress ULT of shard 1".to_owned()), "{users:?}");
    service.finalize_and_wait().unwrap();
    let again = Instance::from_config(&printed).unwrap();
    assert_eq!(names(&again), pools);
    again.finalize_and_wait().unwrap();
}

#[test]
fn an_added_shard_moves_and_keeps_its_pool() {
    let service = margo::init("{}").unwrap();
    serve(&service);
    let shard = service.layout().add_shard().unwrap();
    let pool = service.layout().progress_pools().nth(shard).unwrap();
    let refused = service.layout().remove_pool(&pool).unwrap_err();
    assert!(matches!(refused, ElasticityError::PoolInUse { .. }), "{refused}");
    let other = service.layout().add_pool_from_json(r#"{ "name": "other" }"#).unwrap();
    service.layout().add_xstream_from_json(r#"{ "scheduler": { "pools": ["other"] } }"#).unwrap();
    service.layout().migrate_progress_of(shard, &other).unwrap();
    let me = ProviderHandle::from(service.self_addr()).in_shard(shard as u8);
    assert_eq!(service.forward(WHERE, &me, &()).unwrap(), (1, pool.name().to_owned()));
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_shard_that_cannot_be_is_refused() {
    let service = margo::init(
        r#"{ "argobots": {
                "pools": [ { "name": "net" }, { "name": "idle" },
                           { "name": "own", "access": "private" } ],
                "xstreams": [ { "scheduler": { "pools": ["net", "own"] } } ] } }"#,
    )
    .unwrap();
    let refused = |pool: &str| service.layout().add_shard_in(pool).unwrap_err();
    assert!(matches!(refused("none"), ElasticityError::NoSuchPool { .. }));
    assert!(matches!(refused("idle"), ElasticityError::Unserved { .. }));
    assert!(matches!(refused("own"), ElasticityError::PrivatePool { .. }));
    assert!(matches!(refused("__primary__"), ElasticityError::PoolInUse { .. }));
    service.layout().add_shard_in("net").unwrap();
    assert!(matches!(refused("net"), ElasticityError::PoolInUse { .. }));
    let child = Instance::builder("na+sm://").parent(&service).start().unwrap();
    assert!(matches!(child.layout().add_shard(), Err(ElasticityError::Child)));
    assert_eq!(child.layout().add_shard_in("net").unwrap(), 1, "the child's own");
    child.finalize_and_wait().unwrap();
    assert_eq!(service.metrics().shards.len(), 2);
    service.finalize_and_wait().unwrap();
    assert!(matches!(service.layout().add_shard(), Err(ElasticityError::Closing)));
    assert!(matches!(service.layout().add_shard_in("idle"), Err(ElasticityError::Closing)));
}

/// The parts of a provider stay as they are; requests for them find them, wherever they arrive.
#[test]
fn providers_with_parts_keep_them() {
    const OWN: Rpc<(), usize> = Rpc::new("own");
    for shards in [1, 2] {
        let document = format!(r#"{{ "margo": {{ "shards": {shards} }} }}"#);
        let service = margo::init(&document).unwrap();
        let id = ProviderId::new(3);
        let before = service.sharded_provider(id, ShardPlace::index).unwrap();
        service.layout().add_shard().unwrap();
        // Registered when there are more shards than parts.
        before.serve(OWN).part_function(|part, ()| *part).unwrap();
        service.layout().add_shard().unwrap();
        let after = service.sharded_provider(ProviderId::new(4), ShardPlace::index).unwrap();
        assert_eq!((before.object().parts(), after.object().parts()), (shards, shards + 2));
        let client = margo::init(r#"{ "margo": { "listen": false } }"#).unwrap();
        let to = ProviderHandle::new(client.lookup(service.self_addr().uri()).unwrap(), id);
        for part in 0..shards as u8 {
            let object = client.forward(OWN, &to.clone().in_shard(part), &()).unwrap();
            assert_eq!(object, usize::from(part));
        }
        let beyond = to.clone().in_shard(shards as u8);
        client.forward(OWN, &beyond, &()).unwrap_err();
        client.forward(OWN, &to, &()).unwrap();
        client.finalize_and_wait().unwrap();
        drop((before, after));
        service.finalize_and_wait().unwrap();
    }
}

/// RPCs are registered and deregistered meanwhile: none is lost, none comes back.
#[test]
fn registrations_change_meanwhile() {
    bounded("registrations", || {
        let service = margo::init("{}").unwrap();
        let (own, stop) = (service.clone(), Arc::new(AtomicBool::new(false)));
        let (told, changes) = (stop.clone(), Arc::new(AtomicUsize::new(0)));
        let count = changes.clone();
        let changing = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                own.register(WHERE, |request| request.respond(&(0, String::new())).unwrap())
                    .unwrap();
                assert!(own.deregister(WHERE, ProviderId::DEFAULT));
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        for shard in 1..6 {
            let before = changes.load(Ordering::Relaxed);
            while changes.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            assert_eq!(service.layout().add_shard().unwrap(), shard);
        }
        stop.store(true, Ordering::Relaxed);
        changing.join().unwrap();
        assert!(service.layout().handler_pool(WHERE, ProviderId::DEFAULT).is_none());
        service.finalize_and_wait().unwrap();
    });
}

/// Adding a shard while the instance ends succeeds or is an error, and the end comes.
#[test]
fn an_instance_ends_while_shards_are_added() {
    for address in ADDRESSES {
        bounded(address, move || {
            for round in 0..8 {
                let service = start(address, true, 1);
                serve(&service);
                let own = service.clone();
                let adding = thread::spawn(move || {
                    let mut added = 0;
                    loop {
                        match own.layout().add_shard() {
                            Ok(_) => added += 1,
                            Err(ElasticityError::Closing) => return added,
                            // Of the pool or xstream that was begun.
                            Err(_) if own.is_finalizing() => return added,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
                while service.layout().progress_pools().count() <= round % 3 {
                    thread::yield_now();
                }
                service.finalize_and_wait().unwrap();
                assert!(adding.join().unwrap() >= round % 3);
            }
        });
    }
}
