//! One direction of a connection: a ring of records with one producer and one consumer.
//!
//! # Layout
//!
//! The ring is a power of two of bytes, cut into lines of [`LINE`] bytes. A record starts at a
//! line with its *commit word* and is followed by its payload; it never wraps.
//!
//! | bits of the commit word | meaning |
//! |---|---|
//! | 0..24 | payload length, bytes |
//! | 24..32 | kind, not zero; [`PAD`] means "the rest of the ring is unused, go on at its start" |
//! | 32..64 | tag |
//!
//! # Protocol
//!
//! There is no shared tail. The consumer watches the commit word at its own position, so a short
//! message and the news of it travel in one cache line. For that to work, the word at the
//! consumer's position must be zero until the record there is complete, although that place may
//! hold old payload. So the producer
//!
//! 1. copies the payload behind the place of the commit word;
//! 2. zeroes the word behind the record;
//! 3. stores the record's own commit word.
//!
//! A producer that dies in between leaves nothing visible. The consumer publishes its position in
//! `head` after each record, and says so to a producer that may wait for room after each quarter of
//! the ring. No record exceeds a quarter, so a ring that was full and is emptied always crosses
//! one: padding and record need less than half of it.
//!
//! # A ring that is little used stays in the cache
//!
//! Each line that is written for the first time in a while comes from an outer cache, twice: here
//! and at the consumer. So a producer that has filled the first [`FOLD`] bytes, and finds that the
//! consumer has read everything, pads the rest of the ring and goes on at its start. It looks at
//! `head` for that once in so many bytes, and not for a while after the ring was full: a producer
//! with more records in flight needs the whole ring.
//!
//! # Who may touch what
//!
//! | state | written by | read by |
//! |---|---|---|
//! | lines between tail and head (free) | producer | nobody |
//! | commit word at the consumer's position | producer (pair: RING-COMMIT) | consumer |
//! | lines of a committed record | nobody | consumer |
//! | `head` | consumer (pair: RING-HEAD) | producer |
//! | `tail`, `head_seen`, `fold_at`, `padded` | producer, private | |
//! | position, `told` | consumer, private | |
//!
//! # Distrust
//!
//! The other side may be hostile. Each shared word is loaded once into a local and checked there;
//! positions are private to their owner. A breach is a [`Violation`], after which the connection
//! must be closed.

use std::fmt;

use prim::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a line; records start at lines.
pub const LINE: usize = 64;

/// Bytes of the commit word, before the payload.
pub const COMMIT_BYTES: usize = 8;

/// Reserved kind: skip to the start of the ring.
pub const PAD: u8 = u8::MAX;

/// After so many bytes, or a quarter of the ring, the producer looks whether it can go back to the
/// start. Two rings of this size, and what is copied to and from them, fit the first cache.
pub const FOLD: usize = 8 << 10;

/// So many rings are used whole after one was full.
const WHOLE: u64 = 8;

/// Lines that are taken ahead of the next record at most. More of them would stand in the way of
/// the answer, which passes the same buffers of outstanding misses.
const OWNED_MAX: usize = 16;

/// The memory of a ring, starting out as zeroes. The protocol is generic over it, so that a model
/// checker can watch.
pub trait RingMemory {
    /// Bytes: a power of two, at least 8 lines, at most 64 MiB.
    fn capacity(&self) -> usize;

    /// The first word of the line at byte `offset`, a multiple of [`LINE`] below the capacity.
    fn commit_word(&self, offset: usize) -> &AtomicU64;

    /// The consumer's published position.
    fn head(&self) -> &AtomicU64;

    /// A hint that the producer will write the line at byte `offset`, below the capacity.
    fn own(&self, offset: usize);

    /// Copies payload in.
    ///
    /// # Safety
    ///
    /// `offset + len` is within the capacity, the place belongs to the calling producer, and `from`
    /// is valid for reads of `len` bytes.
    unsafe fn write(&self, offset: usize, from: *const u8, len: usize);

    /// Copies payload out.
    ///
    /// # Safety
    ///
    /// `offset + len` is within the capacity, the place belongs to a record that the calling
    /// consumer holds, and `to` is valid for writes of `len` bytes.
    unsafe fn read(&self, offset: usize, to: *mut u8, len: usize);

