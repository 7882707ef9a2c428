//! Administration (`margo::admin`): acts, who may, what is told of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use margo::admin::{AdminError, AdminRequest, AdministeredProviders};
use margo::component::{Component, Need, ProviderSpec, RunningProvider};
use margo::{Instance, ProviderHandle, ProviderId, Rpc};
use serde_json::{Value, json};
use ult::Eventual;

use crate::common::{PATIENCE, builder};

const GET: Rpc<u64, u64> = Rpc::new("get");

/// Adds its `config.add`; with `config.waits` an answer waits for `go`.
#[derive(Clone, Default)]
struct Adder {
    go: Arc<Eventual<()>>,
    is_asked: Arc<AtomicBool>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Component for Adder {
    fn type_name(&self) -> &'static str {
        "adder"
    }

    fn needs(&self) -> &[Need] {
        const NEEDS: &[Need] = &[Need::one("other").optional()];
        NEEDS
    }

    fn check(&self, config: &Value) -> Result<(), BoxError> {
        match config["add"].as_u64() {
            Some(_) => Ok(()),
            None => Err("`add` is no number".into()),
        }
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        assert_ne!(spec.config["add"], 13, "unlucky");
        let (add, waits) = (spec.config["add"].as_u64(), spec.config["waits"] == true);
        let own = self.clone();
        let provider = spec.provider(instance);
        provider.serve(GET).function(move |number| {
            own.is_asked.store(true, Ordering::Release); // pair: `is_asked` in the test
            if waits {
                own.go.wait();
            }
            number + add.unwrap()
        })?;
        Ok(Box::new(provider))
    }
}

struct Administered {
    service: Instance,
    providers: AdministeredProviders,
    client: Instance,
    adder: Adder,
}

impl Administered {
    fn start(address: &str, more: &str) -> Self {
        let first = r#"{ "type": "adder", "provider_id": 1, "config": { "add": 1 } }"#;
        let document = format!(
            r#"{{ "margo": {{ "address": "{address}", "providers": [{first}] {more} }} }}"#
        );
        let service = margo::init(&document).unwrap();
        let adder = Adder::default();
        let providers = service.start_providers(&[&adder]).unwrap();
        let own: Box<dyn Component> = Box::new(adder.clone());
        let providers = service.administer(providers, [own]).unwrap();
        let client = builder(address).listen(false).start().unwrap();
        Self { service, providers, client, adder }
    }

    fn ask(&self, request: &AdminRequest) -> Result<Value, AdminError> {
        let peer = self.client.lookup(self.service.self_addr().uri()).unwrap();
        self.client.network().administer(&peer, request, PATIENCE)
    }

    fn act(&self, request: Value) -> Result<Value, AdminError> {
        self.ask(&serde_json::from_value(request).unwrap())
    }

    fn fails(&self, request: Value, why: &str) {
        let error = self.act(request).unwrap_err();
        let AdminError::Failed { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains(why), "{reason}");
    }

    fn get(&self, id: u16) -> Result<u64, margo::ForwardError> {
        let peer = self.client.lookup(self.service.self_addr().uri()).unwrap();
        let target = ProviderHandle::new(peer, ProviderId::new(id));
        self.client.forward_timed(GET, &target, &40, PATIENCE)
    }

    fn end(self) {
        drop(self.providers);
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

const ALLOWED: &str = r#", "remote_admin": true"#;

fn entry(id: u16, add: u64, more: Value) -> Value {
    let mut entry = json!({ "type": "adder", "provider_id": id, "config": { "add": add } });
    entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "act": "start_provider", "provider": entry })
}

