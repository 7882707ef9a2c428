//! The newest events of one writer, readable by anybody at any time.
//!
//! A power of two of slots, each three words. The writer never waits: it overwrites the oldest slot
//! and then publishes the new length. A reader copies the slots and afterwards looks at the length
//! again: what the writer may have overwritten meanwhile is left out.
//!
//! # Who may touch what
//!
//! | state | writer | readers |
//! |---|---|---|
//! | `pushed` | stores it, after the slot | load it, before and after the slots |
//! | `slots` | stores, relaxed | load, relaxed |
//!
//! # Orderings
//!
//! A reader that sees one word of event `i` must not see a length below `i` afterwards, or it would
//! take a half-overwritten slot for a whole one. The writer has stored the length `i` before it
//! begins event `i`, with a release fence in between; the reader's acquire fence stands between
//! its loads of the words and its second load of the length.

#![cfg_attr(not(loom), allow(unreachable_pub, reason = "public for the loom models only"))]

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, fence};

/// Words of one event.
pub(crate) const WORDS: usize = 3;

/// One event as it is stored.
pub(crate) type Words = [u64; WORDS];

/// The ring. See the module documentation.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[[AtomicU64; WORDS]]>,
    pushed: AtomicU64,
}

/// The outcome of [`Ring::read`].
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    /// The events that are still there, oldest first.
    pub events: Vec<[u64; WORDS]>,
    /// How many older ones have been overwritten.
    pub dropped: u64,
}

impl Ring {
    /// A ring that keeps at least `events` events.
    #[must_use]
    pub fn new(events: usize) -> Self {
        // One more: a reader leaves out the slot that the writer may be changing.
        let count = (events.clamp(1, 1 << 31) + 1).next_power_of_two();
        let slot = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { slots: (0..count).map(|_| slot()).collect(), pushed: AtomicU64::new(0) }
    }

    /// Appends an event. One thread at a time.
    #[inline]
    pub fn push(&self, words: Words) {
        let at = self.pushed.load(Relaxed);
        fence(Release); // pair: TRACE-RING-OVERWRITE
        let slot = &self.slots[self.place(at)];
        for (word, value) in slot.iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.pushed.store(at + 1, Release); // pair: TRACE-RING
    }

    /// Copies what is there, also while the writer goes on.
    #[must_use]
    pub fn read(&self) -> Read {
        let pushed = self.pushed.load(Acquire); // pair: TRACE-RING
        let oldest = pushed.saturating_sub(self.slots.len() as u64);
        let mut events: Vec<Words> = Vec::new();
        for at in oldest..pushed {
            let slot = &self.slots[self.place(at)];
            events.push([0, 1, 2].map(|word| slot[word].load(Relaxed)));
        }
        fence(Acquire); // pair: TRACE-RING-OVERWRITE
        let pushed_since = self.pushed.load(Relaxed);
        // The writer may be in the middle of event `pushed_since`.
        let whole = (pushed_since + 1).saturating_sub(self.slots.len() as u64);
        let dropped = whole.clamp(oldest, pushed);
        let cut = usize::try_from(dropped - oldest).unwrap_or(usize::MAX).min(events.len());
        events.drain(..cut);
        Read { events, dropped }
    }

    fn place(&self, at: u64) -> usize {
        // The mask keeps it below the length, which is a `usize`.
        #[allow(clippy::cast_possible_truncation, reason = "masked")]
        let place = at as usize & (self.slots.len() - 1);
        place
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Words {
        [number, number * 2, number * 3]
    }

    #[test]
    fn keeps_the_newest_and_counts_the_rest() {
        let ring = Ring::new(3);
        assert_eq!(ring.read(), Read { events: vec![], dropped: 0 });
        (0..3).for_each(|number| ring.push(numbered(number)));
        let read = ring.read();
        assert_eq!(read.events, (0..3).map(numbered).collect::<Vec<_>>());
        assert_eq!(read.dropped, 0);
        (3..10).for_each(|number| ring.push(numbered(number)));
        let read = ring.read();
        assert_eq!(read.events, (7..10).map(numbered).collect::<Vec<_>>());
        assert_eq!(read.dropped, 7);
    }

    #[test]
    fn readers_never_see_half_an_event() {
        let ring = Ring::new(8);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..200_000).for_each(|at| ring.push(numbered(at))));
            while !writer.is_finished() {
                let read = ring.read();
                for (event, at) in read.events.iter().zip(read.dropped..) {
                    assert_eq!(*event, numbered(at));
                }
            }
        });
    }
}
