//! Operations on pools: take, push, move, look; pools of the user's own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::common::{kinds, on, private, shared, wait_until, within, yield_until};
use ult::{
    Access, Eventual, MigrateError, Pool, PoolKind, PoolRef, PoolSpec, PopBy, Priority, PushReason,
    Runtime, Scheduler, StartError, Unit, XstreamSpec,
};

/// A FIFO that counts what is done with it.
#[derive(Default)]
struct Counts {
    units: Mutex<VecDeque<Unit>>,
    created: AtomicUsize,
    yielded: AtomicUsize,
    resumed: AtomicUsize,
    migrated: AtomicUsize,
    popped: AtomicUsize,
    shown: AtomicUsize,
}

impl Counts {
    /// Creates, yields, resumes, migrations.
    fn pushes(&self) -> [usize; 4] {
        [&self.created, &self.yielded, &self.resumed, &self.migrated]
            .map(|counter| counter.load(SeqCst))
    }
}

struct Counting(Arc<Counts>);

impl Pool for Counting {
    fn push(&self, unit: Unit, why: PushReason) {
        let counter = match why {
            PushReason::Create => &self.0.created,
            PushReason::Yield => &self.0.yielded,
            PushReason::Resume => &self.0.resumed,
            PushReason::Migrate => &self.0.migrated,
            other => panic!("{other:?}"),
        };
        counter.fetch_add(1, SeqCst);
        self.0.units.lock().unwrap().push_back(unit);
    }
    fn pop(&self, _who: PopBy) -> Option<Unit> {
        let unit = self.0.units.lock().unwrap().pop_front();
        self.0.popped.fetch_add(usize::from(unit.is_some()), SeqCst);
        unit
    }
    fn len(&self) -> usize {
        self.0.units.lock().unwrap().len()
    }
    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        self.0.shown.fetch_add(1, SeqCst);
        self.0.units.lock().unwrap().iter().for_each(see);
    }
}

fn counting(name: &str) -> (PoolSpec, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    (PoolSpec::custom(name, Box::new(Counting(counts.clone()))), counts)
}

/// One xstream that serves a FIFO `main` and a counting pool `own`.
fn with_counting() -> (Runtime, PoolRef, PoolRef, Arc<Counts>) {
    let (own, counts) = counting("own");
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("main"))
        .pool(own)
        .xstream(XstreamSpec::new("x0").pools(["main", "own"]))
        .start()
        .unwrap();
    let (main, own) = (runtime.pool("main").unwrap(), runtime.pool("own").unwrap());
    (runtime, main, own, counts)
}

#[test]
fn each_operation_calls_the_users_pool_as_often_as_expected() {
    within(|| {
        let (runtime, main, own, counts) = with_counting();
        let (seen, inner) = (counts.clone(), main.clone());
        on(&main, move || {
            let handle = own.spawn(|| ()).unwrap();
            assert_eq!((seen.pushes(), own.len()), ([1, 0, 0, 0], 1));
            let unit = own.pop().unwrap();
            assert_eq!((seen.popped.load(SeqCst), own.len()), (1, 0));
            own.push(unit).unwrap();
            assert_eq!(seen.pushes(), [1, 1, 0, 0]);
            handle.join().unwrap();
            assert_eq!(seen.popped.load(SeqCst), 2);

            let tasklet = own.tasklet().spawn(|| ()).unwrap();
            assert_eq!((own.units().len(), seen.shown.load(SeqCst)), (1, 1));
            tasklet.join().unwrap();
            assert_eq!((seen.pushes(), seen.popped.load(SeqCst)), ([2, 1, 0, 0], 3));

            // A ULT that yields twice and is resumed once.
            let waits = own.spawn(|| {
                ult::yield_now();
                ult::yield_now();
                ult::park();
            });
            let waits = waits.unwrap();
            yield_until("it parks", || own.is_empty() && seen.popped.load(SeqCst) == 6);
            assert_eq!(seen.pushes(), [3, 3, 0, 0]);
            waits.cancel();
            drop(waits.join());
            assert_eq!((seen.pushes(), seen.popped.load(SeqCst)), ([3, 3, 1, 0], 7));

            // `spawn_to` goes past the pool, the yields of its unit do not.
            own.ult().spawn_to(ult::yield_now).unwrap().join().unwrap();
            assert_eq!((seen.pushes(), seen.popped.load(SeqCst)), ([3, 4, 1, 0], 8));

            // Those that come from another pool.
            let moved: Vec<_> = (0..3).map(|_| inner.spawn(|| ()).unwrap()).collect();
            assert_eq!(inner.move_all_to(&own).unwrap(), 3);
            assert_eq!((seen.pushes(), own.len()), ([3, 4, 1, 3], 3));
            let units = own.pop_many(10);
            assert_eq!((units.len(), seen.popped.load(SeqCst)), (3, 11));
            drop(units);
            moved.into_iter().for_each(|handle| assert!(handle.join().is_err()));
        });
        runtime.shutdown().unwrap();
        assert_eq!(counts.pushes().iter().sum::<usize>(), counts.popped.load(SeqCst));
        assert!(counts.units.lock().unwrap().is_empty());
    });
}