#[test]
fn providers_come_move_and_go() {
    let it = Administered::start("na+sm://", ALLOWED);
    assert_eq!(
        it.act(json!({ "act": "add_pool", "pool": { "name": "mine" } })).unwrap()["name"],
        "mine"
    );
    let xstream = json!({ "name": "own", "scheduler": { "pools": ["mine"] } });
    it.act(json!({ "act": "add_xstream", "xstream": xstream })).unwrap();
    let more = json!({ "pool": "mine", "dependencies": { "other": "adder_1" } });
    assert_eq!(it.act(entry(2, 2, more)).unwrap(), json!({ "name": "adder_2", "provider_id": 2 }));
    assert_eq!((it.get(1).unwrap(), it.get(2).unwrap()), (41, 42));

    let told = it.act(json!({ "act": "list" })).unwrap();
    assert_eq!(told["address"], it.service.self_addr().uri());
    let second = &told["providers"][1];
    assert_eq!((&second["name"], &second["pool"]), (&json!("adder_2"), &json!("mine")));
    let has = |told: &Value, key: &str, name: &str| {
        told[key].as_array().unwrap().iter().any(|one| one["name"] == name)
    };
    assert!(has(&told, "pools", "mine") && has(&told, "xstreams", "own"), "{told}");
    // The document in effect starts the same again.
    let config = it.act(json!({ "act": "config" })).unwrap();
    assert_eq!(config["margo"]["providers"].as_array().unwrap().len(), 2, "{config}");
    margo::config::Config::from_json(&config.to_string()).unwrap().resolve(&|_| None).unwrap();

    it.fails(json!({ "act": "stop_provider", "name": "adder_1" }), "is needed by `adder_2`");
    it.fails(json!({ "act": "remove_pool", "name": "mine" }), "mine");
    let primary = it.service.layout().rpc_pool().name().to_owned();
    it.act(json!({ "act": "move_provider", "name": "adder_2", "pool": primary })).unwrap();
    it.act(json!({ "act": "remove_xstream", "name": "own" })).unwrap();
    it.act(json!({ "act": "remove_pool", "name": "mine" })).unwrap();
    assert_eq!(it.get(2).unwrap(), 42);
    assert_eq!(it.act(json!({ "act": "list" })).unwrap()["providers"][1]["pool"], primary);
    for name in ["adder_2", "adder_1"] {
        it.act(json!({ "act": "stop_provider", "name": name })).unwrap();
    }
    assert!(it.get(1).is_err() && it.get(2).is_err());
    let config = it.service.config();
    assert!(config.margo.providers.is_empty(), "{:?}", config.margo.providers);
    // Names and ids are free again.
    it.act(entry(1, 3, json!({}))).unwrap();
    assert_eq!(it.get(1).unwrap(), 43);
    assert_eq!(it.providers.names(), ["adder_1"]);
    it.end();
}

#[test]
fn settings_change_while_it_runs() {
    let it = Administered::start("na+sm://", ALLOWED);
    let set = |key: &str, value: Value| json!({ "act": "set", "key": key, "value": value });
    it.act(set("margo.metrics.remote", json!(true))).unwrap();
    it.act(set("statistics", json!(true))).unwrap();
    it.get(1).unwrap();
    let peer = it.client.lookup(it.service.self_addr().uri()).unwrap();
    let metrics = it.client.network().metrics_of_timed(&peer, PATIENCE).unwrap();
    assert!(metrics.rpcs.iter().any(|rpc| rpc.name == "get"), "{metrics:?}");
    it.act(set("margo.log_level", json!("error"))).unwrap();
    assert_eq!(it.service.monitoring().log_level(), margo::config::LogLevel::Error);
    it.act(set("margo.remote_shutdown", json!(true))).unwrap();
    let config = it.service.config().margo;
    assert!(config.remote_shutdown && config.metrics.remote);
    it.fails(set("margo.remote_shutdown", json!("yes")), "margo.remote_shutdown: invalid type");
    it.fails(set("margo.grace_msec", json!(1)), "cannot be changed while the instance runs");
    it.end();
}

#[test]
fn acts_that_cannot_be_done_say_why_and_change_nothing() {
    let it = Administered::start("na+sm://", ALLOWED);
    it.fails(
        entry(1, 1, json!({})),
        "provider.provider_id: provider 1 of type \"adder\" is already",
    );
    it.fails(entry(2, 1, json!({ "pool": "nowhere" })), "provider.pool");
    it.fails(entry(2, 1, json!({ "type": "kv" })), "no component of type `kv`");
    it.fails(entry(2, 1, json!({ "config": {} })), "`add` is no number");
    it.fails(entry(2, 1, json!({ "dependencies": { "others": "adder_1" } })), "no dependency");
    it.fails(json!({ "act": "stop_provider", "name": "nobody" }), "there are: adder_1");
    let to = "/tmp/never-made";
    let snapshot = json!({ "act": "snapshot_provider", "name": "adder_1", "to": to });
    it.fails(snapshot, "do not support it");
    it.fails(json!({ "act": "add_pool", "pool": { "kind": "none" } }), "kind");
    // A component that panics costs the act alone.
    assert!(matches!(it.act(entry(3, 13, json!({}))), Err(AdminError::Forward(_))));
    assert_eq!(it.get(1).unwrap(), 41);
    assert_eq!(it.providers.names(), ["adder_1"]);
    it.end();
}

