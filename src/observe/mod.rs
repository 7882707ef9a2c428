//! Hooks that calls, handlers and transfers report to while they run: monitors and statistics in
//! `monitor`, records of traces in `trace`. `parent.rs` hands on in which handler a call is made.
//!
//! May import `support` and `layout`. Read `parent.rs`, then `monitor/mod.rs` and `trace/mod.rs`;
//! each lists its own files.

pub mod monitor;
pub(crate) mod parent;
pub mod trace;
