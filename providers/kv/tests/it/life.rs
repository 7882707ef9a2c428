//! How a provider starts and ends.

use margo::{
    ForwardError, Instance, ProviderHandle, ProviderId, config::Config, errors::IdentityError,
};
use margo_provider_kv::{
    ClientError, KvClient, KvComponent, KvConfig, KvProvider, StartError, StoreConfig, StoreKind,
};

use crate::common::{ID, PATIENCE, Pair, in_memory, on_each};

fn service_with(config: &serde_json::Value) -> Instance {
    let json = serde_json::json!({ "margo": {
        "address": "na+sm://",
        "providers": [{ "type": "kv", "provider_id": 3, "config": config }],
    } });
    Instance::from_config(&Config::from_json(&json.to_string()).unwrap()).unwrap()
}

#[test]
fn starts_from_the_configuration_and_says_what_is_effective() {
    let service =
        service_with(&serde_json::json!({ "page_bytes": 8192, "store": { "kind": "memory" } }));
    let running = service.start_providers(&[&KvComponent]).unwrap();
    let config = service.config().margo.providers[0].config.clone();
    assert_eq!((&config["page_bytes"], &config["waiters"]), (&8192.into(), &4096.into()));
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = client.lookup(service.self_addr().uri()).unwrap();
    let kv = KvClient::new(&client, ProviderHandle::new(target, ProviderId::new(3)));
    kv.put(b"k", b"v", PATIENCE).unwrap();
    running.drain(PATIENCE).unwrap();
    let error = kv.get(b"k", PATIENCE).unwrap_err();
    let expected = matches!(&error, ClientError::Forward(ForwardError::NotRegistered { .. }));
    assert!(expected, "{error}");
    drop(running);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_snapshot_moves_to_a_store_of_another_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let memory = serde_json::json!({ "store": { "kind": "memory" } });
    let file = serde_json::json!({ "store": { "kind": "fjall", "path": path } });
    let (first, second) = (service_with(&memory), service_with(&file));
    let providers = [&first, &second].map(|own| own.start_providers(&[&KvComponent]).unwrap());
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let [one, other] = [&first, &second].map(|service| {
        let target = client.lookup(service.self_addr().uri()).unwrap();
        KvClient::new(&client, ProviderHandle::new(target, ProviderId::new(3)))
    });
    let version = one.put(b"k", b"v", PATIENCE).unwrap();
    let snapshot = folder.path().join("snapshot");
    providers[0].snapshot("kv_3", &snapshot).unwrap();
    let there = providers[0].snapshot("kv_3", &snapshot).unwrap_err().to_string();
    assert!(there.contains("snapshot: File exists"), "{there}");
    providers[1].restore("kv_3", &snapshot).unwrap();
    let found = other.get(b"k", PATIENCE).unwrap();
    assert_eq!((found.version, &*found.value), (version, &b"v"[..]));
    let full = providers[1].restore("kv_3", &snapshot).unwrap_err().to_string();
    assert!(full.contains("to an empty database only"), "{full}");
    let pool = second.layout().add_pool_from_json(r#"{ "name": "apart" }"#).unwrap().pool;
    let xstream = r#"{ "scheduler": { "pools": ["apart"] } }"#;
    second.layout().add_xstream_from_json(xstream).unwrap();
    providers[1].move_to("kv_3", &pool).unwrap();
    assert_eq!(&*other.get(b"k", PATIENCE).unwrap().value, b"v");
    client.finalize_and_wait().unwrap();
    drop(providers);
    first.finalize_and_wait().unwrap();
    second.finalize_and_wait().unwrap();
}

#[test]
fn a_wrong_configuration_says_what_is_wrong() {
    for (config, expected) in [
        (serde_json::json!({ "page_byts": 1 }), "config.page_byts: unknown key"),
        (serde_json::json!({}), "config.store.path: missing"),
        (
            serde_json::json!({ "views": 0, "store": { "kind": "memory" } }),
            "config.views: 0 is not from 1 to",
        ),
        (serde_json::json!({ "store": { "kind": "paper" } }), "config.store.kind: "),
    ] {
        let service = service_with(&config);
        let error = service.start_providers(&[&KvComponent]).unwrap_err().to_string();
        assert!(error.contains("kv_3") && error.contains(expected), "{error}");
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_client_connects_to_a_key_value_provider_and_to_nothing_else() {
    on_each(|pair| {
        let other = ProviderId::new(9);
        let wrong = ProviderHandle::new(pair.kv.owner(b"").addr().clone(), other);
        let error = KvClient::connect(&pair.client, wrong.clone(), PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::Identity(IdentityError::None { .. })), "{error}");
        pair.service.network().register_identity(other, "blob").unwrap();
        let error = KvClient::connect(&pair.client, wrong, PATIENCE).unwrap_err();
        assert!(error.to_string().ends_with("is `blob`, not `kv`"), "{error}");
    });
}

#[test]
fn an_id_has_one_provider_and_is_free_when_that_is_closed() {
    on_each(|pair| {
        let provider = || pair.service.provider(ID, &pair.service.layout().rpc_pool());
        KvProvider::start(provider(), &in_memory()).unwrap_err();
        pair.kv.put(b"k", b"", PATIENCE).unwrap();
    });
}

#[test]
fn the_service_describes_itself() {
    on_each(|pair| {
        let owner = pair.kv.owner(b"");
        let target = owner.addr();
        let all = margo::service::services_of(&pair.client, target, PATIENCE).unwrap();
        let methods: Vec<_> = all[0].methods.iter().map(ToString::to_string).collect();
        assert!(!methods.iter().any(|method| method.contains('?')), "{methods:#?}");
        assert!(
            methods.contains(
                &"kv_count(selection: Selection, epoch: u64) -> Result<u64, KvError>".to_owned()
            ),
            "{methods:#?}"
        );
    });
}

#[test]
fn what_is_stored_is_there_for_the_next_provider_and_is_of_one_at_a_time() {
    for kind in [StoreKind::Redb, StoreKind::Fjall] {
        let dir = tempfile::tempdir().unwrap();
        let config = KvConfig::new(StoreConfig::new(kind, dir.path().join("db")));
        let pair = Pair::new("na+sm://", &config);
        pair.kv.put(b"k", b"v", PATIENCE).unwrap();
        let second = pair.service.provider(ProviderId::new(2), &pair.service.layout().rpc_pool());
        let error = KvProvider::start(second, &config).unwrap_err();
        assert!(matches!(error, StartError::Open(_)), "{error}");
        let Pair { service, client, kv, provider } = pair;
        provider.close(PATIENCE).unwrap();
        let again = service.provider(ID, &service.layout().rpc_pool());
        let provider = KvProvider::start(again, &config).unwrap();
        assert_eq!(kv.get(b"k", PATIENCE).unwrap().value.0, b"v");
        Pair { service, client, kv, provider }.end();
    }
}
