//! Standing permissions: a peer that asks for the same region of `alloc` memory again is let copy
//! there by itself from then on, without a word to us.
//!
//! An *offer* is a slot of the connection and a generation. While the slot's word in the shared
//! segment holds the generation, the offer stands.
//!
//! | owner | requester |
//! |---|---|
//! | maps the block to the peer, stores the generation, sends *offer* | keeps it |
//! | | enters the gate of offers, and copies if the word is the generation |
//! | revokes the region: clears the word, fence | leaves the gate |
//! | keeps the memory while the gate is not quiet | finds the word changed: asks again |
//!
//! The place in an offer is the slot in bits 0..8, the region's access in 8..16 and the generation
//! in 32..64.
//!
//! The fences are those of `gate.rs`: either the requester sees that the offer is gone, or the
//! owner sees it copying. So revoking a region works as it does for a transfer that had begun.
//! Only short transfers are done this way, in the call that starts them; the gate is entered under
//! the send lock. A region that is asked for once, as most that travel in one call, has no offer.

use std::sync::Weak;

use super::block::PeerBlock;
use super::copy::copy_between;
use super::endpoint::SmEndpoint;
use super::gate::withdraw;
use super::link::{Conn, Control};
use super::teardown::Kept;
use crate::region::{Held, Offer};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use crate::{Access, LocalMem, Transfer, WeakMem};

/// Longest transfer that is copied at once, bytes.
pub(super) const AT_ONCE_BYTES: u64 = 64 << 10;

/// Offers that stand on a connection, in each direction.
pub(super) const OFFERS_MAX: usize = 64;

/// Regions that were asked for lately and are remembered.
const ASKED_MAX: usize = 16;

/// Requests without an offer after there was no slot for one.
const PAUSE: u32 = 256;

/// What we have offered on a connection; the poll's.
#[derive(Debug, Default)]
pub(super) struct Offered {
    slots: Vec<(u64, WeakMem)>,
    /// Keys of the last requests that had no offer.
    asked: [u64; ASKED_MAX],
    asked_at: usize,
    generation: u32,
    pause: u32,
    /// To be offered.
    wanted: Option<LocalMem>,
}

impl Offered {
    /// A request for `len` bytes of the region of `lease` came.
    pub(super) fn requested(&mut self, lease: &LocalMem, len: u64) {
        let key = lease.key();
        let offered = self.slots.iter().any(|(offered, _)| *offered == key);
        if len > AT_ONCE_BYTES || lease.region().block().is_none() || offered {
            return;
        }
        if !self.asked.contains(&key) {
            self.asked[self.asked_at % ASKED_MAX] = key;
            self.asked_at += 1;
        } else if self.pause > 0 {
            self.pause -= 1;
        } else {
            self.wanted = Some(lease.clone());
        }
    }

    /// Offers the region that is wanted, if any. `announce` makes sure that the peer can map it,
    /// and says its block. Returns what to say.
    pub(super) fn next(
        &mut self,
        endpoint: &Weak<SmEndpoint>,
        conn: &Arc<Conn>,
        announce: impl FnOnce(&LocalMem, bool) -> Option<u64>,
    ) -> Option<Control> {
        let lease = self.wanted.take()?;
        let block = announce(&lease, lease.access().writable());
        let offer = block.and_then(|block| self.offer(&lease, block, endpoint, conn));
        if offer.is_none() {
            self.pause = PAUSE;
        }
        offer
    }

    fn offer(
        &mut self,
        lease: &LocalMem,
        block: u64,
        endpoint: &Weak<SmEndpoint>,
        conn: &Arc<Conn>,
    ) -> Option<Control> {
        let free = self.slots.iter().position(|(_, region)| region.upgrade().is_none());
        let slot = free.unwrap_or(self.slots.len());
        if slot >= OFFERS_MAX {
            return None;
        }
        self.generation = self.generation.checked_add(1)?;
        let generation = self.generation;
        let word = conn.segment.offer(true, slot);
        word.store(generation, Ordering::Relaxed);
        let (endpoint, conn) = (endpoint.clone(), Arc::downgrade(conn));
        if !lease.region().offer(Box::new(Standing { endpoint, conn, slot, generation })) {
            word.store(0, Ordering::Relaxed);
            return None;
        }
        let entry = (lease.key(), lease.downgrade());
        match free {
            Some(free) => self.slots[free] = entry,
            None => self.slots.push(entry),
        }
        let access = lease.access().bits();
        let place = slot as u64 | u64::from(access) << 8 | u64::from(generation) << 32;
        Some(Control::Offer { key: lease.key(), block, place })
    }

