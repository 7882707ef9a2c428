//! `memcpy`, without the slow cases of some processors.
//!
//! The C library copies from 2 or 4 KiB on by one instruction, `rep movsb`, where the processor
//! says that it is fast. On AMD's Zen 3 and 4 that takes 20 times as long if the destination is up
//! to 15 bytes behind the source, whole pages of 4 KiB apart (4 GB/s where 95 are usual), and twice
//! as long up to 31 bytes. Memory of `malloc` from 128 KiB on begins at byte 16 of a page: to copy
//! one such vector into another behind a length is just that case. Shorter pieces are copied by
//! other instructions, about as fast as `rep movsb` at its best.
//!
//! On Zen 5 that is mended: the one instruction is a tenth faster than pieces there, wherever the
//! two are.
//!
//! Source: glibc's bug 30994 ("REP MOVSB performance suffers from page aliasing on Zen 4"), and
//! measured.
//!
//! # Memory that others use at the same time
//!
//! Registered memory is copied by progress for peers, and by any thread with
//! [`LocalMem::write_at`](crate::LocalMem::write_at) and its like, at any time and through shared
//! references. The docs promise torn data then; but two plain copies would be a data race, which is
//! undefined. `copy_shared` is for that memory: each byte is loaded and stored as by relaxed
//! atomics, in no particular order. On the machine any `memmove` does just that, down to the single
//! byte. So the copy is that function of the C library, called from inline assembly, into which the
//! compiler does not look: it can conclude nothing from there being a copy, as it may from a plain
//! one, and the speed is the same. Where there is no such code (other processors, Miri), a loop
//! over atomic bytes does it.

use std::sync::OnceLock;

/// Copies from here on may be done by `rep movsb`, bytes.
const LONG: usize = 2048;

/// Those are not, bytes.
const PIECE: usize = LONG - 64;

/// Distances within a page from 1 on that are slow, bytes.
const CLOSE: usize = 32;

const PAGE: usize = 4096;

/// Returns whether one copy of `len` bytes from that address to that one may be slow.
#[inline]
fn is_slow(from: usize, to: usize, len: usize) -> bool {
    let distance = to.wrapping_sub(from) % PAGE;
    len >= LONG && (1..CLOSE).contains(&distance) && has_slow_distances()
}

/// Returns whether this processor may be one that minds.
#[inline]
fn has_slow_distances() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(ask_processor)
}

#[cfg(not(target_arch = "x86_64"))]
fn ask_processor() -> bool {
    false
}

/// Takes microseconds in a virtual machine.
#[cfg(target_arch = "x86_64")]
#[cold]
fn ask_processor() -> bool {
    use std::arch::x86_64::__cpuid;
    #[allow(unused_unsafe, reason = "no unsafe function any more in newer compilers")]
    // SAFETY: every processor of this architecture has the instruction, and these two leaves.
    let leaf = |leaf| unsafe { __cpuid(leaf) };
    let (vendor, version) = (leaf(0), leaf(1).eax);
    minds((vendor.ebx, vendor.edx, vendor.ecx), version)
}

/// The vendor's name in three words, and the word with the family.
#[cfg(target_arch = "x86_64")]
fn minds(vendor: (u32, u32, u32), version: u32) -> bool {
    /// "AuthenticAMD".
    const AMD: (u32, u32, u32) = (0x6874_7541, 0x6974_6e65, 0x444d_4163);
    const ZEN5: u32 = 0x1a;
    let (family, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
    let family = if family == 0xf { family + extended } else { family };
    vendor != AMD || family < ZEN5
}

/// `to.copy_from_slice(from)`.
///
/// # Panics
///
/// As that, if their lengths differ.
#[inline]
pub fn fill(to: &mut [u8], from: &[u8]) {
    if is_slow(from.as_ptr().addr(), to.as_ptr().addr(), from.len()) && to.len() == from.len() {
        fill_in_pieces(to, from);
    } else {
        to.copy_from_slice(from);
    }
}

#[inline(never)]
fn fill_in_pieces(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.chunks_mut(PIECE).zip(from.chunks(PIECE)) {
        to.copy_from_slice(from);
    }
}

/// `to.extend_from_slice(from)`.
#[inline]
pub fn append(to: &mut Vec<u8>, from: &[u8]) {
    to.reserve(from.len());
    let end = to.as_ptr().addr() + to.len();
    if is_slow(from.as_ptr().addr(), end, from.len()) {
        from.chunks(PIECE).for_each(|piece| to.extend_from_slice(piece));
    } else {
        to.extend_from_slice(from);
    }
}

/// `std::ptr::copy(from, to, len)`: they may overlap.
///
/// # Safety
///
/// As for that: `from` is valid for reads of `len` bytes, `to` for writes.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if is_slow_apart(from, to, len) {
        // SAFETY: the contract of this function; they do not overlap so.
        unsafe { copy_in_pieces(from, to, len, std::ptr::copy) };
    } else {
        // SAFETY: the contract of this function.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

/// As [`copy`], of memory that others may read and write at the same time, by this function, in the
/// kernel, or in another process: each byte is copied as by relaxed atomics.
///
/// # Safety
///
/// `from` is valid for atomic reads of `len` bytes, `to` for atomic writes: nobody uses them at the
/// same time but in those ways, or through references if neither side is written.
#[inline]
pub unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    if is_slow_apart(from, to, len) {
        // SAFETY: the contract of this function; they do not overlap so.
        unsafe { copy_in_pieces(from, to, len, move_shared) };
    } else {
        // SAFETY: the contract of this function.
        unsafe { move_shared(from, to, len) };
    }
}

