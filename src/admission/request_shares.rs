//! Shares of the requests that wait to be decoded (`margo.requests_max`). One peer, or one host or
//! user with many connections, must not hold all of them, or no other peer's requests are received.
//!
//! As in a plain gate (`gate.rs`), the first places are for any peer, and cost nothing. The RPC
//! layer marks the requests that come beyond. They are counted here for their peer and its host
//! until their arguments are decoded, and are answered with "busy" if these already have their
//! share.

use hg::RawRequest;
use margo_config::{Admission, Resolved};
use prim::lock::Lock;
use std::sync::Arc;

use crate::Addr;
use crate::admission::gate::{Host, InsideCounts, Share};

/// The holders of requests beyond the free places.
pub(crate) struct RequestShares {
    /// The counts; `None`: there are no shares.
    counts: Option<Arc<Lock<InsideCounts>>>,
}

impl RequestShares {
    /// Makes those of one shard, of as many as there are at the start.
    pub(crate) fn of_shard(resolved: &Resolved) -> Self {
        let shards = resolved.progress_pools().count();
        Self::new(resolved.requests_max.div_ceil(shards), resolved.admission.other)
    }

    /// `bounds` tell whether peers and hosts have shares at all.
    fn new(requests_max: usize, bounds: Admission) -> Self {
        let part = |max: Option<usize>| max.filter(|max| *max == 0);
        let mut all = Admission::new(requests_max.max(1));
        all.peer_handlers_max = part(bounds.peer_handlers_max);
        all.host_handlers_max = part(bounds.host_handlers_max);
        let counts = InsideCounts::beyond_free(&all);
        Self { counts: (!counts.are_none()).then(|| Arc::new(Lock::new(counts))) }
    }

    /// Counts a request that came beyond the free places, until it is decoded. `false`: its peer or
    /// host has its share.
    pub(crate) fn admit(
        &self,
        peer: &Addr,
        host: impl FnOnce() -> Host,
        request: &mut RawRequest,
    ) -> bool {
        let Some(counts) = &self.counts else { return true };
        let mut inside = counts.lock();
        let host = inside.host_of(peer, host);
        let has_share = inside.share(peer, host) == Share::Left;
        if has_share {
            inside.count_in(peer, host);
            drop(inside);
            let (counts, peer) = (counts.clone(), peer.clone());
            request.set_place(Box::new(CountedRequest { counts, peer }));
        }
        has_share
    }
}

/// One that is counted.
struct CountedRequest {
    counts: Arc<Lock<InsideCounts>>,
    peer: Addr,
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.counts.lock().count_out(&self.peer);
    }
}
