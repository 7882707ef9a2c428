//! One gate of the admission control: its bounds, who is inside, who waits. `admission.rs` says
//! what gates are for. Nothing but atomics and a lock, so that `loom-tests` can include this file.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `Begun` of a plain gate | who lets in | who lets in, and whoever looks |
//! | `ended` | handlers that leave | who lets in, and whoever looks |
//! | `Careful` | under its lock | |
//!
//! All counts are relaxed: nothing is read by means of them.

use std::collections::{HashMap, VecDeque};

use margo_config::{Admission, Overload};

use crate::Addr;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, Ordering};

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
    /// Places that went from one who has ended to one who begins, at once.
    handed_over: AtomicU64,
    /// Those who went into a plain gate beside who lets in.
    begun_late: AtomicU64,
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
    /// The peers of `queues` that are below their share: whose turn it is. The others come back
    /// when one of theirs leaves, so that nobody looks at them in vain.
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
        let [handed_over, begun_late, refused] = [0; 3].map(AtomicU64::new);
        Self { bounds, several, begun, ended, handed_over, begun_late, refused, careful }
    }

    /// That of an RPC.
    pub(crate) fn of_rpc(bounds: Admission) -> Self {
        Self { careful: Some(Lock::new(Careful::new())), ..Self::of_pool(bounds, true) }
    }

    /// What it allows.
    pub(crate) fn bounds(&self) -> Admission {
        self.bounds
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
        let until = self.until(self.bounds.handlers_max as u64);
        self.begun.0.until.store(until, Ordering::Relaxed);
        count < until
    }

    #[inline(never)]
    fn enter_beside_others(&self) -> bool {
        let max = self.bounds.handlers_max as u64;
        // `ended` first: it grows, so there is no less room than it tells.
        let until = self.until(max);
        let one_more = |count| (count < until).then_some(count + 1);
        let begun = &self.begun.0.count;
        let entered = begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !entered {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        entered
    }

    /// Up to where `begun` may count.
    fn until(&self, max: u64) -> u64 {
        // `ended` first: who is late and ends meanwhile makes no room that there was not.
        let ended = self.ended.0.load(Ordering::Relaxed);
        (ended + max).saturating_sub(self.begun_late.load(Ordering::Relaxed))
    }

    /// Whether the place of a request of `from` can go to one of `to`, past all others.
    pub(crate) fn may_hand_over(&self, from: &Addr, to: &Addr) -> bool {
        self.is_plain() || (self.bounds.overload == Overload::Busy && from == to)
    }

    /// A place goes from who leaves to who comes next, who is inside now.
    pub(crate) fn hand_over(&self) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// Into a plain gate, whether there is room or not; for others than who lets in. `false`: it is
    /// not plain, [`enter`](Self::enter) is the way in.
    pub(crate) fn enter_late(&self) -> bool {
        let is_plain = self.is_plain();
        if is_plain {
            self.begun_late.fetch_add(1, Ordering::Relaxed);
        }
        is_plain
    }

    /// Into any gate, whether there is room or not: it has a place in another one.
    pub(crate) fn enter_beyond(&self, peer: &Addr) {
        if let Some(careful) = &self.careful {
            careful.lock().count_in_beyond(&self.bounds, peer);
            self.begun.0.count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.enter_late();
        }
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
            inside.wait(&self.bounds, peer, who);
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
        inside.count_out(&self.bounds, peer);
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
        self.ended.0.load(Ordering::Relaxed) + self.handed_over.load(Ordering::Relaxed)
    }

    /// What there is to see from outside.
    pub(crate) fn load(&self) -> Load {
        let ended = self.ended.0.load(Ordering::Relaxed);
        let late = self.begun_late.load(Ordering::Relaxed);
        let begun = self.begun.0.count.load(Ordering::Relaxed) + late;
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

    /// One that may have others of its peer waiting behind it.
    fn count_in_beyond(&mut self, bounds: &Admission, peer: &Addr) {
        self.count_in(bounds, peer);
        if !self.has_share(bounds, peer) {
            self.turns.retain(|other| other != peer);
        }
    }

    fn count_out(&mut self, bounds: &Admission, peer: &Addr) {
        self.inside -= 1;
        let Some(of_peer) = self.of_peers.get_mut(peer) else { return };
        *of_peer -= 1;
        let is_below_again = *of_peer + 1 == bounds.peer_handlers_max;
        if *of_peer == 0 {
            self.of_peers.remove(peer);
        }
        if is_below_again && self.queues.contains_key(peer) {
            self.turns.push_back(peer.clone());
        }
    }

    fn wait(&mut self, bounds: &Admission, peer: &Addr, who: P) {
        self.waiting += 1;
        if let Some(queue) = self.queues.get_mut(peer) {
            queue.push_back(who);
            return;
        }
        self.queues.insert(peer.clone(), VecDeque::from([who]));
        if self.has_share(bounds, peer) {
            self.turns.push_back(peer.clone());
        }
    }

    /// Lets in the first of the peer whose turn it is, if there is room.
    fn next(&mut self, bounds: &Admission) -> Option<P> {
        if self.inside >= bounds.handlers_max {
            return None;
        }
        let peer = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&peer)?;
        let next = queue.pop_front();
        let is_last = queue.is_empty();
        if is_last {
            self.queues.remove(&peer);
        }
        self.waiting -= 1;
        self.count_in(bounds, &peer);
        if !is_last && self.has_share(bounds, &peer) {
            self.turns.push_back(peer);
        }
        next
    }
}

