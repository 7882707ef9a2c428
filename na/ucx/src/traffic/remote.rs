//! Transfers by remote keys: UCX moves them without the owner, by its remote memory access.
//!
//! The first transfer of this kind waits for the key of the memory. With the key, a transfer is
//! given to UCX in pieces. UCX has the local memory until a piece was moved, or the connection is
//! ended by force: as with `rendezvous.rs`, a transfer that was given up, or whose peer is gone, is
//! reported when UCX has let go. A put is over when UCX says that all has arrived
//! (`ucp_ep_flush_nbx`).
//!
//! The owner has its memory registered with UCX as long as a peer has a key, and does not hold it
//! for single transfers. The memory is its user's again when all peers have returned their keys, or
//! have lost them with their session (see `discards.rs`), and UCX knows the memory no more. The
//! messages about keys are in `keys.rs`.

use std::rc::Rc;

use ucx_sys::{UCS_OK, ucp_mem_h, ucs_status_t};

use super::transfers::{IN_HAND_MAX, PIECE_BYTES};
use crate::operations::keys::{EndedKeys, Given, KeyRoute, Standing};
use crate::operations::remote_key::Mapped;
use crate::operations::slots::Work;
use crate::operations::transfer_state::{ByKey, Stage, Stream};
use crate::state::driver::Driver;
use crate::ucp::{library, worker::Worker};
use crate::wire::{CONTROL_BYTES_MAX, Control, GivenKey, Hello, Place};
use na_core::{LocalMem, RemoteKeys, Transfer};
use prim::sync::Arc;

/// Bytes of a transfer from which memory is worth a key at once: the message to the owner, its
/// registration, and that it comes back later.
const WORTHWHILE_BYTES: u64 = 64 << 10;

/// Longest memory of which a key is given, bytes. UCX makes it unmovable as a whole, at a tenth of
/// a second and more for each GiB, in which nothing else moves. Longer memory is asked for by its
/// transfers, whose pieces are registered as they come.
pub(crate) const REGION_BYTES_MAX: u64 = 1 << 30;

/// Pieces that are given to UCX in one poll, at most.
const PIECES_PER_POLL: usize = 16;

