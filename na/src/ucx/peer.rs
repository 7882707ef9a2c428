//! The state that an endpoint keeps of a peer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ucx_sys::ucp_ep_h;

use super::bounds::{Load, answer_bytes};
use super::keys::{GivenKeys, HeldKeys};
use super::liveness::Silence;
use super::rma::RemoteKey;
use super::transfers::Outgoing;
use crate::base::cheap::IntBuildHasher;
use crate::base::ran::RunClock;
use crate::hosts::host_port::PeerKey;
use crate::loopback::Queued;
use crate::{Addr, Error, LocalMem, OpId, PeerLink, PeerStats};
use prim::sync::atomic::{AtomicU64, Ordering};

/// The state behind an [`Addr`] of this transport.
#[derive(Debug)]
pub(super) struct PeerRef {
    /// The peer's place in the driver.
    pub(super) index: usize,
    token: Arc<Token>,
}

/// Kept by all addresses of a peer, so that it is known when nobody names it any more.
#[derive(Debug)]
struct Token {
    /// The session as in the peer; it is written only with the driver's lock held.
    session: AtomicU64,
}

impl PeerRef {
    /// Our number for what is between us and the peer, without the driver.
    pub(super) fn session(&self) -> u64 {
        self.token.session.load(Ordering::Relaxed)
    }
}

/// How far we are with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not connected.
    Idle,
    /// A connection is being made; nothing was heard yet.
    Connecting,
    /// Both sides know each other.
    Connected,
    /// It was known by its connection only, and that is gone.
    Gone,
}

/// Memory that its owner holds for a transfer.
pub(super) struct Lease {
    /// Keeps the memory.
    pub(super) memory: LocalMem,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The data to send, for a get.
    pub(super) outgoing: Option<Outgoing>,
    /// Pieces that are in UCX's hands.
    pub(super) lent: u32,
    /// The requester has given it up: it ends when UCX has let go.
    pub(super) is_released: bool,
}

/// The connections with a peer over which adapters move memory by remote keys, as far as we know:
/// all of them, any, or none. The peer may use any of its connections.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Adapters {
    all: bool,
    any: bool,
}

impl Adapters {
    /// Adds a connection, or the `first` one of a session.
    pub(super) fn join(&mut self, by_adapter: bool, first: bool) {
        self.all = by_adapter && (first || self.all);
        self.any = by_adapter || (!first && self.any);
    }

    /// Over every connection: keys are used by adapters alone.
    pub(super) fn all(self) -> bool {
        self.all
    }

    /// Over some connection: keys may be used by an adapter until that has ended.
    pub(super) fn any(self) -> bool {
        self.any
    }
}

/// A peer.
pub(super) struct Peer {
    /// The number, which no other peer of the endpoint ever has.
    pub(super) id: u64,
    pub(super) uri: Box<str>,
    /// The key that it is found by; `None`: it is found by its connection only.
    pub(super) key: Option<PeerKey>,
    /// The addresses where it listens, to be tried in this order; and the place of the one that is
    /// being tried.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) trying: usize,
    /// The address from which it has called us, if it has.
    pub(super) caller: Option<SocketAddr>,
    token: Weak<Token>,
    pub(super) phase: Phase,
    /// One, when it is connected.
    pub(super) links: Vec<ucp_ep_h>,
    /// Our number for what is between us.
    pub(super) session: u64,
    /// The address, for messages of this session.
    pub(super) current: Option<Addr>,
    /// Longest message that it takes.
    pub(super) their_max: usize,
    /// Memory of so many bytes is sent to it by rendezvous; `None`: none.
    pub(super) lends_from: Option<usize>,
    /// Messages of each kind that may still be sent, and at most.
    pub(super) credits: [u32; 2],
    pub(super) window: u32,
    /// Messages that cannot be sent yet, in order, by kind.
    pub(super) queues: [VecDeque<Queued>; 2],
    /// Transfers that were not asked for yet.
    pub(super) waiting: VecDeque<u64>,
    /// Transfers that were asked for and are not over.
    pub(super) asked: usize,
    /// Transfers that were given up, of which the owner has not said that it is done.
    pub(super) released: HashSet<u64, IntBuildHasher>,
    /// Memory that it may reach at the moment, by the numbers of its transfers.
    pub(super) leases: HashMap<u64, Lease, IntBuildHasher>,
    /// Transfers of so many bytes want a key of the peer's memory at once; `None`: it gives none,
    /// or they are of no use.
    pub(super) keys_from: Option<u64>,
    pub(super) adapters: Adapters,
    /// Keys that it has given us, and keys that it was given and has not returned.
    pub(super) keys: HeldKeys<Rc<RemoteKey>>,
    pub(super) given: GivenKeys,
    /// Since when a connection is being made.
    pub(super) dialed: Option<RunClock>,
    /// UCX has made it, and sent our hello.
    pub(super) hello_sent: bool,
    /// How often it wants to hear something, and when it last did.
    pub(super) alive_every: Option<Duration>,
    pub(super) told_at: Instant,
    /// UCX has not sent yet that we live.
    pub(super) alive_in_hand: bool,
    pub(super) silence: Silence,
    pub(super) load: Load,
    /// The reason why it is gone, for later operations.
    pub(super) end: Option<Error>,
}

