//! What an xstream keeps for one pool whose units it runs.
//!
//! A slot is made when the xstream first serves the pool, or first runs a unit of it, and stays
//! until the xstream ends: ULTs that started here point to it. A slot whose pool the xstream no
//! longer serves still holds such ULTs; they are run between the others ("strays").

use std::cell::Cell;

use crate::descriptor::UltPtr;
use crate::list::UnitList;
use crate::pool::PoolShared;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// What everybody may read. One writer: the xstream.
#[derive(Debug, Default)]
pub(crate) struct SlotShared {
    /// Length of the unit list.
    pub(crate) len: AtomicUsize,
    pub(crate) created: AtomicU64,
    /// Times that a ULT suspended itself.
    pub(crate) parked: AtomicU64,
    pub(crate) yields: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) finished: AtomicU64,
}

/// Adds one to a counter that has one writer.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// Only the xstream's own thread touches it.
pub(crate) struct Slot {
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) shared: Arc<SlotShared>,
    /// Units that are ready here; see [`pool`](crate::pool) for which.
    pub(crate) list: UnitList,
    /// Whether a scheduler of this xstream serves the pool.
    pub(crate) served: Cell<bool>,
    /// Pops since the start; decides whether list or pool object is tried first.
    pub(crate) pops: Cell<u32>,
    /// Who runs a stacked scheduler over this slot, when it sleeps.
    pub(crate) sleeper: Cell<Option<UltPtr>>,
}

impl Slot {
    pub(crate) fn new(pool: Arc<PoolShared>) -> Self {
        let shared = pool.add_slot();
        Self {
            pool,
            shared,
            list: UnitList::new(),
            served: Cell::new(false),
            pops: Cell::new(0),
            sleeper: Cell::new(None),
        }
    }

    /// Appends to the list.
    #[inline]
    pub(crate) fn push_back(&self, ult: UltPtr) {
        self.list.push_back(ult, &self.shared.len);
        if let Some(sleeper) = self.sleeper.take() {
            crate::switch::resume(sleeper);
        }
    }

    /// Takes the first of the list.
    #[inline]
    pub(crate) fn pop_front(&self) -> Option<UltPtr> {
        self.list.pop_front(&self.shared.len)
    }

    /// Whether a pop of this xstream would find nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.pool.queue().is_empty()
    }
}
