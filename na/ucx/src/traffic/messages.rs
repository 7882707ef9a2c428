//! Messages: active messages, whose tag is the header. What arrives is in `inbox.rs`.

use ucx_sys::{UCS_OK, ucs_status_t};

use crate::operations::inbox::place;
use crate::operations::slots::{Work, copy_of};
use crate::state::driver::Driver;
use crate::state::peer::{Phase, answer_bytes};
use crate::ucp::{library, worker::Worker};
use crate::wire::{AM_EXPECTED, AM_UNEXPECTED};
use na_core::loopback::Queued;
use na_core::matching::Kind;
use na_core::{Addr, Completion, Error, MsgBuf, OpId, Tag};

impl Driver {
    /// Sends a message to a peer, now or when that is possible. `to`: what the sender calls it.
    pub(crate) fn send(&mut self, index: usize, to: &Addr, message: Queued) {
        let own_max = self.facts.message_bytes_max;
        let Some(peer) = self.peer(index) else { return };
        let at = place(message.kind);
        if peer.phase == Phase::Gone {
            let end = peer.gone();
            return self.done(message.end(Err(end)));
        }
        if message.kind == Kind::Expected && to.is_of_another_session(peer.session) {
            let end = peer.unanswerable();
            return self.done(message.end(Err(end)));
        }
        debug_assert!(message.buf.len() <= own_max, "checked by the endpoint");
        if peer.phase == Phase::Connected && peer.queues[at].is_empty() && peer.credits[at] > 0 {
            return self.transmit(index, message);
        }
        let bytes = answer_bytes(message.kind, &message.buf);
        peer.queues[at].push_back(message);
        self.answer_waits(index, bytes);
        self.queued += 1;
        self.dial(index);
    }

    /// Sends what has waited, as far as the peer allows.
    pub(crate) fn pump(&mut self, index: usize) {
        for at in [0, 1] {
            while let Some(peer) = self.peer(index) {
                if peer.phase != Phase::Connected || peer.credits[at] == 0 {
                    break;
                }
                let Some(message) = peer.next_queued(at) else { break };
                self.queued -= 1;
                self.transmit(index, message);
            }
        }
    }

