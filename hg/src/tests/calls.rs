//! Calls and answers that fit into messages, and calls to oneself.

use super::*;
use crate::header::{Build, RequestHeader, ResponseHeader};
use crate::{ProcError, wire};

#[test]
fn a_call_is_answered() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"arguments", 1);
    assert_eq!(origin.core.in_flight(), 1);
    let request = arrive(&mut origin, &mut target);
    assert_eq!((request.id(), request.payload()), (SUM, &b"arguments"[..]));
    assert_eq!(*request.origin(), target.addr_of(&origin));
    assert!(!request.is_one_way());
    answer(request, b"result", 2);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), b"result");
    assert!(matches!(target.notes.responded[&2], Ok(())));
    assert_eq!((origin.core.in_flight(), target.core.in_flight()), (0, 0));
    let (ours, theirs) = (origin.core.counters(), target.core.counters());
    assert_eq!((ours.rpc_req_sent, ours.rpc_resp_recv), (1, 1));
    assert_eq!((theirs.rpc_req_recv, theirs.rpc_resp_sent), (1, 1));
    assert_eq!((ours.req_extra, theirs.resp_extra, theirs.malformed), (0, 0, 0));
}

#[test]
fn messages_are_those_of_wire() {
    for build in [Build::Plain, Build::Checksum] {
        let (mut origin, mut target) = pair_with(HgOptions { build, ..HgOptions::default() });
        origin.call(&target, b"arguments", 1);
        let request = arrive(&mut origin, &mut target);
        answer(request, b"result", 2);
        settle(&mut origin, &mut target);
        let (_, tag, request) = origin.endpoint.sent().remove(0);
        let (_, echoed, response) = target.endpoint.sent().remove(0);
        assert_eq!(tag, echoed);
        let (header, body) = wire::decode_request(build, &request).unwrap();
        let expected = RequestHeader::in_format(SUM, build.into());
        assert_eq!((header, body), (expected, wire::Body::Inline(b"arguments")));
        let (header, body) = wire::decode_response(build, &response).unwrap();
        assert_eq!(header, ResponseHeader::answering(&expected, ReturnCode::Success));
        assert_eq!(body, wire::Body::Inline(b"result"));
    }
}

#[test]
fn many_calls_find_their_answers_in_any_order() {
    let (mut origin, mut target) = pair();
    for round in 0..5u32 {
        for n in 0..300u32 {
            origin.call(&target, &n.to_le_bytes(), round * 300 + n);
        }
        drive(&mut origin, &mut target, "the requests", |_, t| t.notes.requests.len() == 300);
        // Every second one first, each in reverse.
        let mut requests: Vec<_> = target.notes.requests.drain(..).enumerate().collect();
        requests.sort_by_key(|(n, _)| (n % 2, usize::MAX - n));
        for (_, request) in requests {
            let payload = request.payload().to_vec();
            answer(
                request,
                &payload,
                round * 300 + u32::from_le_bytes(payload[..].try_into().unwrap()),
            );
        }
        settle(&mut origin, &mut target);
        for n in 0..300u32 {
            assert_eq!(ended(&mut origin, round * 300 + n).unwrap(), n.to_le_bytes());
        }
    }
    assert_eq!(target.receives(), HgOptions::default().request_post_init);
}

#[test]
fn a_one_way_call_ends_when_it_is_sent() {
    let (mut origin, mut target) = pair();
    origin.call_with(&target, ForwardOptions::one_way(), b"news", 1);
    let request = arrive(&mut origin, &mut target);
    assert!(request.is_one_way());
    assert_eq!(request.payload(), b"news");
    let refused = request.respond(|_| Ok(()), 2).unwrap_err();
    assert!(matches!(*refused, (HgError::NoResponse, None)));
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), b"");
    assert_eq!(origin.endpoint.posted().1, 0, "nothing is left");
    assert!(target.endpoint.sent().is_empty());
}

#[test]
fn an_unknown_rpc_is_refused_as_by_mercury() {
    for (build, len) in [(Build::Plain, 24), (Build::Checksum, 32)] {
        let (mut origin, mut target) = pair_with(HgOptions { build, ..HgOptions::default() });
        origin.call(&target, b"arguments", 1);
        arrive(&mut origin, &mut target).reject(ReturnCode::NoEntry);
        settle(&mut origin, &mut target);
        let error = ended(&mut origin, 1).unwrap_err();
        assert!(matches!(error, HgError::Remote(ReturnCode::NoEntry)), "{error}");
        let (_, _, message) = target.endpoint.sent().remove(0);
        assert_eq!((message.len(), message[0]), (len + 8, 2));
        assert!(message[2..len].iter().all(|byte| *byte == 0));
        assert_eq!(&message[len..], b"margo-rs");
    }
}

#[test]
fn a_dropped_request_is_answered_with_an_error() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"arguments", 1);
    drop(arrive(&mut origin, &mut target));
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::OtherError)), "{error}");
}

