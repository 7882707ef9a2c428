//! Changes made from handlers, and pools with a queue of the program's own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{PATIENCE, bounded};
use margo::config::Shards;
use margo::ult::{self, PopBy, PushReason, Unit};
use margo::{Instance, ProviderHandle, ProviderId, Rpc, config::Config, config::ConfigFlags};

const RUN: Rpc<(), String> = Rpc::new("run");

/// First in, first out.
#[derive(Default)]
struct Queue(Mutex<VecDeque<Unit>>);

impl ult::Pool for Queue {
    fn push(&self, unit: Unit, _why: PushReason) {
        self.0.lock().unwrap().push_back(unit);
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        self.0.lock().unwrap().pop_front()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// An instance with a pool `own` of that kind and an xstream `mine` that runs it.
fn with_own_queue(document: &str) -> Instance {
    let margo = margo::init(document).unwrap();
    let spec = ult::PoolSpec::custom("own", Box::new(Queue::default()));
    let own = margo.runtime().add_pool(spec).unwrap();
    let xstream = margo.runtime().add_xstream(ult::XstreamSpec::new("mine").pools(["own"]));
    margo.layout().add_external_pool(&own).unwrap();
    margo.layout().add_external_xstream(&xstream.unwrap()).unwrap();
    margo
}

#[test]
fn a_pool_with_a_queue_of_its_own_serves_and_is_not_printed() {
    let margo = with_own_queue("{}");
    let after = margo.layout().add_pool_from_json(r#"{ "name": "after" }"#).unwrap();
    let json = r#"{ "name": "both", "scheduler": { "pools": ["after", "own"] } }"#;
    margo.layout().add_xstream_from_json(json).unwrap();
    let own = margo.layout().find_pool("own").unwrap();
    let provider = margo.provider(ProviderId::new(1), &own.pool);
    provider
        .register(RUN, |request| {
            let _ = request.respond(&ult::current().unwrap().pool);
        })
        .unwrap();
    let target = ProviderHandle::new(margo.self_addr(), provider.id());
    assert_eq!(margo.forward_timed(RUN, &target, &(), PATIENCE).unwrap(), "own");
    assert!(
        margo
            .layout()
            .remove_pool("own")
            .unwrap_err()
            .to_string()
            .contains("RPC `run` of provider 1")
    );

    // What no document can say is left out, with the references to it; places close up.
    let printed = serde_json::to_value(margo.config()).unwrap();
    let argobots = &printed["argobots"];
    assert_eq!((own.index, after.index), (1, 2));
    assert_eq!(argobots["pools"].as_array().unwrap().len(), 2);
    assert_eq!(argobots["pools"][1]["name"], "after");
    assert_eq!(argobots["xstreams"].as_array().unwrap().len(), 2);
    assert_eq!(argobots["xstreams"][1]["scheduler"]["pools"], serde_json::json!([1]));
    Config::from_json(&margo.config().to_json()).unwrap();

    // Progress may run there, too; the document then says nothing of where.
    margo.layout().migrate_progress("own").unwrap();
    assert_eq!(margo.forward_timed(RUN, &target, &(), PATIENCE).unwrap(), "own");
    let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    assert_eq!(margo.layout().config_as(flags).progress_pool, None);
    Config::from_json(&margo.layout().config_as(flags).to_json()).unwrap();
    margo.finalize_and_wait().unwrap();
}

#[test]
fn progress_of_further_shards_is_printed_for_all_or_for_none() {
    printed_for_all_or_for_none(r#"{ "margo": { "shards": 3 } }"#);
    printed_for_all_or_for_none(
        r#"{ "argobots": {
                "pools": [{ "name": "__pool_1__" }, { "name": "b" }],
                "xstreams": [{ "scheduler": { "pools": [0] } },
                             { "scheduler": { "pools": [1] } }] },
             "margo": { "shards": ["__primary__", "__pool_1__", "b"] } }"#,
    );
}

fn printed_for_all_or_for_none(document: &str) {
    let margo = with_own_queue(document);
    let printed = || match margo.config().margo.shards {
        Some(Shards::Pools(pools)) => pools.len(),
        _ => 0,
    };
    let read_back = || {
        let read = Config::from_json(&margo.config().to_json()).unwrap();
        assert_eq!(read.resolve(&|_| None).unwrap().more_progress_pools.len(), 2);
    };
    assert_eq!(printed(), 3);
    // A document has no word for the pool of one of them.
    margo.layout().migrate_progress_of(1, "own").unwrap();
    assert_eq!(printed(), 0);
    read_back();
    margo.layout().migrate_progress_of(1, "__pool_1__").unwrap();
    assert_eq!(printed(), 3);
    // Of the first one: another has the pool that stands in for it.
    margo.layout().migrate_progress("own").unwrap();
    margo.layout().migrate_progress_of(1, "__primary__").unwrap();
    assert_eq!(printed(), 0);
    read_back();
    margo.finalize_and_wait().unwrap();
}

/// One execution stream for everything: the handler waits while progress, beside it, moves away.
#[test]
fn a_handler_moves_progress_away_from_its_own_xstream() {
    bounded("a handler that moves progress", || {
        let margo = margo::init("{}").unwrap();
        margo
            .register(RUN, |request| {
                let own = request.instance();
                own.layout().add_pool_from_json(r#"{ "name": "net" }"#).unwrap();
                let json = r#"{ "name": "net", "scheduler": { "pools": ["net"] } }"#;
                own.layout().add_xstream_from_json(json).unwrap();
                own.layout().migrate_progress("net").unwrap();
                own.layout().migrate_progress("net").unwrap();
                let _ = request.respond(&own.layout().progress_pool().name().to_owned());
            })
            .unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(margo.self_addr().uri()).unwrap());
        assert_eq!(client.forward_timed(RUN, &target, &(), PATIENCE).unwrap(), "net");
        client.finalize_and_wait().unwrap();
        // The primary xstream has lost progress, and stays for the handlers.
        assert!(margo.layout().remove_xstream("net").is_err());
        margo.layout().migrate_progress("__primary__").unwrap();
        margo.layout().remove_xstream("net").unwrap();
        margo.layout().remove_pool("net").unwrap();
        margo.finalize_and_wait().unwrap();
    });
}

/// Panics when it is asked how full it is, from a moment on.
#[derive(Default)]
struct Broken(Arc<AtomicBool>);

impl ult::Pool for Broken {
    fn push(&self, _unit: Unit, _why: PushReason) {
        unreachable!("nobody spawns here");
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        None
    }

    fn len(&self) -> usize {
        assert!(!self.0.load(Ordering::Relaxed), "it is not there any more");
        0
    }
}

#[test]
fn a_pool_that_panics_at_the_end_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("x").display().to_string();
    let config = serde_json::json!({ "monitoring": { "config": { "filename_prefix": prefix } } });
    let margo = margo::init(&config.to_string()).unwrap();
    let is_broken = Arc::new(AtomicBool::new(false));
    let spec = ult::PoolSpec::custom("broken", Box::new(Broken(is_broken.clone())));
    let pool = margo.runtime().add_pool(spec).unwrap();
    margo.layout().add_external_pool(&pool).unwrap();
    let asked = is_broken.clone();
    margo.on_finalize(move |_| asked.store(true, Ordering::Relaxed)).unwrap().keep();
    bounded("the end", move || margo.finalize_and_wait().unwrap());
    assert!(is_broken.load(Ordering::Relaxed));
    // What there was before is written.
    let names = std::fs::read_dir(folder.path()).unwrap();
    let names: Vec<_> =
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
