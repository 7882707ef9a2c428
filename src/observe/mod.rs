//! Hooks that calls, handlers and transfers report to while they run: monitors and statistics in
//! `monitor`, records of traces in `trace`. `parent.rs` passes on the handler in which a call is
//! made.
//!
//! May import `support` and `layout`. Read `parent.rs`, `clock.rs` and `span.rs`, then
//! `trace/mod.rs`, which knows no monitor, then `monitor/mod.rs`; both list their files.

pub(crate) mod clock;
pub mod monitor;
pub(crate) mod parent;
pub(crate) mod span;
pub mod trace;
