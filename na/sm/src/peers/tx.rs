//! A connection as senders see it: behind the peer's send lock.
//!
//! | state | who |
//! |---|---|
//! | [`Conn`] | everybody; immutable but for its flags |
//! | [`TxLink`] | whoever holds the peer's send lock: any thread that sends, and the poll |
//! | the ring's consumer, transfers that we serve | the poll alone (`poll.rs`, `serve.rs`) |
//!
//! A record goes into the ring at once if nothing waits before it. Otherwise it is queued here, in
//! order, buffers kept, and `Conn::backlog` tells the poll to [`flush`](TxLink::flush). The order
//! of a flush is: control records (their number is bounded by the protocol), messages, requests
//! for transfers, data of puts.

use std::collections::VecDeque;
use std::mem::offset_of;

use crate::link::record::{self, PAGE_RECORD, Status};
use crate::link::turns::{PAGE_BYTES, PAGED_MIN};
use crate::link::{
    CONTROL_WAITING_MAX, Conn, Control, Fault, LINE, MappedRing, Producer, Violation,
};
use crate::transfer::block::Announced;
use crate::transfer::costs::Way;
use crate::transfer::fallback::{Lane, Source, Span};
use crate::transfer::offer::Offers;
use crate::transfer::rma::{Granted, Requests};
use crate::transfer::serve::ToPeer;
use crate::wake::doorbell::RECORDS;
use na_core::loopback::{Outcome, Queued};
use na_core::matching::Kind;
use na_core::memory::region::LingeringMemory;
use na_core::{Completion, Error, LocalMem, MsgBuf, OpId, Tag, Transfer};
use prim::prefetch;
use prim::sync::Arc;

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct TxLink {
    pub(crate) conn: Arc<Conn>,
    pub(crate) requests: Requests,
    producer: Producer<MappedRing>,
    /// Messages that were taken: those that went through the ring, and those that are queued or
    /// were canceled there.
    messages: u64,
    /// Largest message that the peer takes; zero until it has welcomed us.
    limit: Option<usize>,
    /// Bytes of messages in pages, in whole lines.
    paged: u64,
    control: VecDeque<Control>,
    queue: VecDeque<Queued>,
    announced: Announced,
    pub(crate) offers: Offers,
    lane: Lane,
    /// Sends that have ended, for the poll to report: one lock less than
    /// another queue.
    ended: Vec<Completion>,
    /// Messages that were sent, for the poll to report. Most sends end so, and this takes two words
    /// instead of a completion.
    sent: Vec<(OpId, MsgBuf)>,
}

