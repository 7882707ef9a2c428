//! Joins that are awaited: on a ULT, on a thread, on a foreign executor.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::wakers::{Count, OnDrop, poll};
use crate::common::{shared, wait_until, within};
use futures_lite::future::or;
use ult::{Eventual, JoinError, block_on, block_on_deadline, channel};

#[test]
fn a_join_can_be_awaited_on_a_foreign_executor() {
    within(|| {
        let (runtime, pool) = shared(2);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let sum = tokio.block_on(async {
            let tasks: Vec<_> = (0..100u64)
                .map(|n| {
                    let handle = pool.spawn(move || {
                        ult::yield_now();
                        n
                    });
                    tokio::spawn(async move { handle.unwrap().await.unwrap() })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            sum
        });
        assert_eq!(sum, 4950);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_foreign_timer_ends_the_wait_for_a_join() {
    within(|| {
        let (runtime, pool) = shared(1);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let stop = Arc::new(Eventual::new());
        let unit = {
            let stop = stop.clone();
            pool.spawn(move || *stop.wait()).unwrap()
        };
        tokio.block_on(async {
            let mut outcome = unit.into_future();
            let limit = Duration::from_millis(2);
            assert!(tokio::time::timeout(limit, &mut outcome).await.is_err());
            stop.set(8).unwrap();
            assert_eq!(outcome.await.unwrap(), 8);
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_awaited_join_gives_every_outcome() {
    within(|| {
        let (runtime, pool) = shared(1);
        let join = |handle: ult::JoinHandle<u8>| block_on(handle);
        assert_eq!(join(pool.spawn(|| 1).unwrap()).unwrap(), 1);
        let panics = pool.spawn(|| -> u8 { panic!("no") });
        assert!(matches!(join(panics.unwrap()), Err(JoinError::Panicked(_))));
        let exits = pool.spawn(|| -> u8 { ult::exit() });
        assert!(matches!(join(exits.unwrap()), Err(JoinError::Exited)));
        let waits = pool.spawn(|| -> u8 { block_on(pending()) }).unwrap().into_future();
        waits.cancel();
        assert!(matches!(block_on(waits), Err(JoinError::Cancelled)));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_that_awaits_itself_is_told() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (own, told) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (takes, tells) = (own.clone(), told.clone());
        let unit = pool.spawn(move || {
            let handle: &Mutex<Option<ult::JoinHandle<()>>> = takes.wait();
            let handle = handle.lock().unwrap().take().unwrap();
            tells.set(matches!(block_on(handle), Err(JoinError::Deadlock))).unwrap();
        });
        assert!(own.set(Mutex::new(Some(unit.unwrap()))).is_ok());
        assert!(told.wait());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_latest_waker_of_a_join_is_called() {
    within(|| {
        let (runtime, pool) = shared(1);
        let stop = Arc::new(Eventual::new());
        let body = stop.clone();
        let mut outcome = pool.spawn(move || *body.wait()).unwrap().into_future();
        let ((first, first_waker), (second, second_waker)) = (Count::new(), Count::new());
        assert!(poll(&mut outcome, &first_waker).is_pending());
        assert!(poll(&mut outcome, &second_waker).is_pending());
        stop.set(3).unwrap();
        wait_until("the waker is called", || second.get() > 0);
        assert_eq!((first.get(), second.get()), (0, 1));
        assert!(matches!(poll(&mut outcome, &first_waker), Poll::Ready(Ok(3))));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn dropping_the_future_of_a_join_detaches_the_unit() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (count, waker) = Count::new();
        for is_polled in [false, true] {
            let stop = Arc::new(Eventual::new());
            let dropped = Arc::new(AtomicBool::new(false));
            let (body, value) = (stop.clone(), OnDrop(dropped.clone()));
            let unit = pool.spawn(move || {
                body.wait();
                value
            });
            let mut outcome = unit.unwrap().into_future();
            if is_polled {
                assert!(poll(&mut outcome, &waker).is_pending());
            }
            drop(outcome);
            stop.set(()).unwrap();
            wait_until("the outcome is dropped", || dropped.load(Ordering::SeqCst));
        }
        assert_eq!(count.get(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_future_that_ended_unpolled_drops_the_outcome() {
    within(|| {
        let (runtime, pool) = shared(1);
        let dropped = Arc::new(AtomicBool::new(false));
        let value = OnDrop(dropped.clone());
        let unit = pool.spawn(move || value).unwrap();
        wait_until("it ends", || unit.is_finished());
        drop(unit.into_future());
        assert!(dropped.load(Ordering::SeqCst));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_future_gives_the_handle_back() {
    within(|| {
        let (runtime, pool) = shared(1);
        let stop = Arc::new(Eventual::new());
        let body = stop.clone();
        let mut outcome = pool.spawn(move || *body.wait()).unwrap().into_future();
        let (count, waker) = Count::new();
        assert!(poll(&mut outcome, &waker).is_pending());
        let handle = outcome.into_handle().unwrap();
        stop.set(4).unwrap();
        assert_eq!(handle.join().unwrap(), 4);
        assert_eq!(count.get(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
#[should_panic(expected = "polled after its end")]
fn a_join_is_not_polled_twice() {
    let (runtime, pool) = shared(1);
    let unit = pool.spawn(|| ()).unwrap();
    wait_until("it ends", || unit.is_finished());
    let mut outcome = unit.into_future();
    assert!(poll(&mut outcome, Waker::noop()).is_ready());
    runtime.shutdown().unwrap();
    let _ = poll(&mut outcome, Waker::noop());
}

/// The destructor, or its call, does what a waker must not do.
struct Rude;

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        panic!("from a waker");
    }
}

#[test]
fn a_waker_that_panics_does_not_hurt_the_unit_that_ends() {
    within(|| {
        let (runtime, pool) = shared(1);
        let stop = Arc::new(Eventual::new());
        let body = stop.clone();
        let mut outcome = pool.spawn(move || *body.wait()).unwrap().into_future();
        assert!(poll(&mut outcome, &Waker::from(Arc::new(Rude))).is_pending());
        stop.set(2).unwrap();
        assert_eq!(block_on(outcome).unwrap(), 2);
        assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1);
        runtime.shutdown().unwrap();
    });
}

/// Waits inside of the call, and tells where it has been.
struct Slow(Arc<Eventual<()>>, Arc<Eventual<bool>>);

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        self.0.wait();
        self.1.set(ult::is_ult()).unwrap();
    }
}

#[test]
fn a_waker_that_waits_is_in_no_unit() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (stop, go) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let was_in_unit = Arc::new(Eventual::new());
        let body = stop.clone();
        let mut outcome = pool.spawn(move || *body.wait()).unwrap().into_future();
        let waker = Waker::from(Arc::new(Slow(go.clone(), was_in_unit.clone())));
        assert!(poll(&mut outcome, &waker).is_pending());
        stop.set(2).unwrap();
        go.set(()).unwrap();
        assert!(!was_in_unit.wait());
        assert_eq!(block_on(outcome).unwrap(), 2);
        runtime.shutdown().unwrap();
    });
}

/// Random interleavings of the end of a unit with polls, drops and joins of its future.
#[test]
fn futures_are_dropped_while_their_units_end() {
    const ROUNDS: usize = 2000;
    within(|| {
        let (runtime, pool) = shared(2);
        let alive = Arc::new(());
        let mut random = 1u32;
        for round in 0..ROUNDS {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = alive.clone();
            let yields = random >> 30;
            let unit = pool.spawn(move || {
                (0..yields).for_each(|_| ult::yield_now());
                value
            });
            let mut outcome = unit.unwrap().into_future();
            for _ in 0..(random >> 24) % 8 {
                std::hint::spin_loop();
            }
            if let Poll::Ready(result) = poll(&mut outcome, Waker::noop()) {
                result.unwrap();
                continue;
            }
            match round % 4 {
                0 => drop(outcome),
                1 => drop(block_on(outcome).unwrap()),
                2 => drop(outcome.into_handle().unwrap().join().unwrap()),
                _ => drop(block_on_deadline(outcome, Instant::now())),
            }
        }
        wait_until("all outcomes are gone", || Arc::strong_count(&alive) == 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn async_combinators_mix_joins_and_channels() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = channel::unbounded::<&str>();
        let stop = Arc::new(Eventual::new());
        let body = stop.clone();
        let unit = pool.spawn(move || *body.wait()).unwrap().into_future();
        let by_unit = async { unit.await.unwrap() };
        let by_channel = async { receiver.recv_async().await.unwrap() };
        let tells = pool.spawn(move || sender.send("channel").unwrap()).unwrap();
        assert_eq!(
            block_on_deadline(or(by_unit, by_channel), Instant::now() + crate::common::LONG),
            Some("channel")
        );
        tells.join().unwrap();
        stop.set("unit").unwrap();
        runtime.shutdown().unwrap();
    });
}
