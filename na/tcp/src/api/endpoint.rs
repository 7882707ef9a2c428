//! The endpoint: operations become frames of a peer or entries of the matcher; all other work is
//! done by the [`Poller`].

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::peers::{Group, Peer, PeerName, PeerPart, PeerState, Phase};
use crate::state::{Core, Poller, flush, watch_inbox};
use crate::stream::outgoing::Outgoing;
use crate::system::socket;
use crate::wire::address;
use crate::wire::frame::{self, URI_BYTES_MAX};
use na_core::endpoint::stats;
use na_core::group::check_shards;
use na_core::hosts::host_port::{self, PeerKey};
use na_core::hosts::own_address::Wanted;
use na_core::loopback::{Loopback, Queued};
use na_core::matching::Kind;
use na_core::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    MERCURY_CLASS, Memory, MsgBuf, OpId, OpenOptions, PeerStats, Principal, Refused, RegionTable,
    Tag, Transfer, Uri,
};
use prim::lock::{BiasedGuard, BiasedLock};
use prim::sync::atomic::Ordering;
use prim::sync::{Arc, lock};

/// While only messages to ourselves move, one poll of this many looks at the rest.
const REST_EVERY: u64 = 16;

impl Core {
    /// The peer behind an address of this endpoint.
    fn peer_of<'a>(&self, addr: &'a Addr) -> Result<&'a Arc<Peer>, Error> {
        let peer = addr.state().filter(|_| addr.endpoint_id() == self.id);
        peer.ok_or_else(|| {
            Error::InvalidArgument(format!("address {addr} belongs to another endpoint"))
        })
    }

    /// Has an operation of `peer` looked after, which answers what came with the address `answers`.
    /// `Ok(Err)`: it ends at once.
    fn admit(
        &self,
        peer: &Arc<Peer>,
        state: &mut PeerState,
        answers: Option<&Addr>,
    ) -> Result<Result<(), Error>, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        match &state.phase {
            Phase::Closed => Err(Error::Closed),
            Phase::Gone(error) => Ok(Err(error.clone())),
            _ if answers.is_some_and(|to| to.is_of_another_session(state.session)) => {
                let reason = "the connection that the message to be answered came by has ended";
                Ok(Err(peer.gone(reason)))
            }
            Phase::Dialing | Phase::Up(_) => Ok(Ok(())),
            Phase::Idle => {
                if !self.mail.list(peer, state) {
                    return Err(Error::Closed);
                }
                state.phase = Phase::Dialing;
                Ok(Ok(()))
            }
        }
    }

    /// Returns whether a send to `peer` should write at once, and what was received from it so far,
    /// bytes.
    fn may_write_now(&self, peer: &Peer, out: &Outgoing) -> (bool, u64) {
        let received = peer.received();
        (self.gather.may_write_now(out, received, self.mail.is_sleeping()), received)
    }

    /// Sends a message; at once if it is short and nothing is in its way.
    fn send_message(
        &self,
        peer: &Arc<Peer>,
        mut state: BiasedGuard<'_, PeerState>,
        kind: frame::Kind,
        op: OpId,
        tag: Tag,
        buf: MsgBuf,
    ) {
        let PeerState { phase, out, broken, .. } = &mut *state;
        // Asked once: it may read the clock.
        let (now, received) = self.may_write_now(peer, out);
        if let Phase::Up(link) = phase
            && now
            && broken.is_none()
            && out.send_short(&mut link.line, kind, tag, buf.as_slice())
        {
            out.wrote(received);
            let Some(buf) = out.hold_sealed(kind, op, buf) else {
                return self.push_out(peer, state, received, now);
            };
            drop(state);
            return self.mail.complete([Completion::Send { op, buf, result: Ok(()) }]);
        }
        if kind == frame::Kind::Expected && out.is_blocked() {
            return self.queue_answer(peer, state, op, tag, buf);
        }
        out.push_message(kind, op, tag, buf);
        self.push_out(peer, state, received, now);
    }

    /// Sends a short message without a completion; `false`: it took nothing. One that is to wait
    /// for the next poll is not taken: without a completion nobody would know that it needs one.
    fn send_copy(
        &self,
        peer: &Arc<Peer>,
        kind: frame::Kind,
        to: &Addr,
        tag: Tag,
        message: &[u8],
    ) -> bool {
        let mut state = peer.lock();
        if kind == frame::Kind::Expected && to.is_of_another_session(state.session) {
            return false;
        }
        match self.take_copy(peer, &mut state, kind, tag, message, false) {
            Copied::Not => false,
            Copied::Sent => true,
            Copied::Queued { received, now } => {
                self.push_out(peer, state, received, now);
                true
            }
        }
    }

    /// Sends a copy of a short message, or queues it. `may_wait`: also for the next poll.
    #[inline]
    fn take_copy(
        &self,
        peer: &Peer,
        state: &mut PeerState,
        kind: frame::Kind,
        tag: Tag,
        message: &[u8],
        may_wait: bool,
    ) -> Copied {
        let PeerState { phase, out, broken, .. } = state;
        let Phase::Up(link) = phase else { return Copied::Not };
        // Whoever cannot send must be told so, by a completion.
        if self.is_closed()
            || broken.is_some()
            || out.is_blocked()
            || message.len() > link.message_bytes_max
        {
            return Copied::Not;
        }
        let (now, received) = self.may_write_now(peer, out);
        if !now && !may_wait {
            return Copied::Not;
        }
        if now && out.send_short(&mut link.line, kind, tag, message) {
            out.wrote(received);
            return Copied::Sent;
        }
        // Never refused when a part was sent: the queue is empty then.
        let queued = out.push_packed(kind, tag, message);
        if queued { Copied::Queued { received, now } } else { Copied::Not }
    }

    /// Sends a request and posts the receive of its answer ([`Endpoint::call_now`]); also returns
    /// the result of `Matcher::take_refused`. Both happen under the peer's lock, so that the
    /// peer's end finds the receive or is seen here. The message goes first: the peer works on it
    /// meanwhile. It may wait for the next poll, which a caller that waits for an answer makes
    /// anyhow.
    fn call(
        &self,
        peer: &Arc<Peer>,
        op: OpId,
        to: &Addr,
        tag: Tag,
        mut buf: MsgBuf,
    ) -> Result<(Option<Completion>, bool), MsgBuf> {
        let mut state = peer.lock();
        let kind = frame::Kind::Unexpected;
        let copied = self.take_copy(peer, &mut state, kind, tag, buf.as_slice(), true);
        if let Copied::Not = copied {
            return Err(buf);
        }
        buf.clear();
        let mut matcher = self.matcher.lock();
        let early = matcher.post_expected(op, to, tag, buf);
        let refused = matcher.take_refused();
        drop(matcher);
        if let Copied::Queued { received, now } = copied {
            self.push_out(peer, state, received, now);
        }
        Ok((early, refused))
    }

    /// Sends what is queued, now or in the next poll; so many bytes were `received` before.
    fn push_out(
        &self,
        peer: &Arc<Peer>,
        mut state: BiasedGuard<'_, PeerState>,
        received: u64,
        now: bool,
    ) {
        if matches!(state.phase, Phase::Up(_)) && !state.out.is_blocked() {
            if now {
                flush(self, peer, &mut state);
                state.out.wrote(received);
            } else {
                self.mail.list(peer, &mut state);
            }
            if state.broken.is_some() {
                self.mail.list(peer, &mut state);
            }
        }
        peer.note(&mut state);
        if state.out.is_blocked() {
            self.call_poll();
        }
        let memories = state.harvest.take_memories();
        if !state.harvest.completions.is_empty() {
            self.mail.complete(state.harvest.completions.drain(..));
        }
        drop(state);
        // May run the code of their owners.
        drop(memories);
    }
}

