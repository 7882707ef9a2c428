//! Unit tests of the matcher.

use super::*;

const MAX: usize = 1000;
const LEFT: usize = 1 << 20;

fn peer(number: u64) -> Addr {
    Addr::new(format!("test://{number}"), 1, number, ())
}

fn buf() -> MsgBuf {
    MsgBuf::with_capacity(64)
}

fn message(completion: Completion) -> (u64, u64, u32, Vec<u8>) {
    match completion {
        Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) } => {
            (op.0, from.peer_id(), tag.0, buf.as_slice().to_vec())
        }
        other => panic!("not a message: {other:?}"),
    }
}

fn completed(arrived: Arrived) -> Completion {
    match arrived {
        Arrived::Completed(completion) => completion,
        other => panic!("not taken by a receive: {other:?}"),
    }
}

fn error(completion: &Completion) -> &Error {
    match completion {
        Completion::Recv { result: Err(error), .. } => error,
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn unexpected_messages_go_to_receives_in_order_either_way_round() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_unexpected(OpId(1), buf()).is_none());
    assert!(matcher.post_unexpected(OpId(2), buf()).is_none());
    let first = completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(5), b"a"));
    let second = completed(matcher.arrive(Kind::Unexpected, &peer(8), Tag(6), b"b"));
    assert_eq!(message(first), (1, 7, 5, b"a".to_vec()));
    assert_eq!(message(second), (2, 8, 6, b"b".to_vec()));

    for (from, text) in [(8, b"c"), (7, b"d"), (8, b"e")] {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(from), Tag(0), text);
        assert!(matches!(arrived, Arrived::Held));
    }
    for (op, from, text) in [(3, 8, b"c"), (4, 7, b"d"), (5, 8, b"e")] {
        let early = matcher.post_unexpected(OpId(op), buf()).unwrap();
        assert_eq!(message(early), (op, from, 0, text.to_vec()));
    }
}

#[test]
fn expected_messages_match_source_and_tag() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    assert!(matcher.post_expected(OpId(2), &peer(7), Tag(2), buf()).is_none());
    assert!(matches!(matcher.arrive(Kind::Expected, &peer(8), Tag(1), b"x"), Arrived::Held));
    let second = completed(matcher.arrive(Kind::Expected, &peer(7), Tag(2), b"b"));
    assert_eq!(message(second), (2, 7, 2, b"b".to_vec()));
    let first = completed(matcher.arrive(Kind::Expected, &peer(7), Tag(1), b""));
    assert_eq!(message(first), (1, 7, 1, Vec::new()));
    let early = matcher.post_expected(OpId(3), &peer(8), Tag(1), buf()).unwrap();
    assert_eq!(message(early), (3, 8, 1, b"x".to_vec()));
}

#[test]
fn a_peer_is_bounded_alone_and_gets_room_back() {
    let mut matcher = Matcher::new(MAX, LEFT);
    let mut held = 0;
    while matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(held), b""), Arrived::Held) {
        held += 1;
    }
    assert_eq!(held as usize, MAX.div_ceil(EARLY_OVERHEAD), "empty messages count as well");
    assert!(!matcher.has_room(&peer(7)));
    assert!(matcher.has_room(&peer(8)));
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(8), Tag(0), b""), Arrived::Held));
    assert!(matcher.post_unexpected(OpId(1), buf()).is_some());
    assert!(matcher.has_room(&peer(7)));
    matcher.lift_bound(7);
    for _ in 0..2 * held {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"");
        assert!(matches!(arrived, Arrived::Held), "the bound was lifted");
    }
}

#[test]
fn a_message_too_many_for_the_bound_still_reaches_a_posted_receive() {
    let mut matcher = Matcher::new(1, LEFT);
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"a"), Arrived::Held));
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"b"), Arrived::Full));
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    completed(matcher.arrive(Kind::Expected, &peer(7), Tag(1), b"reply"));
}

#[test]
fn what_is_refused_is_told_to_the_next_receive_and_only_once() {
    let mut matcher = Matcher::new(1, LEFT);
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"a"), Arrived::Held));
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    assert!(!matcher.take_refused());
    assert!(matches!(matcher.arrive(Kind::Expected, &peer(7), Tag(2), b"b"), Arrived::Full));
    assert!(matcher.post_expected(OpId(2), &peer(7), Tag(2), buf()).is_none());
    assert!(matcher.take_refused());
    assert!(!matcher.take_refused());
}

