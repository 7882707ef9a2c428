//! Memory in which long payloads wait for one peer, again and again.
//!
//! A payload that did not fit into a message is exposed until its receiver is done. Memory that is
//! registered for one payload costs the receiver a round trip to get it. A *slot* stays registered:
//! it is memory of `alloc`, and a peer on this host that has got from it before copies from it by
//! itself, without asking ([`Endpoint::direct_bytes_max`]).
//!
//! | state | whose | left by |
//! |---|---|---|
//! | idle | the pool's | `expose` |
//! | exposed | the operation's | `done`: idle again; dropped: revoked, never used again |
//!
//! A slot is for one peer for as long as it lives, because a peer that knows its key, or has mapped
//! it, can read whatever is ever there. A slot is used again only after that peer has told that it
//! is done: after a cancel the peer could be copying still, and would take the next payload for
//! this one.
//!
//! Slots are made for peers that overflow often, and where they help; the oldest idle ones make
//! room for others.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use na::{Access, Addr, AllocOptions, Endpoint, LocalMem, Memory};
use prim::sync::lock;

use crate::memory::{Kept, Share};

/// Bytes of a slot. Longer payloads gain nothing: what the round trip costs, the transport wins by
/// copying at both sides at the same time.
pub(crate) const SLOT_BYTES: usize = 32 << 10;

/// Slots of one pool. Each takes a descriptor here, and one at its peer.
const SLOTS_MAX: usize = 64;

/// Slots for one peer, which leaves room for the peer's other mappings of ours.
const PER_PEER_MAX: usize = 16;

/// Payloads for a peer without a slot before one is made: to make it takes as long as they.
pub(crate) const MISSES: u32 = 16;

/// Bytes of a slot that are fetched back from the peer's cache as soon as it has read them, before
/// the next payload comes. Chosen, not measured: more than a processor fetches at a time, so that a
/// caller that waits for the response does not wait for all of a long one's lines.
const PREPARED_MAX: u64 = 8 << 10;

/// Peers whose misses are counted.
const PEERS_MAX: usize = 2 * SLOTS_MAX;

/// A payload that a peer may fetch. Dropped, it is revoked, which may run its owner's code and give
/// memory back to the system: not under a lock.
#[derive(Debug)]
pub(crate) struct ExposedPayload {
    memory: Option<LocalMem>,
    /// Bytes of the payload, up to [`PREPARED_MAX`].
    len: u64,
    /// Where the memory goes back to, if it is a slot.
    home: Option<(Weak<Slots>, Addr)>,
    /// The bytes among those of the results that are kept, or of the arguments of calls that were
    /// given up.
    share: Option<Share>,
    is_done: bool,
}

impl ExposedPayload {
    /// Memory for this payload alone.
    #[inline]
    pub(crate) fn once(memory: LocalMem) -> Self {
        Self { memory: Some(memory), len: 0, home: None, share: None, is_done: false }
    }

    /// Counts it among the results that are kept, for as long as it is.
    #[inline]
    pub(crate) fn counted(mut self, share: Share) -> Self {
        self.share = Some(share);
        self
    }

    /// Counts it among the arguments of calls that were given up, for as long as it is.
    #[inline]
    pub(crate) fn count(&mut self, kept: &Kept) {
        let len = self.memory.as_ref().map_or(0, LocalMem::len);
        self.share = kept.keep(len, u64::MAX);
    }

    /// It is not counted any more; whether it was.
    #[inline]
    pub(crate) fn uncount(&mut self) -> bool {
        self.share.take().is_some()
    }

    /// Returns the count that this memory holds among those that are kept, if it is counted.
    #[inline]
    pub(crate) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    #[inline]
    pub(crate) fn memory(&self) -> Option<&LocalMem> {
        self.memory.as_ref()
    }

    /// The peer has said that it is done: a slot is idle again when this is dropped.
    #[inline]
    pub(crate) fn done(&mut self) {
        self.is_done = true;
    }
}