impl TxLink {
    /// A link that queues until [`open`](Self::open).
    pub(crate) fn new(conn: Arc<Conn>) -> Self {
        let producer = Producer::new(conn.segment.ring(true));
        Self {
            conn,
            requests: Requests::default(),
            producer,
            paged: 0,
            messages: 0,
            limit: None,
            control: VecDeque::new(),
            queue: VecDeque::new(),
            announced: Announced::default(),
            offers: Offers::default(),
            lane: Lane::default(),
            ended: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Asks the cache for what a short message touches, of a link that may be there. A hint.
    #[inline(always)]
    pub(crate) fn prefetch(link: *const Self) {
        for offset in [
            offset_of!(Self, producer),
            offset_of!(Self, messages),
            offset_of!(Self, queue),
            offset_of!(Self, control),
        ] {
            prefetch::for_write(link.wrapping_byte_add(offset));
        }
    }

    /// Makes sure that the peer can map the block of `memory`. `None`: it cannot, or there is none.
    pub(crate) fn announce(&mut self, memory: &LocalMem, write: bool) -> Option<u64> {
        let Self { conn, announced, control, .. } = self;
        let block = announce(conn, announced, control, memory, write);
        self.look_for_forgotten();
        block
    }

    /// Has the poll flush control records that wait. Announcing a block finds blocks that exist no
    /// more, and no data goes before the peer is told of those.
    fn look_for_forgotten(&self) {
        if !self.control.is_empty() {
            self.conn.set_backlog(true);
        }
    }

    /// The peer is there and takes messages of `limit` bytes.
    pub(crate) fn open(&mut self, limit: usize) {
        self.limit = Some(limit);
        self.conn.set_backlog(true);
    }

    /// Returns whether the peer has answered, so that what was said here may be on its way.
    pub(crate) fn is_open(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns whether operations of ours that do not end without the peer are open here.
    pub(crate) fn waits_for_peer(&self) -> bool {
        !self.queue.is_empty() || self.requests.has_transfers()
    }

    /// Bytes that went through the ring and pages, in whole lines.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.producer.written() + self.paged
    }

    /// Messages that were taken, also those that wait for room in the ring.
    pub(crate) fn sent_messages(&self) -> u64 {
        self.messages
    }

    /// Sends a message, or queues it: then it returns `true`. Either way the poll has to look at
    /// the link.
    #[inline]
    pub(crate) fn send(&mut self, op: OpId, kind: Kind, tag: Tag, buf: MsgBuf) -> bool {
        if self.send_now(kind, tag, buf.as_slice()) {
            self.sent.push((op, buf));
            self.conn.set_backlog(true);
            return false;
        }
        self.enqueue(Queued { op, kind, tag, buf });
        true
    }

    #[cold]
    fn enqueue(&mut self, message: Queued) {
        let first = self.queue.is_empty() && self.control.is_empty();
        match self.limit {
            Some(max) if first && message.buf.len() > max => {
                let error = Error::TooLong { len: message.buf.len(), max };
                self.ended.push(message.end(Err(error)));
            }
            _ => {
                self.messages += 1;
                self.queue.push_back(message);
            }
        }
        self.conn.set_backlog(true);
    }

    /// Sends a message without a completion; `false`: it has to queue, or is too long.
    #[inline]
    pub(crate) fn send_now(&mut self, kind: Kind, tag: Tag, bytes: &[u8]) -> bool {
        let fits = self.limit.is_some_and(|limit| bytes.len() <= limit);
        if !fits || !self.queue.is_empty() || !self.control.is_empty() {
            return false;
        }
        match self.write_bytes(kind, tag, bytes) {
            Ok(written) => {
                self.messages += u64::from(written);
                written
            }
            Err(violation) => {
                self.conn.set_fault(Fault::Ring(violation));
                false
            }
        }
    }

    /// `None`: no room, or not open yet.
    #[inline]
    fn write_message(&mut self, message: &Queued) -> Result<Option<Result<(), Error>>, Violation> {
        let Some(limit) = self.limit else { return Ok(None) };
        let bytes = message.buf.as_slice();
        if bytes.len() > limit {
            return Ok(Some(Err(Error::TooLong { len: bytes.len(), max: limit })));
        }
        Ok(self.write_bytes(message.kind, message.tag, bytes)?.then_some(Ok(())))
    }

    /// `false`: no room.
    #[inline]
    fn write_bytes(&mut self, kind: Kind, tag: Tag, bytes: &[u8]) -> Result<bool, Violation> {
        if (PAGED_MIN..=PAGE_BYTES).contains(&bytes.len())
            && let Some(page) = self.conn.turns.ours()
        {
            return self.write_page(page, kind, tag, bytes);
        }
        let Some(slot) = self.producer.reserve(bytes.len())? else { return Ok(false) };
        self.producer.write(&slot, 0, bytes);
        let kind = match kind {
            Kind::Unexpected => record::UNEXPECTED,
            Kind::Expected => record::EXPECTED,
        };
        self.producer.publish(slot, kind, tag.0);
        Ok(true)
    }

    /// Sends a message in a page that is ours. `false`: no room for its record.
    fn write_page(
        &mut self,
        page: usize,
        kind: Kind,
        tag: Tag,
        bytes: &[u8],
    ) -> Result<bool, Violation> {
        let Some(slot) = self.producer.reserve(PAGE_RECORD)? else { return Ok(false) };
        // SAFETY: `turns` says that it is ours; nobody else sends, for this link is borrowed.
        unsafe { self.conn.segment.write_page(page, bytes) };
        self.conn.turns.pass(page);
        self.producer.write(&slot, 0, &(page as u64).to_le_bytes());
        self.producer.write(&slot, 8, &(bytes.len() as u64).to_le_bytes());
        let kind = match kind {
            Kind::Unexpected => record::UNEXPECTED_PAGE,
            Kind::Expected => record::EXPECTED_PAGE,
        };
        self.producer.publish(slot, kind, tag.0);
        self.paged += bytes.len().next_multiple_of(LINE) as u64;
        Ok(true)
    }

    /// Queues a control record; the poll flushes it. Too many are a fault, for a peer could make us
    /// queue them for ever.
    pub(crate) fn push_control(&mut self, control: Control) {
        self.control.push_back(control);
        self.conn.set_backlog(true);
        if self.control.len() > CONTROL_WAITING_MAX {
            self.conn.set_fault(Fault::Untaken);
        }
    }

    /// Returns whether a control record of that kind waits already.
    pub(crate) fn has_queued(&self, control: Control) -> bool {
        self.control.contains(&control)
    }

    /// Starts a transfer; the poll flushes it.
    pub(crate) fn start(&mut self, op: OpId, put: bool, transfer: Transfer, measure: bool) {
        self.requests.start(op, put, transfer, measure);
        self.conn.set_backlog(true);
    }

    /// Writes what waits, at most `budget` bytes of bulk data, and collects the sends that have
    /// ended, to report without the send lock: a `lone` one, as most often, or several. Returns
    /// whether there was anything.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        lone: &mut Option<(OpId, MsgBuf)>,
        ended: &mut VecDeque<Completion>,
        out: &mut Outcome,
        budget: &mut u64,
    ) -> bool {
        let reported = self.has_ended();
        match (self.sent.len(), self.ended.len()) {
            (1, 0) => *lone = self.sent.pop(),
            (0, 0) => {}
            _ => self.take_ended(ended),
        }
        if reported && self.is_idle() {
            self.conn.set_backlog(false);
            return true;
        }
        self.write_waiting(out, budget) || reported
    }

    fn has_ended(&self) -> bool {
        !self.sent.is_empty() || !self.ended.is_empty()
    }

    #[inline(never)]
    fn take_ended(&mut self, out: &mut impl Extend<Completion>) {
        out.extend(self.sent.drain(..).map(sent));
        out.extend(self.ended.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.limit.is_some()
            && self.control.is_empty()
            && self.queue.is_empty()
            && !self.requests.wants_room()
    }

    /// Writes what waits, without a report. Returns whether anything went out.
    #[inline(never)]
    pub(crate) fn write_waiting(&mut self, out: &mut Outcome, budget: &mut u64) -> bool {
        match self.try_write(out, budget) {
            Ok(progress) => {
                if progress {
                    self.conn.wake_peer(RECORDS);
                }
                progress
            }
            Err(violation) => {
                self.conn.set_fault(Fault::Ring(violation));
                true
            }
        }
    }

    fn try_write(&mut self, out: &mut Outcome, budget: &mut u64) -> Result<bool, Violation> {
        if self.limit.is_none() {
            return Ok(false);
        }
        let finished = self.requests.copy_granted(&self.conn, budget, out);
        let mut progress = finished.is_some();
        self.control.extend(finished.flatten());
        while let Some(control) = self.control.front().copied() {
            if !control.write(&mut self.producer)? {
                return Ok(progress);
            }
            self.control.pop_front();
            progress = true;
        }
        while let Some(message) = self.queue.pop_front() {
            match self.write_message(&message) {
                Ok(Some(result)) => out.completions.push(message.end(result)),
                waits => {
                    self.queue.push_front(message);
                    return waits.map(|_| progress);
                }
            }
            progress = true;
        }
        let Self { conn, announced, control, .. } = self;
        progress |= self.requests.issue(&mut self.producer, |memory, write| {
            announce(conn, announced, control, memory, write).unwrap_or(0)
        })?;
        let Self { conn, requests, producer, lane, announced, control, .. } = self;
        let mut source = Source { conn, producer, lane, announced, control };
        progress |= requests.supply(&mut source, budget)?;
        let waits = self.requests.wants_room() || !self.control.is_empty();
        self.conn.set_backlog(waits || self.has_ended());
        Ok(progress)
    }

    /// The owner has ended a part of a transfer; there may be more to ask for now.
    pub(crate) fn done(
        &mut self,
        part: u64,
        status: Status,
        peer: &str,
        out: &mut Outcome,
    ) -> Result<(), &'static str> {
        let cancels = self.requests.done(part, status, peer, out)?;
        cancels.into_iter().for_each(|cancel| self.push_control(cancel));
        if let Some(cost) = self.requests.cost.take() {
            self.offers.costs.measured(cost, Way::Ring);
        }
        if self.requests.wants_room() {
            self.conn.set_backlog(true);
        }
        Ok(())
    }

    /// The owner lets us copy ourselves: all of a part, or its first `share` bytes; without
    /// `memory` we cannot.
    pub(crate) fn granted(
        &mut self,
        part: u64,
        memory: Option<Granted>,
        share: Option<u64>,
    ) -> Result<(), &'static str> {
        match self.requests.granted(part, memory, share)? {
            Some(answer) => self.push_control(answer),
            None => self.conn.set_backlog(true),
        }
        Ok(())
    }

