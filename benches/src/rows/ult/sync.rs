//! Rows `ult.mutex`, `ult.mutex.contended` and `ult.eventual_resume`.
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

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ult::{Eventual, Mutex};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::floors::coroutine::BATCH;
use crate::process::context::Context;
use crate::report::machine::{pin, pin_to_any};
use crate::rows::ult::on_ult::{StartLine, on_each, on_ult};
use crate::rows::ult::switch::{Batch, FloorRound, Streams, on_one_xstream, switch_floor};

/// Row `ult.mutex`.
pub(crate) fn mutex(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, swap_floor, |_pool, _deadline| {
        let mutex = Mutex::new(0u64);
        let batch: Batch = Box::new(move || {
            for _ in 0..BATCH {
                *black_box(&mutex).lock() += 1;
            }
            Ok(())
        });
        Ok(batch)
    })
}

fn swap_floor() -> Result<FloorRound> {
    let word = AtomicU32::new(0);
    Ok(Box::new(move |effort, samples| {
        effort.batched(samples, || {
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
    let cores = [context.cores.origin, context.cores.target()?];
    let (rounds, sections) = if context.quick { (3, 500) } else { (21, 25_000) };
    pin_to_any(&cores)?;
    let streams = Streams::start(&cores)?;
    let total = 2 * ULTS * sections;
    let (mut ours, mut theirs) = (Samples::new(rounds, total), Samples::new(rounds, total));
    for _ in 0..rounds {
        theirs.push(of_threads(&cores, ULTS * sections, context.deadline)?);
        ours.push(of_ults(&streams, sections, context.deadline)?);
    }
    streams.stop()?;
    let beside = theirs.quantile(500);
    Ok(Figure::median(ours.latency(), None).beside("parking_lot", beside))
}

/// Start and end of one party.
type Span = (Instant, Instant);

/// From the first start to the last end.
fn wall(spans: &[Span]) -> Result<std::time::Duration> {
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    let span = start.zip(end).ok_or_else(|| Failure::new("nobody took part"))?;
    Ok(span.1 - span.0)
}

fn check_count(count: u64, wanted: u32) -> Result<()> {
    if count == u64::from(wanted) {
        return Ok(());
    }
    Err(Failure::new(format!("{count} critical sections counted instead of {wanted}")))
}

fn of_threads(
    cores: &[usize; 2],
    sections: u32,
    deadline: Deadline,
) -> Result<std::time::Duration> {
    let (mutex, gate) = (parking_lot::Mutex::new(0u64), StartLine::new(cores.len()));
    let party = |core: usize| -> Result<Span> {
        pin(core)?;
        gate.pass(deadline)?;
        let start = Instant::now();
        for _ in 0..sections {
            *mutex.lock() += 1;
        }
        Ok((start, Instant::now()))
    };
    let spans: Vec<Span> = std::thread::scope(|scope| {
        let threads = cores.map(|core| scope.spawn(move || party(core)));
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Span>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    check_count(*mutex.lock(), 2 * sections)?;
    wall(&spans)
}

fn of_ults(streams: &Streams, sections: u32, deadline: Deadline) -> Result<std::time::Duration> {
    let mutex = Arc::new(Mutex::new(0u64));
    let (pools, theirs) = (streams.pools.clone(), mutex.clone());
    let spans = on_each(&streams.pools, deadline, move |place, gate| {
        gate.pass(deadline)?;
        let start = Instant::now();
        let section = || {
            let mutex = theirs.clone();
            pools[place].spawn(move || (0..sections).for_each(|_| *mutex.lock() += 1))
        };
        let ults: Vec<_> = (0..ULTS).map(|_| section()).collect();
        for ult in ults {
            ult.doing("spawning")?.join().doing("joining")?;
        }
        Ok((start, Instant::now()))
    })?;
    check_count(*mutex.lock(), 2 * ULTS * sections)?;
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
    let (effort, deadline) = (Effort::batches(context.quick), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let (mut floors, mut samples) = on_ult(&streams.pools[0], deadline, move || {
        // Each turn resumes twice.
        let (mut floors, mut samples) = (effort.room(BATCH), effort.room(2 * BATCH));
        let mut floor = switch_floor()?;
        for _ in 0..effort.rounds {
            floor(effort, &mut floors)?;
            let prepare = || {
                let turns: Arc<[Turn]> =
                    std::iter::repeat_with(Turn::default).take(BATCH as usize).collect();
                let theirs = turns.clone();
                let other = pool.spawn(move || {
                    for turn in theirs.iter() {
                        turn.ping.wait_ready();
                        // Set once, here only.
                        let _ = turn.pong.set(());
                    }
                });
                let other = other.doing("spawning")?;
                // So that it waits for the first ping.
                ult::yield_now();
                Ok((turns, other))
            };
            effort.prepared(&mut samples, prepare, |(turns, other)| {
                for turn in turns.iter() {
                    turn.ping.set(()).map_err(|()| Failure::new("a turn was taken twice"))?;
                    turn.pong.wait_ready();
                }
                other.join().doing("joining")
            })?;
        }
        Ok((floors, samples))
    })?;
    streams.stop()?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}
