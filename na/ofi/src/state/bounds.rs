//! Bounds on the messages that wait for a peer which takes nothing.
//!
//! libfabric has no way to take a message back. It keeps the messages to a peer that takes none,
//! with some providers without a limit (TCP), with others in room that all peers share (RxM). So
//! each peer's part is bounded. Beyond the bound, messages wait in the peer's
//! queue (`queue.rs`), from where they can be taken back. Three kinds are counted separately:
//!
//! - *loose* messages, whose end nobody waits for: they were given up after libfabric had them, or
//!   were copied at once and have a completion of their own;
//! - short messages that were copied at once and have no completion: after every so many of them,
//!   one message goes with a completion, which tells that those before it have left;
//! - answers, in bytes. Requests are bounded by the caller that makes them, answers by nobody: an
//!   origin that keeps asking and reads nothing is given up when too many wait.

use std::time::Duration;

use na_core::limits::budget;
use prim::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The time for which C Mercury tries, too (`NA_OFI_OP_RETRY_TIMEOUT`).
pub(crate) const STUCK_LIMIT: Duration = Duration::from_secs(120);

/// Most loose messages of a peer.
const LOOSE_MAX: usize = 1024;

/// Short messages to a peer without a completion between them.
pub(crate) const UNTOLD_MAX: u32 = 1024;

/// Bytes of answers that libfabric may have for one peer: enough for any network, and little beside
/// what may wait.
const HANDED_BYTES_MAX: usize = 4 << 20;

/// Bytes that an answer takes beside its buffer, approximately.
const BESIDE: usize = 512;

/// Bounds on what one peer may leave untaken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerLimits {
    loose: u32,
    handed: usize,
    /// See [`OpenOptions::unread_answers_max`](na_core::OpenOptions::unread_answers_max).
    answers: usize,
    /// Bytes of answers to all peers together (`OpenOptions::unread_answers_total_max`).
    all_answers: usize,
}

impl PeerLimits {
    /// Returns the bounds for a provider that takes so many messages, to all peers together.
    pub(crate) fn new(sends_max: usize, unread: budget::BudgetLimits) -> Self {
        Self {
            loose: (sends_max / 8).clamp(16, LOOSE_MAX) as u32,
            handed: HANDED_BYTES_MAX.min(unread.of_peer / 2),
            answers: unread.of_peer,
            all_answers: unread.of_all,
        }
    }

    /// Returns whether so many bytes of answers may wait for all peers.
    pub(crate) fn is_kept_by(&self, answers: usize) -> bool {
        answers <= self.all_answers
    }
}

/// Messages that a peer has not taken yet. Changed only under the lock of its endpoint.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Messages to it that libfabric has, and whose end nobody waits for.
    loose: AtomicU32,
    /// Short messages since libfabric told of one.
    untold: AtomicU32,
    /// Bytes of answers to it that libfabric has.
    handed: AtomicUsize,
    /// Bytes of all answers to it that have not left.
    answers: AtomicUsize,
}

impl Load {
    /// Counts one more loose message to the peer, or one less.
    pub(crate) fn count_loose(&self, more: bool) {
        match more {
            true => self.loose.fetch_add(1, Ordering::Relaxed),
            false => self.loose.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Returns whether further messages to it have to wait until libfabric has fewer; it tells
    /// when.
    pub(crate) fn is_full(&self, bounds: &PeerLimits) -> bool {
        self.loose.load(Ordering::Relaxed) >= bounds.loose
            || self.handed.load(Ordering::Relaxed) > bounds.handed
    }

    /// Returns whether a short message may be copied at once whose end libfabric does not tell.
    pub(crate) fn may_inject(&self) -> bool {
        self.untold.load(Ordering::Relaxed) < UNTOLD_MAX
    }

    /// Counts a short message that was copied at once and has no completion.
    pub(crate) fn count_untold(&self) {
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// A message to it has left; so have those before it.
    pub(crate) fn has_taken(&self) {
        self.untold.store(0, Ordering::Relaxed);
    }

    /// An answer is to go to it, in a buffer of so many bytes. Returns what it takes.
    pub(crate) fn answer_waits(&self, buffer: usize) -> usize {
        self.answers.fetch_add(buffer + BESIDE, Ordering::Relaxed);
        buffer + BESIDE
    }

    /// libfabric has it now, or has given it back.
    pub(crate) fn answer_handed(&self, buffer: usize, more: bool) {
        match more {
            true => self.handed.fetch_add(buffer + BESIDE, Ordering::Relaxed),
            false => self.handed.fetch_sub(buffer + BESIDE, Ordering::Relaxed),
        };
    }

    /// It has left, or never will; whether libfabric had it. Returns what it took.
    pub(crate) fn answer_ended(&self, buffer: usize, handed: bool) -> usize {
        if handed {
            self.answer_handed(buffer, false);
        }
        self.answers.fetch_sub(buffer + BESIDE, Ordering::Relaxed);
        buffer + BESIDE
    }

    /// Bytes of answers to it that libfabric has not.
    pub(crate) fn waiting(&self) -> usize {
        self.answers.load(Ordering::Relaxed).saturating_sub(self.handed.load(Ordering::Relaxed))
    }

    /// Bytes of answers that wait for it, if those are more than may.
    pub(crate) fn excess(&self, bounds: &PeerLimits) -> Option<usize> {
        Some(self.answers.load(Ordering::Relaxed)).filter(|bytes| *bytes > bounds.answers)
    }

    #[cfg(test)]
    pub(crate) fn answers(&self) -> (usize, usize) {
        (self.handed.load(Ordering::Relaxed), self.answers.load(Ordering::Relaxed))
    }
}
