//! Bulk data through memory that both sides have: the source copies in, the sink copies out, at the
//! same time.
//!
//! Short data travels in the ring itself. The rest goes through the *lane*: memory of `alloc` that
//! the source makes when it is first needed, and which the sink maps when it is announced
//! (`block.rs`). It is cut into slots. A record in the ring says how many bytes of a part the next
//! slots hold; the sink counts the slots that it has emptied in a word of the segment. The lane is
//! larger than a core's own cache on purpose: data that is still there when the other core wants it
//! comes four times as slowly as data that has moved on to the cache that both share. Slots are
//! short, so that short transfers go all around the lane, too.
//!
//! A side that cannot map the other's memory gets everything through the ring, in quarters of it.
//!
//! A full ring or lane stops the source, which goes on when the sink has made room. Offsets must be
//! consecutive, and a sink writes only into memory of a transfer that it knows.

use std::time::Instant;

use crate::link::lane::{Emptier, Filler, Overrun, SLOTS};
use crate::link::record::{self, DATA_PREFIX, LANE_WORDS, word_at};
use crate::link::{
    Conn, Consumer, Control, MappedRing, Producer, Record, RingMemory, Violation, payload_max,
};
use na_core::memory::copy_bytes;
use na_core::{LocalMem, RawSegment, SharedBuffer};
use prim::sync::Arc;

/// Bytes of a slot of a lane.
pub(crate) const SLOT_BYTES: usize = 16 << 10;

/// Longest data of one record of the lane, in slots.
pub(crate) const RUN_MAX: u32 = 4;

/// Longest part whose slots have a record each, bytes: the sink begins to copy while the source
/// does. With a longer part the sink begins after the first [`RUN_MAX`] slots anyway, and records
/// cost time.
const SPLIT_MAX: u64 = RUN_MAX as u64 * SLOT_BYTES as u64;

/// Longest data that travels in the ring although there is a lane, bytes.
pub(crate) const INLINE_MAX: u64 = 4 << 10;

/// Consecutive bytes of a region, and how far the copy has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Offset in the region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) done: u64,
}

impl Span {
    pub(crate) fn left(&self) -> u64 {
        self.len - self.done
    }
}

/// The lane of a connection, as the source of data has it; behind the send lock.
#[derive(Debug, Default)]
pub(crate) enum Lane {
    /// Not needed yet.
    #[default]
    Closed,
    /// The peer cannot have one.
    Refused,
    Open {
        buffer: SharedBuffer,
        filler: Filler,
    },
}

/// Where the source of data writes.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) conn: &'a Conn,
    pub(crate) producer: &'a mut Producer<MappedRing>,
    pub(crate) lane: &'a mut Lane,
    pub(crate) announced: &'a mut super::block::Announced,
    pub(crate) control: &'a mut std::collections::VecDeque<Control>,
}

