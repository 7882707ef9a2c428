//! The conformance suite over UCX, by TCP and by shared memory, where `MARGO_TEST_UCX=1` is set;
//! else each test says SKIPPED.
#![cfg(feature = "ucx")]

use std::sync::Arc;

use na::conformance::{Opener, Optional};
use na::{Endpoint, OpenOptions};

mod tcp {
    use super::*;

    const OPEN: Optional = Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0" };

    na::conformance! { OPEN; all }
}

/// Without peers that end amid writes: whoever has taken a place in UCX's queue and dies before he
/// has filled it blocks all who come after (`uct_mm_ep_get_fifo_elem`, mm_ep.c).
mod sm {
    use super::*;

    const OPEN: Optional = Optional { variable: "MARGO_TEST_UCX", uri: "ucx+sm://127.0.0.1:0" };

    na::conformance! { OPEN; not_amid_writes }
}

/// Every transfer by UCX's rendezvous, which else is taken over InfiniBand and RoCE.
mod tcp_rendezvous {
    use super::*;

    struct Rendezvous(Optional);

    impl Opener<Rendezvous> for Rendezvous {
        const HEEDS_OPTIONS: bool = true;

        fn lacks(&self) -> Option<String> {
            self.0.lacks()
        }

        fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
            let mut options = options.clone();
            options.ucx.rendezvous_bytes_min = Some(1);
            self.0.open(&options)
        }
    }

    const OPEN: Rendezvous =
        Rendezvous(Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0" });

    na::conformance! { OPEN; all }
}

/// Endpoints without a descriptor to sleep on ([`OpenOptions::no_block`]), over shared memory,
/// where that makes UCX send otherwise.
mod polled {
    use super::*;

    struct Polled(Optional);

    impl Opener<Polled> for Polled {
        const HEEDS_OPTIONS: bool = true;

        fn lacks(&self) -> Option<String> {
            self.0.lacks()
        }

        fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
            let mut options = options.clone();
            options.no_block = true;
            let endpoint = self.0.open(&options);
            assert!(endpoint.wait_fd().is_none() && !endpoint.prepare_wait());
            endpoint
        }
    }

    const OPEN: Polled =
        Polled(Optional { variable: "MARGO_TEST_UCX", uri: "ucx+sm://127.0.0.1:0" });

    na::conformance! { OPEN; not_amid_writes }
}
