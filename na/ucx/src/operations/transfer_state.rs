//! The state of transfers that are not over: what moves them is in `transfers.rs`, `rendezvous.rs`
//! and `remote.rs`.

use std::rc::Rc;

use ucx_sys::ucp_dt_iov_t;

use super::remote_key::RemoteKey;
use na_core::{Error, LocalMem, OpId, Transfer};

/// Names something that moves: a put of the sender, or the answer to a get of the receiver. `id` is
/// the number that the requester has given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) peer: usize,
    pub(crate) session: u64,
    pub(crate) id: u64,
    pub(crate) put: bool,
}

/// The state of data that is sent, in pieces and chunks.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) sent: u64,
    pub(crate) in_hand: u32,
    pub(crate) is_queued: bool,
}

/// How far a transfer by a remote key is.
pub(crate) struct ByKey {
    pub(crate) key: Rc<RemoteKey>,
    /// Bytes that UCX was given.
    pub(crate) sent: u64,
    pub(crate) is_queued: bool,
    /// All was moved, and it is awaited that it has arrived.
    pub(crate) is_flushing: bool,
}

/// How far a transfer is.
pub(crate) enum Stage {
    /// The owner was not asked yet.
    Waiting,
    /// It was, and has not answered. Of a get: whether it has sent all.
    Asked { is_sent: bool },
    /// The owner of the destination lets us.
    Sending(Outgoing),
    /// UCX moves it by a remote key.
    ByKey(ByKey),
}

/// A transfer of ours that is not over.
pub(crate) struct Moving {
    pub(crate) op: OpId,
    pub(crate) transfer: Transfer,
    pub(crate) put: bool,
    pub(crate) peer: usize,
    /// Our session with the peer when it was asked.
    pub(crate) session: u64,
    pub(crate) stage: Stage,
    /// Pieces that are in UCX's hands.
    pub(crate) lent: u32,
    /// How it has ended, which is reported when UCX has let go.
    pub(crate) end: Option<Result<(), Error>>,
}

impl Moving {
    /// Returns whether nothing is awaited but that UCX lets go.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }
}

/// Memory that its owner holds for a transfer of a peer.
pub(crate) struct Lease {
    /// Keeps the memory.
    pub(crate) memory: LocalMem,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The data to send, for a get.
    pub(crate) outgoing: Option<Outgoing>,
    /// Pieces that are in UCX's hands.
    pub(crate) lent: u32,
    /// The requester has given it up: it ends when UCX has let go.
    pub(crate) is_released: bool,
}

/// A piece that UCX writes.
pub(crate) struct Landing {
    pub(crate) stream: Stream,
    pub(crate) len: u64,
    pub(crate) memory: LocalMem,
    /// The places where it goes, for UCX; inside `memory`.
    pub(crate) places: Vec<ucp_dt_iov_t>,
}
