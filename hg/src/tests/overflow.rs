//! Arguments and results that do not fit into a message.

use super::net::{Kind, MESSAGE_MAX, Refuse};
use super::*;
use crate::core::receives::FETCH_PATIENCE;
use crate::header::flags;
use crate::overflow::results::PATIENCE as KEPT_PATIENCE;

/// Far longer than a message, and one byte too long.
fn long_ones() -> [Vec<u8>; 2] {
    [pattern(100_000), pattern(MESSAGE_MAX - 15)]
}

#[test]
fn what_just_fits_does_not_overflow() {
    let (mut origin, mut target) = pair();
    let payload = pattern(MESSAGE_MAX - 16);
    origin.call(&target, &payload, 1);
    let request = arrive(&mut origin, &mut target);
    assert_eq!(request.payload(), payload);
    answer(request, &payload, 2);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), payload);
    assert_eq!(origin.core.counters().req_extra + target.core.counters().resp_extra, 0);
}

#[test]
fn long_arguments_are_fetched() {
    for payload in long_ones() {
        let (mut origin, mut target) = pair();
        origin.call(&target, &payload, 1);
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), payload);
        assert_eq!(origin.endpoint.registered(), 1, "exposed until the response");
        answer(request, b"ok", 2);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), b"ok");
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        let (_, _, message) = origin.endpoint.sent().remove(0);
        assert_eq!(message[10], flags::MORE_DATA);
        assert_eq!(target.endpoint.sent().len(), 1, "no acknowledgement");
        let (ours, theirs) = (origin.core.counters(), target.core.counters());
        assert_eq!((ours.req_extra, theirs.req_extra), (1, 1));
    }
}

#[test]
fn long_results_are_fetched_and_acknowledged() {
    for payload in long_ones() {
        let (mut origin, mut target) = pair();
        origin.call(&target, b"", 1);
        let request = arrive(&mut origin, &mut target);
        answer(request, &payload, 2);
        target.step();
        assert!(target.notes.responded.is_empty(), "not before it was fetched");
        assert_eq!(target.endpoint.registered(), 1);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), payload);
        assert!(target.notes.responded[&2].is_ok());
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        let sent = origin.endpoint.sent();
        let [(_, tag, _), (Kind::Expected, ack_tag, ack)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((tag, &ack[..]), (ack_tag, &[0][..]));
    }
}

#[test]
fn long_one_way_arguments_are_acknowledged() {
    for payload in long_ones() {
        let (mut origin, mut target) = pair();
        origin.call_with(&target, ForwardOptions::one_way(), &payload, 1);
        origin.step();
        assert!(origin.notes.responses.is_empty(), "not before they were fetched");
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), payload);
        drop(request);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), b"");
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        assert_eq!(target.endpoint.sent().len(), 1, "the acknowledgement");
    }
}

/// Whichever byte of it arrives damaged: its origin may free the arguments.
#[test]
fn long_one_way_arguments_that_cannot_be_read_are_acknowledged() {
    let mut unread = 0;
    for at in 11..40 {
        let (mut origin, mut target) = pair();
        origin.endpoint.damage(at);
        origin.call_with(&target, ForwardOptions::one_way(), &pattern(10_000), 1);
        settle(&mut origin, &mut target);
        target.notes.requests.clear();
        settle(&mut origin, &mut target);
        assert!(ended(&mut origin, 1).is_ok(), "damaged at {at}");
        assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
        unread += target.core.counters().malformed;
    }
    assert!(unread > 4, "{unread}");
}

#[test]
fn both_directions_at_once() {
    let (mut origin, mut target) = pair();
    let (there, back) = (pattern(70_000), pattern(90_000));
    origin.call(&target, &there, 1);
    let request = arrive(&mut origin, &mut target);
    assert_eq!(request.payload(), there);
    answer(request, &back, 2);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), back);
    assert!(target.notes.responded[&2].is_ok());
    assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
}

