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

fn who() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["anyone", "uid:self", "uid:7", "host:10.0.0.0/8", "role:admin"])
}

fn rule() -> impl Strategy<Value = Value> {
    let target = prop::sample::select(vec!["*", "kv:3", "blob:7"]);
    let name = prop::option::of("[a-c]");
    (name, who(), prop::option::of(target), prop::option::of("[ab*]{1,3}")).prop_map(
        |(name, who, provider, rpc)| {
            json!({"name": name, "who": who, "provider": provider, "rpc": rpc})
        },
    )
}

/// Rules, limits and an audit file, of which a part is wrong.
fn security() -> impl Strategy<Value = Value> {
    let number = || prop::option::weighted(0.4, prop_oneof![9 => 1u64..1 << 30, 1 => Just(0)]);
    let limit =
        (prop::option::of("[a-c]"), who(), vec(number(), 5)).prop_map(|(name, who, numbers)| {
            json!({"name": name, "who": who, "calls_per_sec": numbers[0],
            "calls_burst": numbers[0].and(numbers[1]), "bytes_per_sec": numbers[2],
            "handlers_max": numbers[3], "request_bytes_max": numbers[4]})
        });
    let audit = ("[a-c]{1,2}", 1u64 << 15..1 << 20, 0u32..3)
        .prop_map(|(file, bytes, keep)| json!({"file": file, "rotate_bytes": bytes, "keep": keep}));
    let rules = || vec(rule(), 0..3);
    let admins = vec(prop::sample::select(vec!["uid:0", "uid:self", "host:10.0.0.7"]), 0..3);
    let audit = prop::option::weighted(0.3, audit);
    (rules(), rules(), admins, vec(limit, 0..3), audit).prop_map(
        |(allow, deny, admins, limits, audit)| {
            json!({"allow": allow, "deny": deny, "roles": {"admin": admins}, "limits": limits,
                "audit": audit})
        },
    )
}

/// Documents of which a fair part is accepted.
pub(crate) fn document() -> impl Strategy<Value = Value> {
    let role = || prop::option::weighted(0.3, pool_ref());
    let layout = (vec(pool(), 0..4), vec(xstream(), 0..3));
    let roles = (role(), role(), any::<bool>(), -1i32..4);
    let security = prop::option::weighted(0.3, security());
    (layout, roles, (vec(provider(), 0..3), security), any::<u16>()).prop_map(
        |((pools, xstreams), (progress, rpc, thread, count), (providers, security), number)| {
            json!({
                "argobots": {"pools": pools, "xstreams": xstreams},
                "progress_pool": progress, "rpc_pool": rpc,
                "use_progress_thread": thread, "rpc_thread_count": count,
                "handle_cache_size": number, "progress_spindown_msec": number,
                "margo": {"providers": providers, "spin_max_usec": number, "security": security},
                "mercury": {"max_contexts": number % 4, "listening": thread},
            })
        },
    )
}
