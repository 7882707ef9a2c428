//! The clock of spans: cheap to read, the same on all processors.
//!
//! Where the system itself takes its time from the processor's time stamp counter, that counter
//! runs at one speed and alike on all processors, and one read of it is a moment: about a third of
//! the cost of `Instant::now`. Elsewhere a moment is nanoseconds of `Instant`. The length of a tick
//! comes from reading both clocks: once for a fifth of a millisecond at the start, and again over
//! ever longer times, up to ten seconds, when statistics are read.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A point in time, for what happens to calls: see [`OriginSpan`](super::span::OriginSpan).
///
/// Moments of one process can be compared with each other; those of others by
/// [`system_time`](Self::system_time). The precision is some ten nanoseconds.
///
/// ```
/// use margo::monitor::Moment;
///
/// let begun = Moment::now();
/// let sum: u64 = (0..1000).sum();
/// let ended = Moment::now();
/// println!("{sum} took {:?}", ended.since(begun));
/// assert!(begun.since(ended).is_zero());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(NonZeroU64);

impl Moment {
    /// Now.
    #[must_use]
    #[inline]
    pub fn now() -> Self {
        // The counter counts from the start of the machine.
        Self(NonZeroU64::new(clock().ticks()).unwrap_or(NonZeroU64::MIN))
    }

    /// The time from `earlier` to this; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Returns the nanoseconds from `earlier` to this; zero if that is later.
    #[must_use]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        clock().nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// The moment in ticks of the counter, for comparison with another clock.
    pub(crate) fn ticks(self) -> u64 {
        self.0.get()
    }

    /// The time of day that it was, by the system's clock when this process read it first: a
    /// change of that clock since then does not count.
    #[must_use]
    pub fn system_time(self) -> SystemTime {
        let clock = clock();
        clock.refine();
        match self.0.get().checked_sub(clock.start) {
            Some(ticks) => clock.start_of_day + Duration::from_nanos(clock.nanos(ticks)),
            None => clock.start_of_day,
        }
    }
}

/// Reads the clock for the first time, which takes a fifth of a millisecond; later on makes it more
/// precise now and then. For whoever has the time.
pub(crate) fn prepare() {
    clock().refine();
}

struct Clock {
    has_counter: bool,
    /// The first read.
    start: u64,
    start_instant: Instant,
    start_of_day: SystemTime,
    /// Nanoseconds per tick, the bits of an `f64`.
    scale: AtomicU64,
    /// Ticks since the start at which the scale is measured again.
    measure_at: AtomicU64,
}

/// Reads two clocks one after the other, as if at once: of several tries the one counts that took
/// least by the outer clock, so a pause of this thread between two reads does no harm.
pub(crate) fn at_once<T>(outer: impl Fn() -> u64, inner: impl Fn() -> T) -> (u64, T) {
    let once = || {
        let before = outer();
        let other = inner();
        let took = outer().saturating_sub(before);
        (took, before + took / 2, other)
    };
    let mut best = once();
    for _ in 0..15 {
        let next = once();
        if next.0 < best.0 {
            best = next;
        }
    }
    (best.1, best.2)
}

/// Longest time over which the scale is measured, ticks: some ten seconds; `Instant` says how long
/// exactly.
const MEASURED_MAX: u64 = 30_000_000_000;

fn clock() -> &'static Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new)
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "2^53 ns are 104 days; beyond, nanoseconds are lost, no more; nothing is negative"
)]
impl Clock {
    fn new() -> Self {
        let has_counter = system_uses_counter();
        let (start, start_instant) = match has_counter {
            true => at_once(counter, Instant::now),
            false => (0, Instant::now()),
        };
        let clock = Self {
            has_counter,
            start,
            start_instant,
            start_of_day: SystemTime::now(),
            scale: AtomicU64::new(1f64.to_bits()),
            measure_at: AtomicU64::new(u64::MAX),
        };
        if has_counter {
            while start_instant.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
            clock.measure();
        }
        clock
    }

    #[inline]
    fn ticks(&self) -> u64 {
        if self.has_counter {
            return counter();
        }
        // From 1, because a moment is not 0.
        u64::try_from(self.start_instant.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn measure(&self) {
        let (ticks, now) = at_once(|| self.since_start(), Instant::now);
        let elapsed = now.saturating_duration_since(self.start_instant);
        let scale = elapsed.as_nanos() as f64 / ticks.max(1) as f64;
        self.scale.store(scale.to_bits(), Ordering::Relaxed);
        let next = if ticks < MEASURED_MAX { ticks.saturating_mul(4) } else { u64::MAX };
        self.measure_at.store(next, Ordering::Relaxed);
    }

    /// Measures the scale again, if there is much more time now to do so.
    fn refine(&self) {
        if self.has_counter && self.since_start() >= self.measure_at.load(Ordering::Relaxed) {
            self.measure();
        }
    }

    /// Zero if the counter was set back meanwhile, as when the machine slept.
    fn since_start(&self) -> u64 {
        self.ticks().saturating_sub(self.start)
    }

    fn nanos(&self, ticks: u64) -> u64 {
        if !self.has_counter {
            return ticks;
        }
        (ticks as f64 * f64::from_bits(self.scale.load(Ordering::Relaxed))) as u64
    }
}

/// The processor's counter, for whom the system uses it, too.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and the system lets programs use it: it
    // does so itself for the clock that it gives to programs.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// No system uses one.
#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Returns whether the system trusts the processor's counter to be its clock.
fn system_uses_counter() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn moments_grow_and_agree_with_the_clock_of_the_system() {
        let (first, started, of_day) = (Moment::now(), Instant::now(), SystemTime::now());
        std::thread::sleep(Duration::from_millis(20));
        let (last, elapsed) = (Moment::now(), started.elapsed());
        assert!(last > first);
        assert_eq!(first.since(last), Duration::ZERO);
        // The last moment was taken before `elapsed`; a pause in between makes that longer only.
        let measured = last.since(first);
        assert!(measured >= Duration::from_millis(19), "{measured:?}");
        assert!(measured <= elapsed.mul_f64(1.01) + Duration::from_millis(1), "{measured:?}");
        let lag = of_day.duration_since(first.system_time()).unwrap_or_default();
        assert!(lag < Duration::from_secs(60), "{lag:?}");
    }

    #[test]
    fn a_pause_between_two_reads_does_no_harm() {
        // A time that goes on by 10 with each read, and by 4,000,000 in all tries but one.
        let (time, reads) = (Cell::new(0), Cell::new(0));
        let outer = || {
            time.set(time.get() + 10);
            time.get()
        };
        let inner = || {
            reads.set(reads.get() + 1);
            let pause = if reads.get() == 7 { 10 } else { 4_000_000 };
            time.set(time.get() + 10);
            let read = time.get();
            time.set(read + pause);
            read
        };
        let (ticks, other) = at_once(outer, inner);
        assert!(ticks.abs_diff(other) <= 10, "{ticks} {other}");
        assert_eq!(other, 6 * 4_000_030 + 20);
    }

    #[test]
    fn a_counter_that_was_set_back_leaves_the_scale_alone() {
        let clock = Clock { start: u64::MAX, measure_at: AtomicU64::new(1), ..Clock::new() };
        let before = clock.nanos(1_000_000);
        clock.refine();
        assert_eq!((clock.since_start(), clock.nanos(1_000_000)), (0, before));
    }

    #[test]
    fn without_the_counter_a_tick_is_a_nanosecond() {
        let clock = Clock { has_counter: false, ..Clock::new() };
        assert_eq!(clock.nanos(1_234), 1_234);
        assert!(clock.ticks() > 0);
    }
}