    /// As [`write`](Self::write), from memory that others may change at the same time.
    ///
    /// # Safety
    ///
    /// As `write`.
    unsafe fn write_shared(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.write(offset, from, len) };
    }

    /// As [`read`](Self::read), to memory that others may use at the same time.
    ///
    /// # Safety
    ///
    /// As `read`.
    unsafe fn read_shared(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.read(offset, to, len) };
    }
}

/// Where `len` bytes of the payload of `slot` are in the ring.
#[inline]
fn place_in(slot: &Reservation, offset: usize, len: usize) -> usize {
    let end = offset.checked_add(len);
    assert!(end.is_some_and(|end| end <= slot.payload), "a write beyond the record");
    slot.at + COMMIT_BYTES + offset
}

/// Where `len` bytes of the payload of `record` are in the ring.
#[inline]
fn place_of(record: &Record, offset: usize, len: usize) -> usize {
    let end = offset.checked_add(len);
    assert!(end.is_some_and(|end| end <= record.len), "a read beyond the record");
    record.at + COMMIT_BYTES + offset
}

/// A breach by the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The position is not between the last one and ours.
    Head,
    /// A record is longer than allowed or leaves the ring.
    Length,
    /// Padding where none can be.
    Padding,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "the ring's read position is impossible",
            Self::Length => "a record in the ring is too long",
            Self::Padding => "padding in the ring where none can be",
        })
    }
}

/// Longest payload of one record in a ring of `capacity` bytes.
pub const fn payload_max(capacity: usize) -> usize {
    capacity / 4 - COMMIT_BYTES
}

/// Smallest ring whose records can hold `payload` bytes.
pub const fn capacity_for(payload: usize) -> usize {
    (4 * (payload + COMMIT_BYTES)).next_power_of_two()
}

const fn span(payload: usize) -> usize {
    (COMMIT_BYTES + payload).next_multiple_of(LINE)
}

const fn fold(capacity: usize) -> usize {
    if capacity / 4 < FOLD { capacity / 4 } else { FOLD }
}

/// A record goes back to the start from there on: not onto the one before it, which the consumer
/// may still be copying from its cache.
fn folds_from(fold: usize, span: usize) -> usize {
    fold.max(2 * span)
}

/// Room that was found for one record.
#[derive(Debug)]
pub struct Reservation {
    /// Offset of the commit word.
    at: usize,
    /// Bytes of padding before it.
    skip: usize,
    payload: usize,
}

/// The writing side.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    tail: u64,
    head_seen: u64,
    /// From this tail on, it may be time to go back to the start.
    fold_at: u64,
    /// Bytes of padding so far.
    padded: u64,
}

