//! Long pieces of transfers, which UCX moves from memory to memory by its rendezvous: by itself
//! where the network can (InfiniBand, RoCE).
//!
//! A piece is offered by an active message with [`AM_PIECE`](super::worker::AM_PIECE), whose header
//! is that of a chunk. UCX has the memory in hand from then on at the sender, and at the receiver
//! once it takes the offer. A request of that kind cannot be taken back: it ends when the piece was
//! moved, or when its connection is ended by force. So a slot holds the memory for so long, and a
//! transfer that was given up, or whose peer is gone, is reported when UCX has let go of it. Over
//! shared memory connections cannot be ended by force, so nothing is offered there.

use ucx_sys::{UCS_OK, ucp_dt_iov_t, ucp_ep_h, ucs_status_t};

use super::driver::Driver;
use super::offer::Offer;
use super::slots::Work;
use super::transfer_sinks::OUTSIDE;
use super::transfers::Stream;
use super::wire::Chunk;
use super::worker;
use super::worker::{AM_PIECE, Posted, Worker, names_rdma};
use crate::{LocalMem, RawSegment};

/// Bytes of a piece, at most: what was given up goes on for so long, at worst.
pub(super) const PIECE_BYTES: u64 = 4 << 20;

/// Bytes from which memory is worth the two messages more, where a device moves it.
const WORTHWHILE_BYTES: usize = 64 << 10;

/// Pieces of a transfer that a peer may have offered and not finished. It sends a few at a time;
/// with several networks between the two the news of their ends may come late.
pub(super) const LANDINGS_MAX: u32 = 64;

/// A piece that UCX writes.
pub(super) struct Landing {
    pub(super) stream: Stream,
    len: u64,
    pub(super) memory: LocalMem,
    /// The places where it goes, for UCX; inside `memory`.
    places: Vec<ucp_dt_iov_t>,
}

impl Driver {
    /// From which length on memory is sent by rendezvous by a connection of these
    /// [lanes](Worker::lanes), if at all.
    pub(super) fn lends_from(&self, lanes: &str) -> Option<usize> {
        self.worker.as_ref().filter(|worker| worker.detects_failure())?;
        match self.facts.rendezvous_bytes_min {
            Some(least) => Some(least.max(1)),
            None => names_rdma(lanes).then_some(WORTHWHILE_BYTES),
        }
    }

    /// Returns whether a transfer belongs to what is between us and the peer now.
    pub(super) fn is_current(&self, stream: Stream) -> bool {
        self.has_session(stream.peer, stream.session)
    }

    /// Returns whether that is what is between us and the peer now.
    pub(super) fn has_session(&self, index: usize, session: u64) -> bool {
        let peer = self.peers.get(index).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.session == session)
    }

    /// Offers a piece of memory; what became of it.
    pub(super) fn offer(
        &mut self,
        stream: Stream,
        link: ucp_ep_h,
        offset: u64,
        (memory, piece): (LocalMem, RawSegment),
    ) -> Posted {
        let slot = self.slots.add(Work::Lent(stream, memory));
        let pinned = self.slots.pinned(slot);
        let chunk = Chunk { put: stream.put, id: stream.id, offset };
        let header = self.slots.set_header(slot, &chunk.to_bytes());
        let Some(worker) = &self.worker else { return Posted::Failed(ucx_sys::UCS_ERR_CANCELED) };
        let data = (piece.ptr.cast_const(), piece.len);
        // SAFETY: `link` is in the list of its peer, which it leaves when it is closed; the slot
        // owns the header, and holds the memory, until the callback.
        let posted = unsafe { worker.send_am(link, AM_PIECE, header, data, pinned) };
        match posted {
            Posted::Pending(request) => self.slots.started(slot, request),
            Posted::Done | Posted::Failed(_) => {
                if let Some(Work::Lent(_, memory)) = self.slots.take(slot) {
                    self.memory.push(memory);
                }
            }
        }
        posted
    }

    /// UCX has let go of a piece that was offered.
    pub(super) fn piece_sent(&mut self, stream: Stream, status: ucs_status_t) {
        // Whoever asked knows how much has come; the other side may have refused it.
        self.chunk_sent(stream, status);
        self.let_go(stream, stream.put);
    }

    /// A connection offers a piece.
    pub(super) fn piece_came(&mut self, link: ucp_ep_h, piece: Chunk, offer: Offer) {
        let result = match self.greeted_peer(link) {
            None => Err("it sends data before it says hello"),
            Some(_) if !self.worker.as_ref().is_some_and(Worker::detects_failure) => {
                Err("it offers memory by rendezvous over shared memory")
            }
            Some(index) => self.piece(index, piece, offer),
        };
        if let Err(rule) = result {
            self.broke(link, rule.to_owned());
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
        let slot = self.slots.add(Work::Landing(landing));
        let pinned = self.slots.pinned(slot);
        let (Some(worker), Some(Work::Landing(landing))) = (&self.worker, self.slots.work(slot))
        else {
            return;
        };
        // SAFETY: the offer is of this worker. The places were made of memory that holds so many
        // bytes there; the slot holds it, and them, until the callback. Nobody makes references to
        // registered memory.
        let posted = unsafe { worker.receive(offer, &landing.places, pinned) };
        let status = match posted {
            Posted::Pending(request) => return self.slots.started(slot, request),
            Posted::Done => UCS_OK,
            Posted::Failed(status) => status,
        };
        self.finished(slot, status);
    }

    /// UCX has let go of a piece that was received, or will not be.
    pub(super) fn landed(&mut self, landing: Landing, status: ucs_status_t) {
        let Landing { stream, len, memory, .. } = landing;
        self.memory.push(memory);
        self.facts.regions.has_served();
        if status == UCS_OK {
            self.received(stream, len);
        } else if self.awaits(stream) {
            self.end_session(stream.peer, worker::text(self.facts.ucp, status));
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
    fn received(&mut self, stream: Stream, len: u64) {
        let Stream { peer: index, id, put, .. } = stream;
        if !self.is_current(stream) {
            return;
        }
        if let Some(incoming) = self.state().incoming(index, put, id) {
            incoming.received(len);
        }
    }

    /// UCX has one piece less of a transfer in hand; `own`: of one that we asked for. If that was
    /// the last one, what has waited for it ends.
    pub(super) fn let_go(&mut self, stream: Stream, own: bool) {
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
