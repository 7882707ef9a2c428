//! A network that takes messages at once: requests are sent before the receive of their response is
//! posted, and no send has a completion.

use super::net::Refuse;
use super::*;
use crate::hg::Writer;

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
        started.map_err(|(error, _)| error).expect("forward");
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
fn a_response_may_be_quicker_than_its_receive() {
    let (mut origin, target) = pair_at_once();
    let core = target.core.clone();
    origin.endpoint.before_a_receive(move || {
        assert_eq!(core.poll(64, &mut Echo).expect("poll"), 1, "the request is there");
    });
    origin.call(&target, b"abc", 1);
    settle(&mut origin, &mut { target });
    assert_eq!(ended(&mut origin, 1).unwrap(), b"abc");
}

#[test]
fn a_receive_that_is_refused_after_the_send_ends_the_call_through_the_sink() {
    let (mut origin, mut target) = pair_at_once();
    origin.endpoint.refuse(Refuse::Receive);
    origin.call(&target, b"abc", 1);
    assert!(origin.core.has_queued(), "who polls is to be woken");
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(error, HgError::Na(na::Error::InvalidArgument(_))), "{error}");
    assert_eq!((origin.core.in_flight(), origin.core.in_hand().operations), (0, 0));
    assert_eq!(target.notes.requests.len(), 1, "it was sent");
}
