//! The bulletin board: one bit for each peer that has something for an endpoint which does not look
//! at that peer's ring.
//!
//! An endpoint with few peers looks at each ring in every round. With many, that would be a cache
//! line (and a miss) for each of them, so it *leaves* a ring that was quiet for a while: it sets
//! `BOARD` in its bell for that peer, and from then on reads the peer's bit on its board, 512 of
//! which are in one line. The peer sees `BOARD` where it looks for sleepers anyway and sets its
//! bit; while its ring is watched, it pays nothing. The handshake is that of `doorbell.rs`.
//!
//! # Trust
//!
//! All peers can write the whole board, so only processes of the same user get it; rings of others
//! are always watched. A peer that clears the bits of others delays them: left rings are looked at
//! in every look at the kernel and before every sleep as well.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use super::doorbell::{mark, take};
use crate::mapping::{Unmapped, sealed_bytes};
use na_core::Error;
use na_core::limits::file_limit::{Pages, memfd};
use na_core::memory::alloc::{map, unmap};
use prim::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use prim::sync::{Mutex, lock};

pub(crate) const BYTES: usize = 4096;
const WORDS: usize = BYTES / 8;

/// Slots of a board.
pub(crate) const SLOTS: u32 = WORDS as u32 * 64;

/// A mapped board.
#[derive(Debug)]
pub(crate) struct Board(NonNull<u8>);

// SAFETY: the mapping is not tied to a thread, lives until `drop`, and is only used as atomics.
unsafe impl Send for Board {}
// SAFETY: as for `Send`.
unsafe impl Sync for Board {}

impl Board {
    /// Maps the board of a peer.
    ///
    /// # Errors
    ///
    /// The fault in it, or the lack that keeps it from being mapped.
    pub(crate) fn attach(fd: &OwnedFd) -> Result<Self, Unmapped> {
        let breach = Unmapped::Breach;
        let bytes = sealed_bytes(fd).map_err(|reason| breach(format!("its board is {reason}")))?;
        // With more, the peer could make us give back as much when this is unmapped.
        if bytes != BYTES as u64 {
            return Err(breach(format!("its board has {bytes} bytes")));
        }
        let base =
            map(fd, BYTES, true).map_err(|errno| Unmapped::no_mapping("the board", errno))?;
        Ok(Self(base))
    }

    /// Sets the bit of `slot`.
    pub(crate) fn mark(&self, slot: u32) {
        if let Some(word) = self.words().get(slot as usize / 64) {
            mark(word, slot % 64);
        }
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY:
        // - valid and aligned: a page-aligned mapping of that length, as long as `self` lives;
        // - aliasing: the memory is only ever used as these atomics.
        unsafe { self.0.cast().as_ref() }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped in `attach` or `create`; the words are only borrowed.
        unsafe { unmap(self.0, BYTES) };
    }
}

/// The own board, and which slots are taken.
#[derive(Debug)]
pub(crate) struct OwnBoard {
    board: Board,
    fd: OwnedFd,
    /// Words that have taken slots, at most.
    words: AtomicUsize,
    taken: Mutex<Vec<bool>>,
}

impl OwnBoard {
    pub(crate) fn new() -> Result<Self, Error> {
        let failed = |errno| Error::io("cannot map the endpoint's bulletin board", errno);
        let what = "shared memory for the endpoint's bulletin board";
        let fd = memfd(c"margo-sm-board", what, BYTES, Pages::Now)?;
        let board = Board(map(&fd, BYTES, true).map_err(failed)?);
        let (words, taken) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        Ok(Self { board, fd, words, taken })
    }

    /// The descriptor to hand to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A free slot. `None`: there is none, so that ring is always watched.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let mut taken = lock(&self.taken);
        let slot = match taken.iter().position(|taken| !taken) {
            Some(slot) => slot,
            None if taken.len() < SLOTS as usize => {
                taken.push(false);
                taken.len() - 1
            }
            None => return None,
        };
        taken[slot] = true;
        self.words.store(taken.len().div_ceil(64), Ordering::Relaxed);
        Some(slot as u32)
    }

    pub(crate) fn free_slot(&self, slot: u32) {
        if let Some(place) = lock(&self.taken).get_mut(slot as usize) {
            *place = false;
        }
    }

    /// Sets a bit from within.
    pub(crate) fn mark(&self, slot: u32) {
        self.board.mark(slot);
    }

    /// The words with slots that are taken.
    #[inline]
    fn used(&self) -> impl Iterator<Item = &AtomicU64> {
        self.board.words().iter().take(self.words.load(Ordering::Relaxed))
    }

    /// Poll: whether a bit is set.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        // What the mark is about is looked at after `take`, which pairs with it.
        self.used().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Poll: clears all bits that are set, and tells their slots.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        for (index, word) in self.used().enumerate() {
            let mut bits = take(word);
            while bits != 0 {
                each(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    #[test]
    fn marks_arrive_once_and_slots_are_reused() {
        let own = OwnBoard::new().unwrap();
        let slots: Vec<_> = (0..130).map(|_| own.take_slot().unwrap()).collect();
        assert_eq!(slots, (0..130).collect::<Vec<_>>());
        let theirs = Board::attach(&own.fd().try_clone_to_owned().unwrap()).unwrap();
        [0, 63, 64, 129, 64].into_iter().for_each(|slot| theirs.mark(slot));
        theirs.mark(u32::MAX);
        assert!(own.is_marked());
        let mut found = Vec::new();
        own.take(|slot| found.push(slot));
        assert_eq!(found, [0, 63, 64, 129]);
        assert!(!own.is_marked());
        own.take(|slot| panic!("slot {slot} again"));
        own.free_slot(7);
        assert_eq!(own.take_slot(), Some(7));
        assert_eq!(own.take_slot(), Some(130));
    }

    #[test]
    fn a_board_that_could_shrink_or_is_short_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for (len, seal) in [(4096, false), (4095, true), (0, true)] {
            let fd = rustix::fs::memfd_create(c"test", flags).unwrap();
            rustix::fs::ftruncate(&fd, len).unwrap();
            if seal {
                rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
            }
            assert!(Board::attach(&fd).is_err(), "{len} {seal}");
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Board::attach(&null.into()).is_err());
    }
}
