//! The receiving side of one connection: bytes become frames.
//!
//! Small frames are read into a buffer and handled where they lie. Of a frame with data only the
//! header goes through the buffer: the data is read straight into registered memory. While data is
//! expected the buffer is filled sparingly, so that little of it has to be copied.

use std::io;
use std::os::fd::AsFd;

use super::frame::{HEADER_BYTES, Header, Kind};
use super::socket::{self, Pieces};
use super::transfers::Destination;
use crate::{LocalMem, RawSegment};

/// Bytes of the buffer, unless messages are larger.
const BUFFER_BYTES: usize = 64 << 10;

/// Bytes to read at a time into the buffer while data is expected.
const SPARING_BYTES: usize = 4 << 10;

/// Reads after which a connection that is being closed is not drained further.
const DRAIN_READS: usize = 64;

struct Data {
    kind: Kind,
    number: u64,
    left: usize,
    to: Destination,
}

/// What the buffer holds next.
#[derive(Debug)]
pub(super) enum Next {
    /// Not enough: read more.
    NeedMore,
    /// A whole frame, whose payload is [`Incoming::payload`]. Go on with [`Incoming::consume`].
    Frame(Header),
    /// The header of a frame with data. Go on with [`Incoming::begin_data`].
    Data(Header),
    /// The end of a frame with data; the memory need not be held any more.
    EndOfData(Kind, u64, Option<LocalMem>),
}

/// See the module's documentation.
pub(super) struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    data: Option<Data>,
    message_bytes_max: usize,
}

