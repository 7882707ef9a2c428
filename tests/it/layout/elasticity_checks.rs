//! The checks before a change of the layout see xstreams that were joined, children, holds,
//! documents, and callers that cannot wait.

use crate::common::bounded;
use margo::config::Affinity;
use margo::{InitError, Instance, config::ConfigFlags, elasticity::ElasticityError, ult};

fn text<T: std::fmt::Debug>(result: Result<T, ElasticityError>) -> String {
    result.unwrap_err().to_string()
}

/// An instance with these pools beside `__primary__`, and an xstream for each pair of a name and
/// the pools that it runs.
fn started(pools: &[&str], xstreams: &[(&str, &[&str])]) -> Instance {
    let pools = pools.iter().map(|name| serde_json::json!({ "name": name }));
    let xstreams = xstreams
        .iter()
        .map(|(name, pools)| serde_json::json!({ "name": name, "scheduler": { "pools": pools } }));
    let (pools, xstreams) = (pools.collect::<Vec<_>>(), xstreams.collect::<Vec<_>>());
    let document = serde_json::json!({ "argobots": { "pools": pools, "xstreams": xstreams } });
    margo::init(&document.to_string()).unwrap()
}

/// A child whose progress runs in `p`.
fn child_in_p(parent: &Instance) -> Instance {
    let document = r#"{ "progress_pool": "p", "margo": { "address": "na+sm://" } }"#;
    parent.init_child(document).unwrap()
}

fn end(instance: &Instance) {
    let own = instance.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

#[test]
fn an_xstream_that_was_joined_runs_nothing() {
    let margo = started(&["p", "q"], &[("x", &["p"]), ("y", &["q", "p"])]);
    let [x, y] = ["x", "y"].map(|name| margo.layout().find_xstream(name).unwrap().xstream);
    let hold = margo.layout().hold_pool("p", "a test").unwrap();
    x.join().unwrap();
    let error = text(margo.layout().remove_xstream(&y));
    assert!(error.contains("xstream `y` alone runs pool `p`"), "{error}");
    let own = margo.clone();
    bounded("a move", move || own.layout().migrate_progress("p").unwrap());
    bounded("a move back", {
        let own = margo.clone();
        move || own.layout().migrate_progress("__primary__").unwrap()
    });
    y.join().unwrap();
    let own = margo.clone();
    let error = bounded("a move that cannot be", move || text(own.layout().migrate_progress("p")));
    assert_eq!(error, "pool `p` is run by no xstream: add one first");
    y.revive().unwrap();
    x.revive().unwrap();
    margo.layout().remove_xstream(&y).unwrap();
    drop(hold);
    end(&margo);
}

#[test]
fn progress_of_a_child_keeps_its_xstream() {
    let margo = started(&["p"], &[("x", &["p"])]);
    let child = child_in_p(&margo);
    margo
        .layout()
        .add_xstream_from_json(r#"{ "name": "y", "scheduler": { "pools": ["p"] } }"#)
        .unwrap();
    let expected = format!(
        "xstream `x` is in use by the progress ULT of shard 0 of child instance {}",
        child.self_addr()
    );
    assert_eq!(text(margo.layout().remove_xstream("x")), expected);
    child.layout().migrate_progress("__primary__").unwrap();
    margo.layout().remove_xstream("x").unwrap();
    end(&margo);
    assert!(child.is_finalized());
}

#[test]
fn a_child_holds_an_xstream_of_its_parent() {
    let margo = started(&["p"], &[("x", &["p"]), ("y", &["p"])]);
    let child = Instance::builder("na+sm://").parent(&margo).start().unwrap();
    let grandchild = Instance::builder("na+sm://").parent(&child).start().unwrap();
    for (instance, by) in [(&child, "the scrubber"), (&grandchild, "the collector")] {
        let hold = instance.layout().hold_xstream("x", by).unwrap();
        let error = text(margo.layout().remove_xstream("x"));
        assert_eq!(error, format!("xstream `x` is in use by {by}"));
        drop(hold);
    }
    margo.layout().remove_xstream("x").unwrap();
    // It is known nowhere any more, and one that comes is.
    let new = r#"{ "name": "z", "scheduler": { "pools": ["p"] } }"#;
    let z = margo.layout().add_xstream_from_json(new).unwrap();
    for instance in [&child, &grandchild] {
        assert!(text(instance.layout().find_xstream("x")).contains("no xstream `x`"));
        assert!(text(instance.layout().hold_xstream("x", "nobody")).contains("no xstream `x`"));
        assert_eq!(instance.layout().find_xstream("z").unwrap(), z);
        assert_eq!(instance.layout().xstreams(), margo.layout().xstreams());
    }
    end(&margo);
    assert!(child.is_finalized() && grandchild.is_finalized());
}

#[test]
fn a_document_is_one_that_init_accepts_after_an_xstream_has_left() {
    let margo = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "work" } ],
                 "xstreams": [ { "name": "w", "scheduler": { "pools": ["work"] } } ] },
             "margo": { "providers": [
                 { "type": "kv", "name": "a", "provider_id": 7, "pool": "work" } ] } }"#,
    )
    .unwrap();
    // Nobody has started that provider, so nothing holds the pool.
    margo.layout().remove_xstream("w").unwrap();
    let next = margo::init(&margo.config().to_json()).unwrap();
    assert_eq!(next.config().argobots.pools, margo.config().argobots.pools);
    end(&next);
    margo.layout().add_pool_from_json(r#"{ "name": "other" }"#).unwrap();
    let new = r#"{ "name": "o", "scheduler": { "pools": ["other"] } }"#;
    margo.layout().add_xstream_from_json(new).unwrap();
    // Once the pool is run again it is the provider's as before.
    let new = r#"{ "name": "w", "scheduler": { "pools": ["work"] } }"#;
    margo.layout().add_xstream_from_json(new).unwrap();
    let config =
        margo.layout().config_as(ConfigFlags { use_names: true, ..ConfigFlags::default() });
    assert_eq!(config.margo.providers[0].pool, Some("work".into()));
    end(&margo);
}

