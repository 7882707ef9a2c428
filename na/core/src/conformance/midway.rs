//! A peer that dies, or stops, while it sends messages that do not arrive in one piece, or while
//! memory moves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node::{Node, drive, finish, pattern};
use super::peers::{assert_gone, child_with_memory, echo, is_child, serve_one, transfer};
use super::process;
use super::process::ChildNode;
use super::{Case, PATIENCE};
use crate::{Access, Completion, Endpoint, Error, LocalMem, OpenOptions, Transfer};

/// Bytes of a message: several of what networks move at a time.
const LONG: usize = 64 << 10;

/// Expected messages that are awaited.
const COUNT: u32 = 40;

/// Messages that the child has on the way.
const AHEAD: usize = 4;

fn open(case: &Case<'_>, listen: bool) -> Option<Arc<dyn Endpoint>> {
    let mut options = OpenOptions::listening(listen);
    options.message_bytes_max = LONG;
    case.open_with(&options)
}

/// The child's part: answers once, then sends to the peer that it has answered until it is killed.
pub(super) fn play(case: &Case<'_>) {
    let node = Node::new(case, open(case, true).expect("as the parent has opened one"));
    process::say(node.endpoint.self_addr().uri());
    serve_one(&node);
    let asked = node.recv_unexpected();
    finish(&[&node], "the request to begin", &[asked]);
    let (arrival, _) = node.received(asked);
    let mut sends = Vec::new();
    for tag in 0.. {
        sends.push(node.send_expected(&arrival.from, tag, &pattern(tag.into(), LONG)));
        drive(&[&node], "room for another message", || {
            sends.retain(|op| !node.is_done(*op));
            sends.len() < AHEAD
        });
    }
}

/// SIGKILL of a peer that sends long messages ends every receive that waits for it, also the one
/// whose message has arrived in part.
pub fn a_peer_that_dies_amid_long_messages_is_reported(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let Some(endpoint) = open(case, false) else { return };
    let node = Node::new(case, endpoint);
    for round in 0..6 {
        let mut child = ChildNode::start(case, "pour", "");
        let to_child = node.endpoint.lookup(&child.line()).expect("the child's address");
        echo(&node, &to_child, COUNT);
        let receives: Vec<_> = (0..COUNT).map(|tag| node.recv_expected(&to_child, tag)).collect();
        let sent = node.send_unexpected(&to_child, 1, b"begin");
        let enough = 1 + 3 * round;
        drive(&[&node], "some messages", || node.count_done(&receives) >= enough);
        child.kill();
        finish(&[&node], "the receives from a dead peer", &receives);
        finish(&[&node], "the request to begin", &[sent]);
        for (tag, op) in (0..COUNT).zip(receives) {
            match node.take(op) {
                Completion::Recv { buf, result: Ok(_), .. } => {
                    assert!(buf.as_slice() == pattern(tag.into(), LONG), "message {tag}");
                }
                Completion::Recv { result: Err(Error::PeerGone { .. }), .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Bytes of a transfer.
const MOVED: usize = 12 << 20;

/// The child's part: reads and writes the memory that it is told of, again and again.
pub(super) fn play_mover(case: &Case<'_>) {
    let node = Node::open(case, true);
    process::say(node.endpoint.self_addr().uri());
    let asked = node.recv_unexpected();
    finish(&[&node], "what to move", &[asked]);
    let (arrival, described) = node.received(asked);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    loop {
        let get = node.get(&arrival.from, transfer(&node, &remote, MOVED));
        let put = node.put(&arrival.from, transfer(&node, &remote, MOVED));
        finish(&[&node], "the child's transfers", &[get, put]);
        [get, put].into_iter().for_each(|op| node.succeeded(op));
        let told = node.send_expected(&arrival.from, 3, b"moved");
        finish(&[&node], "the child's message", &[told]);
    }
}

/// Waits until `memory` is its owner's alone.
fn comes_back(node: &Node, what: &str, memory: LocalMem) {
    let deadline = Instant::now() + PATIENCE;
    let mut left = memory.reclaim().err();
    // Not `drive`, which may sleep: nothing is reported.
    while let Some(memory) = left {
        assert!(Instant::now() < deadline, "it does not come back: {what}");
        node.poll();
        std::thread::yield_now();
        left = memory.reclaim().err();
    }
}

fn ends(child: &mut ChildNode, stops: bool) {
    if stops {
        child.stop();
    } else {
        child.kill();
    }
}

/// A peer is killed during a transfer, or is stopped and passes the limit. Everything that was
/// asked of it ends, and all memory comes back, whichever side copies and in whichever direction.
///
/// Slow: the stopped peers pass the limit.
pub fn memory_comes_back_from_a_peer_that_ends_amid_transfers(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let mut options = OpenOptions::listening(true);
    options.liveness_limit = Duration::from_millis(1000);
    let Some(endpoint) = case.open_with(&options) else { return };
    let node = Node::new(case, endpoint);
    for stops in [false, true] {
        // Ours is read and written.
        let exposed = node.register(pattern(1, MOVED), Access::ReadWrite);
        let mut child = ChildNode::start(case, "move", "");
        let to_child = node.endpoint.lookup(&child.line()).expect("the child's address");
        let described = node.endpoint.mem_to_bytes(&exposed);
        let sent = node.send_unexpected(&to_child, 1, &described);
        let [waits, moved] = [2, 3].map(|tag| node.recv_expected(&to_child, tag));
        finish(&[&node], "the first round", &[sent, moved]);
        // It is amid the second.
        for _ in 0..3 {
            node.poll();
        }
        ends(&mut child, stops);
        finish(&[&node], "what a child owes that has ended", &[waits]);
        assert_gone(&node.error(waits));
        comes_back(&node, "memory that the child has moved", exposed);

        // That of the peer is.
        let (mut child, to_child, remote) = child_with_memory(case, &node, "offer");
        let local = [1, 2].map(|seed| node.register(pattern(seed, MOVED), Access::ReadWrite));
        let part = |local: &LocalMem| Transfer {
            local: local.clone(),
            local_offset: 0,
            remote: remote.clone(),
            remote_offset: 0,
            len: MOVED as u64,
        };
        let first = node.get(&to_child, part(&local[0]));
        finish(&[&node], "a transfer before the end", &[first]);
        node.succeeded(first);
        let ops = [node.get(&to_child, part(&local[0])), node.put(&to_child, part(&local[1]))];
        for _ in 0..3 {
            node.poll();
        }
        ends(&mut child, stops);
        let waits = node.recv_expected(&to_child, 2);
        finish(&[&node], "transfers with a child that has ended", &ops);
        finish(&[&node], "a receive of it", &[waits]);
        for op in ops {
            // The last bytes may have been there.
            if let Err(error) = node.outcome(op) {
                assert_gone(&error);
            }
        }
        for local in local {
            comes_back(&node, "memory that was moved", local);
        }
    }
}
