//! Addresses of peers.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Error;

/// First byte of a serialised address.
const BYTES_FORMAT: u8 = 1;

/// A peer, as one endpoint knows it. Cheap to clone.
///
/// Equal addresses name the same peer: at the same endpoint, or at endpoints of one group
/// ([`Plugin::open_group`](crate::Plugin::open_group)). Addresses of other endpoints are never
/// equal. Of one peer, a group may have several connections, each with an address of its own that
/// is good for one endpoint; see [`connection`](Self::connection). Looking a peer up does not
/// contact it: a wrong address shows at the first operation.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-addr").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// let peer = a.lookup(b.self_addr().uri())?;
/// assert_eq!(peer, a.lookup(peer.uri())?, "one peer");
///
/// // To travel in a message:
/// let bytes = b.addr_to_bytes(&b.self_addr())?;
/// assert_eq!(a.addr_from_bytes(&bytes)?, peer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `na_addr_t`, `hg_addr_t`.
#[derive(Clone)]
pub struct Addr(Arc<Inner>);

/// Apart from its counts, which each message changes on whichever thread it is: a thread that only
/// reads the address must not wait for their cache line.
#[repr(align(128))]
struct Inner {
    uri: Box<str>,
    endpoint: u64,
    peer: u64,
    session: u64,
    /// The number of the peer, behind that of the group or the endpoint which counts.
    identity: (u64, u64),
    state: Arc<dyn Any + Send + Sync>,
}

impl Addr {
    /// Longest [`to_bytes`](Self::to_bytes), bytes.
    pub const BYTES_MAX: usize = 512;

    /// Makes an address. For transports: `endpoint` is unique in the process (see
    /// [`Addr::unique_endpoint_id`]), `peer` is unique in the endpoint, and `state` is the
    /// transport's own, found again without a table look-up.
    pub fn new(
        uri: impl Into<Box<str>>,
        endpoint: u64,
        peer: u64,
        state: impl Any + Send + Sync,
    ) -> Self {
        Self::with_state(uri, endpoint, peer, Arc::new(state))
    }

    /// As [`new`](Self::new), for a state that is shared: one step less to reach it.
    #[doc(hidden)]
    pub fn with_state(
        uri: impl Into<Box<str>>,
        endpoint: u64,
        peer: u64,
        state: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self::with_identity(uri, (endpoint, peer), None, state)
    }

    /// As [`with_state`](Self::with_state), with the numbers of the endpoint and the peer there; of
    /// a peer that a group of endpoints knows also the numbers of the group and the peer in it.
    #[doc(hidden)]
    pub fn with_identity(
        uri: impl Into<Box<str>>,
        (endpoint, peer): (u64, u64),
        identity: Option<(u64, u64)>,
        state: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let identity = identity.unwrap_or((endpoint, peer));
        Self(Arc::new(Inner { uri: uri.into(), endpoint, peer, session: 0, identity, state }))
    }

    /// Returns the same connection as one with the peer that has the number `identity` in the group
    /// of endpoints `family`.
    #[doc(hidden)]
    pub fn of_identity(self, family: u64, identity: u64) -> Self {
        let Inner { endpoint, peer, session, .. } = *self.0;
        let (uri, state) = (self.0.uri.clone(), self.0.state.clone());
        let identity = (family, identity);
        Self(Arc::new(Inner { uri, endpoint, peer, session, identity, state }))
    }

    /// Returns the same peer with another text form.
    #[doc(hidden)]
    pub fn with_uri(&self, uri: &str) -> Self {
        let Inner { endpoint, peer, session, identity, .. } = *self.0;
        let state = self.0.state.clone();
        Self(Arc::new(Inner { uri: uri.into(), endpoint, peer, session, identity, state }))
    }

    /// Returns the same peer as the sender of messages that came in `session`.
    #[doc(hidden)]
    pub fn in_session(self, session: u64) -> Self {
        let Inner { endpoint, peer, identity, .. } = *self.0;
        let (uri, state) = (self.0.uri.clone(), self.0.state.clone());
        Self(Arc::new(Inner { uri, endpoint, peer, session, identity, state }))
    }

    /// Returns whether this address came with a message of another session than `now`, the one that
    /// we have with the peer. The sender of that message waits for nothing any more, and a new
    /// process at the same address may wait under the same tag for something else. Always `false`
    /// for an address that was looked up.
    #[inline]
    #[doc(hidden)]
    pub fn is_of_another_session(&self, now: u64) -> bool {
        self.0.session != now && self.0.session != 0
    }

    /// A number that no other endpoint of this process has.
    pub fn unique_endpoint_id() -> u64 {
        use prim::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The address as text, in the form that `lookup` accepts (for a peer that does not listen, a
    /// name that is only good for messages to people).
    #[inline]
    pub fn uri(&self) -> &str {
        &self.0.uri
    }

    /// The address as bytes, to travel in a message; read by
    /// [`Endpoint::addr_from_bytes`](crate::Endpoint::addr_from_bytes). Layout: one byte 1, then
    /// the text form.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the text form is so long that the bytes would exceed
    /// [`BYTES_MAX`](Self::BYTES_MAX).
    ///
    /// Counterpart: `NA_Addr_serialize`.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        if self.0.uri.len() >= Self::BYTES_MAX {
            return Err(Error::InvalidArgument(format!(
                "an address of {} bytes cannot be serialised; at most {} fit",
                self.0.uri.len(),
                Self::BYTES_MAX - 1
            )));
        }
        let mut bytes = Vec::with_capacity(1 + self.0.uri.len());
        bytes.push(BYTES_FORMAT);
        bytes.extend_from_slice(self.0.uri.as_bytes());
        Ok(bytes)
    }

    /// The text in [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes are not a serialised address.
    pub fn text_in(bytes: &[u8]) -> Result<&str, Error> {
        let bad = |reason: &str| Error::InvalidArgument(format!("not an address: {reason}"));
        if bytes.len() > Self::BYTES_MAX {
            return Err(bad("it is too long"));
        }
        match bytes.split_first() {
            Some((&BYTES_FORMAT, text)) => {
                str::from_utf8(text).map_err(|_| bad("its text is not UTF-8"))
            }
            Some((format, _)) => Err(bad(&format!("unknown format {format}"))),
            None => Err(bad("it is empty")),
        }
    }

    /// The endpoint that made this address.
    #[inline]
    pub fn endpoint_id(&self) -> u64 {
        self.0.endpoint
    }

    /// The peer's number within its endpoint.
    #[inline]
    pub fn peer_id(&self) -> u64 {
        self.0.peer
    }

    /// The connection that this address stands for: the endpoint, and the peer's number there. A
    /// group of endpoints may have several connections with one peer, whose addresses are equal.
    /// Tables of what belongs to a connection (unanswered requests, cancels) are keyed by this;
    /// tables of what belongs to a peer by the address.
    #[inline]
    pub fn connection(&self) -> (u64, u64) {
        (self.0.endpoint, self.0.peer)
    }

    /// How many there are of it, clones included.
    #[doc(hidden)]
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The transport's own state, if it is of type `T`.
    pub fn state<T: Any>(&self) -> Option<&T> {
        self.0.state.downcast_ref()
    }

    /// Returns the transport's own state, shared, if it is of type `T`.
    #[doc(hidden)]
    pub fn shared_state<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.state.clone().downcast().ok()
    }
}

impl PartialEq for Addr {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.identity == other.0.identity
    }
}

impl Eq for Addr {}

impl Hash for Addr {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.identity.hash(hasher);
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.uri)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addr({})", self.0.uri)
    }
}
