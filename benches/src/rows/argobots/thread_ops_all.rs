//! Rows `argobots.thread_ops_all.*` and `argobots.task_ops_all.*`: see [`super`].
//!
//! Each xstream serves two pools. A ULT of the second creates the units in the first, many batches
//! one after the other. The scheduler prefers the first (the one there sorts private pools to the
//! front). The time is that of an OS thread, from starting the creators to having joined them.
//!
//! For detached units the creator there yields once for each batch. Here it yields until the pool
//! is empty: our scheduler lets the second pool have a turn now and then, so the creator runs again
//! before its batch has, and batches would pile up until the memory is full.

use std::time::Instant;

use ult::{JoinHandle, PoolRef, PoolSpec, Runtime, XstreamSpec};

use super::{Kind, STACKS, UNITS, cores, join_each};
use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::Samples;
use crate::base::wait::Deadline;
use crate::process::context::Context;
use crate::rows::ult::on_ult::yield_until;
use crate::rows::ult::switch::yield_to_next;

/// The work of the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum All {
    /// Return at once, and are joined.
    CreateJoin,
    /// Return at once; their creator yields until they have run.
    CreateUnnamed,
    /// One batch, of which each ULT yields as often as there would be batches.
    Yield,
    /// Yields to the next one, past the scheduler.
    YieldTo,
}

impl All {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::CreateJoin => "create_join",
            Self::CreateUnnamed => "create_unnamed",
            Self::Yield => "yield",
            Self::YieldTo => "yield_to",
        }
    }
}

/// The work of one creator.
#[derive(Debug, Clone, Copy)]
struct Work {
    kind: Kind,
    what: All,
    turns: u32,
}

/// Row `argobots.thread_ops_all.*` or `argobots.task_ops_all.*`.
pub(crate) fn ops_all(context: &Context, kind: Kind, what: All, xstreams: usize) -> Result<Figure> {
    let (runs, turns) = if context.quick { (2, 20) } else { (20, 1_000) };
    let (deadline, work) = (context.deadline, Work { kind, what, turns });
    let cores = cores(context, xstreams)?;
    let runtime = runtime(&cores)?;
    let pool = |name: String| {
        let pool = runtime.pool(&name);
        pool.ok_or_else(|| Failure::new(format!("no pool {name}")))
    };
    let mut samples = Samples::new(runs, turns * UNITS);
    // The first is the warm-up.
    for run in 0..=runs {
        let start = Instant::now();
        let start_top = |index| -> Result<JoinHandle<Result<()>>> {
            let own = pool(format!("p{index}"))?;
            pool(format!("top{index}"))?.spawn(move || top(work, &own, deadline)).doing("spawning")
        };
        join_each((0..cores.len()).map(start_top).collect::<Result<Vec<_>>>()?)?;
        if run > 0 {
            samples.push(start.elapsed());
        }
        context.deadline.check("the runs")?;
    }
    runtime.shutdown_timeout(context.deadline.left()).doing("stopping a ULT runtime")?;
    Ok(Figure::median(samples.latency(), None))
}

fn runtime(cores: &[usize]) -> Result<Runtime> {
    let mut builder = Runtime::builder().stack_cache_max(STACKS);
    for (index, core) in cores.iter().enumerate() {
        let names = [format!("p{index}"), format!("top{index}")];
        builder = names.iter().fold(builder, |builder, name| builder.pool(PoolSpec::new(name)));
        builder =
            builder.xstream(XstreamSpec::new(format!("x{index}")).pools(names).cpubind(*core));
    }
    builder.start().doing("starting a ULT runtime")
}

fn top(work: Work, pool: &PoolRef, deadline: Deadline) -> Result<()> {
    let Work { kind, what, turns } = work;
    match what {
        All::CreateJoin => (0..turns).try_for_each(|_| batch(kind, pool, || Ok(()))),
        All::CreateUnnamed => (0..turns).try_for_each(|_| {
            for _ in 0..UNITS {
                kind.in_pool(pool).spawn_detached(|| ()).doing("spawning")?;
            }
            yield_until("detached units", deadline, || pool.is_empty())
        }),
        All::Yield => batch(kind, pool, move || {
            (0..turns).for_each(|_| ult::yield_now());
            Ok(())
        }),
        All::YieldTo => {
            let inner = pool.clone();
            batch(kind, pool, move || (0..turns).try_for_each(|_| yield_to_next(&inner)))
        }
    }
}

/// Spawns and joins as many units as a batch has.
fn batch(
    kind: Kind,
    pool: &PoolRef,
    work: impl Fn() -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    let spawn = || kind.in_pool(pool).spawn(work.clone()).doing("spawning");
    join_each((0..UNITS).map(|_| spawn()).collect::<Result<Vec<_>>>()?)
}
