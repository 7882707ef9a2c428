//! Requests that are done with, counted by the thread that is done with them. Nothing but atomics,
//! so that `loom-tests` can include this file.
//!
//! A request arrives on the progress thread, and as a rule its handler ends on another one. Under
//! the lock of the core, each answer would take the lock and the counts away from the progress
//! thread, which takes them back with the next request. So each thread counts in a cell of its own,
//! and who takes requests in adds up the cells when receives run low.
//!
//! When no receive is left, no request arrives, and nobody would look: then the core is *short*,
//! and whoever is done with a request collects the cells itself, until there are plenty again.
//!
//! | who is done with a request | who finds that no receive is left, under the core's lock |
//! |---|---|
//! | counts in its cell | stores `is_short` |
//! | [`light`](barrier::light) | [`heavy`](barrier::heavy) |
//! | looks at `is_short`; if it is set, collects under the lock | collects |
//!
//! The two halves of the fence forbid that both miss the other's store.

use prim::lock::barrier;
use prim::sync::atomic::{AtomicBool, Ordering};
use prim::{CellCount, ThreadCells};

/// The requests that were done with since the beginning.
#[derive(Debug)]
pub(crate) struct Releases {
    cells: ThreadCells<Cell>,
    /// No receive is left, or was lately. Written under the lock of the core.
    is_short: AtomicBool,
}

/// The counts of one thread.
#[derive(Debug, Default)]
struct Cell {
    /// Held no longer.
    released: CellCount,
    /// Answered by a message that was sent at once.
    answered: CellCount,
}

/// The count of a request that is done with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The thread has no cell: it is to be counted under the lock.
    Not,
    /// It is to be collected some time.
    Apart,
    /// It is to be collected now.
    Short,
}

impl Releases {
    /// `None`: the system has no such fence.
    pub(crate) fn new() -> Option<Self> {
        let new = || Self { cells: ThreadCells::default(), is_short: AtomicBool::new(false) };
        barrier::is_there().then(new)
    }

    /// Counts a request that may have been `held`, and may have been `answered`.
    #[inline]
    pub(crate) fn count(&self, held: bool, answered: bool) -> Counted {
        let Some(cell) = self.cells.of(barrier::thread_token()) else { return Counted::Not };
        cell.answered.add(u64::from(answered));
        cell.released.add(u64::from(held));
        // pair: BARRIER (with that of `run_short`)
        barrier::light();
        if self.is_short.load(Ordering::Relaxed) { Counted::Short } else { Counted::Apart }
    }

    /// No receive is left: from now on each count is [`Counted::Short`]. `false`: so it was before.
    /// After `true` the caller is to collect.
    ///
    /// # Panics
    ///
    /// As [`barrier::heavy`] fails.
    #[cold]
    pub(crate) fn run_short(&self) -> bool {
        if self.is_short.load(Ordering::Relaxed) {
            return false;
        }
        self.is_short.store(true, Ordering::Relaxed);
        // pair: BARRIER (with that of `count`)
        if let Err(refused) = barrier::heavy() {
            panic!("{refused}");
        }
        true
    }

    /// There are plenty.
    pub(crate) fn has_plenty(&self) {
        self.is_short.store(false, Ordering::Relaxed);
    }

    /// The requests that are held no longer.
    pub(crate) fn released(&self) -> u64 {
        self.cells.iter().map(|cell| cell.released.get()).sum()
    }

    /// The answers that were sent at once.
    pub(crate) fn answered(&self) -> u64 {
        self.cells.iter().map(|cell| cell.answered.get()).sum()
    }
}
