//! The endpoint: each call takes the network's lock, works on the node's state, and leaves.
//!
//! # Locks, in the order in which they may be taken
//!
//! 1. `gate`: one poll at a time. Held while the sink and scheduled calls run.
//! 2. the network's (`Network::with`). Nothing foreign runs under it: memory is released, and sinks
//!    and scheduled calls are called, after it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;

use crate::base::address;
use crate::base::options::{self, Drive};
use crate::cluster::network::Network;
use crate::cluster::node::{Node, State};
use crate::cluster::peer::Peer;
use crate::cluster::wire::Wire;
use crate::cluster::world::{Step, World};
use crate::protocol::{outgoing::Queued, packet::NodeId};
use na_core::endpoint::stats;
use na_core::group::check_shards;
use na_core::matching::Kind;
use na_core::memory::handed::arrived;
use na_core::{
    Access, Addr, Completion, Endpoint, EndpointStats, Error, LargeBuffers, Limits, LocalMem,
    Memory, MsgBuf, OpId, OpenOptions, Principal, Refused, RegionTable, Tag, Transfer, Uri,
};
use prim::sync::{Arc, Mutex, lock};

/// Events that one poll makes happen at most, when none of them is for its endpoint.
const STEPS_PER_POLL: usize = 256;

/// An endpoint of the sim transport.
pub(super) struct SimEndpoint {
    network: Network,
    node: NodeId,
    own: Addr,
    message_bytes_max: usize,
    regions: RegionTable,
    bell: std::sync::Arc<OwnedFd>,
    /// Completions that were taken and not yet reported.
    gate: Mutex<VecDeque<Completion>>,
}

impl Network {
    /// Opens an endpoint as the node `node`, for example again after a crash: peers reach it under
    /// the same address and see that it is another. An empty name chooses `node-1`, `node-2` ….
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name that cannot be used, [`Error::BadOption`] for a limit,
    /// [`Error::Io`] when a node of that name runs or no eventfd can be made.
    pub fn open(
        &self,
        node: &str,
        options: &OpenOptions,
    ) -> Result<std::sync::Arc<dyn Endpoint>, Error> {
        let mut one = self.open_group(node, options, 1)?;
        one.pop().ok_or(Error::Closed)
    }

    /// Opens a group of `shards` endpoints as the node `node`; see [`Plugin::open_group`]. A caller
    /// that names none gets the first one of those with the fewest such callers, so that everything
    /// follows from the seed.
    ///
    /// [`Plugin::open_group`]: na_core::Plugin::open_group
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`Error::InvalidArgument`] for no shard, and for more than 128.
    pub fn open_group(
        &self,
        node: &str,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<std::sync::Arc<dyn Endpoint>>, Error> {
        address::check_name("node", node).map_err(Error::InvalidArgument)?;
        options::check(options)?;
        check_shards(shards)?;
        let group = SimEndpoint::open_group(self, node, options, shards)?;
        Ok(group.into_iter().map(|shard| std::sync::Arc::new(shard) as _).collect())
    }
}

fn make_bell() -> Result<Arc<OwnedFd>, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map(Arc::new)
        .map_err(|errno| Error::io("cannot create an eventfd", errno))
}

