//! Ticks at a fixed period.
//!
//! Each tick has a time of its own, computed from the one before and not from the clock, so the
//! ticks do not drift however late each of them is noticed.

use std::time::{Duration, Instant};

use crate::engine::xstream::switch::sleep_until;

/// The policy for a tick that comes so late that the next one is due, too.
///
/// ```
/// use std::time::{Duration, Instant};
/// use ult::MissedTicks;
///
/// let (start, period) = (Instant::now(), Duration::from_millis(10));
/// let mut every = ult::interval_at(start, period).missed_ticks(MissedTicks::Skip);
/// // Noticed 35 ms late: the ticks of 10, 20 and 30 ms are left out.
/// assert_eq!(every.try_tick(start + Duration::from_millis(35)), Some(start));
/// assert_eq!(every.next_tick(), start + 4 * period);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// The missed ticks follow at once, one by one, until all have been made up for.
    #[default]
    Burst,
    /// The missed ticks are left out, and the next one comes a full period from now. The later
    /// ticks are counted from that one.
    Delay,
    /// The missed ticks are left out, and the next one comes at its own time.
    Skip,
}

/// Ticks at a fixed period; see [`interval`].
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let (start, period) = (Instant::now(), Duration::from_millis(10));
/// let mut every = ult::interval_at(start, period);
/// // Among other work, without waiting; `tick` waits.
/// assert_eq!(every.try_tick(start), Some(start));
/// assert_eq!(every.try_tick(start), None);
/// assert_eq!(every.next_tick(), start + period);
/// ```
#[derive(Debug, Clone)]
pub struct Interval {
    period: Duration,
    next: Instant,
    policy: MissedTicks,
}

/// Ticks every `period`; the first one is due now.
///
/// # Panics
///
/// If `period` is zero.
///
/// ```
/// use std::time::Duration;
///
/// let mut every = ult::interval(Duration::from_millis(1));
/// let first = every.tick();
/// assert_eq!(every.tick() - first, Duration::from_millis(1));
/// ```
#[must_use]
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Ticks every `period`; the first one is due at `start`.
///
/// # Panics
///
/// If `period` is zero.
#[must_use]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval of zero: give the time between two ticks");
    Interval { period, next: start, policy: MissedTicks::default() }
}

impl Interval {
    /// Chooses what happens to missed ticks. Default: [`MissedTicks::Burst`].
    #[must_use]
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    /// Waits for the next tick and returns the time at which it was due. A ULT suspends, an OS
    /// thread sleeps. Returns at once if the tick is due.
    ///
    /// A cancellation point.
    pub fn tick(&mut self) -> Instant {
        if self.next > Instant::now() {
            sleep_until(self.next);
        }
        self.advance(Instant::now())
    }

    /// Takes the next tick if it is due at `now`. For callers that have other means to wait.
    pub fn try_tick(&mut self, now: Instant) -> Option<Instant> {
        (self.next <= now).then(|| self.advance(now))
    }

    /// When the next tick is due.
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        self.next
    }

    /// The time between two ticks.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Starts over: the next tick is due a period from now.
    pub fn reset(&mut self) {
        self.next = add(Instant::now(), self.period);
    }

    /// Takes the tick that is due, at the time `now`.
    fn advance(&mut self, now: Instant) -> Instant {
        let due = self.next;
        let next = add(due, self.period);
        self.next = match self.policy {
            MissedTicks::Delay if next <= now => add(now, self.period),
            MissedTicks::Skip if next <= now => {
                let late = now.duration_since(due).as_nanos();
                let into_period = late % self.period.as_nanos();
                let left = self.period.as_nanos() - into_period;
                add(now, Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX)))
            }
            _ => next,
        };
        due
    }
}

/// Beyond the range of the clock, a time that never comes in practice.
fn add(at: Instant, period: Duration) -> Instant {
    crate::engine::xstream::timer::saturating_add(at, period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Duration = Duration::from_millis(10);

    /// Takes a tick at each of the given times (in ms after the start); the times at which they
    /// were due, and the next one.
    fn ticks(policy: MissedTicks, at: &[u64]) -> (Vec<u128>, u128) {
        let start = Instant::now();
        let mut every = interval_at(start, PERIOD).missed_ticks(policy);
        let since = |time: Instant| time.duration_since(start).as_millis();
        let due = at
            .iter()
            .filter_map(|ms| every.try_tick(start + Duration::from_millis(*ms)))
            .map(since)
            .collect();
        (due, since(every.next_tick()))
    }

    #[test]
    fn late_ticks_do_not_drift() {
        for policy in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let (due, next) = ticks(policy, &[3, 19, 20, 39]);
            assert_eq!(due, [0, 10, 20, 30], "{policy:?}");
            assert_eq!(next, 40, "{policy:?}");
        }
    }

    #[test]
    fn an_early_look_takes_nothing() {
        assert_eq!(ticks(MissedTicks::Burst, &[0, 9, 9]), (vec![0], 10));
    }

    #[test]
    fn missed_ticks_follow_the_policy() {
        // The tick of 10 is seen at 35, when those of 20 and 30 are due as well.
        assert_eq!(ticks(MissedTicks::Burst, &[0, 35, 35, 35, 35]), (vec![0, 10, 20, 30], 40));
        assert_eq!(ticks(MissedTicks::Delay, &[0, 35, 35, 44]), (vec![0, 10], 45));
        assert_eq!(ticks(MissedTicks::Skip, &[0, 35, 35, 39]), (vec![0, 10], 40));
        // Exactly when the next one is due.
        assert_eq!(ticks(MissedTicks::Skip, &[0, 20]), (vec![0, 10], 30));
        assert_eq!(ticks(MissedTicks::Delay, &[0, 20]), (vec![0, 10], 30));
    }

    #[test]
    #[should_panic(expected = "an interval of zero")]
    fn a_period_of_zero_is_refused() {
        let _ = interval(Duration::ZERO);
    }

    #[test]
    fn a_period_beyond_the_clock_never_ticks_again() {
        let start = Instant::now();
        let mut every = interval_at(start, Duration::MAX);
        assert_eq!(every.try_tick(start), Some(start));
        assert_eq!(every.try_tick(start + Duration::from_secs(1_000_000)), None);
    }

    proptest! {
        /// Whatever the delays, skipping keeps the phase, and bursting loses nothing.
        #[test]
        fn phase_and_count_are_kept(delays in prop::collection::vec(0u64..50, 1..40)) {
            let start = Instant::now();
            let mut skip = interval_at(start, PERIOD).missed_ticks(MissedTicks::Skip);
            let mut burst = interval_at(start, PERIOD);
            let mut now = start;
            let mut count = 0;
            for delay in delays {
                now += Duration::from_millis(delay);
                if let Some(due) = skip.try_tick(now) {
                    prop_assert_eq!(due.duration_since(start).as_millis() % 10, 0);
                    prop_assert!(skip.next_tick() > now);
                }
                while let Some(due) = burst.try_tick(now) {
                    prop_assert_eq!(due, start + PERIOD * count);
                    count += 1;
                }
                prop_assert!(burst.next_tick() > now);
            }
        }
    }
}
