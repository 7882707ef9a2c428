//! How many requests may be in hand: gates in front of pools and of RPCs.
//!
//! A request passes the gate of its pool, and that of its RPC if that has one, before its handler
//! is made, and is counted out when the handler has ended. What a gate does not let in is answered
//! with `HG_BUSY`, or waits in the gate: see [`Overload`].
//!
//! | gate | counts | who lets in |
//! |---|---|---|
//! | plain: no bound per peer, nobody waits | two counters, the difference is in hand | the progress ULT |
//! | careful: everything else, and gates of RPCs | under its lock | anybody |
//!
//! A plain gate costs a request no atomic read-modify-write on the way in: `begun` has one writer,
//! the progress ULT, and `ended` is what counts the handlers that have run. Where several contexts
//! have a progress ULT each, `begun` is counted up like any other counter.
//!
//! What waits in a careful gate is let in by the handler that leaves: it hands over its place, so
//! nobody who comes later is faster. Peers take turns. A request that waits at its RPC's gate has
//! its place in the pool already.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use margo_config::{Admission, Overload};
use na::lock::Lock;
use ult::PoolRef;

use crate::Addr;

/// Keeps what one side writes away from what the other one writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// The bounds of a pool or of an RPC, and who is inside. `P`: what waits.
pub(crate) struct Gate<P> {
    bounds: Admission,
    /// `begun` has several writers.
    several: bool,
    begun: OwnLine<Begun>,
    ended: OwnLine<AtomicU64>,
    refused: AtomicU64,
    careful: Option<Lock<Careful<P>>>,
}

#[derive(Debug, Default)]
struct Begun {
    count: AtomicU64,
    /// Up to this count nobody need look at `ended`.
    until: AtomicU64,
}

/// Who is inside of a careful gate, and who waits.
struct Careful<P> {
    inside: usize,
    /// Of those inside; only with a bound per peer.
    of_peers: HashMap<Addr, usize>,
    waiting: usize,
    /// Of each peer in the order of arrival; no queue is empty.
    queues: HashMap<Addr, VecDeque<P>>,
    /// The peers of `queues`: whose turn it is.
    turns: VecDeque<Addr>,
}

/// What became of who came to a gate.
#[derive(Debug)]
pub(crate) enum Entrance<P> {
    /// Inside.
    In(P),
    /// There is no room.
    Busy(P),
    /// It waits, and comes back from [`Gate::leave`] or [`Gate::give_back`].
    Waits,
}

impl<P> Gate<P> {
    /// That of a pool; `several`: more than one thread lets in.
    pub(crate) fn of_pool(bounds: Admission, several: bool) -> Self {
        let plain = bounds.peer_handlers_max == 0 && bounds.overload == Overload::Busy;
        let careful = (!plain).then(|| Lock::new(Careful::new()));
        let (begun, ended) = (OwnLine::default(), OwnLine::default());
        Self { bounds, several, begun, ended, refused: AtomicU64::new(0), careful }
    }

    /// That of an RPC.
    pub(crate) fn of_rpc(bounds: Admission) -> Self {
        Self { careful: Some(Lock::new(Careful::new())), ..Self::of_pool(bounds, true) }
    }

