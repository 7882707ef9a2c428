//! Messages over sm that come before their receives, up to the bound and beyond.

use na::{LargeBuffers, OpId, OpenOptions, Tag};

use crate::common::sm::{Node, listening};

/// Messages of full length of which the last ones are beyond the bound.
const COUNT: u32 = 64;

/// A sleeping node that has refused the last message of another one: `expected` or not, after as
/// many of the other kind as are held. With the sender.
#[track_caller]
fn asleep_before_a_refused_message(expected: bool) -> (Node, Node) {
    let mut node = listening();
    let mut other = Node::new(na::open("na+sm://", &OpenOptions::listening(true)).expect("open"));
    let to = other.endpoint.lookup(node.endpoint.self_addr().uri()).expect("look up");
    let bytes = vec![0; other.endpoint.limits().unexpected_bytes_max];
    let mut sends = Vec::new();
    for number in 0..=COUNT {
        let (op, mut buf) = (other.op(), other.endpoint.alloc_msg());
        assert!(buf.try_extend(&bytes));
        let last = number == COUNT;
        let sent = match last == expected {
            true => other.endpoint.send_expected(op, &to, Tag(7 + u32::from(!last)), buf),
            false => other.endpoint.send_unexpected(op, &to, Tag(7), buf),
        };
        sent.expect("send");
        sends.push(op);
    }
    for op in sends {
        other.until("a send", |other| {
            node.poll();
            other.is_done(op)
        });
    }
    // It sleeps when nothing moves any more.
    node.until("a sleep", |node| node.endpoint.prepare_wait());
    (node, other)
}

#[track_caller]
fn is_woken_for(node: &mut Node, receive: OpId) {
    node.woken();
    assert_eq!(node.received(receive).0.tag, Tag(7));
}

#[test]
fn a_sleeper_is_woken_by_the_receive_of_a_refused_expected_message() {
    let (mut node, other) = asleep_before_a_refused_message(true);
    let from = node.endpoint.lookup(other.endpoint.self_addr().uri()).expect("look up");
    let receive = node.recv_expected(&from, 7);
    is_woken_for(&mut node, receive);
}

#[test]
fn a_sleeper_is_woken_by_the_receive_of_a_refused_unexpected_message() {
    let (mut node, _other) = asleep_before_a_refused_message(false);
    let receive = node.recv();
    is_woken_for(&mut node, receive);
}

#[test]
fn a_sleeper_is_woken_by_the_receive_of_many_messages() {
    let (mut node, _other) = asleep_before_a_refused_message(false);
    let receive = node.op();
    let buffers = LargeBuffers::new(1, 1 << 20, 4096);
    node.endpoint.multi_recv_unexpected(receive, 1, &buffers).expect("post a receive");
    is_woken_for(&mut node, receive);
}
