//! Pools and execution streams that come, go and move while the instance runs.
//!
//! May import the folders up to `bulk`. Read `change.rs`, `remove.rs` and `users.rs` (what
//! must stay), `migrate.rs` (progress that moves), `add_shard.rs` and
//! `remove_shard.rs` (more and less of it) and `document.rs` (the configuration in effect).

pub(crate) mod add_shard;
pub(crate) mod change;
pub(crate) mod document;
pub(crate) mod migrate;
pub(crate) mod remove;
pub(crate) mod remove_shard;
pub(crate) mod users;
