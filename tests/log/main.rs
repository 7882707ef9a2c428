//! The log and traces: the lines and files that instances write.
//!
//! A program of its own, since the log is the process's: one subscriber serves all tests here, each
//! of which picks out its own lines.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

#[path = "../common/mod.rs"]
mod common;

mod finalize_callbacks;
mod log_levels;
mod quiet;
mod stalls;
mod trace;
mod trace_support;
