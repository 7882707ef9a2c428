//! Extensions that our own peers put beside the header: deadlines, traces and cancels; and that
//! other peers see none of them.

use std::time::{Duration, Instant};

use na::{Endpoint, MsgBuf, OpId, Tag};

use super::{Side, answer, answer_oneself, arrive, pair, pair_with, settle};
use crate::header::RequestHeader;
use crate::{
    ChecksumLevel, ForwardOptions, HgError, HgOptions, OnBehalfOf, ProcError, ReturnCode,
    TraceParent, wire,
};

const HOUR: Duration = Duration::from_secs(3600);

fn timed(limit: Duration) -> ForwardOptions {
    ForwardOptions { deadline: Instant::now().checked_add(limit), ..ForwardOptions::default() }
}

fn call(origin: &mut Side, target: &Side, options: ForwardOptions, args: &[u8], token: u32) {
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let put = |writer: &mut crate::Writer| writer.put(args);
    origin.core.forward(&to, super::SUM, options, put, token).unwrap();
}

fn levels() -> [HgOptions; 4] {
    use ChecksumLevel::{Headers, None, Payload, Payload64};
    [None, Headers, Payload, Payload64].map(|checksum_level| {
        let build = match checksum_level {
            None => crate::Build::Plain,
            _ => crate::Build::Checksum,
        };
        HgOptions { build, checksum_level, ..HgOptions::default() }
    })
}

#[test]
fn a_deadline_arrives_as_the_time_that_is_left_and_a_trace_as_it_is() {
    for options in levels() {
        // What fits into the message, and what does not.
        for len in [0, 10, 100_000] {
            let (mut origin, mut target) = pair_with(options.clone());
            let args = vec![5; len];
            let trace = Some(TraceParent { trace_id: [9; 16], span_id: [4; 8] });
            call(&mut origin, &target, ForwardOptions { trace, ..timed(HOUR) }, &args, 1);
            let request = arrive(&mut origin, &mut target);
            let left = request.deadline().unwrap().saturating_duration_since(Instant::now());
            assert!(left <= HOUR && left > HOUR / 2, "{left:?}");
            assert_eq!((request.trace(), request.payload()), (trace, &args[..]));
            answer(request, b"result", 2);
            settle(&mut origin, &mut target);
            assert_eq!(origin.notes.responses.remove(&1).unwrap().unwrap(), b"result");
        }
    }
}

/// Both sides have one clock here, which they do not know.
#[test]
fn what_a_request_waits_on_its_way_is_taken_from_the_time_that_is_left() {
    for options in levels() {
        for len in [10, 100_000] {
            let (mut origin, mut target) = pair_with(options.clone());
            let args = vec![5; len];
            let call = |origin: &mut Side, target: &mut Side, wait| {
                let deadline = Instant::now().checked_add(HOUR);
                let options = ForwardOptions { deadline, ..ForwardOptions::default() };
                self::call(origin, target, options, &args, 1);
                let sent = Instant::now();
                while sent.elapsed() < wait {}
                let request = arrive(origin, target);
                let late = request.deadline().unwrap().checked_duration_since(deadline.unwrap());
                answer(request, b"result", 2);
                settle(origin, target);
                origin.notes.responses.remove(&1).unwrap().unwrap();
                target.notes.responded.clear();
                late.unwrap_or_else(|| panic!("earlier than the caller's"))
            };
            let began = Instant::now();
            let first = call(&mut origin, &mut target, Duration::ZERO);
            let way = began.elapsed();
            assert!(first <= way, "{first:?}, {way:?}");
            let second = call(&mut origin, &mut target, 3 * way);
            // What the clocks may have drifted by does not count as a wait.
            let drift = began.elapsed() / 2000;
            assert!(second <= way + drift, "{second:?}, {way:?}, {drift:?}");
        }
    }
}

#[test]
fn a_request_that_expires_on_its_way_expires_when_it_arrives() {
    let (mut origin, mut target) = pair();
    let began = Instant::now();
    call(&mut origin, &target, timed(HOUR), b"args", 1);
    let first = arrive(&mut origin, &mut target);
    let way = began.elapsed();
    let limit = Duration::from_millis(1);
    call(&mut origin, &target, timed(limit), b"args", 2);
    let sent = Instant::now();
    while sent.elapsed() < limit + way + began.elapsed() / 1000 {}
    let before = Instant::now();
    let second = arrive(&mut origin, &mut target);
    let after = Instant::now();
    let deadline = second.deadline().unwrap();
    assert!(
        before <= deadline && deadline <= after,
        "{:?}",
        deadline.checked_duration_since(after)
    );
    answer(first, b"", 3);
    answer(second, b"", 4);
    settle(&mut origin, &mut target);
}

#[test]
fn only_requests_with_a_deadline_say_when_they_were_sent() {
    let (mut origin, mut target) = pair();
    let trace = Some(TraceParent { trace_id: [9; 16], span_id: [4; 8] });
    for (token, options) in
        [ForwardOptions { trace, ..ForwardOptions::default() }, timed(HOUR)].into_iter().enumerate()
    {
        call(&mut origin, &target, options, b"args", token as u32);
        answer(arrive(&mut origin, &mut target), b"", 10 + token as u32);
        let (_, _, message) = &origin.endpoint.sent()[token];
        let (header, _) = wire::decode_request(HgOptions::default().format(), message).unwrap();
        let said = header.read_extension(message).unwrap();
        assert_eq!(said.sent.is_some(), options.deadline.is_some());
    }
    settle(&mut origin, &mut target);
}

