//! Samples, percentiles, and how much of both a run takes.
//!
//! Every sample is kept, in memory that was touched before the measurement, so that neither an
//! allocation nor a page fault falls between two clock reads. Warm-up is run and not recorded.
//!
//! Two ways to time:
//!
//! - [`Effort::each`]: one clock read for each operation; a sample is the difference of successive
//!   reads and so contains the cost of one read (20 to 30 ns; the report's header prints it). For
//!   operations of 50 ns and more, where the tail matters.
//! - [`Effort::batched`]: one clock read for a batch; a sample is the batch's time, divided by its
//!   length when percentiles are taken. For shorter operations. It hides tails of single
//!   operations.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::failure::Result;

/// Times of one kind of operation.
#[derive(Debug)]
pub(crate) struct Samples {
    raw_ns: Vec<u64>,
    /// Operations that one raw sample covers.
    per: u32,
}

impl Samples {
    /// Room for `capacity` samples of `per` operations each. Later samples are not recorded.
    pub(crate) fn new(capacity: usize, per: u32) -> Self {
        // Ones, not zeros: zeroed memory would come untouched from the system, and each first
        // write to a page of it would be a page fault inside the measurement.
        let mut raw_ns = vec![1; capacity];
        raw_ns.clear();
        Self { raw_ns, per: per.max(1) }
    }

    /// Samples that were taken elsewhere, in ns, one for each operation.
    pub(crate) fn from_raw(raw_ns: Vec<u64>) -> Self {
        Self { raw_ns, per: 1 }
    }

    /// Records the time of one operation or one batch.
    pub(crate) fn push(&mut self, elapsed: Duration) {
        if self.raw_ns.len() < self.raw_ns.capacity() {
            self.raw_ns.push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// The recorded times in ns, for handing them to another process.
    pub(crate) fn raw(&self) -> &[u64] {
        &self.raw_ns
    }

    /// Adds the samples of another run of the same kind, as far as there is room.
    pub(crate) fn absorb(&mut self, other: &Self) {
        let room = self.raw_ns.capacity() - self.raw_ns.len();
        self.raw_ns.extend(other.raw_ns.iter().take(room));
    }

    /// Recorded samples.
    pub(crate) fn len(&self) -> usize {
        self.raw_ns.len()
    }

    /// Time of one operation in ns below which lie `permille` of the samples; `None` without any.
    pub(crate) fn quantile(&mut self, permille: usize) -> Option<f64> {
        self.raw_ns.sort_unstable();
        let last = self.raw_ns.len().checked_sub(1)?;
        Some(self.raw_ns[last * permille / 1000] as f64 / f64::from(self.per))
    }

    /// Time of one operation over all samples, in ns; `None` without any.
    pub(crate) fn mean(&self) -> Option<f64> {
        let sum: f64 = self.raw_ns.iter().map(|ns| *ns as f64).sum();
        (!self.raw_ns.is_empty()).then(|| sum / self.len() as f64 / f64::from(self.per))
    }

    /// Median and tail, as times in ns.
    pub(crate) fn latency(&mut self) -> Distribution {
        self.map(|ns| ns)
    }

    /// Median and slow tail, as operations per second.
    pub(crate) fn rate(&mut self) -> Distribution {
        self.map(|ns| 1e9 / ns.max(f64::MIN_POSITIVE))
    }

    /// Median and slow tail, as bytes per second, when one operation moves `bytes`.
    pub(crate) fn bandwidth(&mut self, bytes: usize) -> Distribution {
        self.map(|ns| bytes as f64 * 1e9 / ns.max(f64::MIN_POSITIVE))
    }

    fn map(&mut self, unit: impl Fn(f64) -> f64) -> Distribution {
        let mut at = |permille| self.quantile(permille).map(&unit);
        Distribution { p50: at(500), p99: at(990), p999: at(999), n: self.len() }
    }
}

/// Percentiles in the unit of a row. For rates and bandwidths, p99 is what 99 % of the samples
/// reach: the tail is always the slow one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    /// Median.
    pub(crate) p50: Option<f64>,
    /// Reached or bettered by 99 %.
    pub(crate) p99: Option<f64>,
    /// Reached or bettered by 99.9 %.
    pub(crate) p999: Option<f64>,
    /// Samples.
    pub(crate) n: usize,
}

/// How much to measure: floor and figure alternate in `rounds`, each with its own warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// How often floor and figure take turns.
    pub(crate) rounds: usize,
    /// Samples of each in a round.
    pub(crate) samples: usize,
    /// Operations (batches) before the samples of a round, not recorded.
    pub(crate) warmup: usize,
    /// A round ends early after this time, so that a loaded machine ends at all.
    pub(crate) round_max: Duration,
}

