//! Memory of a [`SharedBuffer`], which processes of one host can share.
//!
//! A buffer is a sealed memfd, mapped once here and once in each peer that is granted a transfer,
//! which then copies without the kernel. Nothing of it has a name in a file system, and its pages
//! are freed with the buffer, even if a peer still has them mapped.
//!
//! # What a peer that was granted access can do later
//!
//! A peer gets a descriptor of the whole buffer: read-only for what it may read, writable for what
//! it may write. It keeps the mapping until the buffer ends, and one with a fault may use it beyond
//! the transfers that it was granted. Therefore safe code sees the bytes only through
//! [`as_mut_slice`](SharedBuffer::as_mut_slice), which moves them to fresh memory if some peer was
//! given the right to write; and only processes of the same user get a descriptor.
//!
//! Against a *hostile* process of the same user none of this helps: through `/proc/self/fd` it can
//! open a read-only descriptor again, for writing, also where it may not attach to this process.
//! (The seal against that, `F_SEAL_FUTURE_WRITE`, is for good: the buffer could never be lent for
//! writing, and its pages not be freed while somebody maps them.) Such a process is trusted, as
//! everywhere under one user: it can replace this program.
//!
//! | state | who |
//! |---|---|
//! | [`SharedBuffer`] | the user, while it is not registered |
//! | [`Block`] | the buffer, the [`Memory`](crate::Memory) made of it, transfers in flight |

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::Advice;
use rustix::process::Pid;

use crate::limits::file_limit::{Pages, memfd};
use crate::{Error, RawSegment};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where and how shared memory is allocated.
///
/// ```
/// # use na_core as na;
/// use na::{AllocOptions, Memory};
///
/// let mut options = AllocOptions::on_node(0);
/// options.huge_pages = false;
/// let memory = Memory::alloc(8192, &options)?;
/// assert_eq!(memory.segments()[0].len, 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocOptions {
    /// Ask for huge pages. Advice: the kernel follows it if
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `advise` (or more). Default on.
    pub huge_pages: bool,
    /// NUMA node whose memory is preferred. Default: the node of the thread that touches a page
    /// first.
    pub numa_node: Option<u32>,
}

impl Default for AllocOptions {
    fn default() -> Self {
        Self { huge_pages: true, numa_node: None }
    }
}

impl AllocOptions {
    /// Default options, with memory preferred on `node`.
    pub fn on_node(node: u32) -> Self {
        Self { numa_node: Some(node), ..Self::default() }
    }
}

/// Zeroed memory that peers on the same host copy directly, see [`Memory::from_shared`].
///
/// [`Memory::from_shared`]: crate::Memory::from_shared
///
/// ```
/// # use na_core as na;
/// use na::{Access, AllocOptions, Memory, RegionTable, SharedBuffer};
///
/// let mut buffer = SharedBuffer::new(4096, &AllocOptions::default())?;
/// buffer.as_mut_slice()?[..4].copy_from_slice(b"data");
/// # let endpoint = RegionTable::new();
/// let registered = endpoint.register(Memory::from_shared(buffer), Access::ReadOnly)?;
/// // … peers copy it, and then it comes back.
/// let memory = registered.reclaim().map_err(|_| "somebody else has it, too")?;
/// let mut buffer: SharedBuffer = memory.into_owner().map_err(|_| "no such owner")?;
/// assert_eq!(buffer.as_mut_slice()?[..4], *b"data");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedBuffer {
    block: Arc<Block>,
    options: AllocOptions,
}

impl SharedBuffer {
    /// Allocates `len` bytes, all zero.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when `len` is zero, or the NUMA node does not exist or has no
    /// memory for this process; [`Error::Io`] when the system gives no memory, or `len` is beyond
    /// the limit on file sizes (`ulimit -f`), which also concerns such memory.
    pub fn new(len: usize, options: &AllocOptions) -> Result<Self, Error> {
        Ok(Self { block: Arc::new(Block::new(len, options)?), options: options.clone() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Returns whether there are no bytes; never.
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// The bytes, to read and change. If a peer was given the right to write, they are first moved
    /// to fresh memory, of which no peer has a descriptor. They are moved as well in a child
    /// process that was forked off: its parent has the same pages, which peers may use.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), when they have to be moved.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], Error> {
        if self.block.lent_writable() || self.block.is_parents() {
            let fresh = Block::new(self.block.len, &self.options)?;
            // SAFETY:
            // - both are live mappings of that length, and the new one overlaps nothing;
            // - a peer may change the source meanwhile: bytes without invariants.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.block.base.as_ptr(),
                    fresh.base.as_ptr(),
                    fresh.len,
                );
            }
            self.block = Arc::new(fresh);
        }
        // SAFETY:
        // - valid and initialised (zeroes from the kernel at least) for `len` bytes, as long as
        //   `self.block` lives, which the borrow outlasts;
        // - aliasing: the buffer is not registered, since that takes it by value and gives it back
        //   only when no transfer can touch it; no peer was given a descriptor for writing, nor are
        //   these a parent process's pages (both checked above), nor makes a peer itself one
        //   (processes of the same user are trusted not to, see the module's text); other clones
        //   of the block, if any, belong to announcements and do not touch the bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.block.base.as_ptr(), self.block.len) })
    }

