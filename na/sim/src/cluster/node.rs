//! One endpoint's state, under the network's lock.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::peer::{EarlyMessage, Home, OriginKey, Peer, PeerTag, Phase};
use super::wire::{Event, Wire};
use crate::protocol::done::Done;
use crate::protocol::loopback::Loopback;
use crate::protocol::outgoing::{Ends, Queued};
use crate::protocol::packet::{Epoch, HostId, NodeId};
use na_core::group::directory::{Directory, Identity};
use na_core::matching::{Arrived, Kind, Matcher};
use na_core::{Addr, Completion, Error, LargeBuffers, MsgBuf, OpId, RegionTable, Tag, Transfer};

/// Early messages that a node holds per peer, bytes.
const EARLY_BYTES_MAX: usize = 256 << 10;

/// A node's number for itself.
const OWN: u64 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// Closed, and what was sent is still being delivered.
    Closed,
    /// Crashed; `told` once a poll has said so.
    Crashed {
        told: bool,
    },
}

/// The names by which the nodes of a group know a peer to be the same one.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerName {
    /// The nodes on a host, as they are looked up.
    Host(HostId),
    /// The nodes of a group that calls.
    Group(u64),
}

/// The state that all nodes of a group share.
#[derive(Clone)]
pub(crate) struct OfGroup {
    pub(crate) uri: String,
    pub(crate) regions: RegionTable,
    pub(crate) directory: Arc<Directory<PeerName>>,
}

pub(crate) struct Node {
    pub(crate) home: Home,
    pub(crate) group: Arc<Directory<PeerName>>,
    pub(crate) state: State,
    /// The endpoint was dropped.
    pub(crate) abandoned: bool,
    pub(crate) own: Addr,
    pub(crate) regions: RegionTable,
    pub(crate) done: Done,
    pub(crate) peers: BTreeMap<u64, Peer>,
    pub(crate) matcher: Matcher,
    pub(crate) loopback: Loopback,
    named: BTreeMap<(HostId, Option<usize>), u64>,
    pub(crate) origins: BTreeMap<OriginKey, u64>,
    next_peer: u64,
    /// The peer of each expected receive that is posted.
    pub(crate) expecting: BTreeMap<u64, u64>,
}

