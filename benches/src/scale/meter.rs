//! Counting the calls of a client, and how long they take.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::Result;

/// Slices of a window, each with a rate of its own.
pub(crate) const SLICES: u32 = 3;

/// The calls before the window, and after it for the clients that are late, go on for this part of
/// it, and at least for so long.
const AROUND: (u32, Duration) = (8, Duration::from_millis(20));

/// How long the load goes on before a window, and after it.
pub(crate) fn around(window: Duration) -> Duration {
    AROUND.1.max(window / AROUND.0)
}

/// The counters of a client. Its callers are on one xstream, so that nothing is contended.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Each caller tells of so many calls at once, the last of which it has timed.
    every: u32,
    calls: AtomicU64,
    /// Times are recorded.
    is_open: AtomicBool,
    is_over: AtomicBool,
    times: Box<[AtomicU32]>,
}

/// The figures of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Calls per second in each slice of the window.
    pub(crate) rates: Vec<f64>,
    /// How many timed calls took so long, by [`bucket`].
    pub(crate) times: BTreeMap<u16, u32>,
}

impl Meter {
    /// One whose callers time each `every`-th of their calls.
    pub(crate) fn new(every: u32) -> Self {
        let times = (0..=bucket(u64::MAX)).map(|_| AtomicU32::new(0)).collect();
        let (is_open, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { every, calls: AtomicU64::new(0), is_open, is_over, times }
    }

    /// Runs one caller: makes calls until the time is over.
    pub(crate) fn run(&self, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        while !self.is_over() {
            let made = (1..self.every).try_for_each(|_| call()).and_then(|()| {
                let begun = Instant::now();
                call().map(|()| self.told(begun))
            });
            made.inspect_err(|_| self.end())?;
        }
        Ok(())
    }

    /// Has all callers end, for one of them has failed.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The calls of which a caller times the last.
    #[cfg(feature = "peers")]
    pub(crate) fn every(&self) -> u32 {
        self.every
    }

    /// Returns true if callers are to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Counts the calls up to one that was begun then, and has ended now.
    pub(crate) fn told(&self, begun: Instant) {
        self.calls.fetch_add(self.every.into(), Ordering::Relaxed);
        if self.is_open.load(Ordering::Relaxed) {
            let time = begun.elapsed().as_nanos() as u64;
            self.times[usize::from(bucket(time))].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Watches the callers of this process for a window, then has them end. Waits for calls as long
    /// as there are none.
    pub(crate) fn watch(&self, window: Duration) -> Measured {
        std::thread::sleep(around(window));
        self.is_open.store(true, Ordering::Relaxed);
        let mut last = (Instant::now(), self.calls.load(Ordering::Relaxed));
        let mut rates = Vec::new();
        for _ in 0..SLICES {
            std::thread::sleep(window / SLICES);
            let look = || (Instant::now(), self.calls.load(Ordering::Relaxed));
            let mut now = look();
            // A slice without a call is none: something else has the core.
            while now.1 == last.1 && !self.is_over() {
                std::thread::sleep(Duration::from_millis(1));
                now = look();
            }
            rates.push((now.1 - last.1) as f64 / (now.0 - last.0).as_secs_f64());
            last = now;
        }
        self.is_open.store(false, Ordering::Relaxed);
        std::thread::sleep(around(window));
        self.end();
        let count =
            |(bucket, time): (usize, &AtomicU32)| (bucket as u16, time.load(Ordering::Relaxed));
        let times = self.times.iter().enumerate().map(count);
        Measured { rates, times: times.filter(|(_, count)| *count > 0).collect() }
    }
}

/// Buckets of each power of two.
const PARTS: u64 = 32;

/// The bucket of a time in nanoseconds; a bucket is at most a thirty-second of it wide.
fn bucket(ns: u64) -> u16 {
    let shift = (ns | PARTS).ilog2() - PARTS.ilog2();
    (PARTS * u64::from(shift) + (ns >> shift)) as u16
}

/// The shortest time of a bucket, in nanoseconds.
fn least(bucket: u16) -> u64 {
    let shift = (u64::from(bucket) / PARTS).saturating_sub(1);
    (u64::from(bucket) - PARTS * shift) << shift
}

/// The time in microseconds that so many thousandths of the calls do not exceed.
pub(crate) fn quantile_us(times: &BTreeMap<u16, u32>, permille: u64) -> f64 {
    let mut left = times.values().map(|count| u64::from(*count)).sum::<u64>() * permille / 1000;
    let bucket = times.iter().find_map(|(bucket, count)| {
        let is_here = left <= u64::from(*count);
        left = left.saturating_sub(u64::from(*count));
        is_here.then_some(*bucket)
    });
    least(bucket.unwrap_or_default()) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_begins_at_its_least_time() {
        for ns in (0..200).chain([1_000, 123_456, 1 << 40, u64::MAX]) {
            let least = least(bucket(ns));
            assert!(least <= ns && ns - least <= ns / PARTS, "{ns}: {least}");
            assert_eq!(bucket(least), bucket(ns));
        }
    }

    #[test]
    fn quantiles_are_those_of_all_calls() {
        let times = [(bucket(1_000), 98), (bucket(8_192), 2)].into();
        assert_eq!(quantile_us(&times, 500), quantile_us(&times, 980));
        assert_eq!(quantile_us(&times, 990), 8.192);
        assert_eq!(quantile_us(&BTreeMap::new(), 500), 0.0);
    }

    #[test]
    fn calls_are_counted_by_slices_and_timed() {
        let meter = Meter::new(4);
        let call = || {
            std::thread::yield_now();
            Ok(())
        };
        let measured = std::thread::scope(|scope| {
            let callers = scope.spawn(|| meter.run(call));
            let measured = meter.watch(Duration::from_millis(30));
            callers.join().unwrap().unwrap();
            measured
        });
        assert_eq!(measured.rates.len(), SLICES as usize);
        assert!(meter.calls.load(Ordering::Relaxed).is_multiple_of(4));
        assert!(measured.times.values().sum::<u32>() > 0);
    }
}