/// The owner.
impl Driver {
    /// A peer asks for the key of memory.
    pub(crate) fn wanted(&mut self, index: usize, key: u64) -> Result<(), &'static str> {
        let Some(peer) = self.peer(index) else { return Ok(()) };
        peer.given.check(key)?;
        let session = peer.session;
        let given = self.give(index, session, key);
        self.tell(index, &given.map_or(Control::NoKey { key }, Control::Key));
        Ok(())
    }

    /// Gives a peer a key, if there is that memory, and UCX can reach it as is wanted here.
    fn give(&mut self, index: usize, session: u64, key: u64) -> Option<GivenKey> {
        self.worker.as_ref().filter(|worker| worker.gives_keys())?;
        let by_adapter = self.peer(index)?.by_adapter;
        if matches!(self.facts.remote_keys, RemoteKeys::Auto) && !by_adapter {
            // It asks all the same. UCX would answer its puts and gets by messages, and may end
            // this process if that peer dies meanwhile.
            return None;
        }
        let memory = self.facts.regions.find(key)?;
        if memory.len() > REGION_BYTES_MAX {
            self.memory.push(memory);
            return None;
        }
        let standing = Standing::new((index, session, key), self.recalls.clone());
        // Before it is mapped: from now on it stays until the key is over.
        let is_there = memory.region().offer(standing.clone());
        let places = if is_there { self.mapped_places(&memory) } else { Err(true) };
        let access = memory.access();
        self.memory.push(memory);
        let places = match places {
            Ok(places) => places,
            Err(is_unmapped) => {
                self.end_standing(&standing, is_unmapped);
                return None;
            }
        };
        if let Some(peer) = self.peer(index) {
            peer.given.add(key, standing);
            self.given += 1;
        }
        Some(GivenKey { key, access, places })
    }

    /// Maps memory for one more peer, and returns the places that the peer is told. The mapping
    /// stays until [`unmap`](Self::unmap). If there is nothing to tell, the error is whether UCX
    /// knows nothing of the memory.
    fn mapped_places(&mut self, memory: &LocalMem) -> Result<Vec<Place>, bool> {
        if let Some(mapped) = self.mapped.get_mut(&memory.key()) {
            mapped.peers += 1;
            return Ok(mapped.places.clone());
        }
        let Some(worker) = &self.worker else { return Err(true) };
        let mut is_unmapped = true;
        let (mut pieces, mut places) = (Vec::new(), Vec::new());
        let is_mapped = memory.region().pieces(0, memory.len()).all(|piece| {
            // SAFETY: the region stays until the key that is being given is over, which is after
            // it was unmapped; nobody makes references to registered memory.
            let mapped = unsafe { worker.map(piece, memory.access()) };
            let (piece, place) = match mapped {
                Ok(mapped) => mapped,
                Err(was_unmapped) => {
                    is_unmapped = was_unmapped;
                    return false;
                }
            };
            pieces.push(piece);
            places.push(place);
            GivenKey::bytes(&places) <= CONTROL_BYTES_MAX
        });
        if !is_mapped || places.is_empty() {
            return Err(unmap_all(worker, pieces) && is_unmapped);
        }
        let told = places.clone();
        self.mapped.insert(memory.key(), Mapped { pieces, places, peers: 1 });
        Ok(told)
    }

    /// Counts one peer less that has a key of memory, and unmaps the memory after the last one.
    /// Returns whether UCX has unmapped what it was told to.
    fn unmap(&mut self, key: u64) -> bool {
        // At the end of all the worker has unmapped it.
        let Some(mapped) = self.mapped.get_mut(&key) else { return true };
        mapped.peers -= 1;
        if mapped.peers > 0 {
            return true;
        }
        let Some(mapped) = self.mapped.remove(&key) else { return true };
        let Some(worker) = &self.worker else { return true };
        unmap_all(worker, mapped.pieces)
    }

    /// A key that a peer was given is over.
    pub(crate) fn end_given(&mut self, key: u64, given: &Given) {
        self.given -= 1;
        self.facts.regions.has_served();
        let is_unmapped = self.unmap(key);
        self.end_standing(&given.standing, is_unmapped);
    }

    /// Lets memory go, if UCX has; else it stays for good.
    fn end_standing(&mut self, standing: &Arc<Standing>, is_unmapped: bool) {
        if is_unmapped {
            return self.held.extend(standing.end());
        }
        tracing::warn!("ucx: memory that peers could reach cannot be unregistered; it is kept");
        // It is asked for the memory, which it then keeps.
        std::mem::forget(standing.clone());
    }

    /// A peer returns a key.
    pub(crate) fn returned(&mut self, index: usize, key: u64) -> Result<(), &'static str> {
        let Some(peer) = self.peer(index) else { return Ok(()) };
        let given = peer.given.returned(key)?;
        self.end_given(key, &given);
        Ok(())
    }

    /// Takes keys back of memory that its user wants.
    pub(crate) fn take_keys_back(&mut self) {
        if self.given == 0 {
            return;
        }
        for (index, session, key) in self.recalls.take() {
            let peer = self.peer(index).filter(|peer| peer.session == session);
            if peer.is_some_and(|peer| peer.given.revoke(key)) {
                self.tell(index, &Control::Revoke { key });
            }
        }
    }

    /// The connection of a session has ended: its peer reaches nothing any more.
    pub(crate) fn end_all_given(&mut self, ended: EndedKeys) {
        for (key, given) in ended.given {
            self.end_given(key, &given);
        }
    }
}

/// Ends what UCX knows of pieces of memory, each whatever becomes of the others; whether all ended.
fn unmap_all(worker: &Worker, pieces: Vec<ucp_mem_h>) -> bool {
    pieces.into_iter().filter(|piece| !worker.unmap(*piece)).count() == 0
}

/// The requester.
impl Driver {
    /// From which length on a transfer with a peer wants a key at once; `None`: none has one.
    pub(crate) fn keys_from(&self, by_adapter: bool, hello: &Hello) -> Option<u64> {
        match self.facts.remote_keys {
            _ if !hello.remote_keys => None,
            RemoteKeys::Always => Some(1),
            RemoteKeys::Never => None,
            _ => by_adapter.then_some(WORTHWHILE_BYTES),
        }
    }