/// How many requests a pool has in hand. A snapshot.
///
/// See [`Instance::load`](crate::Instance::load).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Handlers that have been made and have not ended, those that wait for an xstream included;
    /// and requests that handlers have left to other ULTs, until they are answered. Of an RPC also
    /// those that have passed its bounds and wait for a place in the pool.
    pub in_hand: usize,
    /// Requests that wait because a bound is reached.
    pub waiting: usize,
    /// Requests that were refused because a bound was reached, since the start.
    pub refused: u64,
    /// The bounds.
    pub bounds: Admission,
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: u16) -> Vec<Addr> {
        let own = crate::Instance::builder("na+tcp://").listen(false).start().unwrap();
        let peer = |n: u16| own.lookup(&format!("na+tcp://127.0.0.1:{}", 10_000 + n)).unwrap();
        let peers = (0..count).map(peer).collect();
        own.finalize_and_wait().unwrap();
        peers
    }

    fn turns(gate: &Gate<usize>) -> Vec<Addr> {
        gate.careful.as_ref().unwrap().lock().turns.iter().cloned().collect()
    }

    /// `true`: it is inside; `false`: it waits.
    fn enter(gate: &Gate<usize>, peer: &Addr, who: usize) -> bool {
        match gate.enter(peer, who, || true) {
            Entrance::In(_) => true,
            Entrance::Waits => false,
            Entrance::Busy(_) => panic!("it may wait"),
        }
    }

    #[test]
    fn who_leaves_looks_at_no_peer_that_has_its_share() {
        const PEERS: u16 = 10_000;
        let peers = peers(PEERS);
        let bounds = Admission::new(usize::MAX).per_peer(1).overload(Overload::Wait);
        let gate = Gate::of_rpc(bounds);
        for (n, peer) in peers.iter().enumerate() {
            assert!(enter(&gate, peer, n));
            assert!(!enter(&gate, peer, n), "it has its share");
        }
        assert_eq!(turns(&gate), [], "all of them have");
        for n in [5_000, 0, 9_999] {
            assert_eq!(gate.leave(Some(&peers[n])), Some(n), "the next one of the same peer");
            assert_eq!(turns(&gate), []);
            assert_eq!(gate.leave(Some(&peers[n])), None, "it has no more");
        }
        let load = gate.load();
        let left = usize::from(PEERS) - 3;
        assert_eq!((load.in_hand, load.waiting), (left, left));
    }

    #[test]
    fn peers_that_get_a_share_back_take_turns_with_those_that_have_one() {
        let [one, two, three] = &peers(3)[..] else { unreachable!() };
        let bounds = Admission::new(2).per_peer(1).overload(Overload::Wait);
        let gate = Gate::of_rpc(bounds);
        assert!(enter(&gate, one, 10) && enter(&gate, two, 20));
        for (peer, who) in [(one, 11), (one, 12), (two, 21), (three, 30), (three, 31)] {
            assert!(!enter(&gate, peer, who));
        }
        assert_eq!(turns(&gate), std::slice::from_ref(three));
        // Who leaves, and who comes in its place.
        for (leaves, next) in [
            (one, Some(30)),
            (two, Some(11)),
            (three, Some(21)),
            (one, Some(31)),
            (three, Some(12)),
        ] {
            assert_eq!(gate.leave(Some(leaves)), next);
        }
        assert_eq!((gate.leave(Some(one)), gate.leave(Some(two))), (None, None));
        assert_eq!((gate.load().in_hand, gate.load().waiting, turns(&gate)), (0, 0, vec![]));
    }

    #[test]
    fn a_place_beyond_the_bounds_counts_for_the_share_of_its_peer() {
        let [one, two] = &peers(2)[..] else { unreachable!() };
        let gate = Gate::of_rpc(Admission::new(1).per_peer(1).overload(Overload::Wait));
        assert!(enter(&gate, two, 20) && !enter(&gate, one, 10));
        assert_eq!(turns(&gate), std::slice::from_ref(one));
        gate.enter_beyond(one);
        assert_eq!(turns(&gate), [], "it has its share");
        assert_eq!(gate.leave(Some(two)), None);
        assert_eq!(gate.leave(Some(one)), Some(10));
        assert_eq!(gate.leave(Some(one)), None);
    }
}
