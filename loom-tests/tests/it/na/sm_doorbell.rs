//! Can a wake-up be lost between a side that goes to sleep and one that makes work? Can the owner
//! of remote memory copy after the requester was told that it does not? Does the lock exclude?
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;
use margo_loom_tests::check;
use na_sm::link::gate::{CopyGate, withdraw};
use na_sm::wake::doorbell::{BOARD, Doorbell, RECORDS, ROOM, mark, settle, take};
use prim::lock::plain::RawLock;

#[derive(Default)]
struct Shared {
    word: AtomicU32,
    work: AtomicU32,
    rings: AtomicU32,
}

/// Announces and looks once more. `true`: it may sleep.
fn may_sleep(shared: &Shared, reasons: u32, expected: u32) -> bool {
    let bell = Doorbell::new(&shared.word);
    bell.announce(reasons);
    settle();
    if shared.work.load(Ordering::Acquire) == expected {
        bell.retract();
        return false;
    }
    true
}

fn make_work(shared: &Shared, reason: u32) {
    shared.work.fetch_add(1, Ordering::Release);
    if Doorbell::new(&shared.word).must_ring(reason) {
        shared.rings.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn no_wake_up_is_lost() {
    for (reasons, reason) in [(RECORDS, RECORDS), (RECORDS | ROOM, ROOM)] {
        check(move || {
            let shared = Arc::new(Shared::default());
            let other = shared.clone();
            let maker = thread::spawn(move || make_work(&other, reason));
            let sleeps = may_sleep(&shared, reasons, 1);
            maker.join().unwrap();
            let rings = shared.rings.load(Ordering::Relaxed);
            assert!(!sleeps || rings == 1, "asleep with work and nobody rang");
        });
    }
}

#[test]
fn one_of_two_makers_rings_and_only_one() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let makers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || make_work(&shared, RECORDS))
            })
            .collect();
        // Work of only one of them may have been seen, so any work keeps it awake.
        let bell = Doorbell::new(&shared.word);
        bell.announce(RECORDS);
        settle();
        let sleeps = shared.work.load(Ordering::Acquire) == 0;
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        let rings = shared.rings.load(Ordering::Relaxed);
        assert!(rings <= 1, "rung {rings} times for one sleep");
        assert!(!sleeps || rings == 1, "asleep with work and nobody rang");
    });
}

#[test]
fn nobody_rings_for_a_reason_that_was_not_given() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let other = shared.clone();
        let maker = thread::spawn(move || make_work(&other, ROOM));
        may_sleep(&shared, RECORDS, 1);
        maker.join().unwrap();
        assert_eq!(shared.rings.load(Ordering::Relaxed), 0);
    });
}

#[derive(Default)]
struct Left {
    shared: Shared,
    board: AtomicU64,
}