/// Nothing of such a call is held for a peer, so nothing is given back either: bytes that others
/// have there stay counted, and the count never falls below zero, where all would be refused.
#[test]
fn long_calls_to_ourselves_leave_the_bytes_of_others_counted() {
    let (mut origin, mut target) = pair();
    let own = target.core.self_addr();
    for (token, option) in [(1, ForwardOptions::default()), (3, ForwardOptions::one_way())] {
        let long = pattern(100_000);
        origin.call(&target, &long, token);
        let held = arrive(&mut origin, &mut target);
        let bytes = target.core.class.held.bytes();
        assert_eq!(bytes, 100_000);
        let put = |writer: &mut crate::Writer| writer.put(&long[..50_000]);
        target
            .core
            .forward(&own, SUM, option, put, token + 1)
            .map_err(|refused| refused.0)
            .unwrap();
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), &long[..50_000]);
        drop(request);
        assert_eq!(target.core.class.held.bytes(), bytes, "those of the other request");
        drop(held);
        assert_eq!(target.core.class.held.bytes(), 0);
    }
}

#[test]
fn overflowed_arguments_that_are_held_have_a_limit_together() {
    let net = Net::default();
    let limited = HgOptions { overflow_held_max: 250_000, ..HgOptions::default() };
    let mut origin = Side::new(&net, HgOptions::default());
    let mut target = Side::new(&net, limited);
    let long = pattern(100_000);
    let again = |result| matches!(result, Err(HgError::Remote(ReturnCode::Again)));
    for token in 1..=3 {
        origin.call(&target, &long, token);
    }
    let mut held = vec![arrive(&mut origin, &mut target), arrive(&mut origin, &mut target)];
    settle(&mut origin, &mut target);
    assert!(again(ended(&mut origin, 3)), "the third");
    assert_eq!((target.endpoint.moves_started(), origin.endpoint.registered()), (2, 2));
    // Who gives its arguments back makes room, as does who has been answered.
    held[0].release_payload();
    origin.call(&target, &long, 4);
    held.push(arrive(&mut origin, &mut target));
    origin.call(&target, &long, 5);
    settle(&mut origin, &mut target);
    assert!(again(ended(&mut origin, 5)), "the fifth");
    for (token, request) in (10..).zip(held) {
        answer(request, b"", token);
    }
    settle(&mut origin, &mut target);
    // One alone is never too many.
    origin.call(&target, &pattern(300_000), 6);
    assert_eq!(arrive(&mut origin, &mut target).payload().len(), 300_000);
    settle(&mut origin, &mut target);
    assert_eq!((target.endpoint.registered(), origin.endpoint.registered()), (0, 0));
}

/// One origin is stopped, and its arguments cannot be fetched.
#[test]
fn arguments_that_do_not_come_are_given_up_for_those_of_others() {
    let again = |result| matches!(result, Err(HgError::Remote(ReturnCode::Again)));
    for is_late in [true, false] {
        let net = Net::default();
        let limited = HgOptions { overflow_held_max: 250_000, ..HgOptions::default() };
        let mut stopped = Side::new(&net, HgOptions::default());
        let mut other = Side::new(&net, HgOptions::default());
        let mut target = Side::new(&net, limited);
        target.endpoint.stall_moves(true);
        // Deadlines that have passed when the requests arrive, or none but too much of them.
        let deadline = is_late.then(Instant::now);
        let options = ForwardOptions { deadline, ..ForwardOptions::default() };
        for token in [1, 2] {
            stopped.call_with(&target, options, &pattern(100_000), token);
        }
        settle(&mut stopped, &mut target);
        assert!(stopped.notes.responses.is_empty(), "they are being fetched");
        other.call(&target, &pattern(100_000), 3);
        settle(&mut other, &mut target);
        assert!(again(ended(&mut other, 3)), "there is no room yet");
        settle(&mut stopped, &mut target);
        let given_up = stopped.notes.responses.len();
        assert_eq!(given_up, if is_late { 2 } else { 1 }, "half of all is left to it");
        let tokens: Vec<_> = stopped.notes.responses.keys().copied().collect();
        tokens.into_iter().for_each(|token| assert!(again(ended(&mut stopped, token))));
        target.endpoint.stall_moves(false);
        other.call(&target, &pattern(100_000), 4);
        let request = loop {
            let request = arrive(&mut other, &mut target);
            if request.payload() == pattern(100_000) && request.origin() == &target.addr_of(&other)
            {
                break request;
            }
            answer(request, b"", 5);
        };
        answer(request, b"", 6);
        settle(&mut other, &mut target);
        assert_eq!(ended(&mut other, 4).unwrap(), b"");
    }
}

