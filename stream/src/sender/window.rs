//! Batches of one receiver that have no answer yet, oldest first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use margo::na::SharedBuffer;
use margo::trace::TraceContext;
use margo::{Exposed, ForwardRequest};

use crate::base::figures::FlowFigures;
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
    pub(super) trace: Option<TraceContext>,
    /// `None` while the sender waits for it.
    pub(super) request: Option<ForwardRequest<Taken>>,
}

impl Sent {
    pub(super) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// Figures of a link, which has one writer at a time: whoever has the lock of the sender's state.
#[derive(Default)]
pub(super) struct SendCounts {
    pub(super) items: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Bytes without an answer.
    pub(super) held: AtomicU64,
    pub(super) credit: AtomicU64,
}

impl SendCounts {
    pub(super) fn look(&self) -> FlowFigures {
        FlowFigures {
            items: self.items.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            waiting: 0,
            held: self.held.load(Relaxed),
            credit: self.credit.load(Relaxed),
        }
    }
}

fn add(count: &AtomicU64, amount: u64) {
    count.store(count.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// The window: its bytes are at most the credit.
#[derive(Default)]
pub(super) struct SendWindow {
    sent: VecDeque<Sent>,
    pub(super) counts: Arc<SendCounts>,
}

impl SendWindow {
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.counts.held.load(Relaxed)
    }

    /// Returns whether a batch of so many bytes may go.
    pub(super) fn has_room(&self, bytes: u64, credit: u64) -> bool {
        self.bytes() + bytes <= credit && self.sent.len() < BATCHES_MAX
    }

    pub(super) fn push(&mut self, sent: Sent) {
        add(&self.counts.items, sent.count.into());
        add(&self.counts.bytes, sent.bytes);
        add(&self.counts.held, sent.bytes);
        self.sent.push_back(sent);
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Sent> {
        self.sent.front_mut()
    }

    pub(super) fn pop(&mut self) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        add(&self.counts.held, sent.bytes.wrapping_neg());
        Some(sent)
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
        self.counts.held.store(0, Relaxed);
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.sent.iter_mut()
    }
}
