//! OS threads beside ULTs: they start runtimes, spawn, join, and use every object with ULTs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::common::{on, private, shared, within};
use ult::{
    Barrier, Condvar, CountDown, Eventual, JoinError, Mutex, PoolRef, PoolSpec, ReentrantMutex,
    RwLock, XstreamSpec,
};

const THREADS: usize = 3;
const ULTS: usize = 6;
const PARTIES: usize = THREADS + ULTS;

/// Runs `body` on threads and ULTs at the same time, with the number of each.
fn on_all(pool: &PoolRef, body: impl Fn(usize) + Clone + Send + 'static) {
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let body = body.clone();
            std::thread::spawn(move || body(n))
        })
        .collect();
    let ults: Vec<_> = (THREADS..PARTIES)
        .map(|n| {
            let body = body.clone();
            pool.spawn(move || body(n)).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    ults.into_iter().for_each(|ult| ult.join().unwrap());
}

/// Runs `body` beside a runtime of two xstreams, before there is one, and after it has ended.
fn at_all_times(body: impl Fn(&PoolRef)) {
    let (runtime, pool) = shared(2);
    body(&pool);
    runtime.shutdown().unwrap();
}

#[test]
fn runtimes_start_and_end_on_many_threads_at_once() {
    within(|| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for round in 0..20usize {
                        let (outer, outer_pool) = shared(1);
                        let (inner, inner_pool) = shared(1 + round % 2);
                        let pool = inner_pool.clone();
                        assert_eq!(on(&outer_pool, move || on(&pool, move || round)), round);
                        if round % 2 == 0 {
                            inner.shutdown().unwrap();
                            outer.shutdown().unwrap();
                        } else {
                            outer.shutdown().unwrap();
                            inner.shutdown().unwrap();
                        }
                        assert!(outer_pool.spawn(|| ()).is_err());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn threads_join_ults_that_ults_have_spawned_and_the_reverse() {
    within(|| {
        let (runtime, pools) = private(2);
        for kind in 0..4usize {
            // How the unit ends: returns, after yields, exits, or switches away for good.
            let make = |pool: PoolRef| {
                move || -> usize {
                    match kind {
                        0 => {}
                        1 => (0..5).for_each(|_| ult::yield_now()),
                        2 => ult::exit(),
                        _ => {
                            let last = pool.spawn(|| ()).unwrap();
                            match pool.pop().map(ult::exit_to) {
                                None => drop(last),
                                Some(Err(error)) => panic!("{error}"),
                                Some(Ok(never)) => match never {},
                            }
                            ult::exit()
                        }
                    }
                    kind
                }
            };
            let check = move |outcome: Result<usize, JoinError>| match outcome {
                Ok(value) => assert_eq!(value, kind),
                Err(error) => assert!(kind >= 2 && matches!(error, JoinError::Exited), "{error}"),
            };
            for round in 0..20usize {
                let pool = pools[round % 2].clone();
                let (inner, body) = (pool.clone(), make(pool.clone()));
                let handle = on(&pools[0], move || inner.spawn(body).unwrap());
                std::thread::spawn(move || check(handle.join())).join().unwrap();
                let (inner, body) = (pool.clone(), make(pool));
                let handle = std::thread::spawn(move || inner.spawn(body).unwrap()).join().unwrap();
                on(&pools[1], move || check(handle.join()));
            }
        }
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

#[test]
fn threads_create_and_join_ults_and_xstreams_at_once() {
    within(|| {
        let (runtime, pool) = shared(1);
        let ran = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (runtime, pool, ran) = (runtime.clone(), pool.clone(), ran.clone());
                std::thread::spawn(move || {
                    for round in 0..15 {
                        let name = format!("t{thread}-{round}");
                        let own = runtime.add_pool(PoolSpec::new(name.clone())).unwrap();
                        let spec = XstreamSpec::new(name.clone()).pools([name.as_str(), "p"]);
                        let xstream = runtime.add_xstream(spec).unwrap();
                        for n in 0..20 {
                            let (ran, target) =
                                (ran.clone(), if n % 2 == 0 { &own } else { &pool });
                            let body = move || {
                                ult::yield_now();
                                ran.fetch_add(1, SeqCst);
                            };
                            target.ult().spawn_detached(body).unwrap();
                        }
                        assert_eq!(on(&own, crate::common::here), name);
                        xstream.join().unwrap();
                        assert_eq!(own.total_len(), 0);
                        xstream.remove().unwrap();
                        runtime.remove_pool(&own).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(runtime.xstreams().len(), 1);
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), 3 * 15 * 20);
    });
}

#[test]
fn threads_and_ults_share_mutexes() {
    const ROUNDS: usize = 1000;
    static STATIC: Mutex<usize> = Mutex::new(0);
    static RECURSIVE: ReentrantMutex<std::cell::Cell<usize>> =
        ReentrantMutex::new(std::cell::Cell::new(0));
    within(|| {
        *STATIC.lock() += 1;
        at_all_times(|pool| {
            let dynamic = Arc::new(Mutex::new(0usize));
            let inner = dynamic.clone();
            on_all(pool, move |n| {
                for round in 0..ROUNDS {
                    *STATIC.lock() += 1;
                    let outer = RECURSIVE.lock();
                    let nested = RECURSIVE.lock();
                    nested.set(outer.get() + 1);
                    drop((nested, outer));
                    let mut guard = inner.lock();
                    *guard += 1;
                    if (n + round) % 64 == 0 {
                        // The holder is away for a while.
                        ult::yield_now();
                    }
                }
            });
            assert_eq!(*dynamic.lock(), PARTIES * ROUNDS);
        });
        assert_eq!(*STATIC.lock(), PARTIES * ROUNDS + 1);
        assert_eq!(RECURSIVE.lock().get(), PARTIES * ROUNDS);
    });
}

/// A turn goes around; everybody waits for his own.
#[test]
fn threads_and_ults_share_condition_variables() {
    static TURN: Mutex<usize> = Mutex::new(0);
    static CHANGED: Condvar = Condvar::new();
    const ROUNDS: usize = 100;
    within(|| {
        at_all_times(|pool| {
            on_all(pool, |n| {
                for round in 0..ROUNDS {
                    let mut turn = TURN.lock();
                    while *turn != round * PARTIES + n {
                        if round % 3 == 0 {
                            turn = CHANGED.wait_timeout(turn, Duration::from_millis(1)).0;
                        } else {
                            turn = CHANGED.wait(turn);
                        }
                    }
                    *turn += 1;
                    drop(turn);
                    CHANGED.notify_all();
                }
            });
        });
        assert_eq!(*TURN.lock(), ROUNDS * PARTIES);
    });
}

#[test]
fn threads_and_ults_share_eventuals() {
    static READY: Eventual<usize> = Eventual::new();
    within(|| {
        at_all_times(|pool| {
            for round in 0..100usize {
                let one = Arc::new(Eventual::new());
                let setter = round % PARTIES;
                on_all(pool, move |n| {
                    if n == setter {
                        one.set(round).unwrap();
                    }
                    assert_eq!(*one.wait(), round);
                    assert_eq!(one.try_get(), Some(&round));
                    assert!(one.set(0).is_err(), "it is set once");
                });
            }
            on_all(pool, |n| {
                if n == PARTIES - 1 {
                    READY.set(n).unwrap();
                }
                assert_eq!(*READY.wait(), PARTIES - 1);
            });
        });
        assert!(READY.is_ready(), "also after the runtime");
    });
}

/// A countdown is what a future with compartments is.
#[test]
fn threads_and_ults_share_countdowns() {
    within(|| {
        at_all_times(|pool| {
            for _ in 0..100 {
                let called = Arc::new(AtomicUsize::new(0));
                let inner = called.clone();
                let all = CountDown::with_callback(PARTIES, move || {
                    inner.fetch_add(1, SeqCst);
                });
                let all = Arc::new(all);
                on_all(pool, move |_| {
                    all.arrive().unwrap();
                    all.wait();
                    assert_eq!(called.load(SeqCst), 1);
                    assert!(all.arrive().is_err());
                });
            }
        });
    });
}

#[test]
fn threads_and_ults_share_barriers() {
    const ROUNDS: usize = 200;
    within(|| {
        at_all_times(|pool| {
            let barrier = Arc::new(Barrier::new(PARTIES).unwrap());
            let (count, leaders) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let led = leaders.clone();
            on_all(pool, move |_| {
                for round in 1..=ROUNDS {
                    count.fetch_add(1, SeqCst);
                    led.fetch_add(usize::from(barrier.wait()), SeqCst);
                    assert_eq!(count.load(SeqCst), round * PARTIES, "nobody runs ahead");
                    barrier.wait();
                }
            });
            assert_eq!(leaders.load(SeqCst), ROUNDS);
        });
    });
}

#[test]
fn threads_and_ults_share_reader_writer_locks() {
    static PAIR: RwLock<(usize, usize)> = RwLock::new((0, 0));
    const ROUNDS: usize = 500;
    within(|| {
        at_all_times(|pool| {
            on_all(pool, |n| {
                for round in 0..ROUNDS {
                    if (n + round) % 4 == 0 {
                        let mut pair = PAIR.write();
                        pair.0 += 1;
                        if round % 32 == 0 {
                            ult::yield_now();
                        }
                        pair.1 += 1;
                    } else {
                        let pair = PAIR.read();
                        assert_eq!(pair.0, pair.1);
                    }
                }
            });
        });
        assert_eq!(PAIR.read().0, (0..PARTIES).map(|n| writes(n, ROUNDS)).sum::<usize>());
    });
}

fn writes(n: usize, rounds: usize) -> usize {
    (0..rounds).filter(|round| (n + round).is_multiple_of(4)).count()
}
