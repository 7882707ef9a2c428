//! Blocks: one memory mapping with a guard page, a stack and a descriptor (see
//! [`descriptor`](crate::descriptor) for the picture).
//!
//! The guard is installed with `MADV_GUARD_INSTALL` (Linux 6.13), which leaves neighbouring
//! mappings in one piece, so millions of stacks need no more kernel map entries than one. Older
//! kernels get `mprotect`, two map entries per stack; then `vm.max_map_count` bounds the number of
//! stacks to about 32,000.
//!
//! Memory is only reserved (`MAP_NORESERVE`); the kernel provides pages when they are touched.

use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

use corosensei::Coroutine;
use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::descriptor::{Ult, UltPtr};
use crate::shared::RuntimeCore;
use crate::sync::Arc;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::Relaxed;

/// Smallest stack: enough for a panic message and its formatting.
pub(crate) const STACK_BYTES_MIN: usize = 16 * 1024;
/// Largest stack; more than that is a mistake of units.
pub(crate) const STACK_BYTES_MAX: usize = 1 << 36;
/// Default, virtual. The same as `abt_thread_stacksize` of the C Margo.
pub(crate) const STACK_BYTES_DEFAULT: usize = 2 * 1024 * 1024;
/// What an idle block keeps when it is trimmed, counted from its top.
const KEEP_BYTES: usize = 16 * 1024;

/// Not in the libc crate yet.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// The stack part of a block, for corosensei. It does not own the mapping.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockStack {
    /// Start of the mapping, which is the guard page.
    start: NonZeroUsize,
    /// Where the stack begins and the descriptor stands.
    base: NonZeroUsize,
    /// Bytes of stack and descriptor, without the guard; the size class.
    pub(crate) bytes: usize,
}

// SAFETY:
// - guard page: `map_block` installs it at `start` before the stack is used;
// - size: at least `STACK_BYTES_MIN` less the descriptor, more than 4096;
// - alignment: `base` is a multiple of the descriptor's alignment (64), `start` of the page size.
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

impl BlockStack {
    /// Whether `addr` is in the guard page. Async-signal-safe.
    pub(crate) fn guards(&self, addr: usize, page_bytes: usize) -> bool {
        addr >= self.start.get() && addr - self.start.get() < page_bytes
    }
}

/// Size class of a requested stack size: whole pages, within the limits.
pub(crate) fn class_of(stack_bytes: usize) -> usize {
    let page = rustix::param::page_size();
    stack_bytes.clamp(STACK_BYTES_MIN, STACK_BYTES_MAX).next_multiple_of(page)
}

/// Makes a block of class `bytes` with an empty descriptor and registers it.
pub(crate) fn map_block(core: &Arc<RuntimeCore>, bytes: usize) -> io::Result<UltPtr> {
    let page = rustix::param::page_size();
    let len = bytes + page;
    let start = map(len)?;
    if let Err(error) = protect(start, page) {
        // SAFETY: the mapping was made above and nobody knows it.
        unsafe { unmap(start, len) };
        return Err(error);
    }
    let top = start.as_ptr().addr() + len;
    let base = (top - size_of::<Ult>()) & !(align_of::<Ult>() - 1);
    let place = start.as_ptr().with_addr(base).cast::<Ult>();
    let (Some(start_addr), Some(base), Some(place)) =
        (NonZeroUsize::new(start.as_ptr().addr()), NonZeroUsize::new(base), NonNull::new(place))
    else {
        return Err(io::Error::other("mmap returned the null page"));
    };
    let stack = BlockStack { start: start_addr, base, bytes };
    let coro =
        Coroutine::with_stack(stack, move |yielder, _run| crate::switch::root(place, yielder));
    // SAFETY:
    // - room and alignment: `base` was computed for it, above the coroutine's first frame;
    // - exclusive: fresh memory.
    unsafe { place.write(Ult::new(core.clone(), stack, coro)) };
    // SAFETY:
    // - a descriptor in a live block: just written; `unmap_block` ends it.
    let ult = unsafe { UltPtr::new(place) };
    core.depot.register(ult);
    Ok(ult)
}