impl SimEndpoint {
    fn open_group(
        network: &Network,
        name: &str,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Self>, Error> {
        let bells = (0..shards).map(|_| make_bell()).collect::<Result<Vec<_>, _>>()?;
        network.with(|world| {
            let nodes = world.open(name, options, &bells)?;
            let endpoint = |(node, bell)| Self::of_node(network, world, node, bell);
            Ok(nodes.into_iter().zip(bells).filter_map(endpoint).collect())
        })
    }

    /// The endpoint of a node that was opened just now.
    fn of_node(
        network: &Network,
        world: &mut World,
        node: NodeId,
        bell: Arc<OwnedFd>,
    ) -> Option<Self> {
        let (opened, _) = world.node(node)?;
        Some(Self {
            network: network.clone(),
            node,
            own: opened.own.clone(),
            message_bytes_max: opened.home.greeting.message_bytes_max,
            regions: opened.regions.clone(),
            bell,
            gate: Mutex::default(),
        })
    }

    /// The peer of that name, of its group the node `wanted` if possible.
    fn peer_named(&self, uri: &str, wanted: Option<usize>) -> Result<Addr, Error> {
        let bad = |reason: String| Error::BadUri { uri: uri.to_owned(), reason };
        let parsed = Uri::parse(uri)?;
        let (network, name) = address::parts(&parsed)?;
        if name.is_empty() {
            return Err(bad("it names no node; expected `na+sim://network/node`".into()));
        }
        if network != self.network.name() {
            let own = self.network.name();
            return Err(bad(format!("this endpoint is in the network `{own}`, not `{network}`")));
        }
        let uri = address::uri_of(network, name);
        if uri == self.own.uri() {
            return Ok(self.own.clone());
        }
        let addr = self.with(|node, wire| {
            let host = wire.host(name);
            let peer = node.named_peer(host, &uri, wanted);
            node.peers.get(&peer).and_then(|peer| peer.addr.clone())
        });
        addr.flatten().ok_or(Error::Closed)
    }

    /// The node lives as long as its endpoint; `None` cannot happen, and means closed.
    fn with<R>(&self, work: impl FnOnce(&mut Node, &mut Wire) -> R) -> Option<R> {
        self.with_item((), |node, wire, ()| work(node, wire)).ok()
    }

    /// Runs `work` on the node with `item`, or hands `item` back if the endpoint is closed.
    fn with_item<T, R>(
        &self,
        item: T,
        work: impl FnOnce(&mut Node, &mut Wire, T) -> R,
    ) -> Result<R, T> {
        self.network.with(|world| match world.node(self.node) {
            Some((node, wire)) => Ok(work(node, wire, item)),
            None => Err(item),
        })
    }

    fn send(&self, to: &Addr, message: Queued) -> Result<(), Refused> {
        match self.with_item(message, |node, wire, message| node.send(to, message, wire)) {
            Ok(sent) => sent.map_err(|(error, buf)| Refused { error, buf }),
            Err(message) => Err(Refused { error: Error::Closed, buf: message.buf }),
        }
    }

    fn recv(&self, op: OpId, from: Option<(&Addr, Tag)>, buf: MsgBuf) -> Result<(), Refused> {
        if let Err(error) = buf.check_room(self.message_bytes_max) {
            return Err(Refused { error, buf });
        }
        match self.with_item(buf, |node, wire, buf| node.recv(op, from, buf, wire)) {
            Ok(posted) => posted.map_err(|(error, buf)| Refused { error, buf }),
            Err(buf) => Err(Refused { error: Error::Closed, buf }),
        }
    }

    fn transfer(&self, put: bool, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        let started = self
            .with_item(transfer, |node, wire, transfer| node.transfer(op, put, to, transfer, wire));
        started.unwrap_or(Err(Error::Closed))
    }

    /// Takes completions, or moves the clock until there are some.
    fn collect(&self, budget: usize, batch: &mut VecDeque<Completion>) -> Result<(), Error> {
        let mut steps = STEPS_PER_POLL;
        loop {
            let step = self.network.with(|world| {
                world.sleepers.remove(&self.node);
                loop {
                    let Some((node, _)) = world.node(self.node) else { return Ok(Step::Idle) };
                    node.done.wake();
                    let ready = node.done.queue.len().min(budget);
                    if ready > 0 || budget == 0 {
                        batch.extend(node.done.queue.drain(..ready));
                        return Ok(Step::Idle);
                    }
                    if let State::Crashed { told: told @ false } = &mut node.state {
                        *told = true;
                        return Err(Error::Unavailable {
                            transport: "sim",
                            reason: format!("{} has crashed; open it again", self.own),
                        });
                    }
                    if world.wire.settings.drive == Drive::Manual || steps == 0 {
                        return Ok(Step::Idle);
                    }
                    steps -= 1;
                    match world.step(u64::MAX) {
                        Step::Done => {}
                        other => return Ok(other),
                    }
                }
            })?;
            match step {
                Step::Call(call) => self.network.run_call(call),
                Step::Idle | Step::Done => return Ok(()),
            }
        }
    }
}

impl Endpoint for SimEndpoint {
    fn transport(&self) -> &'static str {
        "sim"
    }

    fn carries_extensions(&self, _to: &Addr) -> bool {
        true
    }

    fn is_gone(&self, peer: &Addr) -> bool {
        let ended = |node: &Node| {
            node.peers.get(&peer.peer_id()).is_some_and(|known| known.is_gone_as(peer))
        };
        peer.endpoint_id() == self.own.endpoint_id()
            && self.with(|node, _| ended(node)).unwrap_or(false)
    }

    fn principal(&self, peer: &Addr) -> Principal {
        if peer.endpoint_id() != self.own.endpoint_id() {
            return Principal::Unknown;
        }
        let known = self.with(|node, wire| {
            let known = node.peers.get(&peer.peer_id())?;
            Some(wire.hosts[known.host].principal)
        });
        known.flatten().unwrap_or(Principal::Unknown)
    }

