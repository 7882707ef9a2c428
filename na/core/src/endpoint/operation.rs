//! Operations of an endpoint, and how each of them ends.

use std::fmt;

use crate::{Addr, Error, LocalMem, MsgBuf, RegionTable, RemoteMem};

/// Names an operation in its completion and in `cancel`. Chosen by the caller, unique among the
/// endpoint's operations in flight.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-op-id").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, Error, OpId};
///
/// a.recv_unexpected(OpId(7), a.alloc_msg())?;
/// a.cancel(OpId(7));
/// let mut ended = Vec::new();
/// while ended.is_empty() {
///     a.poll(16, &mut |completion| ended.push(completion))?;
/// }
/// assert!(matches!(ended[0], Completion::Recv { op: OpId(7), result: Err(Error::Canceled), .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

impl OpId {
    /// Numbers from this one on are those of endpoints that are made of others.
    pub const RESERVED: Self = Self(u64::MAX << 32);
}

/// Pairs an expected message with its receive. Counterpart: `na_tag_t`.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-tag").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, OpId, Tag};
///
/// // Answers find their calls by tags, in whatever order they come.
/// let from = a.lookup(b.self_addr().uri())?;
/// a.recv_expected(OpId(1), &from, Tag(1), a.alloc_msg())?;
/// a.recv_expected(OpId(2), &from, Tag(2), a.alloc_msg())?;
/// b.send_expected(OpId(1), &b.lookup(a.self_addr().uri())?, Tag(2), b.alloc_msg())?;
/// let mut ended = Vec::new();
/// while ended.is_empty() {
///     b.poll(16, &mut drop)?;
///     a.poll(16, &mut |completion| ended.push(completion))?;
/// }
/// assert!(matches!(ended[0], Completion::Recv { op: OpId(2), .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u32);

/// An operation that was not started, with the buffer that it was given.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-refused").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Error, MsgBuf, OpId, Refused, Tag};
///
/// let mut long = MsgBuf::with_capacity(5000);
/// long.set_len(5000);
/// let to = a.lookup(b.self_addr().uri())?;
/// match a.send_unexpected(OpId(1), &to, Tag(0), long) {
///     Err(Refused { error: Error::TooLong { max, .. }, buf }) => {
///         assert_eq!((max, buf.len()), (4096, 5000), "the buffer is ours again");
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The caller's buffer, unchanged.
    pub buf: MsgBuf,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// A contiguous part of registered memory, as C peers are told of it.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-mem-part").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, MemPart, Memory};
///
/// let memory = a.register(Memory::zeroed(4096)?, Access::ReadOnly)?;
/// // A fabric names each part; a transport of ours names all of it at once.
/// let names: Vec<Vec<u8>> = match a.mem_parts(&memory) {
///     Some(parts) => parts.into_iter().map(|part: MemPart| part.handle).collect(),
///     None => vec![a.mem_to_bytes(&memory)],
/// };
/// assert_eq!(names.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemPart {
    /// The address at the owner.
    pub base: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// The bytes by which a peer names it.
    pub handle: Vec<u8>,
}

/// Where a received message came from.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-arrival").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, OpId, Tag};
///
/// b.recv_unexpected(OpId(1), b.alloc_msg())?;
/// a.send_unexpected(OpId(1), &a.lookup(b.self_addr().uri())?, Tag(7), a.alloc_msg())?;
/// let mut arrivals = Vec::new();
/// while arrivals.is_empty() {
///     a.poll(16, &mut drop)?;
///     b.poll(16, &mut |completion| {
///         if let Completion::Recv { result: Ok(arrival), .. } = completion {
///             arrivals.push(arrival);
///         }
///     })?;
/// }
/// assert_eq!(arrivals[0].tag, Tag(7));
/// b.send_expected(OpId(2), &arrivals[0].from, arrivals[0].tag, b.alloc_msg())?; // the answer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The sender; sending to this address reaches it, also when it does not listen.
    pub from: Addr,
    /// The sender's tag.
    pub tag: Tag,
}

