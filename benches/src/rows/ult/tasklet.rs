//! Rows `ult.tasklet` and `ult.tasklet_detached`: the life of a unit without a stack.
//!
//! - `ult.tasklet`: spawn 256 tasklets that return at once, then join them; time for each.
//! - `ult.tasklet_detached`: the same without handles; the spawner yields until all have run.
//!
//! Floor of both: closures on the heap in a plain queue, which are then taken out and called.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::failure::{Doing, Result};
use crate::base::row::Figure;
use crate::floors::coroutine::BATCH;
use crate::process::context::Context;
use crate::rows::ult::on_ult::yield_until;
use crate::rows::ult::switch::{FloorRound, on_one_xstream};

type Closure = Box<dyn FnOnce()>;

fn queue_floor() -> Result<FloorRound> {
    let mut queue: VecDeque<Closure> = VecDeque::with_capacity(BATCH as usize);
    Ok(Box::new(move |effort, samples| {
        effort.each(samples, || {
            for number in 0..BATCH {
                queue.push_back(Box::new(move || {
                    black_box(number);
                }));
            }
            while let Some(closure) = queue.pop_front() {
                closure();
            }
            Ok(())
        })
    }))
}

/// Row `ult.tasklet`.
pub(crate) fn create_join(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, queue_floor, |pool, _deadline| {
        let mut handles = Vec::with_capacity(BATCH as usize);
        Ok(Box::new(move || {
            for _ in 0..BATCH {
                handles.push(pool.tasklet().spawn(|| ()).doing("spawning")?);
            }
            for handle in handles.drain(..) {
                handle.join().doing("joining")?;
            }
            Ok(())
        }))
    })
}

/// Tasklets of `ult.tasklet_detached` that have run. A static, so that they carry nothing.
static RUN: AtomicU64 = AtomicU64::new(0);

/// Row `ult.tasklet_detached`.
pub(crate) fn create_detached(context: &Context) -> Result<Figure> {
    on_one_xstream(context, BATCH, queue_floor, |pool, deadline| {
        Ok(Box::new(move || {
            let goal = RUN.load(Ordering::Relaxed) + u64::from(BATCH);
            for _ in 0..BATCH {
                let count = || {
                    RUN.fetch_add(1, Ordering::Relaxed);
                };
                pool.tasklet().spawn_detached(count).doing("spawning")?;
            }
            yield_until("detached tasklets", deadline, || RUN.load(Ordering::Relaxed) == goal)
        }))
    })
}
