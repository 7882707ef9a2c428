//! One gate of the admission control: its bounds, the requests inside, and those that wait.
//! `gates.rs` says what gates are for. Nothing but atomics and a lock, so that `loom-tests` can
//! include this file.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `Admitted` of a plain gate | who lets in | who lets in, and whoever looks |
//! | `Departures` | handlers that leave, through a plain gate in cells of their threads | who lets in, and whoever looks |
//! | `SharedPlaces` of a plain gate | under its lock | who leaves reads `counted` without it |
//! | `Careful` | under its lock | |
//!
//! All counts are relaxed: nothing is read by means of them.
//!
//! # Shares of a plain gate
//!
//! The first places, [`FREE`] of all, are for any peer: below that no request is counted, and a
//! request costs nothing for it. A request that is let in beyond is counted for its peer, and for
//! the host or user behind it, which have the rest of their shares there. So no peer has more than
//! its share in all, and the others have at least the places that are not free. A request that
//! leaves while any of its peer is counted takes one of these counts with it: for the sum it makes
//! no difference which request was counted.

use std::collections::{HashMap, VecDeque};

use margo_config::{Admission, Overload};
use prim::lock::{Lock, barrier};
use prim::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use prim::{CellCount, OwnLine, ThreadCells};

use crate::{Addr, Principal};

/// The part of the places of a plain gate that is for any peer, as numerator and denominator. Less
/// than the share of one peer.
const FREE: (usize, usize) = (3, 8);

fn free_of(bounds: &Admission) -> usize {
    bounds.handlers_max / FREE.1 * FREE.0
}

/// The host or user behind a peer, if that is known.
pub(crate) type Host = Option<Principal>;

/// The bounds of a pool or of an RPC, and the requests inside. `P`: a request that waits.
pub(crate) struct Gate<P> {
    bounds: Admission,
    /// `begun` has several writers. Never taken back.
    several: AtomicBool,
    begun: OwnLine<Admitted>,
    /// By the thread that leaves.
    ended: Departures,
    /// Places that went from one who has ended to one who begins, at once.
    handed_over: AtomicU64,
    /// Requests that went into a plain gate other than through the thread that lets in.
    begun_late: AtomicU64,
    refused: AtomicU64,
    /// Places for any peer, if it is plain; the rest is shared.
    free: u64,
    /// The shares of a plain gate, if it has any.
    crowd: Option<SharedPlaces>,
    careful: Option<Lock<Careful<P>>>,
}

/// Requests that have left.
#[derive(Debug, Default)]
struct Departures {
    /// The departures from a plain gate, by thread.
    cells: Option<ThreadCells<CellCount>>,
    /// The other departures.
    rest: OwnLine<AtomicU64>,
}

