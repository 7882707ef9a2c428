//! Devices that take nothing for a while, or little.

use ofi_sys::raw;

use super::*;
use crate::fake::{Call, Device, Fake};

const URI: &str = "ofi+tcp://127.0.0.1:0";

/// Short and long messages of both kinds, and transfers between them.
#[test]
fn nothing_is_lost_and_order_is_kept_when_nothing_is_taken_for_a_while() {
    for (fake, uri) in [
        (Fake::new(Device::tcp()), URI),
        (single(Device::tcp()), URI),
        (Fake::new(Device::efa()), "ofi+efa://"),
    ] {
        let (a, b) = Node::pair(&fake, uri);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        let remote = b.register(vec![9; 64], Access::ReadOnly);
        for call in [
            Call::Send,
            Call::Inject,
            Call::TaggedSend,
            Call::TaggedInject,
            Call::Recv,
            Call::TaggedRecv,
            Call::Read,
        ] {
            fake.refuse(call, raw::FI_EAGAIN, 30);
        }
        let requests: Vec<_> = (0..40).map(|_| b.recv_unexpected()).collect();
        let answers: Vec<_> = (0..40).map(|_| b.recv_expected(&to_a, 7)).collect();
        let local = a.register(vec![0; 64], Access::ReadWrite);
        let mut ops = Vec::new();
        for number in 0..40u8 {
            let bytes = vec![number; if number % 3 == 0 { 2000 } else { 10 }];
            ops.push(a.send_unexpected(&to_b, number.into(), &bytes));
            ops.push(a.send_expected(&to_b, 7, &bytes));
            if number % 10 == 0 {
                let (local, remote) = (local.clone(), a.told(&b, &remote));
                let (local_offset, remote_offset, len) = (0, 0, 64);
                let transfer = Transfer { local, local_offset, remote, remote_offset, len };
                ops.push(a.transfer(false, &to_b, transfer));
            }
        }
        for op in ops {
            sent(both(&a, &b, &a, op)).unwrap();
        }
        for number in 0..40u8 {
            let bytes = vec![number; if number % 3 == 0 { 2000 } else { 10 }];
            let request = received(both(&a, &b, &b, requests[usize::from(number)]));
            assert_eq!(request, (number.into(), bytes.clone()));
            let answer = received(both(&a, &b, &b, answers[usize::from(number)]));
            assert_eq!(answer, (7, bytes));
        }
        let mut bytes = [0; 64];
        assert!(local.read_at(0, &mut bytes) && bytes == [9; 64]);
    }
}

/// A device takes no more than it can report (`FI_RM_ENABLED`), however few entries its completion
/// queue has: what is not taken waits.
#[test]
fn a_short_completion_queue_loses_nothing() {
    for (device, uri) in [(Device::tcp(), URI), (Device::efa(), "ofi+efa://")] {
        let fake = Fake::new(Device { cq_entries: 8, inject_bytes: 0, ..device });
        let (a, b) = Node::pair(&fake, uri);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        let remote = b.register(vec![9; 64], Access::ReadOnly);
        let local = a.register(vec![0; 64], Access::ReadWrite);
        let requests: Vec<_> = (0..40).map(|_| b.recv_unexpected()).collect();
        let answers: Vec<_> = (0..40).map(|_| b.recv_expected(&to_a, 7)).collect();
        fake.hold(true);
        let mut ops = Vec::new();
        for number in 0..40u8 {
            ops.push(a.send_unexpected(&to_b, number.into(), &[number; 300]));
            ops.push(a.send_expected(&to_b, 7, &[number; 300]));
            let (local, remote) = (local.clone(), a.told(&b, &remote));
            let (local_offset, remote_offset, len) = (0, 0, 64);
            let transfer = Transfer { local, local_offset, remote, remote_offset, len };
            ops.push(a.transfer(false, &to_b, transfer));
        }
        fake.hold(false);
        for op in ops {
            sent(both(&a, &b, &a, op)).unwrap();
        }
        for number in 0..40u8 {
            let request = received(both(&a, &b, &b, requests[usize::from(number)]));
            assert_eq!(request, (number.into(), vec![number; 300]));
            let answer = received(both(&a, &b, &b, answers[usize::from(number)]));
            assert_eq!(answer, (7, vec![number; 300]));
        }
    }
}