/// An origin that is stopped lets no fetch end: half of the places stay for what needs none, and
/// what is fetched for it gives way to others.
#[test]
fn fetches_that_do_not_end_leave_places_for_other_requests() {
    const PLACES: usize = 16;
    let again = |result| matches!(result, Err(HgError::Remote(ReturnCode::Again)));
    let net = Net::default();
    let limited =
        HgOptions { requests_max: PLACES, request_post_init: PLACES, ..HgOptions::default() };
    let mut stopped = Side::new(&net, HgOptions::default());
    let mut other = Side::new(&net, HgOptions::default());
    let mut target = Side::new(&net, limited);
    target.endpoint.stall_moves(true);
    for token in 1..=2 * PLACES as u32 {
        stopped.call(&target, &pattern(10_000), token);
    }
    settle(&mut stopped, &mut target);
    let refused = stopped.notes.responses.len();
    assert_eq!(refused, 2 * PLACES - PLACES / 2, "the others are being fetched");
    other.call(&target, b"short", 1);
    answer(arrive(&mut other, &mut target), b"", 1);
    settle(&mut other, &mut target);
    assert_eq!(ended(&mut other, 1).unwrap(), b"");
    other.call(&target, &pattern(10_000), 2);
    settle(&mut other, &mut target);
    assert!(again(ended(&mut other, 2)), "there is no room yet");
    settle(&mut stopped, &mut target);
    assert_eq!(stopped.notes.responses.len(), refused + 1, "one has given way");
    target.endpoint.stall_moves(false);
    other.call(&target, &pattern(10_000), 3);
    let mut token = 5;
    let request = loop {
        let request = arrive(&mut other, &mut target);
        if request.origin() == &target.addr_of(&other) {
            break request;
        }
        answer(request, b"", token);
        token += 1;
    };
    answer(request, b"", token);
    settle(&mut other, &mut target);
    assert_eq!(ended(&mut other, 3).unwrap(), b"");
}

/// Also several such origins, of which none has too much for itself.
#[test]
fn fetches_of_many_that_do_not_end_give_way_after_a_while() {
    const PLACES: usize = 16;
    let net = Net::default();
    let limited =
        HgOptions { requests_max: PLACES, request_post_init: PLACES, ..HgOptions::default() };
    let mut target = Side::new(&net, limited);
    let mut stopped: Vec<_> = (0..4).map(|_| Side::new(&net, HgOptions::default())).collect();
    let mut other = Side::new(&net, HgOptions::default());
    target.endpoint.stall_moves(true);
    for origin in &mut stopped {
        for token in 1..=2 {
            origin.call(&target, &pattern(10_000), token);
        }
        settle(origin, &mut target);
        assert!(origin.notes.responses.is_empty(), "they are being fetched");
    }
    let deadline = Instant::now() + PATIENCE;
    let mut token = 0;
    // Only what finds a place is under way when a call does not end.
    loop {
        token += 1;
        other.call(&target, &pattern(10_000), token);
        settle(&mut other, &mut target);
        if other.notes.responses.is_empty() {
            break;
        }
        assert!(matches!(ended(&mut other, token), Err(HgError::Remote(ReturnCode::Again))));
        assert!(Instant::now() < deadline, "no fetch gives way");
    }
    stopped.iter_mut().for_each(|origin| settle(origin, &mut target));
    let given_up: usize = stopped.iter().map(|origin| origin.notes.responses.len()).sum();
    assert_eq!(given_up, 1, "no more than is needed");
}

