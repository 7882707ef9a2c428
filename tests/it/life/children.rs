//! Indices of pools and xstreams in a child of a parent that has changed: they are the parent's.

use std::error::Error;
use std::sync::{Arc, Mutex};

use crate::common::bounded;
use margo::config::{Pool, Xstream};
use margo::ult::Eventual;
use margo::{
    InitError, Instance, InstanceBuilder, ProviderHandle, Rpc, component::Component,
    component::ProviderSpec, component::RunningProvider, config::Config, config::ConfigFlags,
    elasticity::ElasticityError,
};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");

fn end(instance: &Instance) {
    let own = instance.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

/// Pools 0 a, 1 b, 2 c, 3 `__primary__`, 4 d and 6 f; xstreams 0 `__primary__`, 1 x and 3 z.
fn parent_with_gaps() -> Instance {
    let parent = margo::init(
        r#"{ "argobots": {
        "pools": [{ "name": "a" }, { "name": "b" }, { "name": "c" },
                  { "name": "__primary__" }, { "name": "d" }],
        "xstreams": [
            { "name": "__primary__", "scheduler": { "pools": ["__primary__"] } },
            { "name": "x", "scheduler": { "pools": ["a", "b", "c", "d"] } } ] } }"#,
    )
    .unwrap();
    let pool = |name: &str| {
        let pool = Pool { name: Some(name.to_owned()), ..Pool::default() };
        parent.layout().add_pool(pool).unwrap().index
    };
    let xstream = |name: &str, pool: usize| {
        let json = format!(r#"{{ "name": "{name}", "scheduler": {{ "pools": [{pool}] }} }}"#);
        parent.layout().add_xstream(Xstream::from_json(&json).unwrap()).unwrap().index
    };
    assert_eq!((pool("e"), xstream("y", 5)), (5, 2));
    parent.layout().remove_xstream("y").unwrap();
    parent.layout().remove_pool("e").unwrap();
    assert_eq!((pool("f"), xstream("z", 6)), (6, 3));
    parent
}

/// Each pool and xstream of `parent` has the same index in `child`, and no other index is any.
fn assert_same_indices(child: &Instance, parent: &Instance) {
    for index in 0..10 {
        let found = |own: &Instance| own.layout().find_pool(index).ok();
        assert_eq!(found(child), found(parent), "pool {index}");
        let found = |own: &Instance| own.layout().find_xstream(index).ok();
        assert_eq!(found(child), found(parent), "xstream {index}");
    }
    assert_eq!(child.layout().pools(), parent.layout().pools());
    assert_eq!(child.layout().xstreams(), parent.layout().xstreams());
}

