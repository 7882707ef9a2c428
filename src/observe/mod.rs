//! What calls, handlers and transfers report while they run: to the hooks and statistics of
//! `monitor`, and to the spans of `trace`. `parent.rs` hands on which handler a call is made in.
//!
//! May import `support` and `layout`. Read `parent.rs`, then `monitor/mod.rs` and `trace/mod.rs`;
//! each lists its own files.

pub mod monitor;
pub(crate) mod parent;
pub mod trace;
