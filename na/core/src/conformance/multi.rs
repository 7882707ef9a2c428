//! Cases about receives for many messages. A transport that has none passes them.

use super::node::{Node, drive, finish, greet, pattern};
use super::{Case, Random};
use crate::{Completion, Error, LargeBuffers, MsgBuf, OpId};

/// A message that was received: what it was sent as, and where it is.
type Came = (u32, MsgBuf);

/// Little enough that messages do not all fit.
fn small(node: &Node) -> LargeBuffers {
    LargeBuffers::new(1, 64 << 10, node.endpoint.limits().unexpected_bytes_max)
}

/// Returns the messages that have come, with their tags, in the order in which they were reported.
fn came(node: &Node, op: OpId) -> Vec<Came> {
    let taken = node.take_many(op).into_iter().map(|completion| match completion {
        Completion::Recv { buf, result: Ok(arrival), .. } => (arrival.tag.0, buf),
        other => panic!("not a message: {other:?}"),
    });
    taken.collect()
}

fn tags(came: &[Came]) -> Vec<u32> {
    came.iter().map(|(tag, _)| *tag).collect()
}

/// One receive takes messages of all lengths, in order. They stay as they are, held beyond the end
/// of the buffers, in whatever order they are given back.
pub fn a_receive_takes_many_messages(case: &Case<'_>) {
    const COUNT: usize = 400;
    let (target, origin) = Node::pair(case);
    if !target.endpoint.has_multi_recv() {
        return;
    }
    let (to_target, _) = greet(&origin, &target);
    let buffers = small(&target);
    let max = origin.endpoint.limits().unexpected_bytes_max;
    let mut random = Random::new(7);
    let mut held: Vec<Came> = Vec::new();
    let text = |tag: u32, len: usize| pattern(tag.into(), len);
    for round in 0..3u32 {
        let lens: Vec<usize> = (0..COUNT)
            .map(|number| match number % 8 {
                0 => 0,
                1 => max,
                _ => random.below(300),
            })
            .collect();
        let op = target.multi_recv(COUNT, &buffers);
        let sends: Vec<OpId> = (0..COUNT as u32)
            .map(|tag| origin.send_unexpected(&to_target, tag, &text(tag, lens[tag as usize])))
            .collect();
        drive(&[&target, &origin], "many messages", || target.count_many(op) == COUNT);
        finish(&[&origin, &target], "their sends", &sends);
        let came = came(&target, op);
        assert_eq!(tags(&came), (0..COUNT as u32).collect::<Vec<_>>(), "round {round}");
        held.extend(came);
        for (tag, buf) in &held {
            let whole = buf.as_slice() == text(*tag, buf.len());
            assert!(whole, "round {round}: message {tag} has changed");
        }
        // In any order; some are held to the end.
        while held.len() > 50 {
            held.swap_remove(random.below(held.len()));
        }
    }
    if !case.mode.two_processes {
        assert!(buffers.copied() > 0, "they do not all fit");
    }
}

/// No more messages are taken than asked for; those that are held back come with the next receive.
pub fn a_receive_for_many_takes_no_more(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    if !target.endpoint.has_multi_recv() {
        return;
    }
    let (to_target, to_origin) = greet(&origin, &target);
    let buffers = small(&target);
    let first = target.multi_recv(3, &buffers);
    let sends: Vec<OpId> = (0..10)
        .map(|tag| origin.send_unexpected(&to_target, tag, &pattern(tag.into(), 100)))
        .collect();
    drive(&[&target, &origin], "three messages", || target.count_many(first) == 3);
    // A message of the other kind, that those held back are there before it.
    let later = target.recv_expected(&to_origin, 9);
    origin.send_expected(&to_target, 9, b"later");
    finish(&[&target, &origin], "a later message", &[later]);
    let second = target.multi_recv(2, &buffers);
    drive(&[&target, &origin], "two more", || target.count_many(second) == 2);
    let third = target.multi_recv(6, &buffers);
    drive(&[&target, &origin], "the rest", || target.count_many(third) == 5);
    finish(&[&origin, &target], "the sends", &sends);
    // Those that came before their receive may be told after others.
    let mut rest: Vec<u32> =
        [second, third].iter().flat_map(|op| tags(&came(&target, *op))).collect();
    rest.sort_unstable();
    assert_eq!((tags(&came(&target, first)), rest), (vec![0, 1, 2], (3..10).collect()));
    origin.send_unexpected(&to_target, 10, b"");
    drive(&[&target, &origin], "the last one", || target.count_many(third) == 1);
}

