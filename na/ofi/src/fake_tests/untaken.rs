//! Messages that wait for a peer that takes nothing.

use super::*;
use crate::Ofi;
use crate::fake::{Call, Device, Fake};
use crate::state::{bounds::UNTOLD_MAX, peers::Peer};
use na_core::{Plugin, Uri};

const URI: &str = "ofi+tcp://127.0.0.1:0";

/// Messages to one peer that nobody waits for, of a device with room for 1024.
const LOOSE: usize = 128;

/// libfabric has no way to take a message back from a peer that takes none, and some providers keep
/// it in room that is all peers'.
#[test]
fn messages_that_were_given_up_do_not_pile_up_at_the_device() {
    const COUNT: usize = 3 * LOOSE;
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let c = Node::open(&fake, URI);
    let (to_b, to_c) = (a.addr_of(&b), a.addr_of(&c));
    fake.hold(true);
    let before = fake.count(Call::TaggedSend);
    let sends: Vec<_> = (0..COUNT).map(|n| a.send_expected(&to_b, n as u32, &[1; 300])).collect();
    let first = fake.count(Call::TaggedSend) - before;
    assert_eq!(first, COUNT, "who waits for them has them sent");
    for op in &sends {
        a.endpoint.cancel(*op);
        a.poll().unwrap();
        sent(a.take(*op)).unwrap();
    }
    // From now on they wait here, and can be taken back.
    let before = fake.count(Call::TaggedSend);
    for n in 0..COUNT {
        let op = a.send_expected(&to_b, n as u32, &[1; 300]);
        a.endpoint.cancel(op);
        a.poll().unwrap();
        assert!(matches!(sent(a.take(op)), Err(Error::Canceled)));
    }
    let waits = a.send_expected(&to_b, 7, b"last");
    a.poll().unwrap();
    assert_eq!(fake.count(Call::TaggedSend), before);
    assert!(!a.endpoint.prepare_wait(), "nothing would wake it to give up what waits too long");
    // Others are served.
    let recv = c.recv_expected(&c.addr_of(&a), 1);
    a.send_expected(&to_c, 1, b"to another one");
    assert_eq!(fake.count(Call::TaggedSend), before + 1);
    fake.hold(false);
    assert_eq!(received(both(&a, &c, &c, recv)).1, b"to another one");
    sent(both(&a, &b, &a, waits)).unwrap();
    for n in 0..COUNT {
        let recv = b.recv_expected(&b.addr_of(&a), n as u32);
        let bytes = received(both(&a, &b, &b, recv)).1;
        assert_eq!(bytes, [1; 300]);
    }
    let recv = b.recv_expected(&b.addr_of(&a), 7);
    assert_eq!(received(both(&a, &b, &b, recv)).1, b"last");
}

#[test]
fn short_messages_that_nobody_waits_for_do_not_pile_up_at_the_device() {
    let fake = Fake::new(Device::cxi());
    let (a, b) = Node::pair(&fake, "ofi+cxi://cxi0");
    let to_b = a.addr_of(&b);
    fake.hold(true);
    let taken = (0..2 * LOOSE).filter(|_| a.endpoint.send_expected_now(&to_b, Tag(1), b"short"));
    assert_eq!(taken.count(), LOOSE);
    fake.hold(false);
    while a.poll().unwrap() > 0 {}
    assert!(a.endpoint.send_expected_now(&to_b, Tag(1), b"short"), "there is room again");
}

