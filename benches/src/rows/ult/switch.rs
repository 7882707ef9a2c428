//! Rows `ult.create_join`, `ult.create_detached`, `ult.tasklet`, `ult.tasklet_detached`,
//! `ult.yield`, `ult.yield_to` and `ult.park_to`: the life of a unit on one xstream.
//!
//! - `ult.create_join`: spawn 256 ULTs that return at once, then join them; time for each. Floor:
//!   a bare coroutine that is put on a pooled stack and run.
//! - `ult.create_detached`: the same without handles; the spawner yields until all have run, so no
//!   more than one batch waits at a time.
//! - `ult.tasklet`, `ult.tasklet_detached`: the same two with units that have no stack. Floor:
//!   closures on the heap in a plain queue, which are then taken out and called.
//! - `ult.yield`: two ULTs yield in turns, so that every yield goes through pool and scheduler and
//!   changes stacks. Floor: a bare coroutine that is resumed and suspends.
//! - `ult.yield_to`: the same past the scheduler: each takes the other out of the pool and lets it
//!   run.
//! - `ult.park_to`: the same past the pool, too: each resumes the other and parks itself.
//!
//! The measuring code is itself a ULT of that xstream. Batches of 256 operations hide the tail of
//! single ones.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ult::{PoolRef, UltBuilder, Unparker};

use super::on_ult::{Streams, on_ult, yield_until};
use crate::base::{Deadline, Doing, Effort, Figure, OrFail, Result, Round, Samples};
use crate::floors::coroutine::{BATCH, creations, switches};
use crate::process::Context;

/// Measures batches on one xstream, alternating with the floor; `round` makes a round of them,
/// given the pool.
pub(crate) fn on_one_xstream<R>(
    context: &Context,
    per: u32,
    floor: fn() -> Result<Round>,
    round: impl FnOnce(PoolRef, Deadline) -> Result<R> + Send + 'static,
) -> Result<Figure>
where
    R: FnMut(&mut Samples) -> Result<()>,
{
    let (effort, deadline) = (Effort::batches(context.quick), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let rounds = on_ult(&streams.pools[0], deadline, move || {
        effort.in_turns([BATCH, per], floor()?, round(pool, deadline)?)
    })?;
    streams.stop()?;
    Ok(Figure::latency(rounds))
}

/// The floor of tasklets.
fn queue() -> Result<Round> {
    let mut queue: VecDeque<Box<dyn FnOnce()>> = VecDeque::with_capacity(BATCH as usize);
    Ok(Box::new(move |samples| {
        samples.each(|| {
            for number in 0..BATCH {
                queue.push_back(Box::new(move || _ = black_box(number)));
            }
            while let Some(closure) = queue.pop_front() {
                closure();
            }
            Ok(())
        })
    }))
}

/// Rows `ult.create_join` and `ult.tasklet`.
fn joined(
    context: &Context,
    floor: fn() -> Result<Round>,
    unit: impl Fn(&PoolRef) -> UltBuilder<'_> + Send + 'static,
) -> Result<Figure> {
    on_one_xstream(context, BATCH, floor, |pool, _deadline| {
        let mut handles = Vec::with_capacity(BATCH as usize);
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                for _ in 0..BATCH {
                    handles.push(unit(&pool).spawn(|| ()).doing("spawning")?);
                }
                for handle in handles.drain(..) {
                    handle.join().doing("joining")?;
                }
                Ok(())
            })
        })
    })
}

/// Detached units that have run. A static, so that their closures carry nothing.
static RUN: AtomicU64 = AtomicU64::new(0);

