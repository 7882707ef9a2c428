//! `memcpy`, without what some processors make of it.
//!
//! The C library copies from 2 or 4 KiB on by one instruction, `rep movsb`, where the processor
//! says that it is fast. On AMD's Zen 3 and 4 that takes 20 times as long if the destination is up
//! to 15 bytes behind the source, whole pages of 4 KiB apart (4 GB/s where 95 are usual), and twice
//! as long up to 31 bytes. Memory of `malloc` from 128 KiB on begins at byte 16 of a page: to copy
//! one such vector into another behind a length is just that case. Shorter pieces are copied by
//! other instructions, about as fast as `rep movsb` at its best.
//!
//! Source: glibc's bug 30994 ("REP MOVSB performance suffers from page aliasing on Zen 4"), and
//! measured.

/// Copies from here on may be done by `rep movsb`, bytes.
const LONG: usize = 2048;

/// Those are not, bytes.
const PIECE: usize = LONG - 64;

/// Distances within a page from 1 on that are slow, bytes.
const CLOSE: usize = 32;

const PAGE: usize = 4096;

/// Whether one copy of `len` bytes from that address to that one may be slow.
#[inline]
fn is_slow(from: usize, to: usize, len: usize) -> bool {
    let distance = to.wrapping_sub(from) % PAGE;
    cfg!(target_arch = "x86_64") && len >= LONG && (1..CLOSE).contains(&distance)
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
#[allow(dead_code, reason = "a build may have no transport that copies")]
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // In pieces from the start on only if no piece is written before it is read.
    let overlaps = to.addr().wrapping_sub(from.addr()) < len;
    if is_slow(from.addr(), to.addr(), len) && !overlaps {
        // SAFETY: the contract of this function.
        unsafe { copy_in_pieces(from, to, len) };
    } else {
        // SAFETY: the contract of this function.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

/// # Safety
///
/// As for [`copy`]; `to` does not begin within the source.
#[inline(never)]
unsafe fn copy_in_pieces(from: *const u8, to: *mut u8, len: usize) {
    for at in (0..len).step_by(PIECE) {
        let piece = PIECE.min(len - at);
        // SAFETY: `at + piece` is at most `len`, up to which both are valid (contract).
        unsafe { std::ptr::copy(from.wrapping_add(at), to.wrapping_add(at), piece) };
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
            let slow = slow && cfg!(target_arch = "x86_64");
            assert_eq!(is_slow(16, 1 << 20 | (16 + distance), LONG), slow, "{distance}");
            assert!(!is_slow(16, 1 << 20 | (16 + distance), LONG - 1));
        }
        assert!(!is_slow(17, 16, 10_000), "the other way round it is not");
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
            let mut all = pattern(len + shift);
            let mut copied = all.clone();
            let (from, to) = if back { (shift, 0) } else { (0, shift) };
            copied.copy_within(from..from + len, to);
            let start = all.as_mut_ptr();
            // SAFETY: both ranges are in the vector.
            unsafe { copy(start.wrapping_add(from), start.wrapping_add(to), len) };
            prop_assert_eq!(all, copied);
        }
    }
}
