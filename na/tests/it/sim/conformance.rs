//! The conformance suite over simulated networks: a good one, and one that does everything to
//! packets that a network may do.
//!
//! The cases that kill a peer's process do not apply within one process; `faults.rs` has their
//! counterparts with crashes of nodes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use na::sim::{LinkOptions, Network};
use na::{Endpoint, OpenOptions};

/// A network for each test (each runs on a thread of its own), so that a test has nothing to do
/// with the clock of another.
fn open_in_own_network(link: LinkOptions, options: &OpenOptions) -> Arc<dyn Endpoint> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NETWORK: OnceCell<Network> = const { OnceCell::new() };
    }
    NETWORK.with(|network| {
        let network = network.get_or_init(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            Network::builder(format!("test-{number}")).seed(number).link(link).build().expect("new")
        });
        let uri = format!("na+sim://{}/", network.name());
        na::open(&uri, options).expect("open")
    })
}

mod good {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        open_in_own_network(LinkOptions::default(), options)
    }

    na::conformance! { open; between_endpoints }
}

mod unreliable {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        open_in_own_network(LinkOptions::unreliable(0.1), options)
    }

    na::conformance! { open; between_endpoints }
}
