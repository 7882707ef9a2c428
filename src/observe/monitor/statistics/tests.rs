//! Rows beyond the bound, and sums over many of them.

use std::sync::Arc;

use serde_json::Value;
use ult::Eventual;

use super::super::c_layout;
use super::super::rows::Key;
use super::*;

/// Counts a transfer of 10 bytes on behalf of that RPC; 0: outside of any.
fn pull(store: &Store, rpc: u64, peer: u64) {
    let key = Key { id: rpc, parent: BulkDirection::Pull as u64, peer };
    let about =
        || About { rpc: String::new(), id: rpc, parent: key.parent, peer: format!("peer{peer}") };
    let begun = store.bulk.begin(key, about, 0);
    store.bulk.row(begun.row).unwrap().bytes(10);
}

/// How many transfers C's layout has of an RPC of that number and provider.
fn in_c_layout(told: &Statistics, of: &str) -> u64 {
    let stats = c_layout::stats(told, 9);
    let rpcs = stats["rpcs"].as_object().unwrap().iter();
    let targets = rpcs.filter(|(key, _)| key.ends_with(of)).map(|(_, rpc)| &rpc["target"]);
    let values = |of: &Value| of.as_object().unwrap().values().cloned().collect::<Vec<_>>();
    let bulk = targets.flat_map(values).flat_map(|target| values(&target["bulk"]));
    bulk.map(|bulk| bulk["itransfer"]["size"]["num"].as_u64().unwrap()).sum()
}

#[test]
fn transfers_beyond_the_bound_are_told_apart_from_those_outside_of_any_rpc() {
    let store = Store::new(4);
    let every_transfer = |store: &Store, rpc, peer| {
        pull(store, rpc, peer);
        let key = Key { id: rpc, parent: 0, peer };
        let row = store.bulk.number(key, || unreachable!("it has one"));
        // Looked at, so that C's layout has figures.
        store.bulk.row(row).unwrap().note(|kept| kept.size.add(10, 1));
    };
    (0..20).for_each(|peer| every_transfer(&store, 0, peer));
    (1..=7u64).for_each(|rpc| every_transfer(&store, rpc << 16, 0));
    let told = store.read(String::new(), false);
    let sum = |is: fn(&Option<RpcName>) -> bool| {
        told.bulk.iter().filter(|row| is(&row.rpc)).map(|row| row.transfers).sum::<u64>()
    };
    assert_eq!(sum(Option::is_none), 20, "outside of any: {:#?}", told.bulk);
    let is_rest = |rpc: &Option<RpcName>| {
        rpc.as_ref().is_some_and(|rpc| rpc.name == OTHER_RPCS_NAME && rpc.rpc_id == 0)
    };
    assert_eq!(sum(is_rest), 7);
    assert_eq!(in_c_layout(&told, ":65535:65535"), 20, "the RPC of C's number 0");
    assert_eq!(in_c_layout(&told, ":65535:0"), 7);
}

#[test]
fn a_long_sum_gives_way_to_others_of_its_execution_stream() {
    const ROWS: usize = 640;
    let store = Store::new(ROWS);
    for rpc in 0..ROWS as u64 {
        let key = Key { id: rpc << 16, parent: 0, peer: 0 };
        let about = || About { rpc: rpc.to_string(), id: key.id, parent: 0, peer: "x".into() };
        store.target.begin(key, about, 0);
    }
    let runtime = ult::Runtime::builder()
        .pool(ult::PoolSpec::new("p"))
        .xstream(ult::XstreamSpec::new("x").pools(["p"]))
        .start()
        .unwrap();
    let pool = runtime.pool("p").unwrap();
    let (turns, summed) = (Arc::new(AtomicU32::new(0)), Arc::new(Eventual::new()));
    let (counted, is_over) = (turns.clone(), summed.clone());
    let other = pool.spawn(move || {
        while !is_over.is_ready() {
            counted.fetch_add(1, Ordering::Relaxed);
            ult::yield_now();
        }
    });
    let sum = pool.spawn(move || {
        let before = turns.load(Ordering::Relaxed);
        let sums = store.by_rpc();
        summed.set(()).unwrap();
        (sums.len(), turns.load(Ordering::Relaxed) - before)
    });
    let (rpcs, turns) = sum.unwrap().join().unwrap();
    other.unwrap().join().unwrap();
    assert_eq!((rpcs, turns as usize), (ROWS, ROWS / 64));
    runtime.shutdown().unwrap();
}

#[test]
fn series_have_what_is_beyond_the_bound_and_nothing_from_outside_of_any_rpc() {
    let store = Store::new(4);
    let requests = |rpc: u64, peer: u64| {
        let about =
            || About { rpc: format!("rpc{rpc}"), id: rpc << 16, parent: 0, peer: peer.to_string() };
        store.target.begin(Key { id: rpc << 16, parent: 0, peer }, about, 0);
    };
    (1..=10).for_each(|rpc| requests(rpc, 0));
    (0..20).for_each(|peer| pull(&store, 0, peer));
    (1..=7u64).for_each(|rpc| pull(&store, rpc << 16, 0));
    let sums = store.by_rpc();
    assert_eq!(sums["rpc1:0"], (1, 0));
    assert_eq!(sums.values().map(|sum| sum.0).sum::<u64>(), 10);
    let others = sums[OTHER_RPCS_NAME];
    assert!(others.0 >= 4 && others.1 == 70, "{sums:?}");
    assert!(!sums.contains_key("other RPCs:0"));
}
