//! Connections that were closed by force, until UCX has destroyed them.
//!
//! `ucp_ep_close_nbx` returns at once, by force. The transports' own connections, UCX's *lanes*,
//! are flushed and destroyed by later calls of `ucp_worker_progress` (`ucp_worker_discard_uct_ep`,
//! ucp_worker.c), from a queue of callbacks that `ucp_worker_arm` does not look at. So nobody may
//! sleep before, or the peer would not hear of the end.
//!
//! And until then the queue pair of a connection of InfiniBand or RoCE may work: if nothing is in
//! flight, its flush is over at once and leaves it as it is (`uct_rc_ep_flush`, rc_ep.c); if its
//! queue is full the flush has to wait. So the peer reaches memory of which it has keys, and that
//! is given back after the end only. UCX does not tell the end of one connection, but a flush of
//! the worker waits for all lanes that are to be destroyed (`flush_ops_count`, flush.c).
//!
//! Where puts and gets are emulated by messages, none comes through a connection that is closed,
//! and such a flush may never end: UCX waits for the answers to puts of a connection that has
//! ended. There two looks that find nothing are enough.

use crate::operations::keys::EndedKeys;

/// Looks, in a row, that must find nothing after a connection was closed. The first one may have
/// run the callback that asks for the last one.
const QUIET_TURNS: usize = 2;

/// Looks after which memory is given back although each of them finds something, where puts and
/// gets are messages.
const TURNS_MAX: usize = 64;

/// Flushes that fail, after which the next one waits for another connection to be closed.
const FAILURES_MAX: u32 = 8;

/// Connections that UCX has been told to end.
#[derive(Default)]
pub(crate) struct Discards {
    /// So many looks more must find nothing before somebody may sleep.
    restless: usize,
    /// Looks since a connection was closed.
    turns: usize,
    /// Keys that their holders may still use.
    ended: Vec<EndedKeys>,
    is_flushing: bool,
    /// Flushes that have failed since a connection was closed, or one went well.
    failures: u32,
}

impl Discards {
    /// Returns whether nobody may sleep.
    pub(crate) fn is_busy(&self) -> bool {
        self.restless > 0
    }

    /// Returns whether looks at the network are of interest here.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.restless > 0 || self.is_flushing
    }

    /// The network was looked at. `quiet`: the last look has found nothing; `links`: so many
    /// connections are open. Returns the keys that are over now, and those that are over after a
    /// flush, which is to be begun if there are any.
    pub(crate) fn look(&mut self, quiet: bool, links: usize) -> (Vec<EndedKeys>, Vec<EndedKeys>) {
        self.turns += 1;
        self.restless = match quiet {
            true => self.restless.saturating_sub(1),
            // A flush looks at one connection in each turn.
            false if self.is_flushing => QUIET_TURNS + links,
            false => QUIET_TURNS,
        };
        if self.ended.is_empty() {
            return Default::default();
        }
        let (is_over, may_flush) =
            (self.restless == 0 || self.turns >= TURNS_MAX, self.may_flush());
        let is_next = |ended: &EndedKeys| if ended.by_adapter { may_flush } else { is_over };
        let (next, left) = std::mem::take(&mut self.ended).into_iter().partition(is_next);
        self.ended = left;
        Vec::into_iter(next).partition(|ended| !ended.by_adapter)
    }

    /// UCX goes on with a flush.
    pub(crate) fn flushing(&mut self, links: usize) {
        self.is_flushing = true;
        self.stir(QUIET_TURNS + links);
    }

    fn stir(&mut self, quiet_turns: usize) {
        self.restless = self.restless.max(quiet_turns);
    }

    /// A connection was closed by force, with which these keys end.
    pub(crate) fn add(&mut self, ended: Option<EndedKeys>) {
        self.ended.extend(ended);
        (self.turns, self.failures) = (0, 0);
        self.stir(QUIET_TURNS);
    }

    /// A flush has ended, badly if it leaves these keys.
    pub(crate) fn flushed(&mut self, left: Vec<EndedKeys>) {
        self.is_flushing = false;
        self.failures = if left.is_empty() { 0 } else { self.failures + 1 };
        self.ended.extend(left);
        // Those are next, and those of connections that were closed meanwhile.
        if !self.ended.is_empty() && self.failures < FAILURES_MAX {
            self.stir(QUIET_TURNS);
        }
    }

    /// Returns whether the end of what was closed may be asked for. What is under way was asked for
    /// before.
    fn may_flush(&self) -> bool {
        !self.is_flushing && self.failures < FAILURES_MAX
    }

    /// The keys that were waited for.
    pub(crate) fn into_ended(self) -> Vec<EndedKeys> {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<EndedKeys> {
        vec![EndedKeys { given: Vec::new(), by_adapter: true }]
    }

    /// Looks that find nothing, until somebody may sleep.
    fn rest(discards: &mut Discards) {
        discards.restless = 0;
    }

    #[test]
    fn keys_of_which_a_flush_fails_are_flushed_again_and_not_for_ever() {
        let mut discards = Discards::default();
        discards.add(keys().pop());
        let mut flushes = 0;
        while discards.may_flush() {
            assert!(discards.is_busy(), "nobody comes to flush them");
            // The look that brings the end of a flush finds something.
            discards.is_flushing = true;
            assert!(!discards.may_flush(), "one at a time");
            flushes += 1;
            let left = std::mem::take(&mut discards.ended);
            assert_eq!(left.len(), 1, "they are not lost");
            if flushes % 2 == 0 {
                rest(&mut discards);
            }
            discards.flushed(left);
            assert!(!discards.is_flushing);
        }
        assert_eq!(flushes, FAILURES_MAX);
        // Another connection ends.
        discards.add(keys().pop());
        assert!(discards.is_busy() && discards.may_flush());
        rest(&mut discards);
        let left = std::mem::take(&mut discards.ended);
        assert_eq!(left.len(), 2);
        discards.flushed(left);
        assert!(discards.is_busy());
        rest(&mut discards);
        discards.ended.clear();
        discards.flushed(Vec::new());
        assert!(!discards.is_busy(), "nothing is left");
    }
}
