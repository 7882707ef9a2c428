//! Cases about addresses and single messages.

use std::collections::HashSet;

use super::Case;
use super::Random;
use super::node::{Node, finish, greet, pattern};
use crate::{Addr, Error, MsgBuf, OpId, OpenOptions, Tag};

/// Addresses have identity, order-independent equality and a text form.
pub fn addresses_compare_and_name_their_peer(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let own = target.endpoint.self_addr();
    assert!(own.uri().contains(target.endpoint.transport()), "{own}");
    assert_eq!(target.endpoint.self_addr(), own);
    assert_eq!(target.endpoint.lookup(own.uri()).expect("own address"), own, "self lookup");

    let seen = origin.addr_of(&target);
    assert_eq!(origin.addr_of(&target), seen, "two lookups are one peer");
    assert_ne!(seen, own, "addresses belong to their endpoint");
    assert_ne!(seen, origin.endpoint.self_addr());
    assert_eq!(seen.uri(), own.uri());
    assert_eq!(HashSet::from([seen.clone(), origin.addr_of(&target)]).len(), 1, "hash follows eq");

    let other = Node::open(case, true);
    assert_ne!(origin.addr_of(&other), seen, "two peers are two addresses");
}

/// An address travels as bytes; bytes that are no address are refused.
pub fn addresses_survive_serialisation(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let own = target.endpoint.self_addr();
    let bytes = own.to_bytes().expect("an address is short");
    assert!(bytes.len() <= Addr::BYTES_MAX);
    assert_eq!(target.endpoint.addr_from_bytes(&bytes).expect("our own"), own);
    let seen = origin.endpoint.addr_from_bytes(&bytes).expect("the target's");
    assert_eq!(seen, origin.addr_of(&target));
    assert_eq!(seen.to_bytes().expect("an address is short"), bytes, "whoever writes it");

    // It is good for more than comparing.
    let received = target.recv_unexpected();
    origin.send_unexpected(&seen, 1, b"by serialised address");
    finish(&[&target, &origin], "a message", &[received]);
    assert_eq!(target.received(received).1, b"by serialised address");

    let mut other_format = bytes.clone();
    other_format[0] ^= 0x80;
    let mut not_text = bytes.clone();
    not_text.push(0xFF);
    let long = [&bytes[..], &[b'x'; Addr::BYTES_MAX]].concat();
    for wrong in [&[][..], &other_format, &not_text, &long, b"\x01", b"\x01nonsense://"] {
        let error = origin.endpoint.addr_from_bytes(wrong).expect_err("not an address");
        let told = matches!(error, Error::InvalidArgument(_) | Error::BadUri { .. });
        assert!(told, "{wrong:?}: {error}");
    }
}

/// Text that is no address of this transport is refused with `BadUri`.
pub fn bad_addresses_are_refused(case: &Case<'_>) {
    let (_, origin) = Node::pair(case);
    let transport = origin.endpoint.transport();
    for text in ["", "://", "nonsense", "na+nosuch://x", &format!("na+{transport}://\u{0}")] {
        let error = origin.endpoint.lookup(text).expect_err(text);
        assert!(matches!(error, Error::BadUri { .. }), "{text:?}: {error}");
    }
}

/// One unexpected message and one expected answer, with tags and sources.
pub fn echoes_both_kinds(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let asked = target.recv_unexpected();
    let answered = origin.recv_expected(&to_target, 77);
    let sent = origin.send_unexpected(&to_target, 4_000_000_000, b"ping");
    finish(&[&target, &origin], "the request", &[asked]);
    let (arrival, bytes) = target.received(asked);
    assert_eq!((arrival.tag, bytes.as_slice()), (Tag(4_000_000_000), b"ping".as_slice()));

    let replied = target.send_expected(&arrival.from, 77, b"pong");
    finish(&[&origin, &target], "the answer", &[answered, sent]);
    finish(&[&target, &origin], "the end of the answer's send", &[replied]);
    origin.succeeded(sent);
    target.succeeded(replied);
    let (arrival, bytes) = origin.received(answered);
    assert_eq!((arrival.from, arrival.tag), (to_target, Tag(77)));
    assert_eq!(bytes, b"pong");
}

/// Messages that come before their receive wait for it.
pub fn receives_posted_after_the_message(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    // The receives of a later message prove that the earlier ones have arrived.
    let first = origin.send_unexpected(&to_target, 1, b"early unexpected");
    let second = origin.send_expected(&to_target, 2, b"early expected");
    origin.send_expected(&to_target, 3, b"last");
    let last = target.recv_expected(&to_origin, 3);
    finish(&[&target, &origin], "the last message", &[last]);
    let unexpected = target.recv_unexpected();
    let expected = target.recv_expected(&to_origin, 2);
    finish(&[&target, &origin], "the early messages", &[unexpected, expected]);
    assert_eq!(target.received(unexpected).1, b"early unexpected");
    assert_eq!(target.received(expected).1, b"early expected");
    finish(&[&origin, &target], "the sends", &[first, second]);
}

