//! What only shows while requests are held up inside the target.

use std::time::Duration;

use margo::{ForwardError, ProviderHandle, ProviderId, Rpc};
use tempfile::TempDir;

use super::*;
use crate::{BlobClient, ClientError};

/// Far beyond what a loaded machine needs; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
/// What callers wait for an answer that does not come.
const SHORT: Duration = Duration::from_millis(500);

const ID: ProviderId = ProviderId::new(1);
const PING: Rpc<(), ()> = Rpc::new("ping");

/// A provider whose handlers have an execution stream of their own, and a client of it.
struct Pair {
    service: Arc<Service>,
    target: Instance,
    client: Instance,
    blobs: BlobClient,
    running: BlobProvider,
    _dir: TempDir,
}

impl Pair {
    fn new(transport: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = Instance::builder(transport).rpc_thread_count(1).start().unwrap();
        let service = Arc::new(Service::new(&BlobConfig::new(dir.path())).unwrap());
        let provider = target.provider(ID, &target.rpc_pool());
        let running = BlobProvider::serve(provider, service.clone()).unwrap();
        let pool = target.progress_pool();
        target.serve(PING).pool(&pool).handler(|request| request.respond(&()).unwrap()).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let addr = client.lookup(target.self_addr().uri()).unwrap();
        let blobs = BlobClient::new(&client, ProviderHandle::new(addr, ID));
        Self { service, target, client, blobs, running, _dir: dir }
    }

    /// Returns when the target has taken notice of all that was sent before.
    fn ping(&self) {
        let addr = self.client.lookup(self.target.self_addr().uri()).unwrap();
        self.client.forward_timed(PING, &addr.into(), &(), PATIENCE).unwrap();
    }

    fn end(self) {
        self.client.finalize_and_wait().unwrap();
        drop(self.running);
        self.target.finalize_and_wait().unwrap();
    }
}

fn on_each(body: impl Fn(&Pair)) {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let pair = Pair::new(transport);
        body(&pair);
        pair.end();
    }
}

fn assert_timed_out<T: fmt::Debug>(result: Result<T, ClientError>) {
    let error = result.unwrap_err();
    let expected = matches!(error, ClientError::Forward(ForwardError::TimedOut { .. }));
    assert!(expected, "{error}");
}

#[test]
fn a_write_that_was_given_up_does_not_come_after_what_its_caller_did_next() {
    on_each(|pair| {
        pair.blobs.put("kept", b"acknowledged", PATIENCE).unwrap();
        let held = pair.service.store.hold_publishing();
        // All of it has been pulled when it is held up.
        assert_timed_out(pair.blobs.put("kept", b"late", SHORT));
        pair.ping();
        drop(held);
        assert_eq!(pair.blobs.get("kept", PATIENCE).unwrap(), b"acknowledged");

        let held = pair.service.store.hold_publishing();
        assert_timed_out(pair.blobs.create("made", SHORT));
        pair.ping();
        drop(held);
        let error = pair.blobs.stat("made", PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::Blob(BlobError::NotFound { .. })), "{error}");
    });
}
