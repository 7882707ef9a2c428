//! The clock, the events to come, and the faults of links.
//!
//! Every [`Event`] to come is in one queue, ordered by time. A random number decides between events
//! at the same time, so that the seed also chooses which of two simultaneous events comes first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::network::Network;
use crate::base::options::{LinkOptions, Nanos, Settings, nanos};
use crate::base::trace::{Fate, Trace};
use crate::protocol::packet::{Epoch, HostId, NodeId, Packet};
use na_core::base::random::Random;
use na_core::{LocalMem, Principal};

/// The closure that a caller of `schedule` wants to run.
pub(crate) type Call = Box<dyn FnOnce(&Network) + Send>;

pub(crate) enum Event {
    /// A packet reaches its host.
    Arrive(Packet),
    /// The host handles a packet that has reached it.
    Handle(Packet),
    /// A timer of a connection fires.
    Timer { node: NodeId, peer: u64 },
    /// A node goes on with the messages and transfers to itself.
    Loopback { node: NodeId },
    /// A machine whose node died tells a peer, and repeats it until the packet gets through.
    Notice { reset: Packet, tries: u32, until: Nanos },
    /// See `Network::schedule`.
    Call(Call),
}

/// An event's place in the queue, and its name for cancelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EventKey {
    pub(crate) at: Nanos,
    tie: u64,
    number: u64,
}

/// A machine. It stays known for as long as the network exists.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: Arc<str>,
    /// The nodes that run here: one, or those of a group, in order.
    pub(crate) nodes: Vec<NodeId>,
    /// How many were opened under its name since nothing ran there.
    pub(crate) shards: usize,
    pub(crate) powered: bool,
    /// The time that each packet, in or out, costs the host.
    pub(crate) cost: Nanos,
    /// The principal that its peers are told.
    pub(crate) principal: Principal,
    busy_until: Nanos,
}

#[derive(Debug)]
struct Link {
    options: LinkOptions,
    busy_until: Nanos,
}

pub(crate) struct Wire {
    pub(crate) now: Nanos,
    pub(crate) settings: Settings,
    pub(crate) trace: Trace,
    pub(crate) hosts: Vec<Host>,
    /// The node and the peer there to which packets of a connection go.
    pub(crate) routes: BTreeMap<Epoch, (NodeId, u64)>,
    /// Memory to release when no lock is held.
    pub(crate) trash: Vec<LocalMem>,
    random: Random,
    queue: BTreeMap<EventKey, Event>,
    numbers: u64,
    epochs: Epoch,
    names: BTreeMap<Arc<str>, HostId>,
    links: BTreeMap<(HostId, HostId), Link>,
    cuts: BTreeSet<(HostId, HostId)>,
}

