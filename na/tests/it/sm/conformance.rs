//! The conformance suite over shared memory, once per way of moving bulk data.

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

/// Both sides have promised never to sleep ([`OpenOptions::no_block`]).
mod polled {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        let mut options = options.clone();
        options.no_block = true;
        let endpoint = na::open("na+sm://", &options).expect("open");
        assert!(endpoint.wait_fd().is_none() && !endpoint.prepare_wait());
        endpoint
    }

    na::conformance! { open; between_endpoints }
    na::conformance! { open; between_processes }
    na::conformance! { open; a_peer_that_dies_amid_long_messages_is_reported }
}

/// Only the listening endpoint is opened with `no_block`; the other one sleeps.
mod one_polled {
    use super::*;

    fn open(listen: bool) -> Arc<dyn Endpoint> {
        let mut options = OpenOptions::listening(listen);
        options.no_block = listen;
        na::open("na+sm://", &options).expect("open")
    }

    na::conformance! { open; between_endpoints }

    /// More messages than the ring holds, to a peer that sleeps before each.
    #[test]
    fn who_sleeps_is_woken_by_who_does_not() {
        let (target, origin) = (open(true), open(false));
        let to = origin.lookup(target.self_addr().uri()).expect("its address");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let from = target_of_messages(&*target);
                // Far more than a ring holds.
                for number in 0..20_000u32 {
                    let mut buf = target.alloc_msg();
                    assert!(buf.try_extend(&number.to_le_bytes()));
                    target.send_expected(OpId(5), &from, Tag(7), buf).expect("a message");
                    target.poll(16, &mut |_| ()).expect("a poll");
                }
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    target.poll(16, &mut |_| ()).expect("a poll");
                }
            });
            origin.send_unexpected(OpId(2), &to, Tag(3), origin.alloc_msg()).expect("a message");
            for number in 0..20_000u32 {
                let buf = origin.alloc_msg();
                origin.recv_expected(OpId(4), &to, Tag(7), buf).expect("a receive");
                let got = sleep_for_a_message(&*origin);
                assert_eq!(got, number.to_le_bytes());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    /// Receives one message, by polling, and tells whose it was.
    fn target_of_messages(target: &dyn Endpoint) -> na::Addr {
        target.recv_unexpected(OpId(1), target.alloc_msg()).expect("a receive");
        let mut from = None;
        while from.is_none() {
            let mut sink = |completion| {
                if let Completion::Recv { result, .. } = completion {
                    from = Some(result.expect("a message").from);
                }
            };
            target.poll(16, &mut sink).expect("a poll");
        }
        from.expect("somebody")
    }

    /// Waits on the descriptor, as long as it takes.
    fn sleep_for_a_message(origin: &dyn Endpoint) -> Vec<u8> {
        let fd = origin.wait_fd().expect("a descriptor");
        loop {
            let mut got = None;
            let mut sink = |completion| {
                if let Completion::Recv { buf, result, .. } = completion {
                    result.expect("a message");
                    got = Some(buf.as_slice().to_vec());
                }
            };
            origin.poll(1, &mut sink).expect("a poll");
            if let Some(got) = got {
                return got;
            }
            if origin.prepare_wait() {
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut fds, Some(&limit)).expect("a sleep");
                assert_eq!(woken, 1, "nobody wakes it");
            }
        }
    }
}

/// A caller that polls without a break is spared the polls that find nothing.
#[test]
fn an_endpoint_with_nothing_to_do_has_nothing_to_find() {
    let open = |listen| na::open("na+sm://", &OpenOptions::listening(listen)).expect("open");
    let (target, origin) = (open(true), open(false));
    let nodes = [&target, &origin];
    let until = |what: &str, done: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            nodes.iter().for_each(|node| _ = node.poll(16, &mut |_| ()).expect("a poll"));
        }
    };
    let nothing = || nodes.iter().all(|node| !node.may_find());
    let to = origin.lookup(target.self_addr().uri()).expect("its address");
    origin.send_unexpected(OpId(1), &to, Tag(3), origin.alloc_msg()).expect("a message");
    let has_come =
        || target.stats().peers.iter().any(|peer| peer.received_messages.is_some_and(|n| n > 0));
    until("there is always something to find", &mut || has_come() && nothing());
    // The message waits for it.
    target.recv_unexpected(OpId(2), target.alloc_msg()).expect("a receive");
    assert!(target.may_find(), "the receive that has ended");
    until("the receive's end stays", &mut || nothing());
    origin.send_unexpected(OpId(3), &to, Tag(3), origin.alloc_msg()).expect("a message");
    assert!(target.may_find(), "a message in the ring");
    until("the message stays", &mut || nothing());
    target.close();
    assert!(target.may_find(), "the end");
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
