//! The receiving side of one connection: bytes become frames.
//!
//! Small frames are read into a buffer and handled where they lie. Long data goes straight to its
//! destination:
//!
//! - **data of transfers**: when one transfer is known to go on, a read puts a header into the
//!   buffer and the bytes after it into that transfer's memory (an [`ExpectedData`]). When another
//!   frame comes instead, its bytes are moved from that memory to the buffer, and the memory, whose
//!   contents mean nothing before the transfer has ended, is zeroed. In the meantime anyone else
//!   who may use that memory can see and change frames of this peer (`mod.rs`, Copies). Before the
//!   first data of a get, the buffer takes 256 bytes first, so that a denied get usually leaves its
//!   memory alone. When several transfers are expected, the buffer takes some 4 KiB, and the rest
//!   of each frame is read into its memory;
//! - **long messages**: once the header of one is there, the rest is read into the posted receive
//!   that it is for.
//!
//! The buffer is borrowed from the poller while there is something in it: an idle connection has
//! none. The first few bytes of a frame whose rest is awaited are kept in as much memory as they
//! need. So many peers that begin frames and do not end them take no more memory than they have
//! sent bytes.
//!
//! Where the connection is one of records (TLS), these are read behind what the buffer holds, and
//! opened in place; all their data goes through the buffer. So the buffer has two parts: bytes of
//! frames, and the beginning of a record behind them.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use crate::system::socket::{self, Pieces};
use crate::wire::frame::{HEADER_BYTES, Header, Kind};
use na_core::matching::Claimed;
use na_core::memory::handles::zeros;
use na_core::memory::region::Filled;
use na_core::{LocalMem, OpId, RawSegment};
use na_tls::{Opened, Opener, RECORD_BYTES_MAX, Unreadable, record_bytes};

/// Bytes of the buffer, unless messages are larger.
const BUFFER_BYTES: usize = 128 << 10;

/// Bytes to read at a time into an empty buffer: some fifty small messages, and little of what
/// belongs elsewhere. A transfer of 4 KiB comes with one call, and copying it costs less than
/// another.
const SPARING_BYTES: usize = (4 << 10) + 256;

/// Bytes of the buffer that come before the memory of a get that may be denied: some answers.
const CAREFUL_BYTES: usize = 256;

/// Missing bytes of a message from which on they are read into the posted receive.
const DIRECT_BYTES_MIN: usize = 4 << 10;

/// Reads after which a connection that is being closed is not drained further.
const DRAIN_READS: usize = 64;

/// The part of a buffer, one in so many, up to which bytes are moved to memory of their own size,
/// so that the buffer can be given back.
const FEW: usize = 8;

/// Buffers of connections that need none at the moment.
pub(crate) struct Buffers {
    bytes: usize,
    spare: Vec<Box<[u8]>>,
}

impl Buffers {
    /// Spare buffers that are kept.
    const SPARE_MAX: usize = 8;

    pub(crate) fn new(message_bytes_max: usize) -> Self {
        let bytes = BUFFER_BYTES.max(2 * (HEADER_BYTES + message_bytes_max));
        Self { bytes, spare: Vec::new() }
    }

    /// A buffer; `None` if there is no memory.
    fn take(&mut self) -> Option<Box<[u8]>> {
        self.spare.pop().or_else(|| zeros(self.bytes).map(Vec::into_boxed_slice))
    }

    fn give_back(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < Self::SPARE_MAX && buffer.len() == self.bytes {
            self.spare.push(buffer);
        }
    }
}

/// The destination of a long payload.
pub(crate) enum Destination {
    /// It is skipped.
    Nowhere,
    /// To memory, from this offset.
    Memory(LocalMem, u64),
    /// To a posted receive, of which so many bytes are there.
    Receive(Claimed, usize),
}

struct Long {
    header: Header,
    left: usize,
    to: Destination,
}

/// The data that probably comes next.
#[derive(Debug)]
pub(crate) struct ExpectedData {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) memory: LocalMem,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The first bytes go to the buffer: it may well be something else.
    pub(crate) careful: bool,
}

impl ExpectedData {
    /// Bytes of the data that go to the buffer with the header.
    fn skip(&self) -> usize {
        if self.careful { CAREFUL_BYTES - HEADER_BYTES } else { 0 }
    }

