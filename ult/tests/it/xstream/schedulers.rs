//! The orders in which schedulers run units, and schedulers of the user's own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::common::{here, kinds, on, private, wait_until, within};
use ult::{
    Barrier, Basic, BasicWait, PoolKind, PoolRef, PoolSpec, PoolView, Prio, RandWs, RoundRobin,
    Runtime, Scheduler, Step, Unit, XstreamSpec,
};

type Log = Arc<Mutex<Vec<String>>>;

/// Pools of these names, all served by one xstream with this scheduler.
fn under(scheduler: Box<dyn Scheduler>, names: &[&str]) -> (Runtime, Vec<PoolRef>) {
    let xstream = XstreamSpec::new("x0").pools(names.iter().copied()).scheduler(scheduler);
    let mut builder = Runtime::builder().xstream(xstream);
    for name in names {
        builder = builder.pool(PoolSpec::new(*name));
    }
    let runtime = builder.start().unwrap();
    let pools = runtime.pools();
    (runtime, pools)
}

/// Queues `counts[n]` units in pool `n` while nothing runs, and returns the order they ran in.
fn order(pools: &[PoolRef], first: usize, counts: &[usize]) -> String {
    let log = Log::default();
    let (inner, all, counts) = (log.clone(), pools.to_vec(), counts.to_vec());
    let handles = on(&pools[first], move || {
        let mut handles = Vec::new();
        for (pool, count) in all.iter().zip(counts) {
            for _ in 0..count {
                let (log, name) = (inner.clone(), pool.name().to_owned());
                handles.push(pool.spawn(move || log.lock().unwrap().push(name)).unwrap());
            }
        }
        handles
    });
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    log.lock().unwrap().concat()
}