    /// Whether [`enter_plain`](Self::enter_plain) is the way in.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.careful.is_none()
    }

    /// Goes into a plain gate; `false`: there is no room.
    #[inline]
    pub(crate) fn enter_plain(&self) -> bool {
        let begun = &self.begun.0;
        if self.several {
            return self.enter_beside_others();
        }
        let count = begun.count.load(Ordering::Relaxed);
        if count >= begun.until.load(Ordering::Relaxed) && !self.has_room(count) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        begun.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Looks at how many have ended.
    #[cold]
    fn has_room(&self, count: u64) -> bool {
        let until = self.ended.0.load(Ordering::Relaxed) + self.bounds.handlers_max as u64;
        self.begun.0.until.store(until, Ordering::Relaxed);
        count < until
    }

    #[inline(never)]
    fn enter_beside_others(&self) -> bool {
        let max = self.bounds.handlers_max as u64;
        // `ended` first: it grows, so there is no less room than it tells.
        let until = self.ended.0.load(Ordering::Relaxed) + max;
        let one_more = |count| (count < until).then_some(count + 1);
        let begun = &self.begun.0.count;
        let entered = begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !entered {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        entered
    }

    /// Goes into any gate, or waits there; `may_wait` is asked under the gate's lock.
    pub(crate) fn enter(&self, peer: &Addr, who: P, may_wait: impl Fn() -> bool) -> Entrance<P> {
        let Some(careful) = &self.careful else {
            return if self.enter_plain() { Entrance::In(who) } else { Entrance::Busy(who) };
        };
        let mut inside = careful.lock();
        if inside.has_room(&self.bounds, peer) {
            inside.count_in(&self.bounds, peer);
            drop(inside);
            self.begun.0.count.fetch_add(1, Ordering::Relaxed);
            return Entrance::In(who);
        }
        if self.bounds.overload == Overload::Wait && may_wait() {
            inside.wait(peer, who);
            return Entrance::Waits;
        }
        drop(inside);
        self.refused.fetch_add(1, Ordering::Relaxed);
        Entrance::Busy(who)
    }

    /// Counts out who was inside; `peer` is `None` for plain gates only. Returns who has its place
    /// now, to be let go on.
    #[inline]
    pub(crate) fn leave(&self, peer: Option<&Addr>) -> Option<P> {
        self.ended.0.fetch_add(1, Ordering::Relaxed);
        let (careful, peer) = self.careful.as_ref().zip(peer)?;
        self.leave_carefully(careful, peer)
    }

    #[inline(never)]
    fn leave_carefully(&self, careful: &Lock<Careful<P>>, peer: &Addr) -> Option<P> {
        let mut inside = careful.lock();
        inside.count_out(peer);
        let next = inside.next(&self.bounds)?;
        drop(inside);
        self.begun.0.count.fetch_add(1, Ordering::Relaxed);
        Some(next)
    }

    /// Gives back all who wait.
    pub(crate) fn give_back(&self) -> Vec<P> {
        let Some(careful) = &self.careful else { return Vec::new() };
        let mut inside = careful.lock();
        inside.waiting = 0;
        inside.turns.clear();
        std::mem::take(&mut inside.queues).into_values().flatten().collect()
    }

    /// Those who went in and have left.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.0.load(Ordering::Relaxed)
    }

    /// What there is to see from outside.
    pub(crate) fn load(&self) -> Load {
        let ended = self.ended();
        let begun = self.begun.0.count.load(Ordering::Relaxed);
        Load {
            in_hand: usize::try_from(begun.saturating_sub(ended)).unwrap_or(usize::MAX),
            waiting: self.careful.as_ref().map_or(0, |careful| careful.lock().waiting),
            refused: self.refused.load(Ordering::Relaxed),
            bounds: self.bounds,
        }
    }
}

impl<P> Careful<P> {
    fn new() -> Self {
        let (of_peers, queues, turns) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Self { inside: 0, of_peers, waiting: 0, queues, turns }
    }

    fn has_room(&self, bounds: &Admission, peer: &Addr) -> bool {
        self.inside < bounds.handlers_max && self.has_share(bounds, peer)
    }

    fn has_share(&self, bounds: &Admission, peer: &Addr) -> bool {
        let of_peer = || self.of_peers.get(peer).copied().unwrap_or(0);
        bounds.peer_handlers_max == 0 || of_peer() < bounds.peer_handlers_max
    }

    fn count_in(&mut self, bounds: &Admission, peer: &Addr) {
        self.inside += 1;
        if bounds.peer_handlers_max > 0 {
            *self.of_peers.entry(peer.clone()).or_default() += 1;
        }
    }

    fn count_out(&mut self, peer: &Addr) {
        self.inside -= 1;
        if let Some(of_peer) = self.of_peers.get_mut(peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                self.of_peers.remove(peer);
            }
        }
    }

    fn wait(&mut self, peer: &Addr, who: P) {
        self.waiting += 1;
        match self.queues.get_mut(peer) {
            Some(queue) => queue.push_back(who),
            None => {
                self.queues.insert(peer.clone(), VecDeque::from([who]));
                self.turns.push_back(peer.clone());
            }
        }
    }

    /// Lets in the first of the peer whose turn it is, if there is room.
    fn next(&mut self, bounds: &Admission) -> Option<P> {
        if self.inside >= bounds.handlers_max {
            return None;
        }
        let turn = self.turns.iter().position(|peer| self.has_share(bounds, peer))?;
        let peer = self.turns.remove(turn)?;
        let queue = self.queues.get_mut(&peer)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&peer);
        } else {
            self.turns.push_back(peer.clone());
        }
        self.waiting -= 1;
        self.count_in(bounds, &peer);
        next
    }
}

