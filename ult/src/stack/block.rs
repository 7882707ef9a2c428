//! Stacks: one memory mapping each, with a guard page at the low end and a [`StackBlock`] at the
//! high end.
//!
//! ```text
//! low address                                          high address
//! | guard page | ... stack, grows down ...  <- base | StackBlock |
//! ```
//!
//! The guard is installed with `MADV_GUARD_INSTALL` (Linux 6.13), which leaves neighbouring
//! mappings in one piece, so millions of stacks need no more kernel map entries than one. Older
//! kernels get `mprotect`, two map entries per stack; then `vm.max_map_count` bounds the number of
//! stacks to about 32,000.
//!
//! Memory is only reserved (`MAP_NORESERVE`); the kernel provides pages when they are touched.
//!
//! Equal mappings would put every base at the same place of a page, and all of them into the same
//! few sets of the first-level cache. So bases are staggered ("coloured") within the top page.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::base::contain::log;
use crate::stack::context::{Back, Context};
use crate::stack::user::UserStack;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

/// Smallest stack: enough for a panic message and its formatting.
pub(crate) const STACK_BYTES_MIN: usize = 16 * 1024;
/// Largest stack; more than that is a mistake of units.
pub(crate) const STACK_BYTES_MAX: usize = 1 << 36;
/// Default, virtual. The same as `abt_thread_stacksize` of the C Margo.
pub(crate) const STACK_BYTES_DEFAULT: usize = 2 * 1024 * 1024;
/// Bytes that an idle stack keeps when it is trimmed, counted from its top.
const KEEP_BYTES: usize = 16 * 1024;
/// Distance and number of the places at which bases are put within the top page.
const COLOUR_BYTES: usize = 128;
const COLOURS: usize = 12;

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
    fn mapped_bytes(self) -> usize {
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

/// The stack part of a mapping, for corosensei. It does not own the mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockStack {
    /// Start of the guard page.
    start: NonZeroUsize,
    /// Where the stack begins and the block stands.
    base: NonZeroUsize,
}

// SAFETY:
// - guard page: `map_stack` and `UserStack` install it at `start` before the stack is used;
// - size: at least `STACK_BYTES_MIN` less the top page, more than 4096;
// - alignment: `base` is a multiple of the block's alignment (64), `start` of the page size.
unsafe impl Stack for BlockStack {
    #[inline]
    fn base(&self) -> StackPointer {
        self.base
    }

    #[inline]
    fn limit(&self) -> StackPointer {
        self.start
    }
}

/// The control block at the top of every stack. Only the thread that runs the stack, or holds it in
/// its cache, touches it.
#[repr(C, align(64))]
pub(crate) struct StackBlock {
    pub(crate) context: Context,
    pub(crate) back: Cell<*const Back>,
    /// The unit that lives on this stack.
    pub(crate) occupant: Cell<*const ()>,
    stack: BlockStack,
    pub(crate) class: StackClass,
    /// The next idle stack, of those of the xstream's usual class.
    pub(crate) next: Cell<*const StackBlock>,
    /// Place in the register of the xstream that holds the stack.
    pub(crate) registered_at: Cell<usize>,
    /// Memory that is not ours and goes back to its owner.
    user: Cell<Option<UserStack>>,
}

impl StackBlock {
    /// Returns whether `addr` is in the guard page. Async-signal-safe.
    pub(crate) fn guards(&self, addr: usize, page_bytes: usize) -> bool {
        addr >= self.stack.start.get() && addr - self.stack.start.get() < page_bytes
    }

    /// Bytes between `addr`, which is on this stack, and the guard page.
    pub(crate) fn room_below(&self, addr: usize) -> usize {
        addr.saturating_sub(self.stack.start.get() + rustix::param::page_size())
    }

    /// Lowest address that may be used, and the number of bytes up to the first frame.
    pub(crate) fn range(&self) -> (usize, usize) {
        let low = self.stack.start.get() + rustix::param::page_size();
        (low, self.stack.base.get() - low)
    }
}

/// A pointer to a block whose holder keeps the stack alive: the ULT that runs on it, or the cache
/// that it is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockPtr(NonNull<StackBlock>);

impl BlockPtr {
    pub(crate) fn as_ptr(self) -> *const StackBlock {
        self.0.as_ptr()
    }

    /// # Safety
    ///
    /// `ptr` came from [`as_ptr`](Self::as_ptr), and its stack is alive.
    pub(crate) unsafe fn from_ptr(ptr: *const StackBlock) -> Option<Self> {
        NonNull::new(ptr.cast_mut()).map(Self)
    }
}

impl Deref for BlockPtr {
    type Target = StackBlock;

    #[inline]
    fn deref(&self) -> &StackBlock {
        // SAFETY:
        // - valid: promise of the type; shared access only.
        unsafe { self.0.as_ref() }
    }
}

impl fmt::Debug for BlockPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockPtr").field(&self.0).finish()
    }
}

/// Memory for stacks of one class that have not been made yet, from one system call.
pub(crate) struct Reserve {
    class: StackClass,
    next: NonNull<u8>,
    left: usize,
}

impl Reserve {
    /// Memory for `count` stacks, which costs address space only.
    pub(crate) fn map(class: StackClass, count: usize) -> io::Result<Self> {
        let len = class.mapped_bytes() * count;
        let next = map(len)?;
        if let Some(node) = class.node() {
            bind(next, len, node);
        }
        Ok(Self { class, next, left: count })
    }

