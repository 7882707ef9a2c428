//! The simulated world: the wire and the nodes on it, and the steps that carry out events.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::node::{Node, OfGroup};
use super::peer::Home;
use super::wire::{Call, Event, Wire};
use crate::base::address;
use crate::base::options::{Drive, Nanos, Settings, nanos};
use crate::base::trace::Fate;
use crate::protocol::packet::{Body, Greeting, HostId, NodeId, Packet};
use na_core::group::check_shards;
use na_core::group::directory::Directory;
use na_core::{Addr, Error, OpenOptions, RegionTable};

/// The result of a step.
pub(crate) enum Step {
    /// Nothing was left to happen.
    Idle,
    Done,
    /// This must be called, without the lock.
    Call(Call),
}

pub(crate) struct World {
    pub(crate) wire: Wire,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// Nodes whose caller has announced a sleep.
    pub(crate) sleepers: BTreeSet<NodeId>,
    /// A scheduled call runs, without the lock: until it has ended, nothing else happens.
    pub(crate) is_calling: bool,
    name: Arc<str>,
    next_node: NodeId,
    next_name: u64,
}

impl World {
    pub(crate) fn new(name: Arc<str>, settings: Settings) -> Self {
        Self {
            wire: Wire::new(settings),
            nodes: BTreeMap::new(),
            sleepers: BTreeSet::new(),
            is_calling: false,
            name,
            next_node: 1,
            next_name: 1,
        }
    }

    /// Opens a node for each bell under `name`, or under a name of our choice.
    pub(crate) fn open(
        &mut self,
        name: &str,
        options: &OpenOptions,
        bells: &[Arc<OwnedFd>],
    ) -> Result<Vec<NodeId>, Error> {
        let chosen;
        let name = match name {
            "" => {
                chosen = self.free_name();
                &chosen
            }
            name => name,
        };
        let host = self.wire.host(name);
        let uri = address::uri_of(&self.name, name);
        if !self.wire.hosts[host].nodes.is_empty() {
            let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            return Err(Error::io(format!("cannot open `{uri}`: a node of that name runs"), error));
        }
        self.wire.hosts[host].powered = true;
        self.wire.note(host, if options.listen { "opened, listening" } else { "opened" });
        self.wire.hosts[host].shards = 0;
        let directory = Arc::new(Directory::new(Addr::unique_endpoint_id()));
        let family = (bells.len() > 1).then(|| directory.family());
        let shared = OfGroup { uri, regions: RegionTable::new(), directory };
        let greeting = Greeting {
            node: 0,
            listening: options.listen && family.is_none(),
            message_bytes_max: options.message_bytes_max,
            family,
            wanted: None,
        };
        let home = Home {
            host,
            greeting,
            shard: 0,
            listens: options.listen,
            accepts: options.listen,
            left_bytes_max: options.left_bytes_max,
            connect_timeout: nanos(options.connect_timeout),
            liveness_limit: nanos(options.liveness_limit),
        };
        Ok(bells.iter().map(|bell| self.add_node(home, shared.clone(), bell.clone())).collect())
    }

    /// Opens one more node of the group that `one` is of.
    pub(crate) fn open_another(
        &mut self,
        one: NodeId,
        bell: Arc<OwnedFd>,
    ) -> Result<NodeId, Error> {
        let node = self.nodes.get(&one).filter(|node| node.is_open()).ok_or(Error::Closed)?;
        let (directory, regions) = (node.group.clone(), node.regions.clone());
        let (mut home, uri) = (node.home, node.own.uri().to_owned());
        home.accepts = home.listens;
        let host = &self.wire.hosts[home.host];
        check_shards(host.shards + 1)?;
        // From now on nobody takes a connection of one for one with another.
        home.greeting.listening = false;
        home.greeting.family = Some(directory.family());
        for node in &host.nodes {
            if let Some(node) = self.nodes.get_mut(node) {
                let greeting = Greeting { node: node.id(), ..home.greeting };
                node.home.greeting = greeting;
            }
        }
        self.wire.note(home.host, "grew");
        Ok(self.add_node(home, OfGroup { uri, regions, directory }, bell))
    }

