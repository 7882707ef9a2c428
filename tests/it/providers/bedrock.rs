//! Administration by clients of Bedrock: its RPCs, as Thallium encodes them.

use margo::admin::AdministeredProviders;
use margo::component::{Component, ProviderSpec, RunningProvider};
use margo::encoding::Bytes;
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, Rpc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::common::{PATIENCE, builder};

type Text = Bytes<Vec<u8>>;
type Told = (bool, Text);

const GET_CONFIG: Rpc<(), Told> = Rpc::new("bedrock_get_config");
const ADD_POOL: Rpc<Text, Told> = Rpc::new("bedrock_add_pool");
const REMOVE_POOL: Rpc<Text, Told> = Rpc::new("bedrock_remove_pool");
const ADD_XSTREAM: Rpc<Text, Told> = Rpc::new("bedrock_add_xstream");
const REMOVE_XSTREAM: Rpc<Text, Told> = Rpc::new("bedrock_remove_xstream");
const START: Rpc<Text, (bool, Text, u16)> = Rpc::new("bedrock_start_provider");
const CHANGE_POOL: Rpc<(Text, Text), Told> = Rpc::new("bedrock_change_provider_pool");
const SNAPSHOT: Rpc<(Text, Text, Text, bool), Told> = Rpc::new("bedrock_snapshot_provider");
const RESTORE: Rpc<(Text, Text, Text), Told> = Rpc::new("bedrock_restore_provider");
const QUERY: Rpc<Text, Told> = Rpc::new("bedrock_query_config");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Providers that do nothing; their snapshots are empty folders.
struct Idlers;
struct Idler(margo::Provider);

impl Component for Idlers {
    fn type_name(&self) -> &'static str {
        "idler"
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        Ok(Box::new(Idler(spec.provider(instance))))
    }
}

impl RunningProvider for Idler {
    fn move_to(&self, pool: &margo::ult::PoolRef) -> Result<(), BoxError> {
        RunningProvider::move_to(&self.0, pool)
    }

    fn snapshot(&self, to: &std::path::Path) -> Result<(), BoxError> {
        Ok(std::fs::create_dir(to)?)
    }

    fn restore(&self, from: &std::path::Path) -> Result<(), BoxError> {
        Ok(std::fs::read_dir(from).map(|_| ())?)
    }
}

struct Served {
    service: Instance,
    providers: AdministeredProviders,
    client: Instance,
}

