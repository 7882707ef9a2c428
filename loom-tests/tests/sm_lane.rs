//! Does every slot of a lane arrive once, whole and in order, also when the lane is full and when
//! its counters wrap? Does a source that sleeps because it is full learn of a free slot?
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use na::loom_exports::doorbell::{Doorbell, ROOM, settle};
use na::loom_exports::lane::{Emptier, Filler, SLOTS};

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// What both sides have. A slot is a cell, so that an access that the counters do not order is
/// reported.
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

    /// The source: fills the next slot with `value`. `false`: all are full.
    fn fill(&self, filler: &mut Filler, value: u32) -> bool {
        let Some(run) = filler.free(&self.head, 1).unwrap() else { return false };
        // SAFETY: the model reports any other access meanwhile.
        self.slots[run.first as usize].with_mut(|place| unsafe { *place = value });
        self.announced.fetch_add(1, Ordering::Release);
        filler.announced(1);
        true
    }

    /// The sink: takes the next slot, which is to hold `value`. `false`: it is not announced.
    fn empty(&self, emptier: &mut Emptier, value: u32) -> bool {
        if self.announced.load(Ordering::Acquire) <= value {
            return false;
        }
        let slot = &self.slots[emptier.slots(1).unwrap().first as usize];
        // SAFETY: the model reports a write meanwhile.
        assert_eq!(slot.with(|place| unsafe { *place }), value, "a slot twice, or overwritten");
        emptier.emptied(1, &self.head);
        if Doorbell::new(&self.bell).must_ring(ROOM) {
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

impl Lane {
    /// The source: fills as many slots as it gets, with `value` and what comes after, and announces
    /// them together. Returns how many.
    fn fill_run(&self, filler: &mut Filler, value: u32, wanted: u32) -> u32 {
        let Some(run) = filler.free(&self.head, wanted).unwrap() else { return 0 };
        for step in 0..run.count {
            // SAFETY: the model reports any other access meanwhile.
            self.slots[(run.first + step) as usize]
                .with_mut(|place| unsafe { *place = value + step });
        }
        self.announced.fetch_add(run.count, Ordering::Release);
        filler.announced(run.count);
        run.count
    }

    /// The sink: takes all slots that are announced and lie one after the other. Returns how many.
    fn empty_run(&self, emptier: &mut Emptier, value: u32) -> u32 {
        let announced = self.announced.load(Ordering::Acquire) - value;
        let Some(run) = (1..=announced).rev().find_map(|count| emptier.slots(count)) else {
            return 0;
        };
        for step in 0..run.count {
            let slot = &self.slots[(run.first + step) as usize];
            // SAFETY: the model reports a write meanwhile.
            assert_eq!(slot.with(|place| unsafe { *place }), value + step, "overwritten");
        }
        emptier.emptied(run.count, &self.head);
        run.count
    }
}

/// Moves `count` slots from one thread to another, with counters that stand at `before`.
fn race(before: u32, count: u32) {
    let lane = Lane::after(before);
    let (mut filler, mut emptier) = (Filler::after(before), Emptier::after(before));
    let ours = lane.clone();
    let source = thread::spawn(move || {
        for value in 0..count {
            while !ours.fill(&mut filler, value) {
                thread::yield_now();
            }
        }
    });
    for value in 0..count {
        while !lane.empty(&mut emptier, value) {
            thread::yield_now();
        }
    }
    source.join().unwrap();
    assert!(!lane.empty(&mut emptier, count));
}

#[test]
fn slots_arrive_in_order_and_are_used_again() {
    check(|| race(0, SLOTS + 2));
}

#[test]
fn slots_stay_in_order_when_the_counters_wrap() {
    check(|| race(u32::MAX, SLOTS + 1));
}

#[test]
fn several_slots_are_filled_and_emptied_at_a_time() {
    check(|| {
        // The first run ends where the lane does.
        let (lane, count) = (Lane::after(u32::MAX), SLOTS + 2);
        let (mut filler, mut emptier) = (Filler::after(u32::MAX), Emptier::after(u32::MAX));
        let ours = lane.clone();
        let source = thread::spawn(move || {
            let mut filled = 0;
            while filled < count {
                filled += ours.fill_run(&mut filler, filled, (count - filled).min(2));
                thread::yield_now();
            }
        });
        let mut emptied = 0;
        while emptied < count {
            emptied += lane.empty_run(&mut emptier, emptied);
            thread::yield_now();
        }
        source.join().unwrap();
    });
}

#[test]
fn a_full_lane_stops_the_source_until_a_slot_is_emptied() {
    loom::model(|| {
        let lane = Lane::after(0);
        let (mut filler, mut emptier) = (Filler::after(0), Emptier::after(0));
        assert_eq!((0..).find(|value| !lane.fill(&mut filler, *value)), Some(SLOTS));
        assert!(lane.empty(&mut emptier, 0));
        assert!(lane.fill(&mut filler, SLOTS));
        assert!(!lane.fill(&mut filler, SLOTS + 1));
        assert!((1..=SLOTS).all(|value| lane.empty(&mut emptier, value)));
    });
}

#[test]
fn a_source_that_sleeps_for_a_slot_is_woken() {
    check(|| {
        let lane = Lane::after(0);
        let (mut filler, mut emptier) = (Filler::after(0), Emptier::after(0));
        assert!((0..SLOTS).all(|value| lane.fill(&mut filler, value)));
        let theirs = lane.clone();
        let sink = thread::spawn(move || assert!(theirs.empty(&mut emptier, 0)));
        let bell = Doorbell::new(&lane.bell);
        bell.announce(ROOM);
        settle();
        let sleeps = !lane.fill(&mut filler, SLOTS);
        sink.join().unwrap();
        let rings = lane.rings.load(Ordering::Relaxed);
        assert!(!sleeps || rings == 1, "asleep with a free slot and nobody rang");
        assert!(!sleeps || lane.fill(&mut filler, SLOTS), "woken, and the slot is not free");
    });
}
