//! Numbers of OS threads, for counters that only one thread writes.
//!
//! A thread gets a number when it counts for the first time, and gives it back when it ends; its
//! successor goes on with the same counters. Threads for which there is no number left share the
//! last one.

use std::cell::Cell;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most numbers.
const SHARDS_MAX: usize = 64;

/// Instead of a number.
const NONE: usize = usize::MAX;

thread_local! {
    /// `NONE`: not asked for yet.
    static SLOT: Cell<usize> = const { Cell::new(NONE) };
    /// Gives it back.
    static RETURNS: Returns = const { Returns };
}

/// Numbers that are free.
static FREE: Mutex<Option<Vec<usize>>> = Mutex::new(None);

/// How many numbers there are; the last one is shared, the others are of one thread each.
pub(super) fn parts() -> usize {
    static SHARDS: OnceLock<usize> = OnceLock::new();
    *SHARDS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Threads of one's own, beside those that serve.
        (cores + 4).min(SHARDS_MAX)
    })
}

/// The number of this thread.
// Inlined only into functions that are not: see `rows.rs`.
#[inline]
pub(super) fn here() -> usize {
    match SLOT.get() {
        NONE => claim(),
        slot => slot,
    }
}

/// The number of this thread if it has asked for one, else one that is beyond all of them.
// As `here`.
#[inline]
pub(super) fn known() -> usize {
    SLOT.get()
}

#[cold]
fn claim() -> usize {
    let shared = parts() - 1;
    // Fails when the thread runs its last destructors: it has none to run for this.
    if RETURNS.try_with(|_| ()).is_err() {
        return shared;
    }
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = free.get_or_insert_with(|| (0..shared).rev().collect()).pop().unwrap_or(shared);
    SLOT.set(slot);
    slot
}

struct Returns;

impl Drop for Returns {
    fn drop(&mut self) {
        let shared = parts() - 1;
        // Whoever counts after this does so with all the others.
        let slot = SLOT.replace(shared);
        if slot < shared {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(free) = free.as_mut() {
                free.push(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_that_are_there_at_once_share_only_the_last_number() {
        let threads = 2 * parts();
        let (all_here, numbers) = (Barrier::new(threads), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let here = here();
                    assert_eq!(here, super::here(), "it stays");
                    numbers.lock().unwrap().push(here);
                    all_here.wait();
                });
            }
        });
        let numbers = numbers.into_inner().unwrap();
        let shared = parts() - 1;
        let owned: Vec<_> = numbers.iter().filter(|here| **here < shared).collect();
        assert_eq!(owned.iter().collect::<HashSet<_>>().len(), owned.len(), "{owned:?}");
        assert!(numbers.contains(&shared) && numbers.iter().all(|here| *here <= shared));
        // They are given back.
        std::thread::spawn(|| assert!(here() < parts())).join().unwrap();
    }
}
