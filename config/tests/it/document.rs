//! The document as a whole: what is printed for `{}`, several errors at once, positions,
//! programmatic configurations, samples.

use std::error::Error as _;
use std::time::Duration;

use margo_config::{
    Argobots, Config, ConfigFlags, Error, Errors, PeerUsers, Pool, PoolAdmission, PoolRef,
    Resolved, Scheduler, Xstream,
};

fn no_env(_: &str) -> Option<String> {
    None
}

fn rejected(text: &str) -> Errors {
    Config::from_json(text).expect_err("rejected")
}

fn resolved(text: &str) -> Resolved {
    let config = Config::from_json(text).expect("accepted");
    config.resolve(&no_env).expect("resolves")
}

/// The `jsonc` blocks of the guide's pages are documents, valid as they stand there.
#[test]
fn the_documents_of_the_guide_are_accepted() {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/src");
    let mut count = 0;
    for page in std::fs::read_dir(pages).expect("a folder") {
        let path = page.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a page");
        for block in text.split("```jsonc\n").skip(1) {
            let document = block.split("```").next().expect("the end of the block");
            if let Err(errors) = Config::check(document, &no_env) {
                panic!("{}: {errors}\n{document}", path.display());
            }
            count += 1;
        }
    }
    assert!(count > 0, "{pages} has no documents");
}

#[test]
fn the_empty_document_prints_all_defaults() {
    let (effective, warnings) = Config::check("{}", &no_env).expect("accepted");
    let expected = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "margo": {"address": "na+sm://", "listen": true, "spin_max_usec": 50, "providers": [],
            "overflow_bytes_max": 268435456, "requests_max": 16384},
        "argobots": {
            "pools": [{"name": "__primary__", "kind": "fifo_wait", "access": "mpmc"}],
            "xstreams": [{"name": "__primary__", "cpubind": -1, "affinity": [],
                "scheduler": {"type": "basic_wait", "pools": [0]}}],
            "abt_mem_max_num_stacks": 8,
            "abt_thread_stacksize": 2097152,
            "profiling_dir": ".",
        },
        "mercury": {
            "request_post_init": 256, "request_post_incr": 256, "auto_sm": false,
            "no_bulk_eager": false, "no_loopback": false, "stats": false, "na_no_block": false,
            "na_no_retry": false, "max_contexts": 0, "na_max_unexpected_size": 0,
            "na_max_expected_size": 0, "na_request_mem_device": false, "checksum_level": "none",
            "na_addr_format": "unspec", "log_level": "warning", "log_subsys": "hg,na",
        },
        "progress_pool": 0,
        "rpc_pool": 0,
        "progress_timeout_ub_msec": 100,
        "progress_spindown_msec": 10,
        "handle_cache_size": 256,
        "enable_abt_profiling": false,
    });
    assert_eq!(serde_json::to_value(effective).expect("serialises"), expected);
    assert_eq!(warnings, []);
    assert_eq!(Config::from_json("{}").expect("accepted"), Config::default());
}

#[test]
fn resolution_converts_units() {
    let resolved = resolved(
        r#"{"progress_spindown_msec": 7, "progress_timeout_ub_msec": 3, "handle_cache_size": 5,
            "margo": {"spin_max_usec": 9, "eager_size": 1000},
            "argobots": {"abt_thread_stacksize": 16384, "abt_mem_max_num_stacks": 0}}"#,
    );
    assert_eq!(resolved.progress_spindown, Duration::from_millis(7));
    assert_eq!(resolved.progress_timeout_max, Duration::from_millis(3));
    assert_eq!(resolved.spin_max, Duration::from_micros(9));
    assert_eq!((resolved.eager_size, resolved.handle_cache_size), (Some(1000), 5));
    assert_eq!((resolved.stack_bytes, resolved.stack_cache_max), (16384, 0));
}

#[test]
fn an_error_has_its_path_line_and_column() {
    let text = r#"{
  // pools
  "argobots": {
    "pools": [{"name": "__primary__"}, {"name": "net"}],
    "xstreams": [
      {"scheduler": {"pools": ["net"]}},
      {"scheduler": {"pools": ["nett"]}}
    ]
  }
}"#;
    let errors = rejected(text);
    assert_eq!(
        errors.to_string(),
        "argobots.xstreams[1].scheduler.pools[0]: no pool named \"nett\" (have: __primary__, net); \
         did you mean \"net\"? at line 7 column 32"
    );
    let error = &errors.as_slice()[0];
    assert_eq!(error.path, "argobots.xstreams[1].scheduler.pools[0]");
    assert_eq!((error.line, error.column), (Some(7), Some(32)));
    assert!(errors.source().is_none());
}

