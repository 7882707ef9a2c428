//! Rows `ult.create_join`, `ult.create_detached`, `ult.yield`, `ult.yield_to` and `ult.park_to`:
//! the life of a ULT on one xstream.
//!
//! - `ult.create_join`: spawn 256 ULTs that return at once, then join them; time for each. Floor:
//!   a bare coroutine that is put on a pooled stack and run.
//! - `ult.create_detached`: the same without handles; the spawner yields until all have run, so no
//!   more than one batch waits at a time.
//! - `ult.yield`: two ULTs yield in turns, so that every yield goes through pool and scheduler and
//!   changes stacks. Floor: a bare coroutine that is resumed and suspends.
//! - `ult.yield_to`: the same past the scheduler: each takes the other out of the pool and lets it
//!   run.
//! - `ult.park_to`: the same past the pool, too: each resumes the other and parks itself.
//!
//! The measuring code is itself a ULT of that xstream. Batches of 256 operations hide the tail of
//! single ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ult::{PoolRef, PoolSpec, Runtime, RuntimeBuilder, Unparker, XstreamSpec};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::base::wait::Deadline;
use crate::floors::coroutine::{BATCH, Create, Switch};
use crate::process::context::Context;
use crate::rows::ult::on_ult::{on_ult, yield_until};

/// How long a runtime may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A runtime with one xstream for each core, each with a pool of its own: `p0`, `p1` …
pub(crate) struct Streams {
    runtime: Runtime,
    pub(crate) pools: Vec<PoolRef>,
}

impl Streams {
    pub(crate) fn start(cores: &[usize]) -> Result<Self> {
        Self::start_with(cores, |builder| builder)
    }

    /// Like `start`, with settings of the runtime that the row needs.
    pub(crate) fn start_with(
        cores: &[usize],
        settings: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder,
    ) -> Result<Self> {
        let mut builder = settings(Runtime::builder());
        for (index, core) in cores.iter().enumerate() {
            let (pool, name) = (format!("p{index}"), format!("x{index}"));
            builder = builder.pool(PoolSpec::new(&pool));
            builder = builder.xstream(XstreamSpec::new(name).pools([&pool]).cpubind(*core));
        }
        let runtime = builder.start().doing("starting a ULT runtime")?;
        let pool = |index: usize| {
            let pool = runtime.pool(&format!("p{index}"));
            pool.ok_or_else(|| Failure::new(format!("no pool p{index}")))
        };
        let pools = (0..cores.len()).map(pool).collect::<Result<_>>()?;
        Ok(Self { runtime, pools })
    }

    pub(crate) fn stop(self) -> Result<()> {
        drop(self.pools);
        self.runtime.shutdown_timeout(STOP_LIMIT).doing("stopping a ULT runtime")
    }
}

/// The work that a row times: given a pool, one batch of operations.
pub(crate) type Batch = Box<dyn FnMut() -> Result<()>>;

/// Measures batches on one xstream, alternating with the floor.
pub(crate) fn on_one_xstream<F, B>(
    context: &Context,
    per: u32,
    floor: F,
    batch: B,
) -> Result<Figure>
where
    F: FnOnce() -> Result<FloorRound> + Send + 'static,
    B: FnOnce(PoolRef, Deadline) -> Result<Batch> + Send + 'static,
{
    let (effort, deadline) = (Effort::batches(context.quick), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let (mut floors, mut samples) = on_ult(&streams.pools[0], deadline, move || {
        let (mut floors, mut samples) = (effort.room(BATCH), effort.room(per));
        let (mut floor, mut batch) = (floor()?, batch(pool, deadline)?);
        for _ in 0..effort.rounds {
            floor(effort, &mut floors)?;
            effort.each(&mut samples, &mut batch)?;
        }
        Ok((floors, samples))
    })?;
    streams.stop()?;
    Ok(Figure::median(samples.latency(), floors.quantile(500)))
}

/// One round of a floor.
pub(crate) type FloorRound = Box<dyn FnMut(Effort, &mut Samples) -> Result<()>>;

fn create_floor() -> Result<FloorRound> {
    let mut create = Create::new()?;
    Ok(Box::new(move |effort, samples| create.round(effort, samples)))
}

pub(crate) fn switch_floor() -> Result<FloorRound> {
    let mut switch = Switch::new()?;
    Ok(Box::new(move |effort, samples| switch.round(effort, samples)))
}

/// Row `ult.create_join`.
pub(crate) fn create_join(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, create_floor, |pool, _deadline| {
        let mut handles = Vec::with_capacity(BATCH as usize);
        Ok(Box::new(move || {
            for _ in 0..BATCH {
                handles.push(pool.spawn(|| ()).doing("spawning")?);
            }
            for handle in handles.drain(..) {
                handle.join().doing("joining")?;
            }
            Ok(())
        }))
    })
}

