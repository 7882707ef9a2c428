//! The shards of an instance: an RPC core on an endpoint of its own, and the progress ULT that
//! drives it.
//!
//! The endpoints are a group behind one address (`na::open_group`): a request arrives at the shard
//! that has its connection, which makes its handler and answers it. A call that stays on its shard
//! writes nothing that another shard writes.
//!
//! An address belongs to one endpoint. So each shard keeps the addresses of peers as its own
//! endpoint knows them, under the addresses that callers have. The address of a peer that does not
//! listen is good only where its connection is: an operation with it is started at that shard.
//!
//! Handlers keep the instance alive. As a count that all shards change would be taken from core to
//! core with each request, a shard of several has a *lease*: one count of the instance for the many
//! handlers that begin while it lasts, which count the lease. Progress ends it at each sleep, and
//! every some hundred polls, so that an instance whose last user is gone ends.
//!
//! An instance may get shards while it runs (`reshaping/add_shard.rs`). Those of the start are in
//! one place, by their number; each of the others has a place that is filled once. One that is
//! removed keeps its place: it goes on for the connections that it has, beside the progress of
//! another one, and for calls that had begun there (`reshaping/remove_shard.rs`).
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `Shard::progress` | the progress ULT sets it, once, before anybody may need it | nothing |
//! | `Shard::is_removed` | who removes the shard; read by callers | only a hint to them |
//! | `Shards::added`, `count` | who adds a shard; read by all | `may_grow` |
//! | `Shard::peers` | who calls from there with an address of another shard | its lock |
//! | `Shard::lease` | the progress ULT, and callers that poll in its stead | its lock |
//! | `Shards::near` | progress ULTs that come and go; read by callers | only a hint |

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use hg::{Core, OpRef};
use margo_config::SHARDS_MAX;
use prim::lock::BiasedLock;
use prim::sync::lock;
use ult::Runtime;

use crate::admission::request_shares::RequestShares;
use crate::operation::token::Token;
use crate::progress::control::Progress;
use crate::support::thread_number::thread_number;
use crate::{Addr, ProviderHandle};

/// Peers whose addresses a shard keeps; then it looks them up anew.
const PEERS_MAX: usize = 4096;

/// Execution streams of which is known which shard's progress they run.
const XSTREAMS_MAX: usize = 1024;

/// No shard's progress.
const NOT_NEAR: u8 = u8::MAX;

/// One shard. `I` is what handlers hold of the instance.
// Apart: what one shard writes is not in the cache lines of another.
#[repr(align(128))]
pub(crate) struct Shard<I> {
    pub(crate) core: Arc<Core<Token>>,
    pub(crate) progress: OnceLock<Progress>,
    /// It was removed: callers next to it start their operations elsewhere. It still serves the
    /// connections that it has.
    is_removed: AtomicBool,
    /// The shares of peers in the requests that wait here.
    pub(crate) request_shares: RequestShares,
    peers: Mutex<HashMap<Addr, PeerHere>>,
    /// Each request takes it, on one thread as a rule.
    lease: BiasedLock<Option<I>>,
}

/// The addresses of a peer at one shard; `None` in them: it cannot be looked up.
#[derive(Default)]
struct PeerHere {
    any: Option<Option<Addr>>,
    /// Through its own shards, by number.
    through: Vec<(u8, Option<Addr>)>,
}

/// The shards of an instance. There is at least one.
pub(crate) struct Shards<I> {
    /// The shards of the start.
    first: Box<[Shard<I>]>,
    /// The shards that were added, in order, and the places of later ones.
    added: Box<[OnceLock<Box<Shard<I>>>]>,
    /// How many there are.
    count: AtomicUsize,
    /// `false`: the progress ULTs were told to end, and no other one is to begin.
    may_grow: Mutex<bool>,
    /// By execution stream.
    near: Box<[AtomicU8]>,
}

impl<I: Clone> Shard<I> {
    /// A shard without progress.
    pub(crate) fn new(core: Arc<Core<Token>>, request_shares: RequestShares) -> Self {
        Self {
            core,
            progress: OnceLock::new(),
            is_removed: AtomicBool::new(false),
            request_shares,
            peers: Mutex::default(),
            lease: BiasedLock::new(None),
        }
    }

    /// Wakes the progress ULT if it sleeps; for after giving the RPC layer something to do.
    #[inline]
    pub(crate) fn kick(&self) {
        if let Some(progress) = self.progress.get() {
            progress.kick();
        }
    }

    /// As [`kick`](Self::kick), if what was just done in the RPC layer is for the progress ULT;
    /// what the network is to do wakes it by itself.
    #[inline]
    pub(crate) fn kick_if_queued(&self) {
        if self.core.has_queued() {
            self.kick();
        }
    }