    /// The connection ends: the regions where the peer may be copying.
    pub(super) fn regions(&self) -> impl Iterator<Item = LocalMem> + '_ {
        self.slots.iter().filter_map(|(_, region)| region.upgrade())
    }
}

/// An offer, as its region knows it.
struct Standing {
    endpoint: Weak<SmEndpoint>,
    conn: Weak<Conn>,
    slot: usize,
    generation: u32,
}

impl Offer for Standing {
    fn withdraw(&self) {
        let Some(conn) = self.conn.upgrade() else { return };
        withdraw(conn.segment.offer(true, self.slot), self.generation);
    }

    fn stands(&self) -> bool {
        self.conn.upgrade().is_some_and(|conn| {
            conn.segment.offer(true, self.slot).load(Ordering::Relaxed) == self.generation
        })
    }

    fn is_used(&self) -> bool {
        // Without the connection nobody copies: its end waited for that.
        self.conn.upgrade().is_some_and(|conn| conn.segment.peer_copies())
    }

    fn keep(&self, held: Held) {
        let Some(conn) = self.conn.upgrade() else { return };
        let Some(endpoint) = self.endpoint.upgrade() else {
            // Nobody is left to look after it, and giving it back could let a foreign process
            // overwrite whatever comes next.
            return std::mem::forget(held);
        };
        lock(&endpoint.kept).push(Kept { conn, memory: Vec::new(), held: Some(held) });
        endpoint.ready.wake_poll();
    }
}

/// Offers of the peer; behind the send lock.
#[derive(Debug, Default)]
pub(super) struct Offers(Vec<Known>);

#[derive(Debug)]
struct Known {
    key: u64,
    slot: usize,
    generation: u32,
    access: Access,
    block: Arc<PeerBlock>,
}

/// Reads the last word of an offer: slot, access, generation.
pub(super) fn read_place(place: u64) -> Option<(usize, Access, u32)> {
    let (slot, access) = ((place & 0xff) as usize, Access::from_bits((place >> 8) as u8)?);
    let generation = (place >> 32) as u32;
    let sound = slot < OFFERS_MAX && place & 0xffff_0000 == 0 && generation != 0;
    sound.then_some((slot, access, generation))
}

impl Offers {
    /// Takes an offer.
    pub(super) fn add(&mut self, key: u64, place: (usize, Access, u32), block: Arc<PeerBlock>) {
        let (slot, access, generation) = place;
        self.0.retain(|known| known.slot != slot && known.key != key);
        self.0.push(Known { key, slot, generation, access, block });
    }

    /// A block exists no more.
    pub(super) fn forget(&mut self, block: u64) {
        self.0.retain(|known| known.block.id() != block);
    }

    /// Does a transfer if an offer allows it. `false`: nothing was done, the owner has to be asked.
    #[inline]
    pub(super) fn copy(&mut self, conn: &Conn, put: bool, transfer: &Transfer) -> bool {
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        if *len > AT_ONCE_BYTES || *len == 0 {
            return false;
        }
        let Some(at) = self.0.iter().position(|known| known.key == remote.key) else {
            return false;
        };
        let known = &self.0[at];
        let allowed = if put { known.access.writable() } else { known.access.readable() };
        // The region is the block.
        let Some(theirs) = known.block.at(*remote_offset, *len, put).filter(|_| allowed) else {
            return false;
        };
        let gate = conn.segment.offers_gate();
        if !gate.enter_under(conn.segment.offer(false, known.slot), known.generation) {
            self.0.swap_remove(at);
            return false;
        }
        let ours = local.region().pieces(*local_offset, *len);
        // SAFETY: pieces of our region, which the transfer keeps alive, and of a block that is
        // mapped for this access; nobody holds references to them (contract of
        // `Memory::from_raw`), and the owner keeps its memory while we are in the gate.
        unsafe { copy_between(!put, ours, std::iter::once(theirs), None) };
        gate.leave();
        true
    }
}
