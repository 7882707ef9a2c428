//! Completions in any order, and completions that are errors.

use ofi_sys::raw;

use super::*;
use crate::fake::{Call, Device, Fake};
use na_core::DeniedReason;

const URI: &str = "ofi+tcp://127.0.0.1:0";

/// A get and a put of all of the memory.
fn transfers(a: &Node, b: &Node, remote: &LocalMem) -> [Transfer; 2] {
    [(); 2].map(|()| {
        let local = a.register(vec![0; remote.len() as usize], Access::ReadWrite);
        let (remote, len) = (a.told(b, remote), remote.len());
        Transfer { local, local_offset: 0, remote, remote_offset: 0, len }
    })
}

#[test]
fn completions_may_come_backwards() {
    for fake in [Fake::new(Device::tcp()), single(Device::tcp())] {
        let (a, b) = Node::pair(&fake, URI);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        let remote = b.register((0..100).collect(), Access::ReadWrite);
        fake.hold(true);
        let receives: Vec<_> = (0..20).map(|tag| a.recv_expected(&to_b, tag)).collect();
        let sends: Vec<_> =
            (0..20).map(|tag| b.send_expected(&to_a, tag, &vec![tag as u8; 1000])).collect();
        let moved = transfers(&a, &b, &remote).map(|transfer| {
            let local = transfer.local.clone();
            (a.transfer(false, &to_b, transfer), local)
        });
        for _ in 0..10 {
            assert_eq!(a.poll().unwrap() + b.poll().unwrap(), 0, "nothing is told early");
        }
        fake.release_backwards();
        for (tag, op) in receives.into_iter().enumerate() {
            let (told, bytes) = received(a.wait(op));
            assert_eq!((told, bytes), (tag as u32, vec![tag as u8; 1000]));
        }
        for op in sends {
            sent(b.wait(op)).unwrap();
        }
        for (op, local) in moved {
            sent(a.wait(op)).unwrap();
            let mut bytes = [0; 100];
            assert!(local.read_at(0, &mut bytes));
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        }
    }
}

/// Errors of messages to a peer that was never reached, and to a peer that was.
#[test]
fn errors_of_messages_say_whether_the_peer_is_gone() {
    let gone = [raw::FI_ECONNREFUSED, raw::FI_EHOSTUNREACH, raw::FI_ETIMEDOUT, raw::FI_ENODEV];
    for errno in gone.into_iter().chain([raw::FI_EIO, raw::FI_ECANCELED]) {
        for known in [false, true] {
            let fake = Fake::new(Device::tcp());
            let (a, b) = match known {
                true => Node::pair(&fake, URI),
                false => (Node::open(&fake, URI), Node::open(&fake, URI)),
            };
            let to_b = a.addr_of(&b);
            for (call, tagged) in [(Call::TaggedSend, true), (Call::Send, false)] {
                fake.fail(call, errno, 1);
                let message = vec![1; 2000];
                let op = match tagged {
                    true => a.send_expected(&to_b, 1, &message),
                    false => a.send_unexpected(&to_b, 1, &message),
                };
                let error = sent(a.wait(op)).unwrap_err();
                let told = error.to_string();
                match (errno, known && tagged) {
                    (raw::FI_EIO, _) => {
                        assert!(matches!(error, Error::Io { .. }), "{error:?}");
                        assert!(told.contains("the device says 1005"), "{told}");
                    }
                    (raw::FI_ECANCELED, _) | (_, true) => {
                        assert!(matches!(error, Error::PeerGone { .. }), "{error:?}")
                    }
                    // By the first of the two it is known that the peer is gone.
                    _ => assert!(matches!(error, Error::Unreachable { .. }), "{error:?}"),
                }
                assert!(told.contains(to_b.uri()), "{told}");
            }
            // A peer may come back.
            let recv = b.recv_unexpected();
            let send = a.send_unexpected(&to_b, 5, b"again");
            sent(a.wait(send)).unwrap();
            assert_eq!(received(b.wait(recv)), (5, b"again".to_vec()));
        }
    }
}

