//! The conformance suite over several devices that differ in their features. Completions come
//! shuffled, and one operation in a few is not taken at once.
#![allow(
    clippy::declare_interior_mutable_const,
    reason = "each test makes a network of its own of the constant"
)]

use std::sync::OnceLock;

use crate::fake::{Device, Fake};
use na_core::conformance::Opener;
use na_core::{Endpoint, OpenOptions};
use prim::sync::Arc;

/// Opens endpoints in one network, which complains when the case is over.
struct Network {
    device: fn() -> Device,
    uri: &'static str,
    fake: OnceLock<Fake>,
}

const fn over(uri: &'static str, device: fn() -> Device) -> Network {
    Network { device, uri, fake: OnceLock::new() }
}

impl Opener<Network> for Network {
    const HEEDS_OPTIONS: bool = true;

    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        let fake = self.fake.get_or_init(|| {
            let fake = Fake::new((self.device)());
            fake.state().shuffles = true;
            fake.state().again_one_in = 5;
            // RxM does not survive it otherwise.
            fake.state().leaves_open = self.uri.starts_with("ofi+verbs");
            fake
        });
        let mut options = options.clone();
        options.request_mem_device = (self.device)().hmem;
        let opened = fake.open_with(self.uri, &options);
        Arc::new(opened.unwrap_or_else(|error| panic!("{}: {error}", self.uri)))
    }
}

/// Many messages in a buffer, whose end is told apart; keys of ours, offsets.
mod tcp {
    use super::*;

    fn device() -> Device {
        Device { releases_apart: true, ..Device::tcp() }
    }

    const OPEN: Network = over("ofi+tcp://127.0.0.1:0", device);
    na_core::conformance! { OPEN; unconnected_here }
    na_core::conformance! { OPEN; wakers }
}

/// Sources of messages are told; memory is bound to the endpoint; one piece at a time.
mod cxi {
    use super::*;

    const OPEN: Network = over("ofi+cxi://cxi0", Device::cxi);
    na_core::conformance! { OPEN; unconnected_here }
    na_core::conformance! { OPEN; wakers }
}

/// All memory is registered, by addresses; no wait descriptor.
mod efa {
    use super::*;

    const OPEN: Network = over("ofi+efa://", Device::efa);
    na_core::conformance! { OPEN; unconnected_here }
}

/// Contexts of twice the size, which are looked at; keys of two bytes; messages in one piece, with
/// the address before them.
mod opx {
    use super::*;

    fn device() -> Device {
        Device { iov_limit: 1, ..Device::opx() }
    }

    const OPEN: Network = over("ofi+opx://", device);
    na_core::conformance! { OPEN; unconnected_here }
}

/// One message in a buffer; keys of the device, addresses.
mod verbs {
    use super::*;

    const OPEN: Network = over("ofi+verbs://127.0.0.1:0", Device::verbs);
    na_core::conformance! { OPEN; unconnected_here }
    na_core::conformance! { OPEN; wakers }
}

/// Adapters that are asked to move memory of GPUs.
mod cxi_with_gpus {
    use super::*;

    fn device() -> Device {
        Device { hmem: true, ..Device::cxi() }
    }

    const OPEN: Network = over("ofi+cxi://cxi0", device);
    na_core::conformance! { OPEN; unconnected_here }
}
