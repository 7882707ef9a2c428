//! Batches of one receiver that have no answer yet, oldest first.

use std::collections::VecDeque;
use std::sync::Arc;

use margo::na::SharedBuffer;
use margo::{Exposed, ForwardRequest};

use crate::sender::lent::Loan;
use crate::sender::open_batch::Items;
use crate::wire::{BATCHES_MAX, Taken};

/// The content of a batch, as long as it may have to be sent again.
#[derive(Clone)]
pub(super) enum Content {
    /// Nothing that could be sent again: it has gone with the request, and nothing is repeated.
    Gone,
    /// Items that go with the request.
    Items(Arc<Items>),
    /// Items that the receiver fetches: so many bytes.
    Exposed(Arc<Exposed<SharedBuffer>>, usize),
    /// One item, and its data.
    Data(Arc<(Vec<u8>, Loan, u64)>),
}

/// A batch without an answer.
pub(super) struct Sent {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) is_last: bool,
    /// Bytes of credit.
    pub(super) bytes: u64,
    pub(super) content: Content,
    /// `None` while the sender waits for it.
    pub(super) request: Option<ForwardRequest<Taken>>,
}

impl Sent {
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// The window: its bytes are at most the credit.
#[derive(Default)]
pub(super) struct SendWindow {
    sent: VecDeque<Sent>,
    bytes: u64,
}

impl SendWindow {
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a batch of so many bytes may go.
    pub(super) fn has_room(&self, bytes: u64, credit: u64) -> bool {
        self.bytes + bytes <= credit && self.sent.len() < BATCHES_MAX
    }

    pub(super) fn push(&mut self, sent: Sent) {
        self.bytes += sent.bytes;
        self.sent.push_back(sent);
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Sent> {
        self.sent.front_mut()
    }

    pub(super) fn pop(&mut self) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        self.bytes -= sent.bytes;
        Some(sent)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.sent.iter_mut()
    }
}