#[test]
fn errors_of_transfers_say_what_was_denied() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let to_b = a.addr_of(&b);
    let remote = b.register(vec![3; 100], Access::ReadWrite);
    let denied = |error: &Error| match error {
        Error::Denied { reason, peer } if peer == to_b.uri() => Some(*reason),
        _ => None,
    };
    for (call, put) in [(Call::Read, false), (Call::Write, true)] {
        for (errno, reason) in [
            (raw::FI_EACCES, DeniedReason::Access),
            (raw::FI_EPERM, DeniedReason::Access),
            (raw::FI_EKEYREJECTED, DeniedReason::NoSuchKey),
            (raw::FI_ENOKEY, DeniedReason::NoSuchKey),
        ] {
            fake.fail(call, errno, 1);
            let [transfer, _] = transfers(&a, &b, &remote);
            let error = sent(a.wait(a.transfer(put, &to_b, transfer))).unwrap_err();
            assert_eq!(denied(&error), Some(reason), "{error:?}");
        }
        fake.fail(call, raw::FI_EREMOTEIO, 1);
        let [transfer, again] = transfers(&a, &b, &remote);
        let error = sent(a.wait(a.transfer(put, &to_b, transfer))).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        sent(a.wait(a.transfer(put, &to_b, again))).unwrap();
    }
    // By the owner's memory itself: read only, whatever its description says, and gone.
    let shown = b.register(vec![3; 100], Access::ReadOnly);
    let [mut transfer, late] = transfers(&a, &b, &shown);
    let mut forged = b.endpoint.mem_to_bytes(&shown);
    forged[24] = Access::ReadWrite.bits();
    transfer.remote = a.endpoint.mem_from_bytes(&forged).unwrap();
    let error = sent(a.wait(a.transfer(true, &to_b, transfer))).unwrap_err();
    assert_eq!(denied(&error), Some(DeniedReason::Access));
    drop(shown);
    let error = sent(a.wait(a.transfer(false, &to_b, late))).unwrap_err();
    assert_eq!(denied(&error), Some(DeniedReason::NoSuchKey));
}

/// By the call, before there is an operation: it means the same.
#[test]
fn what_is_refused_says_as_much_as_what_fails() {
    let calls = [Call::Send, Call::TaggedSend, Call::Read, Call::Write];
    let gone = [raw::FI_ENOTCONN, raw::FI_ENETUNREACH, raw::FI_EHOSTUNREACH, raw::FI_ECONNRESET];
    let others = [raw::FI_EKEYREJECTED, raw::FI_ENOKEY, raw::FI_EACCES, raw::FI_EIO];
    for (call, errno) in
        calls.iter().flat_map(|call| gone.iter().chain(&others).map(|e| (*call, *e)))
    {
        let fake = Fake::new(Device::tcp());
        let (a, b) = Node::pair(&fake, URI);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        let memory = b.register(vec![3; 100], Access::ReadWrite);
        let waiting = a.recv_expected(&to_b, 7);
        fake.refuse(call, errno, 1);
        let op = match call {
            Call::Send => a.send_unexpected(&to_b, 1, &[1; 2000]),
            Call::TaggedSend => a.send_expected(&to_b, 1, &[1; 2000]),
            _ => {
                let [transfer, _] = transfers(&a, &b, &memory);
                a.transfer(call == Call::Write, &to_b, transfer)
            }
        };
        let error = sent(a.wait(op)).unwrap_err();
        let reason = match &error {
            Error::Denied { reason, peer } if peer == to_b.uri() => Some(*reason),
            _ => None,
        };
        let is_transfer = matches!(call, Call::Read | Call::Write);
        match errno {
            raw::FI_EKEYREJECTED | raw::FI_ENOKEY if is_transfer => {
                assert_eq!(reason, Some(DeniedReason::NoSuchKey), "{error:?}");
            }
            raw::FI_EACCES if is_transfer => {
                assert_eq!(reason, Some(DeniedReason::Access), "{error:?}");
            }
            _ if gone.contains(&errno) => {
                let is_gone =
                    |error| matches!(error, Error::PeerGone { peer, .. } if peer == to_b.uri());
                assert!(is_gone(error), "{call:?} {errno}");
                // With it goes what waits for an answer.
                assert!(is_gone(sent(a.wait(waiting)).unwrap_err()), "{call:?} {errno}");
                continue;
            }
            _ => assert!(matches!(error, Error::Io { .. }), "{error:?}"),
        }
        b.send_expected(&to_a, 7, b"here");
        assert_eq!(received(both(&a, &b, &a, waiting)), (7, b"here".to_vec()));
    }
}

