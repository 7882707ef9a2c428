//! Operations on their way to libfabric: handed over at once, or later when libfabric takes them.
//!
//! A provider that has no room, or no connection yet, says `FI_EAGAIN`. Then the operation waits
//! with all later ones to the same peer, in order, and each poll tries again. The queues hold
//! callers' buffers and nothing else, so they are as long as callers make them.
//!
//! Operations for a peer that was never reached end after the [connect
//! timeout](na_core::OpenOptions::connect_timeout), and those for any other peer after
//! [`STUCK_LIMIT`]: a provider does not say why it has no room, whether the peer is slow or gone.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use libc::iovec;
use ofi_sys::{call, raw};

use crate::buffers::local;
use crate::fabrics::fabric::{failed, unavailable};
use crate::providers::failures::{Meaning, means_gone};
use crate::state::bounds::STUCK_LIMIT;
use crate::state::core::{Core, Posted, Queue, QueuedOp};
use crate::state::peers::{Peer, unreachable};
use crate::state::slots::{self, OpSlot};
use na_core::matching::Kind;
use na_core::{Addr, Error, Tag};

/// How long an endpoint tries to post its first buffer.
const FIRST_LIMIT: Duration = Duration::from_secs(1);

/// How long a message is sent again whose connection was closed on account of a transfer.
const AGAIN_LIMIT: Duration = Duration::from_secs(1);

/// Most bytes of a message that is copied for libfabric at once.
const INJECT_BYTES_MAX: usize = 256;

/// The next turn of a peer among the peers for which something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueTurn {
    /// Behind the others.
    Next,
    /// In the next poll.
    Later,
    /// Nothing waits for it any more.
    Over,
}

impl Core {
    /// Sends a short message at once, which is nothing to wait for. The caller has seen to the
    /// order. `answer` is the number of the receive of its answer, which ends with an error of the
    /// message where that is told (`Provider::tells_lost`).
    pub(crate) fn inject(
        &mut self,
        kind: Kind,
        to: &Addr,
        tag: Tag,
        message: &[u8],
        answer: Option<u64>,
    ) -> bool {
        let Some(peer) = to.state::<Peer>() else { return false };
        let header: &[u8] = if kind == Kind::Unexpected { &self.header } else { &[] };
        let len = header.len() + message.len();
        let may_be_lost = !peer.was_reached() || peer.is_torn();
        let max = self.inject_bytes_max.min(INJECT_BYTES_MAX);
        if len > max || max == 0 || may_be_lost || peer.load.is_full(&self.bounds) {
            return false;
        }
        let mut bytes = [0; INJECT_BYTES_MAX];
        let message = match header.is_empty() {
            true => message,
            false => {
                bytes[..header.len()].copy_from_slice(header);
                bytes[header.len()..len].copy_from_slice(message);
                &bytes[..len]
            }
        };
        if self.provider.tells_lost {
            return self.inject_told(kind, to, tag, message, answer);
        }
        if !peer.load.may_inject() {
            return false;
        }
        let Some(ep) = &self.ep else { return false };
        let (start, fi_addr) = (message.as_ptr().cast(), peer.fi_addr);
        let tag = u64::from(tag.0);
        // SAFETY: the endpoint is open, the peer was inserted; the bytes are copied.
        let result = unsafe {
            match kind {
                Kind::Unexpected => call::injectdata(ep.ep, start, len, tag, fi_addr),
                Kind::Expected => call::tinject(ep.ep, start, len, fi_addr, tag),
            }
        };
        let taken = Posted::of(result) == Posted::Taken;
        if taken {
            peer.set_injected(self.peers.era());
        }
        taken
    }

