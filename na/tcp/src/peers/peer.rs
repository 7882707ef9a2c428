//! A peer: its identity, its phase, and everything in flight towards it.
//!
//! ```text
//!             first operation            greeted
//!   Idle ───────────────────► Dialing ───────────► Up ──┐
//!    ▲                           │                      │ its connection ends
//!    └───────────────────────────┴──────────────────────┤
//!                                        (origins only) └──► Gone
//! ```
//!
//! A peer that has called us is `Up` from the start. It is never the same as a peer that we have
//! looked up, whatever address it announces. A caller that announces no address, an origin, is
//! `Gone` for ever afterwards. Closing the endpoint puts every peer that it knows into `Closed`.
//! Operations are accepted in `Idle`, `Dialing` and `Up`; the code that leaves `Dialing` or `Up`
//! ends them, and does so under the lock.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use crate::peers::transfers::Transfers;
use crate::stream::frame_reader::ReadPlan;
use crate::stream::line::Line;
use crate::stream::outgoing::faults::is_fault;
use crate::stream::outgoing::{Flushed, Harvest, Outgoing};
use crate::wire::frame::Kind;
use na_core::group::directory::Identity;
use na_core::limits::budget::{Account, Budget};
use na_core::{Error, PeerLink, PeerStats, Principal};
use prim::lock::{BiasedGuard, BiasedLock};
use prim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// The connection with a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) line: Line,
    /// The number of the peer's endpoint, if its hello has one.
    pub(crate) endpoint: Option<u64>,
    /// Longest message that both sides take, bytes.
    pub(crate) message_bytes_max: usize,
    /// The peer wants to hear something at least this often.
    pub(crate) alive_every: Option<Duration>,
    /// The peer says something when we want to hear it.
    pub(crate) can_beat: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Dialing,
    Up(Link),
    /// The error that every further operation gets.
    Gone(Error),
    Closed,
}

impl Phase {
    /// The line by which frames leave that need not be queued; see [`Outgoing`].
    pub(crate) fn door(&mut self, broken: &Option<Broken>) -> Option<&mut Line> {
        match self {
            Self::Up(link) if broken.is_none() => Some(&mut link.line),
            _ => None,
        }
    }
}

/// Why nothing more can be sent to a peer.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) error: Error,
    /// The connection is dead, so what the peer had sent is finite and worth reading first.
    pub(crate) read_first: bool,
}

/// The part of a peer that changes, behind its lock.
#[derive(Default)]
pub(crate) struct PeerState {
    pub(crate) phase: Phase,
    /// Ours with this peer, see [`Hello`](crate::wire::frame::Hello).
    pub(crate) session: u64,
    pub(crate) out: Outgoing,
    pub(crate) transfers: Transfers,
    pub(crate) harvest: Harvest,
    /// In the mail for the next poll.
    pub(crate) listed: bool,
    /// Connecting has failed and is tried again later.
    pub(crate) redials: bool,
    /// The key of its connection, also of one that is being made.
    pub(crate) conn: Option<u64>,
    /// Why sending failed; ends the peer in the next poll.
    pub(crate) broken: Option<Broken>,
    /// The account that is charged with answers that the peer does not take; `None` while it takes
    /// all.
    held: Option<Account>,
}

/// The place of a peer among those of a group, ours or its own.
#[derive(Debug, Default)]
pub(crate) struct PeerPart {
    /// The number that it has with all endpoints of our group; `None`: only this one knows it.
    pub(crate) identity: Option<Identity>,
    /// The endpoint of its group that we would like to reach.
    pub(crate) wanted: Option<u16>,
}

/// A peer of one endpoint.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) uri: Box<str>,
    /// Where to connect; empty for an origin.
    pub(crate) dial: Vec<SocketAddr>,
    pub(crate) part: PeerPart,
    state: BiasedLock<PeerState>,
    expects_data: AtomicBool,
    blocked: AtomicBool,
    cancelable: AtomicBool,
    /// As in the state's account.
    unread: AtomicUsize,
    budget: Arc<Budget>,
    /// `true` if its RPC layer is C Mercury's, as its address or its last hello says.
    for_mercury: AtomicBool,
    /// The host that its last connection came from, or went to.
    host: Mutex<Principal>,
    /// How often the lock was taken.
    #[cfg(test)]
    pub(crate) locks: AtomicU64,
    /// As in the state, until the endpoint is closed.
    session: AtomicU64,
    /// Bytes that have come. One writer: the poller.
    received: AtomicU64,
    /// Messages that have come. One writer: the poller.
    received_messages: AtomicU64,
}

