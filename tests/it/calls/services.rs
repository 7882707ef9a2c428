//! Services made of traits: clients and providers that the attribute writes, and their wire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{PATIENCE, Pair, TRANSPORTS, bounded};
use margo::service::RequestContext;
use margo::{
    Access, Bulk, CallError, ForwardError, Instance, InstanceBuilder, OneWay, ProviderHandle,
    ProviderId, RegisterError, Rpc, config::Config, encoding::Bytes,
};
use serde::{Deserialize, Serialize};
use ult::Eventual;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
enum KvError {
    #[error("no such key: {key}")]
    NoKey { key: String },
    #[error("{0} bytes are too many")]
    TooLong(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Usage {
    keys: u64,
    bytes: u64,
}

/// Keys and their values.
#[margo::service]
trait Kv {
    /// Stores a value.
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError>;

    /// The value of a key.
    fn get(&self, key: &str) -> Result<Bytes, KvError>;

    /// Appends to a value, and returns its length.
    fn append(&self, key: &str, more: &[u8]) -> u64;

    /// The lengths of the values of these keys.
    fn lengths(&self, keys: &[String]) -> Vec<Option<u64>>;

    /// Returns more usage than there is.
    fn add(&self, usage: &Usage, keys: u64) -> Usage;

    /// Nothing to take, nothing to give.
    fn clear(&self);

    /// Nobody waits for it.
    #[margo(one_way)]
    fn touch(&self, key: &str, object: u32);

    /// Where the caller is.
    fn caller(&self, request: &RequestContext, provider: u16) -> (String, bool);

    /// Stores what the caller has exposed.
    fn load(
        &self,
        key: &str,
        request: &RequestContext,
        len: u64,
        data: &Bulk,
    ) -> Result<(), String>;

    /// Never answers in time.
    #[margo(deadline = "20ms")]
    fn sleep(&self);

    /// Panics.
    fn panic(&self, text: String) -> u8;

    /// A name that is a keyword, a body, and an RPC of a name of its own.
    #[margo(rpc = "kv_kind", admission = 8)]
    fn r#type(&self) -> String {
        "default".to_owned()
    }
}

#[derive(Default)]
struct Store {
    values: ult::Mutex<BTreeMap<String, Vec<u8>>>,
    touched: Eventual<(String, u32)>,
    awake: Eventual<()>,
}

impl Kv for Store {
    fn put(&self, key: &str, value: Bytes) -> Result<(), KvError> {
        if value.len() > 100 {
            return Err(KvError::TooLong(value.len() as u64));
        }
        self.values.lock().insert(key.to_owned(), value.0);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, KvError> {
        let values = self.values.lock();
        let value = values.get(key).ok_or_else(|| KvError::NoKey { key: key.to_owned() })?;
        Ok(Bytes(value.clone()))
    }

    fn append(&self, key: &str, more: &[u8]) -> u64 {
        let mut values = self.values.lock();
        let value = values.entry(key.to_owned()).or_default();
        value.extend_from_slice(more);
        value.len() as u64
    }

    fn lengths(&self, keys: &[String]) -> Vec<Option<u64>> {
        let values = self.values.lock();
        keys.iter().map(|key| Some(values.get(key)?.len() as u64)).collect()
    }

    fn add(&self, usage: &Usage, keys: u64) -> Usage {
        Usage { keys: usage.keys + keys, ..*usage }
    }

    fn clear(&self) {
        self.values.lock().clear();
    }

    fn touch(&self, key: &str, object: u32) {
        let _ = self.touched.set((key.to_owned(), object));
    }

    fn caller(&self, request: &RequestContext, provider: u16) -> (String, bool) {
        assert_eq!(request.provider_id(), ProviderId::new(provider));
        (request.origin().uri().to_owned(), request.deadline().is_some())
    }

    fn load(
        &self,
        key: &str,
        request: &RequestContext,
        len: u64,
        data: &Bulk,
    ) -> Result<(), String> {
        let mut buffer =
            request.instance().memory().bulk_buffer(len as usize).map_err(|e| e.to_string())?;
        let whole = 0..len as usize;
        request.pull(data, 0, &mut buffer, whole).map_err(|error| error.to_string())?;
        self.values.lock().insert(key.to_owned(), buffer.to_vec());
        Ok(())
    }

    fn sleep(&self) {
        self.awake.wait();
    }

    fn panic(&self, text: String) -> u8 {
        panic!("{text}")
    }
}

const ID: ProviderId = ProviderId::new(3);

/// Runs `body` with a served store and a client of it, over memory, TCP and the simulator.
fn with_store(body: impl Fn(&Pair, &KvClient, &Arc<Store>)) {
    for transport in TRANSPORTS.into_iter().chain(["na+sim://"]) {
        let pair = Pair::new(transport);
        let provider = KvService::serve(&pair.service, ID, Store::default()).unwrap();
        let store = provider.object().clone();
        let client = KvClient::connect(&pair.client, target(&pair), PATIENCE).unwrap();
        body(&pair, &client, &store);
        let _ = store.awake.set(());
        drop(client);
        provider.close(PATIENCE).unwrap();
        pair.end();
    }
}

fn target(pair: &Pair) -> ProviderHandle {
    ProviderHandle::new(pair.target().addr().clone(), ID)
}

#[test]
fn methods_are_called_with_values_and_references() {
    with_store(|_, kv, _| {
        kv.put("a", Bytes(vec![1, 2])).unwrap();
        assert_eq!(*kv.get("a").unwrap(), [1, 2]);
        assert_eq!(kv.append("a", &[3]).unwrap(), 3);
        let keys = ["a".to_owned(), "b".to_owned()];
        assert_eq!(kv.lengths(&keys).unwrap(), [Some(3), None]);
        let usage = Usage { keys: 1, bytes: 7 };
        assert_eq!(kv.add(&usage, 2).unwrap(), Usage { keys: 3, bytes: 7 });
        kv.clear().unwrap();
        assert_eq!(kv.lengths(&keys).unwrap(), [None, None]);
        assert_eq!(kv.r#type().unwrap(), "default");
    });
}

#[test]
fn errors_of_the_service_are_told_from_those_of_the_runtime() {
    with_store(|_, kv, _| {
        let error = kv.get("b").unwrap_err();
        assert_eq!(error.service(), Some(KvError::NoKey { key: "b".to_owned() }));
        let error = kv.put("b", Bytes(vec![0; 101])).unwrap_err();
        assert!(matches!(error, CallError::Service(KvError::TooLong(101))), "{error}");
        let error = kv.panic("unlucky".to_owned()).unwrap_err();
        let ForwardError::Panicked { detail, .. } = &error else { panic!("{error}") };
        assert!(detail.contains("unlucky"), "{detail}");
        // Nothing is left of that.
        assert_eq!(kv.append("b", b"x").unwrap(), 1);
    });
}

#[test]
fn calls_that_are_started_go_on_together_and_are_awaited() {
    with_store(|_, kv, _| {
        let first = kv.append_start("a", b"xy").unwrap();
        let second = kv.get_start("b").unwrap();
        let third = kv.r#type_start().unwrap();
        assert_eq!(ult::block_on(first).unwrap(), 2);
        assert!(matches!(second.wait(), Ok(Err(KvError::NoKey { .. }))));
        assert_eq!(third.wait().unwrap(), "default");
    });
}

#[test]
fn a_one_way_method_is_sent() {
    with_store(|_, kv, store| {
        kv.touch("a", 7).unwrap();
        assert_eq!(*store.touched.wait(), ("a".to_owned(), 7));
        kv.touch_start("b", 8).unwrap().wait().unwrap();
    });
}

#[test]
fn the_context_of_a_request_is_no_argument_of_the_client() {
    with_store(|pair, kv, _| {
        let own = pair.client.self_addr().uri().split("://").next().unwrap().to_owned();
        let (caller, has_deadline) = kv.caller(3).unwrap();
        assert!(caller.starts_with(&own) && !has_deadline, "{caller} {own}");
        let limited = kv.clone().with_timeout(PATIENCE);
        assert_eq!(limited.timeout(), Some(PATIENCE));
        assert!(limited.caller(3).unwrap().1);
    });
}

#[test]
fn bulk_handles_are_arguments() {
    with_store(|pair, kv, store| {
        let exposed = pair.client.expose(vec![5; 10_000], Access::ReadOnly).unwrap();
        kv.load("a", 10_000, exposed.bulk()).unwrap();
        assert_eq!(store.values.lock()["a"], [5; 10_000]);
        let error = kv.load("a", 10_001, exposed.bulk()).unwrap_err();
        assert!(matches!(error, CallError::Service(_)), "{error}");
    });
}

#[test]
fn a_deadline_of_a_method_is_for_clients_without_a_limit() {
    with_store(|_, kv, store| {
        let error = kv.sleep().unwrap_err();
        let ForwardError::TimedOut { limit, .. } = error else { panic!("{error}") };
        assert_eq!(limit, Duration::from_millis(20));
        let error = kv.sleep_start().unwrap().wait().unwrap_err();
        assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
        let patient = kv.clone().with_timeout(PATIENCE).sleep_start().unwrap();
        store.awake.set(()).unwrap();
        patient.wait().unwrap();
    });
}

/// A caller and a target that define the RPCs by hand.
#[test]
fn the_wire_is_that_of_rpcs_that_are_written_by_hand() {
    const PUT: Rpc<(String, Vec<u8>), Result<(), KvError>> = Rpc::new("kv.put");
    const GET: Rpc<String, Result<Vec<u8>, KvError>> = Rpc::new("kv.get");
    const CLEAR: Rpc<(), ()> = Rpc::new("kv.clear");
    const TOUCH: OneWay<(String, u32)> = OneWay::new("kv.touch");
    const KIND: Rpc<(), String> = Rpc::new("kv_kind");
    with_store(|pair, _, store| {
        let (by, to) = (&pair.client, target(pair));
        by.rpc(PUT, &to, &("k".to_owned(), vec![1])).call().unwrap();
        assert_eq!(by.rpc(GET, &to, &"k".to_owned()).call().unwrap(), [1]);
        by.forward(CLEAR, &to, &()).unwrap();
        by.send(TOUCH, &to, &("k".to_owned(), 1)).unwrap();
        assert_eq!(store.touched.wait().1, 1);
        assert_eq!(by.forward(KIND, &to, &()).unwrap(), "default");
    });
    for (rpc, name) in [(KvService::PUT.id(ID), PUT.id(ID)), (KvService::TYPE.id(ID), KIND.id(ID))]
    {
        assert_eq!(rpc, name);
    }
    let pair = Pair::new("na+sm://");
    let other = pair.service.provider(ID, &pair.service.layout().rpc_pool());
    other
        .serve(PUT)
        .function(|(key, value)| {
            assert_eq!((&*key, &*value), ("k", &[1, 2][..]));
            Err(KvError::TooLong(2))
        })
        .unwrap();
    let kv = KvClient::new(&pair.client, target(&pair));
    let error = kv.put("k", Bytes(vec![1, 2])).unwrap_err();
    assert_eq!(error.service(), Some(KvError::TooLong(2)));
    drop(other);
    pair.end();
}

/// A service of which a pool is part.
#[margo::service(name = "slow things")]
trait Slow {
    /// The pool that it runs in.
    #[margo(pool = "slow")]
    fn pool(&self) -> String;
    /// The provider's own.
    fn own_pool(&self) -> String;
}

struct Pools;

impl Slow for Pools {
    fn pool(&self) -> String {
        ult::current().map(|own| own.pool).unwrap_or_default()
    }

    fn own_pool(&self) -> String {
        self.pool()
    }
}

#[test]
fn a_method_runs_in_the_pool_that_it_names() {
    bounded("a pool that is named", || {
        let document = r#"{ "margo": { "address": "na+sm://" }, "argobots": {
            "pools": [{ "name": "__primary__" }, { "name": "slow" }],
            "xstreams": [{ "name": "__primary__", "scheduler": { "pools": ["__primary__"] } },
                         { "name": "x", "scheduler": { "pools": ["slow"] } }] } }"#;
        let service = InstanceBuilder::from_config(Config::from_json(document).unwrap());
        let service = service.start().unwrap();
        let provider = KvOrSlow::serve(&service);
        let slow = SlowClient::new(&service, ProviderHandle::new(service.self_addr(), ID));
        assert_eq!(slow.pool().unwrap(), "slow");
        assert_eq!(slow.own_pool().unwrap(), service.layout().rpc_pool().name());
        assert_eq!(service.network().identity(ID).as_deref(), Some("slow things"));
        assert_eq!(SlowService::POOL.name(), "slow things.pool");
        drop((provider, slow));
        service.finalize_and_wait().unwrap();
    });
}

/// A provider with RPCs of its own besides.
struct KvOrSlow;

impl KvOrSlow {
    fn serve(service: &Instance) -> margo::Provider<Pools> {
        const MORE: Rpc<(), u8> = Rpc::new("more");
        let provider = service.provider_of(ID, &service.layout().rpc_pool(), Pools);
        SlowService::serve_on(&provider).unwrap();
        provider.serve(MORE).function(|()| 1).unwrap();
        provider.set_identity("slow things").unwrap();
        provider
    }
}

#[test]
fn a_pool_that_is_not_there_is_said_and_nothing_is_served() {
    let pair = Pair::new("na+sm://");
    let error = SlowService::serve(&pair.service, ID, Pools).unwrap_err();
    let RegisterError::NoPool { rpc, pool, .. } = &error else { panic!("{error}") };
    assert_eq!((*rpc, &**pool), ("slow things.pool", "slow"));
    assert!(error.to_string().contains("`__primary__`"), "{error}");
    assert!(!pair.service.deregister(SlowService::OWN_POOL, ID), "it was never served");
    pair.end();
}

#[test]
fn a_service_is_told_from_another_one() {
    with_store(|pair, _, _| {
        let error = SlowClient::connect(&pair.client, target(pair), PATIENCE).unwrap_err();
        assert!(matches!(error, margo::errors::IdentityError::Other { .. }), "{error}");
        let error = SlowClient::new(&pair.client, target(pair)).pool().unwrap_err();
        assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    });
}
