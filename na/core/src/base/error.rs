//! The error of a network operation, which says why it did not do what was asked.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::base::plain;

/// Why an operation failed.
///
/// Cheap to clone: one event (a peer's death) may end many operations. Its text has no control
/// characters, also where a part of it is text that a peer chose.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("error").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, Error, OpId, Tag};
///
/// let nobody = a.lookup("na+sim://error/nobody")?;
/// a.send_unexpected(OpId(1), &nobody, Tag(0), a.alloc_msg())?;
/// let mut ended = Vec::new();
/// while ended.is_empty() {
///     a.poll(16, &mut |completion| ended.push(completion))?;
/// }
/// match &ended[0] {
///     Completion::Send { result: Err(error @ Error::Unreachable { peer, .. }), .. } => {
///         assert_eq!(peer, "na+sim://error/nobody");
///         assert!(error.never_arrived(), "to repeat it is harmless");
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `na_return_t` (Mercury), with the facts that a number cannot carry.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URI names no transport that this build has, or is not well-formed.
    #[error("cannot use address `{}`: {}", plain::text(.uri), plain::text(.reason))]
    BadUri {
        /// The text that was given.
        uri: String,
        /// The fault in the text, and the form that would be accepted.
        reason: String,
    },
    /// The transport is compiled in but does not work on this machine.
    #[error("transport `{transport}` does not work here: {reason}")]
    Unavailable {
        /// The plugin's name.
        transport: &'static str,
        /// The missing part, and how to get it.
        reason: String,
    },
    /// Nobody answers at that address. The operation did not reach anyone.
    #[error("cannot reach {}: {}", plain::text(.peer), plain::text(.reason))]
    Unreachable {
        /// The peer's address.
        peer: String,
        /// The reason that the operating system or the peer gave.
        reason: String,
    },
    /// The peer was connected and is gone: it died, closed, or its liveness limit passed. Whether
    /// it received the operation is unknown.
    #[error("peer {} is gone: {}", plain::text(.peer), plain::text(.reason))]
    PeerGone {
        /// The peer's address.
        peer: String,
        /// How it was noticed.
        reason: String,
    },
    /// The peer sent what the protocol does not allow; its connection was closed.
    #[error("peer {} broke the protocol: {}", plain::text(.peer), plain::text(.reason))]
    Protocol {
        /// The peer's address.
        peer: String,
        /// The rule that was broken.
        reason: String,
    },
    /// The owner of the remote memory refused the transfer.
    #[error("{} refused the transfer: {reason}", plain::text(.peer))]
    Denied {
        /// The owner's address.
        peer: String,
        /// The check that failed.
        reason: DeniedReason,
    },
    /// An argument of the call itself is wrong; nothing was started.
    #[error("invalid argument: {}", plain::text(.0))]
    InvalidArgument(String),
    /// One of the [`OpenOptions`](crate::OpenOptions) cannot be had with the address that was to be
    /// opened.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option's name, such as `message_bytes_max`.
        option: &'static str,
        /// The value, and what would be accepted.
        reason: String,
    },
    /// The message does not fit; nothing was sent.
    #[error("message of {len} bytes exceeds the limit of {max} bytes")]
    TooLong {
        /// Bytes that were to be sent.
        len: usize,
        /// The transport's limit, see [`Limits`](crate::Limits).
        max: usize,
    },
    /// [`Endpoint::cancel`](crate::Endpoint::cancel) ended the operation.
    #[error("operation canceled")]
    Canceled,
    /// The endpoint was closed.
    #[error("endpoint closed")]
    Closed,
    /// The operating system refused something that the transport needs.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed, and its object.
        what: String,
        /// The error that the operating system reported.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// Wraps an operating-system error with what was being done.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source.into()) }
    }

    /// Returns whether the operation certainly had no effect at the peer, so that repeating it is
    /// harmless.
    pub fn never_arrived(&self) -> bool {
        matches!(
            self,
            Self::BadUri { .. }
                | Self::Unavailable { .. }
                | Self::Unreachable { .. }
                | Self::InvalidArgument(_)
                | Self::BadOption { .. }
                | Self::TooLong { .. }
                | Self::Denied { .. }
        )
    }
}

/// Which check a remote memory access failed at the memory's owner.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-denied-reason").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Completion, DeniedReason, Error, Memory, OpId, Transfer};
///
/// let theirs = b.register(Memory::zeroed(4)?, Access::ReadOnly)?;
/// let remote = a.mem_from_bytes(&b.mem_to_bytes(&theirs))?;
/// drop(theirs); // nobody may use it any more
/// let local = a.register(Memory::zeroed(4)?, Access::ReadWrite)?;
/// let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len: 4 };
/// a.get(OpId(1), &a.lookup(b.self_addr().uri())?, transfer)?;
/// let mut ended = Vec::new();
/// while ended.is_empty() {
///     b.poll(16, &mut drop)?;
///     a.poll(16, &mut |completion| ended.push(completion))?;
/// }
/// let Completion::Transfer { result: Err(Error::Denied { reason, .. }), .. } = &ended[0] else {
///     panic!("{ended:?}")
/// };
/// assert_eq!(*reason, DeniedReason::NoSuchKey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeniedReason {
    /// No memory has this key: never registered, forged, or revoked meanwhile.
    NoSuchKey,
    /// The memory was registered without this kind of access.
    Access,
    /// Offset and length leave the registered memory.
    OutOfRange,
    /// The owner could not copy: cross-memory attach failed and there was no other way.
    CopyFailed,
}

impl DeniedReason {
    /// The number of the reason in all wire formats, at least 1.
    #[doc(hidden)]
    pub fn code(self) -> u8 {
        match self {
            Self::NoSuchKey => 1,
            Self::Access => 2,
            Self::OutOfRange => 3,
            Self::CopyFailed => 4,
        }
    }

    /// Reads [`code`](Self::code).
    #[doc(hidden)]
    pub fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::NoSuchKey,
            2 => Self::Access,
            3 => Self::OutOfRange,
            4 => Self::CopyFailed,
            _ => return None,
        })
    }
}

impl fmt::Display for DeniedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchKey => "no memory is registered under this key (revoked or forged)",
            Self::Access => "the memory was not registered for this kind of access",
            Self::OutOfRange => "offset and length leave the registered memory",
            Self::CopyFailed => "the owner could not copy the data",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_chose_steers_no_terminal() {
        let evil = || "a\u{1b}[2J\nb\u{202e}".to_owned();
        let (peer, reason, uri) = (evil(), evil(), evil());
        for error in [
            Error::BadUri { uri, reason: evil() },
            Error::Unreachable { peer: evil(), reason: evil() },
            Error::PeerGone { peer: evil(), reason: evil() },
            Error::Protocol { peer: evil(), reason },
            Error::Denied { peer, reason: DeniedReason::NoSuchKey },
            Error::InvalidArgument(evil()),
        ] {
            let shown = error.to_string();
            assert!(shown.contains("a\u{fffd}[2J b\u{fffd}"), "{shown:?}");
        }
    }
}
