//! Does every item come out once or go back to its sender, whatever closes or leaves meanwhile?

use std::time::{Duration, Instant};

use loom::thread;
use margo_loom_tests::check;
use ult::channel::{self, Receiver, RecvTimeoutError, SendTimeoutError, Sender};

fn past() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_secs(1)).unwrap_or(now)
}

type Make = fn() -> (Sender<u32>, Receiver<u32>);

const ALL: [Make; 3] = [channel::unbounded, || channel::bounded(1), || channel::bounded(0)];

#[test]
fn items_arrive_in_order() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let sends = thread::spawn(move || (1..=2).for_each(|n| sender.send(n).unwrap()));
            assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2]);
            sends.join().unwrap();
        });
    }
}

/// A receiver fetches two items at once. Whether it takes the first or the second of them, the
/// sender that waits for room meanwhile is seen.
#[test]
fn a_receiver_makes_room_by_what_it_has_fetched_before() {
    check(|| {
        let (sender, receiver) = channel::bounded(2);
        let sends = thread::spawn(move || (1..=4).for_each(|n| sender.send(n).unwrap()));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
        sends.join().unwrap();
    });
}

/// One fetches what is queued, the other one finds it there, and neither waits for what the other
/// has taken.
#[test]
fn two_receivers_share_what_one_has_fetched() {
    check(|| {
        let (sender, receiver) = channel::bounded(2);
        (1..=2).for_each(|n| sender.send(n).unwrap());
        let other = receiver.clone();
        let receives = thread::spawn(move || other.recv().unwrap());
        sender.send(3).unwrap();
        let first = receiver.recv().unwrap();
        let second = receives.join().unwrap();
        drop(sender);
        let rest: u32 = receiver.iter().sum();
        assert_eq!(first + second + rest, 6);
    });
}

/// One gets the item, the other one sees the end of the channel.
#[test]
fn two_receivers_share_one_item() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let other = receiver.clone();
            let receives = thread::spawn(move || other.recv().unwrap_or(0));
            let receives_too = thread::spawn(move || receiver.recv().unwrap_or(0));
            sender.send(1).unwrap();
            drop(sender);
            assert_eq!(receives.join().unwrap() + receives_too.join().unwrap(), 1);
        });
    }
}

#[test]
fn two_senders_wait_for_room() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let other = sender.clone();
            let sends = thread::spawn(move || other.send(1).unwrap());
            let sends_too = thread::spawn(move || sender.send(2).unwrap());
            assert_eq!(receiver.iter().sum::<u32>(), 3);
            sends.join().unwrap();
            sends_too.join().unwrap();
        });
    }
}

/// The item is received, or comes back, or was still queued when the channel ended.
#[test]
fn close_races_with_send_and_recv() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let closer = sender.clone();
            let sends = thread::spawn(move || match sender.send(5) {
                Ok(()) => 0,
                Err(back) => back.0,
            });
            let closes = thread::spawn(move || closer.close());
            let received: u32 = receiver.iter().sum();
            closes.join().unwrap();
            assert_eq!(sends.join().unwrap() + received, 5);
        });
    }
}

#[test]
fn dropping_the_receiver_lets_a_sender_go() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let drops = thread::spawn(move || drop(receiver));
            let sent = sender.send(1).and_then(|()| sender.send(2));
            drops.join().unwrap();
            assert!(sent.is_ok() || sent.is_err(), "it came back");
            assert!(sender.send(3).is_err());
        });
    }
}

/// Both give up at once, or meet.
#[test]
fn leaving_races_with_the_other_end() {
    for make in ALL {
        check(move || {
            let (sender, receiver) = make();
            let sends = thread::spawn(move || match sender.send_deadline(5, past()) {
                Ok(()) => 0,
                Err(SendTimeoutError::TimedOut(item) | SendTimeoutError::Closed(item)) => item,
            });
            let first = match receiver.recv_deadline(past()) {
                Ok(item) => item,
                Err(RecvTimeoutError::TimedOut | RecvTimeoutError::Closed) => 0,
            };
            let back = sends.join().unwrap();
            let rest: u32 = receiver.try_iter().sum();
            assert_eq!(first + back + rest, 5);
        });
    }
}
