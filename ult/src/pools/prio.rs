//! See [`PoolKind::PrioWait`](crate::PoolKind::PrioWait).

use std::collections::VecDeque;

use crate::pool::{Pool, PopBy, PushReason};
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::{Mutex, lock};
use crate::unit::Unit;

/// From this many pushes on a ULT counts as fresh, so that one that yields forever starves nobody.
const PUSHES_MAX: u32 = 25;
/// Every so many pops prefer fresh units.
const FRESH_EVERY: u32 = 256;

/// Two queues.
#[derive(Default)]
pub(crate) struct PrioPool {
    units: Mutex<PrioUnits>,
    len: AtomicUsize,
}

#[derive(Default)]
struct PrioUnits {
    started: VecDeque<Unit>,
    fresh: VecDeque<Unit>,
    pops: u32,
}

impl Pool for PrioPool {
    fn push(&self, unit: Unit, why: PushReason) {
        let mut units = lock(&self.units);
        let is_fresh = why == PushReason::Create || unit.pushes() >= PUSHES_MAX;
        if is_fresh {
            units.fresh.push_back(unit);
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
            units.fresh.pop_front().or_else(|| units.started.pop_front())
        } else {
            units.started.pop_front().or_else(|| units.fresh.pop_front())
        };
        self.len.store(units.fresh.len() + units.started.len(), Release); // pair: PRIO-LEN
        unit
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: PRIO-LEN
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let units = lock(&self.units);
        units.started.iter().chain(&units.fresh).for_each(see);
    }
}