    /// A buffer for data on its way to a peer, which may still read it when it ends here.
    #[doc(hidden)]
    pub fn for_transit(len: usize) -> Result<Self, Error> {
        let options = AllocOptions::default();
        let mut block = Block::new(len, &options)?;
        block.outlives_us = true;
        Ok(Self { block: Arc::new(block), options })
    }

    /// The memory of the buffer, which peers can map.
    #[doc(hidden)]
    #[inline]
    pub fn block(&self) -> &Arc<Block> {
        &self.block
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes)", self.len())
    }
}

/// One mapped memfd.
///
/// ```
/// use na_core::{AllocOptions, SharedBuffer};
///
/// let buffer = SharedBuffer::new(4096, &AllocOptions::default())?;
/// let block = buffer.block();
/// assert_eq!(block.segment().len, 4096);
/// // A descriptor for a peer that may read.
/// let file = std::fs::File::from(block.read_only_fd()?);
/// assert_eq!(file.metadata()?.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Block {
    /// Unique in this process, never used again; not zero.
    id: u64,
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    /// Some peer has, or had, a descriptor that can be written through.
    lent_writable: AtomicBool,
    /// The contents stay until the last peer has unmapped it.
    outlives_us: bool,
    /// The process that made it: a child that was forked off has only a copy of this value, and the
    /// same pages.
    process: Pid,
}

// SAFETY: the mapping is not tied to a thread and lives until `drop`; the bytes are reached through
// raw pointers, or by `SharedBuffer` with exclusive access.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize, options: &AllocOptions) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if len == 0 {
            return Err(Error::InvalidArgument("shared memory of zero bytes".into()));
        }
        let failed = |what: &str, errno| {
            Error::io(format!("cannot {what} {len} bytes of shared memory"), errno)
        };
        let fd = memfd(c"margo-alloc", "shared memory", len, Pages::Later)?;
        let base = map(&fd, len, true).map_err(|e| failed("map", e))?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let lent_writable = AtomicBool::new(false);
        let process = rustix::process::getpid();
        let block = Self { id, fd, base, len, lent_writable, outlives_us: false, process };
        if options.huge_pages {
            // Advice; a kernel without huge pages for shared memory refuses it.
            // SAFETY: our own mapping; the advice changes no contents.
            let _ = unsafe {
                rustix::mm::madvise(block.base.as_ptr().cast(), len, Advice::LinuxHugepage)
            };
        }
        if let Some(node) = options.numa_node {
            block.prefer_node(node)?;
        }
        block.populate().map_err(|e| failed("allocate", e))?;
        Ok(block)
    }

    /// Allocates all pages: here, not at the first touch, where a system out of memory can only
    /// kill. Through the mapping, so that the advice about it counts.
    fn populate(&self) -> rustix::io::Result<()> {
        // SAFETY: our own mapping; its contents stay what they are.
        let done = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite)
        };
        match done {
            // Linux before 5.14.
            Err(rustix::io::Errno::INVAL) => {
                rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, self.len as u64)
            }
            done => done,
        }
    }

    /// Prefers memory of one NUMA node for pages that are not there yet.
    fn prefer_node(&self, node: u32) -> Result<(), Error> {
        const MPOL_PREFERRED: libc::c_int = 1;
        const WORDS: usize = 16;
        let mut mask = [0u64; WORDS];
        let place = mask.get_mut(node as usize / 64);
        let bad = || Error::InvalidArgument(format!("there is no NUMA node {node}"));
        *place.ok_or_else(bad)? |= 1 << (node % 64);
        // The call below takes a node that is not there for "no preference".
        let nodes = std::path::Path::new("/sys/devices/system/node");
        if nodes.exists() && !nodes.join(format!("node{node}")).exists() {
            return Err(bad());
        }
        let bits = (WORDS * 64) as libc::c_ulong;
        // SAFETY:
        // - the range is our own mapping, whose contents the call does not change;
        // - the mask is a live array of at least as many bits as are named.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                MPOL_PREFERRED,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        if result == 0 {
            return Ok(());
        }
        match rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()) {
            // It is there, as far as one can see.
            Some(rustix::io::Errno::INVAL) => Err(Error::InvalidArgument(format!(
                "NUMA node {node} has no memory, or none that this process may use"
            ))),
            // A kernel without NUMA, or a filter: it has one node, or nobody may choose.
            _ if node == 0 => Ok(()),
            Some(errno) => Err(Error::io(format!("cannot prefer NUMA node {node}"), errno)),
            None => Err(bad()),
        }
    }

    /// The number of the block, which no other one of this process has.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether it is that of the process from which this one was forked off.
    fn is_parents(&self) -> bool {
        rustix::process::getpid() != self.process
    }

    /// The begin of the block.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The whole block.
    #[inline]
    pub fn segment(&self) -> RawSegment {
        RawSegment { ptr: self.base.as_ptr(), len: self.len }
    }

    /// A descriptor to hand to a peer that may write.
    pub fn writable_fd(&self) -> BorrowedFd<'_> {
        // Before the peer can have it. Whoever reads it owns the buffer alone by then.
        self.lent_writable.store(true, Ordering::Relaxed);
        self.fd.as_fd()
    }

    /// A descriptor to hand to a peer that may only read. It keeps an honest one from writing.
    ///
    /// # Errors
    ///
    /// There is no `/proc`, or no descriptor is left.
    pub fn read_only_fd(&self) -> rustix::io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    fn lent_writable(&self) -> bool {
        self.lent_writable.load(Ordering::Relaxed)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.outlives_us && !self.is_parents() {
            // Frees the pages although peers may have them mapped still.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&self.fd, hole, 0, self.len as u64);
            debug_assert!(punched.is_ok());
        }
        // SAFETY: the mapping made in `new`; whoever uses pointers into it holds the block.
        unsafe { unmap(self.base, self.len) };
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({}, {} bytes)", self.id, self.len)
    }
}

