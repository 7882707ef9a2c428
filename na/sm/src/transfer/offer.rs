//! Standing permissions: a peer that asks for the same region again may from then on copy there by
//! itself, without a word to us. It maps memory of `alloc`. It attaches to plain memory, if that is
//! possible and it finds that way the cheaper one (`costs.rs`). An offer of plain memory tells it
//! an address in our memory, but allows it nothing that it could not do before: it is of our user,
//! and the system lets processes of one user attach to each other, or neither to the other.
//!
//! An *offer* is a slot of the connection and a generation. While the slot's word in the shared
//! segment holds the generation, the offer stands.
//!
//! | owner | requester |
//! |---|---|
//! | announces the block, if it is one, stores the generation, sends *offer* | keeps it |
//! | | enters the gate of offers, and copies if the word is the generation |
//! | revokes the region: clears the word, fence | leaves the gate |
//! | keeps the memory while the gate is not quiet | finds the word changed: asks again |
//!
//! The place in an offer is the slot in bits 0..8, the region's access in 8..16 and the generation
//! in 32..64.
//!
//! The fences are those of `gate.rs`: either the requester sees that the offer is gone, or the
//! owner sees it copying. So revoking a region works as it does for a transfer that had begun. Only
//! short transfers are done this way, in the call that starts them; the gate is entered under the
//! send lock. Most regions travel in one call and are asked for once; those get no offer.

use std::sync::Weak;
use std::time::Instant;

use super::block::PeerBlock;
use super::cma::{self, Direction, VECTORS};
use super::costs::{Cost, Costs, MEASURED_FROM, Way};
use super::kept::{Keeper, Kept};
use crate::link::gate::withdraw;
use crate::link::record::Piece;
use crate::link::{Conn, Control, OFFERS_MAX};
use na_core::memory::copy::copy_between;
use na_core::memory::copy_bytes;
use na_core::memory::region::{Offer, RetiredMemory};
use na_core::{Access, LocalMem, RawSegment, Transfer, WeakMem};
use prim::sync::Arc;
use prim::sync::atomic::Ordering;

/// Longest transfer that is copied at once, bytes.
pub(crate) const AT_ONCE_BYTES: u64 = 64 << 10;

/// Regions that were asked for lately and are remembered.
const ASKED_MAX: usize = 16;

/// Requests without an offer after there was no slot for one.
const PAUSE: u32 = 256;

/// A slot of a connection.
#[derive(Debug)]
struct OfferSlot {
    key: u64,
    region: WeakMem,
}

/// The memory that we have offered on a connection; only the poll touches it.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    slots: Vec<OfferSlot>,
    /// Keys of the last requests that had no offer.
    asked: [u64; ASKED_MAX],
    asked_at: usize,
    generation: u32,
    pause: u32,
    /// To be offered.
    wanted: Option<LocalMem>,
}

impl Offered {
    /// A request for `len` bytes of the region of `lease` came, which the peer could reach itself.
    pub(crate) fn requested(&mut self, lease: &LocalMem, len: u64) {
        let key = lease.key();
        if len > AT_ONCE_BYTES || self.slots.iter().any(|slot| slot.key == key) {
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
    pub(crate) fn next(
        &mut self,
        endpoint: &Weak<impl Keeper + 'static>,
        conn: &Arc<Conn>,
        announce: impl FnOnce(&LocalMem, bool) -> Option<u64>,
    ) -> Option<Control> {
        let lease = self.wanted.take()?;
        let offer = match lease.region().block() {
            Some(_) => announce(&lease, lease.access().writable()).and_then(|block| {
                let place = self.offer(&lease, endpoint, conn)?;
                Some(Control::Offer { key: lease.key(), block, place })
            }),
            None => lease.region().whole().and_then(|whole| {
                let place = self.offer(&lease, endpoint, conn)?;
                let (addr, len) = (whole.ptr.expose_provenance() as u64, whole.len as u64);
                Some(Control::OfferPlain { key: lease.key(), place, addr, len })
            }),
        };
        if offer.is_none() {
            self.pause = PAUSE;
        }
        offer
    }

    /// Makes an offer; says its place.
    fn offer(
        &mut self,
        lease: &LocalMem,
        endpoint: &Weak<impl Keeper + 'static>,
        conn: &Arc<Conn>,
    ) -> Option<u64> {
        let free = self.slots.iter().position(|slot| slot.region.upgrade().is_none());
        let slot = free.unwrap_or(self.slots.len());
        if slot >= OFFERS_MAX {
            return None;
        }
        self.generation = self.generation.checked_add(1)?;
        let generation = self.generation;
        let word = conn.segment.offer(true, slot);
        word.store(generation, Ordering::Relaxed);
        let (endpoint, conn): (Weak<dyn Keeper>, _) = (endpoint.clone(), Arc::downgrade(conn));
        if !lease.region().offer(Arc::new(Standing { endpoint, conn, slot, generation })) {
            word.store(0, Ordering::Relaxed);
            return None;
        }
        let entry = OfferSlot { key: lease.key(), region: lease.downgrade() };
        match free {
            Some(free) => self.slots[free] = entry,
            None => self.slots.push(entry),
        }
        let access = lease.access().bits();
        Some(slot as u64 | u64::from(access) << 8 | u64::from(generation) << 32)
    }

    /// The connection ends: the regions where the peer may be copying.
    pub(crate) fn regions(&self) -> impl Iterator<Item = LocalMem> + '_ {
        self.slots.iter().filter_map(|slot| slot.region.upgrade())
    }
}

/// An offer, as its region knows it.
struct Standing {
    endpoint: Weak<dyn Keeper>,
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

