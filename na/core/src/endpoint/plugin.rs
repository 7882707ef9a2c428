//! A transport, as the registry knows it.

use std::sync::Arc;

use crate::group::check_shards;
use crate::{Endpoint, Error, OpenOptions, Uri};

/// A transport: stateless, opens endpoints.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// use na::sim::Sim;
/// use na::{OpenOptions, Plugin, Uri};
///
/// let uri = Uri::parse("na+sim://plugin/a")?;
/// assert!(Sim.serves(&uri));
/// Sim.check(&uri, &OpenOptions::listening(true))?;
/// let endpoint = Sim.open(&uri, &OpenOptions::listening(true))?;
/// assert_eq!(endpoint.self_addr().uri(), "na+sim://plugin/a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Plugin: Send + Sync {
    /// Name in logs and in `na+<name>://`.
    fn name(&self) -> &'static str;

    /// One line for people: what it is for.
    fn summary(&self) -> &'static str;

    /// Returns whether this plugin serves `uri`.
    fn serves(&self, uri: &Uri<'_>) -> bool {
        uri.protocol == self.name() && uri.class.is_none_or(|class| class == "na")
    }

    /// An address that opens on any machine, for probing: `na+sm://`, `na+tcp://127.0.0.1:0`.
    fn probe_uri(&self) -> &'static str;

    /// Returns the devices that can be opened on this machine, for a transport that depends on
    /// devices. Default: none.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the transport does not work here at all.
    ///
    /// Counterpart: `NA_Get_protocol_info`.
    fn devices(&self) -> Result<Vec<Device>, Error> {
        Ok(Vec::new())
    }

    /// Options that are given and mean nothing for `uri`, by name. Default: those that are about
    /// networks (`traffic_class`, `addr_format`, `ip_subnet`).
    fn ignores(&self, uri: &Uri<'_>, options: &OpenOptions) -> Vec<&'static str> {
        let _ = uri;
        options.about_networks().collect()
    }

    /// Refuses what could be opened on no machine: a URI of another form, an option beyond a limit
    /// or not for that URI. Opens nothing and asks nobody. [`open`](Self::open) begins with it.
    ///
    /// # Errors
    ///
    /// [`Error::BadUri`] or [`Error::BadOption`].
    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error>;

    /// Opens an endpoint.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`Error::BadUri`] or [`Error::BadOption`] also for what a name
    /// stands for here; [`Error::Unavailable`] or [`Error::Io`]. Nothing is left behind.
    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error>;

    /// Returns whether an endpoint of that URI would
    /// [move memory of devices](Endpoint::moves_device_memory) on this machine. Opens nothing.
    /// Default: no.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    fn moves_device_memory(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<bool, Error> {
        let _ = (uri, options);
        Ok(false)
    }

    /// Opens a group of `shards` endpoints behind one address, one for each core that makes
    /// progress. One shard is the same as [`open`](Self::open).
    ///
    /// Each endpoint is polled by its own thread and has connections of its own: a peer that calls
    /// the address gets one of them, by [`lookup_shard`](Endpoint::lookup_shard) the one that it
    /// names. Messages, receives, transfers and operation numbers belong to one endpoint. All of
    /// them have equal self addresses, addresses of one peer are equal
    /// ([`Addr::connection`](crate::Addr::connection) tells them apart), and memory that is
    /// registered with one is within reach through every one. Bounds of [`OpenOptions`] about peers
    /// and messages hold for each endpoint, those about connections for all of them together.
    ///
    /// One endpoint at a time accepts connections, the first one to begin with. If it is closed,
    /// another one does; what concerns the connections of the others goes on.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`Error::InvalidArgument`] for no shard, and for more than 128;
    /// [`Error::Unavailable`] for several, where a transport has no groups, as by default. Nothing
    /// is left behind.
    fn open_group(
        &self,
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
        check_shards(shards)?;
        if shards > 1 {
            let reason = format!("it has one endpoint for an address, not a group of {shards}");
            return Err(Error::Unavailable { transport: self.name(), reason });
        }
        Ok(vec![self.open(uri, options)?])
    }
}

/// A device that a transport can use.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// use na::{Device, Plugin};
///
/// fn list(transport: &dyn Plugin) -> Result<Vec<String>, na::Error> {
///     let line = |Device { protocol, name, address, summary, .. }| {
///         format!("{protocol}://{address}  {name}: {summary}")
///     };
///     Ok(transport.devices()?.into_iter().map(line).collect())
/// }
/// assert!(list(&na::sim::Sim)?.is_empty(), "a simulation needs no device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The class and protocol of its addresses, which stand before `://`.
    pub protocol: String,
    /// The name that the library below has for it.
    pub name: String,
    /// The network address, or the text that stands for one.
    pub address: String,
    /// One line for people: what the protocol is.
    pub summary: &'static str,
    /// It moves memory of GPUs by itself, as far as the library below says.
    pub moves_device_memory: bool,
}
