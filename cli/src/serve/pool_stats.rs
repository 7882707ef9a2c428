//! An RPC that tells what the pools of a serving process have done.

use margo::{Instance, RegisterError, Rpc};
use serde::{Deserialize, Serialize};

/// Answers one row for each pool, in the order of the configuration.
pub(crate) const POOL_STATS: Rpc<(), Vec<PoolRow>> = Rpc::new("margo_pool_stats");

/// The counts of one pool since the process started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolRow {
    pub(crate) name: String,
    /// ULTs spawned into it.
    pub(crate) created: u64,
    /// ULTs of it that ran to their end.
    pub(crate) finished: u64,
    /// Times that one of its ULTs was switched to.
    pub(crate) executed: u64,
}

/// Serves [`POOL_STATS`] under the default provider id.
pub(crate) fn register(instance: &Instance) -> Result<(), RegisterError> {
    instance.register(POOL_STATS, |request| {
        let rows: Vec<_> = request
            .instance()
            .layout()
            .pools()
            .iter()
            .map(|pool| {
                let stats = pool.stats();
                PoolRow {
                    name: pool.name().to_owned(),
                    created: stats.created,
                    finished: stats.finished,
                    executed: stats.executed,
                }
            })
            .collect();
        if let Err(error) = request.respond(&rows) {
            tracing::debug!(%error, "no answer");
        }
    })
}