/// The outcome of sending a copy of a message.
enum Copied {
    /// Nothing.
    Not,
    Sent,
    /// It is queued, for [`Core::push_out`] to send.
    Queued {
        received: u64,
        now: bool,
    },
}

/// Completions that polls have not reported yet, and memory that they have not dropped. Its
/// collections are swapped with the poller's, so that both keep their capacity.
#[derive(Default)]
struct PollOutput {
    /// Polls so far.
    polls: u64,
    completions: VecDeque<Completion>,
    memories: Vec<LocalMem>,
}

/// An open TCP endpoint.
pub(crate) struct TcpEndpoint {
    pub(crate) core: Core,
    pub(crate) self_addr: Addr,
    /// Operations on `self_addr`, whose peer stays `Idle`: see `self_ops.rs`.
    pub(crate) loopback: Loopback,
    /// Held throughout a poll, the sink's calls included; holds what a poll could not report.
    gate: BiasedLock<PollOutput>,
    pub(crate) poller: BiasedLock<Poller>,
    epoll: Arc<OwnedFd>,
}

impl TcpEndpoint {
    /// Opens the endpoints of a group. The first one listens, if one is to.
    pub(crate) fn open_group(
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Self>, Error> {
        let (mut listener, listening) = Self::listen(uri, options)?;
        let mut options = options.clone();
        options.regions.get_or_insert_default();
        let group = Group::new(shards, options, listening)?;
        let open = |shard| Self::open_shard(listener.take(), (group.clone(), shard));
        (0..shards).map(open).collect()
    }

    /// Opens the next endpoint of the group.
    fn open_next(&self) -> Result<Self, Error> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        let group = &self.core.group;
        let _one_at_a_time = lock(&group.growing);
        let shard = group.count();
        check_shards(shard + 1)?;
        group.bells.add(|bell| watch_inbox(&self.epoll, bell))?;
        let opened = Self::open_shard(None, (group.clone(), shard));
        let grown = opened.and_then(|opened| group.grow().map(|_| opened));
        grown.inspect_err(|_| group.bells.keep(shard))
    }

