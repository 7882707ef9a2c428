//! Services whose handlers end when the test says so, and their clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{PATIENCE, bounded, builder};
use margo::config::Admission;
use margo::{ForwardError, Instance, OneWay, ProviderHandle, Rpc};
use ult::Semaphore;

pub(crate) const HOLD: Rpc<u32, u32> = Rpc::new("hold");
pub(crate) const PING: Rpc<(), ()> = Rpc::new("ping");
pub(crate) const TELL: OneWay<u32> = OneWay::new("tell");

/// A value that a handler sets for the units that it spawns, and not for the request that gets its
/// place.
static TENANT: ult::integration::Inherited<u32> = ult::integration::Inherited::new();

/// A service whose handlers of `HOLD` wait for a permit each.
pub(crate) struct Held {
    pub(crate) service: Instance,
    /// One for each handler that has begun.
    pub(crate) begun: Arc<Semaphore>,
    /// One for each handler that may end.
    pub(crate) go: Arc<Semaphore>,
    pub(crate) now: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

impl Held {
    pub(crate) fn new(transport: &str, admission: &str, own: Option<Admission>) -> Self {
        let document = format!(
            r#"{{ "margo": {{ "address": "{transport}", "admission": {admission} }},
                 "argobots": {{ "pools": [{{ "name": "slow" }}],
                     "xstreams": [{{ "name": "s", "scheduler": {{ "pools": ["slow"] }} }}] }} }}"#
        );
        let service = margo::init(&document).unwrap();
        let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let held = Self { service, begun, go, now: Arc::default(), most: Arc::default() };
        held.serve(own);
        held.service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
        held
    }

    pub(crate) fn serve(&self, own: Option<Admission>) {
        let (begun, go) = (self.begun.clone(), self.go.clone());
        let (now, most) = (self.now.clone(), self.most.clone());
        let pool = self.service.layout().pool("slow").unwrap();
        let mut serve = self.service.serve(HOLD).pool(&pool);
        if let Some(own) = own {
            serve = serve.admission(own);
        }
        serve
            .function(move |n| {
                assert_eq!(TENANT.get(), None, "of another request");
                TENANT.set(Some(n));
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                begun.release(1);
                go.acquire(1).forget();
                now.fetch_sub(1, Ordering::SeqCst);
                n
            })
            .unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        let uri = self.service.self_addr();
        let own = uri.uri().split("://").next().unwrap();
        let instance = builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(instance.lookup(uri.uri()).unwrap());
        Client { instance, target }
    }

    /// Waits until so many handlers have begun.
    pub(crate) fn begun(&self, count: usize) {
        let begun = self.begun.clone();
        bounded("handlers begin", move || begun.acquire(count).forget());
    }

    pub(crate) fn waiting(&self) -> usize {
        self.service
            .monitoring()
            .load(&self.service.layout().pool("slow").unwrap())
            .unwrap()
            .waiting
    }

    pub(crate) fn end(self) {
        self.service.finalize_and_wait().unwrap();
    }
}

pub(crate) struct Client {
    pub(crate) instance: Instance,
    pub(crate) target: ProviderHandle,
}

pub(crate) type Calls = Vec<ult::JoinHandle<Result<u32, ForwardError>>>;

impl Client {
    /// Starts so many calls of `HOLD`.
    pub(crate) fn start(&self, numbers: std::ops::Range<u32>) -> Calls {
        let call = |n| {
            let (instance, target) = (self.instance.clone(), self.target.clone());
            let call = move || instance.forward_timed(HOLD, &target, &n, PATIENCE);
            self.instance.layout().rpc_pool().spawn(call).unwrap()
        };
        numbers.map(call).collect()
    }

    pub(crate) fn call(&self) -> Result<u32, ForwardError> {
        self.instance.forward_timed(HOLD, &self.target, &7, PATIENCE)
    }

    pub(crate) fn ping(&self) {
        self.instance.forward_timed(PING, &self.target, &(), PATIENCE).unwrap();
    }

    pub(crate) fn end(self) {
        self.instance.finalize_and_wait().unwrap();
    }
}

pub(crate) fn join(calls: Calls) -> Vec<Result<u32, ForwardError>> {
    bounded("calls end", move || calls.into_iter().map(|call| call.join().unwrap()).collect())
}

pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

pub(crate) fn assert_busy(result: Result<u32, ForwardError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, ForwardError::Busy { .. }) && error.never_ran(), "{error}");
}
