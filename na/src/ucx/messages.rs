//! Messages: unexpected ones are active messages, expected ones are tagged messages whose high half
//! says whose they are.

use ucx_sys::{UCS_ERR_MESSAGE_TRUNCATED, UCS_OK, ucs_status_t};

use super::driver::Driver;
use super::inbox::place;
use super::peer::Phase;
use super::slots::Work;
use super::worker::{self, AM_MESSAGE, Posted, Worker};
use crate::loopback::Queued;
use crate::matching::Kind;
use crate::{Addr, Arrival, Completion, Error, MsgBuf, OpId, Refused, Tag};

/// Receives that were given up and are still posted, at most; see [`Driver::give_up`].
const GIVEN_UP_MAX: usize = 1024;

/// A receive that was given up.
pub(super) struct GivenUp {
    peer: usize,
    tag: Tag,
    pub(super) slot: u32,
}

/// The tag of an expected message: whose it is, and which. Mercury masks all but the low half
/// (`NA_UCX_TAG_MASK`, na_ucx.c).
fn full_tag(source: u32, tag: Tag) -> u64 {
    u64::from(source) << 32 | u64::from(tag.0)
}

impl Driver {
    /// Sends a message to a peer, now or when that is possible.
    pub(super) fn send(&mut self, index: usize, message: Queued) {
        let own_max = self.facts.message_bytes_max;
        let Some(peer) = self.peer(index) else { return };
        let at = place(message.kind);
        if peer.phase == Phase::Gone {
            let end = peer.gone();
            return self.done(message.end(Err(end)));
        }
        debug_assert!(message.buf.len() <= own_max, "checked by the endpoint");
        if peer.phase == Phase::Connected && peer.queues[at].is_empty() && peer.credits[at] > 0 {
            return self.transmit(index, message);
        }
        peer.queues[at].push_back(message);
        self.dial(index);
    }

    /// Sends what has waited, as far as the peer allows.
    pub(super) fn pump(&mut self, index: usize) {
        for at in [0, 1] {
            while let Some(peer) = self.peer(index) {
                if peer.phase != Phase::Connected || peer.credits[at] == 0 {
                    break;
                }
                let Some(message) = peer.queues[at].pop_front() else { break };
                self.transmit(index, message);
            }
        }
    }