#[test]
fn a_canceled_receive_ends_once_and_its_late_message_is_discarded() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_unexpected(OpId(1), buf()).is_none());
    assert!(matcher.post_expected(OpId(2), &peer(7), Tag(1), buf()).is_none());
    for op in [1, 2] {
        assert!(matches!(error(&matcher.cancel(OpId(op)).unwrap()), Error::Canceled));
        assert!(matcher.cancel(OpId(op)).is_none());
    }
    let late = matcher.arrive(Kind::Expected, &peer(7), Tag(1), b"late");
    assert!(matches!(late, Arrived::Discarded));
    assert!(matcher.post_expected(OpId(3), &peer(7), Tag(1), buf()).is_none(), "discarded");
    let next = completed(matcher.arrive(Kind::Expected, &peer(7), Tag(1), b"next"));
    assert_eq!(message(next), (3, 7, 1, b"next".to_vec()));
}

#[test]
fn a_receive_posted_after_a_cancel_takes_the_message() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    assert!(matcher.cancel(OpId(1)).is_some());
    assert!(matcher.post_expected(OpId(2), &peer(7), Tag(1), buf()).is_none());
    completed(matcher.arrive(Kind::Expected, &peer(7), Tag(1), b"x"));
}

#[test]
fn answers_to_any_number_of_canceled_calls_leave_their_peer_its_room() {
    let mut matcher = Matcher::new(MAX, LEFT);
    for tag in 0..20_000 {
        assert!(matcher.post_expected(OpId(1), &peer(7), Tag(tag), buf()).is_none());
        assert!(matcher.cancel(OpId(1)).is_some());
    }
    // It was stopped, goes on, and answers them all.
    for tag in 0..20_000 {
        let arrived = matcher.arrive(Kind::Expected, &peer(7), Tag(tag), b"late");
        assert!(matches!(arrived, Arrived::Discarded), "{tag}: {arrived:?}");
    }
    assert!(matcher.has_room(&peer(7)));
    let arrived = matcher.arrive(Kind::Expected, &peer(7), Tag(0), b"of another");
    assert!(matches!(arrived, Arrived::Held), "once per cancel");
}

#[test]
fn a_dead_peer_fails_its_expected_receives_only() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    assert!(matcher.post_expected(OpId(2), &peer(8), Tag(1), buf()).is_none());
    assert!(matches!(matcher.arrive(Kind::Expected, &peer(7), Tag(2), b"old"), Arrived::Held));
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(3), b"u"), Arrived::Held));
    let gone = Error::PeerGone { peer: "p".into(), reason: "test".into() };
    let mut out = Vec::new();
    matcher.fail_peer(7, &gone, &mut out);
    assert_eq!(out.len(), 1);
    assert!(matches!(error(&out[0]), Error::PeerGone { .. }));
    assert!(matcher.post_expected(OpId(3), &peer(7), Tag(2), buf()).is_none(), "fresh state");
    let kept = matcher.post_unexpected(OpId(4), buf()).unwrap();
    assert_eq!(message(kept), (4, 7, 3, b"u".to_vec()));
    assert!(matcher.held.is_empty(), "nothing is counted for a peer that holds nothing");

    out.clear();
    assert!(matcher.post_unexpected(OpId(5), buf()).is_none());
    matcher.fail_all(&Error::Closed, &mut out);
    assert_eq!(out.len(), 3);
    assert!(out.iter().all(|completion| matches!(error(completion), Error::Closed)));
}

#[test]
fn what_gone_peers_leave_is_bounded_together() {
    let long = vec![7; 64];
    let mut matcher = Matcher::new(usize::MAX, LEFT);
    let cost = long.len() + EARLY_OVERHEAD;
    let each = LEFT / 4 / cost;
    for number in 0..10 {
        for _ in 0..each {
            let arrived = matcher.arrive(Kind::Unexpected, &peer(number), Tag(0), &long);
            assert!(matches!(arrived, Arrived::Held));
        }
        matcher.fail_peer(number, &Error::Closed, &mut Vec::new());
        assert!(matcher.left_bytes <= LEFT);
    }
    // The first who left are not affected, and a peer that is there is not counted.
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(99), Tag(0), b"here"), Arrived::Held));
    for op in 0..4 * each {
        let early = matcher.post_unexpected(OpId(op as u64), buf()).unwrap();
        assert_eq!(message(early).1, (op / each) as u64);
    }
    assert_eq!(message(matcher.post_unexpected(OpId(0), buf()).unwrap()).3, b"here");
    assert!(matcher.post_unexpected(OpId(1), buf()).is_none());
    assert_eq!((matcher.left_bytes, matcher.held.len()), (0, 0));
}