/// Those that were copied at once, and of whose end libfabric does not tell.
#[test]
fn short_messages_without_an_end_do_not_pile_up_at_the_device() {
    for (device, uri) in [
        (Device::tcp(), URI),
        (Device { inject_bytes: 4096, ..Device::shm() }, "ofi+shm://"),
        (Device { inject_bytes: 64, ..Device::opx() }, "ofi+opx://"),
    ] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
        for _ in 0..2 {
            // It keeps fewer for who does not want them.
            let wanted: Vec<_> = (0..UNTOLD_MAX).map(|_| b.recv_expected(&to_a, 1)).collect();
            fake.hold(true);
            let short = |_: &u32| a.endpoint.send_expected_now(&to_b, Tag(1), b"short");
            assert_eq!((0..2 * UNTOLD_MAX).filter(short).count() as u32, UNTOLD_MAX);
            let (op, buf) = (a.op(), a.message(b"request"));
            assert!(a.endpoint.call_now(op, &to_b, Tag(1), buf).is_err(), "{uri}");
            // The next one goes as others do, and tells of those before it.
            let told = a.send_expected(&to_b, 2, b"told");
            fake.hold(false);
            sent(both(&a, &b, &a, told)).unwrap();
            for recv in wanted {
                assert_eq!(received(both(&a, &b, &b, recv)).1, b"short");
            }
            let recv = b.recv_expected(&to_a, 2);
            assert_eq!(received(both(&a, &b, &b, recv)).1, b"told");
        }
        assert!(a.endpoint.send_expected_now(&to_b, Tag(1), b"short"));
    }
}

/// When several peers take no answers, the peer for which most waits gives way.
#[test]
fn answers_that_all_peers_leave_are_bounded_together() {
    const MAX: usize = 4 << 20;
    let fake = Fake::new(Device::tcp());
    let mut options = OpenOptions::default();
    options.unread_answers_total_max = Some(MAX);
    let (a, b) = Node::pair_with(&fake, URI, &options);
    let c = Node::open_with(&fake, URI, &options);
    let (to_b, to_c) = (a.addr_of(&b), a.addr_of(&c));
    let load = |to: &Addr| to.state::<Peer>().unwrap().load.answers().1;
    fake.hold(true);
    let few: Vec<_> = (0..10).map(|_| a.send_expected(&to_c, 7, b"few")).collect();
    let error = loop {
        let op = a.send_expected(&to_b, 7, &[1; 300]);
        while a.poll().unwrap() > 0 {}
        assert!(load(&to_b) + load(&to_c) <= MAX);
        if a.has(op) {
            break sent(a.take(op)).unwrap_err();
        }
    };
    assert!(error.to_string().contains("most of all peers"), "{error:?}");
    assert!(load(&to_c) > 0 && !few.iter().any(|op| a.has(*op)), "the other waits on");
    fake.hold(false);
    let to_a = c.addr_of(&a);
    for op in few {
        let recv = c.recv_expected(&to_a, 7);
        assert_eq!(received(both(&a, &c, &c, recv)).1, b"few");
        sent(both(&a, &c, &a, op)).unwrap();
    }
}

/// An origin that asks on, and reads none.
#[test]
fn answers_that_are_not_taken_are_bounded() {
    const MAX: usize = 1 << 20;
    let fake = Fake::new(Device::tcp());
    let mut options = OpenOptions::default();
    options.unread_answers_max = Some(MAX);
    let (a, b) = Node::pair_with(&fake, URI, &options);
    let to_b = a.addr_of(&b);
    let load = || to_b.state::<Peer>().unwrap().load.answers();
    let of_one = a.endpoint.alloc_msg().capacity() + 1024;
    fake.hold(true);
    let before = fake.count(Call::TaggedSend);
    let mut sends = Vec::new();
    for round in 0..3 {
        let error = loop {
            let op = a.send_expected(&to_b, 7, &[1; 300]);
            while a.poll().unwrap() > 0 {}
            assert!(load().1 <= MAX && load().0 <= MAX / 2 + of_one, "{:?}", load());
            if a.has(op) {
                break sent(a.take(op)).unwrap_err();
            }
            sends.push(op);
        };
        // Since it was given up, nothing has reached it.
        let is_right = match round {
            0 => matches!(error, Error::PeerGone { .. }),
            _ => matches!(error, Error::Unreachable { .. }),
        };
        assert!(is_right && error.to_string().contains("it takes no answers"), "{error:?}");
        // All that the device was not given.
        let (waited, handed): (Vec<_>, _) = sends.into_iter().partition(|op| a.has(*op));
        assert!(waited.len() > MAX / 4 / of_one, "{}", waited.len());
        assert_eq!(handed.len(), fake.count(Call::TaggedSend) - before);
        waited.into_iter().for_each(|op| assert!(sent(a.take(op)).is_err()));
        sends = handed;
    }
    fake.hold(false);
    let to_a = b.addr_of(&a);
    for op in sends {
        let recv = b.recv_expected(&to_a, 7);
        assert_eq!(received(both(&a, &b, &b, recv)).1, [1; 300]);
        sent(both(&a, &b, &a, op)).unwrap();
    }
    assert_eq!(load(), (0, 0));
    let (recv, send) = (b.recv_expected(&to_a, 7), a.send_expected(&to_b, 7, b"next"));
    assert_eq!(received(both(&a, &b, &b, recv)).1, b"next");
    sent(both(&a, &b, &a, send)).unwrap();
}