    /// Opens an endpoint alone.
    #[cfg(test)]
    pub(crate) fn open(uri: &Uri<'_>, options: &OpenOptions) -> Result<Self, Error> {
        Ok(Self::open_group(uri, options, 1)?.remove(0))
    }

    /// Makes the socket that listens, if one is to, and the address by which others reach it.
    fn listen(
        uri: &Uri<'_>,
        options: &OpenOptions,
    ) -> Result<(Option<OwnedFd>, Option<SocketAddr>), Error> {
        let class = options.traffic_class;
        socket::may_configure(&options.tcp, class).map_err(|error| {
            let what = "cannot set the socket options that `tcp.keep_alive`, `tcp.busy_poll` and \
                        `traffic_class` ask for (busy polling needs CAP_NET_ADMIN)";
            Error::io(what, error)
        })?;
        let own = Wanted::of(options)?;
        let wanted = host_port::listen_address(("tcp", uri.text, uri.rest), &own)?;
        if !options.listen {
            return Ok((None, None));
        }
        let failed = |error: std::io::Error| Error::io(format!("cannot listen on {wanted}"), error);
        let socket = socket::listen(wanted, class).map_err(failed)?;
        let bound = socket::local_address(&socket).map_err(failed)?;
        Ok((Some(socket), Some(host_port::reachable("tcp", bound, &own)?)))
    }

    /// Opens the endpoint number `shard` of a group.
    fn open_shard(
        listener: Option<OwnedFd>,
        (group, shard): (Arc<Group>, usize),
    ) -> Result<Self, Error> {
        let listening = group.listening;
        let listening_uri = listening.map(address::uri_of).unwrap_or_default();
        debug_assert!(listening_uri.len() <= URI_BYTES_MAX);
        let mut core = Core::new(listening_uri, (group, shard))?;
        if core.group.options.listen {
            core.options.connections_max = socket::connections_max(core.options.connections_max);
        }
        let myself = match listening {
            Some(address) => core.peer_at(PeerKey::Address(address), vec![address], None),
            None => {
                let family = core.group.directory.family();
                let name = format!("process-{}.{family}", std::process::id());
                let identity = Some(core.identity(PeerName::Own));
                let part = PeerPart { identity, wanted: None };
                core.new_peer(address::origin_uri(name), Vec::new(), part)
            }
        };
        let inbox = core.group.bells.get(shard);
        let inbox = inbox.as_deref();
        let desk = core.desk.as_ref().map(|desk| desk.bell());
        let poller = Poller::new(listener, core.mail.bell(), inbox, desk, core.message_bytes_max)?;
        Ok(Self {
            self_addr: core.addr_of(&myself),
            loopback: Loopback::default(),
            gate: BiasedLock::default(),
            epoll: poller.epoll.clone(),
            poller: BiasedLock::new(poller),
            core,
        })
    }

