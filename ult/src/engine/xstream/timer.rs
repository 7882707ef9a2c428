//! Deadlines of the ULTs of one xstream, and of units that shall start there at a given time.
//!
//! A suspended ULT never changes its xstream, so the heap needs no lock: the ULT inserts its node
//! before it suspends and removes it when it runs again, and in between the xstream may fire it.
//! Nodes live on the ULT's stack and know their place in the heap, so that a wait which ends early
//! leaves nothing behind. The heap shares those of timed units ([`Timed`]) with their handles.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::engine::model::unit::{HeapPlace, Timed, UltPtr};
use crate::sync::Arc;

/// One deadline of a ULT, on its stack.
#[derive(Debug)]
pub(crate) struct TimerNode {
    ult: UltPtr,
    place: HeapPlace,
    fired: Cell<bool>,
}

impl TimerNode {
    pub(crate) fn new(ult: UltPtr) -> Self {
        Self { ult, place: HeapPlace::nowhere(), fired: Cell::new(false) }
    }

    /// Returns whether the deadline has passed and the xstream has noticed.
    pub(crate) fn has_fired(&self) -> bool {
        self.fired.get()
    }
}

/// The action that is due when a deadline has passed.
#[derive(Debug)]
pub(crate) enum Due {
    /// To be resumed.
    Ult(UltPtr),
    /// To be started.
    Timed(Arc<Timed>),
}

/// A binary heap of deadlines, earliest first, equal ones in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct TimerHeap {
    heap: Vec<HeapEntry>,
    inserted: u64,
}

#[derive(Debug)]
struct HeapEntry {
    deadline: Instant,
    order: u64,
    node: Node,
}

#[derive(Debug)]
enum Node {
    Stack(NonNull<TimerNode>),
    Timed(Arc<Timed>),
}

impl HeapEntry {
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        let order = self.deadline.cmp(&other.deadline).then(self.order.cmp(&other.order));
        order == Ordering::Less
    }

    #[inline]
    fn settle(&self, place: usize) {
        self.place().set(place);
    }

    #[inline]
    fn place(&self) -> &HeapPlace {
        match &self.node {
            Node::Stack(node) => &on_stack(node).place,
            Node::Timed(timed) => &timed.place,
        }
    }
}

/// A node in the heap.
#[inline]
fn on_stack(node: &NonNull<TimerNode>) -> &TimerNode {
    // SAFETY:
    // - valid: a node is removed from the heap before its ULT's frame ends (`insert`).
    // - shared access only, on the one thread of the xstream.
    unsafe { node.as_ref() }
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
        self.push(deadline, Node::Stack(NonNull::from(node)));
    }

    /// Adds the timer of a unit.
    pub(crate) fn insert_timed(&mut self, timed: Arc<Timed>) {
        self.push(timed.deadline, Node::Timed(timed));
    }

    fn push(&mut self, deadline: Instant, node: Node) {
        self.inserted += 1;
        let entry = HeapEntry { deadline, order: self.inserted, node };
        self.heap.push(entry);
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes a node out, if it has not fired.
    pub(crate) fn remove(&mut self, node: &TimerNode) {
        if let Some(place) = node.place.take() {
            self.take(place);
        }
    }

    /// Takes the timer of a unit out, if it is in this heap.
    pub(crate) fn remove_timed(&mut self, timed: &Timed) {
        if let Some(place) = timed.place.take() {
            self.take(place);
        }
    }

    /// Takes the timer of any unit out.
    pub(crate) fn take_timed(&mut self) -> Option<Arc<Timed>> {
        let place = self.heap.iter().position(|entry| matches!(entry.node, Node::Timed(_)))?;
        match self.take(place).node {
            Node::Timed(timed) => {
                timed.place.take();
                Some(timed)
            }
            Node::Stack(_) => None,
        }
    }

    /// Drops the timers of units that have been cancelled. Returns how many.
    pub(crate) fn sweep(&mut self) -> usize {
        let before = self.heap.len();
        self.heap.retain(|entry| !matches!(&entry.node, Node::Timed(timed) if timed.is_stale()));
        for place in (0..self.heap.len() / 2).rev() {
            self.sift_down(place);
        }
        for (place, entry) in self.heap.iter().enumerate() {
            entry.settle(place);
        }
        before - self.heap.len()
    }

    /// Takes out the earliest node whose deadline is not after `now`.
    pub(crate) fn fire(&mut self, now: Instant) -> Option<Due> {
        self.heap.first().filter(|entry| entry.deadline <= now)?;
        let first = self.take(0);
        first.place().take();
        Some(match first.node {
            Node::Stack(node) => {
                let node = on_stack(&node);
                node.fired.set(true);
                Due::Ult(node.ult)
            }
            Node::Timed(timed) => Due::Timed(timed),
        })
    }

    fn take(&mut self, place: usize) -> HeapEntry {
        let taken = self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sift_down(place);
            self.sift_up(place);
        }
        taken
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
        self.heap[place].settle(place);
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
        self.heap[place].settle(place);
    }

    /// Settles the one that goes to `a`; the other one is still on its way.
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.heap[a].settle(a);
    }
}

/// A time that never comes in practice if it is beyond the range of the clock.
pub(crate) fn saturating_add(at: Instant, time: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    at.checked_add(time).or_else(|| at.checked_add(NEVER)).unwrap_or(at)
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