/// A canceled one ends once; messages that come then go to the next.
pub fn a_canceled_receive_for_many_ends_once(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    if !target.endpoint.has_multi_recv() {
        return;
    }
    let (to_target, _) = greet(&origin, &target);
    let buffers = small(&target);
    let (canceled, next) = (target.multi_recv(5, &buffers), target.multi_recv(5, &buffers));
    origin.send_unexpected(&to_target, 1, b"one");
    drive(&[&target, &origin], "a message", || target.count_many(canceled) == 1);
    assert_eq!(tags(&came(&target, canceled)), [1]);
    target.endpoint.cancel(canceled);
    target.endpoint.cancel(canceled);
    drive(&[&target, &origin], "the cancel", || target.count_many(canceled) == 1);
    let ended = target.take_many(canceled).remove(0);
    assert!(matches!(ended, Completion::Recv { result: Err(Error::Canceled), .. }), "{ended:?}");
    for tag in 2..7 {
        origin.send_unexpected(&to_target, tag, b"more");
    }
    drive(&[&target, &origin], "what comes then", || target.count_many(next) == 5);
    assert_eq!(tags(&came(&target, next)), [2, 3, 4, 5, 6]);
}

/// Close ends each once; messages that were received stay.
pub fn a_close_ends_receives_for_many(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    if !target.endpoint.has_multi_recv() {
        return;
    }
    let (to_target, _) = greet(&origin, &target);
    let buffers = small(&target);
    let refused = target.endpoint.multi_recv_unexpected(target.op(), 0, &buffers);
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let ops = [target.multi_recv(3, &buffers), target.multi_recv(3, &buffers)];
    for tag in 0..4 {
        origin.send_unexpected(&to_target, tag, &pattern(tag.into(), 77));
    }
    drive(&[&target, &origin], "messages", || target.count_many(ops[1]) == 1);
    let held: Vec<Came> = ops.iter().flat_map(|op| came(&target, *op)).collect();
    target.endpoint.close();
    drive(&[&target], "the end", || target.count_many(ops[1]) == 1);
    assert_eq!(target.count_many(ops[0]), 0, "it was over");
    let ended = target.take_many(ops[1]).remove(0);
    assert!(matches!(ended, Completion::Recv { result: Err(Error::Closed), .. }), "{ended:?}");
    let refused = target.endpoint.multi_recv_unexpected(target.op(), 1, &buffers);
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    drop(target);
    assert_eq!(buffers.bytes_taken(), 0, "what is held has its memory for itself");
    for (tag, buf) in held {
        assert_eq!(buf.as_slice(), pattern(tag.into(), 77));
    }
}

/// Messages to oneself, before and after the receive.
pub fn a_receive_for_many_takes_ones_own(case: &Case<'_>) {
    let node = Node::open(case, true);
    if !node.endpoint.has_multi_recv() {
        return;
    }
    let (own, buffers) = (node.endpoint.self_addr(), small(&node));
    let early: Vec<OpId> = (0..5).map(|tag| node.send_unexpected(&own, tag, b"early")).collect();
    let op = node.multi_recv(10, &buffers);
    let late: Vec<OpId> = (5..12).map(|tag| node.send_unexpected(&own, tag, b"late")).collect();
    drive(&[&node], "messages to oneself", || node.count_many(op) == 10);
    let mut tags = tags(&came(&node, op));
    tags.sort_unstable();
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
    let rest = node.multi_recv(3, &buffers);
    drive(&[&node], "the rest", || node.count_many(rest) == 2);
    finish(&[&node], "sends to oneself", &[early, late].concat());
}

/// Peers share one receive; each one's messages stay in order.
pub fn peers_share_a_receive_for_many(case: &Case<'_>) {
    const EACH: u32 = 50;
    let target = Node::open(case, true);
    if !target.endpoint.has_multi_recv() {
        return;
    }
    let origins: Vec<Node> = (0..4).map(|_| Node::open(case, false)).collect();
    let buffers = small(&target);
    let op = target.multi_recv(origins.len() * EACH as usize, &buffers);
    for tag in 0..EACH {
        for (origin, number) in origins.iter().zip(0u32..) {
            let to_target = origin.addr_of(&target);
            origin.send_unexpected(&to_target, tag, &number.to_le_bytes());
        }
    }
    let all: Vec<&Node> = std::iter::once(&target).chain(&origins).collect();
    drive(&all, "messages of all", || target.count_many(op) == 4 * EACH as usize);
    let came = came(&target, op);
    for number in 0..4u32 {
        let of_one = came.iter().filter(|(_, buf)| buf.as_slice() == number.to_le_bytes());
        let tags: Vec<u32> = of_one.map(|(tag, _)| *tag).collect();
        assert_eq!(tags, (0..EACH).collect::<Vec<_>>(), "origin {number}");
    }
}
