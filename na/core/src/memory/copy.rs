//! Copies in user space between two lists of pieces, large ones by several threads.

use crate::memory::copy_bytes;
use crate::{CopyHelper, RawSegment};
use prim::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one part of a copy that is split.
pub const SPLIT_BYTES: usize = 128 << 10;

/// Smallest copy that is split, bytes.
pub const SPLIT_FROM: usize = 4 * SPLIT_BYTES;

/// One contiguous copy.
struct Part {
    from: *const u8,
    to: *mut u8,
    len: usize,
    done: AtomicBool,
}

/// The parts of one call.
struct CopyParts(Vec<Part>);

// SAFETY: the pointers are valid for the whole call (contract of `copy_pieces`), in any thread.
unsafe impl Sync for CopyParts {}

impl CopyParts {
    fn run(&self, index: usize) {
        let Some(Part { from, to, len, done }) = self.0.get(index) else { return };
        // SAFETY: the contract of `copy_pieces`.
        unsafe { copy_bytes::copy_shared(*from, *to, *len) };
        // pair: COPY-PART (the bytes are there)
        done.store(true, Ordering::Release);
    }
}

/// Copies from one list of pieces to another, as many bytes as both have.
///
/// # Safety
///
/// All pieces are valid, for reads (`from`) or writes (`to`), until the call returns, and nobody
/// holds a Rust reference to their bytes. They may overlap only if there is no helper.
pub unsafe fn copy_pieces(
    from: impl Iterator<Item = RawSegment>,
    mut to: impl Iterator<Item = RawSegment>,
    helper: Option<&CopyHelper>,
) {
    let mut parts = CopyParts(Vec::new());
    let mut bytes = 0;
    let mut target = to.next();
    for source in from {
        let mut taken = 0;
        while taken < source.len
            && let Some(piece) = &mut target
        {
            let mut len = (source.len - taken).min(piece.len);
            let start = source.ptr.wrapping_add(taken);
            if helper.is_some() {
                len = len.min(SPLIT_BYTES);
                parts.0.push(Part { from: start, to: piece.ptr, len, done: false.into() });
            } else {
                // SAFETY: the caller's duty; `copy` allows an overlap.
                unsafe { copy_bytes::copy_shared(start, piece.ptr, len) };
            }
            taken += len;
            bytes += len;
            piece.ptr = piece.ptr.wrapping_add(len);
            piece.len -= len;
            if piece.len == 0 {
                target = to.next();
            }
        }
    }
    if let Some(helper) = helper
        && bytes >= SPLIT_FROM
    {
        helper.run(parts.0.len(), &|index| parts.run(index));
    }
    for index in 0..parts.0.len() {
        // pair: COPY-PART (what a helper left out is done here)
        if !parts.0[index].done.load(Ordering::Acquire) {
            parts.run(index);
        }
    }
}

/// Copies between `ours` and `theirs`, in the direction that `to_us` says.
///
/// # Safety
///
/// As [`copy_pieces`], for that direction.
pub unsafe fn copy_between(
    to_us: bool,
    ours: impl Iterator<Item = RawSegment>,
    theirs: impl Iterator<Item = RawSegment>,
    helper: Option<&CopyHelper>,
) {
    if to_us {
        // SAFETY: the caller's duty.
        unsafe { copy_pieces(theirs, ours, helper) };
    } else {
        // SAFETY: the caller's duty.
        unsafe { copy_pieces(ours, theirs, helper) };
    }
}

/// The part of `pieces` that begins `skip` bytes after its start.
pub fn skip_bytes(pieces: &[RawSegment], mut skip: u64) -> impl Iterator<Item = RawSegment> + '_ {
    pieces.iter().filter_map(move |piece| {
        let over = skip.min(piece.len as u64);
        skip -= over;
        let len = piece.len - over as usize;
        (len > 0).then(|| RawSegment { ptr: piece.ptr.wrapping_add(over as usize), len })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &mut [u8], cuts: &[usize]) -> Vec<RawSegment> {
        let (mut at, mut pieces) = (0, Vec::new());
        for len in cuts.iter().copied().chain([bytes.len() - cuts.iter().sum::<usize>()]) {
            pieces.push(RawSegment { ptr: bytes[at..].as_mut_ptr(), len });
            at += len;
        }
        pieces
    }

    fn copied(helper: Option<&CopyHelper>) {
        let len = SPLIT_FROM + 12_345;
        let mut from: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        let mut to = vec![0; len];
        let source = pieces(&mut from, &[1, 100_000, 3]);
        let target = pieces(&mut to, &[0, 7, 300_000]);
        // SAFETY: two live vectors to which no reference is used meanwhile.
        unsafe { copy_pieces(skip_bytes(&source, 5), target.into_iter(), helper) };
        assert!(to[..len - 5] == from[5..]);
        assert_eq!(to[len - 5..], [0; 5]);
    }

    #[test]
    fn pieces_of_any_length_meet() {
        copied(None);
    }

    #[test]
    fn helpers_in_threads_copy_all_of_it() {
        copied(Some(&CopyHelper::new(|parts, part| {
            assert!(parts >= 4);
            std::thread::scope(|scope| {
                (0..2).for_each(|first| {
                    scope.spawn(move || (first..parts).step_by(2).for_each(part));
                });
            });
        })));
    }

    #[test]
    fn what_a_helper_leaves_out_is_copied_all_the_same() {
        copied(Some(&CopyHelper::new(|_, part| part(1))));
    }
}
