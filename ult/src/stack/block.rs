//! Stacks: one memory mapping each, with a guard page at the low end and a [`StackBlock`] at the
//! high end.
//!
//! ```text
//! low address                                          high address
//! | guard page | ... stack, grows down ...  <- base | StackBlock |
//! ```
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

use crate::base::contain::log;
use crate::stack::context::{Back, Context};
use crate::stack::memory::{StackClass, bind, map, protect, protect_all, unmap};
use crate::stack::user::UserStack;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicBool, AtomicUsize};

/// Bytes that an idle stack keeps when it is trimmed, counted from its top.
const KEEP_BYTES: usize = 16 * 1024;
/// Distance and number of the places at which bases are put within the top page.
const COLOUR_BYTES: usize = 128;
const COLOURS: usize = 12;

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
    /// The guards are there already.
    is_guarded: bool,
}

impl Reserve {
    /// Memory for `count` stacks, which costs address space, and tables for the guards.
    pub(crate) fn map(class: StackClass, count: usize) -> io::Result<Self> {
        let len = class.mapped_bytes() * count;
        let next = map(len)?;
        if let Some(node) = class.node() {
            bind(next, len, node);
        }
        let page = rustix::param::page_size();
        let is_guarded = count > 1 && protect_all(next, class.mapped_bytes(), count, page);
        Ok(Self { class, next, left: count, is_guarded })
    }

    /// Makes the next stack; none if the memory is used up.
    pub(crate) fn make(&mut self) -> io::Result<Option<BlockPtr>> {
        if self.left == 0 {
            return Ok(None);
        }
        let (start, len) = (self.next, self.class.mapped_bytes());
        if !self.is_guarded {
            protect(start, rustix::param::page_size())?;
        }
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

impl UserStack {
    /// Makes it a stack.
    pub(crate) fn init_stack(mut self) -> io::Result<BlockPtr> {
        self.guarded = Some(protect(self.start, rustix::param::page_size())?);
        let (start, len, class) = (self.start, self.len, StackClass::of_user(self.bytes()));
        // SAFETY:
        // - exclusive, writable: contract of `from_raw`; guarded just now; large enough: checked
        //   there.
        Ok(unsafe { init_stack(start, len, class, Some(self)) })
    }
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
