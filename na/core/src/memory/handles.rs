//! Memory that peers may read or write.
//!
//! Such memory is not a Rust slice while it is registered: another process, or a transfer in
//! another thread, may change it at any time. So [`Memory`] takes its owner in, keeps raw segments,
//! and gives the owner back only when no transfer can touch it any more (see
//! [`LocalMem::revoke`]).

use std::alloc::Layout;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::memory::alloc::Block;
use crate::memory::region::Region;
use crate::{Access, AllocOptions, Error, RawSegment, SharedBuffer, Terms};

/// Memory with its owner, as it goes into and comes out of registration.
///
/// ```
/// # use na_core as na;
/// use na::Memory;
///
/// let memory = Memory::from_vecs(vec![b"one".to_vec(), b"and another".to_vec()]);
/// assert_eq!(memory.segments().len(), 2);
/// let pieces: Vec<Vec<u8>> = memory.into_owner().map_err(|_| "no such owner")?;
/// assert_eq!(pieces[1], b"and another");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Memory {
    segments: Box<[RawSegment]>,
    /// Dropped before the owner.
    guard: Option<Box<dyn Any + Send>>,
    owner: Box<dyn Any + Send>,
    /// Bytes that are not in the memory of this host.
    elsewhere: Option<Elsewhere>,
    /// The block that holds the only segment, if peers on this host can map it.
    block: Option<Arc<Block>>,
    /// It may be a mapped file.
    is_raw: bool,
}

/// Bytes that this host cannot read, such as those of a device: how many, and what moves them.
#[derive(Clone)]
pub(crate) struct Elsewhere {
    pub(crate) len: u64,
    pub(crate) place: Arc<dyn Any + Send + Sync>,
}

// SAFETY:
// - `owner`, `guard` and `elsewhere` are `Send`;
// - `segments` point into memory that `owner` keeps alive (contract of `from_raw`), which is not
//   tied to a thread.
unsafe impl Send for Memory {}

/// `len` zeros, of which the system provides the pages when they are first written; `None` if there
/// is no such memory. For lengths that a peer makes grow: `vec!` would end the process.
pub fn zeros(len: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(len).ok()?;
    if len == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the size is not zero.
    let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
    if bytes.is_null() {
        return None;
    }
    // SAFETY:
    // - origin: the global allocator gave it, with the layout of so many bytes; nobody else has it;
    // - initialised: `len` zeros, and the capacity is no more.
    Some(unsafe { Vec::from_raw_parts(bytes, len, len) })
}

#[cold]
fn out_of_memory(len: usize) -> Error {
    Error::io(format!("a buffer of {len} bytes"), std::io::ErrorKind::OutOfMemory)
}

/// A vector that goes somewhere when it is no longer needed.
struct Returned {
    bytes: Vec<u8>,
    back: fn(Vec<u8>),
}

impl Drop for Returned {
    fn drop(&mut self) {
        (self.back)(std::mem::take(&mut self.bytes));
    }
}

impl Memory {
    fn of(segments: Box<[RawSegment]>, owner: Box<dyn Any + Send>) -> Self {
        Self { segments, guard: None, owner, elsewhere: None, block: None, is_raw: false }
    }

