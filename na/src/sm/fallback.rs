//! Bulk data through the ring, for when neither side may attach to the other.
//!
//! The source cuts the data into records of a quarter of the ring, so both sides copy at the same
//! time; a full ring stops the source, which goes on when the sink has made room. Offsets must be
//! consecutive, and a sink writes only into memory of a transfer that it knows.

use super::record::DATA_PREFIX;
use super::ring::{Consumer, Producer, Record, RingMemory, Violation, payload_max};
use crate::LocalMem;

/// Consecutive bytes of a region, and how far the copy has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Offset in the region.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) done: u64,
}

impl Span {
    pub(super) fn left(&self) -> u64 {
        self.len - self.done
    }
}

/// Sends the next chunk of `span` as a record of `kind`; `None` when the ring is full. Advances
/// `span` and returns the bytes sent.
pub(super) fn send_chunk<M: RingMemory>(
    producer: &mut Producer<M>,
    kind: u8,
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
    producer.write(&slot, 0, &prefix);
    let mut at = DATA_PREFIX;
    for piece in memory.region().pieces(span.offset + span.done, len) {
        // SAFETY: a piece of a region that `memory` keeps alive, valid for reads (contract of
        // `Memory::from_raw`).
        unsafe { producer.write_raw(&slot, at, piece.ptr, piece.len) };
        at += piece.len;
    }
    producer.publish(slot, kind, 0);
    span.done += len;
    Ok(Some(len))
}

/// Takes a chunk into `memory` and advances `span`.
///
/// # Errors
///
/// The rule that the chunk breaks; nothing was written.
pub(super) fn take_chunk<M: RingMemory>(
    consumer: &Consumer<M>,
    record: &Record,
    part_offset: u64,
    memory: &LocalMem,
    span: &mut Span,
) -> Result<(), &'static str> {
    let len = (record.len - DATA_PREFIX) as u64;
    if part_offset != span.done || len == 0 || len > span.left() {
        return Err("bulk data out of order or beyond its transfer");
    }
    let mut at = DATA_PREFIX;
    for piece in memory.region().pieces(span.offset + span.done, len) {
        // SAFETY: a piece of a region that `memory` keeps alive, valid for writes: it is the
        // destination of a transfer (contract of `Memory::from_raw`).
        unsafe { consumer.read_raw(record, at, piece.ptr, piece.len) };
        at += piece.len;
    }
    span.done += len;
    Ok(())
}

/// Reads the part and offset in front of a chunk; `None` when the record is too short.
pub(super) fn chunk_prefix<M: RingMemory>(
    consumer: &Consumer<M>,
    record: &Record,
) -> Option<(u64, u64)> {
    if record.len < DATA_PREFIX {
        return None;
    }
    let mut words = [0; 16];
    consumer.read(record, 0, &mut words);
    Some((super::record::word_at(&words, 0)?, super::record::word_at(&words, 1)?))
}