/// An expected receive takes only its own source and tag; an unexpected one takes anything.
pub fn tags_and_sources_are_told_apart(case: &Case<'_>) {
    let (target, first) = Node::pair(case);
    let second = Node::open(case, false);
    let (to_target, from_first) = greet(&first, &target);
    let (also_to_target, from_second) = greet(&second, &target);
    assert_ne!(from_first, from_second);
    let nodes = [&target, &first, &second];

    let wanted = [
        (target.recv_expected(&from_first, 1), b"first, 1".as_slice()),
        (target.recv_expected(&from_first, 2), b"first, 2"),
        (target.recv_expected(&from_second, 1), b"second, 1"),
        (target.recv_expected(&from_second, 2), b"second, 2"),
    ];
    let any = [target.recv_unexpected(), target.recv_unexpected()];
    second.send_expected(&also_to_target, 2, b"second, 2");
    first.send_expected(&to_target, 2, b"first, 2");
    first.send_unexpected(&to_target, 1, b"any of first");
    first.send_expected(&to_target, 1, b"first, 1");
    second.send_expected(&also_to_target, 1, b"second, 1");
    second.send_unexpected(&also_to_target, 1, b"any of second");

    finish(&nodes, "the expected messages", &wanted.map(|(op, _)| op));
    finish(&nodes, "the unexpected messages", &any);
    for (op, text) in wanted {
        assert_eq!(target.received(op).1, text);
    }
    let mut texts = any.map(|op| {
        let (arrival, bytes) = target.received(op);
        let source = if arrival.from == from_first { "first" } else { "second" };
        assert_eq!(bytes, format!("any of {source}").as_bytes());
        bytes
    });
    texts.sort();
    assert_ne!(texts[0], texts[1]);
}

/// Messages of one kind arrive in the order of their sends; equal tags are served in order.
pub fn order_is_kept_per_peer(case: &Case<'_>) {
    order_is_kept(&Node::pair(case), |_, _, _| false);
}

/// Messages that a transport takes at once keep their place among the others, and a message that it
/// could not take at once was not sent.
pub fn what_is_sent_at_once_keeps_its_order(case: &Case<'_>) {
    let pair = Node::pair(case);
    let (target, origin) = &pair;
    let at_once = &*origin.endpoint;
    let to_target = order_is_kept(&pair, |kind, to_target, number| {
        let bytes = number.to_le_bytes();
        // Now and then the slow way, to have something in front.
        match kind {
            Kind::Unexpected if number % 5 != 0 => {
                at_once.send_unexpected_now(to_target, Tag(number), &bytes)
            }
            Kind::Expected if number % 7 != 0 => {
                at_once.send_expected_now(to_target, Tag(9), &bytes)
            }
            _ => false,
        }
    });
    let too_long = vec![0; origin.endpoint.limits().unexpected_bytes_max + 1];
    assert!(!at_once.send_unexpected_now(&to_target, Tag(1), &too_long));
    assert!(!at_once.send_expected_now(&target.endpoint.self_addr(), Tag(1), b"foreign"));
    origin.endpoint.close();
    assert!(!at_once.send_unexpected_now(&to_target, Tag(1), b"closed"));
}