impl Drop for ExposedPayload {
    fn drop(&mut self) {
        let Some((slots, peer)) = self.home.take() else { return };
        let Some(slots) = slots.upgrade() else { return };
        match self.memory.take() {
            Some(memory) if self.is_done => {
                memory.prepare_write(0, self.len);
                lock(&slots.kept).idle.push(PayloadSlot { peer, memory });
            }
            revoked => {
                lock(&slots.kept).ended(&peer);
                drop(revoked);
            }
        }
    }
}

/// The slots of one endpoint.
pub(crate) struct Slots {
    endpoint: Arc<dyn Endpoint>,
    kept: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    /// The one used last is last.
    idle: Vec<PayloadSlot>,
    peers: Vec<Peer>,
    /// Slots that exist, idle or not.
    count: usize,
}

struct PayloadSlot {
    peer: Addr,
    memory: LocalMem,
}

struct Peer {
    addr: Addr,
    misses: u32,
    slots: usize,
}

impl Slots {
    pub(crate) fn new(endpoint: Arc<dyn Endpoint>) -> Arc<Self> {
        Arc::new(Self { endpoint, kept: Mutex::default() })
    }

    /// Puts a payload for `peer` into a slot, if there is one.
    pub(crate) fn expose(self: &Arc<Self>, peer: &Addr, bytes: &[u8]) -> Option<ExposedPayload> {
        if bytes.len() > SLOT_BYTES {
            return None;
        }
        let memory = self.idle(peer).or_else(|| self.make(peer))?;
        let home = Some((Arc::downgrade(self), peer.clone()));
        let len = PREPARED_MAX.min(bytes.len() as u64);
        let exposed =
            ExposedPayload { memory: Some(memory), len, home, share: None, is_done: false };
        let written = exposed.memory().is_some_and(|memory| memory.write_at(0, bytes));
        written.then_some(exposed)
    }

    fn idle(&self, peer: &Addr) -> Option<LocalMem> {
        let mut kept = lock(&self.kept);
        let at = kept.idle.iter().rposition(|slot| slot.peer == *peer)?;
        Some(kept.idle.remove(at).memory)
    }

    #[cold]
    fn make(&self, peer: &Addr) -> Option<LocalMem> {
        // The other way round peers of transports without would be counted.
        if self.endpoint.direct_bytes_max(peer) < SLOT_BYTES as u64
            || !lock(&self.kept).is_due(peer)
        {
            return None;
        }
        let oldest = lock(&self.kept).begin(peer).ok()?;
        drop(oldest);
        let made = Memory::alloc(SLOT_BYTES, &AllocOptions::default())
            .and_then(|memory| self.endpoint.register(memory, Access::ReadOnly));
        if made.is_err() {
            lock(&self.kept).ended(peer);
        }
        made.ok()
    }
}

impl Pool {
    /// A payload for `peer` finds no slot: whether to make one.
    fn is_due(&mut self, addr: &Addr) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.addr == *addr) else {
            if self.peers.len() >= PEERS_MAX
                && let Some(at) = self.peers.iter().position(|peer| peer.slots == 0)
            {
                self.peers.remove(at);
            }
            self.peers.push(Peer { addr: addr.clone(), misses: 1, slots: 0 });
            return false;
        };
        peer.misses = peer.misses.saturating_add(1);
        if peer.misses < MISSES || peer.slots >= PER_PEER_MAX {
            return false;
        }
        peer.misses = 0;
        true
    }

    /// Counts a slot for `peer`. Returns the one that makes room for it, if there has to be one.
    ///
    /// # Errors
    ///
    /// There is no room.
    fn begin(&mut self, addr: &Addr) -> Result<Option<PayloadSlot>, ()> {
        let full = self.count >= SLOTS_MAX;
        let oldest = match full {
            true if self.idle.is_empty() => return Err(()),
            true => Some(self.idle.remove(0)),
            false => None,
        };
        if let Some(slot) = &oldest {
            self.ended(&slot.peer);
        }
        self.count += 1;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.addr == *addr) {
            peer.slots += 1;
        }
        Ok(oldest)
    }

    fn ended(&mut self, addr: &Addr) {
        self.count -= 1;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.addr == *addr) {
            peer.slots = peer.slots.saturating_sub(1);
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({})", lock(&self.kept).count)
    }
}
