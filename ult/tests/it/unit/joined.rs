//! Units that their joiner runs as its children: nobody may notice but by the time it takes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::common::{kinds, on, private, shared, within, yield_until};
use ult::{
    Eventual, JoinError, PoolKind, PoolRef, PoolSpec, PoolStats, PoolView, RandWs, Runtime,
    Scheduler, Step, UltLocal, XstreamSpec,
};

/// A work-stealing pool for each of `count` xstreams, which steal from each other.
fn stealing(count: usize) -> (Runtime, Vec<PoolRef>) {
    let mut builder = Runtime::builder();
    for place in 0..count {
        let pools = (0..count).map(|next| format!("p{}", (place + next) % count));
        let xstream = XstreamSpec::new(format!("x{place}")).rank(place).pools(pools);
        builder = builder
            .pool(PoolSpec::new(format!("p{place}")).kind(PoolKind::RandWs))
            .xstream(xstream.scheduler(Box::new(RandWs::new())));
    }
    let runtime = builder.start().unwrap();
    let pools = runtime.pools();
    (runtime, pools)
}

/// Forks into the pool of the xstream that the caller runs on.
fn fib(pools: &Arc<Vec<PoolRef>>, n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (pool, inner) = (&pools[ult::xstream_rank().unwrap() % pools.len()], pools.clone());
    let half = pool.spawn(move || fib(&inner, n - 1)).unwrap();
    let other = fib(pools, n - 2);
    half.join().unwrap() + other
}

/// How often units of `pool` were left that had not ended.
fn left(stats: &PoolStats) -> u64 {
    stats.executed - stats.finished
}

