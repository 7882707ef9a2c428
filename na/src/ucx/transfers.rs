//! Puts and gets.
//!
//! UCX moves memory without asking anybody: it checks no bounds, and where a device does not do it,
//! the library of the owner writes wherever it is told. So whoever wants a transfer asks the owner
//! first. The owner checks key, bounds and access, holds the memory, and grants the pieces, with
//! UCX's keys for them; the transfer is UCX's own; then the memory is released.

use std::collections::VecDeque;

use ucx_sys::{UCS_OK, ucp_rkey_h, ucs_status_t};

use super::driver::Driver;
use super::inbox::CONTROL_BYTES_MAX;
use super::peer::{Lease, Phase};
use super::slots::Work;
use super::wire::{Control, KEY_BYTES_MAX, Piece};
use super::worker::{self, Posted};
use crate::{Completion, DeniedReason, Error, OpId, Transfer};

/// Transfers that may be asked of one owner at a time.
const ASKED_MAX: usize = 64;

/// Bytes of a grant, and of each of its pieces beside the key.
const GRANT_BYTES: usize = 13;
const PIECE_BYTES: usize = 20;

/// How far a transfer is.
enum Stage {
    /// The owner was not asked yet.
    Waiting,
    /// It was, and has not answered.
    Asked,
    /// UCX moves so many pieces; the flush of a put is one.
    Moving(usize),
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
    keys: Vec<ucp_rkey_h>,
    failure: Option<Error>,
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
        let stage = Stage::Waiting;
        let (keys, failure, session) = (Vec::new(), None, 0);
        let moving = Moving { op, transfer, put, peer: index, session, stage, keys, failure };
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
            (moving.stage, moving.session) = (Stage::Asked, session);
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
        let answer = match self.facts.regions.lease(key, offset, len, write) {
            Err(reason) => Control::Deny { id, reason },
            Ok(memory) => self.lease(index, id, memory, offset, len),
        };
        self.tell(index, &answer);
        Ok(())
    }

    fn lease(
        &mut self,
        index: usize,
        id: u64,
        memory: crate::LocalMem,
        offset: u64,
        len: u64,
    ) -> Control {
        let mut lease = Lease { memory, mapped: Vec::new() };
        let mut pieces = Vec::new();
        let (mut fine, mut bytes) = (true, GRANT_BYTES);
        for part in lease.memory.region().pieces(offset, len) {
            let Some(worker) = self.worker.as_ref().filter(|_| fine) else { break };
            // SAFETY: a piece of a region that the lease keeps alive; the lease also keeps the
            // handle, and gives it back before the region.
            match unsafe { worker.map((part.ptr, part.len)) } {
                Ok(mapped) => {
                    lease.mapped.push(mapped.handle);
                    bytes += PIECE_BYTES + mapped.key.len();
                    fine = mapped.key.len() <= KEY_BYTES_MAX && bytes <= CONTROL_BYTES_MAX;
                    let (address, len) = (part.ptr as u64, part.len as u64);
                    pieces.push(Piece { address, len, key: mapped.key });
                }
                Err(status) => {
                    let reason = worker::text(self.facts.ucp, status);
                    tracing::warn!(reason, "ucx: memory cannot be registered for a peer");
                    fine = false;
                }
            }
        }
        match self.peer(index).filter(|_| fine) {
            Some(peer) => {
                peer.leases.insert(id, lease);
                Control::Grant { id, pieces }
            }
            None => {
                self.end_lease(lease);
                Control::Deny { id, reason: DeniedReason::CopyFailed }
            }
        }
    }

    /// The memory is the owner's alone again.
    pub(super) fn end_lease(&mut self, lease: Lease) {
        if let Some(worker) = &self.worker {
            lease.mapped.into_iter().for_each(|handle| worker.unmap(handle));
        }
        self.facts.regions.has_served();
        self.memory.push(lease.memory);
    }

    /// A peer needs memory of ours no more.
    pub(super) fn released(&mut self, index: usize, id: u64) -> Result<(), &'static str> {
        let lease = self.peer(index).and_then(|peer| peer.leases.remove(&id));
        self.end_lease(lease.ok_or("it releases what it was not granted")?);
        Ok(())
    }

    /// An answer has come: the next may ask.
    fn answered(&mut self, index: usize) {
        if let Some(peer) = self.peer(index) {
            peer.asked = peer.asked.saturating_sub(1);
        }
        self.ask_more(index);
    }

    fn is_asked(&self, id: u64, index: usize) -> bool {
        let moving = self.transfers.get(&id);
        moving.is_some_and(|own| own.peer == index && matches!(own.stage, Stage::Asked))
    }

    pub(super) fn denied(&mut self, index: usize, id: u64, reason: DeniedReason) {
        if self.is_asked(id, index) {
            let peer = self.peer(index).map(|peer| peer.uri.to_string()).unwrap_or_default();
            self.end_transfer(id, Err(Error::Denied { peer, reason }));
        }
        self.answered(index);
    }

    /// The owner lets us: UCX does the rest.
    pub(super) fn granted(
        &mut self,
        index: usize,
        id: u64,
        pieces: Vec<Piece>,
    ) -> Result<(), &'static str> {
        if !self.is_asked(id, index) {
            // It was canceled meanwhile.
            self.tell(index, &Control::Release { id });
            self.answered(index);
            return Ok(());
        }
        let len = self.transfers.get(&id).map_or(0, |own| own.transfer.len);
        let total = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len));
        if total != Some(len) || pieces.iter().any(|piece| piece.len == 0) {
            return Err("its grant is not what was asked for");
        }
        let link = self.peer(index).and_then(|peer| peer.links.first().copied());
        let Some(link) = link else { return Ok(()) };
        // One more than there are pieces, so that it does not end before all are posted.
        self.set_stage(id, Stage::Moving(1));
        let mut left: VecDeque<(u64, u64, ucp_rkey_h)> = VecDeque::new();
        for piece in pieces {
            let Some(packed) = self.keyring.put(&piece.key) else {
                return Err("its grant has a key that is too long");
            };
            let Some(worker) = &self.worker else { return Ok(()) };
            // SAFETY: an open connection; the keyring puts enough zeros behind the key.
            match unsafe { worker.unpack(link, packed) } {
                Ok(key) => {
                    left.push_back((piece.address, piece.len, key));
                    if let Some(own) = self.transfers.get_mut(&id) {
                        own.keys.push(key);
                    }
                }
                Err(status) => {
                    let error = self.end_of(index, status);
                    self.fail_transfer(id, error);
                    break;
                }
            }
        }
        let failed = self.transfers.get(&id).is_some_and(|own| own.failure.is_some());
        if !failed {
            self.move_pieces(id, link, left);
        }
        self.moved(id, UCS_OK);
        Ok(())
    }

    fn move_pieces(
        &mut self,
        id: u64,
        link: ucx_sys::ucp_ep_h,
        mut remote: VecDeque<(u64, u64, ucp_rkey_h)>,
    ) {
        let Some(own) = self.transfers.get(&id) else { return };
        let (put, index) = (own.put, own.peer);
        let Transfer { local, local_offset, len, .. } = &own.transfer;
        let parts: Vec<_> = local.region().pieces(*local_offset, *len).collect();
        for mut part in parts {
            while part.len > 0 {
                let Some((address, left, key)) = remote.front_mut() else { return };
                let len = part.len.min(usize::try_from(*left).unwrap_or(usize::MAX));
                let (at, key) = (*address, *key);
                let slot = self.slots.add(Work::Piece { transfer: id });
                let pinned = self.slots.pinned(slot);
                let Some(worker) = &self.worker else { return };
                // SAFETY: the transfer keeps the region of the local memory, which may be written
                // if it is the destination, and the key until its last piece is over, see `moved`.
                let posted =
                    unsafe { worker.transfer(link, put, (part.ptr, len), (at, key), pinned) };
                match posted {
                    Posted::Pending(request) => {
                        self.slots.started(slot, request);
                        self.add_piece(id);
                    }
                    Posted::Done(_) => drop(self.slots.take(slot)),
                    Posted::Failed(status) => {
                        self.slots.take(slot);
                        let error = self.end_of(index, status);
                        return self.fail_transfer(id, error);
                    }
                }
                part.ptr = part.ptr.wrapping_add(len);
                part.len -= len;
                *address = address.wrapping_add(len as u64);
                *left -= len as u64;
                if *left == 0 {
                    remote.pop_front();
                }
            }
        }
    }

    fn set_stage(&mut self, id: u64, stage: Stage) {
        if let Some(own) = self.transfers.get_mut(&id) {
            own.stage = stage;
        }
    }

    fn add_piece(&mut self, id: u64) {
        if let Some(Moving { stage: Stage::Moving(pieces), .. }) = self.transfers.get_mut(&id) {
            *pieces += 1;
        }
    }

    fn fail_transfer(&mut self, id: u64, error: Error) {
        if let Some(own) = self.transfers.get_mut(&id) {
            own.failure.get_or_insert(error);
        }
    }

    /// A piece is over. After the last of a put, what was put must reach the peer's memory.
    pub(super) fn moved(&mut self, id: u64, status: ucs_status_t) {
        let Some(index) = self.transfers.get(&id).map(|own| own.peer) else { return };
        if status != UCS_OK {
            let error = self.end_of(index, status);
            self.fail_transfer(id, error);
        }
        let Some(own) = self.transfers.get_mut(&id) else { return };
        let Stage::Moving(pieces) = &mut own.stage else { return };
        *pieces -= 1;
        if *pieces > 0 {
            return;
        }
        if !own.put || own.failure.is_some() || own.transfer.len == 0 {
            return self.finish_transfer(id);
        }
        *pieces = 1;
        let link = self.peer(index).and_then(|peer| peer.links.first().copied());
        let slot = self.slots.add(Work::Flush { transfer: id });
        let pinned = self.slots.pinned(slot);
        let (Some(link), Some(worker)) = (link, &self.worker) else {
            self.slots.take(slot);
            return self.finish_transfer(id);
        };
        // SAFETY: an open connection: it is in the list of its peer, which it leaves when closed.
        let status = match unsafe { worker.flush(link, pinned) } {
            Posted::Pending(request) => return self.slots.started(slot, request),
            Posted::Done(_) => UCS_OK,
            Posted::Failed(status) => status,
        };
        self.slots.take(slot);
        self.flushed(id, status);
    }

    /// What was put is in place.
    pub(super) fn flushed(&mut self, id: u64, status: ucs_status_t) {
        if status != UCS_OK
            && let Some(index) = self.transfers.get(&id).map(|own| own.peer)
        {
            let error = self.end_of(index, status);
            self.fail_transfer(id, error);
        }
        self.finish_transfer(id);
    }

    /// UCX has nothing to do with the transfer any more.
    fn finish_transfer(&mut self, id: u64) {
        let Some(own) = self.transfers.get_mut(&id) else { return };
        let (index, session, failure) = (own.peer, own.session, own.failure.take());
        let keys = std::mem::take(&mut own.keys);
        for key in keys {
            if let Some(worker) = &self.worker {
                // SAFETY: unpacked by this worker; no piece is in UCX's hands any more.
                unsafe { worker.forget(key) };
            }
        }
        self.end_transfer(id, failure.map_or(Ok(()), Err));
        // Else the owner has let go of the memory by itself.
        if self.peer(index).is_some_and(|peer| peer.session == session) {
            self.tell(index, &Control::Release { id });
            self.answered(index);
        }
    }

    fn end_transfer(&mut self, id: u64, result: Result<(), Error>) {
        let Some(own) = self.transfers.remove(&id) else { return };
        self.memory.push(own.transfer.local);
        self.done(Completion::Transfer { op: own.op, result });
    }

    /// Ends a transfer early, if UCX has not begun it. `false`: there is none of this number.
    pub(super) fn cancel_transfer(&mut self, op: OpId) -> bool {
        let found = self.transfers.iter().find(|(_, own)| own.op == op);
        let Some((&id, own)) = found else { return false };
        // Once begun, it writes to memory until it is over.
        if matches!(own.stage, Stage::Moving(_)) {
            return true;
        }
        let index = own.peer;
        if let Some(peer) = self.peer(index) {
            peer.waiting.retain(|waiting| *waiting != id);
        }
        self.end_transfer(id, Err(Error::Canceled));
        true
    }

    /// Ends the transfers with a peer that has ended; those that UCX has begun when it says so.
    pub(super) fn fail_transfers(&mut self, index: usize, waiting: VecDeque<u64>, error: &Error) {
        let of_peer = self.transfers.iter().filter(|(_, own)| own.peer == index);
        let begun = |own: &Moving| matches!(own.stage, Stage::Moving(_));
        let all: Vec<_> = of_peer.map(|(id, own)| (*id, begun(own))).collect();
        drop(waiting);
        for (id, is_begun) in all {
            match is_begun {
                true => self.fail_transfer(id, error.clone()),
                false => self.end_transfer(id, Err(error.clone())),
            }
        }
    }
}
