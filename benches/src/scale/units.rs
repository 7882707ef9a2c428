//! Steps without calls: units, and how they wake each other. Each is a process of its own, with an
//! xstream (or a thread of a peer's) on each core.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use ult::{Eventual, PoolRef};

use super::line::median;
use super::meter::SLICES;
#[cfg(feature = "peers")]
use super::peers;
use crate::base::{Cores, Deadline, Doing, OrFail, Result, ensure};
use crate::process::Context;
use crate::rows::ult::fib::{own, rayon_pool, stealing};
use crate::rows::ult::memory::{Memory, bytes_of};
use crate::rows::ult::on_ult::{Streams, on_each, on_ult, yield_until};
use crate::rows::ult::wake;

/// A thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Units {
    /// `fib(32)`: a ULT is spawned and joined for one half of each call above the cut-off.
    Fib,
    /// `fib(32)` of one thread without units.
    FibSerial,
    /// `fib(32)` with `rayon::join`.
    FibRayon,
    /// `fib(32)` with tasks of tokio.
    #[cfg(feature = "peers")]
    FibTokio,
    /// Each xstream makes its share of a million ULTs, then joins them.
    Loop,
    /// Such a loop of tasklets.
    LoopTasklet,
    /// Such a loop with `spawn` of rayon's scope, by one thread.
    LoopRayon,
    /// Such a loop of tasks of tokio, by one of them.
    #[cfg(feature = "peers")]
    LoopTokio,
    /// A ULT wakes one of another xstream, from the first core to each other one. Beside it a cache
    /// line between threads.
    Wake,
    /// A hundred thousand ULTs of each xstream, at most a million, all suspended at once.
    Many,
}

/// Argument of the Fibonacci function, and the largest one for which no unit is made.
pub(crate) const FIB: (u32, u32) = (32, 12);
/// Units that it makes.
const FORKS: u32 = 17_710;

/// Units of a loop, and ULTs that are suspended at once; of a short step, of which nothing is
/// expected but that it works.
const COUNT: [u64; 2] = [1_000_000, 10_000];
/// A window below this is short.
const SHORT: Duration = Duration::from_millis(200);
/// Rounds of work in each unit of a loop.
const ROUNDS: u64 = 16;
/// The most suspended ULTs of an xstream.
const MANY_EACH: u64 = 100_000;
/// Memory that is there for each suspended ULT.
const MANY_BYTES: u64 = 12 << 10;

impl Units {
    /// The test and the implementation.
    pub(crate) fn words(self) -> [&'static str; 2] {
        match self {
            Self::Fib => ["fib", "ult-ws"],
            Self::FibSerial => ["fib", "serial"],
            Self::FibRayon => ["fib", "rayon"],
            #[cfg(feature = "peers")]
            Self::FibTokio => ["fib", "tokio"],
            Self::Loop => ["parfor", "ult-each"],
            Self::LoopTasklet => ["parfor", "tasklet-each"],
            Self::LoopRayon => ["parfor", "rayon-flat"],
            #[cfg(feature = "peers")]
            Self::LoopTokio => ["parfor", "tokio-each"],
            Self::Wake => ["pingpong", "ult-eventual"],
            Self::Many => ["ult-many", "ult"],
        }
    }
}

/// A result: the implementation, and the fields of its line.
pub(crate) type Told = (String, Map<String, Value>);

/// Measures for about `window` on `cores`, to which this process is pinned.
///
/// # Errors
///
/// When something does not start, fails, or is late.
pub(crate) fn measure(
    units: Units,
    cores: &[usize],
    window: Duration,
    deadline: Deadline,
) -> Result<Vec<Told>> {
    let count = COUNT[usize::from(window < SHORT)];
    let told = |fields| Ok(vec![(units.words()[1].to_owned(), fields)]);
    match units {
        Units::Fib => told(fib_of(window, fib_ult(cores, deadline)?)?),
        Units::FibSerial => told(fib_of(window, || Ok(fib(black_box(FIB.0))))?),
        Units::FibRayon => {
            let pool = rayon_pool(cores)?;
            told(fib_of(window, || Ok(pool.install(|| fib_rayon(FIB.0))))?)
        }
        #[cfg(feature = "peers")]
        Units::FibTokio => told(fib_of(window, peers::fib(cores)?)?),
        Units::Loop => told(loop_of(window, count, loop_ult(cores, count, false, deadline)?)?),
        Units::LoopTasklet => {
            told(loop_of(window, count, loop_ult(cores, count, true, deadline)?)?)
        }
        Units::LoopRayon => {
            let pool = rayon_pool(cores)?;
            told(loop_of(window, count, move || {
                pool.scope(|scope| (0..count).for_each(|unit| scope.spawn(move |_| work(unit))));
                Ok(())
            })?)
        }
        #[cfg(feature = "peers")]
        Units::LoopTokio => told(loop_of(window, count, peers::units(cores, count)?)?),
        Units::Wake => wakes(cores, deadline),
        Units::Many => told(many(cores, count, deadline)?),
    }
}

