//! The state of transfers that are not over: what moves them is in `transfers.rs`, `rendezvous.rs`
//! and `remote.rs`.

use std::rc::Rc;

use ucx_sys::ucp_dt_iov_t;

use super::remote_key::RemoteKey;
use na_core::{Error, LocalMem, OpId, Transfer};

/// Names something that moves: a put of the sender, or the answer to a get of the receiver. `id` is
/// the number that the requester has given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) peer: usize,
    pub(super) session: u64,
    pub(super) id: u64,
    pub(super) put: bool,
}

/// The state of data that is sent, in pieces and chunks.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) sent: u64,
    pub(super) in_hand: u32,
    pub(super) is_queued: bool,
}

/// How far a transfer by a remote key is.
pub(super) struct ByKey {
    pub(super) key: Rc<RemoteKey>,
    /// Bytes that UCX was given.
    pub(super) sent: u64,
    pub(super) is_queued: bool,
    /// All was moved, and it is awaited that it has arrived.
    pub(super) is_flushing: bool,
}

/// How far a transfer is.
pub(super) enum Stage {
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
pub(super) struct Moving {
    pub(super) op: OpId,
    pub(super) transfer: Transfer,
    pub(super) put: bool,
    pub(super) peer: usize,
    /// Our session with the peer when it was asked.
    pub(super) session: u64,
    pub(super) stage: Stage,
    /// Pieces that are in UCX's hands.
    pub(super) lent: u32,
    /// How it has ended, which is reported when UCX has let go.
    pub(super) end: Option<Result<(), Error>>,
}

impl Moving {
    /// Returns whether nothing is awaited but that UCX lets go.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }
}

/// Memory that its owner holds for a transfer of a peer.
pub(super) struct Lease {
    /// Keeps the memory.
    pub(super) memory: LocalMem,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The data to send, for a get.
    pub(super) outgoing: Option<Outgoing>,
    /// Pieces that are in UCX's hands.
    pub(super) lent: u32,
    /// The requester has given it up: it ends when UCX has let go.
    pub(super) is_released: bool,
}

/// A piece that UCX writes.
pub(super) struct Landing {
    pub(super) stream: Stream,
    pub(super) len: u64,
    pub(super) memory: LocalMem,
    /// The places where it goes, for UCX; inside `memory`.
    pub(super) places: Vec<ucp_dt_iov_t>,
}