    /// Adds the next node on the host of `home`.
    fn add_node(&mut self, mut home: Home, shared: OfGroup, bell: Arc<OwnedFd>) -> NodeId {
        let node = self.next_node;
        self.next_node += 1;
        let host = &mut self.wire.hosts[home.host];
        (home.greeting.node, home.shard) = (node, host.shards);
        host.shards += 1;
        host.nodes.push(node);
        self.nodes.insert(node, Node::new(home, shared, bell));
        node
    }

    fn free_name(&mut self) -> String {
        loop {
            let name = format!("node-{}", self.next_name);
            self.next_name += 1;
            let host = self.wire.host(&name);
            if self.wire.hosts[host].nodes.is_empty() {
                return name;
            }
        }
    }

    /// The node's state with what it needs of the rest. `None` after its end.
    pub(crate) fn node(&mut self, id: NodeId) -> Option<(&mut Node, &mut Wire)> {
        let Self { nodes, wire, .. } = self;
        nodes.get_mut(&id).map(|node| (node, wire))
    }

    // ---- events ----

    /// Makes the next thing happen, if it happens by `until`.
    pub(crate) fn step(&mut self, until: Nanos) -> Step {
        if self.is_calling || self.wire.next_at().is_none_or(|at| at > until) {
            return Step::Idle;
        }
        let Some(event) = self.wire.pop() else { return Step::Idle };
        match event {
            Event::Arrive(packet) => {
                if let Some(packet) = self.wire.arrive(packet) {
                    self.handle(packet);
                }
            }
            Event::Handle(packet) => self.handle(packet),
            Event::Timer { node, peer } => {
                if let Some((node, wire)) = self.node(node) {
                    node.timer(peer, wire);
                }
                self.forget_if_over(node);
            }
            Event::Loopback { node } => {
                if let Some((node, wire)) = self.node(node) {
                    node.run_loopback(wire);
                }
            }
            Event::Notice { reset, tries, until } => self.notice(reset, tries, until),
            Event::Call(call) => {
                self.is_calling = true;
                return Step::Call(call);
            }
        }
        Step::Done
    }

    fn handle(&mut self, packet: Packet) {
        if !self.wire.hosts[packet.dst].powered {
            return self.wire.trace_packet(&packet, Fate::NobodyHome);
        }
        match packet.body {
            Body::Hello(theirs) => self.hello(&packet, &theirs),
            Body::Reset(reason) => {
                self.wire.trace_packet(&packet, Fate::Delivered);
                if let Some((node, peer)) = self.wire.routes.get(&packet.to).copied() {
                    if let Some((node, wire)) = self.node(node) {
                        node.reset(peer, packet.to, reason, wire);
                    }
                    self.forget_if_over(node);
                }
            }
            _ => {
                let (src, from) = (packet.src, packet.from);
                let (dst, to) = (packet.dst, packet.to);
                let route = self.wire.routes.get(&to).copied();
                if let Some((id, peer)) = route
                    && let Some((node, wire)) = self.node(id)
                    && node.packet(peer, packet.clone(), wire)
                {
                    return self.forget_if_over(id);
                }
                self.wire.trace_packet(&packet, Fate::Stale);
                self.send_reset((dst, src), (to, from), "it does not know this connection");
            }
        }
    }

    fn hello(&mut self, packet: &Packet, theirs: &Greeting) {
        let node = self.place_of(packet, theirs);
        let Self { nodes, wire, name, .. } = self;
        if let Some(node) = node.and_then(|node| nodes.get_mut(&node)) {
            let uri = address::uri_of(name, &wire.hosts[packet.src].name);
            return node.hello(packet, theirs, &uri, wire);
        }
        wire.trace_packet(packet, Fate::Delivered);
        let ends = (packet.dst, packet.src);
        self.send_reset(ends, (0, packet.from), "nobody listens there");
    }