/// All fetches are looked through for one that gives way, which is not to be had for each request
/// of a flood.
#[test]
fn refusals_in_a_row_look_for_room_once() {
    let net = Net::default();
    let limited = HgOptions { overflow_held_max: 2500, ..HgOptions::default() };
    let mut target = Side::new(&net, limited);
    let mut stopped = Side::new(&net, HgOptions::default());
    let mut other = Side::new(&net, HgOptions::default());
    target.endpoint.stall_moves(true);
    for token in 1..=2 {
        stopped.call(&target, &pattern(1000), token);
    }
    settle(&mut stopped, &mut target);
    let looks = |target: &Side| target.core.state().receives.looks;
    assert_eq!(looks(&target), 0, "nobody was refused");
    // Its own do not give way to it, before they have taken long.
    let begun = Instant::now();
    for token in 10..310 {
        if begun.elapsed() > FETCH_PATIENCE / 2 {
            break;
        }
        stopped.call(&target, &pattern(1000), token);
        settle(&mut stopped, &mut target);
        assert!(ended(&mut stopped, token).is_err());
    }
    let most = 1 + begun.elapsed().as_millis() as u64 / 10;
    assert!((1..=most).contains(&looks(&target)), "{} looks, not {most}", looks(&target));
    // But to others, at once.
    other.call(&target, &pattern(1000), 1);
    settle(&mut other, &mut target);
    assert!(ended(&mut other, 1).is_err());
    settle(&mut stopped, &mut target);
    assert_eq!(stopped.notes.responses.len(), 1, "one has given way");
}

/// Over shared memory a fetch ends, when it is given up, not before its origin runs again.
#[test]
fn a_fetch_that_stays_though_it_gave_way_does_not_give_way_again_and_others_do() {
    let net = Net::default();
    let limited = HgOptions { overflow_held_max: 250_000, ..HgOptions::default() };
    let mut stopped = Side::new(&net, HgOptions::default());
    let mut other = Side::new(&net, HgOptions::default());
    let mut target = Side::new(&net, limited);
    target.endpoint.freeze_moves(true);
    for token in [1, 2] {
        stopped.call(&target, &pattern(100_000), token);
    }
    settle(&mut stopped, &mut target);
    let deadline = Instant::now() + PATIENCE;
    let mut token = 0;
    while target.endpoint.moves_canceled().len() < 2 {
        assert!(Instant::now() < deadline, "no other gives way");
        token += 1;
        other.call(&target, &pattern(100_000), token);
        settle(&mut other, &mut target);
        assert!(matches!(ended(&mut other, token), Err(HgError::Remote(ReturnCode::Again))));
    }
    assert!(token > 2, "half of all is left to it for a while");
    for _ in 0..2 {
        token += 1;
        other.call(&target, &pattern(100_000), token);
        settle(&mut other, &mut target);
        assert!(ended(&mut other, token).is_err());
    }
    let canceled = target.endpoint.moves_canceled();
    assert!(canceled.len() == 2 && canceled[0] != canceled[1], "{canceled:?}");
    // What they were to carry ends with the network.
    target.endpoint.freeze_moves(false);
    settle(&mut stopped, &mut target);
}

fn kept(side: &Side) -> usize {
    side.core.in_hand().result_bytes_kept
}

/// Answers with what is not sent.
fn answer_beyond(request: RequestHandle<u32>, payload: &[u8]) -> RequestHandle<u32> {
    let refused = request.respond(|writer| writer.put(payload), 99).map_err(|failed| *failed);
    let Err((error, Some(request))) = refused else { panic!("{refused:?}") };
    assert!(matches!(error, HgError::Unfetched { len, .. } if len == payload.len()), "{error}");
    assert!(error.to_string().contains("overflow_held_max"), "{error}");
    request
}

fn with_results_up_to(max: usize) -> (Side, Side) {
    let net = Net::default();
    let limited = HgOptions { overflow_held_max: max, ..HgOptions::default() };
    (Side::new(&net, HgOptions::default()), Side::new(&net, limited))
}

