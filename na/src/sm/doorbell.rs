//! Who must be woken: the handshake between a side that wants to sleep and one that makes work.
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

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// The sleeper waits for records, or whatever else its work is.
pub const RECORDS: u32 = 1;

/// The sleeper also waits for room to write.
pub const ROOM: u32 = 2;

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

    /// Sleeper: is awake.
    pub fn retract(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The other side: whether the sleeper is awake, as far as can be told; a hint.
    pub fn is_awake(self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The other side, after publishing work: whether the caller must ring.
    #[inline]
    #[must_use]
    pub fn must_ring(self, reason: u32) -> bool {
        // pair: DOORBELL (orders the work, published before, with the load below)
        fence(Ordering::SeqCst);
        self.claim(reason)
    }

    /// As [`must_ring`](Self::must_ring), for a caller that has passed [`settle`] since it
    /// published the work.
    #[inline]
    #[must_use]
    pub fn claim(self, reason: u32) -> bool {
        self.0.load(Ordering::Relaxed) & reason != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

/// Orders everything announced or published before with every look that follows.
#[inline]
pub fn settle() {
    // pair: DOORBELL
    fence(Ordering::SeqCst);
}
