//! Rows `ult.fib.1` and `ult.fib.2`: fork-join of many tiny pieces, on one and on two xstreams.
//!
//! Naive Fibonacci: each call with an argument of two or more forks one half as a ULT, computes the
//! other itself and joins; time for each fork. Beside it `rayon` (whose `join` forks only what is
//! stolen) and `may` (stackful coroutines), on the same cores, alternating. Each xstream has a
//! work-stealing pool of its own, into which its ULTs spawn, and steals from that of the other.

use std::cell::Cell;

use may::coroutine;
use rayon::{ThreadPool, ThreadPoolBuilder};
use ult::{PoolKind, PoolRef, RandWs, Runtime};

use super::on_ult::{Streams, on_ult, pool_name, pool_spec};
use crate::base::{Doing, Effort, Failure, Figure, Result, ensure, pin};
use crate::process::Context;

/// Argument, forks and value.
#[derive(Debug, Clone, Copy)]
struct Size {
    n: u32,
    forks: u32,
    value: u64,
}

const FULL: Size = Size { n: 18, forks: 4_180, value: 2_584 };
const QUICK: Size = Size { n: 10, forks: 88, value: 55 };

/// Row `ult.fib.1` or `ult.fib.2`, by the number of cores.
pub(crate) fn run(context: &Context, count: usize) -> Result<Figure> {
    let cores = context.cores.take(count)?;
    let size = if context.quick { QUICK } else { FULL };
    let effort = Effort { samples: 20, warmup: 5, ..Effort::batches(context.quick) };
    let streams = stealing(&cores)?;
    // For ever, which is as long as this process: a count in every ULT would be contended.
    let pools: &'static [PoolRef] = Vec::leak(streams.pools);
    let rayon = rayon_pool(&cores)?;
    may::config().set_workers(count).set_pool_capacity(2 * size.forks as usize);
    let room = || effort.room(size.forks);
    let (mut ours, mut rayons, mut mays) = (room(), room(), room());
    for _ in 0..effort.rounds {
        rayons.each(|| size.check(rayon.install(|| rayon_fib(size.n))))?;
        mays.each(|| size.check(may_root(size.n)?))?;
        ours = on_ult(&pools[0], context.deadline, move || {
            ours.each(|| size.check(ult_fib(pools, size.n)?))?;
            Ok(ours)
        })?;
    }
    streams.runtime.shutdown_timeout(context.deadline.left()).doing("stopping a ULT runtime")?;
    let figure = Figure::median(ours.latency(), None);
    Ok(figure.beside("rayon", rayons.quantile(500)).beside("may", mays.quantile(500)))
}

/// Xstreams with a work-stealing pool each, that steal from those of the others.
///
/// # Errors
///
/// When they do not start.
pub(crate) fn stealing(cores: &[usize]) -> Result<Streams> {
    let (count, pools) = (cores.len(), |place| vec![pool_spec(place).kind(PoolKind::RandWs)]);
    Streams::start_as(cores, Runtime::builder(), pools, |xstream, place| {
        // Its own first, then those to steal from.
        let pools = (0..count).map(|next| pool_name((place + next) % count));
        xstream.pools(pools).rank(place).scheduler(Box::new(RandWs::new()))
    })
}

impl Size {
    fn check(&self, value: u64) -> Result<()> {
        ensure!(value == self.value, "fib({}) = {value}, expected {}", self.n, self.value);
        Ok(())
    }
}

thread_local! {
    /// Rank of the xstream of this thread, once it has been asked for.
    static RANK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The pool of the xstream that runs the calling ULT, which stays there.
pub(crate) fn own(pools: &'static [PoolRef]) -> &'static PoolRef {
    let rank = RANK.get().unwrap_or_else(|| {
        let rank = ult::current().map_or(0, |ult| ult.rank);
        RANK.set(Some(rank));
        rank
    });
    &pools[rank]
}

/// Rayon's threads on these cores.
///
/// # Errors
///
/// When they do not start.
pub(crate) fn rayon_pool(cores: &[usize]) -> Result<ThreadPool> {
    let cores = cores.to_vec();
    let builder = ThreadPoolBuilder::new().num_threads(cores.len());
    // A thread that cannot be pinned runs on one of the same cores anyway.
    let builder = builder.start_handler(move |index| drop(pin(&[cores[index]])));
    builder.build().doing("starting rayon")
}

fn ult_fib(pools: &'static [PoolRef], n: u32) -> Result<u64> {
    if n < 2 {
        return Ok(u64::from(n));
    }
    let half = own(pools).spawn(move || ult_fib(pools, n - 1)).doing("spawning")?;
    let other = ult_fib(pools, n - 2)?;
    Ok(half.join().doing("joining")?? + other)
}

fn rayon_fib(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (left, right) = rayon::join(|| rayon_fib(n - 1), || rayon_fib(n - 2));
    left + right
}

fn may_fork<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> coroutine::JoinHandle<T> {
    // SAFETY:
    // - thread-locals: the closures of this file use none across a switch;
    // - stack: they need a few hundred bytes of the 32 KiB that a coroutine has.
    unsafe { coroutine::spawn(f) }
}

fn may_root(n: u32) -> Result<u64> {
    may_fork(move || may_fib(n)).join().map_err(|_| Failure::new("a coroutine of may panicked"))
}

fn may_fib(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let half = may_fork(move || may_fib(n - 1));
    let other = may_fib(n - 2);
    // A panic of the other half goes on here.
    half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) + other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_they_say() {
        fn forks(n: u32) -> u32 {
            if n < 2 { 0 } else { 1 + forks(n - 1) + forks(n - 2) }
        }
        for size in [FULL, QUICK] {
            assert_eq!(forks(size.n), size.forks);
            size.check(rayon_fib(size.n)).unwrap();
        }
        assert!(QUICK.check(54).is_err());
    }
}
