//! Cases about an endpoint that talks with its own address, be it one that listens or not.

use super::Case;
use super::bulk::{in_pieces, transfer};
use super::node::{Node, contents, drive, finish, pattern};
use super::waiting::sleep_until;
use crate::{Access, DeniedReason, Error, MemPart, OpId, Tag};

/// An endpoint is its own peer.
pub fn sends_to_oneself(case: &Case<'_>) {
    for listen in [true, false] {
        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let received = node.recv_unexpected();
        let answered = node.recv_expected(&own, 2);
        let sent = node.send_unexpected(&own, 1, b"note to self");
        drive(&[&node], "a message to oneself", || node.all_done(&[received, sent]));
        let (arrival, bytes) = node.received(received);
        assert_eq!(bytes, b"note to self");
        assert_eq!(arrival.from, own, "the sender is ourselves");
        node.send_expected(&arrival.from, 2, b"read");
        finish(&[&node], "the answer to oneself", &[answered]);
        assert_eq!(node.received(answered).1, b"read");
    }
}

/// An endpoint reaches its own memory as a peer's, with the same checks.
pub fn transfers_with_oneself(case: &Case<'_>) {
    const LEN: usize = 300_000;
    for listen in [true, false] {
        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let remote = node.register(pattern(1, LEN), Access::ReadWrite);
        let described = node.described_to(&node, &remote);
        let local = node.register(vec![0; LEN], Access::ReadWrite);
        let got = node.get(&own, transfer((&local, 1), (&described, 7), LEN - 7));
        finish(&[&node], "a get from oneself", &[got]);
        node.succeeded(got);
        assert!(contents(&local)[1..LEN - 6] == pattern(1, LEN)[7..]);
        let put = node.put(&own, transfer((&local, 0), (&described, 0), LEN));
        finish(&[&node], "a put to oneself", &[put]);
        node.succeeded(put);
        assert!(contents(&remote) == contents(&local));
        drop(remote);
        let got = node.get(&own, transfer((&local, 0), (&described, 0), LEN));
        finish(&[&node], "a get of revoked memory", &[got]);
        let error = node.error(got);
        let denied = matches!(error, Error::Denied { reason: DeniedReason::NoSuchKey, .. });
        assert!(denied, "{error}");
    }
}

/// Memory of several segments is reached by the name of each of them, where they have names of
/// their own, as under the name of all of it.
pub fn segments_of_oneself_are_told_apart(case: &Case<'_>) {
    const LEN: usize = 20_000;
    let node = Node::open(case, true);
    let own = node.endpoint.self_addr();
    let mut whole = pattern(1, LEN);
    let memory = in_pieces(&whole, [100, 0, 5000, 37]);
    let memory = node.endpoint.register(memory, Access::ReadWrite).expect("register");
    let all = || {
        let handle = node.endpoint.mem_to_bytes(&memory);
        vec![MemPart { base: 0, len: LEN as u64, handle }]
    };
    let parts = node.endpoint.mem_parts(&memory).unwrap_or_else(all);
    let mut start = 0;
    for part in parts {
        let described = node.endpoint.mem_from_bytes(&part.handle).expect("a description");
        let len = usize::try_from(part.len).expect("test memory fits");
        let local = node.register(vec![0; LEN + 3], Access::ReadWrite);
        let got = node.get(&own, transfer((&local, 3), (&described, 1), len - 1));
        finish(&[&node], "a get of a segment", &[got]);
        node.succeeded(got);
        assert!(contents(&local)[3..len + 2] == whole[start + 1..start + len], "get at {start}");
        let put = node.put(&own, transfer((&local, 0), (&described, 0), len));
        finish(&[&node], "a put to a segment", &[put]);
        node.succeeded(put);
        whole[start..start + len].copy_from_slice(&contents(&local)[..len]);
        assert!(contents(&memory) == whole, "put at {start}");
        start += len;
    }
    assert_eq!(start, LEN, "the segments are all there is");
}

/// Messages to oneself are held up to a bound; beyond, sends wait for receives, in order.
pub fn sends_to_oneself_wait_for_receives(case: &Case<'_>) {
    const COUNT: u32 = 1000;
    const HELD_MAX: usize = 1 << 20;
    for listen in [true, false] {
        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let bytes = pattern(1, node.endpoint.limits().unexpected_bytes_max);
        let sends: Vec<OpId> =
            (0..COUNT).map(|number| node.send_unexpected(&own, number, &bytes)).collect();
        for _ in 0..COUNT {
            node.poll();
        }
        let taken = node.count_done(&sends);
        assert!(taken < sends.len(), "all sends completed though nothing was received");
        assert!(taken * bytes.len() <= HELD_MAX, "{taken} messages were taken");
        for number in 0..COUNT {
            let received = node.recv_unexpected();
            finish(&[&node], "a message that waited", &[received]);
            let (arrival, got) = node.received(received);
            assert_eq!((arrival.tag, got == bytes), (Tag(number), true));
        }
        finish(&[&node], "the sends", &sends);
        sends.into_iter().for_each(|op| node.succeeded(op));
    }
}