fn make_work_for_left(left: &Left) {
    left.shared.work.fetch_add(1, Ordering::Release);
    settle();
    let bell = Doorbell::new(&left.shared.word);
    if bell.is_silent() {
        return;
    }
    if bell.is_left() {
        mark(&left.board, 5);
    }
    if bell.claim(RECORDS) {
        left.shared.rings.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_peer_that_is_not_looked_at_any_more_marks_the_board() {
    check(|| {
        let left = Arc::new(Left::default());
        let other = left.clone();
        let maker = thread::spawn(move || make_work_for_left(&other));
        Doorbell::new(&left.shared.word).leave();
        settle();
        let seen = left.shared.work.load(Ordering::Acquire) == 1;
        // What a later round finds.
        let early = take(&left.board);
        if early != 0 {
            assert_eq!(left.shared.work.load(Ordering::Relaxed), 1, "a mark before its work");
        }
        maker.join().unwrap();
        assert!(seen || early | take(&left.board) == 1 << 5, "work that nobody looks for");
    });
}

#[test]
fn a_left_peer_wakes_a_sleeper_and_is_found_on_the_board() {
    check(|| {
        let left = Arc::new(Left::default());
        let bell = Doorbell::new(&left.shared.word);
        bell.leave();
        let other = left.clone();
        let maker = thread::spawn(move || make_work_for_left(&other));
        bell.announce(RECORDS | BOARD);
        settle();
        // The sweep before a sleep looks at the work itself.
        let sleeps = left.shared.work.load(Ordering::Acquire) == 0;
        if !sleeps {
            bell.leave();
        }
        maker.join().unwrap();
        assert!(!sleeps || left.shared.rings.load(Ordering::Relaxed) == 1, "nobody rang");
        assert_eq!(take(&left.board), 1 << 5, "woken, and nothing on the board");
        bell.leave();
        assert!(bell.is_left() && bell.is_awake());
    });
}

#[derive(Default)]
struct Copies {
    copying: AtomicU32,
    shut: AtomicU32,
    /// The requester has taken its memory back.
    taken_back: AtomicBool,
}

#[test]
fn nothing_is_copied_after_the_gate_is_shut_and_quiet() {
    check(|| {
        let shared = Arc::new(Copies::default());
        let other = shared.clone();
        let owner = thread::spawn(move || {
            let gate = CopyGate::new(&other.copying, &other.shut);
            for _ in 0..2 {
                if gate.enter() {
                    // The copy: the memory must still be lent out.
                    assert!(!other.taken_back.load(Ordering::Relaxed));
                    gate.leave();
                }
            }
        });
        let gate = CopyGate::new(&shared.copying, &shared.shut);
        gate.shut();
        if gate.is_quiet() {
            shared.taken_back.store(true, Ordering::Relaxed);
        }
        owner.join().unwrap();
        assert!(gate.is_quiet(), "an owner that is done leaves the gate");
        assert!(!gate.enter(), "and does not come in again");
    });
}

#[test]
fn nothing_is_copied_under_an_offer_that_is_withdrawn_and_quiet() {
    check(|| {
        let shared = Arc::new((Copies::default(), AtomicU32::new(7)));
        let other = shared.clone();
        let owner = thread::spawn(move || {
            let gate = CopyGate::new(&other.0.copying, &other.0.shut);
            for _ in 0..2 {
                if gate.enter_under(&other.1, 7) {
                    // The copy: the memory must still be lent out.
                    assert!(!other.0.taken_back.load(Ordering::Relaxed));
                    gate.leave();
                }
            }
        });
        withdraw(&shared.1, 7);
        let gate = CopyGate::new(&shared.0.copying, &shared.0.shut);
        if gate.is_quiet() {
            shared.0.taken_back.store(true, Ordering::Relaxed);
        }
        // The next offer in that place is another one.
        shared.1.store(8, Ordering::Relaxed);
        withdraw(&shared.1, 7);
        owner.join().unwrap();
        assert!(gate.is_quiet(), "an owner that is done leaves the gate");
        assert!(gate.enter_under(&shared.1, 8), "the next offer stands");
    });
}

#[test]
fn the_lock_lets_one_in_and_shows_it_what_was_done() {
    check(|| {
        let shared = Arc::new((RawLock::new(), UnsafeCell::new(0u32)));
        // Trying, because a model cannot follow a wait of unknown length.
        let add = |shared: &(RawLock, UnsafeCell<u32>)| {
            if !shared.0.try_acquire() {
                return 0;
            }
            // SAFETY: the lock is held, and the model reports any other access meanwhile.
            shared.1.with_mut(|value| unsafe { *value += 1 });
            shared.0.release();
            1
        };
        let other = shared.clone();
        let thread = thread::spawn(move || add(&other) + add(&other));
        let added = add(&shared) + add(&shared);
        let added = added + thread.join().unwrap();
        assert!(shared.0.try_acquire(), "free in the end");
        // SAFETY: the lock is held, and the other thread is gone.
        assert_eq!(shared.1.with(|value| unsafe { *value }), added);
        assert!(added >= 2, "nobody fails without somebody who succeeds");
    });
}