/// A request that is sent at once together with the receive of its answer: either both happened, or
/// nothing did and the buffer is back.
pub fn a_call_at_once_is_sent_and_answered_or_refused_whole(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let refused = |to: &Addr, capacity: usize, len: usize| {
        let mut buf = MsgBuf::with_capacity(capacity);
        buf.set_len(len);
        buf.as_mut_slice().fill(7);
        let call = origin.endpoint.call_now(origin.op(), to, Tag(1), buf);
        let buf = call.expect_err("nothing was started");
        assert_eq!(buf.as_slice(), vec![7; len]);
    };
    let limits = origin.endpoint.limits();
    let room = limits.unexpected_bytes_max.max(limits.expected_bytes_max);
    // Nobody is connected yet.
    refused(&origin.addr_of(&target), room, 3);
    let (to_target, _) = greet(&origin, &target);
    refused(&to_target, room + 1, limits.unexpected_bytes_max + 1);
    refused(&to_target, 3, 3);
    refused(&target.endpoint.self_addr(), room, 3);
    refused(&origin.endpoint.self_addr(), room, 3);

    // What went at once and what did not keep their order, and so do their answers.
    const COUNT: u32 = 200;
    let requests: Vec<_> = (0..COUNT).map(|_| target.recv_unexpected()).collect();
    let answers: Vec<_> = (0..COUNT).map(|number| call(&origin, &to_target, number)).collect();
    finish(&[&target, &origin], "the requests", &requests);
    for (number, request) in (0..COUNT).zip(requests) {
        let (arrival, bytes) = target.received(request);
        assert_eq!((arrival.tag, &bytes[..]), (Tag(number), &number.to_le_bytes()[..]));
        target.send_expected(&arrival.from, number, &bytes);
    }
    finish(&[&origin, &target], "the answers", &answers);
    for (number, answer) in (0..COUNT).zip(answers) {
        let (arrival, bytes) = origin.received(answer);
        assert_eq!((arrival.from, arrival.tag), (to_target.clone(), Tag(number)));
        assert_eq!(bytes, number.to_le_bytes());
    }

    // It is canceled as any receive.
    let canceled = call(&origin, &to_target, 1);
    origin.endpoint.cancel(canceled);
    finish(&[&origin], "the canceled call", &[canceled]);
    assert!(matches!(origin.error(canceled), Error::Canceled));

    let waiting = call(&origin, &to_target, 2);
    origin.endpoint.close();
    refused(&to_target, room, 3);
    finish(&[&origin], "a call when its endpoint closes", &[waiting]);
    assert!(matches!(origin.error(waiting), Error::Closed));
}

/// Sends a request, its own number, and posts the receive of its answer: at once or, if the
/// transport cannot, one after the other.
pub(super) fn call(origin: &Node, to: &Addr, number: u32) -> OpId {
    let (op, request) = (origin.op(), origin.message(&number.to_le_bytes()));
    if let Err(request) = origin.endpoint.call_now(op, to, Tag(number), request) {
        let reply = origin.endpoint.alloc_msg();
        origin.endpoint.recv_expected(op, to, Tag(number), reply).expect("recv_expected");
        let sent = origin.op();
        origin.endpoint.send_unexpected(sent, to, Tag(number), request).expect("send_unexpected");
    }
    op
}

/// How a message is received.
#[derive(Clone, Copy)]
enum Kind {
    Unexpected,
    Expected,
}

/// Sends many messages of both kinds, those that `now` does not send itself in the ordinary way,
/// and checks their order. Returns the target's address.
fn order_is_kept((target, origin): &(Node, Node), now: impl Fn(Kind, &Addr, u32) -> bool) -> Addr {
    const COUNT: u32 = 1000;
    let (to_target, to_origin) = greet(origin, target);
    let unexpected: Vec<_> = (0..COUNT).map(|_| target.recv_unexpected()).collect();
    let expected: Vec<_> = (0..COUNT).map(|_| target.recv_expected(&to_origin, 9)).collect();
    for number in 0..COUNT {
        if !now(Kind::Unexpected, &to_target, number) {
            origin.send_unexpected(&to_target, number, &number.to_le_bytes());
        }
        if !now(Kind::Expected, &to_target, number) {
            origin.send_expected(&to_target, 9, &number.to_le_bytes());
        }
        if number % 11 == 0 {
            target.poll();
            origin.poll();
        }
    }
    finish(&[target, origin], "all unexpected", &unexpected);
    finish(&[target, origin], "all expected", &expected);
    for (number, (first, second)) in (0..COUNT).zip(unexpected.into_iter().zip(expected)) {
        let (arrival, bytes) = target.received(first);
        assert_eq!((arrival.tag, bytes), (Tag(number), number.to_le_bytes().to_vec()));
        assert_eq!(target.received(second).1, number.to_le_bytes());
    }
    to_target
}

