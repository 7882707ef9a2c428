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
use std::fmt;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use super::alive::Alive;
use super::block::{Announced, Mapped};
use super::board::Board;
use super::costs::Way;
use super::doorbell::{BOARD, RECORDS, ROOM, settle};
use super::fallback::{Lane, Source, Span};
use super::offer::Offers;
use super::record;
use super::record::{CONTROL_WORDS, PAGE_RECORD, PARTS_MAX, Status};
use super::ring::{LINE, Producer, Violation};
use super::rma::Requests;
use super::segment::{MappedRing, Segment};
use super::socket;
use super::socket::{Credentials, Socket};
use super::turns::{PAGE_BYTES, PAGED_MIN, Turns};
pub(super) use crate::loopback::{Outcome, Queued};
use crate::matching::Kind;
use crate::memory::region::Late;
use crate::{Completion, Error, LocalMem, MsgBuf, OpId, Tag, Transfer};
use prim::prefetch;
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    /// Names it in the epoll set.
    pub(super) token: u64,
    pub(super) socket: Socket,
    pub(super) segment: Arc<Segment>,
    /// The peer's process belongs to our user: it may map memory of `alloc`, and we its.
    shares: AtomicBool,
    pid: AtomicI32,
    /// The peer's process, as long as there is a descriptor for it. Without, we do not attach.
    process: OnceLock<OwnedFd>,
    /// Whether the peer's process was alive when we last asked.
    alive: Alive,
    /// Its place on our board: 1 + slot, zero if it has none.
    slot: AtomicU32,
    /// The poll does not look at it; whoever makes work marks our board.
    left: AtomicBool,
    /// The peer may sleep, or has not said that it never does.
    peer_sleeps: AtomicBool,
    /// The peer's board, and our place there.
    peer_board: OnceLock<(Board, u32)>,
    /// Something waits in the link; the poll is to flush it.
    backlog: AtomicBool,
    /// A sender found the ring broken: 1 + index into [`FAULTS`].
    fault: AtomicU8,
    /// Whose pages are whose.
    pub(super) turns: Turns,
}

const FAULTS: [Fault; 4] = [
    Fault::Ring(Violation::Head),
    Fault::Ring(Violation::Length),
    Fault::Ring(Violation::Padding),
    Fault::Untaken,
];

/// What the peer did wrong that shows where something is sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Ring(Violation),
    /// More than [`CONTROL_WAITING_MAX`] records wait for it.
    Untaken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(violation) => violation.fmt(f),
            Self::Untaken => f.write_str("it makes us answer without taking the answers"),
        }
    }
}

/// Control records that may wait for room. An honest peer has at most [`PARTS_MAX`] requests
/// without an answer, and we as many with it: to each of them belong a share, a verdict, a
/// measurement and a cancel at most. Blocks to forget and offers are as few.
const CONTROL_WAITING_MAX: usize = 16 * PARTS_MAX;

impl Conn {
    pub(super) fn new(token: u64, socket: Socket, segment: Arc<Segment>) -> Self {
        let (backlog, fault) = (AtomicBool::new(false), AtomicU8::new(0));
        let (shares, pid) = (AtomicBool::new(false), AtomicI32::new(0));
        let (slot, left) = (AtomicU32::new(0), AtomicBool::new(false));
        let peer_sleeps = AtomicBool::new(true);
        let (process, peer_board) = (OnceLock::new(), OnceLock::new());
        let turns = segment.turns();
        Self {
            token,
            socket,
            segment,
            shares,
            pid,
            process,
            alive: Alive::new(),
            slot,
            left,
            peer_sleeps,
            peer_board,
            backlog,
            fault,
            turns,
        }
    }