#[test]
fn what_all_have_sent_early_may_be_bounded() {
    let cost = 64 + EARLY_OVERHEAD;
    let mut matcher = Matcher::new(usize::MAX, LEFT).of_all_at_most(3 * cost);
    for number in 0..3 {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(number), Tag(0), &[7; 64]);
        assert!(matches!(arrived, Arrived::Held));
    }
    for number in [0, 9] {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(number), Tag(0), b"more");
        assert!(matches!(arrived, Arrived::Full), "{number}");
    }
    assert!(matcher.post_unexpected(OpId(1), buf()).is_some());
    assert!(matcher.take_refused(), "there is room again");
    let arrived = matcher.arrive(Kind::Unexpected, &peer(9), Tag(0), b"more");
    assert!(matches!(arrived, Arrived::Held));
    // Whatever they were let go for, nothing stays counted.
    matcher.fail_peer(1, &Error::Closed, &mut Vec::new());
    for _ in 0..3 {
        assert!(matcher.post_unexpected(OpId(2), buf()).is_some());
    }
    assert_eq!((matcher.all_bytes, matcher.left_bytes, matcher.held.len()), (0, 0, 0));
    let mut matcher = Matcher::new(usize::MAX, 0).of_all_at_most(3 * cost);
    matcher.arrive(Kind::Unexpected, &peer(1), Tag(0), &[7; 64]);
    matcher.arrive(Kind::Expected, &peer(1), Tag(0), &[7; 64]);
    matcher.fail_peer(1, &Error::Closed, &mut Vec::new());
    assert_eq!((matcher.all_bytes, matcher.left_bytes), (0, 0));
}

/// Peers 0 to 9 are on the first host, 10 to 19 on the second, and so on.
fn host_of(addr: &Addr) -> Principal {
    Principal::of_host([10, 0, 0, (addr.peer_id() / 10) as u8].into())
}

#[test]
fn a_crowd_of_one_host_leaves_room_to_others() {
    let cost = 64 + EARLY_OVERHEAD;
    let fill = |matcher: &mut Matcher, peers: std::ops::Range<u64>| {
        let mut held = 0;
        for number in peers.cycle() {
            match matcher.arrive(Kind::Unexpected, &peer(number), Tag(0), &[7; 64]) {
                Arrived::Held => held += 1,
                Arrived::Full => return held,
                other => panic!("{other:?}"),
            }
        }
        held
    };
    let new = |left| Matcher::new(30 * cost, left).of_all_at_most(80 * cost);
    let mut matcher = new(LEFT).of_each_at_most(40 * cost, host_of);
    assert_eq!(fill(&mut matcher, 0..10), 40, "of one host");
    assert!(!matcher.has_room(&peer(9)) && matcher.has_room(&peer(10)));
    assert_eq!(fill(&mut matcher, 10..11), 30, "of one peer");
    assert_eq!(fill(&mut matcher, 20..30), 10, "of all");
    // A receive takes a message whatever is held.
    assert!(matcher.post_expected(OpId(1), &peer(31), Tag(1), buf()).is_none());
    completed(matcher.arrive(Kind::Expected, &peer(31), Tag(1), b"x"));
    // There is room when some of it is, or each message that leaves would wake all who wait.
    let mut left = 80;
    while !matcher.has_room(&peer(31)) {
        assert!(matcher.post_unexpected(OpId(2), buf()).is_some());
        left -= 1;
    }
    assert_eq!(left, 69);
    // Whatever they were let go for, nothing stays counted.
    matcher.fail_peer(20, &Error::Closed, &mut Vec::new());
    while matcher.post_unexpected(OpId(2), buf()).is_some() {}
    assert_eq!((matcher.all_bytes, matcher.held.len()), (0, 0));
    assert!(matcher.shares.as_ref().is_some_and(|shares| shares.is_empty()));
    let mut matcher = new(0).of_each_at_most(40 * cost, host_of);
    fill(&mut matcher, 0..10);
    matcher.arrive(Kind::Expected, &peer(10), Tag(0), &[7; 64]);
    (0..11).for_each(|peer| matcher.fail_peer(peer, &Error::Closed, &mut Vec::new()));
    assert_eq!(matcher.all_bytes, 0);
    assert!(matcher.shares.as_ref().is_some_and(|shares| shares.is_empty()));
}

