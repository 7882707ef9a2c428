//! Rows `argobots.thread_ops_all.*`: see [`super`].
//!
//! Each xstream serves two pools. A ULT of the second creates the others in the first, many batches
//! one after the other. The scheduler prefers the first (the one there sorts private pools to the
//! front). The time is that of an OS thread, from starting the creators to having joined them.
//!
//! For detached ULTs the creator there yields once for each batch. Here it yields until the pool is
//! empty: our scheduler lets the second pool have a turn now and then, so the creator runs again
//! before its batch has, and batches would pile up until the memory is full.

use std::time::Instant;

use ult::{JoinHandle, PoolRef, PoolSpec, Runtime, XstreamSpec};

use super::super::on_ult::yield_until;
use super::{STACKS, ULTS, cores};
use crate::context::Context;
use crate::failure::{Doing, Failure, Result};
use crate::row::Figure;
use crate::stats::Samples;
use crate::wait::Deadline;

/// What the ULTs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum All {
    /// Return at once, and are joined.
    CreateJoin,
    /// Return at once; their creator yields until they have run.
    CreateUnnamed,
    /// One batch, of which each ULT yields as often as there would be batches.
    Yield,
}

impl All {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::CreateJoin => "create_join",
            Self::CreateUnnamed => "create_unnamed",
            Self::Yield => "yield",
        }
    }
}

/// Row `argobots.thread_ops_all.*`.
pub(crate) fn thread_ops_all(context: &Context, what: All, xstreams: usize) -> Result<Figure> {
    let (runs, turns) = if context.quick { (2, 20) } else { (20, 1_000) };
    let deadline = context.deadline;
    let cores = cores(context, xstreams)?;
    let mut builder = Runtime::builder().stack_cache_max(STACKS);
    for (index, core) in cores.iter().enumerate() {
        let names = [format!("p{index}"), format!("top{index}")];
        builder = names.iter().fold(builder, |builder, name| builder.pool(PoolSpec::new(name)));
        builder =
            builder.xstream(XstreamSpec::new(format!("x{index}")).pools(names).cpubind(*core));
    }
    let runtime = builder.start().doing("starting a ULT runtime")?;
    let pool = |name: String| {
        let pool = runtime.pool(&name);
        pool.ok_or_else(|| Failure::new(format!("no pool {name}")))
    };
    let mut samples = Samples::new(runs, turns * ULTS);
    // The first is the warm-up.
    for run in 0..=runs {
        let start = Instant::now();
        let start_top = |index| -> Result<JoinHandle<Result<()>>> {
            let own = pool(format!("p{index}"))?;
            pool(format!("top{index}"))?
                .spawn(move || top(what, turns, &own, deadline))
                .doing("spawning")
        };
        let tops: Vec<_> = (0..cores.len()).map(start_top).collect::<Result<_>>()?;
        for top in tops {
            top.join().doing("joining")??;
        }
        if run > 0 {
            samples.push(start.elapsed());
        }
        context.deadline.check("the runs")?;
    }
    runtime.shutdown_timeout(context.deadline.left()).doing("stopping a ULT runtime")?;
    Ok(Figure::median(samples.latency(), None))
}

fn top(what: All, turns: u32, pool: &PoolRef, deadline: Deadline) -> Result<()> {
    let batch = |work: fn(u32)| -> Result<()> {
        let handles: Vec<_> = (0..ULTS).map(|_| pool.spawn(move || work(turns))).collect();
        for handle in handles {
            handle.doing("spawning")?.join().doing("joining")?;
        }
        Ok(())
    };
    match what {
        All::CreateJoin => (0..turns).try_for_each(|_| batch(|_| ())),
        All::CreateUnnamed => (0..turns).try_for_each(|_| {
            for _ in 0..ULTS {
                pool.ult().spawn_detached(|| ()).doing("spawning")?;
            }
            yield_until("detached ULTs", deadline, || pool.is_empty())
        }),
        All::Yield => batch(|turns| (0..turns).for_each(|_| ult::yield_now())),
    }
}
