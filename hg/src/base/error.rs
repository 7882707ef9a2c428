//! Errors of a message, of an encoding, or of an operation of the RPC core.

use std::fmt::Display;
use std::time::Duration;

use crate::{ReturnCode, RpcId};

/// The reason why a message of a peer cannot be read.
///
/// ```
/// use hg::{Build, WireError, wire};
///
/// match wire::decode_request(Build::Plain, b"GET / HTTP/1.1\r\n\r\n") {
///     Err(WireError::Magic { found }) => assert_eq!(found, b'G'),
///     other => panic!("{other:?}"),
/// }
/// let error = wire::decode_request(Build::Plain, &[0xd7]).unwrap_err();
/// assert!(matches!(error, WireError::Short { .. }) && !error.is_checksum());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends before its headers do.
    #[error("a {what} of {len} bytes is shorter than its headers of {need}")]
    Short {
        /// Request or response.
        what: &'static str,
        /// Bytes that came.
        len: usize,
        /// Bytes of the headers.
        need: usize,
    },
    /// Not a Mercury request.
    #[error("the first byte is {found:#04x}; a Mercury request begins with 0xd7")]
    Magic {
        /// The byte that came.
        found: u8,
    },
    /// Another version of the protocol: update the older side.
    #[error("the peer speaks version {found} of Mercury's protocol, this is version {expected}")]
    Version {
        /// The peer's version.
        found: u8,
        /// Ours.
        expected: u8,
    },
    /// The peer's Mercury was built with checksum support, and this endpoint is not set to that.
    #[error(
        "the peer's Mercury was built with checksum support: write `\"mercury_build\": \
         \"checksums\"` in the `margo` object of the configuration (in a program of the RPC layer \
         alone: `HgOptions::build` or `detect_build`)"
    )]
    PeerHasChecksums,
    /// A header was damaged on its way, or the peer does not fill its checksum in.
    #[error(
        "the checksum of a {what}'s header is {said:#06x}, of what came {found:#06x}: it was \
         damaged, or the peer has another checksum level"
    )]
    HeaderChecksum {
        /// Request or response.
        what: &'static str,
        /// The checksum that the header says.
        said: u16,
        /// The checksum that was computed.
        found: u16,
    },
    /// Arguments or a result were damaged on their way, or the peer does not fill their checksum
    /// in.
    #[error(
        "the checksum of a payload is {said:#x}, of what came {found:#x}: it was damaged, or the \
         peer has another checksum level"
    )]
    PayloadChecksum {
        /// The checksum that the header says.
        said: u64,
        /// The checksum that was computed.
        found: u64,
    },
    /// A flag that this version of the protocol does not have.
    #[error("the header has unknown flags {flags:#04x}")]
    Flags {
        /// The unknown bits.
        flags: u8,
    },
    /// The extension of a header, written by one of our own peers, cannot be read.
    #[error("the extension of a request cannot be read: {0}")]
    Extension(&'static str),
    /// The message says that its payload is elsewhere, but not readably where.
    #[error("the description of an overflowed payload cannot be read: {0}")]
    Overflow(#[from] ProcError),
    /// The payload is elsewhere, in a form that cannot be fetched.
    #[error("an overflowed payload cannot be fetched: {0}")]
    OverflowForm(&'static str),
    /// The payload is elsewhere, and longer than [`HgOptions`](crate::HgOptions) accepts.
    #[error("an overflowed payload of {len} bytes exceeds the limit of {max} bytes")]
    OverflowTooLong {
        /// The length.
        len: u64,
        /// The limit.
        max: u64,
    },
}

impl WireError {
    /// Returns whether a checksum was wrong.
    pub fn is_checksum(&self) -> bool {
        matches!(self, Self::HeaderChecksum { .. } | Self::PayloadChecksum { .. })
    }
}

/// Why a value cannot be encoded or decoded. Offsets count from the first byte that was given.
///
/// ```
/// use hg::ProcError;
/// use hg::proc::{from_slice, to_vec};
///
/// let bytes = to_vec(&(1_u32, 2_u32))?;
/// // The other side has defined the type differently.
/// match from_slice::<u32>(&bytes) {
///     Err(ProcError::Trailing { at, left }) => assert_eq!((at, left), (4, 4)),
///     other => panic!("{other:?}"),
/// }
/// assert!(matches!(from_slice::<[u32; 3]>(&bytes), Err(ProcError::End { at: 8, .. })));
/// # Ok::<(), ProcError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcError {
    /// The bytes end in the middle of a value: the two sides define the type differently, or the
    /// message was cut.
    #[error("byte {at}: a value takes {need} bytes, {left} are left")]
    End {
        /// Where the value begins.
        at: usize,
        /// Bytes that the value takes.
        need: u64,
        /// Bytes that there are.
        left: usize,
    },
    /// The bytes go on after the value: the two sides define the type differently.
    #[error("byte {at}: the value ends here, but {left} bytes follow")]
    Trailing {
        /// Where the value ends.
        at: usize,
        /// Bytes after it.
        left: usize,
    },
    /// The bytes cannot be such a value.
    #[error("byte {at}: {what}")]
    Invalid {
        /// Where.
        at: usize,
        /// The reason why they cannot.
        what: String,
    },
    /// More elements than the bytes that are left can hold.
    #[error("byte {at}: {count} elements cannot be in the {left} bytes that are left")]
    Count {
        /// Where the count stands.
        at: usize,
        /// The count.
        count: u64,
        /// Bytes after it.
        left: usize,
    },
    /// The encoding would exceed the limit. Move large data by bulk transfer.
    #[error("the encoding exceeds the limit of {max} bytes; move large data by bulk transfer")]
    TooLong {
        /// The limit.
        max: usize,
    },
    /// A string, sequence or map is longer than [`ProcLimits`](crate::proc::ProcLimits) accepts.
    #[error("{len} bytes or elements exceed the limit of {max} for one value")]
    TooMany {
        /// The length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// Values are nested deeper than both sides are sure to accept.
    #[error("values are nested deeper than {max} levels")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The type cannot be encoded or decoded.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The error that the type's own `Serialize` or `Deserialize` reported.
    #[error("{0}")]
    Custom(String),
}

impl serde::ser::Error for ProcError {
    fn custom<M: Display>(message: M) -> Self {
        Self::Custom(message.to_string())
    }
}

impl serde::de::Error for ProcError {
    fn custom<M: Display>(message: M) -> Self {
        Self::Custom(message.to_string())
    }
}

/// The reason why an operation of the RPC core failed.
///
/// Cheap enough to clone: one event may end many operations.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-hg-error/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let sum = RpcId::margo("sum", ProviderId::DEFAULT);
/// let call = || core.forward(&own, sum, ForwardOptions::default(), |_| Ok(()), 7);
/// let (error, token) = *call().unwrap_err();
/// match error {
///     // Register it, and call again.
///     HgError::NotRegistered(id) => assert_eq!((id, token), (sum, 7)),
///     HgError::Na(error) if error.never_arrived() => panic!("to repeat it is harmless: {error}"),
///     other => panic!("{other}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HgError {
    /// The network or the peer failed. [`na::Error::never_arrived`] tells whether a repetition is
    /// harmless.
    #[error(transparent)]
    Na(na::Error),
    /// The peer's RPC layer answered with an error code instead of a response.
    #[error("the peer answered {0}")]
    Remote(ReturnCode),
    /// A peer that is not one of our own answered with an error code instead of a response. Its
    /// handler may have run: Mercury sends what a handler of its core layer returns.
    #[error("the peer, which is a C program or of an older version, answered {0}")]
    Foreign(ReturnCode),
    /// The peer's response cannot be read.
    #[error("malformed response: {0}")]
    Wire(#[from] WireError),
    /// The arguments or the result cannot be encoded. Nothing was sent.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// [`Core::cancel`](crate::Core::cancel) ended the operation. The peer may have acted all the
    /// same.
    #[error("the operation was canceled")]
    Canceled,
    /// The RPC core was closed.
    #[error("the RPC layer is closed")]
    Closed,
    /// This process is a child that was forked off: the network is its parent's. Nothing was done.
    #[error("this process was forked off: the network belongs to its parent process; open another")]
    Forked,
    /// The operation was in flight when this process was forked off: its end is told to the parent
    /// process alone. It goes on there, and the peer may act.
    #[error("this process was forked off while it was in flight: its parent hears of its end")]
    InParent,
    /// As many operations are in flight as can be told apart. Wait for some to end.
    #[error("{0} operations are in flight, which is the limit; wait for some to end")]
    Busy(usize),
    /// The arguments of so many requests are being fetched, half of
    /// [`HgOptions::requests_max`](crate::HgOptions::requests_max): the other places are for
    /// requests that came whole. The origin is told to try again.
    #[error("the arguments of {max} requests are being fetched, which is half of `requests_max`")]
    Fetches {
        /// The limit.
        max: usize,
    },
    /// Requests hold as many bytes of overflowed arguments as
    /// [`HgOptions::overflow_held_max`](crate::HgOptions::overflow_held_max) allows. The origin is
    /// told to try again.
    #[error("requests hold too many bytes of overflowed arguments; the limit is {max}")]
    Overflows {
        /// The limit, bytes.
        max: usize,
    },
    /// A result does not fit into a message, and with those that their origins have not fetched yet
    /// it would take more memory than
    /// [`HgOptions::overflow_held_max`](crate::HgOptions::overflow_held_max) allows. It was not
    /// sent.
    #[error(
        "a result of {len} bytes was not sent: with the long results that their callers have not \
         fetched yet it exceeds the limit of {max} bytes (`overflow_held_max`); raise it, or \
         return large data by bulk transfer"
    )]
    Unfetched {
        /// Bytes of the result.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// The origin of a request has not fetched its result for a minute or longer, so that it gave
    /// way to the results of others, which take as many bytes as
    /// [`HgOptions::overflow_held_max`](crate::HgOptions::overflow_held_max) allows. The origin, if
    /// it lives, cannot fetch it any more.
    #[error(
        "its origin has not fetched the {len} bytes of the result for {} s; they gave way to \
         results for others (`overflow_held_max`)",
        waited.as_secs()
    )]
    GaveWay {
        /// Bytes of the result.
        len: usize,
        /// For how long it was kept.
        waited: Duration,
    },
    /// The system has no memory for the buffers into which requests are received, all of which are
    /// there from the start where requests share none.
    #[error(
        "no memory for {count} receive buffers of {bytes} bytes, which are there from the start; \
         lower mercury.request_post_init or margo.eager_size, let requests share buffers (leave \
         out mercury.no_multi_recv), or raise the limits of the process (ulimit -v, \
         vm.overcommit_memory)"
    )]
    Receives {
        /// How many.
        count: u64,
        /// Bytes of each.
        bytes: usize,
    },
    /// The RPC is not registered here, so nothing was sent: `HG_NOENTRY`.
    #[error("RPC {0} is not registered here: register it before calling it")]
    NotRegistered(RpcId),
    /// The RPC is registered already.
    #[error("RPC `{name}` is registered already, as {id}; replace it, or deregister it before")]
    Registered {
        /// The number.
        id: RpcId,
        /// The name.
        name: String,
    },
    /// The RPC is not registered as it was when it was looked up: others have deregistered or
    /// replaced it meanwhile, and it stays so.
    #[error("RPC `{name}`, {id}, was deregistered or replaced meanwhile: look it up again")]
    Outdated {
        /// The number.
        id: RpcId,
        /// The name.
        name: String,
    },
    /// Another RPC has the same number. Rename one of them.
    #[error("RPC `{name}` has the same number {id} as `{other}`: rename one of them")]
    Collision {
        /// The number.
        id: RpcId,
        /// The RPC that was to be registered.
        name: String,
        /// The RPC that is.
        other: String,
    },
    /// The origin of a request had given its call up when the answer came, so the answer was not
    /// read. Said by our own peers of results that do not fit into a message.
    #[error("its origin had given the call up, and has not read the answer")]
    GivenUp,
    /// The origin of a request could not fetch the answer, or what it fetched was damaged or longer
    /// than it accepts. Said by our own peers of results that do not fit into a message.
    #[error("its origin could not fetch the answer, or not read what it fetched")]
    Unread,
    /// The origin asked for no response, so there can be none.
    #[error("the request is one-way: it takes no response")]
    NoResponse,
    /// The bulk handle does not allow this: its range, its access, or its form.
    #[error("bulk transfer: {0}")]
    Bulk(String),
}

impl From<na::Error> for HgError {
    fn from(error: na::Error) -> Self {
        match error {
            na::Error::Canceled => Self::Canceled,
            na::Error::Closed => Self::Closed,
            error => Self::Na(error),
        }
    }
}

impl From<&WireError> for ReturnCode {
    fn from(error: &WireError) -> Self {
        match error {
            error if error.is_checksum() => Self::ChecksumError,
            WireError::OverflowTooLong { .. } => Self::MsgSize,
            _ => Self::ProtocolError,
        }
    }
}
