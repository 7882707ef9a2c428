//! Does the lock exclude, does the hand-over forget nobody, and is the mutex left alone by the
//! last but one holder?
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use ult::Mutex;

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// The value is a loom cell inside the mutex: loom reports two inside at once.
#[test]
fn two_parties_exclude_each_other() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let other = {
            let mutex = mutex.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    *mutex.lock() += 1;
                }
            })
        };
        for _ in 0..2 {
            *mutex.lock() += 1;
        }
        other.join().unwrap();
        assert_eq!(*mutex.lock(), 4);
    });
}

#[test]
fn three_parties_all_get_it() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let others =
            [mutex.clone(), mutex.clone()].map(|mutex| thread::spawn(move || *mutex.lock() += 1));
        *mutex.lock() += 1;
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(*mutex.lock(), 3);
    });
}

#[test]
fn try_lock_never_waits_and_never_lies() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let others = [mutex.clone(), mutex.clone()].map(|mutex| {
            thread::spawn(move || match mutex.try_lock() {
                Some(mut guard) => {
                    *guard += 1;
                    1
                }
                None => 0,
            })
        });
        *mutex.lock() += 1;
        let got: i32 = others.map(|other| other.join().unwrap()).into_iter().sum();
        assert_eq!(*mutex.lock(), 1 + got);
    });
}

/// A pointer to a mutex that its last user owns.
struct Remote(*const Mutex<u32>);

// SAFETY: `Mutex<u32>` is `Sync`, and the owner keeps it until the other has unlocked.
unsafe impl Send for Remote {}

impl Remote {
    fn add(self) {
        // SAFETY: alive until the lock is free or handed over, and unlock stops touching it then.
        *unsafe { &*self.0 }.lock() += 1;
    }
}

/// Whoever gets the lock last frees the mutex, while the one before may still be in its unlock.
#[test]
fn last_holder_frees_it_at_once() {
    check(|| {
        let mutex = Box::new(Mutex::new(0));
        let remote = Remote(&*mutex);
        let other = thread::spawn(move || remote.add());
        while *mutex.lock() == 0 {
            thread::yield_now();
        }
        drop(mutex);
        other.join().unwrap();
    });
}
