//! Reports for people and programs that ask: metrics, also of peers, pings, and dumps of the state.
//!
//! May import the folders up to `bulk`. Read `collect.rs`, then `publish.rs`,
//! `remote.rs`, `ping.rs`, and `state_dump.rs`.

pub(crate) mod collect;
pub(crate) mod ping;
pub(crate) mod port;
mod publish;
pub(crate) mod remote;
pub(crate) mod state_dump;
