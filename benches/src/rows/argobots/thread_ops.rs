//! Rows `argobots.thread_ops.*` and `argobots.thread_fork_join.*`: see [`super`].
//!
//! Each xstream runs one measuring ULT, all of which start together; the figure is the median over
//! the samples of all.

use std::time::Instant;

use ult::PoolRef;

use super::super::on_ult::{on_each, yield_until};
use super::super::ult_switch::Streams;
use super::{STACKS, ULTS, cores};
use crate::context::Context;
use crate::failure::{Doing, Result};
use crate::row::Figure;
use crate::stats::{Effort, Samples};
use crate::wait::Deadline;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// The spawns of a batch.
    Create,
    /// The joins after them.
    Join,
    /// Both together.
    CreateJoin,
    /// Detached ULTs, until the pool is empty.
    CreateUnnamed,
    /// All ULTs yield many times. Their spawns and joins count, too, once for all yields.
    Yield,
}

/// Yields of each ULT.
const YIELDS: u32 = 200;

impl Op {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Join => "join",
            Self::CreateJoin => "create_join",
            Self::CreateUnnamed => "create_unnamed",
            Self::Yield => "yield",
        }
    }

    /// Operations that one sample covers.
    fn per(self, ults: u32) -> u32 {
        if self == Self::Yield { ults * YIELDS } else { ults }
    }
}

/// Row `argobots.thread_ops.*`.
pub(crate) fn thread_ops(context: &Context, op: Op, xstreams: usize) -> Result<Figure> {
    run(context, op, ULTS, xstreams)
}

/// Row `argobots.thread_fork_join.*`.
pub(crate) fn fork_join(context: &Context, op: Op, ults: u32, xstreams: usize) -> Result<Figure> {
    run(context, op, ults, xstreams)
}

fn run(context: &Context, op: Op, ults: u32, xstreams: usize) -> Result<Figure> {
    let cores = cores(context, xstreams)?;
    let streams = Streams::start_with(&cores, |builder| builder.stack_cache_max(STACKS))?;
    let (pools, deadline) = (streams.pools.clone(), context.deadline);
    let mut effort = Effort::batches(context.quick);
    if op == Op::Yield {
        effort.samples = (effort.samples / 40).max(2);
        effort.warmup = (effort.warmup / 40).max(1);
    }
    let measured = on_each(&streams.pools, deadline, move |place, gate| {
        let mut samples = effort.room(op.per(ults));
        gate.pass(deadline)?;
        for _ in 0..effort.rounds {
            round(op, ults, &pools[place], effort, &mut samples, deadline)?;
        }
        Ok(samples)
    })?;
    streams.stop()?;
    let mut all = Samples::new(measured.iter().map(Samples::len).sum(), op.per(ults));
    measured.iter().for_each(|samples| all.absorb(samples));
    Ok(Figure::median(all.latency(), None))
}

fn round(
    op: Op,
    ults: u32,
    pool: &PoolRef,
    effort: Effort,
    samples: &mut Samples,
    deadline: Deadline,
) -> Result<()> {
    match op {
        Op::Create | Op::Join | Op::CreateJoin => create_join(op, ults, pool, effort, samples),
        Op::CreateUnnamed => effort.each(samples, || {
            for _ in 0..ults {
                pool.ult().spawn_detached(|| ()).doing("spawning")?;
            }
            ult::yield_now();
            yield_until("detached ULTs", deadline, || pool.is_empty())
        }),
        Op::Yield => effort.each(samples, || {
            let yields = || (0..YIELDS).for_each(|_| ult::yield_now());
            let handles: Vec<_> = (0..ults).map(|_| pool.spawn(yields)).collect();
            for handle in handles {
                handle.doing("spawning")?.join().doing("joining")?;
            }
            Ok(())
        }),
    }
}

fn create_join(
    op: Op,
    ults: u32,
    pool: &PoolRef,
    effort: Effort,
    samples: &mut Samples,
) -> Result<()> {
    let mut handles = Vec::with_capacity(ults as usize);
    let begin = Instant::now();
    for turn in 0..effort.warmup + effort.samples {
        let start = Instant::now();
        for _ in 0..ults {
            handles.push(pool.spawn(|| ()).doing("spawning")?);
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