/// Several senders at once: order is kept for each of them, and nothing of theirs is mixed up.
pub fn order_is_kept_among_peers(case: &Case<'_>) {
    const PEERS: usize = 4;
    const EACH: u32 = 300;
    let (target, first) = Node::pair(case);
    let mut origins = vec![first];
    origins.extend((1..PEERS).map(|_| Node::open(case, false)));
    let addrs: Vec<_> = origins.iter().map(|origin| greet(origin, &target)).collect();
    let expected: Vec<Vec<_>> = addrs
        .iter()
        .map(|(_, from)| (0..EACH).map(|_| target.recv_expected(from, 5)).collect())
        .collect();
    let mut any = Vec::new();
    let mut random = Random::new(11);
    let mut sent = [0; PEERS];
    while sent.iter().any(|count| *count < EACH) {
        let at = random.below(PEERS);
        if sent[at] == EACH {
            continue;
        }
        let bytes = [at as u32, sent[at]].map(u32::to_le_bytes).concat();
        origins[at].send_expected(&addrs[at].0, 5, &bytes);
        origins[at].send_unexpected(&addrs[at].0, 5, &bytes);
        sent[at] += 1;
        // Some receives are posted before the message, some after.
        if random.below(2) == 0 {
            any.push(target.recv_unexpected());
        }
        if random.below(16) == 0 {
            target.poll();
            origins[at].poll();
        }
    }
    any.extend((any.len()..PEERS * EACH as usize).map(|_| target.recv_unexpected()));
    let mut nodes = vec![&target];
    nodes.extend(&origins);
    finish(&nodes, "all unexpected messages", &any);
    let mut next = [0; PEERS];
    for op in any {
        let (arrival, bytes) = target.received(op);
        let at = addrs.iter().position(|(_, from)| *from == arrival.from).expect("a known peer");
        assert_eq!(bytes, [at as u32, next[at]].map(u32::to_le_bytes).concat());
        next[at] += 1;
    }
    for (at, ops) in expected.iter().enumerate() {
        finish(&nodes, "the expected messages of a peer", ops);
        for (number, op) in (0..EACH).zip(ops) {
            let bytes = [at as u32, number].map(u32::to_le_bytes).concat();
            assert_eq!(target.received(*op).1, bytes);
        }
    }
}

/// Between two limits the smaller one counts, in both directions and before it is known.
pub fn a_smaller_limit_of_the_peer_counts(case: &Case<'_>) {
    const SMALL: usize = 1000;
    let mut of_target = OpenOptions::listening(true);
    of_target.message_bytes_max = SMALL;
    let Some((target, origin)) = Node::pair_with(case, &of_target, &OpenOptions::default()) else {
        return;
    };
    let to_target = origin.addr_of(&target);
    let received = target.recv_unexpected();
    let long = origin.send_unexpected(&to_target, 1, &[1; SMALL + 1]);
    let fits = origin.send_unexpected(&to_target, 2, &[2; SMALL]);
    finish(&[&target, &origin], "the message that fits", &[received]);
    finish(&[&origin, &target], "both sends", &[long, fits]);
    let error = origin.error(long);
    assert!(matches!(error, Error::TooLong { len: 1001, max: SMALL }), "{error}");
    origin.succeeded(fits);
    let (arrival, bytes) = target.received(received);
    assert_eq!((arrival.tag, bytes.len()), (Tag(2), SMALL));
    let answered = origin.recv_expected(&to_target, 3);
    target.send_expected(&arrival.from, 3, &[3; SMALL]);
    finish(&[&origin, &target], "the answer", &[answered]);
    assert_eq!(origin.received(answered).1, [3; SMALL]);
}

/// Sixteen times the usual limit at both ends: as many and as long as fit, in both directions.
pub fn long_messages_pass_where_they_are_allowed(case: &Case<'_>) {
    const LONG: usize = 64 << 10;
    // Some transports say in each request who sends it.
    const SENDER_BYTES_MAX: usize = 128;
    let with_limit = |listen| {
        let mut options = OpenOptions::listening(listen);
        options.message_bytes_max = LONG;
        options
    };
    let nodes = Node::pair_with(case, &with_limit(true), &with_limit(false));
    let Some((target, origin)) = nodes else { return };
    let limits = origin.endpoint.limits();
    assert_eq!(limits.expected_bytes_max, LONG);
    let longest = limits.unexpected_bytes_max;
    assert!((LONG - SENDER_BYTES_MAX..=LONG).contains(&longest), "{longest}");
    let (to_target, to_origin) = greet(&origin, &target);
    // More than any transport holds back in between.
    let lens = [0, 1, 4095, 4096, 4097, LONG / 2, longest - 1, longest].repeat(8);
    let messages = lens.into_iter().zip(0..).map(|(len, tag)| (tag, pattern(tag.into(), len)));
    let messages: Vec<(u32, Vec<u8>)> = messages.collect();
    let asked: Vec<_> = messages.iter().map(|_| target.recv_unexpected()).collect();
    let answers: Vec<_> =
        messages.iter().map(|(tag, _)| origin.recv_expected(&to_target, *tag)).collect();
    let mut sends = Vec::new();
    for (tag, bytes) in &messages {
        sends.push((&origin, origin.send_unexpected(&to_target, *tag, bytes)));
        sends.push((&target, target.send_expected(&to_origin, *tag, bytes)));
    }
    finish(&[&target, &origin], "requests", &asked);
    finish(&[&origin, &target], "answers", &answers);
    for ((op, answer), (tag, bytes)) in asked.into_iter().zip(answers).zip(&messages) {
        let (arrival, found) = target.received(op);
        assert!(arrival.tag == Tag(*tag) && found == *bytes, "request {tag}");
        assert!(origin.received(answer).1 == *bytes, "answer {tag}");
    }
    for (node, op) in sends {
        finish(&[node], "a send", &[op]);
        node.succeeded(op);
    }
    let mut buf = origin.endpoint.alloc_msg();
    assert!(!buf.try_extend(&[0; LONG + 1]), "longer than allowed");
}