#[test]
fn what_dying_peers_bring_in_is_bounded_before_they_have_left() {
    let cost = 64 + EARLY_OVERHEAD;
    let mut matcher = Matcher::new(10 * cost, 20 * cost)
        .of_all_at_most(40 * cost)
        .of_each_at_most(30 * cost, host_of);
    let bring = |matcher: &mut Matcher, number| {
        let mut held = 0;
        for _ in 0..1000 {
            match matcher.arrive(Kind::Unexpected, &peer(number), Tag(0), &[7; 64]) {
                Arrived::Held => held += 1,
                Arrived::Discarded => {}
                other => panic!("the end of the peer is behind it: {other:?}"),
            }
        }
        held
    };
    (0..30).for_each(|peer| matcher.lift_bound(peer));
    assert_eq!([0, 1].map(|peer| bring(&mut matcher, peer)), [50, 0], "of one host");
    assert_eq!([10, 11].map(|peer| bring(&mut matcher, peer)), [10, 0], "of all");
    // What is awaited arrives.
    assert!(matcher.post_expected(OpId(1), &peer(1), Tag(1), buf()).is_none());
    completed(matcher.arrive(Kind::Expected, &peer(1), Tag(1), b"x"));
    (0..30).for_each(|peer| matcher.fail_peer(peer, &Error::Closed, &mut Vec::new()));
    assert!(matcher.left_bytes <= 20 * cost && matcher.all_bytes == matcher.left_bytes);
}

#[test]
fn the_first_receive_from_a_watched_peer_is_told() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matcher.post_expected(OpId(1), &peer(7), Tag(1), buf()).is_none());
    assert!(!matcher.watch(7), "there is one");
    assert!(matcher.cancel(OpId(1)).is_some());
    assert!(matcher.watch(7) && matcher.watch(8) && matcher.watch(9));
    matcher.unwatch(9);
    for (op, from) in [(2, 6), (3, 9)] {
        assert!(matcher.post_expected(OpId(op), &peer(from), Tag(1), buf()).is_none());
        assert!(!matcher.take_refused() && matcher.take_awaited().is_empty());
    }
    for op in [4, 5] {
        assert!(matcher.post_expected(OpId(op), &peer(7), Tag(1), buf()).is_none());
        assert_eq!(matcher.take_refused(), op == 4);
        assert_eq!(matcher.take_awaited().len(), usize::from(op == 4));
    }
    matcher.fail_peer(8, &Error::Closed, &mut Vec::new());
    assert!(matcher.watched.is_empty());
}

#[test]
fn a_successor_takes_over_what_its_predecessor_left() {
    let mut matcher = Matcher::new(MAX, LEFT);
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"old"), Arrived::Held));
    matcher.fail_peer(7, &Error::Closed, &mut Vec::new());
    assert_eq!(matcher.left_bytes, 3 + EARLY_OVERHEAD);
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"new"), Arrived::Held));
    assert_eq!(matcher.left_bytes, 0);
    for text in [b"old", b"new"] {
        assert_eq!(message(matcher.post_unexpected(OpId(1), buf()).unwrap()).3, text);
    }
    assert!(matcher.held.is_empty());
}

#[test]
fn claims_leave_a_receive_for_others() {
    let mut matcher = Matcher::new(MAX, LEFT);
    for op in 0..3 {
        assert!(matcher.post_unexpected(OpId(op), buf()).is_none());
    }
    let claim = |matcher: &mut Matcher| matcher.claim_ahead(Kind::Unexpected, &peer(7), Tag(0));
    let claimed: Vec<_> = (0..3).filter_map(|_| claim(&mut matcher)).collect();
    assert_eq!(claimed.iter().map(|claimed| claimed.op().0).collect::<Vec<_>>(), [0, 1]);
    let arrived = matcher.arrive(Kind::Unexpected, &peer(8), Tag(1), b"short");
    assert_eq!(message(completed(arrived)), (2, 8, 1, b"short".to_vec()));
    for claimed in claimed {
        assert!(matcher.unclaim(claimed, &Error::Closed).is_none());
    }
    let claimed = claim(&mut matcher).unwrap();
    assert_eq!(claimed.op(), OpId(1));
    // One that comes back takes what has come meanwhile; nothing overtakes that, and nothing stays.
    completed(matcher.arrive(Kind::Unexpected, &peer(8), Tag(1), b"for the other one"));
    for text in [b"early", b"later"] {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(8), Tag(2), text);
        assert!(matches!(arrived, Arrived::Held));
    }
    let taken = matcher.unclaim(claimed, &Error::Closed).unwrap();
    assert_eq!(message(taken), (1, 8, 2, b"early".to_vec()));
    assert_eq!(message(matcher.post_unexpected(OpId(3), buf()).unwrap()).3, b"later");
    assert!(matcher.has_room(&peer(8)) && matcher.held.is_empty());
    // A receive that names its peer is that peer's.
    assert!(matcher.post_expected(OpId(9), &peer(7), Tag(3), buf()).is_none());
    let claimed = matcher.claim_ahead(Kind::Expected, &peer(7), Tag(3));
    assert_eq!(claimed.map(|claimed| claimed.op()), Some(OpId(9)));
}