impl Source<'_> {
    /// Sends the next chunk of `span` as *data* or *supply*; with `measure` a supply says how long
    /// copying took, and data that we want to know that of the peer. `None` when there is no room.
    /// Advances `span` and returns the bytes sent.
    pub(crate) fn send_chunk(
        &mut self,
        (put, measure): (bool, bool),
        part: u64,
        memory: &LocalMem,
        span: &mut Span,
    ) -> Result<Option<u64>, Violation> {
        let (inline, lane) = match put {
            false => (record::DATA, record::LANE_DATA),
            true => (record::SUPPLY, record::LANE_SUPPLY),
        };
        if span.left() > INLINE_MAX && self.open_lane() {
            return self.send_in_lane((lane, put, measure), part, memory, span);
        }
        send_inline(self.producer, (inline, put, measure), part, memory, span)
    }

    /// Makes sure that there is a lane, if there can be one.
    fn open_lane(&mut self) -> bool {
        if let Lane::Closed = self.lane {
            let bytes = SLOT_BYTES * SLOTS as usize;
            let buffer = SharedBuffer::for_transit(bytes).ok();
            let Self { conn, announced, control, .. } = self;
            let ended = |block| control.push_back(Control::Forget { block });
            *self.lane = match buffer.filter(|buffer| {
                conn.shares() && announced.announce(&conn.socket, buffer.block(), false, ended)
            }) {
                Some(buffer) => Lane::Open { buffer, filler: Filler::default() },
                None => Lane::Refused,
            };
        }
        matches!(self.lane, Lane::Open { .. })
    }

    fn send_in_lane(
        &mut self,
        (kind, put, measure): (u8, bool, bool),
        part: u64,
        memory: &LocalMem,
        span: &mut Span,
    ) -> Result<Option<u64>, Violation> {
        let Lane::Open { buffer, filler } = self.lane else { return Ok(None) };
        let head = self.conn.segment.lane_head(true);
        let wanted = if span.len <= SPLIT_MAX { 1 } else { RUN_MAX };
        let free = filler.free(head, wanted).map_err(|Overrun| Violation::Head)?;
        let Some(run) = free else { return Ok(None) };
        let Some(slot) = self.producer.reserve(8 * LANE_WORDS)? else { return Ok(None) };
        let len = span.left().min(run.count as u64 * SLOT_BYTES as u64);
        let base = buffer.block().base();
        let mut at = run.first as usize * SLOT_BYTES;
        let began = (put && measure).then(Instant::now);
        for piece in memory.region().pieces(span.offset + span.done, len) {
            let to = base.as_ptr().wrapping_add(at);
            // SAFETY:
            // - source: a piece of a region that `memory` keeps alive, valid for reads (contract of
            //   `Memory::from_raw`);
            // - destination: inside the slots, for all pieces together have `len` bytes, in the
            //   lane's mapping, which `buffer` keeps; nobody holds references to it;
            // - no overlap: the lane is no registered memory.
            unsafe { copy_bytes::copy_shared(piece.ptr, to, piece.len) };
            at += piece.len;
        }
        let time = if put { nanos(began) } else { measure.into() };
        let words = [part, span.done, buffer.block().id(), len, time];
        for (index, word) in words.into_iter().enumerate() {
            self.producer.write(&slot, 8 * index, &word.to_le_bytes());
        }
        self.producer.publish(slot, kind, 0);
        filler.announced(slots_of(len));
        span.done += len;
        Ok(Some(len))
    }
}

/// The contents of a lane record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneChunk {
    pub(crate) part: u64,
    pub(crate) offset: u64,
    pub(crate) block: u64,
    pub(crate) len: u64,
    pub(crate) time: u64,
}

impl LaneChunk {
    pub(crate) fn read<M: RingMemory>(consumer: &Consumer<M>, record: &Record) -> Option<Self> {
        let mut bytes = [0; 8 * LANE_WORDS];
        if record.len != bytes.len() {
            return None;
        }
        consumer.read(record, 0, &mut bytes);
        let word = |index| word_at(&bytes, index);
        let (part, offset, block) = (word(0)?, word(1)?, word(2)?);
        Some(Self { part, offset, block, len: word(3)?, time: word(4)? })
    }

    /// Where the chunk is in the peer's lane.
    pub(crate) fn place(
        &self,
        block: &Arc<super::block::PeerBlock>,
        emptier: &Emptier,
    ) -> Option<RawSegment> {
        let run = emptier.slots(self.slots()).filter(|run| run.count <= RUN_MAX)?;
        block.at(u64::from(run.first) * SLOT_BYTES as u64, self.len, false)
    }

    /// How many slots it takes.
    pub(crate) fn slots(&self) -> u32 {
        slots_of(self.len)
    }
}

/// How many slots so many bytes take.
fn slots_of(len: u64) -> u32 {
    u32::try_from(len.div_ceil(SLOT_BYTES as u64)).unwrap_or(u32::MAX)
}