    /// Returns whether one with this `len` and `careful` helps: else the buffer takes as much.
    pub(crate) fn is_worth_it(len: u64, careful: bool) -> bool {
        !careful || len > (SPARING_BYTES - HEADER_BYTES) as u64
    }

    /// Bytes that the buffer takes before the memory.
    fn front(&self) -> usize {
        HEADER_BYTES + self.skip()
    }
}

/// How to read.
#[derive(Debug)]
pub(crate) enum ReadPlan {
    /// Whatever there is.
    Any,
    /// This data.
    ExpectedData(ExpectedData),
}

/// The next thing in the buffer.
pub(crate) enum Parsed {
    /// Not enough: read more.
    NeedMore,
    /// A whole frame, whose payload is [`FrameReader::payload`]. Go on with
    /// [`FrameReader::consume`].
    Frame(Header),
    /// The header of a frame with data, or the beginning of a long message. Go on with
    /// [`FrameReader::begin`]; or for a message for which no receive is posted, read more.
    Long(Header),
    /// Memory that data goes to cannot be written: go on with [`FrameReader::give_up_memory`].
    Gone,
    /// The end of a frame that was begun, and where it went.
    End(Header, Destination),
}

/// See the module's documentation.
pub(crate) struct FrameReader {
    /// Empty while there is nothing in it.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    long: Option<Long>,
    opener: Option<Opener>,
    /// Why no more can be opened; told when what was opened before has been handled.
    unreadable: Option<Unreadable>,
    /// Where bytes of records lie that are not opened, at `end` or behind it.
    sealed: Range<usize>,
    /// Bytes of the data whose header is in front: those that follow it in the buffer, and those
    /// after them that are in their memory already.
    landed: (usize, usize),
    message_bytes_max: usize,
}

impl FrameReader {
    pub(crate) fn new(message_bytes_max: usize) -> Self {
        let buffer = Box::default();
        Self {
            buffer,
            start: 0,
            end: 0,
            long: None,
            opener: None,
            unreadable: None,
            sealed: 0..0,
            landed: (0, 0),
            message_bytes_max,
        }
    }

    /// Reads records from now on, of which the first bytes are `begun`. Nothing has been read
    /// before.
    pub(crate) fn open_by(&mut self, opener: Opener, begun: Vec<u8>) {
        self.opener = Some(opener);
        self.sealed = 0..begun.len();
        self.buffer = begun.into_boxed_slice();
    }

    /// Everything in the buffer.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns whether there may be something to handle.
    pub(crate) fn has_something(&self) -> bool {
        self.start < self.end || self.long.is_some()
    }

    /// Returns whether something long has begun and not ended.
    pub(crate) fn is_amid(&self) -> bool {
        self.long.is_some()
    }

    /// The header of the frame at the front, if it is there.
    pub(crate) fn front(&self) -> Option<Header> {
        Header::decode(self.buffered().first_chunk()?, self.message_bytes_max).ok()
    }

    /// Skips bytes at the front of the buffer.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// The payload of the frame at the front.
    pub(crate) fn payload(&self, header: Header) -> &[u8] {
        &self.buffered()[HEADER_BYTES..HEADER_BYTES + header.len as usize]
    }

    /// The data at the front, if all of its frame is in the buffer.
    pub(crate) fn whole_data(&self, header: Header) -> Option<&[u8]> {
        let whole =
            self.landed == (0, 0) && self.buffered().len() >= HEADER_BYTES + header.len as usize;
        whole.then(|| self.payload(header))
    }

    /// The frame at the front has been handled.
    pub(crate) fn consume(&mut self, header: Header) {
        self.skip(HEADER_BYTES + header.len as usize);
    }

    /// Gives the buffer back if there is nothing in it, or little.
    pub(crate) fn rest(&mut self, buffers: &mut Buffers) {
        let len = self.end - self.start + self.sealed.len();
        if self.buffer.len() < buffers.bytes || len > buffers.bytes / FEW {
            return;
        }
        let Some(few) = zeros(len) else { return };
        buffers.give_back(self.move_to(few.into_boxed_slice()));
    }

