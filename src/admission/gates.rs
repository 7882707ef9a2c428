//! Admission: the gates in front of pools and of RPCs, which bound how many requests are in hand.
//!
//! A request passes the gate of its RPC if that has one, then that of its pool, before its handler
//! is made, and is counted out when the handler has ended and the request is answered, whichever
//! comes later. A request that a gate does not let in is answered with `HG_BUSY`, or waits in the
//! gate: see `Overload`.
//!
//! | gate | counts | who lets in |
//! |---|---|---|
//! | plain: no bound per peer or host was set, nobody waits | two counters, the difference is in hand | the progress ULT |
//! | careful: everything else, and gates of RPCs | under its lock | anybody |
//!
//! Neither lets one peer, or one host or user with however many connections, have all places: a
//! plain one keeps shares from where three eighths are taken on (`gate.rs`), a careful one exactly.
//!
//! The RPCs of the runtime itself, which look at an instance or end it, have a plain gate of their
//! own: a service at its bounds is one that people want to look at, or to end.
//!
//! A plain gate costs a request no atomic read-modify-write on the way in: `begun` has one writer,
//! the progress ULT, and `ended` counts the handlers that have run. Where several shards have a
//! progress ULT each, `begun` is counted up like any other counter. An instance that gets its
//! second shard says so to its gates, and has the first progress ULT pass the top of its loop,
//! before the second one begins (`reshaping/add_shard.rs`).
//!
//! A request that waits in a careful gate is let in by the handler that leaves: it hands over its
//! place, so no later request overtakes. Peers take turns. A request that waits at its RPC's gate
//! has no place in the pool: those are for other RPCs meanwhile, also for RPCs that handlers of
//! this one call. A handler that leaves hands the place in the RPC to the next request, which then
//! goes to its pool's gate. Where no request waits in the pool, and at a plain gate in particular,
//! it gets the place there along with it, as there only progress ULTs let in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use margo_config::Admission;
use ult::PoolRef;

pub use crate::admission::gate::Load;
pub(crate) use crate::admission::gate::{Entrance, Gate, Host};

/// The gates of an instance.
pub(crate) struct Gates<P> {
    several: AtomicBool,
    /// The gates of pools that handlers run in.
    pools: Mutex<OfPools<P>>,
    /// The gates of RPCs that have one.
    rpcs: Mutex<OfRpcs<P>>,
    /// The gates of the RPCs of the runtime itself, whatever their pool, in the order of
    /// [`Internal::ALL`].
    internal: [Arc<Gate<P>>; Internal::ALL.len()],
}

/// An RPC of the runtime itself. Each has a gate of its own: all requests for metrics may be stuck
/// just when the instance is to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Internal {
    Metrics,
    Shutdown,
    Ping,
    Describe,
    Admin,
    Staged,
    Lend,
}

impl Internal {
    const ALL: [Self; 7] = [
        Self::Metrics,
        Self::Shutdown,
        Self::Ping,
        Self::Describe,
        Self::Admin,
        Self::Staged,
        Self::Lend,
    ];
}

/// Most requests in hand for each RPC of the runtime itself.
const INTERNAL_MAX: usize = 64;

struct OfRpcs<P> {
    gates: Vec<Arc<Gate<P>>>,
    /// The number of requests that gates have refused which were dropped since.
    dropped: u64,
}

impl<P> OfRpcs<P> {
    /// Drops the gates that nothing else refers to: their RPCs were deregistered, and requests that
    /// wait at a gate refer to it, too.
    fn drop_unused(&mut self) {
        let dropped = &mut self.dropped;
        self.gates.retain(|gate| {
            let is_used = Arc::strong_count(gate) > 1;
            if !is_used {
                *dropped += gate.load().refused;
            }
            is_used
        });
    }
}

impl<P> Default for OfRpcs<P> {
    fn default() -> Self {
        Self { gates: Vec::new(), dropped: 0 }
    }
}

struct OfPools<P> {
    gates: Vec<OfPool<P>>,
    /// [`Gates::sums`] of those that were dropped.
    dropped: (u64, u64),
}

struct OfPool<P> {
    pool: PoolRef,
    gate: Arc<Gate<P>>,
    /// The instance does not have the pool any more; the gate goes with the last who knows it.
    is_removed: bool,
}

impl<P> OfPools<P> {
    /// Drops the gates of removed pools which no request can come to or leave: the pool of a
    /// program may have handlers when the instance forgets it.
    fn drop_unused(&mut self) {
        let dropped = &mut self.dropped;
        self.gates.retain(|OfPool { gate, is_removed, .. }| {
            let is_used = !is_removed || Arc::strong_count(gate) > 1 || is_used(gate);
            if !is_used {
                *dropped = (dropped.0 + gate.ended(), dropped.1 + gate.load().refused);
            }
            is_used
        });
    }
}

