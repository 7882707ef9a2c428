//! A hint to the cache about a line that another processor has read and that is to be written here.

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the cache line of `at` as somebody who will write it. Never faults, whatever `at` is.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn for_write<T>(at: *const T) {
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

/// Without such a hint.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn for_write<T>(_at: *const T) {}
