//! Bounds on requests in hand: of pools, of RPCs, of peers; refused or waiting; and what a burst of
//! requests costs.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{PATIENCE, TRANSPORTS, bounded};
use margo::config::{Admission, Overload};
use margo::{ForwardError, Instance, OneWay, ProviderHandle, ProviderId, Rpc};
use ult::{Eventual, Semaphore};

const HOLD: Rpc<u32, u32> = Rpc::new("hold");
const PING: Rpc<(), ()> = Rpc::new("ping");
const TELL: OneWay<u32> = OneWay::new("tell");

/// What a handler sets is for what it spawns; not for the request that gets its place.
static TENANT: ult::Inherited<u32> = ult::Inherited::new();

/// A service whose handlers of `HOLD` wait for a permit each.
struct Held {
    service: Instance,
    /// One for each handler that has begun.
    begun: Arc<Semaphore>,
    /// One for each handler that may end.
    go: Arc<Semaphore>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Held {
    fn new(transport: &str, admission: &str, own: Option<Admission>) -> Self {
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

    fn serve(&self, own: Option<Admission>) {
        let (begun, go) = (self.begun.clone(), self.go.clone());
        let (now, most) = (self.now.clone(), self.most.clone());
        let pool = self.service.pool("slow").unwrap();
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

    fn client(&self) -> Client {
        let uri = self.service.self_addr();
        let own = uri.uri().split("://").next().unwrap();
        let instance = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(instance.lookup(uri.uri()).unwrap());
        Client { instance, target }
    }

    /// Waits until so many handlers have begun.
    fn begun(&self, count: usize) {
        let begun = self.begun.clone();
        bounded("handlers begin", move || begun.acquire(count).forget());
    }

    fn waiting(&self) -> usize {
        self.service.load(&self.service.pool("slow").unwrap()).unwrap().waiting
    }

    fn end(self) {
        self.service.finalize_and_wait().unwrap();
    }
}

struct Client {
    instance: Instance,
    target: ProviderHandle,
}

type Calls = Vec<ult::JoinHandle<Result<u32, ForwardError>>>;

impl Client {
    /// Starts so many calls of `HOLD`.
    fn start(&self, numbers: std::ops::Range<u32>) -> Calls {
        let call = |n| {
            let (instance, target) = (self.instance.clone(), self.target.clone());
            let call = move || instance.forward_timed(HOLD, &target, &n, PATIENCE);
            self.instance.rpc_pool().spawn(call).unwrap()
        };
        numbers.map(call).collect()
    }

    fn call(&self) -> Result<u32, ForwardError> {
        self.instance.forward_timed(HOLD, &self.target, &7, PATIENCE)
    }

    fn ping(&self) {
        self.instance.forward_timed(PING, &self.target, &(), PATIENCE).unwrap();
    }

    fn end(self) {
        self.instance.finalize_and_wait().unwrap();
    }
}

fn join(calls: Calls) -> Vec<Result<u32, ForwardError>> {
    bounded("calls end", move || calls.into_iter().map(|call| call.join().unwrap()).collect())
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

fn assert_busy(result: Result<u32, ForwardError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, ForwardError::Busy { .. }) && error.never_ran(), "{error}");
}

#[test]
fn beyond_the_bound_of_a_pool_callers_are_told_busy_at_once() {
    let pools = r#"{ "pools": [{ "pool": "slow", "handlers_max": 3 }] }"#;
    for (transport, admission) in TRANSPORTS.iter().zip([r#"{ "handlers_max": 3 }"#, pools]) {
        let held = Held::new(transport, admission, None);
        let client = held.client();
        let calls = client.start(0..3);
        held.begun(3);
        for _ in 0..10 {
            assert_busy(client.call());
        }
        // Another pool is not concerned.
        client.ping();
        let load = held.service.load(&held.service.pool("slow").unwrap()).unwrap();
        assert_eq!((load.in_hand, load.waiting, load.refused), (3, 0, 10));
        assert_eq!(load.bounds.handlers_max, 3);
        held.go.release(3);
        assert_eq!(join(calls).into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
        until("room again", || {
            held.service.load(&held.service.pool("slow").unwrap()).unwrap().in_hand == 0
        });
        held.go.release(1);
        assert_eq!(client.call().unwrap(), 7);
        let stats = held.service.stats();
        assert_eq!((stats.requests_busy, stats.requests_refused), (10, 0));
        client.end();
        held.end();
    }
}

#[test]
fn an_rpc_can_have_a_bound_of_its_own() {
    let held = Held::new(TRANSPORTS[0], "{}", Some(Admission::new(2)));
    let client = held.client();
    let calls = client.start(0..2);
    held.begun(2);
    assert_busy(client.call());
    let load = held.service.rpc_load(HOLD, ProviderId::DEFAULT).unwrap();
    assert_eq!((load.in_hand, load.refused), (2, 1));
    // What was refused by the RPC has left no trace in the pool.
    let pool = held.service.load(&held.service.pool("slow").unwrap()).unwrap();
    assert_eq!((pool.in_hand, pool.refused), (2, 0));
    assert!(held.service.rpc_load(PING, ProviderId::DEFAULT).is_none());
    held.go.release(2);
    join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
    // Handlers leave after their answers.
    until("both have left", || held.service.stats().handlers_run == 2);
    client.end();
    held.end();
}

#[test]
fn requests_that_may_wait_are_all_handled_and_never_more_than_allowed_at_once() {
    let wait = r#"{ "handlers_max": 4, "overload": "wait" }"#;
    let of_rpc = Admission::new(4).overload(Overload::Wait);
    for (transport, (admission, own)) in TRANSPORTS.iter().zip([(wait, None), ("{}", Some(of_rpc))])
    {
        let held = Held::new(transport, admission, own);
        let (one, two) = (held.client(), held.client());
        let (first, second) = (one.start(0..200), two.start(0..200));
        held.begun(4);
        held.go.release(400);
        for calls in [first, second] {
            let results: Vec<_> = join(calls).into_iter().map(Result::unwrap).collect();
            assert_eq!(results, (0..200).collect::<Vec<_>>());
        }
        assert_eq!(held.most.load(Ordering::SeqCst), 4);
        assert_eq!(held.waiting(), 0);
        one.end();
        two.end();
        held.end();
    }
}

#[test]
fn peers_that_wait_take_turns() {
    let held = Held::new(TRANSPORTS[0], r#"{ "handlers_max": 1, "overload": "wait" }"#, None);
    let (many, few) = (held.client(), held.client());
    let flood = many.start(0..50);
    held.begun(1);
    until("the flood waits", || held.waiting() == 49);
    let polite = few.start(0..1);
    until("the other one waits", || held.waiting() == 50);
    // The handler that runs, then one of the flood at most, then the polite peer's.
    held.go.release(3);
    assert!(join(polite)[0].is_ok());
    held.go.release(48);
    join(flood).into_iter().for_each(|call| assert!(call.is_ok()));
    many.end();
    few.end();
    held.end();
}

#[test]
fn one_peer_cannot_take_the_share_of_others() {
    for overload in ["busy", "wait"] {
        let admission =
            format!(r#"{{ "handlers_max": 3, "peer_handlers_max": 2, "overload": "{overload}" }}"#);
        let held = Held::new(TRANSPORTS[0], &admission, None);
        let (many, few) = (held.client(), held.client());
        let flood = many.start(0..2);
        held.begun(2);
        let beyond = many.start(2..4);
        let beyond = if overload == "busy" {
            join(beyond).into_iter().for_each(assert_busy);
            Vec::new()
        } else {
            until("it waits", || held.waiting() == 2);
            beyond
        };
        let polite = few.start(0..1);
        held.begun(1);
        held.go.release(5);
        for calls in [flood, polite, beyond] {
            join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
        }
        many.end();
        few.end();
        held.end();
    }
}

#[test]
fn a_shutdown_refuses_what_waits_and_lets_end_what_is_in_hand() {
    let held = Held::new(TRANSPORTS[0], r#"{ "handlers_max": 1, "overload": "wait" }"#, None);
    let client = held.client();
    let inside = client.start(0..1);
    held.begun(1);
    let waiting = client.start(0..5);
    until("they wait", || held.waiting() == 5);
    held.service.finalize();
    for call in join(waiting) {
        let error = call.unwrap_err();
        assert!(matches!(error, ForwardError::PeerClosing { .. }), "{error}");
    }
    held.go.release(1);
    assert_eq!(join(inside).pop().unwrap().unwrap(), 0);
    client.end();
    held.end();
}

#[test]
fn one_way_requests_beyond_the_bound_are_dropped_and_counted() {
    for transport in TRANSPORTS {
        let service = Instance::builder(transport).start().unwrap();
        let (go, sum) = (Arc::new(Eventual::<()>::new()), Arc::new(AtomicUsize::new(0)));
        let (may_go, total) = (go.clone(), sum.clone());
        service
            .serve(TELL)
            .admission(Admission::new(1))
            .handler(move |handle| {
                may_go.wait();
                total.fetch_add(*handle.args() as usize, Ordering::SeqCst);
            })
            .unwrap();
        service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for n in [5, 10, 20] {
            client.send(TELL, &target, &n).unwrap();
        }
        // Behind them on the same connection.
        client.forward_timed(PING, &target, &(), PATIENCE).unwrap();
        assert_eq!(service.stats().requests_busy, 2);
        go.set(()).unwrap();
        until("the first is handled", || sum.load(Ordering::SeqCst) > 0);
        assert_eq!(sum.load(Ordering::SeqCst), 5);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn an_rpc_moves_to_another_pool_while_requests_run() {
    const WHERE: Rpc<(), String> = Rpc::new("where");
    let held = Held::new(TRANSPORTS[0], "{}", None);
    let (service, client) = (&held.service, held.client());
    let where_am_i = |()| ult::current().unwrap().pool.to_string();
    service.serve(WHERE).function(where_am_i).unwrap();
    let default = service.rpc_pool();
    let slow = service.pool("slow").unwrap();
    let ask = || client.instance.forward_timed(WHERE, &client.target, &(), PATIENCE).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (instance, target, stopped) =
        (client.instance.clone(), client.target.clone(), stop.clone());
    let asking = client.instance.rpc_pool().spawn(move || {
        let mut answers = 0;
        while !stopped.load(Ordering::Relaxed) {
            instance.forward_timed(WHERE, &target, &(), PATIENCE).unwrap();
            answers += 1;
        }
        answers
    });
    for _ in 0..50 {
        for pool in [&slow, &default] {
            service.set_handler_pool(WHERE, ProviderId::DEFAULT, pool).unwrap();
            assert_eq!(service.handler_pool(WHERE, ProviderId::DEFAULT).as_ref(), Some(pool));
            assert_eq!(ask(), pool.name());
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(asking.unwrap().join().unwrap() > 0);
    let unknown = service.set_handler_pool(WHERE, ProviderId::new(3), &slow).unwrap_err();
    assert!(unknown.to_string().contains("`where` is not registered for provider 3"), "{unknown}");
    assert_eq!(service.handler_pool(WHERE, ProviderId::new(3)), None);
    client.end();
    held.end();
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Requests of four origins against a pool that is stuck: `MARGO_TEST_BURST` of them, 40,000 unless
/// that is set (the bound is stated for 1,000,000).
#[test]
fn a_burst_does_not_grow_memory_beyond_the_bound() {
    const BOUND: usize = 500;
    const ORIGINS: usize = 4;
    const IN_FLIGHT: usize = 500;
    let burst = std::env::var("MARGO_TEST_BURST").map_or(40_000, |burst| burst.parse().unwrap());
    for transport in TRANSPORTS {
        let admission = format!(r#"{{ "handlers_max": {BOUND} }}"#);
        let held = Held::new(transport, &admission, None);
        let clients: Vec<_> = (0..ORIGINS).map(|_| held.client()).collect();
        let inside: Vec<_> =
            clients.iter().flat_map(|client| client.start(0..(BOUND / ORIGINS) as u32)).collect();
        held.begun(BOUND);
        // The first round takes what the buffers of all sides need.
        let mut before = 0;
        for round in 0..2 {
            let callers: Vec<_> = clients
                .iter()
                .flat_map(|client| (0..IN_FLIGHT).map(move |_| client))
                .map(|client| {
                    let (instance, target) = (client.instance.clone(), client.target.clone());
                    let calls = if round == 0 { 4 } else { burst / ORIGINS / IN_FLIGHT };
                    let calls = move || {
                        for n in 0..calls {
                            assert_busy(instance.forward(HOLD, &target, &(n as u32)));
                        }
                    };
                    client.instance.rpc_pool().spawn(calls).unwrap()
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
            let load = held.service.load(&held.service.pool("slow").unwrap()).unwrap();
            assert_eq!((load.in_hand, load.waiting), (BOUND, 0));
            if round == 0 {
                before = resident();
            }
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{transport}: {burst} requests have left {grown} bytes");
        held.go.release(BOUND);
        join(inside).into_iter().for_each(|call| assert!(call.is_ok()));
        assert_eq!(held.service.stats().handlers_run, BOUND as u64);
        clients.into_iter().for_each(Client::end);
        held.end();
    }
}
