//! Peers whose build is asked before the first call.

use na::{Arrival, Completion, MsgBuf, OpId};

use super::net::{Kind, MESSAGE_MAX, Refuse};
use super::*;
use crate::core::builds::QUESTION;
use crate::header::{Build, Format, RequestHeader, flags};
use crate::wire;

const ASKING: fn() -> HgOptions = || HgOptions { ask_build: true, ..HgOptions::default() };

/// One that asks, and one that may be a C program of that build.
fn strangers(build: Build) -> (Side, Side) {
    let net = Net::default();
    let origin = Side::new(&net, ASKING());
    let target = Side::new(&net, HgOptions { build, ..HgOptions::default() });
    target.endpoint.is_foreign_to_others();
    (origin, target)
}

/// Requests that were sent, of `QUESTION` and of others.
fn asked_and_called(side: &Side) -> (usize, usize) {
    let sent = side.endpoint.sent();
    let requests = sent.iter().filter(|(kind, ..)| *kind == Kind::Unexpected);
    let is_question = |bytes: &[u8]| bytes[2..10] == QUESTION.0.to_be_bytes();
    let (asked, called): (Vec<_>, Vec<_>) = requests.partition(|(.., bytes)| is_question(bytes));
    (asked.len(), called.len())
}

#[test]
fn each_build_is_called_in_its_own_format_from_the_first_call_on() {
    // In the message, just in it whatever the build, just not, and far from it.
    let lens = [0, 5, MESSAGE_MAX - 20, MESSAGE_MAX - 19, MESSAGE_MAX - 15, 100_000];
    for (build, first) in [Build::Plain, Build::Checksum].into_iter().zip([0, 1]) {
        for (first, len) in (first..).zip(lens) {
            let (mut origin, mut target) = strangers(build);
            for token in 0..4 {
                // What is said with a deadline is not for strangers.
                let deadline = (first + token) % 2 == 0;
                let deadline = deadline.then(|| Instant::now() + 100 * PATIENCE);
                let options = ForwardOptions { deadline, ..ForwardOptions::default() };
                let payload = pattern(len);
                origin.call_with(&target, options, &payload, token);
                let request = arrive(&mut origin, &mut target);
                assert_eq!(request.payload(), payload);
                let long = pattern(if token % 2 == 0 { 9 } else { 2 * MESSAGE_MAX });
                answer(request, &long, 100 + token);
                settle(&mut origin, &mut target);
                assert_eq!(ended(&mut origin, token).unwrap(), long);
                assert_eq!(asked_and_called(&origin), (1, token as usize + 1), "asked once");
            }
            assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
            assert_eq!((origin.endpoint.registered(), target.endpoint.registered()), (0, 0));
            // The question is nobody's request.
            let counters = target.core.counters();
            let counted = (counters.rpc_req_recv, counters.not_registered, counters.malformed);
            assert_eq!(counted, (4, 0, 0));
            assert_eq!(origin.core.counters().rpc_req_sent, 4);
            let has_flag = |bytes: &[u8]| bytes[10] & flags::HAS_CHECKSUMS != 0;
            let sent = origin.endpoint.sent();
            let calls = sent.iter().skip(1).filter(|(kind, ..)| *kind == Kind::Unexpected);
            calls.for_each(|(.., bytes)| assert_eq!(has_flag(bytes), build == Build::Checksum));
        }
    }
}

#[test]
fn calls_that_begin_together_and_one_way_calls_ask_as_well() {
    for build in [Build::Plain, Build::Checksum] {
        let (mut origin, mut target) = strangers(build);
        for token in 0..4 {
            origin.call(&target, b"together", token);
            origin.call_with(&target, ForwardOptions::one_way(), b"one way", 10 + token);
        }
        origin.call_with(&target, ForwardOptions::one_way(), &pattern(5000), 20);
        settle(&mut origin, &mut target);
        assert_eq!(target.notes.requests.len(), 9);
        for request in std::mem::take(&mut target.notes.requests) {
            match request.payload() {
                b"together" => drop(answer(request, b"yes", 30 + request_number())),
                b"one way" => {}
                other => assert_eq!(other, pattern(5000)),
            }
        }
        settle(&mut origin, &mut target);
        for token in 0..4 {
            assert_eq!(ended(&mut origin, token).unwrap(), b"yes");
            assert_eq!(ended(&mut origin, 10 + token).unwrap(), b"");
        }
        assert_eq!(ended(&mut origin, 20).unwrap(), b"");
        assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
    }
}

