//! A limit for waits that counts the time in which something could have happened.
//!
//! A clock goes on while a process is stopped by a signal or a debugger, and while its virtual
//! machine is paused. A party that waits until a point in time finds that point passed when it goes
//! on, and gives up on others that were stopped just as long. So a wait is cut into slices, and a
//! slice counts as no longer than it was meant to be.

use std::time::{Duration, Instant};

/// So that a pause costs little of a long limit.
const SLICE_MAX: Duration = Duration::from_millis(100);
/// So that a pause costs little of a short limit.
const SLICES_MIN: u32 = 8;

/// A time limit for a wait, spent only while this process can run.
///
/// Time during which the whole process is stopped (a signal, a debugger, a paused virtual machine)
/// counts as 100 ms at most: the party that is waited for was stopped as well.
///
/// ```
/// use std::time::Duration;
///
/// let answer = ult::Eventual::<u8>::new();
/// let limit = ult::Limit::new(Duration::from_millis(2));
/// let came = limit.wait(|deadline| match deadline {
///     Some(deadline) => answer.wait_ready_deadline(deadline),
///     None => unreachable!("this one has a limit"),
/// });
/// assert!(!came);
/// ```
#[derive(Debug, Clone)]
pub struct Limit {
    /// `None`: no limit.
    left: Option<Duration>,
    slice_max: Duration,
}

impl Limit {
    /// A limit of that length.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { left: Some(limit), slice_max: SLICE_MAX.min(limit / SLICES_MIN) }
    }

    /// No limit.
    #[must_use]
    pub fn none() -> Self {
        Self { left: None, slice_max: Duration::ZERO }
    }

    /// Returns whether nothing is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.left.is_some_and(|left| left.is_zero())
    }

    /// Waits in parts until one says `true`, or (`false`) the limit is over. Each part is to end at
    /// its deadline at the latest; without a limit it has none.
    pub fn wait(mut self, mut part: impl FnMut(Option<Instant>) -> bool) -> bool {
        loop {
            if self.spend(&mut part) {
                return true;
            }
            if self.is_over() {
                return false;
            }
        }
    }

    /// Runs a part of the wait, which is to end at the deadline that it is given at the latest.
    pub(crate) fn spend<R>(&mut self, wait: impl FnOnce(Option<Instant>) -> R) -> R {
        let Some(slice) = self.slice() else { return wait(None) };
        let start = Instant::now();
        let result = wait(start.checked_add(slice));
        self.count(slice, start.elapsed());
        result
    }

    /// How long the next part of the wait may be. `None`: without end.
    fn slice(&self) -> Option<Duration> {
        // Not zero, so that the limit passes.
        self.left.map(|left| left.min(self.slice_max.max(Duration::from_micros(1))))
    }

    fn count(&mut self, slice: Duration, elapsed: Duration) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(elapsed.min(slice));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_as_one_slice() {
        let mut limit = Limit::new(Duration::from_secs(30));
        let slice = limit.slice().expect("limited");
        assert_eq!(slice, SLICE_MAX);
        limit.count(slice, Duration::from_secs(3600));
        assert_eq!(limit.left, Some(Duration::from_secs(30) - SLICE_MAX));
        limit.count(slice, slice / 4);
        assert_eq!(limit.left, Some(Duration::from_secs(30) - SLICE_MAX - slice / 4));
    }

    #[test]
    fn limits_of_any_length_end() {
        for limit in [Duration::ZERO, Duration::from_nanos(3), Duration::from_millis(7)] {
            let mut limit = Limit::new(limit);
            for _ in 0..=9 * SLICES_MIN {
                let slice = limit.slice().expect("limited");
                limit.count(slice, slice);
            }
            assert!(limit.is_over(), "{limit:?}");
        }
        assert!(!Limit::none().is_over());
        assert_eq!(Limit::none().spend(|deadline| deadline), None);
    }
}