impl Effort {
    /// For single operations.
    pub(crate) fn latency(quick: bool) -> Self {
        if quick {
            Self { rounds: 2, samples: 500, warmup: 50, round_max: Duration::from_millis(60) }
        } else {
            Self { rounds: 10, samples: 20_000, warmup: 2_000, round_max: Duration::from_secs(1) }
        }
    }

    /// For batches of operations.
    pub(crate) fn batches(quick: bool) -> Self {
        if quick {
            Self { rounds: 2, samples: 100, warmup: 10, round_max: Duration::from_millis(60) }
        } else {
            Self { rounds: 10, samples: 2_000, warmup: 200, round_max: Duration::from_secs(1) }
        }
    }

    /// For transfers of `bytes` each: about the same volume for each size.
    pub(crate) fn transfers(quick: bool, bytes: usize) -> Self {
        let (rounds, volume, most, round_max) = if quick {
            (2, 16 << 20, 100, Duration::from_millis(60))
        } else {
            (5, 1 << 30, 10_000, Duration::from_secs(1))
        };
        let samples = (volume / bytes.max(1)).clamp(4, most);
        Self { rounds, samples, warmup: (samples / 10).max(2), round_max }
    }

    /// Memory for the samples of all rounds.
    pub(crate) fn room(&self, per: u32) -> Samples {
        Samples::new(self.rounds * self.samples, per)
    }

    /// One round: times each run of `op`.
    ///
    /// # Errors
    ///
    /// The first error of `op`.
    pub(crate) fn each(
        &self,
        samples: &mut Samples,
        mut op: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        for _ in 0..self.warmup {
            op()?;
            if start.elapsed() > self.round_max {
                break;
            }
        }
        let start = Instant::now();
        let mut last = start;
        for _ in 0..self.samples {
            op()?;
            let now = Instant::now();
            samples.push(now - last);
            last = now;
            if now - start > self.round_max {
                break;
            }
        }
        Ok(())
    }

    /// One round: times each run of `op`, but not `prepare`, which makes what `op` uses up.
    ///
    /// # Errors
    ///
    /// The first error of either.
    pub(crate) fn prepared<T>(
        &self,
        samples: &mut Samples,
        mut prepare: impl FnMut() -> Result<T>,
        mut op: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        for turn in 0..self.warmup + self.samples {
            let prepared = prepare()?;
            let start = Instant::now();
            op(prepared)?;
            if turn >= self.warmup {
                samples.push(start.elapsed());
            }
            if begin.elapsed() > self.round_max && samples.len() > 0 {
                break;
            }
        }
        Ok(())
    }

    /// One round: times batches of as many operations as `samples` was made for.
    ///
    /// # Errors
    ///
    /// The first error of `op`.
    pub(crate) fn batched(
        &self,
        samples: &mut Samples,
        mut op: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let per = samples.per;
        self.each(samples, || {
            for _ in 0..per {
                op()?;
            }
            Ok(())
        })
    }
}