    #[inline]
    fn transmit(&mut self, index: usize, message: Queued) {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return };
        let Some(link) = peer.link else { return };
        let Queued { op, kind, tag, buf } = message;
        if buf.len() > peer.their_max {
            let error = Error::TooLong { len: buf.len(), max: peer.their_max };
            return self.done(Completion::Send { op, buf, result: Err(error) });
        }
        peer.credits[place(kind)] -= 1;
        let Some(worker) = &self.worker else { return };
        let (id, tag) = (am_of(kind), u64::from(tag.0).to_le_bytes());
        // SAFETY: `link` is that of its peer, which loses it when it is closed.
        if unsafe { worker.send_am_now(link, id, &tag, buf.as_slice()) } {
            return self.done(Completion::Send { op, buf, result: Ok(()) });
        }
        let data = (buf.as_slice().as_ptr(), buf.len());
        let answer = answer_bytes(kind, &buf);
        let work = Work::Send { op: Some(op), buf, peer: index, end: None, answer };
        // Until UCX has sent it.
        self.answer_waits(index, answer);
        self.post(work, |worker, slots, slot| {
            let header = slots.set_header(slot, &tag);
            // SAFETY: `link` is that of its peer, which loses it when it is closed; the slot owns
            // header and buffer until the callback.
            unsafe { worker.send_am(link, id, header, data, slots.pinned(slot)) }
        });
    }

    /// Sends a message if that can be over at once; whether it is. `to`: as for `send`.
    #[inline]
    pub(crate) fn send_now(
        &mut self,
        index: usize,
        kind: Kind,
        to: &Addr,
        tag: Tag,
        message: &[u8],
    ) -> bool {
        let Some(peer) = self.peers.get_mut(index).and_then(Option::as_mut) else { return false };
        let at = place(kind);
        let may = peer.phase == Phase::Connected
            && !(kind == Kind::Expected && to.is_of_another_session(peer.session))
            && peer.queues[at].is_empty()
            && peer.credits[at] > 0
            && message.len() <= peer.their_max;
        let (Some(link), Some(worker), true) = (peer.link, &self.worker, may) else {
            return false;
        };
        let tag = u64::from(tag.0).to_le_bytes();
        // SAFETY: `link` is that of its peer, which loses it when it is closed.
        let sent = unsafe { worker.send_am_now(link, am_of(kind), &tag, message) };
        peer.credits[at] -= u32::from(sent);
        sent
    }

    /// UCX needs a message no more. `end`: why what was between us and the peer ended meanwhile.
    pub(crate) fn sent(
        &mut self,
        op: Option<OpId>,
        buf: MsgBuf,
        index: usize,
        end: Option<Error>,
        status: ucs_status_t,
    ) {
        let Some(op) = op else { return };
        let result = match (status, end) {
            (UCS_OK, _) => Ok(()),
            (_, Some(end)) => Err(end),
            (status, None) => {
                let reason = library::text(self.facts.ucp, status);
                let peer = self.peer(index).map(|peer| peer.uri.to_string());
                Err(Error::PeerGone { peer: peer.unwrap_or_default(), reason })
            }
        };
        self.done(Completion::Send { op, buf, result });
    }

    /// Posts a receive for an expected message of a peer.
    pub(crate) fn receive(&mut self, op: OpId, index: usize, from: &Addr, tag: Tag, buf: MsgBuf) {
        let Some(peer) = self.peer(index) else { return };
        if peer.phase == Phase::Gone {
            let error = peer.gone();
            return self.done(Completion::Recv { op, buf, result: Err(error) });
        }
        let early = self.state().matcher.post_expected(op, from, tag, buf);
        if let Some(early) = early {
            self.report_early(Kind::Expected, early);
        }
    }

    /// Ends a send early. `false`: there is none of this number.
    pub(crate) fn cancel_send(&mut self, op: OpId) -> bool {
        if self.queued > 0 {
            self.walk();
            let mut peers = self.peers.iter_mut().flatten();
            let message = peers.find_map(|peer| peer.take_queued(op));
            if let Some(message) = message {
                self.queued -= 1;
                self.done(message.end(Err(Error::Canceled)));
                return true;
            }
        }
        if self.slots.sends() == 0 {
            return false;
        }
        self.walk();
        let is_it = |work: &Work| matches!(work, Work::Send { op: Some(own), .. } if *own == op);
        let found = self.slots.iter().find(|(_, work)| is_it(work)).map(|(slot, _)| slot);
        let Some(slot) = found else { return false };
        if self.slots.is_finished(slot) {
            return true;
        }
        // UCX has taken it, and may read it until the peer does something; so the caller gets
        // another buffer.
        if let Some(Work::Send { op: number, buf, .. }) = self.slots.work(slot) {
            *number = None;
            let completion = Completion::Send { op, buf: copy_of(buf), result: Ok(()) };
            self.done(completion);
        }
        true
    }

    /// Ends the sends to a peer when the session with it ends: UCX lets go of them, and then they
    /// end with `error`. Where UCX cannot be made to let go they end now; it may read them until
    /// the peer dies, so the callers get other buffers.
    pub(crate) fn fail_sends(&mut self, index: usize, error: &Error) {
        let lets_go = self.worker.as_ref().is_none_or(Worker::detects_failure);
        let mut ended = Vec::new();
        for (_, work) in self.slots.iter_mut() {
            let Work::Send { op, buf, peer, end, .. } = work else { continue };
            if *peer != index {
                continue;
            }
            end.get_or_insert_with(|| error.clone());
            if !lets_go && let Some(op) = op.take() {
                ended.push((op, copy_of(buf)));
            }
        }
        for (op, buf) in ended {
            self.done(Completion::Send { op, buf, result: Err(error.clone()) });
        }
    }
}

/// The number of active messages that are messages of `kind`.
fn am_of(kind: Kind) -> u32 {
    match kind {
        Kind::Unexpected => AM_UNEXPECTED,
        Kind::Expected => AM_EXPECTED,
    }
}
