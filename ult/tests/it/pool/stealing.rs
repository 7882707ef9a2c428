//! Units that may be taken from the pool of an xstream that is busy.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::common::{private, shared, wait_until, within};
use ult::{PoolKind, PoolRef, PoolSpec, Runtime, XstreamSpec};

/// Which units ran, and in which pool.
#[derive(Default, Clone)]
struct Log(Arc<Mutex<Vec<(usize, String)>>>);

impl Log {
    fn spawn(&self, pool: &PoolRef, number: usize) {
        let log = self.clone();
        pool.ult().name("stealable").spawn_stealable(move || log.note(number)).unwrap();
    }

    fn note(&self, number: usize) {
        self.0.lock().unwrap().push((number, ult::current().unwrap().pool));
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The numbers of the units that ran in `pool`, in their order.
    fn of(&self, pool: &PoolRef) -> Vec<usize> {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(_, ran_in)| ran_in == pool.name()).map(|(number, _)| *number).collect()
    }
}

/// Takes what there is, in its order.
fn steal_all(from: &PoolRef, to: &PoolRef) -> usize {
    let stolen = std::iter::from_fn(|| from.steal());
    stolen.map(|unit| assert!(!unit.is_started() && to.push(unit).is_ok())).count()
}

#[test]
fn an_xstream_that_is_stuck_can_be_relieved_and_keeps_what_is_its_own() {
    within(|| {
        let (runtime, pools) = private(2);
        let (log, own) = (Log::default(), pools[0].clone());
        let stolen = Arc::new(AtomicUsize::new(0));
        let (begun, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (all, is_begun, is_told) = (log.clone(), begun.clone(), told.clone());
        let stuck = own.clone().spawn(move || {
            let first = own.spawn(|| ult::current().unwrap().pool).unwrap();
            (0..5).for_each(|number| all.spawn(&own, number));
            is_begun.store(true, SeqCst);
            // It does not yield until the others have run.
            wait_until("they ran elsewhere", || is_told.load(SeqCst));
            all.spawn(&own, 5);
            first
        });
        wait_until("they wait", || begun.load(SeqCst));
        assert!(pools[0].has_stealable() && !pools[1].has_stealable());
        assert!(pools[1].steal().is_none());
        let (from, to, count) = (pools[0].clone(), pools[1].clone(), stolen.clone());
        let thief = pools[1].spawn(move || count.fetch_add(steal_all(&from, &to), SeqCst));
        thief.unwrap().join().unwrap();
        wait_until("they have run", || log.len() == 5);
        assert!(!pools[0].has_stealable());
        told.store(true, SeqCst);
        let first = stuck.unwrap().join().unwrap();
        assert_eq!(first.join().unwrap(), "p0", "spawned as any other");
        runtime.shutdown().unwrap();
        assert_eq!((stolen.load(SeqCst), log.of(&pools[1])), (5, vec![0, 1, 2, 3, 4]));
        assert_eq!(log.of(&pools[0]), [5]);
        for pool in &pools {
            assert_eq!(pool.total_len(), 0, "{}", pool.name());
        }
    });
}

#[test]
fn what_cannot_be_stolen_covers_what_comes_behind_it() {
    within(|| {
        let (runtime, other) = shared(1);
        let pool = runtime.add_pool(PoolSpec::new("nobody runs it")).unwrap();
        let log = Log::default();
        let plain = pool.spawn(|| ()).unwrap();
        assert!(pool.has_backlog(1) && !pool.has_backlog(2));
        log.spawn(&pool, 1);
        assert!(pool.steal().is_none() && !pool.has_stealable(), "the first one is not");
        other.push(pool.pop().unwrap()).unwrap();
        plain.join().unwrap();
        assert_eq!((pool.has_stealable(), steal_all(&pool, &other)), (true, 1));
        // One that is dropped is over.
        log.spawn(&pool, 2);
        drop(pool.steal());
        assert_eq!((pool.len(), pool.total_len()), (0, 0));
        runtime.shutdown().unwrap();
        assert_eq!(log.of(&other), [1]);
    });
}

/// ULTs that yield and yield do not keep away what waits in the queue, nor the other way round.
#[test]
fn the_list_of_an_xstream_and_the_queue_of_its_pool_take_turns() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (log, own) = (Log::default(), pool.clone());
        let all = log.clone();
        let yields = pool.spawn(move || {
            assert!(!own.has_backlog(1));
            (0..20).for_each(|number| all.spawn(&own, number));
            assert!(own.has_backlog(100), "what may be stolen is not to be overtaken");
            let mut yields = 0;
            while all.len() < 20 {
                ult::yield_now();
                yields += 1;
            }
            let waits = own.spawn(|| ()).unwrap();
            assert!(own.has_backlog(1) && !own.has_backlog(2));
            waits.join().unwrap();
            yields
        });
        let yields = yields.unwrap().join().unwrap();
        assert!((20..=64 + 2 * 20).contains(&yields), "{yields} turns");
        assert!(!pool.has_backlog(1), "nothing waits");
        runtime.shutdown().unwrap();
        assert_eq!(log.of(&pool), (0..20).collect::<Vec<_>>());
    });
}

/// Also from other threads, and whatever the kind of the pool.
#[test]
fn what_nobody_steals_runs_in_its_own_pool() {
    within(|| {
        for (kind, served_by) in [
            (PoolKind::FifoWait, 1),
            (PoolKind::FifoWait, 2),
            (PoolKind::PrioWait, 1),
            (PoolKind::EarliestFirst, 1),
            (PoolKind::RandWs, 2),
        ] {
            let builder = Runtime::builder().pool(PoolSpec::new("p").kind(kind));
            let builder = (0..served_by).fold(builder, |builder, x| {
                builder.xstream(XstreamSpec::new(format!("x{x}")).pools(["p"]))
            });
            let runtime = builder.start().unwrap();
            let (pool, log) = (runtime.pool("p").unwrap(), Log::default());
            (0..10).for_each(|number| log.spawn(&pool, number));
            let (own, all) = (pool.clone(), log.clone());
            pool.spawn(move || (10..20).for_each(|number| all.spawn(&own, number))).unwrap();
            if kind != PoolKind::FifoWait {
                assert!(pool.steal().is_none());
            }
            runtime.shutdown().unwrap();
            let mut ran = log.of(&pool);
            ran.sort_unstable();
            assert_eq!(ran, (0..20).collect::<Vec<_>>(), "{kind:?}");
        }
    });
}
