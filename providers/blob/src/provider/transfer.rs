//! Data between the origin's memory and a blob: piece by piece, several of them under way.
//!
//! While one piece is on the wire, others are, too, or are read from or written to the disk. A
//! piece is at most as long as a buffer has room, ends where a block ends if it can, and may have
//! parts of many extents.
//!
//! # Where data lies in a buffer
//!
//! The kernel copies it twice: between the processes, and between buffer and page cache. Some
//! processors take 4 to 6 times as long for that when the destination lies up to 63 bytes further
//! in its page than the source (AMD EPYC, 1 MiB: 2.4 in place of 10.7 GB/s, 2.8 in place of 15.4).
//! Files lie at the beginning of pages, and long vectors of programs, as those of the pool, 16
//! bytes behind it. So data begins [`AHEAD`] bytes behind the beginning of a page, which is far
//! enough from both in each direction.

use std::collections::VecDeque;
use std::ops::Range;

use margo::BulkRequest;
use margo::bulk_memory::PooledBuffer;

use super::places::Place;
use crate::store::{BLOCK_BYTES, Blob};
use crate::{BlobError, BlobName};

/// Bytes of a page, or a part of those of a large one.
const PAGE: usize = 4096;

/// Bytes from the beginning of a page to the data of a buffer.
const AHEAD: usize = 128;

/// Bytes of a buffer in which there is no data.
pub(super) const SLACK: usize = PAGE + AHEAD;

/// The part of a buffer in which the bytes of a piece are.
fn part_of(buffer: &[u8], len: usize) -> Range<usize> {
    let begin = buffer.as_ptr().addr().next_multiple_of(PAGE) - buffer.as_ptr().addr() + AHEAD;
    begin..begin + len
}

/// Buffers that a request may have at once. Two keep wire and disk busy as long as both are steady.
pub(super) const WINDOW: usize = 4;

/// The buffers of one request. Each is allowed by a place, which others wait for.
pub(super) struct Buffers<'a> {
    pub(super) free: Vec<PooledBuffer>,
    /// Dropped after them.
    pub(super) _places: Vec<Place<'a>>,
}

/// A range of the origin's memory, and the range of the blob that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) memory: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A range of the origin's memory that is moved at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) memory: u64,
    pub(super) len: usize,
    /// Offset in the blob, and length: of these, one after the other, it consists.
    pub(super) parts: Vec<(u64, usize)>,
}

