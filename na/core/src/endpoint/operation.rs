//! Operations of an endpoint, and how each of them ends.

use std::fmt;

use crate::{Addr, Error, LocalMem, MsgBuf, RegionTable, RemoteMem};

/// Names an operation in its completion and in `cancel`. Chosen by the caller, unique among the
/// endpoint's operations in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

impl OpId {
    /// Numbers from this one on are those of endpoints that are made of others.
    pub const RESERVED: Self = Self(u64::MAX << 32);
}

/// Pairs an expected message with its receive. Counterpart: `na_tag_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u32);

/// An operation that was not started, with the buffer that it was given.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The sender; sending to this address reaches it, also when it does not listen.
    pub from: Addr,
    /// The sender's tag.
    pub tag: Tag,
}

/// The end of one operation. Each operation that was started has exactly one, but for
/// `multi_recv_unexpected`, which has one for each message.
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