    fn send(&self, kind: Kind, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        let peer = match self.core.peer_of(to) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buf }),
        };
        if self.is_own(peer) {
            return self.send_within(Queued { op, kind, tag, buf });
        }
        let mut state = peer.lock();
        let max = match &state.phase {
            Phase::Up(link) => link.message_bytes_max,
            _ => self.core.message_bytes_max,
        };
        if buf.len() > max {
            return Err(Refused { error: Error::TooLong { len: buf.len(), max }, buf });
        }
        let answers = (kind == Kind::Expected).then_some(to);
        match self.core.admit(peer, &mut state, answers) {
            Err(error) => return Err(Refused { error, buf }),
            Ok(Err(error)) => {
                drop(state);
                self.core.mail.complete([Completion::Send { op, buf, result: Err(error) }]);
            }
            Ok(Ok(())) => {
                let kind = match kind {
                    Kind::Unexpected => frame::Kind::Unexpected,
                    Kind::Expected => frame::Kind::Expected,
                };
                self.core.send_message(peer, state, kind, op, tag, buf);
            }
        }
        Ok(())
    }

    fn send_now(&self, kind: frame::Kind, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let Ok(peer) = self.core.peer_of(to) else { return false };
        !self.is_own(peer) && self.core.send_copy(peer, kind, to, tag, message)
    }

    /// Returns whether that is ourselves.
    pub(crate) fn is_own(&self, peer: &Peer) -> bool {
        peer.id == self.self_addr.peer_id()
    }

    fn check_recv(&self, buf: &MsgBuf) -> Result<(), Error> {
        buf.check_room(self.core.message_bytes_max)
    }

    fn transfer(&self, op: OpId, peer: &Addr, transfer: Transfer, put: bool) -> Result<(), Error> {
        let peer = self.core.peer_of(peer)?;
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        RegionTable::check_transfer(&transfer, put)?;
        if self.is_own(peer) {
            return self.transfer_within(op, transfer, put);
        }
        let mut state = peer.lock();
        match self.core.admit(peer, &mut state, None)? {
            Err(error) => {
                drop(state);
                self.core.mail.complete([Completion::Transfer { op, result: Err(error) }]);
            }
            Ok(()) => {
                let PeerState { phase, transfers, out, broken, .. } = &mut *state;
                // Asked once: it may read the clock.
                let (now, received) = self.core.may_write_now(peer, out);
                let door = phase.door(broken).filter(|_| now);
                transfers.start(op, put, transfer, out, door);
                self.core.asked(peer, &mut state);
                self.core.push_out(peer, state, received, now);
            }
        }
        Ok(())
    }

    /// The peer behind a text, of its group the endpoint `wanted` if possible.
    fn peer_named(&self, uri: &str, wanted: Option<u16>) -> Result<Addr, Error> {
        let uri = na_core::address::composed::part_for(uri, "tcp");
        let parsed = Uri::parse(uri)?;
        let for_mercury = parsed.class == Some(MERCURY_CLASS);
        let parsed = Uri { class: parsed.class.filter(|_| !for_mercury), ..parsed };
        if !na_core::Plugin::serves(&crate::Tcp, &parsed) {
            let reason = "it is not an address of the tcp transport, `na+tcp://host:port`".into();
            return Err(Error::BadUri { uri: uri.to_owned(), reason });
        }
        let (key, addresses) = host_port::peer_addresses(uri, address::HEAD, parsed.rest)?;
        let is_own =
            |key: &PeerKey| matches!(key, PeerKey::Address(at) if self.core.listens_at(*at));
        let wanted = wanted.filter(|_| !is_own(&key));
        let peer = self.core.peer_at(key, addresses, wanted);
        if for_mercury {
            self.core.note_rpc_layer(&peer, true);
        }
        Ok(self.core.addr_of(&peer))
    }

    /// Returns the statistics of all peers other than the endpoint itself.
    pub(crate) fn peer_stats(&self) -> Vec<PeerStats> {
        let known = lock(&self.core.known).peers();
        let others = known.iter().filter(|peer| !self.is_own(peer));
        let mut stats: Vec<_> = others.map(|peer| (peer.id, peer.stats())).collect();
        // No more than a copy under the lock that every message takes.
        let awaited: Vec<_> = self.core.matcher.lock().awaited().collect();
        stats::assign(&mut stats, awaited);
        stats.into_iter().map(|(_, stats)| stats).collect()
    }

    /// Runs `work` on the poller outside of a poll, and passes on what it leaves behind.
    fn with_poller(&self, work: impl FnOnce(&mut Poller)) {
        let mut poller = self.poller.lock();
        work(&mut poller);
        let completions = std::mem::take(&mut poller.batch);
        let memories = std::mem::take(&mut poller.memories);
        drop(poller);
        self.core.mail.complete(completions);
        drop(memories);
    }
}

