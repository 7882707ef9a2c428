//! The rules by which a send waits for the next poll, so that several sends share one system call.
//!
//! A system call costs as much as ten short messages. Two rules put messages together:
//!
//! - the first message to a peer that has sent something since the last one goes out at once, and
//!   the others wait for the next poll ([`Outgoing::has_just_written`]). Polls that find nothing of
//!   that peer do not count: another core may make them all the time;
//! - after a poll that has reported several completions, all messages wait: the answers, or the
//!   next calls, that these completions lead to come within the next microseconds.
//!
//! Both rules end after [`BATCH_WINDOW`]: later sends go out at once. But a message that already
//! waits is sent only by the next poll, and that poll comes late if the polling thread also runs
//! handlers and one of them computes for long. Nobody can know that beforehand. So a poll that
//! finds that a message has waited for more than [`LATE`] has the next [`ALONE`] messages go out at
//! once that would have waited. They are counted, and not the polls, because polls report nothing
//! of one-way messages that have gone out at once.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `until_ns` | the poll | sends |
//! | `waits_since_ns` | the first send that waits, the poll | the poll |
//! | `alone_for` | the poll, sends that do not wait | sends |
//!
//! All of them are hints: a reader that sees an old value sends a message some microseconds later,
//! or alone.

use std::time::{Duration, Instant};

use crate::stream::outgoing::{BATCH_WINDOW, Outgoing};
use prim::sync::atomic::{AtomicU64, Ordering};

/// A message that has waited so long should have been sent at once. Some hundred messages between
/// two polls, which gain most from going together, take less.
const LATE: Duration = Duration::from_millis(1);
/// Number of messages that do not wait, after one has waited for long. Their system calls take
/// about as long as that one has waited: a process that was off its core for a moment looks the
/// same as one that has computed, and loses little by going on as before.
const ALONE: u64 = 256;

/// See the module's documentation.
pub(crate) struct Gather {
    /// Since when points in time are counted.
    opened_at: Instant,
    /// Until when sends wait because the last poll has reported much; zero if it has not.
    until_ns: AtomicU64,
    /// Since when the oldest message waits that waits for the next poll; zero if none does.
    waits_since_ns: AtomicU64,
    /// Number of messages that go out at once though they should wait.
    alone_for: AtomicU64,
}

impl Gather {
    pub(crate) fn new() -> Self {
        Self {
            opened_at: Instant::now(),
            until_ns: AtomicU64::new(0),
            waits_since_ns: AtomicU64::new(0),
            alone_for: AtomicU64::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A poll begins to look after what waits.
    pub(crate) fn polled(&self) {
        let since = self.waits_since_ns.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        self.waits_since_ns.store(0, Ordering::Relaxed);
        if self.now_ns().saturating_sub(since) > LATE.as_nanos() as u64 {
            self.alone_for.store(ALONE, Ordering::Relaxed);
        }
    }

    /// A poll is about to report so many completions.
    pub(crate) fn reports(&self, completions: usize) {
        if completions > 1 {
            let until = self.now_ns().saturating_add(BATCH_WINDOW.as_nanos() as u64);
            self.until_ns.store(until, Ordering::Relaxed);
        } else if self.until_ns.load(Ordering::Relaxed) != 0 {
            self.until_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether the time to gather is over: what waits should be sent even by a poll that
    /// only reports what was left.
    pub(crate) fn is_over(&self) -> bool {
        self.now_ns() >= self.until_ns.load(Ordering::Relaxed)
    }

    /// Returns whether a send by way of `out` should write at once. So many bytes were `received`
    /// from the peer.
    pub(crate) fn may_write_now(&self, out: &Outgoing, received: u64, nobody_polls: bool) -> bool {
        if out.is_blocked() {
            return false;
        }
        if nobody_polls {
            return true;
        }
        let until = self.until_ns.load(Ordering::Relaxed);
        if !(until != 0 && self.now_ns() < until || out.has_just_written(received)) {
            return true;
        }
        let alone_for = self.alone_for.load(Ordering::Relaxed);
        if alone_for > 0 {
            self.alone_for.store(alone_for - 1, Ordering::Relaxed);
            return true;
        }
        if self.waits_since_ns.load(Ordering::Relaxed) == 0 {
            self.waits_since_ns.store(self.now_ns().max(1), Ordering::Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spins until `gather` has to take what waits for late.
    fn be_late(gather: &Gather) {
        let since = gather.waits_since_ns.load(Ordering::Relaxed);
        while gather.now_ns() - since <= LATE.as_nanos() as u64 {
            std::hint::spin_loop();
        }
    }

    /// Sends after polls that have reported much, until a message waits.
    fn until_one_waits(gather: &Gather) {
        gather.reports(2);
        while gather.may_write_now(&Outgoing::default(), 1, false) {
            // This thread may have been off its core for the whole window.
            gather.reports(2);
        }
    }

    #[test]
    fn a_message_that_waited_for_long_makes_the_next_ones_go_at_once() {
        let gather = Gather::new();
        until_one_waits(&gather);
        be_late(&gather);
        gather.polled();
        // Neither polls count, nor messages that would not have waited.
        for _ in 0..2 * ALONE {
            gather.reports(0);
            assert!(gather.may_write_now(&Outgoing::default(), 1, false));
        }
        assert_eq!(gather.alone_for.load(Ordering::Relaxed), ALONE);
        // The other rule is off as well.
        let mut out = Outgoing::default();
        out.wrote(2);
        assert!(gather.may_write_now(&out, 2, false));
        until_one_waits(&gather);
        assert_eq!(gather.alone_for.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_waits_for_a_poll_that_is_not_to_come() {
        let (gather, mut out) = (Gather::new(), Outgoing::default());
        gather.reports(2);
        out.wrote(1);
        assert!(gather.may_write_now(&out, 1, true));
        assert_eq!(gather.waits_since_ns.load(Ordering::Relaxed), 0);
    }
}
