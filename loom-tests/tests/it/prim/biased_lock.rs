//! Does the lock exclude when one thread takes it without an atomic read-modify-write, and another
//! one ends that? Does the next holder see the writes of the one before?

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use margo_loom_tests::check_bounded;
use prim::lock::biased::{Hold, RawBiasedLock};

// Tokens are multiples of eight.
const FAVOURED: usize = 8;
const OTHER: usize = 16;
const THIRD: usize = 24;

struct Shared {
    lock: RawBiasedLock,
    value: UnsafeCell<u32>,
}

/// A lock whose favoured thread is the caller.
fn favoured() -> Arc<Shared> {
    let lock = RawBiasedLock::with_first(1);
    while {
        let held = lock.acquire(FAVOURED);
        lock.release(held);
        !matches!(held, Hold::Inside(_))
    } {}
    Arc::new(Shared { lock, value: UnsafeCell::new(0) })
}

/// Tries, because a model cannot follow a wait of unknown length. How often it succeeded.
fn add(shared: &Shared, me: usize) -> u32 {
    let Some(held) = shared.lock.try_acquire(me) else { return 0 };
    // SAFETY: the lock is held, and the model reports any other access meanwhile.
    shared.value.with_mut(|value| unsafe { *value += 1 });
    shared.lock.release(held);
    1
}

fn total(shared: &Shared) -> u32 {
    let held = shared.lock.try_acquire(FAVOURED).expect("free in the end");
    // SAFETY: the lock is held, and the other threads are gone.
    let value = shared.value.with(|value| unsafe { *value });
    shared.lock.release(held);
    value
}

#[test]
fn ending_a_favour_lets_one_in_at_a_time() {
    check_bounded(4, || {
        let shared = favoured();
        let other = shared.clone();
        let thread = thread::spawn(move || add(&other, OTHER) + add(&other, OTHER));
        let added = add(&shared, FAVOURED) + add(&shared, FAVOURED);
        let added = added + thread.join().unwrap();
        assert_eq!(total(&shared), added);
    });
}

/// The favour goes to the other thread, and back.
#[test]
fn a_favour_changes_hands() {
    check_bounded(4, || {
        let shared = favoured();
        let other = shared.clone();
        let thread = thread::spawn(move || (0..4).map(|_| add(&other, OTHER)).sum::<u32>());
        let added = add(&shared, FAVOURED);
        let added = added + thread.join().unwrap();
        assert_eq!(total(&shared), added);
    });
}

#[test]
fn two_end_the_same_favour() {
    check_bounded(4, || {
        let shared = favoured();
        let others = [OTHER, THIRD].map(|me| {
            let shared = shared.clone();
            thread::spawn(move || add(&shared, me))
        });
        let added = add(&shared, FAVOURED);
        let added = added + others.map(|other| other.join().unwrap()).iter().sum::<u32>();
        assert_eq!(total(&shared), added);
    });
}

/// A thread that waits gets the lock, and the favoured thread need not wait for long.
#[test]
fn the_favoured_one_waits_for_who_ended_its_favour() {
    check_bounded(4, || {
        let shared = favoured();
        let other = shared.clone();
        let thread = thread::spawn(move || add(&other, OTHER));
        let held = shared.lock.acquire(FAVOURED);
        // SAFETY: the lock is held, and the model reports any other access meanwhile.
        shared.value.with_mut(|value| unsafe { *value += 1 });
        shared.lock.release(held);
        let added = 1 + thread.join().unwrap();
        assert_eq!(total(&shared), added);
    });
}

/// The favoured thread leaves work for the next holder without a fence: either the next holder sees
/// the work, or the favoured thread finds that it has lost its favour.
#[test]
fn who_comes_next_sees_what_the_favoured_one_did_or_that_one_knows() {
    check_bounded(4, || {
        let shared = favoured();
        let work = Arc::new(AtomicBool::new(false));
        let (other, theirs) = (shared.clone(), work.clone());
        let thread = thread::spawn(move || {
            let held = other.lock.try_acquire(OTHER)?;
            // As a poll before it sleeps.
            let seen = theirs.load(Ordering::Relaxed);
            other.lock.release(held);
            Some(seen)
        });
        work.store(true, Ordering::Relaxed);
        let favoured = shared.lock.place_of(FAVOURED);
        let seen = thread.join().unwrap();
        assert!(favoured.is_none() || seen != Some(false), "missed by one that has come meanwhile");
    });
}
