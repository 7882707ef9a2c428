//! Reports for people and programs that ask: metrics, dumps of the state, profiles.
//!
//! May import all folders but `instance`. Read `metrics/mod.rs`, which lists its files, then
//! `state_dump.rs` and `dump_signal.rs`, then `profile.rs`.

pub(crate) mod dump_signal;
pub(crate) mod metrics;
pub(crate) mod profile;
pub(crate) mod state_dump;
