//! Is the value made once, visible to all, and made by another party after a failure?

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use margo_loom_tests::{check, check_bounded};
use ult::{OnceCell, ReentrantMutex};

#[test]
fn three_parties_see_one_value() {
    check(|| {
        let shared = Arc::new((OnceCell::new(), AtomicUsize::new(0)));
        let body = |shared: &(OnceCell<usize>, AtomicUsize)| {
            *shared.0.get_or_init(|| shared.1.fetch_add(1, Ordering::Relaxed) + 5)
        };
        let others = [shared.clone(), shared.clone()]
            .map(|shared| thread::spawn(move || assert_eq!(body(&shared), 5)));
        assert_eq!(body(&shared), 5);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// The party that fails wakes the waiters, and one of them tries.
#[test]
fn a_failure_lets_the_next_one_try() {
    check(|| {
        let cell = Arc::new(OnceCell::new());
        let fails = {
            let cell = cell.clone();
            thread::spawn(move || assert!(cell.get_or_try_init(|| Err(())) != Ok(&7)))
        };
        let waits = {
            let cell = cell.clone();
            thread::spawn(move || assert_eq!(*cell.get_or_init(|| 2), 2))
        };
        assert_eq!(*cell.get_or_init(|| 2), 2);
        fails.join().unwrap();
        waits.join().unwrap();
    });
}

/// No party takes another's number for its own.
#[test]
fn a_reentrant_mutex_excludes_others() {
    // Three preemptions take minutes.
    check_bounded(2, || {
        let mutex = Arc::new(ReentrantMutex::new(std::cell::Cell::new(0)));
        let body = |mutex: &ReentrantMutex<std::cell::Cell<u32>>| {
            let outer = mutex.lock();
            let before = outer.get();
            let inner = mutex.lock();
            assert_eq!(mutex.lock_count(), 2);
            inner.set(before + 1);
        };
        let others =
            [mutex.clone(), mutex.clone()].map(|mutex| thread::spawn(move || body(&mutex)));
        body(&mutex);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(mutex.lock().get(), 3);
    });
}
