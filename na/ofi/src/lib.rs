//! Fabrics through libfabric: `ofi+tcp://host:port`, `ofi+verbs://…`, `ofi+shm://` …, in the form
//! of C Mercury's plugin of that name. Tried with C over `tcp`, `tcp;ofi_rxm` and `shm`.
//!
//! libfabric is opened at run time; without it everything else works, and opening an endpoint tells
//! what was tried. The environment variable `MARGO_LIBFABRIC` names another library.
//!
//! # Messages
//!
//! As in C (`na_ofi.c`): an unexpected message is an untagged one, with its tag as the completion
//! data, and begins with the sender's address unless the provider tells it; an expected one is a
//! tagged message with the tag as it is, received from its source only. Both have at most
//! `message_bytes_max` bytes, the address included: both sides must agree, nothing is negotiated.
//!
//! # What a fabric does not give
//!
//! libfabric's reliable datagram endpoints have no connections that could be seen to end, and no
//! checks at the owner of memory that would be told apart. So, against the contract of
//! [`Endpoint`]:
//!
//! | | |
//! |---|---|
//! | a short message whose connection ends | is lost: it was injected, and libfabric tells of that by an error of no operation, if at all; use deadlines. Where there are no connections it is an error of its call |
//! | a peer that dies | is noticed when something is sent to it, if the provider notices; a receive alone waits: use deadlines |
//! | a denied transfer | ends with an error, with the reason where the provider or its device tells it (`failures.rs`); some providers give up the connection |
//! | a transfer of nothing | succeeds without asking |
//! | taking a key back | as good as the provider's: a transfer that has begun may still read or write the memory, and `verbs` keeps it within reach of peers (`docs/transports/ofi.md`). So keep memory registered until its peers are done, as in C |
//! | a smaller message limit of the peer | is not known |
//! | expected messages without a receive | are kept by the provider, not always within a bound; those of receives that were canceled are thrown away, within one (`sinks.rs`) |
//!
//! `docs/transports/ofi.md` has the table of providers.
//!
//! # Folders
//!
//! Lowest first, each imports from those before it: `providers/` (in which providers differ) ·
//! `fabrics/` (libfabric's objects, and the way from a URI to a device) · `buffers/` (registered
//! memory) · `state/` (all that an endpoint has) · `traffic/` (handing over, and what libfabric
//! reports) · `endpoint.rs` (the calls).

#![cfg(not(loom))]

mod buffers;
mod endpoint;
mod fabrics;
#[cfg(any(test, feature = "fake"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "most of it is for tests here"))]
mod fake;
#[cfg(feature = "fake")]
#[doc(hidden)]
pub mod fake_fabric;
#[cfg(test)]
mod fake_tests;
mod providers;
mod state;
mod traffic;
#[cfg(test)]
mod wire_doc;

/// Entry points for fuzzers, see `na::fuzzing`.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes the addresses of a peer, as they stand before requests and in descriptors, and the
    /// descriptions of its memory. The first byte chooses provider and version, by which addresses
    /// differ.
    ///
    /// # Panics
    ///
    /// If what is accepted does not say the same when it is written again, or contradicts itself.
    pub fn bytes(data: &[u8]) {
        let Some((choice, bytes)) = data.split_first() else { return };
        super::providers::address::fuzz(*choice, bytes);
        super::buffers::memory::fuzz(bytes);
    }
}

use std::sync::Arc;

use self::fabrics::{fabric, search};
use self::providers::provider;
use na_core::group::check_shards;
use na_core::{Device, Endpoint, Error, OpenOptions, Plugin, Uri};
use ofi_sys::Library;

/// The plugin.
///
/// ```
/// use na_core::{Error, OpenOptions, Plugin, Uri};
/// use na_ofi::Ofi;
///
/// let options = OpenOptions::listening(true);
/// let uri = Uri::parse("ofi+tcp://127.0.0.1:0")?;
/// assert!(Ofi.serves(&uri));
/// Ofi.check(&uri, &options)?; // asks no library
/// let error = Ofi.check(&Uri::parse("ofi+pigeons://")?, &options).unwrap_err();
/// assert!(matches!(error, Error::BadUri { .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ofi;

impl Plugin for Ofi {
    fn name(&self) -> &'static str {
        "ofi"
    }

    fn summary(&self) -> &'static str {
        "fabrics through libfabric (opened at run time): TCP, InfiniBand, Slingshot, EFA, Omni-Path"
    }

    fn serves(&self, uri: &Uri<'_>) -> bool {
        match uri.class {
            Some(class) => class == "ofi",
            None => provider::named(uri.protocol).is_some(),
        }
    }

    fn probe_uri(&self) -> &'static str {
        "ofi+tcp://127.0.0.1:0"
    }

    fn ignores(&self, uri: &Uri<'_>, options: &OpenOptions) -> Vec<&'static str> {
        let Some(provider) = provider::named(uri.protocol) else { return Vec::new() };
        let told = |name: &&str| match *name {
            "traffic_class" => !provider.classes,
            "ip_subnet" => provider.format != provider::Format::Socket,
            // Where there are no such addresses, it is an error.
            _ => false,
        };
        options.about_networks().filter(told).collect()
    }

    fn devices(&self) -> Result<Vec<Device>, Error> {
        Ok(search::devices(library()?))
    }

    fn check(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<(), Error> {
        endpoint::check(uri, options).map(drop)
    }

    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
        let setup = endpoint::Setup::default();
        let opened = endpoint::OfiEndpoint::open_through(uri, options, setup, library);
        Ok(Arc::new(opened.map_err(|error| of_address(uri, error))?))
    }

    fn moves_device_memory(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<bool, Error> {
        let (provider, _) = endpoint::check(uri, options)?;
        if !(options.request_mem_device && provider.hmem) {
            return Ok(false);
        }
        let library = library()?;
        let provider = provider.in_version(library.version());
        let found = endpoint::find(library, provider, uri, options)?;
        Ok(search::moves_device_memory(found.first()))
    }

    /// Opens one endpoint, and refuses several: `docs/transports.md` says why.
    fn open_group(
        &self,
        uri: &Uri<'_>,
        options: &OpenOptions,
        shards: usize,
    ) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
        check_shards(shards)?;
        if shards > 1 {
            self.check(uri, options)?;
            let reason = format!(
                "`{}` cannot be the address of {shards} endpoints: callers over libfabric, as \
                 those of C, say no hello, to which they could be told that another one has their \
                 place; use one shard and several xstreams for handlers, an instance with an \
                 address for each core, or shards over na+tcp or ucx",
                uri.text
            );
            return Err(Error::Unavailable { transport: self.name(), reason });
        }
        Ok(vec![self.open(uri, options)?])
    }
}

/// libfabric, or what stands in for it on this thread in tests of what is above.
fn library() -> Result<&'static Library, Error> {
    #[cfg(any(test, feature = "fake"))]
    if let Some(library) = fake::of_this_thread() {
        return Ok(library);
    }
    fabric::library()
}

/// Adds the address that was to be opened to an error of libfabric.
fn of_address(uri: &Uri<'_>, error: Error) -> Error {
    let Error::Io { what, source } = error else { return error };
    let advice = match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            " (its port is in use: take another one, or none for a free one)"
        }
        _ => "",
    };
    Error::Io { what: format!("cannot open `{}`{advice}: {what}", uri.text), source }
}
