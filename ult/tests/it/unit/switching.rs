//! The `_to` family, nested runs, and stacked schedulers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{here, kinds, on, private, shared, wait_until, within, yield_until};
use ult::{
    Basic, Eventual, JoinError, PoolKind, PoolRef, PoolSpec, RoundRobin, Runtime, ToError, Unit,
    Unparker,
};

type Log = Arc<Mutex<Vec<String>>>;

fn say(log: &Log, what: impl Into<String>) {
    log.lock().unwrap().push(what.into());
}

/// Takes the unit out of `pool` that was just spawned there.
fn pop(pool: &PoolRef) -> Unit {
    pool.pop().expect("a unit waits there")
}

fn parked(pool: &PoolRef, log: &Log, name: &'static str) -> (ult::JoinHandle<()>, Unparker) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let log = log.clone();
    let body = move || {
        sender.send(ult::unparker()).unwrap();
        ult::park();
        say(&log, name);
    };
    let handle = pool.ult().name(name).spawn(body).unwrap();
    let unparker = loop {
        match receiver.try_recv() {
            Ok(unparker) => break unparker,
            Err(_) => ult::yield_now(),
        }
    };
    // Until it has really parked.
    ult::yield_now();
    (handle, unparker)
}

#[test]
fn yield_to_runs_exactly_the_named_unit() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let log = on(&pools[0], move || {
            let log = Log::default();
            let spawn = |name: &'static str| {
                let log = log.clone();
                pool.spawn(move || say(&log, name)).unwrap()
            };
            let handles = [spawn("first"), spawn("second"), spawn("third")];
            let mut units = pool.pop_many(3);
            assert_eq!(units.len(), 3);
            let third = units.pop().unwrap();
            pool.push_many(units).unwrap();
            say(&log, "main");
            ult::yield_to(third).unwrap();
            say(&log, "main");
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            log
        });
        // The caller went behind the two that were queued.
        assert_eq!(*log.lock().unwrap(), ["main", "third", "first", "second", "main"]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn park_to_and_exit_to_run_the_named_unit_and_leave() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let log = on(&pools[0], move || {
            let log = Log::default();
            let (inner, inner_log) = (pool.clone(), log.clone());
            let me = ult::unparker();
            let leaver = pool.spawn(move || {
                let last_log = inner_log.clone();
                let last = inner.spawn(move || say(&last_log, "last")).unwrap();
                say(&inner_log, "leaver");
                let unit = pop(&inner);
                me.unpark();
                // Main is runnable now, and yet `last` comes first.
                drop(last);
                match ult::exit_to(unit) {
                    Err(error) => panic!("{error}"),
                    Ok(never) => match never {},
                }
            });
            ult::park_to(pop(&pool)).unwrap();
            say(&log, "main");
            assert!(matches!(leaver.unwrap().join(), Err(JoinError::Exited)));
            log
        });
        assert_eq!(*log.lock().unwrap(), ["leaver", "last", "main"]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn park_to_with_a_token_queues_the_unit_and_goes_on() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        on(&pools[0], move || {
            let ran = Arc::new(AtomicBool::new(false));
            let seen = ran.clone();
            let handle = pool.spawn(move || ran.store(true, SeqCst)).unwrap();
            ult::unparker().unpark();
            ult::park_to(pop(&pool)).unwrap();
            assert!(!seen.load(SeqCst), "there was no need to suspend");
            handle.join().unwrap();
            assert!(seen.load(SeqCst));
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn unparker_to_family_switches_to_the_parked_ult() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let log = on(&pools[0], move || {
            let log = Log::default();
            let (one, unpark_one) = parked(&pool, &log, "one");
            let other_log = log.clone();
            let other = pool.spawn(move || say(&other_log, "other")).unwrap();
            unpark_one.yield_to();
            say(&log, "main");
            one.join().unwrap();
            other.join().unwrap();

            let (two, unpark_two) = parked(&pool, &log, "two");
            let me = ult::unparker();
            let waker = pool.spawn(move || me.unpark()).unwrap();
            unpark_two.park_to();
            say(&log, "main");
            two.join().unwrap();
            waker.join().unwrap();

            let (three, unpark_three) = parked(&pool, &log, "three");
            let last_log = log.clone();
            let leaver = pool.spawn(move || {
                say(&last_log, "leaver");
                unpark_three.exit_to()
            });
            let leaver: ult::JoinHandle<()> = leaver.unwrap();
            ult::yield_now();
            say(&log, "main");
            assert!(matches!(leaver.join(), Err(JoinError::Exited)));
            three.join().unwrap();
            log
        });
        let expected = ["one", "other", "main", "two", "main", "leaver", "three", "main"];
        assert_eq!(*log.lock().unwrap(), expected);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn who_is_switched_to_is_not_blocked() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        on(&pools[0], move || {
            let blocked = || pool.stats().blocked();
            let log = Log::default();
            let (waiter, unpark_waiter) = parked(&pool, &log, "waiter");
            let (sender, receiver) = std::sync::mpsc::channel();
            let body = move || {
                sender.send(ult::unparker()).unwrap();
                (0..100).for_each(|_| ult::park());
            };
            let pinged = pool.spawn(body).unwrap();
            ult::yield_now();
            let unpark_pinged = receiver.try_recv().unwrap();
            for round in 0..99 {
                assert_eq!(blocked(), 2, "{round}");
                unpark_pinged.yield_to();
            }
            let me = ult::unparker();
            let waker = pool.spawn(move || me.unpark()).unwrap();
            unpark_pinged.park_to();
            assert_eq!(blocked(), 1, "it has ended");
            waker.join().unwrap();
            pinged.join().unwrap();
            // Out of its queue and back, which is no resume.
            let runnable = pool.spawn(ult::yield_now).unwrap();
            ult::yield_now();
            pool.push(pop(&pool)).unwrap();
            assert_eq!(blocked(), 1);
            runnable.join().unwrap();
            unpark_waiter.unpark();
            waiter.join().unwrap();
            assert_eq!(blocked(), 0);
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn unparker_to_family_of_a_far_or_ended_target_is_unpark_and_yield() {
    within(|| {
        let (runtime, pools) = private(2);
        let (sender, receiver) = std::sync::mpsc::channel();
        let far = pools[1].spawn(move || {
            sender.send(ult::unparker()).unwrap();
            ult::park();
            here()
        });
        let unparker = receiver.recv().unwrap();
        let ended = unparker.clone();
        on(&pools[0], move || unparker.yield_to());
        assert_eq!(far.unwrap().join().unwrap(), "x1");
        on(&pools[0], move || ended.yield_to());
        // From an OS thread, and to one.
        let thread = ult::unparker();
        thread.yield_to();
        ult::park();
        let itself = on(&pools[0], || {
            ult::unparker().yield_to();
            ult::park();
            1
        });
        assert_eq!(itself, 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_unit_that_cannot_run_here_is_given_back() {
    within(|| {
        let (runtime, pools) = private(2);
        let (other, other_pool) = shared(1);
        // A foreign runtime's unit.
        let x0 = other.xstream("x0").unwrap();
        x0.join().unwrap();
        let foreign = other_pool.spawn(|| 8).unwrap();
        let unit = other_pool.pop();
        // In a list of a joined xstream, or in the queue of its pool: the latter can be had.
        let unit = unit.expect("nobody serves the pool");
        let unit = on(&pools[0], move || {
            let unit = match ult::yield_to(unit) {
                Err(ToError::OtherRuntime(unit)) => unit,
                other => panic!("{other:?}"),
            };
            let unit = ult::park_to(unit).unwrap_err().into_unit();
            let unit = ult::run_unit(unit).unwrap_err().into_unit();
            match ult::exit_to(unit) {
                Err(error) => error.into_unit(),
                Ok(never) => match never {},
            }
        });
        // From a thread and from a tasklet.
        let unit = match ult::yield_to(unit) {
            Err(ToError::NotUlt(unit)) => unit,
            other => panic!("{other:?}"),
        };
        let tasklet = pools[0].tasklet().spawn(move || match ult::run_unit(unit) {
            Err(ToError::NotUlt(unit)) => unit,
            other => panic!("{other:?}"),
        });
        let unit = tasklet.unwrap().join().unwrap();
        other_pool.push(unit).unwrap();
        x0.revive().unwrap();
        assert_eq!(foreign.join().unwrap(), 8);
        other.shutdown().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_that_started_elsewhere_is_given_back() {
    within(|| {
        let (runtime, pools) = private(2);
        let (p0, p1) = (pools[0].clone(), pools[1].clone());
        // Pops a started ULT on its own xstream and brings it to another.
        let (stop, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, inner_started) = (stop.clone(), started.clone());
        let wanderer = pools[0].spawn(move || {
            inner_started.store(true, SeqCst);
            yield_until("stop", || seen.load(SeqCst));
            here()
        });
        wait_until("started", || started.load(SeqCst));
        let inner = p0.clone();
        let unit = on(&p0, move || {
            let unit = pop(&inner);
            assert!(unit.is_started());
            unit
        });
        let unit = on(&p1, move || match ult::yield_to(unit) {
            Err(ToError::OtherXstream(unit)) => unit,
            other => panic!("{other:?}"),
        });
        let (unit, error) = pools[1].push(unit).unwrap_err();
        assert!(matches!(error, ult::MigrateError::NotServed { .. }), "{error}");
        pools[0].push(unit).unwrap();
        stop.store(true, SeqCst);
        assert_eq!(wanderer.unwrap().join().unwrap(), "x0");
        runtime.shutdown().unwrap();
    });
}

/// Also into pools with an order of their own, which another xstream serves.
#[test]
fn spawn_to_starts_here_whatever_serves_the_pool() {
    for kind in [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::EarliestFirst, PoolKind::RandWs]
    {
        within(move || {
            let runtime = Runtime::builder()
                .pool(PoolSpec::new("p0"))
                .pool(PoolSpec::new("p1").kind(kind))
                .xstream(ult::XstreamSpec::new("x0").pools(["p0"]))
                .xstream(ult::XstreamSpec::new("x1").pools(["p1"]))
                .start()
                .unwrap();
            let p1 = runtime.pool("p1").unwrap();
            let inner = p1.clone();
            let homes = on(&runtime.pool("p0").unwrap(), move || {
                let child = inner.ult().spawn_to(|| {
                    let first = here();
                    (0..10).for_each(|_| ult::yield_now());
                    ult::sleep(Duration::from_millis(1));
                    [first, here()]
                });
                child.unwrap().join().unwrap()
            });
            assert_eq!(homes, ["x0", "x0"]);
            // On an OS thread it is a plain spawn.
            assert_eq!(p1.ult().spawn_to(here).unwrap().join().unwrap(), "x1");
            let tasklet = p1.clone();
            let spawned = runtime
                .pool("p0")
                .unwrap()
                .tasklet()
                .spawn(move || tasklet.ult().spawn_to(here).unwrap());
            assert_eq!(spawned.unwrap().join().unwrap().join().unwrap(), "x1");
            runtime.shutdown().unwrap();
            assert_eq!(p1.total_len(), 0);
        });
    }
}

#[test]
fn run_unit_nests_and_comes_back() {
    within(|| {
        let (runtime, _) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let main = runtime.pool("p").unwrap();
        let log = on(&main, move || {
            let log = Log::default();
            let (inner, inner_log) = (side.clone(), log.clone());
            let outer = side.spawn(move || {
                say(&inner_log, "outer");
                let deep_log = inner_log.clone();
                let deep = inner.spawn(move || {
                    say(&deep_log, "deep");
                    ult::yield_now();
                    say(&deep_log, "deep again");
                    assert_eq!(ult::current().unwrap().pool, "side");
                });
                ult::run_unit(pop(&inner)).unwrap();
                say(&inner_log, "outer again");
                ult::yield_now();
                deep.unwrap().join().unwrap();
                say(&inner_log, "outer ends");
            });
            let tasklet_log = log.clone();
            let me = ult::current().unwrap().id;
            ult::run_unit(pop(&side)).unwrap();
            assert_eq!(ult::current().unwrap().id, me);
            say(&log, "main");
            let tasklet = side.tasklet().spawn(move || say(&tasklet_log, "tasklet")).unwrap();
            while let Some(unit) = side.pop() {
                ult::run_unit(unit).unwrap();
            }
            tasklet.join().unwrap();
            outer.unwrap().join().unwrap();
            assert_eq!(side.total_len(), 0);
            log
        });
        let log = log.lock().unwrap();
        assert_eq!(log[..4], ["outer", "deep", "outer again", "main"]);
        for last in ["deep again", "outer ends", "tasklet"] {
            assert_eq!(log.iter().filter(|said| *said == last).count(), 1, "{log:?}");
        }
        runtime.shutdown().unwrap();
    });
}

/// A ULT that comes back from a switch is not forgotten when the ULT that it switched to runs a
/// child.
#[test]
fn a_ult_that_was_switched_to_may_run_children_and_yield() {
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let log = Log::default();
        on(&main, {
            let (log, main) = (log.clone(), main.clone());
            move || {
                let (runs_log, child_log) = (log.clone(), log.clone());
                let child = side.spawn(move || say(&child_log, "child")).unwrap();
                let runner = main.spawn(move || {
                    ult::yield_now();
                    ult::run_unit(pop(&side)).unwrap();
                    say(&runs_log, "runner");
                    ult::yield_now();
                    say(&runs_log, "runner again");
                });
                ult::yield_now();
                // It has started, so this is a switch past the scheduler.
                ult::yield_to(pop(&main)).unwrap();
                say(&log, "main");
                runner.unwrap().join().unwrap();
                child.join().unwrap();
            }
        });
        assert_eq!(*log.lock().unwrap(), ["child", "runner", "main", "runner again"]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_child_that_panics_exits_or_is_cancelled_comes_back_to_its_runner() {
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        on(&main, move || {
            let panics = side.spawn(|| -> () { panic!("child") }).unwrap();
            ult::run_unit(pop(&side)).unwrap();
            assert!(matches!(panics.join(), Err(JoinError::Panicked(_))));
            let exits = side.spawn(|| -> () { ult::exit() }).unwrap();
            ult::run_unit(pop(&side)).unwrap();
            assert!(matches!(exits.join(), Err(JoinError::Exited)));
            let cancelled = side.spawn(|| ()).unwrap();
            cancelled.cancel();
            ult::run_unit(pop(&side)).unwrap();
            assert!(matches!(cancelled.join(), Err(JoinError::Cancelled)));
            assert_eq!(side.total_len(), 0);
        });
        runtime.shutdown().unwrap();
    });
}

/// A chain of switches does not pile up on any stack.
#[test]
fn a_long_ring_of_yield_to_runs_side_by_side() {
    const ROUNDS: usize = 20_000;
    within(|| {
        let (runtime, pools) = private(1);
        let count = Arc::new(AtomicUsize::new(0));
        let pool = pools[0].clone();
        let total = count.clone();
        on(&pools[0], move || {
            let handles: Vec<_> = (0..3)
                .map(|_| {
                    let (inner, count) = (pool.clone(), count.clone());
                    let body = move || {
                        for _ in 0..ROUNDS {
                            count.fetch_add(1, SeqCst);
                            match inner.pop() {
                                Some(unit) => ult::yield_to(unit).unwrap(),
                                None => ult::yield_now(),
                            }
                        }
                    };
                    pool.spawn(body).unwrap()
                })
                .collect();
            handles.into_iter().for_each(|handle| handle.join().unwrap());
        });
        assert_eq!(total.load(SeqCst), 3 * ROUNDS);
        runtime.shutdown().unwrap();
    });
}

/// Sub-schedulers that are units run their pools in their order, and vanish.
#[test]
fn stacked_schedulers_run_their_pools_and_end() {
    within(|| {
        let (runtime, main) = shared(1);
        let low: Vec<_> = ["a", "b"]
            .map(|name| runtime.add_pool(PoolSpec::new(name)).unwrap())
            .into_iter()
            .collect();
        let log = Log::default();
        let mut handles = Vec::new();
        for n in 0..4 {
            for pool in &low {
                let (log, name) = (log.clone(), pool.name().to_owned());
                let body = move || say(&log, format!("{name}{n}"));
                handles.push(pool.spawn(body).unwrap());
            }
        }
        let quotas = Box::new(RoundRobin::with_quotas([2, 1]));
        let scheduler = main.push_scheduler(quotas, low.clone()).unwrap();
        scheduler.join().unwrap();
        let expected = ["a0", "a1", "b0", "a2", "a3", "b1", "b2", "b3"];
        assert_eq!(*log.lock().unwrap(), expected);
        assert!(low.iter().all(|pool| pool.xstreams().is_empty()), "it has vanished");
        low.iter().for_each(|pool| runtime.remove_pool(pool).unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_stacked_scheduler_waits_for_suspended_children() {
    within(|| {
        let (runtime, main) = shared(2);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let child = side.spawn(move || {
            ult::sleep(Duration::from_millis(1));
            let value = *inner.wait();
            ult::yield_now();
            value
        });
        let scheduler = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        assert_eq!(on(&main, || 3), 3, "others run meanwhile");
        assert!(!scheduler.is_finished());
        // What comes meanwhile is run as well.
        assert_eq!(side.spawn(|| 4).unwrap().join().unwrap(), 4);
        gate.set(9).unwrap();
        assert_eq!(child.unwrap().join().unwrap(), 9);
        scheduler.join().unwrap();
        assert_eq!(side.total_len(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn schedulers_stack_on_schedulers() {
    within(|| {
        let (runtime, main) = shared(1);
        let pools: Vec<_> =
            (0..3).map(|n| runtime.add_pool(PoolSpec::new(format!("level{n}"))).unwrap()).collect();
        let deepest = pools[2].spawn(|| {
            (0..100).for_each(|_| ult::yield_now());
            ult::sleep(Duration::from_millis(1));
            5
        });
        let inner = pools[1].push_scheduler(Box::new(Basic::new()), [pools[2].clone()]).unwrap();
        let middle = pools[0].push_scheduler(Box::new(Basic::new()), [pools[1].clone()]).unwrap();
        let outer = main.push_scheduler(Box::new(Basic::new()), [pools[0].clone()]).unwrap();
        assert_eq!(deepest.unwrap().join().unwrap(), 5);
        [inner, middle, outer].into_iter().for_each(|scheduler| scheduler.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// The children are at home on the xstream, which goes on running them.
#[test]
fn children_of_a_cancelled_scheduler_are_not_lost() {
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let gate = Arc::new(Eventual::new());
        let started = Arc::new(AtomicBool::new(false));
        let (inner, inner_started) = (gate.clone(), started.clone());
        let child = side.spawn(move || {
            inner_started.store(true, SeqCst);
            *inner.wait()
        });
        let scheduler = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        wait_until("started", || started.load(SeqCst));
        scheduler.cancel();
        assert!(matches!(scheduler.join(), Err(JoinError::Cancelled)));
        assert!(side.xstreams().is_empty());
        // New units in other descriptors, so that a stale pointer would hit one of them.
        let others: Vec<_> = (0..10).map(|n| main.spawn(move || n).unwrap()).collect();
        gate.set(6).unwrap();
        assert_eq!(child.unwrap().join().unwrap(), 6);
        others.into_iter().enumerate().for_each(|(n, other)| assert_eq!(other.join().unwrap(), n));
        let waits = side.spawn(|| 7).unwrap();
        let again = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        assert_eq!(waits.join().unwrap(), 7);
        again.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_stacked_scheduler_that_panics_leaves_its_pools() {
    struct Faulty;
    impl ult::Scheduler for Faulty {
        fn next(&mut self, _pools: &[ult::PoolView<'_>]) -> ult::Step {
            panic!("at fault")
        }
    }
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let unit = side.spawn(|| 7).unwrap();
        let scheduler = main.push_scheduler(Box::new(Faulty), [side.clone()]).unwrap();
        assert!(matches!(scheduler.join(), Err(JoinError::Panicked(_))));
        assert!(side.xstreams().is_empty());
        let again = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        assert_eq!(unit.join().unwrap(), 7);
        again.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_stacked_scheduler_ends_when_its_last_units_leave_by_another_way() {
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let started = Arc::new(AtomicBool::new(false));
        let inner_started = started.clone();
        let (main_pool, gate) = (main.clone(), Arc::new(Eventual::<u8>::new()));
        let inner_gate = gate.clone();
        let child = side.spawn(move || {
            ult::set_pool(&main_pool).unwrap();
            inner_started.store(true, SeqCst);
            *inner_gate.wait()
        });
        let scheduler = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        wait_until("started", || started.load(SeqCst));
        scheduler.join().unwrap();
        gate.set(1).unwrap();
        assert_eq!(child.unwrap().join().unwrap(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn kinds_of_pools_can_be_stacked() {
    for kind in [PoolKind::PrioWait, PoolKind::EarliestFirst, PoolKind::RandWs] {
        within(move || {
            let (runtime, pools) = kinds(&[("main", PoolKind::FifoWait)]);
            let side = runtime.add_pool(PoolSpec::new("side").kind(kind)).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..50 {
                let ran = ran.clone();
                let body = move || {
                    ult::yield_now();
                    ult::sleep(Duration::from_micros(100));
                    ran.fetch_add(1, SeqCst);
                };
                side.ult().spawn_detached(body).unwrap();
            }
            let scheduler = pools[0].push_scheduler(Box::new(Basic::new()), [side]).unwrap();
            scheduler.join().unwrap();
            assert_eq!(ran.load(SeqCst), 50);
            runtime.shutdown().unwrap();
        });
    }
}

/// Two ULTs that switch to each other for ever under a stacked scheduler leave the xstream time for
/// its other units and its mail.
#[test]
fn a_chain_of_switches_under_a_stacked_scheduler_ends_its_turn() {
    within(|| {
        let (runtime, main) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let switching = || {
            let (side, stop) = (side.clone(), stop.clone());
            move || {
                while !stop.load(SeqCst) {
                    match side.pop() {
                        Some(unit) => ult::yield_to(unit).unwrap(),
                        None => ult::yield_now(),
                    }
                }
            }
        };
        let ults = [(); 2].map(|()| side.spawn(switching()).unwrap());
        let scheduler = main.push_scheduler(Box::new(Basic::new()), [side.clone()]).unwrap();
        // From here, by way of the xstream's inbox, and then from one of its units.
        on(&main, || ());
        on(&main, move || stop.store(true, SeqCst));
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        scheduler.join().unwrap();
        runtime.shutdown().unwrap();
    });
}