/// A unit says in which pools it has been; `push` carries it to the next one.
#[test]
fn units_wander_among_pools_of_all_kinds() {
    const ROUNDS: usize = 60;
    within(|| {
        let (one, one_counts) = counting("one");
        let (two, two_counts) = counting("two");
        let kinds = [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::EarliestFirst];
        let mut builder = Runtime::builder().pool(one).pool(two);
        let mut names = vec!["one".to_owned(), "two".to_owned()];
        for kind in kinds.into_iter().chain([PoolKind::RandWs]) {
            let name = format!("{kind:?}");
            builder = builder.pool(PoolSpec::new(name.clone()).kind(kind));
            names.push(name);
        }
        let runtime = builder.xstream(XstreamSpec::new("x0").pools(names)).start().unwrap();
        let pools = runtime.pools();
        let ended = Arc::new(AtomicUsize::new(0));
        let mut rng = fastrand::Rng::with_seed(11);
        for n in 0..20 {
            let (all, ended) = (pools.clone(), ended.clone());
            let mut rng = rng.fork();
            let body = move || {
                for _ in 0..ROUNDS {
                    ult::set_pool(&all[rng.usize(..all.len())]).unwrap();
                    ult::yield_now();
                    // And whatever waits somewhere goes elsewhere, started or not.
                    let (from, to) = (rng.usize(..all.len()), rng.usize(..all.len()));
                    if let Some(unit) = all[from].pop() {
                        let id = unit.id();
                        assert_eq!(unit.pool(), all[from].name());
                        all[to].push(unit).unwrap();
                        assert!(all[to].kind() == PoolKind::RandWs || shows(&all[to], id));
                    }
                }
                ended.fetch_add(1, SeqCst);
            };
            pools[n % pools.len()].ult().spawn_detached(body).unwrap();
        }
        runtime.shutdown().unwrap();
        assert_eq!(ended.load(SeqCst), 20);
        for pool in &pools {
            assert_eq!((pool.len(), pool.total_len()), (0, 0), "{}", pool.name());
        }
        for counts in [one_counts, two_counts] {
            let pushes: usize = counts.pushes().iter().sum();
            assert_eq!(pushes, counts.popped.load(SeqCst), "what went in came out");
            assert!(pushes > ROUNDS);
        }
    });
}

fn shows(pool: &PoolRef, id: u64) -> bool {
    pool.units().iter().any(|unit| unit.id == id)
}