    fn keep(&self, held: RetiredMemory) {
        let Some(conn) = self.conn.upgrade() else { return };
        let Some(endpoint) = self.endpoint.upgrade() else {
            // Nobody is left to look after it, and giving it back could let a foreign process
            // overwrite whatever comes next.
            return held.keep_for_good();
        };
        endpoint.keep(Kept {
            conn,
            memory: Vec::new(),
            late: Vec::new(),
            held: Some(held),
            admission: None,
        });
    }
}

/// Offers of the peer; behind the send lock.
#[derive(Debug)]
pub(crate) struct Offers {
    known: Vec<Known>,
    /// Attaching has failed: plain memory is asked for.
    asks: bool,
    /// The costs of transfers of plain memory, which we attach to by ourselves or ask for.
    pub(crate) costs: Costs,
}

/// How a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Going {
    /// It is done.
    Done,
    /// The owner has to be asked; to be measured if there is a choice.
    Ask { measure: bool },
}

#[derive(Debug)]
struct Known {
    key: u64,
    slot: usize,
    generation: u32,
    access: Access,
    memory: Theirs,
}

/// The memory that an offer names.
#[derive(Debug)]
pub(crate) enum Theirs {
    /// The region is the block.
    Block(Arc<PeerBlock>),
    /// Plain memory in the peer's address space.
    Plain { addr: u64, len: u64 },
}

/// Reads the word of an offer that says its place: slot, access, generation.
pub(crate) fn read_place(place: u64) -> Option<(usize, Access, u32)> {
    let (slot, access) = ((place & 0xff) as usize, Access::from_bits((place >> 8) as u8)?);
    let generation = (place >> 32) as u32;
    let sound = slot < OFFERS_MAX && place & 0xffff_0000 == 0 && generation != 0;
    sound.then_some((slot, access, generation))
}

impl Default for Offers {
    fn default() -> Self {
        // By ourselves at first: we were offered it because we ask so often.
        Self { known: Vec::new(), asks: false, costs: Costs::by_itself() }
    }
}

impl Offers {
    /// Takes an offer.
    pub(crate) fn add(&mut self, key: u64, place: (usize, Access, u32), memory: Theirs) {
        let (slot, access, generation) = place;
        self.known.retain(|known| known.slot != slot && known.key != key);
        if !(self.asks && matches!(memory, Theirs::Plain { .. })) {
            self.known.push(Known { key, slot, generation, access, memory });
        }
    }

    /// A block exists no more.
    pub(crate) fn forget(&mut self, block: u64) {
        let is_it = |memory: &Theirs| matches!(memory, Theirs::Block(it) if it.id() == block);
        self.known.retain(|known| !is_it(&known.memory));
    }

    /// Does a transfer if an offer allows it, and that is better than to ask.
    #[inline]
    pub(crate) fn copy(&mut self, conn: &Conn, put: bool, transfer: &Transfer) -> Going {
        const ASK: Going = Going::Ask { measure: false };
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        if *len > AT_ONCE_BYTES || *len == 0 {
            return ASK;
        }
        let Some(at) = self.known.iter().position(|known| known.key == remote.key) else {
            return ASK;
        };
        let known = &mut self.known[at];
        let allowed = if put { known.access.writable() } else { known.access.readable() };
        if !allowed {
            return ASK;
        }
        let Some(memory) = known.memory.at(*remote_offset, *len, put) else { return ASK };
        let ours = Ours { local, offset: *local_offset, len: *len };
        let mut measure = false;
        if matches!(memory, OfferPart::Plain(_)) {
            if !ours.fits_a_call() {
                return ASK;
            }
            let choice = self.costs.choose(put, *len);
            measure = choice.measure;
            if choice.way == Way::Ring {
                return Going::Ask { measure };
            }
        }
        let gate = conn.segment.offers_gate();
        if !gate.enter_under(conn.segment.offer(false, known.slot), known.generation) {
            self.known.swap_remove(at);
            return ASK;
        }
        let copied = match memory {
            OfferPart::Mapped(theirs) => {
                ours.copy_mapped(put, theirs);
                true
            }
            OfferPart::Plain(theirs) if measure => {
                let (copied, cost) = ours.attach_measured(conn, put, theirs);
                self.costs.measured(cost, Way::Attach);
                copied
            }
            OfferPart::Plain(theirs) => ours.attach(conn, put, theirs),
        };
        gate.leave();
        if !copied {
            self.asks = true;
            self.known.swap_remove(at);
            return ASK;
        }
        Going::Done
    }
}