#[test]
fn round_robin_keeps_its_quotas_exactly() {
    within(|| {
        // The unit that fills the pools is the first of the first pool's quota.
        for (quotas, expected) in [
            (vec![], "bcabcabcaaa"),
            (vec![2, 1, 3], "abcccaabaab"),
            (vec![3, 2], "aabbcaaabca"),
            (vec![0, 0, 9], "bcccabaaaaa"),
        ] {
            let scheduler = RoundRobin::with_quotas(quotas.clone());
            let (runtime, pools) = under(Box::new(scheduler), &["a", "b", "c"]);
            let mut counts = [0; 3];
            for name in expected.bytes() {
                counts[usize::from(name - b'a')] += 1;
            }
            assert_eq!(order(&pools, 0, &counts), expected, "quotas {quotas:?}");
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn round_robin_serves_a_busy_pool_and_the_others() {
    within(|| {
        let (runtime, pools) = under(Box::new(RoundRobin::new()), &["a", "b"]);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let busy = pools[0].spawn(move || {
            let mut yields = 0u32;
            while !seen.load(SeqCst) {
                ult::yield_now();
                yields += 1;
            }
            yields
        });
        for _ in 0..100 {
            on(&pools[1], ult::yield_now);
        }
        stop.store(true, SeqCst);
        assert!(busy.unwrap().join().unwrap() >= 100, "it had its turns as well");
        runtime.shutdown().unwrap();
    });
}

/// Whenever a unit runs, every pool before its own is empty; also after a yield.
#[test]
fn prio_is_strict() {
    within(|| {
        let names = ["high", "mid", "low"];
        let (runtime, pools) = under(Box::new(Prio::new()), &names);
        let all = pools.clone();
        let checks = on(&pools[2], move || {
            let checks = Arc::new(AtomicUsize::new(0));
            let mut handles = Vec::new();
            for (level, pool) in all.iter().enumerate().rev() {
                for n in 0..40 {
                    let (above, checks) = (all[..level].to_vec(), checks.clone());
                    let next = all[(level + n) % 3].clone();
                    let body = move || {
                        let check = || {
                            assert!(above.iter().all(PoolRef::is_empty), "a better one waits");
                            checks.fetch_add(1, SeqCst);
                        };
                        check();
                        if !ult::is_tasklet() {
                            next.ult().spawn_detached(|| ()).unwrap();
                            ult::yield_now();
                            check();
                        }
                    };
                    let builder = if n % 4 == 0 { pool.tasklet() } else { pool.ult() };
                    handles.push(builder.spawn(body).unwrap());
                }
            }
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            checks.load(SeqCst)
        });
        assert_eq!(checks, 3 * (10 + 2 * 30));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn prio_starves_and_basic_does_not() {
    within(|| {
        for starves in [true, false] {
            let scheduler: Box<dyn Scheduler> =
                if starves { Box::new(Prio::new()) } else { Box::new(Basic::new()) };
            let (runtime, pools) = under(scheduler, &["high", "low"]);
            let ran = Arc::new(AtomicBool::new(false));
            let (seen, low) = (ran.clone(), pools[1].clone());
            let busy = pools[0].spawn(move || {
                let inner = ran.clone();
                low.ult().spawn_detached(move || inner.store(true, SeqCst)).unwrap();
                (0..1000).for_each(|_| ult::yield_now());
                ran.load(SeqCst)
            });
            assert_eq!(busy.unwrap().join().unwrap(), !starves);
            wait_until("the other one has run", || seen.load(SeqCst));
            runtime.shutdown().unwrap();
        }
    });
}

/// Spawns children from ULTs, some of them in another pool.
fn nested(pools: &[PoolRef], levels: usize, count: &Arc<AtomicUsize>) {
    count.fetch_add(1, SeqCst);
    ult::yield_now();
    if levels == 0 {
        return;
    }
    let children: Vec<_> = (0..3)
        .map(|n| {
            let (inner, count) = (pools.to_vec(), count.clone());
            let pool = &pools[(levels + n) % pools.len()];
            pool.spawn(move || nested(&inner, levels - 1, &count)).unwrap()
        })
        .collect();
    children.into_iter().for_each(|child| child.join().unwrap());
}

#[test]
fn nested_ults_run_under_every_scheduler() {
    fn make(which: usize) -> Box<dyn Scheduler> {
        match which {
            0 => Box::new(Basic::new()),
            1 => Box::new(BasicWait::new()),
            2 => Box::new(Prio::new()),
            3 => Box::new(RandWs::new()),
            _ => Box::new(RoundRobin::with_quotas([3, 1])),
        }
    }
    within(|| {
        for which in 0..5 {
            let xstream = |name: &str, pools| {
                XstreamSpec::new(name).pools::<&str>(pools).scheduler(make(which))
            };
            let runtime = Runtime::builder()
                .pool(PoolSpec::new("a"))
                .pool(PoolSpec::new("b"))
                .xstream(xstream("x0", ["a", "b"]))
                .xstream(xstream("x1", ["b", "a"]))
                .start()
                .unwrap();
            let (pools, count) = (runtime.pools(), Arc::new(AtomicUsize::new(0)));
            let (inner, seen) = (pools.clone(), count.clone());
            on(&pools[0], move || nested(&inner, 5, &seen));
            assert_eq!(count.load(SeqCst), (3usize.pow(6) - 1) / 2);
            runtime.shutdown().unwrap();
        }
    });
}

/// All of it is spawned into one xstream's own pool; each unit runs once, here or there.
#[test]
fn stolen_work_is_counted_once() {
    const EACH: usize = 3000;
    within(|| {
        let mut builder = Runtime::builder();
        for index in 0..2 {
            let names = [format!("p{index}"), format!("p{}", 1 - index)];
            let xstream = XstreamSpec::new(format!("x{index}")).pools(names);
            builder = builder
                .pool(PoolSpec::new(format!("p{index}")).kind(PoolKind::RandWs))
                .xstream(xstream.scheduler(Box::new(RandWs::new())));
        }
        let runtime = builder.start().unwrap();
        let pool = runtime.pool("p0").unwrap();
        let (ran, away) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (inner, inner_ran, inner_away) = (pool.clone(), ran.clone(), away.clone());
        on(&pool, move || {
            let home = here();
            for n in 0..EACH {
                let (ran, away, home) = (inner_ran.clone(), inner_away.clone(), home.clone());
                let body = move || {
                    ran.fetch_add(1, SeqCst);
                    away.fetch_add(usize::from(here() != home), SeqCst);
                };
                let builder = if n % 2 == 0 { inner.ult() } else { inner.tasklet() };
                builder.spawn_detached(body).unwrap();
            }
            // This xstream is busy with us: what runs now has been stolen.
            wait_until("something is stolen", || inner_away.load(SeqCst) > 0);
        });
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), EACH);
        assert!(away.load(SeqCst) > 0);
        assert_eq!(pool.stats().finished, EACH as u64 + 1);
    });
}

#[test]
fn randws_runs_the_newest_of_its_own_first() {
    within(|| {
        let (runtime, pools) = kinds(&[("p", PoolKind::RandWs)]);
        let log = Log::default();
        let (inner, seen) = (pools[0].clone(), log.clone());
        let handles = on(&pools[0], move || {
            let spawn = |n: usize| {
                let log = seen.clone();
                inner.spawn(move || log.lock().unwrap().push(n.to_string())).unwrap()
            };
            (0..6).map(spawn).collect::<Vec<_>>()
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(log.lock().unwrap().concat(), "543210");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn earliest_first_runs_the_oldest_until_it_has_come_back_too_often() {
    within(|| {
        let (runtime, pools) = kinds(&[("p", PoolKind::EarliestFirst)]);
        let log = Log::default();
        let (inner, seen) = (pools[0].clone(), log.clone());
        let handles = on(&pools[0], move || {
            let spawn = |n: usize| {
                let log = seen.clone();
                let body = move || {
                    log.lock().unwrap().push(n.to_string());
                    ult::yield_now();
                    log.lock().unwrap().push(n.to_string());
                };
                inner.spawn(body).unwrap()
            };
            (0..3).map(spawn).collect::<Vec<_>>()
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        // An old one that yields is still the oldest.
        assert_eq!(log.lock().unwrap().concat(), "001122");

        // Numbers follow the time of creation among those of one xstream.
        let inner = pools[0].clone();
        let old = on(&pools[0], move || {
            let (pool, stop) = (inner.clone(), Arc::new(AtomicBool::new(false)));
            let old = move || {
                let seen = stop.clone();
                pool.ult().spawn_detached(move || stop.store(true, SeqCst)).unwrap();
                let mut yields = 0u32;
                while !seen.load(SeqCst) {
                    ult::yield_now();
                    yields += 1;
                }
                yields
            };
            inner.spawn(old).unwrap()
        });
        let yields = old.join().unwrap();
        assert!((16..100).contains(&yields), "the young one came after {yields} yields");
        runtime.shutdown().unwrap();
    });
}

/// On every xstream, before there is anything to do.
#[test]
fn schedulers_are_replaced_before_any_work() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("a"))
            .pool(PoolSpec::new("b"))
            .xstream(XstreamSpec::new("x0").pools(["a"]))
            .xstream(XstreamSpec::new("x1").pools(["b"]));
        let count = runtime.run(|runtime| {
            let count = Arc::new(AtomicUsize::new(0));
            for xstream in runtime.xstreams() {
                let own = xstream.pools();
                let other = if own == ["a"] { "b" } else { "a" };
                xstream.set_scheduler(Box::new(RandWs::new()), [own[0].as_str(), other]).unwrap();
                assert_eq!(xstream.pools(), [own[0].as_str(), other]);
            }
            nested(&runtime.pools(), 4, &count);
            // And back, while they run.
            for xstream in runtime.xstreams() {
                let first = xstream.pools().swap_remove(0);
                xstream.set_scheduler(Box::new(BasicWait::new()), [first]).unwrap();
            }
            nested(&runtime.pools(), 4, &count);
            count.load(SeqCst)
        });
        assert_eq!(count.unwrap(), 3usize.pow(5) - 1);
    });
}

/// A scheduler made of nothing but an ordinary ULT and `run_unit`.
fn schedule(pool: &PoolRef, until: &AtomicBool) -> usize {
    let mut ran = 0;
    loop {
        match pool.pop() {
            Some(unit) => {
                ult::run_unit(unit).unwrap();
                ran += 1;
            }
            None if until.load(SeqCst) => return ran,
            None => ult::yield_now(),
        }
    }
}

#[test]
fn an_ordinary_ult_schedules_others() {
    within(|| {
        let (runtime, pools) = private(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let (ended, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for n in 0..50 {
            let (ended, stop) = (ended.clone(), stop.clone());
            let body = move || {
                if n % 2 == 1 {
                    (0..3).for_each(|_| ult::yield_now());
                }
                if ended.fetch_add(1, SeqCst) == 49 {
                    stop.store(true, SeqCst);
                }
            };
            let builder = if n % 2 == 0 { side.tasklet() } else { side.ult() };
            builder.spawn_detached(body).unwrap();
        }
        let (inner, seen) = (side.clone(), stop.clone());
        let ran = on(&pools[0], move || schedule(&inner, &seen));
        assert_eq!((ended.load(SeqCst), side.total_len()), (50, 0));
        assert!(ran >= 50, "{ran} runs");
        runtime.shutdown().unwrap();
    });
}

/// Schedulers are ULTs here: they wait for each other, and hold a lock, as they like.
#[test]
fn schedulers_that_are_ults_meet_at_a_barrier() {
    const XSTREAMS: usize = 2;
    within(|| {
        let (runtime, pools) = private(XSTREAMS);
        let barrier = Arc::new(Barrier::new(XSTREAMS).unwrap());
        let rounds = Arc::new(ult::Mutex::new(vec![0usize; XSTREAMS]));
        let mut handles = Vec::new();
        for (n, pool) in pools.iter().enumerate() {
            let side = runtime.add_pool(PoolSpec::new(format!("side{n}"))).unwrap();
            let (barrier, rounds) = (barrier.clone(), rounds.clone());
            let body = move || {
                for round in 0..50 {
                    for _ in 0..4 {
                        let rounds = rounds.clone();
                        let body = move || {
                            ult::yield_now();
                            rounds.lock()[n] += 1;
                        };
                        side.ult().spawn_detached(body).unwrap();
                    }
                    while side.total_len() > 0 {
                        match side.pop() {
                            Some(unit) => ult::run_unit(unit).unwrap(),
                            None => ult::yield_now(),
                        }
                    }
                    barrier.wait();
                    assert_eq!(*rounds.lock(), [4 * (round + 1); XSTREAMS]);
                    barrier.wait();
                }
            };
            handles.push(pool.spawn(body).unwrap());
        }
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// Takes from its own pool, and every so often from the others in a turn of its own.
struct UserStealing {
    every: u32,
    picks: u32,
    victim: usize,
    stolen: Arc<AtomicUsize>,
}

impl UserStealing {
    fn steal(&mut self, others: &[PoolView<'_>]) -> Option<Unit> {
        let count = others.len();
        let unit = (0..count).find_map(|n| others[(self.victim + n) % count].steal())?;
        self.victim = (self.victim + 1) % count;
        self.stolen.fetch_add(1, SeqCst);
        Some(unit)
    }
}

impl Scheduler for UserStealing {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let (own, others) = pools.split_first().unwrap();
        self.picks += 1;
        let unit = if self.picks.is_multiple_of(self.every) {
            self.steal(others).or_else(|| own.pop())
        } else {
            own.pop().or_else(|| self.steal(others))
        };
        unit.map_or(Step::Idle, Step::Run)
    }
}

#[test]
fn a_stealing_scheduler_of_the_users_own_runs_everything() {
    const XSTREAMS: usize = 3;
    within(|| {
        let stolen = Arc::new(AtomicUsize::new(0));
        let mut builder = Runtime::builder();
        for index in 0..XSTREAMS {
            let names = (0..XSTREAMS).map(|n| format!("p{}", (index + n) % XSTREAMS));
            let every = [5, 10, 100][index];
            let scheduler = UserStealing { every, picks: 0, victim: 0, stolen: stolen.clone() };
            builder = builder.pool(PoolSpec::new(format!("p{index}"))).xstream(
                XstreamSpec::new(format!("x{index}")).pools(names).scheduler(Box::new(scheduler)),
            );
        }
        let runtime = builder.start().unwrap();
        let (pools, count) = (runtime.pools(), Arc::new(AtomicUsize::new(0)));
        let (inner, seen) = (pools.clone(), count.clone());
        // Only the first pool gets work to begin with.
        on(&pools[0], move || nested(&inner[..1], 6, &seen));
        runtime.shutdown().unwrap();
        assert_eq!(count.load(SeqCst), (3usize.pow(7) - 1) / 2);
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}