/// Nanoseconds since then, if it is measured.
fn nanos(began: Option<Instant>) -> u64 {
    began.map_or(0, |began| u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Sends the next chunk of `span` in the ring, as a record of `kind`.
fn send_inline<M: RingMemory>(
    producer: &mut Producer<M>,
    (kind, put, measure): (u8, bool, bool),
    part: u64,
    memory: &LocalMem,
    span: &mut Span,
) -> Result<Option<u64>, Violation> {
    let room = (payload_max(producer.capacity()) - DATA_PREFIX) as u64;
    let len = span.left().min(room);
    let Some(slot) = producer.reserve(DATA_PREFIX + len as usize)? else { return Ok(None) };
    let mut prefix = [0; DATA_PREFIX];
    prefix[..8].copy_from_slice(&part.to_le_bytes());
    prefix[8..16].copy_from_slice(&span.done.to_le_bytes());
    prefix[16..24].copy_from_slice(&u64::from(measure).to_le_bytes());
    producer.write(&slot, 0, &prefix);
    let mut at = DATA_PREFIX;
    let began = (put && measure).then(Instant::now);
    for piece in memory.region().pieces(span.offset + span.done, len) {
        // SAFETY: a piece of a region that `memory` keeps alive, valid for reads (contract of
        // `Memory::from_raw`).
        unsafe { producer.write_raw(&slot, at, piece.ptr, piece.len) };
        at += piece.len;
    }
    if began.is_some() {
        producer.write(&slot, 16, &nanos(began).to_le_bytes());
    }
    producer.publish(slot, kind, 0);
    span.done += len;
    Ok(Some(len))
}

/// Takes a chunk of `len` bytes, at `part_offset` of its part, into `memory` and advances `span`.
/// `copy` copies that many bytes from an offset in the chunk to a place.
///
/// # Errors
///
/// The rule that the chunk breaks; nothing was written.
pub(crate) fn take_chunk(
    (part_offset, len): (u64, u64),
    memory: &LocalMem,
    span: &mut Span,
    mut copy: impl FnMut(usize, RawSegment),
) -> Result<(), &'static str> {
    if part_offset != span.done || len == 0 || len > span.left() {
        return Err("bulk data out of order or beyond its transfer");
    }
    let mut at = 0;
    for piece in memory.region().pieces(span.offset + span.done, len) {
        copy(at, piece);
        at += piece.len;
    }
    span.done += len;
    Ok(())
}

/// A chunk that has come, wherever it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chunk<'a> {
    Ring(&'a Consumer<MappedRing>, &'a Record),
    /// In mapped memory.
    Lane(LaneChunk, RawSegment),
}

impl Chunk<'_> {
    /// The part, the offset there, and the word about time: in a supply, how long the peer copied,
    /// nanoseconds; in data, whether it wants to know that of us. `None` when the record is too
    /// short.
    pub(crate) fn prefix(&self) -> Option<(u64, u64, u64)> {
        match self {
            Self::Ring(consumer, record) => chunk_prefix(consumer, record),
            Self::Lane(chunk, _) => Some((chunk.part, chunk.offset, chunk.time)),
        }
    }

    /// Takes it into `memory`, which is the destination of a transfer. See [`take_chunk`].
    pub(crate) fn take(
        &self,
        offset: u64,
        memory: &LocalMem,
        span: &mut Span,
    ) -> Result<(), &'static str> {
        match *self {
            Self::Ring(consumer, record) => {
                let len = record.len.saturating_sub(DATA_PREFIX) as u64;
                take_chunk((offset, len), memory, span, |at, piece| {
                    // SAFETY: a piece of a region that `memory` keeps alive, valid for writes: it
                    // is the destination of a transfer (contract of `Memory::from_raw`).
                    unsafe { consumer.read_raw(record, DATA_PREFIX + at, piece.ptr, piece.len) };
                })
            }
            Self::Lane(chunk, from) => {
                take_chunk((offset, chunk.len), memory, span, |at, piece| {
                    let from = from.ptr.wrapping_add(at).cast_const();
                    // SAFETY:
                    // - source: inside the chunk, which is mapped (`LaneChunk::place`); the peer
                    //   may change it meanwhile: bytes without invariants;
                    // - destination: as above; no overlap, since a lane is no registered memory.
                    unsafe { copy_bytes::copy_shared(from, piece.ptr, piece.len) };
                })
            }
        }
    }
}

/// Reads the words in front of a chunk; `None` when the record is too short.
fn chunk_prefix<M: RingMemory>(consumer: &Consumer<M>, record: &Record) -> Option<(u64, u64, u64)> {
    if record.len < DATA_PREFIX {
        return None;
    }
    let mut words = [0; 24];
    consumer.read(record, 0, &mut words);
    Some((word_at(&words, 0)?, word_at(&words, 1)?, word_at(&words, 2)?))
}
