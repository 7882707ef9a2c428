//! Random documents, for tests of properties that hold for all documents.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

fn pool_ref() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => (0usize..4).prop_map(Value::from),
        2 => "[a-c]".prop_map(Value::from),
        1 => Just(Value::from("__primary__")),
    ]
}

fn pool() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        3 => Just(Value::Null),
        4 => "[a-c]".prop_map(Value::from),
        1 => Just(Value::from("__primary__")),
        1 => "__pool_[0-4]__".prop_map(Value::from),
    ];
    let kind =
        prop::sample::select(vec!["fifo", "fifo_wait", "prio_wait", "earliest_first", "randws"]);
    let access = prop::sample::select(vec!["private", "mpsc", "mpmc"]);
    let stack = prop::option::of(16_384u32..200_000);
    let node = prop::option::of(0u32..3);
    (name, kind, access, stack, node).prop_map(|(name, kind, access, stack, node)| {
        json!({"name": name, "kind": kind, "access": access, "stack_bytes": stack,
            "numa_node": node})
    })
}

fn xstream() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        3 => Just(Value::Null),
        1 => "[x-z]".prop_map(Value::from),
        1 => Just(Value::from("__primary__")),
    ];
    let kind = prop::sample::select(vec!["default", "basic", "prio", "randws", "basic_wait"]);
    let affinity = prop_oneof![
        3 => vec(0u32..8, 0..3).prop_map(Value::from),
        1 => "(numa|core|package):[0-3]".prop_map(Value::from),
    ];
    (name, -1i32..4, affinity, kind, vec(pool_ref(), 1..3)).prop_map(
        |(name, cpubind, affinity, kind, mut pools)| {
            if name == "__primary__" {
                pools.insert(0, name.clone());
            }
            json!({"name": name, "cpubind": cpubind, "affinity": affinity,
                "scheduler": {"type": kind, "pools": pools}})
        },
    )
}

fn provider() -> impl Strategy<Value = Value> {
    let config = prop_oneof![Just(Value::Null), any::<f64>().prop_map(|x| json!({"x": [x]}))];
    (prop::sample::select(vec!["blob", "echo"]), 0u16..20, prop::option::of(pool_ref()), config)
        .prop_map(|(kind, id, pool, config)| {
            json!({"type": kind, "provider_id": id, "pool": pool, "config": config})
        })
}

/// Documents of which a fair part is accepted.
pub(crate) fn document() -> impl Strategy<Value = Value> {
    let role = || prop::option::weighted(0.3, pool_ref());
    let layout = (vec(pool(), 0..4), vec(xstream(), 0..3));
    let roles = (role(), role(), any::<bool>(), -1i32..4);
    (layout, roles, vec(provider(), 0..3), any::<u16>()).prop_map(
        |((pools, xstreams), (progress, rpc, thread, count), providers, number)| {
            json!({
                "argobots": {"pools": pools, "xstreams": xstreams},
                "progress_pool": progress, "rpc_pool": rpc,
                "use_progress_thread": thread, "rpc_thread_count": count,
                "handle_cache_size": number, "progress_spindown_msec": number,
                "margo": {"providers": providers, "spin_max_usec": number},
                "mercury": {"max_contexts": number % 4, "listening": thread},
            })
        },
    )
}