    /// The owner wants the data of a put.
    pub(crate) fn pull(&mut self, part: u64, measure: bool) -> Result<(), &'static str> {
        self.requests.pull(part, measure)?;
        self.conn.set_backlog(true);
        Ok(())
    }

    /// Takes a queued message back.
    pub(crate) fn cancel_send(&mut self, op: OpId) -> Option<Completion> {
        let at = self.queue.iter().position(|message| message.op == op)?;
        self.queue.remove(at).map(|message| message.end(Err(Error::Canceled)))
    }

    /// The connection is gone: ends everything with `error`. Transfers that the peer may still be
    /// writing leave their memory, which is returned.
    pub(crate) fn fail(mut self, error: &Error, out: &mut Outcome) -> Vec<LingeringMemory> {
        self.take_ended(&mut out.completions);
        let sends = self.queue.drain(..).map(|message| message.end(Err(error.clone())));
        out.completions.extend(sends);
        let gate = self.conn.segment.gate_as_keeper();
        gate.shut();
        let may_be_copied =
            self.requests.is_open() && self.conn.segment.peer_copies() && self.conn.is_alive();
        self.requests.fail_all(error, may_be_copied, out)
    }
}

impl ToPeer for TxLink {
    #[inline]
    fn conn(&self) -> &Conn {
        &self.conn
    }

