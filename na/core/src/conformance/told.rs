//! Cases about the statistics that an endpoint gives of its peers and of registered memory.

use super::Case;
use super::node::{Node, finish, greet};
use crate::{Access, OpId, PeerLink, PeerStats};

/// The peer from which exactly this is awaited.
fn awaiting(node: &Node, awaited: &[OpId]) -> Option<PeerStats> {
    let peers = node.endpoint.stats().peers;
    let mut found = peers.into_iter().filter(|peer| peer.awaited == awaited);
    let one = found.next();
    assert!(one.is_none() || awaited.is_empty() || found.next().is_none(), "two of them");
    one
}

/// Returns the bytes and messages that have gone to the peer, and the messages that have come from
/// it; `None`: the transport does not count them all.
pub(super) fn counts(node: &Node, uri: &str) -> Option<[u64; 3]> {
    let peers = node.endpoint.stats().peers;
    let found = peers.iter().filter(|peer| uri.contains(&peer.uri));
    // Over two transports it is there twice.
    let peer = found.max_by_key(|peer| peer.sent_messages).expect("a peer that was looked up");
    Some([peer.sent_bytes?, peer.sent_messages?, peer.received_messages?])
}

/// Returns [`counts`] after a message each way, and checks that all are more than before, whatever
/// became of connections.
pub(super) fn counts_after(node: &Node, uri: &str, before: Option<[u64; 3]>) -> Option<[u64; 3]> {
    let now = counts(node, uri);
    if let Some((before, now)) = before.zip(now) {
        assert!(before.iter().zip(&now).all(|(before, now)| before < now), "{before:?}, {now:?}");
    }
    now
}

/// Peers are there with what is awaited from them, as long as it is; memory while it is registered.
pub fn peers_and_memory_are_told(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let waiting = origin.recv_expected(&to_target, 5);
    let peer = awaiting(&origin, &[waiting]).expect("a peer from which something is awaited");
    assert_eq!(peer.link, PeerLink::Connected, "{peer:?}");
    assert!(to_target.uri().contains(&peer.uri), "{peer:?} is not {to_target}");
    assert!(peer.sent_bytes.is_none_or(|bytes| bytes > 0), "{peer:?}");
    target.send_expected(&to_origin, 5, b"here it is");
    finish(&[&origin, &target], "the message", &[waiting]);
    assert!(awaiting(&origin, &[waiting]).is_none());
    // How many have gone each way, where that is counted: one more each time.
    let counts = |node: &Node, of: &PeerStats| {
        let peers = node.endpoint.stats().peers;
        let found = peers.into_iter().find(|one| one.uri == of.uri && one.link == of.link);
        let found = found.expect("the peer is still there");
        Some((found.sent_messages?, found.received_messages?))
    };
    if let Some((sent, received)) = counts(&origin, &peer) {
        let waiting = origin.recv_expected(&to_target, 6);
        let asked = target.recv_expected(&to_origin, 6);
        origin.send_expected(&to_target, 6, b"and now");
        target.send_expected(&to_origin, 6, b"here as well");
        finish(&[&origin, &target], "a message each way", &[waiting]);
        finish(&[&target, &origin], "a message each way", &[asked]);
        assert_eq!(counts(&origin, &peer), Some((sent + 1, received + 1)));
    }

    let before = origin.endpoint.stats();
    let memory = origin.register(vec![0; 1000], Access::ReadOnly);
    let with = origin.endpoint.stats();
    let grown = (with.regions - before.regions, with.region_bytes - before.region_bytes);
    assert_eq!(grown, (1, 1000));
    drop(memory);
    let after = origin.endpoint.stats();
    assert_eq!((after.regions, after.region_bytes), (before.regions, before.region_bytes));
}