/// It used to overflow all the same.
#[test]
fn what_is_said_beside_the_header_takes_room_from_arguments_that_may_not_overflow() {
    let options = HgOptions { overflow: false, ..HgOptions::default() };
    let (origin, target) = pair_with(options);
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let room = origin.core.input_eager_bytes();
    let start = |options, len: usize| {
        let put = |writer: &mut crate::Writer| writer.put(&vec![5; len]);
        origin.core.forward(&to, super::SUM, options, put, 1).map_err(|refused| refused.0)
    };
    assert!(start(ForwardOptions::default(), room).is_ok());
    let beside = 1 + 10 + 14;
    assert!(start(timed(HOUR), room - beside).is_ok());
    let error = start(timed(HOUR), room - beside + 1).unwrap_err();
    assert!(matches!(error, HgError::Proc(ProcError::TooLong { .. })), "{error}");
}

#[test]
fn without_a_deadline_and_towards_others_no_byte_more_is_sent() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"args", 1);
    target.endpoint.is_foreign_to_others();
    let trace = Some(TraceParent { trace_id: [9; 16], span_id: [4; 8] });
    call(&mut origin, &target, ForwardOptions { trace, ..timed(HOUR) }, b"args", 2);
    let requests: Vec<_> = (0..2).map(|_| arrive(&mut origin, &mut target)).collect();
    assert!(requests.iter().all(|request| request.deadline().is_none()));
    assert!(requests.iter().all(|request| request.trace().is_none()));
    let sent = origin.endpoint.sent();
    assert_eq!(sent[0].2, sent[1].2);
    for (n, request) in requests.into_iter().enumerate() {
        answer(request, b"", 10 + n as u32);
    }
    settle(&mut origin, &mut target);
}

#[test]
fn a_call_to_ourselves_has_its_deadline_and_trace_too() {
    let (mut origin, mut target) = pair();
    let deadline = Instant::now().checked_add(HOUR);
    let trace = Some(TraceParent { trace_id: [9; 16], span_id: [4; 8] });
    let options = ForwardOptions { deadline, trace, ..ForwardOptions::default() };
    let own = origin.core.self_addr();
    origin.core.forward(&own, super::SUM, options, |_| Ok(()), 1).unwrap();
    settle(&mut origin, &mut target);
    let request = origin.notes.requests.remove(0);
    assert_eq!((request.deadline(), request.trace()), (deadline, trace));
    answer_oneself(request, b"");
    settle(&mut origin, &mut target);
}

fn call_for(origin: &Side, target: &Side, len: usize, token: u32) -> Result<(), HgError> {
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let who = OnBehalfOf::Name("alice".into());
    let options = (ForwardOptions::default(), Some(&who));
    let put = |writer: &mut crate::Writer| writer.put(&vec![5; len]);
    let started = origin.core.forward_on_behalf(&to, super::SUM, options, put, token);
    started.map(drop).map_err(|refused| refused.0)
}

#[test]
fn on_whose_behalf_a_call_is_made_arrives() {
    let alice = OnBehalfOf::Name("alice".into());
    for options in levels() {
        for len in [0, 10, 100_000] {
            let (mut origin, mut target) = pair_with(options.clone());
            call_for(&origin, &target, len, 1).unwrap();
            let request = arrive(&mut origin, &mut target);
            assert_eq!(request.on_behalf_of(), Some(&alice));
            assert_eq!(request.payload().len(), len);
            answer(request, b"result", 2);
            settle(&mut origin, &mut target);
            assert_eq!(origin.notes.responses.remove(&1).unwrap().unwrap(), b"result");
        }
    }
    let (mut own, _) = pair();
    call_for(&own, &own, 10, 1).unwrap();
    own.step();
    let request = own.notes.requests.remove(0);
    assert_eq!(request.on_behalf_of(), Some(&alice));
    answer_oneself(request, b"");
    own.step();
}

