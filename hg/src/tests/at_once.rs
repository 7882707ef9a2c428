//! A network that takes messages at once: no send has a completion.

use super::*;
use crate::Writer;

fn pair_at_once() -> (Side, Side) {
    let sides = pair();
    sides.0.endpoint.at_once();
    sides.1.endpoint.at_once();
    sides
}

/// Answers every request with its arguments.
struct Echo;

impl Sink<u32> for Echo {
    fn request(&mut self, mut request: RequestHandle<u32>) {
        let payload = request.payload().to_vec();
        request.payload_was_read();
        if !request.is_one_way() {
            let _ = request.respond(|writer| writer.put(&payload), 0).expect("an answer");
        }
    }

    fn response(&mut self, _: u32, _: Result<Response, HgError>) {}

    fn responded(&mut self, _: u32, _: Result<(), HgError>) {}

    fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
}

#[test]
fn calls_and_answers_of_any_length_end_once() {
    let (mut origin, target) = pair_at_once();
    let lengths = [0usize, 1, 100, 5000];
    for length in lengths {
        origin.call(&target, &pattern(length), length as u32);
    }
    let to = origin.addr_of(&target);
    for length in [3, 6000] {
        let encode = |writer: &mut Writer| writer.put(&pattern(length));
        let token = length as u32;
        let started = origin.core.forward(&to, SUM, ForwardOptions::one_way(), encode, token);
        started.map_err(|refused| refused.0).expect("forward");
    }
    while origin.step() + target.core.poll(64, &mut Echo).expect("poll") > 0 {}
    for length in lengths {
        assert_eq!(ended(&mut origin, length as u32).unwrap(), pattern(length));
    }
    for length in [3, 6000] {
        assert!(ended(&mut origin, length).unwrap().is_empty());
    }
    for side in [&origin, &target] {
        let hand = side.core.in_hand();
        assert_eq!((hand.operations, hand.tokens, hand.requests_held), (0, 0, 0));
        assert_eq!((side.endpoint.registered(), side.endpoint.posted().1), (0, 0));
    }
}

#[test]
fn a_call_that_was_taken_at_once_ends_with_its_peer() {
    let (mut origin, target) = pair_at_once();
    origin.call(&target, b"before", 1);
    target.endpoint.kill();
    // Not taken any more: its receive is posted first.
    origin.call(&target, b"after", 2);
    while origin.step() > 0 {}
    for token in [1, 2] {
        let error = ended(&mut origin, token).unwrap_err();
        assert!(matches!(error, HgError::Na(na::Error::PeerGone { .. })), "{error}");
    }
    let hand = origin.core.in_hand();
    assert_eq!((hand.operations, hand.tokens), (0, 0));
    assert_eq!(origin.endpoint.posted().1, 0);
}
