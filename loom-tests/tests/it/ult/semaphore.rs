//! Are permits neither lost nor made up, and is nobody in the queue forgotten?

use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::Semaphore;

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

struct Guarded {
    semaphore: Semaphore,
    value: UnsafeCell<u32>,
}

// SAFETY: the cell is used only with the one permit; loom reports it if that is not enough.
unsafe impl Sync for Guarded {}

/// One permit is a mutex: what its holder wrote is visible to the next.
#[test]
fn one_permit_excludes_three() {
    check(|| {
        let guarded = Arc::new(Guarded { semaphore: Semaphore::new(1), value: UnsafeCell::new(0) });
        let add = |guarded: &Guarded| {
            let _permit = guarded.semaphore.acquire(1);
            // SAFETY: the permit.
            guarded.value.with_mut(|value| unsafe { *value += 1 });
        };
        let others =
            [guarded.clone(), guarded.clone()].map(|guarded| thread::spawn(move || add(&guarded)));
        add(&guarded);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(guarded.semaphore.available(), 1);
    });
}

#[test]
fn a_large_request_is_served() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(2));
        let others = [1, 2].map(|count| {
            let semaphore = semaphore.clone();
            thread::spawn(move || drop(semaphore.acquire(count)))
        });
        drop(semaphore.acquire(1));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(semaphore.available(), 2);
    });
}

#[test]
fn leaving_races_with_release() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let other = {
            let semaphore = semaphore.clone();
            thread::spawn(move || semaphore.release(1))
        };
        let was_served = semaphore.acquire_deadline(1, past()).map(ult::Permit::forget).is_some();
        other.join().unwrap();
        assert_eq!(semaphore.available(), usize::from(!was_served));
    });
}

/// A request that gives up lets the smaller one behind it pass.
#[test]
fn leaving_does_not_block_another() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let small = {
            let semaphore = semaphore.clone();
            thread::spawn(move || drop(semaphore.acquire(1)))
        };
        assert!(semaphore.acquire_deadline(2, past()).is_none());
        small.join().unwrap();
        assert_eq!(semaphore.available(), 1);
    });
}
