//! Cancel, death of the peer, refusals of the network, and close.

use super::net::{CancelHeld, Refuse};
use super::*;
use crate::core::rpc_core::GIVEN_UP_MAX;

#[test]
fn a_canceled_call_ends_once_and_its_response_is_dropped() {
    let (mut origin, mut target) = pair();
    let op = origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    origin.core.cancel(op);
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    answer(request, b"late", 2);
    settle(&mut origin, &mut target);
    assert!(origin.notes.responses.is_empty());
    origin.core.cancel(op);
    // The slot is used again; the late response and the old name do not touch the new call.
    let next = origin.call(&target, b"", 3);
    assert_ne!(op, next);
    origin.core.cancel(op);
    answer(arrive(&mut origin, &mut target), b"result", 4);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 3).unwrap(), b"result");
    assert_eq!(origin.core.in_flight(), 0);
}

#[test]
fn a_late_response_that_overflowed_is_acknowledged() {
    let (mut origin, mut target) = pair();
    let op = origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    origin.core.cancel(op);
    answer(request, &pattern(2000), 2);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    // It may free the result, which nobody has read.
    assert!(matches!(target.notes.responded[&2], Err(HgError::GivenUp)));
    assert_eq!((origin.endpoint.moves_started(), target.endpoint.registered()), (0, 0));
    assert_eq!(origin.endpoint.posted().1, 0);
}

#[test]
fn calls_that_were_given_up_do_not_pile_up() {
    let net = Net::default();
    given_up_up_to(&net, GIVEN_UP_MAX);
    // Half for these.
    net.set_idle_receives_max(80);
    given_up_up_to(&net, 40);
    net.set_idle_receives_max(0);
    given_up_up_to(&net, 1);
}

fn given_up_up_to(net: &Net, max: usize) {
    let new = || Side::new(net, HgOptions::default());
    let (mut origin, mut target) = (new(), new());
    let given_up = max as u32 + 500;
    for n in 0..given_up {
        let op = origin.call(&target, b"", n);
        origin.core.cancel(op);
    }
    settle(&mut origin, &mut target);
    assert_eq!(origin.notes.responses.len(), given_up as usize);
    assert_eq!(origin.endpoint.posted().1, max);
    assert_eq!(origin.core.in_flight(), 0);
    // Their late responses use the receives up.
    target.notes.requests.clear();
    settle(&mut origin, &mut target);
    assert_eq!(origin.endpoint.posted().1, 0);
}

#[test]
fn a_canceled_call_does_not_wait_for_a_hung_send() {
    let (mut origin, mut target) = pair();
    origin.endpoint.hold_sends(true);
    let op = origin.call(&target, b"", 1);
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    assert_eq!(origin.core.in_flight(), 0);
    origin.endpoint.hold_sends(false);
    settle(&mut origin, &mut target);
    assert_eq!(target.notes.requests.len(), 1, "it was half sent");
    assert!(origin.notes.responses.is_empty());
}

/// A send that leaves though it was canceled ends well: the late response is acknowledged, as its
/// result would be kept otherwise. For a message that was taken back there is none to wait for.
#[test]
fn a_canceled_call_waits_for_a_late_response_only_if_its_request_left() {
    for how in [CancelHeld::Leaves, CancelHeld::Stays] {
        for (long, asks_owners) in [(false, true), (true, true), (true, false)] {
            let (mut origin, mut target) = pair();
            if !asks_owners {
                origin.endpoint.asks_nobody();
            }
            origin.endpoint.hold_sends(true);
            origin.endpoint.cancel_held(how);
            let arguments = if long { pattern(2000) } else { Vec::new() };
            let op = origin.call(&target, &arguments, 1);
            origin.core.cancel(op);
            settle(&mut origin, &mut target);
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
            let left = usize::from(how == CancelHeld::Leaves);
            let stay = if long && !asks_owners { left } else { 0 };
            assert_eq!((origin.endpoint.posted().1, origin.endpoint.registered()), (left, stay));
            origin.endpoint.hold_sends(false);
            settle(&mut origin, &mut target);
            // Arguments that were revoked cannot be fetched.
            let arrives = left == 1 && !(long && asks_owners);
            assert_eq!(target.notes.requests.len(), usize::from(arrives));
            if arrives {
                answer(target.notes.requests.remove(0), &pattern(2000), 2);
                settle(&mut origin, &mut target);
                assert!(matches!(target.notes.responded[&2], Err(HgError::GivenUp)));
                assert_eq!(target.endpoint.registered(), 0);
            }
            assert_eq!((origin.endpoint.posted().1, origin.endpoint.registered()), (0, 0));
            assert_eq!(origin.core.in_flight(), 0);
        }
    }
}

#[test]
fn a_canceled_call_to_oneself_ends_at_once() {
    let net = Net::default();
    let mut own = Side::new(&net, HgOptions::default());
    let me = own.core.self_addr();
    let op = own.core.forward(&me, SUM, ForwardOptions::default(), |_| Ok(()), 1).unwrap();
    own.step();
    own.core.cancel(op);
    own.step();
    assert!(matches!(ended(&mut own, 1), Err(HgError::Canceled)));
    answer_oneself(own.notes.requests.remove(0), b"late");
    own.step();
    assert!(own.notes.responses.is_empty());
    assert_eq!(own.core.in_flight(), 0);
}

