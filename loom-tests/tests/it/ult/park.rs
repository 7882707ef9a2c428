//! Can a wake-up be lost between looking for work and falling asleep?

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicUsize, fence};
use loom::thread;
use margo_loom_tests::check;
use ult::loom_exports::{ParkMode, ParkWord, ThreadParker};

/// Does the work of a push to a pool after the unit is visible.
fn wake_one(sleepers: &[&ParkWord]) {
    fence(SeqCst);
    for word in sleepers {
        if word.looks_asleep() && word.notify().is_some() {
            word.wake_futex();
            return;
        }
    }
}

/// Takes a unit, or sleeps until there is one. Relaxed on purpose: nothing but the fences orders
/// the unit and the word.
fn serve(queue: &AtomicUsize, word: &ParkWord) {
    loop {
        if take(queue) {
            return;
        }
        if word.begin(ParkMode::Futex) {
            if queue.load(Relaxed) == 0 {
                word.sleep_futex(None);
            }
            word.end();
        }
    }
}

fn take(queue: &AtomicUsize) -> bool {
    let mut len = queue.load(Relaxed);
    while len > 0 {
        match queue.compare_exchange(len, len - 1, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(seen) => len = seen,
        }
    }
    false
}

#[test]
fn one_pusher_one_sleeper() {
    check(|| {
        let shared = Arc::new((AtomicUsize::new(0), ParkWord::new()));
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || serve(&shared.0, &shared.1))
        };
        shared.0.fetch_add(1, Relaxed);
        wake_one(&[&shared.1]);
        sleeper.join().unwrap();
    });
}

/// Two units, two sleepers that share the pool: both must be woken, whoever takes which.
#[test]
fn two_sleepers_of_one_pool() {
    check(|| {
        let shared = Arc::new((AtomicUsize::new(0), [ParkWord::new(), ParkWord::new()]));
        let sleepers = [0, 1].map(|at| {
            let shared = shared.clone();
            thread::spawn(move || serve(&shared.0, &shared.1[at]))
        });
        for _ in 0..2 {
            shared.0.fetch_add(1, Relaxed);
            wake_one(&[&shared.1[0], &shared.1[1]]);
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

/// The token of an OS thread: every unpark ends this or the next park.
#[test]
fn thread_token_is_not_lost() {
    check(|| {
        let shared = Arc::new((ThreadParker::new(), AtomicUsize::new(0)));
        let waker = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1.store(1, Release);
                shared.0.unpark();
            })
        };
        while shared.1.load(Acquire) == 0 {
            shared.0.park(None);
        }
        waker.join().unwrap();
    });
}

/// Two unparkers, of which the second may find the token of the first still there.
#[test]
fn merged_tokens_carry_both_flags() {
    check(|| {
        let shared = Arc::new((ThreadParker::new(), [AtomicUsize::new(0), AtomicUsize::new(0)]));
        let wakers = [0, 1].map(|at| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1[at].store(1, Relaxed);
                shared.0.unpark();
            })
        });
        while shared.1.iter().any(|flag| flag.load(Relaxed) == 0) {
            shared.0.park(None);
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

/// The user's token and the wake-ups of wait objects share the word, not the token.
#[test]
fn user_token_survives_other_wakes() {
    check(|| {
        let parker = Arc::new(ThreadParker::new());
        let waker = {
            let parker = parker.clone();
            thread::spawn(move || {
                parker.unpark();
                parker.leave_token();
            })
        };
        while !parker.take_token() {
            parker.park(None);
        }
        waker.join().unwrap();
        assert!(!parker.take_token());
    });
}