fn request_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The next request at an endpoint without a core, if there is one.
fn received(target: &NodeEndpoint) -> Option<(Vec<u8>, Arrival)> {
    target.recv_unexpected(OpId(9), MsgBuf::with_capacity(MESSAGE_MAX)).unwrap();
    let mut came = None;
    target
        .poll(9, &mut |end| match end {
            Completion::Recv { buf, result, .. } => {
                came = Some((buf.as_slice().to_vec(), result.unwrap()));
            }
            Completion::Send { .. } => {}
            other => panic!("{other:?}"),
        })
        .unwrap();
    came
}

#[test]
fn the_question_is_a_request_of_either_build_and_each_answer_tells_one() {
    let own = |format: Format| {
        let mut buf = MsgBuf::with_capacity(64);
        wire::encode_refusal(
            &RequestHeader::in_format(QUESTION, format),
            ReturnCode::NoEntry,
            &mut buf,
        );
        buf.as_slice().to_vec()
    };
    // C's, with what was in its buffer behind the core header.
    let of_c = |build: Build, flag: u8| {
        let mut bytes = vec![0xAA; 2 * build.core_bytes()];
        bytes[..4].copy_from_slice(&[2, flag, 0, 0]);
        bytes
    };
    let cases = [
        (own(Build::Plain.into()), Some(Build::Plain)),
        (own(Build::Checksum.into()), Some(Build::Checksum)),
        (of_c(Build::Plain, 0), Some(Build::Plain)),
        (of_c(Build::Checksum, flags::HAS_CHECKSUMS), Some(Build::Checksum)),
        // Before Mercury 2.4.1.
        (of_c(Build::Checksum, 0), Some(Build::Checksum)),
        (vec![2; 11], None),
    ];
    for (answer, build) in cases {
        let net = Net::default();
        let mut origin = Side::new(&net, ASKING());
        let target = net.node();
        target.is_foreign_to_others();
        let to = origin.core.lookup(target.self_addr().uri()).unwrap();
        let forward = |origin: &Side, token| {
            origin.core.forward(&to, SUM, ForwardOptions::default(), |w| w.put(b"args"), token)
        };
        forward(&origin, 1).unwrap();
        let (question, arrival) = received(&target).unwrap();
        // As docs/wire.md has it.
        let mut documented = vec![0; 20];
        documented[..14].copy_from_slice(b"\xd7\x05margo-rs\x00\x00\x32\x07");
        assert_eq!(question, documented);
        for format in [Build::Plain, Build::Checksum] {
            for level in [crate::ChecksumLevel::None, crate::ChecksumLevel::Headers] {
                let read = RequestHeader::read_core(Format::new(format, level), &question);
                assert_eq!(read.unwrap().id, QUESTION);
            }
        }
        let mut buf = MsgBuf::with_capacity(64);
        assert!(buf.try_extend(&answer));
        target.send_expected(OpId(2), &arrival.from, arrival.tag, buf).unwrap();
        while origin.step() > 0 {}
        let Some(build) = build else {
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Wire(_))));
            continue;
        };
        let (request, again) = received(&target).unwrap();
        assert_eq!(again.tag, arrival.tag);
        let (header, payload) = RequestHeader::read(build, &request).unwrap();
        assert_eq!((header.id, payload), (SUM, &b"args"[..]));
        forward(&origin, 2).unwrap();
        let (request, _) = received(&target).unwrap();
        let (header, payload) = RequestHeader::read(build, &request).unwrap();
        assert_eq!((header.id, payload), (SUM, &b"args"[..]), "it is known by now");
        origin.core.close();
        while origin.step() > 0 {}
        assert!(ended(&mut origin, 1).is_err() && ended(&mut origin, 2).is_err());
    }
}

#[test]
fn a_call_that_asks_ends_as_others_do() {
    for one_way in [false, true] {
        let options = if one_way { ForwardOptions::one_way() } else { ForwardOptions::default() };
        for payload in [pattern(10), pattern(5000)] {
            // It is canceled before the answer comes.
            let (mut origin, mut target) = strangers(Build::Checksum);
            let op = origin.call_with(&target, options, &payload, 1);
            origin.core.cancel(op);
            origin.step();
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Canceled)));
            settle(&mut origin, &mut target);
            assert!(target.notes.requests.is_empty(), "it was not sent");
            assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
            assert_eq!(origin.endpoint.registered(), 0);

            // Its peer dies before it answers.
            let (mut origin, target) = strangers(Build::Checksum);
            origin.call_with(&target, options, &payload, 1);
            target.endpoint.kill();
            while origin.step() > 0 {}
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Na(_))));
            assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
            assert_eq!(origin.endpoint.registered(), 0);

            // The endpoint closes.
            let (mut origin, target) = strangers(Build::Checksum);
            origin.call_with(&target, options, &payload, 1);
            origin.core.close();
            while origin.step() > 0 {}
            assert!(matches!(ended(&mut origin, 1), Err(HgError::Closed)));
            assert_eq!(origin.core.in_flight(), 0);

            // The network refuses the question, or what comes after it.
            for (what, more) in [(Refuse::Send, 0), (Refuse::Receive, 0), (Refuse::Send, 1)] {
                let (mut origin, mut target) = strangers(Build::Checksum);
                origin.endpoint.refuse_after(what, more);
                let to = origin.addr_of(&target);
                let put = |writer: &mut crate::Writer| writer.put(&payload);
                let started = origin.core.forward(&to, SUM, options, put, 1);
                assert_eq!(started.is_err(), more == 0);
                settle(&mut origin, &mut target);
                if more > 0 {
                    assert!(ended(&mut origin, 1).is_err());
                }
                assert_eq!((origin.core.in_flight(), origin.endpoint.posted().1), (0, 0));
                assert_eq!(origin.endpoint.registered(), 0);
            }
        }
    }
}

