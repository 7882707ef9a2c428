//! The effects of a packet on the node that it reaches.

use super::node::{Node, PeerName, State};
use super::peer::{EarlyMessage, Peer, Phase, Verdict};
use super::wire::Wire;
use crate::base::trace::Fate;
use crate::protocol::outgoing::Ends;
use crate::protocol::packet::{Body, Epoch, Frame, Greeting, Packet};
use na_core::Error;

impl Node {
    /// A peer greets us. `uri` is its address.
    pub(crate) fn hello(&mut self, packet: &Packet, theirs: &Greeting, uri: &str, wire: &mut Wire) {
        let remote = packet.from;
        // A group has a connection with each caller, so that none is taken for another one.
        let id = match theirs.listening && self.home.greeting.listening {
            true => self.named_peer(packet.src, uri, None),
            false => self.origin(packet, theirs, uri, wire),
        };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.session().is_some_and(|session| session.remote == remote) {
            // Our welcome was lost, or its hello came twice.
            wire.trace_packet(packet, Fate::Repeated);
            return peer.send_body(Body::Welcome(self.home.greeting), &self.home, wire);
        }
        if remote <= peer.newest {
            return wire.trace_packet(packet, Fate::Stale);
        }
        wire.trace_packet(packet, Fate::Delivered);
        if peer.session().is_some() {
            let error =
                peer.gone("it has begun a new connection: it was restarted, or had given up");
            self.end_peer(id, error, wire);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Two that greet each other at once keep what each of them began.
        let local = peer.local().unwrap_or_else(|| wire.fresh_epoch());
        wire.routes.insert(local, (self.home.greeting.node, id));
        let mut ends = Ends::default();
        peer.establish((local, remote), theirs, &self.home, wire, &mut ends);
        peer.send_body(Body::Welcome(self.home.greeting), &self.home, wire);
        peer.out.push_first(Frame::Ready);
        self.report(ends, wire);
        self.pump(id, wire);
    }

    /// The peer for a connection of an origin that nobody can call: one for each connection.
    fn origin(&mut self, packet: &Packet, theirs: &Greeting, uri: &str, wire: &mut Wire) -> u64 {
        let key = (theirs.node, theirs.wanted);
        if let Some(id) = self.origins.get(&key).copied()
            && let Some(peer) = self.peers.get(&id)
        {
            if packet.from <= peer.newest {
                return id;
            }
            if !matches!(peer.phase, Phase::Gone(_)) {
                let error = peer.gone("it has begun a new connection: it had given up the old one");
                self.end_peer(id, error, wire);
            }
        }
        self.forget_origins();
        let identity = theirs.family.map(|family| self.group.identity(PeerName::Group(family)));
        let id = self.new_peer(packet.src, uri, (Some(key), None), identity);
        self.origins.insert(key, id);
        id
    }

    /// There is no such connection at the peer.
    pub(crate) fn reset(&mut self, id: u64, local: Epoch, reason: &str, wire: &mut Wire) {
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.local() == Some(local)) else {
            return;
        };
        let error = match peer.phase {
            Phase::Connecting(_) => peer.unreachable(reason),
            _ => peer.gone(reason),
        };
        self.end_peer(id, error, wire);
    }

