//! Short messages, which are copied in the call, and the errors that tell of lost ones.

use ofi_sys::raw;

use super::*;
use crate::fake::{Call, Device, Fake};

const CXI: &str = "ofi+cxi://cxi0";
const EFA: &str = "ofi+efa://";

/// One that does not want all memory registered, and has room for an address before a message.
fn plain_efa() -> Device {
    let device = Device::efa();
    let mr_mode = device.mr_mode & !raw::FI_MR_LOCAL;
    Device { mr_mode, takes_local: false, inject_bytes: 4096, ..device }
}

/// A call as the layer above makes it. What it ends with.
fn call(a: &Node, to: &Addr) -> Result<(), Error> {
    let op = a.op();
    let Err(buf) = a.endpoint.call_now(op, to, Tag(1), a.message(b"what?")) else {
        return sent(a.wait(op));
    };
    let answer = a.recv_expected(to, 1);
    if !a.endpoint.send_unexpected_now(to, Tag(1), buf.as_slice()) {
        a.endpoint.send_unexpected(op, to, Tag(1), buf).unwrap();
        let result = sent(a.wait(op));
        if result.is_err() {
            assert!(matches!(sent(a.wait(answer)), Err(Error::PeerGone { .. })));
            return result;
        }
    }
    sent(a.wait(answer))
}

/// No connection ends with the peer, and nothing else tells.
#[test]
fn a_short_call_to_a_peer_that_is_gone_ends() {
    for (device, uri, at_once) in
        [(Device::cxi(), CXI, true), (plain_efa(), EFA, true), (Device::efa(), EFA, false)]
    {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let recv = b.recv_unexpected();
        let (op, buf) = (a.op(), a.message(b"there?"));
        assert_eq!(a.endpoint.call_now(op, &to_b, Tag(1), buf).is_ok(), at_once, "{uri}");
        if at_once {
            assert_eq!(received(b.wait(recv)), (1, b"there?".to_vec()));
            b.send_expected(&b.addr_of(&a), 1, b"yes");
            assert_eq!(received(both(&a, &b, &a, op)), (1, b"yes".to_vec()));
        }
        drop(b);
        let error = call(&a, &to_b).unwrap_err();
        let is_told = matches!(&error, Error::PeerGone { peer, .. } if peer == to_b.uri());
        assert!(is_told && error.to_string().contains("the device says"), "{uri}: {error:?}");
        assert_eq!(fake.count(Call::Inject) + fake.count(Call::TaggedInject), 0, "{uri}");
    }
}

/// An error of a request ends its call, and no other one.
#[test]
fn an_error_of_a_short_request_ends_its_call_alone() {
    let fake = Fake::new(Device::cxi());
    let (a, b) = Node::pair(&fake, CXI);
    let to_b = a.addr_of(&b);
    let other = a.recv_expected(&to_b, 7);
    fake.fail_as(Call::Send, (libc::EIO, 9), 1);
    let error = call(&a, &to_b).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("the device says 9"), "{error}");
    b.send_expected(&b.addr_of(&a), 7, b"here");
    assert_eq!(received(both(&a, &b, &a, other)), (7, b"here".to_vec()));
    // A call that was given up is over, whatever becomes of its request.
    fake.hold(true);
    fake.fail_as(Call::Send, (libc::EIO, 9), 1);
    let op = a.op();
    a.endpoint.call_now(op, &to_b, Tag(1), a.message(b"never mind")).unwrap();
    a.endpoint.cancel(op);
    let next = a.recv_expected(&to_b, 1);
    fake.hold(false);
    assert!(matches!(sent(a.wait(op)), Err(Error::Canceled)));
    b.send_expected(&b.addr_of(&a), 1, b"late");
    assert_eq!(received(both(&a, &b, &a, next)), (1, b"late".to_vec()));
}

/// Operations that wait for a peer end, too, when an answer to the peer cannot be sent.
#[test]
fn a_short_answer_to_a_peer_that_is_gone_tells_that_it_is() {
    for (device, uri) in [(Device::cxi(), CXI), (plain_efa(), EFA)] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let waiting = a.recv_expected(&to_b, 7);
        drop(b);
        assert!(a.endpoint.send_expected_now(&to_b, Tag(1), b"answer"));
        assert!(matches!(sent(a.wait(waiting)), Err(Error::PeerGone { .. })), "{uri}");
        // From now on it is not known to be there.
        assert!(!a.endpoint.send_expected_now(&to_b, Tag(1), b"answer"));
    }
}