/// The end of the question's send is told after its answer.
#[test]
fn the_request_waits_until_the_question_has_left() {
    for options in [ForwardOptions::default(), ForwardOptions::one_way()] {
        let net = Net::default();
        let mut origin = Side::new(&net, ASKING());
        let target = net.node();
        target.is_foreign_to_others();
        let to = origin.core.lookup(target.self_addr().uri()).unwrap();
        let back = target.lookup(origin.core.self_addr().uri()).unwrap();
        let number = origin.core.state().next_numbers()[0];
        let tag = origin.core.space.tag(number, None);
        origin.endpoint.hold_sends(true);
        origin.core.forward(&to, SUM, options, |writer| writer.put(b"late"), 1).unwrap();
        let asked = RequestHeader::in_format(QUESTION, Build::Checksum.into());
        let mut told = MsgBuf::with_capacity(64);
        wire::encode_refusal(&asked, ReturnCode::NoEntry, &mut told);
        target.send_expected(OpId(1), &back, tag, told).unwrap();
        while origin.step() > 0 {}
        assert!(origin.notes.responses.is_empty() && origin.core.in_flight() == 1);
        origin.endpoint.hold_sends(false);
        while origin.step() > 0 {}
        let (question, _) = received(&target).unwrap();
        assert_eq!(RequestHeader::read(Build::Plain, &question).unwrap().0.id, QUESTION);
        let (request, _) = received(&target).unwrap();
        let (header, payload) = RequestHeader::read(Build::Checksum, &request).unwrap();
        assert_eq!((header.id, payload), (SUM, &b"late"[..]));
        assert_eq!(received(&target).map(|(message, _)| message), None);
        assert_eq!(origin.notes.responses.contains_key(&1), header.no_response);
        origin.core.close();
        while origin.step() > 0 {}
        assert_eq!(origin.core.in_flight(), 0);
    }
}

/// Somebody else may listen there after the end of a peer.
#[test]
fn peers_are_asked_again_after_an_error_of_the_network() {
    let net = Net::default();
    let mut origin = Side::new(&net, ASKING());
    let mut targets = [0, 1].map(|_| Side::new(&net, HgOptions::default()));
    for (token, target) in (0..).zip(&mut targets) {
        target.endpoint.is_foreign_to_others();
        for token in [2 * token, 2 * token + 1] {
            origin.call(target, b"", token);
            // An error of the peer's is none of the network's.
            drop(arrive(&mut origin, target));
            settle(&mut origin, target);
        }
    }
    assert_eq!(asked_and_called(&origin), (2, 4));
    let [mut target, gone] = targets;
    origin.call(&gone, b"", 5);
    gone.endpoint.kill();
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 5), Err(HgError::Na(_))));
    origin.call(&target, b"", 6);
    drop(arrive(&mut origin, &mut target));
    assert_eq!(asked_and_called(&origin), (3, 6));
}

/// Our own peers need not be asked, and nobody is where the build was said.
#[test]
fn who_is_known_is_not_asked() {
    let net = Net::default();
    let (mut origin, mut target) = (Side::new(&net, ASKING()), Side::new(&net, ASKING()));
    origin.call(&target, b"", 1);
    drop(arrive(&mut origin, &mut target));
    assert_eq!(asked_and_called(&origin), (0, 1));
    let options = HgOptions { build: Build::Checksum, ..ASKING() };
    let (mut origin, mut target) = (Side::new(&net, options), Side::new(&net, ASKING()));
    target.endpoint.is_foreign_to_others();
    origin.call(&target, b"", 1);
    drop(arrive(&mut origin, &mut target));
    assert_eq!(asked_and_called(&origin), (0, 1));
}