impl Incoming {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        let bytes = BUFFER_BYTES.max(2 * (HEADER_BYTES + message_bytes_max));
        Self {
            buffer: vec![0; bytes].into_boxed_slice(),
            start: 0,
            end: 0,
            data: None,
            message_bytes_max,
        }
    }

    /// Everything in the buffer.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Skips bytes at the front of the buffer.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// The payload of the frame at the front.
    pub(super) fn payload(&self, header: Header) -> &[u8] {
        &self.buffered()[HEADER_BYTES..HEADER_BYTES + header.len as usize]
    }

    /// The frame at the front has been handled.
    pub(super) fn consume(&mut self, header: Header) {
        self.skip(HEADER_BYTES + header.len as usize);
    }

    /// What comes next.
    pub(super) fn next(&mut self) -> Result<Next, String> {
        if let Some(data) = &mut self.data {
            let take = data.left.min(self.end - self.start);
            if let Some((memory, offset)) = &mut data.to {
                let bytes = &self.buffer[self.start..self.start + take];
                if !memory.write_at(*offset, bytes) {
                    return Err("data beyond its memory".into());
                }
                *offset += take as u64;
            }
            data.left -= take;
            self.start += take;
            if data.left > 0 {
                return Ok(Next::NeedMore);
            }
            let Some(data) = self.data.take() else { return Ok(Next::NeedMore) };
            let memory = data.to.map(|(memory, _)| memory);
            return Ok(Next::EndOfData(data.kind, data.number, memory));
        }
        let Some(header) = self.buffered().first_chunk() else { return Ok(Next::NeedMore) };
        let header = Header::decode(header, self.message_bytes_max)?;
        if matches!(header.kind, Kind::GetData | Kind::PutData) {
            return Ok(Next::Data(header));
        }
        if self.buffered().len() < HEADER_BYTES + header.len as usize {
            return Ok(Next::NeedMore);
        }
        Ok(Next::Frame(header))
    }

    /// The data of the frame at the front goes to `to`.
    pub(super) fn begin_data(&mut self, header: Header, to: Destination) {
        self.skip(HEADER_BYTES);
        let Header { kind, len, number } = header;
        self.data = Some(Data { kind, number, left: len as usize, to });
    }

    /// Nothing more is written for transfer `number` of ours. Returns the memory that was held.
    pub(super) fn discard(&mut self, number: u64) -> Option<LocalMem> {
        let data = self.data.as_mut()?;
        if (data.kind, data.number) != (Kind::GetData, number) {
            return None;
        }
        data.to.take().map(|(memory, _)| memory)
    }

    /// The connection is over: returns the memory that was held for arriving data.
    pub(super) fn abandon(&mut self) -> Option<LocalMem> {
        self.data.take()?.to.map(|(memory, _)| memory)
    }

    /// Reads and forgets what has arrived, up to a bound; after [`abandon`](Self::abandon).
    pub(super) fn drain(&mut self, from: impl AsFd) {
        for _ in 0..DRAIN_READS {
            (self.start, self.end) = (0, 0);
            match self.fill(&from, false) {
                Ok((0, _)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Reads once. Returns how many bytes came (zero: end of the stream) and whether there was room
    /// for more.
    pub(super) fn fill(&mut self, from: impl AsFd, sparing: bool) -> io::Result<(usize, bool)> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > self.buffer.len() / 2 {
            // What is left is less than a frame: frames are handled as long as they are whole, or
            // reading pauses.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut pieces = Pieces::new();
        let mut direct = 0;
        let skip_buffer = match &self.data {
            None => false,
            Some(Data { to: None, .. }) => false,
            Some(Data { to: Some((memory, offset)), left, .. }) => {
                let mut run = memory.region().pieces(*offset, *left as u64);
                let all = run.all(|piece| pieces.push(piece));
                direct = pieces.bytes();
                !all
            }
        };
        if !skip_buffer && !pieces.is_full() {
            let room = &mut self.buffer[self.end..];
            let len = if sparing { room.len().min(SPARING_BYTES) } else { room.len() };
            let _ = pieces.push(RawSegment { ptr: room.as_mut_ptr(), len });
        }
        debug_assert!(!pieces.is_empty() && pieces.bytes() > 0, "nothing to read into");
        let asked = pieces.bytes();
        // SAFETY: valid for writes and not referenced by anyone:
        // - registered memory, kept valid by `memory` in `self.data`, of which no references exist;
        // - free space of `self.buffer`, which `self` owns and does not touch meanwhile.
        let got = unsafe { socket::receive(from, &mut pieces) }?;
        let into_memory = got.min(direct);
        if let Some(Data { to: Some((_, offset)), left, .. }) = &mut self.data {
            *offset += into_memory as u64;
            *left -= into_memory;
        }
        self.end += got - into_memory;
        Ok((got, got < asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Memory, RegionTable};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn frame(kind: Kind, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Header { kind, len: payload.len() as u32, number }.encode().to_vec();
        bytes.extend_from_slice(payload);
        bytes
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
            let mut incoming = Incoming::new(4096);
            let mut seen = 0;
            for piece in stream_bytes.chunks(step) {
                theirs.write_all(piece).unwrap();
                while incoming.fill(&ours, false).is_ok() {
                    while let Next::Frame(header) = incoming.next().unwrap() {
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

    #[test]
    fn data_goes_to_memory_in_pieces_and_frames_behind_it_are_seen() {
        let table = RegionTable::new();
        let memory = Memory::from_vecs(vec![vec![0; 1000]; 300]);
        let memory = table.register(memory, Access::WriteOnly).unwrap();
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let data: Vec<u8> = (0..290_000u32).map(|at| (at % 251) as u8).collect();
        let mut bytes = frame(Kind::GetData, 3, &data);
        bytes.extend(frame(Kind::Expected, 9, b"behind"));
        let writer = std::thread::spawn(move || {
            theirs.write_all(&bytes).unwrap();
            theirs
        });
        let mut incoming = Incoming::new(4096);
        let mut ended = false;
        loop {
            match incoming.next().unwrap() {
                Next::NeedMore => match incoming.fill(&ours, true) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                },
                Next::Data(header) => {
                    assert_eq!(header.number, 3);
                    incoming.begin_data(header, Some((memory.clone(), 5)));
                }
                Next::EndOfData(kind, number, held) => {
                    assert_eq!((kind, number), (Kind::GetData, 3));
                    assert!(held.is_some());
                    ended = true;
                }
                Next::Frame(header) => {
                    assert!(ended);
                    assert_eq!(incoming.payload(header), b"behind");
                    break;
                }
            }
        }
        writer.join().unwrap();
        let mut got = vec![0; data.len()];
        assert!(memory.read_at(5, &mut got));
        assert!(got == data);
    }
}