impl<P> Default for OfPools<P> {
    fn default() -> Self {
        Self { gates: Vec::new(), dropped: (0, 0) }
    }
}

impl<P> Gates<P> {
    /// `several`: more than one progress ULT lets in.
    pub(crate) fn new(several: bool) -> Self {
        let make = |_| Arc::new(Gate::of_pool(Admission::new(INTERNAL_MAX), several));
        let internal = Internal::ALL.map(make);
        let several = AtomicBool::new(several);
        Self { several, pools: Mutex::default(), rpcs: Mutex::default(), internal }
    }

    /// There is to be more than one progress ULT. The one that is there must pass a point of its
    /// loop after this and before the others let in.
    pub(crate) fn become_several(&self) {
        // Under the lock: a gate that is made has read it, or is in the list.
        let pools = lock(&self.pools);
        self.several.store(true, Ordering::Relaxed);
        let of_pools = pools.gates.iter().map(|own| &own.gate);
        of_pools.chain(&self.internal).for_each(|gate| gate.become_several());
    }

    /// Returns the gate of an RPC of the runtime itself.
    pub(crate) fn internal(&self, rpc: Internal) -> &Arc<Gate<P>> {
        &self.internal[rpc as usize]
    }

    /// Returns the RPC of the runtime itself whose gate that is, if it is one.
    pub(crate) fn internal_of(&self, gate: &Arc<Gate<P>>) -> Option<Internal> {
        Internal::ALL.into_iter().find(|rpc| Arc::ptr_eq(self.internal(*rpc), gate))
    }

    /// Returns the gate of a pool; makes one with these bounds if there is none.
    pub(crate) fn of_pool(&self, pool: &PoolRef, bounds: Admission) -> Arc<Gate<P>> {
        let mut pools = lock(&self.pools);
        pools.drop_unused();
        if let Some(own) = pools.gates.iter_mut().find(|own| own.pool == *pool) {
            // It may have come back.
            own.is_removed = false;
            return own.gate.clone();
        }
        let gate = Arc::new(Gate::of_pool(bounds, self.several.load(Ordering::Relaxed)));
        pools.gates.push(OfPool { pool: pool.clone(), gate: gate.clone(), is_removed: false });
        gate
    }

    /// The instance does not have that pool any more.
    pub(crate) fn pool_removed(&self, pool: &PoolRef) {
        let mut pools = lock(&self.pools);
        for own in pools.gates.iter_mut().filter(|own| own.pool == *pool) {
            own.is_removed = true;
        }
        pools.drop_unused();
    }

    /// A new one for an RPC.
    pub(crate) fn of_rpc(&self, bounds: Admission) -> Arc<Gate<P>> {
        let gate = Arc::new(Gate::of_rpc(bounds));
        let mut rpcs = lock(&self.rpcs);
        rpcs.drop_unused();
        rpcs.gates.push(gate.clone());
        gate
    }

    /// Returns the gate of a pool, if handlers run there and it was not removed.
    pub(crate) fn find(&self, pool: &PoolRef) -> Option<Arc<Gate<P>>> {
        let pools = lock(&self.pools);
        let mut there = pools.gates.iter().filter(|own| !own.is_removed);
        there.find(|own| own.pool == *pool).map(|own| own.gate.clone())
    }

    /// Returns the load of each pool that handlers run in, and that was not removed.
    pub(crate) fn loads(&self) -> Vec<(PoolRef, Load)> {
        let pools = lock(&self.pools);
        let there = pools.gates.iter().filter(|own| !own.is_removed);
        there.map(|own| (own.pool.clone(), own.gate.load())).collect()
    }

    /// Handlers that have ended, and requests that were refused at a bound.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let pools = lock(&self.pools);
        let gates = pools.gates.iter().map(|own| &own.gate).chain(&self.internal);
        let (ended, busy) = gates.fold(pools.dropped, |(ended, busy), gate| {
            (ended + gate.ended(), busy + gate.load().refused)
        });
        let rpcs = lock(&self.rpcs);
        let of_rpcs = rpcs.gates.iter().fold(rpcs.dropped, |sum, gate| sum + gate.load().refused);
        (ended, busy + of_rpcs)
    }

    /// Returns whether there is any request inside or waiting.
    pub(crate) fn any_in_hand(&self) -> bool {
        let of_pools = lock(&self.pools).gates.iter().any(|own| is_used(&own.gate));
        of_pools || self.internal.iter().any(|gate| is_used(gate))
    }

    /// All that waits at any of them.
    pub(crate) fn give_back(&self) -> Vec<P> {
        let rpcs = lock(&self.rpcs).gates.clone();
        let pools = lock(&self.pools).gates.iter().map(|own| own.gate.clone()).collect::<Vec<_>>();
        rpcs.iter().chain(&pools).flat_map(|gate| gate.give_back()).collect()
    }
}

