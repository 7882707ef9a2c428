//! Channels and select; ULTs and OS threads mixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, private, shared, wait_until, within};
use ult::channel::{
    self, Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, TryRecvError,
    TrySendError,
};
use ult::{CountDown, Eventual, Selectable, Semaphore, wait_any, wait_any_timeout};

fn past() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).unwrap()
}

/// Counts how many of it have been dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn every_item_comes_out_once() {
    const SENDERS: u64 = 4;
    const ITEMS: u64 = 2000;
    for capacity in [None, Some(0), Some(1), Some(16)] {
        within(move || {
            let (runtime, pool) = shared(2);
            let (sender, receiver) = capacity.map_or_else(channel::unbounded, channel::bounded);
            let sends = |sender: Sender<u64>, from: u64| {
                move || (0..ITEMS).for_each(|n| sender.send(from * ITEMS + n).unwrap())
            };
            let receives = |receiver: Receiver<u64>| {
                move || {
                    let mut last = [None; SENDERS as usize];
                    receiver.iter().fold(0, |sum, item| {
                        let last = &mut last[(item / ITEMS) as usize];
                        assert!(*last < Some(item), "items of one sender keep their order");
                        *last = Some(item);
                        sum + item
                    })
                }
            };
            let thread = std::thread::spawn(sends(sender.clone(), 0));
            for from in 1..SENDERS {
                pool.ult().spawn_detached(sends(sender.clone(), from)).unwrap();
            }
            drop(sender);
            let ults: Vec<_> =
                (0..2).map(|_| pool.spawn(receives(receiver.clone())).unwrap()).collect();
            let mut sum = std::thread::spawn(receives(receiver)).join().unwrap();
            sum += ults.into_iter().map(|ult| ult.join().unwrap()).sum::<u64>();
            thread.join().unwrap();
            let count = SENDERS * ITEMS;
            assert_eq!(sum, count * (count - 1) / 2);
            runtime.shutdown().unwrap();
        });
    }
}

#[test]
fn try_forms_never_wait() {
    let (sender, receiver) = channel::bounded(1);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    assert_eq!((sender.len(), receiver.len(), sender.capacity()), (1, 1, Some(1)));
    assert_eq!(receiver.try_recv(), Ok(1));
    sender.close();
    assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    let (sender, receiver) = channel::bounded(0);
    assert_eq!(sender.try_send(1).map_err(TrySendError::into_inner), Err(1));
    assert!(receiver.is_empty() && !receiver.is_closed());
}

#[test]
fn deadlines_pass_and_leave_nothing_behind() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let (sender, receiver) = channel::bounded(1);
            assert_eq!(receiver.recv_deadline(past()), Err(RecvTimeoutError::TimedOut));
            let limit = Duration::from_millis(2);
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
            sender.send_timeout(1, Duration::ZERO).unwrap();
            assert_eq!(sender.send_deadline(2, past()), Err(SendTimeoutError::TimedOut(2)));
            let back = sender.send_timeout(2, limit).unwrap_err();
            assert_eq!(back.into_inner(), 2);
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
            sender.close();
            assert_eq!(sender.send_deadline(3, past()), Err(SendTimeoutError::Closed(3)));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Closed));
        };
        body();
        pool.spawn(body).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn close_drains_what_is_left_and_returns_what_waits() {
    within(|| {
        let (runtime, pools) = private(1);
        let (sender, receiver) = channel::bounded(1);
        sender.send(1).unwrap();
        let inner = sender.clone();
        let waits = pools[0].spawn(move || inner.send(2)).unwrap();
        pools[0].spawn(|| ()).unwrap().join().unwrap();
        receiver.close();
        assert_eq!(waits.join().unwrap(), Err(SendError(2)));
        assert_eq!(sender.send(3), Err(SendError(3)));
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(receiver.recv(), Err(RecvError));
        assert!(sender.is_closed() && receiver.is_closed());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_last_handle_of_an_end_closes_the_channel() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (sender, receiver) = channel::unbounded::<u32>();
        drop(sender.clone());
        let waits = pool.spawn(move || receiver.recv()).unwrap();
        drop(sender);
        assert_eq!(waits.join().unwrap(), Err(RecvError));
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel::unbounded();
        for _ in 0..3 {
            sender.send(Counted(dropped.clone())).unwrap();
        }
        drop(receiver.clone());
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(receiver);
        assert_eq!(dropped.load(Ordering::SeqCst), 3, "nobody can receive them any more");
        drop(sender.send(Counted(dropped.clone())).unwrap_err());
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
        runtime.shutdown().unwrap();
    });
}