    /// Has callers start their operations elsewhere, for good.
    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }

    /// A count of the instance for a handler; `make` makes a lease, unless the instance ends.
    pub(crate) fn lease(&self, make: impl FnOnce() -> Option<I>) -> Option<I> {
        let mut lease = self.lease.lock();
        if lease.is_none() {
            *lease = make();
        }
        lease.clone()
    }

    /// Returns the address of `to` at this shard, through shard `through` there if that is given.
    /// `None`: that peer cannot be looked up.
    fn peer_here(&self, to: &Addr, through: Option<u8>) -> Option<Addr> {
        if let Some(known) = lock(&self.peers).get(to).and_then(|peer| peer.known(through)) {
            return known;
        }
        let endpoint = self.core.endpoint();
        // Not under the lock: a host name may have to be resolved.
        let found = match through {
            Some(shard) => endpoint.lookup_shard(to.uri(), shard.into()),
            None => endpoint.lookup(to.uri()),
        };
        let found = match found {
            // The text of an address that cannot be looked up may happen to name somebody else.
            Ok(found) => Some(found).filter(|found| found == to),
            Err(na::Error::BadUri { .. }) => None,
            // The next one may find it, as a name that is resolved again.
            Err(_) => return None,
        };
        let mut peers = lock(&self.peers);
        if peers.len() >= PEERS_MAX && !peers.contains_key(to) {
            peers.clear();
        }
        peers.entry(to.clone()).or_default().learn(through, found.clone());
        found
    }
}

impl PeerHere {
    fn known(&self, through: Option<u8>) -> Option<Option<Addr>> {
        match through {
            None => self.any.clone(),
            Some(shard) => {
                let known = self.through.iter().find(|(number, _)| *number == shard);
                known.map(|(_, addr)| addr.clone())
            }
        }
    }

    fn learn(&mut self, through: Option<u8>, found: Option<Addr>) {
        match through {
            None => self.any = Some(found),
            Some(_) if self.known(through).is_some() => {}
            Some(shard) => self.through.push((shard, found)),
        }
    }
}

