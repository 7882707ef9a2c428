//! Providers with an object for each shard.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{PATIENCE, bounded};
use margo::ult::{self, Eventual};
use margo::{
    ForwardError, Instance, Provider, ProviderHandle, ProviderId, Rpc, bulk_memory::AllocOptions,
    errors::ShardedError, sharded::ShardPlace, sharded::Sharded, sharded::ShardedHandle,
};

const ID: ProviderId = ProviderId::new(7);
const PUT: Rpc<(String, u64), usize> = Rpc::new("kv_put");
const GET: Rpc<String, Option<u64>> = Rpc::new("kv_get");
const HOME: Rpc<(), (usize, u8)> = Rpc::new("kv_home");
const ADDRESSES: [&str; 3] = ["na+sm://", "na+tcp://127.0.0.1:0", "na+sim://"];

/// An object that no other thread may see: `Rc` and `RefCell`.
struct Store {
    part: usize,
    values: Rc<RefCell<HashMap<String, u64>>>,
    /// Counts the objects that are dropped where they were made.
    home: std::thread::ThreadId,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Store {
    fn drop(&mut self) {
        assert_eq!(std::thread::current().id(), self.home);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn start(address: &str, listen: bool, shards: usize) -> Instance {
    let document = format!(
        r#"{{ "margo": {{ "address": "{address}", "listen": {listen}, "shards": {shards} }} }}"#
    );
    margo::init(&document).unwrap()
}

fn serve(service: &Instance, dropped: &Arc<AtomicUsize>) -> Provider<Sharded<Store>> {
    let dropped = dropped.clone();
    let make = move |shard: &ShardPlace| {
        let (home, dropped) = (std::thread::current().id(), dropped.clone());
        Store { part: shard.index(), values: Rc::default(), home, dropped }
    };
    let kv = service.sharded_provider(ID, make).unwrap();
    kv.serve(PUT)
        .part_function(|store, (key, value)| {
            store.values.borrow_mut().insert(key, value);
            store.part
        })
        .unwrap();
    kv.serve(GET).part_function(|store, key| store.values.borrow().get(&key).copied()).unwrap();
    kv.serve(HOME).part_method(|store, handle| (store.part, handle.shard())).unwrap();
    kv
}

fn client_of(service: &Instance, address: &str, shards: usize) -> (Instance, ShardedHandle) {
    let own = address.split("://").next().unwrap();
    let client = start(&format!("{own}://"), false, shards);
    let target = client.lookup(service.self_addr().uri()).unwrap();
    let there = client.sharded_handle(&ProviderHandle::new(target, ID)).unwrap();
    (client, there)
}

/// Each key has one home, whoever asks; nothing is locked, and all is dropped where it was made.
#[test]
fn keys_are_served_by_the_shard_that_has_them() {
    for address in ADDRESSES {
        bounded(address, move || {
            let dropped = Arc::new(AtomicUsize::new(0));
            let service = start(address, true, 3);
            let kv = serve(&service, &dropped);
            let (client, there) = client_of(&service, address, 2);
            assert_eq!((there.parts(), kv.object().parts()), (3, 3));
            let ask = move |client: &Instance, there: &ShardedHandle, from: usize| {
                for n in 0..60 {
                    let (key, value) = (format!("{from}-{n}"), (from * 1000 + n) as u64);
                    let to = there.for_key(&key);
                    let part = client.forward(PUT, to, &(key.clone(), value)).unwrap();
                    assert_eq!(part, margo::sharded::part_of_key(key.as_bytes(), 3));
                    assert_eq!(
                        client.forward(GET, there.for_key(&key), &key).unwrap(),
                        Some(value)
                    );
                }
            };
            let pools: Vec<_> = client.layout().progress_pools().collect();
            let callers: Vec<_> = pools
                .iter()
                .enumerate()
                .map(|(from, pool)| {
                    let (client, there) = (client.clone(), there.clone());
                    pool.spawn(move || ask(&client, &there, from)).unwrap()
                })
                .collect();
            ask(&client, &there, 2);
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            let counts = kv.object().gather(|store| store.values.borrow().len()).unwrap();
            assert_eq!(counts.iter().sum::<usize>(), 180);
            assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
            for part in 0..3 {
                let to = there.for_part(part).unwrap();
                assert_eq!(client.forward(HOME, to, &()).unwrap(), (part, part as u8));
                assert_eq!(kv.object().with(part, |store| store.part).unwrap(), part);
            }
            assert!(there.for_part(3).is_none() && kv.object().here().is_none());
            client.finalize_and_wait().unwrap();
            drop(kv);
            service.finalize_and_wait().unwrap();
            assert_eq!(dropped.load(Ordering::Relaxed), 3);
        });
    }
}

/// A request for a part goes to its shard also where it arrives at another one, and one for a part
/// that is not there is refused.
#[test]
fn a_request_that_arrives_elsewhere_goes_home() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let service = start("na+sm://", true, 3);
    let kv = serve(&service, &dropped);
    // Calls to oneself arrive at the shard of their caller, or at the one that they name.
    let own = ProviderHandle::new(service.self_addr(), ID);
    for pool in service.layout().progress_pools() {
        let (service, own) = (service.clone(), own.clone());
        let asked = pool.spawn(move || {
            let there = service.sharded_handle(&own).unwrap();
            for part in 0..3 {
                let to = there.for_part(part).unwrap();
                assert_eq!(service.forward(HOME, to, &()).unwrap().0, part);
            }
        });
        asked.unwrap().join().unwrap();
    }
    let client = start("na+sm://", false, 1);
    let to = client.lookup(service.self_addr().uri()).unwrap();
    // There is no connection with a shard of that number: the request arrives at any.
    let beyond = ProviderHandle::new(to, ID).in_shard(9);
    let refused = client.forward(HOME, &beyond, &()).unwrap_err();
    assert!(!matches!(refused, ForwardError::TimedOut { .. }), "{refused}");
    client.finalize_and_wait().unwrap();
    drop(kv);
    service.finalize_and_wait().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 3);
}

/// Handlers of one part interleave where they wait, and others go on.
#[test]
fn handlers_of_a_part_take_turns_at_its_object() {
    const WAIT: Rpc<(), u32> = Rpc::new("kv_wait");
    let service = start("na+sm://", true, 2);
    let go = Arc::new(Eventual::new());
    let kv = service.sharded_provider(ID, |_| Cell::new(0u32)).unwrap();
    let may_go = go.clone();
    kv.serve(WAIT)
        .part_function(move |count, ()| {
            count.set(count.get() + 1);
            may_go.wait();
            count.get()
        })
        .unwrap();
    let (client, there) = client_of(&service, "na+sm://", 1);
    let to = there.for_part(1).unwrap();
    let calls: Vec<_> = (0..3).map(|_| client.rpc(WAIT, to, &()).start().unwrap()).collect();
    while kv.object().with(1, Cell::get).unwrap() < 3 {
        ult::yield_now();
    }
    assert_eq!(kv.object().with(0, Cell::get).unwrap(), 0);
    go.set(()).unwrap();
    for call in calls {
        assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), 3);
    }
    client.finalize_and_wait().unwrap();
    drop(kv);
    service.finalize_and_wait().unwrap();
}

