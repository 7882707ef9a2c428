//! The end of connections and nodes: each operation gets its completion, and all memory is
//! released.

use super::node::{Node, State};
use super::peer::{EarlyMessage, Phase};
use super::wire::Wire;
use crate::protocol::outgoing::Ends;
use crate::protocol::packet::{Frame, HostId};
use na_core::Error;
use na_core::matching::Arrived;

impl Node {
    /// Ends the connection with `peer`, and with it everything in flight.
    pub(crate) fn end_peer(&mut self, peer: u64, error: Error, wire: &mut Wire) {
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
        if let Phase::Up(session) = ended {
            self.matcher.lift_bound(peer);
            for EarlyMessage { kind, tag, bytes, .. } in session.held {
                if let Arrived::Completed(completion) =
                    self.matcher.arrive(kind, &session.addr, tag, &bytes)
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
    pub(crate) fn close(&mut self, wire: &mut Wire) {
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
    pub(crate) fn crash(&mut self, wire: &mut Wire) -> Vec<(HostId, u64, u64)> {
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