impl Peer {
    pub(crate) fn new(
        id: u64,
        uri: String,
        dial: Vec<SocketAddr>,
        part: PeerPart,
        session: u64,
        budget: Arc<Budget>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            uri: uri.into(),
            dial,
            part,
            state: BiasedLock::new(PeerState { session, ..PeerState::default() }),
            expects_data: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            cancelable: AtomicBool::new(false),
            unread: AtomicUsize::new(0),
            budget,
            for_mercury: AtomicBool::new(false),
            host: Mutex::new(Principal::Unknown),
            #[cfg(test)]
            locks: AtomicU64::new(0),
            session: AtomicU64::new(session),
            received: AtomicU64::new(0),
            received_messages: AtomicU64::new(0),
        })
    }

    /// Returns whether its RPC layer is C Mercury's. Relaxed: what was written for another one is
    /// not sent (`greeting.rs`).
    pub(crate) fn is_for_mercury(&self) -> bool {
        self.for_mercury.load(Ordering::Relaxed)
    }

    pub(crate) fn set_for_mercury(&self, is: bool) {
        self.for_mercury.store(is, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> BiasedGuard<'_, PeerState> {
        #[cfg(test)]
        self.locks.fetch_add(1, Ordering::Relaxed);
        self.state.lock()
    }

    /// Tells the poll what it must know before each read, and charges the peer with the answers
    /// that it does not take. Called by all code that may have changed these, before it releases
    /// the lock. The results are hints, since they are read without the lock: a late one costs a
    /// copy, or a poll, and a poller that goes to sleep asks for all events anyway.
    pub(crate) fn note(&self, state: &mut PeerState) {
        let charged = state.unread();
        let unread = state.out.charge(charged);
        if unread != charged || unread != self.unread() {
            self.charge(state, unread);
        }
        let hints = [
            (&self.expects_data, state.transfers.expects_data()),
            (&self.blocked, state.out.is_blocked()),
            (&self.cancelable, !state.out.is_empty() || state.transfers.has_asked()),
        ];
        for (hint, value) in hints {
            // Reading is cheaper, and nearly always enough.
            if hint.load(Ordering::Relaxed) != value {
                hint.store(value, Ordering::Relaxed);
            }
        }
        let session = state.session;
        if self.session.load(Ordering::Relaxed) != session && !matches!(state.phase, Phase::Closed)
        {
            self.session.store(session, Ordering::Relaxed);
        }
    }

    #[cold]
    fn charge(&self, state: &mut PeerState, unread: usize) {
        match unread {
            // The next connection may be with another host.
            0 => state.held = None,
            _ => state.held.get_or_insert_with(|| self.budget.account(self.host())).set(unread),
        }
        self.unread.store(unread, Ordering::Relaxed);
    }

    /// Bytes of memory that it makes us hold by what it does not take.
    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// The host behind its connection.
    pub(crate) fn host(&self) -> Principal {
        *lock(&self.host)
    }

    /// A connection with that host was made.
    pub(crate) fn set_host(&self, host: Principal) {
        *lock(&self.host) = host;
    }

    /// Returns whether data may be arriving of which the place is known.
    pub(crate) fn expects_data(&self) -> bool {
        self.expects_data.load(Ordering::Relaxed)
    }

    /// Bytes that have come.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The poller has read so many bytes.
    pub(crate) fn count_received(&self, bytes: usize) {
        let before = self.received();
        self.received.store(before + bytes as u64, Ordering::Relaxed);
    }

    /// The poller has handed a message on.
    pub(crate) fn count_message(&self) {
        let before = self.received_messages.load(Ordering::Relaxed);
        self.received_messages.store(before + 1, Ordering::Relaxed);
    }

    /// Returns the peer's statistics; `awaited` is left empty.
    pub(crate) fn stats(&self) -> PeerStats {
        let state = self.lock();
        let link = match &state.phase {
            Phase::Idle => PeerLink::Idle,
            Phase::Dialing => PeerLink::Connecting,
            Phase::Up(_) => PeerLink::Connected,
            Phase::Gone(_) | Phase::Closed => PeerLink::Gone,
        };
        let mut stats = PeerStats::new(self.uri.to_string(), "tcp", link);
        stats.principal = self.host();
        stats.sent_bytes = Some(state.out.taken());
        stats.received_bytes = Some(self.received());
        stats.sent_messages = Some(state.out.messages());
        stats.received_messages = Some(self.received_messages.load(Ordering::Relaxed));
        stats
    }

    /// Returns whether a send or transfer of ours may be in flight. A caller that cancels one knows
    /// that it was begun, and so finds the hint of then or a later one.
    pub(crate) fn is_cancelable(&self) -> bool {
        self.cancelable.load(Ordering::Relaxed)
    }

    /// Returns whether its socket is full.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Our session with it: another one as soon as its connections have ended.
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    pub(crate) fn gone(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { peer: self.uri.to_string(), reason: reason.into() }
    }

    pub(crate) fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable { peer: self.uri.to_string(), reason: reason.into() }
    }
}

impl PeerState {
    /// How to read what it sends.
    pub(crate) fn appetite(&self) -> ReadPlan {
        self.transfers.appetite()
    }

    /// Bytes that the peer is charged with for what it does not take.
    pub(crate) fn unread(&self) -> usize {
        self.held.as_ref().map_or(0, Account::held)
    }

    /// Sends what the kernel takes. An error ends the peer in the next poll, see `broken`.
    pub(crate) fn flush(&mut self, peer: &Peer) -> Flushed {
        let Phase::Up(link) = &mut self.phase else { return Flushed::Blocked };
        if self.broken.is_some() {
            return Flushed::Blocked;
        }
        let Self { out, harvest, transfers, .. } = self;
        match out.flush(&mut link.line, harvest, || transfers.get_is_cut()) {
            Ok(flushed) if harvest.unreadable.is_empty() => flushed,
            Ok(_) => {
                for number in std::mem::take(&mut harvest.unreadable) {
                    transfers.cannot_access(Kind::Put, number, out, harvest);
                }
                Flushed::More
            }
            Err(error) => {
                let read_first = matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::TimedOut
                );
                let error = peer.gone(match is_fault(&error) {
                    true => "memory of ours that it gets cannot be read any more".into(),
                    false => format!("sending to it failed: {error}"),
                });
                self.broken = Some(Broken { error, read_first });
                Flushed::More
            }
        }
    }

    /// Ends everything in flight with `error` and enters `phase`, from where on our session has
    /// another number. Returns the connection to close.
    pub(crate) fn end(&mut self, phase: Phase, session: u64, error: &Error) -> Option<u64> {
        self.phase = phase;
        self.session = session;
        self.out.fail_all(error, &mut self.harvest);
        self.transfers.fail_all(error, &mut self.harvest);
        self.broken = None;
        self.redials = false;
        self.held = None;
        self.conn.take()
    }
}
