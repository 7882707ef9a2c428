//! Frames and bulk data that wait to be sent to one peer, in the order of the wire.
//!
//! `queue` holds complete frames; their order is final. `bulks` holds data of which frames are cut
//! only when the queue has less than [`CUT_BELOW_BYTES`] of it, one bulk after the other, so that a
//! message waits for little and several transfers advance together.
//!
//! A flush hands the kernel as many frames as one call takes. Bulk data goes from registered memory
//! straight to the kernel; each chunk holds its memory until its last byte is taken. Messages that
//! were taken without a completion are *packed*: copied one behind the other, header included, so
//! that a batch of them is one frame to us.
//!
//! A short frame that finds nothing queued before it, and a socket that is not full, is not queued
//! at all: it leaves through the *door*, the line to a peer that is up. Callers that may write at
//! once pass the door along.
//!
//! Answers that a full socket does not take are packed as well, and their sends complete at once: a
//! peer that reads slowly, or not at all, costs the bytes of its answers and no message buffers.
//! When the packed answers take a quarter of what may wait, further answers keep their buffers and
//! complete when they have left. That slows down a caller that waits for these completions.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use self::faults::is_fault;
use self::sealed::SealedSend;
use crate::stream::line::Line;
use crate::system::socket::{COPIES_BYTES, Copies, Pieces};
use crate::wire::frame::{HEADER_BYTES, Header, Kind, REQUEST_BYTES};
use na_core::{Completion, Error, LocalMem, MsgBuf, OpId, Tag};

pub(crate) mod faults;
mod sealed;

/// Bytes of data in one frame. With a quarter of it, bare sockets lose a third of their speed.
const CHUNK_BYTES: usize = 1 << 20;

/// Unsent bytes of data in the queue below which the next frame is cut: what the kernel has left of
/// a frame goes with the next one.
const CUT_BELOW_BYTES: usize = 64 << 10;

/// Bytes that one call is asked to take.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Bytes after which a flush ends though the kernel would take more.
const FLUSH_BYTES_MAX: usize = 4 << 20;

/// Payloads up to this length are copied next to their header; longer ones are sent from where they
/// are.
const COPY_BYTES_MAX: usize = 4 << 10;

/// Bytes of messages in one packed frame; those that find it full are for a send with a completion.
const PACKED_BYTES_MAX: usize = 8 << 10;

/// Bytes of the pieces in which answers wait: each twice as long as the one before it, from and up
/// to these.
const PIECE_BYTES_MIN: usize = 512;
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Frames for which a queue keeps room when it is empty.
const QUEUE_KEPT: usize = 256;

/// Bytes that wait before a socket which takes more: they are not charged to the peer.
const FREE_BYTES: usize = 64 << 10;

/// A second send within this time after a write leaves its message to the next poll, and so does
/// any within this time after a poll that reported several completions.
pub(crate) const BATCH_WINDOW: Duration = Duration::from_micros(20);

enum Body {
    /// Requests, verdicts; empty for a cancel.
    Small([u8; REQUEST_BYTES]),
    Message {
        op: OpId,
        buf: MsgBuf,
    },
    /// The payload of a message that nobody waits for, and whole frames behind it.
    Packed(Vec<u8>),
    /// Answers that a full socket did not take, packed like the messages above.
    Answers(Vec<u8>),
    Chunk {
        memory: LocalMem,
        offset: u64,
    },
}

impl Body {
    /// The registered memory that it is sent from.
    fn into_memory(self) -> Option<LocalMem> {
        match self {
            Self::Chunk { memory, .. } => Some(memory),
            Self::Small(_) | Self::Message { .. } | Self::Packed(_) | Self::Answers(_) => None,
        }
    }
}

struct Frame {
    header: [u8; HEADER_BYTES],
    /// Bytes behind the header.
    len: usize,
    body: Body,
}

