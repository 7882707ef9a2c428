//! The handshake between a side that wants to sleep and one that makes work, which decides who must
//! be woken.
//!
//! Each sleeper has one word that says what it waits for; zero means awake. A wake-up costs a
//! system call and tens of microseconds, so nobody rings the bell of a side that is awake.
//!
//! | sleeper | the one who makes work |
//! |---|---|
//! | [`announce`](Doorbell::announce): stores its reasons | publishes the work |
//! | [`settle`]: full fence | full fence, inside [`must_ring`](Doorbell::must_ring) |
//! | looks for work once more; if there is some, [`retract`](Doorbell::retract) | loads the word |
//! | sleeps | rings if the reason is set; clears the word, so that others do not ring too |
//!
//! The two fences (pair: DOORBELL) forbid that both loads miss the other side's store, which is
//! the lost wake-up. A ring may come too late, after `retract`; sleepers tolerate a spurious one.
//!
//! The same handshake serves a side that is awake but does not look at this peer any more (see
//! `board.rs`). It [`leave`](Doorbell::leave)s, settles and looks once more; a peer that makes work
//! then [`mark`]s the board, before it rings.
//!
//! # Who never sleeps
//!
//! The fence of the side that makes work is a good part of what a short message costs. A side that
//! is polled without a break ([`OpenOptions::no_block`](na_core::OpenOptions::no_block)) says so at
//! the handshake, and its peers then need not settle. Its word still says whether it left the ring,
//! but a store and a load may pass each other: work can lie in a ring that was left that very
//! moment, without a mark. The sweep of left rings finds it, with the next look at the kernel.

#[cfg(any(not(target_arch = "x86_64"), loom, miri))]
use prim::sync::atomic::fence;
use prim::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The sleeper waits for records, or whatever else its work is.
pub const RECORDS: u32 = 1;

/// The sleeper also waits for room to write.
pub const ROOM: u32 = 2;

/// Not asleep, or not only: the side that has records marks the board.
pub const BOARD: u32 = 4;

const ASLEEP: u32 = RECORDS | ROOM;

/// One sleeper's word.
#[derive(Debug, Clone, Copy)]
pub struct Doorbell<'a>(&'a AtomicU32);

impl<'a> Doorbell<'a> {
    /// The doorbell at `word`, which starts out as zero.
    pub fn new(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// Sleeper: wants to be woken for `reasons`. Follow with [`settle`] and a last look.
    pub fn announce(self, reasons: u32) {
        self.0.store(reasons, Ordering::Relaxed);
    }

    /// Sleeper: is awake, and looks at this peer.
    pub fn retract(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Is awake, and looks at the board instead of this peer. Unless it was so before, follow with
    /// [`settle`] and a last look.
    pub fn leave(self) {
        self.0.store(BOARD, Ordering::Relaxed);
    }

    /// The other side: whether the sleeper is awake, as far as can be told; a hint.
    pub fn is_awake(self) -> bool {
        self.0.load(Ordering::Relaxed) & ASLEEP == 0
    }

    /// The other side, after publishing work and [`settle`]: whether there is anything to do but
    /// to wait, which [`is_left`](Self::is_left) and [`claim`](Self::claim) tell.
    #[inline]
    pub fn is_silent(self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The other side, after publishing work and [`settle`]: whether to mark the board.
    pub fn is_left(self) -> bool {
        self.0.load(Ordering::Relaxed) & BOARD != 0
    }

    /// The other side, after publishing work: whether the caller must ring.
    #[inline]
    #[must_use]
    pub fn must_ring(self, reason: u32) -> bool {
        // pair: DOORBELL (orders the work, published before, with the load in `claim`)
        settle();
        self.claim(reason)
    }

    /// As [`must_ring`](Self::must_ring), for a caller that has passed [`settle`] since it
    /// published the work.
    #[inline]
    #[must_use]
    pub fn claim(self, reason: u32) -> bool {
        self.0.load(Ordering::Relaxed) & reason != 0
            && self.0.fetch_and(!ASLEEP, Ordering::Relaxed) & ASLEEP != 0
    }
}

/// Sets bit `bit` of a word of a board.
pub fn mark(word: &AtomicU64, bit: u32) {
    // pair: BOARD-MARK (the work first)
    word.fetch_or(1 << bit, Ordering::Release);
}

/// Takes the bits of a word of a board.
#[inline]
pub fn take(word: &AtomicU64) -> u64 {
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // pair: BOARD-MARK
    word.swap(0, Ordering::Acquire)
}

/// Orders everything announced or published before with every look that follows.
#[inline]
pub fn settle() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        // The compiler's fence is `mfence`, which costs twice as much on every message.
        // SAFETY: adds nothing to a word of our own stack; for the compiler it touches all memory,
        // and for this processor a locked instruction is a full fence.
        unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
    }
    #[cfg(any(not(target_arch = "x86_64"), loom, miri))]
    // pair: DOORBELL
    fence(Ordering::SeqCst);
}
