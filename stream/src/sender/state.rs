//! All of a sender: what its methods and the ULT that sends what has waited share.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `Shared::state` | the program's calls, mostly; the ULT of `linger.rs` | its lock |
//! | `Shared::since` | written under that lock | anybody: only a hint |
//!
//! Nobody waits with the lock held: the ULT would hold its execution stream up. Whoever waits for
//! an answer takes its call out of the window meanwhile (`wait.rs`); others who want to wait for
//! the link then wait for that one. Of the program's code only `Serialize` runs with the lock held.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use margo::trace;
use prim::lock::BiasedLock;
use ult::channel;

use crate::error::SendError;
use crate::sender::link::{Link, Outgoing};
use crate::sender::open_batch::OpenBatch;
use crate::spec::SendSpec;

pub(super) struct Shared {
    pub(super) stream: &'static str,
    pub(super) spec: SendSpec,
    pub(super) state: BiasedLock<State>,
    /// For each open batch a number that it alone has had, 0 while it is empty.
    pub(super) since: Vec<AtomicU64>,
    /// True while the ULT looks at `since`; if not, it waits for the bell.
    pub(super) looks: AtomicBool,
    pub(super) bell: channel::Sender<()>,
}

pub(super) struct State {
    pub(super) links: Vec<Link>,
    /// One for each link, or one for all: whichever comes next, or each of them.
    pub(super) open: Vec<OpenBatch>,
    to: To,
    /// The link whose turn it is.
    turn: usize,
    /// The last number of `since`.
    opened: u64,
}

/// The links to which an open batch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// The link of the same place: each has an open batch.
    Own,
    /// The next one, in turn.
    Next,
    /// The one with the least without an answer.
    Least,
    /// All of them.
    All,
}

/// The fate of a batch that was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Go {
    Gone,
    /// The link has no credit left, or is not connected.
    Waits(usize),
}

impl State {
    pub(super) fn new(links: Vec<Link>, open: Vec<OpenBatch>, to: To) -> Self {
        Self { links, open, to, turn: 0, opened: 0 }
    }

    /// An item was put into the open batch, which had none.
    pub(super) fn begun(&mut self, batch: usize, shared: &Shared) {
        self.opened += 1;
        shared.since[batch].store(self.opened, Relaxed);
        // pair: STREAM-LINGER. The ULT that has stored `false` before this sees the number.
        if !shared.looks.swap(true, AcqRel) {
            let _ = shared.bell.try_send(());
        }
    }

    fn links_of(&self, batch: usize) -> Range<usize> {
        let one = |at: usize| at..at + 1;
        match self.to {
            To::Own => one(batch),
            To::Next => one(self.turn),
            To::All => 0..self.links.len(),
            To::Least => {
                let bytes = |at: &usize| {
                    let link = &self.links[*at];
                    (link.connection.is_none(), link.window.bytes())
                };
                one((0..self.links.len()).min_by_key(bytes).unwrap_or(0))
            }
        }
    }

    /// The link whose turn it is, for an item that goes alone.
    pub(super) fn turn_of(&mut self, batch: usize) -> usize {
        let at = self.links_of(batch).start;
        self.turn = (self.turn + 1) % self.links.len();
        at
    }

    /// Returns whether an open batch need not wait for further items, since nothing else is under
    /// way.
    pub(super) fn is_idle(&mut self, batch: usize) -> bool {
        let to = self.links_of(batch);
        self.links[to].iter_mut().any(|link| {
            link.reap();
            link.window.is_empty()
        })
    }

    /// Sends an open batch to its links, if all of them can take it.
    ///
    /// # Errors
    ///
    /// One of them has failed.
    pub(super) fn go(&mut self, batch: usize, shared: &Shared) -> Result<Go, SendError> {
        if self.open[batch].count() == 0 {
            return Ok(Go::Gone);
        }
        let to = self.links_of(batch);
        let len = self.open[batch].len() as u64;
        for at in to.clone() {
            if !self.links[at].has_room(len)? {
                return Ok(Go::Waits(at));
            }
        }
        let buf = self.links[to.start].free_buf();
        let (items, count) = self.open[batch].take(buf);
        shared.since[batch].store(0, Relaxed);
        let trace = self.open[batch].trace.take().or_else(trace::current);
        let items = Arc::new(items);
        if let Some((last, others)) = self.links[to].split_last_mut() {
            for link in others {
                link.launch(Outgoing::Items(items.clone()), (count, false), trace)?;
            }
            // It keeps the buffer for a further batch, if nobody else has it.
            last.launch(Outgoing::Items(items), (count, false), trace)?;
        }
        self.turn = (self.turn + 1) % self.links.len();
        Ok(Go::Gone)
    }
}