/// Polls until a connection that has ended is replaced.
fn reconnected(node: &Node) {
    for _ in 0..30 {
        node.poll().unwrap();
    }
}

/// Errors as real devices report them: for each device, an operation with a peer that is gone, and
/// one that the peer does not allow.
#[test]
fn what_devices_report_is_understood() {
    for (device, uri, key) in [
        (Device::verbs(), "ofi+verbs://127.0.0.1:0", DeniedReason::Access),
        (Device::cxi(), "ofi+cxi://cxi0", DeniedReason::NoSuchKey),
        (Device::efa(), "ofi+efa://", DeniedReason::Access),
    ] {
        let fake = Fake::new(device);
        fake.state().leaves_open = true;
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let readable = b.register(vec![3; 100], Access::ReadOnly);
        let [mut transfer, stale] = transfers(&a, &b, &readable);
        let mut forged = b.endpoint.mem_to_bytes(&readable);
        forged[24] = Access::ReadWrite.bits();
        transfer.remote = a.endpoint.mem_from_bytes(&forged).unwrap();
        let is_denied = |error: &Error, wanted| match error {
            Error::Denied { reason, peer } => *reason == wanted && peer == to_b.uri(),
            _ => false,
        };
        let error = sent(a.wait(a.transfer(true, &to_b, transfer))).unwrap_err();
        assert!(is_denied(&error, DeniedReason::Access), "{uri}: {error:?}");
        drop(readable);
        reconnected(&a);
        let error = sent(a.wait(a.transfer(false, &to_b, stale))).unwrap_err();
        assert!(is_denied(&error, key), "{uri}: {error:?}");
        // It is there all the same.
        reconnected(&a);
        let waiting = a.recv_expected(&to_b, 7);
        let recv = b.recv_unexpected();
        sent(both(&a, &b, &a, a.send_unexpected(&to_b, 5, &[1; 2000]))).unwrap();
        received(b.wait(recv));
        let memory = b.register(vec![3; 100], Access::ReadWrite);
        let [transfer, _] = transfers(&a, &b, &memory);
        drop(memory);
        drop(b);
        let gone =
            |error: &Error| matches!(error, Error::PeerGone { peer, .. } if peer == to_b.uri());
        let error = sent(a.wait(a.transfer(false, &to_b, transfer))).unwrap_err();
        assert!(gone(&error), "{uri}: {error:?}");
        // With it goes what waits for an answer.
        let error = sent(a.wait(waiting)).unwrap_err();
        assert!(gone(&error), "{uri}: {error:?}");
        reconnected(&a);
        let error = sent(a.wait(a.send_unexpected(&to_b, 5, &[1; 2000]))).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{uri}: {error:?}");
        assert!(error.to_string().contains("the device says"), "{error}");
    }
}

