//! An instance under the address of a predecessor: it gets no answers to the predecessor's calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::support::until;
use crate::common::process::{Service, asked, say};
use crate::common::{PATIENCE, bounded, builder, start_again};
use margo::{ProviderHandle, Rpc};
use ult::Eventual;

/// Waits until it is told to go, and answers with so many bytes.
const HOLD: Rpc<(), Vec<u8>> = Rpc::new("hold");
const PING: Rpc<(), ()> = Rpc::new("ping");

/// Their answers are more than is kept of one peer for receives to come.
const CALLS: usize = 150;
const ANSWER_BYTES: usize = 3000;

const ADDRESSES: &str = "MARGO_TEST_PREDECESSOR";

/// Not a test of its own: the predecessor, which is killed.
#[test]
fn service_process() {
    let Some(addresses) = asked(ADDRESSES) else { return };
    let (own, service) = addresses.split_once(' ').unwrap();
    let client = start_again(|| builder(own).start());
    let target = ProviderHandle::from(client.lookup(service).unwrap());
    let calls = (0..CALLS).map(|_| client.rpc(HOLD, &target, &()).start().unwrap());
    let calls: Vec<_> = calls.collect();
    say(&format!("listening on {}", client.self_addr()));
    margo::wait_all(calls);
}

#[test]
fn answers_to_a_predecessor_keep_nobody_from_calling() {
    let name = format!("na+sm://predecessor-{}", std::process::id());
    // The system gives this port to nobody who asks for any: it stays free for the successor.
    let mut ports = (0..).map(|n| 10_000 + (std::process::id() + n * 7) % 20_000);
    let is_free = |port: &u32| std::net::TcpListener::bind(("127.0.0.1", *port as u16)).is_ok();
    let tcp = format!("na+tcp://127.0.0.1:{}", ports.find(is_free).unwrap());
    for (transport, own) in [("na+tcp://", tcp.as_str()), ("na+sm://", name.as_str())] {
        let own = own.to_owned();
        bounded("calls of a successor", move || succeeded(transport, &own));
    }
}

fn succeeded(transport: &str, own: &str) {
    let service = builder(transport).start().unwrap();
    let (go, begun, over) = (Arc::new(Eventual::<()>::new()), counter(), counter());
    let (may_go, begins, ends) = (go.clone(), begun.clone(), over.clone());
    let hold = move |handle: margo::Handle<(), Vec<u8>>| {
        begins.fetch_add(1, Ordering::SeqCst);
        may_go.wait();
        // It may be told that the origin is gone.
        let _ = handle.respond(&vec![7; ANSWER_BYTES]);
        ends.fetch_add(1, Ordering::SeqCst);
    };
    service.serve(HOLD).handler(hold).unwrap();
    service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
    let addresses = format!("{own} {}", service.self_addr());
    let mut predecessor = Service::start_with(module_path!(), ADDRESSES, &addresses);
    until("all calls have come", || begun.load(Ordering::SeqCst) == CALLS);
    predecessor.kill();
    let successor = start_again(|| builder(predecessor.address.as_str()).start());
    let target = ProviderHandle::from(successor.lookup(service.self_addr().uri()).unwrap());
    let ping = || successor.forward_timed(PING, &target, &(), PATIENCE / 4);
    ping().unwrap();
    go.set(()).unwrap();
    until("all handlers are over", || over.load(Ordering::SeqCst) == CALLS);
    ping().unwrap();
    successor.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

fn counter() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}
