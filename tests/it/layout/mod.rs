//! Pools, execution streams and shards of an instance: as documents describe them, as programs
//! bring them along, and while they change.

mod added_shards;
mod auto_sm;
mod documents;
mod elasticity;
mod elasticity_checks;
mod elasticity_custom;
mod generated_layouts;
mod holds;
mod many_xstreams;
mod options;
mod pools;
mod progress_moves;
mod removed_shards;
mod runtime;
mod samples;
mod sharded;
mod shards;
mod shared_handlers;
mod support;
