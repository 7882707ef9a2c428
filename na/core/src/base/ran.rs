//! A clock that stops while this process does, for limits of time.
//!
//! A process that was itself stopped (a signal, a debugger, a virtual machine that is paused), or
//! did not poll, does not blame its peers for that. A process that waits for a peer looks at its
//! limit several times, each time after it has read what arrived. Each look counts a part of the
//! limit at most, however long ago the last one was.

use std::time::{Duration, Instant};

/// Looks within a limit.
pub const LOOKS: u32 = 4;

/// Liveness limits below this count as this. It is also what bounds the work that a peer can ask
/// for.
pub const LIMIT_MIN: Duration = Duration::from_millis(200);

/// A limit as an endpoint keeps it; zero, which is none, stays zero.
pub fn limit(wanted: Duration) -> Duration {
    if wanted.is_zero() { wanted } else { wanted.max(LIMIT_MIN) }
}

/// How often an endpoint with `limit` asks to hear something, for its hello, ms; 0: never.
pub fn alive_every_ms(limit: Duration) -> u32 {
    u32::try_from((limit / LOOKS).as_millis()).unwrap_or(u32::MAX)
}

/// Time that has been counted, look by look.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use na_core::base::ran::RunClock;
///
/// let (start, limit) = (Instant::now(), Duration::from_secs(4));
/// let mut clock = RunClock::since(start);
/// assert!(!clock.has_passed(start + Duration::from_secs(3600), limit), "a pause of ours");
/// let in_turn = (1..=3).map(|second| start + Duration::from_secs(3600 + second));
/// assert!(in_turn.into_iter().any(|now| clock.has_passed(now, limit)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClock {
    looked_at: Instant,
    counted: Duration,
}

impl RunClock {
    /// A clock that has counted nothing before `now`.
    pub fn since(now: Instant) -> Self {
        Self { looked_at: now, counted: Duration::ZERO }
    }

    /// Looks; returns what counts of the time since the last look, `at_most` that much.
    #[inline]
    pub fn look(&mut self, now: Instant, at_most: Duration) -> Duration {
        let step = now.saturating_duration_since(self.looked_at).min(at_most);
        self.looked_at = now;
        self.counted = self.counted.saturating_add(step);
        step
    }

    /// Looks; whether we have run for `limit`.
    #[inline]
    pub fn has_passed(&mut self, now: Instant, limit: Duration) -> bool {
        self.look(now, step(limit));
        self.counted >= limit
    }

    /// When to look again for [`has_passed`](Self::has_passed). `None`: never.
    pub fn next_look(&self, limit: Duration) -> Option<Instant> {
        let left = limit.saturating_sub(self.counted);
        self.looked_at.checked_add(left.min(step(limit)))
    }
}

/// Returns the most that one look counts: never zero, so that each limit passes in the end.
fn step(limit: Duration) -> Duration {
    (limit / LOOKS).max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);

    #[test]
    fn limits_have_a_least_value_and_zero_is_none() {
        assert_eq!(limit(Duration::ZERO), Duration::ZERO);
        assert_eq!(limit(Duration::from_nanos(1)), LIMIT_MIN);
        assert_eq!(limit(Duration::from_secs(9)), Duration::from_secs(9));
        assert_eq!(alive_every_ms(Duration::ZERO), 0);
        assert_eq!(alive_every_ms(Duration::MAX), u32::MAX);
    }

    #[test]
    fn a_limit_passes_for_who_runs() {
        let began = Instant::now();
        let mut ran = RunClock::since(began);
        assert_eq!(ran.next_look(LIMIT), Some(began + LIMIT / LOOKS));
        for second in 1..4 {
            assert!(!ran.has_passed(began + Duration::from_secs(second), LIMIT));
        }
        assert!(ran.has_passed(began + LIMIT, LIMIT));
        let mut often = RunClock::since(began);
        let passed = |ms| often.has_passed(began + Duration::from_millis(ms), LIMIT);
        assert_eq!((0..5000).step_by(10).map(passed).position(|passed| passed), Some(400));
    }

    #[test]
    fn a_long_pause_counts_as_one_step() {
        let began = Instant::now();
        let mut ran = RunClock::since(began);
        let hour = began + Duration::from_secs(3600);
        assert!(!ran.has_passed(hour, LIMIT));
        assert_eq!(ran.next_look(LIMIT), Some(hour + LIMIT / LOOKS));
        assert!(!ran.has_passed(hour + LIMIT / 2, LIMIT));
        assert!(!ran.has_passed(hour, LIMIT), "a clock that goes back counts nothing");
        assert!(!ran.has_passed(hour + LIMIT, LIMIT));
        assert!(ran.has_passed(hour + LIMIT * 2, LIMIT));
    }

    #[test]
    fn the_shortest_limit_passes_and_the_longest_does_not() {
        let mut short = RunClock::since(Instant::now());
        let later = Instant::now() + Duration::from_secs(1);
        assert!(short.has_passed(later, Duration::from_nanos(1)));
        let mut long = RunClock::since(Instant::now());
        assert!(!long.has_passed(later, Duration::MAX));
        assert!(long.next_look(Duration::MAX).is_none_or(|next| next > later));
    }
}