    /// Its place on our board. Set before the poll has it, and never changed.
    pub(super) fn slot(&self) -> Option<u32> {
        self.slot.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn set_slot(&self, slot: u32) {
        self.slot.store(slot + 1, Ordering::Relaxed);
    }

    pub(super) fn clear_slot(&self) {
        self.slot.store(0, Ordering::Relaxed);
    }

    /// The peer has given us place `slot` on its board.
    pub(super) fn set_peer_board(&self, board: Board, slot: u32) {
        // Only at the handshake, of which there is one.
        let _ = self.peer_board.set((board, slot));
    }

    /// Poll: will look at the board instead. Follow with [`settle`](super::doorbell::settle) and a
    /// last look.
    pub(super) fn leave(&self) {
        self.segment.own_bell().leave();
        self.left.store(true, Ordering::Relaxed);
    }

    /// Poll: looks at the ring and the backlog again.
    pub(super) fn watch(&self) {
        self.segment.own_bell().retract();
        self.left.store(false, Ordering::Relaxed);
    }

    /// Whether the poll has to be told of work by a mark; after
    /// [`settle`](super::doorbell::settle).
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Whether memory of `alloc` may be mapped by the other side.
    pub(super) fn shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }

    /// The peer's process, zero if unknown yet or without a number here.
    pub(super) fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The peer's process.
    pub(super) fn process(&self) -> Option<&OwnedFd> {
        self.process.get()
    }

    /// Whether the peer's process has not ended and nobody closed its socket.
    pub(super) fn is_alive(&self) -> bool {
        socket::is_alive(&self.socket, self.process())
    }

    /// As [`is_alive`](Self::is_alive), or was a moment ago, for a copy that begins (`alive.rs`).
    #[inline]
    pub(super) fn was_alive(&self) -> bool {
        self.alive.check(|| self.is_alive())
    }

    /// Who the peer is, once that is known, and its process.
    pub(super) fn set_credentials(&self, credentials: Credentials, process: Option<OwnedFd>) {
        if let Some(process) = process {
            // Only once for each connection.
            let _ = self.process.set(process);
        }
        self.pid.store(credentials.pid, Ordering::Relaxed);
        let own = super::address::own_uid();
        self.shares.store(credentials.uid == own, Ordering::Relaxed);
    }

    /// Whether [`settle`] is due before [`wake_peer_settled`](Self::wake_peer_settled): the peer
    /// has not said that it never sleeps (`doorbell.rs`).
    #[inline]
    pub(super) fn peer_sleeps(&self) -> bool {
        self.peer_sleeps.load(Ordering::Relaxed)
    }

    /// At the handshake.
    pub(super) fn set_peer_never_sleeps(&self) {
        self.peer_sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes the peer if it sleeps and waits for `RECORDS` or `ROOM`.
    #[inline]
    pub(super) fn wake_peer(&self, reason: u32) {
        if self.peer_sleeps() {
            settle();
        }
        self.wake_peer_settled(reason);
    }

    /// As [`wake_peer`](Self::wake_peer), after [`settle`] if the peer sleeps.
    #[inline]
    pub(super) fn wake_peer_settled(&self, reason: u32) {
        if !self.segment.peer_bell().is_silent() {
            self.wake_peer_slowly(reason);
        }
    }

    #[cold]
    fn wake_peer_slowly(&self, reason: u32) {
        let bell = self.segment.peer_bell();
        if bell.is_left()
            && let Some((board, slot)) = self.peer_board.get()
        {
            board.mark(*slot);
        }
        if bell.claim(reason) {
            socket::ring(&self.socket);
        }
    }

    /// Whether the poll has to look at the link. Read without the lock; the flag is a hint that is
    /// set before the poll is woken.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
    }

    fn set_backlog(&self, backlog: bool) {
        self.backlog.store(backlog, Ordering::Relaxed);
    }

    /// What a sender found wrong.
    pub(super) fn fault(&self) -> Option<Fault> {
        let index = self.fault.load(Ordering::Relaxed).checked_sub(1)?;
        FAULTS.get(usize::from(index)).copied()
    }

    fn set_fault(&self, found: Fault) {
        let index = FAULTS.iter().position(|fault| *fault == found).unwrap_or(0);
        self.fault.store(index as u8 + 1, Ordering::Relaxed);
        self.set_backlog(true);
    }
}

