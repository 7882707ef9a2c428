//! The words between the progress ULT and callers that poll in its stead.
//!
//! See `polling/callers.rs`, which has the table of who may touch what.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Polls in the stead of the progress ULT until it has its turn, over all callers. With the looks
/// between them 30 to 50 us.
const POLLS_MAX: u32 = 64;

/// The polls of callers in the stead of a progress ULT: those that they may make, and those that
/// they have made.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CallerPolling {
    /// Where the progress ULT waits for its turn: one more than the index of its execution
    /// stream;
    /// 0: it does not, or for something else, too.
    place: AtomicUsize,
    /// Since then.
    polls: AtomicU32,
    found: AtomicUsize,
}

impl CallerPolling {
    /// Yields. Callers may stand in meanwhile; what they have found. On the progress ULT.
    #[inline]
    pub(crate) fn while_yielding(&self, xstream: usize) -> usize {
        self.place.store(xstream + 1, Ordering::Relaxed);
        let back = Back(self);
        ult::yield_now();
        drop(back);
        if self.polls.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.polls.store(0, Ordering::Relaxed);
        let found = self.found.load(Ordering::Relaxed);
        self.found.store(0, Ordering::Relaxed);
        found
    }

    /// Returns whether the caller, on the execution stream of this index, may poll.
    #[inline]
    pub(crate) fn may(&self, xstream: Option<usize>) -> bool {
        let place = self.place.load(Ordering::Relaxed);
        place != 0 && xstream == Some(place - 1) && self.polls.load(Ordering::Relaxed) < POLLS_MAX
    }

    /// Notes that the caller, which may, has polled and found so much. Returns whether it may
    /// again.
    #[inline]
    pub(crate) fn polled(&self, found: usize) -> bool {
        let polls = self.polls.load(Ordering::Relaxed) + 1;
        self.polls.store(polls, Ordering::Relaxed);
        if found > 0 {
            self.found.store(self.found.load(Ordering::Relaxed) + found, Ordering::Relaxed);
        }
        polls < POLLS_MAX
    }
}

/// The progress ULT has its turn when this is dropped, also if it unwinds.
struct Back<'a>(&'a CallerPolling);

impl Drop for Back<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.place.store(0, Ordering::Relaxed);
    }
}
