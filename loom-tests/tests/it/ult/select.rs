//! When several objects fire at once: is one reported, and is what the others have to give still
//! there for somebody else?

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::check;
use ult::{Eventual, Semaphore, channel, wait_any};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

#[test]
fn two_eventuals_fire_at_once() {
    check(|| {
        let eventuals = Arc::new([Eventual::new(), Eventual::new()]);
        let setters = [0, 1].map(|at| {
            let eventuals = eventuals.clone();
            thread::spawn(move || eventuals[at].set(at).unwrap())
        });
        let first = wait_any(&[&eventuals[0], &eventuals[1]], None).unwrap();
        assert_eq!(eventuals[first].try_get(), Some(&first));
        setters.into_iter().for_each(|setter| setter.join().unwrap());
        assert_eq!(wait_any(&[&eventuals[1 - first]], None), Some(0), "the other is not lost");
    });
}

/// The select may be woken by the item although the eventual has won: the receiver must get it.
#[test]
fn an_item_is_not_lost_to_a_select_that_was_won_elsewhere() {
    check(|| {
        let (sender, receiver) = channel::unbounded();
        let eventual = Arc::new(Eventual::new());
        let fires = {
            let eventual = eventual.clone();
            thread::spawn(move || {
                sender.send(7).unwrap();
                eventual.set(()).unwrap();
                sender
            })
        };
        let receives = {
            let receiver = receiver.clone();
            thread::spawn(move || receiver.recv().unwrap())
        };
        while wait_any(&[&receiver, &*eventual], None) == Some(0) && !eventual.is_ready() {
            thread::yield_now();
        }
        assert_eq!(receives.join().unwrap(), 7);
        drop(fires.join().unwrap());
    });
}

#[test]
fn two_selects_share_two_permits() {
    check(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let take = |semaphore: &Semaphore| {
            loop {
                assert_eq!(wait_any(&[&semaphore.ready(1)], None), Some(0));
                if let Some(permit) = semaphore.try_acquire(1) {
                    return permit.forget();
                }
            }
        };
        let other = {
            let semaphore = semaphore.clone();
            thread::spawn(move || take(&semaphore))
        };
        semaphore.release(1);
        semaphore.release(1);
        take(&semaphore);
        other.join().unwrap();
        assert_eq!(semaphore.available(), 0);
    });
}

/// A deadline in the past: the select leaves while an object fires. Nothing of it stays behind,
/// or loom would report the dead waiter.
#[test]
fn leaving_races_with_both_objects() {
    check(|| {
        let (sender, receiver) = channel::bounded(1);
        let eventual = Arc::new(Eventual::new());
        let fires = {
            let eventual = eventual.clone();
            thread::spawn(move || {
                sender.send(7).unwrap();
                eventual.set(()).unwrap();
            })
        };
        let first = wait_any(&[&*eventual, &receiver], Some(past()));
        assert!(matches!(first, None | Some(0 | 1)));
        assert_eq!(receiver.recv(), Ok(7));
        fires.join().unwrap();
        assert!(eventual.is_ready());
    });
}