impl<I: Clone> Shards<I> {
    pub(crate) fn new(first: Box<[Shard<I>]>) -> Self {
        let places = SHARDS_MAX.saturating_sub(first.len());
        Self {
            count: AtomicUsize::new(first.len()),
            first,
            added: (0..places).map(|_| OnceLock::new()).collect(),
            may_grow: Mutex::new(true),
            near: (0..XSTREAMS_MAX).map(|_| AtomicU8::new(NOT_NEAR)).collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        // pair: SHARDS-COUNT (so many places are filled)
        self.count.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    /// Publishes one more shard, whose progress ULT is the caller, after `begins` was called.
    /// `None`: the instance ends, or there is no place.
    pub(crate) fn add(&self, shard: Shard<I>, begins: impl FnOnce()) -> Option<&Shard<I>> {
        let may_grow = lock(&self.may_grow);
        let count = self.count.load(Ordering::Relaxed);
        let place = self.added.get(count - self.first.len()).filter(|_| *may_grow)?;
        begins();
        let added = place.get_or_init(|| Box::new(shard));
        // pair: SHARDS-COUNT
        self.count.store(count + 1, Ordering::Release);
        Some(added)
    }

    /// From now on no shard is added: all that there will be are here.
    pub(crate) fn are_complete(&self) {
        *lock(&self.may_grow) = false;
    }

    /// The shard of that number, which is one of a request here.
    ///
    /// # Panics
    ///
    /// When there is no such shard.
    #[inline]
    pub(crate) fn get(&self, shard: u8) -> &Shard<I> {
        self.find(shard).unwrap_or_else(|| panic!("there is no shard {shard}"))
    }

    /// The shard of that number, if there is one.
    #[inline]
    pub(crate) fn find(&self, shard: u8) -> Option<&Shard<I>> {
        let at = usize::from(shard);
        match self.first.get(at) {
            Some(shard) => Some(shard),
            None => Some(&**self.added.get(at - self.first.len())?.get()?),
        }
    }

    /// The shard that has started an operation; `None`: it was over from the start.
    pub(crate) fn of_op(&self, op: OpRef) -> Option<&Shard<I>> {
        self.find(op.shard())
    }

    /// Shard 0, which stands for what concerns all of them.
    #[inline]
    pub(crate) fn first(&self) -> &Shard<I> {
        &self.first[0]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard<I>> {
        let added = self.added.iter().map_while(OnceLock::get).map(Box::as_ref);
        self.first.iter().chain(added)
    }

    /// Ends the lease of a shard: its next handler asks the instance.
    #[inline]
    pub(crate) fn end_lease(&self, shard: u8) {
        if self.are_several() {
            // Dropped without the lock: it may be the last, which ends the instance.
            let ended = self.get(shard).lease.lock().take();
            drop(ended);
        }
    }

    /// The progress of a shard runs on an execution stream, and no longer on another one.
    pub(crate) fn progress_is_on(&self, shard: u8, xstream: usize, before: Option<usize>) {
        if let Some(left) = before.and_then(|before| self.near.get(before)) {
            let _ = left.compare_exchange(shard, NOT_NEAR, Ordering::Relaxed, Ordering::Relaxed);
        }
        let is_removed = self.find(shard).is_some_and(Shard::is_removed);
        if let Some(near) = self.near.get(xstream).filter(|_| !is_removed) {
            near.store(shard, Ordering::Relaxed);
        }
    }

    /// The shard for operations that the caller starts: the one whose progress ULT shares its
    /// execution stream, so that both talk without a wake-up; else one that goes with the execution
    /// stream's index; for an OS thread one that stays the same, other threads have others.
    #[inline]
    pub(crate) fn here(&self, runtime: &Runtime) -> &Shard<I> {
        if self.are_several() { self.near(runtime) } else { self.first() }
    }

    fn near(&self, runtime: &Runtime) -> &Shard<I> {
        let of_number = |number: usize| {
            let found = self.get((number % self.count()) as u8);
            if found.is_removed() { self.first() } else { found }
        };
        let Some(xstream) = runtime.index_here() else {
            return of_number(thread_number() as usize);
        };
        match self.near.get(xstream).map(|near| near.load(Ordering::Relaxed)) {
            Some(shard) if shard != NOT_NEAR => self.get(shard),
            _ => of_number(xstream),
        }
    }

    /// Returns the shard whose endpoint made an address, or shard 0.
    pub(crate) fn of_addr(&self, addr: &Addr) -> &Shard<I> {
        let made_it = |shard: &&Shard<I>| shard.core.endpoint().has_made(addr);
        self.iter().find(made_it).unwrap_or(self.first())
    }

    /// Returns the shard at which the caller calls `to`, and the address of the peer there.
    #[inline]
    pub(crate) fn route<'a>(
        &'a self,
        runtime: &Runtime,
        to: &'a ProviderHandle,
    ) -> (&'a Shard<I>, Cow<'a, Addr>) {
        let here = self.here(runtime);
        if to.shard().is_none() && self.is_of(here, to.addr()) {
            return (here, Cow::Borrowed(to.addr()));
        }
        match to.route.0.get().filter(|known| self.is_of(here, known)) {
            Some(known) => (here, Cow::Borrowed(known)),
            None => self.find_route(here, to),
        }
    }

    #[inline(never)]
    fn find_route<'a>(
        &'a self,
        here: &'a Shard<I>,
        to: &'a ProviderHandle,
    ) -> (&'a Shard<I>, Cow<'a, Addr>) {
        let (at, addr) = self.search(here, to.addr(), to.shard());
        if let Cow::Owned(found) = &addr {
            // Another one may be quicker.
            let _ = to.route.0.set(found.clone());
        }
        (at, addr)
    }

    /// Returns the shard at which the caller starts a transfer with `peer`, and its address there.
    #[inline]
    pub(crate) fn route_to_peer<'a>(
        &'a self,
        runtime: &Runtime,
        peer: &'a Addr,
    ) -> (&'a Shard<I>, Cow<'a, Addr>) {
        let here = self.here(runtime);
        if self.is_of(here, peer) {
            return (here, Cow::Borrowed(peer));
        }
        self.search(here, peer, None)
    }

    /// Returns the address of `to` at the shard where an operation with it was started.
    pub(crate) fn addr_at<'a>(&self, shard: &Shard<I>, to: &'a Addr) -> Cow<'a, Addr> {
        match self.is_of(shard, to) || shard.core.endpoint().has_made(to) {
            true => Cow::Borrowed(to),
            false => shard.peer_here(to, None).map_or(Cow::Borrowed(to), Cow::Owned),
        }
    }

    /// Returns whether an address is one of that shard's endpoint, or there is no other shard.
    #[inline]
    fn is_of(&self, shard: &Shard<I>, addr: &Addr) -> bool {
        !self.are_several() || shard.core.endpoint_id() == addr.endpoint_id()
    }

    #[inline(never)]
    fn search<'a>(
        &'a self,
        here: &'a Shard<I>,
        to: &'a Addr,
        through: Option<u8>,
    ) -> (&'a Shard<I>, Cow<'a, Addr>) {
        let own = here.core.self_addr();
        if own == *to {
            return (here, Cow::Owned(own));
        }
        // An endpoint that consists of two has addresses of either.
        if through.is_none() && here.core.endpoint().has_made(to) {
            return (here, Cow::Borrowed(to));
        }
        match here.peer_here(to, through) {
            Some(found) => (here, Cow::Owned(found)),
            // Only where its connection is; an address of other endpoints the network refuses.
            None => (self.of_addr(to), Cow::Borrowed(to)),
        }
    }
}
