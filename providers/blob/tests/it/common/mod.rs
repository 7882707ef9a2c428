//! Support for the integration tests.

use std::path::Path;
use std::time::Duration;

use margo::{Instance, ProviderHandle, ProviderId};
use margo_provider_blob::{BlobClient, BlobConfig, BlobProvider, ClientError};

/// Far beyond what a loaded machine needs; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The addresses that tests open.
pub(crate) const TRANSPORTS: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1:0"];

const ID: ProviderId = ProviderId::new(1);

/// A provider and a client of it.
pub(crate) struct Pair {
    pub(crate) service: Instance,
    pub(crate) client: Instance,
    pub(crate) blobs: BlobClient,
    provider: BlobProvider,
}

impl Pair {
    pub(crate) fn new(transport: &str, config: &BlobConfig) -> Self {
        let service = Instance::builder(transport).start().unwrap();
        let provider = service.provider(ID, &service.layout().rpc_pool());
        let provider = BlobProvider::start(provider, config).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let target = client.lookup(service.self_addr().uri()).unwrap();
        let blobs = BlobClient::new(&client, ProviderHandle::new(target, ID));
        Self { service, client, blobs, provider }
    }

    pub(crate) fn end(self) {
        self.client.finalize_and_wait().unwrap();
        drop(self.provider);
        self.service.finalize_and_wait().unwrap();
    }
}

/// Runs `body` for each transport on an empty directory, which is checked for leftovers.
pub(crate) fn on_each(change: impl Fn(&mut BlobConfig), body: impl Fn(&Pair, &Path)) {
    for transport in TRANSPORTS {
        let dir = tempfile::tempdir().unwrap();
        let mut config = BlobConfig::new(dir.path());
        change(&mut config);
        let pair = Pair::new(transport, &config);
        body(&pair, dir.path());
        pair.end();
        let left = std::fs::read_dir(dir.path()).unwrap().find_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.starts_with(margo_provider_blob::RESERVED_PREFIX).then_some(name)
        });
        assert_eq!(left, None, "{transport}: a temporary file is left");
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
pub(crate) fn refusal<T: std::fmt::Debug>(
    result: Result<T, ClientError>,
) -> margo_provider_blob::BlobError {
    match result.unwrap_err() {
        ClientError::Blob(error) => error,
        other => panic!("not an answer of the target: {other}"),
    }
}
