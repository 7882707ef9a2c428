//! One endpoint's state, under the network's lock.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::loopback::Loopback;
use super::outgoing::{Ends, Queued};
use super::packet::{Frame, HostId, NodeId};
use super::peer::{Held, Home, Peer, PeerTag, Phase};
use super::wire::{Event, Wire};
use crate::matching::{Arrived, Kind, Matcher};
use crate::{Addr, Completion, Error, MsgBuf, OpId, RegionTable, Tag, Transfer};

/// Early messages that a node holds per peer, bytes.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// A node's number for itself.
const OWN: u64 = 0;

/// Completions that wait for a poll, and the bell that tells of them.
pub(super) struct Done {
    pub(super) queue: VecDeque<Completion>,
    /// `None` once nobody polls any more.
    bell: Option<Arc<OwnedFd>>,
    pub(super) sleeping: bool,
    rung: bool,
}

impl Done {
    pub(super) fn push(&mut self, completion: Completion) {
        self.queue.push_back(completion);
        if self.sleeping {
            self.ring();
        }
    }

    pub(super) fn ring(&mut self) {
        if let Some(bell) = &self.bell
            && !std::mem::replace(&mut self.rung, true)
        {
            // Only a full counter could fail, and it holds one at most.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends the announcement of a sleep.
    pub(super) fn wake(&mut self) {
        self.sleeping = false;
        if std::mem::take(&mut self.rung)
            && let Some(bell) = &self.bell
        {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }

    /// Nobody will poll: gives up buffers and bell, though the node may have a farewell to see
    /// through.
    pub(super) fn abandon(&mut self) {
        self.queue.clear();
        self.bell = None;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// Closed, and what was sent is still being delivered.
    Closed,
    /// Crashed; `told` once a poll has said so.
    Crashed {
        told: bool,
    },
}

pub(super) struct Node {
    pub(super) home: Home,
    pub(super) state: State,
    /// The endpoint was dropped.
    pub(super) abandoned: bool,
    pub(super) own: Addr,
    pub(super) regions: RegionTable,
    pub(super) done: Done,
    pub(super) peers: BTreeMap<u64, Peer>,
    pub(super) matcher: Matcher,
    pub(super) loopback: Loopback,
    named: BTreeMap<HostId, u64>,
    pub(super) origins: BTreeMap<NodeId, u64>,
    next_peer: u64,
    /// The peer of each expected receive that is posted.
    expecting: BTreeMap<u64, u64>,
}

impl Node {
    pub(super) fn new(home: Home, own_uri: String, bell: Arc<OwnedFd>) -> Self {
        let endpoint = Addr::unique_endpoint_id();
        Self {
            home,
            state: State::Open,
            abandoned: false,
            own: Addr::new(own_uri, endpoint, OWN, Arc::new(PeerTag)),
            regions: RegionTable::new(),
            done: Done { queue: VecDeque::new(), bell: Some(bell), sleeping: false, rung: false },
            peers: BTreeMap::new(),
            matcher: Matcher::new(EARLY_BYTES_MAX),
            loopback: Loopback::default(),
            named: BTreeMap::new(),
            origins: BTreeMap::new(),
            next_peer: OWN + 1,
            expecting: BTreeMap::new(),
        }
    }

    pub(super) fn id(&self) -> NodeId {
        self.home.greeting.node
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether something of it is still needed.
    pub(super) fn is_over(&self) -> bool {
        self.abandoned && self.peers.values().all(|peer| peer.local().is_none())
    }

    // ---- peers ----

    /// The peer that runs on `host` and can be called.
    pub(super) fn named_peer(&mut self, host: HostId, uri: &str) -> u64 {
        match self.named.get(&host) {
            Some(peer) => *peer,
            None => {
                let peer = self.new_peer(host, uri, None);
                self.named.insert(host, peer);
                peer
            }
        }
    }

    pub(super) fn new_peer(&mut self, host: HostId, uri: &str, origin: Option<NodeId>) -> u64 {
        let id = self.next_peer;
        self.next_peer += 1;
        let tag = Arc::new(PeerTag);
        let weak = Arc::downgrade(&tag);
        let addr = Addr::new(uri, self.own.endpoint_id(), id, tag);
        self.peers.insert(id, Peer::new(id, host, addr, weak, origin));
        id
    }

    /// Forgets the origins that are gone and that nobody can name any more.
    pub(super) fn forget_origins(&mut self) {
        let Self { peers, origins, .. } = self;
        peers
            .retain(|_, peer| !matches!(peer.phase, Phase::Gone(_)) || peer.tag.strong_count() > 0);
        origins.retain(|_, peer| peers.contains_key(peer));
    }

    // ---- operations ----

    /// The peer behind `addr`, or why there is none.
    fn check(&self, addr: &Addr) -> Result<u64, Error> {
        if !self.is_open() {
            return Err(Error::Closed);
        }
        if addr.endpoint_id() != self.own.endpoint_id() {
            let text = format!("{addr} is an address of another endpoint");
            return Err(Error::InvalidArgument(text));
        }
        Ok(addr.peer_id())
    }

    pub(super) fn send(
        &mut self,
        to: &Addr,
        message: Queued,
        wire: &mut Wire,
    ) -> Result<(), (Error, MsgBuf)> {
        let peer = match self.check(to) {
            Ok(peer) => peer,
            Err(error) => return Err((error, message.buf)),
        };
        let max = self.peers.get_mut(&peer).and_then(Peer::session).map_or_else(
            || self.home.greeting.message_bytes_max,
            |session| session.message_bytes_max,
        );
        if message.buf.len() > max {
            return Err((Error::TooLong { len: message.buf.len(), max }, message.buf));
        }
        if peer == OWN {
            self.loopback.send(message);
            self.arm_loopback(wire);
            return Ok(());
        }
        match self.admit(peer, wire) {
            Err(error) => self.done.push(message.end(Err(error))),
            Ok(peer) => {
                peer.out.push_message(message);
                self.pump(to.peer_id(), wire);
            }
        }
        Ok(())
    }

    pub(super) fn transfer(
        &mut self,
        op: OpId,
        put: bool,
        to: &Addr,
        transfer: Transfer,
        wire: &mut Wire,
    ) -> Result<(), Error> {
        let peer = self.check(to)?;
        RegionTable::check_transfer(&transfer, put)?;
        if peer == OWN {
            self.loopback.start(op, put, transfer);
            self.arm_loopback(wire);
            return Ok(());
        }
        match self.admit(peer, wire) {
            Err(error) => {
                wire.trash.push(transfer.local);
                self.done.push(Completion::Transfer { op, result: Err(error) });
            }
            Ok(peer) => {
                peer.out.push_transfer(op, put, transfer);
                self.pump(to.peer_id(), wire);
            }
        }
        Ok(())
    }

    /// The peer, on its way to be connected; or the error of one that is gone for good.
    fn admit(&mut self, peer: u64, wire: &mut Wire) -> Result<&mut Peer, Error> {
        let Some(peer) = self.peers.get_mut(&peer) else { return Err(Error::Closed) };
        if let Phase::Gone(error) = &peer.phase {
            return Err(error.clone());
        }
        peer.connect(&self.home, wire);
        Ok(peer)
    }

    pub(super) fn recv(
        &mut self,
        op: OpId,
        from: Option<(&Addr, Tag)>,
        buf: MsgBuf,
        wire: &mut Wire,
    ) -> Result<(), (Error, MsgBuf)> {
        let peer = match from.map_or_else(|| self.check(&self.own), |(addr, _)| self.check(addr)) {
            Ok(peer) => peer,
            Err(error) => return Err((error, buf)),
        };
        let early = match from {
            None => self.matcher.post_unexpected(op, buf),
            Some((addr, tag)) => {
                if let Some(Peer { phase: Phase::Gone(error), .. }) = self.peers.get(&peer) {
                    let result = Err(error.clone());
                    self.done.push(Completion::Recv { op, buf, result });
                    return Ok(());
                }
                let early = self.matcher.post_expected(op, addr, tag, buf);
                if early.is_none()
                    && let Some(peer) = self.peers.get_mut(&peer)
                {
                    self.expecting.insert(op.0, peer.id);
                    peer.expecting += 1;
                    peer.arm(&self.home, wire);
                }
                early
            }
        };
        let Some(completion) = early else { return Ok(()) };
        // Taking an early message made room for one that was held back.
        let source = match &completion {
            Completion::Recv { result: Ok(arrival), .. } => arrival.from.peer_id(),
            _ => OWN,
        };
        self.done.push(completion);
        match source {
            OWN => self.arm_loopback(wire),
            peer => self.deliver_held(peer, wire),
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, op: OpId, wire: &mut Wire) {
        if let Some(completion) = self.matcher.cancel(op) {
            self.received(op, wire);
            self.done.push(completion);
            return;
        }
        let mut ends = Ends::default();
        if !self.loopback.cancel(op, &mut ends) {
            let found = self
                .peers
                .values_mut()
                .find_map(|peer| peer.out.cancel(op, &mut ends).then_some(peer.id));
            if let Some(peer) = found {
                self.pump(peer, wire);
            }
        }
        self.report(ends, wire);
    }

    // ---- deliveries ----

    /// An expected receive has ended.
    fn received(&mut self, op: OpId, wire: &mut Wire) {
        if let Some(peer) = self.expecting.remove(&op.0)
            && let Some(peer) = self.peers.get_mut(&peer)
        {
            peer.expecting -= 1;
            peer.arm(&self.home, wire);
        }
    }

    /// Gives the matcher the messages of `peer` that are in order, until it is full.
    pub(super) fn deliver_held(&mut self, peer: u64, wire: &mut Wire) {
        while let Some(Peer { phase: Phase::Up(session), addr: Some(addr), .. }) =
            self.peers.get_mut(&peer)
            && let Some(Held { kind, tag, bytes, charge }) = session.held.pop_front()
        {
            match self.matcher.arrive(kind, addr, tag, &bytes) {
                Arrived::Full => {
                    session.held.push_front(Held { kind, tag, bytes, charge });
                    break;
                }
                Arrived::Held => session.uncredited += charge,
                Arrived::Completed(completion) => {
                    session.uncredited += charge;
                    if let (Kind::Expected, Completion::Recv { op, .. }) = (kind, &completion) {
                        self.received(*op, wire);
                    }
                    self.done.push(completion);
                }
            }
        }
        self.pump(peer, wire);
    }

    pub(super) fn pump(&mut self, peer: u64, wire: &mut Wire) {
        let mut ends = Ends::default();
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.credit(wire);
            peer.pump(&self.home, wire, &mut ends);
        }
        self.report(ends, wire);
    }

    pub(super) fn report(&mut self, ends: Ends, wire: &mut Wire) {
        wire.trash.extend(ends.memories);
        ends.completions.into_iter().for_each(|completion| self.done.push(completion));
    }

    fn arm_loopback(&mut self, wire: &mut Wire) {
        if self.loopback.arm() {
            let at = wire.now + wire.hosts[self.home.host].cost;
            wire.push(at, Event::Loopback { node: self.id() });
        }
    }

    pub(super) fn run_loopback(&mut self, wire: &mut Wire) {
        let mut ends = Ends::default();
        let Self { loopback, own, matcher, regions, .. } = self;
        loopback.run(own, matcher, regions, &mut ends);
        self.report(ends, wire);
    }

    // ---- ends ----

    /// Ends the connection with `peer`, and with it everything in flight.
    pub(super) fn end_peer(&mut self, peer: u64, error: Error, wire: &mut Wire) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let name = wire.hosts[entry.host].name.clone();
        // Without the network's name, which is not part of what happens in it.
        let reason = match &error {
            Error::PeerGone { reason, .. } | Error::Unreachable { reason, .. } => reason,
            _ => "",
        };
        wire.note(self.home.host, format!("connection with {name} ended: {reason}"));
        let end = match entry.origin {
            Some(_) => Phase::Gone(error.clone()),
            None => Phase::Idle,
        };
        let ended = entry.disconnect(end, wire);
        // What had arrived is received: only then the death is seen.
        if let (Phase::Up(session), Some(addr)) = (ended, entry.addr.clone()) {
            self.matcher.lift_bound(peer);
            for Held { kind, tag, bytes, .. } in session.held {
                if let Arrived::Completed(completion) =
                    self.matcher.arrive(kind, &addr, tag, &bytes)
                {
                    self.done.push(completion);
                }
            }
        }
        let mut ends = Ends::default();
        entry.out.fail(&error, &mut ends);
        entry.expecting = 0;
        if entry.origin.is_some() {
            entry.addr = None;
        }
        self.expecting.retain(|_, of| *of != peer);
        self.matcher.fail_peer(peer, &error, &mut ends.completions);
        self.report(ends, wire);
    }

    /// Ends every operation, and leaves connections to the caller.
    fn fail_all(&mut self, wire: &mut Wire) {
        let mut ends = Ends::default();
        self.matcher.fail_all(&Error::Closed, &mut ends.completions);
        self.loopback.fail(&Error::Closed, &mut ends);
        self.expecting.clear();
        for peer in self.peers.values_mut() {
            peer.expecting = 0;
            peer.out.fail(&Error::Closed, &mut ends);
        }
        self.report(ends, wire);
        // Whoever sleeps has to see the end, whether or not an operation ended.
        if self.done.sleeping {
            self.done.ring();
        }
    }

    /// Closes it: what was sent still arrives, followed by a farewell.
    pub(super) fn close(&mut self, wire: &mut Wire) {
        if !self.is_open() {
            return;
        }
        self.state = State::Closed;
        wire.note(self.home.host, "closed");
        self.fail_all(wire);
        let ids: Vec<u64> = self.peers.keys().copied().collect();
        for id in ids {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            match &mut peer.phase {
                Phase::Up(session) => {
                    session.held.clear();
                    peer.out.push_control(Frame::Bye);
                    self.pump(id, wire);
                }
                _ => drop(peer.disconnect(Phase::Idle, wire)),
            }
        }
    }

    /// Ends it without a word. Returns its connections: peer's host, our side, their side.
    pub(super) fn crash(&mut self, wire: &mut Wire) -> Vec<(HostId, u64, u64)> {
        if self.is_open() {
            self.state = State::Crashed { told: false };
            self.fail_all(wire);
        }
        let mut lost = Vec::new();
        for peer in self.peers.values_mut() {
            if let Phase::Up(session) = peer.disconnect(Phase::Idle, wire) {
                lost.push((peer.host, session.local, session.remote));
            }
        }
        lost
    }
}
