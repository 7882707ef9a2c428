//! All peers of an endpoint, for whoever asks about them.

use std::sync::Weak;

use super::peer::Peer;
use crate::sync::Arc;

/// Peers that something refers to, and some that nothing does any more.
#[derive(Default)]
pub(super) struct Known {
    peers: Vec<Weak<Peer>>,
    sweep_at: usize,
}

impl Known {
    pub(super) fn add(&mut self, peer: &Arc<Peer>) {
        if self.peers.len() >= self.sweep_at {
            self.peers.retain(|peer| peer.strong_count() > 0);
            self.sweep_at = 2 * self.peers.len() + 16;
        }
        self.peers.push(Arc::downgrade(peer));
    }

    /// Those that something refers to.
    pub(super) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.iter().filter_map(Weak::upgrade).collect()
    }
}
