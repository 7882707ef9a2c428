//! The state of a transfer that is not over; what moves it is in `transfer.rs`.

use crate::buffers::memory::{self, Registered, RemotePiece};
use na_core::{Addr, Error, OpId, Transfer};
use prim::sync::Arc;

/// A transfer.
pub(crate) struct Running {
    pub(crate) op: OpId,
    pub(crate) put: bool,
    pub(crate) transfer: Transfer,
    /// The registration of the local memory, whose descriptors libfabric is given if it wants them.
    /// It ends only after the transfer.
    pub(crate) registered: Option<Arc<Registered>>,
    pub(crate) with: Addr,
    pub(crate) pieces: Vec<RemotePiece>,
    /// Bytes that were handed over.
    pub(crate) started: u64,
    pub(crate) in_flight: u32,
    /// It waits in the queue of its peer.
    pub(crate) queued: bool,
    pub(crate) error: Option<Error>,
}

impl Running {
    /// The next part: ours, libfabric's name of the peer's, key, bytes.
    pub(crate) fn next(&self, part_max: u64) -> Option<(*mut u8, u64, u64, usize)> {
        let Transfer { local, local_offset, remote_offset, len, .. } = &self.transfer;
        let left = len - self.started;
        let at = remote_offset + self.started;
        let number = self.pieces.partition_point(|piece| piece.start + piece.len <= at);
        let theirs = self.pieces.get(number)?;
        let within = at - theirs.start;
        let len = left.min(theirs.len - within).min(part_max);
        let from = local_offset + self.started;
        let (ours, len) = match (local.elsewhere(), &self.registered) {
            (None, _) => {
                let ours = local.region().pieces(from, len).next()?;
                (ours.ptr, ours.len)
            }
            (Some(_device), registered) => registered.as_ref()?.place(from, len)?,
        };
        Some((ours, theirs.addr + within, theirs.key, len))
    }

    /// libfabric has parts of it.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    pub(crate) fn is_started(&self) -> bool {
        self.error.is_some() || self.started == self.transfer.len
    }

    /// Lets go of the registration, for good if it shall be `kept`. The memory is still held.
    pub(crate) fn release(&mut self, kept: bool) {
        match self.registered.take() {
            Some(registered) if kept => std::mem::forget(registered),
            Some(registered) => memory::release_of(registered, &self.transfer.local),
            None => {}
        }
    }
}