    /// Any other packet. `false`: it is not of a connection that we have.
    pub(crate) fn packet(&mut self, id: u64, packet: Packet, wire: &mut Wire) -> bool {
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        if let (Body::Welcome(theirs), Phase::Connecting(connecting)) = (&packet.body, &peer.phase)
        {
            let local = connecting.local;
            wire.trace_packet(&packet, Fate::Delivered);
            let mut ends = Ends::default();
            peer.establish((local, packet.from), theirs, &self.home, wire, &mut ends);
            self.report(ends, wire);
            self.pump(id, wire);
            return true;
        }
        if let Phase::Connecting(_) = peer.phase {
            // It overtook the welcome, and will be repeated.
            wire.trace_packet(&packet, Fate::Stale);
            return true;
        }
        let open = self.state == State::Open;
        let Some(session) = peer.session().filter(|session| session.remote == packet.from) else {
            return false;
        };
        session.quiet_since = wire.now;
        match packet.body {
            Body::Ack { next, have, stamp } => {
                wire.trace_packet(&packet, Fate::Delivered);
                session.tx.acknowledged(next, have, wire.now - stamp);
                self.after_ack(id, wire);
            }
            Body::Probe { stamp } => {
                wire.trace_packet(&packet, Fate::Delivered);
                let ack = Body::Ack { next: session.rx.next(), have: u64::MAX, stamp };
                peer.send_body(ack, &self.home, wire);
            }
            Body::Frame { seq, stamp, ref frame } => {
                let mut ready = Vec::new();
                let fresh = session.rx.take(seq, frame.clone(), &mut ready);
                let ack = Body::Ack { next: session.rx.next(), have: seq, stamp };
                wire.trace_packet(&packet, if fresh { Fate::Delivered } else { Fate::Repeated });
                peer.send_body(ack, &self.home, wire);
                // A closed node acknowledges, since the peer may wait for that to end as well, but
                // has no more use for anything.
                if open {
                    ready.into_iter().for_each(|frame| self.frame(id, frame, wire));
                    self.deliver_held(id, wire);
                }
            }
            Body::Welcome(_) => wire.trace_packet(&packet, Fate::Repeated),
            Body::Hello(_) | Body::Reset(_) => {}
        }
        true
    }

    /// Ends the connection of a closed node when its farewell has arrived.
    fn after_ack(&mut self, id: u64, wire: &mut Wire) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if self.state == State::Closed && peer.session().is_some_and(|s| s.tx.is_quiet()) {
            drop(peer.disconnect(Phase::Idle, wire));
        } else {
            peer.arm(&self.home, wire);
        }
    }

    /// A frame whose turn it is.
    fn frame(&mut self, id: u64, frame: Frame, wire: &mut Wire) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut ends = Ends::default();
        let charge = frame.charge();
        match frame {
            Frame::Message { kind, tag, bytes } => {
                if let Phase::Up(session) = &mut peer.phase {
                    session.held.push_back(EarlyMessage { kind, tag, bytes, charge });
                }
            }
            Frame::Request(request) => {
                let (key, offset, len) = (request.key, request.offset, request.len);
                let lease = self.regions.lease(key, offset, len, request.put);
                peer.out.serve(request, lease, &mut ends);
            }
            Frame::Data { put, id, bytes } => {
                peer.out.data(put, id, &bytes, &mut ends);
                if let Phase::Up(session) = &mut peer.phase {
                    session.uncredited += charge;
                }
            }
            Frame::Done { id, status } => {
                let result =
                    status.map_err(|reason| Error::Denied { peer: peer.uri.to_string(), reason });
                peer.out.done(id, result, &mut ends);
            }
            Frame::Cancel { put, id } => peer.out.canceled_by_peer(put, id, &mut ends),
            Frame::Credit(bytes) => {
                if let Phase::Up(session) = &mut peer.phase {
                    session.tx.credited(bytes);
                }
            }
            Frame::Ready => {}
            Frame::Bye => {
                let error = peer.gone("it was closed");
                self.end_peer(id, error, wire);
            }
        }
        self.report(ends, wire);
    }

    /// A connection's timer. Returns what to tell the peer when the connection was given up.
    pub(crate) fn timer(&mut self, id: u64, wire: &mut Wire) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let error = match peer.timer(&self.home, wire) {
            Verdict::Fine => return,
            Verdict::Unreachable => {
                peer.unreachable(format!("no answer within {}", seconds(self.home.connect_timeout)))
            }
            Verdict::Silent(limit) => {
                let reason = format!("no sign of life for {}", seconds(limit));
                self.tell_end(id, wire);
                match self.peers.get(&id) {
                    Some(peer) => peer.gone(reason),
                    None => return,
                }
            }
        };
        self.end_peer(id, error, wire);
    }

    /// Tells a peer that we give up, for the case that it can hear us.
    fn tell_end(&mut self, id: u64, wire: &mut Wire) {
        if let Some(Peer { host, phase: Phase::Up(session), .. }) = self.peers.get(&id) {
            let packet = Packet {
                src: self.home.host,
                dst: *host,
                from: session.local,
                to: session.remote,
                body: Body::Reset("it heard nothing from us and gave up"),
            };
            wire.send(packet, Fate::Sent);
        }
    }
}

fn seconds(nanos: u64) -> String {
    format!("{:?}", std::time::Duration::from_nanos(nanos))
}