    #[inline]
    fn push_control(&mut self, control: Control) {
        Self::push_control(self, control);
    }

    /// With `measure` the peer is to say how long it takes.
    fn send_data(
        &mut self,
        measure: bool,
        part: u64,
        memory: &LocalMem,
        span: &mut Span,
    ) -> Option<u64> {
        if !self.control.is_empty() || !self.queue.is_empty() {
            return None;
        }
        let Self { conn, producer, lane, announced, control, .. } = self;
        let mut source = Source { conn, producer, lane, announced, control };
        let sent = source.send_chunk((false, measure), part, memory, span);
        self.look_for_forgotten();
        sent.unwrap_or_else(|violation| {
            self.conn.set_fault(Fault::Ring(violation));
            None
        })
    }
}

/// The report of a message that was sent.
#[inline(always)]
pub(crate) fn sent((op, buf): (OpId, MsgBuf)) -> Completion {
    Completion::Send { op, buf, result: Ok(()) }
}

fn announce(
    conn: &Conn,
    announced: &mut Announced,
    control: &mut VecDeque<Control>,
    memory: &LocalMem,
    write: bool,
) -> Option<u64> {
    let block = memory.region().block().filter(|_| conn.shares())?;
    let ended = |block| control.push_back(Control::Forget { block });
    announced.announce(&conn.socket, block, write, ended).then(|| block.id())
}
