//! The counters at the two ends of a lane, which say whose each slot is. `fallback.rs` says what a
//! lane is for.
//!
//! A lane is [`SLOTS`] slots of memory that both sides have mapped, filled and emptied in order.
//! The source copies into a slot, or several that lie one after the other, and announces them with
//! a record in the ring; the sink takes the record, copies out, and counts the slots in `head`, a
//! word of the shared segment. No tail is shared: the record says how many slots are full, and
//! orders what is in them (pair: RING-COMMIT).
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

use prim::sync::atomic::{AtomicU32, Ordering};

/// Slots of a lane. The models have two, to meet a full lane early.
pub const SLOTS: u32 = if cfg!(loom) { 2 } else { 128 };

// Or the slots were out of step when the counters wrap.
const _: () = assert!(SLOTS.is_power_of_two());

/// The sink says that it has emptied more than was filled, or takes some back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

/// Slots that lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first one.
    pub first: u32,
    /// How many, at least one.
    pub count: u32,
}

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

    /// The slots to fill next, at most `wanted`: they are the source's until they are
    /// [`announced`](Self::announced). `None` when all are full.
    ///
    /// # Errors
    ///
    /// `head` cannot be true.
    #[inline]
    pub fn free(&self, head: &AtomicU32, wanted: u32) -> Result<Option<Run>, Overrun> {
        // pair: LANE-HEAD (the sink has copied what was in the slots that it counts)
        let used = self.filled.wrapping_sub(head.load(Ordering::Acquire));
        let free = SLOTS.checked_sub(used).ok_or(Overrun)?;
        let first = self.filled % SLOTS;
        let count = wanted.min(free).min(SLOTS - first);
        Ok((count > 0).then_some(Run { first, count }))
    }

    /// The next `count` slots, which were free, are announced: they are the sink's.
    #[inline]
    pub fn announced(&mut self, count: u32) {
        self.filled = self.filled.wrapping_add(count);
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

    /// The `count` slots that the next record of the lane announces. `None`: there can be no such
    /// slots one after the other.
    #[inline]
    pub fn slots(&self, count: u32) -> Option<Run> {
        let first = self.emptied % SLOTS;
        (1..=SLOTS - first).contains(&count).then_some(Run { first, count })
    }

    /// Those slots are copied, and the source's again.
    #[inline]
    pub fn emptied(&mut self, count: u32, head: &AtomicU32) {
        self.emptied = self.emptied.wrapping_add(count);
        // pair: LANE-HEAD (the slots are copied)
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
                    let first = emptier.emptied.wrapping_add(step) % SLOTS;
                    assert_eq!(filler.free(&head, 1), Ok(Some(Run { first, count: 1 })));
                    filler.announced(1);
                }
                assert_eq!(filler.free(&head, 1) == Ok(None), burst == SLOTS);
                for _ in 0..burst {
                    let first = emptier.emptied % SLOTS;
                    assert_eq!(emptier.slots(1), Some(Run { first, count: 1 }));
                    emptier.emptied(1, &head);
                }
            }
        }
    }

    #[test]
    fn several_slots_at_a_time_are_free_and_lie_one_after_the_other() {
        let head = AtomicU32::new(0);
        let (mut filler, mut emptier) = (Filler::default(), Emptier::default());
        for (wanted, first, count) in [(3, 0, 3), (SLOTS, 3, SLOTS - 3)] {
            let run = Run { first, count };
            assert_eq!(filler.free(&head, wanted), Ok(Some(run)), "of {wanted}");
            filler.announced(count);
        }
        assert_eq!(filler.free(&head, 1), Ok(None), "all are full");
        for (count, free) in [(2, 2), (1, 3)] {
            assert_eq!(emptier.slots(count).map(|run| run.count), Some(count));
            emptier.emptied(count, &head);
            let run = Run { first: 0, count: free };
            assert_eq!(filler.free(&head, 4), Ok(Some(run)), "no more than are emptied");
        }
        assert_eq!(emptier.slots(SLOTS - 3), Some(Run { first: 3, count: SLOTS - 3 }));
        for count in [0, SLOTS - 2, u32::MAX] {
            assert_eq!(emptier.slots(count), None, "{count}: none, or beyond the last slot");
        }
    }

    #[test]
    fn a_count_that_cannot_be_is_refused() {
        let mut filler = Filler::after(u32::MAX);
        filler.announced(1);
        let one = Ok(Some(Run { first: 0, count: 1 }));
        for (head, free) in [
            (0, one),
            (u32::MAX, one),
            (0u32.wrapping_sub(SLOTS), Ok(None)),
            (0u32.wrapping_sub(SLOTS + 1), Err(Overrun)),
            (1, Err(Overrun)),
            (1 << 31, Err(Overrun)),
        ] {
            assert_eq!(filler.free(&AtomicU32::new(head), 1), free, "head {head}");
        }
    }
}
