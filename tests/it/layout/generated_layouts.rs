//! No layout that is accepted lets handlers or calls starve: documents at random, those of the
//! configuration's own tests, are started, and have handlers that are always able to run beside
//! calls that are nested and cross the network.

#[path = "../../../config/tests/it/generated/mod.rs"]
mod generated;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{PATIENCE, bounded};
use margo::{
    Handle, Instance, Provider, ProviderHandle, ProviderId, RegisterError, Rpc, config::Config,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use ult::Semaphore;

/// Layouts that are started.
const LAYOUTS: usize = 24;
/// Execution streams that one of them may have.
const XSTREAMS_MAX: usize = 8;
/// How deep calls are nested.
const DEPTH: u32 = 3;

/// Calls the other side and itself, so many levels deep; answers how many handlers that took.
const NEST: Rpc<u32, u32> = Rpc::new("nest");
/// Yields until it is told to stop; answers how often.
const YIELD: Rpc<(), u64> = Rpc::new("yield");

/// Returns the document without keys that need a particular machine, and open to calls.
fn fitted(mut document: Value) -> Value {
    for list in ["pools", "xstreams"] {
        for entry in document["argobots"][list].as_array_mut().unwrap() {
            let entry = entry.as_object_mut().unwrap();
            entry.retain(|key, _| !["cpubind", "affinity", "numa_node"].contains(&key.as_str()));
        }
    }
    document["mercury"]["listening"] = json!(true);
    // Rules may keep everybody out.
    if let Some(margo) = document.get_mut("margo").and_then(Value::as_object_mut) {
        margo.remove("security");
    }
    document
}

/// Documents that are accepted, no two of them with the same layout, and the same ones in each run.
fn accepted() -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let mut layouts = Vec::new();
    let mut documents = Vec::new();
    while documents.len() < LAYOUTS {
        let tree = generated::document().new_tree(&mut runner).unwrap();
        let text = fitted(tree.current()).to_string();
        let Ok(config) = Config::from_json(&text) else { continue };
        let resolved = config.resolve(&|_| None).unwrap();
        let (pools, xstreams) = (&resolved.pools, &resolved.xstreams);
        let roles = (resolved.progress_pool, &resolved.more_progress_pools, resolved.rpc_pool);
        let layout = format!("{pools:?} {xstreams:?} {roles:?}");
        if xstreams.len() <= XSTREAMS_MAX && !layouts.contains(&layout) {
            layouts.push(layout);
            documents.push(text);
        }
    }
    documents
}

fn nest(handle: &Handle<u32, u32>) -> u32 {
    (0..10).for_each(|_| ult::yield_now());
    let Some(depth) = handle.args().checked_sub(1) else { return 1 };
    let own = handle.instance();
    let sides = [handle.origin().clone(), own.self_addr()].map(ProviderHandle::from);
    1 + sides.iter().map(|side| own.forward(NEST, side, &depth).unwrap()).sum::<u32>()
}

/// Something in each pool that handlers may be in.
struct Service {
    instance: Instance,
    providers: Vec<Provider>,
    stop: Arc<AtomicBool>,
    begun: Arc<Semaphore>,
}

impl Service {
    fn start(document: &str) -> Self {
        let instance = margo::init(document).unwrap();
        // What is accepted can always be served in the pool for it.
        instance.serve(NEST).returning(nest).unwrap();
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(Semaphore::new(0)));
        let mut providers = Vec::new();
        for (pool, id) in instance.layout().pools().iter().zip(1..) {
            if pool.xstreams().is_empty() {
                continue;
            }
            let provider = instance.provider(ProviderId::new(id), pool);
            match provider.serve(NEST).returning(nest) {
                Ok(()) => {}
                Err(RegisterError::PrivatePool { .. }) => continue,
                Err(error) => panic!("{error}"),
            }
            let (stops, begins) = (stop.clone(), begun.clone());
            let yields = move |()| {
                begins.release(1);
                let yields = (1..).inspect(|_| ult::yield_now());
                yields.take_while(|_| !stops.load(Ordering::Relaxed)).last().unwrap_or(0)
            };
            provider.serve(YIELD).function(yields).unwrap();
            providers.push(provider);
        }
        Self { instance, providers, stop, begun }
    }

    /// While others in the same pools can run at any time, calls of each of them end.
    fn is_called(&self) {
        let client = Instance::builder("na+sm://").start().unwrap();
        client.serve(NEST).returning(nest).unwrap();
        let own = client.lookup(self.instance.self_addr().uri()).unwrap();
        let ids = self.providers.iter().map(Provider::id);
        let targets: Vec<_> = ids.map(|id| ProviderHandle::new(own.clone(), id)).collect();
        let start = |target| client.rpc(YIELD, target, &()).start().unwrap();
        let yields: Vec<_> = targets.iter().map(start).collect();
        self.begun.acquire(yields.len()).forget();
        let default = ProviderHandle::from(own.clone());
        let start = |target| client.rpc(NEST, target, &DEPTH).start().unwrap();
        let calls: Vec<_> = targets.iter().chain([&default]).map(start).collect();
        for count in margo::wait_all(calls) {
            assert_eq!(count.unwrap(), (2 << DEPTH) - 1);
        }
        self.stop.store(true, Ordering::Relaxed);
        for count in margo::wait_all(yields) {
            assert!(count.unwrap() > 0);
        }
        client.finalize_and_wait().unwrap();
    }

    fn end(self) {
        drop(self.providers);
        self.instance.finalize_and_wait().unwrap();
    }
}

// Slow: 24 layouts, each started for both sides of nested calls.
#[test]
fn no_layout_that_is_accepted_lets_handlers_or_calls_starve() {
    let mut shared = 0;
    for (index, document) in accepted().into_iter().enumerate() {
        let about = format!("layout {index}: {document}, not within {PATIENCE:?}");
        shared += bounded(&about, move || {
            let service = Service::start(&document);
            let handlers = service.providers.len();
            service.is_called();
            service.end();
            usize::from(handlers > 1)
        });
    }
    assert!(shared > LAYOUTS / 4, "only {shared} have several pools for handlers");
}