/// Rows `ult.create_detached` and `ult.tasklet_detached`.
fn detached(
    context: &Context,
    floor: fn() -> Result<Round>,
    unit: impl Fn(&PoolRef) -> UltBuilder<'_> + Send + 'static,
) -> Result<Figure> {
    on_one_xstream(context, BATCH, floor, |pool, deadline| {
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                let goal = RUN.load(Ordering::Relaxed) + u64::from(BATCH);
                for _ in 0..BATCH {
                    let count = || _ = RUN.fetch_add(1, Ordering::Relaxed);
                    unit(&pool).spawn_detached(count).doing("spawning")?;
                }
                yield_until("detached units", deadline, || RUN.load(Ordering::Relaxed) == goal)
            })
        })
    })
}

/// Row `ult.create_join`.
pub(crate) fn create_join(context: &Context) -> Result<Figure> {
    joined(context, creations, |pool| pool.ult())
}

/// Row `ult.create_detached`.
pub(crate) fn create_detached(context: &Context) -> Result<Figure> {
    detached(context, creations, |pool| pool.ult())
}

/// Row `ult.tasklet`.
pub(crate) fn tasklet(context: &Context) -> Result<Figure> {
    joined(context, queue, |pool| pool.tasklet())
}

/// Row `ult.tasklet_detached`.
pub(crate) fn tasklet_detached(context: &Context) -> Result<Figure> {
    detached(context, queue, |pool| pool.tasklet())
}

/// Tells the other ULT to end when the measuring one does, however it does.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How a ULT lets another one run. A trait, because a closure is not always inlined, and a return
/// after a switch is mispredicted.
trait Turn {
    fn turn(pool: &PoolRef) -> Result<()>;
}

/// Two ULTs let each other run by `T`, or at least by a yield; while one of the two does so once,
/// the other does too.
fn in_turns<T: Turn>(context: &Context) -> Result<Figure> {
    on_one_xstream(context, 2 * BATCH, switches, move |pool, _deadline| {
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (stopped, inner) = (stop.0.clone(), pool.clone());
        let other = move || {
            while !stopped.load(Ordering::Relaxed) {
                // If the measuring ULT is not there, the row has failed and it tells why.
                if T::turn(&inner).is_err() {
                    ult::yield_now();
                }
            }
        };
        pool.ult().spawn_detached(other).doing("spawning")?;
        Ok(move |samples: &mut Samples| {
            let _stop = &stop;
            samples.each(|| turns::<T>(&pool))
        })
    })
}

/// A batch of turns. A function of its own, since what a closure has borrowed is loaded again after
/// each switch, which is 5 % of a turn.
#[inline(never)]
fn turns<T: Turn>(pool: &PoolRef) -> Result<()> {
    for _ in 0..BATCH {
        T::turn(pool)?;
    }
    Ok(())
}

struct Yields;

impl Turn for Yields {
    #[inline(always)]
    fn turn(_pool: &PoolRef) -> Result<()> {
        ult::yield_now();
        Ok(())
    }
}

/// Row `ult.yield`.
pub(crate) fn yields(context: &Context) -> Result<Figure> {
    in_turns::<Yields>(context)
}

/// Lets the unit run that comes next in `pool`.
// Always, since what is measured is the switch, and not that a return after it is mispredicted.
#[inline(always)]
pub(crate) fn yield_to_next(pool: &PoolRef) -> Result<()> {
    ult::yield_to(pool.pop().or_fail("nobody to yield to")?).doing("yielding to a ULT")
}

struct YieldsTo;

impl Turn for YieldsTo {
    #[inline(always)]
    fn turn(pool: &PoolRef) -> Result<()> {
        yield_to_next(pool)
    }
}

/// Row `ult.yield_to`.
pub(crate) fn yields_to(context: &Context) -> Result<Figure> {
    in_turns::<YieldsTo>(context)
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
    on_one_xstream(context, 2 * BATCH, switches, |pool, deadline| {
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
        let end = EndOnDrop(own.get().cloned().or_fail("no unparker")?, ended);
        Ok(move |samples: &mut Samples| {
            samples.each(|| {
                (0..BATCH).for_each(|_| end.0.park_to());
                Ok(())
            })
        })
    })
}