    /// Returns whether a transfer goes by a remote key, or waits for one; else the owner is asked
    /// for it.
    pub(crate) fn goes_by_key(&mut self, index: usize, id: u64) -> bool {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return false };
        let Some(from) = peer.keys_from else { return false };
        let Some(own) = self.transfers.get_mut(&id) else { return false };
        let Transfer { remote, remote_offset, len, .. } = &own.transfer;
        let (key, offset, len, put) = (remote.key, *remote_offset, *len, own.put);
        if len == 0 {
            return false;
        }
        match peer.keys.route(key, id, len >= from, |held| held.covers(offset, len, put)) {
            KeyRoute::Ask => false,
            KeyRoute::Wait { want, returned } => {
                if let Some(key) = returned {
                    self.tell(index, &Control::Returned { key });
                }
                if want {
                    self.tell(index, &Control::Want { key });
                }
                true
            }
            KeyRoute::Use(key) => {
                peer.asked += 1;
                own.session = peer.session;
                let by_key = ByKey { key, sent: 0, is_queued: true, is_flushing: false };
                own.stage = Stage::ByKey(by_key);
                self.reaching.push_back(id);
                true
            }
        }
    }

    /// An owner gives a key.
    pub(crate) fn key_came(&mut self, index: usize, given: &GivenKey) -> Result<(), &'static str> {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return Ok(()) };
        let (Some(link), Some(worker)) = (peer.link, &self.worker) else {
            return Ok(());
        };
        // What was not asked for is not looked at.
        peer.keys.check(given.key)?;
        // SAFETY: that of its peer, which loses it when it is closed.
        let Ok(key) = (unsafe { worker.unpack(link, given) }) else {
            let waiting = peer.keys.refused(given.key)?;
            self.tell(index, &Control::Returned { key: given.key });
            self.go_on(index, waiting);
            return Ok(());
        };
        let waiting = peer.keys.came(given.key, Rc::new(key))?;
        self.go_on(index, waiting);
        Ok(())
    }

    /// An owner gives none.
    pub(crate) fn no_key_came(&mut self, index: usize, key: u64) -> Result<(), &'static str> {
        let Some(peer) = self.peer(index) else { return Ok(()) };
        let waiting = peer.keys.refused(key)?;
        self.go_on(index, waiting);
        Ok(())
    }

    /// Transfers that have waited for a key.
    fn go_on(&mut self, index: usize, waiting: Vec<u64>) {
        if let Some(peer) = self.peer(index) {
            waiting.into_iter().rev().for_each(|id| peer.waiting.push_front(id));
        }
        self.ask_more(index);
    }

    /// An owner takes a key back.
    pub(crate) fn key_revoked(&mut self, index: usize, key: u64) -> Result<(), &'static str> {
        let Some(peer) = self.peer(index) else { return Ok(()) };
        if peer.keys.revoked(key)? {
            self.tell(index, &Control::Returned { key });
        }
        Ok(())
    }

    /// Gives UCX pieces of transfers, one of each in turn.
    pub(crate) fn reach(&mut self) {
        for _ in 0..PIECES_PER_POLL {
            let Some(id) = self.reaching.pop_front() else { return };
            if let Some(Stage::ByKey(by_key)) =
                self.transfers.get_mut(&id).map(|own| &mut own.stage)
            {
                by_key.is_queued = false;
                self.reach_piece(id);
            }
        }
    }

    /// Gives UCX the next piece of a transfer.
    fn reach_piece(&mut self, id: u64) {
        let Some(own) = self.transfers.get_mut(&id).filter(|own| !own.has_ended()) else { return };
        let Stage::ByKey(by_key) = &mut own.stage else { return };
        let Transfer { local, local_offset, remote_offset, len, .. } = &own.transfer;
        let left = *len - by_key.sent;
        if left == 0 || own.lent >= IN_HAND_MAX {
            return;
        }
        let most = left.min(PIECE_BYTES);
        let reach = by_key.key.reach(remote_offset + by_key.sent, most);
        let Some(mut reach) = reach else { return };
        let piece = local.region().pieces(local_offset + by_key.sent, reach.len).next();
        let Some(piece) = piece else { return };
        reach.len = piece.len as u64;
        by_key.sent += reach.len;
        let (memory, key) = (local.clone(), by_key.key.clone());
        let stream = Stream { peer: own.peer, session: own.session, id, put: own.put };
        own.lent += 1;
        let Some(link) = self.peer(stream.peer).and_then(|peer| peer.link) else { return };
        self.post(Work::Reached(stream, memory, key), |worker, slots, slot| {
            // SAFETY: that of its peer, as when the key was unpacked: the peer loses it when it is
            // closed, which ends the session, with its keys and transfers. The slot holds the
            // memory and the key until the callback; `piece` is of that memory, as long as `reach`,
            // and nobody makes references to registered memory.
            unsafe { worker.access(link, stream.put, piece.ptr, reach, slots.pinned(slot)) }
        });
    }

    /// UCX has let go of a piece, or of a flush.
    pub(crate) fn reached(&mut self, stream: Stream, is_flush: bool, status: ucs_status_t) {
        let Stream { peer: index, id, .. } = stream;
        let Some(own) = self.transfers.get_mut(&id) else { return };
        own.lent -= 1;
        let is_last = own.lent == 0;
        if let Some(end) = own.end.take_if(|_| is_last) {
            return self.complete(id, end);
        }
        if own.has_ended() {
            return;
        }
        let is_current = self.is_current(stream);
        match status {
            // UCX says so of puts that it has given up, too.
            UCS_OK if is_flush && self.is_failing(index) => {}
            UCS_OK => {
                if let Some(window) = self.state().windows.get_mut(index).filter(|_| is_current) {
                    window.heard = true;
                }
                self.check_reached(id);
            }
            // Ends this transfer, too.
            status => self.end_session(index, library::text(self.facts.ucp, status)),
        }
    }

    /// Returns whether the connection that we send on has failed, which ends the session soon.
    fn is_failing(&mut self, index: usize) -> bool {
        let link = self.peer(index).and_then(|peer| peer.link);
        link.is_some_and(|link| self.state().is_failing(link))
    }

    /// Goes on with a transfer, or ends it.
    fn check_reached(&mut self, id: u64) {
        let Some(own) = self.transfers.get_mut(&id) else { return };
        let Stage::ByKey(by_key) = &mut own.stage else { return };
        if by_key.sent < own.transfer.len {
            if !std::mem::replace(&mut by_key.is_queued, true) {
                self.reaching.push_back(id);
            }
            return;
        }
        if own.lent > 0 {
            return;
        }
        if !own.put || by_key.is_flushing {
            return self.complete(id, Ok(()));
        }
        by_key.is_flushing = true;
        own.lent += 1;
        let stream = Stream { peer: own.peer, session: own.session, id, put: true };
        let Some(link) = self.peer(stream.peer).and_then(|peer| peer.link) else { return };
        self.post(Work::Flushed(stream), |worker, slots, slot| {
            // SAFETY: that of its peer, which loses it when it is closed; the slot stays until the
            // callback.
            unsafe { worker.flush(link, slots.pinned(slot)) }
        });
    }

    /// A transfer by key is over: nothing of it is in UCX's hands.
    pub(crate) fn let_key_go(&mut self, index: usize, session: u64, key: u64) {
        let Some(peer) = self.peer(index).filter(|peer| peer.session == session) else { return };
        if peer.keys.let_go(key) {
            self.tell(index, &Control::Returned { key });
        }
        self.answered(index);
    }

    /// Hands all mapped memory to the worker, which unmaps it when it goes.
    pub(crate) fn unmap_at_the_end(&mut self) {
        let mapped = std::mem::take(&mut self.mapped);
        if let Some(worker) = self.worker.as_mut() {
            worker.unmap_at_the_end(mapped.into_values().flat_map(|mapped| mapped.pieces));
        }
    }

    /// Returns whether there is something for [`reach`](Self::reach), or to take back; otherwise a
    /// thread that wants memory back wakes the sleeper.
    pub(crate) fn has_keys_due(&self) -> bool {
        !self.reaching.is_empty() || (self.given > 0 && !self.recalls.may_sleep())
    }
}
