//! Long pieces of transfers, which UCX moves from memory to memory by its rendezvous: by itself
//! where the network can (InfiniBand, RoCE).
//!
//! A piece is offered by an active message with [`AM_PIECE`], whose header is that of a chunk. UCX
//! has the memory in hand from then on at the sender, and at the receiver once it takes the offer.
//! A request of that kind cannot be taken back: it ends when the piece was moved, or when its
//! connection is ended by force. So a slot holds the memory for so long, and a transfer that was
//! given up, or whose peer is gone, is reported when UCX has let go of it. Over shared memory
//! connections cannot be ended by force, so nothing is offered there.

use ucx_sys::{UCS_OK, ucp_dt_iov_t, ucp_ep_h, ucs_status_t};

use crate::operations::offer::Offer;
use crate::operations::slots::Work;
use crate::operations::transfer_sinks::OUTSIDE;
use crate::operations::transfer_state::{Landing, Stream};
use crate::state::driver::Driver;
use crate::ucp::{library, worker::Worker};
use crate::wire::{AM_PIECE, Chunk};
use na_core::{LocalMem, RawSegment};

/// Pieces of a transfer that a peer may have offered and not finished. It sends a few at a time;
/// with several networks between the two the news of their ends may come late.
pub(crate) const LANDINGS_MAX: u32 = 64;

impl Driver {
    /// Offers a piece of memory.
    pub(crate) fn offer(
        &mut self,
        stream: Stream,
        link: ucp_ep_h,
        chunk: Chunk,
        (memory, piece): (LocalMem, RawSegment),
    ) {
        if let Some(lent) = self.lent(stream, stream.put) {
            *lent += 1;
        }
        let data = (piece.ptr.cast_const(), piece.len);
        self.post(Work::Lent(stream, memory), |worker, slots, slot| {
            let header = slots.set_header(slot, &chunk.to_bytes());
            // SAFETY: `link` is that of its peer, which loses it when it is closed; the slot owns
            // the header, and holds the memory, until the callback.
            unsafe { worker.send_am(link, AM_PIECE, header, data, slots.pinned(slot)) }
        });
    }

    /// UCX has let go of a piece that was offered.
    pub(crate) fn piece_sent(&mut self, stream: Stream, status: ucs_status_t) {
        // Whoever asked knows how much has come; the other side may have refused it.
        self.chunk_sent(stream, status);
        self.let_go(stream, stream.put);
    }

    /// A connection offers a piece.
    ///
    /// # Errors
    ///
    /// The rule that the peer breaks.
    pub(crate) fn piece_came(
        &mut self,
        link: ucp_ep_h,
        piece: Chunk,
        offer: Offer,
    ) -> Result<(), &'static str> {
        let index = self.greeted_peer(link).ok_or("it sends data before it says hello")?;
        match self.worker.as_ref().is_some_and(Worker::detects_failure) {
            true => self.piece(index, piece, offer),
            false => Err("it offers memory by rendezvous over shared memory"),
        }
    }

    /// Takes a piece, or refuses it if its transfer was given up.
    fn piece(&mut self, index: usize, piece: Chunk, offer: Offer) -> Result<(), &'static str> {
        let Chunk { put, id, offset } = piece;
        let len = offer.len();
        let Some(session) = self.peer(index).map(|peer| peer.session) else { return Ok(()) };
        if put {
            let Some(peer) = self.peer(index) else { return Ok(()) };
            let lease = peer.leases.get(&id).filter(|lease| !lease.is_released);
            if lease.is_some_and(|lease| lease.outgoing.is_some()) {
                return Err("it writes where it asked to read");
            }
        } else if self.own(id, index).is_some_and(|own| own.put) {
            return Err(OUTSIDE);
        }
        let (memory, at) = match self.state().incoming(index, put, id) {
            // It was given up.
            None => return Ok(()),
            Some(incoming) => {
                let (memory, at) = incoming.claim(offset, len)?;
                (memory.clone(), at)
            }
        };
        let stream = Stream { peer: index, session, id, put };
        let Some(lent) = self.lent(stream, !put) else { return Ok(()) };
        if *lent >= LANDINGS_MAX {
            return Err("it offers too many pieces of a transfer at once");
        }
        let places = memory.region().pieces(at, len);
        let places: Vec<_> = places
            .map(|place| ucp_dt_iov_t { buffer: place.ptr.cast(), length: place.len })
            .collect();
        if len == 0 || places.is_empty() {
            return Err("it offers a piece without data");
        }
        *lent += 1;
        self.facts.regions.has_served();
        self.land(Landing { stream, len, memory, places }, offer);
        Ok(())
    }

    fn land(&mut self, landing: Landing, offer: Offer) {
        self.post(Work::Landing(landing), |worker, slots, slot| {
            let pinned = slots.pinned(slot);
            let places = match slots.work(slot) {
                Some(Work::Landing(landing)) => &landing.places[..],
                _ => &[],
            };
            // SAFETY: the offer is of this worker. The places were made of memory that holds so
            // many bytes there; the slot holds it, and them, until the callback. Nobody makes
            // references to registered memory.
            unsafe { worker.receive(offer, places, pinned) }
        });
    }

    /// UCX has let go of a piece that was received, or will not be.
    pub(crate) fn landed(&mut self, landing: Landing, status: ucs_status_t) {
        let Landing { stream, len, memory, .. } = landing;
        self.memory.push(memory);
        self.facts.regions.has_served();
        if status == UCS_OK {
            self.received(stream, len);
        } else if self.awaits(stream) {
            self.end_session(stream.peer, library::text(self.facts.ucp, status));
        }
        self.let_go(stream, !stream.put);
    }

    /// Returns whether somebody still wants what comes.
    fn awaits(&mut self, stream: Stream) -> bool {
        let Stream { peer: index, id, put, .. } = stream;
        self.is_current(stream)
            && match put {
                true => self.peer(index).is_some_and(|peer| {
                    peer.leases.get(&id).is_some_and(|lease| !lease.is_released)
                }),
                false => self.own(id, index).is_some(),
            }
    }

    /// So many bytes of a transfer are there.
    fn received(&self, Stream { peer, session, id, put }: Stream, len: u64) {
        let mut state = self.state();
        let window = state.windows.get_mut(peer).filter(|window| window.session == session);
        if let Some(sinks) = window.and_then(|window| window.incoming.get(put, id)) {
            sinks.received(len);
        }
    }

    /// UCX has one piece less of a transfer in hand; `own`: of one that we asked for. If that was
    /// the last one, what has waited for it ends.
    pub(crate) fn let_go(&mut self, stream: Stream, own: bool) {
        let Stream { peer: index, id, .. } = stream;
        let Some(lent) = self.lent(stream, own) else { return };
        *lent -= 1;
        if *lent > 0 {
            return;
        }
        if !own {
            return self.check_lease(index, id);
        }
        match self.transfers.get_mut(&id).and_then(|own| own.end.take()) {
            Some(end) => self.complete(id, end),
            None => self.check_own(id, index),
        }
    }
}