/// As [`copy_shared`], by the kernel. Returns `false` if it met pages that are gone, as those of a
/// mapped file that was cut off; a part may have been copied. A copy of our own would end the
/// process there. It is our own all the same where the process may not ask the kernel for that.
///
/// # Safety
///
/// As for [`copy_shared`], but that pages may be gone.
pub unsafe fn copy_checked(from: *const u8, to: *mut u8, len: usize) -> bool {
    let source = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    let target = libc::iovec { iov_base: to.cast(), iov_len: len };
    let own = std::process::id().cast_signed();
    // SAFETY:
    // - memory: both vectors live during the call, and it is told that there is one of each;
    // - what they name is valid by the contract, and the kernel checks whether it is there.
    let copied =
        unsafe { libc::process_vm_writev(own, &raw const source, 1, &raw const target, 1, 0) };
    if copied >= 0 {
        return copied.cast_unsigned() == len;
    }
    if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
        return false;
    }
    // SAFETY: the contract of this function.
    unsafe { copy_shared(from, to, len) };
    true
}

/// Returns whether one copy may be slow, and is as good in pieces from the start on: no piece is
/// written before it is read.
#[inline]
fn is_slow_apart(from: *const u8, to: *mut u8, len: usize) -> bool {
    let overlaps = to.addr().wrapping_sub(from.addr()) < len;
    is_slow(from.addr(), to.addr(), len) && !overlaps
}

/// # Safety
///
/// As for what copies the pieces; `to` does not begin within the source.
#[inline(never)]
unsafe fn copy_in_pieces(
    from: *const u8,
    to: *mut u8,
    len: usize,
    copy: unsafe fn(*const u8, *mut u8, usize),
) {
    for at in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - at);
        // SAFETY: `at + piece` is at most `len`, up to which both are valid (contract).
        unsafe { copy(from.wrapping_add(at), to.wrapping_add(at), piece) };
    }
}

/// See the head of this file.
///
/// # Safety
///
/// As for [`copy_shared`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_shared(from: *const u8, to: *mut u8, len: usize) {
    let function: unsafe extern "C" fn(_, _, usize) -> _ = libc::memmove;
    // SAFETY:
    // - a call as the platform's convention has it: arguments in these registers, the stack aligned
    //   (it is at the start of each block that may use it), everything that the callee may change
    //   declared;
    // - `memmove` touches the bytes of both sides only, valid by the contract, and for the language
    //   the block is what it does on the machine: a load and a store of each byte, none of which is
    //   torn.
    unsafe {
        std::arch::asm!(
            "call {function}",
            function = in(reg) function,
            in("rdi") to,
            in("rsi") from,
            in("rdx") len,
            clobber_abi("C"),
        );
    }
}

/// See the head of this file.
///
/// # Safety
///
/// As for [`copy_shared`].
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
unsafe fn move_shared(from: *const u8, to: *mut u8, len: usize) {
    let function: unsafe extern "C" fn(_, _, usize) -> _ = libc::memmove;
    // SAFETY: as for the other processor.
    unsafe {
        std::arch::asm!(
            "blr {function}",
            function = in(reg) function,
            in("x0") to,
            in("x1") from,
            in("x2") len,
            clobber_abi("C"),
        );
    }
}

/// # Safety
///
/// As for [`copy_shared`].
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
unsafe fn move_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as below.
    unsafe { move_by_atomics(from, to, len) }
}

