//! Rows `ult.spawn_join`, `ult.join.waits` and `ult.join.taken`: a fork and a join at a time, on
//! one xstream.
//!
//! - `ult.spawn_join`: spawn a ULT that returns at once, and join it: the joiner runs it as its
//!   child.
//! - `ult.join.waits`: the same of a ULT that yields once, so that the joiner is suspended, and is
//!   resumed by its end.
//! - `ult.join.taken`: `ult::join` whose first half waits for the second one, which the xstream
//!   therefore makes a unit of; that yields once more, so that the caller waits for its end, too.
//!
//! Floor of all: a bare coroutine that is put on a pooled stack and run.

use ult::{Eventual, PoolRef};

use super::switch::on_one_xstream;
use crate::base::{Doing, Figure, Result, Samples, ensure};
use crate::floors::coroutine::{BATCH, creations};
use crate::process::Context;

fn each(
    context: &Context,
    once: impl Fn(&PoolRef) -> Result<()> + Send + 'static,
) -> Result<Figure> {
    on_one_xstream(context, BATCH, creations, |pool, _deadline| {
        Ok(move |samples: &mut Samples| samples.each(|| (0..BATCH).try_for_each(|_| once(&pool))))
    })
}

/// Row `ult.spawn_join`.
pub(crate) fn runs(context: &Context) -> Result<Figure> {
    each(context, |pool| pool.spawn(|| ()).doing("spawning")?.join().doing("joining"))
}

/// Row `ult.join.waits`.
pub(crate) fn waits(context: &Context) -> Result<Figure> {
    each(context, |pool| pool.spawn(ult::yield_now).doing("spawning")?.join().doing("joining"))
}

/// Row `ult.join.taken`.
pub(crate) fn taken(context: &Context) -> Result<Figure> {
    each(context, |_pool| {
        let there = Eventual::new();
        let wait = || *there.wait();
        let set = || {
            let is_first = there.set(7).is_ok();
            ult::yield_now();
            is_first
        };
        let (value, is_first) = ult::join(wait, set);
        ensure!(is_first && value == 7, "{value} came out, expected 7");
        Ok(())
    })
}