#[test]
fn what_cannot_be_sharded_is_refused_with_the_reason() {
    let document = r#"{ "margo": { "address": "na+sm://", "shards": 2 }, "rpc_thread_count": 1 }"#;
    let service = margo::init(document).unwrap();
    let error = service.sharded_provider(ID, |_| ()).unwrap_err();
    assert!(matches!(error, ShardedError::OtherPool { .. }), "{error}");
    assert!(error.to_string().contains("`rpc_thread_count`"), "{error}");
    service.finalize_and_wait().unwrap();
    let service = start("na+sm://", true, 2);
    let pools: Vec<_> =
        service.layout().progress_pools().map(|pool| pool.name().to_owned()).collect();
    let more = format!(r#"{{ "name": "more", "scheduler": {{ "pools": ["{}"] }} }}"#, pools[1]);
    service.layout().add_xstream_from_json(&more).unwrap();
    let error = service.sharded_provider(ID, |_| ()).unwrap_err();
    assert!(matches!(&error, ShardedError::NotAlone { pool, .. } if *pool == pools[1]), "{error}");
    service.layout().remove_xstream("more").unwrap();
    // An object that cannot be made leaves nothing behind.
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = dropped.clone();
    let make = move |shard: &ShardPlace| {
        assert_eq!(shard.index(), 0, "on purpose");
        let (home, dropped) = (std::thread::current().id(), count.clone());
        Store { part: shard.index(), values: Rc::default(), home, dropped }
    };
    let error = service.sharded_provider(ID, make).unwrap_err();
    assert!(matches!(error, ShardedError::Ended { part: 1, .. }), "{error}");
    let own = ProviderHandle::new(service.self_addr(), ID);
    let error = service.sharded_handle(&own).unwrap_err();
    assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    let kv = service.sharded_provider(ID, ShardPlace::index).unwrap();
    let error = kv.object().with(2, |part| *part).unwrap_err();
    assert_eq!(error.to_string(), "there is no part 2: the provider has 2");
    let error = kv.object().with(1, |_| panic!("on purpose")).unwrap_err();
    assert!(matches!(error, ShardedError::Ended { part: 1, .. }), "{error}");
    drop(kv);
    service.finalize_and_wait().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn without_shards_there_is_one_part() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let service = start("na+sm://", true, 1);
    let kv = serve(&service, &dropped);
    let (client, there) = client_of(&service, "na+sm://", 3);
    assert_eq!(there.parts(), 1);
    let key = "key".to_owned();
    assert_eq!(client.forward(PUT, there.for_key(&key), &(key.clone(), 5)).unwrap(), 0);
    assert_eq!(client.forward(GET, there.for_key(&key), &key).unwrap(), Some(5));
    client.finalize_and_wait().unwrap();
    kv.close(PATIENCE).unwrap();
    service.finalize_and_wait().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

/// On a machine with one node that is all that there is.
#[test]
fn what_makes_an_object_is_told_where_its_shard_is() {
    let machine = margo::ult::Topology::get().unwrap();
    let cpu = machine.bindable().first().unwrap();
    let document = format!(
        r#"{{ "argobots": {{
            "pools": [ {{ "name": "a" }}, {{ "name": "b" }} ],
            "xstreams": [ {{ "name": "x", "cpubind": {cpu}, "scheduler": {{ "pools": ["a"] }} }},
                          {{ "name": "y", "scheduler": {{ "pools": ["b"] }} }} ] }},
            "margo": {{ "address": "na+sm://", "shards": ["a", "b"] }} }}"#
    );
    let service = margo::init(&document).unwrap();
    let node_of_page = margo::ult::topology::node_of_page;
    let own = service.clone();
    let make = move |shard: &ShardPlace| {
        // Memory that is allocated there is there, where the kernel tells.
        let mut memory = own.alloc(1 << 20, &AllocOptions::default()).unwrap();
        let node = node_of_page(&memory.as_mut_slice().unwrap()[1 << 19]).ok().flatten();
        let is_here = node.zip(shard.numa_node()).is_none_or(|(node, own)| node == own);
        (shard.clone(), is_here)
    };
    let kv = service.sharded_provider(ID, make).unwrap();
    let places = kv.object().gather(Clone::clone).unwrap();
    assert!(places.iter().all(|(_, is_here)| *is_here), "{places:?}");
    let [(first, _), (second, _)] = &places[..] else { panic!("{places:?}") };
    assert_eq!((first.index(), second.index(), first.count()), (0, 1, 2));
    assert_eq!(first.cpus().map(|cpus| cpus.iter().collect()), Some(vec![cpu]));
    assert_eq!((second.cpus(), first.numa_node()), (None, machine.nearest_memory_node(cpu)));
    drop(kv);
    service.finalize_and_wait().unwrap();
}