#[test]
fn a_peer_that_takes_its_answers_late_gets_all() {
    const COUNT: u32 = 200;
    let fake = Fake::new(Device::tcp());
    let bytes = OpenOptions::default().message_bytes_max + 1024;
    let bound = Some(COUNT as usize * bytes);
    let mut options = OpenOptions::default();
    options.unread_answers_max = bound;
    let (a, b) = Node::pair_with(&fake, URI, &options);
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    fake.hold(true);
    let before = fake.count(Call::TaggedSend);
    let sends: Vec<_> = (0..COUNT).map(|n| a.send_expected(&to_b, n, &[1; 3000])).collect();
    let handed = fake.count(Call::TaggedSend) - before;
    assert!((1..COUNT as usize).contains(&handed), "{handed}");
    // One of those that wait here is taken back.
    let waits = a.send_expected(&to_b, COUNT, b"");
    a.endpoint.cancel(waits);
    assert!(matches!(sent(a.wait(waits)), Err(Error::Canceled)));
    fake.hold(false);
    for (n, op) in sends.into_iter().enumerate() {
        let recv = b.recv_expected(&to_a, n as u32);
        assert_eq!(received(both(&a, &b, &b, recv)).1, [1; 3000]);
        sent(both(&a, &b, &a, op)).unwrap();
    }
    assert_eq!(to_b.state::<Peer>().unwrap().load.answers(), (0, 0));
}

#[test]
fn a_bound_that_lets_nobody_be_answered_is_refused() {
    let mut options = OpenOptions::default();
    options.unread_answers_max = Some(0);
    let error = Ofi.check(&Uri::parse(URI).unwrap(), &options).unwrap_err();
    let named = matches!(error, Error::BadOption { option: "unread_answers_max", .. });
    assert!(named, "{error}");
}

/// As when a server hangs, and all calls to it reach their deadline at once.
#[test]
fn many_that_are_canceled_do_not_look_through_each_other() {
    const COUNT: u32 = 200;
    let fake = Fake::new(Device::tcp());
    let (a, b) = Node::pair(&fake, URI);
    let (to_b, to_a) = (a.addr_of(&b), b.addr_of(&a));
    assert_eq!(a.endpoint.lookups(), (0, false));
    for round in 1..=2 {
        let calls: Vec<_> = (0..COUNT).map(|tag| a.recv_expected(&to_b, tag)).collect();
        let stays = a.recv_expected(&to_b, COUNT);
        for op in &calls {
            a.endpoint.cancel(*op);
            // It is over.
            a.endpoint.cancel(*op);
        }
        calls.iter().for_each(|op| assert!(matches!(sent(a.wait(*op)), Err(Error::Canceled))));
        // Their answers come all the same, and one is for a receive that has the same tag.
        let again = a.recv_expected(&to_b, COUNT - 1);
        for tag in 0..=COUNT {
            sent(both(&a, &b, &b, b.send_expected(&to_a, tag, &[round; 9]))).unwrap();
        }
        for op in [stays, again] {
            assert_eq!(received(both(&a, &b, &a, op)).1, [round; 9]);
        }
        // For cancels, and for answers that come late.
        assert_eq!(a.endpoint.lookups(), (2 * usize::from(round), true));
        // Nothing is kept when nothing is canceled any more.
        for tag in 0..2 * COUNT + 1100 {
            let op = a.recv_expected(&to_b, tag);
            b.send_expected(&to_a, tag, b"x");
            assert_eq!(received(both(&a, &b, &a, op)).1, b"x");
        }
        assert_eq!(a.endpoint.lookups(), (2 * usize::from(round), false));
    }
}