fn large() -> LargeBuffers {
    LargeBuffers::new(1, 64 << 10, 64)
}

#[test]
fn a_receive_for_many_messages_takes_so_many() {
    let mut matcher = Matcher::new(MAX, LEFT);
    let buffers = large();
    assert!(matcher.post_many(OpId(1), 2, &buffers).is_empty());
    assert!(matcher.post_many(OpId(2), 1, &buffers).is_empty());
    let mut held = Vec::new();
    for (op, from, text) in [(1, 7, &b"a"[..]), (1, 8, b""), (2, 7, b"ccc")] {
        let arrived = completed(matcher.arrive(Kind::Unexpected, &peer(from), Tag(9), text));
        let Completion::Recv { op: own, buf, result: Ok(arrival) } = arrived else { panic!() };
        assert_eq!((own.0, arrival.from.peer_id(), arrival.tag.0), (op, from, 9));
        assert_eq!((buf.as_slice(), buf.capacity()), (text, text.len()));
        held.push(buf);
    }
    assert_eq!(buffers.copied(), 0);
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"d"), Arrived::Held));
    assert_eq!(held[0].as_slice(), b"a", "it is held, whatever comes");
}

#[test]
fn early_messages_go_to_a_receive_for_many_within_its_count() {
    let mut matcher = Matcher::new(MAX, LEFT);
    for (from, text) in [(8, b"a"), (7, b"b"), (8, b"c")] {
        let arrived = matcher.arrive(Kind::Unexpected, &peer(from), Tag(0), text);
        assert!(matches!(arrived, Arrived::Held));
    }
    let early: Vec<_> = matcher.post_many(OpId(1), 2, &large()).into_iter().map(message).collect();
    assert_eq!(early, [(1, 8, 0, b"a".to_vec()), (1, 7, 0, b"b".to_vec())]);
    // What is left is taken by the next, which has room for another one.
    let early: Vec<_> = matcher.post_many(OpId(2), 2, &large()).into_iter().map(message).collect();
    assert_eq!(early, [(2, 8, 0, b"c".to_vec())]);
    let last = completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"d"));
    assert_eq!(message(last), (2, 7, 0, b"d".to_vec()));
}

#[test]
fn a_receive_for_many_ends_once_by_cancel_or_close() {
    let mut matcher = Matcher::new(MAX, LEFT);
    matcher.post_many(OpId(1), 3, &large());
    matcher.post_many(OpId(2), 3, &large());
    completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"a"));
    assert!(matches!(error(&matcher.cancel(OpId(1)).unwrap()), Error::Canceled));
    assert!(matcher.cancel(OpId(1)).is_none());
    let next = completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"b"));
    assert_eq!(message(next), (2, 7, 0, b"b".to_vec()));
    let mut out = Vec::new();
    matcher.fail_all(&Error::Closed, &mut out);
    assert_eq!(out.len(), 1);
    assert!(matches!(
        (&out[0], error(&out[0])),
        (Completion::Recv { op: OpId(2), .. }, Error::Closed)
    ));
    assert!(matches!(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"c"), Arrived::Held));
}

#[test]
fn a_message_that_has_only_begun_claims_no_receive_for_many() {
    let mut matcher = Matcher::new(MAX, LEFT);
    matcher.post_many(OpId(1), 5, &large());
    assert!(matcher.claim_ahead(Kind::Unexpected, &peer(7), Tag(0)).is_none());
    completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(0), b"whole"));
}

#[test]
fn messages_outlive_the_receives_that_brought_them() {
    let mut matcher = Matcher::new(MAX, LEFT);
    matcher.post_many(OpId(1), 2, &large());
    let first = completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(1), b"first"));
    // Other buffers, as somebody else would post them.
    matcher.post_many(OpId(2), 2, &large());
    let second = completed(matcher.arrive(Kind::Unexpected, &peer(7), Tag(2), b"second"));
    drop(matcher);
    assert_eq!(message(first), (1, 7, 1, b"first".to_vec()));
    assert_eq!(message(second), (1, 7, 2, b"second".to_vec()));
}
