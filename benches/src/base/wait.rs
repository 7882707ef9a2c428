//! Deadlines. No wait of this program is without one.

use std::time::{Duration, Instant};

use crate::base::failure::{Failure, Result};

/// A point in time after which waiting is an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub(crate) fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Time left; zero when it is over.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// An error that names `what` when the time is over.
    ///
    /// # Errors
    ///
    /// When the deadline has passed.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        if self.left().is_zero() { Err(self.late(what)) } else { Ok(()) }
    }

    /// The error of a wait for `what` that this deadline ended.
    pub(crate) fn late(&self, what: &str) -> Failure {
        Failure::new(format!("{what}: nothing within {:.1} s", self.limit.as_secs_f64()))
    }

    /// Runs `ready` until it holds, without giving the core away.
    ///
    /// The clock is read once in some thousand turns only: a wait in the middle of a measurement
    /// shall cost nothing but its loads.
    ///
    /// # Errors
    ///
    /// When the deadline passes first.
    #[inline]
    pub(crate) fn spin_until(&self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let mut turns = 0u32;
        while !ready() {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 13) {
                self.check(what)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_ends_when_ready_or_late() {
        let mut turns = 0;
        let soon = Deadline::after(Duration::from_secs(60));
        soon.spin_until("turns", || {
            turns += 1;
            turns == 3
        })
        .unwrap();
        assert_eq!(turns, 3);
        let late = Deadline::after(Duration::ZERO);
        let error = late.spin_until("the peer's answer", || false).unwrap_err();
        assert!(error.to_string().starts_with("the peer's answer: nothing within"), "{error}");
    }
}
