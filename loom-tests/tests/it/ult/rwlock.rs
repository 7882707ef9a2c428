//! Do writers exclude everybody, and is nobody in the queue forgotten?
//!
//! The value is a loom cell inside the lock: loom reports a writer that is not alone.

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::RwLock;

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

#[test]
fn writers_exclude_each_other() {
    check(|| {
        let lock = Arc::new(RwLock::new(0));
        let others =
            [lock.clone(), lock.clone()].map(|lock| thread::spawn(move || *lock.write() += 1));
        *lock.write() += 1;
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*lock.read(), 3);
    });
}

#[test]
fn a_writer_excludes_two_readers() {
    check(|| {
        let lock = Arc::new(RwLock::new((0, 0)));
        let readers = [lock.clone(), lock.clone()].map(|lock| {
            thread::spawn(move || {
                let pair = lock.read();
                assert_eq!(pair.0, pair.1);
            })
        });
        let mut pair = lock.write();
        pair.0 += 1;
        pair.1 += 1;
        drop(pair);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// A reader queues behind a writer that gives up: it must not be left there.
#[test]
fn a_writer_that_leaves_lets_readers_pass() {
    check(|| {
        let lock = Arc::new(RwLock::new(0));
        let held = lock.read();
        let writer = {
            let lock = lock.clone();
            thread::spawn(move || drop(lock.write_deadline(past())))
        };
        let reader = {
            let lock = lock.clone();
            thread::spawn(move || assert_eq!(*lock.read(), 0))
        };
        reader.join().unwrap();
        drop(held);
        writer.join().unwrap();
        *lock.write() += 1;
    });
}

#[test]
fn leaving_races_with_admission() {
    check(|| {
        let lock = Arc::new(RwLock::new(0));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || *lock.write() += 1)
        };
        let got = match lock.write_deadline(past()) {
            Some(mut value) => {
                *value += 1;
                1
            }
            None => 0,
        };
        other.join().unwrap();
        assert_eq!(*lock.read(), 1 + got);
    });
}