#[test]
fn what_cannot_be_encoded_is_not_sent() {
    let (mut origin, mut target) = pair();
    let bad = ProcError::Unsupported("a test");
    let to = origin.addr_of(&target);
    let error = bad.clone();
    let refused =
        origin.core.forward(&to, SUM, ForwardOptions::default(), |_| Err(error), 1).unwrap_err();
    assert!(matches!(*refused, (HgError::Proc(error), 1) if error == bad));
    assert_eq!(origin.core.in_flight(), 0);
    // A result that cannot be encoded leaves the request to be answered otherwise.
    origin.call(&target, b"arguments", 2);
    let request = arrive(&mut origin, &mut target);
    let (error, request) = *request.respond(|_| Err(bad), 3).unwrap_err();
    assert!(matches!(error, HgError::Proc(_)));
    answer(request.expect("still unanswered"), b"sorry", 4);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 2).unwrap(), b"sorry");
    assert_eq!(target.core.in_flight(), 0);
}

#[test]
fn requests_are_held_back_at_the_limit() {
    let options = HgOptions { request_post_init: 2, requests_max: 3, ..HgOptions::default() };
    let (mut origin, mut target) = pair_with(options);
    for n in 0..6 {
        origin.call(&target, b"", n);
    }
    settle(&mut origin, &mut target);
    assert_eq!(target.notes.requests.len(), 3, "posted and held together");
    assert_eq!(target.endpoint.posted().0, 0);
    // Reading the arguments of one lets the next one in; the answer may come later.
    let mut first = target.notes.requests.remove(0);
    first.release_payload();
    assert!(first.payload().is_empty());
    settle(&mut origin, &mut target);
    assert_eq!(target.notes.requests.len(), 3);
    answer(first, b"", 10);
    for n in 1..6 {
        let request = arrive(&mut origin, &mut target);
        answer(request, b"", 10 + n);
    }
    settle(&mut origin, &mut target);
    assert_eq!(origin.notes.responses.len(), 6);
    assert_eq!(target.endpoint.posted().0, 2);
}

#[test]
fn a_call_to_oneself_needs_no_network() {
    let net = Net::default();
    let mut own = Side::new(&net, HgOptions::default());
    let me = own.core.self_addr();
    let long = pattern(5000);
    for (token, payload) in [(1, &b"short"[..]), (2, &long)] {
        let put = |writer: &mut crate::Writer| writer.put(payload);
        own.core.forward(&me, SUM, ForwardOptions::default(), put, token).unwrap();
        own.step();
        let request = own.notes.requests.remove(0);
        assert_eq!((request.payload(), request.origin()), (payload, &me));
        answer_oneself(request, payload);
        own.step();
        assert_eq!(ended(&mut own, token).unwrap(), payload);
    }
    own.core.forward(&me, SUM, ForwardOptions::one_way(), |_| Ok(()), 3).unwrap();
    own.core.forward(&me, SUM, ForwardOptions::default(), |_| Ok(()), 4).unwrap();
    own.step();
    assert!(own.notes.requests.remove(0).is_one_way());
    own.notes.requests.remove(0).reject(ReturnCode::NoEntry);
    own.step();
    assert_eq!(ended(&mut own, 3).unwrap(), b"");
    assert!(matches!(ended(&mut own, 4), Err(HgError::Remote(ReturnCode::NoEntry))));
    assert!(own.endpoint.sent().is_empty());
    assert_eq!(own.core.in_flight(), 0);
}

#[test]
fn a_call_to_oneself_may_use_the_network() {
    let net = Net::default();
    let mut own = Side::new(&net, HgOptions { loopback: false, ..HgOptions::default() });
    own.core.forward(&own.core.self_addr(), SUM, ForwardOptions::default(), |_| Ok(()), 1).unwrap();
    while own.notes.requests.is_empty() {
        assert!(own.step() > 0, "stuck");
    }
    assert!(own.notes.requests[0].is_from_ourselves());
    answer(own.notes.requests.remove(0), b"result", 2);
    while own.step() > 0 {}
    assert_eq!(ended(&mut own, 1).unwrap(), b"result");
    assert_eq!(own.endpoint.sent().len(), 2);
}

#[test]
fn events_are_never_slept_over() {
    let net = Net::default();
    let mut own = Side::new(&net, HgOptions::default());
    assert!(own.core.prepare_wait());
    own.core.forward(&own.core.self_addr(), SUM, ForwardOptions::default(), |_| Ok(()), 1).unwrap();
    assert!(!own.core.prepare_wait(), "a request to ourselves waits");
    own.step();
    assert!(own.core.prepare_wait());
    drop(own.notes.requests.remove(0));
    assert!(!own.core.prepare_wait(), "its answer waits");
    assert_eq!(own.core.in_flight(), 1);
    own.step();
    assert_eq!(own.core.in_flight(), 0);
}
