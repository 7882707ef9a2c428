//! Is the value visible to every woken party, is no waiter forgotten, and is the eventual left
//! alone once a waiter may free it?
//!
//! At most two parties at a time may meet a waiter that is leaving: two that spin on its lock could
//! feed each other's yields forever in the model, which knows no fair scheduler.

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::Eventual;

#[test]
fn value_reaches_two_waiters() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let waiters = [eventual.clone(), eventual.clone()]
            .map(|eventual| thread::spawn(move || assert_eq!(*eventual.wait(), 7)));
        assert_eq!(eventual.set(7), Ok(()));
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn one_of_two_setters_wins() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let setters = [1, 2].map(|value| {
            let eventual = eventual.clone();
            thread::spawn(move || eventual.set(value).is_ok())
        });
        let value = *eventual.wait();
        let wins = setters.map(|setter| setter.join().unwrap());
        assert_eq!(wins, [value == 1, value == 2]);
    });
}

#[test]
fn value_reaches_a_waiter_that_cannot_be_cancelled() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let seen = eventual.clone();
        let fully = thread::spawn(move || {
            seen.wait_ready_fully();
            assert_eq!(seen.try_get(), Some(&7));
        });
        assert_eq!(eventual.set(7), Ok(()));
        assert_eq!(*eventual.wait(), 7);
        fully.join().unwrap();
    });
}

/// A pointer to an eventual that its waiter owns.
struct Remote(*const Eventual<Box<u32>>);

// SAFETY: `Eventual<Box<u32>>` is `Sync`, and the waiter keeps it until it has been set.
unsafe impl Send for Remote {}

impl Remote {
    fn set(self) {
        // SAFETY: alive until a waiter can see the value, and `set` stops touching it then.
        unsafe { &*self.0 }.set(Box::new(5)).unwrap();
    }
}

/// The waiter frees the eventual as soon as it wakes. Its atomics and cell are loom objects: loom
/// reports any later access to them.
#[test]
fn waiter_frees_it_at_once() {
    check(|| {
        let eventual = Box::new(Eventual::new());
        let remote = Remote(&*eventual);
        let setter = thread::spawn(move || remote.set());
        eventual.wait_ready();
        assert_eq!(eventual.into_inner().as_deref(), Some(&5));
        setter.join().unwrap();
    });
}

#[test]
fn poller_frees_it_at_once() {
    check(|| {
        let mut eventual = Box::new(Eventual::new());
        let remote = Remote(&*eventual);
        let setter = thread::spawn(move || remote.set());
        while !eventual.is_ready() {
            thread::yield_now();
        }
        assert_eq!(eventual.take().as_deref(), Some(&5));
        drop(eventual);
        setter.join().unwrap();
    });
}

fn past() -> std::time::Instant {
    let now = std::time::Instant::now();
    now.checked_sub(std::time::Duration::from_secs(1)).unwrap_or(now)
}

/// A deadline in the past: the waiter leaves at once, while the value is being set.
#[test]
fn leaving_races_with_set() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let setter = {
            let eventual = eventual.clone();
            thread::spawn(move || eventual.set(3).unwrap())
        };
        assert!(matches!(eventual.wait_deadline(past()), None | Some(3)));
        setter.join().unwrap();
        assert_eq!(eventual.try_get(), Some(&3));
    });
}

/// One leaves while another enters the list, in any order.
#[test]
fn leaving_does_not_forget_another() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let stays = {
            let eventual = eventual.clone();
            thread::spawn(move || assert_eq!(*eventual.wait(), 3))
        };
        assert_eq!(eventual.wait_deadline(past()), None);
        eventual.set(3).unwrap();
        stays.join().unwrap();
    });
}

/// Two leave at the same time.
#[test]
fn two_leave_together() {
    check(|| {
        let eventual = Arc::new(Eventual::<u8>::new());
        let other = {
            let eventual = eventual.clone();
            thread::spawn(move || assert_eq!(eventual.wait_deadline(past()), None))
        };
        assert_eq!(eventual.wait_deadline(past()), None);
        other.join().unwrap();
        eventual.set(3).unwrap();
    });
}

#[test]
fn who_sets_alone_reaches_a_waiter_that_frees_it() {
    check(|| {
        let eventual = Arc::new(Eventual::new());
        let setter = eventual.clone();
        let waiter = thread::spawn(move || {
            assert_eq!(*eventual.wait(), 7);
            // The last owner or not: `set_alone` touches nothing any more if it is.
            drop(eventual);
        });
        // SAFETY: nobody else sets it.
        unsafe { setter.set_alone(7) };
        drop(setter);
        waiter.join().unwrap();
    });
}
