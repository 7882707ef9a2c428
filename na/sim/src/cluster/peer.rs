//! One peer of a node, and the connection with it.
//!
//! | phase | meaning | leaves when |
//! |---|---|---|
//! | `Idle` | not connected | an operation greets it; it greets us |
//! | `Connecting` | our hello is on its way | welcome or its own hello: `Up`; reset or time: end |
//! | `Up` | frames flow | reset, bye, silence, a new greeting, our close: end |
//! | `Gone` | an origin that cannot be called; its only connection has ended | never |
//!
//! The end of a connection is `Idle` again, or `Gone` for an origin.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::wire::{Event, EventKey, Wire};
use crate::base::{options::Nanos, trace::Fate};
use crate::protocol::outgoing::{Ends, Outgoing};
use crate::protocol::packet::{Body, Epoch, Frame, Greeting, HostId, NodeId, Packet};
use crate::protocol::stream::{Rx, Tx};
use na_core::group::directory::Identity;
use na_core::matching::Kind;
use na_core::{Addr, Error, PeerLink, PeerStats, Tag};

/// The state behind an address of this transport. As long as one address is alive, its peer is not
/// forgotten, nor is the number that a group has for it.
#[derive(Debug)]
pub(crate) struct PeerTag(
    #[expect(dead_code, reason = "the group forgets a number that nothing keeps")]
    pub(crate)  Option<Identity>,
);

/// A caller that does not share its connections: the node, and the shard that it has named.
pub(crate) type OriginKey = (NodeId, Option<usize>);

/// A message that is in order but has not been taken.
pub(crate) struct EarlyMessage {
    pub(crate) kind: Kind,
    pub(crate) tag: Tag,
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) charge: u64,
}

pub(crate) struct Session {
    pub(crate) local: Epoch,
    pub(crate) remote: Epoch,
    /// The peer's address, for what comes in it.
    pub(crate) addr: Addr,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(crate) held: VecDeque<EarlyMessage>,
    /// Bytes that were taken and not yet credited.
    pub(crate) uncredited: u64,
    /// The longest message that both sides take.
    pub(crate) message_bytes_max: usize,
    /// The last packet of the peer, or the time since when we wait for one.
    pub(crate) quiet_since: Nanos,
    awaiting: bool,
    probed: Nanos,
}

pub(crate) struct Connecting {
    pub(crate) local: Epoch,
    deadline: Nanos,
    due: Nanos,
    tries: u32,
}

pub(crate) enum Phase {
    Idle,
    Connecting(Connecting),
    Up(Box<Session>),
    Gone(Error),
}

/// The result of a timer's look at the peer.
pub(crate) enum Verdict {
    Fine,
    Unreachable,
    Silent(Nanos),
}

pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) host: HostId,
    pub(crate) uri: Box<str>,
    /// The address as it is looked up. `None` once an origin is gone: nothing needs its address
    /// then.
    pub(crate) addr: Option<Addr>,
    pub(crate) tag: Weak<PeerTag>,
    /// The caller behind a peer that nobody can call.
    pub(crate) origin: Option<OriginKey>,
    /// The node of its group that we would like to reach.
    pub(crate) wanted: Option<usize>,
    pub(crate) phase: Phase,
    pub(crate) out: Outgoing,
    /// Expected receives that wait for it.
    pub(crate) expecting: usize,
    /// The newest connection that it began or joined.
    pub(crate) newest: Epoch,
    timer: Option<EventKey>,
}

/// The facts about the node that its peers need.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    pub(crate) host: HostId,
    pub(crate) greeting: Greeting,
    /// The number of the node in its group.
    pub(crate) shard: usize,
    /// The group takes connections.
    pub(crate) listens: bool,
    /// This node does.
    pub(crate) accepts: bool,
    pub(crate) left_bytes_max: usize,
    pub(crate) connect_timeout: Nanos,
    /// Zero: none.
    pub(crate) liveness_limit: Nanos,
}

impl Peer {
    /// Returns the peer's statistics; `awaited` is left empty.
    pub(crate) fn stats(&self) -> PeerStats {
        let link = match &self.phase {
            Phase::Idle => PeerLink::Idle,
            Phase::Connecting(_) => PeerLink::Connecting,
            Phase::Up(_) => PeerLink::Connected,
            Phase::Gone(_) => PeerLink::Gone,
        };
        PeerStats::new(self.uri.to_string(), "sim", link)
    }

