//! Counts that each thread keeps in a cell of its own, and that others only add up.
//!
//! A count that one thread raises and another one lowers takes a cache line from core to core with
//! each change. Here each thread writes a line that nobody else writes, by plain loads and stores,
//! and the one who wants to know adds up all of them.
//!
//! A thread owns a cell from the first time that it asks for it, for good: a later thread with the
//! token of one that has ended goes on in its cell, as in a [biased lock](crate::lock::biased).
//! Threads that come when all cells are taken have none, and count elsewhere.

use super::own_line::OwnLine;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Cells of one of these: more than there are execution streams as a rule.
#[cfg(not(loom))]
pub(crate) const CELLS: usize = 32;
/// A model has few threads.
#[cfg(loom)]
pub(crate) const CELLS: usize = 3;

/// The token of no thread.
const NOBODY: usize = 0;

/// A `T` for each of the threads that come first.
///
/// ```
/// use prim::lock::barrier::thread_token;
/// use prim::{CellCount, ThreadCells};
///
/// let counts = ThreadCells::<CellCount>::default();
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(|| counts.of(thread_token()).expect("more cells than threads").add(10));
///     }
/// });
/// assert_eq!(counts.iter().map(CellCount::get).sum::<u64>(), 20);
/// ```
#[derive(Debug)]
pub struct ThreadCells<T> {
    /// The thread that each cell belongs to; those of nobody are the last ones. Written once each.
    owners: OwnLine<[AtomicUsize; CELLS]>,
    cells: Box<[OwnLine<T>]>,
}

impl<T: Default> Default for ThreadCells<T> {
    fn default() -> Self {
        let owners = OwnLine(std::array::from_fn(|_| AtomicUsize::new(NOBODY)));
        Self { owners, cells: (0..CELLS).map(|_| OwnLine::default()).collect() }
    }
}

impl<T> ThreadCells<T> {
    /// The cell of the calling thread `me`, which nobody else writes: a token of
    /// [`thread_token`](crate::lock::barrier::thread_token). `None`: all are taken by others.
    #[inline]
    pub fn of(&self, me: usize) -> Option<&T> {
        for (owner, cell) in self.owners.0.iter().zip(&self.cells) {
            let owner = owner.load(Ordering::Relaxed);
            if owner == me {
                return Some(&cell.0);
            }
            if owner == NOBODY {
                break;
            }
        }
        self.take(me)
    }

    #[cold]
    fn take(&self, me: usize) -> Option<&T> {
        // In order, so that no cell of nobody is before one that is taken.
        let at = self.owners.0.iter().position(|owner| {
            owner.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        at.map(|at| &self.cells[at].0)
    }

    /// All cells that belong to a thread. One that is taken just now may be missing, as a count
    /// that is made just now may be.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let taken = |(owner, _): &(&AtomicUsize, _)| owner.load(Ordering::Relaxed) != NOBODY;
        self.owners.0.iter().zip(&self.cells).take_while(taken).map(|(_, cell)| &cell.0)
    }
}

/// A count in a cell, which one thread writes.
///
/// ```
/// use prim::CellCount;
///
/// let count = CellCount::default();
/// count.add(2);
/// count.add_release(3);
/// assert_eq!(count.get_acquire(), 5);
/// ```
#[derive(Debug, Default)]
pub struct CellCount(AtomicU64);

impl CellCount {
    /// Adds `count`; for the thread that the cell belongs to.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// As [`add`](Self::add); whoever [sees](Self::get_acquire) it sees what the thread did before.
    #[inline]
    pub fn add_release(&self, count: u64) {
        // pair: CELL
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// The count; orders nothing.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The count, after what was done before it was [added](Self::add_release).
    #[inline]
    pub fn get_acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire) // pair: CELL
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lock::barrier::thread_token;

    type Counts = ThreadCells<CellCount>;

    fn sum(counts: &Counts) -> u64 {
        counts.iter().map(CellCount::get).sum()
    }

    #[test]
    fn threads_count_apart_and_the_sum_is_of_all() {
        let counts = Counts::default();
        assert_eq!(sum(&counts), 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counts.of(thread_token()).expect("there are more cells").add(1);
                    }
                });
            }
        });
        assert_eq!(sum(&counts), 4000);
    }

    #[test]
    fn a_thread_has_one_cell_and_the_last_to_come_have_none() {
        let counts = Counts::default();
        let tokens = (1..=CELLS).map(|n| 8 * n);
        for me in tokens.clone().chain(tokens) {
            counts.of(me).expect("its own").add(1);
        }
        assert!(counts.of(8 * CELLS + 8).is_none());
        assert!(counts.iter().all(|count| count.get() == 2));
        assert_eq!(sum(&counts), 2 * CELLS as u64);
    }
}