impl Departures {
    #[inline]
    fn count(&self) {
        let cell = self.cells.as_ref().and_then(|cells| cells.of(barrier::thread_token()));
        match cell {
            Some(cell) => cell.add(1),
            None => _ = self.rest.0.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn sum(&self) -> u64 {
        let cells = self.cells.iter().flat_map(|cells| cells.iter());
        cells.map(CellCount::get).sum::<u64>() + self.rest.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Admitted {
    count: AtomicU64,
    /// Up to this count there is no need to look at `ended`.
    until: AtomicU64,
}

/// Those inside of a plain gate beyond its free places.
#[derive(Debug)]
struct SharedPlaces {
    /// How many; whoever leaves looks at nothing else if there are none.
    counted: OwnLine<AtomicU64>,
    counts: Lock<InsideCounts>,
}

/// How many are inside, of each peer and of each host. No count is 0.
#[derive(Debug)]
pub(crate) struct InsideCounts {
    /// Most of a peer, and of a host.
    peer_max: usize,
    host_max: usize,
    of_peers: HashMap<Addr, OfPeer>,
    of_hosts: HashMap<Principal, usize>,
}

#[derive(Debug)]
struct OfPeer {
    inside: usize,
    host: Host,
}

/// Why a peer may have no more places, if it may not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Left,
    PeerHasAll,
    HostHasAll,
}

impl InsideCounts {
    fn new(peer_max: Option<usize>, host_max: Option<usize>) -> Self {
        let [peer_max, host_max] = [peer_max, host_max].map(|max| max.unwrap_or(usize::MAX));
        Self { peer_max, host_max, of_peers: HashMap::new(), of_hosts: HashMap::new() }
    }

    /// Makes the counts of those beyond the free places of a plain gate, with what the bounds leave
    /// there.
    pub(crate) fn beyond_free(bounds: &Admission) -> Self {
        let free = free_of(bounds);
        let beyond = |max: Option<usize>| max.map(|max| max.saturating_sub(free).max(1));
        Self::new(beyond(bounds.peer_max()), beyond(bounds.host_max()))
    }

    /// Returns whether no request need be counted.
    pub(crate) fn are_none(&self) -> bool {
        (self.peer_max, self.host_max) == (usize::MAX, usize::MAX)
    }

    fn inside(&self, peer: &Addr) -> usize {
        self.of_peers.get(peer).map_or(0, |of_peer| of_peer.inside)
    }

    fn inside_of(&self, host: Host) -> usize {
        host.and_then(|host| self.of_hosts.get(&host).copied()).unwrap_or(0)
    }

    /// The host behind a peer: what it was when the first of those inside came, or what `find`
    /// says.
    pub(crate) fn host_of(&self, peer: &Addr, find: impl FnOnce() -> Host) -> Host {
        if self.host_max == usize::MAX {
            return None;
        }
        self.of_peers.get(peer).map_or_else(find, |of_peer| of_peer.host)
    }

    pub(crate) fn share(&self, peer: &Addr, host: Host) -> Share {
        if self.inside(peer) >= self.peer_max {
            Share::PeerHasAll
        } else if self.inside_of(host) >= self.host_max {
            Share::HostHasAll
        } else {
            Share::Left
        }
    }

    pub(crate) fn count_in(&mut self, peer: &Addr, host: Host) {
        if !self.are_none() {
            let new = || OfPeer { inside: 0, host };
            let of_peer = self.of_peers.entry(peer.clone()).or_insert_with(new);
            of_peer.inside += 1;
            if let Some(host) = of_peer.host {
                *self.of_hosts.entry(host).or_default() += 1;
            }
        }
    }

    /// Returns the host of one that was counted.
    pub(crate) fn count_out(&mut self, peer: &Addr) -> Option<Host> {
        let of_peer = self.of_peers.get_mut(peer)?;
        of_peer.inside -= 1;
        let (is_last, host) = (of_peer.inside == 0, of_peer.host);
        if is_last {
            self.of_peers.remove(peer);
        }
        if let Some(host) = host
            && let Some(of_host) = self.of_hosts.get_mut(&host)
        {
            *of_host -= 1;
            if *of_host == 0 {
                self.of_hosts.remove(&host);
            }
        }
        Some(host)
    }
}

/// The requests inside of a careful gate, and those that wait.
struct Careful<P> {
    inside: usize,
    /// The counts of those inside; only if there are bounds of peers or hosts.
    counts: InsideCounts,
    waiting: usize,
    /// The queue of each peer in the order of arrival; none is empty.
    queues: HashMap<Addr, Queue<P>>,
    /// Hosts and users below their share with peers in `queues`, in the order of their turns.
    /// The others come back when one of theirs leaves, so that they are not looked at in vain.
    turns: VecDeque<Turn>,
    /// The peers of `queues` that are below their own share, by host or user; none is empty but
    /// those that have a turn.
    lines: HashMap<Principal, Line>,
}

/// A turn to be let in. A host or user has one, however many connections it has.
#[derive(Debug, PartialEq)]
enum Turn {
    OfHost(Principal),
    /// The turn of a peer of which nothing else is known.
    OfPeer(Addr),
}

/// The peers of a host that wait, in the order of their turns among themselves.
#[derive(Debug, Default)]
struct Line {
    peers: VecDeque<Addr>,
    has_turn: bool,
}

struct Queue<P> {
    who: VecDeque<P>,
    host: Host,
}

/// The result of coming to a gate.
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
    /// Makes the gate of a pool; `several`: more than one thread lets in.
    pub(crate) fn of_pool(bounds: Admission, several: bool) -> Self {
        // Bounds that somebody has set are kept to exactly.
        let is_set = |max: Option<usize>| max.is_some_and(|max| max > 0);
        let plain = bounds.overload == Overload::Busy
            && !is_set(bounds.peer_handlers_max)
            && !is_set(bounds.host_handlers_max);
        if plain { Self::plain(bounds, several) } else { Self::careful(bounds) }
    }

    /// Makes the gate of an RPC.
    pub(crate) fn of_rpc(bounds: Admission) -> Self {
        Self::careful(bounds)
    }

    fn plain(bounds: Admission, several: bool) -> Self {
        let counts = InsideCounts::beyond_free(&bounds);
        let crowd = (!counts.are_none())
            .then(|| SharedPlaces { counted: OwnLine::default(), counts: Lock::new(counts) });
        let free = if crowd.is_some() { free_of(&bounds) } else { bounds.handlers_max } as u64;
        let ended = Departures { cells: Some(ThreadCells::default()), ..Departures::default() };
        let several = AtomicBool::new(several);
        Self { several, free, crowd, ended, ..Self::empty(bounds) }
    }

    fn careful(bounds: Admission) -> Self {
        let counts = InsideCounts::new(bounds.peer_max(), bounds.host_max());
        let careful = Some(Lock::new(Careful::new(counts)));
        Self { careful, ..Self::empty(bounds) }
    }

    fn empty(bounds: Admission) -> Self {
        let (begun, ended) = (OwnLine::default(), Departures::default());
        let [handed_over, begun_late, refused] = [0; 3].map(AtomicU64::new);
        let (several, free, crowd, careful) = (AtomicBool::new(true), 0, None, None);
        Self {
            bounds,
            several,
            begun,
            ended,
            handed_over,
            begun_late,
            refused,
            free,
            crowd,
            careful,
        }
    }

    /// More than one thread is going to let in. The one that did must have seen this, as by a
    /// message, before another one does.
    pub(crate) fn become_several(&self) {
        self.several.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn has_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }

    /// Returns its bounds.
    pub(crate) fn bounds(&self) -> Admission {
        self.bounds
    }

    /// Returns whether [`enter_plain`](Self::enter_plain) is the way in.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.careful.is_none()
    }

    /// Goes into a plain gate; `false`: there is no room. `host` finds out who is behind the peer.
    #[inline]
    pub(crate) fn enter_plain(&self, peer: &Addr, host: impl FnOnce() -> Host) -> bool {
        let begun = &self.begun.0;
        let count = begun.count.load(Ordering::Relaxed);
        if self.has_several() || count >= begun.until.load(Ordering::Relaxed) {
            return self.enter_slowly(peer, host);
        }
        begun.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Looks at how many have ended.
    #[inline(never)]
    fn enter_slowly(&self, peer: &Addr, host: impl FnOnce() -> Host) -> bool {
        let free = self.until(self.free);
        if !self.has_several() {
            self.begun.0.until.store(free, Ordering::Relaxed);
        }
        let entered = self.begin(free) || self.enter_crowd(peer, host);
        if !entered {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        entered
    }

    /// Counts one more who has begun, if no more than `until` have.
    fn begin(&self, until: u64) -> bool {
        let begun = &self.begun.0.count;
        if self.has_several() {
            let one_more = |count| (count < until).then_some(count + 1);
            return begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        }
        let count = begun.load(Ordering::Relaxed);
        if count < until {
            begun.store(count + 1, Ordering::Relaxed);
        }
        count < until
    }

    /// Lets a request into the shared places.
    #[cold]
    fn enter_crowd(&self, peer: &Addr, host: impl FnOnce() -> Host) -> bool {
        let Some(crowd) = &self.crowd else { return false };
        let mut counts = crowd.counts.lock();
        let host = counts.host_of(peer, host);
        let entered = counts.share(peer, host) == Share::Left
            && self.begin(self.until(self.bounds.handlers_max as u64));
        if entered {
            crowd.count_in(&mut counts, peer, host);
        }
        entered
    }

    /// Up to where `begun` may count.
    fn until(&self, max: u64) -> u64 {
        // `ended` first: who is late and ends meanwhile makes no room that there was not.
        let ended = self.ended.sum();
        (ended + max).saturating_sub(self.begun_late.load(Ordering::Relaxed))
    }

    /// A request was refused elsewhere that would have come here.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the place of a request of `from` can go to one of `to`, past all others.
    pub(crate) fn may_hand_over(&self, from: &Addr, to: &Addr) -> bool {
        self.is_plain() || (self.bounds.overload == Overload::Busy && from == to)
    }

    /// Hands a place from the request that leaves to the next one, which is inside now.
    pub(crate) fn hand_over(&self, from: &Addr, to: &Addr, host: impl FnOnce() -> Host) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        if let Some(crowd) = self.crowd.as_ref().filter(|crowd| crowd.is_any()) {
            crowd.count_out(from);
            crowd.count_in_beyond(to, host);
        }
    }

    /// Lets a request into a plain gate, whether there is room or not; for threads other than the
    /// one that lets in. `false`: it is not plain, [`enter`](Self::enter) is the way in.
    pub(crate) fn enter_late(&self, peer: &Addr, host: impl FnOnce() -> Host) -> bool {
        let is_plain = self.is_plain();
        if is_plain {
            self.begun_late.fetch_add(1, Ordering::Relaxed);
            if let Some(crowd) = self.crowd.as_ref().filter(|crowd| crowd.is_any()) {
                crowd.count_in_beyond(peer, host);
            }
        }
        is_plain
    }

    /// Into any gate, whether there is room or not: it has a place in another one.
    pub(crate) fn enter_beyond(&self, peer: &Addr, host: impl FnOnce() -> Host) {
        if let Some(careful) = &self.careful {
            careful.lock().count_in_beyond(peer, host);
            self.begun.0.count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.enter_late(peer, host);
        }
    }

    /// Goes into any gate, or waits there; `may_wait` is asked under the gate's lock.
    pub(crate) fn enter(
        &self,
        peer: &Addr,
        host: impl Fn() -> Host,
        who: P,
        may_wait: impl Fn() -> bool,
    ) -> Entrance<P> {
        let Some(careful) = &self.careful else {
            let entered = self.enter_plain(peer, host);
            return if entered { Entrance::In(who) } else { Entrance::Busy(who) };
        };
        let mut inside = careful.lock();
        let counted = inside.host_of(peer, &host);
        let has_room = inside.inside < self.bounds.handlers_max;
        if has_room && inside.counts.share(peer, counted) == Share::Left {
            inside.count_in(peer, counted);
            drop(inside);
            self.begun.0.count.fetch_add(1, Ordering::Relaxed);
            return Entrance::In(who);
        }
        if self.bounds.overload == Overload::Wait && may_wait() {
            // Also where hosts have no bound they take turns.
            inside.wait(peer, counted.or_else(host), who);
            return Entrance::Waits;
        }
        drop(inside);
        self.refused.fetch_add(1, Ordering::Relaxed);
        Entrance::Busy(who)
    }

    /// Counts out who was inside. Returns who has its place now, to be let go on.
    #[inline]
    pub(crate) fn leave(&self, peer: &Addr) -> Option<P> {
        self.ended.count();
        if let Some(crowd) = self.crowd.as_ref().filter(|crowd| crowd.is_any()) {
            crowd.count_out(peer);
        }
        self.leave_carefully(self.careful.as_ref()?, peer)
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
        inside.lines.clear();
        std::mem::take(&mut inside.queues).into_values().flat_map(|queue| queue.who).collect()
    }

    /// The number of requests that went in and have left.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.sum() + self.handed_over.load(Ordering::Relaxed)
    }

    /// Returns its load, as it is seen from outside.
    pub(crate) fn load(&self) -> Load {
        let ended = self.ended.sum();
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

impl SharedPlaces {
    #[inline]
    fn is_any(&self) -> bool {
        self.counted.0.load(Ordering::Relaxed) > 0
    }

    fn count_in(&self, counts: &mut InsideCounts, peer: &Addr, host: Host) {
        counts.count_in(peer, host);
        self.counted.0.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn count_in_beyond(&self, peer: &Addr, host: impl FnOnce() -> Host) {
        let mut counts = self.counts.lock();
        let host = counts.host_of(peer, host);
        self.count_in(&mut counts, peer, host);
    }

    #[cold]
    fn count_out(&self, peer: &Addr) {
        if self.counts.lock().count_out(peer).is_some() {
            self.counted.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<P> Careful<P> {
    fn new(counts: InsideCounts) -> Self {
        let (queues, turns, lines) = (HashMap::new(), VecDeque::new(), HashMap::new());
        Self { inside: 0, counts, waiting: 0, queues, turns, lines }
    }

    fn host_of(&self, peer: &Addr, find: impl FnOnce() -> Host) -> Host {
        match self.queues.get(peer) {
            Some(queue) => queue.host,
            None => self.counts.host_of(peer, find),
        }
    }

    fn count_in(&mut self, peer: &Addr, host: Host) {
        self.inside += 1;
        self.counts.count_in(peer, host);
    }

    /// One that may have others of its peer waiting behind it.
    fn count_in_beyond(&mut self, peer: &Addr, host: impl FnOnce() -> Host) {
        let host = self.host_of(peer, host);
        self.count_in(peer, host);
        if self.counts.share(peer, host) == Share::PeerHasAll {
            self.turns.retain(|turn| !matches!(turn, Turn::OfPeer(other) if other == peer));
            self.lines.retain(|_, line| {
                line.peers.retain(|other| other != peer);
                line.has_turn || !line.peers.is_empty()
            });
        }
    }

    fn count_out(&mut self, peer: &Addr) {
        self.inside -= 1;
        let Some(host) = self.counts.count_out(peer) else { return };
        if self.counts.inside(peer) + 1 == self.counts.peer_max
            && let Some(queue) = self.queues.get(peer)
        {
            self.line_up(peer.clone(), queue.host);
        }
        if let Some(host) = host {
            self.give_turn(host);
        }
    }

    /// Puts a peer with requests that wait where it belongs.
    fn line_up(&mut self, peer: Addr, host: Host) {
        if self.counts.inside(&peer) >= self.counts.peer_max {
            return;
        }
        match host {
            Some(host) => {
                self.lines.entry(host).or_default().peers.push_back(peer);
                self.give_turn(host);
            }
            None => self.turns.push_back(Turn::OfPeer(peer)),
        }
    }

    /// Gives a host a turn if it has none, is below its share, and somebody of it waits.
    fn give_turn(&mut self, host: Principal) {
        let Some(line) = self.lines.get_mut(&host).filter(|line| !line.has_turn) else { return };
        if line.peers.is_empty() {
            self.lines.remove(&host);
        } else if self.counts.inside_of(Some(host)) < self.counts.host_max {
            line.has_turn = true;
            self.turns.push_back(Turn::OfHost(host));
        }
    }

    /// Takes the turn of a host. Returns its next peer, if one may come in.
    fn take_turn(&mut self, host: Principal) -> Option<Addr> {
        let line = self.lines.get_mut(&host)?;
        line.has_turn = false;
        // Others of it have come in meanwhile.
        let next = match self.counts.inside_of(Some(host)) < self.counts.host_max {
            true => line.peers.pop_front(),
            false => None,
        };
        if next.is_none() && line.peers.is_empty() {
            self.lines.remove(&host);
        }
        next
    }

    fn wait(&mut self, peer: &Addr, host: Host, who: P) {
        self.waiting += 1;
        if let Some(queue) = self.queues.get_mut(peer) {
            queue.who.push_back(who);
            return;
        }
        self.queues.insert(peer.clone(), Queue { who: VecDeque::from([who]), host });
        self.line_up(peer.clone(), host);
    }

    /// Lets in the first of the peer whose turn it is, if there is room.
    fn next(&mut self, bounds: &Admission) -> Option<P> {
        if self.inside >= bounds.handlers_max {
            return None;
        }
        loop {
            let (peer, host) = match self.turns.pop_front()? {
                Turn::OfPeer(peer) => (peer, None),
                Turn::OfHost(host) => match self.take_turn(host) {
                    Some(peer) => (peer, Some(host)),
                    None => continue,
                },
            };
            // Others of it may have come in meanwhile; then it is back when one has left.
            let may_come = self.counts.inside(&peer) < self.counts.peer_max;
            let next = match self.queues.get_mut(&peer).filter(|_| may_come) {
                Some(queue) => {
                    let next = queue.who.pop_front();
                    let is_last = queue.who.is_empty();
                    self.count_in(&peer, host);
                    if is_last {
                        self.queues.remove(&peer);
                    } else {
                        self.line_up(peer, host);
                    }
                    next
                }
                None => None,
            };
            host.into_iter().for_each(|host| self.give_turn(host));
            if next.is_some() {
                self.waiting -= 1;
                return next;
            }
        }
    }
}

/// The requests that a pool has in hand. A snapshot.
///
/// See [`InstanceMonitoring::load`](crate::groups::InstanceMonitoring::load).
///
/// ```
/// # const PING: margo::Rpc<(), ()> = margo::Rpc::new("ping");
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// instance.serve(PING).function(|()| ())?;
/// let load = instance.monitoring().load(&instance.layout().rpc_pool()).expect("it has handlers");
/// println!("{} of {} places are taken", load.in_hand, load.bounds.handlers_max);
/// assert_eq!((load.waiting, load.refused), (0, 0));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Handlers that have been made and have not ended, those that wait for an xstream included;
    /// and requests that handlers have left to other ULTs, until they are answered. For an RPC also
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
// The path is said, because `loom-tests` includes this file from elsewhere.
#[cfg(test)]
#[path = "gate/tests.rs"]
mod tests;
