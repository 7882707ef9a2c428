//! Rows `ult.join`, `ult.join.fib` and `ult.par.loop`: forks that make no unit unless another
//! xstream takes them.
//!
//! - `ult.join`: naive Fibonacci, a fork for each call, on one xstream, so that nobody takes any;
//!   time for each fork. Floor: the same without forks.
//! - `ult.join.fib`: the same of a greater number on two xstreams, down to a cut-off from which on
//!   nothing is forked; time for each leaf. Floor: without forks, half of the time, since there
//!   are two.
//! - `ult.par.loop`: a loop over indices with a body of a few instructions, on two xstreams; time
//!   for 1,000 indices. Floor: half of the time of a plain loop.
//!
//! Beside them `rayon`, on the same cores, taking turns.

use std::hint::black_box;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use ult::{PoolSpec, Runtime, XstreamSpec};

use super::fib::rayon_pool;
use super::on_ult::on_ult;
use crate::base::{Doing, Effort, Figure, OrFail, Result, Samples, ensure};
use crate::process::Context;

/// A computation, in three ways that give the same value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Operations that its figure is divided by.
    per: u32,
    value: u64,
    plain: fn() -> u64,
    ours: fn() -> u64,
    rayons: fn() -> u64,
}

/// Forks down to the leaves.
pub(crate) const TINY: Work = Work {
    per: 4_180,
    value: 2_584,
    plain: || plain_fib(18),
    ours: || ult_fib::<1>(18),
    rayons: || rayon_fib::<1>(18),
};

/// Leaves of some hundred nanoseconds.
pub(crate) const LEAVES: Work = Work {
    per: 987,
    value: 121_393,
    plain: || plain_fib(26),
    ours: || ult_fib::<12>(26),
    rayons: || rayon_fib::<12>(26),
};

/// Indices of the loop.
const INDICES: usize = 1_000_000;

/// A loop that sums what its body makes of each index.
pub(crate) const LOOP: Work = Work {
    per: 1_000,
    value: 499_999_500_000,
    plain: || sum(0..INDICES),
    ours: || ult::par::map_reduce(0..INDICES, sum, |left, right| left + right),
    rayons: || (0..INDICES).into_par_iter().map(|index| black_box(index) as u64).sum(),
};

/// Measures `work` on so many cores.
pub(crate) fn run(context: &Context, count: usize, work: Work) -> Result<Figure> {
    let cores = context.cores.take(count)?;
    let effort = Effort { samples: 20, warmup: 5, ..Effort::batches(context.quick) };
    let mut builder = Runtime::builder().pool(PoolSpec::new("p"));
    for (place, core) in cores.iter().enumerate() {
        let xstream = XstreamSpec::new(format!("x{place}")).pools(["p"]);
        builder = builder.xstream(xstream.cpubind(*core));
    }
    let runtime = builder.start().doing("starting a ULT runtime")?;
    let pool = runtime.pool("p").or_fail("the pool is missing")?;
    let rayon = rayon_pool(&cores)?;
    let room = || effort.room(work.per);
    let (mut floors, mut rayons, mut ours) = (room(), room(), room());
    for _ in 0..effort.rounds {
        rayon.install(|| work.round(work.rayons, &mut rayons))?;
        (floors, ours) = on_ult(&pool, context.deadline, move || {
            work.round(work.plain, &mut floors)?;
            work.round(work.ours, &mut ours)?;
            Ok((floors, ours))
        })?;
    }
    runtime.shutdown_timeout(context.deadline.left()).doing("stopping a ULT runtime")?;
    let floor = floors.quantile(500).map(|floor| floor / count as f64);
    Ok(Figure::median(ours.latency(), floor).beside("rayon", rayons.quantile(500)))
}

impl Work {
    fn round(self, way: fn() -> u64, samples: &mut Samples) -> Result<()> {
        samples.each(|| {
            let value = way();
            ensure!(value == self.value, "{value} came out, expected {}", self.value);
            Ok(())
        })
    }
}

fn sum(indices: std::ops::Range<usize>) -> u64 {
    indices.map(|index| black_box(index) as u64).sum()
}

fn plain_fib(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    plain_fib(black_box(n - 1)) + plain_fib(n - 2)
}

/// Forks where `n` is greater than `CUT`.
fn ult_fib<const CUT: u32>(n: u32) -> u64 {
    if n <= CUT {
        return plain_fib(n);
    }
    let (left, right) = ult::join(|| ult_fib::<CUT>(n - 1), || ult_fib::<CUT>(n - 2));
    left + right
}

/// As [`ult_fib`].
fn rayon_fib<const CUT: u32>(n: u32) -> u64 {
    if n <= CUT {
        return plain_fib(n);
    }
    let (left, right) = rayon::join(|| rayon_fib::<CUT>(n - 1), || rayon_fib::<CUT>(n - 2));
    left + right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_lead_to_the_value() {
        for work in [TINY, LEAVES, LOOP] {
            for way in [work.plain, work.ours, work.rayons] {
                assert_eq!(way(), work.value);
            }
        }
    }

    #[test]
    fn sizes_are_what_they_say() {
        fn forks(n: u32, cut: u32) -> u32 {
            if n <= cut { 0 } else { 1 + forks(n - 1, cut) + forks(n - 2, cut) }
        }
        assert_eq!(forks(18, 1), TINY.per);
        assert_eq!(forks(26, 12) + 1, LEAVES.per);
    }
}