/// Seconds of one run, in each third of a window; and the runs of a third.
fn timed(window: Duration, mut run: impl FnMut() -> Result<()>) -> Result<(Vec<f64>, u32)> {
    run()?;
    let (mut reps, mut runs) = (Vec::new(), 0);
    for _ in 0..SLICES {
        let (begun, mut count) = (Instant::now(), 0);
        while count == 0 || begun.elapsed() < window / SLICES {
            run()?;
            count += 1;
        }
        reps.push(begun.elapsed().as_secs_f64() / f64::from(count));
        runs = count;
    }
    Ok((reps, runs))
}

fn fields(reps: &[f64], unit: &str, more: Value) -> Result<Map<String, Value>> {
    let mut fields = json!({ "value": median(reps), "reps": reps, "unit": unit });
    let fields = fields.as_object_mut().or_fail("no fields")?;
    fields.extend(more.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
    Ok(std::mem::take(fields))
}

fn fib_of(window: Duration, mut run: impl FnMut() -> Result<u64>) -> Result<Map<String, Value>> {
    let (mut reps, runs) = timed(window, || {
        let value = run()?;
        ensure!(value == 2_178_309, "fib({}) = {value}", FIB.0);
        Ok(())
    })?;
    reps.iter_mut().for_each(|seconds| *seconds *= 1e3);
    let more = json!({ "fib": FIB.0, "cutoff": FIB.1, "forks": FORKS, "runs_per_rep": runs });
    fields(&reps, "ms", more)
}

/// The sequential function.
pub(crate) fn fib(n: u32) -> u64 {
    if n < 2 { u64::from(n) } else { fib(n - 1) + fib(n - 2) }
}

fn fib_rayon(n: u32) -> u64 {
    if n <= FIB.1 {
        return fib(n);
    }
    let (left, right) = rayon::join(|| fib_rayon(n - 1), || fib_rayon(n - 2));
    left + right
}

fn fib_forked(pools: &'static [PoolRef], n: u32) -> Result<u64> {
    if n <= FIB.1 {
        return Ok(fib(n));
    }
    let half = own(pools).spawn(move || fib_forked(pools, n - 1)).doing("spawning")?;
    let other = fib_forked(pools, n - 2)?;
    Ok(half.join().doing("joining")?? + other)
}

fn fib_ult(cores: &[usize], deadline: Deadline) -> Result<impl FnMut() -> Result<u64>> {
    let streams = stealing(cores)?;
    // For ever, which is as long as this process: a count in every ULT would be contended.
    let pools: &'static [PoolRef] = Vec::leak(streams.pools);
    let runtime = streams.runtime;
    Ok(move || {
        let _runtime = &runtime;
        on_ult(&pools[0], deadline, move || fib_forked(pools, FIB.0))
    })
}

fn loop_of(
    window: Duration,
    count: u64,
    run: impl FnMut() -> Result<()>,
) -> Result<Map<String, Value>> {
    let (mut reps, runs) = timed(window, run)?;
    reps.iter_mut().for_each(|seconds| *seconds = count as f64 / 1e6 / *seconds);
    let more = json!({ "units": count, "work_rounds": ROUNDS, "runs_per_rep": runs });
    fields(&reps, "Munits/s", more)
}

/// The work of a unit, some 20 ns of it.
pub(crate) fn work(unit: u64) {
    let step = |state: u64, _| (state ^ (state >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    black_box((0..ROUNDS).fold(unit, step));
}

/// The share of one of `parties` in `count`.
fn share(count: u64, place: usize, parties: usize) -> u64 {
    let [place, parties] = [place, parties].map(|number| number as u64);
    (place + 1) * count / parties - place * count / parties
}

fn loop_ult(
    cores: &[usize],
    count: u64,
    is_tasklet: bool,
    deadline: Deadline,
) -> Result<impl FnMut() -> Result<()>> {
    let streams = Streams::start(cores)?;
    Ok(move || {
        // All of it: without the runtime, the pools are closed.
        let streams = &streams;
        let (pools, parties) = (streams.pools.clone(), streams.pools.len());
        on_each(&streams.pools, deadline, move |place, _| {
            let pool = &pools[place];
            let unit = || if is_tasklet { pool.tasklet() } else { pool.ult() };
            let spawn = |number| unit().spawn(move || work(number)).doing("spawning");
            let units: Vec<_> =
                (0..share(count, place, parties)).map(spawn).collect::<Result<_>>()?;
            units.into_iter().try_for_each(|unit| unit.join().doing("joining"))
        })
        .map(drop)
    })
}

fn wakes(cores: &[usize], deadline: Deadline) -> Result<Vec<Told>> {
    let mut reps = [Vec::new(), Vec::new()];
    for other in &cores[1..] {
        let cores = Cores { origin: cores[0], target: Some(*other) };
        // A thousand exchanges each: there may be many pairs.
        let context = Context { id: String::new(), cores, quick: true, deadline, mercury: None };
        let figure = wake::spin(&context)?;
        reps[0].push(figure.value.or_fail("no figure")?);
        reps[1].push(figure.floor.or_fail("no floor")?);
    }
    let of = |reps: &[f64]| {
        let [min, max] = [f64::min, f64::max].map(|pick| reps.iter().copied().reduce(pick));
        fields(reps, "ns one way", json!({ "pairs": reps.len(), "min": min, "max": max }))
    };
    Ok(vec![("ult-eventual".into(), of(&reps[0])?), ("cache-line".into(), of(&reps[1])?)])
}

/// Times the making of so many suspended ULTs, twice: the second time memory is there.
fn many(cores: &[usize], most: u64, deadline: Deadline) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string("/proc/meminfo").doing("looking for memory")?;
    let free = bytes_of(&text, "MemAvailable:").or_fail("no MemAvailable")?;
    let count = most.min(free / 2 / MANY_BYTES).min(MANY_EACH * cores.len() as u64);
    let streams = Streams::start(cores)?;
    let (mut reps, mut grown) = (Vec::new(), Vec::new());
    let mut end = Duration::ZERO;
    for _ in 0..2 {
        let before = Memory::now()?;
        let release = Arc::new(Eventual::<()>::new());
        let ended = Arc::new(AtomicU64::new(0));
        let (pools, parties) = (streams.pools.clone(), cores.len());
        let (to_wait, gone) = (release.clone(), ended.clone());
        let begun = Instant::now();
        on_each(&streams.pools, deadline, move |place, _| {
            let (own, share) = (Arc::new(AtomicU64::new(0)), share(count, place, parties));
            for _ in 0..share {
                let (release, own, gone) = (to_wait.clone(), own.clone(), gone.clone());
                let wait = move || {
                    own.fetch_add(1, Ordering::Relaxed);
                    release.wait();
                    gone.fetch_add(1, Ordering::Relaxed);
                };
                pools[place].ult().spawn_detached(wait).doing("spawning")?;
            }
            let has_all = || own.load(Ordering::Relaxed) == share;
            yield_until("ULTs to suspend", deadline, has_all)
        })?;
        reps.push(begun.elapsed().as_secs_f64());
        grown.push(Memory::now()?.since(&before));
        let begun = Instant::now();
        ensure!(release.set(()).is_ok(), "the eventual was set already");
        deadline.spin_until("ULTs to end", || {
            std::thread::sleep(Duration::from_millis(1));
            ended.load(Ordering::Relaxed) == count
        })?;
        end = begun.elapsed();
    }
    let each = |bytes: u64| bytes as f64 / count as f64;
    let more = json!({
        "count": count,
        "end_s": end.as_secs_f64(),
        "ns_each": median(&reps) * 1e9 / count as f64,
        "resident_bytes_each": each(grown[0].resident),
        "page_table_bytes_each": each(grown[0].page_tables),
    });
    fields(&reps, "s", more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_so_many_forks() {
        fn forks(n: u32) -> u32 {
            if n <= FIB.1 { 0 } else { 1 + forks(n - 1) + forks(n - 2) }
        }
        assert_eq!(forks(FIB.0), FORKS);
        assert_eq!(fib_rayon(FIB.1 + 3), fib(FIB.1 + 3));
    }

    #[test]
    fn shares_are_the_whole() {
        for parties in 1..7 {
            assert_eq!((0..parties).map(|place| share(100, place, parties)).sum::<u64>(), 100);
        }
    }
}