impl Wire {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            now: 0,
            settings,
            trace: Trace::new(settings.trace_entries),
            hosts: Vec::new(),
            routes: BTreeMap::new(),
            trash: Vec::new(),
            random: Random::new(settings.seed),
            queue: BTreeMap::new(),
            numbers: 0,
            epochs: 0,
            names: BTreeMap::new(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
        }
    }

    /// The host of that name, known from now on.
    pub(crate) fn host(&mut self, name: &str) -> HostId {
        if let Some(host) = self.names.get(name) {
            return *host;
        }
        let name: Arc<str> = name.into();
        let host = self.hosts.len();
        let cost = self.settings.operation_cost;
        self.names.insert(name.clone(), host);
        self.hosts.push(Host {
            name,
            nodes: Vec::new(),
            shards: 0,
            powered: true,
            cost,
            principal: Principal::Unknown,
            busy_until: 0,
        });
        host
    }

    pub(crate) fn fresh_epoch(&mut self) -> Epoch {
        self.epochs += 1;
        self.epochs
    }

    pub(crate) fn note(&mut self, host: HostId, text: impl Into<String>) {
        self.trace.node(self.now, &self.hosts[host].name, text);
    }

    pub(crate) fn set_link(&mut self, from: HostId, to: HostId, options: LinkOptions) {
        self.link(from, to).options = options;
    }

    pub(crate) fn cut(&mut self, from: HostId, to: HostId, cut: bool) {
        let changed = match cut {
            true => self.cuts.insert((from, to)),
            false => self.cuts.remove(&(from, to)),
        };
        if changed {
            let verb = if cut { "cannot reach" } else { "can reach" };
            let text = format!("{verb} {}", self.hosts[to].name);
            self.note(from, text);
        }
    }

    pub(crate) fn heal(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            let text = format!("can reach {}", self.hosts[to].name);
            self.note(from, text);
        }
    }

    // ---- the queue ----

    pub(crate) fn push(&mut self, at: Nanos, event: Event) -> EventKey {
        self.numbers += 1;
        let at = at.max(self.now);
        let key = EventKey { at, tie: self.random.next(), number: self.numbers };
        self.queue.insert(key, event);
        key
    }

    pub(crate) fn remove(&mut self, key: EventKey) -> Option<Event> {
        self.queue.remove(&key)
    }

    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.queue.first_key_value().map(|(key, _)| key.at)
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let (key, event) = self.queue.pop_first()?;
        self.now = key.at;
        Some(event)
    }

    // ---- packets ----

    /// About how long a packet and its answer take, at first sight.
    pub(crate) fn round_trip(&mut self, from: HostId, to: HostId) -> Nanos {
        let costs = 2 * (self.hosts[from].cost + self.hosts[to].cost);
        let there = self.link(from, to).options.latency.typical_max();
        there + self.link(to, from).options.latency.typical_max() + costs
    }

    /// Puts a packet on its way; when it has left.
    pub(crate) fn send(&mut self, packet: Packet, fate: Fate) -> Nanos {
        self.trace_packet(&packet, fate);
        let Wire { hosts, random, now, .. } = self;
        let host = &mut hosts[packet.src];
        host.busy_until = host.busy_until.max(*now) + host.cost;
        let ready = host.busy_until;
        // A draw for each thing that can happen, whether or not it does: a change of one option
        // then changes as little else of the run as possible.
        let (loss, duplicate, reorder) = (random.unit(), random.unit(), random.unit());
        let (src, dst) = (packet.src, packet.dst);
        let link = self.link(src, dst);
        let options = link.options;
        link.busy_until = link.busy_until.max(ready) + time_of(packet.size(), options.bandwidth);
        let left = link.busy_until;
        if self.cuts.contains(&(src, dst)) {
            self.trace_packet(&packet, Fate::Partitioned);
            return left;
        }
        if loss < options.loss {
            self.trace_packet(&packet, Fate::Lost);
            return left;
        }
        let mut delay = options.latency.draw(&mut self.random);
        if reorder < options.reorder {
            let most = nanos(options.reorder_delay);
            delay += (most as f64 * self.random.unit()) as Nanos;
        }
        if duplicate < options.duplicate {
            self.trace_packet(&packet, Fate::Duplicated);
            let again = delay + options.latency.draw(&mut self.random);
            self.push(left + again, Event::Arrive(packet.clone()));
        }
        self.push(left + delay, Event::Arrive(packet));
        left
    }

    /// Returns whether an arriving packet gets to its host's software, and when that has time for
    /// it.
    pub(crate) fn arrive(&mut self, packet: Packet) -> Option<Packet> {
        if self.cuts.contains(&(packet.src, packet.dst)) {
            self.trace_packet(&packet, Fate::Partitioned);
            return None;
        }
        let now = self.now;
        let host = &mut self.hosts[packet.dst];
        if !host.powered {
            self.trace_packet(&packet, Fate::NobodyHome);
            return None;
        }
        if host.cost == 0 {
            return Some(packet);
        }
        host.busy_until = host.busy_until.max(now) + host.cost;
        let ready = host.busy_until;
        self.push(ready, Event::Handle(packet));
        None
    }

    pub(crate) fn trace_packet(&mut self, packet: &Packet, fate: Fate) {
        let names = (&self.hosts[packet.src].name, &self.hosts[packet.dst].name);
        self.trace.packet(self.now, names, packet.summary(), fate);
    }

    fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        let options = self.settings.link;
        self.links.entry((from, to)).or_insert(Link { options, busy_until: 0 })
    }
}

/// How long `bytes` take at `bandwidth` bytes per second; 0 is unlimited.
fn time_of(bytes: u64, bandwidth: u64) -> Nanos {
    match bandwidth {
        0 => 0,
        _ => (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth)) as Nanos,
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("now", &self.now)
            .field("queue", &self.queue.len())
            .finish_non_exhaustive()
    }
}