    /// The node on its host that a caller is connected with: the one that it has greeted before;
    /// else the one that it has named, or the first of those with the fewest connections of callers
    /// that have named none.
    fn place_of(&self, hello: &Packet, theirs: &Greeting) -> Option<NodeId> {
        let is = |id: &NodeId, what: &dyn Fn(&Node) -> bool| self.nodes.get(id).is_some_and(what);
        let listens = |id: &NodeId| is(id, &|node| node.home.accepts);
        let running = &self.wire.hosts[hello.dst].nodes;
        let key = (theirs.node, theirs.wanted);
        let knows = |node: &Node| {
            (node.home.accepts && node.origins.contains_key(&key)) || node.is_up_with(hello.from)
        };
        if let Some(known) = running.iter().find(|id| is(id, &knows)) {
            return Some(*known);
        }
        let named = theirs.wanted.and_then(|wanted| {
            running.iter().copied().find(|id| is(id, &|node| node.home.shard == wanted))
        });
        let named = named.filter(listens);
        let least = || {
            let open = running.iter().copied().filter(listens);
            open.min_by_key(|id| self.nodes.get(id).map_or(0, Node::unwished))
        };
        named.or_else(least)
    }

    fn send_reset(
        &mut self,
        (src, dst): (HostId, HostId),
        (from, to): (u64, u64),
        reason: &'static str,
    ) {
        let body = Body::Reset(reason);
        self.wire.send(Packet { src, dst, from, to, body }, Fate::Sent);
    }

    /// A machine tells a peer of its dead node, again and again until the peer knows.
    fn notice(&mut self, reset: Packet, tries: u32, until: Nanos) {
        if !self.wire.routes.contains_key(&reset.to) || !self.wire.hosts[reset.src].powered {
            return;
        }
        let fate = if tries == 0 { Fate::Sent } else { Fate::Retransmitted };
        let wait = (2 * self.wire.round_trip(reset.src, reset.dst) + 1_000) << tries.min(10);
        let left = self.wire.send(reset.clone(), fate);
        if left + wait < until {
            self.wire.push(left + wait, Event::Notice { reset, tries: tries + 1, until });
        }
    }

    // ---- ends ----

    pub(crate) fn close(&mut self, id: NodeId) {
        let Some((node, wire)) = self.node(id) else { return };
        node.close(wire);
        let host = &mut wire.hosts[node.home.host];
        host.nodes.retain(|node| *node != id);
        self.forget_if_over(id);
    }

    /// Kills the node on `host`; with `power` off, nobody is left to tell its peers.
    pub(crate) fn crash(&mut self, host: HostId, power: bool) {
        let was_on = std::mem::replace(&mut self.wire.hosts[host].powered, power);
        let text = if power { "crashed" } else { "lost power" };
        if was_on || power {
            self.wire.note(host, text);
        }
        self.wire.hosts[host].nodes.clear();
        // Nodes that were closed and still say farewell die as well.
        let Self { nodes, wire, .. } = self;
        let mut lost = Vec::new();
        for node in nodes.values_mut().filter(|node| node.home.host == host) {
            lost.extend(node.crash(wire));
        }
        let until = wire.now.saturating_add(wire.settings.peer_limit);
        for (dst, from, to) in lost.into_iter().filter(|_| power) {
            let body = Body::Reset("its process died");
            let reset = Packet { src: host, dst, from, to, body };
            wire.push(wire.now, Event::Notice { reset, tries: 0, until });
        }
        let over: Vec<NodeId> = nodes.keys().copied().collect();
        over.into_iter().for_each(|node| self.forget_if_over(node));
    }

    /// Nobody will poll the node any more.
    pub(crate) fn abandon(&mut self, id: NodeId) {
        self.close(id);
        self.sleepers.remove(&id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.abandoned = true;
            node.done.abandon();
        }
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(Node::is_over) {
            self.nodes.remove(&id);
        }
    }

    // ---- sleepers ----

    /// Returns whether a poll of the node would do something.
    pub(crate) fn has_work(&self, id: NodeId) -> bool {
        let moves = self.wire.settings.drive == Drive::OnPoll && self.wire.next_at().is_some();
        moves || self.nodes.get(&id).is_some_and(|node| !node.done.queue.is_empty())
    }

    /// Wakes callers that sleep, if polls move the clock and there is an event to move it to: the
    /// caller that would poll otherwise may have stopped.
    pub(crate) fn wake_sleepers(&mut self) {
        if self.sleepers.is_empty()
            || self.wire.settings.drive == Drive::Manual
            || self.wire.next_at().is_none()
        {
            return;
        }
        for id in std::mem::take(&mut self.sleepers) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.done.ring();
            }
        }
    }
}