/// How many requests a pool has in hand. A snapshot.
///
/// See [`Instance::load`](crate::Instance::load).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Handlers that have been made and have not ended, those that wait for an xstream included.
    pub in_hand: usize,
    /// Requests that wait because a bound is reached.
    pub waiting: usize,
    /// Requests that were refused because a bound was reached, since the start.
    pub refused: u64,
    /// The bounds.
    pub bounds: Admission,
}

/// The gates of an instance.
pub(crate) struct Gates<P> {
    several: bool,
    /// Of pools that handlers run in.
    pools: Mutex<Vec<(PoolRef, Arc<Gate<P>>)>>,
    /// Of RPCs that have one.
    rpcs: Mutex<Vec<Weak<Gate<P>>>>,
}

impl<P> Gates<P> {
    /// `several`: more than one progress ULT lets in.
    pub(crate) fn new(several: bool) -> Self {
        Self { several, pools: Mutex::default(), rpcs: Mutex::default() }
    }

    /// That of a pool; made with these bounds if there is none.
    pub(crate) fn of_pool(&self, pool: &PoolRef, bounds: Admission) -> Arc<Gate<P>> {
        let mut pools = lock(&self.pools);
        if let Some((_, gate)) = pools.iter().find(|(there, _)| there == pool) {
            return gate.clone();
        }
        let gate = Arc::new(Gate::of_pool(bounds, self.several));
        pools.push((pool.clone(), gate.clone()));
        gate
    }

    /// A new one for an RPC.
    pub(crate) fn of_rpc(&self, bounds: Admission) -> Arc<Gate<P>> {
        let gate = Arc::new(Gate::of_rpc(bounds));
        let mut rpcs = lock(&self.rpcs);
        rpcs.retain(|gate| gate.strong_count() > 0);
        rpcs.push(Arc::downgrade(&gate));
        gate
    }

    /// That of a pool, if handlers run there.
    pub(crate) fn find(&self, pool: &PoolRef) -> Option<Arc<Gate<P>>> {
        lock(&self.pools).iter().find(|(there, _)| there == pool).map(|(_, gate)| gate.clone())
    }

    /// Handlers that have ended, and requests that were refused at a bound.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let pools = lock(&self.pools);
        let (ended, busy) = pools.iter().fold((0, 0), |(ended, busy), (_, gate)| {
            (ended + gate.ended(), busy + gate.load().refused)
        });
        let rpcs = lock(&self.rpcs);
        let of_rpcs = rpcs.iter().filter_map(Weak::upgrade).map(|gate| gate.load().refused);
        (ended, busy + of_rpcs.sum::<u64>())
    }

    /// Whether there is any request inside or waiting.
    pub(crate) fn any_in_hand(&self) -> bool {
        let is_used = |gate: &Gate<P>| {
            let load = gate.load();
            load.in_hand + load.waiting > 0
        };
        lock(&self.pools).iter().any(|(_, gate)| is_used(gate))
    }

    /// All that waits at any of them.
    pub(crate) fn give_back(&self) -> Vec<P> {
        let rpcs = lock(&self.rpcs).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let pools = lock(&self.pools).iter().map(|(_, gate)| gate.clone()).collect::<Vec<_>>();
        rpcs.iter().chain(&pools).flat_map(|gate| gate.give_back()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_plain_gate_lets_in_exactly_as_many_as_it_has_room_for() {
        for several in [false, true] {
            let gate = Gate::<()>::of_pool(Admission::new(3), several);
            assert!(gate.is_plain());
            let entered: Vec<_> = (0..5).map(|_| gate.enter_plain()).collect();
            assert_eq!(entered, [true, true, true, false, false]);
            assert_eq!((gate.load().in_hand, gate.load().refused), (3, 2));
            gate.leave(None);
            gate.leave(None);
            let entered: Vec<_> = (0..3).map(|_| gate.enter_plain()).collect();
            assert_eq!(entered, [true, true, false]);
            assert_eq!((gate.load().in_hand, gate.ended()), (3, 2));
        }
    }

    #[test]
    fn no_thread_slips_through_a_gate() {
        const MAX: usize = 4;
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
                            if gate.enter_plain() {
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
                            gate.leave(None);
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