impl Piece {
    /// Writes the bytes of the piece to where they belong, moved by `by`.
    pub(super) fn write_to(&self, blob: &dyn Blob, bytes: &[u8], by: u64) -> Result<(), BlobError> {
        let mut done = 0;
        for (offset, len) in &self.parts {
            blob.write_at(by + offset, &bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    pub(super) fn read_from(&self, blob: &dyn Blob, bytes: &mut [u8]) -> Result<(), BlobError> {
        let mut done = 0;
        for (offset, len) in &self.parts {
            blob.read_at(*offset, &mut bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }
}

/// Cuts spans into pieces.
pub(super) struct Pieces {
    spans: VecDeque<Span>,
    bytes_max: usize,
}

impl Pieces {
    pub(super) fn new(spans: impl IntoIterator<Item = Span>, bytes_max: usize) -> Self {
        let spans = spans.into_iter().filter(|span| span.len > 0).collect();
        Self { spans, bytes_max }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let memory = self.spans.front()?.memory;
        let mut piece = Piece { memory, len: 0, parts: Vec::new() };
        while let Some(span) = self.spans.front_mut()
            && span.memory == memory + piece.len as u64
        {
            let taken = taken(span, self.bytes_max - piece.len);
            if taken == 0 {
                break;
            }
            piece.parts.push((span.offset, taken));
            piece.len += taken;
            let done = taken as u64;
            *span = Span {
                memory: span.memory + done,
                offset: span.offset + done,
                len: span.len - done,
            };
            if span.len > 0 {
                break;
            }
            self.spans.pop_front();
        }
        Some(piece)
    }
}

/// How much of a span to move where there is `room`: all of it, or what ends with a block. Nothing
/// if that is less than a block, which then begins the next piece.
fn taken(span: &Span, room: usize) -> usize {
    let to_block = span.offset.saturating_add(room as u64) / BLOCK_BYTES * BLOCK_BYTES;
    match span.len <= room as u64 {
        true => span.len as usize,
        // No truncation: at most `room`.
        false => to_block.saturating_sub(span.offset) as usize,
    }
}

type Pull = BulkRequest<PooledBuffer>;

/// A piece whose bytes are in a part of a buffer.
pub(super) struct Filled {
    pub(super) piece: Piece,
    buffer: PooledBuffer,
    part: Range<usize>,
}

impl Filled {
    /// The bytes of the piece.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }

    pub(super) fn into_buffer(self) -> PooledBuffer {
        self.buffer
    }

    /// Fills a buffer with what a blob has.
    pub(super) fn read(
        blob: &dyn Blob,
        piece: Piece,
        mut buffer: PooledBuffer,
    ) -> Result<Self, BlobError> {
        let part = part_of(&buffer, piece.len);
        piece.read_from(blob, &mut buffer[part.clone()])?;
        Ok(Self { piece, buffer, part })
    }
}

/// Pulls the pieces, as many at a time as there are buffers, and hands them to `store` in order,
/// which gives the buffer back.
pub(super) fn pull(
    name: &BlobName,
    mut pieces: Pieces,
    mut buffers: Buffers<'_>,
    start: impl Fn(&Piece, PooledBuffer, Range<usize>) -> Pull,
    mut store: impl FnMut(Filled) -> Result<PooledBuffer, BlobError>,
) -> Result<(), BlobError> {
    let mut flying: VecDeque<(Piece, Range<usize>, Pull)> = VecDeque::new();
    loop {
        while let Some(buffer) = buffers.free.pop() {
            let Some(piece) = pieces.next() else { break };
            let part = part_of(&buffer, piece.len);
            let pull = start(&piece, buffer, part.clone());
            flying.push_back((piece, part, pull));
        }
        let Some((piece, part, pull)) = flying.pop_front() else { return Ok(()) };
        let (result, buffer) = pull.wait();
        result.map_err(|error| BlobError::transfer(name.as_str(), &error))?;
        buffers.free.push(store(Filled { piece, buffer, part })?);
    }
}

/// Has `load` fill a buffer for each of the pieces, in order, and pushes them, as many at a time as
/// there are buffers. All have arrived when it returns without an error.
pub(super) fn push(
    name: &BlobName,
    pieces: Pieces,
    mut buffers: Buffers<'_>,
    start: impl Fn(&Piece, PooledBuffer, Range<usize>) -> Pull,
    mut load: impl FnMut(Piece, PooledBuffer) -> Result<Filled, BlobError>,
) -> Result<(), BlobError> {
    let mut flying: VecDeque<Pull> = VecDeque::new();
    let arrived = |push: Pull| {
        let (result, buffer) = push.wait();
        result.map(|()| buffer).map_err(|error| BlobError::transfer(name.as_str(), &error))
    };
    for piece in pieces {
        // Also while others are free: what has failed is told before more is read in vain.
        while flying.front().is_some_and(|push| buffers.free.is_empty() || push.test()) {
            let Some(push) = flying.pop_front() else { break };
            buffers.free.push(arrived(push)?);
        }
        let Some(buffer) = buffers.free.pop() else { break };
        let Filled { piece, buffer, part } = load(piece, buffer)?;
        flying.push_back(start(&piece, buffer, part));
    }
    flying.into_iter().try_for_each(|push| arrived(push).map(drop))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: u64 = BLOCK_BYTES;

    fn span(memory: u64, offset: u64, len: u64) -> Span {
        Span { memory, offset, len }
    }

    #[test]
    fn data_lies_where_copies_are_fast() {
        let memory = vec![0; 4 * SLACK];
        for from in 0..PAGE + 2 {
            let buffer = &memory[from..from + SLACK + 10];
            let part = part_of(buffer, 10);
            assert_eq!(buffer[part].as_ptr().addr() % PAGE, AHEAD);
        }
    }

    #[test]
    fn long_spans_are_cut_at_blocks_and_short_ones_travel_together() {
        let spans =
            [span(0, 5, 2 * BLOCK), span(2 * BLOCK, 9 * BLOCK, 7), span(2 * BLOCK + 9, 0, 1)];
        let pieces: Vec<_> = Pieces::new(spans, BLOCK as usize).collect();
        let whole = BLOCK as usize;
        let piece = |memory, len, parts| Piece { memory, len, parts };
        assert_eq!(
            pieces,
            [
                piece(0, whole - 5, vec![(5, whole - 5)]),
                piece(BLOCK - 5, whole, vec![(BLOCK, whole)]),
                piece(2 * BLOCK - 5, 12, vec![(2 * BLOCK, 5), (9 * BLOCK, 7)]),
                piece(2 * BLOCK + 9, 1, vec![(0, 1)]),
            ]
        );
    }

    /// Length, offset, and a gap before it.
    fn any_span() -> impl Strategy<Value = (u64, u64, bool)> {
        (0..300_000u64, 0..9_999_999u64, any::<bool>())
    }

    proptest! {
        /// Each byte is moved once, in order, and no piece is longer than a buffer.
        #[test]
        fn pieces_are_the_spans(
            lens in proptest::collection::vec(any_span(), 0..20),
            blocks in 1..4usize,
        ) {
            let (mut memory, mut spans) = (0, Vec::new());
            for (len, offset, gap) in lens {
                memory += u64::from(gap);
                spans.push(span(memory, offset, len));
                memory += len;
            }
            let room = blocks * BLOCK as usize;
            let mut expected = spans.iter().copied().filter(|span| span.len > 0).peekable();
            for piece in Pieces::new(spans.clone(), room) {
                prop_assert!(0 < piece.len && piece.len <= room);
                prop_assert_eq!(piece.parts.iter().map(|part| part.1).sum::<usize>(), piece.len);
                let mut memory = piece.memory;
                for (offset, len) in piece.parts {
                    let span = expected.peek_mut().unwrap();
                    prop_assert_eq!((span.memory, span.offset), (memory, offset));
                    let len = len as u64;
                    prop_assert!(len <= span.len);
                    (span.memory, span.offset, span.len) =
                        (span.memory + len, span.offset + len, span.len - len);
                    memory += len;
                    if span.len == 0 {
                        expected.next();
                    }
                }
            }
            prop_assert!(expected.next().is_none());
        }
    }
}
