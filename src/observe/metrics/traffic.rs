//! Bytes that were exchanged with peers, as counters that never go back, although transports count
//! them for each peer and forget those that have gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::PeerMetrics;

/// Bytes sent and received.
type Bytes = [u64; 2];

/// The sums so far, and the figures of each peer at the last snapshot: as many as the instance
/// knows peers.
#[derive(Default)]
pub(crate) struct Traffic(Mutex<(Bytes, HashMap<String, Bytes>)>);

/// A snapshot that has begun and has not read the peers. Others wait until it has: one that is
/// older than the last would seem to tell of peers that have gone and come back.
pub(crate) struct BegunTraffic<'a>(MutexGuard<'a, (Bytes, HashMap<String, Bytes>)>);

impl Traffic {
    /// Begins a snapshot, before the peers are read.
    pub(crate) fn begin(&self) -> BegunTraffic<'_> {
        BegunTraffic(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BegunTraffic<'_> {
    /// Adds what has come since the last snapshot; returns the sums. `peers` has each address once.
    pub(crate) fn add(mut self, peers: &[PeerMetrics]) -> Bytes {
        let (sums, last) = &mut *self.0;
        let mut known = HashMap::with_capacity(peers.len());
        for peer in peers {
            let now = [peer.sent_bytes, peer.received_bytes].map(Option::unwrap_or_default);
            let then = last.get(&peer.address).copied().unwrap_or_default();
            // Fewer than before: it has gone, and come back.
            let is_same = now[0] >= then[0] && now[1] >= then[1];
            for at in [0, 1] {
                sums[at] += if is_same { now[at] - then[at] } else { now[at] };
            }
            known.insert(peer.address.clone(), now);
        }
        *last = known;
        *sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_go_back_when_a_peer_goes_and_comes_again() {
        let traffic = Traffic::default();
        let peer = |address: &str, sent, received| PeerMetrics {
            address: address.to_owned(),
            sent_bytes: Some(sent),
            received_bytes: received,
            ..PeerMetrics::default()
        };
        assert_eq!(traffic.begin().add(&[peer("a", 10, Some(1)), peer("b", 5, None)]), [15, 1]);
        assert_eq!(traffic.begin().add(&[peer("a", 12, Some(3)), peer("b", 5, None)]), [17, 3]);
        assert_eq!(traffic.begin().add(&[peer("b", 6, None)]), [18, 3]);
        assert_eq!(traffic.begin().add(&[peer("a", 4, Some(4)), peer("b", 1, None)]), [23, 7]);
        assert_eq!(traffic.begin().add(&[]), [23, 7]);
    }
}
