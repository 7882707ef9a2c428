//! Deadlines of the ULTs of one xstream.
//!
//! A suspended ULT never changes its xstream, so the heap needs no lock: the ULT inserts its node
//! before it suspends and removes it when it runs again, and in between the xstream may fire it.
//! Nodes live on the ULT's stack and know their place in the heap, so that a wait which ends early
//! leaves nothing behind.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::time::Timespec;

use crate::descriptor::UltPtr;

const NOWHERE: usize = usize::MAX;

/// One deadline of a ULT, on its stack.
#[derive(Debug)]
pub(crate) struct TimerNode {
    ult: UltPtr,
    place: Cell<usize>,
    fired: Cell<bool>,
}

impl TimerNode {
    pub(crate) fn new(ult: UltPtr) -> Self {
        Self { ult, place: Cell::new(NOWHERE), fired: Cell::new(false) }
    }

    /// Whether the deadline has passed and the xstream has noticed.
    pub(crate) fn has_fired(&self) -> bool {
        self.fired.get()
    }
}

/// A binary heap of deadlines, earliest first, equal ones in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct TimerHeap {
    heap: Vec<Entry>,
    inserted: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    deadline: Instant,
    order: u64,
    node: NonNull<TimerNode>,
}

impl Entry {
    fn is_before(&self, other: &Self) -> bool {
        let order = self.deadline.cmp(&other.deadline).then(self.order.cmp(&other.order));
        order == Ordering::Less
    }

    fn node(&self) -> &TimerNode {
        // SAFETY:
        // - valid: a node is removed from the heap before its ULT's frame ends (`insert`).
        // - shared access only, on the one thread of the xstream.
        unsafe { self.node.as_ref() }
    }
}

impl TimerHeap {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.deadline)
    }

    /// Adds a node.
    ///
    /// # Safety
    ///
    /// The caller calls [`remove`](Self::remove) with it before the node moves or ends.
    pub(crate) unsafe fn insert(&mut self, deadline: Instant, node: &TimerNode) {
        self.inserted += 1;
        let entry = Entry { deadline, order: self.inserted, node: NonNull::from(node) };
        self.heap.push(entry);
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes a node out, if it has not fired.
    pub(crate) fn remove(&mut self, node: &TimerNode) {
        let place = node.place.replace(NOWHERE);
        if place != NOWHERE {
            self.take(place);
        }
    }

    /// Fires the earliest node whose deadline is not after `now`, and returns its ULT, which the
    /// caller must resume.
    pub(crate) fn fire(&mut self, now: Instant) -> Option<UltPtr> {
        let first = *self.heap.first().filter(|entry| entry.deadline <= now)?;
        self.take(0);
        first.node().place.set(NOWHERE);
        first.node().fired.set(true);
        Some(first.node().ult)
    }

    fn take(&mut self, place: usize) {
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sift_down(place);
            self.sift_up(place);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.heap[place].is_before(&self.heap[parent]) {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        self.heap[place].node().place.set(place);
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.heap[child].is_before(&self.heap[least]) {
                    least = child;
                }
            }
            if least == place {
                break;
            }
            self.swap(place, least);
            place = least;
        }
        self.heap[place].node().place.set(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.heap[a].node().place.set(a);
        self.heap[b].node().place.set(b);
    }
}

/// For system calls. Saturates, at some 292 billion years.
pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nodes need a ULT pointer, which the heap only hands back.
    fn dangling() -> UltPtr {
        // SAFETY: never dereferenced in these tests.
        unsafe { UltPtr::new(NonNull::dangling()) }
    }

    proptest! {
        /// Against a sorted list: whatever is removed early, the rest fires in order.
        #[test]
        fn fires_in_order(times in prop::collection::vec((0u64..50, any::<bool>()), 1..60)) {
            let start = Instant::now();
            let nodes: Vec<TimerNode> = times.iter().map(|_| TimerNode::new(dangling())).collect();
            let mut heap = TimerHeap::default();
            let mut expected = Vec::new();
            for (at, (delay, _)) in times.iter().enumerate() {
                // SAFETY: all nodes outlive the heap's use, and do not move.
                unsafe { heap.insert(start + Duration::from_millis(*delay), &nodes[at]) };
            }
            for (at, (delay, early)) in times.iter().enumerate() {
                if *early {
                    heap.remove(&nodes[at]);
                    heap.remove(&nodes[at]);
                } else {
                    expected.push((*delay, at));
                }
            }
            expected.sort_unstable();
            for (delay, at) in expected {
                let due = start + Duration::from_millis(delay);
                prop_assert_eq!(heap.next(), Some(due));
                prop_assert!(heap.fire(due - Duration::from_nanos(1)).is_none());
                prop_assert!(!nodes[at].has_fired());
                prop_assert!(heap.fire(due).is_some());
                prop_assert!(nodes[at].has_fired(), "equal deadlines fire in order of insertion");
            }
            prop_assert_eq!(heap.len(), 0);
        }
    }
}
