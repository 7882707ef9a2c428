//! The reports of transfers that were done in the calls that started them, for the next polls.
//!
//! Most often a thread starts such a transfer and polls until it has the report. That is the thread
//! that the lock of the poll favours (`prim::lock::biased`). It has a short queue of its own,
//! without a lock or an atomic step. A poll that finds a report there makes no round over the
//! connections: after a system call, time goes by the amount of code that is needed and has left
//! the first cache. Every other thread reports by the queue of `ready.rs`.
//!
//! | state, of each place of that lock | written by | read by |
//! |---|---|---|
//! | a slot that is 0: free | its thread: 1 + number of the operation (pair: AT-ONCE) | poll |
//! | a slot that is not 0 | poll, which has taken it: 0 | its thread |
//! | `left`, `taken` | its thread; poll | the same |
//!
//! A place belongs to one thread for good, also when it is not favoured any more.

use prim::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Reports that wait in one queue; the models have two, to meet a full one early.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 16 };

/// A queue of one thread and the poll.
#[derive(Debug)]
struct Queue {
    slots: [AtomicU64; SLOTS],
    left: AtomicUsize,
    taken: AtomicUsize,
}

/// The queues of `PLACES` threads.
#[derive(Debug)]
pub struct Reports<const PLACES: usize>([Queue; PLACES]);

impl<const PLACES: usize> Reports<PLACES> {
    /// Nothing to report.
    #[allow(clippy::new_without_default, reason = "empty queues say nothing by themselves")]
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| Queue {
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
            left: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }))
    }

    /// The thread of `place`: operation `op` is done. `false`: it has to be reported otherwise,
    /// for the queue is full, or has no room for that number.
    #[inline]
    #[must_use]
    pub fn leave(&self, place: usize, op: u64) -> bool {
        let Some(Queue { slots, left, .. }) = self.0.get(place) else { return false };
        let (word, at) = (op.wrapping_add(1), left.load(Ordering::Relaxed));
        let slot = &slots[at % SLOTS];
        if word == 0 || slot.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // pair: AT-ONCE (what the operation has copied)
        slot.store(word, Ordering::Release);
        left.store(at.wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Poll: whether [`take`](Self::take) would find something at `place`.
    #[inline]
    pub fn is_left(&self, place: usize) -> bool {
        self.0.get(place).is_some_and(|Queue { slots, taken, .. }| {
            // What the operation has copied is of interest after `take`.
            slots[taken.load(Ordering::Relaxed) % SLOTS].load(Ordering::Relaxed) != 0
        })
    }

    /// Poll, of which there is one at a time: the operation that has waited longest at `place`.
    #[inline]
    pub fn take(&self, place: usize) -> Option<u64> {
        let Queue { slots, taken, .. } = self.0.get(place)?;
        let at = taken.load(Ordering::Relaxed);
        let slot = &slots[at % SLOTS];
        // pair: AT-ONCE
        let op = slot.load(Ordering::Acquire).checked_sub(1)?;
        slot.store(0, Ordering::Relaxed);
        taken.store(at.wrapping_add(1), Ordering::Relaxed);
        Some(op)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reports_are_taken_once_in_order_until_the_queue_is_full() {
        let reports = Reports::<2>::new();
        let more = SLOTS as u64;
        for first in [0, 1000] {
            assert_eq!(reports.take(1), None);
            assert!((first..first + more).all(|op| reports.leave(1, op)));
            assert!(!reports.leave(1, 7), "full");
            assert!(reports.leave(0, 7), "another one is not");
            assert_eq!(reports.take(1), Some(first));
            assert!(reports.leave(1, u64::MAX - 1));
            let rest: Vec<_> = std::iter::from_fn(|| reports.take(1)).collect();
            assert!(rest.into_iter().eq((first + 1..first + more).chain([u64::MAX - 1])));
            assert!(reports.is_left(0) && !reports.is_left(1));
            assert_eq!((reports.take(0), reports.take(0)), (Some(7), None));
            assert!(!reports.is_left(0) && !reports.is_left(2));
        }
    }

    #[test]
    fn what_has_no_place_is_reported_otherwise() {
        let reports = Reports::<2>::new();
        assert!(!reports.leave(0, u64::MAX), "the number that would be none");
        assert!(!reports.leave(2, 0), "no such place");
        assert_eq!((reports.take(0), reports.take(2)), (None, None));
    }
}