/// Returns whether there is any request inside or waiting.
fn is_used<P>(gate: &Gate<P>) -> bool {
    let load = gate.load();
    load.in_hand + load.waiting > 0
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Addr;

    fn peer() -> Addr {
        let own = crate::Instance::builder("na+tcp://").listen(false).start().unwrap();
        let peer = own.lookup("na+tcp://127.0.0.1:9").unwrap();
        own.finalize_and_wait().unwrap();
        peer
    }

    #[test]
    fn a_plain_gate_lets_in_exactly_as_many_as_it_has_room_for() {
        let peer = peer();
        for several in [false, true] {
            let gate = Gate::<()>::of_pool(Admission::new(3), several);
            assert!(gate.is_plain());
            let enter = || gate.enter_plain(&peer, || None);
            let entered: Vec<_> = (0..5).map(|_| enter()).collect();
            assert_eq!(entered, [true, true, true, false, false]);
            assert_eq!((gate.load().in_hand, gate.load().refused), (3, 2));
            gate.leave(&peer);
            gate.leave(&peer);
            let entered: Vec<_> = (0..3).map(|_| enter()).collect();
            assert_eq!(entered, [true, true, false]);
            assert_eq!((gate.load().in_hand, gate.ended()), (3, 2));
        }
    }

    #[test]
    fn requests_for_metrics_that_hang_keep_nobody_from_ending_the_instance() {
        let (peer, gates) = (peer(), Gates::<()>::new(false));
        let metrics = gates.internal(Internal::Metrics);
        (0..INTERNAL_MAX).for_each(|_| assert!(metrics.enter_plain(&peer, || None)));
        assert!(!metrics.enter_plain(&peer, || None));
        let shutdown = gates.internal(Internal::Shutdown);
        assert!(shutdown.enter_plain(&peer, || None));
        assert_eq!(gates.internal_of(metrics), Some(Internal::Metrics));
        assert_eq!(gates.internal_of(shutdown), Some(Internal::Shutdown));
        assert_eq!(gates.internal_of(&gates.of_rpc(Admission::new(1))), None);
        (0..INTERNAL_MAX).for_each(|_| _ = metrics.leave(&peer));
        assert!(gates.any_in_hand(), "that of the other one");
        shutdown.leave(&peer);
        assert!(!gates.any_in_hand());
        assert_eq!(gates.sums(), (INTERNAL_MAX as u64 + 1, 1));
    }

    #[test]
    fn what_the_gate_of_an_rpc_has_refused_stays_counted_when_it_is_gone() {
        let own = crate::init("{}").unwrap();
        let (peer, gates) = (own.self_addr(), Gates::<u32>::new(false));
        for round in 1..=3 {
            let gate = gates.of_rpc(Admission::new(1));
            assert!(matches!(gate.enter(&peer, || None, 1, || false), Entrance::In(1)));
            assert!(matches!(gate.enter(&peer, || None, 2, || false), Entrance::Busy(2)));
            assert_eq!(gates.sums().1, round);
            gate.leave(&peer);
            drop(gate);
            assert_eq!(gates.sums().1, round, "its RPC was deregistered");
        }
        drop(gates.of_rpc(Admission::new(1)));
        assert_eq!(lock(&gates.rpcs).gates.len(), 1, "no others are kept");
        own.finalize_and_wait().unwrap();
    }

    #[test]
    fn no_thread_slips_through_a_gate() {
        const MAX: usize = 4;
        let peer = peer();
        for threads in [1, 3] {
            // One that lets in, or several; whoever was let in is let out by another thread.
            let gate = Gate::<()>::of_pool(Admission::new(MAX), threads > 1);
            let inside = AtomicUsize::new(0);
            let left_to_let_out = AtomicUsize::new(0);
            let over = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let mut entered = 0;
                        while entered < 20_000 {
                            if gate.enter_plain(&peer, || None) {
                                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                                assert!(now <= MAX, "{now} are inside");
                                left_to_let_out.fetch_add(1, Ordering::SeqCst);
                                entered += 1;
                            } else {
                                std::thread::yield_now();
                            }
                        }
                        over.fetch_add(1, Ordering::SeqCst);
                    });
                }
                scope.spawn(|| {
                    while over.load(Ordering::SeqCst) < threads
                        || left_to_let_out.load(Ordering::SeqCst) > 0
                    {
                        if left_to_let_out.load(Ordering::SeqCst) > 0 {
                            left_to_let_out.fetch_sub(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            gate.leave(&peer);
                        } else {
                            std::thread::yield_now();
                        }
                    }
                });
            });
            assert_eq!(gate.load().in_hand, 0);
            assert_eq!(gate.ended(), 20_000 * threads as u64);
        }
    }
}