/// Over InfiniBand a transfer that fails, for whatever reason, ends the connection, which RxM
/// learns late: an answer that is injected until then is lost without a word.
#[test]
fn an_answer_after_a_transfer_that_failed_arrives() {
    let fake = Fake::new(Device::verbs());
    let (a, b) = Node::pair(&fake, "ofi+verbs://127.0.0.1:0");
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    // Denied, out of order, and what the provider has no number for.
    for fault in [(libc::EIO, 10), (libc::EIO, 11), (libc::ENOMEM, 0)] {
        for len in [5, 3000] {
            let remote = b.register(vec![3; 100], Access::ReadOnly);
            let [transfer, again] = transfers(&a, &b, &remote);
            fake.fail_as(Call::Read, fault, 1);
            let failed = sent(a.wait(a.transfer(false, &to_b, transfer)));
            assert!(failed.is_err());
            let injected = fake.count(Call::TaggedInject);
            assert!(!a.endpoint.send_expected_now(&to_b, Tag(1), b"lost"));
            let recv = b.recv_expected(&to_a, 2);
            let send = a.send_expected(&to_b, 2, &vec![7; len]);
            assert_eq!(fake.count(Call::TaggedInject), injected);
            sent(both(&a, &b, &a, send)).unwrap();
            assert_eq!(received(b.wait(recv)), (2, vec![7; len]));
            // From now on as before.
            assert!(a.endpoint.send_expected_now(&to_b, Tag(1), b"soon"));
            assert_eq!(received(b.wait(b.recv_expected(&to_a, 1))).1, b"soon");
            sent(a.wait(a.transfer(false, &to_b, again))).unwrap();
        }
    }
    // The answer itself may be what the error is told of.
    let remote = b.register(vec![3; 100], Access::ReadOnly);
    let [transfer, _] = transfers(&a, &b, &remote);
    fake.fail_as(Call::Read, (libc::EIO, 10), 1);
    sent(a.wait(a.transfer(false, &to_b, transfer))).unwrap_err();
    fake.fail_as(Call::TaggedSend, (libc::EIO, 11), 2);
    let recv = b.recv_expected(&to_a, 2);
    sent(a.wait(a.send_expected(&to_b, 2, b"late"))).unwrap();
    assert_eq!(received(b.wait(recv)), (2, b"late".to_vec()));
}

/// A message says nothing of what a peer allows, and a number that is not in the table nothing.
#[test]
fn other_numbers_of_devices_are_errors_of_their_operation_alone() {
    for (device, uri, fault) in [
        (Device::verbs(), "ofi+verbs://127.0.0.1:0", (libc::EIO, 10)),
        (Device::verbs(), "ofi+verbs://127.0.0.1:0", (libc::EIO, 11)),
        (Device::cxi(), "ofi+cxi://cxi0", (libc::EIO, 18)),
        (Device::efa(), "ofi+efa://", (libc::EINVAL, 7)),
        // No device, so the number is none of `verbs`.
        (Device::tcp(), URI, (libc::EIO, 12)),
    ] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let waiting = a.recv_expected(&to_b, 7);
        fake.fail_as(Call::Send, fault, 1);
        let error = sent(a.wait(a.send_unexpected(&to_b, 5, &[1; 2000]))).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{uri}: {error:?}");
        b.send_expected(&b.addr_of(&a), 7, &[2; 2000]);
        assert_eq!(received(both(&a, &b, &a, waiting)), (7, vec![2; 2000]));
    }
}

/// One part of a transfer in several parts ends in an error: the others are waited for.
#[test]
fn a_transfer_ends_once_when_one_of_its_parts_fails() {
    let fake = Fake::new(Device { message_bytes: 4096, ..Device::tcp() });
    let (a, b) = Node::pair(&fake, URI);
    let to_b = a.addr_of(&b);
    let remote = b.register(vec![3; 100_000], Access::ReadWrite);
    fake.hold(true);
    fake.fail(Call::Read, raw::FI_EIO, 1);
    let [transfer, good] = transfers(&a, &b, &remote);
    let op = a.transfer(false, &to_b, transfer);
    fake.release_backwards();
    assert!(matches!(sent(a.wait(op)), Err(Error::Io { .. })));
    sent(a.wait(a.transfer(false, &to_b, good))).unwrap();
    let parts = fake.state().accesses.iter().map(|part| part.len).max();
    assert_eq!(parts, Some(4096), "as long as the device takes");
}

