//! The state of a bulk transfer.

use na::{Addr, LocalMem, RemoteMem, Transfer};

use crate::bulk::RemotePart;
use crate::ops::{Event, Role};
use crate::{BulkOp, HgError};

/// Most pieces in flight that a [`Role`] can tell apart here.
pub(crate) const WINDOW_MAX: u32 = 32;

/// A bulk transfer in flight.
#[derive(Debug)]
pub(crate) struct BulkTransfer<T> {
    pub(crate) token: Option<T>,
    pub(crate) op: BulkOp,
    pub(crate) peer: Addr,
    pub(crate) parts: Vec<RemotePart>,
    pub(crate) remote_offset: u64,
    pub(crate) local: LocalMem,
    pub(crate) local_offset: u64,
    pub(crate) len: u64,
    /// Bytes for which pieces were started.
    pub(crate) started: u64,
    /// Bytes that have moved.
    pub(crate) moved: u64,
    /// Lengths of the pieces in flight, by their number.
    pub(crate) flying: Vec<Option<u64>>,
    /// A transfer of no bytes still asks for permission: it has one piece as well.
    pub(crate) any_started: bool,
    /// Looks since which no piece has landed, see [`Core::standing_transfers`].
    pub(crate) stood: u32,
    pub(crate) error: Option<HgError>,
}

impl<T> BulkTransfer<T> {
    fn is_flying(&self) -> bool {
        self.flying.iter().any(Option::is_some)
    }

    pub(crate) fn is_flying_as(&self, number: u8) -> bool {
        self.flying.get(usize::from(number)).is_some_and(Option::is_some)
    }

    /// Claims the next piece, if there is one and it may fly.
    pub(crate) fn next(&mut self, chunk_max: u64) -> Option<(u8, Transfer)> {
        if self.any_started && self.started == self.len {
            return None;
        }
        let number = self.flying.iter().position(Option::is_none)?;
        let at = self.remote_offset + self.started;
        let (remote, offset, room) = self.remote_at(at)?;
        let len = (self.len - self.started).min(room).min(chunk_max);
        let piece = Transfer {
            local: self.local.clone(),
            local_offset: self.local_offset + self.started,
            remote,
            remote_offset: offset,
            len,
        };
        self.flying[number] = Some(len);
        self.started += len;
        self.any_started = true;
        Some((number as u8, piece))
    }

    /// The memory handle for the byte at `at`, the offset there, and the bytes from there on.
    fn remote_at(&self, at: u64) -> Option<(RemoteMem, u64, u64)> {
        let index = self.parts.partition_point(|part| part.start + part.len <= at);
        // The end of everything, for a transfer of no bytes.
        let part = self.parts.get(index).or(self.parts.last())?;
        let offset = at - part.start;
        Some((part.memory.clone(), offset, part.len - offset))
    }

    pub(crate) fn landed(&mut self, number: u8, result: Result<(), HgError>) {
        let Some(len) = self.flying.get_mut(usize::from(number)).and_then(Option::take) else {
            return;
        };
        self.stood = 0;
        match result {
            Ok(()) => self.moved += len,
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
    }

    pub(crate) fn flying_roles(&self) -> Vec<Role> {
        let flying = self.flying.iter().zip(0..).filter(|(piece, _)| piece.is_some());
        flying.map(|(_, number)| Role::Piece(number)).collect()
    }

    /// Returns the parts to cancel.
    pub(crate) fn cancel(&mut self) -> Vec<Role> {
        self.error.get_or_insert(HgError::Canceled);
        self.flying_roles()
    }

    /// Returns the event that is to be told, if any, and whether the transfer is over.
    pub(crate) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        let complete = self.any_started && self.moved == self.len;
        if self.is_flying() || !complete && self.error.is_none() {
            return (None, false);
        }
        // A cancel that came too late changes nothing.
        let result = match self.error.take() {
            Some(error) if !complete || !matches!(error, HgError::Canceled) => Err(error),
            _ => Ok(self.len),
        };
        (self.token.take().map(|token| Event::Bulk { token, result }), true)
    }
}
