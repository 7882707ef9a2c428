//! Rows `argobots.sync_ops.*`: see [`super`].
//!
//! - `mutex_create_free`: a mutex on the heap, as there; all are made first, then all are freed.
//! - `mutex_lock_unlock`: each ULT of each xstream locks and unlocks one mutex as often. As there,
//!   the figure is the wall time divided by how often *one* ULT did so: with 2 xstreams and 8 ULTs
//!   each, it covers 16 critical sections.

use std::hint::black_box;
use std::sync::Arc;

use ult::{Mutex, Runtime};

use super::STACKS;
use crate::base::{Effort, Figure, Result, Samples};
use crate::floors::coroutine::BATCH;
use crate::process::Context;
use crate::rows::ult::on_ult::{Streams, on_ult};
use crate::rows::ult::sync::wall_of_ults;

/// Row `argobots.sync_ops.mutex_create_free`.
pub(crate) fn create_free(context: &Context) -> Result<Figure> {
    let effort = Effort::batches(context.quick);
    let streams = Streams::start(&[context.cores.origin])?;
    let mut samples = on_ult(&streams.pools[0], context.deadline, move || {
        let mut mutexes = Vec::with_capacity(BATCH as usize);
        effort.alone(BATCH, |samples| {
            samples.each(|| {
                mutexes.extend((0..BATCH).map(|_| Box::new(Mutex::new(()))));
                black_box(&mutexes);
                mutexes.clear();
                Ok(())
            })
        })
    })?;
    streams.stop()?;
    Ok(Figure::median(samples.latency(), None))
}

/// Row `argobots.sync_ops.mutex_lock_unlock.*`.
pub(crate) fn lock_unlock(context: &Context, ults: u32, xstreams: usize) -> Result<Figure> {
    let (runs, turns) = if context.quick { (2, 200) } else { (21, 20_000) };
    let cores = context.cores.take(xstreams)?;
    let streams = Streams::start_with(&cores, Runtime::builder().stack_cache_max(STACKS))?;
    let mut samples = Samples::new(runs, turns);
    // The first is the warm-up.
    for run in 0..=runs {
        let mutex = Arc::new(Mutex::new(()));
        let wall = wall_of_ults(&streams, ults, context.deadline, move || {
            (0..turns).for_each(|_| drop(mutex.lock()));
        })?;
        if run > 0 {
            samples.push(wall);
        }
    }
    streams.stop()?;
    Ok(Figure::median(samples.latency(), None))
}