impl Node {
    pub(crate) fn new(home: Home, shared: OfGroup, bell: Arc<OwnedFd>) -> Self {
        let endpoint = Addr::unique_endpoint_id();
        let OfGroup { uri, regions, directory } = shared;
        let identity = directory.identity(PeerName::Host(home.host));
        let number = *identity;
        let own = Addr::new(uri, endpoint, OWN, Arc::new(PeerTag(Some(identity))));
        Self {
            home,
            own: own.of_identity(directory.family(), number),
            group: directory,
            regions,
            state: State::Open,
            abandoned: false,
            done: Done::new(bell),
            peers: BTreeMap::new(),
            matcher: Matcher::new(EARLY_BYTES_MAX, home.left_bytes_max),
            loopback: Loopback::default(),
            named: BTreeMap::new(),
            origins: BTreeMap::new(),
            next_peer: OWN + 1,
            expecting: BTreeMap::new(),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.home.greeting.node
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns whether something of it is still needed.
    pub(crate) fn is_over(&self) -> bool {
        self.abandoned && self.peers.values().all(|peer| peer.local().is_none())
    }

    // ---- peers ----

    /// The peer that runs on `host` and can be called, of its nodes `wanted` if possible.
    pub(crate) fn named_peer(&mut self, host: HostId, uri: &str, wanted: Option<usize>) -> u64 {
        match self.named.get(&(host, wanted)) {
            Some(peer) => *peer,
            None => {
                let identity = self.group.identity(PeerName::Host(host));
                let peer = self.new_peer(host, uri, (None, wanted), Some(identity));
                self.named.insert((host, wanted), peer);
                peer
            }
        }
    }

    /// A peer; `identity` is the number that it has with all nodes of the group.
    pub(crate) fn new_peer(
        &mut self,
        host: HostId,
        uri: &str,
        place: (Option<OriginKey>, Option<usize>),
        identity: Option<Identity>,
    ) -> u64 {
        let id = self.next_peer;
        self.next_peer += 1;
        let number = identity.as_deref().copied();
        let tag = Arc::new(PeerTag(identity));
        let weak = Arc::downgrade(&tag);
        let addr = Addr::new(uri, self.own.endpoint_id(), id, tag);
        let addr = match number {
            Some(number) => addr.of_identity(self.group.family(), number),
            None => addr,
        };
        self.peers.insert(id, Peer::new(id, host, addr, weak, place));
        id
    }

    /// Returns whether a connection stands whose other side is `remote`.
    pub(crate) fn is_up_with(&self, remote: Epoch) -> bool {
        let is_it = |peer: &Peer| matches!(&peer.phase, Phase::Up(up) if up.remote == remote);
        self.peers.values().any(is_it)
    }

    /// Connections of callers that have not named this node.
    pub(crate) fn unwished(&self) -> usize {
        let unwished = self.origins.iter().filter(|((_, wanted), _)| wanted.is_none());
        unwished
            .filter(|(_, peer)| self.peers.get(peer).is_some_and(|peer| peer.local().is_some()))
            .count()
    }

    /// Forgets the origins that are gone and that nobody can name any more.
    pub(crate) fn forget_origins(&mut self) {
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

    pub(crate) fn send(
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
        let answers = (message.kind == Kind::Expected).then_some(to);
        match self.admit(peer, answers, wire) {
            Err(error) => self.done.push(message.end(Err(error))),
            Ok(peer) => {
                peer.out.push_message(message);
                self.pump(to.peer_id(), wire);
            }
        }
        Ok(())
    }

    pub(crate) fn transfer(
        &mut self,
        op: OpId,
        put: bool,
        to: &Addr,
        transfer: Transfer,
        wire: &mut Wire,
    ) -> Result<(), Error> {
        let checked = RegionTable::check_transfer(&transfer, put).and_then(|()| self.check(to));
        let peer = match checked {
            Ok(peer) => peer,
            Err(error) => {
                // Its memory may run the code of its owner.
                wire.trash.push(transfer.local);
                return Err(error);
            }
        };
        if peer == OWN {
            self.loopback.start(op, put, transfer);
            self.arm_loopback(wire);
            return Ok(());
        }
        match self.admit(peer, None, wire) {
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
    /// `answers`: the address that came with what the operation answers.
    fn admit(
        &mut self,
        peer: u64,
        answers: Option<&Addr>,
        wire: &mut Wire,
    ) -> Result<&mut Peer, Error> {
        let Some(peer) = self.peers.get_mut(&peer) else { return Err(Error::Closed) };
        if let Phase::Gone(error) = &peer.phase {
            return Err(error.clone());
        }
        if answers.is_some_and(|to| peer.is_gone_as(to)) {
            return Err(
                peer.gone("the connection that the message to be answered came by has ended")
            );
        }
        peer.connect(&self.home, wire);
        Ok(peer)
    }

    pub(crate) fn recv(
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
        match early {
            Some(completion) => self.report_early(completion, wire),
            None => self.deliver_all_held(wire),
        }
        Ok(())
    }

    pub(crate) fn recv_many(
        &mut self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
        wire: &mut Wire,
    ) -> Result<(), Error> {
        self.check(&self.own)?;
        let early = self.matcher.post_many(op, count, buffers);
        let takes_more = early.len() < count;
        early.into_iter().for_each(|completion| self.report_early(completion, wire));
        if takes_more {
            self.deliver_all_held(wire);
        }
        Ok(())
    }

    /// A receive was posted that may be what a message to ourselves, or one that is held back,
    /// waits for.
    fn deliver_all_held(&mut self, wire: &mut Wire) {
        self.arm_loopback(wire);
        let holds_back = |peer: &&Peer| match &peer.phase {
            Phase::Up(session) => !session.held.is_empty(),
            _ => false,
        };
        let waiting: Vec<u64> =
            self.peers.values().filter(holds_back).map(|peer| peer.id).collect();
        waiting.into_iter().for_each(|peer| self.deliver_held(peer, wire));
    }

    /// A receive has taken an early message, which made room for one that was held back.
    fn report_early(&mut self, completion: Completion, wire: &mut Wire) {
        let source = match &completion {
            Completion::Recv { result: Ok(arrival), .. } => arrival.from.peer_id(),
            _ => OWN,
        };
        self.done.push(completion);
        match source {
            OWN => self.arm_loopback(wire),
            peer => self.deliver_held(peer, wire),
        }
    }

    pub(crate) fn cancel(&mut self, op: OpId, wire: &mut Wire) {
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
    pub(crate) fn deliver_held(&mut self, peer: u64, wire: &mut Wire) {
        while let Some(Peer { phase: Phase::Up(session), .. }) = self.peers.get_mut(&peer)
            && let Some(EarlyMessage { kind, tag, bytes, charge }) = session.held.pop_front()
        {
            match self.matcher.arrive(kind, &session.addr, tag, &bytes) {
                Arrived::Full => {
                    session.held.push_front(EarlyMessage { kind, tag, bytes, charge });
                    break;
                }
                Arrived::Held | Arrived::Discarded => session.uncredited += charge,
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

    pub(crate) fn pump(&mut self, peer: u64, wire: &mut Wire) {
        let mut ends = Ends::default();
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.credit(wire);
            peer.pump(&self.home, wire, &mut ends);
        }
        self.report(ends, wire);
    }

    pub(crate) fn report(&mut self, ends: Ends, wire: &mut Wire) {
        wire.trash.extend(ends.memories);
        ends.completions.into_iter().for_each(|completion| self.done.push(completion));
    }

    fn arm_loopback(&mut self, wire: &mut Wire) {
        if self.loopback.arm() {
            let at = wire.now + wire.hosts[self.home.host].cost;
            wire.push(at, Event::Loopback { node: self.id() });
        }
    }

    pub(crate) fn run_loopback(&mut self, wire: &mut Wire) {
        let mut ends = Ends::default();
        let Self { loopback, own, matcher, regions, .. } = self;
        loopback.run(own, matcher, regions, &mut ends);
        self.report(ends, wire);
    }
}