/// Operations on oneself that wait end when they are canceled, else when the endpoint is closed.
pub fn what_waits_within_is_canceled_and_closed(case: &Case<'_>) {
    const COUNT: u32 = 1000;
    for listen in [true, false] {
        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let bytes = pattern(1, node.endpoint.limits().unexpected_bytes_max);
        let sends: Vec<OpId> =
            (0..COUNT).map(|number| node.send_unexpected(&own, number, &bytes)).collect();
        node.poll();
        let (canceled, closed) = (sends[COUNT as usize - 2], sends[COUNT as usize - 1]);
        node.endpoint.cancel(canceled);
        finish(&[&node], "the canceled send", &[canceled]);
        assert!(matches!(node.error(canceled), Error::Canceled));
        assert!(!node.is_done(closed), "the next one waits");
        let memory = node.register(vec![0; 100], Access::ReadWrite);
        let described = node.described_to(&node, &memory);
        let got = node.get(&own, transfer((&memory, 0), (&described, 0), 100));
        node.endpoint.close();
        finish(&[&node], "what was closed", &[closed, got]);
        assert!(matches!(node.error(closed), Error::Closed));
        assert!(matches!(node.outcome(got), Ok(()) | Err(Error::Closed)));
        let refused = node.endpoint.send_unexpected(node.op(), &own, Tag(1), node.message(b"late"));
        assert!(matches!(refused.expect_err("it is closed").error, Error::Closed));
    }
}

/// A message to oneself waits because others, which nobody receives, fill what is held. The receive
/// for it, posted by another thread, ends the sleep.
pub fn a_receive_wakes_a_sleeper_for_what_waits_within(case: &Case<'_>) {
    const COUNT: u32 = 1000;
    let bytes = |node: &Node| pattern(1, node.endpoint.limits().unexpected_bytes_max);
    for listen in [true, false] {
        // How many are held before one waits; as many leave room for none of the other kind.
        let node = Node::open(case, listen);
        let (own, large) = (node.endpoint.self_addr(), bytes(&node));
        let sends: Vec<_> = (0..COUNT).map(|tag| node.send_expected(&own, tag, &large)).collect();
        for _ in 0..COUNT {
            node.poll();
        }
        let held = node.count_done(&sends);
        assert!(held < sends.len(), "all sends completed though nothing was received");
        drop(node);

        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let tags = 0..u32::try_from(held).expect("at most as many as were sent");
        let sends: Vec<_> = tags.map(|tag| node.send_expected(&own, tag, &large)).collect();
        finish(&[&node], "the messages that are held", &sends);
        let waits = node.send_unexpected(&own, 1, &large);
        for _ in 0..100 {
            node.poll();
        }
        assert!(!node.is_done(waits), "there was room for it");
        let (endpoint, received) = (node.endpoint.clone(), OpId(1 << 40));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let buf = endpoint.alloc_msg();
                endpoint.recv_unexpected(received, buf).expect("post");
            });
            sleep_until(&node, "what waited", |node| node.all_done(&[waits, received]));
        });
        node.succeeded(waits);
        assert!(node.received(received).1 == large);
    }
}

/// A message that another thread sends to its own endpoint, or a transfer within it, ends the
/// sleep.
pub fn an_operation_on_oneself_wakes_a_sleeper(case: &Case<'_>) {
    const ROUNDS: u64 = 200;
    const LEN: usize = 1 << 20;
    for listen in [true, false] {
        let node = Node::open(case, listen);
        let own = node.endpoint.self_addr();
        let memory = node.register(vec![0; 2 * LEN], Access::ReadWrite);
        let described = node.described_to(&node, &memory);
        for round in 0..ROUNDS {
            let (endpoint, own) = (node.endpoint.clone(), own.clone());
            let received = node.recv_unexpected();
            let (sent, moved) = (OpId(1 << 40 | round), OpId(1 << 41 | round));
            let half = transfer((&memory, 0), (&described, LEN), LEN);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let buf = endpoint.alloc_msg();
                    endpoint.send_unexpected(sent, &own, Tag(1), buf).expect("send");
                    if round % 20 == 0 {
                        endpoint.put(moved, &own, half).expect("put");
                    }
                });
                sleep_until(&node, "a message to oneself", |node| {
                    node.all_done(&[received, sent]) && (round % 20 != 0 || node.is_done(moved))
                });
            });
            node.succeeded(sent);
        }
    }
}
