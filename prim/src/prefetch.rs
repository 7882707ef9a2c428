//! Hints to the cache about lines that another processor has read or written and that are to be
//! written here.
//!
//! A wake-up between threads is a chain of cache lines that have to come over, one after the other
//! where one names the next. Lines that are known early are asked for early. A line that is read
//! first and written later would come over twice, unless it is asked for in order to write it.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Asks for the cache line of `at` in order to write it. Never faults, whatever `at` is.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline(always)]
pub fn for_write<T>(at: *const T) {
    // `_mm_prefetch` emits this instruction only if the target features promise it. Processors
    // that lack it take it for a no-op.
    //
    // SAFETY:
    // - a hint: it accesses nothing, whatever the address, and changes no register or flag.
    unsafe {
        std::arch::asm!(
            "prefetchw [{at}]",
            at = in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Does nothing where there is no such hint.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
#[inline(always)]
pub fn for_write<T>(_at: *const T) {}
