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
//!
//! Imports from `base`, `process`, `floors` and `rows/ult`. Read `ops.rs`, then `ops_all.rs` and
//! `sync_ops.rs`.

pub(crate) mod ops;
pub(crate) mod ops_all;
pub(crate) mod sync_ops;

use ult::{PoolRef, UltBuilder};

use crate::base::{Deadline, Doing, Result};
use crate::rows::ult::on_ult::yield_until;

/// Units of one xstream in the rows that do not say otherwise.
pub(crate) const UNITS: u32 = 256;
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

    /// Spawns so many detached units, and yields until the pool is empty.
    fn detach(self, pool: &PoolRef, units: u32, deadline: Deadline) -> Result<()> {
        for _ in 0..units {
            self.in_pool(pool).spawn_detached(|| ()).doing("spawning")?;
        }
        yield_until("detached units", deadline, || pool.is_empty())
    }
}

/// The operation that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// The spawns of a batch.
    Create,
    /// The joins after them.
    Join,
    /// Both together.
    CreateJoin,
    /// Detached units, until the pool is empty. So there is never more than one batch.
    CreateUnnamed,
    /// All ULTs yield in turns. Spawns and joins do not count (there, one for 2,000 yields does).
    Yield,
    /// Yields to the next one, past the scheduler.
    YieldTo,
}

impl Op {
    /// The part of an id that names it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Join => "join",
            Self::CreateJoin => "create_join",
            Self::CreateUnnamed => "create_unnamed",
            Self::Yield => "yield",
            Self::YieldTo => "yield_to",
        }
    }
}
