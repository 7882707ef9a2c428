//! The reason for which an operation was ended early.

use std::sync::atomic::{AtomicU8, Ordering};

/// Why we ended a call or transfer ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum GaveUp {
    /// A cancel, or an operation that is not wanted any more.
    Canceled = 1,
    /// The deadline passed.
    TimedOut = 2,
}

/// The first reason that was given, if there is one.
#[derive(Debug, Default)]
pub(crate) struct WhyOver(AtomicU8);

impl WhyOver {
    /// `true`: this is the first reason.
    pub(crate) fn is_first(&self, why: GaveUp) -> bool {
        // Whoever reads it has seen the end of the operation, which comes after this.
        self.0.compare_exchange(0, why as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.0.load(Ordering::Relaxed) == GaveUp::TimedOut as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let why = WhyOver::default();
        assert!(!why.is_given() && !why.timed_out());
        assert!(why.is_first(GaveUp::Canceled));
        assert!(!why.is_first(GaveUp::TimedOut));
        assert!(why.is_given() && !why.timed_out());
    }
}
