//! All peers of an endpoint, for callers that ask about them.

use std::sync::Weak;

use crate::peers::peer::Peer;
use prim::sync::Arc;

/// Peers that something refers to, and some that nothing does any more.
#[derive(Default)]
pub(crate) struct PeerRegistry {
    peers: Vec<Weak<Peer>>,
    sweep_at: usize,
}

impl PeerRegistry {
    pub(crate) fn add(&mut self, peer: &Arc<Peer>) {
        if self.peers.len() >= self.sweep_at {
            self.peers.retain(|peer| peer.strong_count() > 0);
            self.sweep_at = 2 * self.peers.len() + 16;
        }
        self.peers.push(Arc::downgrade(peer));
    }

    /// Returns the peers that something refers to.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.iter().filter_map(Weak::upgrade).collect()
    }
}