#[test]
fn units_are_taken_and_pushed_in_order() {
    within(|| {
        let (runtime, pools) = private(1);
        let (pool, log) = (pools[0].clone(), Arc::new(Mutex::new(Vec::new())));
        let seen = log.clone();
        let handles = on(&pools[0], move || {
            let spawn = |n: usize| {
                let log = seen.clone();
                let name = format!("unit {n}");
                pool.ult().name(name).spawn(move || log.lock().unwrap().push(n)).unwrap()
            };
            let handles: Vec<_> = (0..6).map(spawn).collect();
            let names: Vec<_> = pool.units().into_iter().map(|unit| unit.name.unwrap()).collect();
            assert_eq!(names, (0..6).map(|n| format!("unit {n}")).collect::<Vec<_>>());
            let two = pool.pop_many(2);
            assert_eq!((two.len(), pool.len()), (2, 4));
            pool.push_many(two).unwrap();
            assert_eq!(pool.units()[0].name.as_deref(), Some("unit 2"));
            let third = pool.pop().unwrap();
            assert_eq!(third.name(), Some("unit 2"));
            assert!(!third.is_started() && !third.is_tasklet());
            pool.push(third).unwrap();
            assert!(pool.pop_many(0).is_empty());
            handles
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*log.lock().unwrap(), [3, 4, 5, 0, 1, 2]);
        assert!(pools[0].pop().is_none() && pools[0].units().is_empty());
        runtime.shutdown().unwrap();
    });
}

/// A started ULT that is taken out of its queue was never blocked, whoever takes it.
#[test]
fn what_others_take_and_bring_back_is_not_blocked() {
    type Back = fn(&PoolRef, Unit);
    let ways: [Back; 2] = [|pool, unit| pool.push(unit).unwrap(), |_, unit| drop(unit)];
    for kind in [PoolKind::FifoWait, PoolKind::PrioWait] {
        within(move || {
            let (runtime, pools) = kinds(&[("p", kind), ("q", PoolKind::Fifo)]);
            let (pool, other) = (pools[0].clone(), pools[1].clone());
            on(&pools[0], move || {
                let gate = Arc::new(Eventual::new());
                let waits = gate.clone();
                let waiter = pool.spawn(move || *waits.wait()).unwrap();
                let is_exact = || assert_eq!(pool.stats().blocked(), 1, "{:?}", pool.stats());
                // Has begun, and waits in the queue for as long as it is not told.
                let started = || {
                    let (begun, go) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
                    let (begins, goes) = (begun.clone(), go.clone());
                    let body = move || {
                        begins.store(true, SeqCst);
                        yield_until("it is told", || goes.load(SeqCst));
                    };
                    let runnable = pool.spawn(body).unwrap();
                    yield_until("it has begun", || begun.load(SeqCst));
                    (runnable, go)
                };
                let ends = |(runnable, go): (ult::JoinHandle<()>, Arc<AtomicBool>)| {
                    is_exact();
                    go.store(true, SeqCst);
                    yield_until("it has run", || {
                        is_exact();
                        runnable.is_finished()
                    });
                };
                for round in 0..10 {
                    for back in ways {
                        let runnable = started();
                        let unit = pool.pop().unwrap();
                        assert!(unit.is_started(), "{round}");
                        let to = pool.clone();
                        std::thread::spawn(move || back(&to, unit)).join().unwrap();
                        ends(runnable);
                    }
                    // They stay where they are.
                    let runnable = started();
                    let (from, to) = (pool.clone(), other.clone());
                    let moved = std::thread::spawn(move || from.move_all_to(&to)).join().unwrap();
                    assert_eq!(moved, Ok(0));
                    ends(runnable);
                }
                gate.set(()).unwrap();
                waiter.join().unwrap();
                assert_eq!(pool.stats().blocked(), 0);
            });
            runtime.shutdown().unwrap();
        });
    }
}

#[test]
fn a_refused_push_gives_everything_back() {
    within(|| {
        let (runtime, pools) = private(1);
        let (other, foreign) = shared(1);
        let gone = runtime.add_pool(PoolSpec::new("gone")).unwrap();
        let (inner, gone_pool) = (pools[0].clone(), gone.clone());
        runtime.remove_pool(&gone).unwrap();
        on(&pools[0], move || {
            let handles: Vec<_> = (0..3).map(|n| inner.spawn(move || n).unwrap()).collect();
            let units = inner.pop_many(3);
            let (units, error) = foreign.push_many(units).unwrap_err();
            assert_eq!((units.len(), error), (3, MigrateError::OtherRuntime { pool: "p".into() }));
            let (units, error) = gone_pool.push_many(units).unwrap_err();
            assert_eq!((units.len(), error), (3, MigrateError::Removed { pool: "gone".into() }));
            assert!(matches!(inner.move_all_to(&foreign), Err(MigrateError::OtherRuntime { .. })));
            assert!(matches!(inner.move_all_to(&gone_pool), Err(MigrateError::Removed { .. })));
            inner.push_many(units).unwrap();
            for (n, handle) in handles.into_iter().enumerate() {
                assert_eq!(handle.join().unwrap(), n);
            }
        });
        other.shutdown().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A pool's content goes over, also while both are used.
#[test]
fn a_whole_pool_moves_while_it_is_filled() {
    within(|| {
        let (runtime, pools) = private(2);
        let (ran, spawned) = (Arc::new(AtomicUsize::new(0)), 5000);
        let (pool, count) = (pools[0].clone(), ran.clone());
        let filler = std::thread::spawn(move || {
            for _ in 0..spawned {
                let count = count.clone();
                let body = move || {
                    count.fetch_add(1, SeqCst);
                };
                pool.ult().spawn_detached(body).unwrap();
            }
        });
        while !filler.is_finished() {
            pools[0].move_all_to(&pools[1]).unwrap();
            assert_eq!(pools[1].move_all_to(&pools[1]).unwrap(), 0);
            let (from, to) = (pools[1].clone(), pools[0].clone());
            on(&pools[1], move || from.move_all_to(&to).unwrap());
        }
        filler.join().unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), spawned);
        let stats = [pools[0].stats(), pools[1].stats()];
        assert!(stats.iter().all(|stats| stats.alive() == 0), "{stats:?}");
    });
}

#[test]
fn sizes_tell_runnable_from_alive() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        on(&pools[0], move || {
            let sleepers: Vec<_> = (0..5).map(|_| pool.spawn(ult::park).unwrap()).collect();
            assert_eq!((pool.len(), pool.total_len()), (5, 6));
            ult::yield_now();
            assert_eq!((pool.len(), pool.total_len()), (0, 6), "suspended ones are alive");
            sleepers.iter().for_each(ult::JoinHandle::cancel);
            assert_eq!((pool.len(), pool.total_len()), (5, 6));
            ult::yield_now();
            assert_eq!((pool.len(), pool.total_len()), (0, 1));
        });
        runtime.shutdown().unwrap();
        let stats = pools[0].stats();
        assert_eq!((stats.created, stats.finished, stats.resumed), (6, 6, 5));
    });
}

