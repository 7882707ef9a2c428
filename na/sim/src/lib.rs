//! Simulation: whole clusters in one process, under virtual time: `na+sim://network/node`.
//!
//! A [`Network`] is a world with a clock and a seed. Its nodes are ordinary endpoints; everything
//! between them is simulated: latencies, bandwidth, loss, repetition, reordering, partitions, slow
//! nodes, crashes. Nothing waits for real time, and every random choice follows from the seed, so a
//! failed run can be repeated, and its [`Trace`] says what happened.
//!
//! ```
//! # mod na { pub use na_core::*; pub mod sim { pub use na_sim::*; } }
//! use std::time::Duration;
//! use na::sim::{Drive, LinkOptions, Network};
//! use na::{Endpoint, OpId, OpenOptions, Tag};
//!
//! let network = Network::builder("doc").seed(7).drive(Drive::Manual).build()?;
//! let a = network.open("a", &OpenOptions::listening(true))?;
//! let b = network.open("b", &OpenOptions::listening(true))?;
//! network.set_link("a", "b", LinkOptions::unreliable(0.3))?;
//! network.schedule(Duration::from_millis(1), |network| network.partition("a", "b"));
//! network.schedule(Duration::from_millis(5), |network| network.heal());
//!
//! b.recv_unexpected(OpId(1), b.alloc_msg())?;
//! a.send_unexpected(OpId(1), &a.lookup("na+sim://doc/b")?, Tag(9), a.alloc_msg())?;
//! let mut received = 0;
//! while received == 0 && network.step() {
//!     received += b.poll(16, &mut |completion| println!("{completion:?}"))?;
//! }
//! assert_eq!(received, 1, "seed {}:\n{}", network.seed(), network.trace().tail(50));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Addresses
//!
//! `na+sim://NETWORK/NODE`. To open: without a network it is the network `default`, without a node
//! the network chooses `node-1`, `node-2` …. A network is made with default settings when a URI
//! names it first; a test that wants others makes it before, with [`Network::builder`], and
//! programs that only know URIs then join it. Nodes of different networks do not meet. A name that
//! an endpoint has is taken until that is closed, dropped or crashed; its successor has the same
//! address and is another node. An endpoint that does not listen cannot be called, only answered.
//!
//! Several endpoints may share a name ([`Network::open_group`]). Each of them has connections of
//! its own with every caller, also with one that listens.
//!
//! # What is simulated
//!
//! The contract of an [`Endpoint`] is reliable and in order, so what the network does to packets
//! is not seen as lost or swapped messages. Below the messages lies a protocol as on real networks:
//! each connection begins with a greeting; frames are numbered, acknowledged, and repeated with
//! growing intervals until they are; what comes twice is discarded, what comes too early waits.
//! So:
//!
//! | trouble | what is seen |
//! |---|---|
//! | loss, repetition, reordering | time |
//! | a partition that heals within `peer_limit` | time |
//! | a longer one, in either direction | `PeerGone` on both sides, at the latest when it heals |
//! | nobody listens | `Unreachable`, at once; behind a partition, after `connect_timeout` |
//! | a crash | `PeerGone`, as soon as its machine gets through |
//! | a machine without power | `PeerGone` after `peer_limit` if something was on its way to it, after [`OpenOptions::liveness_limit`] if it owes an answer; without that limit, at its restart, or never |
//! | a restart | `PeerGone` for what concerns the predecessor, answers to its calls included |
//!
//! A packet takes: the sender's operation cost, its bytes at the link's bandwidth (after those
//! before it), the latency, and the receiver's operation cost. Computing takes no virtual time.
//! A message is one packet; data of puts and gets comes in packets of up to 64 KiB. An endpoint
//! that is closed still sees through what it has sent, as a kernel does.
//!
//! Back-pressure: a connection has a window (512 KiB), which counts what is on its way and what
//! the receiver holds (256 KiB per peer) because no receive was posted. A send completes when it
//! enters the window. Transfers pass messages that nobody receives.
//!
//! # How the clock moves
//!
//! By default ([`Drive::OnPoll`]) a poll that has nothing to report runs the next events. So any
//! program runs over a simulated network, also one that sleeps; as long as an event is left, its
//! endpoints do not sleep. With threads, the schedule of the threads decides as well as the seed.
//! With [`Drive::Manual`], and one thread that polls the endpoints in a fixed order and calls
//! [`Network::step`] when they have nothing left, everything follows from the seed.
//! [`Network::schedule`] gives the layers above timers, which replace deadlines by the wall clock.
//!
//! Keys of registered memory are random as everywhere, and appear in no trace.
//!
//! # Folders
//!
//! Lowest first, each imports from those before it: `base/` (options, names, the trace) ·
//! `protocol/` (packets, and what is under way) · `cluster/` (clock, links, nodes, events) ·
//! `builder.rs` · `endpoint.rs` (operations). Everything is under one lock per network; no foreign
//! code runs under it.

#![cfg(not(loom))]

mod base;
mod builder;
mod cluster;
mod endpoint;
mod protocol;

use std::sync::Arc;

use self::base::{address, options};
pub use self::{
    base::options::{Drive, Latency, LinkOptions},
    base::trace::{Trace, TraceEntry},
    builder::NetworkBuilder,
    cluster::network::{Network, TimerId, TraceOnPanic},
};
use na_core::{Endpoint, Error, OpenOptions, Plugin, Uri};

/// The plugin.
///
/// ```
/// use na_core::{OpenOptions, Plugin, Uri};
/// use na_sim::Sim;
///
/// let endpoint = Sim.open(&Uri::parse("na+sim://doc-sim/a")?, &OpenOptions::listening(true))?;
/// assert_eq!(endpoint.self_addr().uri(), "na+sim://doc-sim/a");
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Sim;

impl Plugin for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn summary(&self) -> &'static str {
        "simulated network within this process, for tests"
    }

    fn probe_uri(&self) -> &'static str {
        "na+sim://"
    }

    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error> {
        address::parts(uri)?;
        options::check(options)
    }

    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
        let (network, node) = address::parts(uri)?;
        Network::named(network)?.open(node, options)
    }

    fn open_group(
        &self,
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
        let (network, node) = address::parts(uri)?;
        Network::named(network)?.open_group(node, options, shards)
    }
}