/// A short record that the protocol itself needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Done { part: u64, status: Status },
    Pull { part: u64, measure: bool },
    Cancel { part: u64 },
    Grant { part: u64, block: u64, offset: u64 },
    Finished { part: u64, copied: bool, nanos: u64 },
    Share { part: u64, addr: u64, len: u64 },
    Forget { block: u64 },
    Offer { key: u64, block: u64, place: u64 },
    OfferPlain { key: u64, place: u64, addr: u64, len: u64 },
    Taken { part: u64, nanos: u64, last: u64 },
    Ping,
    Pong,
}

impl Control {
    /// We cannot copy ourselves.
    pub(super) fn cannot(part: u64) -> Self {
        Self::Finished { part, copied: false, nanos: 0 }
    }

    /// Writes the record. `false`: there is no room.
    pub(super) fn write(self, producer: &mut Producer<MappedRing>) -> Result<bool, Violation> {
        let (kind, words, count): (u8, [u64; CONTROL_WORDS], usize) = match self {
            Self::Done { part, status } => (record::DONE, [part, status.code(), 0, 0], 2),
            Self::Pull { part, measure } => (record::PULL, [part, measure.into(), 0, 0], 2),
            Self::Cancel { part } => (record::CANCEL, [part, 0, 0, 0], 1),
            Self::Grant { part, block, offset } => (record::GRANT, [part, block, offset, 0], 3),
            Self::Finished { part, copied, nanos } => {
                (record::FINISHED, [part, u64::from(!copied), nanos, 0], 3)
            }
            Self::Share { part, addr, len } => (record::SHARE, [part, addr, len, 0], 3),
            Self::Forget { block } => (record::FORGET, [block, 0, 0, 0], 1),
            Self::Offer { key, block, place } => (record::OFFER, [key, block, place, 0], 3),
            Self::OfferPlain { key, place, addr, len } => {
                (record::OFFER_PLAIN, [key, place, addr, len], 4)
            }
            Self::Taken { part, nanos, last } => (record::TAKEN, [part, nanos, last, 0], 3),
            Self::Ping => (record::PING, [0; 4], 0),
            Self::Pong => (record::PONG, [0; 4], 0),
        };
        let Some(slot) = producer.reserve(8 * count)? else { return Ok(false) };
        for (index, word) in words[..count].iter().enumerate() {
            producer.write(&slot, 8 * index, &word.to_le_bytes());
        }
        producer.publish(slot, kind, 0);
        Ok(true)
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct TxLink {
    pub(super) conn: Arc<Conn>,
    pub(super) requests: Requests,
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
    pub(super) offers: Offers,
    lane: Lane,
    /// Sends that have ended, for the poll to report: one lock less than
    /// another queue.
    ended: Vec<Completion>,
    /// The same for messages that were sent, as most are: two words instead of a completion.
    sent: Vec<(OpId, MsgBuf)>,
}

impl TxLink {
    /// A link that queues until [`open`](Self::open).
    pub(super) fn new(conn: Arc<Conn>) -> Self {
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
    pub(super) fn prefetch(link: *const Self) {
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
    pub(super) fn announce(&mut self, memory: &LocalMem, write: bool) -> Option<u64> {
        let Self { conn, announced, control, .. } = self;
        let block = announce(conn, announced, control, memory, write);
        self.look_for_forgotten();
        block
    }

    /// Who announces a block finds which ones exist no more. No data goes before that is said.
    fn look_for_forgotten(&self) {
        if !self.control.is_empty() {
            self.conn.set_backlog(true);
        }
    }

    /// The peer is there and takes messages of `limit` bytes.
    pub(super) fn open(&mut self, limit: usize) {
        self.limit = Some(limit);
        self.conn.set_backlog(true);
    }

    /// Whether the peer has answered, so that what was said here may be on its way.
    pub(super) fn is_open(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether operations of ours that do not end without the peer are open here.
    pub(super) fn waits_for_peer(&self) -> bool {
        !self.queue.is_empty() || self.requests.has_transfers()
    }

    /// Bytes that went through the ring and pages, in whole lines.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.producer.written() + self.paged
    }

    /// Messages that were taken, also those that wait for room in the ring.
    pub(super) fn sent_messages(&self) -> u64 {
        self.messages
    }

    /// Sends a message, or queues it: then it returns `true`. Either way the poll has to look at
    /// the link.
    #[inline]
    pub(super) fn send(&mut self, op: OpId, kind: Kind, tag: Tag, buf: MsgBuf) -> bool {
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
    pub(super) fn send_now(&mut self, kind: Kind, tag: Tag, bytes: &[u8]) -> bool {
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
    pub(super) fn push_control(&mut self, control: Control) {
        self.control.push_back(control);
        self.conn.set_backlog(true);
        if self.control.len() > CONTROL_WAITING_MAX {
            self.conn.set_fault(Fault::Untaken);
        }
    }

    /// Whether a control record of that kind waits already.
    pub(super) fn has_queued(&self, control: Control) -> bool {
        self.control.contains(&control)
    }

    /// Starts a transfer; the poll flushes it.
    pub(super) fn start(&mut self, op: OpId, put: bool, transfer: Transfer, measure: bool) {
        self.requests.start(op, put, transfer, measure);
        self.conn.set_backlog(true);
    }

    /// Writes what waits, at most `budget` bytes of bulk data, and collects the sends that have
    /// ended, to report without the send lock: a `lone` one, as most often, or several. Returns
    /// whether there was anything.
    #[inline]
    pub(super) fn flush(
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
    pub(super) fn write_waiting(&mut self, out: &mut Outcome, budget: &mut u64) -> bool {
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

    /// Sends data of a get that the peer asked for, see `serve.rs`; with `measure` it is to say how
    /// long it takes.
    pub(super) fn send_data(
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

    /// The owner has ended a part of a transfer; there may be more to ask for now.
    pub(super) fn done(
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

    /// The owner lets us copy ourselves, or we cannot.
    pub(super) fn granted(
        &mut self,
        part: u64,
        memory: Option<Mapped>,
    ) -> Result<(), &'static str> {
        let cannot = self.requests.granted(part, memory)?;
        self.go_on_with(cannot);
        Ok(())
    }

    /// The owner lets us attach to its memory for the first `len` bytes of a part; `None` for
    /// `addr`: we cannot.
    pub(super) fn shared(
        &mut self,
        part: u64,
        addr: Option<u64>,
        len: u64,
    ) -> Result<(), &'static str> {
        let cannot = self.requests.shared(part, addr, len)?;
        self.go_on_with(cannot);
        Ok(())
    }

    fn go_on_with(&mut self, answer: Option<Control>) {
        match answer {
            Some(answer) => self.push_control(answer),
            None => self.conn.set_backlog(true),
        }
    }

    /// The owner wants the data of a put.
    pub(super) fn pull(&mut self, part: u64, measure: bool) -> Result<(), &'static str> {
        self.requests.pull(part, measure)?;
        self.conn.set_backlog(true);
        Ok(())
    }

    /// Takes a queued message back.
    pub(super) fn cancel_send(&mut self, op: OpId) -> Option<Completion> {
        let at = self.queue.iter().position(|message| message.op == op)?;
        self.queue.remove(at).map(|message| message.end(Err(Error::Canceled)))
    }

    /// The connection is gone: ends everything with `error`. Transfers that the peer may still be
    /// writing leave their memory, which is returned.
    pub(super) fn fail(mut self, error: &Error, out: &mut Outcome) -> Vec<Late> {
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

/// The report of a message that was sent.
#[inline(always)]
pub(super) fn sent((op, buf): (OpId, MsgBuf)) -> Completion {
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

/// What the poll announces when it will sleep: it waits for records, for room if something is
/// queued, and goes on reading the board afterwards if it did before.
pub(super) fn sleep_reasons(wants_room: bool, left: bool) -> u32 {
    RECORDS | if wants_room { ROOM } else { 0 } | if left { BOARD } else { 0 }
}