/// Gives the block back to the system.
///
/// # Safety
///
/// The caller owns the block: nobody has a count, and it is in no cache.
pub(crate) unsafe fn unmap_block(ult: UltPtr) {
    ult.core.depot.unregister(ult);
    let mut place = ult.as_non_null();
    let stack = ult.stack;
    let mapping = place.as_ptr().cast::<u8>().with_addr(stack.start.get());
    // SAFETY:
    // - exclusive: the caller owns the block.
    let slot = unsafe { &mut place.as_mut().core };
    // SAFETY: taken once; the descriptor ends here. Its other fields own nothing: the name was
    // cleared when the block was recycled, the coroutine's only frame owns nothing, the payload is
    // empty.
    let core = unsafe { ManuallyDrop::take(slot) };
    if let Some(mapping) = NonNull::new(mapping) {
        // SAFETY: the whole mapping of this block, which nobody uses any more.
        unsafe { unmap(mapping, stack.bytes + rustix::param::page_size()) };
    }
    drop(core);
}

/// Gives the pages of an idle block back, except for those nearest the top.
///
/// # Safety
///
/// The caller owns the block, and no ULT lives in it.
pub(crate) unsafe fn trim_block(ult: UltPtr) {
    let page = rustix::param::page_size();
    let low = ult.stack.start.get() + page;
    let high = (ult.stack.base.get() - KEEP_BYTES.min(ult.stack.bytes / 2)) & !(page - 1);
    if high <= low {
        return;
    }
    let from = ult.as_non_null().as_ptr().cast::<libc::c_void>().with_addr(low);
    // SAFETY:
    // - ours: between the guard and the kept part of the mapping;
    // - unused: an idle block uses a few hundred bytes below its base, far above `high`.
    unsafe { libc::madvise(from, high - low, libc::MADV_DONTNEED) };
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, prot, flags) }?;
    if huge_pages_always() {
        // SAFETY: our own fresh mapping. An error only means that a stack may use a huge page.
        unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// # Safety
///
/// `start` and `len` are a mapping of [`map`] that nobody uses any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: duty of the caller.
    let result = unsafe { rustix::mm::munmap(start.as_ptr().cast(), len) };
    if let Err(error) = result {
        tracing::error!(%error, "cannot unmap a stack; its address space is lost");
    }
}

/// Makes the first page inaccessible.
fn protect(start: NonNull<u8>, page: usize) -> io::Result<()> {
    const UNKNOWN: u32 = 0;
    const GUARDS: u32 = 1;
    const MPROTECT: u32 = 2;
    static HOW: AtomicU32 = AtomicU32::new(UNKNOWN);

    let how = HOW.load(Relaxed);
    if how != MPROTECT {
        // SAFETY: the first page of our own fresh mapping.
        let result = unsafe { libc::madvise(start.as_ptr().cast(), page, MADV_GUARD_INSTALL) };
        if result == 0 {
            HOW.store(GUARDS, Relaxed);
            return Ok(());
        }
        if how == UNKNOWN {
            HOW.store(MPROTECT, Relaxed);
        }
    }
    // SAFETY: as above.
    unsafe { rustix::mm::mprotect(start.as_ptr().cast(), page, MprotectFlags::empty()) }?;
    Ok(())
}

/// Whether the kernel would back a whole stack by one huge page at the first touch.
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
        assert_eq!(class_of(0) % page, 0);
        assert!(class_of(0) >= STACK_BYTES_MIN);
        assert_eq!(class_of(STACK_BYTES_DEFAULT), STACK_BYTES_DEFAULT);
        assert_eq!(class_of(usize::MAX), STACK_BYTES_MAX);
    }
}