    /// One segment: the vector's elements (its length, not its capacity).
    #[inline]
    pub fn from_vec(mut bytes: Vec<u8>) -> Self {
        let segments = [RawSegment { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
        Self::of(Box::new(segments), Box::new(bytes))
    }

    /// As [`from_vec`](Self::from_vec), but `back` gets the vector when the memory is dropped, in
    /// place of its being freed. The owner is no `Vec<u8>` then.
    pub fn from_vec_with(mut bytes: Vec<u8>, back: fn(Vec<u8>)) -> Self {
        let segments = [RawSegment { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
        let owner = Returned { bytes, back };
        Self::of(Box::new(segments), Box::new(owner))
    }

    /// One segment of `len` zeros, whose owner is a `Vec<u8>`. The system provides the pages when
    /// they are first written. For lengths that a peer has given: `vec!` ends the process if there
    /// is no such memory.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the kind `OutOfMemory`.
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        zeros(len).map(Self::from_vec).ok_or_else(|| out_of_memory(len))
    }

    /// One segment for each vector.
    pub fn from_vecs(mut pieces: Vec<Vec<u8>>) -> Self {
        let segments = pieces
            .iter_mut()
            .map(|piece| RawSegment { ptr: piece.as_mut_ptr(), len: piece.len() })
            .collect();
        Self::of(segments, Box::new(pieces))
    }

    /// Fresh memory of `len` zero bytes that peers on this host copy directly; its owner is a
    /// [`SharedBuffer`].
    ///
    /// # Errors
    ///
    /// As [`SharedBuffer::new`].
    pub fn alloc(len: usize, options: &AllocOptions) -> Result<Self, Error> {
        SharedBuffer::new(len, options).map(Self::from_shared)
    }

    /// One segment: the buffer. A transport within one host lets peers copy it directly, without
    /// the kernel; for others it is memory like any other.
    pub fn from_shared(buffer: SharedBuffer) -> Self {
        let block = buffer.block().clone();
        let segments = Box::new([block.segment()]);
        Self { block: Some(block), ..Self::of(segments, Box::new(buffer)) }
    }

    /// Segments that `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped or handed back, each segment must be initialised, without padding,
    /// and valid for reads and writes, at a fixed address. It need be valid for reads only, if it
    /// is registered with [`Access::ReadOnly`], never used as the destination of a transfer, and
    /// never written to by us, as by [`LocalMem::write_at`](crate::LocalMem::write_at). Nobody may
    /// hold a Rust reference to its bytes while a peer can change them. Bytes that a peer may write
    /// must be valid for the owner's type whatever they are, should they be looked at as such. The
    /// owner must not have the bytes by a `Box` or a reference, which claims them when it is moved:
    /// a `Vec` and a raw pointer do not. A mapped file must not be cut short: a copy here in user
    /// space (over sm, of short data that comes, by
    /// [`LocalMem::write_at`](crate::LocalMem::write_at) and its like) ends the process by SIGBUS
    /// then. Where the kernel copies, as over tcp, the transfer alone ends, with an error.
    pub unsafe fn from_raw(segments: Vec<RawSegment>, owner: impl Any + Send) -> Self {
        // What has no size owns no mapping: the memory is borrowed from elsewhere in the program.
        let is_raw = size_of_val(&owner) > 0;
        Self { is_raw, ..Self::of(segments.into_boxed_slice(), Box::new(owner)) }
    }

    /// `len` bytes that are not in the memory of this host, such as those of a device, and that
    /// `place` stands for: it has no segments, and no transport ever touches it. For a
    /// [`RegionTable`](crate::RegionTable) that no transport serves; whoever has that moves the
    /// bytes by other means.
    #[doc(hidden)]
    pub fn elsewhere(len: u64, place: Arc<dyn Any + Send + Sync>, owner: impl Any + Send) -> Self {
        let elsewhere = Some(Elsewhere { len, place });
        Self { elsewhere, ..Self::of(Box::default(), Box::new(owner)) }
    }

    /// Drops `guard` when the memory is dropped, before its owner is.
    #[doc(hidden)]
    #[must_use]
    pub fn guarded_by(self, guard: impl Any + Send) -> Self {
        Self { guard: Some(Box::new(guard)), ..self }
    }

    /// The segments.
    pub fn segments(&self) -> &[RawSegment] {
        &self.segments
    }

    /// Returns the block that holds the segment, if peers on this host can map it.
    pub(crate) fn block(&self) -> Option<&Arc<Block>> {
        self.block.as_ref()
    }

    pub(crate) fn place_elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Returns whether it was made by [`from_raw`](Self::from_raw) of memory that it owns.
    pub(crate) fn is_raw(&self) -> bool {
        self.is_raw
    }

    /// The owner, if it is a `T`: a `Vec<u8>` after `from_vec` and `zeroed`, a `Vec<Vec<u8>>` after
    /// `from_vecs`, a [`SharedBuffer`] after `alloc` and `from_shared`.
    ///
    /// # Errors
    ///
    /// The memory itself when its owner is of another type.
    pub fn into_owner<T: Any>(self) -> Result<T, Self> {
        let Self { segments, guard, owner, elsewhere, block, is_raw } = self;
        match owner.downcast::<T>() {
            Ok(owner) => Ok(*owner),
            Err(owner) => Err(Self { segments, guard, owner, elsewhere, block, is_raw }),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} segments)", self.segments.len())
    }
}

/// Registered memory of this process. Cheap to clone; peers can use it until it is revoked or the
/// last clone is dropped, and it stays alive until the last transfer in flight has ended.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-local-mem").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Memory};
///
/// let registered = a.register(Memory::from_vec(vec![0; 8]), Access::ReadWrite)?;
/// assert!(registered.write_at(2, b"data") && !registered.write_at(6, b"data"), "out of range");
/// let (tell, told) = std::sync::mpsc::channel();
/// registered.revoke(move |memory| tell.send(memory).unwrap_or_default());
/// let bytes: Vec<u8> = told.recv()?.into_owner().map_err(|_| "no such owner")?;
/// assert_eq!(bytes, b"\0\0data\0\0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `na_mem_handle_t` (owner's side).
#[derive(Clone)]
pub struct LocalMem(Arc<Region>);

impl LocalMem {
    #[inline]
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(region)
    }

    /// The region behind it. For transports, which keep a clone for as long as they touch it.
    #[doc(hidden)]
    #[inline]
    pub fn region(&self) -> &Arc<Region> {
        &self.0
    }

    /// Returns the access that peers have.
    #[inline]
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// Bytes in all segments, or elsewhere.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the place that [`Memory::elsewhere`] was given.
    #[doc(hidden)]
    #[inline]
    pub fn elsewhere(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.0.elsewhere()
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of each segment.
    #[inline]
    pub fn segments(&self) -> &[RawSegment] {
        self.0.segments()
    }

    /// Unguessable number by which peers name it.
    #[inline]
    pub fn key(&self) -> u64 {
        self.0.key()
    }

    /// Makes memory of the bytes of `range`, to be registered once more, under a key that can be
    /// taken back without taking this one's. It keeps the memory alive. `None`: the bytes are not
    /// inside, or not here.
    #[doc(hidden)]
    pub fn alias(&self, range: std::ops::Range<u64>) -> Option<Memory> {
        let region = &self.0;
        let len = range.end.checked_sub(range.start)?;
        if !region.contains(range.start, len) || region.elsewhere().is_some() {
            return None;
        }
        let segments: Box<[_]> = region.pieces(range.start, len).collect();
        // Without the block: a peer keeps what it has mapped, longer than it has the key.
        let is_raw = region.is_raw();
        Some(Memory { is_raw, ..Memory::of(segments, Box::new(self.clone())) })
    }

    /// A reference that does not keep the memory registered, for handles that travel.
    #[inline]
    pub fn downgrade(&self) -> WeakMem {
        WeakMem(Arc::downgrade(&self.0))
    }

    /// Lets peers use the memory only on these terms, in place of those before. To be done before
    /// its key is told to anybody: a peer that was let copy without asking still may.
    ///
    /// Transports that do not [ask owners](crate::Endpoint::asks_owners) keep no terms.
    pub fn impose(&self, terms: Terms) {
        self.0.impose(terms);
    }

    /// Takes the key back: from now on peers are refused. `released` gets the memory when the last
    /// transfer that had begun is over, which may be before this returns; it runs on the thread
    /// that ended that transfer and must not block.
    ///
    /// Other clones keep the memory alive as well, but do not keep the key.
    ///
    /// Memory that peers may go on using stays for good, and `released` is dropped without being
    /// called. That is so where a library below the transport refuses to end its registration, and
    /// where the endpoint is dropped while a stopped peer was copying, which the log tells.
    ///
    /// In a child process that was forked off, `released` gets the child's copy at once, and
    /// nothing changes for the parent's memory and its peers. Memory of [`alloc`](Memory::alloc) is
    /// one and the same in both processes, which its [`SharedBuffer`] knows. The system may have
    /// left memory that a device accesses directly out of the child: it must not be touched there.
    pub fn revoke(self, released: impl FnOnce(Memory) + Send + 'static) {
        self.0.revoke(Box::new(released));
    }

    /// Takes the key back, and the memory out, if this is the only reference to it.
    ///
    /// # Errors
    ///
    /// The value itself, for [`revoke`](Self::revoke), when there are other references: clones, a
    /// [`WeakMem`], transfers in flight, peers that may copy without asking. Its key is gone all
    /// the same.
    pub fn reclaim(mut self) -> Result<Memory, Self> {
        Region::reclaim(&mut self.0).ok_or(self)
    }

    /// Returns whether a peer may still write here for a get of ours that has ended with an error:
    /// it was canceled, or its connection has ended, while the peer was copying, and the peer has
    /// not said that it stopped (it may be stopped itself). It is over when the peer has answered,
    /// ended, or been given up. Until then the memory stays alive whoever drops it, nobody may have
    /// a Rust reference to it, and another get into it is refused.
    ///
    /// To be asked after the completion of a get; a peer begins nothing after that.
    #[inline]
    pub fn may_be_written(&self) -> bool {
        self.0.is_late()
    }

    /// Copies `out.len()` bytes from `offset`. `false`, and nothing copied, when out of range.
    /// Bytes that a peer, a transfer of ours or another thread writes at the same time are seen in
    /// part, byte by byte: no more than that can happen.
    /// Bytes that are elsewhere are out of range.
    #[must_use]
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> bool {
        self.0.read_at(offset, out)
    }

    /// Copies `bytes` to `offset`. `false`, and nothing copied, when out of range. A byte that
    /// others write at the same time ends up as one of the values written.
    #[must_use]
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> bool {
        self.0.write_at(offset, bytes)
    }

    /// Asks the cache for up to `len` bytes from `offset`, which a peer has read and which are soon
    /// to be written here. A hint, of use only for memory that peers map.
    pub fn prepare_write(&self, offset: u64, len: u64) {
        self.0.prepare_write(offset, len);
    }
}

impl fmt::Debug for LocalMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalMem({} bytes, {:?})", self.len(), self.access())
    }
}

