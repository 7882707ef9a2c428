//! Whose a slot of a lane is: the counters of its two ends. What a lane is for: `fallback.rs`.
//!
//! A lane is [`SLOTS`] slots of memory that both sides have mapped, filled and emptied in order.
//! The source copies into a slot and announces it with a record in the ring; the sink takes the
//! record, copies out, and counts the slot in `head`, a word of the shared segment. No tail is
//! shared: the record says that a slot is full, and orders what is in it (pair: RING-COMMIT).
//!
//! | state | written by | read by |
//! |---|---|---|
//! | a slot that is free | source | nobody |
//! | a slot from its record until it is counted in `head` | nobody | sink |
//! | `head`, slots emptied so far, wrapping | sink (pair: LANE-HEAD) | source |
//! | slots filled so far, wrapping | source, private | |
//! | slots emptied so far, wrapping | sink, private | |
//!
//! A source that finds no slot waits as for room in the ring: the sink wakes it after `head`
//! (`doorbell.rs`).
//!
//! # Distrust
//!
//! A sink that counts wrongly makes the source overwrite what the sink has not taken: its own loss.
//! A count that no order of events explains is an [`Overrun`], after which the connection must be
//! closed. The sink believes nothing but its own counter.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Slots of a lane. The models have two, to meet a full lane early.
pub const SLOTS: u32 = if cfg!(loom) { 2 } else { 32 };

// Or the slots were out of step when the counters wrap.
const _: () = assert!(SLOTS.is_power_of_two());

/// The sink says that it has emptied more than was filled, or takes some back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

/// The source's end.
#[derive(Debug, Default)]
pub struct Filler {
    filled: u32,
}

impl Filler {
    /// As if so many slots had been filled before.
    #[cfg(any(test, loom))]
    pub fn after(filled: u32) -> Self {
        Self { filled }
    }

    /// The slot to fill next, which is the source's until [`announced`](Self::announced). `None`
    /// when all are full.
    ///
    /// # Errors
    ///
    /// `head` cannot be true.
    #[inline]
    pub fn free(&self, head: &AtomicU32) -> Result<Option<u32>, Overrun> {
        // pair: LANE-HEAD (the sink has copied what was in the slots that it counts)
        match self.filled.wrapping_sub(head.load(Ordering::Acquire)) {
            used if used < SLOTS => Ok(Some(self.filled % SLOTS)),
            SLOTS => Ok(None),
            _ => Err(Overrun),
        }
    }

    /// The slot that was free is announced: it is the sink's.
    #[inline]
    pub fn announced(&mut self) {
        self.filled = self.filled.wrapping_add(1);
    }
}

/// The sink's end.
#[derive(Debug, Default)]
pub struct Emptier {
    emptied: u32,
}

impl Emptier {
    /// As if so many slots had been emptied before.
    #[cfg(any(test, loom))]
    pub fn after(emptied: u32) -> Self {
        Self { emptied }
    }

    /// The slot that the next record of the lane announces.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.emptied % SLOTS
    }

    /// That slot is copied, and the source's again.
    #[inline]
    pub fn emptied(&mut self, head: &AtomicU32) {
        self.emptied = self.emptied.wrapping_add(1);
        // pair: LANE-HEAD (the slot is copied)
        head.store(self.emptied, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_order_also_when_the_counters_wrap() {
        for start in [0, 5, u32::MAX - 2 * SLOTS, u32::MAX] {
            let head = AtomicU32::new(start);
            let (mut filler, mut emptier) = (Filler::after(start), Emptier::after(start));
            for round in 0..4 * SLOTS {
                // So many at a time that the lane is full now and then.
                let burst = 1 + round % SLOTS;
                for step in 0..burst {
                    let slot = emptier.emptied.wrapping_add(step) % SLOTS;
                    assert_eq!(filler.free(&head), Ok(Some(slot)));
                    filler.announced();
                }
                assert_eq!(filler.free(&head) == Ok(None), burst == SLOTS);
                for _ in 0..burst {
                    assert_eq!(emptier.slot(), emptier.emptied % SLOTS);
                    emptier.emptied(&head);
                }
            }
        }
    }

    #[test]
    fn a_count_that_cannot_be_is_refused() {
        let mut filler = Filler::after(u32::MAX);
        filler.announced();
        for (head, free) in [
            (0, Ok(Some(0))),
            (u32::MAX, Ok(Some(0))),
            (0u32.wrapping_sub(SLOTS), Ok(None)),
            (0u32.wrapping_sub(SLOTS + 1), Err(Overrun)),
            (1, Err(Overrun)),
            (1 << 31, Err(Overrun)),
        ] {
            assert_eq!(filler.free(&AtomicU32::new(head)), free, "head {head}");
        }
    }
}
