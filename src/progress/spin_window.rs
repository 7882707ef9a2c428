//! Patience: how long progress goes on polling after something has happened.

use std::time::{Duration, Instant};

use margo_config::Resolved;

use crate::layout::options::never_sleeps;

/// The next step when a poll has found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spin {
    /// Poll once more.
    On,
    /// Poll once more: something was done for a peer since the last look.
    Served,
    /// The patience is over.
    Over,
}

/// How long to spin before sleeping: longer when the last spin paid, shorter when it did not,
/// within hard bounds.
#[derive(Debug)]
pub(crate) struct SpinWindow {
    window: Duration,
    window_max: Duration,
    /// Set at the first fruitless poll after something happened.
    spinning_since: Option<Instant>,
    polls: u32,
    /// The number that [`spin`](Self::spin) was given at the last look.
    served: u64,
}

impl SpinWindow {
    /// A spin shorter than this is not worth the clock read that bounds it.
    const WINDOW_MIN: Duration = Duration::from_micros(20);
    /// The cost of a wake-up by the kernel, with room: spinning this long at first loses little.
    const WINDOW_START: Duration = Duration::from_micros(200);
    /// Polls between two looks at the clock.
    const POLLS_PER_LOOK: u32 = 8;

    /// Fruitless polls, with the looks between them, after which what comes next is no longer
    /// expected at once: about 15 us.
    const FRESH_POLLS: u32 = 32;

    fn new(window_max: Duration) -> Self {
        let window = Self::WINDOW_START.min(window_max);
        Self { window, window_max, spinning_since: None, polls: 0, served: 0 }
    }

    /// As the configuration says.
    pub(crate) fn of(resolved: &Resolved) -> Self {
        match never_sleeps(resolved) {
            true => Self::endless(),
            false => Self::new(resolved.progress_spindown),
        }
    }

    /// Never sleeps.
    fn endless() -> Self {
        Self { window: Duration::MAX, ..Self::new(Duration::MAX) }
    }

    /// Something arrived. If we were spinning for it, the spin paid: be more patient.
    pub(crate) fn useful(&mut self) {
        if self.spinning_since.take().is_some() {
            self.window = self.window.saturating_mul(2).min(self.window_max);
        }
        self.polls = 0;
    }

    /// Returns whether it is but a moment since something happened.
    pub(crate) fn is_fresh(&self) -> bool {
        self.polls < Self::FRESH_POLLS
    }

    /// Returns whether to poll once more rather than to sleep. `served`: a number that changes with
    /// work for peers that has no event; such work keeps progress awake as events do.
    pub(crate) fn spin(&mut self, served: impl FnOnce() -> u64) -> Spin {
        if self.window_max.is_zero() {
            return Spin::Over;
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(Self::POLLS_PER_LOOK) {
            return Spin::On;
        }
        let served = served();
        if served != self.served {
            self.served = served;
            self.useful();
            return Spin::Served;
        }
        let now = Instant::now();
        let since = *self.spinning_since.get_or_insert(now);
        if now - since < self.window { Spin::On } else { Spin::Over }
    }

    /// It has slept. `is_no_failure`: because no caller waited for anything, or not for long, which
    /// says nothing about spins.
    pub(crate) fn over(&mut self, is_no_failure: bool) {
        if is_no_failure { self.rested() } else { self.slept() }
    }

    fn rested(&mut self) {
        self.spinning_since = None;
        self.polls = 0;
    }

    /// The spin ended in sleep: it did not pay.
    fn slept(&mut self) {
        self.window = (self.window / 2).max(Self::WINDOW_MIN.min(self.window_max));
        self.spinning_since = None;
        self.polls = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_when_it_pays_and_shrinks_when_it_does_not() {
        let mut patience = SpinWindow::new(Duration::from_millis(10));
        let start = patience.window;
        patience.slept();
        assert!(patience.window < start);
        for _ in 0..100 {
            patience.spinning_since = Some(Instant::now());
            patience.useful();
        }
        assert_eq!(patience.window, Duration::from_millis(10), "bounded above");
        for _ in 0..100 {
            patience.slept();
        }
        assert_eq!(patience.window, SpinWindow::WINDOW_MIN, "bounded below");
    }

    #[test]
    fn zero_spindown_never_spins() {
        let mut patience = SpinWindow::new(Duration::ZERO);
        assert_eq!(patience.spin(|| 0), Spin::Over);
        patience.slept();
        assert_eq!(patience.spin(|| 0), Spin::Over);
    }

    #[test]
    fn endless_patience_stays_endless() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
        let mut patience = SpinWindow::endless();
        for _ in 0..3 {
            // As if nothing had arrived for longer than any window of the other kind.
            patience.spinning_since = long_ago;
            assert!((0..2 * SpinWindow::POLLS_PER_LOOK).all(|_| patience.spin(|| 0) == Spin::On));
            patience.useful();
        }
        patience = SpinWindow::new(Duration::from_millis(10));
        patience.spinning_since = long_ago;
        assert!(!(0..2 * SpinWindow::POLLS_PER_LOOK).all(|_| patience.spin(|| 0) == Spin::On));
    }

    #[test]
    fn what_comes_next_is_expected_at_once_only_for_a_moment() {
        for mut patience in [SpinWindow::endless(), SpinWindow::new(Duration::from_secs(60))] {
            for _ in 0..2 {
                let looks = (0..1000).take_while(|_| {
                    let _ = patience.spin(|| 0);
                    patience.is_fresh()
                });
                assert_eq!(looks.count() as u32 + 1, SpinWindow::FRESH_POLLS);
                patience.useful();
                assert!(patience.is_fresh());
            }
        }
    }

    #[test]
    fn a_spin_ends() {
        let mut patience = SpinWindow::new(Duration::from_micros(50));
        let started = Instant::now();
        while patience.spin(|| 0) == Spin::On {
            assert!(started.elapsed() < Duration::from_secs(30), "spins for ever");
        }
    }

    #[test]
    fn what_is_done_for_peers_keeps_it_awake() {
        let mut patience = SpinWindow::new(Duration::from_millis(10));
        for served in 1..100 {
            // As if the window were long over.
            patience.spinning_since = Instant::now().checked_sub(Duration::from_secs(60));
            let looks = (0..SpinWindow::POLLS_PER_LOOK).map(|_| patience.spin(|| served));
            assert_eq!(looks.last(), Some(Spin::Served));
        }
        patience.spinning_since = Instant::now().checked_sub(Duration::from_secs(60));
        let looks = (0..SpinWindow::POLLS_PER_LOOK).map(|_| patience.spin(|| 99));
        assert_eq!(looks.last(), Some(Spin::Over));
    }
}
