//! Does nobody pass a barrier early, also when it is used again at once?

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use margo_loom_tests::check;
use ult::{Barrier, CountDown};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

#[test]
fn two_rounds_of_two_parties() {
    check(|| {
        let shared = Arc::new((Barrier::new(2).unwrap(), AtomicUsize::new(0)));
        let body = |shared: &(Barrier, AtomicUsize)| {
            let mut leads = 0;
            for round in 1..=2 {
                shared.1.fetch_add(1, Ordering::Relaxed);
                leads += usize::from(shared.0.wait());
                let arrived = shared.1.load(Ordering::Relaxed);
                assert!(arrived >= 2 * round, "passed round {round} with {arrived} arrivals");
            }
            leads
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || body(&shared))
        };
        let leads = body(&shared) + other.join().unwrap();
        assert_eq!(leads, 2, "one leader in each round");
    });
}

/// A party that leaves at its deadline either passed with the others or does not count.
#[test]
fn leaving_races_with_the_last_arrival() {
    check(|| {
        let barrier = Arc::new(Barrier::new(2).unwrap());
        let other = {
            let barrier = barrier.clone();
            thread::spawn(move || barrier.wait_deadline(past()).is_some())
        };
        let passed = barrier.wait_deadline(past()).is_some();
        assert_eq!(passed, other.join().unwrap());
        assert_eq!(barrier.waiting(), 0);
    });
}

/// Writes of every party before its arrival are visible to the callback and to the waiters.
#[test]
fn countdown_orders_arrivals_before_waiters() {
    check(|| {
        let sum = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(AtomicUsize::new(0));
        let countdown = {
            let (sum, seen) = (sum.clone(), seen.clone());
            Arc::new(CountDown::with_callback(2, move || {
                seen.fetch_add(sum.load(Ordering::Relaxed), Ordering::Relaxed);
            }))
        };
        let arrivals = [1, 2].map(|n| {
            let (sum, countdown) = (sum.clone(), countdown.clone());
            thread::spawn(move || {
                sum.fetch_add(n, Ordering::Relaxed);
                countdown.arrive().unwrap();
            })
        });
        countdown.wait();
        assert_eq!(seen.load(Ordering::Relaxed), 3, "once, by the last, before the waiters");
        arrivals.into_iter().for_each(|arrival| arrival.join().unwrap());
        assert!(countdown.arrive().is_err());
    });
}
