//! Log output of the runtime. The log is the process's, so these tests have a program of their own;
//! each test says which lines it means.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

#[path = "../common/mod.rs"]
mod common;
mod hold_up;
mod listen;
mod monitor;
