//! Settings of a network, before there is one.

use std::time::Duration;

use crate::base::address::check_name;
use crate::base::options::{Drive, Latency, LinkOptions, Settings, nanos};
use crate::cluster::network::Network;
use na_core::Error;

/// Makes a [`Network`].
///
/// ```
/// use std::time::Duration;
///
/// use na_sim::{Latency, Network};
///
/// let network = Network::builder("doc-builder")
///     .seed(7)
///     .latency(Latency::Constant(Duration::from_micros(2)))
///     .peer_limit(Duration::from_secs(1))
///     .build()?;
/// assert_eq!((network.name(), network.seed()), ("doc-builder", 7));
/// assert!(Network::builder("doc-builder").build().is_err(), "it exists");
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NetworkBuilder {
    name: String,
    settings: Settings,
}

impl Network {
    /// Begins a network with that name: up to 64 letters, digits, `.`, `_` or `-`.
    pub fn builder(name: impl Into<String>) -> NetworkBuilder {
        NetworkBuilder { name: name.into(), settings: Settings::default() }
    }
}

impl NetworkBuilder {
    /// The number that every random choice follows from. Default 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Options of all links that [`Network::set_link`] does not change. Default:
    /// [`LinkOptions::default`].
    #[must_use]
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.settings.link = link;
        self
    }

    /// The latency of these links.
    #[must_use]
    pub fn latency(mut self, latency: Latency) -> Self {
        self.settings.link.latency = latency;
        self
    }

    /// The time that each packet costs the node that sends it, and the node that receives it. A
    /// node does one thing at a time. Default zero.
    #[must_use]
    pub fn operation_cost(mut self, cost: Duration) -> Self {
        self.settings.operation_cost = nanos(cost);
        self
    }

    /// Bytes that may be on the way, or wait to be received, per connection and direction; each
    /// message and each packet of data counts 64 bytes on top of its length. One always fits.
    /// Default 512 KiB.
    #[must_use]
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.settings.window_bytes = bytes.max(1);
        self
    }

    /// Largest packet of bulk data, bytes. A message is one packet, however long. Default 64 KiB.
    #[must_use]
    pub fn packet_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.packet_bytes_max = bytes.max(1);
        self
    }

    /// How long a connected peer may leave a packet unacknowledged before it counts as gone; so the
    /// longest partition that a connection survives. Default 30 s of virtual time.
    #[must_use]
    pub fn peer_limit(mut self, limit: Duration) -> Self {
        self.settings.peer_limit = nanos(limit).max(1);
        self
    }

    /// Entries of the trace that are kept; older ones are forgotten. Default 10,000.
    #[must_use]
    pub fn trace_entries(mut self, entries: usize) -> Self {
        self.settings.trace_entries = entries;
        self
    }

    /// The rule by which the virtual clock moves. Default [`Drive::OnPoll`].
    #[must_use]
    pub fn drive(mut self, drive: Drive) -> Self {
        self.settings.drive = drive;
        self
    }

    /// Makes the network and registers its name, under which `na+sim://NAME/…` joins it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name or a setting that cannot be used, [`Error::Io`] when
    /// a network of that name exists.
    pub fn build(self) -> Result<Network, Error> {
        let Self { name, settings } = self;
        if name.is_empty() {
            return Err(Error::InvalidArgument("the name of a network is empty".into()));
        }
        check_name("network", &name).map_err(Error::InvalidArgument)?;
        settings.link.check()?;
        Network::register(&name, settings)
    }
}
