//! Rows `argobots.*_ops.*` and `argobots.*_fork_join.*`: see [`super`].
//!
//! Each xstream runs one measuring ULT, all of which start together; the figure is the median over
//! the samples of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ult::{PoolRef, Runtime};

use super::{Kind, Op, STACKS};
use crate::base::{Deadline, Doing, Effort, Figure, Result, Samples};
use crate::process::Context;
use crate::rows::ult::on_ult::{Streams, join_each, on_each};
use crate::rows::ult::switch::yield_to_next;

/// The work of one measuring ULT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    pub(crate) units: u32,
}

impl Work {
    /// Row `argobots.*_ops.*_cold`: the first batch that a runtime ever has; a new runtime for each
    /// sample.
    pub(crate) fn cold(self, context: &Context, xstreams: usize) -> Result<Figure> {
        let runs = if context.quick { 3 } else { 51 };
        let effort = Effort { rounds: 1, samples: 1, warmup: 0, ..Effort::batches(context.quick) };
        self.runtimes(context, effort, runs, xstreams)
    }

    /// Rows `argobots.*_ops.*` and `argobots.*_fork_join.*`.
    pub(crate) fn run(self, context: &Context, xstreams: usize) -> Result<Figure> {
        self.runtimes(context, Effort::batches(context.quick), 1, xstreams)
    }

    /// All rounds on each of so many runtimes, one after the other.
    fn runtimes(
        self,
        context: &Context,
        effort: Effort,
        runs: usize,
        xstreams: usize,
    ) -> Result<Figure> {
        let (cores, deadline) = (context.cores.take(xstreams)?, context.deadline);
        let room = runs * effort.rounds * effort.samples * xstreams;
        let mut all = Samples::new(room, self.units);
        for _ in 0..runs {
            let streams = Streams::start_with(&cores, Runtime::builder().stack_cache_max(STACKS))?;
            let pools = streams.pools.clone();
            let measured = on_each(&streams.pools, deadline, move |place, gate| {
                gate.pass(deadline)?;
                effort.alone(self.units, |samples| self.round(&pools[place], samples, deadline))
            })?;
            streams.stop()?;
            measured.iter().for_each(|samples| all.absorb(samples));
        }
        Ok(Figure::median(all.latency(), None))
    }

    fn round(self, pool: &PoolRef, samples: &mut Samples, deadline: Deadline) -> Result<()> {
        match self.op {
            Op::Create | Op::Join | Op::CreateJoin => self.create_join(pool, samples),
            Op::CreateUnnamed => samples.each(|| self.kind.detach(pool, self.units, deadline)),
            Op::Yield => self.in_turns(pool, samples, |_pool| {
                ult::yield_now();
                Ok(())
            }),
            Op::YieldTo => self.in_turns(pool, samples, yield_to_next),
        }
    }

    /// All ULTs yield in turns, and the calling one is the last of them: while it yields once, each
    /// does.
    fn in_turns(
        self,
        pool: &PoolRef,
        samples: &mut Samples,
        turn: impl Fn(&PoolRef) -> Result<()> + Copy + Send + 'static,
    ) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |_| {
            let (stop, inner) = (stop.clone(), pool.clone());
            let turns = move || -> Result<()> {
                while !stop.load(Ordering::Relaxed) {
                    turn(&inner)?;
                }
                Ok(())
            };
            pool.spawn(turns).doing("spawning")
        };
        let others = (1..self.units).map(spawn).collect::<Result<Vec<_>>>()?;
        let result = samples.each(|| turn(pool));
        stop.store(true, Ordering::Relaxed);
        result.and(join_each(others))
    }

    fn create_join(self, pool: &PoolRef, samples: &mut Samples) -> Result<()> {
        let Self { kind, op, units } = self;
        let mut handles = Vec::with_capacity(units as usize);
        samples.told(|| {
            let start = Instant::now();
            for _ in 0..units {
                handles.push(kind.in_pool(pool).spawn(|| ()).doing("spawning")?);
            }
            let created = if op == Op::CreateJoin { start } else { Instant::now() };
            for handle in handles.drain(..) {
                handle.join().doing("joining")?;
            }
            let end = if op == Op::Create { created } else { Instant::now() };
            Ok(end - if op == Op::Join { created } else { start })
        })
    }
}