/// Maps the first `len` bytes of `fd`, which must not be able to shrink below that.
///
/// By libc's function, and so is [`unmap`]: UCX and libfabric put hooks into those, to notice
/// memory that they have registered and that goes away. They do not see a system call as rustix
/// makes it. The next buffer at that address would be taken for the old one, whose pages the
/// adapter would read and write.
///
/// # Errors
///
/// Those of `mmap`.
pub fn map(fd: impl AsFd, len: usize, writable: bool) -> rustix::io::Result<NonNull<u8>> {
    let write = if writable { libc::PROT_WRITE } else { 0 };
    let (protection, fd) = (libc::PROT_READ | write, fd.as_fd().as_raw_fd());
    // SAFETY: the kernel chooses a free address, so no existing memory is replaced.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(last_errno());
    }
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

fn last_errno() -> rustix::io::Errno {
    let error = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::NOMEM)
}

/// Ends a mapping.
///
/// # Safety
///
/// [`map`] made it, with that length, and no pointer into it is used any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the caller's duty.
    let unmapped = unsafe { libc::munmap(base.as_ptr().cast(), len) };
    debug_assert!(unmapped == 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_as_zeroes_and_keeps_what_is_written() {
        let mut buffer = SharedBuffer::new(10_000, &AllocOptions::default()).unwrap();
        let bytes = buffer.as_mut_slice().unwrap();
        assert!(bytes.len() == 10_000 && bytes.iter().all(|byte| *byte == 0));
        bytes[9_999] = 7;
        assert_eq!(buffer.as_mut_slice().unwrap()[9_999], 7);
        assert!(SharedBuffer::new(0, &AllocOptions::default()).is_err());
    }

    #[test]
    fn a_numa_node_can_be_preferred_and_a_missing_one_is_told() {
        let mut buffer = SharedBuffer::new(4096, &AllocOptions::on_node(0)).unwrap();
        buffer.as_mut_slice().unwrap()[0] = 1;
        for node in [1000, 1023, 5000] {
            let error = SharedBuffer::new(4096, &AllocOptions::on_node(node)).unwrap_err();
            assert!(error.to_string().contains("NUMA node"), "{error}");
        }
    }

    #[test]
    fn a_peer_that_could_write_cannot_reach_the_bytes_of_a_slice() {
        let mut buffer = SharedBuffer::new(4096, &AllocOptions::default()).unwrap();
        buffer.as_mut_slice().unwrap()[0] = 1;
        let foreign = map(buffer.block().writable_fd(), 4096, true).unwrap();
        let before = buffer.block().id();
        assert_eq!(buffer.as_mut_slice().unwrap()[0], 1);
        assert_ne!(buffer.block().id(), before, "moved");
        // SAFETY: our own second mapping of the old memory.
        unsafe { foreign.as_ptr().write(9) };
        assert_eq!(buffer.as_mut_slice().unwrap()[0], 1);
        // SAFETY: mapped above.
        unsafe { unmap(foreign, 4096) };
    }

    #[test]
    fn a_read_only_descriptor_cannot_be_mapped_for_writing() {
        let buffer = SharedBuffer::new(4096, &AllocOptions::default()).unwrap();
        let fd = buffer.block().read_only_fd().unwrap();
        assert!(map(&fd, 4096, true).is_err());
        let mapped = map(&fd, 4096, false).unwrap();
        // SAFETY: mapped above.
        unsafe { unmap(mapped, 4096) };
        assert!(!buffer.block().lent_writable());
    }

    #[test]
    fn pages_are_freed_with_the_buffer_although_a_peer_maps_them() {
        let mut buffer = SharedBuffer::new(4096, &AllocOptions::default()).unwrap();
        buffer.as_mut_slice().unwrap()[0] = 5;
        let fd = buffer.block().read_only_fd().unwrap();
        drop(buffer);
        let blocks = rustix::fs::fstat(&fd).unwrap().st_blocks;
        assert_eq!(blocks, 0);
    }
}