#[test]
fn a_pool_that_nobody_serves_is_refused() {
    let builder = Runtime::builder().pool(PoolSpec::new("p")).pool(PoolSpec::new("idle"));
    let error = builder.xstream(XstreamSpec::new("x").pools(["p"])).start().unwrap_err();
    assert!(matches!(&error, StartError::UnservedPool { pool } if pool == "idle"), "{error}");
}

/// A promise that is broken: works in release builds, and is told in debug builds.
#[test]
fn a_spawn_from_outside_into_a_private_pool_is_told_in_debug_builds() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("own").access(Access::Private))
            .pool(PoolSpec::new("any"))
            .xstream(XstreamSpec::new("x0").pools(["any", "own"]))
            .start()
            .unwrap();
        let (own, any) = (runtime.pool("own").unwrap(), runtime.pool("any").unwrap());
        let inner = own.clone();
        assert_eq!(on(&any, move || on(&inner, || 3)), 3, "from its own xstream");
        let held = Arc::new(());
        let seen = held.clone();
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            own.spawn(move || drop(seen)).unwrap().join().unwrap();
        }));
        assert_eq!(outside.is_err(), cfg!(debug_assertions));
        if let Err(panic) = outside {
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains("`own`") && text.contains("mpsc"), "{text}");
        }
        assert_eq!(Arc::strong_count(&held), 1, "the closure is not lost");
        // Whatever happened: the books are right and the runtime ends.
        runtime.shutdown().unwrap();
        assert_eq!(own.total_len(), 0);
    });
}

/// With every promise that one thread can keep.
#[test]
fn promises_change_nothing_for_those_who_keep_them() {
    within(|| {
        for access in [Access::Private, Access::Spsc, Access::Mpsc, Access::Spmc, Access::Mpmc] {
            for kind in [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::RandWs] {
                let runtime = Runtime::builder()
                    .pool(PoolSpec::new("own").access(access).kind(kind))
                    .pool(PoolSpec::new("any"))
                    .xstream(XstreamSpec::new("x0").pools(["any", "own"]))
                    .start()
                    .unwrap();
                let (own, any) = (runtime.pool("own").unwrap(), runtime.pool("any").unwrap());
                assert_eq!((own.access(), own.kind()), (access, kind));
                let inner = own.clone();
                let sum = on(&any, move || {
                    let handles: Vec<_> = (0..100u64)
                        .map(|n| {
                            let body = move || {
                                ult::yield_now();
                                n
                            };
                            inner.spawn(body).unwrap()
                        })
                        .collect();
                    handles.into_iter().map(|handle| handle.join().unwrap()).sum::<u64>()
                });
                assert_eq!(sum, 4950);
                runtime.shutdown().unwrap();
            }
        }
    });
}

