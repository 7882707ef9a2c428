//! See [`PoolKind::EarliestFirst`](crate::PoolKind::EarliestFirst).

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::engine::model::interfaces::{Pool, PopBy, PushReason, Unit};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Mutex, lock};

/// A ULT with this many pushes leaves the heap for the FIFO, so that an early one that yields
/// forever starves no other. The number is C Margo's.
const PUSHES_MAX: u32 = 32;

/// A heap by age, and a FIFO for those that come back often; pops take from both in turn.
#[derive(Default)]
pub(crate) struct EarliestPool {
    units: Mutex<EarliestUnits>,
    len: AtomicUsize,
}

#[derive(Default)]
struct EarliestUnits {
    heap: BinaryHeap<Reverse<ByAge>>,
    fifo: VecDeque<Unit>,
    fifo_first: bool,
}

/// Orders units by their number, which follows the time of their creation.
struct ByAge(Unit);

impl PartialEq for ByAge {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Eq for ByAge {}

impl PartialOrd for ByAge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByAge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.id().cmp(&other.0.id())
    }
}

impl EarliestUnits {
    fn len(&self) -> usize {
        self.heap.len() + self.fifo.len()
    }

    fn pop_heap(&mut self) -> Option<Unit> {
        self.heap.pop().map(|Reverse(ByAge(unit))| unit)
    }
}

impl Pool for EarliestPool {
    fn push(&self, unit: Unit, _why: PushReason) {
        let mut units = lock(&self.units);
        if unit.pushes() >= PUSHES_MAX {
            units.fifo.push_back(unit);
        } else {
            units.heap.push(Reverse(ByAge(unit)));
        }
        self.len.store(units.len(), Release); // pair: EARLIEST-LEN
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        // pair: EARLIEST-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let mut units = lock(&self.units);
        let fifo_first = units.fifo_first;
        units.fifo_first = !fifo_first;
        let unit = if fifo_first {
            units.fifo.pop_front().or_else(|| units.pop_heap())
        } else {
            units.pop_heap().or_else(|| units.fifo.pop_front())
        };
        self.len.store(units.len(), Release); // pair: EARLIEST-LEN
        unit
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: EARLIEST-LEN
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let units = lock(&self.units);
        units.heap.iter().for_each(|Reverse(ByAge(unit))| see(unit));
        units.fifo.iter().for_each(see);
    }
}
