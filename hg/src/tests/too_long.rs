//! Peers that take shorter messages than we do.

use super::net::{MESSAGE_MAX, Refuse};
use super::*;
use crate::ChecksumLevel;
use crate::header::Build;

/// Fits into a message for us, and not into one for the other side.
const LEN: usize = MESSAGE_MAX / 2;
const SHORT_MAX: usize = MESSAGE_MAX / 4;

/// Options for each format that the layers below write.
fn formats() -> Vec<HgOptions> {
    let plain = HgOptions::default();
    let sums = HgOptions {
        build: Build::Checksum,
        checksum_level: ChecksumLevel::Payload,
        ..HgOptions::default()
    };
    vec![plain, sums]
}

fn each(test: impl Fn(HgOptions, bool)) {
    for options in formats() {
        for known in [false, true] {
            test(options.clone(), known);
        }
    }
}

fn is_clean(side: &Side) {
    assert_eq!(side.endpoint.registered(), 0, "nothing stays exposed");
    assert_eq!(side.core.in_flight(), 0, "nothing stays in flight");
    assert_eq!(side.endpoint.posted().1, 0, "no receive stays posted");
}

#[test]
fn arguments_overflow() {
    each(|options, known| {
        let (mut origin, mut target) = pair_with(options);
        target.endpoint.takes(SHORT_MAX, known);
        let payload = pattern(LEN);
        origin.call(&target, &payload, 1);
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), payload);
        answer(request, b"ok", 2);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), b"ok");
        assert_eq!((origin.core.counters().req_extra, target.core.counters().req_extra), (1, 1));
        is_clean(&origin);
        is_clean(&target);
    });
}

#[test]
fn arguments_with_something_beside_overflow() {
    let (mut origin, mut target) = pair();
    target.endpoint.takes(SHORT_MAX, false);
    let deadline = Some(Instant::now() + PATIENCE);
    let options = ForwardOptions { deadline, ..ForwardOptions::default() };
    let payload = pattern(LEN);
    origin.call_with(&target, options, &payload, 1);
    let request = arrive(&mut origin, &mut target);
    assert_eq!(request.payload(), payload);
    assert!(request.deadline().is_some(), "it was said all the same");
    answer(request, b"ok", 2);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), b"ok");
}

#[test]
fn one_way_arguments_overflow() {
    each(|options, known| {
        let (mut origin, mut target) = pair_with(options);
        target.endpoint.takes(SHORT_MAX, known);
        let payload = pattern(LEN);
        origin.call_with(&target, ForwardOptions::one_way(), &payload, 1);
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), payload);
        drop(request);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), b"");
        is_clean(&origin);
    });
}

#[test]
fn results_overflow() {
    each(|options, known| {
        let (mut origin, mut target) = pair_with(options);
        origin.endpoint.takes(SHORT_MAX, known);
        let payload = pattern(LEN);
        origin.call(&target, b"", 1);
        let request = arrive(&mut origin, &mut target);
        answer(request, &payload, 2);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), payload);
        assert!(target.notes.responded[&2].is_ok());
        is_clean(&origin);
        is_clean(&target);
    });
}

#[test]
fn without_overflow_both_sides_are_told() {
    for known in [false, true] {
        let options = HgOptions { overflow: false, ..HgOptions::default() };
        let (mut origin, mut target) = pair_with(options);
        target.endpoint.takes(SHORT_MAX, known);
        let to = origin.addr_of(&target);
        let payload = pattern(LEN);
        let options = ForwardOptions::default();
        let started = origin.core.forward(&to, SUM, options, |out| out.put(&payload), 1);
        let error = match started {
            Err(refused) if refused.1 == 1 => refused.0,
            other => {
                assert!(other.is_ok() && !known, "{other:?}");
                settle(&mut origin, &mut target);
                ended(&mut origin, 1).unwrap_err()
            }
        };
        assert!(matches!(error, HgError::Na(na::Error::TooLong { .. })), "{error}");
        is_clean(&origin);

        origin.endpoint.takes(SHORT_MAX, known);
        origin.call(&target, b"", 2);
        let request = arrive(&mut origin, &mut target);
        match request.respond(|writer| writer.put(&payload), 3).map_err(|failed| failed.0) {
            Ok(_) => assert!(!known),
            Err(error) => assert!(known, "{error:?}"),
        }
        settle(&mut origin, &mut target);
        let error = ended(&mut origin, 2).expect_err("an error, and not silence");
        let expected = if known { ReturnCode::OtherError } else { ReturnCode::MsgSize };
        assert!(matches!(error, HgError::Remote(code) if code == expected), "{error}");
        is_clean(&origin);
        is_clean(&target);
    }
}

#[test]
fn a_call_that_was_given_up_is_not_sent_again() {
    let (mut origin, mut target) = pair();
    target.endpoint.takes(SHORT_MAX, false);
    let op = origin.call(&target, &pattern(LEN), 1);
    origin.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
    assert!(target.notes.requests.is_empty());
    assert_eq!(origin.endpoint.registered(), 0);
}

#[test]
fn what_cannot_be_sent_again_ends_with_an_error() {
    // The network refuses the receive of the acknowledgement, then the message itself.
    for refused in [Refuse::Receive, Refuse::Send] {
        let (mut origin, mut target) = pair();
        origin.endpoint.takes(SHORT_MAX, false);
        origin.call(&target, b"", 1);
        let request = arrive(&mut origin, &mut target);
        answer(request, &pattern(LEN), 2);
        target.endpoint.refuse(refused);
        settle(&mut origin, &mut target);
        assert!(target.notes.responded[&2].is_err(), "{refused:?}");
        let error = ended(&mut origin, 1).expect_err("an error, and not silence");
        assert!(matches!(error, HgError::Remote(ReturnCode::MsgSize)), "{refused:?}: {error}");
        is_clean(&origin);
        is_clean(&target);
    }
}

#[test]
fn results_that_would_be_kept_beyond_the_limit_are_errors_at_both_ends() {
    for known in [false, true] {
        let options = HgOptions { overflow_held_max: LEN + 1, ..HgOptions::default() };
        let (mut origin, mut target) = pair_with(options);
        origin.endpoint.takes(SHORT_MAX, known);
        origin.endpoint.freeze_moves(true);
        let payload = pattern(LEN);
        origin.call(&target, b"", 1);
        answer(arrive(&mut origin, &mut target), &payload, 1);
        settle(&mut origin, &mut target);
        assert_eq!(target.core.in_hand().result_bytes_kept, LEN, "known: {known}");
        origin.call(&target, b"", 2);
        let request = arrive(&mut origin, &mut target);
        let refused = request.respond(|writer| writer.put(&payload), 2).map_err(|failed| *failed);
        settle(&mut origin, &mut target);
        let (error, code) = match refused {
            Err((error, request)) => {
                assert!(known && target.notes.responded.is_empty());
                request.expect("it can still be answered").reject(ReturnCode::NoMem);
                settle(&mut origin, &mut target);
                (error, ended(&mut origin, 2))
            }
            Ok(_) => {
                assert!(!known);
                let told = target.notes.responded.remove(&2).expect("it is over");
                (told.unwrap_err(), ended(&mut origin, 2))
            }
        };
        assert!(matches!(error, HgError::Unfetched { len: LEN, .. }), "{error}");
        assert!(matches!(code, Err(HgError::Remote(ReturnCode::NoMem))), "{code:?}");
        origin.endpoint.freeze_moves(false);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), payload);
        assert_eq!(target.core.in_hand().result_bytes_kept, 0);
        is_clean(&origin);
        is_clean(&target);
    }
}
