//! Instances through the public API: all tests of this crate that may share one process.
//!
//! A test here changes nothing of its process that others see: no environment, no limits, no
//! subscriber, no panic hook; and it counts nothing of the whole process exactly. A test that has
//! to runs in a process of its own (`alone::alone`, `process::Service`), or belongs to one of the
//! programs beside this one: `log`, `forks`, `memory` and `vectors` (allocators), `sim_cluster`
//! (the clock), `many_blocked` and `admission_burst` (memory of the process). `examples` runs what
//! cargo builds beside the test programs, which it does not for `cargo test --test it`.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

#[path = "../bulk_support/mod.rs"]
mod bulk_support;
#[path = "../call_support/mod.rs"]
mod call_support;
#[path = "../common/mod.rs"]
mod common;

mod admission;
mod bulk;
mod calls;
mod hg;
mod layout;
mod life;
mod observe;
mod providers;
mod time;
