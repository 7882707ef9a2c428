//! The rules by which a send waits for the next poll, so that several sends share one system call.
//!
//! A system call costs as much as ten short messages. Two rules put messages together:
//!
//! - after a poll, the first message to a peer goes out at once, and the others wait for the next
//!   poll ([`Outgoing::has_just_written`]);
//! - after a poll that has reported several completions, all messages wait: the answers, or the
//!   next calls, that these completions lead to come within the next microseconds.
//!
//! Both rules end after [`BATCH_WINDOW`]: later sends go out at once. But a message that already
//! waits is sent only by the next poll, and that poll comes late if the polling thread also runs
//! handlers and one of them computes for long. Nobody can know that beforehand. So a poll that
//! finds that a message has waited for more than [`LATE`] switches both rules off for the next
//! [`ALONE_POLLS`] polls that report anything: then each message goes out at once.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `until_ns`, `alone_for` | the poll | sends |
//! | `waits_since_ns` | the first send that waits, the poll | the poll |
//!
//! All of them are hints: a reader that sees an old value sends a message some microseconds later,
//! or alone.

use std::time::{Duration, Instant};

use crate::stream::outgoing::{BATCH_WINDOW, Outgoing};
use prim::sync::atomic::{AtomicU64, Ordering};

/// A message that has waited so long should have been sent at once. Some hundred messages between
/// two polls, which gain most from going together, take less.
const LATE: Duration = Duration::from_millis(1);
/// Number of polls that report something during which no message waits, after one has waited for
/// long. It is not larger because a process that was off its core for a moment looks the same.
const ALONE_POLLS: u64 = 64;

/// See the module's documentation.
pub(crate) struct Gather {
    /// Since when points in time are counted.
    opened_at: Instant,
    /// Until when sends wait because the last poll has reported much; zero if it has not.
    until_ns: AtomicU64,
    /// Since when the oldest message waits that waits for the next poll; zero if none does.
    waits_since_ns: AtomicU64,
    /// Number of polls for which no message waits.
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
            self.alone_for.store(ALONE_POLLS, Ordering::Relaxed);
        }
    }

    /// A poll is about to report so many completions.
    pub(crate) fn reports(&self, completions: usize) {
        let alone_for = self.alone_for.load(Ordering::Relaxed);
        if alone_for > 0 && completions > 0 {
            self.alone_for.store(alone_for - 1, Ordering::Relaxed);
        }
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

    /// Returns whether a send by way of `out` should write at once. `poll` is the number of the
    /// last poll.
    pub(crate) fn may_write_now(&self, out: &Outgoing, poll: u64, nobody_polls: bool) -> bool {
        if out.is_blocked() {
            return false;
        }
        if nobody_polls || self.alone_for.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let until = self.until_ns.load(Ordering::Relaxed);
        let waits = until != 0 && self.now_ns() < until || out.has_just_written(poll);
        if waits && self.waits_since_ns.load(Ordering::Relaxed) == 0 {
            self.waits_since_ns.store(self.now_ns().max(1), Ordering::Relaxed);
        }
        !waits
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

    #[test]
    fn a_message_that_waited_for_long_makes_the_next_ones_go_at_once() {
        let (gather, mut out) = (Gather::new(), Outgoing::default());
        // Waits, unless this thread was off its core for the whole window.
        let mut waits = false;
        while !waits {
            gather.reports(2);
            waits = !gather.may_write_now(&out, 1, false);
        }
        be_late(&gather);
        gather.polled();
        gather.reports(2);
        assert!(gather.may_write_now(&out, 2, false));
        out.wrote(2);
        assert!(gather.may_write_now(&out, 2, false), "the other rule is off as well");
        // Polls that report nothing do not count.
        for _ in 0..2 * ALONE_POLLS {
            gather.reports(0);
        }
        assert_eq!(gather.alone_for.load(Ordering::Relaxed), ALONE_POLLS - 1);
        for _ in 0..ALONE_POLLS {
            gather.reports(1);
        }
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
