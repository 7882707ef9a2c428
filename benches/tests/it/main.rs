//! The program as its users run it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod report;
mod scale;
mod support;
