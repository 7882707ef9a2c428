//! The handlers that are in hand: each is counted before the instance ends, or refused. Nothing but
//! atomics, so that `loom-tests` can include this file.
//!
//! A handler begins where its request arrives, and ends on an execution stream of its pool. Each
//! thread counts in a cell of its own, so that no line goes from one core to the other:
//!
//! | a handler begins, or ends | the end of the instance begins |
//! |---|---|
//! | counts in the cell of its thread | stores `is_closed` |
//! | [`light`](barrier::light) | [`heavy`](barrier::heavy) |
//! | looks at `is_closed`: refused, or adds up all cells | adds up all cells |
//!
//! The two halves of the fence forbid that both miss the other's store. Of two that end at once,
//! the later one sees the other's count: whoever adds up has a full fence before.
//!
//! Ends are added up before beginnings, and none is there without its beginning: sums that are
//! equal say that no handler was in hand at the moment between.

use prim::lock::barrier;
use prim::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use prim::{CellCount, OwnLine, ThreadCells};

/// The handlers of an instance that run, or whose request was left to another ULT and is not
/// answered.
#[derive(Debug)]
pub(crate) struct HandlersInHand {
    cells: ThreadCells<HandlerCounts>,
    /// The counts of threads without a cell.
    others: OwnLine<Others>,
    /// No more are let in.
    is_closed: AtomicBool,
    has_barrier: bool,
}

#[derive(Debug, Default)]
struct HandlerCounts {
    begun: CellCount,
    ended: CellCount,
}

#[derive(Debug, Default)]
struct Others {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl HandlersInHand {
    pub(crate) fn new() -> Self {
        Self {
            cells: ThreadCells::default(),
            others: OwnLine::default(),
            is_closed: AtomicBool::new(false),
            has_barrier: barrier::is_there(),
        }
    }

    /// Counts a handler in. `false`: it is not to run, and the caller counts it out.
    #[inline]
    #[must_use]
    pub(crate) fn begin(&self) -> bool {
        match self.cells.of(barrier::thread_token()) {
            Some(cell) => cell.begun.add(1),
            None => _ = self.others.0.begun.fetch_add(1, Ordering::Relaxed),
        }
        self.light();
        !self.is_closed()
    }

    /// Counts a handler out. `true`: [`close`](Self::close) was called, and none is left.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        match self.cells.of(barrier::thread_token()) {
            Some(cell) => cell.ended.add_release(1),
            // pair: HANDLER-ENDS
            None => _ = self.others.0.ended.fetch_add(1, Ordering::Release),
        }
        self.light();
        self.is_closed.load(Ordering::Relaxed) && self.are_none()
    }

    /// Lets no more in; `false`: so it was before.
    #[cold]
    pub(crate) fn close(&self) -> bool {
        let is_first = !self.is_closed.swap(true, Ordering::AcqRel); // pair: FINALIZE-BEGUN
        // pair: BARRIER (with that of `begin` and `end`)
        if is_first && self.has_barrier && barrier::heavy().is_err() {
            // It worked at the start. Without it a handler that ends now may be missed, and is
            // waited for in vain, for the grace period.
            fence(Ordering::SeqCst);
        }
        is_first
    }

    /// Returns whether no more are let in. One that was let in just before may still run.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) // pair: FINALIZE-BEGUN
    }

    /// Returns whether none is in hand; after [`close`](Self::close) that stays so.
    #[inline(never)]
    pub(crate) fn are_none(&self) -> bool {
        // pair: BARRIER (with that of another one who ends)
        fence(Ordering::SeqCst);
        self.count() == 0
    }

    /// How many are in hand, or were just now.
    pub(crate) fn count(&self) -> usize {
        // Ends first.
        let ended: u64 = self.cells.iter().map(|cell| cell.ended.get_acquire()).sum();
        let ended = ended + self.others.0.ended.load(Ordering::Acquire); // pair: HANDLER-ENDS
        let begun: u64 = self.cells.iter().map(|cell| cell.begun.get()).sum();
        let begun = begun + self.others.0.begun.load(Ordering::Relaxed);
        usize::try_from(begun.saturating_sub(ended)).unwrap_or(usize::MAX)
    }

    #[inline(always)]
    fn light(&self) {
        if self.has_barrier {
            // pair: BARRIER (with that of `close`)
            barrier::light();
        } else {
            // pair: BARRIER (with that of `are_none`)
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_more_threads_than_cells_are_counted() {
        let handlers = HandlersInHand::new();
        let (begun, told) = (std::sync::Barrier::new(100), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    assert!(handlers.begin());
                    if begun.wait().is_leader() {
                        assert!(handlers.close() && !handlers.close());
                        assert!(!handlers.are_none());
                    }
                    let told_here = handlers.end();
                    told.fetch_add(u64::from(told_here), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(handlers.count(), 0);
        assert!(told.into_inner() > 0, "the last one tells");
        assert!(!handlers.begin() && handlers.end());
    }
}
