//! Memory for stacks: its class, mappings, and guard pages.
//!
//! The guard is installed with `MADV_GUARD_INSTALL` (Linux 6.13), which leaves neighbouring
//! mappings in one piece, so millions of stacks need no more kernel map entries than one. Older
//! kernels get `mprotect`, two map entries per stack; then `vm.max_map_count` bounds the number of
//! stacks to about 32,000.
//!
//! Memory is only reserved (`MAP_NORESERVE`); the kernel provides pages when they are touched.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::base::contain::log;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::topology::{MemoryPolicy, bind_memory};

/// Smallest stack: enough for a panic message and its formatting.
pub(crate) const STACK_BYTES_MIN: usize = 16 * 1024;
/// Largest stack; more than that is a mistake of units.
pub(crate) const STACK_BYTES_MAX: usize = 1 << 36;
/// Default, virtual. The same as `abt_thread_stacksize` of the C Margo.
pub(crate) const STACK_BYTES_DEFAULT: usize = 2 * 1024 * 1024;

/// The size and memory placement of a stack.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct StackClass {
    /// Units of [`GRAIN`] without the guard.
    grains: u32,
    /// NUMA node of the memory, or one of the following.
    node: u32,
}

/// A divisor of every page size.
const GRAIN: usize = 4096;

/// In place of a node: wherever the memory is touched first.
const NO_NODE: u32 = u32::MAX;

/// In place of a node: the memory belongs to a user and is not reused.
const USERS: u32 = u32::MAX - 1;

impl PartialEq for StackClass {
    // One comparison instead of two; the compiler does not find that by itself.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.word() == other.word()
    }
}

impl Eq for StackClass {}

impl StackClass {
    #[inline]
    fn word(self) -> u64 {
        u64::from(self.grains) | u64::from(self.node) << 32
    }

    pub(crate) const NONE: Self = Self { grains: 0, node: NO_NODE };

    /// The class of a requested size: whole pages, within the limits.
    pub(crate) fn new(bytes: usize, node: Option<u32>) -> Self {
        let page = rustix::param::page_size();
        let bytes = bytes.clamp(STACK_BYTES_MIN, STACK_BYTES_MAX).next_multiple_of(page);
        Self::of(bytes, node.unwrap_or(NO_NODE))
    }

    /// The class of a user's own memory of `bytes` without the guard.
    pub(crate) fn of_user(bytes: usize) -> Self {
        Self::of(bytes.min(STACK_BYTES_MAX), USERS)
    }

    fn of(bytes: usize, node: u32) -> Self {
        Self { grains: u32::try_from(bytes / GRAIN).unwrap_or(u32::MAX), node }
    }

    /// Bytes without the guard.
    pub(crate) fn bytes(self) -> usize {
        self.grains as usize * GRAIN
    }

    /// Bytes of memory that a stack takes, with the guard.
    pub(super) fn mapped_bytes(self) -> usize {
        self.bytes() + rustix::param::page_size()
    }

    /// The NUMA node, if one was asked for.
    pub(crate) fn node(self) -> Option<u32> {
        (self.node < USERS).then_some(self.node)
    }

    /// Returns whether the memory belongs to a user.
    pub(crate) fn is_users(self) -> bool {
        self.node == USERS
    }
}

/// Asks for memory of a NUMA node. A refusal costs speed, not correctness.
pub(super) fn bind(start: NonNull<u8>, len: usize, node: u32) {
    if let Err(error) = bind_memory(start.as_ptr(), len, node, MemoryPolicy::Preferred) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Relaxed) {
            log!(WARN, %error, node, "cannot bind the memory of stacks to a NUMA node");
        }
    }
}