impl Endpoint for TcpEndpoint {
    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn carries_extensions(&self, to: &Addr) -> bool {
        !self.core.peer_of(to).is_ok_and(|peer| peer.is_for_mercury())
    }

    fn may_meet_mercury(&self) -> bool {
        self.core.has_met_mercury.load(Ordering::Relaxed)
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        self.core.peer_of(peer).is_ok_and(|known| peer.is_of_another_session(known.session()))
    }

    fn knows_who_transfers(&self) -> bool {
        true
    }

    fn knows_principals(&self, _peer: &Addr) -> bool {
        true
    }

    fn principal(&self, peer: &Addr) -> Principal {
        self.core.peer_of(peer).map_or(Principal::Unknown, |peer| peer.host())
    }

    fn limits(&self) -> Limits {
        let max = self.core.message_bytes_max;
        Limits { unexpected_bytes_max: max, expected_bytes_max: max }
    }

    fn self_addr(&self) -> Addr {
        self.self_addr.clone()
    }

    fn served(&self) -> u64 {
        self.core.regions.served()
    }

    fn stats(&self) -> EndpointStats {
        let mut stats = EndpointStats::new(self.core.regions.totals(), self.peer_stats());
        let doorkeeper = self.core.group.doorkeeper.as_ref();
        stats.certificate_expires = doorkeeper.and_then(|keeper| keeper.certificate_expires());
        stats
    }