#[test]
fn a_tasklet_is_told_that_it_cannot_wait_for_a_change() {
    let margo = started(&["p"], &[("x", &["p"])]);
    let own = margo.clone();
    let tasklet = margo.layout().progress_pool().tasklet().spawn(move || {
        let changes = [
            own.layout().migrate_progress("p"),
            own.layout().remove_xstream("x"),
            own.layout().add_pool_from_json("{}").map(drop),
            own.layout().transfer_pool_content("p", "__primary__").map(drop),
        ];
        let child = own.init_child(r#"{ "margo": { "address": "na+sm://" } }"#);
        (changes, child.unwrap_err())
    });
    let (changes, child) = bounded("a tasklet", move || tasklet.unwrap().join().unwrap());
    for change in changes {
        assert!(matches!(change, Err(ElasticityError::Inline)), "{change:?}");
    }
    assert!(matches!(child, InitError::Inline), "{child}");
    end(&margo);
}

#[test]
fn ranks_say_nothing_of_where_progress_runs() {
    let margo = started(&["p"], &[("x", &["p"]), ("y", &["p"])]);
    margo.layout().remove_xstream("y").unwrap();
    margo.layout().migrate_progress("p").unwrap();
    let y = r#"{ "name": "y", "scheduler": { "pools": ["p"] } }"#;
    margo.layout().add_xstream_from_json(y).unwrap();
    let [x, y] = ["x", "y"].map(|name| margo.layout().find_xstream(name).unwrap().xstream);
    let of_x = x.rank();
    x.set_rank(usize::MAX).unwrap();
    y.set_rank(of_x).unwrap();
    let error = text(margo.layout().remove_xstream("x"));
    assert_eq!(error, "xstream `x` is in use by the progress ULT of shard 0");
    margo.layout().remove_xstream("y").unwrap();
    end(&margo);
}

#[test]
fn the_largest_rank_does_for_an_instance_that_records() {
    let dir = tempfile::tempdir().unwrap();
    let x = ult::XstreamSpec::new("x").pools(["p"]).rank(usize::MAX);
    let runtime = ult::Runtime::builder().pool(ult::PoolSpec::new("p")).xstream(x);
    let runtime = runtime.start().unwrap();
    let trace = serde_json::json!({ "enable": true, "filename_prefix": dir.path().join("t") });
    let document = serde_json::json!({ "margo": { "address": "na+sm://", "trace": trace } });
    let config = margo::config::Config::from_json(&document.to_string()).unwrap();
    let margo = margo::InstanceBuilder::from_config(config).runtime(&runtime).start().unwrap();
    const ECHO: margo::Rpc<u32, u32> = margo::Rpc::new("echo");
    margo.serve(ECHO).function(|n| n).unwrap();
    let (own, to) = (margo.clone(), margo::ProviderHandle::from(margo.self_addr()));
    // From a ULT, which polls in the stead of progress.
    let calls = margo.layout().rpc_pool().spawn(move || own.forward(ECHO, &to, &5).unwrap());
    assert_eq!(bounded("a call", move || calls.unwrap().join().unwrap()), 5);
    end(&margo);
    runtime.shutdown().unwrap();
}

#[test]
fn the_document_says_where_an_xstream_was_bound_since() {
    let margo = started(&["p"], &[("x", &["p"])]);
    let cpu = ult::Topology::get().unwrap().allowed().iter().last().unwrap();
    let affinity = |margo: &Instance| {
        let xstreams = margo.config().argobots.xstreams;
        let x = xstreams.iter().find(|x| x.name.as_deref() == Some("x")).unwrap();
        (x.cpubind, x.affinity.clone())
    };
    let before = affinity(&margo);
    margo.layout().find_xstream("x").unwrap().xstream.set_affinity(&[cpu]).unwrap();
    let listed = Affinity::Cpus(vec![u32::try_from(cpu).unwrap()]);
    assert_ne!(before.1, listed);
    assert_eq!(affinity(&margo).1, listed);
    let next = margo::init(&margo.config().to_json()).unwrap();
    assert_eq!(next.layout().find_xstream("x").unwrap().xstream.cpus(), [cpu]);
    end(&next);
    end(&margo);
}
