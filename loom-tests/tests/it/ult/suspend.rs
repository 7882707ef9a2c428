//! Can a resume that races with a suspend be lost, push the ULT twice, or enter a stack that is
//! not quiet?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::SuspendCell;

#[test]
fn exactly_one_side_pushes() {
    check(|| {
        let cell = Arc::new(SuspendCell::new());
        let waker = {
            let cell = cell.clone();
            thread::spawn(move || cell.resume())
        };
        let parked = cell.commit_suspend();
        let pushed_by_waker = waker.join().unwrap();
        assert_eq!(u8::from(!parked) + u8::from(pushed_by_waker), 1);
    });
}

#[test]
fn two_resumes_push_once() {
    check(|| {
        let cell = Arc::new(SuspendCell::new());
        let wakers = [cell.clone(), cell.clone()].map(|cell| thread::spawn(move || cell.resume()));
        let parked = cell.commit_suspend();
        let pushes = wakers.map(|waker| u8::from(waker.join().unwrap()));
        assert_eq!(u8::from(!parked) + pushes[0] + pushes[1], 1);
    });
}

/// The stack is a cell that the running ULT writes, and that its next resumer writes: loom
/// complains if the two are not ordered.
#[test]
fn stack_is_quiet_before_it_is_entered() {
    check(|| {
        let shared = Arc::new((SuspendCell::new(), UnsafeCell::new(0)));
        let waker = {
            let shared = shared.clone();
            thread::spawn(move || {
                if shared.0.resume() {
                    // The right to run it is here.
                    // SAFETY: checked by loom.
                    shared.1.with_mut(|stack| unsafe { *stack += 1 });
                }
            })
        };
        // SAFETY: checked by loom.
        shared.1.with_mut(|stack| unsafe { *stack += 1 });
        if !shared.0.commit_suspend() {
            // SAFETY: checked by loom.
            shared.1.with_mut(|stack| unsafe { *stack += 1 });
        }
        waker.join().unwrap();
        // SAFETY: checked by loom.
        assert_eq!(shared.1.with(|stack| unsafe { *stack }), 2);
    });
}

/// Two wakers set a flag each and resume; the ULT goes on once it has seen both. A resume that
/// merges with an earlier one must still carry its flag: otherwise the ULT sleeps forever.
#[test]
fn merged_resume_carries_its_flag() {
    check(|| {
        let cell = Arc::new(SuspendCell::new());
        let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let wakers = [0, 1].map(|at| {
            let (cell, flags) = (cell.clone(), flags.clone());
            thread::spawn(move || {
                flags[at].store(true, Release);
                cell.resume()
            })
        });
        let mut parked = false;
        while !flags.iter().all(|flag| flag.load(Acquire)) {
            if cell.commit_suspend() {
                // Only a waker can push it from here on.
                parked = true;
                break;
            }
        }
        let mut pushes = wakers.map(|waker| waker.join().unwrap()).into_iter().filter(|p| *p);
        if parked {
            assert!(pushes.next().is_some(), "asleep, and nobody will push it");
            assert!(flags.iter().all(|flag| flag.load(Acquire)));
        }
        assert!(pushes.next().is_none());
    });
}

/// A waker that finds the ULT parked claims it, sets the flag, and pushes; otherwise it sets the
/// flag and resumes. Another one resumes for a reason of its own, as a timer does. The ULT must not
/// run before the flag is set if it was claimed, and must not sleep once it is set.
#[test]
fn a_claimed_ult_finds_its_flag() {
    check(|| {
        let cell = Arc::new(SuspendCell::new());
        let flag = Arc::new(AtomicBool::new(false));
        let waker = {
            let (cell, flag) = (cell.clone(), flag.clone());
            thread::spawn(move || {
                let claimed = cell.claim();
                flag.store(true, Release);
                (claimed, !claimed && cell.resume())
            })
        };
        let other = {
            let cell = cell.clone();
            thread::spawn(move || cell.resume())
        };
        let mut parked = false;
        while !flag.load(Acquire) {
            if cell.commit_suspend() {
                parked = true;
                break;
            }
        }
        let (claimed, resumed) = waker.join().unwrap();
        let pushes = [claimed, resumed, other.join().unwrap()];
        let pushes = pushes.into_iter().filter(|pushed| *pushed).count();
        // The flag is set now, so one push is all that it needs. Without a park there is none, but
        // for a waker that came between the two looks of the ULT at the flag.
        assert_eq!(pushes, usize::from(parked));
        assert!(flag.load(Acquire));
    });
}