    #[inline]
    fn transmit(&mut self, index: usize, message: Queued) {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return };
        let Some(&link) = peer.links.first() else { return };
        let Queued { op, kind, tag, buf } = message;
        if buf.len() > peer.their_max {
            let error = Error::TooLong { len: buf.len(), max: peer.their_max };
            return self.done(Completion::Send { op, buf, result: Err(error) });
        }
        peer.credits[place(kind)] -= 1;
        let full = full_tag(peer.their_source, tag);
        let data = (buf.as_slice().as_ptr(), buf.len());
        let slot = self.slots.add(Work::Send { op: Some(op), buf, peer: index });
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        let posted = match kind {
            Kind::Unexpected => {
                let header = self.slots.set_header(slot, u64::from(tag.0).to_le_bytes());
                // SAFETY: `link` is in the list of its peer, which it leaves when it is closed; the
                // slot owns header and buffer until the callback.
                unsafe { worker.send_am(link, AM_MESSAGE, (header.cast(), 8), data, pinned) }
            }
            // SAFETY: the same.
            Kind::Expected => unsafe { worker.send_tagged(link, full, data, pinned) },
        };
        let status = match posted {
            Posted::Pending(request) => return self.slots.started(slot, request),
            Posted::Done => UCS_OK,
            Posted::Failed(status) => status,
        };
        if let Some(Work::Send { op, buf, peer }) = self.slots.take(slot) {
            self.sent(op, buf, peer, status);
        }
    }

    /// UCX needs a message no more.
    pub(super) fn sent(
        &mut self,
        op: Option<OpId>,
        buf: MsgBuf,
        index: usize,
        status: ucs_status_t,
    ) {
        let Some(op) = op else { return };
        let result = match status {
            UCS_OK => Ok(()),
            status => Err(self.end_of(index, status)),
        };
        self.done(Completion::Send { op, buf, result });
    }

    /// Why an operation with a peer failed: its end, if it has ended, else what UCX says.
    pub(super) fn end_of(&mut self, index: usize, status: ucs_status_t) -> Error {
        let reason = worker::text(self.facts.ucp, status);
        let Some(peer) = self.peer(index) else { return Error::Closed };
        match (&peer.end, peer.phase) {
            (Some(end), phase) if phase != Phase::Connected => end.clone(),
            _ => Error::PeerGone { peer: peer.uri.to_string(), reason },
        }
    }

    /// Posts a receive for an expected message of a peer.
    pub(super) fn receive(&mut self, op: OpId, index: usize, tag: Tag, buf: MsgBuf) {
        let Some(peer) = self.peer(index) else { return };
        if peer.phase == Phase::Gone {
            let error = peer.gone();
            return self.done(Completion::Recv { op, buf, result: Err(error) });
        }
        let full = full_tag(peer.source, tag);
        if !self.given_up.is_empty() && self.revive(op, index, tag) {
            return;
        }
        let mut buf = buf;
        let room = buf.spare_mut();
        let room = (room.as_mut_ptr(), room.len());
        let work = Work::Receive { op: Some(op), buf, peer: index, tag, end: None };
        let slot = self.slots.add(work);
        let pinned = self.slots.pinned(slot);
        let Some(worker) = &self.worker else { return };
        // SAFETY: the slot owns the buffer, whose bytes do not move with it, until the callback.
        let posted = unsafe { worker.receive_tagged(full, room, pinned) };
        let status = match posted {
            Posted::Pending(request) => return self.slots.started(slot, request),
            // Not of this call.
            Posted::Done => UCS_OK,
            Posted::Failed(status) => status,
        };
        if let Some(Work::Receive { op, buf, peer, tag, end }) = self.slots.take(slot) {
            self.received(op, buf, peer, tag, end, (status, 0));
        }
    }

    /// A receive is over, with a status and a length.
    pub(super) fn received(
        &mut self,
        op: Option<OpId>,
        mut buf: MsgBuf,
        index: usize,
        tag: Tag,
        end: Option<Error>,
        (status, len): (ucs_status_t, usize),
    ) {
        let endpoint = self.facts.id;
        let max = self.facts.message_bytes_max;
        let Some(peer) = self.peer(index) else { return };
        let from = match &peer.current {
            Some(current) if end.is_none() => current.clone(),
            _ => peer.addr(endpoint, index, 0),
        };
        let uri = peer.uri.to_string();
        let result = match (status, end) {
            (UCS_OK, _) if len <= max.min(buf.capacity()) => {
                buf.set_len(len);
                Ok(Arrival { from, tag })
            }
            (UCS_OK | UCS_ERR_MESSAGE_TRUNCATED, _) => {
                let reason = format!("an expected message of more than {max} bytes");
                Err(Error::Protocol { peer: uri, reason })
            }
            (_, Some(end)) => Err(end),
            (_, None) if op.is_none() => Err(Error::Canceled),
            (status, None) => Err(self.end_of(index, status)),
        };
        if result.is_err() {
            buf.clear();
        }
        match (op, result) {
            (Some(op), result) => {
                self.inbox().report(Kind::Expected, Completion::Recv { op, buf, result });
            }
            // Given up; its place in the window is free all the same.
            (None, Ok(arrival)) => {
                let window = self.inbox().window();
                self.state().taken(Kind::Expected, &arrival.from, window);
            }
            (None, Err(_)) => {}
        }
    }

    /// Ends an operation of messages early. `false`: there is none of this number.
    pub(super) fn cancel_message(&mut self, op: OpId) -> bool {
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_mut() else { continue };
            for queue in &mut peer.queues {
                if let Some(at) = queue.iter().position(|message| message.op == op) {
                    let message = queue.remove(at);
                    let ended = message.map(|message| message.end(Err(Error::Canceled)));
                    self.state().done.extend(ended);
                    return true;
                }
            }
        }
        let is_it = |work: &Work| {
            matches!(work, Work::Send { op: Some(own), .. } | Work::Receive { op: Some(own), .. }
                if *own == op)
        };
        let found = self.slots.iter().find(|(_, work)| is_it(work)).map(|(slot, _)| slot);
        let Some(slot) = found else { return false };
        if self.slots.is_finished(slot) {
            return true;
        }
        let completion = match self.slots.work(slot) {
            // UCX has taken it, and may read it until the peer does something; so the caller gets
            // another buffer.
            Some(Work::Send { op: number, buf, .. }) => {
                *number = None;
                Some(Completion::Send { op, buf: copy_of(buf), result: Ok(()) })
            }
            Some(Work::Receive { op: number, buf, end: None, peer, tag }) => {
                *number = None;
                let (peer, tag) = (*peer, *tag);
                let buf = MsgBuf::with_capacity(buf.capacity());
                self.give_up(peer, tag, slot);
                Some(Completion::Recv { op, buf, result: Err(Error::Canceled) })
            }
            _ => None,
        };
        self.state().done.extend(completion);
        true
    }

    /// A receive that was given up stays posted, so that its message does not occupy the peer's
    /// window for ever: the message is thrown away, unless a receive for it is posted before it
    /// comes. That one takes the place, and the buffer, of the one that was given up.
    fn revive(&mut self, op: OpId, index: usize, tag: Tag) -> bool {
        let mut given_up = self.given_up.iter();
        let Some(at) = given_up.position(|own| (own.peer, own.tag) == (index, tag)) else {
            return false;
        };
        let slot = self.given_up.remove(at).map(|own| own.slot);
        match slot.and_then(|slot| self.slots.work(slot)) {
            Some(Work::Receive { op: number @ None, .. }) => {
                *number = Some(op);
                true
            }
            _ => false,
        }
    }

    /// Notes a receive that was given up; of too many, the oldest is forgotten.
    fn give_up(&mut self, peer: usize, tag: Tag, slot: u32) {
        self.given_up.push_back(GivenUp { peer, tag, slot });
        if self.given_up.len() > GIVEN_UP_MAX
            && let Some(oldest) = self.given_up.pop_front()
        {
            self.cancel_receive(oldest.slot);
        }
    }

    fn cancel_receive(&mut self, slot: u32) {
        let (Some(request), Some(worker)) = (self.slots.request(slot), &self.worker) else {
            return;
        };
        // SAFETY: a receive of this worker, whose callback has not been made: the slot would not
        // know the request any more.
        unsafe { worker.cancel(request) };
    }

    /// Ends the receives from a peer that has ended.
    pub(super) fn fail_receives(&mut self, index: usize, error: &Error) {
        self.given_up.retain(|own| own.peer != index);
        let mut slots = Vec::new();
        for (slot, work) in self.slots.iter_mut() {
            if let Work::Receive { peer, end, .. } = work
                && *peer == index
            {
                *end = Some(error.clone());
                slots.push(slot);
            }
        }
        slots.into_iter().for_each(|slot| self.cancel_receive(slot));
    }

    /// Ends the sends to a peer that has ended, where UCX cannot be made to let go of them: it may
    /// read them until the peer dies, so the callers get other buffers.
    pub(super) fn fail_sends(&mut self, index: usize, error: &Error) {
        if self.worker.as_ref().is_none_or(Worker::detects_failure) {
            return;
        }
        let mut ended = Vec::new();
        for (_, work) in self.slots.iter_mut() {
            let Work::Send { op, buf, peer } = work else { continue };
            if *peer == index
                && let Some(op) = op.take()
            {
                ended.push((op, copy_of(buf)));
            }
        }
        for (op, buf) in ended {
            self.done(Completion::Send { op, buf, result: Err(error.clone()) });
        }
    }

    /// Throws away the expected messages under `source` that nobody has received.
    pub(super) fn drain_source(&mut self, source: u32) {
        let mask = u64::from(u32::MAX) << 32;
        while let Some(worker) = &self.worker {
            let Some((message, len)) = worker.probe(full_tag(source, Tag(0)), mask) else { return };
            let mut room = vec![0; len.min(self.facts.message_bytes_max)];
            let place = (room.as_mut_ptr(), room.len());
            let slot = self.slots.add(Work::Bytes(room));
            let pinned = self.slots.pinned(slot);
            // SAFETY: just taken out; the slot owns the room until the callback.
            let posted = unsafe { worker.receive_probed(message, place, pinned) };
            self.posted(slot, posted);
        }
    }

    /// The sender of an address of this endpoint, as a number.
    pub(super) fn index_of(&self, addr: &Addr) -> Option<usize> {
        let own =
            addr.state::<super::peer::PeerRef>().filter(|_| addr.endpoint_id() == self.facts.id)?;
        let peer = self.peers.get(own.index)?.as_ref()?;
        (peer.id == addr.peer_id()).then_some(own.index)
    }
}

/// A buffer like this one, with the same message.
pub(super) fn copy_of(buf: &MsgBuf) -> MsgBuf {
    let mut copy = MsgBuf::with_capacity(buf.capacity());
    copy.spare_mut()[..buf.len()].copy_from_slice(buf.as_slice());
    copy.set_len(buf.len());
    copy
}

/// What an operation that was not started gives back.
pub(super) fn refused(error: Error, buf: MsgBuf) -> Result<(), Refused> {
    Err(Refused { error, buf })
}
