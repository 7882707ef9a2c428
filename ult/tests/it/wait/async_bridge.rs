//! Async code in ULTs, and ULTs in async code: wakers, `block_on`, joins that are awaited.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::wakers::{Count, OnDrop, poll};
use crate::common::{private, shared, wait_until, within};
use futures_lite::future::{yield_now, zip};
use ult::{Eventual, JoinError, WaitKind, block_on, block_on_deadline, channel, ready};

fn past() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).unwrap()
}

/// Pending until `open`; keeps the last waker where the test finds it.
#[derive(Clone, Default)]
struct Hatch {
    open: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Hatch {
    fn wait(&self) -> impl Future<Output = ()> + use<> {
        let this = self.clone();
        poll_fn(move |cx| {
            *this.waker.lock().unwrap() = Some(cx.waker().clone());
            if this.open.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    fn waker(&self) -> Waker {
        wait_until("the future is polled", || self.waker.lock().unwrap().is_some());
        self.waker.lock().unwrap().clone().unwrap()
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

#[test]
fn a_ready_future_does_not_suspend() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let unit = pools[0].spawn(move || {
            let other = pool.spawn(|| ()).unwrap();
            assert_eq!(block_on(async { 5 }), 5);
            let early = other.is_finished();
            other.join().unwrap();
            early
        });
        assert!(!unit.unwrap().join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn while_a_future_is_pending_other_units_run() {
    within(|| {
        let (runtime, pools) = private(1);
        let hatch = Hatch::default();
        let unit = {
            let hatch = hatch.clone();
            pools[0].spawn(move || block_on(hatch.wait())).unwrap()
        };
        // On the same xstream, behind the first.
        let opener = hatch.clone();
        pools[0].spawn(move || opener.open()).unwrap().join().unwrap();
        unit.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn wakers_work_from_os_threads() {
    const ROUNDS: usize = 300;
    within(|| {
        let (runtime, pool) = shared(2);
        let (to_thread, in_thread) = async_channel::bounded::<usize>(1);
        let (to_ult, in_ult) = async_channel::bounded::<usize>(1);
        let echo = std::thread::spawn(move || {
            while let Ok(n) = in_thread.recv_blocking() {
                to_ult.send_blocking(n + 1).unwrap();
            }
        });
        let unit = pool.spawn(move || {
            block_on(async move {
                for n in 0..ROUNDS {
                    to_thread.send(n).await.unwrap();
                    assert_eq!(in_ult.recv().await, Ok(n + 1));
                }
            });
        });
        unit.unwrap().join().unwrap();
        echo.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn many_ults_share_an_async_channel() {
    const PARTIES: usize = 8;
    const ITEMS: usize = 500;
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = async_channel::bounded::<usize>(3);
        let senders: Vec<_> = (0..PARTIES)
            .map(|_| {
                let sender = sender.clone();
                let body = move || (0..ITEMS).for_each(|n| block_on(sender.send(n)).unwrap());
                pool.spawn(body).unwrap()
            })
            .collect();
        drop(sender);
        let receivers: Vec<_> = (0..PARTIES)
            .map(|_| {
                let receiver = receiver.clone();
                let body =
                    move || std::iter::from_fn(|| block_on(receiver.recv()).ok()).sum::<usize>();
                pool.spawn(body).unwrap()
            })
            .collect();
        senders.into_iter().for_each(|unit| unit.join().unwrap());
        let sum: usize = receivers.into_iter().map(|unit| unit.join().unwrap()).sum();
        assert_eq!(sum, PARTIES * ITEMS * (ITEMS - 1) / 2);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_wake_up_during_the_poll_is_not_lost() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let mut polls = 0;
            block_on(poll_fn(|cx| {
                polls += 1;
                cx.waker().wake_by_ref();
                if polls == 5 { Poll::Ready(polls) } else { Poll::Pending }
            }))
        };
        assert_eq!(pool.spawn(body).unwrap().join().unwrap(), 5);
        assert_eq!(body(), 5, "on an OS thread");
        assert_eq!(pool.tasklet().spawn(body).unwrap().join().unwrap(), 5);
        runtime.shutdown().unwrap();
    });
}

/// The wake-up comes while the ULT, inside of the poll, waits for something else.
#[test]
fn a_wake_up_during_another_wait_is_not_lost() {
    within(|| {
        let (runtime, pool) = shared(2);
        let hatch = Hatch::default();
        let go = Arc::new(Eventual::new());
        let unit = {
            let (hatch, go) = (hatch.clone(), go.clone());
            pool.spawn(move || {
                let mut opened = pin!(hatch.wait());
                block_on(poll_fn(move |cx| {
                    let result = opened.as_mut().poll(cx);
                    go.wait();
                    result
                }));
            })
        };
        hatch.waker();
        hatch.open();
        go.set(()).unwrap();
        unit.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_future_that_wakes_itself_lets_others_run() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let unit = pools[0].spawn(move || {
            let other = pool.spawn(|| ()).unwrap();
            block_on(async {
                while !other.is_finished() {
                    yield_now().await;
                }
            });
        });
        unit.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_future_that_wakes_itself_for_ever_ends_with_the_deadline() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let forever = async {
                loop {
                    yield_now().await;
                }
            };
            let soon = Instant::now() + Duration::from_millis(2);
            block_on_deadline::<Pin<Box<dyn Future<Output = ()>>>>(Box::pin(forever), soon)
        };
        assert_eq!(pool.spawn(body).unwrap().join().unwrap(), None);
        assert_eq!(body(), None, "on an OS thread");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn spurious_wake_ups_are_harmless() {
    within(|| {
        let (runtime, pool) = shared(1);
        let hatch = Hatch::default();
        let unit = {
            let hatch = hatch.clone();
            pool.spawn(move || block_on(hatch.wait())).unwrap()
        };
        for _ in 0..100 {
            hatch.waker().wake();
        }
        assert!(!unit.is_finished());
        hatch.open();
        unit.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// The descriptors are used again meanwhile, so a waker that kept none alive would hit others.
#[test]
fn a_waker_may_outlive_its_ult_and_the_runtime() {
    within(|| {
        let (runtime, pool) = shared(1);
        let mut wakers = Vec::new();
        for _ in 0..50 {
            let hatch = Hatch::default();
            hatch.open();
            let body = hatch.clone();
            pool.spawn(move || block_on(body.wait())).unwrap().join().unwrap();
            let waker = hatch.waker();
            let other = pool.spawn(|| block_on(yield_now())).unwrap();
            waker.wake_by_ref();
            other.join().unwrap();
            wakers.push(waker);
        }
        runtime.shutdown().unwrap();
        drop(runtime);
        drop(pool);
        wakers.iter().for_each(Waker::wake_by_ref);
        assert!(wakers[0].will_wake(&wakers[0].clone()));
        assert!(!wakers[0].will_wake(&wakers[1]));
    });
}

#[test]
fn a_waker_wakes_several_calls_of_the_same_ult() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = async_channel::unbounded::<usize>();
        let unit = pool.spawn(move || {
            let mut all = Vec::new();
            for _ in 0..50 {
                all.push(block_on(receiver.recv()).unwrap());
                ult::yield_now();
            }
            all
        });
        for n in 0..50 {
            sender.try_send(n).unwrap();
        }
        assert_eq!(unit.unwrap().join().unwrap(), (0..50).collect::<Vec<_>>());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_nested_call_leaves_the_outer_one_awake() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (outer, inner) = (Hatch::default(), Hatch::default());
        let body = {
            let (outer, inner) = (outer.clone(), inner.clone());
            move || {
                let mut is_first = true;
                let mut opened = pin!(outer.wait());
                block_on(poll_fn(|cx| {
                    let result = opened.as_mut().poll(cx);
                    if std::mem::take(&mut is_first) {
                        block_on(inner.wait());
                    }
                    result
                }));
            }
        };
        for on_ult in [true, false] {
            outer.open.store(false, Ordering::SeqCst);
            inner.open.store(false, Ordering::SeqCst);
            let unit = on_ult.then(|| pool.spawn(body.clone()).unwrap());
            let thread = (!on_ult).then(|| std::thread::spawn(body.clone()));
            inner.waker();
            // The outer future is woken while the inner call waits.
            outer.open();
            inner.open();
            unit.into_iter().for_each(|unit| unit.join().unwrap());
            thread.into_iter().for_each(|thread| thread.join().unwrap());
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_deadline_ends_the_wait_and_drops_the_future() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let alive = Arc::new(());
            let held = alive.clone();
            let future = async move {
                pending::<()>().await;
                drop(held);
            };
            let soon = Instant::now() + Duration::from_millis(2);
            let outcome = block_on_deadline(future, soon);
            assert!(Instant::now() >= soon);
            assert_eq!(Arc::strong_count(&alive), 1);
            outcome
        };
        assert_eq!(pool.spawn(body).unwrap().join().unwrap(), None);
        assert_eq!(body(), None, "on an OS thread");
        assert_eq!(pool.tasklet().spawn(body).unwrap().join().unwrap(), None);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn after_a_deadline_the_wait_can_go_on() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = async_channel::unbounded();
        let unit = pool.spawn(move || {
            let mut next = pin!(receiver.recv());
            assert_eq!(block_on_deadline(next.as_mut(), past()), None);
            sender.try_send(3).unwrap();
            block_on(next)
        });
        assert_eq!(unit.unwrap().join().unwrap(), Ok(3));
        assert_eq!(block_on_deadline(async { 1 }, past()), Some(1), "polled at least once");
        assert_eq!(ult::block_on_timeout(pending::<()>(), Duration::ZERO), None);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancel_drops_the_pending_future() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (dropped, after) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let hatch = Hatch::default();
        let unit = {
            let (flag, after, hatch) = (OnDrop(dropped.clone()), after.clone(), hatch.clone());
            pool.spawn(move || {
                block_on(async move {
                    hatch.wait().await;
                    drop(flag);
                });
                after.store(true, Ordering::SeqCst);
            })
        };
        hatch.waker();
        let unit = unit.unwrap();
        unit.cancel();
        assert!(matches!(unit.join(), Err(JoinError::Cancelled)));
        assert!(dropped.load(Ordering::SeqCst));
        assert!(!after.load(Ordering::SeqCst));
        // The waker of a cancelled ULT is harmless, too.
        hatch.open();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_panic_of_the_future_ends_the_ult() {
    within(|| {
        let (runtime, pool) = shared(1);
        let unit = pool.spawn(|| {
            block_on(async {
                yield_now().await;
                panic!("in a future");
            })
        });
        let Err(JoinError::Panicked(panic)) = unit.unwrap().join() else { unreachable!() };
        assert_eq!(panic.message(), "in a future");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn who_waits_for_a_future_is_listed_as_such() {
    within(|| {
        let (runtime, pool) = shared(1);
        let hatch = Hatch::default();
        let unit = {
            let hatch = hatch.clone();
            pool.spawn(move || block_on(hatch.wait())).unwrap()
        };
        hatch.waker();
        let error = runtime.shutdown_timeout(Duration::from_millis(20)).unwrap_err();
        let ult::ShutdownError::StillAlive(report) = error else { unreachable!() };
        assert_eq!(report.suspended[0].waits_for, Some(WaitKind::Future));
        hatch.open();
        unit.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn objects_of_this_crate_can_be_awaited() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = channel::bounded::<u32>(1);
        let answer = Arc::new(Eventual::new());
        let units = {
            let (receiver, answer) = (receiver.clone(), answer.clone());
            [
                pool.spawn(move || block_on(async { receiver.recv_async().await.unwrap() })),
                pool.spawn(move || block_on(async { *answer.wait_async().await })),
            ]
        };
        block_on(zip(async { sender.send_async(4).await.unwrap() }, async {
            answer.set(5).unwrap();
        }));
        let outcomes = units.map(|unit| unit.unwrap().join().unwrap());
        assert_eq!(outcomes, [4, 5]);
        drop(receiver);
        assert_eq!(block_on(sender.send_async(6)).unwrap_err().0, 6);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn items_pass_between_blocking_and_async_parties() {
    const ITEMS: u64 = 2000;
    within(|| {
        let (runtime, pool) = shared(2);
        let (sender, receiver) = channel::bounded::<u64>(2);
        let sends = {
            let sender = sender.clone();
            pool.spawn(move || (0..ITEMS).for_each(|n| sender.send(n).unwrap())).unwrap()
        };
        let sends_async = pool.spawn(move || {
            block_on(async move {
                for n in 0..ITEMS {
                    sender.send_async(n).await.unwrap();
                }
            });
        });
        let receives = {
            let receiver = receiver.clone();
            pool.spawn(move || std::iter::from_fn(|| receiver.recv().ok()).sum::<u64>()).unwrap()
        };
        let receives_async = std::thread::spawn(move || {
            block_on(async move {
                let mut sum = 0;
                while let Ok(n) = receiver.recv_async().await {
                    sum += n;
                }
                sum
            })
        });
        sends.join().unwrap();
        sends_async.unwrap().join().unwrap();
        let sum = receives.join().unwrap() + receives_async.join().unwrap();
        assert_eq!(sum, ITEMS * (ITEMS - 1));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    let object = Eventual::new();
    let (count, waker) = Count::new();
    {
        let mut waits = ready(&object);
        assert_eq!(poll(&mut waits, &waker), Poll::Pending);
    }
    let mut other = ready(&object);
    assert_eq!(poll(&mut other, &waker), Poll::Pending);
    assert_eq!(poll(&mut other, &waker), Poll::Pending, "a second poll links nothing more");
    object.set(()).unwrap();
    assert_eq!(count.get(), 1, "only the one that still waits is woken");
    assert_eq!(poll(&mut other, &waker), Poll::Ready(()));
}

#[test]
fn a_forgotten_wait_is_woken_without_harm() {
    let object = Eventual::new();
    let (count, waker) = Count::new();
    let mut waits = ready(&object);
    assert_eq!(poll(&mut waits, &waker), Poll::Pending);
    std::mem::forget(waits);
    object.set(()).unwrap();
    assert_eq!(count.get(), 1);
}

/// The future is woken by the executor of the other side, and the executor's task by the ULT.
#[test]
fn ults_and_a_foreign_executor_call_each_other() {
    within(|| {
        let (runtime, pool) = shared(1);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (to_ult, mut in_ult) = tokio::sync::mpsc::channel::<u32>(1);
        let (to_task, mut in_task) = tokio::sync::mpsc::channel::<u32>(1);
        let unit = pool.spawn(move || {
            block_on(async move {
                while let Some(n) = in_ult.recv().await {
                    to_task.send(n * 2).await.unwrap();
                }
            });
        });
        tokio.block_on(async {
            for n in 0..200 {
                to_ult.send(n).await.unwrap();
                assert_eq!(in_task.recv().await, Some(n * 2));
            }
            drop(to_ult);
            unit.unwrap().await.unwrap();
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_future_of_a_shared_object_keeps_it_and_leaves_it() {
    struct Job {
        done: Eventual<u8>,
    }
    let job = Arc::new(Job { done: Eventual::new() });
    let (count, waker) = crate::common::wakers::Count::new();
    let start = || ult::ready_in(job.clone(), |job| &job.done);
    let mut first = start();
    let mut second = start();
    assert!(poll(&mut first, &waker).is_pending());
    assert!(poll(&mut second, &waker).is_pending());
    // It may move, and be dropped while it waits.
    let mut moved = Box::new(first);
    assert!(poll(&mut *moved, &waker).is_pending());
    drop(second);
    assert_eq!(Arc::strong_count(&job), 2);
    job.done.set(1).unwrap();
    assert_eq!(count.get(), 1, "only the one that is left");
    assert!(poll(&mut *moved, &waker).is_ready());
    drop(moved);
    assert_eq!(Arc::strong_count(&job), 1);
    assert!(poll(&mut start(), &waker).is_ready());
    // What is forgotten keeps the object for good.
    let other = Arc::new(Job { done: Eventual::new() });
    let mut forgotten = ult::ready_in(other.clone(), |job| &job.done);
    assert!(poll(&mut forgotten, &waker).is_pending());
    std::mem::forget(forgotten);
    other.done.set(2).unwrap();
    assert_eq!((count.get(), Arc::strong_count(&other)), (2, 2));
}

#[test]
fn async_parties_of_a_channel_without_room_meet() {
    within(|| {
        let (sender, receiver) = channel::bounded(0);
        let both = zip(sender.send_async(1), receiver.recv_async());
        assert_eq!(block_on(both), (Ok(()), Ok(1)), "the sender comes first");
        let both = zip(receiver.recv_async(), sender.send_async(2));
        assert_eq!(block_on(both), (Ok(2), Ok(())), "the receiver comes first");
        let (runtime, pool) = shared(1);
        let sends = pool.spawn(move || block_on(async { sender.send_async(3).await })).unwrap();
        let receives = pool.spawn(move || block_on(async { receiver.recv_async().await }));
        assert_eq!(receives.unwrap().join().unwrap(), Ok(3));
        assert_eq!(sends.join().unwrap(), Ok(()));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_send_without_room_keeps_its_item_until_it_is_taken() {
    within(|| {
        let (sender, receiver) = channel::bounded(0);
        let alive = Arc::new(());
        let (count, waker) = Count::new();
        let mut send = Box::pin(sender.send_async(alive.clone()));
        assert!(poll(&mut send, &waker).is_pending());
        assert!(poll(&mut send, Waker::noop()).is_pending(), "another waker");
        drop(send);
        assert_eq!(Arc::strong_count(&alive), 1, "dropped with the future");
        assert!(receiver.try_recv().is_err(), "and not sent");
        let mut send = Box::pin(sender.send_async(alive.clone()));
        assert!(poll(&mut send, &waker).is_pending());
        drop(receiver.try_recv().unwrap());
        assert_eq!(count.get(), 1, "of the sender whose item was taken");
        assert!(poll(&mut send, &waker).is_ready());
        drop(send);
        let mut send = Box::pin(sender.send_async(alive.clone()));
        assert!(poll(&mut send, &waker).is_pending());
        receiver.close();
        assert_eq!(count.get(), 2);
        let Poll::Ready(Err(error)) = poll(&mut send, &waker) else { panic!("it is closed") };
        drop(error);
        assert_eq!(Arc::strong_count(&alive), 1);
    });
}
