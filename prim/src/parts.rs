//! The count of a block's parts that have come back; the memory itself is elsewhere.
//!
//! The carver of a block counts by itself the parts that it has given out. This count is of the
//! parts that have come back, on any thread. When the carver does not want the block any more, it
//! adds the difference to a mark. So either the last part to come back or the carver itself reaches
//! the mark, exactly once.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Reached when nobody uses the block any more. Beyond what can ever be counted.
const ENDED: u64 = 1 << 63;

/// The parts of a block that have come back.
///
/// ```
/// use prim::parts::ReturnedParts;
///
/// let parts = ReturnedParts::new();
/// assert!(!parts.come_back(), "the carver goes on");
/// assert!(parts.are_back(1));
/// assert!(parts.leave(1), "all are back: the memory is to be freed");
/// ```
#[derive(Debug)]
pub struct ReturnedParts(AtomicU64);

impl ReturnedParts {
    /// A count of no parts.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is not a value of its own")]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether all of the `given` parts have come back: what was done with them is over.
    /// Only the carver calls this.
    #[inline]
    #[must_use]
    pub fn are_back(&self, given: u64) -> bool {
        self.0.load(Ordering::Acquire) == given // pair: PARTS
    }

    /// Counts one more part that has come back. `true`: it was the last one of a block that its
    /// carver has left; the memory is to be freed.
    #[inline]
    #[must_use]
    pub fn come_back(&self) -> bool {
        self.0.fetch_add(1, Ordering::AcqRel) + 1 == ENDED // pair: PARTS
    }

    /// Ends the carving after `given` parts. `true`: all have come back; the memory is to be freed.
    #[must_use]
    pub fn leave(&self, given: u64) -> bool {
        self.0.fetch_add(ENDED - given, Ordering::AcqRel) == given // pair: PARTS
    }
}
