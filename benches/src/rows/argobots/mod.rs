//! Rows of the group `argobots`: the measurements of C Argobots' benchmark programs, with the same
//! counts, so that the two can be compared. Only this library's side is run here. A row's last part
//! is the number of xstreams, which all measure at the same time.
//!
//! | rows | program there | settings |
//! |---|---|---|
//! | `argobots.thread_ops.*` | `thread_ops -u 256` | one private pool for each xstream |
//! | `argobots.thread_ops_all.*` | `thread_ops_all -u 256` | two pools, the units in one of them |
//! | `argobots.thread_fork_join.*` | `thread_fork_join*` | 64 and 256 ULTs |
//! | `argobots.task_ops.*` | `task_ops -t 256` | as `thread_ops`, with tasklets |
//! | `argobots.task_ops_all.*` | `task_ops_all -t 256` | as `thread_ops_all`, with tasklets |
//! | `argobots.task_fork_join.*` | `task_fork_join*` | as `thread_fork_join`, with tasklets |
//! | `argobots.sync_ops.*` | `sync_ops` | 1 and 8 ULTs for each xstream, one mutex |
//!
//! Where we differ:
//!
//! - A join here also frees, so `join` is `join` and `free` there together, and `create_join` the
//!   sum of all three.
//! - Samples are medians of batches; there, means over a whole run.
//! - A pool that one xstream serves is private here whatever it is called there, and joining one
//!   by one is what joining many does. So `thread_fork_join`, its `_many` and its `_priv_pool`
//!   there all stand beside the same rows here, and so do the two of `task_fork_join`.
//! - The cache of stacks has the size that Argobots gives it (1,024).

mod sync_ops;
mod thread_ops;
mod thread_ops_all;

pub(crate) use sync_ops::{create_free, lock_unlock};
pub(crate) use thread_ops::{Op, cold, fork_join, ops};
pub(crate) use thread_ops_all::{All, ops_all};

use ult::{JoinHandle, PoolRef, UltBuilder};

use crate::base::failure::{Doing, Result};
use crate::process::context::Context;
use crate::report::machine::pin_to_any;

/// Units of one xstream in the rows that do not say otherwise.
const UNITS: u32 = 256;
/// `ABT_MEM_MAX_NUM_STACKS`, default.
const STACKS: usize = 1_024;

/// The kind of unit that a row spawns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `ABT_thread`
    Ult,
    /// `ABT_task`
    Tasklet,
}

impl Kind {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ult => "thread",
            Self::Tasklet => "task",
        }
    }

    #[inline]
    fn in_pool(self, pool: &PoolRef) -> UltBuilder<'_> {
        match self {
            Self::Ult => pool.ult(),
            Self::Tasklet => pool.tasklet(),
        }
    }
}

/// Joins all, the first failure of which is the result.
fn join_each<T>(handles: impl IntoIterator<Item = JoinHandle<Result<T>>>) -> Result<()> {
    handles.into_iter().try_for_each(|handle| handle.join().doing("joining")?.map(drop))
}

/// The cores of `count` xstreams, which the process may then use.
fn cores(context: &Context, count: usize) -> Result<Vec<usize>> {
    let cores = match count {
        1 => vec![context.cores.origin],
        _ => vec![context.cores.origin, context.cores.target()?],
    };
    pin_to_any(&cores)?;
    Ok(cores)
}