    /// Does the work of [`inject`](Self::inject) with a context, and with all of the message in one
    /// piece.
    fn inject_told(
        &mut self,
        kind: Kind,
        to: &Addr,
        tag: Tag,
        message: &[u8],
        answer: Option<u64>,
    ) -> bool {
        // Whether a descriptor is wanted for bytes that are copied, no page says.
        if self.registers_all {
            return false;
        }
        let Some(ep) = self.ep.as_ref().map(|ep| ep.ep) else { return false };
        let Some(peer) = to.state::<Peer>() else { return false };
        let index = self.slots.add(OpSlot::Injected { to: to.clone(), answer });
        let (context, pinned) = (self.slots.context(index), self.slots.pinned(index));
        let piece = iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
        let (msg_iov, desc) = unsafe {
            slots::tell(pinned, Some(peer));
            ((*pinned).iov[0], (*pinned).desc[0]) = (piece, std::ptr::null_mut());
            ((&raw const (*pinned).iov).cast(), (&raw mut (*pinned).desc).cast())
        };
        let (iov_count, addr, tag) = (1, peer.fi_addr, u64::from(tag.0));
        let flags = raw::FI_INJECT | raw::FI_COMPLETION | self.provider.complete;
        let result = match kind {
            Kind::Unexpected => {
                let data = tag;
                let message = raw::fi_msg { msg_iov, desc, iov_count, addr, context, data };
                let flags = flags | raw::FI_REMOTE_CQ_DATA;
                // SAFETY: the endpoint is open, the peer was inserted; the bytes are copied.
                unsafe { call::sendmsg(ep, &raw const message, flags) }
            }
            Kind::Expected => {
                let (ignore, data) = (0, 0);
                let message = raw::fi_msg_tagged {
                    msg_iov,
                    desc,
                    iov_count,
                    addr,
                    tag,
                    ignore,
                    context,
                    data,
                };
                // SAFETY: as above.
                unsafe { call::tsendmsg(ep, &raw const message, flags) }
            }
        };
        let taken = Posted::of(result) == Posted::Taken;
        match taken {
            true => peer.load.count_loose(true),
            false => drop(self.slots.take(index)),
        }
        taken
    }

    /// Hands something over, behind what waits for the same peer.
    pub(crate) fn enqueue(&mut self, to: &Addr, entry: QueuedOp) {
        let waiting = self.queues.get_mut(&to.peer_id());
        if let Some(queue) = waiting {
            queue.entries.push_back(entry);
            return;
        }
        match self.post(entry) {
            Posted::Taken => {}
            Posted::Partly | Posted::Again => {
                let entries = VecDeque::from([entry]);
                let queue = Queue { to: to.clone(), entries, since: Instant::now() };
                self.queues.insert(to.peer_id(), queue);
                self.turns.push_back(to.peer_id());
            }
            Posted::Failed(errno) => self.refused(entry, to, errno),
        }
    }

    /// Takes a message out of its queue.
    pub(crate) fn dequeue(&mut self, peer: u64, slot: u32) {
        self.take_out(peer, QueuedOp::Send(slot));
    }

    pub(crate) fn take_out(&mut self, peer: u64, entry: QueuedOp) {
        if let Some(queue) = self.queues.get_mut(&peer) {
            queue.entries.retain(|waiting| *waiting != entry);
            if queue.entries.is_empty() {
                self.take_queue(peer);
            }
        }
    }

    /// Takes all that waits for a peer.
    fn take_queue(&mut self, peer: u64) -> Option<Queue> {
        let queue = self.queues.remove(&peer)?;
        self.turns.retain(|waiting| *waiting != peer);
        Some(queue)
    }

    /// Tries again what waits: of each peer in turn one operation, until each has none or was told
    /// "not now". That may be about the peer (RxM, while it connects) or about the endpoint, which
    /// has no room (`cxi`, `efa`); then all shall have their part of the little that there is.
    pub(crate) fn retry(&mut self) {
        if !self.recvs.is_empty() {
            self.post_receives();
        }
        if self.queues.is_empty() {
            return;
        }
        // Who is done with, or had "not now", has no further turn now.
        let mut later = VecDeque::new();
        while let Some(peer) = self.turns.pop_front() {
            match self.retry_front(peer) {
                QueueTurn::Over => {}
                QueueTurn::Next => self.turns.push_back(peer),
                QueueTurn::Later => later.push_back(peer),
            }
        }
        // In the order in which they were told so: next time begins behind who was served last.
        self.turns = later;
    }

