//! Xstreams: join, revive, cancel, rank, affinity, the primary one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::common::{here, on, private, shared, wait_until, within, yield_until};
use ult::topology::{Place, Topology};
use ult::{
    Access, Eventual, LayoutError, PoolSpec, Runtime, RuntimeBuilder, StartError, XstreamSpec,
    XstreamState,
};

fn thread_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

#[test]
fn a_joined_xstream_has_run_everything_and_can_be_revived() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        for round in 0..50usize {
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..round {
                let ran = ran.clone();
                let body = move || {
                    ult::yield_now();
                    ran.fetch_add(1, SeqCst);
                };
                pools[1].ult().spawn_detached(body).unwrap();
            }
            x1.join().unwrap();
            assert_eq!(ran.load(SeqCst), round);
            assert_eq!(x1.state(), XstreamState::Terminated);
            x1.join().unwrap();
            assert_eq!(runtime.xstreams().len(), 2, "a joined one still counts");
            x1.revive().unwrap();
            assert!(matches!(x1.revive(), Err(LayoutError::Running { .. })));
            assert_eq!(on(&pools[1], here), "x1");
        }
        runtime.shutdown().unwrap();
        assert!(matches!(x1.revive(), Err(LayoutError::Gone { .. })));
        assert_eq!(x1.state(), XstreamState::Removed);
    });
}

/// Spawns go on while the only xstream of their pool is joined and revived again and again.
#[test]
fn spawns_race_with_join_and_revive() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        let (ran, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let spawner = |from_ult: bool| {
            let (pool, ran, stop) = (pools[1].clone(), ran.clone(), stop.clone());
            let mut rng = fastrand::Rng::with_seed(u64::from(from_ult));
            move || {
                let mut spawned = 0;
                while !stop.load(SeqCst) {
                    let ran = ran.clone();
                    let body = move || {
                        ult::yield_now();
                        ran.fetch_add(1, SeqCst);
                    };
                    pool.ult().spawn_detached(body).unwrap();
                    spawned += 1;
                    // Pauses of all lengths, so that the pool is empty now and then.
                    (0..rng.u32(..20_000)).for_each(|_| std::hint::spin_loop());
                    std::thread::yield_now();
                    if from_ult {
                        ult::yield_now();
                    }
                }
                spawned
            }
        };
        let thread = std::thread::spawn(spawner(false));
        let ult = pools[0].spawn(spawner(true)).unwrap();
        for _ in 0..100 {
            while x1.join_timeout(Duration::from_millis(20)).is_err() {}
            x1.revive().unwrap();
        }
        stop.store(true, SeqCst);
        let spawned: usize = thread.join().unwrap() + ult.join().unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), spawned);
    });
}

