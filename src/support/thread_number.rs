//! A number for each OS thread that no other thread of the process ever has.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the calling thread, from 1. 0: the thread is ending.
// Not inlined: the address of a thread-local must not be kept over a switch of stacks.
#[inline(never)]
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static OWN: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    OWN.try_with(|own| *own).unwrap_or(0)
}