#[test]
fn an_index_is_the_one_that_the_parent_has() {
    let parent = parent_with_gaps();
    let f = parent.layout().find_pool("f").unwrap();
    assert_eq!(f.index, 6);
    let child = parent.init_child(r#"{ "rpc_pool": 6 }"#).unwrap();
    assert_eq!(
        (child.layout().rpc_pool(), child.layout().progress_pool()),
        (f.pool, parent.layout().progress_pool())
    );
    assert_same_indices(&child, &parent);
    let error = child.layout().find_pool(5).unwrap_err().to_string();
    assert!(error.contains("4 d, 6 f"), "{error}");
    child.serve(SUM).function(|(a, b)| a + b).unwrap();
    let target = ProviderHandle::from(child.self_addr());
    assert_eq!(child.forward(SUM, &target, &(1, 2)).unwrap(), 3);

    // So it is in a child of the child, and by way of the builder.
    let grandchild = child.init_child(r#"{ "rpc_pool": 6, "progress_pool": 4 }"#).unwrap();
    assert_same_indices(&grandchild, &parent);
    let roles = (grandchild.layout().rpc_pool(), grandchild.layout().progress_pool());
    assert_eq!((roles.0.name(), roles.1.name()), ("f", "d"));
    let built = Instance::builder("na+sm://").parent(&parent).rpc_pool(6).start().unwrap();
    assert_eq!(built.layout().rpc_pool().name(), "f");
    for own in [&built, &grandchild, &child, &parent] {
        end(own);
    }
}

#[test]
fn an_index_that_the_parent_does_not_have_is_an_error_that_lists_what_there_is() {
    let parent = parent_with_gaps();
    let have = "(have: 0 a, 1 b, 2 c, 3 __primary__, 4 d, 6 f)";
    for (document, path, wanted) in [
        (r#"{ "rpc_pool": 5 }"#, "rpc_pool", 5),
        (r#"{ "progress_pool": 7 }"#, "progress_pool", 7),
        (r#"{ "margo": { "bulk": { "copy_pool": 5 } } }"#, "margo.bulk.copy_pool", 5),
        (r#"{ "margo": { "shards": ["a", 5] } }"#, "margo.shards[1]", 5),
        (
            r#"{ "margo": { "admission": { "pools": [{ "pool": 5 }] } } }"#,
            "margo.admission.pools[0].pool",
            5,
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "t", "pool": 5 }] } }"#,
            "margo.providers[0].pool",
            5,
        ),
    ] {
        let expected = format!("{path}: there is no pool {wanted} {have} at line 1 column ");
        let error = parent.init_child(document).unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
        let error = Config::from_json_with_parent(document, &parent.config()).unwrap_err();
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    let built = Instance::builder("na+sm://").parent(&parent).rpc_pool(5).start();
    let Err(InitError::Config(errors)) = built else { panic!("it started") };
    assert_eq!(errors.to_string(), format!("rpc_pool: there is no pool 5 {have}"));
    end(&parent);
}

/// Keeps what it was told.
struct Listed(Mutex<Vec<ProviderSpec>>);

impl Component for Listed {
    fn type_name(&self) -> &'static str {
        "listed"
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, Box<dyn Error + Send + Sync>> {
        self.0.lock().unwrap().push(spec.clone());
        Ok(Box::new(spec.provider(instance)))
    }
}

#[test]
fn all_that_names_a_pool_means_the_parents_indices() {
    let parent = parent_with_gaps();
    let document = r#"{ "progress_pool": 4, "rpc_pool": 6,
        "margo": { "shards": [4, 6], "bulk": { "copy_pool": 6 },
                   "admission": { "pools": [{ "pool": 6, "handlers_max": 3 }] },
                   "providers": [{ "type": "listed", "provider_id": 1, "pool": 6 }] } }"#;
    let child = parent.init_child(document).unwrap();
    let users = child.layout().pool_users(6).unwrap();
    for user in ["the progress ULT of shard 1", "handlers without a pool", "large copies"] {
        assert!(users.iter().any(|known| known.contains(user)), "{user}: {users:?}");
    }
    assert!(
        child.layout().pool_users(4).unwrap().contains(&"the progress ULT of shard 0".to_owned())
    );
    let component = Listed(Mutex::default());
    let running = child.start_providers(&[&component]).unwrap();
    assert_eq!(component.0.lock().unwrap()[0].pool.name(), "f");
    drop(running);

    // It prints what makes the like again, by index and by name.
    let printed = child.config();
    let json = serde_json::to_value(&printed).unwrap();
    assert_eq!((&json["progress_pool"], &json["rpc_pool"]), (&4.into(), &6.into()));
    assert_eq!(json["margo"]["shards"][1], 6);
    assert_eq!(json["margo"]["bulk"]["copy_pool"], 6);
    let bounds = &json["margo"]["admission"]["pools"][0];
    assert_eq!((&bounds["pool"], &bounds["handlers_max"]), (&6.into(), &3.into()));
    assert_eq!(json["margo"]["providers"][0]["pool"], 6);
    let again = parent.init_child(&printed.to_json()).unwrap();
    let mut repeated = again.config();
    repeated.mercury.address.clone_from(&printed.mercury.address);
    assert_eq!(repeated, printed);
    let flags = ConfigFlags { use_names: true, ..ConfigFlags::default() };
    let named = serde_json::to_value(child.layout().config_as(flags)).unwrap();
    assert_eq!(named["margo"]["admission"]["pools"][0]["pool"], "f");
    for own in [&again, &child, &parent] {
        end(own);
    }
}

#[test]
fn bounds_are_those_of_the_pool_with_that_index() {
    const HOLD: Rpc<(), ()> = Rpc::new("hold");
    let parent = parent_with_gaps();
    let document = r#"{ "progress_pool": 4, "margo": { "admission": { "pools": [
        { "pool": 6, "handlers_max": 1 } ] } } }"#;
    let child = parent.init_child(document).unwrap();
    let f = child.layout().find_pool(6).unwrap();
    let (begun, gate) = (Arc::new(Eventual::new()), Arc::new(Eventual::<()>::new()));
    let (begins, opens) = (begun.clone(), gate.clone());
    let hold = child.serve(HOLD).pool(&f.pool).handler(move |request| {
        let _ = begins.set(());
        opens.wait_ready();
        let _ = request.respond(&());
    });
    hold.unwrap();
    let target = ProviderHandle::from(child.self_addr());
    let first = child.rpc(HOLD, &target, &()).start().unwrap();
    begun.wait();
    let second = child.forward(HOLD, &target, &()).unwrap_err();
    assert!(matches!(second, margo::ForwardError::Busy { .. }), "{second}");
    gate.set(()).unwrap();
    first.wait().unwrap();
    end(&child);
    end(&parent);
}

/// The printed configuration of a parent with gaps is also the document of an instance of its own,
/// where places are indices again.
#[test]
fn an_instance_with_a_layout_of_its_own_counts_its_own_pools() {
    let parent = parent_with_gaps();
    let like = InstanceBuilder::from_config(parent.config()).start().unwrap();
    assert_eq!(like.layout().find_pool(5).unwrap().name(), "f");
    assert_eq!(like.layout().find_xstream(2).unwrap().name(), "z");
    assert!(matches!(like.layout().find_pool(6), Err(ElasticityError::NoSuchPool { .. })));
    assert_eq!(like.layout().add_pool(Pool::default()).unwrap().index, 6);
    end(&like);
    end(&parent);
}
