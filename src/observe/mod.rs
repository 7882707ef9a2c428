//! Hooks that calls, handlers and transfers report to while they run: monitors and statistics in
//! `monitor`, records of traces in `trace`, and the forms and servers of reports in `metrics`.
//! `parent.rs` passes on the handler in which a call is made, `audit.rs` records what an
//! administrator wants to know of later.
//!
//! May import `support` and `layout`. Read `parent.rs`, `clock.rs` and `span.rs`, then `queue.rs`
//! and `wake.rs` (a thread that writes records), `audit.rs`, `trace/mod.rs`, which knows no
//! monitor, then `monitor/mod.rs` and `metrics/mod.rs`, which list their files; then
//! `dump_signal.rs` and `profile.rs`.

pub(crate) mod audit;
pub(crate) mod clock;
pub(crate) mod dump_signal;
pub(crate) mod metrics;
pub mod monitor;
pub(crate) mod parent;
pub(crate) mod profile;
pub(crate) mod queue;
pub(crate) mod span;
pub mod trace;
mod wake;