#[test]
fn messages_that_are_cut_off_harm_nobody() {
    for fake in [Fake::new(Device::tcp()), single(Device::tcp())] {
        let mut options = OpenOptions::default();
        options.message_bytes_max = 512;
        let short = Node::open_with(&fake, URI, &options);
        let long = Node::open(&fake, URI);
        let (to_short, to_long) = (long.addr_of(&short), short.addr_of(&long));
        let recv = short.recv_unexpected();
        sent(long.wait(long.send_unexpected(&to_short, 1, &[1; 3000]))).unwrap();
        sent(long.wait(long.send_unexpected(&to_short, 2, &[2; 300]))).unwrap();
        assert_eq!(received(short.wait(recv)), (2, vec![2; 300]));
        let recv = short.recv_expected(&to_long, 3);
        sent(long.wait(long.send_expected(&to_short, 3, &[3; 3000]))).unwrap();
        let error = sent(short.wait(recv)).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    }
}

#[test]
fn a_queue_that_has_overrun_ends_everything() {
    for as_event in [false, true] {
        let fake = single(Device::tcp());
        let (a, b) = Node::pair(&fake, URI);
        let to_b = a.addr_of(&b);
        let own = a.endpoint.self_addr();
        let remote = b.register(vec![3; 100], Access::ReadWrite);
        fake.hold(true);
        let [transfer, _] = transfers(&a, &b, &remote);
        let (memory, back) = counted(100);
        let memory = a.endpoint.register(memory, Access::ReadOnly).unwrap();
        let ops = [
            a.recv_unexpected(),
            a.recv_expected(&to_b, 1),
            a.recv_expected(&own, 1),
            a.send_expected(&to_b, 1, &[1; 2000]),
            a.transfer(false, &to_b, transfer),
        ];
        match as_event {
            true => fake.report(raw::FI_EOVERRUN),
            false => fake.refuse(Call::CqRead, raw::FI_EOVERRUN, 1),
        }
        // What was in the queue before is told, then its end.
        fake.hold(false);
        let broken = std::iter::repeat_with(|| a.poll()).take(10).find_map(Result::err).unwrap();
        assert!(broken.to_string().contains("Queue has been overrun"), "{broken}");
        for op in ops {
            let ended = sent(a.wait(op));
            let is_told = |error: &Error| error.to_string().contains("Queue has been overrun");
            assert!(as_event || ended.as_ref().is_err_and(is_told), "{op:?}: {ended:?}");
            assert!(ended.is_ok() || ended.is_err_and(|error| is_told(&error)), "{op:?}");
        }
        assert_eq!(a.poll().unwrap(), 0);
        let refused = a.endpoint.recv_unexpected(a.op(), a.endpoint.alloc_msg()).unwrap_err();
        assert!(matches!(refused.error, Error::Closed));
        drop(memory);
        assert_eq!(back.load(Ordering::Relaxed), 1);
    }
}

/// As of a message that was injected.
#[test]
fn an_error_of_no_operation_ends_none() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    let recv = a.recv_expected(&to_b, 1);
    for errno in [raw::FI_EIO, raw::FI_ECONNRESET, raw::FI_EADDRNOTAVAIL] {
        fake.report(errno);
    }
    b.send_expected(&to_a, 1, b"yes");
    assert_eq!(received(both(&a, &b, &a, recv)), (1, b"yes".to_vec()));
}

