//! Mutex, condition variable, eventual, park, sleep; ULTs and OS threads mixed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, private, shared, wait_until, within};
use ult::{Condvar, Eventual, Mutex};

#[test]
fn mutex_excludes_ults_and_threads() {
    const PARTIES: usize = 8;
    const ROUNDS: usize = 2000;
    within(|| {
        let (runtime, pool) = shared(2);
        let counter = Arc::new(Mutex::new((0usize, false)));
        let body = |counter: Arc<Mutex<(usize, bool)>>| {
            move || {
                for round in 0..ROUNDS {
                    let mut guard = counter.lock();
                    assert!(!guard.1, "two inside");
                    guard.1 = true;
                    if round % 16 == 0 {
                        // Held over a suspension, so that others really queue.
                        ult::yield_now();
                    }
                    guard.0 += 1;
                    guard.1 = false;
                }
            }
        };
        let ults: Vec<_> =
            (0..PARTIES).map(|_| pool.spawn(body(counter.clone())).unwrap()).collect();
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(body(counter.clone()))).collect();
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counter.lock().0, (PARTIES + 2) * ROUNDS);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn mutex_is_first_come_first_served() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let order = pools[0].spawn(move || {
            let mutex = Arc::new(Mutex::new(Vec::new()));
            let guard = mutex.lock();
            let handles: Vec<_> = (0..6)
                .map(|n| {
                    let mutex = mutex.clone();
                    pool.spawn(move || mutex.lock().push(n)).unwrap()
                })
                .collect();
            // All of them run until they wait for the lock, in the order of their spawn.
            ult::yield_now();
            drop(guard);
            // Until the first of them runs, the lock is free for whoever runs now.
            mutex.lock().push(99);
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            mutex.lock().clone()
        });
        assert_eq!(order.unwrap().join().unwrap(), [99, 0, 1, 2, 3, 4, 5]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn uncontended_operations_do_not_yield() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let body = pools[0].spawn(move || {
            let other_ran = Arc::new(AtomicBool::new(false));
            let inner = other_ran.clone();
            let other = pool.spawn(move || inner.store(true, Ordering::SeqCst)).unwrap();
            let mutex = Mutex::new(1);
            *mutex.lock() += 1;
            drop(mutex.try_lock().unwrap());
            let eventual = Eventual::new();
            eventual.set(1).unwrap();
            assert_eq!(*eventual.wait(), 1);
            Condvar::new().notify_all();
            ult::unparker().unpark();
            ult::park();
            assert!(!other_ran.load(Ordering::SeqCst));
            other.join().unwrap();
        });
        body.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn try_lock_leaves_a_held_lock_alone() {
    let mutex = Mutex::new(1);
    let guard = mutex.lock();
    assert!(mutex.try_lock().is_none());
    assert!(mutex.try_lock().is_none(), "the first attempt must not have unlocked it");
    assert_eq!(format!("{mutex:?}"), "Mutex(<locked>)");
    drop(guard);
    assert_eq!(*mutex.try_lock().unwrap(), 1);
}

#[test]
fn mutex_survives_a_panic() {
    within(|| {
        let (runtime, pool) = shared(1);
        let mutex = Arc::new(Mutex::new(0));
        let inner = mutex.clone();
        let handle = pool.spawn(move || {
            let _guard = inner.lock();
            panic!("with the lock held");
        });
        handle.unwrap().join().unwrap_err();
        assert!(mutex.try_lock().is_some());
        assert_eq!(format!("{mutex:?}"), "Mutex(0)");
        runtime.shutdown().unwrap();
    });
}

/// A bounded queue with two condition variables, between ULTs and threads.
#[test]
fn condvar_bounded_queue() {
    const ITEMS: usize = 3000;
    struct Channel {
        items: Mutex<VecDeque<usize>>,
        not_empty: Condvar,
        not_full: Condvar,
    }
    impl Channel {
        fn put(&self, item: usize) {
            let mut items = self.items.lock();
            while items.len() >= 4 {
                items = self.not_full.wait(items);
            }
            items.push_back(item);
            drop(items);
            self.not_empty.notify_one();
        }
        fn get(&self) -> usize {
            let mut items = self.items.lock();
            loop {
                if let Some(item) = items.pop_front() {
                    drop(items);
                    self.not_full.notify_one();
                    return item;
                }
                let (again, notified) = self.not_empty.wait_deadline(items, Instant::now() + LONG);
                assert!(notified, "nothing came");
                items = again;
            }
        }
    }
    within(|| {
        let (runtime, pool) = shared(2);
        let channel = Arc::new(Channel {
            items: Mutex::default(),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
        });
        let put = |channel: Arc<Channel>| move || (0..ITEMS).for_each(|item| channel.put(item));
        let get = |channel: Arc<Channel>| move || (0..ITEMS).map(|_| channel.get()).sum::<usize>();
        let ult_put = pool.spawn(put(channel.clone())).unwrap();
        let ult_get: Vec<_> = (0..2).map(|_| pool.spawn(get(channel.clone())).unwrap()).collect();
        let thread_put: Vec<_> = (0..2).map(|_| std::thread::spawn(put(channel.clone()))).collect();
        let thread_get = std::thread::spawn(get(channel.clone()));
        ult_put.join().unwrap();
        thread_put.into_iter().for_each(|thread| thread.join().unwrap());
        let sum: usize = ult_get.into_iter().map(|ult| ult.join().unwrap()).sum();
        let each: usize = (0..ITEMS).sum();
        assert_eq!(sum + thread_get.join().unwrap(), 3 * each);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn condvar_deadline_and_notify_race() {
    within(|| {
        let (runtime, pool) = shared(2);
        let pair = Arc::new((Mutex::new(0usize), Condvar::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = (0..4)
            .map(|n| {
                let (pair, stop) = (pair.clone(), stop.clone());
                let body = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let deadline = Instant::now() + Duration::from_micros(50 * n);
                        let guard = pair.0.lock();
                        let (mut guard, _) = pair.1.wait_deadline(guard, deadline);
                        *guard += 1;
                    }
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        for _ in 0..2000 {
            pair.1.notify_one();
            std::thread::yield_now();
        }
        wait_until("waits end", || *pair.0.lock() > 100);
        stop.store(true, Ordering::Relaxed);
        pair.1.notify_all();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn eventual_wakes_everybody_once() {
    within(|| {
        let (runtime, pool) = shared(2);
        for round in 0..300usize {
            let eventual = Arc::new(Eventual::new());
            let wait = |eventual: Arc<Eventual<usize>>| move || *eventual.wait();
            let ults: Vec<_> =
                (0..3).map(|_| pool.spawn(wait(eventual.clone())).unwrap()).collect();
            let thread = std::thread::spawn(wait(eventual.clone()));
            eventual.set(round).unwrap();
            assert_eq!(eventual.set(0), Err(0), "set once");
            assert_eq!(eventual.try_get(), Some(&round));
            assert_eq!(thread.join().unwrap(), round);
            ults.into_iter().for_each(|ult| assert_eq!(ult.join().unwrap(), round));
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn eventual_deadline_races_with_set() {
    within(|| {
        let (runtime, pool) = shared(2);
        let seen = Arc::new(AtomicUsize::new(0));
        for round in 0..500u64 {
            let eventual = Arc::new(Eventual::new());
            let waiters: Vec<_> = (0..3)
                .map(|n| {
                    let (eventual, seen) = (eventual.clone(), seen.clone());
                    let body = move || {
                        let deadline = Instant::now() + Duration::from_micros(n * round % 200);
                        match eventual.wait_deadline(deadline) {
                            Some(value) => assert_eq!(*value, round),
                            None => assert_eq!(*eventual.wait(), round),
                        }
                        seen.fetch_add(1, Ordering::Relaxed);
                    };
                    pool.spawn(body).unwrap()
                })
                .collect();
            let inner = eventual.clone();
            pool.spawn(move || inner.set(round).unwrap()).unwrap().join().unwrap();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        }
        assert_eq!(seen.load(Ordering::Relaxed), 1500);
        let never = Eventual::<u8>::new();
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(never.wait_deadline(soon), None);
        assert!(Instant::now() >= soon);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn eventual_may_die_while_it_is_being_set() {
    /// Points into the waiter's stack, as an RPC layer would.
    struct Remote(*const Eventual<Vec<u64>>);
    // SAFETY: `Eventual<Vec<u64>>` is `Sync`, and the waiter keeps it until it is set.
    unsafe impl Send for Remote {}
    impl Remote {
        fn set(self, value: u64) {
            // SAFETY: alive until set; `set` does not touch it after waiters can see the value.
            unsafe { &*self.0 }.set(vec![value; 3]).unwrap();
        }
    }
    within(|| {
        let (runtime, pools) = private(2);
        let setter_pool = pools[1].clone();
        let waiter = pools[0].spawn(move || {
            for n in 0..5000 {
                let eventual = Box::new(Eventual::new());
                let remote = Remote(&*eventual);
                setter_pool.ult().spawn_detached(move || remote.set(n)).unwrap();
                eventual.wait_ready();
                assert_eq!(eventual.into_inner(), Some(vec![n; 3]));
            }
        });
        waiter.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// One that waits in place for another core gives way to what else comes to its xstream.
#[test]
fn a_wait_for_another_core_gives_way_to_units_timers_cancels_and_deadlines() {
    within(|| {
        let runtime = ult::Runtime::builder()
            // Long enough that the test would not end if nothing else ended the spin.
            .spin_max(10 * LONG)
            .pool(ult::PoolSpec::new("p"))
            .xstream(ult::XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let wait = |eventual: &Arc<Eventual<u32>>| {
            let (eventual, runs) = (eventual.clone(), Arc::new(AtomicBool::new(false)));
            let has_begun = runs.clone();
            let waits = move || {
                has_begun.store(true, Ordering::Relaxed);
                *eventual.wait()
            };
            let handle = pool.spawn(waits).unwrap();
            wait_until("the wait", || runs.load(Ordering::Relaxed));
            handle
        };

        let eventual = Arc::new(Eventual::new());
        let (waits, setter) = (wait(&eventual), eventual.clone());
        pool.spawn(move || setter.set(1)).unwrap().join().unwrap().unwrap();
        assert_eq!(waits.join().unwrap(), 1);

        let eventual = Arc::new(Eventual::new());
        let setter = eventual.clone();
        let sleeps = pool.spawn(move || {
            ult::sleep(Duration::from_millis(1));
            setter.set(2)
        });
        assert_eq!(wait(&eventual).join().unwrap(), 2);
        sleeps.unwrap().join().unwrap().unwrap();

        let waits = wait(&Arc::new(Eventual::new()));
        waits.cancel();
        assert!(matches!(waits.join(), Err(ult::JoinError::Cancelled)));

        let limit = Duration::from_millis(1);
        let waits = move || Eventual::<u32>::new().wait_timeout(limit).is_none();
        assert!(pool.spawn(waits).unwrap().join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn eventual_value_is_taken_and_dropped() {
    let held = Arc::new(());
    let mut eventual = Eventual::new();
    assert_eq!(eventual.take(), None);
    eventual.set(held.clone()).unwrap();
    assert!(eventual.take().is_some());
    assert!(eventual.take().is_none());
    eventual.set(held.clone()).unwrap();
    assert_eq!(Arc::strong_count(&held), 2);
    drop(eventual);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn unpark_is_never_lost() {
    const ROUNDS: usize = 5000;
    within(|| {
        let (runtime, pools) = private(2);
        let turn = Arc::new(AtomicUsize::new(0));
        let other_side = Arc::new(Eventual::new());
        let (ping_turn, ping_other) = (turn.clone(), other_side.clone());
        // A ULT of one xstream and one of another, then a ULT and a thread.
        let ping = move || {
            let me = ult::unparker();
            ping_other.set(me).unwrap();
            for round in 0..ROUNDS {
                while ping_turn.load(Ordering::Acquire) != 2 * round + 1 {
                    ult::park();
                }
                ping_turn.store(2 * round + 2, Ordering::Release);
                partner(&ping_turn).unpark();
            }
        };
        fn partner(_: &AtomicUsize) -> ult::Unparker {
            PARTNER.lock().clone().unwrap()
        }
        static PARTNER: Mutex<Option<ult::Unparker>> = Mutex::new(None);
        let pong = move |turn: Arc<AtomicUsize>, other: Arc<Eventual<ult::Unparker>>| {
            *PARTNER.lock() = Some(ult::unparker());
            other.wait_ready();
            let other = other.try_get().unwrap();
            for round in 0..ROUNDS {
                turn.store(2 * round + 1, Ordering::Release);
                other.unpark();
                while turn.load(Ordering::Acquire) != 2 * round + 2 {
                    ult::park();
                }
            }
        };
        let first = pools[0].spawn(ping.clone()).unwrap();
        let (pong_turn, pong_other) = (turn.clone(), other_side.clone());
        pools[1].spawn(move || pong(pong_turn, pong_other)).unwrap().join().unwrap();
        first.join().unwrap();

        let (turn, other_side) = (Arc::new(AtomicUsize::new(0)), Arc::new(Eventual::new()));
        let (ult_turn, ult_other) = (turn.clone(), other_side.clone());
        let thread = std::thread::spawn(move || pong(turn, other_side));
        let second = pools[0].spawn(move || {
            ult_other.set(ult::unparker()).unwrap();
            for round in 0..ROUNDS {
                while ult_turn.load(Ordering::Acquire) != 2 * round + 1 {
                    ult::park();
                }
                ult_turn.store(2 * round + 2, Ordering::Release);
                partner(&ult_turn).unpark();
            }
        });
        thread.join().unwrap();
        second.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn token_survives_other_waits() {
    within(|| {
        let (runtime, pool) = shared(1);
        let mutex = Arc::new(Mutex::new(()));
        let guard = mutex.lock();
        let handed = Arc::new(Eventual::new());
        let (inner_mutex, inner_handed) = (mutex.clone(), handed.clone());
        let handle = pool.spawn(move || {
            inner_handed.set(ult::unparker()).unwrap();
            drop(inner_mutex.lock());
            // The token came while this waited for the lock.
            ult::park();
            ult::park_deadline(Some(Instant::now()))
        });
        handed.wait_ready();
        let unparker = handed.try_get().unwrap().clone();
        unparker.unpark();
        unparker.unpark();
        drop(guard);
        assert!(!handle.unwrap().join().unwrap(), "two unparks before one park count once");
        unparker.unpark();
        runtime.shutdown().unwrap();
        unparker.unpark();
    });
}

#[test]
fn sleepers_wake_in_order_of_their_deadlines() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let order = pools[0].spawn(move || {
            let order = Arc::new(Mutex::new(Vec::new()));
            let handles: Vec<_> = [5u64, 1, 4, 2, 3]
                .into_iter()
                .map(|n| {
                    let order = order.clone();
                    let body = move || {
                        let start = Instant::now();
                        // Far enough apart for the spawns in between.
                        ult::sleep(Duration::from_millis(100 * n));
                        assert!(start.elapsed() >= Duration::from_millis(100 * n));
                        order.lock().push(n);
                    };
                    pool.spawn(body).unwrap()
                })
                .collect();
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            order.lock().clone()
        });
        assert_eq!(order.unwrap().join().unwrap(), [1, 2, 3, 4, 5]);
        ult::sleep(Duration::from_millis(1));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn timers_fire_on_a_busy_xstream() {
    within(|| {
        let (runtime, pools) = private(1);
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let busy = pools[0].spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                ult::yield_now();
            }
        });
        let sleeper = pools[0].spawn(|| ult::sleep(Duration::from_millis(2)));
        sleeper.unwrap().join().unwrap();
        done.store(true, Ordering::Relaxed);
        busy.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn waiting_in_a_destructor_during_unwinding_blocks_the_thread() {
    struct Waits(Arc<Eventual<u32>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            assert_eq!(*self.0.wait(), 9);
            ult::sleep(Duration::from_millis(1));
            ult::yield_now();
            ult::unparker().unpark();
            ult::park();
        }
    }
    within(|| {
        let (runtime, pools) = private(2);
        let eventual = Arc::new(Eventual::new());
        let waits = Waits(eventual.clone());
        let handle = pools[0].spawn(move || {
            let _waits = waits;
            panic!("unwinds");
        });
        let other = pools[0].spawn(std::thread::panicking).unwrap();
        eventual.set(9).unwrap();
        handle.unwrap().join().unwrap_err();
        assert!(!other.join().unwrap());
        runtime.shutdown().unwrap();
    });
}
