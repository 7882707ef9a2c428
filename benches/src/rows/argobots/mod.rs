//! Rows of the group `argobots`: what the benchmark programs of C Argobots measure, with the same
//! counts, so that the two can be put side by side. Our side only; a row's last part is the number
//! of xstreams, which all measure at the same time.
//!
//! | rows | program there | settings |
//! |---|---|---|
//! | `argobots.thread_ops.*` | `thread_ops -u 256` | one private pool for each xstream |
//! | `argobots.thread_ops_all.*` | `thread_ops_all -u 256` | two pools, the ULTs in the second |
//! | `argobots.thread_fork_join.*` | `thread_fork_join_many_priv_pool -u 256` | 64 and 256 ULTs |
//! | `argobots.sync_ops.*` | `sync_ops` | 1 and 8 ULTs for each xstream, one mutex |
//!
//! Where we differ: a join here also frees, so `join` is its `join` and `free` together. Samples are
//! medians of batches; there, means over a whole run. A pool that one xstream serves is private here
//! whatever it is called there, so its variant with shared access has no counterpart. Stacks are
//! cached as many as there (1,024).

mod sync_ops;
mod thread_ops;
mod thread_ops_all;

pub(crate) use sync_ops::{create_free, lock_unlock};
pub(crate) use thread_ops::{Op, fork_join, thread_ops};
pub(crate) use thread_ops_all::{All, thread_ops_all};

use crate::context::Context;
use crate::failure::Result;
use crate::machine::pin_to_any;

/// ULTs of one xstream in the rows that do not say otherwise.
const ULTS: u32 = 256;
/// `ABT_MEM_MAX_NUM_STACKS`, default.
const STACKS: usize = 1_024;

/// The cores of `count` xstreams, which the process may then use.
fn cores(context: &Context, count: usize) -> Result<Vec<usize>> {
    let cores = match count {
        1 => vec![context.cores.origin],
        _ => vec![context.cores.origin, context.cores.target()?],
    };
    pin_to_any(&cores)?;
    Ok(cores)
}