/// Another scheduler takes a pool in the middle of its work: the order inside stays.
#[test]
fn a_pool_keeps_its_units_when_its_scheduler_is_replaced() {
    within(|| {
        let (runtime, pools) = kinds(&[("a", PoolKind::FifoWait), ("b", PoolKind::FifoWait)]);
        let x0 = runtime.xstream("x0").unwrap();
        let (inner, log) = (pools[1].clone(), Arc::new(Mutex::new(Vec::new())));
        let seen = log.clone();
        let handles = on(&pools[0], move || {
            let spawn = |n: usize| {
                let log = seen.clone();
                inner.spawn(move || log.lock().unwrap().push(n)).unwrap()
            };
            let handles: Vec<_> = (0..20).map(spawn).collect();
            let prio: Box<dyn Scheduler> = Box::new(ult::Prio::new());
            x0.set_scheduler(prio, ["b"]).unwrap();
            handles
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*log.lock().unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!(pools[0].xstreams(), [""; 0]);
        runtime.shutdown().unwrap();
    });
}

/// Units that one thread pops are pushed by another, all the time.
#[test]
fn threads_take_and_push_while_xstreams_run() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (ran, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let thieves: Vec<_> = (0..2)
            .map(|_| {
                let (pool, stop) = (pool.clone(), stop.clone());
                std::thread::spawn(move || {
                    while !stop.load(SeqCst) {
                        let units = pool.pop_many(3);
                        pool.push_many(units).unwrap();
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        for _ in 0..3000 {
            let ran = ran.clone();
            let body = move || {
                ran.fetch_add(1, SeqCst);
            };
            pool.ult().spawn_detached(body).unwrap();
        }
        wait_until("all have run", || ran.load(SeqCst) == 3000);
        stop.store(true, SeqCst);
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// Priorities hold for units that wait to start. A descriptor that is used again has none of its
/// predecessor.
#[test]
fn units_of_higher_priority_start_first_where_the_pool_knows_priorities() {
    use Priority::{High, Low, Normal};
    within(|| {
        for kind in [PoolKind::PrioWait, PoolKind::FifoWait] {
            let (runtime, pools) = kinds(&[("a", kind)]);
            let own = pools[0].clone();
            let orders = on(&pools[0], move || {
                let order = |priorities: &[Priority]| {
                    let log = Arc::new(Mutex::new(Vec::new()));
                    let handles = (0..).zip(priorities).map(|(n, priority)| {
                        let log = log.clone();
                        let body = move || log.lock().unwrap().push(n);
                        own.ult().priority(*priority).spawn(body).unwrap()
                    });
                    let handles: Vec<_> = handles.collect();
                    let units = own.pop_many(10);
                    let seen: Vec<_> = units.iter().map(Unit::priority).collect();
                    units.into_iter().for_each(|unit| own.push(unit).unwrap());
                    handles.into_iter().for_each(|handle| handle.join().unwrap());
                    (seen, std::mem::take(&mut *log.lock().unwrap()))
                };
                (order(&[Low, Normal, High, Low]), order(&[Normal; 4]))
            });
            let ((seen, order), plain) = orders;
            match kind {
                PoolKind::PrioWait => {
                    assert_eq!(seen, [High, Normal, Low, Low]);
                    assert_eq!(order, [2, 1, 0, 3]);
                }
                _ => {
                    assert_eq!(seen, [Low, Normal, High, Low]);
                    assert_eq!(order, [0, 1, 2, 3]);
                }
            }
            assert_eq!(plain, (vec![Normal; 4], vec![0, 1, 2, 3]));
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_pool_is_only_here_where_one_xstream_serves_it_and_is_the_callers() {
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("first"))
        .pool(PoolSpec::new("second"))
        .pool(PoolSpec::new("both"))
        .xstream(XstreamSpec::new("x0").pools(["first", "both"]))
        .xstream(XstreamSpec::new("x1").pools(["second", "both"]))
        .start()
        .unwrap();
    let pools = ["first", "second", "both"].map(|name| runtime.pool(name).unwrap());
    assert_eq!(pools.each_ref().map(PoolRef::is_only_here), [false; 3], "on no xstream");
    let (there, seen) = (pools.clone(), [[true, false, false], [false, true, false]]);
    for (pool, seen) in pools.iter().zip(seen) {
        let there = there.clone();
        let found = pool.spawn(move || there.each_ref().map(PoolRef::is_only_here)).unwrap();
        assert_eq!(found.join().unwrap(), seen);
    }
    runtime.shutdown().unwrap();
}

/// An xstream that no longer owns a work-stealing pool takes from it like anybody else.
#[test]
fn pops_of_a_pool_without_an_owner_get_each_unit_once() {
    const UNITS: usize = 100_000;
    /// Pops until nothing is left; the numbers of the units.
    fn pop_all(pool: &PoolRef) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut misses = 0;
        while misses < 1000 {
            match pool.pop() {
                Some(unit) => ids.push(unit.id()),
                None => misses += 1,
            }
        }
        ids
    }
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("q"))
            .pool(PoolSpec::new("p").kind(PoolKind::RandWs))
            .xstream(XstreamSpec::new("x1").pools(["q", "p"]))
            .start()
            .unwrap();
        runtime.add_pool(PoolSpec::new("r")).unwrap();
        let pool = |name| runtime.pool(name).unwrap();
        let (go, filled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let ran = Arc::new(AtomicUsize::new(0));
        let (p, seen, full, counts) = (pool("p"), go.clone(), filled.clone(), ran.clone());
        let first = pool("q").spawn(move || {
            for _ in 0..UNITS {
                let ran = counts.clone();
                drop(p.spawn(move || ran.fetch_add(1, SeqCst)).unwrap());
            }
            full.store(true, SeqCst);
            // It takes notice of the other one between two units.
            yield_until("the other xstream", || seen.load(SeqCst));
            pop_all(&p)
        });
        wait_until("units", || filled.load(SeqCst));
        let (p, seen) = (pool("p"), go.clone());
        let second = pool("r").spawn(move || {
            seen.store(true, SeqCst);
            pop_all(&p)
        });
        runtime.add_xstream(XstreamSpec::new("x2").pools(["r", "p"])).unwrap();
        let mut ids = first.unwrap().join().unwrap();
        ids.extend(second.unwrap().join().unwrap());
        let popped = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), popped, "a unit twice");
        runtime.shutdown().unwrap();
        // The schedulers take one now and then.
        assert_eq!(popped + ran.load(SeqCst), UNITS);
    });
}

/// A FIFO that tries to suspend in its methods, which would leave its caller in the middle of
/// something.
#[derive(Default)]
struct Sleepy {
    units: ult::Mutex<VecDeque<Unit>>,
    calls: [AtomicUsize; 5],
    in_units: AtomicUsize,
}

impl Sleepy {
    fn call(&self, method: usize) -> ult::MutexGuard<'_, VecDeque<Unit>> {
        self.calls[method].fetch_add(1, SeqCst);
        self.in_units.fetch_add(usize::from(ult::current().is_some()), SeqCst);
        ult::yield_now();
        self.units.lock()
    }
}

struct SharedSleepy(Arc<Sleepy>);

impl Pool for SharedSleepy {
    fn push(&self, unit: Unit, _why: PushReason) {
        self.0.call(0).push_back(unit);
    }
    fn pop(&self, _who: PopBy) -> Option<Unit> {
        self.0.call(1).pop_front()
    }
    fn len(&self) -> usize {
        self.0.call(2).len()
    }
    fn is_empty(&self) -> bool {
        self.0.call(3).is_empty()
    }
    fn for_each(&self, see: &mut dyn FnMut(&Unit)) {
        self.0.call(4).iter().for_each(see);
    }
}

#[test]
fn a_users_pool_is_called_outside_of_units() {
    within(|| {
        let sleepy = Arc::new(Sleepy::default());
        let own = PoolSpec::custom("own", Box::new(SharedSleepy(sleepy.clone())));
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("main"))
            .pool(own)
            .xstream(XstreamSpec::new("x0").pools(["main", "own"]))
            .start()
            .unwrap();
        let (main, own) = (runtime.pool("main").unwrap(), runtime.pool("own").unwrap());
        on(&main, move || {
            let me = ult::current().unwrap().id;
            let waits = own.spawn(ult::park).unwrap();
            assert_eq!((own.len(), own.units().len()), (1, 1));
            own.push(own.pop().unwrap()).unwrap();
            yield_until("it waits", || own.stats().blocked() == 1);
            // A resume pushes it there, on the stack of this one.
            waits.cancel();
            assert!(ult::integration::has_runnable());
            drop(waits.join());
            assert_eq!(ult::current().unwrap().id, me);
        });
        runtime.shutdown().unwrap();
        let calls: Vec<usize> = sleepy.calls.iter().map(|calls| calls.load(SeqCst)).collect();
        assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
        assert_eq!(sleepy.in_units.load(SeqCst), 0);
    });
}
