//! The times of a file, and how they relate to those of other files.
//!
//! Within a host all processes have the same monotonic clock, so their files agree to the
//! nanosecond. Files of several hosts are put together by the time of day, and agree as well as
//! the hosts' clocks do.

use rustix::time::{ClockId, clock_gettime};

use crate::observe::clock::{Moment, at_once};

/// When a file was begun, by several clocks at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Anchor {
    /// The id of the system that shares one monotonic clock: a boot of a kernel, and a time
    /// namespace of it.
    pub(super) host_id: String,
    pub(super) monotonic_ns: u64,
    /// Since 1970, UTC.
    pub(super) realtime_ns: u64,
}

impl Anchor {
    pub(super) fn now() -> Self {
        let (monotonic_ns, realtime_ns) = with_monotonic(|| nanos(ClockId::Realtime));
        Self { host_id: host_id(), monotonic_ns, realtime_ns }
    }
}

/// Returns the monotonic clock of the system, nanoseconds, together with the value that `read`
/// returns.
fn with_monotonic<T>(read: impl Fn() -> T) -> (u64, T) {
    at_once(|| nanos(ClockId::Monotonic), read)
}

/// From the ticks of [`Moment`] to the monotonic clock of the system, by reading both again and
/// again: a moment between two such times is exact to some ten nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    first: (u64, u64),
    nanos_per_tick: f64,
}

impl Mapping {
    pub(super) fn new() -> Self {
        let (nanos, moment) = with_monotonic(Moment::now);
        Self { first: (nanos, moment.ticks()), nanos_per_tick: 1.0 }
    }

    /// Reads both clocks once more.
    #[allow(clippy::cast_precision_loss, reason = "exact up to 104 days, and then nearly so")]
    pub(super) fn renew(&mut self) {
        let (nanos, moment) = with_monotonic(Moment::now);
        let (first_nanos, first_ticks) = self.first;
        let ticks = moment.ticks().saturating_sub(first_ticks);
        if ticks > 0 {
            self.nanos_per_tick = nanos.saturating_sub(first_nanos) as f64 / ticks as f64;
        }
    }

    /// The monotonic clock at a moment after the first and before the last reading.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as above; nothing is negative"
    )]
    pub(super) fn nanos(&self, ticks: u64) -> u64 {
        let (first_nanos, first_ticks) = self.first;
        let since = ticks.saturating_sub(first_ticks) as f64 * self.nanos_per_tick;
        first_nanos.saturating_add(since as u64)
    }
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let (sec, nsec) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    sec.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nsec.unwrap_or(0))
}

fn host_id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let times = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), times.display()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_one_moment_by_both_clocks() {
        let (first, second) = (Anchor::now(), Anchor::now());
        assert_eq!(first.host_id, second.host_id);
        assert!(!first.host_id.is_empty());
        assert!(second.monotonic_ns >= first.monotonic_ns);
        let mut mapping = Mapping::new();
        let (before, moment) = (nanos(ClockId::Monotonic), Moment::now());
        let after = nanos(ClockId::Monotonic);
        std::thread::sleep(std::time::Duration::from_millis(2));
        mapping.renew();
        let mapped = mapping.nanos(moment.ticks());
        // At once is not quite at once: a pause in all of sixteen tries is out of the question.
        assert!(mapped + 5_000 >= before && mapped <= after + 5_000, "{before} {mapped} {after}");
        let year = 365 * 24 * 3600 * 1_000_000_000;
        assert!(first.realtime_ns > 50 * year, "{first:?}");
    }
}