/// An item goes to the receiver that has waited longest, although another comes just then.
#[test]
fn waiting_receivers_are_served_in_order() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let body = pools[0].spawn(move || {
            let (sender, receiver) = channel::unbounded();
            let waits: Vec<_> = (0..3)
                .map(|_| {
                    let receiver = receiver.clone();
                    pool.spawn(move || receiver.recv().unwrap()).unwrap()
                })
                .collect();
            ult::yield_now();
            (0..3).for_each(|n| sender.send(n).unwrap());
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            let got: Vec<_> = waits.into_iter().map(|ult| ult.join().unwrap()).collect();
            assert_eq!(got, [0, 1, 2]);
        });
        body.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_rendezvous_ends_when_the_item_is_taken() {
    within(|| {
        let (runtime, pools) = private(1);
        let (sender, receiver) = channel::bounded(0);
        let sent = Arc::new(AtomicUsize::new(0));
        let inner = sent.clone();
        let sends = pools[0].spawn(move || {
            sender.send(1).unwrap();
            inner.store(1, Ordering::SeqCst);
        });
        pools[0].spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(sent.load(Ordering::SeqCst), 0);
        assert_eq!(receiver.recv(), Ok(1));
        sends.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// Each object in turn ends the wait of a ULT and of a thread.
#[test]
fn wait_any_reports_each_kind_of_object() {
    for fires in 0..5 {
        within(move || {
            let (runtime, pools) = private(1);
            let eventual = Arc::new(Eventual::new());
            let countdown = Arc::new(CountDown::new(1));
            let semaphore = Arc::new(Semaphore::new(1));
            let (item_in, item_out) = channel::unbounded();
            let (room_in, room_out) = channel::bounded(1);
            room_in.send(0).unwrap();
            let looked = Arc::new(AtomicUsize::new(0));
            let body = {
                let looked = looked.clone();
                let (eventual, countdown) = (eventual.clone(), countdown.clone());
                let (semaphore, item_out) = (semaphore.clone(), item_out.clone());
                move || {
                    let ready = semaphore.ready(2);
                    let objects: [&dyn Selectable; 5] =
                        [&*eventual, &*countdown, &ready, &item_out, &room_in];
                    assert_eq!(wait_any(&objects, Some(past())), None);
                    assert_eq!(wait_any_timeout(&objects, Duration::from_millis(1)), None);
                    looked.fetch_add(1, Ordering::SeqCst);
                    wait_any_timeout(&objects, LONG)
                }
            };
            let ult = pools[0].spawn(body.clone()).unwrap();
            let thread = std::thread::spawn(body);
            wait_until("both looked", || looked.load(Ordering::SeqCst) == 2);
            match fires {
                0 => eventual.set(()).unwrap(),
                1 => countdown.arrive().unwrap(),
                2 => semaphore.release(1),
                3 => item_in.send(1).unwrap(),
                _ => assert_eq!(room_out.recv(), Ok(0)),
            }
            assert_eq!(ult.join().unwrap(), Some(fires));
            assert_eq!(thread.join().unwrap(), Some(fires));
            runtime.shutdown().unwrap();
        });
    }
}

#[test]
fn wait_any_of_many_and_of_none() {
    within(|| {
        assert_eq!(wait_any(&[], None), None);
        assert_eq!(wait_any_timeout(&[], Duration::from_millis(1)), None);
        let eventuals: Arc<Vec<Eventual<()>>> =
            Arc::new((0..20).map(|_| Eventual::new()).collect());
        let inner = eventuals.clone();
        let waits = std::thread::spawn(move || {
            let objects: Vec<&dyn Selectable> =
                inner.iter().map(|eventual| eventual as &dyn Selectable).collect();
            wait_any(&objects, None)
        });
        eventuals[13].set(()).unwrap();
        assert_eq!(waits.join().unwrap(), Some(13));
    });
}

/// Selects and plain receivers compete for the items of two channels; a close ends them all.
#[test]
fn selects_and_receivers_share_all_items() {
    const ITEMS: u64 = 3000;
    within(|| {
        let (runtime, pool) = shared(2);
        let (a_in, a) = channel::bounded(2);
        let (b_in, b) = channel::unbounded();
        let selects = |a: Receiver<u64>, b: Receiver<u64>| {
            move || {
                let (mut sum, mut open) = (0, [true, true]);
                while open.contains(&true) {
                    let all = [&a, &b];
                    let at: Vec<usize> = (0..2).filter(|at| open[*at]).collect();
                    let objects: Vec<&dyn Selectable> =
                        at.iter().map(|at| all[*at] as &dyn Selectable).collect();
                    let at = at[wait_any(&objects, None).unwrap()];
                    match all[at].try_recv() {
                        Ok(item) => sum += item,
                        Err(TryRecvError::Closed) => open[at] = false,
                        Err(TryRecvError::Empty) => {}
                    }
                }
                sum
            }
        };
        let ults: Vec<_> =
            (0..2).map(|_| pool.spawn(selects(a.clone(), b.clone())).unwrap()).collect();
        let thread = std::thread::spawn(selects(a.clone(), b));
        let plain = pool.spawn(move || a.iter().sum::<u64>()).unwrap();
        let sends = pool.spawn(move || {
            for item in 1..=ITEMS {
                if item % 2 == 0 { a_in.send(item) } else { b_in.send(item) }.unwrap();
            }
        });
        sends.unwrap().join().unwrap();
        let mut sum = thread.join().unwrap() + plain.join().unwrap();
        sum += ults.into_iter().map(|ult| ult.join().unwrap()).sum::<u64>();
        assert_eq!(sum, ITEMS * (ITEMS + 1) / 2);
        runtime.shutdown().unwrap();
    });
}
