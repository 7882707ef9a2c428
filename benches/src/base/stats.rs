//! Samples, percentiles, and how much of both a run takes.
//!
//! Every sample is kept, in memory that was touched before the measurement, so that neither an
//! allocation nor a page fault falls between two clock reads. Warm-up is run and not recorded.
//!
//! Two ways to time:
//!
//! - [`Samples::each`]: one clock read for each operation; a sample is the difference of successive
//!   reads and so contains the cost of one read (20 to 30 ns; the report's header prints it). For
//!   operations of 50 ns and more, where the tail matters.
//! - [`Samples::batched`]: one clock read for a batch; a sample is the batch's time, divided by its
//!   length when percentiles are taken. For shorter operations. It hides tails of single
//!   operations.
//!
//! A figure and its floor take turns ([`Effort::in_turns`]), each with its own warm-up.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::failure::Result;

/// Times of one kind of operation, and how many of them a round takes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Samples {
    effort: Effort,
    raw_ns: Vec<u64>,
    /// Operations that one raw sample covers.
    per: u32,
}

/// One round of a floor or a figure.
pub(crate) type Round = Box<dyn FnMut(&mut Samples) -> Result<()>>;

impl Samples {
    /// Room for `count` samples of `per` operations each, taken by other means than a round's.
    pub(crate) fn new(count: usize, per: u32) -> Self {
        let round_max = Duration::MAX;
        Effort { rounds: 1, samples: count, warmup: 0, round_max }.room(per)
    }

