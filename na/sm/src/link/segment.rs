//! The memory that two processes share: one sealed memfd per connection.
//!
//! # Layout (little endian, native atomics; all zero at first)
//!
//! | offset | word | written by |
//! |---|---|---|
//! | 128 | read position of ring 0 | acceptor |
//! | 256 | read position of ring 1 | creator |
//! | 384 | doorbell of the creator | both |
//! | 512 | doorbell of the acceptor | both |
//! | 640 | gate: the creator copies in the acceptor's memory | creator |
//! | 768 | gate: the acceptor copies in the creator's memory | acceptor |
//! | 896 | gate: shut by the creator | creator |
//! | 1024 | gate: shut by the acceptor | acceptor |
//! | 1152 | slots of the creator's lane that were emptied | acceptor |
//! | 1280 | slots of the acceptor's lane that were emptied | creator |
//! | 1408 | gate of offers: the creator copies in the acceptor's memory | creator |
//! | 1536 | gate of offers: the acceptor copies in the creator's memory | acceptor |
//! | 2048 | u32 for each offer of the creator: its generation, or zero | creator |
//! | 2304 | u32 for each offer of the acceptor | acceptor |
//! | 4096 | ring 0, creator to acceptor | creator |
//! | 4096 + ring | ring 1, acceptor to creator | acceptor |
//! | 4096 + 2 ring | pages (`turns.rs`) | in turn |
//!
//! Words but those of offers are 128 bytes apart, because processors fetch lines in pairs. The rest
//! of the first page is reserved.
//!
//! # No SIGBUS
//!
//! Touching a mapping beyond the end of its file kills the process. So the creator allocates all
//! pages and seals the size, and the acceptor maps only what is sealed against shrinking and has
//! exactly the size that was announced. Only memfds can be sealed, so nothing else is accepted.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::gate::CopyGate;
use super::ring::{LINE, RingMemory};
use super::turns::{PAGE_BYTES, PAGES, PageOwners};
use crate::wake::doorbell::Doorbell;
use na_core::Error;
use na_core::limits::file_limit::{Pages, memfd};
use na_core::memory::copy_bytes;
use prim::prefetch;
use prim::sync::Arc;
use prim::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes before the rings.
pub(crate) const CONTROL_BYTES: usize = 4096;

/// Smallest and largest ring, bytes.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=8 << 20;

pub(crate) const HEADS: [usize; 2] = [128, 256];
pub(crate) const BELLS: [usize; 2] = [384, 512];
pub(crate) const COPYING: [usize; 2] = [640, 768];
pub(crate) const SHUT: [usize; 2] = [896, 1024];
pub(crate) const LANES: [usize; 2] = [1152, 1280];
pub(crate) const AT_ONCE: [usize; 2] = [1408, 1536];
pub(crate) const OFFERS: [usize; 2] = [2048, 2304];

/// Offers that stand on a connection, in each direction.
pub(crate) const OFFERS_MAX: usize = 64;

/// Which end of a connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Connected, and made the segment.
    Creator,
    /// Accepted, and was given the segment.
    Acceptor,
}

impl Side {
    fn index(self) -> usize {
        match self {
            Self::Creator => 0,
            Self::Acceptor => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Creator => Self::Acceptor,
            Self::Acceptor => Self::Creator,
        }
    }
}

/// A mapped segment, as one side sees it.
pub(crate) struct Segment {
    base: NonNull<u8>,
    ring_bytes: usize,
    side: Side,
}