    pub(crate) fn new(
        id: u64,
        host: HostId,
        addr: Addr,
        tag: Weak<PeerTag>,
        (origin, wanted): (Option<OriginKey>, Option<usize>),
    ) -> Self {
        Self {
            id,
            host,
            uri: addr.uri().into(),
            addr: Some(addr),
            tag,
            origin,
            wanted,
            phase: Phase::Idle,
            out: Outgoing::default(),
            expecting: 0,
            newest: 0,
            timer: None,
        }
    }

    pub(crate) fn gone(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { peer: self.uri.to_string(), reason: reason.into() }
    }

    pub(crate) fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable { peer: self.uri.to_string(), reason: reason.into() }
    }

    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.phase {
            Phase::Up(session) => Some(session),
            _ => None,
        }
    }

    /// Our side of the connection, if there is one.
    pub(crate) fn local(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Connecting(connecting) => Some(connecting.local),
            Phase::Up(session) => Some(session.local),
            Phase::Idle | Phase::Gone(_) => None,
        }
    }

    /// Returns whether that is its address in a connection that has ended.
    pub(crate) fn is_gone_as(&self, addr: &Addr) -> bool {
        // No connection has the number 0.
        addr.is_of_another_session(self.local().unwrap_or(0))
    }

    // ---- connecting ----

    /// Greets the peer, unless that was done.
    pub(crate) fn connect(&mut self, home: &Home, wire: &mut Wire) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        let local = wire.fresh_epoch();
        wire.routes.insert(local, (home.greeting.node, self.id));
        let deadline = wire.now.saturating_add(home.connect_timeout);
        self.phase = Phase::Connecting(Connecting { local, deadline, due: wire.now, tries: 0 });
        self.say_hello(home, wire);
        self.arm(home, wire);
    }

    fn say_hello(&mut self, home: &Home, wire: &mut Wire) {
        let wait = 2 * wire.round_trip(home.host, self.host) + 1_000;
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let fate = if connecting.tries == 0 { Fate::Sent } else { Fate::Retransmitted };
        let packet = Packet {
            src: home.host,
            dst: self.host,
            from: connecting.local,
            to: 0,
            body: Body::Hello(Greeting { wanted: self.wanted, ..home.greeting }),
        };
        let left = wire.send(packet, fate);
        connecting.due = left + (wait << connecting.tries.min(10));
        connecting.tries += 1;
    }

    /// The connection stands: `local` here, `remote` there.
    pub(crate) fn establish(
        &mut self,
        (local, remote): (Epoch, Epoch),
        theirs: &Greeting,
        home: &Home,
        wire: &mut Wire,
        ends: &mut Ends,
    ) {
        // An origin that is gone never comes back.
        let Some(addr) = self.addr.clone() else { return };
        let round_trip = wire.round_trip(home.host, self.host);
        let message_bytes_max = home.greeting.message_bytes_max.min(theirs.message_bytes_max);
        self.newest = remote;
        self.phase = Phase::Up(Box::new(Session {
            local,
            remote,
            addr: addr.in_session(local),
            tx: Tx::new(round_trip, wire.settings.peer_limit / 8),
            rx: Rx::default(),
            held: VecDeque::new(),
            uncredited: 0,
            message_bytes_max,
            quiet_since: wire.now,
            awaiting: false,
            probed: wire.now,
        }));
        self.out.refuse_longer(message_bytes_max, ends);
        let text = format!("connected with {}", wire.hosts[self.host].name);
        wire.note(home.host, text);
    }

    /// Sends `body` outside of the sequence.
    pub(crate) fn send_body(&mut self, body: Body, home: &Home, wire: &mut Wire) {
        let (src, dst) = (home.host, self.host);
        if let Some(session) = self.session() {
            let (from, to) = (session.local, session.remote);
            wire.send(Packet { src, dst, from, to, body }, Fate::Sent);
        }
    }

    // ---- sending ----

    /// Sends what waits and fits the window.
    pub(crate) fn pump(&mut self, home: &Home, wire: &mut Wire, ends: &mut Ends) {
        let (window, bytes_max) = (wire.settings.window_bytes, wire.settings.packet_bytes_max);
        let (src, dst) = (home.host, self.host);
        if let Phase::Up(session) = &mut self.phase {
            while let Some(frame) = self.out.next(session.tx.charged() < window, bytes_max, ends) {
                let seq = session.tx.push(frame.clone());
                session.transmit((src, dst), seq, frame, Fate::Sent, wire);
            }
        }
        self.arm(home, wire);
    }

    /// Gives the peer its window back, once that is worth a packet.
    pub(crate) fn credit(&mut self, wire: &Wire) {
        if let Phase::Up(session) = &mut self.phase
            && session.uncredited >= (wire.settings.window_bytes / 4).max(1)
        {
            self.out.push_control(Frame::Credit(std::mem::take(&mut session.uncredited)));
        }
    }

    // ---- time ----

    /// Repeats what was not acknowledged, and looks for signs of life.
    pub(crate) fn timer(&mut self, home: &Home, wire: &mut Wire) -> Verdict {
        self.timer = None;
        let now = wire.now;
        if let Phase::Connecting(connecting) = &self.phase {
            if now >= connecting.deadline {
                return Verdict::Unreachable;
            }
            if now >= connecting.due {
                self.say_hello(home, wire);
            }
        }
        let limit = self.silence_limit(home, wire);
        let (src, dst) = (home.host, self.host);
        let mut probe = false;
        if let Phase::Up(session) = &mut self.phase {
            let silence = now - session.quiet_since;
            if session.awaiting && silence >= limit {
                return Verdict::Silent(limit);
            }
            for (seq, frame) in session.tx.take_due(now) {
                session.transmit((src, dst), seq, frame, Fate::Retransmitted, wire);
            }
            if session.awaiting && session.probe_at(home).is_some_and(|at| now >= at) {
                session.probed = now;
                probe = true;
            }
        }
        if probe {
            self.send_body(Body::Probe { stamp: now }, home, wire);
        }
        self.arm(home, wire);
        Verdict::Fine
    }

    /// How long the peer may be silent while we wait for it.
    fn silence_limit(&self, home: &Home, wire: &Wire) -> Nanos {
        match (home.liveness_limit, &self.phase) {
            (0, Phase::Up(session)) if session.tx.is_quiet() => Nanos::MAX,
            (0, _) => wire.settings.peer_limit,
            (liveness, _) => liveness.min(wire.settings.peer_limit),
        }
    }

    /// Sets the timer to when something is due.
    pub(crate) fn arm(&mut self, home: &Home, wire: &mut Wire) {
        let limit = self.silence_limit(home, wire);
        let owed = self.expecting > 0 || self.out.awaits_answers();
        let due = match &mut self.phase {
            Phase::Idle | Phase::Gone(_) => None,
            Phase::Connecting(connecting) => Some(connecting.due.min(connecting.deadline)),
            Phase::Up(session) => {
                let awaiting = !session.tx.is_quiet() || (home.liveness_limit > 0 && owed);
                if awaiting && !session.awaiting {
                    session.quiet_since = wire.now;
                    session.probed = wire.now;
                }
                session.awaiting = awaiting;
                let end = awaiting.then(|| session.quiet_since.saturating_add(limit));
                let probe = session.probe_at(home).filter(|_| awaiting);
                [session.tx.due(), end, probe].into_iter().flatten().min()
            }
        };
        let due = due.filter(|due| *due < Nanos::MAX);
        if self.timer.map(|key| key.at) == due.map(|due| due.max(wire.now)) {
            return;
        }
        if let Some(key) = self.timer.take() {
            wire.remove(key);
        }
        self.timer =
            due.map(|due| wire.push(due, Event::Timer { node: home.greeting.node, peer: self.id }));
    }

    /// Ends the connection on this side and says what it was.
    pub(crate) fn disconnect(&mut self, end: Phase, wire: &mut Wire) -> Phase {
        if let Some(local) = self.local() {
            wire.routes.remove(&local);
        }
        if let Some(key) = self.timer.take() {
            wire.remove(key);
        }
        std::mem::replace(&mut self.phase, end)
    }
}

impl Session {
    pub(crate) fn transmit(
        &mut self,
        (src, dst): (HostId, HostId),
        seq: u64,
        frame: Frame,
        fate: Fate,
        wire: &mut Wire,
    ) {
        let (from, to) = (self.local, self.remote);
        let body = Body::Frame { seq, stamp: wire.now, frame };
        let packet = Packet { src, dst, from, to, body };
        let left = wire.send(packet, fate);
        self.tx.left(seq, left);
    }

    /// When the next sign of life has to be asked for.
    fn probe_at(&self, home: &Home) -> Option<Nanos> {
        let interval = (home.liveness_limit > 0).then_some(home.liveness_limit / 4)?;
        Some(self.quiet_since.max(self.probed).saturating_add(interval.max(1)))
    }
}
