//! Puts and gets, as active messages.
//!
//! Where adapters do it, UCX's own remote memory access is used, see `remote.rs`. Where none does,
//! UCX emulates it by messages of its own, which it does not drop when a connection ends (see
//! docs/transports/ucx.md), so there it is used for tests only.
//!
//! Otherwise the requester asks the owner, which checks key, bounds and access. The bytes then
//! travel in pieces that UCX moves by its rendezvous, see `rendezvous.rs`, or in chunks. Chunks
//! belong to UCX until they are sent, or are fetched when it has room for them (`packing.rs`), and
//! UCX has no memory of a program in hand: a transfer in chunks ends at once when it is canceled or
//! the peer is gone. Arriving chunks are written by the callback that brings them
//! (`transfer_sinks.rs`).
//!
//! Each request is answered once: it is denied, or the owner says when it is done, even if it was
//! given up. So the number of transfers under way is bounded, whichever side gives up how many.

use ucx_sys::{UCS_OK, ucp_ep_h, ucs_status_t};

use crate::operations::slots::Work;
use crate::operations::transfer_sinks::{OUTSIDE, TransferSinks};
use crate::operations::transfer_state::{Lease, Moving, Outgoing, Stage, Stream};
use crate::state::{driver::Driver, peer::Phase};
use crate::ucp::{library, packing::PACKED_BYTES, worker::Worker};
use crate::wire::{AM_DATA, CHUNK_BYTES, Chunk, Control};
use na_core::{Completion, DeniedReason, Error, LocalMem, OpId, RawSegment, Transfer};

/// Bytes of a piece that goes by rendezvous or by remote key, at most: what was given up goes on
/// for so long, at worst.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

/// Transfers that may be asked of one owner at a time.
pub(crate) const ASKED_MAX: usize = 64;

/// Chunks of a transfer that UCX has in hand, at most.
pub(crate) const IN_HAND_MAX: u32 = 4;

/// Chunks that one poll sends, at most.
const CHUNKS_PER_POLL: usize = 16;

impl Driver {
    /// Starts a transfer with a peer.
    pub(crate) fn start(&mut self, op: OpId, put: bool, index: usize, transfer: Transfer) {
        let Some(peer) = self.peer(index) else { return };
        if peer.phase == Phase::Gone {
            let error = peer.gone();
            self.memory.push(transfer.local);
            return self.done(Completion::Transfer { op, result: Err(error) });
        }
        let id = self.number();
        let (stage, lent, end) = (Stage::Waiting, 0, None);
        let moving = Moving { op, transfer, put, peer: index, session: 0, stage, lent, end };
        self.transfers.insert(id, moving);
        self.transfer_of.insert(op, id);
        if let Some(peer) = self.peer(index) {
            peer.waiting.push_back(id);
        }
        self.dial(index);
        self.ask_more(index);
        self.reach();
    }

    /// Asks the owner for transfers that have waited.
    pub(crate) fn ask_more(&mut self, index: usize) {
        while let Some(peer) = self.peer(index) {
            if peer.phase != Phase::Connected || peer.asked >= ASKED_MAX {
                return;
            }
            let Some(id) = peer.waiting.pop_front() else { return };
            let session = peer.session;
            if self.goes_by_key(index, id) {
                continue;
            }
            let Some(moving) = self.transfers.get_mut(&id) else { continue };
            moving.stage = Stage::Asked { is_sent: false };
            moving.session = session;
            let Transfer { local, local_offset, remote, remote_offset, len } = &moving.transfer;
            let (key, offset, len, write) = (remote.key, *remote_offset, *len, moving.put);
            if !write {
                let incoming = TransferSinks::new(local.clone(), *local_offset, len);
                self.begin_incoming(index, false, id, incoming);
            }
            if let Some(peer) = self.peer(index) {
                peer.asked += 1;
            }
            self.tell(index, &Control::Ask { id, key, offset, len, write });
        }
    }