/// ULTs of `ult.create_detached` that have run. A static, so that their closures carry nothing.
static RUN: AtomicU64 = AtomicU64::new(0);

/// Row `ult.create_detached`.
pub(crate) fn create_detached(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, create_floor, |pool, deadline| {
        Ok(Box::new(move || {
            let goal = RUN.load(Ordering::Relaxed) + u64::from(BATCH);
            for _ in 0..BATCH {
                let count = || {
                    RUN.fetch_add(1, Ordering::Relaxed);
                };
                pool.ult().spawn_detached(count).doing("spawning")?;
            }
            yield_until("detached ULTs", deadline, || RUN.load(Ordering::Relaxed) == goal)
        }))
    })
}

/// Tells the other ULT of `ult.yield` to end when the measuring one does, however it does.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Row `ult.yield`.
pub(crate) fn yields(context: &Context) -> Result<Figure> {
    // While one of the two yields once, the other does too.
    on_one_xstream(context, 2 * BATCH, switch_floor, |pool, _deadline| {
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let stopped = stop.0.clone();
        let other = move || {
            while !stopped.load(Ordering::Relaxed) {
                ult::yield_now();
            }
        };
        pool.ult().spawn_detached(other).doing("spawning")?;
        Ok(Box::new(move || {
            let _stop = &stop;
            for _ in 0..BATCH {
                ult::yield_now();
            }
            Ok(())
        }))
    })
}

/// Lets the unit run that comes next in `pool`.
// Always, since what is measured is the switch, and not that a return after it is mispredicted.
#[inline(always)]
pub(crate) fn yield_to_next(pool: &PoolRef) -> Result<()> {
    let next = pool.pop().ok_or_else(|| Failure::new("nobody to yield to"))?;
    ult::yield_to(next).doing("yielding to a ULT")
}

/// Row `ult.yield_to`.
pub(crate) fn yields_to(context: &Context) -> Result<Figure> {
    on_one_xstream(context, 2 * BATCH, switch_floor, |pool, _deadline| {
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (stopped, inner) = (stop.0.clone(), pool.clone());
        let other = move || {
            while !stopped.load(Ordering::Relaxed) {
                // If the measuring ULT is not there, the row has failed and it tells why.
                if yield_to_next(&inner).is_err() {
                    ult::yield_now();
                }
            }
        };
        pool.ult().spawn_detached(other).doing("spawning")?;
        Ok(Box::new(move || {
            let _stop = &stop;
            for _ in 0..BATCH {
                yield_to_next(&pool)?;
            }
            Ok(())
        }))
    })
}

/// Tells the other ULT of `ult.park_to` to end, which parks then.
struct EndOnDrop(Unparker, Arc<AtomicBool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        self.0.unpark();
    }
}

/// Row `ult.park_to`.
pub(crate) fn parks_to(context: &Context) -> Result<Figure> {
    on_one_xstream(context, 2 * BATCH, switch_floor, |pool, deadline| {
        let ended = Arc::new(AtomicBool::new(false));
        let own = Arc::new(OnceLock::new());
        let (caller, told, theirs) = (ult::unparker(), ended.clone(), own.clone());
        let other = move || {
            // Nobody else sets it.
            let _ = theirs.set(ult::unparker());
            ult::park();
            while !told.load(Ordering::Relaxed) {
                caller.park_to();
            }
        };
        pool.ult().spawn_detached(other).doing("spawning")?;
        yield_until("the other ULT", deadline, || own.get().is_some())?;
        let other = own.get().cloned().ok_or_else(|| Failure::new("no unparker"))?;
        let end = EndOnDrop(other, ended);
        Ok(Box::new(move || {
            for _ in 0..BATCH {
                end.0.park_to();
            }
            Ok(())
        }))
    })
}