#[test]
fn results_that_are_not_fetched_have_a_limit_together() {
    let (mut origin, mut target) = with_results_up_to(250_000);
    let long = pattern(100_000);
    origin.endpoint.freeze_moves(true);
    for token in 1..=2 {
        origin.call(&target, b"", token);
        answer(arrive(&mut origin, &mut target), &long, token);
    }
    assert_eq!(kept(&target), 200_000);
    // Beyond, both ends are told: who was to answer, and who waits for it.
    origin.call(&target, b"", 3);
    drop(answer_beyond(arrive(&mut origin, &mut target), &long));
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 3).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::OtherError)), "{error}");
    assert_eq!((kept(&target), target.core.in_flight()), (200_000, 2), "as before");
    // What comes back can still be answered: with what is short, or is not too much.
    for (token, len) in [(4, 10), (5, 50_000)] {
        origin.call(&target, b"", token);
        let request = answer_beyond(arrive(&mut origin, &mut target), &pattern(60_000));
        answer(request, &pattern(len), token);
    }
    assert_eq!(kept(&target), 250_000, "all that there may be");
    // Arguments are counted apart.
    origin.endpoint.freeze_moves(false);
    origin.call(&target, &pattern(200_000), 6);
    drop(arrive(&mut origin, &mut target));
    settle(&mut origin, &mut target);
    for (token, len) in [(1, 100_000), (2, 100_000), (4, 10), (5, 50_000)] {
        assert_eq!(ended(&mut origin, token).unwrap(), pattern(len));
        assert!(target.notes.responded[&token].is_ok());
    }
    assert_eq!((kept(&target), target.endpoint.registered()), (0, 0));
}

/// A younger result has the rest of the room, so that the old one would give way for nothing.
#[test]
fn no_result_gives_way_in_vain() {
    let (mut vanished, mut target) = with_results_up_to(250_000);
    let mut other = Side::new(vanished.endpoint.net(), HgOptions::default());
    let (long, longer) = (pattern(100_000), pattern(200_000));
    for token in 1..=2 {
        vanished.call(&target, b"", token);
        answer(arrive(&mut vanished, &mut target), &long, token);
        target.core.class.kept.pass(KEPT_PATIENCE / 2);
    }
    other.call(&target, b"", 3);
    let mut request = arrive(&mut other, &mut target);
    for _ in 0..100 {
        request = answer_beyond(request, &longer);
    }
    assert!(target.notes.responded.is_empty(), "the old one alone would not do");
    assert!(target.core.class.kept.looks() <= 1 + 10, "they are looked at now and then");
    target.core.class.kept.pass(KEPT_PATIENCE / 2);
    answer(request, &longer, 3);
    settle(&mut other, &mut target);
    assert_eq!(ended(&mut other, 3).unwrap(), longer);
    assert!(target.notes.responded.contains_key(&1) && target.notes.responded.contains_key(&2));
}

/// One look goes over all results that there are.
#[test]
fn old_results_give_way_several_at_a_time() {
    let (vanished, mut target) = with_results_up_to(320_000);
    let mut other = Side::new(vanished.endpoint.net(), HgOptions::default());
    let long = pattern(10_000);
    for token in 1..=32 {
        vanished.call(&target, b"", token);
        // The target alone goes on.
        while target.notes.requests.is_empty() {
            target.step();
        }
        answer(target.notes.requests.remove(0), &long, token);
    }
    target.core.class.kept.pass(KEPT_PATIENCE);
    for token in 101..=116 {
        other.call(&target, b"", token);
        let request = arrive(&mut other, &mut target);
        answer(request, &long, token);
    }
    let looks = target.core.class.kept.looks();
    assert!((1..=8).contains(&looks), "{looks} looks for 16 results");
    settle(&mut other, &mut target);
    for token in 101..=116 {
        assert_eq!(ended(&mut other, token).unwrap(), long);
    }
}