/// A device that has no room says so whomever a message is for: each peer gets its part of what
/// there is.
#[test]
fn peers_share_the_little_that_a_device_takes() {
    const ROUNDS: usize = 10;
    for (device, uri) in [(Device::cxi(), "ofi+cxi://cxi0"), (Device::efa(), "ofi+efa://")] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let c = Node::open(&fake, uri);
        for first in [&b, &c] {
            let second = if std::ptr::eq(first, &b) { &c } else { &b };
            for room in [1, 3] {
                fake.take(Some(0));
                let ops = [first, second].map(|to| {
                    let to = a.addr_of(to);
                    let ops = (0..40u8).map(|number| a.send_expected(&to, 7, &[number; 300]));
                    ops.collect::<Vec<_>>()
                });
                for _ in 0..ROUNDS {
                    fake.take(Some(room));
                    a.poll().unwrap();
                }
                // What was taken last is over.
                a.poll().unwrap();
                let served = ops.each_ref().map(|ops| ops.iter().filter(|op| a.has(**op)).count());
                let (all, half) = (ROUNDS * room, ROUNDS * room / 2);
                assert_eq!((served[0], served[1]), (half, all - half), "{uri}");
                fake.take(None);
                ops.into_iter().flatten().for_each(|op| sent(a.wait(op)).unwrap());
            }
        }
    }
}

/// As while RxM connects to it, "not now" may be said of one peer alone.
#[test]
fn a_peer_that_takes_nothing_holds_up_no_other() {
    // More than the device keeps for one that does not look.
    const COUNT: usize = 600;
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let c = Node::open(&fake, URI);
    let (to_b, to_c) = (a.addr_of(&b), a.addr_of(&c));
    let to_slow: Vec<_> = (0..COUNT).map(|_| a.send_expected(&to_b, 7, &[1; 300])).collect();
    fake.take(Some(0));
    let to_other: Vec<_> = (0..3).map(|_| a.send_expected(&to_c, 7, &[2; 300])).collect();
    fake.take(None);
    for _ in 0..COUNT {
        a.poll().unwrap();
    }
    assert!(to_other.iter().all(|op| a.has(*op)));
    assert!(to_slow.iter().any(|op| !a.has(*op)), "it takes all");
    let to_a = b.addr_of(&a);
    let receives: Vec<_> = (0..COUNT).map(|_| b.recv_expected(&to_a, 7)).collect();
    for op in to_slow {
        sent(both(&a, &b, &a, op)).unwrap();
    }
    for op in receives {
        assert_eq!(received(both(&a, &b, &b, op)).1, [1; 300]);
    }
}

#[test]
fn a_refused_injection_is_an_ordinary_message() {
    for errno in [raw::FI_EAGAIN, raw::FI_EINVAL, raw::FI_ENOSYS] {
        let fake = Fake::new(Device::tcp());
        let (a, b) = Node::pair(&fake, URI);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        fake.refuse(Call::Inject, errno, usize::MAX);
        fake.refuse(Call::TaggedInject, errno, usize::MAX);
        let recv = b.recv_unexpected();
        assert!(!a.endpoint.send_unexpected_now(&to_b, Tag(3), b"short"));
        a.send_unexpected(&to_b, 3, b"short");
        assert_eq!(received(both(&a, &b, &b, recv)), (3, b"short".to_vec()));
        let recv = b.recv_expected(&to_a, 4);
        a.send_expected(&to_b, 4, b"");
        assert_eq!(received(both(&a, &b, &b, recv)), (4, Vec::new()));
    }
}

#[test]
fn devices_that_inject_nothing_are_not_asked_to() {
    let fake = Fake::new(Device { inject_bytes: 0, ..Device::tcp() });
    let (a, b) = Node::pair(&fake, URI);
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    assert!(!a.endpoint.send_expected_now(&to_b, Tag(1), b""));
    for message in [&b""[..], b"x", &[7; 4000]] {
        let recv = b.recv_expected(&to_a, 1);
        sent(both(&a, &b, &a, a.send_expected(&to_b, 1, message))).unwrap();
        assert_eq!(received(both(&a, &b, &b, recv)).1, message);
    }
    assert_eq!(fake.count(Call::Inject) + fake.count(Call::TaggedInject), 0);
}