    /// Records the time of one operation or one batch.
    pub(crate) fn push(&mut self, elapsed: Duration) {
        if self.raw_ns.len() < self.raw_ns.capacity() {
            self.raw_ns.push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Adds the samples of another run of the same kind, as far as there is room.
    pub(crate) fn absorb(&mut self, other: &Self) {
        let room = self.raw_ns.capacity() - self.raw_ns.len();
        self.raw_ns.extend(other.raw_ns.iter().take(room));
    }

    /// Time of one operation in ns below which lie `permille` of the samples; `None` without any.
    pub(crate) fn quantile(&mut self, permille: usize) -> Option<f64> {
        self.raw_ns.sort_unstable();
        let last = self.raw_ns.len().checked_sub(1)?;
        Some(self.raw_ns[last * permille / 1000] as f64 / f64::from(self.per))
    }

    /// Time of one operation over all samples, in ns; `None` without any.
    pub(crate) fn mean(&self) -> Option<f64> {
        let (sum, len) = (self.raw_ns.iter().map(|ns| *ns as f64).sum::<f64>(), self.raw_ns.len());
        (len > 0).then(|| sum / len as f64 / f64::from(self.per))
    }

    /// Median and tail, as times in ns.
    pub(crate) fn latency(&mut self) -> Distribution {
        self.map(|ns| ns)
    }

    /// Median and slow tail, as operations per second.
    pub(crate) fn rate(&mut self) -> Distribution {
        self.bandwidth(1)
    }

    /// Median and slow tail, as bytes per second, when one operation moves `bytes`.
    pub(crate) fn bandwidth(&mut self, bytes: usize) -> Distribution {
        self.map(|ns| bytes as f64 * 1e9 / ns.max(f64::MIN_POSITIVE))
    }

    fn map(&mut self, unit: impl Fn(f64) -> f64) -> Distribution {
        let mut at = |permille| self.quantile(permille).map(&unit);
        Distribution { p50: at(500), p99: at(990), p999: at(999), n: self.raw_ns.len() }
    }

    /// One round: times each run of `op`.
    ///
    /// # Errors
    ///
    /// The first error of `op`.
    pub(crate) fn each(&mut self, mut op: impl FnMut() -> Result<()>) -> Result<()> {
        let effort = self.effort;
        let start = Instant::now();
        for _ in 0..effort.warmup {
            op()?;
            if start.elapsed() > effort.round_max {
                break;
            }
        }
        let start = Instant::now();
        let mut last = start;
        for _ in 0..effort.samples {
            op()?;
            let now = Instant::now();
            self.push(now - last);
            last = now;
            if now - start > effort.round_max {
                break;
            }
        }
        Ok(())
    }

    /// One round: times batches of as many operations as the samples were made for.
    ///
    /// # Errors
    ///
    /// The first error of `op`.
    pub(crate) fn batched(&mut self, mut op: impl FnMut() -> Result<()>) -> Result<()> {
        let per = self.per;
        self.each(|| {
            for _ in 0..per {
                op()?;
            }
            Ok(())
        })
    }

    /// One round: of each run of `op`, records the time that it gives.
    ///
    /// # Errors
    ///
    /// The first error of `op`.
    pub(crate) fn told(&mut self, mut op: impl FnMut() -> Result<Duration>) -> Result<()> {
        let (effort, begin) = (self.effort, Instant::now());
        for turn in 0..effort.warmup + effort.samples {
            let elapsed = op()?;
            if turn >= effort.warmup {
                self.push(elapsed);
            }
            if begin.elapsed() > effort.round_max && !self.raw_ns.is_empty() {
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
        &mut self,
        mut prepare: impl FnMut() -> Result<T>,
        mut op: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        self.told(|| {
            let prepared = prepare()?;
            let start = Instant::now();
            op(prepared)?;
            Ok(start.elapsed())
        })
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
    fn new(quick: bool, rounds: usize, samples: usize, warmup: usize) -> Self {
        let round_max = Duration::from_millis(if quick { 60 } else { 1_000 });
        Self { rounds, samples, warmup, round_max }
    }

    /// For single operations.
    pub(crate) fn latency(quick: bool) -> Self {
        let (rounds, samples, warmup) = if quick { (2, 500, 50) } else { (10, 20_000, 2_000) };
        Self::new(quick, rounds, samples, warmup)
    }

    /// For batches of operations.
    pub(crate) fn batches(quick: bool) -> Self {
        let (rounds, samples, warmup) = if quick { (2, 100, 10) } else { (10, 2_000, 200) };
        Self::new(quick, rounds, samples, warmup)
    }

    /// For transfers of `bytes` each: about the same volume for each size.
    pub(crate) fn transfers(quick: bool, bytes: usize) -> Self {
        if quick {
            return Self::new(quick, 2, ((16 << 20) / bytes.max(1)).clamp(1, 100), 1);
        }
        let samples = ((1 << 30) / bytes.max(1)).clamp(4, 10_000);
        Self::new(quick, 5, samples, (samples / 10).max(2))
    }

    /// For whole runs of a program, one a round.
    pub(crate) fn runs(quick: bool) -> Self {
        let (rounds, secs) = if quick { (1, 5) } else { (5, 20) };
        Self { rounds, samples: 1, warmup: 0, round_max: Duration::from_secs(secs) }
    }

    /// Memory for the samples of all rounds.
    pub(crate) fn room(self, per: u32) -> Samples {
        // Ones, not zeros: zeroed memory would come untouched from the system, and each first
        // write to a page of it would be a page fault inside the measurement.
        let mut raw_ns = vec![1; self.rounds * self.samples];
        raw_ns.clear();
        Samples { effort: self, raw_ns, per: per.max(1) }
    }

    /// All rounds of one thing; a sample of it covers `per` operations.
    ///
    /// # Errors
    ///
    /// The first error of a round.
    pub(crate) fn alone(
        self,
        per: u32,
        mut round: impl FnMut(&mut Samples) -> Result<()>,
    ) -> Result<Samples> {
        let mut samples = self.room(per);
        (0..self.rounds).try_for_each(|_| round(&mut samples))?;
        Ok(samples)
    }

    /// All rounds of a floor and a figure, which take turns; `per` as for [`alone`](Self::alone).
    ///
    /// # Errors
    ///
    /// The first error of a round.
    pub(crate) fn in_turns(
        self,
        per: [u32; 2],
        mut floor: impl FnMut(&mut Samples) -> Result<()>,
        mut figure: impl FnMut(&mut Samples) -> Result<()>,
    ) -> Result<[Samples; 2]> {
        let [mut floors, mut samples] = per.map(|per| self.room(per));
        for _ in 0..self.rounds {
            floor(&mut floors)?;
            figure(&mut samples)?;
        }
        Ok([floors, samples])
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

    fn taken(raw_ns: Vec<u64>) -> Samples {
        Samples { raw_ns, ..Samples::new(0, 1) }
    }

    #[test]
    fn quantiles_are_of_the_sorted_samples() {
        let mut samples = taken((1..=1000).rev().collect());
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
        let mut one = taken(vec![7]);
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
        let mut samples = taken(vec![1_000, 1_000, 1_000, 2_000]);
        let got = samples.bandwidth(1_000);
        assert_eq!(got.p50, Some(1e9));
        assert_eq!(samples.quantile(1000), Some(2_000.0));
        let mut slow = taken(vec![2_000; 3]);
        assert_eq!(slow.rate().p99, Some(5e5));
    }

    #[test]
    fn room_never_grows() {
        let mut samples = Samples::new(2, 1);
        for _ in 0..5 {
            samples.push(Duration::from_nanos(1));
        }
        assert_eq!(samples.raw_ns.len(), 2);
    }

    #[test]
    fn a_round_runs_warm_up_and_samples() {
        let effort =
            Effort { rounds: 1, samples: 5, warmup: 3, round_max: Duration::from_secs(60) };
        let mut samples = effort.room(4);
        let mut runs = 0;
        samples
            .batched(|| {
                runs += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(runs, (3 + 5) * 4);
        assert_eq!(samples.raw_ns.len(), 5);
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
        samples.prepared(prepare, op).unwrap();
        assert_eq!(used, (1..=8).collect::<Vec<_>>());
        assert_eq!(samples.raw_ns.len(), 5);
        assert!(samples.quantile(0).unwrap() < 20e6, "the preparation was timed");
    }

    #[test]
    fn absorbed_samples_keep_within_the_room() {
        let mut samples = Samples::new(3, 1);
        samples.push(Duration::from_nanos(5));
        samples.absorb(&taken(vec![1, 2, 3]));
        assert_eq!(samples.raw_ns, [5, 1, 2]);
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
        samples.each(op).unwrap();
        assert_eq!(samples.raw_ns.len(), 1);
    }

    #[test]
    fn transfers_keep_the_volume_in_bounds() {
        for bytes in [1, 4 << 10, 1 << 20, 16 << 20, 1 << 30] {
            for (quick, bounds) in [(false, 4..=10_000), (true, 1..=100)] {
                let effort = Effort::transfers(quick, bytes);
                assert!(bounds.contains(&effort.samples), "{bytes} {effort:?}");
            }
        }
    }
}
