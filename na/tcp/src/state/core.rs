//! State that all threads of an endpoint share: who we are, our peers, and what is left for the
//! poll.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

use crate::peers::{Group, Mail, Peer, PeerName, PeerPart, PeerRegistry, PeerState};
use crate::stream::gather::Gather;
use crate::stream::outgoing::Flushed;
use crate::wire::address;
use crate::wire::frame::{FOR_MERCURY, Hello, Named, Shards};
use na_core::base::ran;
use na_core::group::directory::Identity;
use na_core::hosts::host_port::PeerKey;
use na_core::limits::budget::Budget;
use na_core::matching::Matcher;
use na_core::{Addr, Error, Principal, RegionTable, SessionChange, TcpOptions, TrafficClass};
use na_tls::Desk;
use prim::fork::Process;
use prim::lock::BiasedLock;
use prim::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// Early messages that one peer may have here, bytes.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// Bits of a number that a hello gives to a peer: the number of the endpoint is above them.
const PEER_BITS: u32 = 48;

/// Longer limits would not be points in time.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Peers that can be dialed, by name and wanted shard.
type DialedPeers = HashMap<(PeerKey, Option<u16>), Weak<Peer>>;

/// The state that the endpoint and its poller share.
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) message_bytes_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) liveness_limit: Duration,
    /// The RPC layer above is C Mercury's.
    pub(crate) for_mercury: bool,
    pub(crate) options: TcpOptions,
    /// The budget for answers that peers leave unread.
    pub(crate) budget: Arc<Budget>,
    pub(crate) class: TrafficClass,
    /// Where we listen; empty if we do not.
    listening_uri: String,
    pub(crate) regions: RegionTable,
    pub(crate) matcher: BiasedLock<Matcher>,
    pub(crate) mail: Mail,
    /// Peers that something refers to, and some that nothing refers to any more.
    pub(crate) peers: Mutex<DialedPeers>,
    /// All peers, origins too. For `Endpoint::stats`.
    pub(crate) known: Mutex<PeerRegistry>,
    next_peer: AtomicU64,
    next_session: AtomicU64,
    /// A peer was named, or has connected, whose RPC layer is C Mercury's. Relaxed: it comes before
    /// the address, or the end of a call, by which a caller learns of that.
    pub(crate) has_met_mercury: AtomicBool,
    /// Set before the matcher is emptied for the last time; read under its lock.
    pub(crate) closed: AtomicBool,
    /// The one that opened it.
    pub(crate) process: Process,
    pub(crate) gather: Gather,
    /// The endpoints behind our address.
    pub(crate) group: Arc<Group>,
    /// Our number among them.
    pub(crate) shard: usize,
    /// Where handshakes of TLS end that we have made, if connections are to be private.
    pub(crate) desk: Option<Arc<Desk>>,
}

