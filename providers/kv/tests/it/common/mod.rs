//! Support for the integration tests.

use std::fmt::Debug;
use std::time::Duration;

use margo::{Instance, ProviderHandle, ProviderId};
use margo_provider_kv::{
    ClientError, KvClient, KvConfig, KvError, KvProvider, MemoryOrder, StoreConfig, StoreKind,
    SyncPolicy,
};

/// Far beyond what a loaded machine needs; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The addresses that tests open.
pub(crate) const TRANSPORTS: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1:0"];

pub(crate) const ID: ProviderId = ProviderId::new(1);

/// A provider and a client of it.
pub(crate) struct Pair {
    pub(crate) service: Instance,
    pub(crate) client: Instance,
    pub(crate) kv: KvClient,
    pub(crate) provider: KvProvider,
}

impl Pair {
    pub(crate) fn new(transport: &str, config: &KvConfig) -> Self {
        let service = Instance::builder(transport).start().unwrap();
        let provider = service.provider(ID, &service.layout().rpc_pool());
        let provider = KvProvider::start(provider, config).unwrap();
        let (client, kv) = client_of(&service);
        Self { service, client, kv, provider }
    }

    pub(crate) fn end(self) {
        self.client.finalize_and_wait().unwrap();
        drop(self.provider);
        self.service.finalize_and_wait().unwrap();
    }
}

/// One more caller of a service.
pub(crate) fn client_of(service: &Instance) -> (Instance, KvClient) {
    let uri = service.self_addr().uri().to_owned();
    let own = uri.split("://").next().unwrap();
    let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
    let target = client.lookup(&uri).unwrap();
    let kv = KvClient::connect(&client, ProviderHandle::new(target, ID), PATIENCE).unwrap();
    (client, kv)
}

/// The settings of an empty database in memory.
pub(crate) fn in_memory() -> KvConfig {
    KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered))
}

/// Runs `body` for each transport and several stores on an empty database, and looks that nothing
/// is left for callers.
pub(crate) fn on_each_with(change: impl Fn(&mut KvConfig), body: impl Fn(&Pair)) {
    for transport in TRANSPORTS {
        let hashed = KvConfig::new(StoreConfig::memory(MemoryOrder::Hashed));
        for config in [in_memory(), hashed] {
            with(transport, config, &change, &body);
        }
    }
    on_each_disk(change, body);
}

/// As [`on_each_with`], for stores that show one moment.
pub(crate) fn on_each_disk(change: impl Fn(&mut KvConfig), body: impl Fn(&Pair)) {
    for (transport, kind) in TRANSPORTS.into_iter().zip([StoreKind::Redb, StoreKind::Fjall]) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = StoreConfig::new(kind, dir.path().join("db"));
        store.sync = SyncPolicy::Never;
        with(transport, KvConfig::new(store), &change, &body);
    }
}

fn with(
    transport: &str,
    mut config: KvConfig,
    change: impl Fn(&mut KvConfig),
    body: impl Fn(&Pair),
) {
    config.store.max_key_bytes = 32 << 10;
    change(&mut config);
    let pair = Pair::new(transport, &config);
    body(&pair);
    let stat = pair.kv.stat(PATIENCE).unwrap()[0];
    assert_eq!((stat.waiters, stat.bulk_bytes), (0, 0), "{transport} {config:?}: {stat:?}");
    pair.end();
}

pub(crate) fn on_each(body: impl Fn(&Pair)) {
    on_each_with(|_| {}, body);
}

/// Asks again and again until it is so; gives the CPU away in between.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// Bytes that differ at every place that matters.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut data: Vec<u8> = std::iter::repeat_with(&mut next).take(len / 8 + 1).flatten().collect();
    data.truncate(len);
    data
}

/// The target's answer, which is to be an error.
pub(crate) fn refusal<T: Debug>(result: Result<T, ClientError>) -> KvError {
    match result.unwrap_err() {
        ClientError::Kv(error) => error,
        other => panic!("not an answer of the target: {other}"),
    }
}
