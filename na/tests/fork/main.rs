//! Children that are forked off and execute nothing: they have copies of everything that the
//! process has, its descriptors too. Tests that run beside them would see connections stay open
//! which they have closed, so these have a program of their own.
#![allow(clippy::unwrap_used, reason = "an unwrap is an assertion here")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(feature = "sm", feature = "tcp", feature = "ucx"))]
mod copies;
#[cfg(feature = "sm")]
mod sm_strangers;
