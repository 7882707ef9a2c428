//! Hooks that calls, handlers and transfers report to while they run: monitors and statistics in
//! `monitor`, records of traces in `trace`, and the forms and servers of reports in `metrics`.
//! `parent.rs` passes on the handler in which a call is made.
//!
//! May import `support` and `layout`. Read `parent.rs`, `clock.rs` and `span.rs`, then
//! `trace/mod.rs`, which knows no monitor, then `monitor/mod.rs` and `metrics/mod.rs`, which list
//! their files; then `dump_signal.rs` and `profile.rs`.

pub(crate) mod clock;
pub(crate) mod dump_signal;
pub(crate) mod metrics;
pub mod monitor;
pub(crate) mod parent;
pub(crate) mod profile;
pub(crate) mod span;
pub mod trace;
