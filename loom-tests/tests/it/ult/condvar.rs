//! Does a notify reach a waiter, whatever deadlines do meanwhile?

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::{Condvar, Mutex};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

struct Pair {
    ready: Mutex<bool>,
    changed: Condvar,
}

fn pair() -> Arc<Pair> {
    Arc::new(Pair { ready: Mutex::new(false), changed: Condvar::new() })
}

/// The notify comes after the unlock, where a look at a stale list would miss the waiter.
#[test]
fn notify_is_not_lost() {
    check(|| {
        let pair = pair();
        let waits = {
            let pair = pair.clone();
            thread::spawn(move || {
                let guard = pair.ready.lock();
                assert!(*pair.changed.wait_while(guard, |ready| !*ready));
            })
        };
        *pair.ready.lock() = true;
        pair.changed.notify_one();
        waits.join().unwrap();
    });
}

/// A waiter that leaves at its deadline either was notified or leaves the notify to the other.
#[test]
fn notify_races_with_a_deadline() {
    check(|| {
        let pair = pair();
        let waits = {
            let pair = pair.clone();
            thread::spawn(move || {
                let mut guard = pair.ready.lock();
                while !*guard {
                    guard = pair.changed.wait(guard);
                }
                // Pass it on, in case the other one was not notified.
                drop(guard);
                pair.changed.notify_one();
            })
        };
        let leaves = {
            let pair = pair.clone();
            thread::spawn(move || {
                let guard = pair.ready.lock();
                let (guard, was_notified) = pair.changed.wait_deadline(guard, past());
                drop(guard);
                if was_notified {
                    pair.changed.notify_one();
                }
            })
        };
        *pair.ready.lock() = true;
        pair.changed.notify_one();
        waits.join().unwrap();
        leaves.join().unwrap();
    });
}

#[test]
fn notify_all_reaches_two() {
    check(|| {
        let pair = pair();
        let waiters = [pair.clone(), pair.clone()].map(|pair| {
            thread::spawn(move || {
                let guard = pair.ready.lock();
                drop(pair.changed.wait_while(guard, |ready| !*ready));
            })
        });
        *pair.ready.lock() = true;
        pair.changed.notify_all();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}