#[test]
fn a_dying_peer_ends_its_calls() {
    let (mut origin, mut target) = pair();
    for n in 0..3 {
        origin.call(&target, b"", n);
    }
    settle(&mut origin, &mut target);
    target.endpoint.kill();
    while origin.step() > 0 {}
    for n in 0..3 {
        let error = ended(&mut origin, n).unwrap_err();
        assert!(matches!(error, HgError::Na(na::Error::PeerGone { .. })), "{error}");
    }
    // Afterwards, too.
    origin.call(&target, b"", 9);
    while origin.step() > 0 {}
    assert!(matches!(ended(&mut origin, 9), Err(HgError::Na(na::Error::PeerGone { .. }))));
    assert_eq!(origin.core.in_flight(), 0);
}

#[test]
fn a_dying_origin_ends_the_answer() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"", 1);
    origin.call(&target, b"", 2);
    let short = arrive(&mut origin, &mut target);
    let long = arrive(&mut origin, &mut target);
    answer(long, &pattern(2000), 10);
    target.step();
    origin.endpoint.kill();
    answer(short, b"result", 11);
    while target.step() > 0 {}
    for token in [10, 11] {
        let result = &target.notes.responded[&token];
        assert!(matches!(result, Err(HgError::Na(na::Error::PeerGone { .. }))), "{result:?}");
    }
    assert_eq!((target.core.in_flight(), target.endpoint.registered()), (0, 0));
}

#[test]
fn what_the_network_refuses_gives_the_token_back() {
    let (mut origin, mut target) = pair();
    let to = origin.addr_of(&target);
    for (round, refuse) in [(0, Refuse::Receive), (1, Refuse::Send)] {
        origin.endpoint.refuse(refuse);
        let refused = origin.core.forward(&to, SUM, ForwardOptions::default(), |_| Ok(()), round);
        let (error, token) = *refused.unwrap_err();
        assert!(matches!(error, HgError::Na(na::Error::InvalidArgument(_))), "{error}");
        assert_eq!(token, round);
        assert_eq!(origin.core.in_flight(), 0);
    }
    settle(&mut origin, &mut target);
    assert!(origin.notes.responses.is_empty(), "the token is back already");
    assert_eq!(origin.endpoint.posted().1, 0, "no receive is left behind");
    // Answers, short and long.
    for (refuse, payload) in [(Refuse::Send, 10), (Refuse::Send, 2000), (Refuse::Receive, 2000)] {
        origin.call(&target, b"", 20);
        let request = arrive(&mut origin, &mut target);
        target.endpoint.refuse(refuse);
        let bytes = pattern(payload);
        let refused = request.respond(|writer| writer.put(&bytes), 21);
        assert!(matches!(*refused.unwrap_err(), (HgError::Na(_), None)));
        settle(&mut origin, &mut target);
        let error = ended(&mut origin, 20).unwrap_err();
        assert!(matches!(error, HgError::Remote(ReturnCode::OtherError)), "told: {error}");
        assert_eq!(origin.core.in_flight(), 0);
        assert_eq!((target.core.in_flight(), target.endpoint.registered()), (0, 0));
        assert!(target.notes.responded.is_empty());
        assert_eq!(target.endpoint.posted().1, 0);
    }
}

#[test]
fn close_gives_every_token_back() {
    let (mut origin, mut target) = pair();
    let me = origin.core.self_addr();
    let memory = origin.expose(vec![0; 100], Access::ReadWrite);
    let remote = target.core.bulk_handle(&target.expose(vec![0; 100], Access::ReadWrite));
    let to = origin.addr_of(&target);

    origin.call(&target, b"", 1);
    origin.call(&target, &pattern(2000), 2);
    origin.core.forward(&me, SUM, ForwardOptions::default(), |_| Ok(()), 3).unwrap();
    settle(&mut origin, &mut target);
    let to_ourselves = origin.notes.requests.remove(0);
    origin.endpoint.freeze_moves(true);
    let pull = crate::BulkOp::Pull;
    // The memory above is gone, but that the owner would notice only now.
    origin.core.transfer(pull, &to, &remote, 0, &memory, 0, 100, 4).unwrap();
    assert_eq!(origin.core.in_flight(), 4);

    origin.core.close();
    origin.core.close();
    while origin.step() > 0 {}
    for token in 1..=3 {
        assert!(matches!(ended(&mut origin, token), Err(HgError::Closed)), "call {token}");
    }
    assert!(matches!(origin.notes.bulks[&4], Err(HgError::Closed)));
    assert_eq!(origin.core.in_flight(), 0);

    // Nothing starts any more.
    for address in [&to, &me] {
        let refused = origin.core.forward(address, SUM, ForwardOptions::default(), |_| Ok(()), 5);
        assert!(matches!(*refused.unwrap_err(), (HgError::Closed, 5)));
    }
    let refused = origin.core.transfer(pull, &to, &remote, 0, &memory, 0, 0, 6);
    assert!(matches!(*refused.unwrap_err(), (HgError::Closed, 6)));
    // What was in somebody's hands can be dropped or answered, to no effect.
    answer_oneself(to_ourselves, b"late");
    while origin.step() > 0 {}
    assert!(origin.notes.responses.is_empty());

    // The peer is told.
    drop(std::mem::take(&mut target.notes.requests));
    while target.step() > 0 {}
    assert_eq!(target.core.in_flight(), 0);
}
