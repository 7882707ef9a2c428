//! Instances over a network that reach peers on the same host through shared memory.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use common::bounded;
use margo::{Bulk, Handle, Instance, ProviderHandle, Rpc};

/// Checks the origin's memory; says how its request came.
const FETCH: Rpc<Bulk, String> = Rpc::new("fetch");

const BYTES: usize = 100_000;

fn start(auto_sm: bool) -> Instance {
    let json = format!(
        r#"{{
            "margo": {{"address": "na+tcp://127.0.0.1:0"}},
            "mercury": {{"auto_sm": {auto_sm}}}
        }}"#
    );
    margo::init(&json).unwrap()
}

fn serve(service: &Instance) {
    let fetch = |request: Handle<Bulk, String>| {
        let mut buffer = request.instance().bulk_buffer(BYTES).unwrap();
        request.pull(request.args(), 0, &mut buffer, 0..BYTES).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 5));
        let way = request.origin().uri().split("://").next().unwrap().to_owned();
        request.respond(&way).unwrap();
    };
    service.register(FETCH, fetch).unwrap();
}

fn way(client: &Instance, service: &Instance) -> String {
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let data = vec![5; BYTES];
    client.expose_ref(&data, |bulk| client.forward(FETCH, &target, bulk)).unwrap().unwrap()
}

#[test]
fn calls_and_bulk_take_the_shorter_way() {
    bounded("calls of three kinds", || {
        let (service, near, far) = (start(true), start(true), start(false));
        serve(&service);
        serve(&far);
        assert!(service.self_addr().uri().starts_with("uid://"), "{}", service.self_addr());
        assert_eq!(way(&near, &service), "na+sm");
        assert_eq!(way(&far, &service), "na+tcp");
        assert_eq!(way(&service, &far), "na+tcp", "one that speaks only tcp");
        for instance in [near, far, service] {
            instance.finalize_and_wait().unwrap();
        }
    });
}
