//! The metrics port: health, JSON; and the counters of bytes.

use std::sync::Arc;

use super::metrics_support::ask;
use margo::{Access, Instance, Metrics, ProviderHandle, Rpc};
use ult::Eventual;

const WAIT: Rpc<(), ()> = Rpc::new("wait");

#[test]
fn bytes_are_counted_where_they_go() {
    let own = Instance::builder("na+tcp://127.0.0.1:0").start().unwrap();
    let memory = own.expose(vec![1; 100_000], Access::ReadOnly).unwrap();
    let descriptor = memory.bulk().clone();
    const MEMORY: Rpc<(), margo::Bulk> = Rpc::new("memory");
    own.serve(MEMORY).function(move |()| descriptor.clone()).unwrap();
    let client = Instance::builder("na+tcp://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(own.self_addr().uri()).unwrap());
    let before = client.metrics().network;
    let remote = client.forward(MEMORY, &target, &()).unwrap();
    let mut here = client.memory().bulk_buffer(100_000).unwrap();
    client.pull(target.addr(), &remote, 0, &mut here, 0..100_000).unwrap();
    let after = client.metrics().network;
    assert_eq!(after.bulk_bytes - before.bulk_bytes, 100_000);
    assert!(after.received_bytes - before.received_bytes > 100_000, "{after:?}");
    assert!((1..10_000).contains(&(after.sent_bytes - before.sent_bytes)), "{after:?}");
    // Nobody forgets them with the peer.
    client.finalize_and_wait().unwrap();
    let end = client.metrics().network;
    assert!(end.received_bytes >= after.received_bytes && end.sent_bytes >= after.sent_bytes);
    own.finalize_and_wait().unwrap();
}

#[test]
fn health_is_a_word_and_a_status() {
    let own = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    let address = own.monitoring().metrics_addr().unwrap();
    let health = || ask(address, b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    let well = health();
    assert!(
        well.starts_with("HTTP/1.1 200 OK\r\n") && well.ends_with("\r\n\r\nrunning\n"),
        "{well}"
    );
    let json = ask(address, b"GET /metrics.json HTTP/1.1\r\n\r\n").unwrap();
    let (head, body) = json.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/json\r\n"), "{head}");
    let seen: Metrics = serde_json::from_str(body).unwrap();
    assert_eq!(seen.address, own.self_addr().uri());
    // Its end waits for a handler, during which the port still answers.
    let (began, gate) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<()>::new()));
    let (begins, goes_on) = (began.clone(), gate.clone());
    own.serve(WAIT)
        .function(move |()| {
            let _ = begins.set(());
            goes_on.wait();
        })
        .unwrap();
    let waits = own.clone();
    let call = own.layout().rpc_pool().spawn(move || {
        let _ = waits.forward(WAIT, &ProviderHandle::from(waits.self_addr()), &());
    });
    began.wait();
    own.finalize();
    let ill = health();
    assert!(ill.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{ill}");
    assert!(ill.ends_with("\r\n\r\nfinalizing\n"), "{ill}");
    gate.set(()).unwrap();
    call.unwrap().join().unwrap();
    own.wait_for_finalize().unwrap();
}
