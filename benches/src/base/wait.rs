//! Deadlines. No wait of this program is without one.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::failure::{Failure, Result};

/// A point in time after which waiting is an error. For another process it is the time left.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(into = "Duration", from = "Duration")]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl From<Duration> for Deadline {
    fn from(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }
}

impl From<Deadline> for Duration {
    fn from(deadline: Deadline) -> Self {
        deadline.left()
    }
}

impl Deadline {
    /// `limit` from now.
    pub(crate) fn after(limit: Duration) -> Self {
        limit.into()
    }

    /// Starts the same limit anew, with so much more.
    pub(crate) fn again(&self, more: Duration) -> Self {
        Self::after(self.limit + more)
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
        self.spin_for(what, || Ok(ready().then_some(())))
    }

    /// Runs `take` until it gives something, without giving the core away.
    ///
    /// # Errors
    ///
    /// When the deadline passes first, or `take` fails.
    #[inline]
    pub(crate) fn spin_for<T>(
        &self,
        what: &str,
        mut take: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let mut turns = 0u32;
        loop {
            if let Some(taken) = take()? {
                return Ok(taken);
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 13) {
                self.check(what)?;
            }
        }
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