/// The end of one operation. Each operation that was started has exactly one, but for
/// `multi_recv_unexpected`, which has one for each message.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-completion").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Completion, OpId, Tag};
///
/// a.recv_unexpected(OpId(1), a.alloc_msg())?;
/// a.send_unexpected(OpId(2), &a.self_addr(), Tag(7), a.alloc_msg())?;
/// let (mut sent, mut received) = (false, false);
/// while !(sent && received) {
///     a.poll(16, &mut |completion| match completion {
///         Completion::Send { op, result, .. } => sent = op == OpId(2) && result.is_ok(),
///         Completion::Recv { op, result, .. } => received = op == OpId(1) && result.is_ok(),
///         Completion::Transfer { .. } => unreachable!("none was begun"),
///     })?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Completion {
    /// `send_unexpected` or `send_expected`: the transport took the message (it need not have
    /// arrived), or never will.
    Send {
        /// The operation.
        op: OpId,
        /// The buffer that was sent.
        buf: MsgBuf,
        /// `Ok` if it was sent.
        result: Result<(), Error>,
    },
    /// `recv_unexpected` or `recv_expected`, or a message of `multi_recv_unexpected`.
    Recv {
        /// The operation.
        op: OpId,
        /// The buffer; holds the message on success.
        buf: MsgBuf,
        /// The sender and the tag of the message.
        result: Result<Arrival, Error>,
    },
    /// `put` or `get`: all bytes are in place, or none may be relied on.
    Transfer {
        /// The operation.
        op: OpId,
        /// `Ok` if the data was moved.
        result: Result<(), Error>,
    },
}

/// One remote memory access.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # let network = na::sim::Network::builder("doc-transfer").build()?;
/// # let a = network.open("a", &na::OpenOptions::listening(true))?;
/// # let b = network.open("b", &na::OpenOptions::listening(true))?;
/// use na::{Access, Completion, Memory, OpId, Transfer};
///
/// let theirs = b.register(Memory::zeroed(8)?, Access::ReadWrite)?;
/// // These bytes go to a in a message.
/// let remote = a.mem_from_bytes(&b.mem_to_bytes(&theirs))?;
///
/// let local = a.register(Memory::from_vec(b"data".to_vec()), Access::ReadOnly)?;
/// let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 2, len: 4 };
/// a.put(OpId(1), &a.lookup(b.self_addr().uri())?, transfer)?;
/// let mut ended = None;
/// while ended.is_none() {
///     b.poll(16, &mut drop)?;
///     a.poll(16, &mut |completion| ended = Some(completion))?;
/// }
/// assert!(matches!(ended, Some(Completion::Transfer { result: Ok(()), .. })));
/// let mut bytes = [0; 8];
/// assert!(theirs.read_at(0, &mut bytes));
/// assert_eq!(&bytes, b"\0\0data\0\0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Our memory: source of a put, destination of a get. Kept alive until the completion.
    pub local: LocalMem,
    /// First byte of `local`.
    pub local_offset: u64,
    /// The peer's memory.
    pub remote: RemoteMem,
    /// First byte of `remote`.
    pub remote_offset: u64,
    /// Bytes to move; zero is allowed and still asks the owner's permission.
    pub len: u64,
}

impl RegionTable {
    /// Checks the local side of a transfer and what is known of the remote side.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] naming the side that does not fit.
    #[inline]
    pub fn check_transfer(transfer: &Transfer, put: bool) -> Result<(), Error> {
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        let within = |offset: &u64, all| offset.checked_add(*len).is_some_and(|end| end <= all);
        let fits = within(local_offset, local.len()) && within(remote_offset, remote.len);
        let allowed = if put { remote.access.writable() } else { remote.access.readable() };
        let is_free = put || !local.may_be_written();
        if fits && allowed && is_free { Ok(()) } else { Err(Self::misfit(transfer, put)) }
    }

    /// Returns the error that says what is wrong with a transfer.
    #[cold]
    fn misfit(transfer: &Transfer, put: bool) -> Error {
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        Error::InvalidArgument(if !local.region().contains(*local_offset, *len) {
            let whole = local.len();
            format!("{len} bytes at offset {local_offset} leave the local memory of {whole} bytes")
        } else if remote_offset.checked_add(*len).is_none_or(|end| end > remote.len) {
            let whole = remote.len;
            format!(
                "{len} bytes at offset {remote_offset} leave the remote memory of {whole} bytes"
            )
        } else if !put && local.may_be_written() {
            "the local memory may still be written by a peer for an earlier get, which has ended \
             without its answer: take other memory, or wait until that peer has answered or ended"
                .into()
        } else {
            let verb = if put { "write" } else { "read" };
            format!("the remote memory was registered {:?}: no {verb}", remote.access)
        })
    }
}
