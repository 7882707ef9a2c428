//! Row `ult.fifo.units2`: units from one producer to two xstreams that serve one FIFO.
//!
//! The producer is a ULT of a pool of its own, which the first xstream serves before the FIFO. It
//! spawns a batch of units that only count, and yields until both xstreams have run all of them. A
//! sample is a batch, and the figure the time for each unit. Floor: one way of a cache line between
//! threads on the same cores, alternating, while the xstreams sleep: what a unit costs that is
//! handed over alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ult::{PoolSpec, Runtime};

use super::on_ult::{Streams, on_ult, pool_name, pool_spec, yield_until};
use crate::base::{Doing, Effort, Figure, OrFail, Result, Samples};
use crate::floors::lines;
use crate::process::Context;

/// Units of a sample.
const BATCH: u32 = 256;

/// Both xstreams go to sleep soon after a round, and not during one.
const SPIN: Duration = Duration::from_millis(1);

/// The pool that both serve.
const SHARED: &str = "shared";

/// A counter with one writer, away from its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Count(AtomicU64);

/// Units that each thread has run. A static, so that closures carry nothing.
static RAN: [Count; 2] = [const { Count(AtomicU64::new(0)) }; 2];

thread_local! {
    /// The place of this thread in [`RAN`].
    static PLACE: Cell<usize> = const { Cell::new(1) };
}

/// Row `ult.fifo.units2`.
pub(crate) fn units2(context: &Context) -> Result<Figure> {
    let effort = Effort::batches(context.quick);
    let cores = context.cores.take(2)?;
    let builder = Runtime::builder().spin_max(SPIN).pool(PoolSpec::new(SHARED));
    let streams = Streams::start_as(
        &cores,
        builder,
        |place| vec![pool_spec(place)],
        |xstream, place| xstream.pools([pool_name(place), SHARED.to_owned()]),
    )?;
    let floor = |samples: &mut Samples| {
        std::thread::sleep(2 * SPIN);
        lines::round(context.cores, samples, context.deadline)
    };
    let per_sample = [2, BATCH];
    let rounds = effort.in_turns(per_sample, floor, |samples| round(context, &streams, samples))?;
    streams.stop()?;
    Ok(Figure::latency(rounds))
}

/// One round of batches.
fn round(context: &Context, streams: &Streams, samples: &mut Samples) -> Result<()> {
    let shared = streams.runtime.pool(SHARED).or_fail("the shared pool is missing")?;
    let deadline = context.deadline;
    let mut taken = std::mem::replace(samples, Samples::new(0, 1));
    *samples = on_ult(&streams.pools[0], deadline, move || {
        PLACE.set(0);
        let ran = || RAN.iter().map(|Count(ran)| ran.load(Ordering::Relaxed)).sum::<u64>();
        let mut goal = ran();
        let result = taken.each(|| {
            goal += u64::from(BATCH);
            for _ in 0..BATCH {
                let count = || {
                    let Count(ran) = &RAN[PLACE.get()];
                    ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                };
                shared.ult().spawn_detached(count).doing("spawning")?;
            }
            yield_until("units of the shared pool", deadline, || ran() == goal)
        });
        result.map(|()| taken)
    })?;
    Ok(())
}