/// Our side of a transfer, which keeps the region alive.
#[derive(Clone, Copy)]
struct Ours<'a> {
    local: &'a LocalMem,
    offset: u64,
    len: u64,
}

impl Ours<'_> {
    fn pieces(&self) -> impl Iterator<Item = RawSegment> + '_ {
        self.local.region().pieces(self.offset, self.len)
    }

    #[inline]
    fn lone_piece(&self) -> Option<RawSegment> {
        self.local.region().lone_piece(self.offset, self.len)
    }

    /// Returns whether one call of the system can name all of it.
    #[inline]
    fn fits_a_call(&self) -> bool {
        self.lone_piece().is_some() || self.pieces().nth(VECTORS).is_none()
    }

    /// Copies to or from mapped memory of the peer, inside the gate.
    #[inline]
    fn copy_mapped(self, put: bool, theirs: RawSegment) {
        let Some(ours) = self.lone_piece() else { return self.copy_pieces(put, theirs) };
        let (from, to) = if put { (ours, theirs) } else { (theirs, ours) };
        // SAFETY: a piece of our region, which the transfer keeps alive, and one as long of a block
        // that is mapped for this access; nobody holds references to them (contract of
        // `Memory::from_raw`), and the owner keeps its memory while we are in the gate.
        unsafe { copy_bytes::copy_shared(from.ptr, to.ptr, ours.len) };
    }

    #[inline(never)]
    fn copy_pieces(self, put: bool, theirs: RawSegment) {
        // SAFETY: as in `copy_mapped`.
        unsafe { copy_between(!put, self.pieces(), std::iter::once(theirs), None) };
    }

    /// Copies by cross-memory attach, inside the gate, what [fits a call](Self::fits_a_call);
    /// whether all of it went.
    #[inline]
    fn attach(self, conn: &Conn, put: bool, theirs: Piece) -> bool {
        // The process id is that of the peer as far as this says.
        if !conn.was_alive() {
            return false;
        }
        let direction = if put { Direction::ToPeer } else { Direction::FromPeer };
        let Some(ours) = self.lone_piece() else {
            return self.attach_pieces(conn, direction, theirs);
        };
        // SAFETY: a piece of our region, which the transfer keeps alive, valid for what it allows,
        // and to whose bytes nobody holds a reference (contract of `Memory::from_raw`).
        let copied = unsafe { cma::copy_piece(conn.pid(), ours, theirs, direction) };
        copied == Ok(theirs.len)
    }

    #[inline(never)]
    fn attach_pieces(self, conn: &Conn, direction: Direction, theirs: Piece) -> bool {
        let theirs_too = std::iter::once(theirs);
        // SAFETY: as in `attach`, of each piece.
        let copied = unsafe { cma::copy(conn.pid(), self.pieces(), theirs_too, direction) };
        copied == Ok(theirs.len)
    }

    #[inline(never)]
    fn attach_measured(self, conn: &Conn, put: bool, theirs: Piece) -> (bool, Cost) {
        let began = Instant::now();
        let copied = self.attach(conn, put, theirs);
        (copied, Cost::of_one(put, self.len, began.elapsed()))
    }
}

/// Where a transfer under an offer goes.
enum OfferPart {
    Mapped(RawSegment),
    Plain(Piece),
}

impl Theirs {
    /// The bytes of a transfer; `None` when it has to be asked for.
    #[inline]
    fn at(&mut self, offset: u64, len: u64, write: bool) -> Option<OfferPart> {
        match self {
            Self::Block(block) => block.at(offset, len, write).map(OfferPart::Mapped),
            Self::Plain { addr, len: whole } => {
                let end = offset.checked_add(len)?;
                // The sum was checked when the offer came.
                let piece = || OfferPart::Plain(Piece { addr: *addr + offset, len, block: 0 });
                // Shorter ones fit into few lines of the ring.
                (len >= MEASURED_FROM && end <= *whole).then(piece)
            }
        }
    }
}