/// Where nothing shows that an origin is gone, as over libfabric once it has the answer, its
/// results are kept until others need the room.
#[test]
fn results_of_origins_that_vanish_give_way_after_a_while() {
    let (mut vanished, mut target) = with_results_up_to(250_000);
    let mut other = Side::new(vanished.endpoint.net(), HgOptions::default());
    let long = pattern(100_000);
    for token in 1..=2 {
        vanished.call(&target, b"", token);
        answer(arrive(&mut vanished, &mut target), &long, token);
        target.core.class.kept.pass(KEPT_PATIENCE / 4);
    }
    // From here on it does nothing any more.
    other.call(&target, b"", 3);
    let mut request = arrive(&mut other, &mut target);
    for _ in 0..1000 {
        request = answer_beyond(request, &long);
    }
    assert_eq!(target.core.class.kept.looks(), 1, "nothing is old enough before a known time");
    assert!(target.notes.responded.is_empty());
    target.core.class.kept.pass(KEPT_PATIENCE / 2);
    answer(request, &long, 3);
    settle(&mut other, &mut target);
    assert_eq!(ended(&mut other, 3).unwrap(), long);
    let error = target.notes.responded.remove(&1).expect("the oldest gives way").unwrap_err();
    assert!(matches!(error, HgError::GaveWay { len: 100_000, .. }), "{error}");
    assert!(error.to_string().contains("overflow_held_max"), "{error}");
    assert_eq!(kept(&target), 100_000);
    assert!(!target.notes.responded.contains_key(&2), "no more than is needed");
    // Again and again: what is kept stays bounded, and who fetches gets its results.
    for token in 10..20 {
        target.core.class.kept.pass(KEPT_PATIENCE);
        vanished.call(&target, b"", token);
        // The target alone goes on.
        while target.notes.requests.is_empty() {
            target.step();
        }
        answer(target.notes.requests.remove(0), &long, token);
        other.call(&target, b"", 100 + token);
        answer(arrive(&mut other, &mut target), &long, 100 + token);
        settle(&mut other, &mut target);
        assert_eq!(ended(&mut other, 100 + token).unwrap(), long);
        assert!(kept(&target) <= 250_000);
    }
    assert!(target.endpoint.registered() <= 2);
}

#[test]
fn one_result_alone_is_never_too_much() {
    let (mut origin, mut target) = with_results_up_to(1);
    for token in 1..=3 {
        origin.call(&target, b"", token);
        let first = arrive(&mut origin, &mut target);
        origin.call(&target, b"", 10 + token);
        let second = arrive(&mut origin, &mut target);
        answer(first, &pattern(300_000), token);
        let request = answer_beyond(second, &pattern(600));
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, token).unwrap().len(), 300_000);
        answer(request, &pattern(600), 10 + token);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 10 + token).unwrap(), pattern(600));
        assert_eq!(kept(&target), 0);
    }
}

#[test]
fn an_answer_that_fails_keeps_nothing() {
    let long = pattern(2000);
    for refused in [Some(Refuse::Receive), Some(Refuse::Send), None] {
        let (mut origin, mut target) = pair();
        origin.call(&target, b"", 1);
        let request = arrive(&mut origin, &mut target);
        match refused {
            Some(what) => target.endpoint.refuse(what),
            None => target.core.close(),
        }
        let failed = request.respond(|writer| writer.put(&long), 2).map_err(|failed| failed.0);
        assert!(failed.is_err(), "{refused:?}");
        for _ in 0..10 {
            target.step();
        }
        assert_eq!((kept(&target), target.endpoint.registered()), (0, 0), "{refused:?}");
    }
}

#[test]
fn too_long_is_refused_on_either_side() {
    let net = Net::default();
    let small = HgOptions { overflow_bytes_max: 1000, ..HgOptions::default() };
    let mut modest = Side::new(&net, small);
    let mut generous = Side::new(&net, HgOptions::default());
    // Our own encoder knows the limit.
    let to = modest.addr_of(&generous);
    let long = pattern(1001);
    let put = |writer: &mut crate::Writer| writer.put(&long);
    let refused = modest.core.forward(&to, SUM, ForwardOptions::default(), put, 1).unwrap_err();
    let error = refused.0;
    assert!(matches!(error, HgError::Proc(crate::ProcError::TooLong { max: 1000 })), "{error}");
    // A peer's message is refused before anything is fetched.
    generous.call(&modest, &long, 2);
    settle(&mut generous, &mut modest);
    let error = ended(&mut generous, 2).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::MsgSize)), "{error}");
    assert_eq!(modest.endpoint.moves_started(), 0);
    assert_eq!(modest.core.counters().malformed, 1);
    // As is its result; it is told nevertheless that it can free it.
    modest.call(&generous, b"", 3);
    let request = arrive(&mut modest, &mut generous);
    answer(request, &long, 4);
    settle(&mut modest, &mut generous);
    let error = ended(&mut modest, 3).unwrap_err();
    assert!(error.to_string().contains("exceeds the limit of 1000 bytes"), "{error}");
    assert!(matches!(generous.notes.responded[&4], Err(HgError::Unread)));
    assert_eq!((modest.endpoint.registered(), generous.endpoint.registered()), (0, 0));
}

