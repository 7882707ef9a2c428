//! Budgets that adapt: how long to spin before a sleep, and how often to look at the clock.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sync::hint;

/// Default cap on one spin.
pub(crate) const SPIN_MAX_DEFAULT: Duration = Duration::from_micros(20);

/// A spin never becomes shorter than this fraction of the cap.
const SPIN_MIN_DIVISOR: u32 = 16;

/// Looks between two looks at the clock.
const SPIN_BATCH: u32 = 32;

/// How long to spin before sleeping. Doubles after a spin that found something and after a sleep
/// that a spin would have saved; halves after a spin in vain.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    now: Cell<Duration>,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { max, now: Cell::new(max) }
    }

    fn lengthen(&self) {
        self.now.set((self.now.get() * 2).min(self.max));
    }

    fn shorten(&self) {
        self.now.set((self.now.get() / 2).max(self.max / SPIN_MIN_DIVISOR));
    }

    /// Spins until `found` says yes (`true`) or the time is over.
    pub(crate) fn spin(&self, limit: Duration, found: impl Fn() -> bool) -> bool {
        let limit = self.now.get().min(limit);
        if limit.is_zero() {
            return false;
        }
        let mut start = None;
        loop {
            for _ in 0..SPIN_BATCH {
                if found() {
                    self.lengthen();
                    return true;
                }
                hint::spin_loop();
            }
            // Not before the first looks: to read the clock takes longer than a cache line.
            if start.get_or_insert_with(Instant::now).elapsed() >= limit {
                self.shorten();
                return false;
            }
        }
    }

    /// Learns from a sleep that somebody ended.
    pub(crate) fn learn(&self, slept: Duration) {
        if slept < self.max {
            self.lengthen();
        }
    }
}

/// How many rounds may pass between two looks at the clock.
///
/// A look costs as much as several short units, so it is shared by many of them; but if those
/// rounds took long, the next look comes sooner, so that long units delay timers by little more
/// than one unit.
#[derive(Debug)]
pub(crate) struct ClockBudget {
    rounds: Cell<u32>,
    left: Cell<u32>,
    last: Cell<Option<Instant>>,
}

const ROUNDS_MAX: u32 = 32;

const ROUNDS_TOO_LONG: Duration = Duration::from_micros(100);

impl Default for ClockBudget {
    fn default() -> Self {
        Self { rounds: Cell::new(1), left: Cell::new(1), last: Cell::new(None) }
    }
}

impl ClockBudget {
    /// Counts a round; returns the time if it is time to look.
    #[inline]
    pub(crate) fn tick(&self) -> Option<Instant> {
        let left = self.left.get().saturating_sub(1);
        self.left.set(left);
        if left > 0 { None } else { Some(self.look()) }
    }

    fn look(&self) -> Instant {
        let now = Instant::now();
        let last = self.last.replace(Some(now));
        let is_long = last.is_none_or(|last| now.duration_since(last) > ROUNDS_TOO_LONG);
        let rounds = self.rounds.get();
        let rounds = if is_long { (rounds / 4).max(1) } else { (rounds * 2).min(ROUNDS_MAX) };
        self.rounds.set(rounds);
        self.left.set(rounds);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_adapts_within_bounds() {
        let max = Duration::from_micros(16);
        let spin = Spin::new(max);
        for _ in 0..10 {
            assert!(!spin.spin(Duration::MAX, || false));
        }
        assert_eq!(spin.now.get(), max / SPIN_MIN_DIVISOR);
        assert!(spin.spin(Duration::MAX, || true));
        assert_eq!(spin.now.get(), max / SPIN_MIN_DIVISOR * 2);
        for _ in 0..10 {
            spin.learn(Duration::from_micros(1));
        }
        assert_eq!(spin.now.get(), max);
        assert!(!Spin::new(Duration::ZERO).spin(Duration::MAX, || true), "zero means never");
    }
}
