//! Handlers that end when the test says so.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::{Instance, Provider, ProviderId, Rpc};
use ult::Semaphore;

use crate::common::PATIENCE;

/// Answers with its argument, when the test lets it.
pub(crate) const HOLD: Rpc<u32, u32> = Rpc::new("hold");
/// Adds.
pub(crate) const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
/// An RPC that nobody serves.
pub(crate) const NOBODY: Rpc<u32, u32> = Rpc::new("nobody");

/// The handlers of [`HOLD`].
#[derive(Clone)]
pub(crate) struct Held {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
    ended: Arc<Semaphore>,
}

impl Held {
    /// Serves [`HOLD`] and [`SUM`].
    pub(crate) fn serve(service: &Instance) -> Self {
        let held = Self {
            begun: Arc::new(Semaphore::new(0)),
            go: Arc::new(Semaphore::new(0)),
            ended: Arc::new(Semaphore::new(0)),
        };
        let own = held.clone();
        service
            .register(HOLD, move |handle| {
                own.begun.release(1);
                own.go.acquire(1).forget();
                let _ = handle.respond(handle.args());
                own.ended.release(1);
            })
            .unwrap();
        service
            .register(SUM, |handle| {
                let (a, b) = *handle.args();
                handle.respond(&(a + b)).unwrap();
            })
            .unwrap();
        held
    }

    /// Waits until so many more handlers run.
    pub(crate) fn begun(&self, count: usize) {
        self.begun.acquire(count).forget();
    }

    /// Has `call` call [`HOLD`] with a limit, and wait for the deadline, until a handler has begun
    /// in time: one that comes late, on a machine that is busy, is not begun.
    pub(crate) fn begun_in_time(&self, service: &Instance, mut call: impl FnMut(Duration)) {
        assert_eq!(self.begun.available(), 0, "one has begun before");
        let mut limit = Duration::from_millis(5);
        loop {
            let before = service.monitoring().stats().requests_abandoned;
            call(limit);
            let until = Instant::now() + PATIENCE;
            while self.begun.available() == 0
                && service.monitoring().stats().requests_abandoned == before
            {
                assert!(Instant::now() < until, "it is neither begun nor given up");
                std::thread::yield_now();
            }
            if let Some(begun) = self.begun.try_acquire(1) {
                return begun.forget();
            }
            limit *= 2;
        }
    }

    /// Lets so many handlers answer, those first that have waited longest.
    pub(crate) fn go(&self, count: usize) {
        self.go.release(count);
    }

    /// Waits until so many more handlers have answered.
    pub(crate) fn ended(&self, count: usize) {
        self.ended.acquire(count).forget();
    }
}

/// A provider with [`HOLD`] that answers at once.
pub(crate) fn echo_provider(service: &Instance, id: u16) -> Provider {
    let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
    provider.register(HOLD, |handle| handle.respond(handle.args()).unwrap()).unwrap();
    provider
}