#[test]
fn a_peer_that_may_not_understand_on_whose_behalf_a_call_is_made_is_not_called() {
    let (mut origin, mut target) = pair();
    target.endpoint.is_foreign_to_others();
    for len in [10, 100_000] {
        match call_for(&origin, &target, len, 1) {
            Err(HgError::Na(error)) if error.never_arrived() => {
                assert!(error.to_string().contains("on whose behalf"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    settle(&mut origin, &mut target);
    assert!(origin.endpoint.sent().is_empty() && origin.core.in_flight() == 0);
}

#[test]
fn the_target_is_told_of_a_canceled_call() {
    let (mut origin, mut target) = pair();
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let options = ForwardOptions::default();
    let op = origin.core.forward(&to, super::SUM, options, |_| Ok(()), 1).unwrap();
    let request = arrive(&mut origin, &mut target);
    let key = request.call_key().unwrap();
    for _ in 0..2 {
        origin.core.cancel_call(op, &to);
    }
    settle(&mut origin, &mut target);
    assert!(matches!(origin.notes.responses.remove(&1), Some(Err(HgError::Canceled))));
    let canceled = std::mem::take(&mut target.notes.canceled);
    assert_eq!(canceled, [(request.origin().clone(), key)]);
    // What the handler does all the same hurts nobody.
    answer(request, b"late", 2);
    settle(&mut origin, &mut target);
    assert!(target.notes.requests.is_empty(), "a cancel is no request");
    let in_hand = target.core.in_hand();
    assert_eq!((in_hand.requests_held, in_hand.operations), (0, 0));
}

#[test]
fn nobody_is_told_of_a_cancel_who_cannot_know_what_it_is_or_has_answered() {
    let (mut origin, mut target) = pair();
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let options = ForwardOptions::default();
    let op = origin.core.forward(&to, super::SUM, options, |_| Ok(()), 1).unwrap();
    let request = arrive(&mut origin, &mut target);
    answer(request, b"", 2);
    settle(&mut origin, &mut target);
    origin.core.cancel_call(op, &to);
    target.endpoint.is_foreign_to_others();
    let op = origin.core.forward(&to, super::SUM, options, |_| Ok(()), 3).unwrap();
    let request = arrive(&mut origin, &mut target);
    origin.core.cancel_call(op, &to);
    settle(&mut origin, &mut target);
    assert_eq!(origin.endpoint.sent().len(), 2, "two requests and nothing else");
    assert!(target.notes.canceled.is_empty());
    answer(request, b"", 4);
    settle(&mut origin, &mut target);
}

#[test]
fn a_canceled_call_to_ourselves_is_told() {
    let (mut origin, mut target) = pair();
    let own = origin.core.self_addr();
    let options = ForwardOptions::default();
    let op = origin.core.forward(&own, super::SUM, options, |_| Ok(()), 1).unwrap();
    settle(&mut origin, &mut target);
    let request = origin.notes.requests.remove(0);
    origin.core.cancel_call(op, &own);
    settle(&mut origin, &mut target);
    assert_eq!(origin.notes.canceled, [(own, request.call_key().unwrap())]);
    assert!(matches!(origin.notes.responses.remove(&1), Some(Err(HgError::Canceled))));
}

#[test]
fn an_extension_that_cannot_be_read_is_refused() {
    let (origin, mut target) = pair();
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    let header = RequestHeader { extension_bytes: 3, ..RequestHeader::new(super::SUM) };
    // A field that ends behind its block; a block that ends behind the message.
    for (n, block) in [&[2u8, 1, 8][..], &[200, 1, 8]].into_iter().enumerate() {
        let mut buf = MsgBuf::with_capacity(64);
        header.write(buf.spare_mut());
        buf.spare_mut()[16..19].copy_from_slice(block);
        buf.set_len(19);
        assert!(wire::decode_request(header.format, buf.as_slice()).is_err() == (n == 1));
        let reply = MsgBuf::with_capacity(super::net::MESSAGE_MAX);
        let (tag, op) = (Tag(77 + n as u32), OpId(1000 + n as u64));
        origin.endpoint.recv_expected(op, &to, tag, reply).unwrap();
        origin.endpoint.send_unexpected(OpId(2000 + n as u64), &to, tag, buf).unwrap();
        while target.step() > 0 {}
        let (_, echoed, refusal) = target.endpoint.sent().pop().unwrap();
        let code = ReturnCode::from_number(i32::from(refusal[0]));
        assert_eq!((echoed, code), (tag, ReturnCode::ProtocolError));
    }
    assert_eq!(target.core.counters().malformed, 2);
    assert!(target.notes.requests.is_empty());
    assert_eq!(target.core.in_hand().requests_held, 0);
}

#[test]
fn who_watches_a_peer_is_told_once_that_it_is_gone() {
    let (mut origin, mut target) = pair();
    let peer = target.core.lookup(origin.core.self_addr().uri()).unwrap();
    target.core.watch_peer(&peer).unwrap();
    settle(&mut origin, &mut target);
    assert!(target.notes.gone.is_empty());
    origin.endpoint.kill();
    while target.step() > 0 {}
    assert_eq!(target.notes.gone, [peer]);
    while target.step() > 0 {}
    assert_eq!((target.notes.gone.len(), target.core.in_flight()), (1, 0));
}

#[test]
fn a_watch_survives_a_peer_that_breaks_the_rules_and_ends_with_us() {
    let (origin, mut target) = pair();
    let peer = target.core.lookup(origin.core.self_addr().uri()).unwrap();
    let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
    target.core.watch_peer(&peer).unwrap();
    let mut buf = MsgBuf::with_capacity(8);
    buf.set_len(1);
    origin.endpoint.send_expected(OpId(1), &to, Tag(u32::MAX), buf).unwrap();
    while target.step() > 0 {}
    assert!(target.notes.gone.is_empty());
    target.core.close();
    while target.step() > 0 {}
    assert!(target.notes.gone.is_empty() && target.core.in_flight() == 0);
}
