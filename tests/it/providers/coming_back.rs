//! Dependencies that are stopped and started again, in the same process and elsewhere.

use std::net::TcpListener;

use margo::admin::{AdminError, AdminRequest, AdministeredProviders};
use margo::component::{Component, Dependency, Need, ProviderSpec, RunningProvider};
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, Rpc};
use serde_json::{Value, json};

use crate::common::process::{Service, serve_if_asked};
use crate::common::{PATIENCE, builder};

const GET: Rpc<(), u64> = Rpc::new("box_get");

/// The number of the provider that is depended on, by its object and by a call.
const READ: Rpc<(), (Option<u64>, Option<u64>)> = Rpc::new("reader_read");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Has the number `config.number`.
struct Boxes;

impl Component for Boxes {
    fn type_name(&self) -> &'static str {
        "box"
    }

    fn check(&self, config: &Value) -> Result<(), BoxError> {
        config["number"].as_u64().map(|_| ()).ok_or_else(|| "`number` is missing".into())
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        let provider = spec.provider_of::<u64>(instance, spec.config["number"].as_u64().unwrap());
        provider.serve(GET).returning_method(|number: &u64, _| *number)?;
        Ok(Box::new(provider))
    }
}

struct Readers;

impl Component for Readers {
    fn type_name(&self) -> &'static str {
        "reader"
    }

    fn needs(&self) -> &[Need] {
        &const { [Need::one("from").of_type("box")] }
    }

    fn start(
        &self,
        instance: &Instance,
        spec: &ProviderSpec,
    ) -> Result<Box<dyn RunningProvider>, BoxError> {
        let from: Dependency = spec.dependencies.get("from").ok_or("nothing to read")?.clone();
        let provider = spec.provider(instance);
        let caller = instance.downgrade();
        provider.serve(READ).returning(move |_| {
            let instance = caller.upgrade().expect("it serves");
            let called = match instance.forward_timed(GET, &from.handle(), &(), PATIENCE) {
                Ok(number) => Some(number),
                Err(ForwardError::NotRegistered { .. } | ForwardError::Network { .. }) => None,
                Err(error) => panic!("{error}"),
            };
            (from.object::<u64>().map(|number| *number), called)
        })?;
        Ok(Box::new(provider))
    }
}

struct Served {
    service: Instance,
    providers: AdministeredProviders,
    /// A client of the same user; the service itself is nobody to itself.
    client: Instance,
}