impl Served {
    fn start(address: &str, more: &str) -> Self {
        let document = format!(
            r#"{{ "margo": {{ "address": "{address}", "providers": [
                {{ "type": "idler", "provider_id": 1 }}] {more} }} }}"#
        );
        let service = margo::init(&document).unwrap();
        let started = service.start_providers(&[&Idlers]).unwrap();
        let own: Box<dyn Component> = Box::new(Idlers);
        let providers = service.administer(started, [own]).unwrap();
        let client = builder(address).listen(false).start().unwrap();
        Self { service, providers, client }
    }

    fn call<A: Serialize, R: DeserializeOwned>(
        &self,
        rpc: Rpc<A, R>,
        args: &A,
    ) -> Result<R, ForwardError> {
        let peer = self.client.lookup(self.service.self_addr().uri()).unwrap();
        self.client.forward_timed(
            rpc,
            &ProviderHandle::new(peer, ProviderId::new(0)),
            args,
            PATIENCE,
        )
    }

    fn does<A: Serialize>(&self, rpc: Rpc<A, Told>, args: &A) {
        let (is_done, told) = self.call(rpc, args).unwrap();
        assert!(is_done && told.0.is_empty(), "{}", String::from_utf8_lossy(&told.0));
    }

    fn fails<A: Serialize>(&self, rpc: Rpc<A, Told>, args: &A, why: &str) {
        let (is_done, told) = self.call(rpc, args).unwrap();
        let told = String::from_utf8(told.0).unwrap();
        assert!(!is_done && told.contains(why), "{told}");
    }

    fn config(&self) -> Value {
        let (is_done, told) = self.call(GET_CONFIG, &()).unwrap();
        assert!(is_done);
        serde_json::from_slice(&told.0).unwrap()
    }

    fn end(self) {
        drop(self.providers);
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

fn text(text: impl ToString) -> Text {
    Bytes(text.to_string().into_bytes())
}

#[test]
fn bedrocks_clients_change_a_service() {
    let it = Served::start("na+sm://", r#", "remote_admin": true"#);
    it.does(ADD_POOL, &text(r#"{ "name": "mine", "kind": "fifo_wait", "access": "mpmc" }"#));
    let xstream = r#"{ "name": "own", "scheduler": { "type": "basic_wait", "pools": ["mine"] } }"#;
    it.does(ADD_XSTREAM, &text(xstream));
    // Its pool is a dependency there, and its id may be left out.
    let entry = json!({ "name": "second", "type": "idler", "dependencies": { "pool": "mine" },
        "tags": [], "config": {} });
    let (is_done, error, id) = it.call(START, &text(&entry)).unwrap();
    assert!(is_done && error.0.is_empty() && id == 2, "{error:?} {id}");
    let (is_done, error, _) = it.call(START, &text(&entry)).unwrap();
    assert!(!is_done && String::from_utf8(error.0).unwrap().contains("second"));

    let config = it.config();
    let pools = config["margo"]["argobots"]["pools"].as_array().unwrap();
    assert!(pools.iter().any(|pool| pool["name"] == "mine"), "{config}");
    let second = &config["providers"][1];
    assert_eq!((&second["name"], &second["provider_id"]), (&json!("second"), &json!(2)));
    assert_eq!(second["dependencies"]["pool"], "mine");
    let primary = config["providers"][0]["dependencies"]["pool"].as_str().unwrap();
    assert_eq!(primary, it.service.layout().rpc_pool().name());

    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("snapshot");
    let place = text(place.display());
    let snapshot = |config: &str, ends| (text("second"), place.clone(), text(config), ends);
    it.fails(SNAPSHOT, &snapshot(r#"{ "key": 1 }"#, false), "no settings");
    it.fails(SNAPSHOT, &snapshot("{}", true), "not removed");
    it.does(SNAPSHOT, &snapshot("{}", false));
    it.does(RESTORE, &(text("second"), place.clone(), text("")));
    it.fails(RESTORE, &(text("nobody"), place.clone(), text("")), "there are: idler_1, second");

    it.fails(REMOVE_POOL, &text("nowhere"), "nowhere");
    it.fails(ADD_POOL, &text("{"), "no JSON");
    it.fails(ADD_POOL, &Bytes(vec![b'"', 0xff]), "no JSON");
    it.fails(REMOVE_POOL, &Bytes(vec![0xff]), "utf-8");
    it.does(CHANGE_POOL, &(text("second"), text(primary)));
    it.does(REMOVE_XSTREAM, &text("own"));
    it.does(REMOVE_POOL, &text("mine"));
    // What means nothing here is not served.
    let error = it.call(QUERY, &text("return 1;")).unwrap_err();
    assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    it.end();
}

#[test]
fn only_those_may_who_may_administer() {
    let allowed = r#", "remote_admin": true"#;
    let rules = |rules: &str| format!(r#"{allowed}, "security": {{ "allow": [{rules}] }}"#);
    let tcp = "na+tcp://127.0.0.1:0";
    let here = r#""who": "host:127.0.0.1""#;
    let pool = text(r#"{ "name": "mine" }"#);

    let it = Served::start(tcp, allowed);
    it.fails(ADD_POOL, &pool, "only its own user may");
    it.end();
    // A rule for all RPCs is none for administration.
    let it = Served::start(tcp, &rules(r#"{ "who": "anyone" }"#));
    it.fails(ADD_POOL, &pool, "lets host 127.0.0.1 call `__admin__`");
    it.end();
    let it = Served::start(tcp, &rules(&format!(r#"{{ {here}, "rpc": "__admin__" }}"#)));
    let error = it.call(ADD_POOL, &pool).unwrap_err();
    assert!(matches!(error, ForwardError::Permission { .. }), "{error}");
    it.end();
    let both = format!(r#"{{ {here}, "rpc": "__admin__" }}, {{ {here}, "rpc": "bedrock_*" }}"#);
    let it = Served::start(tcp, &rules(&both));
    it.does(ADD_POOL, &pool);
    it.end();
    // Where nobody may be allowed, they are not there.
    let it = Served::start("na+sm://", "");
    let error = it.call(ADD_POOL, &pool).unwrap_err();
    assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    it.end();
}

#[test]
fn they_follow_progress_to_another_pool() {
    let it = Served::start("na+sm://", r#", "remote_admin": true"#);
    let layout = it.service.layout();
    layout.add_pool_from_json(r#"{ "name": "net" }"#).unwrap();
    layout
        .add_xstream_from_json(r#"{ "name": "net", "scheduler": { "pools": ["net"] } }"#)
        .unwrap();
    let before = layout.progress_pool();
    layout.migrate_progress("net").unwrap();
    assert_ne!(layout.progress_pool(), before);
    assert_eq!(it.config()["bedrock"]["provider_id"], 0);
    it.end();
}
