//! Barrier, countdown, semaphore, once; ULTs and OS threads mixed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, private, shared, wait_until, within};
use ult::{
    Barrier, CountDown, Mutex, NoParties, Once, OnceCell, ReentrantMutex, RwLock, Semaphore,
    WaitKind, XstreamBarrier, channel,
};

fn past() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).unwrap()
}

/// None of these may let the second ULT run.
#[test]
fn uncontended_operations_do_not_yield() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let body = pools[0].spawn(move || {
            let other_ran = Arc::new(AtomicBool::new(false));
            let inner = other_ran.clone();
            let other = pool.spawn(move || inner.store(true, Ordering::SeqCst)).unwrap();
            assert!(Barrier::new(1).unwrap().wait());
            assert!(XstreamBarrier::new(1).unwrap().wait());
            let countdown = CountDown::new(1);
            countdown.arrive().unwrap();
            countdown.wait();
            let semaphore = Semaphore::new(2);
            drop((semaphore.acquire(1), semaphore.acquire(1)));
            assert_eq!(*OnceCell::new().get_or_init(|| 3), 3);
            let reentrant = ReentrantMutex::new(());
            drop((reentrant.lock(), reentrant.lock()));
            let rwlock = RwLock::new(());
            drop((rwlock.read(), rwlock.read()));
            drop(rwlock.write());
            let (sender, receiver) = channel::bounded(1);
            sender.send(1).unwrap();
            assert_eq!(receiver.recv(), Ok(1));
            assert_eq!(ult::wait_any(&[&countdown, &receiver], None), Some(0));
            drop(Mutex::new(1).lock_timeout(LONG).unwrap());
            assert!(!other_ran.load(Ordering::SeqCst));
            other.join().unwrap();
        });
        body.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn barrier_holds_everybody_in_every_round() {
    const PARTIES: usize = 5;
    const ROUNDS: usize = 300;
    within(|| {
        let (runtime, pool) = shared(2);
        let shared = Arc::new((Barrier::new(PARTIES).unwrap(), AtomicUsize::new(0)));
        let body = |shared: Arc<(Barrier, AtomicUsize)>| {
            move || {
                let mut leads = 0;
                for round in 1..=ROUNDS {
                    shared.1.fetch_add(1, Ordering::SeqCst);
                    leads += usize::from(shared.0.wait());
                    let arrived = shared.1.load(Ordering::SeqCst);
                    assert!((PARTIES * round..=PARTIES * (round + 1)).contains(&arrived));
                }
                leads
            }
        };
        let ults: Vec<_> =
            (1..PARTIES).map(|_| pool.spawn(body(shared.clone())).unwrap()).collect();
        let thread = std::thread::spawn(body(shared.clone()));
        let leads: usize = ults.into_iter().map(|ult| ult.join().unwrap()).sum();
        assert_eq!(leads + thread.join().unwrap(), ROUNDS, "one leader in each round");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn barrier_forgets_a_party_that_leaves() {
    within(|| {
        assert_eq!(Barrier::new(0).unwrap_err(), NoParties);
        assert_eq!(XstreamBarrier::new(0).unwrap_err(), NoParties);
        let barrier = Arc::new(Barrier::new(2).unwrap());
        assert_eq!(barrier.wait_deadline(past()), None);
        assert_eq!(barrier.wait_timeout(Duration::from_millis(2)), None);
        assert_eq!(barrier.waiting(), 0);
        let other = barrier.clone();
        let other = std::thread::spawn(move || other.wait());
        wait_until("the other", || barrier.waiting() == 1);
        assert_eq!(barrier.wait_timeout(LONG), Some(true));
        assert!(!other.join().unwrap());
    });
}

#[test]
fn xstream_barrier_orders_os_threads() {
    within(|| {
        let (runtime, pools) = private(2);
        let shared = Arc::new((XstreamBarrier::new(2).unwrap(), AtomicUsize::new(0)));
        let ults: Vec<_> = pools
            .iter()
            .map(|pool| {
                let shared = shared.clone();
                let body = move || {
                    (1..=50).fold(0, |leads, round| {
                        shared.1.fetch_add(1, Ordering::SeqCst);
                        let leads = leads + usize::from(shared.0.wait());
                        assert!(shared.1.load(Ordering::SeqCst) >= 2 * round);
                        leads
                    })
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        let leads: usize = ults.into_iter().map(|ult| ult.join().unwrap()).sum();
        assert_eq!(leads, 50);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn countdown_calls_back_once_before_the_waiters_go_on() {
    within(|| {
        let (runtime, pool) = shared(2);
        let called = Arc::new(AtomicUsize::new(0));
        let inner = called.clone();
        let countdown = Arc::new(CountDown::with_callback(8, move || {
            inner.fetch_add(1, Ordering::SeqCst);
        }));
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let (countdown, called) = (countdown.clone(), called.clone());
                let body = move || {
                    countdown.wait();
                    assert_eq!(called.load(Ordering::SeqCst), 1);
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        assert!(!countdown.wait_deadline(past()));
        assert!(!countdown.is_ready());
        let arrivals: Vec<_> = (0..6)
            .map(|_| {
                let countdown = countdown.clone();
                pool.spawn(move || countdown.arrive().unwrap()).unwrap()
            })
            .collect();
        arrivals.into_iter().for_each(|arrival| arrival.join().unwrap());
        assert_eq!(countdown.remaining(), 2);
        let error = countdown.arrive_many(3).unwrap_err();
        assert_eq!(error.to_string(), "3 more arrivals at a countdown that expects 2");
        countdown.arrive_many(2).unwrap();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert!(countdown.arrive().is_err());
        assert!(countdown.wait_timeout(Duration::ZERO));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn countdown_of_zero_is_ready_and_can_be_reset() {
    let mut countdown = CountDown::with_callback(0, || panic!("there is no last arrival"));
    assert!(countdown.is_ready());
    countdown.wait();
    countdown.reset(1);
    assert!(!countdown.is_ready());
    countdown.arrive_many(0).unwrap();
    assert!(!countdown.is_ready());
    countdown.arrive().unwrap();
    assert!(countdown.is_ready());
}

/// The callback may use the countdown itself: no lock is held. A panic does not lose the waiters.
#[test]
fn countdown_callback_runs_outside_of_locks_and_may_panic() {
    static COUNTDOWN: OnceCell<CountDown> = OnceCell::new();
    let countdown = COUNTDOWN.get_or_init(|| {
        CountDown::with_callback(1, || {
            let countdown = COUNTDOWN.get().unwrap();
            assert!(countdown.arrive().is_err());
            assert!(!countdown.is_ready());
            panic!("in the callback");
        })
    });
    catch_unwind(AssertUnwindSafe(|| countdown.arrive())).unwrap_err();
    countdown.wait();
}

#[test]
fn semaphore_counts_its_permits() {
    let semaphore = Semaphore::new(3);
    let two = semaphore.try_acquire(2).unwrap();
    assert_eq!((two.count(), semaphore.available()), (2, 1));
    assert!(semaphore.try_acquire(2).is_none());
    assert!(semaphore.acquire_deadline(2, past()).is_none());
    assert!(semaphore.acquire_timeout(2, Duration::from_millis(2)).is_none());
    drop(two);
    semaphore.acquire(3).forget();
    assert_eq!(semaphore.available(), 0);
    semaphore.release(4);
    assert_eq!(format!("{semaphore:?}"), "Semaphore { available: 4 }");
    let too_many = || semaphore.release(Semaphore::MAX_PERMITS);
    catch_unwind(AssertUnwindSafe(too_many)).unwrap_err();
    assert_eq!(semaphore.available(), 4);
}

/// Small requests come all the time, the large one is served in its turn.
#[test]
fn semaphore_does_not_starve_a_large_request() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let order = pools[0].spawn(move || {
            let semaphore = Arc::new(Semaphore::new(2));
            let order = Arc::new(Mutex::new(Vec::new()));
            let held = semaphore.acquire(1);
            let handles: Vec<_> = [2, 1, 1]
                .map(|count| {
                    let (semaphore, order) = (semaphore.clone(), order.clone());
                    let body = move || {
                        let _permit = semaphore.acquire(count);
                        order.lock().push(count);
                        ult::yield_now();
                    };
                    pool.spawn(body).unwrap()
                })
                .into();
            ult::yield_now();
            assert!(semaphore.try_acquire(1).is_none(), "one is free, but others wait");
            drop(held);
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            let order = order.lock();
            order.clone()
        });
        assert_eq!(order.unwrap().join().unwrap(), [2, 1, 1]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn semaphore_limits_parties_on_two_xstreams() {
    within(|| {
        let (runtime, pool) = shared(2);
        let shared = Arc::new((Semaphore::new(3), AtomicUsize::new(0)));
        let body = |shared: Arc<(Semaphore, AtomicUsize)>| {
            move || {
                for round in 0..500usize {
                    let count = 1 + round % 3;
                    let limit = Duration::from_nanos(round as u64 * 17 % 5000);
                    let permit = match round % 4 {
                        0 => shared.0.acquire_timeout(count, limit),
                        _ => Some(shared.0.acquire(count)),
                    };
                    if permit.is_none() {
                        continue;
                    }
                    let inside = shared.1.fetch_add(count, Ordering::SeqCst) + count;
                    assert!(inside <= 3, "{inside} permits in use");
                    if round % 8 == 0 {
                        ult::yield_now();
                    }
                    shared.1.fetch_sub(count, Ordering::SeqCst);
                }
            }
        };
        let ults: Vec<_> = (0..5).map(|_| pool.spawn(body(shared.clone())).unwrap()).collect();
        let thread = std::thread::spawn(body(shared.clone()));
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        thread.join().unwrap();
        assert_eq!(shared.0.available(), 3);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn once_cell_is_made_once_while_the_others_wait() {
    within(|| {
        let (runtime, pool) = shared(2);
        let shared = Arc::new((OnceCell::new(), AtomicUsize::new(0)));
        let body = |shared: Arc<(OnceCell<usize>, AtomicUsize)>| {
            move || {
                *shared.0.get_or_init(|| {
                    ult::sleep(Duration::from_millis(2));
                    shared.1.fetch_add(1, Ordering::SeqCst) + 7
                })
            }
        };
        let ults: Vec<_> = (0..6).map(|_| pool.spawn(body(shared.clone())).unwrap()).collect();
        let thread = std::thread::spawn(body(shared.clone()));
        assert!(ults.into_iter().all(|ult| ult.join().unwrap() == 7));
        assert_eq!(thread.join().unwrap(), 7);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn once_goes_on_after_a_panic_or_a_failure() {
    let once = Once::new();
    catch_unwind(AssertUnwindSafe(|| once.call_once(|| panic!("first")))).unwrap_err();
    assert!(!once.is_completed());
    once.call_once(|| ());
    once.call_once(|| panic!("it is done"));
    assert!(once.is_completed());
    let mut cell = OnceCell::new();
    assert_eq!(cell.get_or_try_init(|| Err("no")), Err("no"));
    assert_eq!(format!("{cell:?}"), "OnceCell(<empty>)");
    assert_eq!(cell.set(5), Ok(()));
    assert_eq!(cell.set(6), Err(6));
    *cell.get_mut().unwrap() += 1;
    assert_eq!(cell.take(), Some(6));
    assert_eq!(cell.get(), None);
}

#[test]
fn once_that_needs_itself_panics() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let cell = OnceCell::new();
            let nested = || *cell.get_or_init(|| *cell.get_or_init(|| 1));
            let panic = catch_unwind(AssertUnwindSafe(nested)).unwrap_err();
            let message = panic.downcast_ref::<&str>().unwrap();
            assert!(message.contains("needs its own result"), "{message}");
            assert_eq!(*cell.get_or_init(|| 2), 2);
        };
        body();
        pool.spawn(body).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn statics_work_before_and_after_a_runtime() {
    static SEMAPHORE: Semaphore = Semaphore::new(1);
    static COUNTDOWN: CountDown = CountDown::new(3);
    static ONCE: Once = Once::new();
    fn touch() {
        drop(SEMAPHORE.acquire(1));
        ONCE.call_once(|| ());
        COUNTDOWN.arrive().unwrap();
    }
    within(|| {
        touch();
        let (runtime, pool) = shared(1);
        pool.spawn(touch).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
        touch();
        COUNTDOWN.wait();
    });
}

#[test]
fn wait_kinds_have_names_for_people() {
    assert_eq!(format!("{:>8}", WaitKind::Mutex), "   mutex");
    assert_eq!(WaitKind::ChannelRecv.to_string(), "channel (recv)");
}
