//! Operations on the endpoint's own address, which need no socket: see `loopback.rs` of the crate.
//!
//! A caller that leaves an operation there asks for a poll, as for any mail. A poll runs the
//! operations first, and does nothing else if they moved messages only, except in one poll of
//! several. After it has taken the mail it runs them again, so that no request that came with that
//! mail is left behind. Before a sleep, and after the fence of `mail.rs`, `Loopback::is_due` is
//! asked.

use crate::api::endpoint::TcpEndpoint;
use crate::state::Poller;
use na_core::loopback::{Outcome, Queued};
use na_core::{Completion, Error, OpId, Refused, Transfer};

/// Data that one poll copies, bytes.
const COPY_BYTES: u64 = 256 << 10;

impl TcpEndpoint {
    pub(crate) fn send_within(&self, message: Queued) -> Result<(), Refused> {
        let (len, max) = (message.buf.len(), self.core.message_bytes_max);
        if len > max {
            return Err(Refused { error: Error::TooLong { len, max }, buf: message.buf });
        }
        self.loopback.send(message)?;
        self.core.mail.notify();
        Ok(())
    }

    pub(crate) fn transfer_within(
        &self,
        op: OpId,
        transfer: Transfer,
        put: bool,
    ) -> Result<(), Error> {
        self.loopback.start(op, put, transfer)?;
        self.core.mail.notify();
        Ok(())
    }

    /// A receive was posted; `early` is its end if its message was there, `refused` what
    /// [`Matcher::take_refused`] said.
    ///
    /// [`Matcher::take_refused`]: na_core::matching::Matcher::take_refused
    pub(crate) fn posted(&self, early: Option<Completion>, refused: bool) {
        if early.is_some() {
            self.core.mail.complete(early);
        } else if refused || self.loopback.is_busy() {
            // It may be what a message in a paused connection waits for, or one to ourselves.
            self.core.mail.notify();
        }
    }

    /// Moves what is under way. Returns whether that was messages and nothing else.
    #[inline]
    pub(crate) fn run_within(&self, poller: &mut Poller) -> bool {
        self.loopback.is_busy() && self.run_waiting(poller)
    }

    fn run_waiting(&self, poller: &mut Poller) -> bool {
        let (mut left, mut out) = (COPY_BYTES, Outcome::default());
        let (own, core) = (&self.self_addr, &self.core);
        let matcher = || core.matcher.lock();
        if !self.loopback.run(own, matcher, &core.regions, &mut left, &mut out) {
            return false;
        }
        poller.memories.append(&mut out.memory);
        let only_messages = left == COPY_BYTES && poller.memories.is_empty();
        poller.batch.extend(out.completions);
        only_messages
    }

    /// Ends a send or transfer, if it is here.
    pub(crate) fn cancel_within(&self, op: OpId) -> bool {
        let mut out = Outcome::default();
        let found = self.loopback.cancel(op, &mut out);
        if found {
            // The memory in it may run the code of its owner; no lock is held.
            self.core.mail.complete(out.completions);
        }
        found
    }

    /// Ends everything, for good.
    pub(crate) fn close_within(&self) {
        let mut out = Outcome::default();
        self.loopback.fail_all(&Error::Closed, &mut out);
        self.core.mail.complete(out.completions);
    }
}