/// Not in the libc crate yet.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// Maps memory by libc's function, as [`unmap`] unmaps it: libraries for networks (UCX, libfabric)
/// put hooks into those, to notice memory that they have registered and that goes away, such as a
/// buffer on a stack. They do not see a system call as rustix makes it.
pub(super) fn map(len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if huge_pages_always() {
        // SAFETY: our own fresh mapping. An error only means that a stack may use a huge page.
        unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// # Safety
///
/// `start` and `len` are a mapping of [`map`] that nobody uses any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: duty of the caller.
    let result = unsafe { libc::munmap(start.as_ptr().cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How a page was made inaccessible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// `MADV_GUARD_INSTALL`: no mapping of its own.
    Marker,
    /// `mprotect`.
    Mapping,
}

/// Makes a guard page ordinary memory again.
pub(crate) fn unprotect(start: NonNull<u8>, page: usize, how: Guard) {
    /// Not in the libc crate yet.
    const MADV_GUARD_REMOVE: libc::c_int = 103;
    if how == Guard::Marker {
        // SAFETY: a page that `protect` has made a guard.
        unsafe { libc::madvise(start.as_ptr().cast(), page, MADV_GUARD_REMOVE) };
        return;
    }
    let flags = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: as above.
    if let Err(error) = unsafe { rustix::mm::mprotect(start.as_ptr().cast(), page, flags) } {
        log!(ERROR, %error, "cannot take the guard page of a stack away");
    }
}

/// Makes the first page of memory that nobody uses inaccessible.
///
/// Kernels before 6.13 know no markers, and none has them for locked memory.
pub(crate) fn protect(start: NonNull<u8>, page: usize) -> io::Result<Guard> {
    const UNKNOWN: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    /// The kernel's support of guard markers; the kernel is asked when it has refused one.
    static KNOWS: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = KNOWS.load(Relaxed);
    if known != NO {
        // SAFETY: the first page of memory that is exclusively ours.
        let result = unsafe { libc::madvise(start.as_ptr().cast(), page, MADV_GUARD_INSTALL) };
        if result == 0 {
            return Ok(Guard::Marker);
        }
        let refused = io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        if refused && known == UNKNOWN {
            KNOWS.store(if knows_markers(page) { YES } else { NO }, Relaxed);
        }
    }
    // SAFETY: as above.
    unsafe { rustix::mm::mprotect(start.as_ptr().cast(), page, MprotectFlags::empty()) }?;
    Ok(Guard::Mapping)
}

/// Makes the first page of each of `count` pieces of `each` bytes inaccessible, all by one system
/// call: of so many, most of the time would be spent on the way into the kernel and back. Returns
/// whether all are. Older kernels refuse, or do not know who is meant, and a filter of system calls
/// may refuse too; the caller then has [`protect`] for each.
pub(super) fn protect_all(start: NonNull<u8>, each: usize, count: usize, page: usize) -> bool {
    /// `PIDFD_SELF_THREAD`; not in the libc crate yet.
    const THIS_THREAD: libc::c_long = -10_000;
    let first = |index| start.as_ptr().wrapping_add(index * each);
    let guard = |index| libc::iovec { iov_base: first(index).cast(), iov_len: page };
    let guards: Vec<_> = (0..count).map(guard).collect();
    let (list, flags) = (guards.as_ptr(), 0_usize);
    let call = libc::SYS_process_madvise;
    // SAFETY: the first pages of memory that is exclusively ours, in a list that lives.
    let done = unsafe { libc::syscall(call, THIS_THREAD, list, count, MADV_GUARD_INSTALL, flags) };
    usize::try_from(done) == Ok(count * page)
}

/// Returns whether this kernel does for ordinary memory what it has refused for some. Where there
/// is none for the question it may as well know.
#[cold]
fn knows_markers(page: usize) -> bool {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses a free address.
    let Ok(start) =
        (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), page, protection, flags) })
    else {
        return true;
    };
    // All memory is locked in some processes (`mlockall`).
    // SAFETY: the mapping made above.
    let _ = unsafe { rustix::mm::munlock(start, page) };
    // SAFETY: as above.
    let known = unsafe { libc::madvise(start, page, MADV_GUARD_INSTALL) } == 0;
    // SAFETY: as above; nobody else knows of it.
    let _ = unsafe { rustix::mm::munmap(start, page) };
    known
}

/// Returns whether the kernel would back a whole stack by one huge page at the first touch.
fn huge_pages_always() -> bool {
    const UNKNOWN: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    static ANSWER: AtomicU32 = AtomicU32::new(UNKNOWN);

    if ANSWER.load(Relaxed) == UNKNOWN {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let always = setting.is_ok_and(|text| text.contains("[always]"));
        ANSWER.store(if always { YES } else { NO }, Relaxed);
    }
    ANSWER.load(Relaxed) == YES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages_within_limits() {
        let page = rustix::param::page_size();
        let bytes = |bytes| StackClass::new(bytes, None).bytes();
        assert_eq!(bytes(0) % page, 0);
        assert!(bytes(0) >= STACK_BYTES_MIN);
        assert_eq!(bytes(STACK_BYTES_DEFAULT), STACK_BYTES_DEFAULT);
        assert_eq!(bytes(usize::MAX), STACK_BYTES_MAX);
    }
}
