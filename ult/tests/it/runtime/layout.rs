//! Pools and xstreams that come, go and change hands while ULTs run: nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::common::{here, on, private, shared, within, yield_until};
use ult::{
    Access, Basic, LayoutError, PoolKind, PoolRef, PoolSpec, PoolView, Prio, RandWs, RoundRobin,
    Runtime, Scheduler, SpawnError, StartError, Step, XstreamRef, XstreamSpec, XstreamState,
};

/// A unit of work that yields a few times and counts its end.
fn busy(pool: &PoolRef, ended: &Arc<AtomicUsize>) {
    let ended = ended.clone();
    let body = move || {
        (0..3).for_each(|_| ult::yield_now());
        ended.fetch_add(1, SeqCst);
    };
    pool.ult().spawn_detached(body).unwrap();
}

#[test]
fn a_pool_waits_for_an_xstream_that_serves_it() {
    within(|| {
        let (runtime, _) = shared(1);
        let late = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let handle = late.spawn(here).unwrap();
        assert_eq!((late.len(), late.total_len(), late.xstreams().len()), (1, 1, 0));
        let x9 = runtime.add_xstream(XstreamSpec::new("x9").pools(["late"])).unwrap();
        assert_eq!(handle.join().unwrap(), "x9");
        assert_eq!(late.xstreams(), ["x9"]);
        assert_eq!(runtime.xstream("x9").unwrap(), x9);
        assert_eq!(runtime.pool("late").unwrap(), late);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_served_or_used_pool_is_not_removed() {
    within(|| {
        let (runtime, pool) = shared(1);
        let error = runtime.remove_pool(&pool).unwrap_err();
        assert!(matches!(&error, LayoutError::Served { .. }), "{error}");
        assert!(["`p`", "`x0`"].iter().all(|name| error.to_string().contains(name)), "{error}");
        let late = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let handle = late.spawn(|| 4).unwrap();
        let error = runtime.remove_pool(&late).unwrap_err();
        assert!(matches!(&error, LayoutError::NotEmpty { pool, units: 1 } if pool == "late"));
        assert_eq!(late.move_all_to(&pool).unwrap(), 1);
        assert_eq!(handle.join().unwrap(), 4);
        runtime.remove_pool(&late).unwrap();
        assert!(runtime.pool("late").is_none());
        assert!(matches!(late.spawn(|| ()), Err(SpawnError::Removed { pool }) if pool == "late"));
        // Or the unit that went from it would count twice, and the shutdown wait for ever.
        let again = runtime.remove_pool(&late).unwrap_err();
        assert!(matches!(&again, LayoutError::Removed { pool } if pool == "late"), "{again}");
        let (other, other_pool) = shared(1);
        let error = runtime.remove_pool(&other_pool).unwrap_err();
        assert!(matches!(error, LayoutError::OtherRuntime { .. }));
        // The name is free again.
        let again = runtime.add_pool(PoolSpec::new("late")).unwrap();
        assert_ne!(again, late);
        runtime.remove_pool(&again).unwrap();
        other.shutdown().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// The xstream of the caller has not looked at the change of its pools yet.
#[test]
fn a_unit_removes_a_pool_that_its_own_xstream_has_served() {
    fn body(runtime: &Runtime, is_there: bool) {
        let job = runtime.pool("job").unwrap();
        let x = runtime.xstream("x").unwrap();
        x.set_scheduler(Box::new(Basic::new()), ["base"]).unwrap();
        if is_there {
            let unit = job.spawn(|| 7).unwrap();
            let error = runtime.remove_pool(&job).unwrap_err();
            assert!(matches!(error, LayoutError::NotEmpty { units: 1, .. }), "{error}");
            assert_eq!(job.move_all_to(&runtime.pool("base").unwrap()).unwrap(), 1);
            drop(unit);
        }
        runtime.remove_pool(&job).unwrap();
        let is_refused = |error| matches!(error, Some(SpawnError::Removed { .. }));
        assert!(is_refused(job.spawn(|| ()).err()));
        assert!(is_refused(job.spawn_after(Duration::ZERO, || ()).err()));
        assert!(is_refused(job.ult().spawn_to(|| ()).err()));
        assert!(is_refused(job.ult().spawn_detached(|| ()).err()));
    }
    for kind in [PoolKind::FifoWait, PoolKind::RandWs, PoolKind::PrioWait] {
        for (is_tasklet, is_there) in [(false, false), (false, true), (true, false), (true, true)] {
            within(move || {
                let runtime = Runtime::builder()
                    .pool(PoolSpec::new("base"))
                    .pool(PoolSpec::new("job").kind(kind))
                    .xstream(XstreamSpec::new("x").pools(["base", "job"]))
                    .start()
                    .unwrap();
                let base = runtime.pool("base").unwrap();
                let inner = runtime.clone();
                let unit = if is_tasklet { base.tasklet() } else { base.ult() };
                unit.spawn(move || body(&inner, is_there)).unwrap().join().unwrap();
                runtime.shutdown().unwrap();
            });
        }
    }
}

/// A unit is either refused or runs; it is never left in a pool that is gone.
#[test]
fn spawns_race_with_the_removal_of_their_pool() {
    within(|| {
        let (runtime, main) = shared(1);
        for round in 0..300 {
            let pool = runtime.add_pool(PoolSpec::new("brief")).unwrap();
            let go = Arc::new(std::sync::Barrier::new(2));
            let (inner, inner_go) = (pool.clone(), go.clone());
            let spawner = std::thread::spawn(move || {
                inner_go.wait();
                inner.spawn(|| 1)
            });
            go.wait();
            for _ in 0..round % 50 {
                std::hint::spin_loop();
            }
            let removed = runtime.remove_pool(&pool);
            match spawner.join().unwrap() {
                Err(error) => {
                    assert!(matches!(error, SpawnError::Removed { .. }));
                    removed.unwrap();
                }
                Ok(handle) => {
                    assert!(removed.is_err(), "round {round}: a unit is left in a removed pool");
                    assert_eq!(pool.move_all_to(&main).unwrap(), 1);
                    assert_eq!(handle.join().unwrap(), 1);
                    runtime.remove_pool(&pool).unwrap();
                }
            }
        }
        runtime.shutdown().unwrap();
    });
}

/// An owner spawns without a look at a removal.
#[test]
fn spawns_of_an_owner_race_with_the_removal_of_its_pool() {
    fn spawn_some(pool: &PoolRef, count: usize) -> Vec<ult::JoinHandle<()>> {
        let mut units = Vec::new();
        while units.len() < count {
            match pool.spawn(|| ()) {
                Ok(unit) => units.push(unit),
                Err(error) => {
                    assert!(matches!(error, SpawnError::Removed { .. }));
                    break;
                }
            }
            if units.len() % 4 == 0 {
                ult::yield_now();
            }
        }
        units
    }
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("base"))
            .xstream(XstreamSpec::new("x").pools(["base"]))
            .start()
            .unwrap();
        let (base, x) = (runtime.pool("base").unwrap(), runtime.xstream("x").unwrap());
        for round in 0..300 {
            let kind = if round % 2 == 0 { PoolKind::FifoWait } else { PoolKind::RandWs };
            let pool = runtime.add_pool(PoolSpec::new("brief").kind(kind)).unwrap();
            x.set_scheduler(Box::new(Basic::new()), ["base", "brief"]).unwrap();
            on(&pool, || ());
            let (inner, own) = (pool.clone(), x.clone());
            let spawner = base.spawn(move || {
                own.set_scheduler(Box::new(Basic::new()), ["base"]).unwrap();
                for _ in 0..round * 10 {
                    std::hint::spin_loop();
                }
                spawn_some(&inner, round % 13)
            });
            while let Err(error) = runtime.remove_pool(&pool) {
                match error {
                    LayoutError::Served { .. } => std::hint::spin_loop(),
                    LayoutError::NotEmpty { .. } => {
                        pool.move_all_to(&base).unwrap();
                    }
                    error => panic!("{error}"),
                }
            }
            let units = spawner.unwrap().join().unwrap();
            units.into_iter().for_each(|unit| unit.join().unwrap());
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn wrong_additions_are_refused_and_change_nothing() {
    within(|| {
        let (runtime, _) = shared(1);
        let add = |spec: XstreamSpec| runtime.add_xstream(spec).unwrap_err();
        let x = || XstreamSpec::new("new").pools(["p"]);
        assert!(matches!(add(XstreamSpec::new("new")), StartError::NoPool { .. }));
        let error = add(XstreamSpec::new("new").pools(["q"]));
        assert!(matches!(error, StartError::UnknownPool { .. }), "{error}");
        let error = add(XstreamSpec::new("x0").pools(["p"]));
        assert!(matches!(error, StartError::DuplicateXstream { .. }), "{error}");
        assert!(matches!(add(x().rank(0)), StartError::DuplicateRank { rank: 0, .. }));
        assert!(matches!(add(x().cpubind(99_999)), StartError::Cpu { cpu: 99_999, .. }));
        let error = runtime.add_pool(PoolSpec::new("p")).unwrap_err();
        assert!(matches!(error, StartError::DuplicatePool { .. }), "{error}");
        let error = runtime.add_pool(PoolSpec::new("q").stack_bytes(0)).unwrap_err();
        assert!(matches!(error, StartError::NoStack { pool: Some(name) } if name == "q"));
        assert_eq!((runtime.xstreams().len(), runtime.pools().len()), (1, 1));
        assert_eq!(runtime.pool("p").unwrap().xstreams(), ["x0"]);
        runtime.shutdown().unwrap();
        assert!(matches!(add(x()), StartError::ShutDown { .. }));
    });
}

#[test]
fn a_second_server_of_a_promised_pool_is_refused() {
    within(|| {
        for access in [Access::Private, Access::Spsc, Access::Mpsc] {
            let spec = |name: &str| XstreamSpec::new(name).pools(["one"]);
            let builder = || Runtime::builder().pool(PoolSpec::new("one").access(access));
            let error = builder().xstream(spec("x0")).xstream(spec("x1")).start().unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, StartError::Access { .. }), "{text}");
            let named = ["`one`", "`x0`", "`x1`", &access.to_string()];
            assert!(named.iter().all(|name| text.contains(name)), "{text}");

            let any = PoolSpec::new("any");
            let x1 = XstreamSpec::new("x1").pools(["any"]);
            let runtime = builder().pool(any).xstream(spec("x0")).xstream(x1).start().unwrap();
            let error = runtime.add_xstream(spec("x2")).unwrap_err();
            assert!(matches!(error, StartError::Access { .. }), "{error}");
            let x1 = runtime.xstream("x1").unwrap();
            let error = x1.set_scheduler(Box::new(Basic::new()), ["one"]).unwrap_err();
            assert!(matches!(error, LayoutError::Start(StartError::Access { .. })), "{error}");
            assert_eq!(x1.pools(), ["any"], "nothing has changed");
            // Its own server may name it again.
            let x0 = runtime.xstream("x0").unwrap();
            x0.set_scheduler(Box::new(Prio::new()), ["one", "any"]).unwrap();
            runtime.shutdown().unwrap();
        }
    });
}

/// Producers never stop while xstreams come and go.
#[test]
fn pools_change_between_one_and_several_servers_under_load() {
    for kind in [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::EarliestFirst, PoolKind::RandWs]
    {
        within(move || {
            let runtime = Runtime::builder()
                .pool(PoolSpec::new("p").kind(kind))
                .xstream(XstreamSpec::new("x0").pools(["p"]))
                .start()
                .unwrap();
            let pool = runtime.pool("p").unwrap();
            let (ended, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let outside = {
                let (pool, ended, stop) = (pool.clone(), ended.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut spawned = 0;
                    while !stop.load(SeqCst) {
                        busy(&pool, &ended);
                        spawned += 1;
                        while spawned > ended.load(SeqCst) + 500 {
                            std::thread::yield_now();
                        }
                    }
                    spawned
                })
            };
            for round in 0..15 {
                let name = format!("extra{round}");
                let spec = XstreamSpec::new(&*name).pools(["p"]);
                let extra = runtime.add_xstream(spec).unwrap();
                let target = ended.load(SeqCst) + 50;
                crate::common::wait_until("work goes on", || ended.load(SeqCst) >= target);
                extra.remove().unwrap();
                assert_eq!(extra.state(), XstreamState::Removed);
                assert_eq!(pool.xstreams(), ["x0"]);
                let target = ended.load(SeqCst) + 50;
                crate::common::wait_until("work goes on", || ended.load(SeqCst) >= target);
            }
            stop.store(true, SeqCst);
            let spawned = outside.join().unwrap();
            runtime.shutdown().unwrap();
            assert_eq!(ended.load(SeqCst), spawned);
            assert_eq!(pool.total_len(), 0);
        });
    }
}

#[test]
fn joining_one_of_two_servers_does_not_wait_for_the_pool_to_run_dry() {
    fn chain(pool: &PoolRef, stop: &Arc<AtomicBool>) {
        if !stop.load(SeqCst) {
            let (next, seen) = (pool.clone(), stop.clone());
            pool.ult().spawn_detached(move || chain(&next, &seen)).unwrap();
        }
    }
    within(|| {
        let (runtime, pool) = shared(2);
        let stop = Arc::new(AtomicBool::new(false));
        (0..16).for_each(|_| chain(&pool, &stop));
        let result = runtime.xstream("x1").unwrap().join_timeout(Duration::from_secs(10));
        stop.store(true, SeqCst);
        result.unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A pool with an order of its own keeps started ULTs only as long as their xstream serves it.
#[test]
fn started_ults_of_an_ordered_pool_go_on_when_another_xstream_takes_it_over() {
    for kind in [PoolKind::PrioWait, PoolKind::EarliestFirst] {
        within(move || {
            let runtime = Runtime::builder()
                .pool(PoolSpec::new("ordered").kind(kind))
                .pool(PoolSpec::new("spare"))
                .xstream(XstreamSpec::new("x0").pools(["ordered"]))
                .xstream(XstreamSpec::new("x1").pools(["spare"]))
                .start()
                .unwrap();
            let ordered = runtime.pool("ordered").unwrap();
            let moved = Arc::new(AtomicBool::new(false));
            let started = Arc::new(AtomicUsize::new(0));
            let handles: Vec<_> = (0..4)
                .map(|_| {
                    let (moved, started) = (moved.clone(), started.clone());
                    let body = move || {
                        let home = here();
                        started.fetch_add(1, SeqCst);
                        yield_until("moved", || moved.load(SeqCst));
                        ult::sleep(Duration::from_millis(1));
                        (0..5).for_each(|_| ult::yield_now());
                        assert_eq!(here(), home);
                    };
                    ordered.spawn(body).unwrap()
                })
                .collect();
            crate::common::wait_until("started", || started.load(SeqCst) == 4);
            let (x0, x1) = (runtime.xstream("x0").unwrap(), runtime.xstream("x1").unwrap());
            x1.set_scheduler(Box::new(Basic::new()), ["ordered"]).unwrap();
            x0.set_scheduler(Box::new(Basic::new()), ["spare"]).unwrap();
            assert_eq!(ordered.xstreams(), ["x1"]);
            moved.store(true, SeqCst);
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            assert_eq!(on(&ordered, here), "x1");
            runtime.shutdown().unwrap();
        });
    }
}

/// A scheduler that has itself replaced again as soon as it is replaced, until `is_over`.
struct Restless {
    xstream: XstreamRef,
    is_over: Arc<AtomicBool>,
    /// A scheduler that never had its turn is dropped by its replacer, which would be called again.
    has_served: bool,
}

impl Scheduler for Restless {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        self.has_served = true;
        pools.iter().find_map(PoolView::pop).map_or(Step::Idle, Step::Run)
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        if self.has_served && !self.is_over.load(SeqCst) {
            let (xstream, is_over) = (self.xstream.clone(), self.is_over.clone());
            let next = Self { xstream, is_over, has_served: false };
            self.xstream.set_scheduler(Box::new(next), ["p"]).unwrap();
        }
    }
}

#[test]
fn units_run_however_fast_changes_follow_each_other() {
    within(|| {
        let (runtime, pool) = shared(1);
        let xstream = runtime.xstream("x0").unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let (xstream, is_over) = (xstream.clone(), is_over.clone());
            let restless = Restless { xstream: xstream.clone(), is_over, has_served: false };
            xstream.set_scheduler(Box::new(restless), ["p"]).unwrap();
            // It has come to its turn when a unit has run.
            pool.spawn(|| ()).unwrap().join().unwrap();
        }
        let ults: Vec<_> = (0..10)
            .map(|_| pool.spawn(|| (0..100).for_each(|_| ult::yield_now())).unwrap())
            .collect();
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        is_over.store(true, SeqCst);
        runtime.shutdown().unwrap();
    });
}

/// Spawns from many threads and ULTs, while the scheduler changes at random.
#[test]
fn replacing_schedulers_at_random_loses_no_pool() {
    within(|| {
        let mut builder = Runtime::builder();
        for (name, kind) in [
            ("a", PoolKind::FifoWait),
            ("b", PoolKind::PrioWait),
            ("c", PoolKind::EarliestFirst),
            ("d", PoolKind::RandWs),
        ] {
            builder = builder.pool(PoolSpec::new(name).kind(kind));
        }
        let all = ["a", "b", "c", "d"];
        let runtime = builder
            .xstream(XstreamSpec::new("x0").pools(all))
            .xstream(XstreamSpec::new("x1").pools(all))
            .start()
            .unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let pools = runtime.pools();
        let changer = {
            let (runtime, ended) = (runtime.clone(), ended.clone());
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(7);
                let x1 = runtime.xstream("x1").unwrap();
                while ended.load(SeqCst) < 4000 {
                    let scheduler: Box<dyn Scheduler> = match rng.u8(..4) {
                        0 => Box::new(Basic::new()),
                        1 => Box::new(Prio::new()),
                        2 => Box::new(RandWs::new()),
                        _ => Box::new(RoundRobin::with_quotas([1, 2, 3, 4])),
                    };
                    let mut names = all.to_vec();
                    rng.shuffle(&mut names);
                    names.truncate(rng.usize(1..=4));
                    x1.set_scheduler(scheduler, names.iter().copied()).unwrap();
                    assert_eq!(x1.pools(), names);
                    std::thread::yield_now();
                }
            })
        };
        let mut spawned = 0;
        while spawned < 4000 {
            for pool in &pools {
                busy(pool, &ended);
                spawned += 1;
            }
            while spawned > ended.load(SeqCst) + 400 {
                std::thread::yield_now();
            }
        }
        changer.join().unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(ended.load(SeqCst), spawned);
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

#[test]
fn an_xstream_whose_pool_would_be_orphaned_keeps_it() {
    within(|| {
        let (runtime, pools) = private(2);
        let x1 = runtime.xstream("x1").unwrap();
        x1.join().unwrap();
        let waiting = pools[1].spawn(|| 3).unwrap();
        let to_p0 = || x1.set_scheduler(Box::new(Basic::new()), ["p0"]);
        let error = to_p0().unwrap_err();
        assert!(
            matches!(&error, LayoutError::NotEmpty { pool, units: 1 } if pool == "p1"),
            "{error}"
        );
        assert!(matches!(x1.remove(), Err(LayoutError::NotEmpty { .. })));
        assert_eq!((x1.state(), x1.pools()), (XstreamState::Terminated, vec!["p1".to_owned()]));
        x1.revive().unwrap();
        assert_eq!(waiting.join().unwrap(), 3);
        to_p0().unwrap();
        assert_eq!(pools[1].xstreams(), [""; 0]);
        assert_eq!(pools[0].xstreams(), ["x0", "x1"]);
        runtime.remove_pool(&pools[1]).unwrap();
        assert_eq!(on(&pools[0], || 5), 5);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_whose_pool_is_taken_away_are_still_run() {
    within(|| {
        let (runtime, pools) = private(2);
        let x0 = runtime.xstream("x0").unwrap();
        let changed = Arc::new(AtomicBool::new(false));
        let seen = changed.clone();
        let started = Arc::new(AtomicUsize::new(0));
        let inner_started = started.clone();
        let stray = pools[0].spawn(move || {
            inner_started.store(1, SeqCst);
            yield_until("changed", || seen.load(SeqCst));
            ult::sleep(Duration::from_millis(2));
            here()
        });
        crate::common::wait_until("started", || started.load(SeqCst) == 1);
        let x1 = runtime.xstream("x1").unwrap();
        x1.set_scheduler(Box::new(Basic::new()), ["p0", "p1"]).unwrap();
        x0.set_scheduler(Box::new(Basic::new()), ["p1"]).unwrap();
        changed.store(true, SeqCst);
        assert_eq!(stray.unwrap().join().unwrap(), "x0");
        assert_eq!(on(&pools[0], here), "x1");
        runtime.shutdown().unwrap();
    });
}