#[test]
fn join_waits_for_suspended_ults_and_says_so() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let waits = pools[1].spawn(move || *inner.wait()).unwrap();
        wait_until("started", || x1.ults() == 1);
        let error = x1.join_timeout(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, LayoutError::Busy { ults: 1, units: 0, .. }), "{error}");
        assert_eq!(on(&pools[1], || 2), 2, "it goes on as before");
        let joiner = {
            let x1 = x1.clone();
            pools[0].spawn(move || x1.join()).unwrap()
        };
        wait_until("joining", || x1.state() == XstreamState::Joining);
        gate.set(7).unwrap();
        joiner.join().unwrap().unwrap();
        assert_eq!(waits.join().unwrap(), 7);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn nobody_joins_his_own_xstream() {
    within(|| {
        let (runtime, pools) = private(1);
        let x0 = runtime.xstream("x0").unwrap();
        let error = on(&pools[0], move || x0.join().unwrap_err());
        assert!(matches!(error, LayoutError::OwnXstream { .. }), "{error}");
        let x0 = runtime.xstream("x0").unwrap();
        let tasklet = pools[0].tasklet().spawn(move || x0.remove().unwrap_err()).unwrap();
        assert!(matches!(tasklet.join().unwrap(), LayoutError::OwnXstream { .. }));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn many_may_join_the_same_xstream() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        for _ in 0..20 {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let x1 = x1.clone();
                    std::thread::spawn(move || x1.join())
                })
                .collect();
            let inner = x1.clone();
            on(&pools[0], move || inner.join().unwrap());
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            x1.revive().unwrap();
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn all_who_wait_in_vain_are_told() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        let go = Arc::new(AtomicBool::new(false));
        let may_end = go.clone();
        let unit = pools[1].spawn(move || {
            while !may_end.load(SeqCst) {
                ult::yield_now();
            }
        });
        // The first one that gives up calls it back for all; the others go on, or give up, too.
        let wait = |ms: u64| {
            let x1 = x1.clone();
            std::thread::spawn(move || x1.join_timeout(Duration::from_millis(ms)))
        };
        for limits in [[1, 1, 1], [1, 5, 20]] {
            for waiter in limits.map(wait) {
                let error = waiter.join().unwrap().unwrap_err();
                assert!(matches!(error, LayoutError::Busy { .. }), "{error}");
            }
        }
        let patient = wait(1000 * 60);
        wait(1).join().unwrap().unwrap_err();
        go.store(true, SeqCst);
        patient.join().unwrap().unwrap();
        unit.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_xstream_leaves_its_queue_behind_until_it_is_revived() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        let (go, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inner_go, inner_started) = (go.clone(), started.clone());
        let first = pools[1].spawn(move || {
            inner_started.store(true, SeqCst);
            // Does not yield: what is queued behind it does not start.
            wait_until("go", || inner_go.load(SeqCst));
            ult::yield_now();
            1
        });
        wait_until("started", || started.load(SeqCst));
        let queued: Vec<_> = (0..5).map(|n| pools[1].spawn(move || n).unwrap()).collect();
        x1.cancel().unwrap();
        go.store(true, SeqCst);
        x1.join().unwrap();
        assert_eq!(first.unwrap().join().unwrap(), 1, "what had started has ended");
        assert!(queued.iter().all(|handle| !handle.is_finished()));
        assert_eq!(pools[1].len(), 5);
        x1.revive().unwrap();
        assert_eq!(x1.pools(), ["p1"]);
        for (n, handle) in queued.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), n);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_second_cancel_does_not_forget_the_pools() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        x1.cancel().unwrap();
        x1.cancel().unwrap();
        x1.join().unwrap();
        x1.cancel().unwrap();
        x1.revive().unwrap();
        assert_eq!(x1.pools(), ["p1"]);
        assert_eq!(on(&pools[1], here), "x1");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_removed_xstream_frees_its_name_and_rank() {
    within(|| {
        let (runtime, pool) = shared(3);
        let x1 = runtime.xstream("x1").unwrap();
        assert_eq!(x1.rank(), 1);
        x1.remove().unwrap();
        assert!(runtime.xstream("x1").is_none());
        assert!(matches!(x1.join(), Err(LayoutError::Gone { .. })));
        assert!(matches!(x1.remove(), Err(LayoutError::Gone { .. })));
        assert!(matches!(x1.cancel(), Err(LayoutError::Gone { .. })));
        let again = runtime.add_xstream(XstreamSpec::new("x1").pools(["p"])).unwrap();
        assert_eq!(again.rank(), 1, "the lowest that is free");
        assert_ne!(again, x1);
        assert_eq!(on(&pool, || 3), 3);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ranks_are_unique_and_can_be_chosen() {
    within(|| {
        let spec = |name: &str| XstreamSpec::new(name).pools(["p"]);
        let pool = || Runtime::builder().pool(PoolSpec::new("p"));
        let twice = pool().xstream(spec("a").rank(3)).xstream(spec("b").rank(3));
        let error = twice.start().unwrap_err();
        assert!(matches!(&error, StartError::DuplicateRank { rank: 3, xstream } if xstream == "b"));
        let runtime = pool().xstream(spec("a").rank(1)).xstream(spec("b")).start().unwrap();
        let (a, b) = (runtime.xstream("a").unwrap(), runtime.xstream("b").unwrap());
        assert_eq!((a.rank(), b.rank()), (1, 0));
        let error = a.set_rank(0).unwrap_err();
        assert_eq!(error.to_string(), "xstream `a`: rank 0 is taken; ranks are unique");
        a.set_rank(1).unwrap();
        a.set_rank(9).unwrap();
        let c = runtime.add_xstream(spec("c")).unwrap();
        assert_eq!((a.rank(), c.rank()), (9, 1));
        let own = runtime.clone();
        let here = move || (own.rank_here(), ult::xstream_rank(), ult::current().map(|me| me.rank));
        let (rank, own, told) = runtime.pool("p").unwrap().spawn(here).unwrap().join().unwrap();
        assert!(rank.is_some() && rank == own && rank == told, "{rank:?}, {own:?}, {told:?}");
        assert_eq!(runtime.rank_here(), None, "an OS thread has none");
        assert_eq!(ult::xstream_rank(), None);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn rank_and_ids_agree_from_everywhere() {
    within(|| {
        let (runtime, pools) = private(2);
        for (index, pool) in pools.iter().enumerate() {
            let handle = pool.ult().name("me").spawn(move || {
                let before = ult::current().unwrap();
                ult::yield_now();
                ult::sleep(Duration::from_millis(1));
                assert_eq!(ult::current().unwrap(), before);
                before
            });
            let handle = handle.unwrap();
            let id = handle.id();
            let info = handle.join().unwrap();
            assert_eq!((info.id, info.rank), (id, index));
            assert_eq!(
                (info.xstream.as_str(), info.name.as_deref()),
                (&*format!("x{index}"), Some("me"))
            );
            assert_eq!((info.pool.as_str(), info.is_tasklet), (pool.name(), false));
        }
        assert!(ult::current().is_none() && !ult::is_ult() && !ult::is_tasklet());
        runtime.shutdown().unwrap();
        assert!(ult::current().is_none());
    });
}

#[test]
fn affinity_changes_between_units_and_survives_a_revival() {
    within(|| {
        let allowed = thread_cpus();
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        assert!(x1.cpus().is_empty());
        assert_eq!(on(&pools[1], thread_cpus), allowed);
        let last = *allowed.last().unwrap();
        x1.set_affinity(&[last]).unwrap();
        assert_eq!(x1.cpus(), [last]);
        let pool = pools[1].clone();
        wait_until("bound", || on(&pool, thread_cpus) == [last]);
        x1.join().unwrap();
        x1.revive().unwrap();
        assert_eq!(on(&pools[1], thread_cpus), [last]);
        let error = x1.set_affinity(&[77_777]).unwrap_err();
        assert!(matches!(error, StartError::Cpu { cpu: 77_777, .. }), "{error}");
        assert!(matches!(x1.set_affinity(&[]), Err(StartError::NoCpu { .. })));
        assert_eq!(x1.cpus(), [last], "nothing has changed");
        assert_eq!(on(&pools[0], thread_cpus), allowed, "the other one has not moved");
        runtime.shutdown().unwrap();
    });
}

/// A change of the layout is made by a ULT as a rule, and threads inherit the processors of the
/// thread that starts them.
#[test]
fn who_adds_an_xstream_does_not_hand_its_own_binding_on() {
    within(|| {
        let allowed = thread_cpus();
        let (first, last) = (allowed[0], *allowed.last().unwrap());
        let bound = XstreamSpec::new("bound").pools(["p"]).cpubind(first);
        let builder = Runtime::builder().pool(PoolSpec::new("p")).xstream(bound);
        let runtime = builder.start().unwrap();
        let own = runtime.clone();
        let change = move || {
            assert_eq!(thread_cpus(), [first]);
            let add = |name: &str, spec: XstreamSpec| {
                let pool = own.add_pool(PoolSpec::new(name)).unwrap();
                (own.add_xstream(spec.pools([name])).unwrap(), pool)
            };
            let (_, pool) = add("elsewhere", XstreamSpec::new("elsewhere").cpubind(last));
            assert_eq!(on(&pool, thread_cpus), [last]);
            let (free, pool) = add("free", XstreamSpec::new("free"));
            assert!(free.cpus().is_empty());
            assert_eq!(on(&pool, thread_cpus), allowed);
            free.join().unwrap();
            free.revive().unwrap();
            assert_eq!(on(&pool, thread_cpus), allowed, "nor when it is revived");
            // Nor to a runtime of its own.
            let x = XstreamSpec::new("x").pools(["free"]);
            let y = XstreamSpec::new("y").pools(["bound"]).cpubind(last);
            let pools = ["free", "bound"].map(PoolSpec::new);
            let builder = pools.into_iter().fold(Runtime::builder(), |b, pool| b.pool(pool));
            let other = builder.xstream(x).xstream(y).start().unwrap();
            assert_eq!(on(&other.pool("free").unwrap(), thread_cpus), allowed);
            assert_eq!(on(&other.pool("bound").unwrap(), thread_cpus), [last]);
            other.shutdown().unwrap();
        };
        on(&runtime.pool("p").unwrap(), change);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_pattern_binds_xstreams_by_rank() {
    within(|| {
        let allowed = thread_cpus();
        let pattern = format!("{{{}}},{{{}}}", allowed[0], allowed[allowed.len() - 1]);
        let spec = |name: &str| XstreamSpec::new(name).pools(["p"]);
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(spec("x0").rank(1))
            .xstream(spec("x1"))
            .xstream(spec("x2").rank(2).cpubind(allowed[0]))
            .affinity(pattern.parse().unwrap())
            .start()
            .unwrap();
        let cpus = |name: &str| runtime.xstream(name).unwrap().cpus();
        assert_eq!(cpus("x0"), [allowed[allowed.len() - 1]]);
        assert_eq!(cpus("x1"), [allowed[0]]);
        assert_eq!(cpus("x2"), [allowed[0]], "what it says itself counts");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_place_by_name_binds_to_its_processors() {
    within(|| {
        let topology = Topology::get().unwrap();
        let package: Place = "package:0".parse().unwrap();
        let expected: Vec<usize> = topology.cpus_of(&package).unwrap().iter().collect();
        let spec = |place: Place| XstreamSpec::new("x").pools(["p"]).place(place);
        let build =
            |place| Runtime::builder().pool(PoolSpec::new("p")).xstream(spec(place)).start();
        let runtime = build(package).unwrap();
        assert_eq!(runtime.xstream("x").unwrap().cpus(), expected);
        assert_eq!(on(&runtime.pool("p").unwrap(), thread_cpus), expected);
        runtime.shutdown().unwrap();
        let error = build("package:4711".parse().unwrap()).unwrap_err();
        assert!(matches!(error, StartError::Place { .. }), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("4711"), "{source}");
    });
}

fn primary() -> RuntimeBuilder {
    Runtime::builder().pool(PoolSpec::new("main")).xstream(XstreamSpec::new("x0").pools(["main"]))
}

#[test]
fn the_calling_thread_can_be_the_first_xstream() {
    within(|| {
        let before = thread_cpus();
        let caller = std::thread::current().id();
        let x1 = XstreamSpec::new("x1").pools(["other"]);
        let builder = primary().pool(PoolSpec::new("other")).xstream(x1);
        let value = builder.run(move |runtime| {
            assert_eq!(std::thread::current().id(), caller);
            let me = ult::current().unwrap();
            assert_eq!((me.xstream.as_str(), me.name.as_deref(), me.rank), ("x0", Some("main"), 0));
            let x0 = runtime.xstream("x0").unwrap();
            assert!(matches!(x0.cancel(), Err(LayoutError::Primary { .. })));
            let inner = x0.clone();
            let join = on(&runtime.pool("other").unwrap(), move || inner.join());
            assert!(matches!(join, Err(LayoutError::Primary { .. })));
            // `main` suspends like any other.
            assert_eq!(on(&runtime.pool("main").unwrap(), || 20), 20);
            x0.set_affinity(&[thread_cpus()[0]]).unwrap();
            ult::yield_now();
            runtime.pool("other").unwrap().spawn(|| 22).unwrap().join().unwrap() + 20
        });
        assert_eq!(value.unwrap(), 42);
        assert_eq!(thread_cpus(), before, "the thread gets its processors back");
        assert!(ult::current().is_none());
    });
}

#[test]
fn run_waits_for_units_that_main_leaves_behind() {
    within(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let inner = ended.clone();
        primary()
            .run(move |runtime| {
                for _ in 0..10 {
                    let ended = inner.clone();
                    let body = move || {
                        ult::sleep(Duration::from_millis(2));
                        ended.fetch_add(1, SeqCst);
                    };
                    runtime.pool("main").unwrap().ult().spawn_detached(body).unwrap();
                }
            })
            .unwrap();
        assert_eq!(ended.load(SeqCst), 10);
    });
}

#[test]
fn run_panics_with_the_panic_of_main() {
    within(|| {
        let run = || primary().run(|_| panic!("main is at fault"));
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"main is at fault"));
        // Everything has ended: the thread can do it again.
        assert_eq!(primary().run(|_| 5).unwrap(), 5);
        let exit = || primary().run(|_| ult::exit());
        let panic = catch_unwind(AssertUnwindSafe(exit)).unwrap_err();
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        assert!(text.is_some_and(|text| text.contains("exit")), "a panic says what happened");
    });
}

#[test]
fn run_and_shutdown_from_elsewhere_end_together() {
    within(|| {
        let (sender, receiver) = std::sync::mpsc::channel::<Runtime>();
        let other = std::thread::spawn(move || receiver.recv().unwrap().shutdown());
        let value = primary().run(move |runtime| {
            sender.send(runtime.clone()).unwrap();
            assert!(runtime.shutdown().is_err(), "main is one of its own ULTs");
            for _ in 0..50 {
                on(&runtime.pool("main").unwrap(), ult::yield_now);
            }
            3
        });
        assert_eq!(value.unwrap(), 3);
        other.join().unwrap().unwrap();
    });
}

#[test]
fn run_on_an_xstream_is_a_panic() {
    within(|| {
        let (runtime, pool) = shared(1);
        let error = pool.spawn(|| primary().run(|_| ())).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("use `start`"), "{error}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn run_works_with_a_private_pool() {
    within(|| {
        let private = PoolSpec::new("main").access(Access::Private);
        let x0 = XstreamSpec::new("x0").pools(["main"]);
        let run = Runtime::builder().pool(private).xstream(x0).run(|runtime| {
            let pool = runtime.pool("main").unwrap();
            (0..100u32).map(|n| on(&pool, move || n)).sum::<u32>()
        });
        assert_eq!(run.unwrap(), 4950);
    });
}

#[test]
fn a_wrong_description_does_not_run_main() {
    within(|| {
        let error = Runtime::builder().run(|_| unreachable!("it has no xstream"));
        assert!(matches!(error, Err(StartError::NoXstream)));
    });
}

#[test]
fn state_tells_idle_from_running() {
    within(|| {
        let (runtime, pools) = private(1);
        let x0 = runtime.xstream("x0").unwrap();
        wait_until("idle", || x0.state() == XstreamState::Idle);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let spin = pools[0].spawn(move || yield_until("stop", || seen.load(SeqCst))).unwrap();
        wait_until("running", || x0.state() == XstreamState::Running && x0.ults() == 1);
        stop.store(true, SeqCst);
        spin.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn counters_of_an_xstream_add_up() {
    within(|| {
        let (runtime, pools) = private(2);
        let handles: Vec<_> = (0..10).map(|_| pools[0].spawn(ult::yield_now).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        let gate = Arc::new(ult::Eventual::<()>::new());
        let inner = gate.clone();
        let waits = pools[0].spawn(move || inner.wait_ready()).unwrap();
        let x0 = runtime.xstream("x0").unwrap();
        while x0.stats().parked == 0 {
            std::thread::yield_now();
        }
        assert_eq!(x0.stats().ults, 1);
        gate.set(()).unwrap();
        waits.join().unwrap();
        let stats = x0.stats();
        assert_eq!((stats.finished, stats.yields), (11, 10));
        assert_eq!((stats.parked, stats.resumed), (1, 1));
        assert_eq!(stats.executed, 22);
        assert!(stats.stacks > 0);
        assert_eq!(runtime.xstream("x1").unwrap().stats().executed, 0);
        runtime.shutdown().unwrap();
    });
}

/// New pools that a cancelled xstream is given count for its revival.
#[test]
fn a_revival_serves_the_pools_that_were_set_since() {
    within(|| {
        let (runtime, pools) = private(2);
        let new = runtime.add_pool(PoolSpec::new("new")).unwrap();
        let x1 = runtime.xstream("x1").unwrap();
        x1.cancel().unwrap();
        x1.join().unwrap();
        x1.set_scheduler(Box::new(ult::Basic::new()), ["new"]).unwrap();
        x1.revive().unwrap();
        assert_eq!(x1.pools(), ["new"]);
        assert_eq!(on(&new, here), "x1");
        x1.set_scheduler(Box::new(ult::Basic::new()), ["new", "p1"]).unwrap();
        assert_eq!(on(&pools[1], here), "x1");
        runtime.shutdown().unwrap();
    });
}

/// The access promise of a pool holds for a revival, too, and so does its removal.
#[test]
fn a_revival_does_not_take_back_what_others_have_now() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p0"))
            .pool(PoolSpec::new("single").access(Access::Mpsc))
            .pool(PoolSpec::new("gone"))
            .xstream(XstreamSpec::new("x0").pools(["p0"]))
            .xstream(XstreamSpec::new("x1").pools(["single"]))
            .xstream(XstreamSpec::new("x2").pools(["gone"]))
            .start()
            .unwrap();
        for name in ["x1", "x2"] {
            runtime.xstream(name).unwrap().cancel().unwrap();
            runtime.xstream(name).unwrap().join().unwrap();
        }
        runtime.add_xstream(XstreamSpec::new("x3").pools(["single"])).unwrap();
        let x1 = runtime.xstream("x1").unwrap();
        let error = x1.revive().unwrap_err();
        assert!(matches!(error, LayoutError::Start(StartError::Access { .. })), "{error}");
        x1.set_scheduler(Box::new(ult::Basic::new()), ["p0"]).unwrap();
        x1.revive().unwrap();
        assert_eq!(x1.pools(), ["p0"]);
        runtime.remove_pool(&runtime.pool("gone").unwrap()).unwrap();
        let x2 = runtime.xstream("x2").unwrap();
        let error = x2.revive().unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
        assert!(matches!(error, LayoutError::Start(StartError::UnknownPool { .. })), "{error}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_unit_knows_its_pool_also_after_it_has_been_moved() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .pool(PoolSpec::new("q"))
            .xstream(XstreamSpec::new("x").pools(["p", "q"]))
            .start()
            .unwrap();
        let (p, q) = (runtime.pool("p").unwrap(), runtime.pool("q").unwrap());
        let pools = (p.clone(), q.clone());
        let moves = move || {
            let (p, q) = pools;
            let here = || (ult::pool_index(), p.is_current(), q.is_current());
            let before = here();
            ult::set_pool(&q).unwrap();
            ult::yield_now();
            (before, here())
        };
        let (before, after) = p.spawn(moves).unwrap().join().unwrap();
        assert_eq!(before, (Some(p.index()), true, false));
        assert_eq!(after, (Some(q.index()), false, true));
        let tasklet = p.tasklet().spawn(ult::pool_index).unwrap();
        assert_eq!(tasklet.join().unwrap(), Some(p.index()));
        assert_eq!(ult::pool_index(), None, "an OS thread has none");
        assert!(!p.is_current());
        runtime.shutdown().unwrap();
    });
}
