//! Batches of a provider whose keys several databases share out.

use std::time::Instant;

use crate::KvError;
use crate::engine::Database;
use crate::members::shard_of_key;
use crate::model::{Batch, Change, Changed, Durability, Outcomes};

/// Makes changes where their keys are, one database after the other. Clients that know of shards
/// send each its own changes, all at the same time, but for batches with ranges, which are for all
/// of them.
pub(super) fn apply(
    databases: &[Database],
    batch: Batch,
    epoch: u64,
    durability: Option<Durability>,
    deadline: Option<Instant>,
) -> Result<Outcomes, KvError> {
    let shards = databases.len();
    let only = match shards {
        1 => Some(0),
        _ => batch.only_owner(|key| shard_of_key(key, shards)),
    };
    if let Some(only) = only {
        return databases[only].apply(batch, epoch, durability, deadline);
    }
    if batch.is_atomic || !batch.only_if.is_empty() {
        let text = "the keys of a batch that is made as a whole are of several shards";
        return Err(KvError::Invalid(text.to_owned()));
    }
    let mut outcomes = vec![None; batch.changes.len()];
    for (shard, database) in databases.iter().enumerate() {
        let is_own =
            |change: &&Change| change.key().is_none_or(|key| shard_of_key(key, shards) == shard);
        let own = batch.changes.iter().enumerate().filter(|(_, change)| is_own(change));
        let (places, changes): (Vec<_>, Vec<_>) = own.map(|(at, one)| (at, one.clone())).unzip();
        if places.is_empty() {
            continue;
        }
        let own = Batch { changes, ..Batch::default() };
        let told = database.apply(own, epoch, durability, deadline);
        let told = told.unwrap_or_else(|error| vec![Err(error); places.len()]);
        for (place, told) in places.into_iter().zip(told) {
            outcomes[place] = Some(Changed::sum(outcomes[place].take(), told));
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}
