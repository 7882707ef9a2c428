//! Does every slot of a lane arrive once, whole and in order, also when the lane is full and when
//! its counters wrap? Does a source that sleeps because it is full learn of a free slot?
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use margo_loom_tests::check;
use na_sm::link::lane::{Emptier, Filler, SLOTS};
use na_sm::wake::doorbell::{Doorbell, ROOM, settle};

/// State that both sides share. A slot is a cell, so that an access that the counters do not order
/// is reported.
struct Lane {
    slots: Vec<UnsafeCell<u32>>,
    head: AtomicU32,
    /// Slots announced, in place of the ring's records, which have a model of their own.
    announced: AtomicU32,
    bell: AtomicU32,
    rings: AtomicU32,
}

impl Lane {
    fn after(count: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| UnsafeCell::new(u32::MAX)).collect(),
            head: AtomicU32::new(count),
            announced: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            rings: AtomicU32::new(0),
        })
    }

    /// The source: fills as many of the next slots as it gets, `wanted` at most, with `value` and
    /// what comes after, and announces them together. Returns how many; none: all are full.
    fn fill(&self, filler: &mut Filler, value: u32, wanted: u32) -> u32 {
        let Some(run) = filler.free(&self.head, wanted).unwrap() else { return 0 };
        for step in 0..run.count {
            let slot = &self.slots[(run.first + step) as usize];
            // SAFETY: the model reports any other access meanwhile.
            slot.with_mut(|place| unsafe { *place = value + step });
        }
        self.announced.fetch_add(run.count, Ordering::Release);
        filler.announced(run.count);
        run.count
    }

    /// The sink: takes as many of the next slots as are announced and lie one after the other,
    /// `wanted` at most, which are to hold `value` and what comes after. Returns how many.
    fn empty(&self, emptier: &mut Emptier, value: u32, wanted: u32) -> u32 {
        let announced = self.announced.load(Ordering::Acquire).saturating_sub(value);
        let mut runs = (1..=announced.min(wanted)).rev();
        let Some(run) = runs.find_map(|count| emptier.slots(count)) else { return 0 };
        for step in 0..run.count {
            let slot = &self.slots[(run.first + step) as usize];
            // SAFETY: the model reports a write meanwhile.
            let held = slot.with(|place| unsafe { *place });
            assert_eq!(held, value + step, "a slot twice, or overwritten");
        }
        emptier.emptied(run.count, &self.head);
        if Doorbell::new(&self.bell).must_ring(ROOM) {
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
        run.count
    }
}

/// Moves `count` slots from one thread to another, at most so many at a time, with counters that
/// stand at `before`.
fn race(before: u32, count: u32, at_a_time: u32) {
    let lane = Lane::after(before);
    let (mut filler, mut emptier) = (Filler::after(before), Emptier::after(before));
    let ours = lane.clone();
    let source = thread::spawn(move || {
        let mut filled = 0;
        while filled < count {
            match ours.fill(&mut filler, filled, at_a_time.min(count - filled)) {
                0 => thread::yield_now(),
                more => filled += more,
            }
        }
    });
    let mut emptied = 0;
    while emptied < count {
        match lane.empty(&mut emptier, emptied, at_a_time) {
            0 => thread::yield_now(),
            more => emptied += more,
        }
    }
    source.join().unwrap();
    assert_eq!(lane.empty(&mut emptier, count, 1), 0);
}

#[test]
fn slots_arrive_in_order_and_are_used_again() {
    check(|| race(0, SLOTS + 2, 1));
}

#[test]
fn slots_stay_in_order_when_the_counters_wrap() {
    check(|| race(u32::MAX, SLOTS + 1, 1));
}

/// The first run ends where the lane does.
#[test]
fn several_slots_are_filled_and_emptied_at_a_time() {
    check(|| race(u32::MAX, SLOTS + 2, SLOTS));
}

#[test]
fn a_full_lane_stops_the_source_until_a_slot_is_emptied() {
    loom::model(|| {
        let lane = Lane::after(0);
        let (mut filler, mut emptier) = (Filler::after(0), Emptier::after(0));
        assert_eq!((0..).find(|value| lane.fill(&mut filler, *value, 1) == 0), Some(SLOTS));
        assert_eq!(lane.empty(&mut emptier, 0, 1), 1);
        assert_eq!(lane.fill(&mut filler, SLOTS, 1), 1);
        assert_eq!(lane.fill(&mut filler, SLOTS + 1, 1), 0);
        assert!((1..=SLOTS).all(|value| lane.empty(&mut emptier, value, 1) == 1));
    });
}

#[test]
fn a_source_that_sleeps_for_a_slot_is_woken() {
    check(|| {
        let lane = Lane::after(0);
        let (mut filler, mut emptier) = (Filler::after(0), Emptier::after(0));
        assert!((0..SLOTS).all(|value| lane.fill(&mut filler, value, 1) == 1));
        let theirs = lane.clone();
        let sink = thread::spawn(move || assert_eq!(theirs.empty(&mut emptier, 0, 1), 1));
        let bell = Doorbell::new(&lane.bell);
        bell.announce(ROOM);
        settle();
        let sleeps = lane.fill(&mut filler, SLOTS, 1) == 0;
        sink.join().unwrap();
        let rings = lane.rings.load(Ordering::Relaxed);
        assert!(!sleeps || rings == 1, "asleep with a free slot and nobody rang");
        assert!(
            !sleeps || lane.fill(&mut filler, SLOTS, 1) == 1,
            "woken, and the slot is not free"
        );
    });
}
