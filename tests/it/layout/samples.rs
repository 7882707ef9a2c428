//! Every sample document is started, and the services that it describes answer.

use crate::common::{PATIENCE, bounded};
use margo::ult::Topology;
use margo::{Instance, ProviderHandle, ProviderId, Rpc, config::Config, elasticity::Layout};

/// Answers with the name of the pool that the handler runs in, and the origin's address.
const POOL: Rpc<(), (String, String)> = Rpc::new("pool");

/// The sample, on a machine that may have fewer NUMA nodes and CPUs than it is written for.
fn fitted(name: &str, text: &str) -> String {
    let topology = Topology::get().unwrap();
    let cpu = topology.allowed().iter().next().unwrap();
    match name {
        "numa-pinned.json" if topology.numa_nodes().len() < 2 => text.replace("numa:1", "numa:0"),
        "one-core.json" => text.replace("\"cpubind\": 0", &format!("\"cpubind\": {cpu}")),
        _ => text.to_owned(),
    }
}

fn register(service: &Instance, id: u16, pool: &margo::Pool) -> margo::Provider {
    let provider = service.provider(ProviderId::new(id), pool);
    provider
        .register(POOL, |request| {
            let pool = margo::ult::current().unwrap().pool.to_string();
            let _ = request.respond(&(pool, request.origin().uri().to_owned()));
        })
        .unwrap();
    provider
}

/// Serves callers at the address of the service with the providers of the document, in their pools.
fn serve(name: &str, service: &Instance, config: &Config) {
    let resolved = config.resolve(&|_| None).unwrap();
    let pool_of = |index| service.layout().find_pool(index).unwrap().pool;
    let providers: Vec<_> = resolved
        .providers
        .iter()
        .map(|wanted| register(service, wanted.provider_id, &pool_of(wanted.pool)))
        .collect();
    assert!(!providers.is_empty(), "{name} serves something");
    let own = service.self_addr();
    let transport = config.margo.address.split("://").next().unwrap();
    // The sample with two transports is called over each of them.
    let ways = match config.mercury.auto_sm {
        true => vec![("na+sm", true), (transport, false)],
        false => vec![(transport, false)],
    };
    for (way, auto_sm) in ways {
        let mut document = Config::default();
        (document.margo.address, document.margo.listen) = (format!("{transport}://"), false);
        document.mercury.auto_sm = auto_sm;
        let client = Instance::from_config(&document).unwrap();
        let addr = client.lookup(own.uri()).unwrap();
        for (provider, wanted) in providers.iter().zip(&resolved.providers) {
            let target = ProviderHandle::new(addr.clone(), provider.id());
            let (pool, came) = client.forward_timed(POOL, &target, &(), PATIENCE).unwrap();
            assert_eq!(pool, resolved.pools[wanted.pool].name, "{name}");
            assert_eq!(came.split("://").next(), Some(way), "{name}: how it came");
        }
        client.finalize_and_wait().unwrap();
    }
}

/// A client of the document, which calls a service beside it.
fn call(name: &str, client: &Instance) {
    let service = Instance::builder("na+sm://").start().unwrap();
    let provider = register(&service, 1, &service.layout().rpc_pool());
    let addr = client.lookup(service.self_addr().uri()).unwrap();
    let target = ProviderHandle::new(addr, provider.id());
    let (pool, _) = client.forward_timed(POOL, &target, &(), PATIENCE).unwrap();
    assert_eq!(pool, "__primary__", "{name}");
    drop(provider);
    service.finalize_and_wait().unwrap();
}

#[test]
fn every_sample_starts_and_answers() {
    bounded("starting the samples", || {
        for (name, text) in margo::config::samples() {
            let text = fitted(name, text);
            let config = Config::from_json(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let instance = margo::init(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            if config.margo.listen {
                serve(name, &instance, &config);
            } else {
                call(name, &instance);
            }
            // What it prints starts as well.
            let printed = instance.config().to_json();
            instance.finalize_and_wait().unwrap();
            margo::init(&printed).unwrap().finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn every_sample_is_explained() {
    for (name, text) in margo::config::samples() {
        let config = Config::from_json(&fitted(name, text)).unwrap();
        let lines = Layout::explain(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        for what in ["xstream ", "pool ", "cores: ", "polling: ", "memory: "] {
            assert!(lines.iter().any(|line| line.starts_with(what)), "{name}: {what}: {lines:#?}");
        }
    }
}
