//! Instances over a network that reach peers on the same host through shared memory.

use crate::common::{all_asked_for, bounded};
use margo::{Bulk, Handle, Instance, ProviderHandle, Rpc};

/// Checks the origin's memory; says how its request came.
const FETCH: Rpc<Bulk, String> = Rpc::new("fetch");

const BYTES: usize = 1 << 20;

fn start(network: &str, auto_sm: bool) -> Instance {
    let json = format!(
        r#"{{
            "margo": {{"address": "{network}"}},
            "mercury": {{"auto_sm": {auto_sm}}}
        }}"#
    );
    margo::init(&json).unwrap()
}

fn serve(service: &Instance) {
    let fetch = |request: Handle<Bulk, String>| {
        let mut buffer = request.instance().memory().bulk_buffer(BYTES).unwrap();
        request.pull(request.args(), 0, &mut buffer, 0..BYTES).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 5));
        let way = request.origin().uri().split("://").next().unwrap().to_owned();
        request.respond(&way).unwrap();
    };
    service.register(FETCH, fetch).unwrap();
}

fn way(client: &Instance, service: &Instance) -> String {
    way_to(client, service.self_addr().uri())
}

fn way_to(client: &Instance, uri: &str) -> String {
    let target = ProviderHandle::from(client.lookup(uri).unwrap());
    let data = vec![5; BYTES];
    client.memory().expose_ref(&data, |bulk| client.forward(FETCH, &target, bulk)).unwrap().unwrap()
}

#[test]
fn calls_and_bulk_take_the_shorter_way() {
    // UCX and tcp describe memory as sm does, ofi does not.
    let networks = all_asked_for().filter(|network| !network.contains("sm:"));
    for network in networks.collect::<Vec<_>>() {
        bounded("calls of four kinds", move || {
            let scheme = network.split("://").next().unwrap();
            let (service, near, far) =
                (start(network, true), start(network, true), start(network, false));
            serve(&service);
            serve(&far);
            let uri = service.self_addr().uri().to_owned();
            assert!(uri.starts_with("uid://"), "{uri}");
            assert_eq!(way(&near, &service), "na+sm");
            assert_eq!(way(&far, &service), scheme);
            assert_eq!(way(&service, &far), scheme, "one that speaks only the network");
            // As from another host.
            let elsewhere = uri.replacen("uid://", "uid://0", 1);
            assert_eq!(way_to(&near, &elsewhere), scheme);
            for instance in [near, far, service] {
                instance.finalize_and_wait().unwrap();
            }
        });
    }
}
