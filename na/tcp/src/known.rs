//! All peers of an endpoint, for callers that ask about them.

use std::sync::Weak;

use super::endpoint::TcpEndpoint;
use super::peer::Peer;
use na_core::PeerStats;
use na_core::endpoint::stats;
use prim::sync::{Arc, lock};

/// Peers that something refers to, and some that nothing does any more.
#[derive(Default)]
pub(super) struct PeerRegistry {
    peers: Vec<Weak<Peer>>,
    sweep_at: usize,
}

impl PeerRegistry {
    pub(super) fn add(&mut self, peer: &Arc<Peer>) {
        if self.peers.len() >= self.sweep_at {
            self.peers.retain(|peer| peer.strong_count() > 0);
            self.sweep_at = 2 * self.peers.len() + 16;
        }
        self.peers.push(Arc::downgrade(peer));
    }

    /// Returns the peers that something refers to.
    pub(super) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.iter().filter_map(Weak::upgrade).collect()
    }
}

impl TcpEndpoint {
    /// Returns the statistics of all peers other than the endpoint itself.
    pub(super) fn peer_stats(&self) -> Vec<PeerStats> {
        let known = lock(&self.core.known).peers();
        let others = known.iter().filter(|peer| !self.is_own(peer));
        let mut stats: Vec<_> = others.map(|peer| (peer.id, peer.stats())).collect();
        // No more than a copy under the lock that every message takes.
        let awaited: Vec<_> = self.core.matcher.lock().awaited().collect();
        stats::assign(&mut stats, awaited);
        stats.into_iter().map(|(_, stats)| stats).collect()
    }
}
