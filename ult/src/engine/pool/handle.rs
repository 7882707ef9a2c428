//! The program's handle of a pool.

use std::fmt;
use std::ptr;

use crate::engine::model::interfaces::{Access, PoolKind, Unit};
use crate::engine::model::pool::{PoolShared, PoolStats, Queue};
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::xstream::current;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, lock};

/// A handle to a pool of a [`Runtime`](crate::Runtime). Cheap to clone.
///
/// It does not keep the runtime open: when the last `Runtime` is gone, spawns fail as soon as the
/// units that were there have ended.
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let pool = runtime.pool("main").expect("defined above");
/// let here = pool.clone();
/// let child = pool.spawn(move || {
///     assert!(here.is_current());
///     here.spawn(|| 6 * 7)
/// })?;
/// assert_eq!(child.join()??.join()?, 42);
/// assert_eq!(pool.stats().created, 2);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `ABT_pool`.
#[derive(Clone)]
pub struct PoolRef {
    pub(crate) core: Arc<RuntimeCore>,
    pub(crate) pool: Arc<PoolShared>,
}

impl PoolRef {
    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pool.name
    }

    /// The place among all pools that the runtime ever had; [`pool_index`](crate::pool_index) is
    /// that of the caller.
    ///
    /// Counterpart: `ABT_pool_get_id`.
    #[must_use]
    pub fn index(&self) -> usize {
        self.pool.index
    }

    /// Returns whether the calling unit belongs to this pool: it was spawned here, or has been
    /// moved here since. `false` on an OS thread. Costs a few loads.
    ///
    /// Counterpart: `ABT_self_get_last_pool`.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        current::ult().is_some_and(|ult| ptr::eq(ult.pool(), &*self.pool))
    }

    /// The kind in the configuration.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.pool.kind
    }

    /// The promise in the configuration.
    #[must_use]
    pub fn access(&self) -> Access {
        self.pool.access
    }

    /// Returns whether it has been removed from its runtime ([`Runtime::remove_pool`]), so that
    /// spawns fail.
    ///
    /// [`Runtime::remove_pool`]: crate::Runtime::remove_pool
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.pool.removed.load(Relaxed)
    }

    /// Stack size in bytes of ULTs whose spawn says no other.
    #[must_use]
    pub fn stack_bytes(&self) -> usize {
        self.pool.class.bytes()
    }

    /// Names of the xstreams that serve the pool.
    #[must_use]
    pub fn xstreams(&self) -> Vec<String> {
        lock(&self.pool.servers).iter().map(|xstream| xstream.name.to_string()).collect()
    }

    /// Number of runnable units. A snapshot: stale as soon as it is read. Resumed units that their
    /// xstream has not yet seen are not counted.
    ///
    /// Counterpart: `ABT_pool_get_size`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Returns whether no unit is runnable. A snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of units that belong to the pool and have not ended: runnable, running and
    /// suspended. A snapshot.
    ///
    /// Counterpart: `ABT_pool_get_total_size`.
    #[must_use]
    pub fn total_len(&self) -> usize {
        let ended = self.pool.ended();
        usize::try_from(self.pool.created().saturating_sub(ended)).unwrap_or(usize::MAX)
    }

    /// Counters since the start of the runtime. Each is exact, but they are not read at one
    /// moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Returns whether a unit that is spawned here now had better be one that may be stolen
    /// ([`UltBuilder::spawn_stealable`](crate::UltBuilder::spawn_stealable)): `from` units or more
    /// wait before it, or some that may be stolen, which it is not to overtake. A snapshot. Costs a
    /// few loads where only the calling xstream serves the pool, and a lock elsewhere.
    #[must_use]
    pub fn has_backlog(&self, from: usize) -> bool {
        let here = current::xstream_in(&self.core);
        match here.and_then(|here| here.own_slot(&self.pool)) {
            Some(slot) => !self.pool.queue().is_empty() || slot.waiting(false) >= from,
            None => self.has_stealable() || self.len() >= from,
        }
    }

    /// Takes the unit of the pool that has waited longest, if that has not started and was spawned
    /// to be stolen ([`UltBuilder::spawn_stealable`](crate::UltBuilder::spawn_stealable)). For
    /// xstreams of other pools, which then [`push`](Self::push) it to a pool of their own. `None`
    /// from pools that are no FIFOs. Costs a load if there is none.
    ///
    /// Counterpart: `ABT_pool_pop_thread` of a scheduler that steals.
    #[must_use]
    pub fn steal(&self) -> Option<Unit> {
        match self.pool.queue() {
            Queue::Fifo(queue) => queue.steal_ult().map(Unit::from_ult),
            Queue::Deque(_) | Queue::Object(_) => None,
        }
    }

    /// Returns whether [`steal`](Self::steal) would find a unit. A snapshot.
    #[must_use]
    pub fn has_stealable(&self) -> bool {
        matches!(self.pool.queue(), Queue::Fifo(queue) if queue.has_stealable())
    }

    /// Returns whether units that are spawned here now start on the calling xstream, and on no
    /// other one. A snapshot.
    #[inline]
    #[must_use]
    pub fn is_only_here(&self) -> bool {
        current::xstream_in(&self.core).is_some_and(|xstream| xstream.serves_alone(&self.pool))
    }
}

impl PartialEq for PoolRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }
}

impl Eq for PoolRef {}

impl fmt::Debug for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRef").field("name", &self.name()).field("len", &self.len()).finish()
    }
}
