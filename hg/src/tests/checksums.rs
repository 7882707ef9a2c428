//! Calls at every checksum level, and what happens to damaged ones.

use na::Tag;

use super::headers::FORMATS;
use super::hostile::{message, target_and_peer_with};
use super::*;
use crate::header::{Build, Format, RequestHeader, ResponseHeader};
use crate::proc::{WriterLimits, Written};
use crate::{ChecksumLevel, WireError, wire};

fn options(format: Format) -> HgOptions {
    let (build, checksum_level) = (format.build(), format.level());
    HgOptions { build, checksum_level, ..HgOptions::default() }
}

fn request(format: Format, payload: &[u8], no_response: bool) -> Vec<u8> {
    let header = RequestHeader { no_response, ..RequestHeader::in_format(SUM, format) };
    let buf = na::MsgBuf::with_capacity(1024);
    let put = |writer: &mut crate::Writer| writer.put(payload);
    match wire::encode_request(header, buf, 1024, WriterLimits::default(), put).unwrap() {
        Written::Fits(buf) => buf.as_slice().to_vec(),
        Written::Overflow(..) => panic!("does not fit"),
    }
}

#[test]
fn calls_of_every_length_work_at_every_level() {
    for format in FORMATS {
        for len in [0, 1, 100, 70_000] {
            let (mut origin, mut target) = pair_with(options(format));
            let (there, back) = (pattern(len), pattern(len + 1));
            origin.call(&target, &there, 1);
            let request = arrive(&mut origin, &mut target);
            assert_eq!(request.payload(), there);
            answer(request, &back, 2);
            settle(&mut origin, &mut target);
            assert_eq!(ended(&mut origin, 1).unwrap(), back, "{format:?}");
            assert!(target.notes.responded[&2].is_ok());
            // One-way, refused, and to oneself.
            origin.call_with(&target, ForwardOptions::one_way(), &there, 3);
            assert_eq!(arrive(&mut origin, &mut target).payload(), there);
            settle(&mut origin, &mut target);
            assert_eq!(ended(&mut origin, 3).unwrap(), b"");
            origin.call(&target, &there, 4);
            arrive(&mut origin, &mut target).reject(ReturnCode::NoEntry);
            settle(&mut origin, &mut target);
            let refused = ended(&mut origin, 4).unwrap_err();
            assert!(matches!(refused, HgError::Remote(ReturnCode::NoEntry)), "{refused}");
            for side in [&origin, &target] {
                let counters = side.core.counters();
                assert_eq!((counters.malformed, counters.checksum_errors), (0, 0));
                assert_eq!((side.core.in_flight(), side.endpoint.registered()), (0, 0));
            }
        }
    }
}

#[test]
fn calls_to_ourselves_work_at_every_level() {
    for format in FORMATS {
        let net = Net::default();
        let mut node = Side::new(&net, options(format));
        for payload in [&b"short"[..], &pattern(70_000)] {
            let to = node.core.self_addr();
            let put = |writer: &mut crate::Writer| writer.put(payload);
            node.core.forward(&to, SUM, ForwardOptions::default(), put, 1).expect("forward");
            while node.step() > 0 {}
            let request = node.notes.requests.remove(0);
            assert_eq!(request.payload(), payload);
            answer_oneself(request, payload);
            while node.step() > 0 {}
            assert_eq!(ended(&mut node, 1).unwrap(), payload);
        }
    }
}

#[test]
fn a_target_answers_in_the_format_in_which_it_was_asked() {
    let net = Net::default();
    // Only one side is set to checksums.
    for format in [FORMATS[1], FORMATS[4]] {
        let mut origin = Side::new(&net, options(format));
        let mut target = Side::new(&net, HgOptions::default());
        for payload in [&b"short"[..], &pattern(70_000)] {
            origin.call(&target, payload, 1);
            let request = arrive(&mut origin, &mut target);
            assert_eq!(request.payload(), payload);
            answer(request, payload, 2);
            settle(&mut origin, &mut target);
            assert_eq!(ended(&mut origin, 1).unwrap(), payload);
            assert!(target.notes.responded.remove(&2).is_some());
        }
    }
}

/// Returns the code with which the target answers damaged bytes.
fn answer_to(format: Format, bytes: &[u8]) -> Option<ReturnCode> {
    let (mut target, peer, to) = target_and_peer_with(options(format));
    peer.send_unexpected(na::OpId(1), &to, Tag(5), message(bytes)).unwrap();
    while target.step() > 0 {}
    assert!(target.notes.requests.is_empty());
    let counters = target.core.counters();
    assert_eq!((counters.malformed, counters.checksum_errors), (1, 1));
    let (_, _, response) = target.endpoint.sent().pop()?;
    Some(ResponseHeader::read(format, &response).unwrap().0.code)
}