    /// Tries again what waits longest for one peer.
    fn retry_front(&mut self, peer: u64) -> QueueTurn {
        let Some(queue) = self.queues.get(&peer) else { return QueueTurn::Over };
        let Some(entry) = queue.entries.front().copied() else { return QueueTurn::Over };
        match self.post(entry) {
            Posted::Taken => self.done_with_front(peer),
            Posted::Partly => {
                self.advanced(peer);
                QueueTurn::Later
            }
            Posted::Again => self.give_up_if_stuck(peer),
            Posted::Failed(errno) => {
                let Some(to) = self.queues.get(&peer).map(|queue| queue.to.clone()) else {
                    return QueueTurn::Over;
                };
                self.done_with_front(peer);
                self.refused(entry, &to, errno);
                if self.queues.contains_key(&peer) { QueueTurn::Next } else { QueueTurn::Over }
            }
        }
    }

    fn done_with_front(&mut self, peer: u64) -> QueueTurn {
        let Some(queue) = self.queues.get_mut(&peer) else { return QueueTurn::Over };
        queue.entries.pop_front();
        queue.since = Instant::now();
        if !queue.entries.is_empty() {
            return QueueTurn::Next;
        }
        self.queues.remove(&peer);
        QueueTurn::Over
    }

    fn advanced(&mut self, peer: u64) {
        if let Some(queue) = self.queues.get_mut(&peer) {
            queue.since = Instant::now();
        }
    }

    fn give_up_if_stuck(&mut self, peer: u64) -> QueueTurn {
        let Some(queue) = self.queues.get(&peer) else { return QueueTurn::Over };
        let reached =
            queue.to.state::<Peer>().is_some_and(|peer| peer.was_reached() && !peer.is_torn());
        let limit = if reached { STUCK_LIMIT } else { self.connect_timeout };
        if queue.since.elapsed() < limit {
            return QueueTurn::Later;
        }
        let to = queue.to.clone();
        let said = format!(
            "provider {} took nothing for it for {} ms",
            self.provider.name,
            limit.as_millis()
        );
        self.lose(&to, said);
        QueueTurn::Over
    }

