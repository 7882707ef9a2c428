//! The state that an endpoint keeps of a peer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::size_of;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ucx_sys::ucp_ep_h;

use crate::operations::keys::{GivenKeys, HeldKeys};
use crate::operations::peer_ref::PeerRef;
use crate::operations::remote_key::RemoteKey;
use crate::operations::transfer_state::Lease;
use crate::state::group::CallerPermit;
use na_core::base::cheap::IntBuildHasher;
use na_core::base::ran::RunClock;
use na_core::group::directory::Identity;
use na_core::hosts::host_port::PeerKey;
use na_core::limits::budget::Account;
use na_core::loopback::Queued;
use na_core::matching::Kind;
use na_core::{Addr, Error, MsgBuf, OpId, PeerLink, PeerStats};
use prim::sync::atomic::{AtomicU64, Ordering};

/// How far we are with a peer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not connected.
    #[default]
    Idle,
    /// A connection is being made; nothing was heard yet.
    Connecting,
    /// Both sides know each other.
    Connected,
    /// It was known by its connection only, and that is gone.
    Gone,
}

/// Operations and memory that we hold for a peer until it takes them, in this session.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Chunks of what it gets that UCX has in hand.
    pub(crate) chunks: u32,
    /// Some of its gets wait until UCX has fewer.
    pub(crate) waits: bool,
    /// Control messages to it that UCX has in hand.
    pub(crate) told: u32,
    /// Bytes of memory that answers to it take, which wait here or are in UCX's hands.
    pub(crate) answers: Option<Account>,
}

impl Load {
    /// Bytes of memory that answers to it take.
    pub(crate) fn answers(&self) -> usize {
        self.answers.as_ref().map_or(0, Account::held)
    }

    /// Answers of so many bytes wait no more.
    pub(crate) fn answer_left(&mut self, bytes: usize) {
        if let Some(account) = self.answers.as_mut().filter(|_| bytes > 0) {
            account.set(account.held() - bytes);
        }
    }
}

/// Memory that a message takes if it is an answer, bytes. Its buffer is as large for a short
/// message as for a long one.
pub(crate) fn answer_bytes(kind: Kind, buf: &MsgBuf) -> usize {
    match kind {
        Kind::Expected => buf.capacity() + size_of::<Queued>(),
        Kind::Unexpected => 0,
    }
}

/// How long nothing was heard of a peer.
#[derive(Debug, Default)]
pub(crate) struct Silence(Duration);

impl Silence {
    /// Looks, `elapsed` after the last look. `excused`: it was heard, or owes nothing. Whether it
    /// has been silent for `limit`; zero: there is none.
    pub(crate) fn look(&mut self, elapsed: Duration, excused: bool, limit: Duration) -> bool {
        self.0 = if excused { Duration::ZERO } else { self.0.saturating_add(elapsed) };
        !limit.is_zero() && self.0 >= limit
    }
}

/// The place of a peer among those of a group, ours or its own.
#[derive(Debug, Default, Clone)]
pub(crate) struct PeerPart {
    /// The number that it has with all endpoints of our group, behind that of the group; `None`:
    /// only this one knows it.
    pub(crate) identity: Option<(u64, Identity)>,
    /// The endpoint of its group that we would like to reach.
    pub(crate) wanted: Option<u16>,
}

/// The place where a peer that was called has sent us on to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentOn {
    pub(crate) port: u16,
    /// See [`Shards::token`](crate::wire::Shards::token).
    pub(crate) token: u32,
}

