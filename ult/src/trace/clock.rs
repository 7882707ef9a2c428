//! Time stamps for events.
//!
//! Where the system itself trusts the processor's time stamp counter (it is the clock source, so it
//! runs at one speed and alike on all processors), a stamp is one read of it, about half the cost
//! of `Instant::now`. Otherwise a stamp is nanoseconds of `Instant`. How long a tick is comes out
//! of the two ends of a recording: both are read with both clocks.

use std::sync::OnceLock;
use std::time::Instant;

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    pub(crate) ticks: u64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { instant: Instant::now(), ticks: ticks() }
    }
}

/// Turns stamps between two moments into nanoseconds since the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    start: u64,
    ns_per_tick: f64,
}

impl Scale {
    pub(crate) fn between(start: Moment, end: Moment) -> Self {
        let ticks = end.ticks.saturating_sub(start.ticks).max(1);
        let ns = end.instant.duration_since(start.instant).as_nanos();
        // 2^53 ns are 104 days; what lies beyond loses nanoseconds, no more.
        #[allow(clippy::cast_precision_loss, reason = "see above")]
        let ns_per_tick = ns as f64 / ticks as f64;
        Self { start: start.ticks, ns_per_tick }
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as in `between`; the product is never negative"
    )]
    pub(crate) fn ns(&self, ticks: u64) -> u64 {
        (ticks.saturating_sub(self.start) as f64 * self.ns_per_tick) as u64
    }
}

/// A stamp.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if has_counter() {
        // SAFETY: every x86-64 processor has the instruction; `has_counter` has looked whether
        // the system lets it count time.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    let ns = epoch().elapsed().as_nanos();
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Returns whether the counter of the processor is the clock of the system.
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_counter() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn scale_maps_both_ends_and_the_middle() {
        let instant = Instant::now();
        let start = Moment { instant, ticks: 1000 };
        let end = Moment { instant: instant + Duration::from_nanos(500), ticks: 2000 };
        let scale = Scale::between(start, end);
        assert_eq!(scale.ns(1000), 0);
        assert_eq!(scale.ns(1500), 250);
        assert_eq!(scale.ns(2000), 500);
        assert_eq!(scale.ns(3), 0, "before the start");
        assert_eq!(Scale::between(start, start).ns(1000), 0, "an empty recording");
    }

    #[test]
    fn stamps_grow() {
        let first = ticks();
        let moment = Moment::now();
        assert!(moment.ticks >= first);
        assert!(ticks() >= moment.ticks);
    }
}