/// With the address before it, a request has two parts.
#[test]
fn devices_that_take_one_piece_get_one() {
    for iov_limit in [1, 2] {
        let fake = Fake::new(Device { iov_limit, inject_bytes: 0, ..Device::tcp() });
        let (a, b) = Node::pair(&fake, URI);
        let to_b = a.addr_of(&b);
        for message in [&b""[..], b"x", &[7; 4000]] {
            let recv = b.recv_unexpected();
            sent(both(&a, &b, &a, a.send_unexpected(&to_b, 1, message))).unwrap();
            assert_eq!(received(both(&a, &b, &b, recv)).1, message);
        }
    }
}

#[test]
fn an_endpoint_opens_when_the_device_takes_buffers() {
    let fake = Fake::new(Device::tcp());
    fake.refuse(Call::Recv, raw::FI_EAGAIN, 20);
    let (a, b) = Node::pair(&fake, URI);
    drop((a, b));
    fake.refuse(Call::Recv, raw::FI_EAGAIN, usize::MAX);
    let error = fake.open(URI).unwrap_err();
    assert!(error.to_string().contains("takes no buffer for requests"), "{error}");
    fake.refuse(Call::Recv, raw::FI_EINVAL, 1);
    let error = fake.open(URI).unwrap_err();
    assert!(error.to_string().contains("refuses a buffer for requests"), "{error}");
}

/// One buffer for each message, and fewer receives than there would be buffers.
#[test]
fn devices_that_take_few_receives_let_an_idle_endpoint_sleep() {
    for receives in [2, 8, 300] {
        let fake = single(Device { receives, ..Device::tcp() });
        let (a, b) = Node::pair(&fake, URI);
        // The others are for those for whom something comes.
        assert_eq!(a.endpoint.idle_receives_max(), receives / 4);
        let to_b = a.addr_of(&b);
        let wanted: Vec<_> = (0..100).map(|_| b.recv_unexpected()).collect();
        let sends: Vec<_> = (0..100).map(|n| a.send_unexpected(&to_b, n, &[n as u8; 9])).collect();
        for (number, op) in wanted.into_iter().enumerate() {
            assert_eq!(received(both(&a, &b, &b, op)).0, number as u32);
        }
        for op in sends {
            sent(both(&a, &b, &a, op)).unwrap();
        }
        // The last buffer is posted again by the poll after the one that has emptied it.
        assert_eq!(b.poll().unwrap(), 0);
        // As if others had taken the room.
        fake.refuse(Call::Recv, raw::FI_EAGAIN, usize::MAX);
        let recv = b.recv_unexpected();
        a.send_unexpected(&to_b, 1, b"one buffer less");
        received(both(&a, &b, &b, recv));
        for node in [&a, &b] {
            while node.poll().unwrap() > 0 {}
            let may_sleep = node.endpoint.prepare_wait();
            // With none of its buffers at the device nothing would wake it.
            assert_eq!(may_sleep, receives > 2 || std::ptr::eq(node, &raw const a), "{receives}");
        }
    }
}

/// However much happens until it runs.
#[test]
fn a_sleeper_is_woken_once() {
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let to_b = a.addr_of(&b);
    for sends in [32, 1, 2] {
        while a.poll().unwrap() > 0 {}
        assert!(a.endpoint.prepare_wait());
        assert_eq!(a.endpoint.rings(), 0, "it would not sleep");
        for tag in 0..sends {
            a.send_expected(&to_b, tag, &[7; 2000]);
        }
        assert_eq!(a.endpoint.rings(), 1);
    }
    // What was rung, and not looked at, is over with the next poll.
    while a.poll().unwrap() > 0 {}
    assert!(a.endpoint.prepare_wait());
    a.send_expected(&to_b, 1, &[7; 2000]);
    while a.poll().unwrap() > 0 {}
    assert_eq!(a.endpoint.rings(), 0);
}

#[test]
fn an_endpoint_without_a_wait_descriptor_is_polled() {
    let without = Fake::new(Device { wait_fd: false, ..Device::tcp() });
    let refused = Fake::new(Device::tcp());
    refused.refuse(Call::GetWait, raw::FI_ENOSYS, usize::MAX);
    for fake in [without, refused] {
        let (a, _b) = Node::pair(&fake, URI);
        assert!(a.endpoint.wait_fd().is_none() && !a.endpoint.prepare_wait());
    }
}