#[test]
fn a_provider_with_requests_in_hand_is_stopped_when_they_are_answered() {
    let it = Administered::start("na+sm://", ALLOWED);
    it.act(entry(2, 2, json!({ "config": { "add": 2, "waits": true } }))).unwrap();
    let peer = it.client.lookup(it.service.self_addr().uri()).unwrap();
    let target = ProviderHandle::new(peer, ProviderId::new(2));
    let call = it.client.rpc(GET, &target, &40).start().unwrap();
    // pair: the store in the handler
    while !it.adder.is_asked.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    it.fails(json!({ "act": "stop_provider", "name": "adder_2", "limit_msec": 1 }), "drain");
    assert_eq!(it.providers.names(), ["adder_1", "adder_2"]);
    it.adder.go.set(()).unwrap();
    assert_eq!(call.wait().unwrap(), 42);
    it.act(json!({ "act": "stop_provider", "name": "adder_2" })).unwrap();
    assert_eq!(it.providers.names(), ["adder_1"]);
    it.end();
}

#[test]
fn only_those_may_whom_the_document_names() {
    let list = AdminRequest::List {};
    let refused = |address: &str, more: &str, why: &str| {
        let it = Administered::start(address, more);
        let error = it.ask(&list).unwrap_err();
        assert!(matches!(error, AdminError::NotAllowed { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        it.end();
    };
    let tcp = "na+tcp://127.0.0.1:0";
    refused("na+sm://", "", "`margo.remote_admin` is not set");
    refused(tcp, ALLOWED, "only its own user may");
    let rules =
        |who: &str| format!(r#"{ALLOWED}, "security": {{ "allow": [{{ "who": "{who}" }}] }}"#);
    refused("na+sm://", &rules("host:127.0.0.1"), "no rule");
    // A rule for all RPCs is none for this one.
    refused(tcp, &rules("anyone"), "no rule");
    for (address, who) in [("na+sm://", "uid:self"), (tcp, "host:127.0.0.1")] {
        let it = Administered::start(address, &rules(who));
        it.ask(&list).unwrap();
        it.end();
    }
    // A program that does not offer it.
    let alone = builder("na+sm://").start().unwrap();
    let error = alone.network().administer(&alone.self_addr(), &list, PATIENCE).unwrap_err();
    assert!(matches!(error, AdminError::Unknown { .. }), "{error}");
    alone.finalize_and_wait().unwrap();
}

#[test]
fn each_change_is_a_line_of_the_audit_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let audit = format!(
        r#"{ALLOWED}, "security": {{ "allow": [{{ "who": "uid:self" }}],
            "audit": {{ "file": "{}" }} }}"#,
        path.display()
    );
    let it = Administered::start("na+sm://", &audit);
    it.act(json!({ "act": "list" })).unwrap();
    it.act(entry(2, 2, json!({ "name": "two" }))).unwrap();
    it.fails(json!({ "act": "remove_pool", "name": "nowhere" }), "nowhere");
    it.end();
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let acts: Vec<_> = lines.filter(|line| line["event"] == "admin").collect();
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert_eq!((&acts[0]["act"], &acts[0]["done"]), (&json!("start_provider two"), &json!(true)));
    assert_eq!((&acts[1]["act"], &acts[1]["done"]), (&json!("remove_pool nowhere"), &json!(false)));
    let user = format!("user {}", rustix::process::geteuid().as_raw());
    assert_eq!(acts[0]["caller"], user);
    assert!(acts[1]["why"].as_str().is_some_and(|why| why.contains("nowhere")));
}

#[test]
fn administration_ends_with_the_providers() {
    let it = Administered::start("na+sm://", ALLOWED);
    let Administered { service, providers, client, .. } = it;
    let peer = client.lookup(service.self_addr().uri()).unwrap();
    let taken = providers.take();
    assert_eq!(taken.names().collect::<Vec<_>>(), ["adder_1"]);
    let told = client.network().administer(&peer, &AdminRequest::List {}, PATIENCE).unwrap();
    assert_eq!(told["providers"], json!([]));
    drop(providers);
    let error = client.network().administer(&peer, &AdminRequest::List {}, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("the instance ends"), "{error}");
    drop(taken);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
