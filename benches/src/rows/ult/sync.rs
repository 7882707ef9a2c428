//! Rows `ult.mutex`, `ult.mutex.contended`, `ult.eventual_resume` and `na.lock.biased`.
//!
//! - `ult.mutex`: lock and unlock a mutex that nobody else wants, on a ULT. Floor: two swaps of an
//!   atomic in the same cache state, which is what a lock and an unlock need at least.
//! - `ult.mutex.contended`: two xstreams with four ULTs each add to one counter under one mutex;
//!   wall time for each critical section. Beside it: `parking_lot` between two OS threads that do
//!   as much on the same cores, alternating. Ours is fair and `parking_lot`'s lets the last holder
//!   take the lock again, which favours it here.
//! - `ult.eventual_resume`: from setting an eventual to the ULT that waited for it running, on one
//!   xstream. Two ULTs in turns, so that each set suspends the setter next. Eventuals are made
//!   outside the timed part. Floor: a bare coroutine switch.
//! - `na.lock.biased`: lock and unlock a biased lock that favours the thread. Floor: the plain
//!   lock of the same crate, which is what it would be without the favour.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use na::lock::{BiasedLock, Lock};
use ult::{Eventual, Mutex};

use super::on_ult::{StartLine, Streams, on_each};
use super::switch::on_one_xstream;
use crate::base::{
    Cores, Deadline, Doing, Failure, Figure, OrFail, Result, Round, Samples, ensure,
};
use crate::floors::coroutine::{BATCH, switches};
use crate::process::Context;

/// Row `ult.mutex`.
pub(crate) fn mutex(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, swaps, |_pool, _deadline| {
        let mutex = Mutex::new(0u64);
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                for _ in 0..BATCH {
                    *black_box(&mutex).lock() += 1;
                }
                Ok(())
            })
        })
    })
}

/// Row `na.lock.biased`.
pub(crate) fn biased(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, plain, |_pool, _deadline| {
        let lock = BiasedLock::new(0u64);
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                for _ in 0..BATCH {
                    *black_box(&lock).lock() += 1;
                }
                Ok(())
            })
        })
    })
}

fn plain() -> Result<Round> {
    let lock = Lock::<u64>::new(0);
    Ok(Box::new(move |samples| {
        samples.batched(|| {
            *black_box(&lock).lock() += 1;
            Ok(())
        })
    }))
}

fn swaps() -> Result<Round> {
    let word = AtomicU32::new(0);
    Ok(Box::new(move |samples| {
        samples.batched(|| {
            // pair: SWAP-FLOOR
            black_box(&word).swap(1, Ordering::Acquire);
            // pair: SWAP-FLOOR
            black_box(&word).swap(0, Ordering::Release);
            Ok(())
        })
    }))
}

/// ULTs of one xstream that want the mutex.
const ULTS: u32 = 4;

/// Row `ult.mutex.contended`.
pub(crate) fn contended(context: &Context) -> Result<Figure> {
    let (rounds, sections) = if context.quick { (3, 500) } else { (21, 25_000) };
    let (cores, deadline) = (context.cores.take(2)?, context.deadline);
    let streams = Streams::start(&cores)?;
    let total = 2 * ULTS * sections;
    let (mut ours, mut theirs) = (Samples::new(rounds, total), Samples::new(rounds, total));
    for _ in 0..rounds {
        theirs.push(of_threads(context.cores, ULTS * sections, deadline)?);
        let mutex = Arc::new(Mutex::new(0u64));
        let count = mutex.clone();
        ours.push(wall_of_ults(&streams, ULTS, deadline, move || {
            (0..sections).for_each(|_| *count.lock() += 1);
        })?);
        check_count(*mutex.lock(), total)?;
    }
    streams.stop()?;
    let beside = theirs.quantile(500);
    Ok(Figure::median(ours.latency(), None).beside("parking_lot", beside))
}

/// Start and end of one party.
type Span = (Instant, Instant);

/// From the first start to the last end.
fn wall(spans: &[Span]) -> Result<Duration> {
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    start.zip(end).map(|(start, end)| end - start).or_fail("nobody took part")
}

fn check_count(count: u64, wanted: u32) -> Result<()> {
    ensure!(count == u64::from(wanted), "{count} critical sections instead of {wanted}");
    Ok(())
}

fn of_threads(cores: Cores, sections: u32, deadline: Deadline) -> Result<Duration> {
    let (mutex, gate) = (parking_lot::Mutex::new(0u64), StartLine::new(2));
    let party = || -> Result<Span> {
        gate.pass(deadline)?;
        let start = Instant::now();
        for _ in 0..sections {
            *mutex.lock() += 1;
        }
        Ok((start, Instant::now()))
    };
    let (one, other) = cores.run_on_both(party, party)?;
    check_count(*mutex.lock(), 2 * sections)?;
    wall(&[one, other])
}

/// Wall time in which so many ULTs of each xstream run `body`.
pub(crate) fn wall_of_ults(
    streams: &Streams,
    ults: u32,
    deadline: Deadline,
    body: impl Fn() + Clone + Send + Sync + 'static,
) -> Result<Duration> {
    let pools = streams.pools.clone();
    let spans = on_each(&streams.pools, deadline, move |place, gate| {
        gate.pass(deadline)?;
        let start = Instant::now();
        let spawned: Vec<_> = (0..ults).map(|_| pools[place].spawn(body.clone())).collect();
        for ult in spawned {
            ult.doing("spawning")?.join().doing("joining")?;
        }
        Ok((start, Instant::now()))
    })?;
    wall(&spans)
}

/// One exchange of `ult.eventual_resume`.
#[derive(Debug, Default)]
struct Turn {
    ping: Eventual<()>,
    pong: Eventual<()>,
}

/// Row `ult.eventual_resume`.
pub(crate) fn eventual_resume(context: &Context) -> Result<Figure> {
    // Each turn resumes twice.
    on_one_xstream(context, 2 * BATCH, switches, |pool, _deadline| {
        let prepare = move || {
            let turns = std::iter::repeat_with(Turn::default).take(BATCH as usize);
            let turns: Arc<[Turn]> = turns.collect();
            let theirs = turns.clone();
            let other = pool.spawn(move || {
                for turn in theirs.iter() {
                    turn.ping.wait_ready();
                    // Set once, here only.
                    let _ = turn.pong.set(());
                }
            })?;
            // So that it waits for the first ping.
            ult::yield_now();
            Ok((turns, other))
        };
        Ok(move |samples: &mut Samples| {
            samples.prepared(&prepare, |(turns, other)| {
                for turn in turns.iter() {
                    turn.ping.set(()).map_err(|()| Failure::new("a turn was taken twice"))?;
                    turn.pong.wait_ready();
                }
                other.join().doing("joining")
            })
        })
    })
}
