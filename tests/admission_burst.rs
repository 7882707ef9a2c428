//! The cost of a burst of requests to the service that gets it: 1,000,000 of them, made without
//! waiting for answers, against a pool that is stuck.
//!
//! `MARGO_TEST_BURST=n` makes it n requests; by default it is a fifth of them in builds with
//! assertions.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use common::process::{Service, client_for};
use common::{TRANSPORTS, bounded};
use margo::{ForwardError, ForwardRequest, Instance, ProviderHandle, Rpc};
use ult::Eventual;

/// Waits until it may end.
const HOLD: Rpc<u32, u32> = Rpc::new("hold");
/// In hand and waiting in its pool, and how many were refused, ever.
const LOAD: Rpc<(), (usize, usize, u64)> = Rpc::new("load");
/// Lets all end.
const GO: Rpc<(), ()> = Rpc::new("go");

/// Handlers that the stuck pool has at once.
const BOUND: usize = 500;
/// Requests that the service keeps undecoded.
const UNDECODED: usize = 2048;
const ORIGINS: usize = 4;
/// Requests of one origin that are on their way at once: together ten times what the service keeps.
const WAVE: usize = 10 * UNDECODED / ORIGINS;

const ADDRESS: &str = "MARGO_TEST_BURST_ADDRESS";

/// Not a test of its own: the process that the next one starts.
#[test]
fn service_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let service = margo::init(&format!(
        r#"{{ "argobots": {{
            "pools": [{{ "name": "__primary__" }}, {{ "name": "slow" }}],
            "xstreams": [{{ "name": "__primary__",
                            "scheduler": {{ "pools": ["__primary__", "slow"] }} }}] }},
            "progress_pool": "__primary__", "rpc_pool": "__primary__",
            "margo": {{ "address": "{address}", "requests_max": {UNDECODED},
                "admission": {{ "pools": [{{ "pool": "slow", "handlers_max": {BOUND},
                    "peer_handlers_max": 0, "host_handlers_max": 0 }}] }} }} }}"#
    ));
    let service = service.unwrap();
    let slow = service.layout().pool("slow").unwrap();
    let go = Arc::new(Eventual::<()>::new());
    let may_go = go.clone();
    let hold = move |n| {
        may_go.wait();
        n
    };
    service.serve(HOLD).pool(&slow).function(hold).unwrap();
    let own = service.clone();
    let load = move |()| {
        let load = own.monitoring().load(&slow).unwrap();
        (load.in_hand, load.waiting, own.monitoring().stats().requests_busy)
    };
    service.serve(LOAD).function(load).unwrap();
    service.serve(GO).function(move |()| go.set(()).unwrap()).unwrap();
    println!("listening on {}", service.self_addr());
    std::io::stdout().flush().unwrap();
    service.wait_for_finalize().unwrap();
}

/// One of the origins that make the requests.
struct Origin {
    own: Instance,
    service: ProviderHandle,
}

impl Origin {
    fn new(address: &str) -> Self {
        let own = client_for(address);
        let service = ProviderHandle::from(own.lookup(address).unwrap());
        Self { own, service }
    }

    fn load(&self) -> (usize, usize, u64) {
        self.own.forward(LOAD, &self.service, &()).unwrap()
    }

    /// So many requests, none of which is waited for before the last one has been made. All are
    /// refused.
    fn burst(&self, count: usize) {
        let start = |n| self.own.rpc(HOLD, &self.service, &(n as u32)).start().unwrap();
        let calls: Vec<_> = (0..count).map(start).collect();
        for result in margo::wait_all(calls) {
            assert!(matches!(result, Err(ForwardError::Busy { .. })), "{result:?}");
        }
    }
}

/// At once by all. How many they are.
fn wave(origins: &[Origin]) -> usize {
    std::thread::scope(|scope| {
        for origin in origins {
            scope.spawn(|| origin.burst(WAVE));
        }
    });
    origins.len() * WAVE
}

/// The service has as many handlers as it may.
fn fill(origins: &[Origin]) -> Vec<ForwardRequest<u32>> {
    let Origin { own, service } = &origins[0];
    let held = (0..BOUND as u32).map(|n| own.rpc(HOLD, service, &n).start().unwrap()).collect();
    while origins[0].load().0 < BOUND {
        std::thread::yield_now();
    }
    held
}

// Slow: 1,000,000 requests, or 200,000 in builds with assertions, over each transport.
#[test]
fn a_burst_does_not_grow_memory_beyond_the_bound() {
    let burst = std::env::var("MARGO_TEST_BURST").map(|text| text.parse().unwrap());
    let burst = burst.unwrap_or(if cfg!(debug_assertions) { 200_000 } else { 1_000_000 });
    for transport in TRANSPORTS {
        let service = Service::start_with(module_path!(), ADDRESS, transport);
        let origins: Arc<[_]> = (0..ORIGINS).map(|_| Origin::new(&service.address)).collect();
        let all = origins.clone();
        let held = bounded("handlers begin", move || fill(&all));
        let (before, begun) = (service.memory("VmRSS"), Instant::now());
        let mut sent = 0;
        while sent < burst {
            let all = origins.clone();
            sent += bounded("a wave", move || wave(&all));
        }
        let took = service.memory("VmHWM").saturating_sub(before);
        println!("{transport}: {sent} requests in {:?} took {} KiB", begun.elapsed(), took >> 10);
        let first = &origins[0];
        assert_eq!(first.load(), (BOUND, 0, sent as u64));
        // A request that is held has a message of 4 KiB, and so has a receive. The rest is for
        // answers that the sockets do not take at once, however many requests there are.
        let most = (2 * UNDECODED * 4096) + (32 << 20);
        assert!(took < most, "{transport}: {sent} requests have taken {took} bytes");
        first.own.forward(GO, &first.service, &()).unwrap();
        let answers = bounded("the answers", move || margo::wait_all(held));
        for (n, answer) in (0..).zip(answers) {
            assert_eq!(answer.unwrap(), n);
        }
        for origin in origins.iter() {
            origin.own.finalize_and_wait().unwrap();
        }
    }
}