impl Peer {
    pub(super) fn new(
        id: u64,
        uri: String,
        key: Option<PeerKey>,
        addresses: Vec<SocketAddr>,
        session: u64,
    ) -> Self {
        Self {
            id,
            uri: uri.into(),
            key,
            addresses,
            trying: 0,
            caller: None,
            token: Weak::new(),
            phase: Phase::Idle,
            links: Vec::new(),
            session,
            current: None,
            their_max: 0,
            lends_from: None,
            credits: [0; 2],
            window: 0,
            queues: Default::default(),
            waiting: VecDeque::new(),
            asked: 0,
            released: HashSet::default(),
            leases: HashMap::default(),
            keys_from: None,
            adapters: Adapters::default(),
            keys: HeldKeys::default(),
            given: GivenKeys::default(),
            dialed: None,
            hello_sent: false,
            alive_every: None,
            told_at: Instant::now(),
            alive_in_hand: false,
            silence: Silence::default(),
            load: Load::default(),
            end: None,
        }
    }

    /// The address, as one that was looked up (`session` 0) or as that of a message.
    pub(super) fn addr(&mut self, endpoint: u64, index: usize, session: u64) -> Addr {
        let token = self.token.upgrade();
        let token =
            token.unwrap_or_else(|| Arc::new(Token { session: AtomicU64::new(self.session) }));
        self.token = Arc::downgrade(&token);
        Addr::new(self.uri.clone(), endpoint, self.id, PeerRef { index, token }).in_session(session)
    }

    /// The session with the peer has ended: `session` is our number for the next one.
    pub(super) fn begin_session(&mut self, session: u64) {
        self.session = session;
        if let Some(token) = self.token.upgrade() {
            token.session.store(session, Ordering::Relaxed);
        }
    }

    /// The next message of the kind at `at` that waits.
    pub(super) fn next_queued(&mut self, at: usize) -> Option<Queued> {
        let message = self.queues[at].pop_front()?;
        self.load.answer_left(answer_bytes(message.kind, &message.buf));
        Some(message)
    }

    /// Takes a message that waits out of its queue.
    pub(super) fn take_queued(&mut self, op: OpId) -> Option<Queued> {
        let message = self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|message| message.op == op)?;
            queue.remove(at)
        })?;
        self.load.answer_left(answer_bytes(message.kind, &message.buf));
        Some(message)
    }

    /// Returns whether nothing is left of it but this.
    pub(super) fn is_forgotten(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Gone)
            && self.token.strong_count() == 0
            && self.links.is_empty()
            && self.queues.iter().all(VecDeque::is_empty)
            && self.waiting.is_empty()
    }

    /// Why an answer to a message of an earlier session is not sent.
    pub(super) fn unanswerable(&self) -> Error {
        let reason = "the connection that the message to be answered came by has ended".to_owned();
        Error::PeerGone { peer: self.uri.to_string(), reason }
    }

    /// Why nothing can be sent to it any more.
    pub(super) fn gone(&self) -> Error {
        let reason = || "its connection has ended, and it listens nowhere".to_owned();
        let error = Error::PeerGone { peer: self.uri.to_string(), reason: reason() };
        self.end.clone().unwrap_or(error)
    }

    pub(super) fn stats(&self) -> PeerStats {
        PeerStats {
            uri: self.uri.to_string(),
            transport: "ucx",
            link: match self.phase {
                Phase::Idle => PeerLink::Idle,
                Phase::Connecting => PeerLink::Connecting,
                Phase::Connected => PeerLink::Connected,
                Phase::Gone => PeerLink::Gone,
            },
            awaited: Vec::new(),
            sent_bytes: None,
            received_bytes: None,
            sent_messages: None,
            received_messages: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_reach_memory_over_any_connection_and_are_given_keys_over_all() {
        let mut adapters = Adapters::default();
        let mut joined = |by_adapter, first| {
            adapters.join(by_adapter, first);
            (adapters.all(), adapters.any())
        };
        assert_eq!(joined(true, true), (true, true));
        assert_eq!(joined(false, false), (false, true), "the first one is still there");
        assert_eq!(joined(true, false), (false, true));
        assert_eq!(joined(false, true), (false, false), "another session");
        assert_eq!(joined(true, false), (false, true));
        assert_eq!(joined(true, true), (true, true));
    }
}