#[test]
fn a_fetch_that_fails_ends_the_call() {
    let (mut origin, mut target) = pair();
    let long = pattern(2000);
    target.endpoint.refuse(Refuse::Transfer);
    origin.call(&target, &long, 1);
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::NaError)), "{error}");
    assert!(target.notes.requests.is_empty());

    origin.call(&target, b"", 2);
    let request = arrive(&mut origin, &mut target);
    origin.endpoint.refuse(Refuse::Transfer);
    answer(request, &long, 3);
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 2).unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::InvalidArgument(_))), "{error}");
    // It need not keep the result any longer.
    assert!(matches!(target.notes.responded[&3], Err(HgError::Unread)));
    assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
    assert_eq!((origin.core.in_flight(), target.core.in_flight()), (0, 0));
}

/// C peers send it unwritten.
#[test]
fn the_acknowledgement_of_a_foreign_origin_says_nothing_more() {
    let (mut origin, mut target) = pair();
    origin.endpoint.is_foreign_to_others();
    origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    origin.endpoint.refuse(Refuse::Transfer);
    answer(request, &pattern(2000), 2);
    settle(&mut origin, &mut target);
    ended(&mut origin, 1).unwrap_err();
    assert!(target.notes.responded[&2].is_ok());
    let (_, _, ack) = origin.endpoint.sent().pop().unwrap();
    assert_eq!(ack, [2], "which might as well be any other");
}

#[test]
fn a_canceled_call_does_not_wait_for_a_hung_fetch() {
    let (mut origin, mut target) = pair();
    let op = origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    origin.endpoint.freeze_moves(true);
    answer(request, &pattern(2000), 2);
    settle(&mut origin, &mut target);
    assert!(origin.notes.responses.is_empty());
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    assert_eq!(origin.core.in_flight(), 0);
    // The memory that the network may still fill stays until it is done.
    assert_eq!(origin.endpoint.registered(), 1);
    origin.endpoint.freeze_moves(false);
    settle(&mut origin, &mut target);
    assert!(matches!(target.notes.responded[&2], Err(HgError::GivenUp)));
    assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
}

/// How the wait for an origin that does not fetch its result ends.
#[derive(Debug, PartialEq)]
enum End {
    Canceled,
    Died,
    AnswerCanceled,
    TargetCloses,
}

/// The protocol of Mercury has no other end of it than these: an origin that lives and looks at
/// nothing has its result kept.
#[test]
fn a_result_that_is_not_fetched_is_kept_until_its_origin_cancels_or_dies() {
    for end in [End::Canceled, End::Died, End::AnswerCanceled, End::TargetCloses] {
        let (mut origin, mut target) = pair();
        let op = origin.call(&target, b"", 1);
        let request = arrive(&mut origin, &mut target);
        let answering = answer(request, &pattern(2000), 2);
        for _ in 0..100 {
            target.step();
        }
        assert!(target.notes.responded.is_empty(), "it may still be fetched");
        assert_eq!(kept(&target), 2000);
        assert_eq!((target.endpoint.registered(), target.core.in_flight()), (1, 1));
        match end {
            End::Canceled => origin.core.cancel(op),
            End::Died => origin.endpoint.kill(),
            End::AnswerCanceled => target.core.cancel(answering),
            End::TargetCloses => target.core.close(),
        }
        if end == End::Canceled {
            settle(&mut origin, &mut target);
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
            assert_eq!(origin.endpoint.moves_started(), 0, "nobody wants it any more");
        } else {
            for _ in 0..100 {
                target.step();
            }
        }
        let told = &target.notes.responded[&2];
        let is_right = match end {
            End::Canceled => matches!(told, Err(HgError::GivenUp)),
            End::Died => matches!(told, Err(HgError::Na(na::Error::PeerGone { .. }))),
            End::AnswerCanceled => matches!(told, Err(HgError::Canceled)),
            End::TargetCloses => matches!(told, Err(HgError::Closed)),
        };
        assert!(is_right, "{end:?}: {told:?}");
        assert_eq!((target.endpoint.registered(), target.core.in_flight()), (0, 0), "{end:?}");
        assert_eq!(kept(&target), 0, "{end:?}");
    }
}