    /// Makes the next stack; none if the memory is used up.
    pub(crate) fn make(&mut self) -> io::Result<Option<BlockPtr>> {
        if self.left == 0 {
            return Ok(None);
        }
        let (start, len) = (self.next, self.class.mapped_bytes());
        protect(start, rustix::param::page_size())?;
        self.left -= 1;
        // SAFETY:
        // - in bounds: within the mapping, or its end.
        self.next = unsafe { start.add(len) };
        // SAFETY:
        // - exclusive, writable, large enough: this part of our own mapping, which is left to the
        //   stack; guarded: above.
        Ok(Some(unsafe { init_stack(start, len, self.class, None) }))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if self.left > 0 {
            // SAFETY: the rest of our own mapping, which nobody uses.
            let result = unsafe { unmap(self.next, self.class.mapped_bytes() * self.left) };
            if let Err(error) = result {
                // It has no pages.
                log!(DEBUG, %error, "address space of stacks that were never made is lost");
            }
        }
    }
}

/// Writes the block of a stack into the top of its memory.
///
/// # Safety
///
/// `start` and `len` are writable memory of class `class` that nobody else uses until
/// [`unmap_stack`], and whose first page is a guard; it holds at least `STACK_BYTES_MIN` and a
/// page.
pub(crate) unsafe fn init_stack(
    start: NonNull<u8>,
    len: usize,
    class: StackClass,
    user: Option<UserStack>,
) -> BlockPtr {
    static NEXT_COLOUR: AtomicUsize = AtomicUsize::new(0);
    let colour = NEXT_COLOUR.fetch_add(1, Relaxed) % COLOURS * COLOUR_BYTES;
    let top = start.as_ptr().addr() + len;
    let base = (top - size_of::<StackBlock>() - colour) & !(align_of::<StackBlock>() - 1);
    let place = start.as_ptr().with_addr(base).cast::<StackBlock>();
    let addr = |addr| NonZeroUsize::new(addr).unwrap_or(NonZeroUsize::MIN);
    let stack = BlockStack { start: addr(start.as_ptr().addr()), base: addr(base) };
    // SAFETY: above `start`, hence not null.
    let place = unsafe { NonNull::new_unchecked(place) };
    let block = StackBlock {
        context: Context::new(stack, place),
        back: Cell::new(ptr::null()),
        occupant: Cell::new(ptr::null()),
        stack,
        class,
        next: Cell::new(ptr::null()),
        registered_at: Cell::new(usize::MAX),
        user: Cell::new(user),
    };
    // SAFETY:
    // - room and alignment: `base` was computed for it, above the first frame;
    // - exclusive: duty of the caller.
    unsafe { place.write(block) };
    BlockPtr(place)
}

/// Gives the memory back to the system, or to the user whose it is. Returns the stack, made anew
/// and without pages but the first ones, if the system did not take it: a hole in a mapping makes
/// two of one, and the system allows a process only so many (`vm.max_map_count`).
///
/// # Safety
///
/// The caller holds the stack, and nobody lives on it.
pub(crate) unsafe fn unmap_stack(block: BlockPtr) -> Option<BlockPtr> {
    // SAFETY: duties of the caller.
    unsafe { block.context.end() };
    if let Some(user) = block.user.take() {
        // Nothing in the block needs a drop: the only frame of the context owns nothing.
        drop(user);
        return None;
    }
    let (stack, class) = (block.stack, block.class);
    let mapping = block.0.as_ptr().cast::<u8>().with_addr(stack.start.get());
    let (start, len) = (NonNull::new(mapping)?, class.mapped_bytes());
    // SAFETY: the whole mapping of this stack, which nobody uses any more.
    let error = unsafe { unmap(start, len) }.err()?;
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Relaxed) {
        log!(
            WARN,
            %error,
            "cannot unmap a stack; it is kept without its pages, for reuse, and tried again later. \
             If the process has too many mappings, raise vm.max_map_count"
        );
    }
    let page = rustix::param::page_size();
    // SAFETY: in bounds: past the guard page.
    let above = unsafe { start.add(page) };
    // SAFETY: the part of our own mapping above its guard, which stays one.
    unsafe { libc::madvise(above.as_ptr().cast(), len - page, libc::MADV_DONTNEED) };
    // SAFETY:
    // - exclusive, writable, large enough, guarded: the memory of a stack that nobody lives on, and
    //   whose block is not used any more.
    Some(unsafe { init_stack(start, len, class, None) })
}

/// Gives the pages of an idle stack back, except for those nearest the top.
///
/// # Safety
///
/// The caller holds the stack, and nobody lives on it.
pub(crate) unsafe fn trim_stack(block: BlockPtr) {
    let page = rustix::param::page_size();
    let low = block.stack.start.get() + page;
    let high = (block.stack.base.get() - KEEP_BYTES.min(block.class.bytes() / 2)) & !(page - 1);
    if high <= low {
        return;
    }
    let from = block.0.as_ptr().cast::<libc::c_void>().with_addr(low);
    // SAFETY:
    // - ours: between the guard and the kept part of the mapping;
    // - unused: an idle stack uses a few hundred bytes below its base, far above `high`.
    unsafe { libc::madvise(from, high - low, libc::MADV_DONTNEED) };
}

/// Asks for memory of a NUMA node. A refusal costs speed, not correctness.
fn bind(start: NonNull<u8>, len: usize, node: u32) {
    use crate::topology::{MemoryPolicy, bind_memory};
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
fn map(len: usize) -> io::Result<NonNull<u8>> {
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
unsafe fn unmap(start: NonNull<u8>, len: usize) -> io::Result<()> {
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

/// Returns whether this kernel does for ordinary memory what it has refused for some. Where there
/// is none for the question it may as well know.
#[cold]
fn knows_markers(page: usize) -> bool {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the kernel chooses a free address.
    let Ok(start) =
        (unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), page, protection, flags) })
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
