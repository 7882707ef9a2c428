//! Bytes of early messages, summed over the peers of each [`Principal`].

use std::collections::HashMap;

use slab::Slab;

use crate::{Addr, Principal};

/// Names the share of a principal, as long as a peer of it has [joined](Shares::join).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShareKey(usize);

/// The early messages of one principal's peers.
struct MessageShare {
    whose: Principal,
    bytes: usize,
    /// Peers that have joined.
    peers: usize,
}

/// The shares of all principals. A peer looks its share up once, when it joins: a message only
/// indexes.
pub(super) struct Shares {
    /// Bytes that each share may have.
    pub(super) bytes_max: usize,
    whose: fn(&Addr) -> Principal,
    shares: Slab<MessageShare>,
    keys: HashMap<Principal, usize>,
}

impl Shares {
    pub(super) fn new(bytes_max: usize, whose: fn(&Addr) -> Principal) -> Self {
        Self { bytes_max, whose, shares: Slab::new(), keys: HashMap::new() }
    }

    /// Bytes in the share of `from`, which is `share` if it has joined one.
    #[inline]
    pub(super) fn bytes(&self, share: Option<ShareKey>, from: &Addr) -> usize {
        let key =
            share.map(|share| share.0).or_else(|| self.keys.get(&(self.whose)(from)).copied());
        key.and_then(|key| self.shares.get(key)).map_or(0, |share| share.bytes)
    }

    /// Counts `from` among the peers of its principal.
    #[cold]
    pub(super) fn join(&mut self, from: &Addr) -> ShareKey {
        let whose = (self.whose)(from);
        let new = || self.shares.insert(MessageShare { whose, bytes: 0, peers: 0 });
        let key = *self.keys.entry(whose).or_insert_with(new);
        self.shares[key].peers += 1;
        ShareKey(key)
    }

    #[inline]
    pub(super) fn charge(&mut self, share: ShareKey, bytes: usize) {
        self.shares[share.0].bytes += bytes;
    }

    #[inline]
    pub(super) fn release(&mut self, share: ShareKey, bytes: usize) {
        self.shares[share.0].bytes -= bytes;
    }

    /// Undoes [`join`](Self::join), for a peer of which `bytes` are in its share.
    pub(super) fn leave(&mut self, share: ShareKey, bytes: usize) {
        let left = &mut self.shares[share.0];
        left.bytes -= bytes;
        left.peers -= 1;
        if left.peers == 0 {
            let MessageShare { whose, .. } = self.shares.remove(share.0);
            self.keys.remove(&whose);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.keys.is_empty()
    }

    /// Forgets all peers.
    pub(super) fn clear(&mut self) {
        self.shares.clear();
        self.keys.clear();
    }
}
