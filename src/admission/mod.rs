//! Requests on their way in and in hand: who may call, how many may run, who waits, what is
//! counted.
//!
//! May import the folders up to `operation`; knows neither handlers nor the instance. Read
//! `gate.rs` (a bound, and who waits at it; `loom-tests` has a model of it) and `gates.rs` (those
//! of an instance), `rules.rs` (who may call what) and `limits.rs` (how much), then `waiting.rs`,
//! `request_shares.rs`, `moved_requests.rs`, `counters.rs` and `identities.rs`.

pub(crate) mod counters;
pub(crate) mod gate;
pub(crate) mod gates;
pub(crate) mod identities;
pub(crate) mod limits;
pub(crate) mod moved_requests;
mod named_callers;
pub(crate) mod request_shares;
pub(crate) mod rules;
pub(crate) mod waiting;