/// A peer.
#[derive(Default)]
pub(crate) struct Peer {
    /// The number, which no other peer of the endpoint ever has.
    pub(crate) id: u64,
    pub(crate) uri: Box<str>,
    /// The key that it is found by; `None`: it is found by its connection only.
    pub(crate) key: Option<PeerKey>,
    /// The addresses where it listens, to be tried in this order; and the place of the one that is
    /// being tried.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) trying: usize,
    pub(crate) part: PeerPart,
    /// Where we call instead of that address, and how often we were sent on since we began to call.
    pub(crate) sent_on: Option<SentOn>,
    pub(crate) detours: u32,
    /// The place of its connection, if it has called us.
    pub(crate) permit: Option<CallerPermit>,
    /// The address from which it has called us, if it has.
    pub(crate) caller: Option<SocketAddr>,
    /// See [`PeerRef::current`].
    token: Weak<AtomicU64>,
    pub(crate) phase: Phase,
    /// The connection, open or being made.
    pub(crate) link: Option<ucp_ep_h>,
    /// Our number for what is between us.
    pub(crate) session: u64,
    /// The address, for messages of this session.
    pub(crate) current: Option<Addr>,
    /// Longest message that it takes.
    pub(crate) their_max: usize,
    /// Memory of so many bytes is sent to it by rendezvous; `None`: none.
    pub(crate) lends_from: Option<usize>,
    /// Messages of each kind that may still be sent, and at most.
    pub(crate) credits: [u32; 2],
    pub(crate) window: u32,
    /// Messages that cannot be sent yet, in order, by kind.
    pub(crate) queues: [VecDeque<Queued>; 2],
    /// Transfers that were not asked for yet.
    pub(crate) waiting: VecDeque<u64>,
    /// Transfers that were asked for and are not over.
    pub(crate) asked: usize,
    /// Transfers that were given up, of which the owner has not said that it is done.
    pub(crate) released: HashSet<u64, IntBuildHasher>,
    /// Memory that it may reach at the moment, by the numbers of its transfers.
    pub(crate) leases: HashMap<u64, Lease, IntBuildHasher>,
    /// Transfers of so many bytes want a key of the peer's memory at once; `None`: it gives none,
    /// or they are of no use.
    pub(crate) keys_from: Option<u64>,
    /// True if adapters move memory by remote keys over the connection.
    pub(crate) by_adapter: bool,
    /// Keys that it has given us, and keys that it was given and has not returned.
    pub(crate) keys: HeldKeys<Rc<RemoteKey>>,
    pub(crate) given: GivenKeys,
    /// Since when a connection is being made.
    pub(crate) dialed: Option<RunClock>,
    /// UCX has made it, and sent our hello.
    pub(crate) hello_sent: bool,
    /// How often it wants to hear something, and when it last did.
    pub(crate) alive_every: Option<Duration>,
    pub(crate) told_at: Option<Instant>,
    /// UCX has not sent yet that we live.
    pub(crate) alive_in_hand: bool,
    pub(crate) silence: Silence,
    pub(crate) load: Load,
    /// The reason why it is gone, for later operations.
    pub(crate) end: Option<Error>,
}

impl Peer {
    pub(crate) fn new(
        id: u64,
        uri: String,
        key: Option<PeerKey>,
        addresses: Vec<SocketAddr>,
        session: u64,
    ) -> Self {
        Self { id, uri: uri.into(), key, addresses, session, ..Self::default() }
    }

    /// The address, as one that was looked up (`session` 0) or as that of a message.
    pub(crate) fn addr(&mut self, endpoint: u64, index: usize, session: u64) -> Addr {
        let current = self.token.upgrade();
        let current = current.unwrap_or_else(|| Arc::new(AtomicU64::new(self.session)));
        self.token = Arc::downgrade(&current);
        let addr = Addr::new(self.uri.clone(), endpoint, self.id, PeerRef { index, current })
            .in_session(session);
        match &self.part.identity {
            Some((family, identity)) => addr.of_identity(*family, **identity),
            None => addr,
        }
    }

    /// Ends the session with the peer, and returns what was of it. `session` is our number for the
    /// next one.
    pub(crate) fn begin_session(&mut self, session: u64, error: &Error) -> Self {
        if let Some(current) = self.token.upgrade() {
            current.store(session, Ordering::Relaxed);
        }
        let next = Self {
            caller: self.caller,
            part: self.part.clone(),
            token: self.token.clone(),
            phase: if self.addresses.is_empty() { Phase::Gone } else { Phase::Idle },
            end: Some(error.clone()),
            ..Self::new(
                self.id,
                self.uri.to_string(),
                self.key.clone(),
                std::mem::take(&mut self.addresses),
                session,
            )
        };
        std::mem::replace(self, next)
    }

    /// The next message of the kind at `at` that waits.
    pub(crate) fn next_queued(&mut self, at: usize) -> Option<Queued> {
        let message = self.queues[at].pop_front()?;
        self.load.answer_left(answer_bytes(message.kind, &message.buf));
        Some(message)
    }

    /// Takes a message that waits out of its queue.
    pub(crate) fn take_queued(&mut self, op: OpId) -> Option<Queued> {
        let message = self.queues.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|message| message.op == op)?;
            queue.remove(at)
        })?;
        self.load.answer_left(answer_bytes(message.kind, &message.buf));
        Some(message)
    }

    /// Returns whether nothing is left of it but this.
    pub(crate) fn is_forgotten(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Gone)
            && self.token.strong_count() == 0
            && self.link.is_none()
            && self.queues.iter().all(VecDeque::is_empty)
            && self.waiting.is_empty()
    }

    /// Why an answer to a message of an earlier session is not sent.
    pub(crate) fn unanswerable(&self) -> Error {
        let reason = "the connection that the message to be answered came by has ended".to_owned();
        Error::PeerGone { peer: self.uri.to_string(), reason }
    }

    /// Why nothing can be sent to it any more.
    pub(crate) fn gone(&self) -> Error {
        let reason = || "its connection has ended, and it listens nowhere".to_owned();
        let error = Error::PeerGone { peer: self.uri.to_string(), reason: reason() };
        self.end.clone().unwrap_or(error)
    }

    pub(crate) fn stats(&self) -> PeerStats {
        let link = match self.phase {
            Phase::Idle => PeerLink::Idle,
            Phase::Connecting => PeerLink::Connecting,
            Phase::Connected => PeerLink::Connected,
            Phase::Gone => PeerLink::Gone,
        };
        PeerStats::new(self.uri.to_string(), "ucx", link)
    }
}
