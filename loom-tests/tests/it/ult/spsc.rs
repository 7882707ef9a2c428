//! A channel with one sender and one receiver: does every item come out once or go back to its
//! sender, and does nobody sleep through a step of the other side? In the models a side is hot
//! after its first step for nobody who waited.

use std::time::{Duration, Instant};

use loom::sync::Arc;
use loom::thread;
use margo_loom_tests::{check, check_bounded};
use ult::channel::{self, RecvTimeoutError, SendTimeoutError};
use ult::{Eventual, wait_any};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

/// The receiver waits for items, or the sender for room, before and after the other one is hot.
#[test]
fn items_arrive_in_order() {
    for capacity in [1, 2] {
        check_bounded(2, move || {
            let (mut sender, mut receiver) = channel::spsc(capacity);
            let sends = thread::spawn(move || (1..=2).for_each(|n| sender.send(n).unwrap()));
            assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2]);
            sends.join().unwrap();
        });
    }
}

/// No close comes to the help of a receiver that sleeps, nor of a sender.
#[test]
fn nobody_sleeps_through_the_last_step() {
    check_bounded(2, || {
        let (mut sender, mut receiver) = channel::spsc(1);
        let sends = thread::spawn(move || {
            (1..=2).for_each(|n| sender.send(n).unwrap());
            sender
        });
        (1..=2).for_each(|n| assert_eq!(receiver.recv(), Ok(n)));
        let sender = sends.join().unwrap();
        assert!(receiver.is_empty() && !sender.is_closed());
    });
}

/// A batch is larger than the room.
#[test]
fn batches_arrive_in_order() {
    check_bounded(2, || {
        let (mut sender, mut receiver) = channel::spsc(1);
        let sends = thread::spawn(move || {
            let mut batch = vec![1, 2];
            sender.send_many(&mut batch).unwrap();
            assert!(batch.is_empty());
            sender
        });
        let mut received = Vec::new();
        while received.len() < 2 {
            receiver.recv_many(&mut received, 2).unwrap();
        }
        assert_eq!(received, [1, 2]);
        drop(sends.join().unwrap());
    });
}

/// The item is received, or comes back, but not both and not neither.
#[test]
fn the_receiver_closes_while_one_is_sent() {
    for capacity in [1, 2] {
        check(move || {
            let (mut sender, mut receiver) = channel::spsc(capacity);
            let sends = thread::spawn(move || {
                let back = |n| sender.send(n).map_or_else(|back| back.0, |()| 0);
                [1, 2].map(back).into_iter().sum::<u32>()
            });
            receiver.close();
            let received: u32 = receiver.iter().sum();
            let back = sends.join().unwrap();
            assert_eq!(received + back, 3);
            assert_eq!(receiver.iter().count(), 0, "the end is final");
        });
    }
}

#[test]
fn the_receiver_closes_while_a_batch_is_sent() {
    check(|| {
        let (mut sender, mut receiver) = channel::spsc(2);
        let sends = thread::spawn(move || {
            let mut batch = vec![1, 2, 3];
            let sent = sender.send_many(&mut batch);
            assert_eq!(sent.is_ok(), batch.is_empty());
            batch
        });
        receiver.close();
        let mut all: Vec<_> = receiver.iter().collect();
        all.extend(sends.join().unwrap());
        assert_eq!(all, [1, 2, 3]);
    });
}

/// An item that is queued is dropped with the receiver or with the ring, once.
#[test]
fn the_receiver_leaves_while_items_are_sent() {
    check(|| {
        let item = Arc::new(());
        let (mut sender, receiver) = channel::spsc(1);
        let drops = thread::spawn(move || drop(receiver));
        let sent = sender.send(item.clone()).and_then(|()| sender.send(item.clone()));
        drops.join().unwrap();
        drop(sent);
        assert!(sender.send(item.clone()).is_err());
        drop(sender);
        assert_eq!(Arc::strong_count(&item), 1);
    });
}

/// Both give up at once, or meet.
#[test]
fn leaving_races_with_the_other_end() {
    check_bounded(2, || {
        let (mut sender, mut receiver) = channel::spsc(1);
        let sends = thread::spawn(move || {
            sender.send(1).unwrap();
            match sender.send_deadline(2, past()) {
                Ok(()) => 0,
                Err(SendTimeoutError::TimedOut(item) | SendTimeoutError::Closed(item)) => item,
            }
        });
        let mut sum = 0;
        for _ in 0..2 {
            sum += match receiver.recv_deadline(past()) {
                Ok(item) => item,
                Err(RecvTimeoutError::TimedOut | RecvTimeoutError::Closed) => 0,
            };
        }
        sum += sends.join().unwrap();
        sum += receiver.try_iter().sum::<u32>();
        assert_eq!(sum, 3);
    });
}

/// A select of either end is woken by the step of the other one, and takes nothing.
#[test]
fn a_select_waits_for_an_item_and_for_room() {
    check(|| {
        let (mut sender, mut receiver) = channel::spsc(1);
        let never = Eventual::<()>::new();
        let sends = thread::spawn(move || {
            sender.send(1).unwrap();
            assert_eq!(wait_any(&[&sender], None), Some(0));
            sender
        });
        assert_eq!(wait_any(&[&receiver, &never], None), Some(0));
        assert_eq!(receiver.try_recv(), Ok(1));
        drop(sends.join().unwrap());
    });
}
