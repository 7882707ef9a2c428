//! A pool of the program's own making.
//!
//! The methods of such a pool run in the middle of spawns, resumes and switches, so their panics
//! end here. A unit that `push` had got, or that `pop` was about to return, is left to its
//! destructor if the unwinding drops it, and to the pool if the pool has kept it.

use crate::base::contain::{Foreign, caught, log};
use crate::engine::model::interfaces::{Pool, PopBy, PushReason, Unit};
use crate::engine::xstream::current::in_no_unit;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// A `pop` that panics so often in a row is not tried again before the next push: an xstream would
/// do nothing else.
const POPS_IN_VAIN: u32 = 16;

/// The methods find themselves in no unit, so none of them suspends, whatever it does: the runtime
/// calls them in the middle of a switch, with nothing in hand that would keep the pool.
pub(crate) struct CustomPool {
    name: Box<str>,
    pool: Foreign<Box<dyn Pool>>,
    panics: AtomicU64,
    /// Set once `len` or `pop` has panicked: the pool is not asked for its length any more.
    is_broken: AtomicBool,
    /// Stands in for the length of a broken pool: it may have units, because no pop has found it
    /// empty since the last push. Changed while `is_broken` only.
    may_have: AtomicBool,
    /// Panics of `pop` in a row.
    pops_in_vain: AtomicU32,
}

impl CustomPool {
    pub(crate) fn new(name: &str, pool: Box<dyn Pool>) -> Self {
        Self {
            name: name.into(),
            pool: Foreign::new(pool, "the destructor of a pool"),
            panics: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            may_have: AtomicBool::new(true),
            pops_in_vain: AtomicU32::new(0),
        }
    }

    /// `None`: the method has panicked.
    fn call<R>(
        &self,
        method: &str,
        unit: Option<u64>,
        code: impl FnOnce(&dyn Pool) -> R,
    ) -> Option<R> {
        let message = match caught(|| in_no_unit(|| code(&**self.pool))) {
            Ok(value) => return Some(value),
            Err(message) => message,
        };
        let count = self.panics.fetch_add(1, Relaxed) + 1;
        // A pool that always panics must not fill the log.
        if count.is_power_of_two() {
            let pool = &*self.name;
            log!(
                ERROR,
                pool,
                unit,
                message,
                count,
                "`{method}` of a pool panicked. A unit that it has dropped is lost if it had not \
                 started, and goes on in the list of its xstream if it had"
            );
        }
        None
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.is_broken.load(Acquire) // pair: POOL-BROKEN
    }

    #[cold]
    fn breaks(&self) {
        // Before others look at it.
        self.may_have.store(true, Release); // pair: POOL-MAY-HAVE
        self.is_broken.store(true, Release); // pair: POOL-BROKEN
    }

    fn count<R: Default>(&self, method: &str, code: impl FnOnce(&dyn Pool) -> R) -> Option<R> {
        if self.is_broken() {
            return None;
        }
        let found = self.call(method, None, code);
        if found.is_none() {
            self.breaks();
        }
        found
    }
}

impl Pool for CustomPool {
    fn push(&self, unit: Unit, why: PushReason) {
        let id = unit.id();
        self.call("push", Some(id), |pool| pool.push(unit, why));
        if self.is_broken() {
            self.may_have.store(true, Release); // pair: POOL-MAY-HAVE
        }
    }

    fn pop(&self, who: PopBy) -> Option<Unit> {
        // Before the look: a push that this does not see comes after it.
        if self.is_broken() {
            self.may_have.store(false, Release); // pair: POOL-MAY-HAVE
        }
        let Some(unit) = self.call("pop", None, |pool| pool.pop(who)) else {
            if self.pops_in_vain.fetch_add(1, Relaxed) < POPS_IN_VAIN {
                self.breaks();
            }
            return None;
        };
        if self.is_broken() {
            self.pops_in_vain.store(0, Relaxed);
            if unit.is_some() {
                self.may_have.store(true, Release); // pair: POOL-MAY-HAVE
            }
        }
        unit
    }

    /// The length; zero if it is unknown.
    fn len(&self) -> usize {
        self.count("len", |pool| pool.len()).unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        // pair: POOL-MAY-HAVE
        self.count("is_empty", |pool| pool.is_empty())
            .unwrap_or_else(|| !self.may_have.load(Acquire))
    }

    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        self.call("for_each", None, |pool| pool.for_each(see));
    }
}
