//! A unit that waits for a time: does exactly one of the clock and the cancels get it, and does
//! nobody run or lose it twice, or never?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::{Cancel, TimerState};

/// A unit with its timer. The party that has the unit writes to `fate`, without any other
/// protection.
struct Unit {
    state: TimerState,
    fate: UnsafeCell<Fate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Waits,
    Ran,
    Lost,
}

// SAFETY: `TimerState` orders the accesses to `fate`, which loom checks.
unsafe impl Sync for Unit {}
// SAFETY: as above.
unsafe impl Send for Unit {}

impl Unit {
    fn new(state: TimerState) -> Arc<Self> {
        Arc::new(Self { state, fate: UnsafeCell::new(Fate::Waits) })
    }

    /// The caller has the unit.
    fn decide(&self, fate: Fate) {
        self.fate.with_mut(|place| {
            // SAFETY: the caller has the unit, which loom checks.
            let before = unsafe { std::mem::replace(&mut *place, fate) };
            assert_eq!(before, Fate::Waits, "decided twice");
        });
    }

    /// The xstream: the timer fires.
    fn fire(&self) {
        if self.state.fire() {
            self.decide(Fate::Ran);
        }
    }

    /// The xstream: the unit is found in a queue, gets a timer, and that fires.
    fn settle(&self) {
        if self.state.arm() { self.fire() } else { self.decide(Fate::Lost) }
    }

    /// Returns whether the run has been prevented.
    fn cancel(&self) -> bool {
        match self.state.cancel() {
            Cancel::Yours => {
                self.decide(Fate::Lost);
                true
            }
            Cancel::Done => true,
            Cancel::TooLate => false,
        }
    }

    /// When all is over.
    fn fate(&self) -> Fate {
        // SAFETY: no writer: all threads have been joined.
        self.fate.with(|fate| unsafe { *fate })
    }
}

fn expected(prevented: bool) -> Fate {
    if prevented { Fate::Lost } else { Fate::Ran }
}

#[test]
fn cancel_against_fire() {
    check(|| {
        let unit = Unit::new(TimerState::armed());
        let xstream = unit.clone();
        let xstream = thread::spawn(move || xstream.fire());
        let prevented = unit.cancel();
        xstream.join().unwrap();
        assert_eq!(unit.fate(), expected(prevented));
    });
}

#[test]
fn cancel_against_the_way_to_an_xstream() {
    check(|| {
        let unit = Unit::new(TimerState::queued());
        let xstream = unit.clone();
        let xstream = thread::spawn(move || xstream.settle());
        let prevented = unit.cancel();
        xstream.join().unwrap();
        assert_eq!(unit.fate(), expected(prevented));
    });
}

/// One xstream leaves and queues the unit again, another one finds it.
#[test]
fn cancel_against_the_move_to_another_xstream() {
    check(|| {
        let unit = Unit::new(TimerState::armed());
        let xstreams = unit.clone();
        let xstreams = thread::spawn(move || {
            if xstreams.state.requeue() {
                thread::spawn(move || xstreams.settle()).join().unwrap();
            }
        });
        let prevented = unit.cancel();
        xstreams.join().unwrap();
        assert_eq!(unit.fate(), expected(prevented));
    });
}

#[test]
fn two_cancels_agree() {
    check(|| {
        let unit = Unit::new(TimerState::armed());
        let (xstream, other) = (unit.clone(), unit.clone());
        let xstream = thread::spawn(move || xstream.fire());
        let other = thread::spawn(move || other.cancel());
        let prevented = unit.cancel();
        assert_eq!(other.join().unwrap(), prevented);
        xstream.join().unwrap();
        assert_eq!(unit.fate(), expected(prevented));
    });
}