impl Served {
    fn start(providers: &str) -> Self {
        let document = format!(
            r#"{{ "margo": {{ "address": "na+sm://", "remote_admin": true,
                "providers": [{providers}] }} }}"#
        );
        let service = margo::init(&document).unwrap();
        let started = service.start_providers(&[&Boxes, &Readers]).unwrap();
        let components: [Box<dyn Component>; 2] = [Box::new(Boxes), Box::new(Readers)];
        let providers = service.administer(started, components).unwrap();
        let client = builder("na+sm://").listen(false).start().unwrap();
        Self { service, providers, client }
    }

    fn act(&self, request: Value) -> Result<Value, AdminError> {
        let request: AdminRequest = serde_json::from_value(request).unwrap();
        let peer = self.client.lookup(self.service.self_addr().uri()).unwrap();
        self.client.network().administer(&peer, &request, PATIENCE)
    }

    fn fails(&self, request: Value, why: &str) {
        let error = self.act(request).unwrap_err();
        let AdminError::Failed { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains(why), "{reason}");
    }

    fn read(&self) -> (Option<u64>, Option<u64>) {
        let reader = ProviderHandle::new(self.service.self_addr(), ProviderId::new(1));
        self.service.forward_timed(READ, &reader, &(), PATIENCE).unwrap()
    }

    fn end(self) {
        drop(self.providers);
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

fn start(entry: Value) -> Value {
    json!({ "act": "start_provider", "provider": entry })
}

fn stop(name: &str, needed: bool) -> Value {
    json!({ "act": "stop_provider", "name": name, "needed": needed })
}

fn near(id: u16, config: Value) -> Value {
    start(json!({ "type": "box", "name": "near", "provider_id": id, "config": config }))
}

#[test]
fn one_of_the_same_process_is_found_by_its_name() {
    let it = Served::start(
        r#"{ "type": "reader", "provider_id": 1, "dependencies": { "from": "near" } },
           { "type": "box", "name": "near", "provider_id": 2, "config": { "number": 1 } }"#,
    );
    assert_eq!(it.read(), (Some(1), Some(1)));
    it.fails(stop("near", false), "is needed by `reader_1`");
    assert_eq!(it.read(), (Some(1), Some(1)));

    it.act(stop("near", true)).unwrap();
    assert_eq!(it.read(), (None, None));
    let listed = it.act(json!({ "act": "list" })).unwrap();
    let running = |name: &str| {
        let mut all = listed["providers"].as_array().unwrap().iter();
        all.find(|one| one["name"] == name).unwrap()["running"].as_bool()
    };
    assert_eq!((running("near"), running("reader_1")), (Some(false), Some(true)), "{listed}");
    // It is part of the document, which starts both.
    let config = it.act(json!({ "act": "config" })).unwrap().to_string();
    let again = margo::config::Config::from_json(&config).unwrap().resolve(&|_| None).unwrap();
    assert_eq!(again.providers.len(), 2);

    // What does not fit does not take its place, and nobody can depend on it meanwhile.
    it.fails(near(2, json!({})), "`number` is missing");
    let other = json!({ "type": "reader", "name": "near", "provider_id": 7,
        "dependencies": { "from": "near" } });
    it.fails(start(other), "near");
    let second = json!({ "type": "reader", "provider_id": 3, "dependencies": { "from": "near" } });
    it.fails(start(second.clone()), "`near` is stopped: start it first");
    it.fails(json!({ "act": "drain_provider", "name": "near" }), "no provider `near`");
    let far = json!({ "type": "box", "provider_id": 9, "config": { "number": 9 } });
    it.act(start(far)).unwrap();
    assert_eq!(it.read(), (None, None));

    it.act(near(5, json!({ "number": 7 }))).unwrap();
    assert_eq!(it.read(), (Some(7), Some(7)));
    // It ends after those that work with it.
    assert_eq!(it.providers.names(), ["near", "reader_1", "box_9"]);
    it.act(start(second)).unwrap();
    it.fails(stop("near", false), "is needed by `reader_1`, `reader_3`");
    let config = it.service.config().margo.providers;
    assert_eq!(config.iter().filter(|one| one.name.as_deref() == Some("near")).count(), 1);

    // When nobody needs it any more, it can be given up.
    it.act(stop("near", true)).unwrap();
    it.act(near(2, json!({ "number": 8 }))).unwrap();
    assert_eq!(it.read(), (Some(8), Some(8)));
    it.act(stop("near", true)).unwrap();
    it.fails(stop("near", false), "is needed by");
    for name in ["reader_1", "reader_3", "near"] {
        it.act(stop(name, false)).unwrap();
    }
    let far = it.service.config().margo.providers;
    assert_eq!(far.iter().map(|one| one.provider_id).collect::<Vec<_>>(), [Some(9)]);
    it.fails(stop("near", false), "no provider `near`");
    it.end();
}

#[test]
fn one_that_is_needed_by_nobody_is_just_stopped() {
    let it = Served::start(r#"{ "type": "box", "provider_id": 2, "config": { "number": 1 } }"#);
    it.act(stop("box_2", true)).unwrap();
    assert!(it.providers.take().awaited().next().is_none());
    assert!(it.service.config().margo.providers.is_empty());
    it.end();
}

/// In a process of its own: has its number.
#[test]
fn service_process() {
    serve_if_asked(|service| {
        let provider = service.provider(ProviderId::new(9), &service.layout().rpc_pool());
        provider.serve(GET).function(|()| u64::from(std::process::id())).unwrap();
        // It serves as long as the process.
        std::mem::forget(provider);
    });
}

#[test]
fn one_of_a_process_that_was_killed_is_found_at_its_address() {
    // A port that was free, and that the process has again and again.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("na+tcp://127.0.0.1:{port}");
    let module = module_path!();
    let mut far = Service::start(module, &address);
    let document = format!(
        r#"{{ "margo": {{ "address": "na+tcp://127.0.0.1:0", "providers": [
            {{ "type": "reader", "provider_id": 1,
               "dependencies": {{ "from": "box:9@{address}" }} }}] }} }}"#
    );
    let service = margo::init(&document).unwrap();
    let providers = service.start_providers(&[&Boxes, &Readers]).unwrap();
    let reader = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
    let read = || service.forward_timed(READ, &reader, &(), PATIENCE).unwrap();
    let mut before = read();
    assert!(before.1.is_some());
    for _ in 0..3 {
        far.kill();
        assert_eq!(read(), (None, None));
        far = Service::start(module, &address);
        let now = read();
        assert!(now.1.is_some() && now != before, "{now:?} after {before:?}");
        before = now;
    }
    drop(providers);
    service.finalize_and_wait().unwrap();
}
