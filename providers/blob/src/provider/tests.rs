//! Behaviour that only shows while requests are held up inside the target.

use std::fmt;
use std::time::{Duration, Instant};

use margo::ult::Eventual;
use margo::{ForwardError, ProviderHandle, ProviderId, Rpc};
use tempfile::TempDir;

use super::service::PLACES;
use super::*;
use crate::{BlobClient, BlobError, BlobName, ClientError};

/// Far beyond what a loaded machine needs; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long callers wait for an answer that does not come.
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
    dir: TempDir,
}

impl Pair {
    fn new(transport: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = Instance::builder(transport).rpc_thread_count(1).start().unwrap();
        let config = BlobConfig::new(dir.path());
        let service = Arc::new(Service::new(&config).unwrap());
        let provider = target.provider(ID, &target.layout().rpc_pool());
        let running = BlobProvider::serve(provider, service.clone(), config).unwrap();
        let pool = target.layout().progress_pool();
        target.serve(PING).pool(&pool).handler(|request| request.respond(&()).unwrap()).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let addr = client.lookup(target.self_addr().uri()).unwrap();
        let blobs = BlobClient::new(&client, ProviderHandle::new(addr, ID));
        Self { service, target, client, blobs, running, dir }
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
    // The target hears of the limit, too, and may say so before it is over here.
    let expected = matches!(
        error,
        ClientError::Forward(ForwardError::TimedOut { .. })
            | ClientError::Blob(BlobError::GivenUp { .. })
    );
    assert!(expected, "{error}");
}

/// Waits until `is_so`.
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it never came to be");
        std::thread::yield_now();
    }
}

#[test]
fn a_write_that_was_given_up_does_not_come_after_what_its_caller_did_next() {
    on_each(|pair| {
        let first = Instant::now();
        pair.blobs.put("kept", b"acknowledged", PATIENCE).unwrap();
        // The target's limit is later than the caller's by no more than the least time that a
        // message has taken, and so by less than this.
        let round_trip = first.elapsed();
        let limit_is_over_there = || {
            let over_here = Instant::now();
            until(|| over_here.elapsed() > round_trip);
            pair.ping();
        };
        let held = pair.service.store.hold_publishing();
        // All of it has been pulled when it is held up.
        assert_timed_out(pair.blobs.put("kept", b"late", SHORT));
        limit_is_over_there();
        drop(held);
        assert_eq!(pair.blobs.get("kept", PATIENCE).unwrap(), b"acknowledged");

        let held = pair.service.store.hold_publishing();
        assert_timed_out(pair.blobs.create("made", SHORT));
        limit_is_over_there();
        drop(held);
        let error = pair.blobs.stat("made", PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::Blob(BlobError::NotFound { .. })), "{error}");
    });
}

#[test]
fn requests_beyond_the_bound_wait_with_no_file_open_until_they_are_given_up() {
    const LIMIT: Duration = Duration::from_millis(50);
    on_each(|pair| {
        let (blobs, places) = (&pair.blobs, &pair.service.places);
        blobs.put("blob", b"data", PATIENCE).unwrap();
        let never = Eventual::<()>::new();
        let mut held: Vec<_> = (0..PLACES).map(|_| places.take(&never).unwrap()).collect();

        assert_timed_out(blobs.put("new", b"data", LIMIT));
        assert_timed_out(blobs.put_new("new", b"data", LIMIT));
        assert_timed_out(blobs.read("blob", 0, &mut [0], LIMIT));
        assert_timed_out(blobs.checksum("blob", LIMIT));
        assert_timed_out(blobs.list("", LIMIT));
        blobs.stat("blob", PATIENCE).unwrap();
        // Not before they are canceled, and not later.
        until(|| places.waiting() == 0);

        std::thread::scope(|scope| {
            let all = [
                scope.spawn(|| blobs.put("new", b"data", PATIENCE)),
                scope.spawn(|| blobs.read("blob", 0, &mut [0], PATIENCE).map(drop)),
                scope.spawn(|| blobs.checksum("blob", PATIENCE).map(drop)),
                scope.spawn(|| blobs.list("", PATIENCE).map(drop)),
            ];
            until(|| places.waiting() == all.len());
            assert_eq!(open_below(pair.dir.path()), 0);
            // One place does for all of them, one after the other.
            drop(held.pop());
            for thread in all {
                thread.join().unwrap().unwrap();
            }
        });
        assert_eq!(blobs.get("new", PATIENCE).unwrap(), b"data");
    });
}

/// Files that this process has open below `dir`.
fn open_below(dir: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    paths.filter(|path| path != dir && path.starts_with(dir)).count()
}

#[test]
fn who_waits_for_the_disk_does_not_hold_up_the_execution_stream() {
    on_each(|pair| {
        let blobs = &pair.blobs;
        blobs.put("other", b"data", PATIENCE).unwrap();
        let held = pair.service.store.hold_publishing();
        let waits = blobs.start_create("made", 0, PATIENCE).unwrap();
        pair.ping();
        // By the same and only execution stream.
        assert_eq!(blobs.get("other", PATIENCE).unwrap(), b"data");
        assert!(!waits.test());
        drop(held);
        waits.wait().unwrap().unwrap();
    });
}

#[test]
fn requests_beyond_the_buffers_wait_until_they_are_given_up() {
    on_each(|pair| {
        let (blobs, places) = (&pair.blobs, &pair.service.buffer_places);
        blobs.put("blob", b"data", PATIENCE).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| places.try_take()).collect();
        assert_eq!(held.len(), 32, "the default");
        assert_timed_out(blobs.read("blob", 0, &mut [0], SHORT));
        until(|| places.waiting() == 0);
        blobs.stat("blob", PATIENCE).unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| blobs.get("blob", PATIENCE));
            until(|| places.waiting() == 1);
            drop(held);
            assert_eq!(read.join().unwrap().unwrap(), b"data");
        });
    });
}

#[test]
fn a_checksum_that_was_given_up_ends() {
    let service = Service::new(&BlobConfig::in_memory(1 << 20)).unwrap();
    let name = BlobName::new("blob").unwrap();
    let incoming = service.store.begin(&name).unwrap();
    incoming.blob().write_at(0, b"data").unwrap();
    let error = service.checksum(&name, &incoming.blob(), 4, &|| false).unwrap_err();
    assert_eq!(error, BlobError::GivenUp { name: "blob".into() });
}
