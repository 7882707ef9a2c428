//! First in, first out, for any number of xstreams.
//!
//! A linked list through the descriptors behind a lock that is held for a few instructions. `len`
//! is read without the lock, so that looking at an empty pool costs one load of a shared line.

use crate::base::spin::SpinLock;
use crate::engine::model::unit::UltPtr;
use crate::engine::pool::spec::{Pool, PopBy, PushReason};
use crate::engine::unit::handle::Unit;
use crate::engine::unit::list::UnitList;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// See the module documentation.
// On lines of its own: each push and each pop changes it, while whoever spawns or runs a unit reads
// what the pool is, which stands around it.
#[repr(align(128))]
pub(crate) struct FifoPool {
    list: SpinLock<UnitList>,
    len: AtomicUsize,
}

impl FifoPool {
    pub(crate) fn new() -> Self {
        Self { list: SpinLock::new(UnitList::new()), len: AtomicUsize::new(0) }
    }

    pub(crate) fn push_ult(&self, ult: UltPtr) {
        let list = self.list.lock();
        list.append(ult);
        self.len.store(self.len.load(Relaxed) + 1, Release); // pair: FIFO-LEN
    }

    pub(crate) fn pop_ult(&self) -> Option<UltPtr> {
        // pair: FIFO-LEN
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let list = self.list.lock();
        let ult = list.take_first()?;
        self.len.store(self.len.load(Relaxed) - 1, Release); // pair: FIFO-LEN
        Some(ult)
    }
}

impl Pool for FifoPool {
    fn push(&self, unit: Unit, _why: PushReason) {
        self.push_ult(unit.into_ult());
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        self.pop_ult().map(Unit::from_ult)
    }

    fn push_many(&self, units: &mut dyn Iterator<Item = Unit>, _why: PushReason) {
        let list = self.list.lock();
        let mut len = self.len.load(Relaxed);
        for unit in units {
            list.append(unit.into_ult());
            len += 1;
        }
        self.len.store(len, Release); // pair: FIFO-LEN
    }

    fn pop_many(&self, max: usize, _who: PopBy, into: &mut Vec<Unit>) {
        let list = self.list.lock();
        let mut len = self.len.load(Relaxed);
        for _ in 0..max {
            let Some(ult) = list.take_first() else { break };
            len -= 1;
            into.push(Unit::from_ult(ult));
        }
        self.len.store(len, Release); // pair: FIFO-LEN
    }

    fn len(&self) -> usize {
        self.len.load(Acquire) // pair: FIFO-LEN
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        let list = self.list.lock();
        list.for_each(|ult| see(&std::mem::ManuallyDrop::new(Unit::from_ult(ult))));
    }
}