/// `data` of a completion is valid only with its flag (`fi_cq.3`); C reads 0.
#[test]
fn a_request_without_data_has_tag_0() {
    let fake = single(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let name = |node: &Node| {
        let bytes = node.endpoint.addr_to_bytes(&node.endpoint.self_addr()).unwrap();
        bytes[8..].to_vec()
    };
    let recv = a.recv_unexpected();
    let message = [&name(&b)[..], b"bare"].concat();
    fake.deliver(&name(&a), &name(&b), &message);
    assert_eq!(received(a.wait(recv)), (0, b"bare".to_vec()));
}

/// Receives that were given up stay as long as there is room; then the library is asked to end
/// them, which it may not do.
#[test]
fn receives_that_cannot_be_canceled_are_kept() {
    for refused in [false, true] {
        let fake = Fake::new(Device { receives: 16, ..Device::tcp() });
        let (a, b) = Node::pair(&fake, URI);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        if refused {
            fake.refuse(Call::Cancel, raw::FI_ENOENT, usize::MAX);
        }
        for tag in 0..8 {
            let op = a.recv_expected(&to_b, tag);
            a.endpoint.cancel(op);
            assert!(matches!(sent(a.wait(op)), Err(Error::Canceled)));
        }
        assert!(fake.count(Call::Cancel) > 0);
        // A receive of the same tag gets the message that comes to the one before it.
        let recv = a.recv_expected(&to_b, 7);
        for tag in [7, 3, 0] {
            sent(b.wait(b.send_expected(&to_a, tag, &[tag as u8; 9]))).unwrap();
        }
        assert_eq!(received(a.wait(recv)), (7, vec![7; 9]));
        fake.relent();
        let recv = a.recv_expected(&to_b, 100);
        b.send_expected(&to_a, 100, b"on");
        assert_eq!(received(both(&a, &b, &a, recv)), (100, b"on".to_vec()));
    }
}

/// Operations under way to a peer that is gone may fail when its successor is there already.
#[test]
fn late_errors_of_a_predecessor_end_nothing_of_its_successor() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    fake.hold(true);
    fake.fail(Call::TaggedSend, libc::ECONNRESET as u32, 2);
    let lost = [1, 2].map(|tag| a.send_expected(&to_b, tag, &[1; 2000]));
    fake.release(1);
    assert!(matches!(sent(a.wait(lost[0])), Err(Error::PeerGone { .. })));
    assert!(!a.has(lost[1]));
    let answer = a.recv_expected(&to_b, 7);
    let request = a.send_unexpected(&to_b, 7, &[2; 2000]);
    let asked = b.recv_unexpected();
    fake.release(1);
    assert!(sent(a.wait(lost[1])).is_err());
    fake.hold(false);
    sent(a.wait(request)).unwrap();
    assert_eq!(received(both(&a, &b, &b, asked)).0, 7);
    assert!(!a.has(answer), "{:?}", a.take(answer));
    // Errors of what is for the successor end all that is with it.
    fake.fail(Call::TaggedSend, libc::ECONNRESET as u32, 1);
    assert!(sent(a.wait(a.send_expected(&to_b, 3, &[1; 2000]))).is_err());
    assert!(matches!(
        sent(a.wait(answer)),
        Err(Error::PeerGone { .. } | Error::Unreachable { .. })
    ));
    let again = a.recv_expected(&to_b, 8);
    b.send_expected(&to_a, 8, b"here");
    assert_eq!(received(both(&a, &b, &a, again)).1, b"here");
}

/// libfabric sends what it has been given.
#[test]
fn a_canceled_message_that_leaves_all_the_same_was_sent() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let to_b = a.addr_of(&b);
    fake.hold(true);
    let leaves = a.send_unexpected(&to_b, 1, &[1; 2000]);
    fake.take(Some(0));
    let stays = a.send_unexpected(&to_b, 2, &[2; 2000]);
    for op in [leaves, stays] {
        a.endpoint.cancel(op);
    }
    match a.wait(leaves) {
        Completion::Send { buf, result, .. } => {
            result.unwrap();
            assert_eq!(buf.as_slice(), [1; 2000]);
        }
        other => panic!("not a send: {other:?}"),
    }
    assert!(matches!(sent(a.wait(stays)), Err(Error::Canceled)));
    fake.take(None);
    fake.hold(false);
    let requests = [b.recv_unexpected(), b.recv_unexpected()];
    assert_eq!(received(both(&a, &b, &b, requests[0])), (1, vec![1; 2000]));
    for _ in 0..10 {
        a.poll().unwrap();
        b.poll().unwrap();
    }
    assert!(!b.has(requests[1]), "what was canceled does not arrive");
}