#[test]
fn all_wrong_types_and_unknown_keys_are_reported_in_document_order() {
    let errors = rejected(
        r#"{
  "progres_pool": 1,
  "rpc_thread_count": "x",
  "argobots": {"pools": [1, {"kind": "lifo", "names": "a"}, {"access": 3}]},
  "mercury": {"auto_sm": 1}
}"#,
    );
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "progres_pool",
            "rpc_thread_count",
            "argobots.pools[0]",
            "argobots.pools[1].kind",
            "argobots.pools[1].names",
            "argobots.pools[2].access",
            "mercury.auto_sm",
        ]
    );
    let lines: Vec<_> = errors.iter().filter_map(|error| error.line).collect();
    assert_eq!(lines, [2, 3, 4, 4, 4, 4, 5]);
    assert_eq!(errors.to_string().lines().count(), errors.iter().len());
}

#[test]
fn all_semantic_errors_are_reported_at_once() {
    let errors = rejected(
        r#"{
  "argobots": {
    "pools": [{"name": "a"}, {"name": "a"}, {"name": "3"}],
    "xstreams": [{"scheduler": {"pools": [9, "b"]}}, {}],
    "abt_thread_stacksize": 1
  },
  "rpc_pool": "c",
  "margo": {"address": "", "providers": [{"type": "x", "provider_id": 65535, "pool": 8}]}
}"#,
    );
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "argobots.pools[1].name",
            "argobots.pools[2].name",
            "argobots.xstreams[0].scheduler.pools[0]",
            "argobots.xstreams[0].scheduler.pools[1]",
            "argobots.xstreams[1]",
            "argobots.abt_thread_stacksize",
            "rpc_pool",
            "margo.address",
            "margo.providers[0].provider_id",
            "margo.providers[0].pool",
        ]
    );
}

/// A dependency that means a provider with errors of its own is not reported. One that means no
/// provider is reported beside those errors.
#[test]
fn wrong_dependencies_are_reported_beside_other_wrong_providers() {
    let pool = r#"{ "type": "disk", "provider_id": 1, "pool": 7 }"#;
    let no_id = r#"{ "type": "disk" }"#;
    let reserved = r#"{ "type": "disk", "provider_id": 65535 }"#;
    let no_type = r#"{ "provider_id": 1 }"#;
    let named = r#"{ "name": "store", "provider_id": 1 }"#;
    for (broken, meant, not_meant) in [
        (pool, &["disk_1", "disk:1"][..], &["disk:2", "disk"][..]),
        (no_id, &["disk_1", "disk:2"], &["disk", "tape_1", "tape:1", "disk:x"]),
        (reserved, &["disk_1", "disk:65535"], &["disk", "tape_1"]),
        (no_type, &["disk_1", "tape:1"], &["disk_2", "tape:2", "disk"]),
        (named, &["store", "tape:1"], &["tape_1", "tape:2", "stroe"]),
    ] {
        let errors_for = |text: &str| {
            let document = format!(
                r#"{{ "margo": {{ "providers": [ {broken}, {{ "type": "index", "provider_id": 1,
                    "dependencies": {{ "store": "{text}", "far": "x:1@nowhere:1" }} }} ] }} }}"#
            );
            let paths = rejected(&document).into_iter().map(|error| error.path);
            paths.filter(|path| path.contains("dependencies")).collect::<Vec<_>>()
        };
        let [store, far] =
            ["store", "far"].map(|key| format!("margo.providers[1].dependencies.{key}"));
        for text in meant {
            assert_eq!(errors_for(text), std::slice::from_ref(&far), "{broken}, {text}");
        }
        for text in not_meant {
            assert_eq!(errors_for(text), [store.clone(), far.clone()], "{broken}, {text}");
        }
    }
    // So are circles, in which one of them may be.
    let circle = r#"{ "margo": { "providers": [ { "type": "a" },
        { "type": "b", "provider_id": 1, "pool": 7, "dependencies": { "c": "c_1" } },
        { "type": "c", "provider_id": 1, "dependencies": { "b": "b:1" } } ] } }"#;
    let paths: Vec<_> = rejected(circle).into_iter().map(|error| error.path).collect();
    let expected =
        ["margo.providers[0]", "margo.providers[1].dependencies", "margo.providers[1].pool"];
    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(expected.iter().all(|path| paths.iter().any(|own| own == path)), "{paths:?}");
}