impl Core {
    pub(crate) fn new(
        listening_uri: String,
        (group, shard): (Arc<Group>, usize),
    ) -> Result<Self, Error> {
        let options = &group.options;
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::io("cannot get random bytes for a session", errno))?;
        Ok(Self {
            id: Addr::unique_endpoint_id(),
            message_bytes_max: options.message_bytes_max,
            connect_timeout: options.connect_timeout.min(CONNECT_TIMEOUT_MAX),
            liveness_limit: ran::limit(options.liveness_limit),
            for_mercury: options.for_mercury,
            options: options.tcp.clone(),
            budget: Budget::new(options.unread_answers_bounds()?),
            class: options.traffic_class,
            listening_uri,
            regions: options.regions.clone().unwrap_or_default(),
            matcher: BiasedLock::new(
                Matcher::new(EARLY_BYTES_MAX, options.left_bytes_max)
                    .of_all_at_most(options.early_bytes_max)
                    .of_each_at_most(options.early_bytes_max / 2, host_behind),
            ),
            mail: Mail::new()?,
            peers: Mutex::default(),
            known: Mutex::default(),
            next_peer: AtomicU64::new(1),
            next_session: AtomicU64::new(u64::from_ne_bytes(seed)),
            has_met_mercury: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            process: Process::current(),
            gather: Gather::new(),
            desk: group.doorkeeper.is_some().then(Desk::new).transpose()?,
            group,
            shard,
        })
    }

    /// Notes whether the RPC layer of a peer is C Mercury's.
    pub(crate) fn note_rpc_layer(&self, peer: &Peer, for_mercury: bool) {
        if for_mercury {
            self.has_met_mercury.store(true, Ordering::Relaxed);
        }
        peer.set_for_mercury(for_mercury);
    }

    /// Tells of a change in the session with a peer, if that is to be told.
    pub(crate) fn tell(&self, address: &str, principal: Principal, change: SessionChange<'_>) {
        if let Some(observer) = &self.group.options.sessions {
            observer.tell("tcp", address, principal, change);
        }
    }

    /// Tells that the session with a peer is over.
    pub(crate) fn tell_of_end(&self, peer: &Peer, error: &Error) {
        let reason = error.to_string();
        self.tell(&peer.uri, peer.host(), SessionChange::Ended { reason: &reason });
    }

    /// A number for a session that no other of ours has.
    pub(crate) fn new_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// Our hello on a connection with `peer`; `None`: with nobody that we know.
    pub(crate) fn hello(&self, session: u64, peer: Option<&Peer>) -> Hello {
        let max = self.message_bytes_max as u32;
        let mut hello = Hello::ours(max, session, self.listening_uri.clone());
        if self.for_mercury {
            hello.capabilities |= FOR_MERCURY;
        }
        let shard = self.shard as u64;
        let named = peer
            .map(|peer| Named { endpoint: self.group.number, peer: shard << PEER_BITS | peer.id });
        let wanted = peer.and_then(|peer| peer.part.wanted);
        let count = self.group.count();
        let is_told = named.is_some() && (count > 1 || wanted.is_some());
        let shards = is_told.then_some(Shards {
            own: self.shard as u16,
            count: count as u16,
            wanted,
            map_version: 0,
        });
        let alive_every_ms = ran::alive_every_ms(self.liveness_limit);
        Hello { alive_every_ms, named, ..hello }.with_shards(shards)
    }

    /// A peer that nobody has seen before.
    pub(crate) fn new_peer(&self, uri: String, dial: Vec<SocketAddr>, part: PeerPart) -> Arc<Peer> {
        let id = self.next_peer.fetch_add(1, Ordering::Relaxed);
        let peer = Peer::new(id, uri, dial, part, self.new_session(), self.budget.clone());
        lock(&self.known).add(&peer);
        peer
    }

    /// The peer under `key`, which is reached at `dial`, of its endpoints `wanted` if possible.
    pub(crate) fn peer_at(
        &self,
        key: PeerKey,
        dial: Vec<SocketAddr>,
        wanted: Option<u16>,
    ) -> Arc<Peer> {
        let name = (key, wanted);
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(&name).and_then(Weak::upgrade) {
            return peer;
        }
        if peers.len() == peers.capacity() {
            peers.retain(|_, peer| peer.strong_count() > 0);
        }
        let identity = Some(self.identity(PeerName::LookedUp(name.0.clone())));
        let part = PeerPart { identity, wanted };
        let peer = self.new_peer(name.0.uri(address::HEAD), dial, part);
        peers.insert(name, Arc::downgrade(&peer));
        peer
    }

    /// The number that the peer of that name has with all endpoints of the group.
    pub(crate) fn identity(&self, name: PeerName) -> Identity {
        self.group.directory.identity(name)
    }

    /// Returns whether `address` is our self address.
    pub(crate) fn listens_at(&self, address: SocketAddr) -> bool {
        address::uri_of(address) == self.listening_uri
    }

    pub(crate) fn addr_of(&self, peer: &Arc<Peer>) -> Addr {
        let addr = Addr::new(peer.uri.clone(), self.id, peer.id, peer.clone());
        match &peer.part.identity {
            Some(identity) => addr.of_identity(self.group.directory.family(), **identity),
            None => addr,
        }
    }

    /// Also in a child that was forked off: what it has a copy of is its parent's.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.process.is_other()
    }
}

/// The host behind an address of a tcp endpoint.
fn host_behind(addr: &Addr) -> Principal {
    addr.state::<Arc<Peer>>().map_or(Principal::Unknown, |peer| peer.host())
}

/// Sends what the kernel takes for a peer whose state is given; comes back to it if there is more.
#[inline]
pub(crate) fn flush(core: &Core, peer: &Arc<Peer>, state: &mut PeerState) {
    // Mostly there is nothing, and what sends has a large frame.
    if !state.out.is_empty() && !state.out.is_blocked() {
        flush_queued(core, peer, state);
    }
}

#[inline(never)]
fn flush_queued(core: &Core, peer: &Arc<Peer>, state: &mut PeerState) {
    if state.flush(peer) == Flushed::More {
        core.mail.list(peer, state);
    }
}
