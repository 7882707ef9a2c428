//! ULTs that borrow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use crate::common::{on, private, shared, within, yield_until};
use ult::{JoinError, PoolRef};

/// Sums by halves, in borrowed slices, scope in scope.
fn sum(pool: &PoolRef, part: &[u64]) -> u64 {
    if part.len() < 8 {
        return part.iter().sum();
    }
    let (left, right) = part.split_at(part.len() / 2);
    ult::scope(|scope| {
        let left = scope.spawn(pool, || sum(pool, left)).unwrap();
        sum(pool, right) + left.join().unwrap()
    })
}

#[test]
fn scopes_nest_and_borrow_from_everywhere() {
    within(|| {
        let (runtime, pool) = shared(2);
        let numbers: Vec<u64> = (0..5000).collect();
        let expected: u64 = numbers.iter().sum();
        assert_eq!(sum(&pool, &numbers), expected, "from an OS thread");
        let inner = pool.clone();
        assert_eq!(on(&pool, move || sum(&inner, &numbers)), expected);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn dropped_handles_are_waited_for() {
    within(|| {
        let (runtime, pool) = shared(2);
        for from_ult in [false, true] {
            let inner = pool.clone();
            let body = move || {
                let mut parts = [0u32; 50];
                let entered = ult::scope(|scope| {
                    for (n, part) in (0u32..).zip(&mut parts) {
                        let body = move || {
                            (0..n % 5).for_each(|_| ult::yield_now());
                            *part = n;
                        };
                        drop(scope.spawn(&inner, body).unwrap());
                    }
                    true
                });
                assert!(entered);
                assert!((0u32..).zip(parts).all(|(n, part)| n == part));
            };
            if from_ult { on(&pool, body) } else { body() }
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_panic_of_the_scope_comes_after_its_units() {
    within(|| {
        let (runtime, pools) = private(2);
        let (go, inner) = (Arc::new(AtomicBool::new(false)), pools[1].clone());
        let seen = go.clone();
        let outer = pools[0].spawn(move || {
            let ended = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                ult::scope(|scope| {
                    let slow = scope.spawn(&inner, || {
                        yield_until("go", || seen.load(SeqCst));
                        ended.fetch_add(1, SeqCst)
                    });
                    drop(slow);
                    drop(scope.spawn(&inner, || panic!("nobody joins this one")).unwrap());
                    let joined = scope.spawn(&inner, || -> u8 { panic!("a unit") }).unwrap();
                    assert!(matches!(joined.join(), Err(JoinError::Panicked(_))));
                    panic!("the scope")
                })
            }));
            let panic: Box<dyn std::any::Any + Send> = result.unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"the scope"));
            ended.load(SeqCst)
        });
        let outer = outer.unwrap();
        on(&pools[0], ult::yield_now);
        assert!(!outer.is_finished());
        go.store(true, SeqCst);
        assert_eq!(outer.join().unwrap(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn units_of_a_scope_are_cancelled_and_have_deadlines() {
    within(|| {
        let (runtime, pool) = shared(2);
        let base = 40;
        ult::scope(|scope| {
            let parks = scope.spawn(&pool, ult::park).unwrap();
            let parks = parks.join_deadline(Instant::now()).unwrap_err();
            assert!(!parks.is_finished());
            parks.cancel();
            assert!(matches!(parks.join(), Err(JoinError::Cancelled)));
            let value = scope.spawn(&pool, || &base).unwrap();
            crate::common::wait_until("finished", || value.is_finished());
            assert_eq!(*value.join_deadline(Instant::now()).unwrap().unwrap(), 40);
        });
        runtime.shutdown().unwrap();
    });
}

/// A unit that never starts gives back what it borrows.
#[test]
fn a_refused_or_lost_unit_does_not_hold_the_scope() {
    within(|| {
        let (runtime, pools) = private(1);
        let inner = pools[0].clone();
        on(&pools[0], move || {
            let count = AtomicUsize::new(0);
            ult::scope(|scope| {
                let lost = scope.spawn(&inner, || count.fetch_add(1, SeqCst)).unwrap();
                drop(inner.pop().unwrap());
                assert!(matches!(lost.join(), Err(JoinError::Lost)));
                drop(scope.spawn(&inner, || count.fetch_add(1, SeqCst)).unwrap());
                drop(inner.pop().unwrap());
            });
            assert_eq!(count.load(SeqCst), 0);
        });
        runtime.shutdown().unwrap();
        let local = AtomicUsize::new(0);
        ult::scope(|scope| {
            assert!(scope.spawn(&pools[0], || local.fetch_add(1, SeqCst)).is_err());
        });
    });
}

/// The value of a unit whose handle is gone borrows, too: it is dropped before the scope ends.
#[test]
fn values_are_dropped_inside_the_scope() {
    struct Borrows<'a>(&'a AtomicUsize);
    impl Drop for Borrows<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    within(|| {
        let (runtime, pool) = shared(2);
        for _ in 0..100 {
            let count = AtomicUsize::new(0);
            ult::scope(|scope| {
                for _ in 0..4 {
                    drop(scope.spawn(&pool, || Borrows(&count)).unwrap());
                }
                // One that is never asked for its value.
                let kept = scope.spawn(&pool, || Borrows(&count)).unwrap();
                crate::common::wait_until("finished", || kept.is_finished());
            });
            assert_eq!(count.load(SeqCst), 5);
        }
        runtime.shutdown().unwrap();
    });
}
