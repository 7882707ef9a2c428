//! `margo serve`: the daemon with the providers of this repository.
//!
//! All that it does is in [`margo::daemon`]; `pool_stats.rs` is an RPC that the demo calls.

pub(crate) mod pool_stats;

use margo::component::Component;
use margo::daemon::Daemon;
use margo_provider_blob::BlobComponent;
use margo_provider_echo::EchoComponent;
use margo_provider_kv::KvComponent;

/// The daemon whose types can stand in `type` of a provider.
pub(crate) fn daemon() -> Daemon {
    let components: [Box<dyn Component>; 3] =
        [Box::new(BlobComponent), Box::new(EchoComponent), Box::new(KvComponent)];
    let prepare = |instance: &margo::Instance| Ok(pool_stats::register(instance)?);
    Daemon::new(components).command("margo serve").prepare(prepare)
}
