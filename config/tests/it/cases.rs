//! Documents with their outcome, as tables in `tests/cases/*.json`.
//!
//! Each case has `name`, `in` (a document, or its text as a string), perhaps `env`, and either
//!
//! - `out`: what the effective configuration must contain (objects: at least these keys, where
//!   null means absent; arrays: the same length) and `warnings`: exactly these, by substrings;
//!   what is in effect is a document that comes to itself; or
//! - `exact`: what the effective configuration is, as changes of `base` below (objects by key, all
//!   else as a whole), printed with the flags `names` and `hide_external`; apart from what C prints
//!   otherwise (`version`, `mercury`) or not at all (`margo`); or
//! - `error`: substrings that the printed errors must contain.

use std::collections::HashMap;

use margo_config::{Config, ConfigFlags, Warning};
use serde_json::Value;

const TABLES: [(&str, &str); 9] = [
    ("accepted", include_str!("../cases/accepted.json")),
    ("exact", include_str!("../cases/exact.json")),
    ("wrong-types", include_str!("../cases/wrong-types.json")),
    ("layout", include_str!("../cases/layout.json")),
    ("rpc-layer", include_str!("../cases/rpc-layer.json")),
    ("shards", include_str!("../cases/shards.json")),
    ("margo-object", include_str!("../cases/margo-object.json")),
    ("security", include_str!("../cases/security.json")),
    ("keys-and-syntax", include_str!("../cases/keys-and-syntax.json")),
];

#[test]
fn documents_mean_what_the_tables_say() {
    let mut failures = Vec::new();
    let mut count = 0;
    for (table, text) in TABLES {
        let cases: Vec<Value> = serde_json::from_str(text).expect(table);
        for case in &cases {
            count += 1;
            if let Err(why) = run(case) {
                failures.push(format!("{table}: {}: {why}", case["name"]));
            }
        }
    }
    assert!(count > 150, "only {count} cases were read");
    assert!(failures.is_empty(), "{} of {count} cases:\n{}", failures.len(), failures.join("\n"));
}

fn run(case: &Value) -> Result<(), String> {
    let text = match &case["in"] {
        Value::String(text) => text.clone(),
        document => document.to_string(),
    };
    let variables: HashMap<&str, &str> = case["env"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
        .collect();
    let env = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    if let Some(changes) = case.get("exact") {
        return exact(&text, &env, case, changes);
    }
    match (Config::check(&text, &env), case.get("out"), case.get("error")) {
        (Ok((effective, warnings)), Some(expected), None) => {
            comes_to_itself(&effective, ConfigFlags::default())?;
            let effective = serde_json::to_value(effective).map_err(|error| error.to_string())?;
            contains("", &effective, expected)?;
            check_warnings(&warnings, &strings(&case["warnings"]))
        }
        (Err(errors), None, Some(expected)) => {
            let (printed, expected) = (errors.to_string(), strings(expected));
            match expected.iter().find(|part| !printed.contains(*part)) {
                Some(part) => Err(format!("no {part:?} in\n    {printed}")),
                None if expected.is_empty() => Err("expects no particular error".to_owned()),
                None => Ok(()),
            }
        }
        (Ok(_), ..) => Err("is accepted".to_owned()),
        (Err(errors), ..) => Err(format!("is rejected: {errors}")),
    }
}

/// The document that C Margo prints for `{}`, without the parts that are left out.
fn base() -> Value {
    serde_json::json!({
        "argobots": {
            "pools": [{"name": "__primary__", "kind": "fifo_wait", "access": "mpmc"}],
            "xstreams": [{"name": "__primary__", "cpubind": -1, "affinity": [],
                "scheduler": {"type": "basic_wait", "pools": [0]}}],
            "abt_mem_max_num_stacks": 8,
            "abt_thread_stacksize": 2097152,
            "profiling_dir": ".",
        },
        "progress_pool": 0, "rpc_pool": 0, "progress_timeout_ub_msec": 100,
        "progress_spindown_msec": 10, "handle_cache_size": 256, "enable_abt_profiling": false,
    })
}

fn exact(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    case: &Value,
    changes: &Value,
) -> Result<(), String> {
    let flags = ConfigFlags {
        use_names: case["names"] == true,
        hide_external: case["hide_external"] == true,
    };
    let (effective, warnings) =
        Config::check_as(text, env, flags).map_err(|errors| format!("is rejected: {errors}"))?;
    let mut printed = serde_json::to_value(&effective).map_err(|error| error.to_string())?;
    for key in ["version", "mercury", "margo"] {
        printed.as_object_mut().and_then(|all| all.remove(key)).ok_or(key)?;
    }
    let mut expected = base();
    overlay(&mut expected, changes);
    if printed != expected {
        return Err(format!("is\n    {printed}\n  not\n    {expected}"));
    }
    comes_to_itself(&effective, flags)?;
    check_warnings(&warnings, &strings(&case["warnings"]))
}

/// Checks that the printed document is accepted and prints the same again.
fn comes_to_itself(effective: &Config, flags: ConfigFlags) -> Result<(), String> {
    let (again, _) = Config::check_as(&effective.to_json(), &|_| None, flags)
        .map_err(|errors| format!("its outcome is rejected: {errors}"))?;
    match again == *effective {
        true => Ok(()),
        false => Err(format!("its outcome comes to {}", again.to_json())),
    }
}

fn overlay(base: &mut Value, changes: &Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, value) in changes {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, changes) => *base = changes.clone(),
    }
}

fn check_warnings(warnings: &[Warning], expected: &[&str]) -> Result<(), String> {
    let printed: Vec<_> = warnings.iter().map(Warning::to_string).collect();
    let all = expected.iter().all(|part| printed.iter().any(|text| text.contains(part)));
    match all && printed.len() == expected.len() {
        true => Ok(()),
        false => Err(format!("warns {printed:#?}")),
    }
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns whether `actual` has everything that `expected` asks for.
fn contains(path: &str, actual: &Value, expected: &Value) -> Result<(), String> {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => {
            expected.iter().try_for_each(|(key, value)| {
                let found = actual.get(key).unwrap_or(&Value::Null);
                contains(&format!("{path}.{key}"), found, value)
            })
        }
        (Value::Array(actual), Value::Array(expected)) if actual.len() == expected.len() => actual
            .iter()
            .zip(expected)
            .enumerate()
            .try_for_each(|(at, (one, two))| contains(&format!("{path}[{at}]"), one, two)),
        _ if actual == expected => Ok(()),
        _ => Err(format!("{path} is {actual}, expected {expected}")),
    }
}

#[test]
fn every_kind_goes_with_every_access() {
    for kind in ["fifo", "fifo_wait", "prio_wait", "earliest_first"] {
        for access in ["private", "spsc", "mpsc", "spmc", "mpmc"] {
            let text = format!(
                r#"{{"argobots": {{"pools": [
                    {{"name": "__primary__", "kind": "{kind}", "access": "{access}"}}]}}}}"#
            );
            let (effective, warnings) = Config::check(&text, &|_| None).expect("accepted");
            let pool = serde_json::to_value(&effective.argobots.pools[0]).expect("serialises");
            assert_eq!(
                (pool["kind"].as_str(), pool["access"].as_str()),
                (Some(kind), Some(access))
            );
            assert_eq!(warnings, []);
        }
    }
}
