//! Long payloads for a peer that often gets some: memory that stays registered.

use super::*;
use crate::memory::slots::{MISSES, SLOT_BYTES};

/// Origin and targets; the memory of all is copied by peers.
fn sides(targets: usize) -> (Side, Vec<Side>) {
    let net = Net::default();
    let side = |_| {
        let side = Side::new(&net, HgOptions::default());
        side.endpoint.direct();
        side
    };
    (side(0), (0..targets).map(side).collect())
}

fn payload(token: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 * 7 + token) as u8).collect()
}

/// A call whose arguments and result have `there` and `back` bytes.
fn exchange(origin: &mut Side, target: &mut Side, token: u32, there: usize, back: usize) {
    origin.call(target, &payload(token, there), token);
    let request = arrive(origin, target);
    assert_eq!(request.payload(), payload(token, there));
    answer(request, &payload(token + 1, back), token);
    settle(origin, target);
    assert_eq!(ended(origin, token).unwrap(), payload(token + 1, back));
    target.notes.responded.remove(&token).unwrap().unwrap();
}

fn make_slot(origin: &mut Side, target: &mut Side) {
    (0..MISSES).for_each(|token| exchange(origin, target, token, 2000, 0));
    assert_eq!(origin.endpoint.registered(), 1, "kept for the next payload");
}

#[test]
fn long_arguments_and_results_use_their_slots_again() {
    let (mut origin, mut targets) = sides(1);
    let target = &mut targets[0];
    for token in 0..MISSES - 1 {
        exchange(&mut origin, target, token, 2000, 3000);
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
    }
    for (token, len) in [SLOT_BYTES, 2000, SLOT_BYTES - 1, 5000, 2001].into_iter().enumerate() {
        exchange(&mut origin, target, 100 + token as u32, len, SLOT_BYTES + 2000 - len);
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (1, 1));
    }
    // What is too long for a slot does not touch it.
    exchange(&mut origin, target, 200, SLOT_BYTES + 1, 100_000);
    assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (1, 1));
}

#[test]
fn one_way_arguments_leave_their_slot_when_they_are_acknowledged() {
    let (mut origin, mut targets) = sides(1);
    let target = &mut targets[0];
    make_slot(&mut origin, target);
    for token in 100..103 {
        origin.call_with(target, ForwardOptions::one_way(), &payload(token, 2000), token);
        let request = arrive(&mut origin, target);
        assert_eq!(request.payload(), payload(token, 2000));
        drop(request);
        settle(&mut origin, target);
        assert_eq!(ended(&mut origin, token).unwrap(), b"");
        assert_eq!(origin.endpoint.registered(), 1);
    }
}

#[test]
fn nothing_is_kept_where_peers_do_not_copy() {
    let (mut origin, mut target) = pair();
    (0..3 * MISSES).for_each(|token| exchange(&mut origin, &mut target, token, 2000, 2000));
    assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
}

#[test]
fn payloads_in_flight_together_lie_apart() {
    let (mut origin, mut targets) = sides(1);
    let target = &mut targets[0];
    // Enough for as many slots as a peer can have, and then some.
    for round in 0..3 * MISSES {
        let tokens = 100 * round..100 * round + 24;
        for token in tokens.clone() {
            origin.call(target, &payload(token, 2000), token);
        }
        for token in tokens.clone() {
            let request = arrive(&mut origin, target);
            assert_eq!(request.payload(), payload(token, 2000));
            answer(request, b"", token);
        }
        settle(&mut origin, target);
        tokens.for_each(|token| assert_eq!(ended(&mut origin, token).unwrap(), b""));
        target.notes.responded.clear();
    }
    assert_eq!(origin.endpoint.registered(), 16);
}

#[test]
fn a_slot_is_for_one_peer() {
    let (mut origin, mut targets) = sides(2);
    make_slot(&mut origin, &mut targets[0]);
    exchange(&mut origin, &mut targets[1], 100, 2000, 0);
    assert_eq!(origin.endpoint.registered(), 1, "the other peer has none yet");
    (200..200 + MISSES).for_each(|token| exchange(&mut origin, &mut targets[1], token, 2000, 0));
    assert_eq!(origin.endpoint.registered(), 2);
}

#[test]
fn a_slot_of_a_canceled_call_is_never_used_again() {
    let (mut origin, mut targets) = sides(1);
    let target = &mut targets[0];
    make_slot(&mut origin, target);
    target.endpoint.freeze_moves(true);
    let op = origin.call(target, &payload(100, 2000), 100);
    settle(&mut origin, target);
    assert_eq!(origin.endpoint.registered(), 1);
    origin.core.cancel(op);
    settle(&mut origin, target);
    assert!(matches!(ended(&mut origin, 100), Err(HgError::Canceled)));
    assert_eq!(origin.endpoint.registered(), 0, "its target may be copying");
    // The next payload is nowhere where the late fetch could find it.
    origin.call(target, &payload(101, 2000), 101);
    target.endpoint.freeze_moves(false);
    let request = arrive(&mut origin, target);
    assert_eq!(request.payload(), payload(101, 2000));
    answer(request, b"", 101);
    settle(&mut origin, target);
    assert_eq!(ended(&mut origin, 101).unwrap(), b"");
    assert!(target.notes.requests.is_empty(), "the canceled one");
    (200..200 + MISSES).for_each(|token| exchange(&mut origin, target, token, 2000, 0));
    assert_eq!(origin.endpoint.registered(), 1, "a new one");
}

#[test]
fn many_peers_share_the_room() {
    let (mut origin, mut targets) = sides(70);
    for (index, target) in targets.iter_mut().enumerate() {
        for token in 0..MISSES {
            exchange(&mut origin, target, token, 2000, 0);
        }
        assert_eq!(origin.endpoint.registered(), (index + 1).min(64));
    }
    // The oldest made room, and its peer is served all the same.
    exchange(&mut origin, &mut targets[0], 100, 2000, 0);
    exchange(&mut origin, &mut targets[69], 101, 2000, 0);
    assert_eq!(origin.endpoint.registered(), 64);
}