impl<M: RingMemory> Producer<M> {
    /// The producer of a fresh ring.
    pub fn new(memory: M) -> Self {
        let fold_at = fold(memory.capacity()) as u64;
        Self { memory, tail: 0, head_seen: 0, fold_at, padded: 0 }
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Bytes of the records that were written so far, in whole lines and without padding.
    pub fn written(&self) -> u64 {
        self.tail - self.padded
    }

    /// Finds room for a record. `None`: the ring is full. A slot that is not published is void.
    ///
    /// # Errors
    ///
    /// The consumer's position is impossible.
    ///
    /// # Panics
    ///
    /// If `payload` exceeds [`payload_max`].
    #[inline]
    pub fn reserve(&mut self, payload: usize) -> Result<Option<Reservation>, Violation> {
        let capacity = self.memory.capacity();
        assert!(payload <= payload_max(capacity), "a record beyond a quarter of its ring");
        let offset = self.tail as usize & (capacity - 1);
        let rest = capacity - offset;
        let span = span(payload);
        let mut skip = if span > rest { rest } else { 0 };
        if self.tail >= self.fold_at && skip == 0 && self.folds(offset, span)? {
            skip = rest;
        }
        // One more line: the zeroed commit word behind the record.
        let need = (skip + span + LINE) as u64;
        if need > self.free() {
            self.look()?;
            if need > self.free() {
                self.fold_at = self.tail + WHOLE * capacity as u64;
                return Ok(None);
            }
        }
        let at = if skip > 0 { 0 } else { offset };
        Ok(Some(Reservation { at, skip, payload }))
    }

    /// Bytes that the consumer is known to be done with, or that were never used.
    #[inline(always)]
    fn free(&self) -> u64 {
        self.memory.capacity() as u64 - (self.tail - self.head_seen)
    }

    /// Looks how far the consumer is.
    #[inline]
    fn look(&mut self) -> Result<(), Violation> {
        // pair: RING-HEAD (the consumer is done with everything before it)
        let head = self.memory.head().load(Ordering::Acquire);
        if head < self.head_seen || head > self.tail || !head.is_multiple_of(LINE as u64) {
            return Err(Violation::Head);
        }
        self.head_seen = head;
        Ok(())
    }

    /// Returns whether a record of `span` bytes goes to the start although it has room at `offset`.
    #[inline(never)]
    fn folds(&mut self, offset: usize, span: usize) -> Result<bool, Violation> {
        let fold = fold(self.memory.capacity());
        if offset < folds_from(fold, span) {
            self.fold_at = self.tail + (folds_from(fold, span) - offset) as u64;
            return Ok(false);
        }
        self.look()?;
        self.fold_at = self.tail + fold as u64;
        Ok(self.head_seen == self.tail)
    }

    /// Writes `bytes` into the payload at `offset`.
    ///
    /// # Panics
    ///
    /// If they leave the payload.
    #[inline]
    pub fn write(&mut self, slot: &Reservation, offset: usize, bytes: &[u8]) {
        let at = place_in(slot, offset, bytes.len());
        // SAFETY:
        // - bounds: the payload lies in the ring (`reserve`), the write in the payload (above);
        // - ownership: `reserve` found these lines free, and only this producer uses free lines;
        // - source: a live slice of that length.
        unsafe { self.memory.write(at, bytes.as_ptr(), bytes.len()) };
    }

    /// Writes `len` bytes at `from` into the payload at `offset`. Others may change them meanwhile,
    /// as [`copy_shared`](na_core::memory::copy_bytes::copy_shared) allows it.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes.
    ///
    /// # Panics
    ///
    /// If they leave the payload.
    #[inline]
    pub unsafe fn write_raw(
        &mut self,
        slot: &Reservation,
        offset: usize,
        from: *const u8,
        len: usize,
    ) {
        let at = place_in(slot, offset, len);
        // SAFETY:
        // - bounds: the payload lies in the ring (`reserve`), the write in the payload (above);
        // - ownership: `reserve` found these lines free, and only this producer uses free lines;
        // - source: the caller's duty.
        unsafe { self.memory.write_shared(at, from, len) };
    }

    /// Makes the record visible.
    ///
    /// # Panics
    ///
    /// If `kind` is zero or [`PAD`].
    #[inline]
    pub fn publish(&mut self, slot: Reservation, kind: u8, tag: u32) {
        assert!(kind != 0 && kind != PAD, "a reserved record kind");
        let mask = self.memory.capacity() - 1;
        let next = self.tail + (slot.skip + span(slot.payload)) as u64;
        self.memory.commit_word(next as usize & mask).store(0, Ordering::Relaxed);
        let word = commit_word(slot.payload, kind, tag);
        if slot.skip == 0 {
            // pair: RING-COMMIT (payload and terminator first)
            self.memory.commit_word(slot.at).store(word, Ordering::Release);
        } else {
            self.memory.commit_word(slot.at).store(word, Ordering::Relaxed);
            let pad = self.tail as usize & mask;
            // pair: RING-COMMIT (payload, terminator and the record's own word first)
            self.memory.commit_word(pad).store(commit_word(0, PAD, 0), Ordering::Release);
        }
        self.tail = next;
        if slot.skip > 0 {
            self.padded += slot.skip as u64;
            let start = next - span(slot.payload) as u64;
            self.fold_at = self.fold_at.max(start + fold(mask + 1) as u64);
        }
        self.own_next(span(slot.payload));
    }

    /// Takes the lines where the next record will be, if it is as long as the last one. The
    /// consumer has read them, so each has to be taken away from its cache before it can be
    /// written: better while the answer is awaited.
    #[inline(always)]
    fn own_next(&mut self, span: usize) {
        let mask = self.memory.capacity() - 1;
        let offset = self.tail as usize & mask;
        let lines = span.min(OWNED_MAX * LINE) as u64;
        if self.tail >= self.fold_at && offset >= folds_from(fold(mask + 1), span) {
            self.own(0, lines + LINE as u64);
            return;
        }
        let (ahead, end) = (self.tail + LINE as u64, self.head_seen + mask as u64 + 1);
        if ahead + LINE as u64 <= end {
            // The next short record has its terminator there. Owning that line already spares it a
            // cache miss between payload and commit word; the value does not matter.
            self.memory.commit_word(ahead as usize & mask).store(0, Ordering::Relaxed);
            self.own(ahead + LINE as u64, end.min(self.tail + lines));
        }
    }

    /// Takes the lines from one position to another.
    #[inline(always)]
    fn own(&self, mut from: u64, to: u64) {
        let mask = self.memory.capacity() - 1;
        while from < to {
            self.memory.own(from as usize & mask);
            from += LINE as u64;
        }
    }
}

fn commit_word(payload: usize, kind: u8, tag: u32) -> u64 {
    payload as u64 | u64::from(kind) << 24 | u64::from(tag) << 32
}

/// A record at the consumer's position.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// The kind of record; never zero or [`PAD`].
    pub kind: u8,
    /// The producer's tag.
    pub tag: u32,
    /// Bytes of payload.
    pub len: usize,
    at: usize,
}