/// The extremes of length are ordinary messages.
pub fn empty_and_longest_messages_pass(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let limits = origin.endpoint.limits();
    for len in [0, 1, limits.unexpected_bytes_max - 1, limits.unexpected_bytes_max] {
        let bytes = pattern(len as u64, len);
        let received = target.recv_unexpected();
        origin.send_unexpected(&to_target, 1, &bytes);
        finish(&[&target, &origin], "an unexpected message", &[received]);
        assert_eq!(target.received(received).1, bytes);
    }
    for len in [0, 1, limits.expected_bytes_max - 1, limits.expected_bytes_max] {
        let bytes = pattern(len as u64, len);
        let received = origin.recv_expected(&to_target, 5);
        target.send_expected(&to_origin, 5, &bytes);
        finish(&[&origin, &target], "an expected message", &[received]);
        assert_eq!(origin.received(received).1, bytes);
    }
}

/// Too long a message and too short a receive buffer are refused, and the buffer comes back.
pub fn what_does_not_fit_is_refused_with_its_buffer(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let to_target = origin.addr_of(&target);
    let limits = origin.endpoint.limits();
    let longest = limits.unexpected_bytes_max.max(limits.expected_bytes_max);
    let long = || {
        let mut buf = MsgBuf::with_capacity(longest + 1);
        buf.spare_mut().fill(7);
        buf.set_len(longest + 1);
        buf
    };
    let op = origin.op();
    let sends = [
        origin.endpoint.send_unexpected(op, &to_target, Tag(1), long()),
        origin.endpoint.send_expected(op, &to_target, Tag(1), long()),
    ];
    for refused in sends.map(|sent| sent.expect_err("too long")) {
        let Error::TooLong { len, max } = refused.error else { panic!("{refused}") };
        assert_eq!(len, longest + 1);
        assert!(max <= longest);
        assert_eq!(refused.buf.len(), longest + 1);
        assert!(refused.buf.as_slice().iter().all(|byte| *byte == 7));
    }
    let short = || MsgBuf::with_capacity(1);
    let receives = [
        origin.endpoint.recv_unexpected(op, short()),
        origin.endpoint.recv_expected(op, &to_target, Tag(1), short()),
    ];
    for refused in receives.map(|posted| posted.expect_err("buffer below the limit")) {
        assert!(matches!(refused.error, Error::InvalidArgument(_)), "{refused}");
        assert_eq!(refused.buf.capacity(), 1);
    }
    // Neither harms what follows.
    greet(&origin, &target);
}

/// An address of another endpoint is refused by every operation that takes one.
pub fn foreign_addresses_are_refused(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let foreign = target.endpoint.self_addr();
    let op = origin.op();
    let refused = [
        origin.endpoint.send_unexpected(op, &foreign, Tag(1), origin.message(b"x")),
        origin.endpoint.send_expected(op, &foreign, Tag(1), origin.message(b"x")),
        origin.endpoint.recv_expected(op, &foreign, Tag(1), origin.endpoint.alloc_msg()),
    ];
    for refused in refused.map(|result| result.expect_err("foreign address")) {
        assert!(matches!(refused.error, Error::InvalidArgument(_)), "{refused}");
    }
}

/// A reply finds an origin that nobody could look up.
pub fn an_origin_that_does_not_listen_is_answered(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    // Also later, without being asked, and repeatedly.
    for round in 0..3 {
        let received = origin.recv_expected(&to_target, round);
        let unexpected = origin.recv_unexpected();
        target.send_expected(&to_origin, round, b"again");
        target.send_unexpected(&to_origin, round, b"from the target");
        finish(&[&origin, &target], "messages to the origin", &[received, unexpected]);
        assert_eq!(origin.received(received).1, b"again");
        let (arrival, bytes) = origin.received(unexpected);
        assert_eq!((arrival.from, bytes.as_slice()), (to_target.clone(), &b"from the target"[..]));
    }
}
