//! Channels with one sender and one receiver; ULTs and OS threads mixed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::common::{LONG, on, private, wait_until, within};
use ult::channel::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError, spsc,
};
use ult::{Eventual, PoolRef, wait_any};

fn past() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).unwrap()
}

/// In a channel in which nobody waits for long, more than it takes until a side does without a full
/// fence, several times. Where there is a wait for nearly each item, that does not happen.
fn items(capacity: usize) -> u64 {
    if capacity < 100 { 3000 } else { 100_000 }
}

/// Starts `body` as a ULT of the pool, or as an OS thread, and returns what waits for its end.
fn start(place: Option<&PoolRef>, body: impl FnOnce() + Send + 'static) -> Box<dyn FnOnce()> {
    match place {
        Some(pool) => {
            let ult = pool.spawn(body).unwrap();
            Box::new(|| ult.join().unwrap())
        }
        None => {
            let thread = std::thread::spawn(body);
            Box::new(|| thread.join().unwrap())
        }
    }
}

/// Calls `run` with the places of a sender and a receiver: on two xstreams, on one, and one of them
/// an OS thread.
fn everywhere(run: impl Fn(Option<&PoolRef>, Option<&PoolRef>) + Send + 'static) {
    within(move || {
        let (runtime, pools) = private(2);
        for (from, to) in [(0, 1), (0, 0), (0, 2), (2, 1)] {
            run(pools.get(from), pools.get(to));
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn every_item_comes_out_once_and_in_order() {
    everywhere(|from, to| {
        for capacity in [1, 3, 1024] {
            let items = items(capacity);
            let (mut sender, mut receiver) = spsc(capacity);
            let sends = start(from, move || (0..items).for_each(|n| sender.send(n).unwrap()));
            let receives = start(to, move || assert!(receiver.iter().eq(0..items)));
            sends();
            receives();
        }
    });
}

/// Batches that are smaller and larger than the channel, and none of whose ends meet.
#[test]
fn every_item_of_a_batch_comes_out_once_and_in_order() {
    everywhere(|from, to| {
        for (capacity, batch, max) in [(1, 7, 3), (16, 5, 100), (1024, 64, 512), (100, 333, 17)] {
            let total = items(capacity);
            let (mut sender, mut receiver) = spsc(capacity);
            let sends = start(from, move || {
                let mut items = Vec::new();
                for first in (0..total).step_by(batch) {
                    items.extend(first..total.min(first + batch as u64));
                    sender.send_many(&mut items).unwrap();
                    assert!(items.is_empty());
                }
            });
            let receives = start(to, move || {
                let (mut items, mut next) = (Vec::new(), 0);
                while let Ok(count) = receiver.recv_many(&mut items, max) {
                    assert!(items.len() == count && (1..=max).contains(&count));
                    for item in items.drain(..) {
                        assert_eq!(item, next);
                        next += 1;
                    }
                }
                assert_eq!(next, total);
            });
            sends();
            receives();
        }
    });
}

#[test]
fn try_forms_never_wait() {
    let (mut sender, mut receiver) = spsc(3);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(receiver.try_recv_many(&mut Vec::new(), 4), Err(TryRecvError::Empty));
    assert_eq!(sender.try_send(1), Ok(()));
    let mut batch = vec![2, 3, 4, 5];
    assert_eq!(sender.try_send_many(&mut batch), Err(TrySendError::Full(())));
    assert_eq!(batch, [4, 5]);
    assert_eq!(sender.try_send(4), Err(TrySendError::Full(4)));
    assert_eq!((sender.len(), receiver.len(), sender.capacity()), (3, 3, 3));
    assert_eq!(receiver.try_recv(), Ok(1));
    sender.close();
    assert_eq!(sender.try_send(6), Err(TrySendError::Closed(6)));
    assert_eq!(sender.try_send_many(&mut batch), Err(TrySendError::Closed(())));
    assert_eq!(batch, [4, 5]);
    let mut rest = Vec::new();
    assert_eq!(receiver.recv_many(&mut rest, 0), Ok(0));
    assert_eq!(receiver.try_recv_many(&mut rest, 4), Ok(2));
    assert_eq!(rest, [2, 3]);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(receiver.recv_many(&mut rest, 4), Err(RecvError));
    assert_eq!(receiver.capacity(), 3);
}

#[test]
#[should_panic(expected = "needs room")]
fn a_capacity_of_zero_is_refused() {
    drop(spsc::<u8>(0));
}

#[test]
fn deadlines_pass_and_leave_nothing_behind() {
    within(|| {
        let (runtime, pools) = private(1);
        let body = || {
            let (mut sender, mut receiver) = spsc(1);
            assert_eq!(receiver.recv_deadline(past()), Err(RecvTimeoutError::TimedOut));
            let limit = Duration::from_millis(2);
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
            sender.send_timeout(1, Duration::ZERO).unwrap();
            assert_eq!(sender.send_deadline(2, past()), Err(SendTimeoutError::TimedOut(2)));
            assert_eq!(sender.send_timeout(2, limit).unwrap_err().into_inner(), 2);
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
            sender.close();
            assert_eq!(sender.send_deadline(3, past()), Err(SendTimeoutError::Closed(3)));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Closed));
        };
        body();
        on(&pools[0], body);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn close_drains_what_is_left_and_returns_what_waits() {
    within(|| {
        let (runtime, pools) = private(1);
        let (mut sender, mut receiver) = spsc(1);
        sender.send(1).unwrap();
        let waits = pools[0].spawn(move || (sender.send(2), sender.send(3), sender.is_closed()));
        on(&pools[0], || ());
        receiver.close();
        // There is room again before the sender runs.
        assert_eq!(receiver.recv(), Ok(1));
        let closed = (Err(SendError(2)), Err(SendError(3)), true);
        assert_eq!(waits.unwrap().join().unwrap(), closed);
        assert_eq!(receiver.recv(), Err(RecvError));
        assert!(receiver.is_closed() && receiver.is_empty());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_end_that_is_dropped_closes_the_channel() {
    within(|| {
        let (runtime, pools) = private(1);
        let (sender, mut receiver) = spsc::<u8>(1);
        let waits = pools[0].spawn(move || receiver.recv()).unwrap();
        on(&pools[0], || ());
        drop(sender);
        assert_eq!(waits.join().unwrap(), Err(RecvError));
        let item = Arc::new(());
        let (mut sender, receiver) = spsc(4);
        sender.send_many(&mut vec![item.clone(); 3]).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&item), 1, "nobody can receive them any more");
        let mut batch = vec![item.clone(); 2];
        assert_eq!(sender.send_many(&mut batch), Err(SendError(())));
        assert_eq!(batch.len(), 2);
        runtime.shutdown().unwrap();
    });
}

/// The other end sees what was sent before, and the rest of a batch stays with its owner.
#[test]
fn a_cancel_in_a_wait_loses_and_doubles_nothing() {
    within(|| {
        let (runtime, pools) = private(1);
        let item = Arc::new(());
        let (mut sender, mut receiver) = spsc(2);
        let rest = Arc::new(ult::Mutex::new(vec![item.clone(); 5]));
        let inner = rest.clone();
        let sends = pools[0].spawn(move || sender.send_many(&mut inner.lock()));
        on(&pools[0], || ());
        let sends = sends.unwrap();
        sends.cancel();
        assert!(sends.join().is_err());
        assert_eq!(rest.lock().len(), 3);
        assert_eq!(receiver.iter().count(), 2);
        rest.lock().clear();
        assert_eq!(Arc::strong_count(&item), 1);

        let (mut sender, receiver) = spsc(1);
        let receiver = Arc::new(ult::Mutex::new(receiver));
        let inner = receiver.clone();
        let receives = pools[0].spawn(move || inner.lock().recv()).unwrap();
        on(&pools[0], || ());
        receives.cancel();
        assert!(receives.join().is_err());
        sender.send(7).unwrap();
        assert_eq!(receiver.lock().recv(), Ok(7), "it goes on");
        runtime.shutdown().unwrap();
    });
}

/// A panic in the destructor of an item that is dropped with the receiver: the others are dropped
/// with the channel.
#[test]
fn a_panic_while_the_rest_is_dropped_loses_none_of_it() {
    struct Item {
        _count: Arc<()>,
        panics: bool,
    }
    impl Drop for Item {
        fn drop(&mut self) {
            assert!(!self.panics, "an item that panics");
        }
    }
    let count = Arc::new(());
    let item = |panics| Item { _count: count.clone(), panics };
    let (mut sender, receiver) = spsc(4);
    for panics in [false, true, false] {
        assert!(sender.send(item(panics)).is_ok());
    }
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(receiver)));
    assert!(dropped.is_err());
    assert!(sender.send(item(false)).is_err());
    drop(sender);
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn wait_any_watches_both_ends() {
    everywhere(|from, to| {
        const ITEMS: u32 = 3000;
        let (mut sender, mut receiver) = spsc(2);
        let stop = Eventual::<()>::new();
        let sends = start(from, move || {
            for n in 0..ITEMS {
                assert_eq!(wait_any(&[&stop, &sender], None), Some(1));
                sender.try_send(n).unwrap();
            }
        });
        let receives = start(to, move || {
            let stop = Eventual::<()>::new();
            for n in 0..ITEMS {
                assert_eq!(wait_any(&[&stop, &receiver], None), Some(1));
                assert_eq!(receiver.try_recv(), Ok(n));
            }
            assert_eq!(wait_any(&[&receiver], None), Some(0), "closed");
            assert_eq!(wait_any(&[&stop, &receiver], Some(past())), Some(1));
        });
        sends();
        receives();
    });
}

#[test]
fn an_end_can_be_awaited() {
    within(|| {
        let (mut sender, mut receiver) = spsc(1);
        let is_started = Arc::new(AtomicBool::new(false));
        let tells = is_started.clone();
        let thread = std::thread::spawn(move || {
            tells.store(true, Ordering::SeqCst);
            ult::block_on(ult::ready(&receiver));
            receiver.try_recv()
        });
        wait_until("it waits", || is_started.load(Ordering::SeqCst));
        sender.send(3).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(3));
    });
}

#[derive(Debug, Clone)]
enum Step {
    Send,
    SendMany(usize),
    Recv,
    RecvMany(usize),
    CloseSender,
    CloseReceiver,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Send),
        4 => (0usize..9).prop_map(Step::SendMany),
        8 => Just(Step::Recv),
        4 => (0usize..9).prop_map(Step::RecvMany),
        1 => Just(Step::CloseSender),
        1 => Just(Step::CloseReceiver),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Without waits, the channel is a queue with a bound.
    #[test]
    fn it_is_a_queue_with_a_bound(capacity in 1usize..9, steps in steps()) {
        let (mut sender, mut receiver) = spsc(capacity);
        let (mut model, mut next, mut is_closed) = (VecDeque::new(), 0u32, false);
        for step in steps {
            match step {
                Step::Send => {
                    next += 1;
                    let expected = match (is_closed, model.len() < capacity) {
                        (true, _) => Err(TrySendError::Closed(next)),
                        (false, false) => Err(TrySendError::Full(next)),
                        (false, true) => { model.push_back(next); Ok(()) }
                    };
                    prop_assert_eq!(sender.try_send(next), expected);
                }
                Step::SendMany(count) => {
                    let mut batch: Vec<_> = (1..=count as u32).map(|n| next + n).collect();
                    next += count as u32;
                    let room = if is_closed { 0 } else { capacity - model.len() };
                    let rest = batch[count.min(room)..].to_vec();
                    model.extend(&batch[..count.min(room)]);
                    let expected = match (rest.is_empty(), is_closed) {
                        (true, _) => Ok(()),
                        (false, true) => Err(TrySendError::Closed(())),
                        (false, false) => Err(TrySendError::Full(())),
                    };
                    prop_assert_eq!(sender.try_send_many(&mut batch), expected);
                    prop_assert_eq!(batch, rest);
                }
                Step::Recv => {
                    let none = if is_closed { TryRecvError::Closed } else { TryRecvError::Empty };
                    prop_assert_eq!(receiver.try_recv(), model.pop_front().ok_or(none));
                }
                Step::RecvMany(max) => {
                    let mut items = Vec::new();
                    let count = receiver.try_recv_many(&mut items, max).unwrap_or(0);
                    let expected: Vec<_> = model.drain(..max.min(model.len())).collect();
                    prop_assert_eq!(count, items.len());
                    prop_assert_eq!(items, expected);
                }
                Step::CloseSender => { sender.close(); is_closed = true; }
                Step::CloseReceiver => { receiver.close(); is_closed = true; }
            }
            prop_assert_eq!((sender.len(), receiver.is_closed()), (model.len(), is_closed));
        }
    }
}