/// The reading side.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    position: u64,
    /// The position that the producer was last told of, should it wait.
    told: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// The consumer of a fresh ring.
    pub fn new(memory: M) -> Self {
        Self { memory, position: 0, told: 0 }
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Returns whether nothing is there to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let offset = self.position as usize & (self.memory.capacity() - 1);
        // pair: RING-COMMIT
        self.memory.commit_word(offset).load(Ordering::Acquire) == 0
    }

    /// The next record, which stays until [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// The producer wrote nonsense.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, Violation> {
        let capacity = self.memory.capacity();
        let mut offset = self.position as usize & (capacity - 1);
        // pair: RING-COMMIT
        let mut word = self.memory.commit_word(offset).load(Ordering::Acquire);
        if word == 0 {
            return Ok(None);
        }
        if (word >> 24) as u8 == PAD {
            if offset == 0 || word != commit_word(0, PAD, 0) {
                return Err(Violation::Padding);
            }
            self.position += (capacity - offset) as u64;
            offset = 0;
            // pair: RING-COMMIT
            word = self.memory.commit_word(0).load(Ordering::Acquire);
            if word == 0 {
                return Err(Violation::Padding);
            }
        }
        let (len, kind) = ((word & 0xff_ffff) as usize, (word >> 24) as u8);
        if kind == PAD || kind == 0 {
            return Err(Violation::Padding);
        }
        if len > payload_max(capacity) || offset + span(len) > capacity {
            return Err(Violation::Length);
        }
        Ok(Some(Record { kind, tag: (word >> 32) as u32, len, at: offset }))
    }

    /// Copies payload from `offset` into `out`.
    ///
    /// # Panics
    ///
    /// If that leaves the payload.
    #[inline]
    pub fn read(&self, record: &Record, offset: usize, out: &mut [u8]) {
        let at = place_of(record, offset, out.len());
        // SAFETY: as in `read_raw`; the destination is a live slice of that length.
        unsafe { self.memory.read(at, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `len` bytes of payload from `offset` to `to`, which others may use meanwhile, as
    /// [`copy_shared`](na_core::memory::copy_bytes::copy_shared) allows it.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of `len` bytes.
    ///
    /// # Panics
    ///
    /// If that leaves the payload.
    #[inline]
    pub unsafe fn read_raw(&self, record: &Record, offset: usize, to: *mut u8, len: usize) {
        let at = place_of(record, offset, len);
        // SAFETY:
        // - bounds: `peek` checked that the payload lies in the ring, the read lies in the payload;
        // - ownership: the record is committed, and the producer leaves it alone until `head`
        //   passes it (a hostile producer can change the bytes, which are only copied here);
        // - destination: the caller's duty.
        unsafe { self.memory.read_shared(at, to, len) };
    }

    /// Leaves `record` behind. `true`: there is enough room to ask the producer's doorbell.
    #[inline]
    pub fn advance(&mut self, record: Record) -> bool {
        self.position += span(record.len) as u64;
        // pair: RING-HEAD (all reads of these records first)
        self.memory.head().store(self.position, Ordering::Release);
        if self.position - self.told < self.memory.capacity() as u64 / 4 {
            return false;
        }
        self.told = self.position;
        true
    }
}
