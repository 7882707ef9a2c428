//! Cases about peers that are stopped (SIGSTOP) and may go on later.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Case;
use super::node::{Node, finish, pattern};
use super::peers::{echo, is_child, pending_on, send_until_it_fails, stalled_child};
use super::process::ChildNode;
use crate::{Error, OpenOptions, PeerLink};

/// Without a liveness limit a stopped peer is slow, nothing else: what it was sent waits for it.
pub fn a_stopped_peer_is_waited_for(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    const COUNT: u32 = 300;
    let node = Node::open(case, false);
    let mut child = ChildNode::start(case, "serve", "");
    let to_child = node.endpoint.lookup(&child.line()).expect("the child's address");
    echo(&node, &to_child, 1);
    child.stop();
    let bytes = pattern(1, node.endpoint.limits().unexpected_bytes_max);
    let answers: Vec<_> = (0..COUNT).map(|tag| node.recv_expected(&to_child, tag)).collect();
    let sends: Vec<_> =
        (0..COUNT).map(|tag| node.send_unexpected(&to_child, tag, &bytes)).collect();
    for _ in 0..2000 {
        node.poll();
    }
    assert_eq!(node.count_done(&answers), 0, "the child is stopped");
    child.signal(Signal::CONT);
    finish(&[&node], "the answers of a child that goes on", &answers);
    finish(&[&node], "the sends to it", &sends);
    sends.into_iter().for_each(|op| node.succeeded(op));
    for op in answers {
        assert!(node.received(op).1 == bytes);
    }
}

/// A listening node with a liveness limit, if the transport heeds that.
fn limited(case: &Case<'_>, limit: Duration) -> Option<Node> {
    let mut options = OpenOptions::listening(true);
    options.liveness_limit = limit;
    // Shorter than the default: a peer that has passed its limit is tried again for that long.
    options.connect_timeout = Duration::from_secs(2);
    Some(Node::new(case, case.open_with(&options)?))
}

/// With a liveness limit a stopped peer that owes something counts as gone; a peer that merely has
/// nothing to say does not. When it goes on, the address works again.
pub fn a_stopped_peer_passes_the_liveness_limit(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let Some(node) = limited(case, Duration::from_millis(1500)) else { return };

    // A child that answers for its life, whatever it is waiting for.
    let mut server = ChildNode::start(case, "serve", "");
    let to_server = node.endpoint.lookup(&server.line()).expect("the child's address");
    echo(&node, &to_server, 1);
    // A child of which a transfer, a send and two receives are wanted when it is stopped.
    let (child, to_child, described) = stalled_child(case, &node);
    let ops = pending_on(&node, &to_child, &described);
    child.stop();
    let patient = node.recv_expected(&to_server, 99);
    finish(&[&node], "operations with a stopped peer", &ops);
    for op in ops {
        let error = node.error(op);
        assert!(matches!(error, Error::PeerGone { .. }), "{error}");
    }
    assert!(!node.is_done(patient), "who answers for its life is not gone");
    drop(send_until_it_fails(&node, &to_child));
    echo(&node, &to_server, 2);
}

/// A stopped peer that owes nothing but an answer passes the limit as well, although nothing of
/// ours is on its way to it.
pub fn a_stopped_peer_that_owes_an_answer_passes_the_limit(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let Some(node) = limited(case, Duration::from_millis(1500)) else { return };
    let (child, to_child, _) = stalled_child(case, &node);
    let answer = node.recv_expected(&to_child, 5);
    child.stop();
    finish(&[&node], "an answer of a stopped peer", &[answer]);
    let error = node.error(answer);
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
}

/// A peer of which nothing is wanted may stop for as long as it likes, or compute: its connection
/// stays.
pub fn a_stopped_peer_that_owes_nothing_is_not_given_up(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let limit = Duration::from_millis(300);
    let Some(node) = limited(case, limit) else { return };
    let mut child = ChildNode::start(case, "serve", "");
    let to_child = node.endpoint.lookup(&child.line()).expect("the child's address");
    echo(&node, &to_child, 1);
    child.stop();
    let until = Instant::now() + 3 * limit;
    while Instant::now() < until {
        node.poll();
        std::thread::sleep(Duration::from_micros(100));
    }
    // Or it would have been connected with again by what follows.
    let peers = node.endpoint.stats().peers;
    let link = peers.iter().find(|peer| to_child.uri().contains(&peer.uri)).map(|peer| peer.link);
    assert_eq!(link, Some(PeerLink::Connected), "{peers:?}");
    child.signal(Signal::CONT);
    echo(&node, &to_child, 2);
}