impl Frame {
    /// Collects the payload but for its first `skip` bytes. `false`: it does not fit.
    fn collect(&self, pieces: &mut Pieces<'_>, skip: usize) -> bool {
        let bytes = match &self.body {
            Body::Small(bytes) => &bytes[..self.len],
            Body::Message { buf, .. } => buf.as_slice(),
            Body::Packed(bytes) | Body::Answers(bytes) => bytes,
            Body::Chunk { memory, offset } => {
                let left = (self.len - skip) as u64;
                let mut run = memory.region().pieces(offset + skip as u64, left);
                // What may be gone is for the kernel to find out.
                pieces.note_gone(memory.region().is_raw());
                let copies = left <= COPY_BYTES_MAX as u64 && !memory.region().is_raw();
                return run.all(|piece| match copies {
                    // SAFETY: a piece of registered memory, which `memory` keeps valid, and which
                    // is not on our stack.
                    true => unsafe { pieces.push_copy_of(piece) },
                    false => pieces.push(piece),
                });
            }
        };
        match &bytes[skip..] {
            short if short.len() <= COPY_BYTES_MAX => pieces.push_copy(short),
            long => pieces.push_slice(long),
        }
    }
}

fn message_header(kind: Kind, tag: Tag, len: usize) -> [u8; HEADER_BYTES] {
    Header { kind, len: len as u32, number: u64::from(tag.0) }.encode()
}

/// Memory that a message in the queue takes if it is an expected one, bytes. Its buffer is as large
/// for a short message as for a long one.
fn answer_bytes(kind: u8, buf: &MsgBuf) -> usize {
    match kind == Kind::Expected as u8 {
        true => buf.capacity() + size_of::<Frame>(),
        false => 0,
    }
}

/// Data of a transfer that is not yet cut into frames.
struct Bulk {
    kind: Kind,
    number: u64,
    memory: LocalMem,
    offset: u64,
    left: u64,
}

/// The data of a transfer, or what is left of it.
#[derive(Clone, Copy)]
pub(crate) struct Data<'a> {
    pub(crate) number: u64,
    pub(crate) memory: &'a LocalMem,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Completions and memory that a flush leaves behind, to be passed on once the lock is released.
#[derive(Default)]
pub(crate) struct Harvest {
    pub(crate) completions: Vec<Completion>,
    /// Memory whose last use is over: dropping it may run its owner's code.
    pub(crate) memories: Vec<LocalMem>,
    /// Puts of ours whose memory cannot be read.
    pub(crate) unreadable: Vec<u64>,
}

impl Harvest {
    /// The memory to drop; that of one transfer without an allocation.
    pub(crate) fn take_memories(&mut self) -> (Option<LocalMem>, Vec<LocalMem>) {
        let one = self.memories.pop();
        let others = match self.memories.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut self.memories),
        };
        (one, others)
    }
}

/// The outcome of an answer that a full socket did not take.
pub(crate) enum Pushed {
    /// It was packed, and its send is over.
    Copied(MsgBuf),
    /// It waits in its buffer.
    Waits,
    /// There is no memory to queue it.
    NoMemory(MsgBuf),
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing is left.
    All,
    /// The socket is full: wait until it is writable.
    Blocked,
    /// There is more; the flush ended so that others get their turn.
    More,
}

