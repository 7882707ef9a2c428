//! Rows `argobots.*_ops.*` and `argobots.*_fork_join.*`: see [`super`].
//!
//! Each xstream runs one measuring ULT, all of which start together; the figure is the median over
//! the samples of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ult::PoolRef;

use super::{Kind, STACKS, UNITS, cores, join_each};
use crate::base::failure::{Doing, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::process::context::Context;
use crate::rows::ult::on_ult::{on_each, yield_until};
use crate::rows::ult::switch::{Streams, yield_to_next};

/// The operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// The spawns of a batch.
    Create,
    /// The joins after them.
    Join,
    /// Both together.
    CreateJoin,
    /// Detached units, until the pool is empty. So there is never more than one batch.
    CreateUnnamed,
    /// All ULTs yield in turns. Spawns and joins do not count (there, one for 2,000 yields does).
    Yield,
    /// Yields to the next one, past the scheduler.
    YieldTo,
}

impl Op {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Join => "join",
            Self::CreateJoin => "create_join",
            Self::CreateUnnamed => "create_unnamed",
            Self::Yield => "yield",
            Self::YieldTo => "yield_to",
        }
    }
}

/// The work of one measuring ULT.
#[derive(Debug, Clone, Copy)]
struct Work {
    kind: Kind,
    op: Op,
    units: u32,
}

/// Row `argobots.thread_ops.*` or `argobots.task_ops.*`.
pub(crate) fn ops(context: &Context, kind: Kind, op: Op, xstreams: usize) -> Result<Figure> {
    run(context, Work { kind, op, units: UNITS }, xstreams)
}

/// Row `argobots.thread_fork_join.*` or `argobots.task_fork_join.*`.
pub(crate) fn fork_join(
    context: &Context,
    kind: Kind,
    op: Op,
    units: u32,
    xstreams: usize,
) -> Result<Figure> {
    run(context, Work { kind, op, units }, xstreams)
}

/// Measures the first batch that a runtime ever has; a new runtime for each sample.
pub(crate) fn cold(context: &Context, kind: Kind, op: Op, xstreams: usize) -> Result<Figure> {
    let runs = if context.quick { 3 } else { 51 };
    let cores = cores(context, xstreams)?;
    let work = Work { kind, op, units: UNITS };
    let effort = Effort { rounds: 1, samples: 1, warmup: 0, ..Effort::batches(context.quick) };
    let mut all = Samples::new(runs * xstreams, UNITS);
    for _ in 0..runs {
        of_runtime(context, &cores, work, effort, &mut all)?;
    }
    Ok(Figure::median(all.latency(), None))
}

fn run(context: &Context, work: Work, xstreams: usize) -> Result<Figure> {
    let cores = cores(context, xstreams)?;
    let effort = Effort::batches(context.quick);
    let room = effort.rounds * effort.samples * xstreams;
    let mut all = Samples::new(room, work.units);
    of_runtime(context, &cores, work, effort, &mut all)?;
    Ok(Figure::median(all.latency(), None))
}

/// All rounds on a runtime of their own.
fn of_runtime(
    context: &Context,
    cores: &[usize],
    work: Work,
    effort: Effort,
    all: &mut Samples,
) -> Result<()> {
    let streams = Streams::start_with(cores, |builder| builder.stack_cache_max(STACKS))?;
    let (pools, deadline) = (streams.pools.clone(), context.deadline);
    let measured = on_each(&streams.pools, deadline, move |place, gate| {
        let mut samples = effort.room(work.units);
        gate.pass(deadline)?;
        for _ in 0..effort.rounds {
            round(work, &pools[place], effort, &mut samples, deadline)?;
        }
        Ok(samples)
    })?;
    streams.stop()?;
    measured.iter().for_each(|samples| all.absorb(samples));
    Ok(())
}

fn round(
    work: Work,
    pool: &PoolRef,
    effort: Effort,
    samples: &mut Samples,
    deadline: Deadline,
) -> Result<()> {
    let Work { kind, op, units } = work;
    match op {
        Op::Create | Op::Join | Op::CreateJoin => create_join(work, pool, effort, samples),
        Op::CreateUnnamed => effort.each(samples, || {
            for _ in 0..units {
                kind.in_pool(pool).spawn_detached(|| ()).doing("spawning")?;
            }
            ult::yield_now();
            yield_until("detached units", deadline, || pool.is_empty())
        }),
        Op::Yield | Op::YieldTo => in_turns(work, pool, effort, samples),
    }
}

/// All ULTs yield in turns, and the calling one is the last of them: while it yields once, each
/// does.
fn in_turns(work: Work, pool: &PoolRef, effort: Effort, samples: &mut Samples) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let to_next = work.op == Op::YieldTo;
    let turn = move |pool: &PoolRef| {
        if to_next {
            return yield_to_next(pool);
        }
        ult::yield_now();
        Ok(())
    };
    let spawn = || {
        let (stop, inner) = (stop.clone(), pool.clone());
        let turns = move || -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                turn(&inner)?;
            }
            Ok(())
        };
        pool.spawn(turns).doing("spawning")
    };
    let others = (1..work.units).map(|_| spawn()).collect::<Result<Vec<_>>>()?;
    let result = effort.each(samples, || turn(pool));
    stop.store(true, Ordering::Relaxed);
    result.and(join_each(others))
}

fn create_join(work: Work, pool: &PoolRef, effort: Effort, samples: &mut Samples) -> Result<()> {
    let Work { kind, op, units } = work;
    let mut handles = Vec::with_capacity(units as usize);
    let begin = Instant::now();
    for turn in 0..effort.warmup + effort.samples {
        let start = Instant::now();
        for _ in 0..units {
            handles.push(kind.in_pool(pool).spawn(|| ()).doing("spawning")?);
        }
        let created = if op == Op::CreateJoin { start } else { Instant::now() };
        for handle in handles.drain(..) {
            handle.join().doing("joining")?;
        }
        let end = if op == Op::Create { created } else { Instant::now() };
        let from = if op == Op::Join { created } else { start };
        if turn >= effort.warmup {
            samples.push(end - from);
        }
        if begin.elapsed() > effort.round_max && samples.len() > 0 {
            break;
        }
    }
    Ok(())
}
