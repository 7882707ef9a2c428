//! Properties over generated documents and over arbitrary text.

use margo_config::Config;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

fn no_env(_: &str) -> Option<String> {
    None
}

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
        |(name, cpubind, affinity, kind, pools)| {
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
fn document() -> impl Strategy<Value = Value> {
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

/// A document with something replaced by something else.
fn broken_document() -> impl Strategy<Value = String> {
    (document(), any::<prop::sample::Index>(), ".{0,6}").prop_map(|(document, at, noise)| {
        let mut text = document.to_string();
        let at = at.index(text.len());
        let end = text.len().min(at + noise.len());
        // The document itself is ASCII, so every offset is a character boundary.
        text.replace_range(at..end, &noise);
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_effective_document_is_its_own_effective_document(document in document()) {
        let Ok((effective, _)) = Config::check(&document.to_string(), &no_env) else {
            return Ok(());
        };
        let printed = effective.to_json_pretty();
        let read = Config::from_json(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&read, &effective);
        let (again, _) = Config::check(&printed, &no_env)
            .map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(again, effective);
    }

    #[test]
    fn what_is_resolved_is_consistent(document in document()) {
        let Ok(config) = Config::from_json(&document.to_string()) else { return Ok(()) };
        let resolved = config.resolve(&no_env).expect("from_json has checked it");
        let pools = resolved.pools.len();
        let mut names: Vec<_> = resolved.pools.iter().map(|pool| &pool.name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), pools);
        let runs = |pool| resolved.xstreams.iter().any(|xstream| xstream.pools.contains(&pool));
        prop_assert!(runs(resolved.progress_pool) && runs(resolved.rpc_pool));
        prop_assert!(resolved.providers.iter().all(|provider| runs(provider.pool)));
        for xstream in &resolved.xstreams {
            prop_assert!(!xstream.pools.is_empty());
            prop_assert!(xstream.pools.iter().all(|&pool| pool < pools));
        }
        let primary = resolved.xstreams.iter().filter(|xstream| xstream.name == "__primary__");
        prop_assert_eq!(primary.count(), 1);
    }

    #[test]
    fn every_error_of_a_document_has_a_position_inside_it(text in broken_document()) {
        if let Err(errors) = Config::from_json(&text) {
            prop_assert!(errors.iter().len() > 0);
            for error in &errors {
                let (line, column) = (error.line.expect("line"), error.column.expect("column"));
                let found = text.split('\n').nth(line - 1).expect("such a line");
                prop_assert!((1..=found.chars().count() + 1).contains(&column), "{}", error);
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = Config::check(&text, &no_env).is_ok();
    }

    #[test]
    fn arbitrary_punctuation_never_panics(text in r#"[\[\]{}",:/*\\ a0é\n.e-]{0,60}"#) {
        let _ = Config::check(&text, &no_env).is_ok();
    }

    #[test]
    fn arbitrary_environment_never_panics(value in any::<String>()) {
        let _ = Config::default().resolve(&|_| Some(value.clone())).is_ok();
    }
}

/// The two properties above must not pass because nothing was accepted.
#[test]
fn a_fair_part_of_the_generated_documents_is_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..1000)
        .filter(|_| {
            let tree = document().new_tree(&mut runner).expect("generates");
            Config::from_json(&tree.current().to_string()).is_ok()
        })
        .count();
    assert!(accepted > 100, "only {accepted} of 1000");
}