/// Median cost of one clock read, ns.
pub(crate) fn clock_read_ns() -> f64 {
    let mut samples = Samples::new(200, 32);
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..31 {
            std::hint::black_box(Instant::now());
        }
        samples.push(start.elapsed());
    }
    samples.quantile(500).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_samples() {
        let mut samples = Samples::from_raw((1..=1000).rev().collect());
        assert_eq!(samples.quantile(0), Some(1.0));
        assert_eq!(samples.quantile(500), Some(500.0));
        assert_eq!(samples.quantile(990), Some(990.0));
        assert_eq!(samples.quantile(1000), Some(1000.0));
        let got = samples.latency();
        assert_eq!(
            (got.p50, got.p99, got.p999, got.n),
            (Some(500.0), Some(990.0), Some(999.0), 1000)
        );
    }

    #[test]
    fn one_sample_is_every_quantile_and_none_is_none() {
        let mut one = Samples::from_raw(vec![7]);
        assert_eq!(one.latency().p50, Some(7.0));
        assert_eq!(one.latency().p999, Some(7.0));
        let mut none = Samples::new(8, 1);
        assert_eq!(none.latency(), Distribution::default());
    }

    #[test]
    fn a_batch_is_divided_by_its_length() {
        let mut samples = Samples::new(4, 8);
        assert_eq!(samples.mean(), None);
        samples.push(Duration::from_nanos(20));
        samples.push(Duration::from_nanos(60));
        assert_eq!(samples.quantile(0), Some(2.5));
        assert_eq!(samples.mean(), Some(5.0));
    }

    #[test]
    fn the_tail_of_a_bandwidth_is_the_slow_one() {
        let mut samples = Samples::from_raw(vec![1_000, 1_000, 1_000, 2_000]);
        let got = samples.bandwidth(1_000);
        assert_eq!(got.p50, Some(1e9));
        assert_eq!(samples.quantile(1000), Some(2_000.0));
        let mut slow = Samples::from_raw(vec![2_000; 3]);
        assert_eq!(slow.rate().p99, Some(5e5));
    }

    #[test]
    fn room_never_grows() {
        let mut samples = Samples::new(2, 1);
        for _ in 0..5 {
            samples.push(Duration::from_nanos(1));
        }
        assert_eq!(samples.len(), 2);
    }

    #[test]
    fn a_round_runs_warm_up_and_samples() {
        let effort =
            Effort { rounds: 1, samples: 5, warmup: 3, round_max: Duration::from_secs(60) };
        let mut samples = effort.room(4);
        let mut runs = 0;
        effort
            .batched(&mut samples, || {
                runs += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(runs, (3 + 5) * 4);
        assert_eq!(samples.len(), 5);
    }

    #[test]
    fn preparation_is_not_timed_and_feeds_each_run() {
        let effort =
            Effort { rounds: 1, samples: 5, warmup: 3, round_max: Duration::from_secs(60) };
        let mut samples = effort.room(1);
        let (mut made, mut used) = (0, Vec::new());
        let prepare = || {
            made += 1;
            std::thread::sleep(Duration::from_millis(20));
            Ok(made)
        };
        let op = |number| {
            used.push(number);
            Ok(())
        };
        effort.prepared(&mut samples, prepare, op).unwrap();
        assert_eq!(used, (1..=8).collect::<Vec<_>>());
        assert_eq!(samples.len(), 5);
        assert!(samples.quantile(0).unwrap() < 20e6, "the preparation was timed");
    }

    #[test]
    fn absorbed_samples_keep_within_the_room() {
        let mut samples = Samples::new(3, 1);
        samples.push(Duration::from_nanos(5));
        samples.absorb(&Samples::from_raw(vec![1, 2, 3]));
        assert_eq!(samples.raw(), [5, 1, 2]);
    }

    #[test]
    fn a_round_ends_when_its_time_is_over() {
        let effort = Effort { rounds: 1, samples: 1_000, warmup: 0, round_max: Duration::ZERO };
        let mut samples = effort.room(1);
        // The clock may stand still for a moment: an operation ends when it has moved.
        let op = || {
            let start = Instant::now();
            while start.elapsed().is_zero() {}
            Ok(())
        };
        effort.each(&mut samples, op).unwrap();
        assert_eq!(samples.len(), 1);
    }

    #[test]
    fn transfers_keep_the_volume_in_bounds() {
        for bytes in [1, 4 << 10, 1 << 20, 16 << 20, 1 << 30] {
            for quick in [false, true] {
                let effort = Effort::transfers(quick, bytes);
                assert!((4..=10_000).contains(&effort.samples), "{bytes} {effort:?}");
            }
        }
    }
}
