//! Rows `argobots.sync_ops.*`: see [`super`].
//!
//! - `mutex_create_free`: a mutex on the heap, as there; all are made first, then all are freed.
//! - `mutex_lock_unlock`: each ULT of each xstream locks and unlocks one mutex as often. As there,
//!   the figure is the wall time divided by how often *one* ULT did so: with 2 xstreams and 8 ULTs
//!   each, it covers 16 critical sections.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ult::Mutex;

use super::{STACKS, cores};
use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::Figure;
use crate::base::stats::{Effort, Samples};
use crate::floors::coroutine::BATCH;
use crate::process::context::Context;
use crate::rows::ult::on_ult::{on_each, on_ult};
use crate::rows::ult::switch::Streams;

/// Row `argobots.sync_ops.mutex_create_free`.
pub(crate) fn create_free(context: &Context) -> Result<Figure> {
    let effort = Effort::batches(context.quick);
    let streams = Streams::start(&[context.cores.origin])?;
    let mut samples = on_ult(&streams.pools[0], context.deadline, move || {
        let mut samples = effort.room(BATCH);
        let mut mutexes = Vec::with_capacity(BATCH as usize);
        for _ in 0..effort.rounds {
            effort.each(&mut samples, || {
                mutexes.extend((0..BATCH).map(|_| Box::new(Mutex::new(()))));
                black_box(&mutexes);
                mutexes.clear();
                Ok(())
            })?;
        }
        Ok(samples)
    })?;
    streams.stop()?;
    Ok(Figure::median(samples.latency(), None))
}

/// Row `argobots.sync_ops.mutex_lock_unlock.*`.
pub(crate) fn lock_unlock(context: &Context, ults: u32, xstreams: usize) -> Result<Figure> {
    let (runs, turns) = if context.quick { (2, 200) } else { (21, 20_000) };
    let cores = cores(context, xstreams)?;
    let streams = Streams::start_with(&cores, |builder| builder.stack_cache_max(STACKS))?;
    let mut samples = Samples::new(runs, turns);
    // The first is the warm-up.
    for run in 0..=runs {
        let wall = wall(context, &streams, ults, turns)?;
        if run > 0 {
            samples.push(wall);
        }
    }
    streams.stop()?;
    Ok(Figure::median(samples.latency(), None))
}

fn wall(context: &Context, streams: &Streams, ults: u32, turns: u32) -> Result<Duration> {
    let (pools, deadline) = (streams.pools.clone(), context.deadline);
    let mutex = Arc::new(Mutex::new(()));
    let spans = on_each(&streams.pools, deadline, move |place, gate| {
        let work = || {
            let mutex = mutex.clone();
            pools[place].spawn(move || (0..turns).for_each(|_| drop(mutex.lock())))
        };
        gate.pass(deadline)?;
        let start = Instant::now();
        let handles: Vec<_> = (0..ults).map(|_| work()).collect();
        for handle in handles {
            handle.doing("spawning")?.join().doing("joining")?;
        }
        Ok((start, Instant::now()))
    })?;
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    let span = start.zip(end).ok_or_else(|| Failure::new("nobody took part"))?;
    Ok(span.1 - span.0)
}