    /// Moves everything to the front of another buffer, which has room for it. Returns the old one.
    fn move_to(&mut self, mut buffer: Box<[u8]>) -> Box<[u8]> {
        let (len, sealed) = (self.end - self.start, self.sealed.len());
        buffer[..len].copy_from_slice(self.buffered());
        buffer[len..len + sealed].copy_from_slice(&self.buffer[self.sealed.clone()]);
        (self.start, self.end, self.sealed) = (0, len, len..len + sealed);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Moves everything to the front of the buffer.
    fn move_up(&mut self) {
        let (len, sealed) = (self.end - self.start, self.sealed.len());
        self.buffer.copy_within(self.start..self.end, 0);
        self.buffer.copy_within(self.sealed.clone(), len);
        (self.start, self.end, self.sealed) = (0, len, len..len + sealed);
    }

    /// Returns the next thing that the buffer holds.
    pub(crate) fn next(&mut self) -> Result<Parsed, String> {
        if self.long.is_some() {
            return self.go_on();
        }
        let Some(header) = self.buffered().first_chunk() else { return Ok(Parsed::NeedMore) };
        let header = Header::decode(header, self.message_bytes_max)?;
        if matches!(header.kind, Kind::GetData | Kind::PutData) {
            return Ok(Parsed::Long(header));
        }
        let missing = (HEADER_BYTES + header.len as usize).saturating_sub(self.buffered().len());
        Ok(match missing {
            0 => Parsed::Frame(header),
            DIRECT_BYTES_MIN.. => Parsed::Long(header),
            _ => Parsed::NeedMore,
        })
    }

    /// Moves the buffered bytes of a frame that was begun to their destination.
    fn go_on(&mut self) -> Result<Parsed, String> {
        let Some(mut long) = self.long.take() else { return Ok(Parsed::NeedMore) };
        let take = long.left.min(self.end - self.start);
        let bytes = &self.buffer[self.start..self.start + take];
        match &mut long.to {
            Destination::Nowhere => {}
            Destination::Memory(memory, offset) => match memory.region().fill_at(*offset, bytes) {
                Filled::All => *offset += take as u64,
                Filled::Outside => return Err("data beyond its memory".into()),
                Filled::Gone => {
                    self.long = Some(long);
                    return Ok(Parsed::Gone);
                }
            },
            Destination::Receive(claimed, filled) => {
                claimed.room()[*filled..*filled + take].copy_from_slice(bytes);
                *filled += take;
            }
        }
        long.left -= take;
        self.start += take;
        if long.left > 0 {
            self.long = Some(long);
            return Ok(Parsed::NeedMore);
        }
        Ok(Parsed::End(long.header, long.to))
    }

    /// The payload of the frame at the front goes to `to`. `false`: that cannot be written, as for
    /// [`Parsed::Gone`].
    #[must_use]
    pub(crate) fn begin(&mut self, header: Header, mut to: Destination) -> bool {
        self.skip(HEADER_BYTES);
        let (skip, landed) = std::mem::take(&mut self.landed);
        let mut is_there = true;
        if let Destination::Memory(memory, offset) = &mut to {
            // In range: what comes behind it has been read there.
            let bytes = &self.buffer[self.start..self.start + skip];
            is_there = memory.region().fill_at(*offset, bytes) != Filled::Gone;
            *offset += (skip + landed) as u64;
        }
        self.skip(skip);
        self.long = Some(Long { header, left: header.len as usize - skip - landed, to });
        is_there
    }

    /// Nothing more is written for transfer `number` of ours. Returns the memory that was held.
    pub(crate) fn discard(&mut self, number: u64) -> Option<LocalMem> {
        let long = self.long.as_mut()?;
        if (long.header.kind, long.header.number) != (Kind::GetData, number) {
            return None;
        }
        match std::mem::replace(&mut long.to, Destination::Nowhere) {
            Destination::Memory(memory, _) => Some(memory),
            Destination::Nowhere | Destination::Receive(..) => None,
        }
    }

    /// The system cannot write where data of a transfer goes: the rest of it is skipped. Returns
    /// which data it is, and the memory that was held.
    #[cold]
    pub(crate) fn give_up_memory(&mut self) -> Option<(Header, LocalMem)> {
        let long = self.long.as_mut()?;
        match std::mem::replace(&mut long.to, Destination::Nowhere) {
            Destination::Memory(memory, _) => Some((long.header, memory)),
            other => {
                long.to = other;
                None
            }
        }
    }

    /// Takes back the receive `op`, if a message is arriving in it; the rest of it is skipped.
    pub(crate) fn unclaim(&mut self, op: OpId) -> Option<Claimed> {
        let long = self.long.as_mut()?;
        match std::mem::replace(&mut long.to, Destination::Nowhere) {
            Destination::Receive(claimed, _) if claimed.op() == op => Some(claimed),
            other => {
                long.to = other;
                None
            }
        }
    }

    /// Returns whether a message is arriving in a posted receive.
    pub(crate) fn is_claiming(&self) -> bool {
        matches!(&self.long, Some(Long { to: Destination::Receive(..), .. }))
    }

    /// The connection is over: returns what was held for a frame that has not come to its end.
    pub(crate) fn abandon(&mut self) -> Destination {
        self.long.take().map_or(Destination::Nowhere, |long| long.to)
    }

    /// Reads and forgets what has arrived, up to a bound; after [`abandon`](Self::abandon).
    pub(crate) fn drain(&mut self, from: impl AsFd, buffers: &mut Buffers) {
        for _ in 0..DRAIN_READS {
            (self.start, self.end, self.sealed) = (0, 0, 0..0);
            match self.fill(&from, buffers, ReadPlan::Any) {
                Ok((0, _)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        (self.start, self.end, self.sealed) = (0, 0, 0..0);
        self.rest(buffers);
    }

    /// Reads once. Returns how many bytes came (zero: end of the stream) and whether there was room
    /// for more.
    pub(crate) fn fill(
        &mut self,
        from: impl AsFd,
        buffers: &mut Buffers,
        appetite: ReadPlan,
    ) -> io::Result<(usize, bool)> {
        self.make_room(buffers)?;
        if self.opener.is_some() {
            return self.fill_opened(from);
        }
        let most = match self.start < self.end {
            // There is the beginning of a frame for which nothing waits.
            true => usize::MAX,
            false => SPARING_BYTES,
        };
        let mut pieces = Pieces::new();
        let complete = self.collect_long(&mut pieces);
        let direct = pieces.bytes();
        let guess = match appetite {
            ReadPlan::ExpectedData(guess)
                if complete
                    && self.start == self.end
                    && ExpectedData::is_worth_it(guess.len, guess.careful) =>
            {
                Some(guess)
            }
            _ => None,
        };
        let guessed = guess.as_ref().map_or(0, |guess| self.collect_guess(&mut pieces, guess));
        if complete && !pieces.is_full() {
            let at = self.end + guess.as_ref().map_or(0, ExpectedData::front);
            let room = &mut self.buffer[at..];
            let len = room.len().min(most);
            let _ = pieces.push(RawSegment { ptr: room.as_mut_ptr(), len });
        }
        debug_assert!(!pieces.is_empty() && pieces.bytes() > 0, "nothing to read into");
        let asked = pieces.bytes();
        // SAFETY: valid for writes and not referenced by anyone:
        // - registered memory, kept valid by `self.long` and `guess`, of which no references exist;
        // - a claimed receive, which `self.long` owns and does not touch meanwhile;
        // - free space of `self.buffer`, which `self` owns and does not touch meanwhile; the header
        //   of a guess and what follows its data are different parts of it.
        let got = unsafe { socket::receive(from, &mut pieces) }?;
        let rest = got - self.took_long(got.min(direct));
        match guess {
            Some(guess) => self.took_guess(&guess, guessed, rest)?,
            None => self.end += rest,
        }
        Ok((got, got < asked))
    }

    fn make_room(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        if self.buffer.len() < buffers.bytes {
            let buffer = buffers.take().ok_or(io::ErrorKind::OutOfMemory)?;
            self.move_to(buffer);
        }
        // What is left is less than a frame: frames are handled as long as they are whole, or
        // reading pauses.
        if self.start == self.end && self.sealed.is_empty() {
            (self.start, self.end, self.sealed) = (0, 0, 0..0);
        } else if self.start > self.buffer.len() / 2
            || (self.opener.is_some() && self.buffer.len() - self.sealed.end < RECORD_BYTES_MAX)
        {
            self.move_up();
        }
        Ok(())
    }

    /// As [`fill`](Self::fill), from records.
    fn fill_opened(&mut self, from: impl AsFd) -> io::Result<(usize, bool)> {
        let (before, mut short) = (self.end, false);
        if let Some(reason) = self.unreadable.take() {
            return Err(reason.into());
        }
        loop {
            let is_over = match self.open() {
                Err(reason) if self.end > before => {
                    self.unreadable = Some(reason);
                    return Ok((self.end - before, false));
                }
                opened => opened?,
            };
            if self.end > before || is_over {
                return Ok((self.end - before, short));
            }
            let room = &mut self.buffer[self.sealed.end..];
            let asked = room.len();
            let got = match rustix::net::recv(&from, room, rustix::net::RecvFlags::DONTWAIT) {
                Ok((got, _)) => got,
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if got == 0 {
                return Ok((0, true));
            }
            self.sealed.end += got;
            short = got < asked;
        }
    }

    /// Opens the records that are whole. `true`: the peer sends nothing more.
    fn open(&mut self) -> Result<bool, Unreadable> {
        let Some(opener) = &mut self.opener else { return Ok(false) };
        while let Some(len) = record_bytes(&self.buffer[self.sealed.clone()])?
            && len <= self.sealed.len()
        {
            let (at, room) = (self.sealed.start, self.end..self.sealed.start + len);
            self.sealed.start += len;
            match opener.open(&mut self.buffer[room], at - self.end)? {
                Opened::Data(len) => self.end += len,
                Opened::End => return Ok(true),
            }
        }
        if self.sealed.is_empty() {
            self.sealed = self.end..self.end;
        }
        Ok(false)
    }

    /// Collects where the rest of a frame that was begun goes. `false`: it has more pieces.
    fn collect_long(&mut self, pieces: &mut Pieces<'_>) -> bool {
        let Some(Long { left, to, .. }) = &mut self.long else { return true };
        match to {
            Destination::Nowhere => true,
            Destination::Memory(memory, offset) => {
                memory.region().pieces(*offset, *left as u64).all(|piece| pieces.push(piece))
            }
            Destination::Receive(claimed, filled) => {
                let room = &mut claimed.room()[*filled..*filled + *left];
                pieces.push(RawSegment { ptr: room.as_mut_ptr(), len: room.len() })
            }
        }
    }

    fn took_long(&mut self, bytes: usize) -> usize {
        if let Some(Long { left, to, .. }) = &mut self.long {
            *left -= bytes;
            match to {
                Destination::Nowhere => {}
                Destination::Memory(_, offset) => *offset += bytes as u64,
                Destination::Receive(_, filled) => *filled += bytes,
            }
        }
        bytes
    }

    /// Collects a header and the memory of the data that is expected behind it. Returns how many
    /// bytes of memory: so few that the buffer has room for them if the guess is wrong.
    fn collect_guess(&mut self, pieces: &mut Pieces<'_>, guess: &ExpectedData) -> usize {
        let (front, skip) = (guess.front(), guess.skip() as u64);
        let header = &mut self.buffer[self.end..self.end + front];
        let before = pieces.bytes() + front;
        if !pieces.push(RawSegment { ptr: header.as_mut_ptr(), len: front }) {
            return 0;
        }
        let most = self.buffer.len() - self.end - front - SPARING_BYTES;
        let len = (guess.len - skip).min(most as u64);
        let mut run = guess.memory.region().pieces(guess.offset + skip, len);
        let _ = run.all(|piece| pieces.push(piece));
        pieces.bytes() - before
    }

    /// `bytes` have come of a header, of data into `guessed` bytes of memory, and into the buffer.
    fn took_guess(&mut self, guess: &ExpectedData, guessed: usize, bytes: usize) -> io::Result<()> {
        let front = bytes.min(guess.front());
        let landed = (bytes - front).min(guessed);
        let behind = bytes - front - landed;
        self.end += front;
        if landed == 0 {
            self.end += behind;
            return Ok(());
        }
        let is_right = self.buffered().first_chunk().is_some_and(|bytes| {
            Header::decode(bytes, self.message_bytes_max).is_ok_and(|header| {
                (header.kind, header.number) == (guess.kind, guess.number)
                    && header.len as usize >= guess.skip() + landed
            })
        });
        if is_right {
            self.landed = (guess.skip(), landed);
            self.end += behind;
            return Ok(());
        }
        self.buffer.copy_within(self.end..self.end + behind, self.end + landed);
        let moved = &mut self.buffer[self.end..self.end + landed];
        let mut offset = guess.offset + guess.skip() as u64;
        // In range: it is where the bytes have been read to.
        let memory = guess.memory.region();
        if !memory.read_at_checked(offset, moved) {
            return Err(io::Error::other("pages are gone to which its bytes were read"));
        }
        for piece in moved.chunks(ZEROES.len()) {
            let _ = memory.fill_at(offset, &ZEROES[..piece.len()]);
            offset += piece.len() as u64;
        }
        self.end += landed + behind;
        Ok(())
    }
}

const ZEROES: [u8; 512] = [0; 512];

#[cfg(test)]
mod tests {
    use super::*;
    use na_core::{Access, Memory, RegionTable};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn frame(kind: Kind, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Header { kind, len: payload.len() as u32, number }.encode().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn the_beginning_of_a_frame_is_kept_in_what_it_needs() {
        let bytes = frame(Kind::Expected, 7, &[5; 3000]);
        let mut buffers = Buffers::new(4096);
        let mut peers: Vec<_> = (1..100).map(|_| UnixStream::pair().unwrap()).collect();
        let mut incoming: Vec<_> = peers.iter().map(|_| FrameReader::new(4096)).collect();
        for begun in [1, HEADER_BYTES, 2000] {
            for ((theirs, ours), incoming) in peers.iter_mut().zip(&mut incoming) {
                let there = incoming.buffered().len();
                theirs.write_all(&bytes[there..begun]).unwrap();
                incoming.fill(&*ours, &mut buffers, ReadPlan::Any).unwrap();
                assert!(matches!(incoming.next().unwrap(), Parsed::NeedMore));
                incoming.rest(&mut buffers);
                assert_eq!((incoming.buffer.len(), incoming.buffered().len()), (begun, begun));
            }
            assert_eq!(buffers.spare.len(), 1, "one was enough for all of them");
        }
        for ((theirs, ours), incoming) in peers.iter_mut().zip(&mut incoming) {
            theirs.write_all(&bytes[2000..]).unwrap();
            incoming.fill(&*ours, &mut buffers, ReadPlan::Any).unwrap();
            let Parsed::Frame(header) = incoming.next().unwrap() else { panic!("it is whole") };
            assert_eq!((header.number, incoming.payload(header)), (7, &[5; 3000][..]));
            incoming.consume(header);
            incoming.rest(&mut buffers);
            assert!(incoming.buffer.is_empty());
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let mut stream_bytes = Vec::new();
        for number in 0..50u64 {
            let len = (number as usize * 97) % 4000;
            stream_bytes.extend(frame(Kind::Expected, number, &vec![number as u8; len]));
        }
        for step in [1, 7, 1000, 100_000] {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut incoming = FrameReader::new(4096);
            let mut buffers = Buffers::new(4096);
            let mut seen = 0;
            for piece in stream_bytes.chunks(step) {
                theirs.write_all(piece).unwrap();
                while incoming.fill(&ours, &mut buffers, ReadPlan::Any).is_ok() {
                    while let Parsed::Frame(header) = incoming.next().unwrap() {
                        assert_eq!(header.number, seen);
                        assert!(incoming.payload(header).iter().all(|b| *b == seen as u8));
                        incoming.consume(header);
                        seen += 1;
                    }
                }
            }
            assert_eq!(seen, 50, "in steps of {step}");
        }
    }

    /// Reads until the message `behind` comes; the data of get 3 goes to `memory`.
    fn receive(
        ours: &UnixStream,
        memory: &LocalMem,
        offset: u64,
        len: u64,
        appetite: impl Fn(u64) -> ReadPlan,
    ) -> Vec<u64> {
        let (mut incoming, mut buffers) = (FrameReader::new(4096), Buffers::new(4096));
        let (mut begun, mut messages) = (0, Vec::new());
        loop {
            match incoming.next().unwrap() {
                Parsed::NeedMore => match incoming.fill(ours, &mut buffers, appetite(begun)) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                },
                Parsed::Long(header) => {
                    assert_eq!((header.kind, header.number), (Kind::GetData, 3));
                    let to = Destination::Memory(memory.clone(), offset + begun);
                    assert!(incoming.begin(header, to));
                    begun += u64::from(header.len);
                }
                Parsed::Gone => panic!("its pages are there"),
                Parsed::End(header, to) => {
                    assert_eq!((header.kind, header.number), (Kind::GetData, 3));
                    assert!(matches!(to, Destination::Memory(..)));
                }
                Parsed::Frame(header) if incoming.payload(header) == b"behind" => {
                    assert_eq!(begun, len);
                    return messages;
                }
                Parsed::Frame(header) => {
                    messages.push(header.number);
                    incoming.consume(header);
                }
            }
        }
    }

    fn data() -> Vec<u8> {
        (0..290_000u32).map(|at| (at % 251) as u8).collect()
    }

    /// Frames of data, with messages of `between` bytes after each, and one behind them all.
    fn stream_bytes(data: &[u8], chunk: usize, between: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, chunk) in data.chunks(chunk).enumerate() {
            bytes.extend(frame(Kind::GetData, 3, chunk));
            if between > 0 {
                bytes.extend(frame(Kind::Expected, number as u64, &vec![7; between]));
            }
        }
        bytes.extend(frame(Kind::Expected, 9, b"behind"));
        bytes
    }

    #[test]
    fn data_goes_to_its_memory_whether_it_was_guessed_or_not() {
        let data = data();
        // (bytes of a frame with data, bytes of the message behind each, no guess)
        for (chunk, between, blind) in [
            (290_000, 0, true),
            (290_000, 0, false),
            (4096, 0, false),
            (1000, 0, false),
            (4096, 50, false),
            (1000, 4000, false),
            (100_000, 4000, true),
            (100_000, 4000, false),
            (100_000, 0, false),
        ] {
            let table = RegionTable::new();
            let memory = Memory::from_vecs(vec![vec![0; 10_000]; 30]);
            let memory = table.register(memory, Access::WriteOnly).unwrap();
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let bytes = stream_bytes(&data, chunk, between);
            let writer = std::thread::spawn(move || {
                theirs.write_all(&bytes).unwrap();
                theirs
            });
            let len = data.len() as u64;
            let appetite = |begun| {
                let (kind, number, memory) = (Kind::GetData, 3, memory.clone());
                match blind || begun == len {
                    true => ReadPlan::Any,
                    false => {
                        let (offset, len) = (5 + begun, len - begun);
                        let careful = begun == 0 || chunk == 100_000;
                        ReadPlan::ExpectedData(ExpectedData {
                            kind,
                            number,
                            memory,
                            offset,
                            len,
                            careful,
                        })
                    }
                }
            };
            let messages = receive(&ours, &memory, 5, len, appetite);
            let expected = if between > 0 { data.len().div_ceil(chunk) as u64 } else { 0 };
            assert_eq!(messages, (0..expected).collect::<Vec<_>>());
            writer.join().unwrap();
            let mut got = vec![0; data.len()];
            assert!(memory.read_at(5, &mut got));
            assert!(got == data, "frames of {chunk}, messages of {between}");
        }
    }

    #[test]
    fn a_wrong_guess_leaves_nothing_in_the_memory() {
        let table = RegionTable::new();
        let memory = table.register(Memory::from_vec(vec![1; 9000]), Access::ReadWrite).unwrap();
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(&frame(Kind::Expected, 9, &[5; 3000])).unwrap();
        theirs.write_all(&frame(Kind::Expected, 8, b"next")).unwrap();
        let (mut incoming, mut buffers) = (FrameReader::new(4096), Buffers::new(4096));
        let (kind, number, offset, len, careful) = (Kind::GetData, 3, 1000, 8000, false);
        let guess = ExpectedData { kind, number, memory: memory.clone(), offset, len, careful };
        incoming.fill(&ours, &mut buffers, ReadPlan::ExpectedData(guess)).unwrap();
        let Parsed::Frame(header) = incoming.next().unwrap() else { panic!("no frame") };
        assert_eq!(incoming.payload(header), [5; 3000]);
        incoming.consume(header);
        let Parsed::Frame(header) = incoming.next().unwrap() else { panic!("no second frame") };
        assert_eq!(incoming.payload(header), b"next");
        incoming.consume(header);
        incoming.rest(&mut buffers);
        assert!(incoming.buffer.is_empty(), "the buffer is the poller's again");
        let mut got = vec![0; 9000];
        assert!(memory.read_at(0, &mut got));
        assert!(got[..1000].iter().all(|byte| *byte == 1));
        assert!(got[1000..].iter().all(|byte| *byte != 5));
    }
}
