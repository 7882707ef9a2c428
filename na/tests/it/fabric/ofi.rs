//! The conformance suite over libfabric, where `MARGO_TEST_OFI=1` is set; else each test says
//! SKIPPED.
//!
//! Left out are the cases about what libfabric does not give (`na/ofi/src/lib.rs`): ends of peers,
//! checks at the owner of memory, bounds of what providers keep, hundreds of endpoints at once.
//! `net` of libfabric 1.17, which is behind `ofi+tcp` there, also wakes a sleeper for nothing, and
//! reads nothing more from a peer, transfers included, while five of its messages wait for receives
//! (so no random walk); RxM reports long messages (over 16 KiB) out of order; `shm` has one queue
//! for all senders, and takes 1024 receives at a time.

use std::sync::Arc;

use na::conformance::{Opener, Optional};
use na::{Endpoint, Error, OpenOptions};

const fn over(uri: &'static str) -> Optional {
    Optional { variable: "MARGO_TEST_OFI", uri, open: na::open }
}

mod tcp {
    use super::*;

    const OPEN: Optional = over("ofi+tcp://127.0.0.1:0");

    na::conformance! { OPEN; unconnected }
    na::conformance! {
        OPEN;
        a_flood_does_not_hold_up_other_peers, long_messages_pass_where_they_are_allowed,
        order_is_kept_among_peers
    }
}

mod tcp_rxm {
    use super::*;

    const OPEN: Optional = over("ofi+tcp;ofi_rxm://127.0.0.1:0");

    na::conformance! { OPEN; unconnected }
    na::conformance! {
        OPEN;
        a_flood_does_not_hold_up_other_peers, operations_end_once_whatever_happens,
        order_is_kept_among_peers, an_idle_endpoint_can_sleep, a_sleeper_costs_no_processor_time,
        a_stopped_peer_is_waited_for
    }
}

/// Endpoints without a descriptor to sleep on ([`OpenOptions::no_block`]).
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

    const OPEN: Polled = Polled(over("ofi+tcp;ofi_rxm://127.0.0.1:0"));

    na::conformance! { OPEN; unconnected }
}

mod shm {
    use super::*;

    const OPEN: Optional = over("ofi+shm://");

    na::conformance! { OPEN; unconnected }
    na::conformance! { OPEN; operations_end_once_whatever_happens }
}

/// Which libfabric has given up: that messages and transfers go. Of the others within a process all
/// but one pass: a message that was sent after one whose cancel came too late may overtake it.
mod sockets {
    use super::*;

    const OPEN: Optional = over("ofi+sockets://127.0.0.1:0");

    na::conformance! {
        OPEN;
        echoes_both_kinds, empty_and_longest_messages_pass, tags_and_sources_are_told_apart,
        get_and_put_move_the_named_bytes, large_transfers_are_complete, canceled_receives_end_once
    }
}

#[test]
fn what_cannot_be_opened_is_told_with_what_there_is() {
    let told = |uri: &str| na::open(uri, &OpenOptions::default()).unwrap_err();
    let error = told("ofi+pigeon://");
    assert!(matches!(error, Error::BadUri { .. }), "{error}");
    assert!(error.to_string().contains("verbs;ofi_rxm"), "{error}");
    let group = |uri| na::open_group(uri, &OpenOptions::default(), 4).unwrap_err();
    let error = group("ofi+tcp://127.0.0.1:0");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    for told in ["ofi+tcp://127.0.0.1:0", "4 endpoints", "hello", "na+tcp", "one shard"] {
        assert!(error.to_string().contains(told), "{error}");
    }
    assert!(matches!(group("ofi+pigeon://"), Error::BadUri { .. }));
    na::conformance::a_group_has_bounds(|shards| {
        na::open_group("ofi+tcp://127.0.0.1:0", &OpenOptions::default(), shards)
    });
    if let Some(lacks) = over("ofi+tcp://127.0.0.1:0").lacks() {
        return println!("SKIPPED: {lacks}");
    }
    // Nobody has all of these devices.
    let all = ["cxi", "efa", "opx"]
        .map(|name| na::open(&format!("ofi+{name}://"), &OpenOptions::default()));
    assert!(all.iter().any(Result::is_err));
    for error in all.into_iter().filter_map(Result::err) {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("finds"), "{error}");
    }
    let error = told("ofi+tcp://no-such-device/127.0.0.1:0");
    assert!(error.to_string().contains("no device of it fits"), "{error}");
    let error = told("ofi+tcp://no-such-host.invalid:1");
    let is_neither = error.to_string().contains("no host") && error.to_string().contains("device");
    assert!(matches!(error, Error::Unavailable { .. }) && is_neither, "{error}");
    let mut options = OpenOptions::default();
    options.auth_key = Some("1:2".to_owned());
    let error = na::open("ofi+tcp://127.0.0.1:0", &options).unwrap_err();
    assert!(matches!(error, Error::BadOption { option: "auth_key", .. }), "{error}");
}