#[test]
fn the_number_of_reported_errors_is_bounded() {
    let text = format!(r#"{{"argobots": {{"pools": [{}]}}}}"#, vec!["1"; 5000].join(","));
    assert_eq!(rejected(&text).iter().len(), 100);
    assert!(rejected(&text).to_string().contains("\nthere may be more"));
    let entries: Vec<_> = (0..5000).map(|n| format!(r#""key{n}": 0"#)).collect();
    assert_eq!(rejected(&format!("{{{}}}", entries.join(","))).iter().len(), 100);
    let text =
        format!(r#"{{"argobots": {{"pools": [{}]}}}}"#, vec![r#"{"name": "a"}"#; 5000].join(","));
    assert_eq!(rejected(&text).iter().len(), 100);
}

#[test]
fn a_repeated_key_is_one_error() {
    let errors = rejected(r#"{"rpc_thread_count": 1, "rpc_thread_count": 2}"#);
    assert_eq!(errors.iter().len(), 1, "{errors}");
}

#[test]
fn a_program_can_fill_the_fields() {
    let config = Config {
        argobots: Argobots {
            pools: vec![Pool { name: Some("net".to_owned()), ..Pool::default() }],
            xstreams: vec![Xstream {
                scheduler: Some(Scheduler { pools: vec!["net".into()], ..Scheduler::default() }),
                ..Xstream::default()
            }],
            ..Argobots::default()
        },
        progress_pool: Some("net".into()),
        rpc_pool: Some(PoolRef::Index(0)),
        ..Config::default()
    };
    let resolved = config.resolve(&no_env).expect("resolves");
    assert_eq!((resolved.progress_pool, resolved.rpc_pool), (0, 0));
    assert_eq!(resolved.xstreams[0].name, "__xstream_0__");

    let broken = Config { progress_pool: Some("nte".into()), ..config };
    let errors = broken.resolve(&no_env).expect_err("dangling");
    assert_eq!(
        errors.to_string(),
        "progress_pool: no pool named \"nte\" (have: __primary__, net); did you mean \"net\"?"
    );
    assert_eq!(errors.iter().next().and_then(|error| error.line), None);
}

#[test]
fn names_instead_of_indices_on_request() {
    let resolved = resolved(r#"{"use_progress_thread": true}"#);
    let named = resolved.effective_with_names();
    assert_eq!(named.progress_pool, Some("__pool_1__".into()));
    let again = Config::from_json(&named.to_json_pretty()).expect("accepted");
    assert_eq!(again.resolve(&no_env).expect("resolves").effective(), resolved.effective());
}

#[test]
fn samples_resolve_without_warnings_and_explain_themselves() {
    let samples = margo_config::samples();
    assert_eq!(samples.len(), 9);
    for (name, text) in samples {
        let (_, warnings) = Config::check(text, &no_env).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(warnings, [], "{name}");
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//")).count();
        assert!(comments >= 5, "{name} has only {comments} lines of comments");
    }
}

#[test]
fn the_quickstart_is_one_thread_with_a_blob_store() {
    let (_, text) = margo_config::samples()[0];
    let resolved = resolved(text);
    assert_eq!((resolved.pools.len(), resolved.xstreams.len()), (1, 1));
    assert_eq!((resolved.address.as_str(), resolved.listen), ("na+sm://", true));
    let [store] = resolved.providers.as_slice() else { panic!("one provider") };
    assert_eq!((store.type_name.as_str(), store.name.as_str()), ("blob", "store"));
    assert_eq!((store.provider_id, store.pool), (1, 0));
    assert_eq!(store.config, serde_json::json!({"path": "./margo-blobs", "sync": false}));
}

/// A document with every key of its objects.
#[test]
fn the_manual_has_every_key() {
    let manual = include_str!("../../../docs/configuration.md");
    let mut config = Config::default();
    let mercury = &mut config.mercury;
    mercury.address = Some(String::new());
    (mercury.listening, mercury.version) = (Some(true), Some(String::new()));
    (mercury.input_eager_size, mercury.output_eager_size) = (Some(1), Some(1));
    (mercury.ip_subnet, mercury.auth_key) = (Some(String::new()), Some(String::new()));
    (mercury.sm_info_string, mercury.release_input_early) = (Some(String::new()), Some(true));
    (mercury.no_overflow, mercury.no_multi_recv) = (true, true);
    (mercury.multi_recv_op_max, mercury.multi_recv_copy_threshold) = (1, 1);
    mercury.traffic_class = margo_config::TrafficClass::BulkData;
    let margo = &mut config.margo;
    (margo.eager_size, margo.address_file) = (Some(1), Some(String::new()));
    margo.payload_checksum = margo_config::PayloadChecksum::Crc64;
    margo.mercury_build = Some(margo_config::MercuryBuild::Plain);
    margo.shards = Some(margo_config::Shards::Pools(vec![0.into()]));
    (margo.remote_shutdown, margo.device.devices) = (true, vec![String::new()]);
    (margo.stall_limit_msec, margo.grace_msec) = (1, 1);
    margo.trace.request_sample_rate = Some(0.5);
    margo.metrics.listen = Some(String::new());
    margo.dump_on_signal = Some(margo_config::DumpSignal::Usr1);
    margo.log_level = Some(margo_config::LogLevel::Info);
    let (pool, bound) = (Some(0.into()), Some(1));
    let overload = Some(margo_config::Overload::Wait);
    let (handlers_max, peer_handlers_max, host_handlers_max) = (bound, bound, bound);
    let bounds =
        PoolAdmission { pool, handlers_max, peer_handlers_max, host_handlers_max, overload };
    margo.admission.pools = vec![bounds];
    (margo.admission.peer_handlers_max, margo.admission.host_handlers_max) = (bound, bound);
    (margo.bulk.window, margo.bulk.copy_pool, margo.bulk.timeout_msec) = (1, Some(0.into()), 1);
    (margo.overflow_held_max, margo.proc.len_max) = (1, Some(1));
    (margo.network.connections_max, margo.network.peer_users) = (Some(1), PeerUsers::All);
    margo.network.rendezvous_bytes_min = Some(1);
    margo.network.unread_answers_max = Some(1);
    margo.network.unread_answers_per_host_max = Some(1);
    margo.network.unread_answers_total_max = Some(1);
    margo.network.remote_keys = margo_config::RemoteKeys::Never;
    config.monitoring = Some(serde_json::Map::new());
    config.schema = Some(String::new());
    config.argobots.pools = vec![Pool {
        name: Some(String::new()),
        stack_bytes: Some(1),
        numa_node: Some(1),
        ..Pool::default()
    }];
    config.argobots.xstreams = vec![Xstream {
        name: Some(String::new()),
        scheduler: Some(Scheduler::default()),
        ..Xstream::default()
    }];
    (config.argobots.version, config.argobots.lazy_stack_alloc) = (Some(String::new()), Some(true));
    config.progress_pool = Some(0.into());
    config.rpc_pool = Some(0.into());
    (config.use_progress_thread, config.rpc_thread_count) = (true, 1);
    let document = serde_json::to_value(config).expect("serialises");
    let margo = &document["margo"];
    let (argobots, admission) = (&document["argobots"], &margo["admission"]);
    let parts = [&margo["bulk"], &margo["proc"], &margo["network"], argobots, admission];
    let more = [&admission["pools"][0], &margo["metrics"], &margo["device"]];
    let objects = [&document["mercury"], margo, &document].into_iter().chain(parts).chain(more);
    let keys = objects.flat_map(|object| object.as_object().expect("an object").keys());
    let (pool, xstream) = (&argobots["pools"][0], &argobots["xstreams"][0]);
    let entries =
        [("pools[].", pool), ("xstreams[].", xstream), ("scheduler.", &xstream["scheduler"])];
    let entries = entries.iter().flat_map(|(list, entry)| {
        entry.as_object().expect("an object").keys().map(move |key| format!("{list}{key}"))
    });
    let keys = keys.cloned().chain(entries);
    let missing: Vec<_> = keys.filter(|key| !manual.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks {missing:?}");
}

/// Paths and beginnings of what is said of a document.
fn told(text: &str) -> Vec<String> {
    let errors = Config::from_json(text).expect_err(text);
    errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
}

#[test]
fn an_error_hides_no_other_and_makes_none() {
    for (text, expected) in [
        // Of several stages.
        (
            r#"{ "margo": { "requests_max": 0, "bulk": { "window": 99 }, "providers": [
                 { "type": "a", "provider_id": 70000, "pool": "nowhere" },
                 { "type": "b", "provider_id": 65535, "dependencies": { "x": "nobody" } } ] },
                 "argobots": { "abt_thread_stacksize": 7 } }"#,
            &[
                "margo.requests_max: 0 is not allowed",
                "margo.bulk.window: 99 is not allowed",
                "margo.providers[0].provider_id: expected an integer from 0 to 65534",
                "margo.providers[0].pool: no pool named",
                "margo.providers[1].provider_id: 65535 is reserved",
                "margo.providers[1].dependencies.x: no provider \"nobody\"",
                "argobots.abt_thread_stacksize: ",
            ][..],
        ),
        // What is said of one value is said once.
        (
            r#"{ "margo": { "providers": [{ "type": "a", "provider_id": "1" }] } }"#,
            &["margo.providers[0].provider_id: expected"],
        ),
        (
            r#"{ "margo": { "providers": [{ "typ": "a", "provider_id": 1 }] } }"#,
            &["margo.providers[0].typ: unknown key"],
        ),
        (
            r#"{ "margo": { "providers": [{ "pool": 1.5, "provider_id": 1 }] } }"#,
            &["margo.providers[0]: missing key `type`", "margo.providers[0].pool: expected"],
        ),
        // A pool may be there that was not read; all else is told.
        (
            r#"{ "argobots": { "pools": [{ "name": 7 }, { "name": "b", "stack_bytes": 1 }],
                   "xstreams": [{ "cpubind": -2, "scheduler": { "pools": ["net", "b"] } }] },
                 "progress_pool": "net", "margo": { "requests_max": 0, "providers": [
                   { "type": "a", "provider_id": 1, "pool": "net", "priority": "high" } ] } }"#,
            &[
                "argobots.pools[0].name: expected a string",
                "argobots.pools[1].stack_bytes: ",
                "argobots.xstreams[0].cpubind: -2 is no CPU",
                "margo.requests_max: 0 is not allowed",
            ],
        ),
        (
            r#"{ "progres_pool": "x", "rpc_pool": "y", "progress_timeout_ub_msec": -1 }"#,
            &["progres_pool: unknown key", "progress_timeout_ub_msec: expected"],
        ),
        // A provider may be called what was not read.
        (
            r#"{ "margo": { "providers": [ { "type": "a", "name": 7, "provider_id": 1 },
                 { "type": "b", "provider_id": 2, "dependencies": { "x": "seven" } } ] } }"#,
            &["margo.providers[0].name: expected a string"],
        ),
        // The others of a list have their places.
        (
            r#"{ "margo": { "providers": [7, {}], "requests_max": 0 } }"#,
            &["margo.providers[0]: expected an object", "margo.requests_max: 0 is not allowed"],
        ),
    ] {
        let told = told(text);
        let all = expected.iter().all(|part| told.iter().any(|line| line.starts_with(part)));
        assert!(all && told.len() == expected.len(), "{text}\n{told:#?}");
    }
}

#[test]
fn checks_of_a_layer_above_see_a_document_with_errors_too() {
    let text = r#"{ "progress_pool": "nowhere", "margo": { "requests_max": "x", "providers": [
        { "type": "a" }, { "type": "b", "provider_id": 1, "pool": "none", "config": { "k":
        1 } } ] } }"#;
    let flags = ConfigFlags::default();
    let checked = Config::check_with(text, &|_| None, flags, |resolved| {
        let types: Vec<_> = resolved.providers.iter().map(|one| one.type_name.as_str()).collect();
        assert_eq!(types, ["", "b"]);
        Errors::none_of([
            Error::new("margo.providers[1].config.k", "no"),
            Error::new("margo.requests_max", "comes of what was left out"),
        ])
    });
    let errors = checked.unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "progress_pool",
            "margo.requests_max",
            "margo.providers[0]",
            "margo.providers[1].pool",
            "margo.providers[1].config.k",
        ]
    );
    assert_eq!((errors.as_slice()[4].line, errors.as_slice()[4].column), (Some(3), Some(9)));
}
