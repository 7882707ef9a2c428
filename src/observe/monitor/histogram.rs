//! Distributions: exact moments of order one and two, and a histogram of bounded relative error.
//!
//! A histogram has 16 buckets for each power of two, so a bucket is at most one sixteenth as wide
//! as its values are large, and what it says is at most 6.25 % too much, never too little. Values
//! below 16 have a bucket each. It is as long as its largest value needs: 1 ms takes 272 buckets.

use serde::{Deserialize, Serialize};

/// Buckets for each power of two, as a power of two.
const SUB_BITS: u32 = 4;
const SUB: u64 = 1 << SUB_BITS;
/// Larger values count as this one: 2^53 ns are 104 days.
const VALUE_MAX: u64 = (1 << 53) - 1;

/// Which bucket a value belongs to.
fn bucket(value: u64) -> usize {
    let value = value.min(VALUE_MAX);
    if value < SUB {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    // The leading bit of the shifted value is that of `SUB`.
    (u64::from(shift) * SUB + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    (((bucket % SUB + SUB) + 1) << shift) - 1
}

/// How often which values came; each value with a weight.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Distribution {
    weight: u64,
    min: u64,
    max: u64,
    mean: f64,
    /// Sum of the squares of the distances from the mean.
    squares: f64,
    buckets: Vec<u64>,
}

#[allow(
    clippy::cast_precision_loss,
    reason = "values are nanoseconds or bytes: below 2^53 in practice, and 53 bits of precision \
              are enough for a mean"
)]
impl Distribution {
    /// A value that stands for `weight` of them. The mean and the variance are kept as by Welford
    /// and West, so that they are right also when the variance is small and the mean large.
    pub(super) fn add(&mut self, value: u64, weight: u32) {
        let weight = u64::from(weight.max(1));
        self.min = if self.weight == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.weight += weight;
        let distance = value as f64 - self.mean;
        self.mean += distance * weight as f64 / self.weight as f64;
        self.squares += weight as f64 * distance * (value as f64 - self.mean);
        let bucket = bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += weight;
    }

    /// For people and programs.
    pub(super) fn figures(&self) -> Figures {
        let mut figures = Figures {
            count: self.weight,
            min: self.min,
            max: self.max,
            mean: self.mean,
            variance: if self.weight == 0 { 0.0 } else { self.squares / self.weight as f64 },
            buckets: self
                .buckets
                .iter()
                .enumerate()
                .filter(|(_, weight)| **weight > 0)
                .map(|(bucket, weight)| (upper(bucket), *weight))
                .collect(),
            ..Figures::default()
        };
        figures.fill_percentiles();
        figures
    }
}

/// The figures of one quantity: of times in nanoseconds, of sizes in bytes.
///
/// Where not every call is looked at, each one that is stands for those before it, and `count` is
/// about how many calls there were; see [`Statistics`](super::Statistics).
///
/// ```
/// # const PING: margo::Rpc<(), ()> = margo::Rpc::new("ping");
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// # instance.serve(PING).function(|()| ())?;
/// instance.monitoring().start_statistics(1);
/// for _ in 0..10 {
///     instance.forward(PING, &instance.self_addr().into(), &())?;
/// }
/// let total = &instance.monitoring().statistics().origin[0].figures.total;
/// println!("median {} ns, mean {} ns", total.p50, total.mean);
/// assert_eq!(total.count, 10);
/// assert!(total.percentile(0.25) <= total.p50 && total.p50 <= total.max);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// How many values there were, or were stood for.
    pub count: u64,
    /// The smallest that was seen; 0 if none was.
    pub min: u64,
    /// The largest that was seen.
    pub max: u64,
    /// The average.
    pub mean: f64,
    /// The mean square of the distance from the average.
    pub variance: f64,
    /// Half of the values are not larger. As with all percentiles: at most 6.25 % above the exact
    /// value, never below, and never above `max`.
    pub p50: u64,
    /// 90 % of the values are not larger.
    pub p90: u64,
    /// 99 % of the values are not larger.
    pub p99: u64,
    /// 99.9 % of the values are not larger.
    pub p999: u64,
    /// The histogram: the largest value of a bucket, and how many are in it; only those with some.
    pub buckets: Vec<(u64, u64)>,
}

