//! A peer that dies while it sends messages that do not arrive in one piece.

use std::sync::Arc;

use super::Case;
use super::node::{Node, drive, finish, pattern};
use super::peers::{echo, is_child, serve_one};
use super::process::{self, ChildNode};
use crate::{Completion, Endpoint, Error, OpenOptions};

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

/// The child's part: answers once, then sends to whom it has answered until it is killed.
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