/// There is no receive that could end: the sender of a request without an answer hears of it.
#[test]
fn a_short_request_without_an_answer_has_an_end() {
    for (device, uri) in [(Device::cxi(), CXI), (plain_efa(), EFA), (Device::efa(), EFA)] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        assert!(!a.endpoint.send_unexpected_now(&to_b, Tag(1), b"notice"));
        drop(b);
        let error = sent(a.wait(a.send_unexpected(&to_b, 1, b"notice"))).unwrap_err();
        assert!(matches!(error, Error::PeerGone { .. }), "{uri}: {error:?}");
    }
}

/// Where connections end, or an error tells nobody, short messages have no completion.
#[test]
fn other_providers_inject() {
    for (device, uri) in [
        (Device::tcp(), "ofi+tcp://127.0.0.1:0"),
        (Device::verbs(), "ofi+verbs://127.0.0.1:0"),
        (Device { inject_bytes: 4096, ..Device::shm() }, "ofi+shm://"),
        (Device { inject_bytes: 64, ..Device::opx() }, "ofi+opx://"),
    ] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let before = fake.count(Call::Inject);
        let recv = b.recv_unexpected();
        let (op, buf) = (a.op(), a.message(b"there?"));
        a.endpoint.call_now(op, &to_b, Tag(1), buf).unwrap();
        assert_eq!(received(b.wait(recv)), (1, b"there?".to_vec()));
        assert!(b.endpoint.send_expected_now(&b.addr_of(&a), Tag(1), b"yes"));
        assert_eq!(received(a.wait(op)), (1, b"yes".to_vec()));
        assert!(a.endpoint.send_unexpected_now(&to_b, Tag(1), b"notice"));
        let injected = (fake.count(Call::Inject), fake.count(Call::TaggedInject));
        assert_eq!(injected, (before + 2, 1), "{uri}");
    }
}

/// The answer waits for the peer's acknowledgement, and nothing else shows there that it is gone.
#[test]
fn an_answer_that_waits_for_something_hears_that_its_origin_is_gone() {
    for (device, uri) in [
        (Device::tcp(), "ofi+tcp://127.0.0.1:0"),
        (Device::verbs(), "ofi+verbs://127.0.0.1:0"),
        (Device { inject_bytes: 4096, ..Device::shm() }, "ofi+shm://"),
        (Device::cxi(), CXI),
    ] {
        let fake = Fake::new(device);
        let (a, b) = Node::pair(&fake, uri);
        let to_b = a.addr_of(&b);
        let acknowledged = a.recv_expected(&to_b, 7);
        drop(b);
        let answered = a.send_expected(&to_b, 7, &[1; 112]);
        for op in [answered, acknowledged] {
            let error = sent(a.wait(op)).unwrap_err();
            assert!(matches!(error, Error::PeerGone { .. }), "{uri}: {error:?}");
        }
    }
}

/// Nothing is left of what was copied when its endpoint closes, or is not taken.
#[test]
fn what_was_copied_has_no_end_of_its_own() {
    let fake = Fake::new(Device::cxi());
    let (a, b) = Node::pair(&fake, CXI);
    let to_b = a.addr_of(&b);
    for errno in [raw::FI_EAGAIN, raw::FI_ENOSYS] {
        fake.refuse(Call::Send, errno, 1);
        fake.refuse(Call::TaggedSend, errno, 1);
        let buf = a.message(b"again");
        let buf = a.endpoint.call_now(a.op(), &to_b, Tag(1), buf).unwrap_err();
        assert_eq!(buf.as_slice(), b"again");
        assert!(!a.endpoint.send_expected_now(&to_b, Tag(1), b"again"));
    }
    fake.hold(true);
    let op = a.op();
    a.endpoint.call_now(op, &to_b, Tag(1), a.message(b"last")).unwrap();
    assert!(a.endpoint.send_expected_now(&to_b, Tag(1), b"words"));
    a.endpoint.close();
    assert!(matches!(sent(a.wait(op)), Err(Error::Closed)));
    assert_eq!(a.poll().unwrap(), 0);
}