#[test]
fn a_damaged_request_is_refused_counted_and_answered() {
    for format in &FORMATS[2..] {
        let mut bytes = request(*format, b"arguments", false);
        bytes[5] ^= 0x10;
        assert_eq!(answer_to(*format, &bytes), Some(ReturnCode::ChecksumError));
    }
    for format in &FORMATS[3..] {
        let mut bytes = request(*format, b"arguments", false);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(answer_to(*format, &bytes), Some(ReturnCode::ChecksumError));
        let mut bytes = request(*format, b"arguments", true);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(answer_to(*format, &bytes), None, "one-way: nobody waits");
    }
}

#[test]
fn a_damaged_response_ends_the_call_with_an_error_and_its_sender_is_told() {
    for format in &FORMATS[3..] {
        for (at, is_ours) in [(2, true), (30, true), (30, false)] {
            let (mut origin, mut target) = pair_with(options(*format));
            if !is_ours {
                target.endpoint.is_foreign_to_others();
            }
            origin.call(&target, b"", 1);
            let request = arrive(&mut origin, &mut target);
            let call = (request.origin().clone(), request.call_key().unwrap());
            target.endpoint.damage(at);
            answer(request, &pattern(50), 2);
            settle(&mut origin, &mut target);
            let error = ended(&mut origin, 1).unwrap_err();
            assert!(matches!(&error, HgError::Wire(error) if error.is_checksum()), "{error}");
            assert_eq!(origin.core.counters().checksum_errors, 1);
            assert_eq!((origin.core.in_flight(), target.core.in_flight()), (0, 0));
            // Who would not understand it hears nothing.
            let told = if is_ours { vec![call] } else { vec![] };
            assert_eq!(target.core.counters().resp_unread, told.len() as u64);
            assert_eq!(target.notes.unread, told);
            assert!(target.notes.requests.is_empty(), "it is no request");
            assert_eq!(target.core.in_hand().requests_held, 0);
        }
    }
}

#[test]
fn damage_to_what_overflowed_is_found_at_either_end() {
    for format in &FORMATS[3..] {
        let (mut origin, mut target) = pair_with(options(*format));
        let long = pattern(70_000);
        // The arguments, with and without a response.
        for (token, how) in [(1, ForwardOptions::default()), (2, ForwardOptions::one_way())] {
            target.endpoint.damage_transfer();
            origin.call_with(&target, how, &long, token);
            settle(&mut origin, &mut target);
            assert!(target.notes.requests.is_empty());
            match ended(&mut origin, token) {
                Err(HgError::Remote(ReturnCode::ChecksumError)) => assert_eq!(token, 1),
                Ok(_) => assert_eq!(token, 2, "a one-way call ends when its arguments are free"),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(target.core.counters().checksum_errors, 2);
        // The result.
        origin.call(&target, b"", 3);
        let request = arrive(&mut origin, &mut target);
        origin.endpoint.damage_transfer();
        answer(request, &long, 4);
        settle(&mut origin, &mut target);
        let error = ended(&mut origin, 3).unwrap_err();
        assert!(matches!(error, HgError::Wire(WireError::PayloadChecksum { .. })), "{error}");
        assert!(matches!(target.notes.responded[&4], Err(HgError::Unread)), "and acknowledged");
        assert_eq!(origin.core.counters().checksum_errors, 1);
        assert_eq!((target.notes.unread.len(), target.core.counters().resp_unread), (1, 1));
        for side in [&origin, &target] {
            assert_eq!((side.core.in_flight(), side.endpoint.registered()), (0, 0));
        }
    }
}

#[test]
fn ends_at_different_levels_find_out() {
    let net = Net::default();
    let mut origin = Side::new(&net, options(FORMATS[1]));
    let mut target = Side::new(&net, options(FORMATS[3]));
    origin.call(&target, b"x", 1);
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::ChecksumError)), "{error}");
}

#[test]
fn checksums_without_room_for_them_are_refused() {
    let checksum_level = ChecksumLevel::Headers;
    let options = HgOptions { build: Build::Plain, checksum_level, ..HgOptions::default() };
    let error = Core::<u32>::new(Net::default().node(), options).unwrap_err();
    assert!(error.to_string().contains("Build::Checksum"), "{error}");
}