#[test]
fn a_tree_of_forks_has_its_value_in_every_layout() {
    within(|| {
        let (one, pool) = shared(2);
        for (runtime, pools) in [stealing(1), stealing(3), private(1), (one, vec![pool])] {
            let all = Arc::new(pools.clone());
            assert_eq!(on(&pools[0], move || fib(&all, 16)), 987);
            let sum = |of: fn(&PoolStats) -> u64| -> u64 {
                pools.iter().map(|pool| of(&pool.stats())).sum()
            };
            assert_eq!(sum(|stats| stats.created), 1_597, "one for each fork, and the root");
            assert_eq!(sum(|stats| stats.finished), 1_597);
            assert_eq!(sum(PoolStats::blocked), 0);
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_joiner_does_not_leave_its_xstream_for_a_unit_that_only_computes() {
    within(|| {
        for (runtime, pools) in [stealing(1), private(1)] {
            let inner = pools[0].clone();
            let before = pools[0].stats();
            on(&pools[0], move || {
                (0..1000)
                    .for_each(|n| assert_eq!(inner.spawn(move || n).unwrap().join().unwrap(), n));
            });
            let after = pools[0].stats();
            assert_eq!(after.finished - before.finished, 1_001);
            // The scheduler has its turn now and then.
            assert!(left(&after) - left(&before) < 100, "{before:?} {after:?}");
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_child_is_a_unit_of_its_own() {
    static LOCAL: UltLocal<Cell<u32>> = UltLocal::new(|| Cell::new(0));
    fn fill(depth: usize) -> usize {
        let page = std::hint::black_box([depth; 512]);
        if depth == 0 { page[0] } else { fill(depth - 1) + page[511] - depth + 1 }
    }
    within(|| {
        let (runtime, pools) = stealing(1);
        let inner = pools[0].clone();
        let own = move || {
            LOCAL.with(|local| local.set(7));
            let (pool, id) = (inner.clone(), ult::current().unwrap().id);
            let more = inner.clone();
            let child = pool.ult().name("child").stack_bytes(4 << 20).spawn(move || {
                let me = ult::current().unwrap();
                assert_eq!(me.name.as_deref(), Some("child"));
                assert_eq!(LOCAL.with(Cell::get), 0);
                assert!(ult::stack_left() > 3 << 20, "it has the stack that it asked for");
                assert_eq!(fill(500), 500);
                assert_eq!(more.spawn(|| LOCAL.with(Cell::get)).unwrap().join().unwrap(), 0);
                me.id
            });
            assert_ne!(child.unwrap().join().unwrap(), id);
            assert_eq!(LOCAL.with(Cell::get), 7);
            assert_eq!(ult::current().unwrap().id, id);
        };
        pools[0].ult().stack_bytes(64 << 10).spawn(own).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A chain of joiners, each of which runs the next as its child, down to `end`.
fn chain(pool: &PoolRef, depth: u32, end: Arc<dyn Fn() -> u32 + Send + Sync>) -> u32 {
    if depth == 0 {
        return end();
    }
    let inner = pool.clone();
    pool.spawn(move || chain(&inner, depth - 1, end)).unwrap().join().unwrap() + 1
}

#[test]
fn children_that_wait_let_everybody_else_run() {
    within(|| {
        for (runtime, pools) in [stealing(1), private(1)] {
            let gate = Arc::new(Eventual::<u32>::new());
            let ends: [Arc<dyn Fn() -> u32 + Send + Sync>; 2] = [
                Arc::new({
                    let gate = gate.clone();
                    move || *gate.wait()
                }),
                Arc::new(|| {
                    (0..3).for_each(|_| ult::yield_now());
                    5
                }),
            ];
            let chains = ends.map(|end| {
                let pool = pools[0].clone();
                pools[0].spawn(move || chain(&pool, 100, end)).unwrap()
            });
            // Runs beside them, on the only xstream.
            on(&pools[0], move || gate.set(5).unwrap());
            for chain in chains {
                assert_eq!(chain.join().unwrap(), 105);
            }
            assert_eq!(pools[0].stats().blocked(), 0);
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn panics_and_exits_of_children_are_outcomes() {
    within(|| {
        let (runtime, pools) = stealing(1);
        let inner = pools[0].clone();
        on(&pools[0], move || {
            let panics = inner.spawn(|| -> u32 { panic!("of a child") }).unwrap().join();
            assert!(panics.unwrap_err().to_string().contains("of a child"));
            let exits = inner.spawn(|| ult::exit()).unwrap().join();
            assert!(matches!(exits.unwrap_err(), JoinError::Exited));
            let cancelled = inner.spawn(|| ()).unwrap();
            cancelled.cancel();
            assert!(matches!(cancelled.join().unwrap_err(), JoinError::Cancelled));
            let (kept, ended) = inner.spawn(|| 1).unwrap().join_keep();
            assert_eq!(kept.unwrap(), 1);
            assert_eq!(ended.unwrap().revive(&inner, || 2).unwrap().join().unwrap(), 2);
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_joiner_is_cancelled_while_its_child_waits() {
    within(|| {
        let (runtime, pools) = stealing(1);
        let (gate, done) = (Arc::new(Eventual::<()>::new()), Arc::new(AtomicBool::new(false)));
        let (waits, ended, inner) = (gate.clone(), done.clone(), pools[0].clone());
        let begun = Arc::new(Eventual::<()>::new());
        let begins = begun.clone();
        let joiner = pools[0].spawn(move || {
            let child = move || {
                begins.set(()).unwrap();
                waits.wait();
                ended.store(true, SeqCst);
            };
            inner.spawn(child).unwrap().join().unwrap();
        });
        let joiner = joiner.unwrap();
        begun.wait();
        joiner.cancel();
        assert!(matches!(joiner.join().unwrap_err(), JoinError::Cancelled));
        assert!(!done.load(SeqCst), "the child goes on by itself");
        gate.set(()).unwrap();
        on(&pools[0], move || yield_until("the child", || done.load(SeqCst)));
        runtime.shutdown().unwrap();
    });
}

/// Forks and joins until `is_over` says so; how often.
fn forks_until(pool: &PoolRef, is_over: impl Fn() -> bool) -> usize {
    let mut forks = 0;
    while !is_over() {
        forks += 1;
        pool.spawn(|| ()).unwrap().join().unwrap();
        assert!(forks < 100_000, "the others never run");
    }
    forks
}

#[test]
fn others_have_their_turns_while_one_forks_and_joins() {
    within(|| {
        let (runtime, pools) = kinds(&[("ws", PoolKind::RandWs), ("fifo", PoolKind::Fifo)]);
        let (first, second) = (pools[0].clone(), pools[1].clone());
        let turns = Arc::new(AtomicUsize::new(0));
        let counts = turns.clone();
        let yields = pools[0].spawn(move || {
            while counts.fetch_add(1, SeqCst) < 10 {
                ult::yield_now();
            }
        });
        on(&pools[0], move || {
            yield_until("the other one", || turns.load(SeqCst) > 0);
            let forks = forks_until(&first, || turns.load(SeqCst) >= 10);
            assert!(forks < 40, "one of the same pool that can go on: {forks}");
            let ran = Arc::new(AtomicBool::new(false));
            let runs = ran.clone();
            second.ult().spawn_detached(move || runs.store(true, SeqCst)).unwrap();
            let forks = forks_until(&first, || ran.load(SeqCst));
            assert!(forks < 300, "one of the next pool: {forks}");
            // A timer is looked at after each unit.
            let ran = Arc::new(AtomicBool::new(false));
            let runs = ran.clone();
            let late = second
                .ult()
                .spawn_after(std::time::Duration::from_micros(1), move || runs.store(true, SeqCst));
            let late = late.unwrap();
            forks_until(&first, || ran.load(SeqCst));
            drop(late);
        });
        yields.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A policy of the user, which wants to see all units.
struct Counts(Arc<AtomicUsize>);

impl Scheduler for Counts {
    fn next(&mut self, pools: &[PoolView<'_>]) -> Step {
        let unit = pools.iter().find_map(PoolView::pop);
        self.0.fetch_add(usize::from(unit.is_some()), SeqCst);
        unit.map_or(Step::Idle, Step::Run)
    }
}

#[test]
fn a_scheduler_of_the_user_picks_every_unit() {
    within(|| {
        let picks = Arc::new(AtomicUsize::new(0));
        let scheduler = Box::new(Counts(picks.clone()));
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p").kind(PoolKind::RandWs))
            .xstream(XstreamSpec::new("x").pools(["p"]).scheduler(scheduler))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let inner = pool.clone();
        on(&pool, move || (0..100).for_each(|_| inner.spawn(|| ()).unwrap().join().unwrap()));
        assert!(picks.load(SeqCst) >= 200, "each unit, and its joiner again");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn only_the_unit_that_comes_next_is_run_as_a_child() {
    within(|| {
        let (runtime, pools) = stealing(1);
        let (inner, log) = (pools[0].clone(), Arc::new(Mutex::new(Vec::new())));
        let seen = log.clone();
        on(&pools[0], move || {
            let units: Vec<_> = (0..8)
                .map(|n| {
                    let seen = seen.clone();
                    inner.spawn(move || seen.lock().unwrap().push(n)).unwrap()
                })
                .collect();
            // The oldest, which is at the far end.
            units.into_iter().for_each(|unit| unit.join().unwrap());
        });
        let mut order = log.lock().unwrap().clone();
        assert_eq!(order[0], 7, "the newest first: {order:?}");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..8));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_child_may_hand_over_to_others() {
    within(|| {
        let (runtime, pools) = stealing(1);
        let inner = pools[0].clone();
        let sum = on(&pools[0], move || {
            let (ready, more) = (Arc::new(Eventual::new()), inner.clone());
            let told = ready.clone();
            // Parks, and is resumed by the child, which lets it run at once.
            let parks = inner.spawn(move || {
                told.set(ult::unparker()).ok().unwrap();
                ult::park();
                1
            });
            let unparker = ready.wait().clone();
            let child = inner.spawn(move || {
                unparker.yield_to();
                more.ult().spawn_to(|| 2).unwrap().join().unwrap()
            });
            child.unwrap().join().unwrap() + parks.unwrap().join().unwrap()
        });
        assert_eq!(sum, 3);
        runtime.shutdown().unwrap();
    });
}
