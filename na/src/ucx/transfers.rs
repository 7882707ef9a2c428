//! Puts and gets, as active messages.
//!
//! UCX's own remote memory access is not used: it asks nobody and checks no bounds, and with UCX
//! 1.13 processes crashed in tests that ended connections with puts and gets in hand. Where a
//! device does not move the data by itself, UCX does it by messages of its own; replies to a get,
//! and puts, are not among what it knows how to drop (`ucp_ep_req_purge`, ucp_ep.c). That this was
//! the cause is likely from its source, not proven.
//!
//! So whoever wants a transfer asks the owner, which checks key, bounds and access. The bytes then
//! travel in chunks, which belong to UCX until they are sent: no program's memory is ever in UCX's
//! hands, so a transfer ends at once when it is canceled or the peer is gone.

use std::collections::VecDeque;

use ucx_sys::{UCS_OK, ucp_ep_h, ucs_status_t};

use super::driver::Driver;
use super::peer::{Lease, Phase};
use super::slots::Work;
use super::wire::{Chunk, Control};
use super::worker::{self, AM_DATA, Posted};
use crate::{Completion, DeniedReason, Error, LocalMem, OpId, Transfer};

/// Transfers that may be asked of one owner at a time.
const ASKED_MAX: usize = 64;

/// Bytes of data in a chunk, at most.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Chunks of a transfer that UCX has in hand, at most.
const IN_HAND_MAX: u32 = 4;

/// Chunks that one poll sends, at most.
const CHUNKS_PER_POLL: usize = 16;

/// How far a transfer is.
enum Stage {
    /// The owner was not asked yet.
    Waiting,
    /// It was, and has not answered. Of a get: what has come.
    Asked { received: u64, is_sent: bool },
    /// The owner of the destination lets us.
    Sending(Outgoing),
}

/// What is sent in chunks.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    sent: u64,
    in_hand: u32,
    is_queued: bool,
}

/// Names something to send: a put of ours, or the answer to a get of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    peer: usize,
    session: u64,
    id: u64,
    put: bool,
}

/// A transfer that is not over.
pub(super) struct Moving {
    pub(super) op: OpId,
    pub(super) transfer: Transfer,
    put: bool,
    pub(super) peer: usize,
    /// Our session with the peer when it was asked.
    session: u64,
    stage: Stage,
}

impl Driver {
    /// Starts a transfer with a peer.
    pub(super) fn start(&mut self, op: OpId, put: bool, index: usize, transfer: Transfer) {
        let Some(peer) = self.peer(index) else { return };
        if peer.phase == Phase::Gone {
            let error = peer.gone();
            self.memory.push(transfer.local);
            return self.done(Completion::Transfer { op, result: Err(error) });
        }
        let id = self.number();
        let moving = Moving { op, transfer, put, peer: index, session: 0, stage: Stage::Waiting };
        self.transfers.insert(id, moving);
        if let Some(peer) = self.peer(index) {
            peer.waiting.push_back(id);
        }
        self.dial(index);
        self.ask_more(index);
    }

    /// Asks the owner for transfers that have waited.
    pub(super) fn ask_more(&mut self, index: usize) {
        while let Some(peer) = self.peer(index) {
            if peer.phase != Phase::Connected || peer.asked >= ASKED_MAX {
                return;
            }
            let Some(id) = peer.waiting.pop_front() else { return };
            let session = peer.session;
            let Some(moving) = self.transfers.get_mut(&id) else { continue };
            moving.stage = Stage::Asked { received: 0, is_sent: false };
            moving.session = session;
            let Transfer { remote, remote_offset, len, .. } = &moving.transfer;
            let (key, offset, len, write) = (remote.key, *remote_offset, *len, moving.put);
            if let Some(peer) = self.peer(index) {
                peer.asked += 1;
            }
            self.tell(index, &Control::Ask { id, key, offset, len, write });
        }
    }

    /// A peer asks for memory of ours.
    pub(super) fn asked(
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
        let lease = Lease { memory, offset, len, received: 0, outgoing };
        if let Some(peer) = self.peer(index) {
            peer.leases.insert(id, lease);
        }
        match (write, len) {
            (true, 1..) => self.tell(index, &Control::Grant { id }),
            (_, 0) => self.end_lease_of(index, id, true),
            (false, _) => self.queue(Stream { peer: index, session, id, put: false }),
        }
        Ok(())
    }

    /// The memory is the owner's alone again; `tell`: the peer hears it.
    fn end_lease_of(&mut self, index: usize, id: u64, tell: bool) {
        let Some(lease) = self.peer(index).and_then(|peer| peer.leases.remove(&id)) else { return };
        self.end_lease(lease);
        if tell {
            self.tell(index, &Control::Done { id });
        }
    }

