//! Messages over tcp that come before their receives, up to the bound and beyond.

use std::time::Duration;

use na::{Addr, LargeBuffers, OpId, OpenOptions, Tag};

use crate::common::sm::Node;

/// Messages of full length of which the last ones are beyond the bound.
const COUNT: u32 = 64;

fn open(listen: bool) -> Node {
    let mut options = OpenOptions::listening(listen);
    // No limit of time ends a sleep.
    options.connect_timeout = Duration::from_secs(3600);
    Node::new(na::open("na+tcp://127.0.0.1:0", &options).expect("open"))
}

fn received_bytes(node: &Node) -> u64 {
    node.endpoint.stats().peers.iter().filter_map(|peer| peer.received_bytes).sum()
}

/// Other nodes, connected with `node`, with its address there and theirs here.
#[track_caller]
fn connected(node: &mut Node, count: u32) -> Vec<(Node, Addr, Addr)> {
    let connect = |_| {
        let mut other = open(false);
        let to = other.endpoint.lookup(node.endpoint.self_addr().uri()).expect("look up");
        let hello = node.recv();
        other.send(&to, 1, b"hello");
        node.until("a connection", |node| {
            other.poll();
            node.is_done(hello)
        });
        let from = node.received(hello).0.from;
        (other, to, from)
    };
    (0..count).map(connect).collect()
}

/// `other` sends what `node` refuses in the end: a last message, under `tag`, `expected` or not,
/// after as many of the other kind as are held.
#[track_caller]
fn refuses(node: &mut Node, (other, to): (&mut Node, &Addr), expected: bool, tag: u32) {
    let before = received_bytes(node);
    let bytes = vec![0; other.endpoint.limits().unexpected_bytes_max];
    for number in 0..=COUNT {
        let (op, mut buf) = (other.op(), other.endpoint.alloc_msg());
        assert!(buf.try_extend(&bytes));
        let last = number == COUNT;
        let sent = match last == expected {
            true => other.endpoint.send_expected(op, to, Tag(tag + u32::from(!last)), buf),
            false => other.endpoint.send_unexpected(op, to, Tag(tag), buf),
        };
        sent.expect("send");
    }
    let all = u64::from(COUNT + 1) * (16 + bytes.len() as u64);
    node.until("all messages", |node| {
        other.poll();
        received_bytes(node) == before + all
    });
}

/// Waits for the message of the receive that `post` posts: the node sleeps first if `sleeps`, else
/// it polls.
#[track_caller]
fn comes(node: &mut Node, sleeps: bool, tag: u32, post: impl FnOnce(&mut Node) -> OpId) {
    if sleeps {
        node.until("a sleep", |node| node.endpoint.prepare_wait());
    }
    let receive = post(node);
    if sleeps {
        node.woken();
    }
    assert_eq!(node.received(receive).0.tag, Tag(tag));
}

#[test]
fn a_refused_expected_message_comes_when_its_receive_is_posted() {
    for sleeps in [false, true] {
        let mut node = open(true);
        let mut others = connected(&mut node, 3);
        for (tag, (other, to, _)) in (10..).step_by(10).zip(&mut others) {
            refuses(&mut node, (other, to), true, tag);
        }
        // Each is told, after the receive of another one was.
        for (tag, (_, _, from)) in (10..).step_by(10).zip(&others) {
            comes(&mut node, sleeps, tag, |node| node.recv_expected(from, tag));
        }
    }
}

#[test]
fn a_refused_unexpected_message_comes_when_a_receive_is_posted() {
    for sleeps in [false, true] {
        let mut node = open(true);
        let mut others = connected(&mut node, 2);
        for (other, to, _) in &mut others {
            refuses(&mut node, (other, to), false, 7);
        }
        for _ in &others {
            comes(&mut node, sleeps, 7, Node::recv);
        }
    }
}

#[test]
fn a_refused_unexpected_message_comes_when_a_receive_of_many_is_posted() {
    for sleeps in [false, true] {
        let mut node = open(true);
        let mut others = connected(&mut node, 1);
        let (other, to, _) = &mut others[0];
        refuses(&mut node, (other, to), false, 7);
        comes(&mut node, sleeps, 7, |node| {
            let receive = node.op();
            let buffers = LargeBuffers::new(1, 1 << 20, 4096);
            node.endpoint.multi_recv_unexpected(receive, 1, &buffers).expect("post a receive");
            receive
        });
    }
}