    fn look_at_secrets(&self) {
        self.core.group.doorkeeper.iter().for_each(|keeper| keeper.look_at_files());
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.peer_named(uri, None)
    }

    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        self.peer_named(uri, shard.try_into().ok())
    }

    fn retire(&self) -> Result<(), Error> {
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        self.with_poller(|poller| poller.leave_group(&self.core));
        Ok(())
    }

    fn open_another(&self) -> Result<Arc<dyn Endpoint>, Error> {
        self.open_next().map(|opened| Arc::new(opened) as _)
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Unexpected, op, to, tag, buf)
    }

    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(frame::Kind::Unexpected, to, tag, message)
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        if let Err(error) = self.check_recv(&buf) {
            return Err(Refused { error, buf });
        }
        let mut matcher = self.core.matcher.lock();
        if self.core.is_closed() {
            return Err(Refused { error: Error::Closed, buf });
        }
        let early = matcher.post_unexpected(op, buf);
        let refused = matcher.take_refused();
        drop(matcher);
        self.posted(early, refused);
        Ok(())
    }

    fn has_multi_recv(&self) -> bool {
        true
    }

    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        LargeBuffers::check(count)?;
        let mut matcher = self.core.matcher.lock();
        if self.core.is_closed() {
            return Err(Error::Closed);
        }
        let early = matcher.post_many(op, count, buffers);
        let refused = matcher.take_refused();
        drop(matcher);
        if !early.is_empty() {
            self.core.mail.complete(early);
        }
        self.posted(None, refused);
        Ok(())
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(Kind::Expected, op, to, tag, buf)
    }

    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        self.send_now(frame::Kind::Expected, to, tag, message)
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        let peer = match self.core.peer_of(from).and_then(|peer| {
            self.check_recv(&buf)?;
            Ok(peer)
        }) {
            Ok(peer) => peer,
            Err(error) => return Err(Refused { error, buf }),
        };
        // Held until the receive is posted, so that the peer's end finds it or is seen here.
        let state = peer.lock();
        if let Phase::Gone(error) = &state.phase
            && !self.core.is_closed()
        {
            let result = Err(error.clone());
            drop(state);
            self.core.mail.complete([Completion::Recv { op, buf, result }]);
            return Ok(());
        }
        let mut matcher = self.core.matcher.lock();
        if self.core.is_closed() {
            return Err(Refused { error: Error::Closed, buf });
        }
        let early = matcher.post_expected(op, from, tag, buf);
        let refused = matcher.take_refused();
        drop(matcher);
        drop(state);
        self.posted(early, refused);
        Ok(())
    }

    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        let Ok(peer) = self.core.peer_of(to) else { return Err(buf) };
        if self.is_own(peer) || self.check_recv(&buf).is_err() {
            return Err(buf);
        }
        let (early, refused) = self.core.call(peer, op, to, tag, buf)?;
        self.posted(early, refused);
        Ok(())
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        if self.core.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.core.regions.register(memory, access)
    }

    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        if self.core.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.core.regions.register_local(memory, access)
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, to, transfer, true)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(op, from, transfer, false)
    }

    fn cancel(&self, op: OpId) {
        let receive = self.core.matcher.lock().cancel(op);
        if let Some(completion) = receive {
            return self.core.mail.complete([completion]);
        }
        if !self.cancel_within(op) {
            self.with_poller(|poller| poller.cancel(&self.core, op));
        }
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        if self.core.process.is_other() {
            return Ok(0);
        }
        let mut gate = self.gate.lock();
        let poll = gate.polls;
        gate.polls = poll.wrapping_add(1);
        let mut result = Ok(());
        if gate.completions.is_empty() {
            self.core.gather.polled();
            let mut poller = self.poller.lock();
            let only_messages = self.run_within(&mut poller);
            if only_messages && !poll.is_multiple_of(REST_EVERY) {
                self.core.mail.end_sleep();
            } else {
                result = poller.progress(&self.core, budget);
                // Whoever sent to ourselves before its mail was taken relies on this poll.
                self.run_within(&mut poller);
            }
            if !poller.batch.is_empty() {
                std::mem::swap(&mut gate.completions, &mut poller.batch);
            }
            if poller.memories.is_empty() {
                drop(poller);
            } else {
                std::mem::swap(&mut gate.memories, &mut poller.memories);
                drop(poller);
                // May run the code of their owners.
                gate.memories.clear();
            }
            self.core.gather.reports(gate.completions.len());
        } else {
            self.core.mail.end_sleep();
            if self.core.mail.has_some() && self.core.gather.is_over() {
                self.core.gather.polled();
                self.poller.lock().take_mail(&self.core);
            }
        }
        let mut reported = 0;
        while reported < budget
            && let Some(completion) = gate.completions.pop_front()
        {
            reported += 1;
            sink(completion);
        }
        result.map(|()| reported)
    }

    fn prepare_wait(&self) -> bool {
        if self.core.process.is_other() {
            return false;
        }
        let gate = self.gate.lock();
        let idle = gate.completions.is_empty() && self.poller.lock().prepare_wait(&self.core);
        if idle && self.loopback.is_due() {
            self.core.mail.end_sleep();
            return false;
        }
        idle
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn close(&self) {
        // In a child that was forked off, sockets and epoll set are its parent's as well.
        let is_ours = !self.core.process.is_other();
        if is_ours && !self.core.closed.swap(true, Ordering::Relaxed) {
            self.close_within();
            self.with_poller(|poller| poller.close(&self.core));
        }
    }

    fn bulk_path(&self) -> String {
        "socket, from and into registered memory".into()
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpEndpoint({})", self.self_addr)
    }
}

#[cfg(test)]
mod tests;
