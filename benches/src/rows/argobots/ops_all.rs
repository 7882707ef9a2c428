//! Rows `argobots.thread_ops_all.*` and `argobots.task_ops_all.*`: see [`super`].
//!
//! Each xstream serves two pools. A ULT of the second creates the units in the first, many batches
//! one after the other. The scheduler prefers the first (the one there sorts private pools to the
//! front). The time is that of an OS thread, from starting the creators to having joined them.
//!
//! - `create_join`: the units return at once, and are joined.
//! - `create_unnamed`: they return at once; their creator yields until they have run. There it
//!   yields once for each batch. Here it yields until the pool is empty: our scheduler lets the
//!   second pool have a turn now and then, so the creator runs again before its batch has, and
//!   batches would pile up until the memory is full.
//! - `yield`, `yield_to`: one batch, of which each ULT yields as often as there would be batches.

use std::time::Instant;

use ult::{JoinHandle, PoolRef, PoolSpec, Runtime};

use super::{Kind, Op, STACKS, UNITS};
use crate::base::{Deadline, Doing, Figure, OrFail, Result, Samples};
use crate::process::Context;
use crate::rows::ult::on_ult::{Streams, join_each, pool_name, pool_spec};
use crate::rows::ult::switch::yield_to_next;

/// The work of one creator.
#[derive(Debug, Clone, Copy)]
struct Work {
    kind: Kind,
    op: Op,
    turns: u32,
}

fn top_name(place: usize) -> String {
    format!("top{place}")
}

/// Row `argobots.thread_ops_all.*` or `argobots.task_ops_all.*`.
pub(crate) fn ops_all(context: &Context, kind: Kind, op: Op, xstreams: usize) -> Result<Figure> {
    let (runs, turns) = if context.quick { (2, 20) } else { (20, 1_000) };
    let (deadline, work) = (context.deadline, Work { kind, op, turns });
    let cores = context.cores.take(xstreams)?;
    let streams = Streams::start_as(
        &cores,
        Runtime::builder().stack_cache_max(STACKS),
        |place| vec![pool_spec(place), PoolSpec::new(top_name(place))],
        |xstream, place| xstream.pools([pool_name(place), top_name(place)]),
    )?;
    let mut samples = Samples::new(runs, turns * UNITS);
    // The first is the warm-up.
    for run in 0..=runs {
        let start = Instant::now();
        let start_top = |place| -> Result<JoinHandle<Result<()>>> {
            let own = PoolRef::clone(&streams.pools[place]);
            let top = streams.runtime.pool(&top_name(place)).or_fail("a pool is missing")?;
            top.spawn(move || work.create(&own, deadline)).doing("spawning")
        };
        join_each((0..cores.len()).map(start_top).collect::<Result<Vec<_>>>()?)?;
        if run > 0 {
            samples.push(start.elapsed());
        }
        deadline.check("the runs")?;
    }
    streams.stop()?;
    Ok(Figure::median(samples.latency(), None))
}

impl Work {
    fn create(self, pool: &PoolRef, deadline: Deadline) -> Result<()> {
        let turns = self.turns;
        match self.op {
            Op::CreateUnnamed => {
                (0..turns).try_for_each(|_| self.kind.detach(pool, UNITS, deadline))
            }
            Op::Yield => self.batch(pool, move || {
                (0..turns).for_each(|_| ult::yield_now());
                Ok(())
            }),
            Op::YieldTo => {
                let inner = pool.clone();
                self.batch(pool, move || (0..turns).try_for_each(|_| yield_to_next(&inner)))
            }
            _ => (0..turns).try_for_each(|_| self.batch(pool, || Ok(()))),
        }
    }

    /// Spawns and joins as many units as a batch has.
    fn batch(
        self,
        pool: &PoolRef,
        work: impl Fn() -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let spawn = |_| self.kind.in_pool(pool).spawn(work.clone()).doing("spawning");
        join_each((0..UNITS).map(spawn).collect::<Result<Vec<_>>>()?)
    }
}
