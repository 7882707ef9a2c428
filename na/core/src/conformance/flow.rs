//! Cases about many messages: back-pressure, fairness, volume, several endpoints and threads.

use std::collections::BTreeMap;

use super::Case;
use super::Random;
use super::node::{Node, drive, finish, greet, pattern};
use crate::{OpId, Tag};

/// Sends that nobody receives stop completing; once received, none is lost or out of order.
pub fn a_slow_receiver_holds_its_senders_back(case: &Case<'_>) {
    const COUNT: u32 = 10_000;
    // The sockets' buffers of a system with large ones, and what the transport holds.
    const HELD_MAX: usize = 24 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let mut bytes = pattern(1, origin.endpoint.limits().unexpected_bytes_max);
    let sends: Vec<OpId> = (0..COUNT)
        .map(|number| {
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            origin.send_unexpected(&to_target, number, &bytes)
        })
        .collect();
    for _ in 0..COUNT {
        origin.poll();
        target.poll();
    }
    let taken = origin.count_done(&sends);
    assert!(taken < sends.len(), "all {taken} sends completed though nothing was received");
    let held = taken * bytes.len();
    assert!(held <= HELD_MAX, "{held} bytes were taken though nothing was received");

    for number in 0..COUNT {
        let received = target.recv_unexpected();
        finish(&[&target, &origin], "a message that was held back", &[received]);
        let (arrival, got) = target.received(received);
        assert_eq!(arrival.tag, Tag(number));
        assert_eq!(got[..4], number.to_le_bytes());
        assert_eq!(got[4..], bytes[4..]);
    }
    finish(&[&origin, &target], "the sends", &sends);
    sends.into_iter().for_each(|op| origin.succeeded(op));
}

/// A peer that floods is held back alone.
pub fn a_flood_does_not_hold_up_other_peers(case: &Case<'_>) {
    let (target, flooder) = Node::pair(case);
    let calm = Node::open(case, false);
    let (to_target, _) = greet(&flooder, &target);
    let (also_to_target, from_calm) = greet(&calm, &target);
    let bytes = pattern(2, flooder.endpoint.limits().unexpected_bytes_max);
    for _ in 0..2000 {
        flooder.send_unexpected(&to_target, 1, &bytes);
    }
    for round in 0..20 {
        let received = target.recv_expected(&from_calm, round);
        calm.send_expected(&also_to_target, round, b"calm");
        finish(&[&target, &flooder, &calm], "the calm peer's message", &[received]);
    }
}

/// Random sizes in both directions, thousands in flight, each verified.
pub fn many_operations_with_random_sizes(case: &Case<'_>) {
    const COUNT: u32 = 3000;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let limits = origin.endpoint.limits();
    let mut random = Random::new(3);
    let mut wanted = BTreeMap::new();
    let mut operations = [Vec::new(), Vec::new()];
    for tag in 0..COUNT {
        let seed = random.next();
        let len = random.below(limits.expected_bytes_max + 1);
        let (from, to, from_addr, to_addr) = match tag % 2 {
            0 => (&origin, &target, &to_origin, &to_target),
            _ => (&target, &origin, &to_target, &to_origin),
        };
        // Half of the receives are posted first.
        let early = random.below(2) == 0;
        let posted = early.then(|| to.recv_expected(from_addr, tag));
        let sent = from.send_expected(to_addr, tag, &pattern(seed, len));
        if random.below(8) == 0 {
            to.poll();
            from.poll();
        }
        let received = posted.unwrap_or_else(|| to.recv_expected(from_addr, tag));
        let side = usize::from(tag % 2 == 0);
        operations[side].push(received);
        operations[1 - side].push(sent);
        wanted.insert((side, received.0), (tag, seed, len));
    }
    finish(&[&origin, &target], "everything at the origin", &operations[0]);
    finish(&[&target, &origin], "everything at the target", &operations[1]);
    for ((side, op), (tag, seed, len)) in wanted {
        let (arrival, bytes) = [&origin, &target][side].received(OpId(op));
        assert_eq!(arrival.tag, Tag(tag));
        assert_eq!(bytes, pattern(seed, len));
    }
}

/// Endpoints of one process are independent of one another.
pub fn many_endpoints_in_one_process(case: &Case<'_>) {
    let nodes: Vec<Node> = (0..5).map(|number| Node::open(case, number < 3)).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    for (number, from) in nodes.iter().enumerate() {
        for (other, to) in nodes.iter().enumerate().take(3) {
            if number != other {
                let text = format!("{number} to {other}");
                let received = to.recv_unexpected();
                let sent = from.send_unexpected(&from.addr_of(to), 1, text.as_bytes());
                drive(&all, &text, || to.is_done(received) && from.is_done(sent));
                assert_eq!(to.received(received).1, text.as_bytes());
            }
        }
    }
}

/// Operations may be started by any thread while another polls.
pub fn threads_share_an_endpoint(case: &Case<'_>) {
    const THREADS: u64 = 4;
    const EACH: u64 = 250;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let receives: Vec<_> = (0..THREADS * EACH).map(|_| target.recv_unexpected()).collect();
    let sends: Vec<_> = (0..THREADS * EACH).map(|number| OpId(1 << 32 | number)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (endpoint, to_target) = (origin.endpoint.clone(), to_target.clone());
            scope.spawn(move || {
                for number in 0..EACH {
                    let number = thread * EACH + number;
                    let mut buf = endpoint.alloc_msg();
                    assert!(buf.try_extend(&number.to_le_bytes()));
                    let (op, tag) = (OpId(1 << 32 | number), Tag(thread as u32));
                    endpoint.send_unexpected(op, &to_target, tag, buf).expect("send");
                }
            });
        }
        finish(&[&target, &origin], "the messages of all threads", &receives);
        finish(&[&origin, &target], "the sends of all threads", &sends);
    });
    let mut next = [0; THREADS as usize];
    for received in receives {
        let (arrival, bytes) = target.received(received);
        let number = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let thread = arrival.tag.0 as usize;
        assert_eq!(number, thread as u64 * EACH + next[thread], "order of one thread's sends");
        next[thread] += 1;
    }
}