/// A fetch that finds nothing would cost the connection there.
#[test]
fn arguments_of_a_canceled_call_stay_where_no_owner_is_asked() {
    let (mut origin, mut target) = pair();
    origin.endpoint.asks_nobody();
    target.endpoint.freeze_moves(true);
    let op = origin.call(&target, &pattern(2000), 1);
    settle(&mut origin, &mut target);
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    assert_eq!(origin.endpoint.registered(), 1, "as long as the target may fetch them");
    target.endpoint.freeze_moves(false);
    let request = arrive(&mut origin, &mut target);
    assert_eq!(request.payload(), pattern(2000));
    answer(request, b"late", 2);
    settle(&mut origin, &mut target);
    assert_eq!(origin.endpoint.registered(), 0);
    assert_eq!(origin.core.in_flight(), 0);
}

/// A target that answers nothing any more must not make its callers keep all that they sent it.
#[test]
fn arguments_of_canceled_calls_that_stay_have_a_limit_together() {
    let net = Net::default();
    let limited = HgOptions { overflow_held_max: 250_000, ..HgOptions::default() };
    let mut origin = Side::new(&net, limited);
    let mut target = Side::new(&net, HgOptions::default());
    origin.endpoint.asks_nobody();
    target.endpoint.freeze_moves(true);
    // Without long arguments, they take no room, and stay.
    let short: Vec<_> = (0..3).map(|token| origin.call(&target, b"short", token)).collect();
    let long: Vec<_> =
        (10..20).map(|token| origin.call(&target, &pattern(100_000), token)).collect();
    settle(&mut origin, &mut target);
    for (count, op) in short.into_iter().chain(long).enumerate() {
        origin.core.cancel(op);
        settle(&mut origin, &mut target);
        let counted = origin.core.class.kept_arguments.bytes();
        assert!(counted <= 250_000, "{counted} bytes after {count} calls");
    }
    assert!((0..3).chain(10..20).all(|token| ended(&mut origin, token).is_err()));
    assert_eq!((origin.endpoint.registered(), origin.endpoint.posted().1), (2, 5));
    // Those that are left were the last, and end as ever.
    target.endpoint.freeze_moves(false);
    settle(&mut origin, &mut target);
    assert_eq!(target.core.counters().malformed, 8, "they cannot be fetched any more");
    assert_eq!(target.notes.requests.len(), 3 + 2);
    target.notes.requests.clear();
    settle(&mut origin, &mut target);
    assert_eq!((origin.endpoint.registered(), origin.endpoint.posted().1), (0, 0));
    assert_eq!(origin.core.class.kept_arguments.bytes(), 0);
}

#[test]
fn arguments_of_a_canceled_call_cannot_be_fetched_any_more() {
    let (mut origin, mut target) = pair();
    target.endpoint.freeze_moves(true);
    let op = origin.call(&target, &pattern(2000), 1);
    settle(&mut origin, &mut target);
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    assert_eq!(origin.endpoint.registered(), 0);
    target.endpoint.freeze_moves(false);
    settle(&mut origin, &mut target);
    assert!(target.notes.requests.is_empty(), "a request without arguments");
    assert_eq!(target.core.counters().malformed, 1);
    assert_eq!(target.endpoint.registered(), 0);
}
