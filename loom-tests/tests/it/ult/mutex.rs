//! Does the lock exclude, does unlock forget no waiter, and is the mutex left alone by the last but
//! one holder?

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::Mutex;

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

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

/// A deadline in the past: the waiter leaves the queue while the lock is being given to it.
#[test]
fn leaving_races_with_unlock() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let other = {
            let mutex = mutex.clone();
            thread::spawn(move || *mutex.lock() += 1)
        };
        let got = match mutex.lock_deadline(past()) {
            Some(mut guard) => {
                *guard += 1;
                1
            }
            None => 0,
        };
        other.join().unwrap();
        assert_eq!(*mutex.lock(), 1 + got);
    });
}

/// Whatever a waiter that leaves has been given goes on to the one behind it.
#[test]
fn leaving_does_not_strand_another() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let stays = {
            let mutex = mutex.clone();
            thread::spawn(move || *mutex.lock() += 1)
        };
        let leaves = {
            let mutex = mutex.clone();
            thread::spawn(move || drop(mutex.lock_deadline(past())))
        };
        *mutex.lock() += 1;
        stays.join().unwrap();
        leaves.join().unwrap();
        assert_eq!(*mutex.lock(), 2);
    });
}

/// A pointer to a mutex that its last user owns.
struct Remote(*mut Mutex<u32>);

// SAFETY: `Mutex<u32>` is `Sync`, and it lives until the last user has locked it.
unsafe impl Send for Remote {}

impl Remote {
    /// Adds one; the party that brings it to `users` frees the mutex when it has unlocked it.
    fn add_and_free_last(self, users: u32) {
        // SAFETY: alive until the last of the users has the lock, and we are one of them.
        let mutex = unsafe { &*self.0 };
        let is_last = {
            let mut count = mutex.lock();
            *count += 1;
            *count == users
        };
        if is_last {
            // SAFETY: made by `Box::into_raw`; all others have unlocked it, and unlock does not
            // touch it after that.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

fn last_of(users: u32) {
    let mutex = Box::into_raw(Box::new(Mutex::new(0)));
    let others: Vec<_> = (1..users)
        .map(|_| {
            let remote = Remote(mutex);
            thread::spawn(move || remote.add_and_free_last(users))
        })
        .collect();
    Remote(mutex).add_and_free_last(users);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// The last holder frees the mutex, while the holder before may still be in its unlock.
#[test]
fn last_of_two_holders_frees_it_at_once() {
    check(|| last_of(2));
}

/// With two in the queue, the one before the last may still be handing the lock over.
#[test]
fn last_of_three_holders_frees_it_at_once() {
    check(|| last_of(3));
}