    /// Operations with a peer end: it cannot be reached, or not any more.
    pub(crate) fn lose(&mut self, to: &Addr, reason: String) {
        let Some(peer) = to.state::<Peer>() else { return };
        let error = unreachable(to, reason);
        peer.set_reached(false);
        peer.begin_life();
        let queue = self.take_queue(to.peer_id());
        for entry in queue.into_iter().flat_map(|queue| queue.entries) {
            match entry {
                QueuedOp::Send(slot) => self.end_slot(slot, Err(error.clone())),
                QueuedOp::Transfer(number) => self.fail_transfer(number, error.clone()),
            }
        }
        let receives: Vec<u32> = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot, OpSlot::Recv { from, .. } if from == to))
            .map(|(index, _)| index)
            .collect();
        for index in receives {
            self.cancel_slot(index, &error);
        }
    }

    /// libfabric refused an operation for good, which says as much of the peer as if it had failed.
    fn refused(&mut self, entry: QueuedOp, to: &Addr, errno: c_int) {
        let meaning = self.provider.meaning(errno, 0);
        let is_transfer = matches!(entry, QueuedOp::Transfer(_));
        let error = self.error_for(to, errno, "", meaning, is_transfer);
        match entry {
            QueuedOp::Send(slot) => self.end_slot(slot, Err(error)),
            QueuedOp::Transfer(number) => self.fail_transfer(number, error),
        }
        if meaning == Some(Meaning::Gone) {
            let reason = self.reason(errno, None);
            self.lose(to, reason);
        }
    }

    fn post(&mut self, entry: QueuedOp) -> Posted {
        match entry {
            QueuedOp::Send(slot) => self.post_send(slot),
            QueuedOp::Transfer(number) => self.post_parts(number),
        }
    }

    fn post_send(&mut self, index: u32) -> Posted {
        let (context, pinned) = (self.slots.context(index), self.slots.pinned(index));
        let complete = self.provider.complete;
        let Some(ep) = &self.ep else { return Posted::Failed(libc::ESHUTDOWN) };
        let OpSlot::Send { kind, to, tag, buf, posted, .. } = self.slots.get(index) else {
            return Posted::Taken;
        };
        let peer = to.state::<Peer>();
        if peer.is_some_and(|peer| peer.load.is_full(&self.bounds)) {
            return Posted::Again;
        }
        let fi_addr = peer.map_or(u64::MAX, |peer| peer.fi_addr);
        // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
        unsafe { slots::tell(pinned, peer) };
        let tag = u64::from(tag.0);
        let kind = *kind;
        let header: &[u8] = if kind == Kind::Unexpected { &self.header } else { &[] };
        let part = |bytes: &[u8]| iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let (mut iov, mut desc) = ([part(header), part(buf.as_slice())], std::ptr::null_mut());
        let joins = self.joins && !header.is_empty();
        if self.registers_all || joins {
            let with = self.registers_all.then_some((&self.registry, &self.domain, ep));
            let local = match self.locals.of_slot(index, self.message_bytes_max, with) {
                Ok(local) => local,
                Err(errno) => return Posted::Failed(errno),
            };
            let iov_len = local.put([header, buf.as_slice()]);
            iov = [part(&[]), iovec { iov_base: local.place().cast(), iov_len }];
            desc = local.desc();
        }
        let result = match kind {
            Kind::Expected => {
                let iovec { iov_base: start, iov_len: len } = iov[1];
                // SAFETY: the endpoint is open, the peer was inserted; the buffer stays in its slot
                // until the completion.
                unsafe { call::tsend(ep.ep, start, len, desc, fi_addr, tag, context) }
            }
            Kind::Unexpected => {
                let first = usize::from(iov[0].iov_len == 0);
                // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
                let (iov, descs) = unsafe {
                    (*pinned).iov = iov;
                    (*pinned).desc = [desc; 2];
                    ((&raw mut (*pinned).iov).cast::<iovec>().add(first), &raw mut (*pinned).desc)
                };
                let message = raw::fi_msg {
                    msg_iov: iov,
                    desc: descs.cast(),
                    iov_count: 2 - first,
                    addr: fi_addr,
                    context,
                    data: tag,
                };
                let flags = raw::FI_REMOTE_CQ_DATA | raw::FI_COMPLETION | complete;
                // SAFETY: as for an expected message; the header lives as long as the endpoint.
                unsafe { call::sendmsg(ep.ep, &raw const message, flags) }
            }
        };
        match Posted::of(result) {
            // The connection that was closed is still known; there will be another one.
            Posted::Failed(errno) if means_gone(errno) && is_torn(to) => Posted::Again,
            result => {
                *posted = result == Posted::Taken;
                if *posted
                    && kind == Kind::Expected
                    && let Some(peer) = to.state::<Peer>()
                {
                    peer.load.answer_handed(buf.capacity(), true);
                }
                result
            }
        }
    }

    /// A message was not sent, or may not have been, because its connection was closed on account
    /// of a transfer; `true`: it goes over the next one. Only what does no harm if it comes twice,
    /// which a response does not; and for [`AGAIN_LIMIT`], because a provider may learn late that
    /// its connection is closed, and the peer may be gone.
    pub(crate) fn sends_again(&mut self, index: u32, is_lost: bool) -> bool {
        let OpSlot::Send { kind, to, buf, posted, given_up, again, .. } = self.slots.get(index)
        else {
            return false;
        };
        let since = again.unwrap_or_else(Instant::now);
        let in_time = since.elapsed() < AGAIN_LIMIT;
        if !is_lost || *kind != Kind::Expected || *given_up || !in_time || !is_torn(to) {
            return false;
        }
        let was_posted = std::mem::replace(posted, false);
        *again = Some(since);
        if let Some(peer) = to.state::<Peer>().filter(|_| was_posted) {
            peer.load.answer_handed(buf.capacity(), false);
        }
        let to = to.clone();
        self.enqueue(&to, QueuedOp::Send(index));
        true
    }

    /// Posts receives that wait, in order.
    pub(crate) fn post_receives(&mut self) {
        while let Some(index) = self.recvs.front().copied() {
            let (context, pinned) = (self.slots.context(index), self.slots.pinned(index));
            let Some(ep) = &self.ep else { return };
            let OpSlot::Recv { from, tag, buf, posted, .. } = self.slots.get(index) else {
                self.recvs.pop_front();
                continue;
            };
            let peer = from.state::<Peer>();
            let fi_addr = peer.map_or(u64::MAX, |peer| peer.fi_addr);
            // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
            unsafe { slots::tell(pinned, peer) };
            let room = buf.spare_mut();
            let (mut start, mut len) = (room.as_mut_ptr(), room.len());
            let mut desc = std::ptr::null_mut();
            if self.registers_all {
                let with = Some((&self.registry, &self.domain, ep));
                match self.locals.of_slot(index, self.message_bytes_max, with) {
                    Ok(local) => (start, desc) = (local.place(), local.desc()),
                    Err(errno) => {
                        self.recvs.pop_front();
                        let from = from.clone();
                        let error = self.error_of(&from, errno, Some("registering a buffer"));
                        self.end_slot(index, Err(error));
                        continue;
                    }
                }
                len = len.min(self.message_bytes_max);
            }
            let (start, tag): (*mut c_void, _) = (start.cast(), u64::from(tag.0));
            // SAFETY: the endpoint is open, the peer was inserted; the buffer stays in its slot
            // until the completion, and nobody looks at it before.
            let result = unsafe { call::trecv(ep.ep, start, len, desc, fi_addr, tag, 0, context) };
            match Posted::of(result) {
                Posted::Taken | Posted::Partly => *posted = true,
                // `shm` says so when it has as many receives as it takes.
                Posted::Again | Posted::Failed(libc::ENOMEM) => return,
                Posted::Failed(errno) => {
                    let from = from.clone();
                    let error = self.error_of(&from, errno, None);
                    self.end_slot(index, Err(error));
                }
            }
            self.recvs.pop_front();
        }
    }

    /// Posts buffers for unexpected messages that are free, as many as libfabric takes now.
    ///
    /// # Errors
    ///
    /// When libfabric refuses one for good.
    pub(crate) fn post_buffers(&mut self) -> Result<(), Error> {
        while let Some(number) = self.unexpected.next_idle() {
            match self.post_buffer(number) {
                Posted::Taken | Posted::Partly => self.unexpected.posted(number),
                Posted::Again | Posted::Failed(libc::ENOMEM) => {
                    self.unexpected.put_back(number);
                    break;
                }
                Posted::Failed(errno) => {
                    self.unexpected.put_back(number);
                    let what = "it refuses a buffer for requests";
                    return Err(failed(self.domain.lib, what, errno));
                }
            }
        }
        Ok(())
    }

    /// Posts the first buffers of an endpoint that was just opened, until libfabric has one.
    /// libfabric may say that it takes none now, which lasts until it was asked for completions.
    ///
    /// # Errors
    ///
    /// When libfabric refuses one, or takes none for [`FIRST_LIMIT`].
    pub(crate) fn post_first_buffers(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            self.post_buffers()?;
            if self.unexpected.has_posted() {
                return Ok(());
            }
            if begun.elapsed() >= FIRST_LIMIT {
                return Err(unavailable(format!(
                    "provider {} takes no buffer for requests; its resources are used up",
                    self.provider.name
                )));
            }
            self.progress(usize::MAX)?;
        }
    }

    /// Posts free buffers of an endpoint in use. A refusal is logged once, and tried again by the
    /// next poll.
    pub(crate) fn repost_buffers(&mut self) {
        let refused = self.post_buffers().err();
        let was_refused = std::mem::replace(&mut self.unexpected.refused, refused.is_some());
        if let Some(error) = refused.filter(|_| !was_refused) {
            tracing::warn!(%error, "fewer requests can be received");
        }
    }

    fn post_buffer(&mut self, number: u32) -> Posted {
        let Some(ep) = &self.ep else { return Posted::Again };
        let mut of_buffer = std::ptr::null_mut();
        if self.registers_all {
            let (registry, domain) = (&self.registry, &self.domain);
            // SAFETY: the buffer's memory lives until the buffer is dropped, which ends the
            // registration first.
            let register =
                |(start, len)| unsafe { local::register(registry, domain, ep, start, len) };
            match self.unexpected.registration(number, register) {
                Ok(mr) => of_buffer = mr.desc(),
                Err(errno) => return Posted::Failed(errno),
            }
        }
        let index = self.slots.add(OpSlot::Unexpected { buffer: number });
        let (context, pinned) = (self.slots.context(index), self.slots.pinned(index));
        let (start, len) = self.unexpected.place(number);
        let iov = iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
        let (iov, desc) = unsafe {
            slots::tell(pinned, None);
            (*pinned).iov[0] = iov;
            (*pinned).desc[0] = of_buffer;
            ((&raw const (*pinned).iov).cast(), (&raw mut (*pinned).desc).cast())
        };
        let addr = u64::MAX;
        let message = raw::fi_msg { msg_iov: iov, desc, iov_count: 1, addr, context, data: 0 };
        // SAFETY: the endpoint is open; the buffer is not touched here but where libfabric says
        // that a message is complete, until it is given back.
        let result = unsafe {
            match self.unexpected.multi {
                true => call::recvmsg(ep.ep, &raw const message, raw::FI_MULTI_RECV),
                false => call::recv(ep.ep, start.cast(), len, of_buffer, addr, context),
            }
        };
        let result = Posted::of(result);
        if result != Posted::Taken {
            self.slots.take(index);
        }
        result
    }

    /// An error number of libfabric in words.
    pub(crate) fn reason(&self, errno: c_int, detail: Option<&str>) -> String {
        let said = self.domain.lib.strerror(errno);
        match detail.filter(|detail| !detail.is_empty() && *detail != said) {
            Some(detail) => format!("{said} ({errno}; {detail})"),
            None => format!("{said} ({errno})"),
        }
    }

    /// Returns the error of an operation with a peer that ended with that number of libfabric's.
    pub(crate) fn error_of(&self, with: &Addr, errno: c_int, detail: Option<&str>) -> Error {
        let reason = self.reason(errno, detail);
        match errno {
            libc::ECANCELED => Error::Canceled,
            _ if means_gone(errno) => unreachable(with, reason),
            _ if errno == raw::FI_ETRUNC as c_int || errno == libc::EMSGSIZE => {
                let reason = format!("a message was longer than agreed: {reason}");
                Error::Protocol { peer: with.uri().to_owned(), reason }
            }
            _ => {
                let what = format!("libfabric: an operation with {with}");
                Error::io(what, std::io::Error::other(reason))
            }
        }
    }
}

fn is_torn(to: &Addr) -> bool {
    to.state::<Peer>().is_some_and(Peer::is_torn)
}