    /// A peer asks for memory of ours.
    pub(crate) fn asked(
        &mut self,
        index: usize,
        id: u64,
        (key, offset, len): (u64, u64, u64),
        write: bool,
    ) -> Result<(), &'static str> {
        let Some(peer) = self.peer(index) else { return Ok(()) };
        if peer.leases.len() >= ASKED_MAX {
            return Err("it asks for too many transfers at once");
        }
        if peer.leases.contains_key(&id) {
            return Err("it asks for a transfer twice");
        }
        let session = peer.session;
        let memory = match self.facts.regions.lease(key, offset, len, write) {
            Ok(memory) => memory,
            Err(reason) => {
                self.tell(index, &Control::Deny { id, reason });
                return Ok(());
            }
        };
        let outgoing = (!write).then(Outgoing::default);
        if write {
            let incoming = TransferSinks::new(memory.clone(), offset, len);
            self.begin_incoming(index, true, id, incoming);
        }
        let (lent, is_released) = (0, false);
        let lease = Lease { memory, offset, len, outgoing, lent, is_released };
        if let Some(peer) = self.peer(index) {
            peer.leases.insert(id, lease);
        }
        match (write, len) {
            (true, 1..) => self.tell(index, &Control::Grant { id }),
            (_, 0) => self.check_lease(index, id),
            (false, _) => self.queue(Stream { peer: index, session, id, put: false }),
        }
        Ok(())
    }

    /// Ends what a peer has asked for, if it is over: everything has come, or was sent, or it was
    /// given up; and UCX has nothing of it in hand.
    pub(crate) fn check_lease(&mut self, index: usize, id: u64) {
        let Some(peer) = self.peer(index) else { return };
        let Some(lease) = peer.leases.get(&id) else { return };
        let (lent, is_released) = (lease.lent, lease.is_released);
        let is_sent = lease.outgoing.as_ref().map(|outgoing| outgoing.sent == lease.len);
        let is_over = is_released || is_sent.unwrap_or_else(|| self.is_there(index, true, id));
        let Some(peer) = self.peer(index).filter(|_| is_over && lent == 0) else { return };
        if let Some(lease) = peer.leases.remove(&id) {
            self.state().end_incoming(index, true, id);
            self.end_lease(lease);
            self.tell(index, &Control::Done { id });
        }
    }

    /// The memory is the owner's alone again.
    pub(crate) fn end_lease(&mut self, lease: Lease) {
        self.facts.regions.has_served();
        self.memory.push(lease.memory);
    }

    /// A peer has given a transfer up. The answer may have crossed that.
    pub(crate) fn released(&mut self, index: usize, id: u64) {
        let Some(peer) = self.peer(index) else { return };
        let given_up = Stream { peer: index, session: peer.session, id, put: false };
        if let Some(lease) = peer.leases.get_mut(&id) {
            lease.is_released = true;
            self.state().end_incoming(index, true, id);
            self.withhold(|stream| *stream == given_up);
            self.check_lease(index, id);
        }
    }

    /// The owner has answered what we have given up; whether we had.
    fn was_released(&mut self, index: usize, id: u64) -> bool {
        let was = self.peer(index).is_some_and(|peer| peer.released.remove(&id));
        if was {
            self.answered(index);
        }
        was
    }

    /// A transfer of ours that the peer may answer.
    pub(crate) fn own(&mut self, id: u64, index: usize) -> Option<&mut Moving> {
        let session = self.peer(index)?.session;
        let own = self.transfers.get_mut(&id)?;
        let asked =
            matches!(own.stage, Stage::Asked { .. } | Stage::Sending(_)) && !own.has_ended();
        (own.peer == index && own.session == session && asked).then_some(own)
    }

    pub(crate) fn denied(&mut self, index: usize, id: u64, reason: DeniedReason) {
        if !self.was_released(index, id) && self.own(id, index).is_some() {
            let peer = self.peer(index).map(|peer| peer.uri.to_string()).unwrap_or_default();
            self.end_asked(id, index, Err(Error::Denied { peer, reason }));
        }
    }

    /// The owner lets us write.
    pub(crate) fn granted(&mut self, index: usize, id: u64) -> Result<(), &'static str> {
        // It may have been given up meanwhile.
        let Some(own) = self.own(id, index) else { return Ok(()) };
        if !own.put || matches!(own.stage, Stage::Sending(_)) {
            return Err("it grants what was not asked for");
        }
        own.stage = Stage::Sending(Outgoing::default());
        let session = own.session;
        self.queue(Stream { peer: index, session, id, put: true });
        Ok(())
    }

    /// The owner is done: it has everything, or has sent everything.
    pub(crate) fn owner_done(&mut self, index: usize, id: u64) -> Result<(), &'static str> {
        if self.was_released(index, id) {
            return Ok(());
        }
        let Some(own) = self.own(id, index) else { return Ok(()) };
        match &mut own.stage {
            Stage::Asked { is_sent } if !own.put || own.transfer.len == 0 => *is_sent = true,
            Stage::Sending(outgoing) if outgoing.sent == own.transfer.len => {
                self.end_asked(id, index, Ok(()));
                return Ok(());
            }
            _ => return Err("it has a put that was not sent to it"),
        }
        self.check_own(id, index);
        Ok(())
    }

    /// Ends a get of ours, or a transfer of no bytes, if it is over: the owner has sent everything,
    /// and all has come.
    pub(crate) fn check_own(&mut self, id: u64, index: usize) {
        let Some(own) = self.own(id, index) else { return };
        let (put, is_sent) = (own.put, matches!(own.stage, Stage::Asked { is_sent: true }));
        // A put of which the owner says so before anything was sent is one of no bytes.
        if is_sent && (put || self.is_there(index, false, id)) {
            self.end_asked(id, index, Ok(()));
        }
    }

    fn begin_incoming(&self, index: usize, put: bool, id: u64, incoming: TransferSinks) {
        self.state().windows[index].incoming.begin(put, id, incoming);
    }

    /// Returns whether all of a transfer has come.
    fn is_there(&self, index: usize, put: bool, id: u64) -> bool {
        self.state().incoming(index, put, id).is_some_and(|incoming| incoming.is_whole())
    }

    /// A chunk has come for which there is no place here: the rest of what was given up, or what
    /// was asked for in the other direction.
    pub(crate) fn stray(&mut self, index: usize, chunk: Chunk) -> Result<(), &'static str> {
        let Chunk { put, id, .. } = chunk;
        match put {
            true => match self.peer(index).and_then(|peer| peer.leases.get(&id)) {
                Some(lease) if lease.outgoing.is_some() => Err("it writes where it asked to read"),
                _ => Ok(()),
            },
            false => self.own(id, index).map_or(Ok(()), |_| Err(OUTSIDE)),
        }
    }

    pub(crate) fn queue(&mut self, stream: Stream) {
        if let Some((outgoing, _, _, total)) = self.outgoing(stream)
            && !outgoing.is_queued
            && outgoing.sent < total
        {
            outgoing.is_queued = true;
            self.sending.push_back(stream);
        }
    }

    /// Returns the data of a stream, if it is still to be sent: how far it is, its memory, from
    /// where, and how much.
    pub(crate) fn outgoing(
        &mut self,
        stream: Stream,
    ) -> Option<(&mut Outgoing, &LocalMem, u64, u64)> {
        let Stream { peer, session, id, put } = stream;
        let from = self.peers.get_mut(peer)?.as_mut().filter(|from| from.session == session)?;
        if put {
            let own = self.transfers.get_mut(&id)?;
            if own.session != session || own.has_ended() {
                return None;
            }
            let Stage::Sending(outgoing) = &mut own.stage else { return None };
            let Transfer { local, local_offset, len, .. } = &own.transfer;
            return Some((outgoing, local, *local_offset, *len));
        }
        let lease = from.leases.get_mut(&id).filter(|lease| !lease.is_released)?;
        let Lease { memory, offset, len, outgoing, .. } = lease;
        Some((outgoing.as_mut()?, memory, *offset, *len))
    }

    /// Sends chunks, one of each transfer in turn.
    pub(crate) fn send_chunks(&mut self) {
        for _ in 0..CHUNKS_PER_POLL {
            let Some(stream) = self.sending.pop_front() else { return };
            self.send_chunk(stream);
        }
    }

    /// Sends the next piece of a transfer, or the next chunk.
    fn send_chunk(&mut self, stream: Stream) {
        let Some(peer) = self.peer(stream.peer) else { return };
        let (link, lends_from) = (peer.link, peer.lends_from);
        let packs = self.worker.as_ref().is_some_and(Worker::packs);
        let has_to_wait = self.has_to_wait(stream);
        let Some((outgoing, memory, start, total)) = self.outgoing(stream) else { return };
        outgoing.is_queued = false;
        let Some(link) = link else { return };
        if has_to_wait || outgoing.in_hand >= IN_HAND_MAX || outgoing.sent >= total {
            return;
        }
        let (at, left) = (start + outgoing.sent, total - outgoing.sent);
        let chunk = Chunk { put: stream.put, id: stream.id, offset: outgoing.sent };
        outgoing.in_hand += 1;
        let long = |piece: &RawSegment| lends_from.is_some_and(|least| piece.len >= least);
        let piece = match packs {
            true => None,
            false => memory.region().pieces(at, left.min(PIECE_BYTES)).next().filter(long),
        };
        if let Some(piece) = piece {
            outgoing.sent += piece.len as u64;
            let memory = memory.clone();
            self.offer(stream, link, chunk, (memory, piece));
        } else if packs {
            let len = left.min(PACKED_BYTES as u64);
            outgoing.sent += len;
            let memory = memory.clone();
            self.pack_chunk(stream, link, chunk, (memory, at, len));
        } else {
            let len = left.min(CHUNK_BYTES as u64);
            let mut bytes = chunk.with_room(len as usize);
            let read = memory.region().append_to(at, len as usize, &mut bytes);
            debug_assert!(read, "checked when the transfer began");
            outgoing.sent += len;
            self.post_chunk(stream, link, bytes);
        }
        self.facts.regions.has_served();
        self.queue(stream);
        if !stream.put {
            // What went in chunks was copied: the memory may be free.
            self.check_lease(stream.peer, stream.id);
        }
    }

    /// How many pieces of a transfer UCX has in hand; `own`: of one that we asked for.
    pub(crate) fn lent(&mut self, stream: Stream, own: bool) -> Option<&mut u32> {
        let Stream { peer, session, id, .. } = stream;
        if own {
            return Some(&mut self.transfers.get_mut(&id)?.lent);
        }
        let peer = self.peers.get_mut(peer)?.as_mut().filter(|peer| peer.session == session)?;
        Some(&mut peer.leases.get_mut(&id)?.lent)
    }

    /// Gives a chunk to UCX.
    fn post_chunk(&mut self, stream: Stream, link: ucp_ep_h, bytes: Vec<u8>) {
        let data = (bytes.as_ptr(), bytes.len());
        self.chunk_given(stream);
        self.post(Work::Chunk(stream, bytes), |worker, slots, slot| {
            let header = (std::ptr::null(), 0);
            // SAFETY: `link` is that of its peer, which loses it when it is closed; the slot owns
            // the bytes until the callback.
            unsafe { worker.send_am(link, AM_DATA, header, data, slots.pinned(slot)) }
        });
    }

    /// Lets UCX fetch a chunk, see `packing.rs`: so many bytes of this memory, from there on.
    fn pack_chunk(
        &mut self,
        stream: Stream,
        link: ucp_ep_h,
        chunk: Chunk,
        (memory, at, len): (LocalMem, u64, u64),
    ) {
        self.chunk_given(stream);
        let slot = self.post(Work::Packed(stream, None), |worker, slots, slot| {
            slots.set_source(slot, chunk, Some((&memory, at, len)));
            // SAFETY: `link` is that of its peer, which loses it when it is closed. The slot lives
            // until the callback; so does the memory, or the slot names none by then: it is held
            // here through the call, and by the slot from then on.
            unsafe { worker.send_packed(link, slots.pinned(slot)) }
        });
        if let Some(work) = slot.and_then(|slot| self.slots.work(slot)) {
            *work = Work::Packed(stream, Some(memory));
            if let Some(lent) = self.lent(stream, stream.put) {
                *lent += 1;
            }
        }
    }

    pub(crate) fn stream_failed(&mut self, stream: Stream, status: ucs_status_t) {
        if self.outgoing(stream).is_some() {
            let reason = library::text(self.facts.ucp, status);
            self.end_session(stream.peer, reason);
        }
    }

    /// UCX needs a chunk, or a piece, no more.
    pub(crate) fn chunk_sent(&mut self, stream: Stream, status: ucs_status_t) {
        if status != UCS_OK {
            return self.stream_failed(stream, status);
        }
        if let Some((outgoing, ..)) = self.outgoing(stream) {
            // It may be of one before with the same number, which the peer chooses.
            outgoing.in_hand = outgoing.in_hand.saturating_sub(1);
            self.queue(stream);
        }
    }

    /// UCX has fetched a chunk that had to wait.
    pub(crate) fn packed(
        &mut self,
        stream: Stream,
        memory: Option<LocalMem>,
        status: ucs_status_t,
    ) {
        self.chunk_sent(stream, status);
        if let Some(memory) = memory {
            self.memory.push(memory);
            self.let_go(stream, stream.put);
        }
    }

    /// Takes the memory of chunks that wait in UCX out of its reach.
    pub(crate) fn withhold(&mut self, is_its: impl Fn(&Stream) -> bool) {
        if !self.worker.as_ref().is_some_and(Worker::packs) {
            return;
        }
        self.walk();
        let skipped = Chunk { put: true, id: self.number(), offset: 0 };
        let mut withheld = Vec::new();
        for (slot, work) in self.slots.iter_mut() {
            if let Work::Packed(stream, memory) = work
                && is_its(stream)
                && let Some(memory) = memory.take()
            {
                withheld.push((slot, *stream, memory));
            }
        }
        for (slot, stream, memory) in withheld {
            self.slots.set_source(slot, skipped, None);
            self.memory.push(memory);
            self.let_go(stream, stream.put);
        }
    }

    /// Ends a transfer of which the owner was asked, and which it has answered.
    fn end_asked(&mut self, id: u64, index: usize, result: Result<(), Error>) {
        self.end_transfer(id, result);
        self.answered(index);
    }

    /// An owner has answered: the next transfer may ask.
    pub(crate) fn answered(&mut self, index: usize) {
        if let Some(peer) = self.peer(index) {
            peer.asked = peer.asked.saturating_sub(1);
        }
        self.ask_more(index);
    }

    /// Ends a transfer, now or when UCX has let go of its memory.
    pub(crate) fn end_transfer(&mut self, id: u64, result: Result<(), Error>) {
        match self.transfers.get_mut(&id) {
            Some(own) if own.lent > 0 => drop(own.end.get_or_insert(result)),
            _ => self.complete(id, result),
        }
    }

    /// Reports a transfer.
    pub(crate) fn complete(&mut self, id: u64, result: Result<(), Error>) {
        let Some(own) = self.transfers.remove(&id) else { return };
        self.transfer_of.remove(&own.op);
        self.state().end_incoming(own.peer, false, id);
        self.memory.push(own.transfer.local);
        self.done(Completion::Transfer { op: own.op, result: own.end.unwrap_or(result) });
        if matches!(own.stage, Stage::ByKey(_)) {
            self.let_key_go(own.peer, own.session, own.transfer.remote.key);
        }
    }

    /// Ends a transfer early: at once, or when UCX has let go of what it has in hand of it, which
    /// takes the peer, or the end of the connection. `false`: there is none of this number.
    pub(crate) fn cancel_transfer(&mut self, op: OpId) -> bool {
        let Some(&id) = self.transfer_of.get(&op) else { return false };
        let Some(own) = self.transfers.get(&id) else { return false };
        if own.has_ended() {
            return true;
        }
        let index = own.peer;
        let is_sending = matches!(own.stage, Stage::Sending(_));
        let is_asked = is_sending || matches!(own.stage, Stage::Asked { .. });
        if let Some(peer) = self.peer(index) {
            match is_asked {
                true => drop(peer.released.insert(id)),
                false => peer.waiting.retain(|waiting| *waiting != id),
            }
        }
        if is_asked {
            self.tell(index, &Control::Release { id });
            self.state().end_incoming(index, false, id);
        }
        if is_sending {
            self.withhold(|stream| stream.put && stream.id == id);
        }
        self.end_transfer(id, Err(Error::Canceled));
        true
    }

    /// Ends the transfers with a peer that has ended.
    pub(crate) fn fail_transfers(&mut self, index: usize, error: &Error) {
        self.withhold(|stream| stream.peer == index);
        let of_peer = self.transfers.iter().filter(|(_, own)| own.peer == index);
        let all: Vec<_> = of_peer.map(|(id, _)| *id).collect();
        for id in all {
            self.end_transfer(id, Err(error.clone()));
        }
    }
}
