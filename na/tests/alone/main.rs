//! Tests that count, limit or watch what the whole process has: its mappings, its descriptors, and
//! memory that goes away; and one with a limit of time that others beside it would exceed. Each
//! runs alone in this program ([`alone`]).
#![allow(clippy::unwrap_used, reason = "an unwrap is an assertion here")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "sm")]
mod sm_alloc;
#[cfg(feature = "sm")]
mod sm_stopped;
#[cfg(feature = "tcp")]
mod tcp_oneself;
mod unmapped;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// While it lives, no other test of this program runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