/// Moves the bytes as `move_shared` does, in plain Rust: one relaxed load and store for each.
///
/// # Safety
///
/// As for [`copy_shared`].
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
unsafe fn move_by_atomics(from: *const u8, to: *mut u8, len: usize) {
    use prim::sync::atomic::{AtomicU8, Ordering};
    let copy = |at: usize| {
        let (from, to) = (from.wrapping_add(at).cast_mut(), to.wrapping_add(at));
        // SAFETY: it is valid for atomic accesses (contract), which a byte is aligned for.
        let from = unsafe { AtomicU8::from_ptr(from) };
        // SAFETY: as above.
        let to = unsafe { AtomicU8::from_ptr(to) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    match to.addr() <= from.addr() {
        true => (0..len).for_each(copy),
        false => (0..len).rev().for_each(copy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    /// Two places in one vector so far apart in their pages.
    fn places(distance: usize, bytes: &[u8]) -> (usize, usize, Vec<u8>) {
        let (from, to) = (8, 8 + bytes.len().next_multiple_of(PAGE) + distance);
        let mut all = vec![0; to + bytes.len() + 8];
        all[from..from + bytes.len()].copy_from_slice(bytes);
        (from, to, all)
    }

    #[test]
    fn what_is_close_is_told_from_what_is_not() {
        for (distance, slow) in [(0, false), (1, true), (31, true), (32, false), (4095, false)] {
            let slow = slow && has_slow_distances();
            assert_eq!(is_slow(16, 1 << 20 | (16 + distance), LONG), slow, "{distance}");
            assert!(!is_slow(16, 1 << 20 | (16 + distance), LONG - 1));
        }
        assert!(!is_slow(17, 16, 10_000), "the other way round it is not");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn processors_that_do_not_mind_are_told_by_vendor_and_family() {
        let word = |text: &[u8]| u32::from_le_bytes(text.try_into().unwrap());
        let amd = (word(b"Auth"), word(b"enti"), word(b"cAMD"));
        let intel = (word(b"Genu"), word(b"ineI"), word(b"ntel"));
        for (vendor, version, slow) in [
            (amd, 0x00a1_0f11, true),
            (amd, 0x00a0_0f11, true),
            (amd, 0x00b0_0f21, false),
            (intel, 0x0009_06a3, true),
            (intel, 0x00b0_0f21, true),
        ] {
            assert_eq!(minds(vendor, version), slow, "{version:x}");
        }
        assert_eq!(has_slow_distances(), ask_processor(), "what is remembered");
    }

    #[test]
    fn pieces_are_all_that_there_is() {
        let from = pattern(3 * PIECE + 5);
        let mut to = vec![0; from.len()];
        fill_in_pieces(&mut to, &from);
        assert!(to == from);
        to.fill(0);
        // SAFETY: two live vectors of the same length.
        unsafe { copy_in_pieces(from.as_ptr(), to.as_mut_ptr(), from.len(), move_shared) };
        assert!(to == from);
    }

    #[test]
    #[should_panic(expected = "length")]
    fn lengths_have_to_be_equal() {
        fill(&mut [0; 4000], &[0; 4001]);
    }

    proptest! {
        #[test]
        fn every_byte_is_copied(len in 0_usize..10_000, distance in 0_usize..40) {
            let bytes = pattern(len);
            let (from, to, mut all) = places(distance, &bytes);
            let (source, target) = all.split_at_mut(to);
            fill(&mut target[..len], &source[from..from + len]);
            prop_assert_eq!(&all[to..to + len], &bytes[..]);
            prop_assert_eq!(&all[to + len..], &[0; 8][..]);

            let mut vector = vec![7; distance];
            append(&mut vector, &bytes);
            prop_assert_eq!(&vector[distance..], &bytes[..]);
        }

        #[test]
        fn overlapping_bytes_are_copied_as_they_were(
            len in 0_usize..10_000,
            shift in 0_usize..5000,
            back: bool,
        ) {
            let mut copied = pattern(len + shift);
            let (from, to) = if back { (shift, 0) } else { (0, shift) };
            copied.copy_within(from..from + len, to);
            for copy in [copy, copy_shared, move_by_atomics] {
                let mut all = pattern(len + shift);
                let start = all.as_mut_ptr();
                // SAFETY: both ranges are in the vector.
                unsafe { copy(start.wrapping_add(from), start.wrapping_add(to), len) };
                prop_assert_eq!(&all, &copied);
            }
        }
    }
}
