//! Requests that wait while their origin ends: they are not handled.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::support::until;
use crate::common::process::{Service, client_for};
use crate::common::{TRANSPORTS, bounded};
use margo::{OneWay, ProviderHandle, Rpc, cancel::CancelReason};

/// Holds its execution stream until its origin is gone.
const HOLD: Rpc<(), ()> = Rpc::new("hold");
const TELL: OneWay<()> = OneWay::new("tell");

/// The first holds the pool.
const REQUESTS: usize = 20;

const ADDRESS: &str = "MARGO_TEST_ORIGIN_GONE";

/// Not a test of its own: the client that is killed.
#[test]
fn service_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let client = client_for(&address);
    let target = ProviderHandle::from(client.lookup(&address).unwrap());
    let calls = (0..REQUESTS).map(|_| client.rpc(HOLD, &target, &()).start().unwrap());
    let calls: Vec<_> = calls.collect();
    client.send(TELL, &target, &()).unwrap();
    println!("all sent");
    std::io::stdout().flush().unwrap();
    margo::wait_all(calls);
}

#[test]
fn who_waits_for_an_origin_that_is_gone_is_not_handled() {
    let waits_at_the_gate = r#"{ "handlers_max": 1, "overload": "wait" }"#;
    for transport in TRANSPORTS {
        for admission in ["{}", waits_at_the_gate] {
            bounded("requests of a killed client", move || killed(transport, admission));
        }
    }
}

fn killed(transport: &str, admission: &str) {
    let service = margo::init(&format!(
        r#"{{ "margo": {{ "address": "{transport}", "admission": {admission} }},
             "argobots": {{ "pools": [{{ "name": "slow" }}],
                 "xstreams": [{{ "name": "s", "scheduler": {{ "pools": ["slow"] }} }}] }} }}"#
    ));
    let service = service.unwrap();
    let slow = service.layout().pool("slow").unwrap();
    let (handled, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, tells) = (handled.clone(), told.clone());
    let hold = move |handle: margo::Handle<(), ()>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let canceled = handle.cancel_token();
        while !canceled.is_canceled() {
            std::thread::yield_now();
        }
        assert_eq!(canceled.reason(), Some(CancelReason::OriginGone));
    };
    service.serve(HOLD).pool(&slow).handler(hold).unwrap();
    let tell = move |_| {
        tells.fetch_add(1, Ordering::SeqCst);
    };
    service.serve(TELL).pool(&slow).handler(tell).unwrap();
    let mut client = Service::spawn(module_path!(), ADDRESS, service.self_addr().uri());
    client.line_after("all sent");
    let come = || {
        let load = service.monitoring().load(&slow).unwrap();
        load.in_hand + load.waiting
    };
    until("all have come", || come() == REQUESTS + 1);
    until("the first has begun", || handled.load(Ordering::SeqCst) == 1);
    client.kill();
    until("all have left", || come() == 0);
    assert_eq!(handled.load(Ordering::SeqCst), 1, "{transport} {admission}");
    assert_eq!(service.monitoring().stats().requests_abandoned, REQUESTS as u64 - 1);
    assert_eq!(told.load(Ordering::SeqCst), 1, "one-way requests have all that they want");
    service.finalize_and_wait().unwrap();
}
