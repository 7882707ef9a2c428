//! A stack for the coroutine floors: a mapping with a guard page at its low end.

use std::num::NonZeroUsize;
use std::os::raw::c_void;

use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::base::failure::{Doing, Failure, Result};

/// Usable bytes; as much as corosensei's own default stack.
const USABLE_BYTES: usize = 1 << 20;

/// One mapping: guard page, then usable memory up to `base`.
#[derive(Debug)]
pub(crate) struct GuardedStack {
    limit: NonZeroUsize,
    base: NonZeroUsize,
}

impl GuardedStack {
    /// A new stack.
    ///
    /// # Errors
    ///
    /// When the system gives no memory.
    pub(crate) fn new() -> Result<Self> {
        let guard_bytes = rustix::param::page_size();
        let bytes = guard_bytes + USABLE_BYTES;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing one.
        let map = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE)
        };
        let map = map.doing("allocating a stack")?;
        let limit = NonZeroUsize::new(map.expose_provenance());
        let limit = limit.ok_or_else(|| Failure::new("allocating a stack: address zero"))?;
        let base = limit.checked_add(bytes);
        let base = base.ok_or_else(|| Failure::new("allocating a stack: it wraps around"))?;
        // From here on, `drop` unmaps it.
        let stack = Self { limit, base };
        // SAFETY: the range is the first page of our own mapping, which nothing uses yet.
        unsafe { rustix::mm::mprotect(map, guard_bytes, MprotectFlags::empty()) }
            .doing("protecting a stack's guard page")?;
        Ok(stack)
    }
}

// SAFETY:
// - the lowest page is inaccessible, so running over the end faults;
// - `USABLE_BYTES` is more than corosensei's minimum;
// - both ends are page-aligned, and the mapping lives as long as `self`.
unsafe impl Stack for GuardedStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl Drop for GuardedStack {
    fn drop(&mut self) {
        let map: *mut c_void = std::ptr::with_exposed_provenance_mut(self.limit.get());
        // SAFETY: exactly the mapping that `new` made; a coroutine that used it has given it back
        // or borrowed it for a time that is over.
        let _ = unsafe { rustix::mm::munmap(map, self.base.get() - self.limit.get()) };
    }
}
