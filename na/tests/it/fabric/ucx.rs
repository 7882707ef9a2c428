//! The conformance suite over UCX, by TCP and by shared memory, where `MARGO_TEST_UCX=1` is set;
//! else each test says SKIPPED.

use std::sync::Arc;

use na::conformance::{Opener, Optional};
use na::{Endpoint, OpenOptions, RemoteKeys};

mod tcp {
    use super::*;

    pub(super) const OPEN: Optional =
        Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0", open: na::open };

    na::conformance! { OPEN; all }
}

/// The suite without peers that end amid writes: a process that has taken a place in UCX's queue
/// and dies before it has filled the place blocks all that come after (`uct_mm_ep_get_fifo_elem`,
/// mm_ep.c).
mod sm {
    use super::*;

    const OPEN: Optional =
        Optional { variable: "MARGO_TEST_UCX", uri: "ucx+sm://127.0.0.1:0", open: na::open };

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

    const OPEN: Rendezvous = Rendezvous(Optional {
        variable: "MARGO_TEST_UCX",
        uri: "ucx+tcp://127.0.0.1:0",
        open: na::open,
    });

    na::conformance! { OPEN; all }
}

/// Every transfer by UCX's remote memory access, which else is taken over InfiniBand and RoCE.
struct Keys {
    over: Optional,
    /// Cases in which a connection ends while UCX emulates puts and gets over it, and what it does.
    spared: &'static [&'static str],
    because: &'static str,
}

impl Opener<Keys> for Keys {
    const HEEDS_OPTIONS: bool = true;

    fn lacks(&self) -> Option<String> {
        self.over.lacks()
    }

    fn spares(&self, case: &str) -> Option<String> {
        // By who has a UCX with these faults mended.
        let is_mended = std::env::var_os("MARGO_TEST_UCX").is_some_and(|value| value == "mended");
        let reason = || format!("{}: docs/transports/ucx.md, \"Remote keys\"", self.because);
        (self.spared.contains(&case) && !is_mended).then(reason)
    }

    fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
        let mut options = options.clone();
        options.ucx.remote_keys = RemoteKeys::Always;
        self.over.open(&options)
    }
}

mod tcp_keys {
    use super::*;

    const OPEN: Keys = Keys {
        over: Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0", open: na::open },
        spared: &[
            "cancel_and_close_end_everything_once",
            "memory_comes_back_from_a_peer_that_ends_amid_transfers",
            "nothing_is_left_behind",
        ],
        because: "UCX aborts the owner when a connection ends with puts and gets in hand",
    };

    na::conformance! { OPEN; all }
}

mod sm_keys {
    use super::*;

    const OPEN: Keys = Keys {
        over: Optional { variable: "MARGO_TEST_UCX", uri: "ucx+sm://127.0.0.1:0", open: na::open },
        spared: &["nothing_is_left_behind"],
        because: "UCX cannot give up a put in hand, and its worker is left behind",
    };

    na::conformance! { OPEN; not_amid_writes }
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

    const OPEN: Polled = Polled(Optional {
        variable: "MARGO_TEST_UCX",
        uri: "ucx+sm://127.0.0.1:0",
        open: na::open,
    });

    na::conformance! { OPEN; not_amid_writes }
}

/// Groups of endpoints behind one address.
mod groups {
    use super::*;

    fn open_by(uri: &str, options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
        na::open_group(uri, options, shards).unwrap()
    }

    mod tcp {
        use super::*;

        fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
            open_by("ucx+tcp://127.0.0.1:0", options, shards)
        }

        na::group_conformance! { open_group; if "MARGO_TEST_UCX" }

        #[test]
        fn a_group_has_bounds() {
            if let Some(lacks) = super::super::tcp::OPEN.lacks() {
                return println!("SKIPPED: {lacks}");
            }
            na::conformance::a_group_has_bounds(|shards| {
                na::open_group("ucx+tcp://127.0.0.1:0", &OpenOptions::listening(true), shards)
            });
        }
    }

    mod sm {
        use super::*;

        fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
            open_by("ucx+sm://127.0.0.1:0", options, shards)
        }

        na::group_conformance! { open_group; if "MARGO_TEST_UCX" }
    }

    /// Every transfer by a remote key of the endpoint that has the connection.
    mod keys {
        use super::*;

        fn open_group(options: &OpenOptions, shards: usize) -> Vec<Arc<dyn Endpoint>> {
            let mut options = options.clone();
            options.ucx.remote_keys = RemoteKeys::Always;
            open_by("ucx+sm://127.0.0.1:0", &options, shards)
        }

        na::group_conformance! { open_group; if "MARGO_TEST_UCX" }
    }

    /// The last endpoint of a group of four, of which the others are closed: it has got the door.
    mod left_alone {
        use super::*;

        const OPEN: Optional = Optional {
            variable: "MARGO_TEST_UCX",
            uri: "ucx+tcp://127.0.0.1:0",
            open: |uri, options| {
                let mut group = na::open_group(uri, options, 4)?;
                let last = group.pop().unwrap();
                for shard in &group {
                    shard.close();
                    last.poll(1, &mut |completion| panic!("{completion:?}"))?;
                }
                Ok(last)
            },
        };

        na::conformance! { OPEN; between_endpoints }
    }
}