    fn limits(&self) -> Limits {
        let max = self.message_bytes_max;
        Limits { unexpected_bytes_max: max, expected_bytes_max: max }
    }

    fn self_addr(&self) -> Addr {
        self.own.clone()
    }

    fn served(&self) -> u64 {
        self.regions.served()
    }

    fn stats(&self) -> EndpointStats {
        let peers = self.with(|node, wire| {
            let stats = |peer: &Peer| {
                let mut stats = peer.stats();
                stats.principal = wire.hosts[peer.host].principal;
                (peer.id, stats)
            };
            let mut peers: Vec<_> = node.peers.values().map(stats).collect();
            stats::assign(&mut peers, node.matcher.awaited());
            peers.into_iter().map(|(_, stats)| stats).collect()
        });
        EndpointStats::new(self.regions.totals(), peers.unwrap_or_default())
    }

    fn lookup(&self, uri: &str) -> Result<Addr, Error> {
        self.peer_named(uri, None)
    }

    fn lookup_shard(&self, uri: &str, shard: usize) -> Result<Addr, Error> {
        self.peer_named(uri, Some(shard))
    }

    fn retire(&self) -> Result<(), Error> {
        let retired = self.with(|node, _| {
            node.home.accepts = false;
            node.is_open()
        });
        if retired == Some(true) { Ok(()) } else { Err(Error::Closed) }
    }

    fn open_another(&self) -> Result<std::sync::Arc<dyn Endpoint>, Error> {
        let bell = make_bell()?;
        let opened = self.network.with(|world| {
            let node = world.open_another(self.node, bell.clone())?;
            Self::of_node(&self.network, world, node, bell).ok_or(Error::Closed)
        })?;
        Ok(std::sync::Arc::new(opened))
    }

    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(to, Queued { op, kind: Kind::Unexpected, tag, buf })
    }

    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused> {
        self.recv(op, None, buf)
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
        let posted = self.with(|node, wire| node.recv_many(op, count, buffers, wire));
        posted.unwrap_or(Err(Error::Closed))
    }

    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.send(to, Queued { op, kind: Kind::Expected, tag, buf })
    }

    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused> {
        self.recv(op, Some((from, tag)), buf)
    }

    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        match self.with(|node, _| node.is_open()) {
            Some(true) => self.regions.register(memory, access),
            _ => Err(Error::Closed),
        }
    }

    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        match self.with(|node, _| node.is_open()) {
            Some(true) => self.regions.register_local(memory, access),
            _ => Err(Error::Closed),
        }
    }

    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(true, op, to, transfer)
    }

    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error> {
        self.transfer(false, op, from, transfer)
    }

    fn cancel(&self, op: OpId) {
        self.with(|node, wire| node.cancel(op, wire));
    }

    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error> {
        let mut gate = lock(&self.gate);
        // What a panic of the sink has left over comes first.
        if gate.is_empty() {
            self.collect(budget, &mut gate)?;
        }
        let mut reported = 0;
        while reported < budget
            && let Some(completion) = gate.pop_front()
        {
            reported += 1;
            sink(completion);
        }
        Ok(reported)
    }

    fn prepare_wait(&self) -> bool {
        let gate = lock(&self.gate);
        gate.is_empty()
            && self.network.with(|world| {
                if world.has_work(self.node) {
                    return false;
                }
                let Some((node, _)) = world.node(self.node) else { return false };
                node.done.sleeping = true;
                world.sleepers.insert(self.node);
                true
            })
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn close(&self) {
        self.network.with(|world| world.close(self.node));
    }

    fn hand_over(&self, to: &Addr, number: u64, fd: OwnedFd) -> Result<(), Error> {
        let known =
            |node: &Node| node.peers.get(&to.peer_id()).is_some_and(|known| !known.is_gone_as(to));
        if to.endpoint_id() != self.own.endpoint_id()
            || !self.with(|node, _| known(node)).unwrap_or(false)
        {
            let reason = format!("{to} is not connected");
            return Err(Error::Unavailable { transport: "sim", reason });
        }
        // All nodes are of this process. What nobody expects is closed, as elsewhere.
        let _ = arrived(number, fd);
        Ok(())
    }

    fn bulk_path(&self) -> String {
        "copy within the process, in simulated packets".into()
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.network.with(|world| world.abandon(self.node));
    }
}

impl fmt::Debug for SimEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimEndpoint({})", self.own)
    }
}
