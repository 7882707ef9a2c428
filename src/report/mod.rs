//! Reports for people and programs that ask: metrics, also of peers, and dumps of the state.
//!
//! May import the folders up to `bulk`. Read `collect.rs`, then `remote.rs`, then `state_dump.rs`.

pub(crate) mod collect;
pub(crate) mod remote;
pub(crate) mod state_dump;