impl Figures {
    /// The value that `part` (0 to 1) of the values do not exceed; 0 if there are none.
    ///
    /// ```
    /// assert_eq!(margo::monitor::Figures::default().percentile(0.5), 0);
    /// ```
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank, rounded up"
    )]
    pub fn percentile(&self, part: f64) -> u64 {
        let rank = (self.count as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (upper, weight) in &self.buckets {
            seen += weight;
            if seen >= rank {
                return (*upper).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// The sum of all values.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "as good as the mean")]
    pub fn sum(&self) -> f64 {
        self.mean * self.count as f64
    }

    /// Takes the values of `other` in, as if they had been seen here: for figures of several peers
    /// or RPCs together.
    #[allow(clippy::cast_precision_loss, reason = "as good as the mean")]
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            self.clone_from(other);
            return;
        }
        let (own, its) = (self.count as f64, other.count as f64);
        let (all, distance) = (own + its, other.mean - self.mean);
        let squares =
            self.variance * own + other.variance * its + distance * distance * own * its / all;
        self.mean += distance * its / all;
        self.variance = squares / all;
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        let mut buckets: std::collections::BTreeMap<u64, u64> =
            self.buckets.iter().copied().collect();
        for (upper, weight) in &other.buckets {
            *buckets.entry(*upper).or_default() += weight;
        }
        self.buckets = buckets.into_iter().collect();
        self.fill_percentiles();
    }

    fn fill_percentiles(&mut self) {
        self.p50 = self.percentile(0.5);
        self.p90 = self.percentile(0.9);
        self.p99 = self.percentile(0.99);
        self.p999 = self.percentile(0.999);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for value in (0..100_000).chain((1..53).flat_map(|bit| [(1 << bit) - 1, 1 << bit])) {
            let bucket = bucket(value);
            assert!(value <= upper(bucket), "{value}");
            assert!(bucket == 0 || value > upper(bucket - 1), "{value}");
            assert!(upper(bucket) - value <= value / 16, "{value}");
        }
        assert_eq!(upper(bucket(u64::MAX)), VALUE_MAX);
    }

    #[test]
    fn nothing_has_no_figures() {
        let figures = Distribution::default().figures();
        assert_eq!(figures, Figures::default());
        assert_eq!(figures.sum(), 0.0);
    }

    #[test]
    fn handlers_of_hours_are_told_as_long() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut all = Distribution::default();
        all.add(HOUR, 1);
        all.add(3 * HOUR, 98);
        all.add(u64::MAX, 1);
        let figures = all.figures();
        assert!(figures.p99 >= 3 * HOUR && figures.p99 <= 3 * HOUR / 16 * 17, "{}", figures.p99);
    }

    fn exact(values: &[(u64, u32)]) -> (f64, f64, Vec<u64>) {
        let all: Vec<u64> = values
            .iter()
            .flat_map(|(value, weight)| std::iter::repeat_n(*value, *weight as usize))
            .collect();
        let count = all.len() as f64;
        let mean = all.iter().map(|value| *value as f64).sum::<f64>() / count;
        let variance = all.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count;
        let mut sorted = all;
        sorted.sort_unstable();
        (mean, variance, sorted)
    }

    proptest! {
        #[test]
        fn figures_agree_with_the_values(
            values in prop::collection::vec((0u64..1 << 36, 1u32..5), 1..200),
            cut in 0usize..200,
        ) {
            let mut all = Distribution::default();
            values.iter().for_each(|(value, weight)| all.add(*value, *weight));
            let (first, second) = values.split_at(cut.min(values.len()));
            let part = |values: &[(u64, u32)]| {
                let mut part = Distribution::default();
                values.iter().for_each(|(value, weight)| part.add(*value, *weight));
                part.figures()
            };
            let mut merged = part(first);
            merged.merge(&part(second));
            let (mean, variance, sorted) = exact(&values);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()));
            for figures in [all.figures(), merged] {
                prop_assert_eq!(figures.count, sorted.len() as u64);
                prop_assert_eq!(figures.min, sorted[0]);
                prop_assert_eq!(figures.max, sorted[sorted.len() - 1]);
                prop_assert!(near(figures.mean, mean), "{} {mean}", figures.mean);
                prop_assert!(near(figures.variance, variance), "{} {variance}", figures.variance);
                for part in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
                    let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1) - 1;
                    let (is, says) = (sorted[rank], figures.percentile(part));
                    prop_assert!(says >= is && says - is <= is / 16, "{part}: {says}, not {is}");
                }
            }
        }
    }
}