/// The frames for one peer. See the module's documentation.
#[derive(Default)]
pub(crate) struct Outgoing {
    queue: VecDeque<Frame>,
    /// Bytes of the first frame that were sent, header included.
    sent: usize,
    bulks: VecDeque<Bulk>,
    /// Bytes of data in the queue.
    data_queued: usize,
    /// Verdicts in the queue.
    verdicts: usize,
    /// Bytes of memory that expected messages in the queue take, with their buffers.
    answers: usize,
    /// Bytes of memory that packed answers take.
    packed: usize,
    /// Bytes that the kernel has taken so far.
    taken: u64,
    /// Messages that were sent or queued so far.
    messages: u64,
    blocked: bool,
    /// Bytes of records that the kernel has not taken; their frames count as sent.
    sealed: usize,
    sealed_sends: Vec<SealedSend>,
    /// Memory for the next packed frame.
    spare: Vec<u8>,
    /// Bytes that had come from the peer before a send last wrote by itself, and when it did.
    wrote_at: Option<(u64, Instant)>,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.bulks.is_empty() && self.sealed == 0
    }

    /// Returns whether nothing is in the way of a frame.
    fn is_free(&self) -> bool {
        self.is_empty() && !self.blocked
    }

    /// Verdicts that the peer cannot know yet.
    pub(crate) fn verdicts(&self) -> usize {
        self.verdicts
    }

    /// Bytes of memory that wait for the peer and that it makes grow: answers, verdicts, and
    /// records of which it takes none.
    pub(crate) fn held(&self) -> usize {
        self.answers + self.packed + self.verdicts * size_of::<Frame>() + self.sealed
    }

    /// Bytes that the peer is to be charged with, of which it was charged with `before`: nothing as
    /// long as the socket takes what there is, and no less than it holds until that is little.
    #[inline]
    pub(crate) fn charge(&self, before: usize) -> usize {
        match self.held() {
            held if self.blocked || (before > 0 && held >= FREE_BYTES) => held,
            _ => 0,
        }
    }

    /// Messages that were sent or queued so far.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// Bytes that the kernel has taken so far; to see whether it is some more.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns whether the socket is full, so that only its event makes a flush worthwhile.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket may have room.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Returns whether something was written a moment ago, and nothing has come from the peer since
    /// then. So many bytes were `received` from it.
    pub(crate) fn has_just_written(&self, received: u64) -> bool {
        self.wrote_at.is_some_and(|(before, at)| before == received && at.elapsed() < BATCH_WINDOW)
    }

    /// A send has written, when so many bytes were `received` from the peer. The clock is read now
    /// that the bytes are under way.
    pub(crate) fn wrote(&mut self, received: u64) {
        self.wrote_at = Some((received, Instant::now()));
    }

    /// Sends a short message past the queue, if that is empty. `false`: it has to be pushed, with
    /// the same arguments, and what was sent of it is known.
    pub(crate) fn send_short(
        &mut self,
        line: &mut Line,
        kind: Kind,
        tag: Tag,
        bytes: &[u8],
    ) -> bool {
        let sent = self.send_alone(line, kind, u64::from(tag.0), bytes);
        // Else it counts when it is pushed.
        self.messages += u64::from(sent);
        sent
    }

    /// Sends requests and verdicts, past the queue if that is empty.
    pub(crate) fn send_small(
        &mut self,
        door: Option<&mut Line>,
        kind: Kind,
        number: u64,
        payload: &[u8],
    ) {
        if !door.is_some_and(|line| self.send_alone(line, kind, number, payload)) {
            self.push_small(kind, number, payload);
        }
    }

    fn send_alone(&mut self, line: &mut Line, kind: Kind, number: u64, bytes: &[u8]) -> bool {
        if bytes.len() > COPY_BYTES_MAX || !self.is_free() {
            return false;
        }
        let mut room: Copies = [MaybeUninit::uninit(); COPIES_BYTES];
        let mut pieces = Pieces::with_room(&mut room);
        let header = Header { kind, len: bytes.len() as u32, number }.encode();
        if !pieces.push_copy(&header) || !pieces.push_copy(bytes) {
            return false;
        }
        let len = pieces.bytes();
        // SAFETY: both pieces are copies in `room`, which lives here.
        let sent = unsafe { line.send(&mut pieces) };
        // A flush will find the error again.
        let sent = sent.unwrap_or(0);
        self.took(line, sent);
        if sent < len {
            self.sent = sent;
        }
        sent == len
    }

    /// Sends the data of a get past the queue, if it is short and that is empty. `false`: it has to
    /// be pushed.
    pub(crate) fn send_short_data(&mut self, door: Option<&mut Line>, data: Data<'_>) -> bool {
        self.send_data(door, None, Kind::GetData, data)
    }

    /// Sends a put, its request first, past the queue, if it is short and that is empty. `false`:
    /// both have to be pushed.
    pub(crate) fn send_short_put(
        &mut self,
        door: Option<&mut Line>,
        request: &[u8; REQUEST_BYTES],
        data: Data<'_>,
    ) -> bool {
        self.send_data(door, Some(request), Kind::PutData, data)
    }

    fn send_data(
        &mut self,
        door: Option<&mut Line>,
        request: Option<&[u8; REQUEST_BYTES]>,
        kind: Kind,
        data: Data<'_>,
    ) -> bool {
        let Data { number, memory, offset, len } = data;
        let is_short = len <= COPY_BYTES_MAX as u64 && !memory.region().is_raw();
        let Some(line) = door.filter(|_| is_short && self.is_free()) else {
            return false;
        };
        let mut room: Copies = [MaybeUninit::uninit(); COPIES_BYTES];
        let mut pieces = Pieces::with_room(&mut room);
        let header = Header { kind, len: len as u32, number }.encode();
        let asked = request.is_none_or(|request| {
            let len = REQUEST_BYTES as u32;
            let header = Header { kind: Kind::Put, len, number }.encode();
            pieces.push_copy(&header) && pieces.push_copy(request)
        });
        let mut run = memory.region().pieces(offset, len);
        let collected = asked && pieces.push_copy(&header);
        // SAFETY: a piece of registered memory, which `memory` keeps valid, and which is not on our
        // stack.
        if !collected || !run.all(|piece| unsafe { pieces.push_copy_of(piece) }) {
            return false;
        }
        let whole = pieces.bytes();
        // SAFETY: all pieces are copies in `room`, which lives here.
        let sent = unsafe { line.send(&mut pieces) };
        // A flush will find the error again.
        let sent = sent.unwrap_or(0);
        self.took(line, sent);
        if sent < whole {
            self.queue_rest(request, header, data, sent);
        }
        true
    }

    /// The line has taken `sent` bytes of frames, and perhaps sent records on its way.
    #[inline]
    fn took(&mut self, line: &Line, sent: usize) {
        self.taken += sent as u64;
        let waiting = line.waiting();
        if waiting != self.sealed {
            // To be seen as well by those who ask whether the kernel takes anything.
            self.taken += self.sealed.saturating_sub(waiting) as u64;
            self.sealed = waiting;
            self.blocked |= waiting > 0;
        }
    }

    /// Queues the frames of which `sent` bytes were sent.
    #[cold]
    fn queue_rest(
        &mut self,
        request: Option<&[u8; REQUEST_BYTES]>,
        header: [u8; HEADER_BYTES],
        data: Data<'_>,
        mut sent: usize,
    ) {
        const ASKED_BYTES: usize = HEADER_BYTES + REQUEST_BYTES;
        if let Some(request) = request {
            match sent.checked_sub(ASKED_BYTES) {
                Some(behind) => sent = behind,
                None => self.push_small(Kind::Put, data.number, request),
            }
        }
        self.sent = sent;
        let Data { memory, offset, len, .. } = data;
        let body = Body::Chunk { memory: memory.clone(), offset };
        self.queue.push_back(Frame { header, len: len as usize, body });
        self.data_queued += len as usize;
    }

    /// Queues a copy of a short message that nobody waits for. `false`, and nothing is queued, when
    /// it is long, or there is no room behind what was packed before.
    pub(crate) fn push_packed(&mut self, kind: Kind, tag: Tag, bytes: &[u8]) -> bool {
        if bytes.len() > COPY_BYTES_MAX {
            return false;
        }
        let header = message_header(kind, tag, bytes.len());
        match self.queue.back_mut() {
            Some(Frame { len, body: Body::Packed(packed), .. })
                if packed.len() + HEADER_BYTES + bytes.len() <= PACKED_BYTES_MAX =>
            {
                packed.extend_from_slice(&header);
                packed.extend_from_slice(bytes);
                *len = packed.len();
            }
            Some(_) => return false,
            None => {
                let mut packed = std::mem::take(&mut self.spare);
                packed.extend_from_slice(bytes);
                let (len, body) = (packed.len(), Body::Packed(packed));
                self.queue.push_back(Frame { header, len, body });
            }
        }
        self.messages += 1;
        true
    }

    /// Queues an answer behind a full socket; packed if it is short, and the packed ones take less
    /// than `packed_max` bytes.
    #[cold]
    pub(crate) fn push_answer(
        &mut self,
        op: OpId,
        tag: Tag,
        buf: MsgBuf,
        packed_max: usize,
    ) -> Pushed {
        if buf.len() <= COPY_BYTES_MAX && self.packed < packed_max && self.pack(tag, buf.as_slice())
        {
            self.messages += 1;
            return Pushed::Copied(buf);
        }
        if self.queue.try_reserve(1).is_err() {
            return Pushed::NoMemory(buf);
        }
        self.push_message(Kind::Expected, op, tag, buf);
        Pushed::Waits
    }

    /// Copies an answer behind the packed ones. `false`: there is no memory.
    fn pack(&mut self, tag: Tag, bytes: &[u8]) -> bool {
        let header = message_header(Kind::Expected, tag, bytes.len());
        let mut room = PIECE_BYTES_MIN;
        if let Some(Frame { len, body: Body::Answers(piece), .. }) = self.queue.back_mut() {
            if piece.capacity() - piece.len() >= HEADER_BYTES + bytes.len() {
                piece.extend_from_slice(&header);
                piece.extend_from_slice(bytes);
                *len = piece.len();
                return true;
            }
            room = (2 * piece.capacity()).min(PIECE_BYTES_MAX);
        }
        let (mut piece, room) = (Vec::new(), room.max(bytes.len()));
        if self.queue.try_reserve(1).is_err() || piece.try_reserve_exact(room).is_err() {
            return false;
        }
        piece.extend_from_slice(bytes);
        self.packed += piece.capacity() + size_of::<Frame>();
        self.queue.push_back(Frame { header, len: piece.len(), body: Body::Answers(piece) });
        true
    }

    pub(crate) fn push_message(&mut self, kind: Kind, op: OpId, tag: Tag, buf: MsgBuf) {
        let (header, len) = (message_header(kind, tag, buf.len()), buf.len());
        self.answers += answer_bytes(header[0], &buf);
        self.queue.push_back(Frame { header, len, body: Body::Message { op, buf } });
        self.messages += 1;
    }

    /// Queues a frame with a short payload.
    pub(crate) fn push_small(&mut self, kind: Kind, number: u64, payload: &[u8]) {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..payload.len()].copy_from_slice(payload);
        let header = Header { kind, len: payload.len() as u32, number }.encode();
        self.verdicts += usize::from(kind == Kind::Done);
        self.queue.push_back(Frame { header, len: payload.len(), body: Body::Small(bytes) });
    }

    /// Queues the data of a transfer, which is not empty.
    pub(crate) fn push_bulk(&mut self, kind: Kind, data: Data<'_>) {
        let Data { number, memory, offset, len } = data;
        self.bulks.push_back(Bulk { kind, number, memory: memory.clone(), offset, left: len });
    }

    /// Forgets the data of a transfer that is not yet cut into frames. `false`: there was none.
    pub(crate) fn remove_bulk(&mut self, kind: Kind, number: u64, harvest: &mut Harvest) -> bool {
        let at = self.bulks.iter().position(|bulk| (bulk.kind, bulk.number) == (kind, number));
        let Some(bulk) = at.and_then(|at| self.bulks.remove(at)) else { return false };
        harvest.memories.push(bulk.memory);
        true
    }

    /// Forgets the data of a put of ours whose memory is its owner's again: afterwards nothing
    /// reads there. What remains of a frame of which some bytes were sent still follows them, from
    /// a copy. `false`: all of the data was sent.
    pub(crate) fn take_back_put(&mut self, number: u64, harvest: &mut Harvest) -> bool {
        let mut unsent = self.remove_bulk(Kind::PutData, number, harvest);
        let header = Header { kind: Kind::PutData, len: 0, number }.encode();
        // Frames of one transfer differ in their length alone.
        let is_its = |frame: &Frame| {
            matches!(frame.body, Body::Chunk { .. })
                && (&frame.header[..4], &frame.header[8..]) == (&header[..4], &header[8..])
        };
        if self.sent > 0
            && let Some(frame) = self.queue.front_mut().filter(|frame| is_its(frame))
            && let Body::Chunk { memory, offset } = &frame.body
        {
            let mut copy = vec![0; frame.len];
            // A chunk lies inside its memory. What counts for the stream is the length.
            let _ = memory.region().read_at_checked(*offset, &mut copy);
            self.data_queued -= frame.len;
            let chunk = std::mem::replace(&mut frame.body, Body::Packed(copy));
            harvest.memories.extend(chunk.into_memory());
            unsent = true;
        }
        for frame in std::mem::take(&mut self.queue) {
            if is_its(&frame) {
                self.data_queued -= frame.len;
                harvest.memories.extend(frame.body.into_memory());
                unsent = true;
            } else {
                self.queue.push_back(frame);
            }
        }
        unsent
    }

    /// Ends the send `op`, if it is queued. A message of which some bytes were sent still follows
    /// them, from a copy: it arrives, and may be answered.
    pub(crate) fn cancel_send(&mut self, wanted: OpId) -> Option<Completion> {
        if let Some(ended) = self.cancel_sealed(wanted) {
            return Some(ended);
        }
        let at = self
            .queue
            .iter()
            .position(|frame| matches!(&frame.body, Body::Message { op, .. } if *op == wanted))?;
        let (header, body, result) = if at == 0 && self.sent > 0 {
            let frame = &mut self.queue[0];
            let Body::Message { buf, .. } = &frame.body else { return None };
            let orphan = Body::Packed(buf.as_slice().into());
            (frame.header, std::mem::replace(&mut frame.body, orphan), Ok(()))
        } else {
            let Frame { header, body, .. } = self.queue.remove(at)?;
            (header, body, Err(Error::Canceled))
        };
        let Body::Message { op, buf } = body else { return None };
        self.answers -= answer_bytes(header[0], &buf);
        Some(Completion::Send { op, buf, result })
    }

    /// Ends the queued messages longer than `max`; for when a peer's limit becomes known, before
    /// anything is sent.
    pub(crate) fn refuse_longer_than(&mut self, max: usize, harvest: &mut Harvest) {
        let queue = std::mem::take(&mut self.queue);
        for frame in queue {
            match frame.body {
                Body::Message { op, buf } if buf.len() > max => {
                    self.answers -= answer_bytes(frame.header[0], &buf);
                    let result = Err(Error::TooLong { len: buf.len(), max });
                    harvest.completions.push(Completion::Send { op, buf, result });
                }
                body => self.queue.push_back(Frame { body, ..frame }),
            }
        }
    }

    /// Ends every queued send with `error` and forgets everything else but what was counted: the
    /// peer may come back.
    pub(crate) fn fail_all(&mut self, error: &Error, harvest: &mut Harvest) {
        self.end_sealed(&Err(error.clone()), harvest);
        for frame in std::mem::take(&mut self.queue) {
            match frame.body {
                Body::Message { op, buf } => {
                    let result = Err(error.clone());
                    harvest.completions.push(Completion::Send { op, buf, result });
                }
                Body::Chunk { memory, .. } => harvest.memories.push(memory),
                Body::Small(_) | Body::Packed(_) | Body::Answers(_) => {}
            }
        }
        harvest.memories.extend(self.bulks.drain(..).map(|bulk| bulk.memory));
        *self = Self { taken: self.taken, messages: self.messages, ..Self::default() };
    }

    /// Hands frames to the kernel. `bulk_cut` is called with the number of each get whose last byte
    /// has been put into a frame.
    pub(crate) fn flush(
        &mut self,
        line: &mut Line,
        harvest: &mut Harvest,
        mut get_is_cut: impl FnMut(),
    ) -> io::Result<Flushed> {
        let mut total = 0;
        // To find out which frame cannot be read.
        let mut alone = false;
        while total < FLUSH_BYTES_MAX {
            self.cut_chunks(&mut get_is_cut);
            if self.queue.is_empty() && self.sealed > 0 {
                let pushed = line.push();
                self.took(line, 0);
                match pushed {
                    Ok(()) => self.end_sealed(&Ok(()), harvest),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.blocked = true;
                        return Ok(Flushed::Blocked);
                    }
                    Err(error) => return Err(error),
                }
            }
            if self.queue.is_empty() {
                if self.queue.capacity() > QUEUE_KEPT {
                    self.queue = VecDeque::new();
                }
                return Ok(Flushed::All);
            }
            let mut room: Copies = [MaybeUninit::uninit(); COPIES_BYTES];
            let mut pieces = Pieces::with_room(&mut room);
            self.collect(&mut pieces, alone);
            // SAFETY: each piece is valid for reads and part of a frame in `queue`, which `self`
            // keeps unchanged until this call returns:
            // - headers and short payloads are copies in `room`, long ones slices of the frame;
            // - a chunk's pieces lie in registered memory, which its `memory` keeps alive.
            match unsafe { line.send(&mut pieces) } {
                Ok(sent) => {
                    // Earlier records have left before.
                    self.end_sealed(&Ok(()), harvest);
                    self.took(line, sent);
                    self.consume(sent, harvest);
                    total += sent;
                    if self.blocked {
                        // Of records that are sealed the kernel has taken what it could.
                        return Ok(Flushed::Blocked);
                    }
                }
                Err(error) if is_fault(&error) && !alone => alone = true,
                Err(error) if is_fault(&error) => {
                    if !self.give_up_front(harvest, &mut get_is_cut) {
                        return Err(error);
                    }
                    alone = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(Flushed::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(if self.is_empty() { Flushed::All } else { Flushed::More })
    }

    /// Bytes of data in the queue of which the kernel has none.
    fn data_unsent(&self) -> usize {
        match self.queue.front() {
            Some(Frame { body: Body::Chunk { .. }, .. }) => {
                self.data_queued - self.sent.saturating_sub(HEADER_BYTES)
            }
            _ => self.data_queued,
        }
    }

    fn cut_chunks(&mut self, get_is_cut: &mut impl FnMut()) {
        while self.data_unsent() < CUT_BELOW_BYTES {
            let Some(mut bulk) = self.bulks.pop_front() else { return };
            let len = bulk.left.min(CHUNK_BYTES as u64);
            let header = Header { kind: bulk.kind, len: len as u32, number: bulk.number }.encode();
            let offset = bulk.offset;
            bulk.offset += len;
            bulk.left -= len;
            let memory = if bulk.left > 0 {
                let memory = bulk.memory.clone();
                self.bulks.push_back(bulk);
                memory
            } else {
                if bulk.kind == Kind::GetData {
                    get_is_cut();
                }
                bulk.memory
            };
            let body = Body::Chunk { memory, offset };
            self.queue.push_back(Frame { header, len: len as usize, body });
            self.data_queued += len as usize;
        }
    }

    /// Collects what is unsent, as much as one call should take, or of the first frame `alone`.
    fn collect(&self, pieces: &mut Pieces<'_>, alone: bool) {
        let mut skip = self.sent;
        let frames = if alone { 1 } else { usize::MAX };
        for frame in self.queue.iter().take(frames) {
            let skip_header = skip.min(HEADER_BYTES);
            let skip_payload = skip - skip_header;
            skip = 0;
            if pieces.bytes() >= CALL_BYTES_MAX
                || !pieces.push_copy(&frame.header[skip_header..])
                || !frame.collect(pieces, skip_payload)
            {
                return;
            }
        }
    }

    fn consume(&mut self, bytes: usize, harvest: &mut Harvest) {
        self.sent += bytes;
        while let Some(frame) = self.queue.front()
            && self.sent >= HEADER_BYTES + frame.len
        {
            self.sent -= HEADER_BYTES + frame.len;
            let Some(frame) = self.queue.pop_front() else { return };
            self.verdicts -= usize::from(frame.header[0] == Kind::Done as u8);
            match frame.body {
                Body::Message { op, buf } => {
                    let bytes = answer_bytes(frame.header[0], &buf);
                    self.hold_queued(op, buf, bytes);
                }
                Body::Chunk { memory, .. } => {
                    self.data_queued -= frame.len;
                    harvest.memories.push(memory);
                }
                // Not the copy of what was taken back, which may be long.
                Body::Packed(mut bytes) if bytes.capacity() <= 2 * PACKED_BYTES_MAX => {
                    bytes.clear();
                    self.spare = bytes;
                }
                Body::Answers(piece) => self.packed -= piece.capacity() + size_of::<Frame>(),
                Body::Packed(_) | Body::Small(_) => {}
            }
        }
        if self.sealed == 0 {
            self.end_sealed(&Ok(()), harvest);
        }
    }
}

#[cfg(test)]
mod tests;
