//! See [`PoolKind::PrioWait`](crate::PoolKind::PrioWait).

use std::collections::VecDeque;

use crate::base::priority::Priority;
use crate::engine::model::interfaces::{Pool, PopBy, PushReason, Unit};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Mutex, lock};

/// A ULT with this many pushes counts as fresh, so that one that yields forever starves no other.
const PUSHES_MAX: u32 = 25;
/// Every so many pops prefer fresh units.
const FRESH_EVERY: u32 = 256;
/// Every so many pops of a fresh unit prefer one of normal priority, or one of low.
const NORMAL_EVERY: u32 = 8;
const LOW_EVERY: u32 = 64;

/// Two queues.
#[derive(Default)]
pub(crate) struct PrioPool {
    units: Mutex<PrioUnits>,
    len: AtomicUsize,
}

#[derive(Default)]
struct PrioUnits {
    started: VecDeque<Unit>,
    fresh: Fresh,
    pops: u32,
}

/// Units that wait to start, by their priority.
#[derive(Default)]
struct Fresh {
    high: VecDeque<Unit>,
    normal: VecDeque<Unit>,
    low: VecDeque<Unit>,
    pops: u32,
}

impl Fresh {
    fn push(&mut self, unit: Unit) {
        let queue = match unit.priority() {
            Priority::High => &mut self.high,
            Priority::Normal => &mut self.normal,
            Priority::Low => &mut self.low,
        };
        queue.push_back(unit);
    }

    fn pop(&mut self) -> Option<Unit> {
        let Self { high, normal, low, pops } = self;
        if high.len() + normal.len() + low.len() == 0 {
            return None;
        }
        *pops = pops.wrapping_add(1);
        let order = if pops.is_multiple_of(LOW_EVERY) {
            [low, normal, high]
        } else if pops.is_multiple_of(NORMAL_EVERY) {
            [normal, high, low]
        } else {
            [high, normal, low]
        };
        order.into_iter().find_map(VecDeque::pop_front)
    }

    fn len(&self) -> usize {
        self.high.len() + self.normal.len() + self.low.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.high.iter().chain(&self.normal).chain(&self.low)
    }
}

impl Pool for PrioPool {
    fn push(&self, unit: Unit, why: PushReason) {
        let mut units = lock(&self.units);
        let is_fresh = why == PushReason::Create || unit.pushes() >= PUSHES_MAX;
        if is_fresh {
            units.fresh.push(unit);
        } else {
            units.started.push_back(unit);
        }
        self.len.store(units.fresh.len() + units.started.len(), Release); // pair: PRIO-LEN
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        // pair: PRIO-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let mut units = lock(&self.units);
        units.pops = units.pops.wrapping_add(1);
        let unit = if units.pops.is_multiple_of(FRESH_EVERY) {
            units.fresh.pop().or_else(|| units.started.pop_front())
        } else {
            units.started.pop_front().or_else(|| units.fresh.pop())
        };
        self.len.store(units.fresh.len() + units.started.len(), Release); // pair: PRIO-LEN
        unit
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: PRIO-LEN
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let units = lock(&self.units);
        units.started.iter().chain(units.fresh.iter()).for_each(see);
    }
}
