//! The other side of a two-process row: how the row process starts it, and what it does.
//!
//! A peer pins itself, does its [`Task`], and ends. What it has to tell the row process (an
//! address, its samples) goes through its standard output, line by line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Result};
use crate::base::stats::Effort;
use crate::base::wait::Deadline;
use crate::floors::channel::{Place, Responder};
use crate::floors::{attach, stream};
use crate::process::child::{ChildProcess, Role};
use crate::process::context::Context;
use crate::report::machine::pin;
use crate::rows::net::{echo, fabric, na_sm, na_tcp};
use crate::rows::rpc::{bulk, null as rpc};
use crate::rows::sweep;

/// The order that a peer gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Answer one round of floor messages.
    Answer(Place),
    /// Read the row process's memory; send the samples.
    Attach {
        /// Where it is.
        source: attach::Source,
        /// How much to measure.
        effort: Effort,
    },
    /// Read chunks from a TCP connection; send the samples.
    Stream(stream::Source),
    /// Answer the messages of the `na` or `hg` rows.
    Echo(echo::Target),
    /// The other side of the rows `na.tcp.*`.
    NaTcp(na_tcp::Target),
    /// The other side of the transfers `fabric.*`.
    Fabric(fabric::Target),
    /// Serve the rows of `na` that only sm has.
    NaSm(na_sm::Target),
    /// Serve the calls of the `rpc` rows.
    Rpc(rpc::Target),
    /// Serve the calls of the `bulk` rows; send the samples.
    Bulk(bulk::Target),
    /// Serve the calls of a `sweep` row.
    Sweep(sweep::Sweep),
}

/// A peer's command line.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    core: usize,
    limit: Duration,
    task: Task,
}

/// Starts a peer on the target's core. Main thread of the row process only.
///
/// # Errors
///
/// When there is no such core or no process.
pub(crate) fn start(context: &Context, task: Task) -> Result<ChildProcess> {
    let core = context.cores.target()?;
    let order = Order { core, limit: context.deadline.left(), task };
    ChildProcess::start(Role::Peer, &order)
}

/// Runs a peer's process.
///
/// # Errors
///
/// Whatever its task meets.
pub(crate) fn run(order: &str) -> Result<()> {
    let Order { core, limit, task } = serde_json::from_str(order).doing("reading an order")?;
    let deadline = Deadline::after(limit);
    pin(core)?;
    match task {
        Task::Answer(place) => Responder::join(&place, deadline)?.answer(deadline),
        Task::Attach { source, effort } => attach::peer(source, effort),
        Task::Stream(source) => stream::peer(&source, deadline),
        Task::Echo(target) => echo::peer(&target, deadline),
        Task::NaTcp(target) => na_tcp::peer(target, deadline),
        Task::Fabric(target) => fabric::peer(&target, deadline),
        Task::NaSm(target) => na_sm::peer(target, deadline),
        Task::Rpc(target) => rpc::peer(target, deadline),
        Task::Bulk(target) => bulk::peer(target, deadline),
        Task::Sweep(sweep) => sweep::peer(sweep, deadline),
    }
}
