//! Instances with shards, and what they serve.

use margo::{Bulk, Instance, ProviderHandle, Rpc};

/// Answers with the shard that took the request, and the pool of the handler.
pub(super) const WHERE: Rpc<(), (u8, String)> = Rpc::new("where");
/// Pulls what is exposed, and answers with the sum of its bytes.
pub(super) const PULL: Rpc<Bulk, u64> = Rpc::new("pull");

/// An instance with that many shards, which sleeps as soon as there is nothing to do; beside shared
/// memory where the address begins with `auto `.
pub(super) fn start(address: &str, listen: bool, shards: usize) -> Instance {
    let (auto_sm, address) = match address.strip_prefix("auto ") {
        Some(address) => (true, address),
        None => (false, address),
    };
    margo::init(&format!(
        r#"{{ "margo": {{ "address": "{address}", "listen": {listen}, "shards": {shards} }},
              "progress_spindown_msec": 0, "mercury": {{ "auto_sm": {auto_sm} }} }}"#
    ))
    .unwrap()
}

/// Serves `WHERE` and `PULL`.
pub(super) fn serve(service: &Instance) {
    let own = || margo::ult::current().unwrap().pool;
    service
        .register(WHERE, move |request| request.respond(&(request.shard(), own())).unwrap())
        .unwrap();
    service
        .register(PULL, |request| {
            let len = request.args().len() as usize;
            let mut buffer = request.instance().memory().bulk_buffer(len).unwrap();
            request.pull(request.args(), 0, &mut buffer, 0..len).unwrap();
            request.respond(&buffer.iter().map(|byte| u64::from(*byte)).sum()).unwrap();
        })
        .unwrap();
}

/// The service, as the client calls it.
pub(super) fn target(client: &Instance, service: &Instance) -> ProviderHandle {
    client.lookup(service.self_addr().uri()).unwrap().into()
}
