//! Spawn, join, panics, yield, names, stacks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{private, shared, wait_until, within};
use ult::{JoinError, PoolKind, PoolSpec, Runtime, SpawnError, XstreamSpec};

#[test]
fn value_comes_back() {
    within(|| {
        let (runtime, pool) = shared(2);
        assert_eq!(pool.spawn(|| 6 * 7).unwrap().join().unwrap(), 42);
        let text = String::from("moved in and out");
        assert_eq!(runtime.spawn(&pool, move || text).unwrap().join().unwrap(), "moved in and out");
        let big = [7u8; 5000];
        assert_eq!(pool.spawn(move || big).unwrap().join().unwrap(), big);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn panic_is_an_error_of_join_only() {
    within(|| {
        let (runtime, pool) = shared(1);
        let literal = pool.spawn(|| -> u8 { panic!("literal") }).unwrap();
        let formatted = pool.spawn(|| -> u8 { panic!("code {}", 7) }).unwrap();
        match literal.join() {
            Err(JoinError::Panicked(panic)) => assert_eq!(panic.message(), "literal"),
            other => panic!("{other:?}"),
        }
        let error = formatted.join().unwrap_err();
        assert_eq!(error.to_string(), "the ULT panicked: code 7");
        pool.ult().spawn_detached(|| panic!("nobody looks")).unwrap();
        assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1, "the xstream survives");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn nested_spawns_from_everywhere() {
    fn fib(pool: &ult::PoolRef, n: u32) -> u64 {
        if n < 2 {
            return u64::from(n);
        }
        let inner = pool.clone();
        let left = pool.spawn(move || fib(&inner, n - 1)).unwrap();
        let right = fib(pool, n - 2);
        left.join().unwrap() + right
    }
    within(|| {
        let (runtime, pool) = shared(2);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let pool = pool.clone();
                std::thread::spawn(move || fib(&pool, 12))
            })
            .collect();
        let inner = pool.clone();
        assert_eq!(pool.spawn(move || fib(&inner, 12)).unwrap().join().unwrap(), 144);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 144);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_of_one_runtime_join_those_of_another() {
    within(|| {
        let (one, pool_one) = shared(1);
        let (two, pool_two) = shared(2);
        let joined = pool_one
            .spawn(move || {
                let handles: Vec<_> =
                    (0..100u32).map(|n| pool_two.spawn(move || n).unwrap()).collect();
                handles.into_iter().map(|handle| handle.join().unwrap()).sum::<u32>()
            })
            .unwrap();
        assert_eq!(joined.join().unwrap(), 4950);
        one.shutdown().unwrap();
        two.shutdown().unwrap();
    });
}

#[test]
fn yield_lets_every_other_run_once() {
    const ULTS: usize = 5;
    const ROUNDS: usize = 20;
    within(|| {
        let (runtime, pools) = private(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        let spawner_log = log.clone();
        let pool = pools[0].clone();
        // Spawned by a ULT, so that none of them runs before all are queued.
        let spawner = move || {
            (0..ULTS)
                .map(|me| {
                    let log = spawner_log.clone();
                    let body = move || {
                        for _ in 0..ROUNDS {
                            log.lock().unwrap().push(me);
                            ult::yield_now();
                        }
                    };
                    pool.spawn(body).unwrap()
                })
                .collect::<Vec<_>>()
        };
        for handle in pools[0].spawn(spawner).unwrap().join().unwrap() {
            handle.join().unwrap();
        }
        let log = log.lock().unwrap();
        for (at, me) in log.iter().enumerate() {
            assert_eq!(*me, at % ULTS, "round robin: {log:?}");
        }
        assert_eq!(log.len(), ULTS * ROUNDS);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn later_pools_are_not_starved() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("first"))
            .pool(PoolSpec::new("last"))
            .xstream(XstreamSpec::new("x").pools(["first", "last"]))
            .start()
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let busy = runtime.pool("first").unwrap().spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                ult::yield_now();
            }
        });
        let last = runtime.pool("last").unwrap();
        last.spawn(move || stop.store(true, Ordering::Relaxed)).unwrap().join().unwrap();
        busy.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn prio_pool_prefers_started_work() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p").kind(PoolKind::PrioWait))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let inner_pool = pool.clone();
        let inner_log = log.clone();
        let outer = move || {
            let fresh_log = inner_log.clone();
            let fresh = inner_pool.spawn(move || fresh_log.lock().unwrap().push("fresh")).unwrap();
            ult::yield_now();
            inner_log.lock().unwrap().push("started");
            fresh
        };
        pool.spawn(outer).unwrap().join().unwrap().join().unwrap();
        assert_eq!(*log.lock().unwrap(), ["started", "fresh"]);

        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let busy = pool.spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                ult::yield_now();
            }
        });
        pool.spawn(move || stop.store(true, Ordering::Relaxed)).unwrap().join().unwrap();
        busy.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn names_and_ids_are_known_inside() {
    within(|| {
        let (runtime, pool) = shared(1);
        assert_eq!(ult::current(), None);
        assert!(!ult::is_ult());
        let handle = pool.ult().name("the name").spawn(ult::current).unwrap();
        let id = handle.id();
        let info = handle.join().unwrap().unwrap();
        assert_eq!(info.name.as_deref(), Some("the name"));
        assert_eq!((info.id, &*info.pool, &*info.xstream), (id, "p", "x0"));
        let unnamed = pool.spawn(|| (ult::is_ult(), ult::current().unwrap())).unwrap();
        let (is_ult, info) = unnamed.join().unwrap();
        assert!(is_ult);
        assert_eq!(info.name, None, "a reused block forgets the old name");
        assert_ne!(info.id, id);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn stack_size_can_be_chosen() {
    fn deep(levels: usize) -> usize {
        let frame = std::hint::black_box([1u8; 1024]);
        if levels == 0 { 0 } else { deep(levels - 1) + usize::from(frame[levels % 1024]) }
    }
    within(|| {
        let runtime = Runtime::builder()
            .stack_bytes(64 * 1024)
            .pool(PoolSpec::new("small"))
            .pool(PoolSpec::new("large").stack_bytes(16 << 20))
            .xstream(XstreamSpec::new("x").pools(["small", "large"]))
            .start()
            .unwrap();
        let large = runtime.pool("large").unwrap();
        assert_eq!(large.spawn(|| deep(8000)).unwrap().join().unwrap(), 8000);
        let small = runtime.pool("small").unwrap();
        let own = small.ult().stack_bytes(16 << 20);
        assert_eq!(own.spawn(|| deep(8000)).unwrap().join().unwrap(), 8000);
        assert_eq!(small.spawn(|| deep(10)).unwrap().join().unwrap(), 10);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn spawn_after_shutdown_drops_the_closure() {
    within(|| {
        let (runtime, pools) = private(2);
        runtime.shutdown().unwrap();
        for pool in &pools {
            let held = Arc::new(());
            let inner = held.clone();
            let error = pool.spawn(move || drop(inner)).unwrap_err();
            assert!(matches!(&error, SpawnError::ShutDown { pool: name } if name == pool.name()));
            assert_eq!(Arc::strong_count(&held), 1);
            let inner = held.clone();
            pool.ult().spawn_detached(move || drop(inner)).unwrap_err();
            assert_eq!(Arc::strong_count(&held), 1);
        }
    });
}

#[test]
fn dropped_handle_detaches_and_drops_the_value() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            // Runs as a ULT, so it may suspend.
            ult::yield_now();
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    within(|| {
        let (runtime, pool) = shared(1);
        let drops = Arc::new(AtomicUsize::new(0));
        for round in 0..20 {
            let counted = Counted(drops.clone());
            let handle = pool.spawn(move || counted).unwrap();
            if round % 2 == 0 {
                wait_until("finished", || handle.is_finished());
            }
            drop(handle);
        }
        wait_until("all dropped", || drops.load(Ordering::SeqCst) == 20);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn destructor_that_panics_ends_only_its_ult() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    within(|| {
        let (runtime, pool) = shared(1);
        let handle = pool.spawn(|| Bomb).unwrap();
        let joiner = pool.spawn(move || drop(handle));
        joiner.unwrap().join().unwrap();
        assert_eq!(pool.spawn(|| 3).unwrap().join().unwrap(), 3);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ten_thousand_suspended() {
    const ULTS: usize = 10_000;
    within(|| {
        let (runtime, pool) = shared(2);
        let gate = Arc::new(ult::Eventual::new());
        let waiting = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..ULTS)
            .map(|n| {
                let (gate, waiting) = (gate.clone(), waiting.clone());
                let body = move || {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    *gate.wait() + n
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        wait_until("all wait", || waiting.load(Ordering::SeqCst) == ULTS);
        assert!(runtime.stacks() >= ULTS);
        gate.set(1).unwrap();
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), n + 1);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn stacks_are_reused_and_bounded() {
    const CACHE: usize = 4;
    within(|| {
        let runtime = Runtime::builder()
            .stack_cache_max(CACHE)
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        for _ in 0..1000 {
            pool.spawn(|| ()).unwrap().join().unwrap();
        }
        assert!(runtime.stacks() <= 2 * CACHE, "one at a time: {}", runtime.stacks());
        let wave: Vec<_> = (0..2000).map(|_| pool.spawn(ult::yield_now).unwrap()).collect();
        wave.into_iter().for_each(|handle| handle.join().unwrap());
        // The last ones may not have been recycled yet when their join returns.
        wait_until("bounded", || runtime.stacks() <= CACHE + 32 * CACHE);
        let gone = runtime.clone();
        runtime.shutdown().unwrap();
        assert_eq!(gone.stacks(), 0);
    });
}

#[test]
fn stacks_flow_back_from_consumer_to_producer() {
    within(|| {
        let (runtime, pools) = private(2);
        let consumer = pools[1].clone();
        let producer = pools[0].spawn(move || {
            for _ in 0..20_000 {
                consumer.spawn(|| ()).unwrap().join().unwrap();
            }
        });
        producer.unwrap().join().unwrap();
        assert!(runtime.stacks() < 8 + 8 + 32 * 8 + 8, "{}", runtime.stacks());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn stats_count() {
    within(|| {
        let (runtime, pool) = shared(2);
        let handles: Vec<_> = (0..10).map(|_| pool.spawn(ult::yield_now).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        runtime.shutdown().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.created, stats.finished, stats.dropped), (10, 10, 0));
        assert_eq!((stats.yields, stats.executed, stats.alive()), (10, 20, 0));
        assert_eq!(stats.pushed, stats.created + stats.yields + stats.resumed);
        assert!(pool.is_empty());
    });
}

#[test]
fn a_unit_for_a_later_time_is_pushed_once_more_when_that_comes() {
    within(|| {
        let (runtime, pools) = private(2);
        let far = Duration::from_secs(3600);
        let (first, second) = (pools[0].clone(), pools[1].clone());
        let pushed = move || (first.stats().pushed, second.stats().pushed);
        assert_eq!(pushed(), (0, 0));
        let (own, other) = (pools[0].clone(), pools[1].clone());
        let counts = pushed.clone();
        // Its xstream has the timers, for its own pool and for one that it does not serve.
        let armer = pools[0].spawn(move || {
            let before = counts();
            let never = own.spawn_after(far, || ()).unwrap();
            let soon = own.spawn_after(Duration::from_millis(1), || ()).unwrap();
            let there = other.spawn_after(Duration::from_millis(1), || ()).unwrap();
            let armed = counts();
            assert!(never.cancel());
            there.join().unwrap();
            soon.join().unwrap();
            (before, armed)
        });
        let (before, armed) = armer.unwrap().join().unwrap();
        assert_eq!((before, armed), ((1, 0), (3, 1)));
        let resumed = pools[0].stats().resumed;
        assert_eq!(pushed(), (4 + resumed, 2));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn joining_itself_is_an_error() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (sender, receiver) = std::sync::mpsc::channel::<ult::JoinHandle<()>>();
        let answer = Arc::new(ult::Eventual::new());
        let inner = answer.clone();
        let (go, going) = (ult::unparker(), Arc::new(ult::Eventual::new()));
        let inner_going = going.clone();
        let handle = pool
            .spawn(move || {
                inner_going.set(ult::unparker()).unwrap();
                ult::park();
                let me = receiver.recv().unwrap();
                inner.set(matches!(me.join(), Err(JoinError::Deadlock))).unwrap();
                go.unpark();
            })
            .unwrap();
        sender.send(handle).unwrap();
        going.wait_ready();
        going.try_get().unwrap().unpark();
        ult::park();
        assert!(*answer.wait());
        runtime.shutdown().unwrap();
    });
}