    /// The memory is the owner's alone again.
    pub(super) fn end_lease(&mut self, lease: Lease) {
        self.facts.regions.has_served();
        self.memory.push(lease.memory);
    }

    /// A peer has given a transfer up. The answer may have crossed that.
    pub(super) fn released(&mut self, index: usize, id: u64) {
        self.end_lease_of(index, id, false);
    }

    /// A transfer of ours that the peer may answer.
    fn own(&mut self, id: u64, index: usize) -> Option<&mut Moving> {
        let session = self.peer(index)?.session;
        let own = self.transfers.get_mut(&id)?;
        let asked = !matches!(own.stage, Stage::Waiting);
        (own.peer == index && own.session == session && asked).then_some(own)
    }

    pub(super) fn denied(&mut self, index: usize, id: u64, reason: DeniedReason) {
        if self.own(id, index).is_some() {
            let peer = self.peer(index).map(|peer| peer.uri.to_string()).unwrap_or_default();
            self.end_asked(id, index, Err(Error::Denied { peer, reason }));
        }
    }

    /// The owner lets us write.
    pub(super) fn granted(&mut self, index: usize, id: u64) -> Result<(), &'static str> {
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
    pub(super) fn owner_done(&mut self, index: usize, id: u64) -> Result<(), &'static str> {
        let Some(own) = self.own(id, index) else { return Ok(()) };
        let is_over = match &mut own.stage {
            Stage::Asked { received, is_sent } => {
                *is_sent = true;
                *received == own.transfer.len
            }
            Stage::Sending(outgoing) => outgoing.sent == own.transfer.len,
            Stage::Waiting => false,
        };
        if own.put && !is_over {
            return Err("it has a put that was not sent to it");
        }
        if is_over {
            self.end_asked(id, index, Ok(()));
        }
        Ok(())
    }

    /// Bytes of a transfer have come.
    pub(super) fn data(&mut self, index: usize, bytes: &[u8]) -> Result<(), &'static str> {
        let (Chunk { put, id, offset }, data) = Chunk::split(bytes)?;
        let len = data.len() as u64;
        let put_outside = |memory: &LocalMem, at: u64, total: u64, received: &mut u64| {
            let fits = offset.checked_add(len).is_some_and(|end| end <= total);
            *received = received.saturating_add(len);
            !fits || *received > total || !memory.region().write_at(at + offset, data)
        };
        const OUTSIDE: &str = "it sends more than a transfer has";
        self.facts.regions.has_served();
        if put {
            let Some(peer) = self.peer(index) else { return Ok(()) };
            // It may be the rest of what was given up.
            let Some(lease) = peer.leases.get_mut(&id) else { return Ok(()) };
            if lease.outgoing.is_some() {
                return Err("it writes where it asked to read");
            }
            if put_outside(&lease.memory, lease.offset, lease.len, &mut lease.received) {
                return Err(OUTSIDE);
            }
            if lease.received == lease.len {
                self.end_lease_of(index, id, true);
            }
            return Ok(());
        }
        let Some(own) = self.own(id, index) else { return Ok(()) };
        let Transfer { local, local_offset, len: total, .. } = &own.transfer;
        let Stage::Asked { received, is_sent } = &mut own.stage else { return Err(OUTSIDE) };
        if own.put || put_outside(local, *local_offset, *total, received) {
            return Err(OUTSIDE);
        }
        if *is_sent && *received == *total {
            self.end_asked(id, index, Ok(()));
        }
        Ok(())
    }

    fn queue(&mut self, stream: Stream) {
        if let Some((outgoing, ..)) = self.outgoing(stream)
            && !outgoing.is_queued
        {
            outgoing.is_queued = true;
            self.sending.push_back(stream);
        }
    }

    /// What is to be sent, if it still is: how far it is, its memory, from where, and how much.
    fn outgoing(&mut self, stream: Stream) -> Option<(&mut Outgoing, &LocalMem, u64, u64)> {
        let Stream { peer, session, id, put } = stream;
        let from = self.peers.get_mut(peer)?.as_mut().filter(|from| from.session == session)?;
        if put {
            let own = self.transfers.get_mut(&id).filter(|own| own.session == session)?;
            let Stage::Sending(outgoing) = &mut own.stage else { return None };
            let Transfer { local, local_offset, len, .. } = &own.transfer;
            return Some((outgoing, local, *local_offset, *len));
        }
        let Lease { memory, offset, len, outgoing, .. } = from.leases.get_mut(&id)?;
        Some((outgoing.as_mut()?, memory, *offset, *len))
    }

    /// Sends chunks, one of each transfer in turn.
    pub(super) fn send_chunks(&mut self) {
        for _ in 0..CHUNKS_PER_POLL {
            let Some(stream) = self.sending.pop_front() else { return };
            self.send_chunk(stream);
        }
    }

    fn send_chunk(&mut self, stream: Stream) {
        let Stream { peer: index, id, put, .. } = stream;
        let link = self.peer(index).and_then(|peer| peer.links.first().copied());
        let Some((outgoing, memory, start, total)) = self.outgoing(stream) else { return };
        outgoing.is_queued = false;
        let Some(link) = link else { return };
        if outgoing.in_hand >= IN_HAND_MAX || outgoing.sent >= total {
            return;
        }
        let offset = outgoing.sent;
        let len = (total - offset).min(CHUNK_BYTES as u64);
        let mut bytes = Chunk { put, id, offset }.with_room(len as usize);
        let read = memory.region().append_to(start + offset, len as usize, &mut bytes);
        debug_assert!(read, "checked when the transfer began");
        outgoing.sent += len;
        let is_last = outgoing.sent == total;
        self.facts.regions.has_served();
        if !self.post_chunk(stream, link, bytes) {
            return;
        }
        match (is_last, put) {
            (false, _) => self.queue(stream),
            // The bytes were copied: the memory is free.
            (true, false) => self.end_lease_of(index, id, true),
            // The owner says when it has them.
            (true, true) => {}
        }
    }

    /// Gives a chunk to UCX; whether that went well.
    fn post_chunk(&mut self, stream: Stream, link: ucp_ep_h, bytes: Vec<u8>) -> bool {
        let data = (bytes.as_ptr(), bytes.len());
        let slot = self.slots.add(Work::Chunk(stream, bytes));
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return false };
        // SAFETY: `link` is in the list of its peer, which it leaves when it is closed; the slot
        // owns the bytes until the callback.
        let posted = unsafe { worker.send_am(link, AM_DATA, (std::ptr::null(), 0), data, pinned) };
        let failure = match &posted {
            Posted::Pending(_) => {
                if let Some((outgoing, ..)) = self.outgoing(stream) {
                    outgoing.in_hand += 1;
                }
                None
            }
            Posted::Done => None,
            Posted::Failed(status) => Some(*status),
        };
        self.posted(slot, posted);
        if let Some(status) = failure {
            self.stream_failed(stream, status);
        }
        failure.is_none()
    }

    fn stream_failed(&mut self, stream: Stream, status: ucs_status_t) {
        if self.outgoing(stream).is_some() {
            let reason = worker::text(self.facts.ucp, status);
            self.end_session(stream.peer, reason);
        }
    }

    /// UCX needs a chunk no more.
    pub(super) fn chunk_sent(&mut self, stream: Stream, status: ucs_status_t) {
        if status != UCS_OK {
            return self.stream_failed(stream, status);
        }
        if let Some((outgoing, ..)) = self.outgoing(stream) {
            outgoing.in_hand -= 1;
            self.queue(stream);
        }
    }

    /// Ends a transfer of which the owner was asked: the next may ask.
    fn end_asked(&mut self, id: u64, index: usize, result: Result<(), Error>) {
        self.end_transfer(id, result);
        if let Some(peer) = self.peer(index) {
            peer.asked = peer.asked.saturating_sub(1);
        }
        self.ask_more(index);
    }

    fn end_transfer(&mut self, id: u64, result: Result<(), Error>) {
        let Some(own) = self.transfers.remove(&id) else { return };
        self.memory.push(own.transfer.local);
        self.done(Completion::Transfer { op: own.op, result });
    }

    /// Ends a transfer early. `false`: there is none of this number.
    pub(super) fn cancel_transfer(&mut self, op: OpId) -> bool {
        let found = self.transfers.iter().find(|(_, own)| own.op == op);
        let Some((&id, own)) = found else { return false };
        let (index, is_asked) = (own.peer, !matches!(own.stage, Stage::Waiting));
        if is_asked {
            self.tell(index, &Control::Release { id });
            self.end_asked(id, index, Err(Error::Canceled));
            return true;
        }
        if let Some(peer) = self.peer(index) {
            peer.waiting.retain(|waiting| *waiting != id);
        }
        self.end_transfer(id, Err(Error::Canceled));
        true
    }

    /// Ends the transfers with a peer that has ended.
    pub(super) fn fail_transfers(&mut self, index: usize, waiting: VecDeque<u64>, error: &Error) {
        drop(waiting);
        let of_peer = self.transfers.iter().filter(|(_, own)| own.peer == index);
        let all: Vec<_> = of_peer.map(|(id, _)| *id).collect();
        for id in all {
            self.end_transfer(id, Err(error.clone()));
        }
    }
}