/// Names registered memory of this process without keeping it registered.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-weak-mem").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Memory};
///
/// let registered = a.register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// let name = registered.downgrade();
/// assert!(name.upgrade().is_some());
/// drop(registered);
/// assert!(name.upgrade().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct WeakMem(std::sync::Weak<Region>);

impl WeakMem {
    /// The memory, if it is still registered or in use by a transfer.
    #[inline]
    pub fn upgrade(&self) -> Option<LocalMem> {
        self.0.upgrade().map(LocalMem)
    }
}

impl fmt::Debug for WeakMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakMem")
    }
}

/// A peer's registered memory, as described by the peer.
///
/// The peer's word about length and access serves early errors only; the owner checks again.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-remote-mem").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Memory};
///
/// let registered = b.register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// let bytes = b.mem_to_bytes(&registered); // go to a in a message
/// let remote = a.mem_from_bytes(&bytes)?;
/// assert_eq!((remote.len, remote.access), (8, Access::ReadOnly));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteMem {
    /// The owner's key.
    pub key: u64,
    /// Bytes in all segments.
    pub len: u64,
    /// The access that we have.
    pub access: Access,
    /// The owner's own description, where the transport needs more than the key to reach it
    /// (fabrics: addresses, and a key for each segment). `None` for our own transports.
    pub native: Option<Arc<[u8]>>,
}

impl RemoteMem {
    /// Bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 24;

    /// The description that our own transports send: key, length, access, 7 zero bytes; all little
    /// endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16] = self.access.bits();
        bytes
    }

    /// Reads [`to_bytes`](Self::to_bytes); `None` when it is not such a description.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[17..].iter().any(|byte| *byte != 0) {
            return None;
        }
        let access = Access::from_bits(bytes[16])?;
        Some(Self { key: word(0)?, len: word(8)?, access, native: None })
    }
}