// SAFETY:
// - the mapping is not tied to a thread and lives until `drop`;
// - it is used only through atomics and through copies that the ring protocol orders.
unsafe impl Send for Segment {}
// SAFETY: as for `Send`.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment with two rings of `ring_bytes`, and the descriptor to hand over.
    pub(crate) fn create(ring_bytes: usize) -> Result<(Self, OwnedFd), Error> {
        let len = total_bytes(ring_bytes);
        let fd = memfd(c"margo-sm", "shared memory for a connection", len, Pages::Now)?;
        Ok((Self::map(&fd, ring_bytes, Side::Creator, true)?, fd))
    }

    /// Maps a segment that a peer made. `populate`: at once and with all its pages, which otherwise
    /// come with their first use. A peer need not have allocated them, and they are ours then.
    ///
    /// # Errors
    ///
    /// The fault in it, or the lack that keeps it from being mapped.
    pub(crate) fn attach(fd: &OwnedFd, ring_bytes: usize, populate: bool) -> Result<Self, String> {
        check_ring_bytes(ring_bytes)?;
        let seals = rustix::fs::fcntl_get_seals(fd)
            .map_err(|errno| format!("its memory cannot be sealed ({errno})"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err("its memory is not sealed against a change of size".into());
        }
        let stat = rustix::fs::fstat(fd).map_err(|errno| format!("no size: {errno}"))?;
        let len = total_bytes(ring_bytes);
        if u64::try_from(stat.st_size) != Ok(len as u64) {
            return Err(format!("its memory has {} bytes instead of {len}", stat.st_size));
        }
        Self::map(fd, ring_bytes, Side::Acceptor, populate).map_err(|error| error.to_string())
    }

    fn map(fd: impl AsFd, ring_bytes: usize, side: Side, populate: bool) -> Result<Self, Error> {
        let len = total_bytes(ring_bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let populate = if populate { MapFlags::POPULATE } else { MapFlags::empty() };
        let flags = MapFlags::SHARED | populate;
        // SAFETY:
        // - address: the kernel chooses a free one, so no existing memory is replaced;
        // - the file has `len` bytes and cannot shrink (sealed, checked by both callers).
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_fd(), 0)
        };
        let base = base.map_err(|errno| Error::io("cannot map shared memory", errno))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::io("cannot map shared memory", rustix::io::Errno::NOMEM))?;
        Ok(Self { base, ring_bytes, side })
    }

    /// Our doorbell, which the peer looks at.
    pub(crate) fn own_bell(&self) -> Doorbell<'_> {
        Doorbell::new(self.word(BELLS[self.side.index()]))
    }

    /// The peer's doorbell.
    pub(crate) fn peer_bell(&self) -> Doorbell<'_> {
        Doorbell::new(self.word(BELLS[self.side.other().index()]))
    }

    /// The gate that guards the peer's memory from our copies.
    pub(crate) fn gate_as_copier(&self) -> CopyGate<'_> {
        self.gate(COPYING, self.side)
    }

    /// The gate that guards our memory from the peer's copies.
    pub(crate) fn gate_as_keeper(&self) -> CopyGate<'_> {
        self.gate(COPYING, self.side.other())
    }

    /// As [`gate_as_copier`](Self::gate_as_copier), for copies under an offer. Those are made under
    /// the send lock, the others by the poll.
    #[inline]
    pub(crate) fn offers_gate(&self) -> CopyGate<'_> {
        self.gate(AT_ONCE, self.side)
    }

    /// Returns whether the peer may be copying in our memory, after the gate was shut or what it
    /// uses was withdrawn.
    pub(crate) fn peer_copies(&self) -> bool {
        let offers = self.gate(AT_ONCE, self.side.other());
        !self.gate_as_keeper().is_quiet() || !offers.is_quiet()
    }

    /// The word of an offer of ours or of the peer's.
    #[inline]
    pub(crate) fn offer(&self, ours: bool, slot: usize) -> &AtomicU32 {
        assert!(slot < OFFERS_MAX);
        let owner = if ours { self.side } else { self.side.other() };
        self.word(OFFERS[owner.index()] + 4 * slot)
    }

    /// Where it is mapped.
    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    #[inline]
    fn gate(&self, copying: [usize; 2], owner: Side) -> CopyGate<'_> {
        let copying = self.word(copying[owner.index()]);
        CopyGate::new(copying, self.word(SHUT[owner.other().index()]))
    }

    /// The count of emptied slots in the lane that we fill (`outgoing`) or empty.
    pub(crate) fn lane_head(&self, outgoing: bool) -> &AtomicU32 {
        let source = if outgoing { self.side } else { self.side.other() };
        self.word(LANES[source.index()])
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= CONTROL_BYTES && offset.is_multiple_of(4));
        // SAFETY: inside the first page of the mapping.
        let word = unsafe { self.base.add(offset) }.cast::<AtomicU32>();
        // SAFETY:
        // - valid and aligned: the page-aligned mapping is longer than `CONTROL_BYTES`;
        // - lifetime: the mapping lives as long as `self`;
        // - aliasing: this place is only ever used as this atomic type.
        unsafe { word.as_ref() }
    }

    /// The memory of the ring that we write (`outgoing`) or read.
    pub(crate) fn ring(self: &Arc<Self>, outgoing: bool) -> MappedRing {
        let producer = if outgoing { self.side } else { self.side.other() };
        let index = producer.index();
        // SAFETY: both rings lie inside the mapping of `total_bytes`.
        let data = unsafe { self.base.add(CONTROL_BYTES + index * self.ring_bytes) };
        // SAFETY: inside the first page of the mapping.
        let head = unsafe { self.base.add(HEADS[index]) }.cast();
        MappedRing { data, head, bytes: self.ring_bytes, _segment: self.clone() }
    }

    /// Returns whose turn the pages of a fresh segment are, as this side knows it.
    pub(crate) fn turns(&self) -> PageOwners {
        PageOwners::new(self.side == Side::Creator)
    }

    /// # Panics
    ///
    /// If there is no such page, or it is shorter.
    #[inline]
    fn page(&self, page: usize, len: usize) -> NonNull<u8> {
        assert!(page < PAGES && len <= PAGE_BYTES, "beyond a page");
        // SAFETY: inside the mapping of `total_bytes`, by the check above.
        unsafe { self.base.add(pages_at(self.ring_bytes) + page * PAGE_BYTES) }
    }

    /// Writes `bytes` to the start of a page.
    ///
    /// # Safety
    ///
    /// The page is ours and the caller the only sender (`turns.rs`).
    ///
    /// # Panics
    ///
    /// If there is no such page, or it is shorter.
    #[inline]
    pub(crate) unsafe fn write_page(&self, page: usize, bytes: &[u8]) {
        let to = self.page(page, bytes.len());
        // SAFETY:
        // - source: a slice; destination: `page` has checked that it is inside;
        // - nobody else of this process accesses it (contract), and no reference to it exists.
        unsafe { copy_bytes::copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Reads the start of a page into `place`.
    ///
    /// # Safety
    ///
    /// The page is theirs and the caller the only receiver (`turns.rs`).
    ///
    /// # Panics
    ///
    /// If there is no such page, or it is shorter.
    #[inline]
    pub(crate) unsafe fn read_page(&self, page: usize, place: &mut [u8]) {
        let from = self.page(page, place.len());
        // SAFETY:
        // - destination: a slice; source: `page` has checked that it is inside;
        // - nobody of this process writes it (contract); a hostile peer may change it meanwhile:
        //   bytes without invariants, looked at only after this copy.
        unsafe { copy_bytes::copy(from.as_ptr(), place.as_mut_ptr(), place.len()) };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY:
        // - `base` and the length are those of the mapping made in `map`;
        // - every pointer into it is inside a `MappedRing`, which holds a reference count.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), total_bytes(self.ring_bytes)) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:?}, rings of {} bytes)", self.side, self.ring_bytes)
    }
}

/// Returns whether rings can have that many bytes.
///
/// # Errors
///
/// They cannot: a text for the side that says so.
pub(crate) fn check_ring_bytes(ring_bytes: usize) -> Result<(), String> {
    match ring_bytes.is_power_of_two() && RING_BYTES.contains(&ring_bytes) {
        true => Ok(()),
        false => Err(format!("rings of {ring_bytes} bytes")),
    }
}

/// Where the pages are.
const fn pages_at(ring_bytes: usize) -> usize {
    CONTROL_BYTES + 2 * ring_bytes
}

/// Bytes of the whole segment.
pub(crate) const fn total_bytes(ring_bytes: usize) -> usize {
    pages_at(ring_bytes) + PAGES * PAGE_BYTES
}

/// One ring of a segment, which it keeps mapped.
#[derive(Debug)]
pub(crate) struct MappedRing {
    data: NonNull<u8>,
    head: NonNull<AtomicU64>,
    bytes: usize,
    _segment: Arc<Segment>,
}

// SAFETY: the pointers go into the segment, which is `Send` and `Sync`; the ring protocol says who
// may copy where.
unsafe impl Send for MappedRing {}
// SAFETY: as for `Send`.
unsafe impl Sync for MappedRing {}

impl RingMemory for MappedRing {
    #[inline(always)]
    fn capacity(&self) -> usize {
        self.bytes
    }

    #[inline(always)]
    fn commit_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < self.bytes && offset.is_multiple_of(LINE));
        // SAFETY: in the ring (contract of the trait, checked above in debug builds).
        let word = unsafe { self.data.add(offset) }.cast();
        // SAFETY:
        // - valid and aligned: a line inside the ring, which starts at a page boundary;
        // - lifetime: `_segment` keeps the mapping;
        // - aliasing: while it is used as an atomic nobody copies over it (ring protocol).
        unsafe { word.as_ref() }
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        // SAFETY:
        // - valid and aligned: a word of the control page, offset a multiple of 128;
        // - lifetime: `_segment` keeps the mapping;
        // - aliasing: only ever used as this atomic type.
        unsafe { self.head.as_ref() }
    }

    #[inline(always)]
    fn own(&self, offset: usize) {
        prefetch::for_write(self.data.as_ptr().wrapping_add(offset));
    }

    #[inline(always)]
    unsafe fn write(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: in the ring by the caller's duty.
        let to = unsafe { self.data.add(offset) };
        // SAFETY:
        // - source and destination are valid by the caller's duties;
        // - no overlap: the caller's memory is not in this mapping, which is private to `sm`.
        unsafe { copy_bytes::copy(from, to.as_ptr(), len) };
    }

    #[inline(always)]
    unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: in the ring by the caller's duty.
        let from = unsafe { self.data.add(offset) };
        // SAFETY:
        // - source and destination are valid by the caller's duties, and do not overlap (as above);
        // - a hostile peer may change the source meanwhile: bytes without invariants, looked at
        //   only after this copy.
        unsafe { copy_bytes::copy(from.as_ptr(), to, len) };
    }

    #[inline]
    unsafe fn write_shared(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: in the ring by the caller's duty.
        let to = unsafe { self.data.add(offset) };
        // SAFETY: as in `write`.
        unsafe { copy_bytes::copy_shared(from, to.as_ptr(), len) };
    }

    #[inline]
    unsafe fn read_shared(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: in the ring by the caller's duty.
        let from = unsafe { self.data.add(offset) };
        // SAFETY: as in `read`.
        unsafe { copy_bytes::copy_shared(from.as_ptr(), to, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::ring::{Consumer, Producer, payload_max};

    const RING: usize = *RING_BYTES.start();

    #[test]
    fn both_mappings_share_both_rings() {
        let (ours, fd) = Segment::create(RING).unwrap();
        let (ours, theirs) = (Arc::new(ours), Arc::new(Segment::attach(&fd, RING, true).unwrap()));
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            let mut producer = Producer::new(from.ring(true));
            let mut consumer = Consumer::new(to.ring(false));
            for round in 0..1000u32 {
                let bytes = vec![round as u8; round as usize * 13 % payload_max(RING)];
                let slot = producer.reserve(bytes.len()).unwrap().unwrap();
                producer.write(&slot, 0, &bytes);
                producer.publish(slot, 1, round);
                let record = consumer.peek().unwrap().unwrap();
                assert_eq!((record.tag, record.len), (round, bytes.len()));
                let mut out = vec![0; record.len];
                consumer.read(&record, 0, &mut out);
                assert_eq!(out, bytes);
                consumer.advance(record);
            }
        }
        ours.own_bell().announce(1);
        assert!(theirs.peer_bell().must_ring(1));
        assert!(!theirs.peer_bell().must_ring(1), "rung once");
        ours.gate_as_keeper().shut();
        assert!(!theirs.gate_as_copier().enter());
        assert!(ours.gate_as_copier().enter());
        assert!(!theirs.gate_as_keeper().is_quiet());
    }

    #[test]
    fn refuses_memory_that_could_shrink_or_has_another_size() {
        let (_ours, fd) = Segment::create(RING).unwrap();
        for ring in [0, RING + 4096, 2 * RING, RING / 2, 1 << 40] {
            assert!(Segment::attach(&fd, ring, true).is_err(), "{ring}");
        }
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"test", flags).unwrap();
        rustix::fs::ftruncate(&fd, total_bytes(RING) as u64).unwrap();
        let error = Segment::attach(&fd, RING, true).unwrap_err();
        assert!(error.contains("not sealed"), "{error}");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Segment::attach(&null.into(), RING, true).is_err());
    }
}
