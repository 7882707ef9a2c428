//! Statistics of an endpoint, for people and monitoring systems.
//!
//! Everything is read from state that is kept anyway, under locks that are held briefly; nothing
//! here waits for a poll, so it can be read while the caller of `poll` is stuck.

use crate::{OpId, Principal};

/// An endpoint at about one moment; see [`Endpoint::stats`](crate::Endpoint::stats).
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-endpoint-stats").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Memory};
///
/// let memory = a.register(Memory::zeroed(4096)?, Access::ReadOnly)?;
/// let stats = a.stats();
/// assert_eq!((stats.regions, stats.region_bytes), (1, 4096));
/// for peer in &stats.peers {
///     println!("{}: {:?}", peer.uri, peer.link);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Peers that it knows, in no order; the endpoint itself only if something goes on with it.
    pub peers: Vec<PeerStats>,
    /// Registrations of memory.
    pub regions: usize,
    /// Bytes of these; memory that is registered twice counts twice.
    pub region_bytes: u64,
    /// The end of the own certificate, seconds since 1970, where connections are made private with
    /// one.
    pub certificate_expires: Option<u64>,
}

impl EndpointStats {
    /// The statistics of an endpoint with these registrations ([`RegionTable::totals`]) and peers.
    ///
    /// [`RegionTable::totals`]: crate::RegionTable::totals
    #[doc(hidden)]
    pub fn new((regions, region_bytes): (usize, u64), peers: Vec<PeerStats>) -> Self {
        Self { peers, regions, region_bytes, certificate_expires: None }
    }
}

/// A peer of an endpoint.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-peer-stats").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{OpId, Tag};
///
/// let peer = a.lookup(b.self_addr().uri())?;
/// a.recv_expected(OpId(7), &peer, Tag(0), a.alloc_msg())?;
/// let stats = a.stats();
/// let of_peer = stats.peers.iter().find(|one| one.uri == peer.uri()).ok_or("unknown")?;
/// assert_eq!(of_peer.awaited, [OpId(7)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// The address, as [`Addr::uri`](crate::Addr::uri) has it.
    pub uri: String,
    /// The transport that reaches it.
    pub transport: &'static str,
    /// The state of the connection.
    pub link: PeerLink,
    /// The principal, as [`Endpoint::principal`](crate::Endpoint::principal) tells it.
    pub principal: Principal,
    /// Expected messages that are awaited from it.
    pub awaited: Vec<OpId>,
    /// Bytes handed over for it since it is known, with everything that goes around the messages;
    /// `None`: not counted. Bulk data that does not pass through the connection is not in it.
    pub sent_bytes: Option<u64>,
    /// Bytes that have come from it.
    pub received_bytes: Option<u64>,
    /// Messages that were taken for it since it is known, also those that have not left yet.
    pub sent_messages: Option<u64>,
    /// Messages that have come from it, also those that wait for a receive.
    pub received_messages: Option<u64>,
}

impl PeerStats {
    /// The statistics of a peer from which nothing is awaited and of which nothing is counted.
    #[doc(hidden)]
    pub fn new(uri: String, transport: &'static str, link: PeerLink) -> Self {
        Self {
            uri,
            transport,
            link,
            principal: Principal::Unknown,
            awaited: Vec::new(),
            sent_bytes: None,
            received_bytes: None,
            sent_messages: None,
            received_messages: None,
        }
    }
}

/// How far the connection with a peer is.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-peer-link").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{OpId, PeerLink, Tag};
///
/// let peer = a.lookup(b.self_addr().uri())?;
/// a.send_unexpected(OpId(1), &peer, Tag(0), a.alloc_msg())?;
/// let mut sent = 0;
/// while sent == 0 {
///     b.poll(16, &mut drop)?;
///     sent += a.poll(16, &mut drop)?;
/// }
/// let stats = a.stats();
/// let of_peer = stats.peers.iter().find(|one| one.uri == peer.uri()).ok_or("unknown")?;
/// assert_eq!(of_peer.link, PeerLink::Connected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerLink {
    /// There is none.
    Idle,
    /// It is being made.
    Connecting,
    /// It is there.
    Connected,
    /// It has ended, and there will be no other one.
    Gone,
}

/// Gives each of `peers` what is awaited from it: (number of the peer, operation).
pub fn assign(peers: &mut [(u64, PeerStats)], awaited: impl IntoIterator<Item = (u64, OpId)>) {
    peers.sort_unstable_by_key(|(id, _)| *id);
    for (id, op) in awaited {
        if let Ok(at) = peers.binary_search_by_key(&id, |(id, _)| *id) {
            peers[at].1.awaited.push(op);
        }
    }
}
