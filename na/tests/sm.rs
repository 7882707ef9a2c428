//! The conformance suite over shared memory, once per way of moving bulk data.
#![cfg(feature = "sm")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Completion, Endpoint, OpId, OpenOptions, Tag};

mod attach {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        na::open("na+sm://", options).expect("open")
    }

    na::conformance! { open; all }

    #[test]
    fn the_path_is_named() {
        assert!(
            open(&OpenOptions::default())
                .bulk_path()
                .ends_with("the shared ring or cross-memory attach")
        );
    }
}

mod ring {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        let mut options = options.clone();
        options.sm.cross_memory_attach = false;
        na::open("na+sm://", &options).expect("open")
    }

    na::conformance! { open; all }

    #[test]
    fn the_path_is_named() {
        assert!(
            open(&OpenOptions::default()).bulk_path().ends_with("copy through the shared ring")
        );
    }
}

/// One side permits attaching and the other does not: bulk data takes the ring both ways.
mod mixed {
    use super::*;

    fn open(listen: bool) -> Arc<dyn Endpoint> {
        let mut options = OpenOptions::listening(listen);
        options.sm.cross_memory_attach = listen;
        na::open("na+sm://", &options).expect("open")
    }

    na::conformance! { open;
        get_and_put_between_segments,
        large_transfers_are_complete,
        many_transfers_at_once,
        transfers_from_and_to_an_origin,
        canceled_transfers_end_once,
    }

    #[test]
    fn the_peers_that_cannot_be_attached_to_are_counted() {
        let (target, origin) = (open(true), open(false));
        target.recv_unexpected(OpId(1), target.alloc_msg()).expect("a receive");
        let to = origin.lookup(target.self_addr().uri()).expect("its address");
        origin.send_unexpected(OpId(2), &to, Tag(3), origin.alloc_msg()).expect("a message");
        let (deadline, mut arrived) = (Instant::now() + Duration::from_secs(60), false);
        while !arrived {
            let mut sink = |completion| arrived |= matches!(completion, Completion::Recv { .. });
            target.poll(16, &mut sink).expect("a poll");
            origin.poll(16, &mut |_| ()).expect("a poll");
            assert!(Instant::now() < deadline, "the message does not arrive");
        }
        let path = target.bulk_path();
        assert!(path.contains("but for 1 of 1 peers, cross-memory attach ("), "{path}");
        assert!(path.contains("off at the peer") || path.contains("ptrace_scope"), "{path}");
        assert!(origin.bulk_path().ends_with("copy through the shared ring"));
    }
}
