//! Units that move to other pools.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::{here, kinds, on, private, shared, wait_until, within, yield_until};
use ult::{Event, EventMask, JoinHandle, MigrateError, PoolKind, PoolRef};

/// The pool and the xstream that the caller is in.
fn place() -> (String, String) {
    let me = ult::current().unwrap();
    (me.pool, me.xstream)
}

fn places(pool: &str, xstream: &str) -> (String, String) {
    (pool.to_owned(), xstream.to_owned())
}

/// A log of the names that an `on_migrate` callback was called with.
type Moves = Arc<Mutex<Vec<String>>>;

fn log_to(moves: &Moves) -> impl FnMut(&str) + Send + 'static {
    let moves = moves.clone();
    move |pool| moves.lock().unwrap().push(pool.to_owned())
}

/// Runs `f` while the only xstream of `pool` is busy, so that nothing there starts.
fn while_busy<T>(pool: &PoolRef, f: impl FnOnce() -> T) -> T {
    let (go, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (seen, inner) = (go.clone(), started.clone());
    let body = move || {
        inner.store(true, SeqCst);
        wait_until("go", || seen.load(SeqCst));
    };
    let busy = pool.spawn(body).unwrap();
    wait_until("started", || started.load(SeqCst));
    let value = f();
    go.store(true, SeqCst);
    busy.join().unwrap();
    value
}

#[test]
fn an_unstarted_unit_moves_and_the_latest_request_wins() {
    within(|| {
        let (runtime, pools) = private(3);
        for is_tasklet in [false, true] {
            let moves = Moves::default();
            let handle = while_busy(&pools[0], || {
                let builder = if is_tasklet { pools[0].tasklet() } else { pools[0].ult() };
                let handle = builder.on_migrate(log_to(&moves)).spawn(place).unwrap();
                handle.migrate_to(&pools[1]).unwrap();
                handle.migrate_to(&pools[0]).unwrap();
                handle.migrate_to(&pools[2]).unwrap();
                handle
            });
            assert_eq!(handle.join().unwrap(), places("p2", "x2"));
            assert_eq!(*moves.lock().unwrap(), ["p2"], "one move, one call");
        }
        runtime.shutdown().unwrap();
        for pool in &pools {
            assert_eq!(pool.total_len(), 0, "{}", pool.name());
        }
    });
}

#[test]
fn a_request_for_the_own_pool_changes_nothing() {
    within(|| {
        let (runtime, pools) = private(2);
        let moves = Moves::default();
        let handle = while_busy(&pools[0], || {
            let handle = pools[0].ult().on_migrate(log_to(&moves)).spawn(place).unwrap();
            handle.migrate_to(&pools[1]).unwrap();
            handle.migrate_to(&pools[0]).unwrap();
            handle
        });
        assert_eq!(handle.join().unwrap(), places("p0", "x0"));
        assert!(moves.lock().unwrap().is_empty());
        runtime.shutdown().unwrap();
    });
}

/// A started ULT: three requests in a row, and it sees the last one after its next yield.
#[test]
fn a_started_ult_moves_when_it_yields_or_is_resumed() {
    within(|| {
        let all = ["a", "b", "c"].map(|name| (name, PoolKind::FifoWait));
        let (runtime, pools) = kinds(&all);
        let moves = Moves::default();
        let own = Arc::new(Mutex::new(None::<JoinHandle<()>>));
        let (inner, targets) = (own.clone(), pools.clone());
        let body = move || {
            yield_until("the handle is there", || inner.lock().unwrap().is_some());
            let me = inner.lock().unwrap().take().unwrap();
            for target in [&targets[1], &targets[0], &targets[2]] {
                me.migrate_to(target).unwrap();
                assert_eq!(place(), places("a", "x0"), "not before it yields");
            }
            ult::yield_now();
            assert_eq!(place(), places("c", "x0"));
            me.migrate_to(&targets[1]).unwrap();
            ult::sleep(Duration::from_millis(1));
            assert_eq!(place(), places("b", "x0"));
            me.migrate_to(&targets[0]).unwrap();
            let unparker = ult::unparker();
            let waker = targets[2].spawn(move || unparker.unpark()).unwrap();
            ult::park();
            assert_eq!(place(), places("a", "x0"));
            waker.join().unwrap();
        };
        let handle = pools[0].ult().on_migrate(log_to(&moves)).spawn(body).unwrap();
        *own.lock().unwrap() = Some(handle);
        wait_until("it has ended", || pools.iter().all(|pool| pool.total_len() == 0));
        assert_eq!(*moves.lock().unwrap(), ["c", "b", "a"]);
        runtime.shutdown().unwrap();
    });
}

/// A started ULT stays on its xstream; the request waits until that serves the pool.
#[test]
fn a_started_ult_waits_until_its_xstream_serves_the_pool() {
    within(|| {
        let (runtime, pools) = private(2);
        let (started, moved) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inner, seen) = (started.clone(), moved.clone());
        let handle = pools[0].spawn(move || {
            inner.store(true, SeqCst);
            while !seen.load(SeqCst) {
                assert_eq!(here(), "x0");
                ult::yield_now();
            }
            yield_until("in the pool", || ult::current().unwrap().pool == "p1");
            place()
        });
        let handle = handle.unwrap();
        wait_until("started", || started.load(SeqCst));
        handle.migrate_to(&pools[1]).unwrap();
        on(&pools[0], ult::yield_now);
        assert_eq!(pools[0].total_len(), 1, "it is still there");
        let x0 = runtime.xstream("x0").unwrap();
        x0.set_scheduler(Box::new(ult::Basic::new()), ["p0", "p1"]).unwrap();
        moved.store(true, SeqCst);
        assert_eq!(handle.join().unwrap(), places("p1", "x0"));
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

#[test]
fn wrong_targets_are_refused() {
    within(|| {
        let (runtime, pools) = private(2);
        let (other, foreign) = shared(1);
        let gone = runtime.add_pool(ult::PoolSpec::new("gone")).unwrap();
        runtime.remove_pool(&gone).unwrap();
        let handle = pools[0].spawn(ult::park).unwrap();
        let to = |pool: &PoolRef| handle.migrate_to(pool).unwrap_err();
        assert_eq!(to(&foreign), MigrateError::OtherRuntime { pool: "p".into() });
        assert_eq!(to(&gone), MigrateError::Removed { pool: "gone".into() });
        let inner = [pools[1].clone(), foreign, gone];
        on(&pools[0], move || {
            let [far, foreign, gone] = inner;
            let (pool, xstream) = ("p1".to_owned(), "x0".to_owned());
            assert_eq!(ult::set_pool(&far), Err(MigrateError::NotServed { pool, xstream }));
            assert!(matches!(ult::set_pool(&foreign), Err(MigrateError::OtherRuntime { .. })));
            assert!(matches!(ult::set_pool(&gone), Err(MigrateError::Removed { .. })));
        });
        assert!(matches!(ult::set_pool(&pools[0]), Err(MigrateError::NotUlt { .. })));
        let inner = pools[0].clone();
        let tasklet = pools[0].tasklet().spawn(move || ult::set_pool(&inner)).unwrap();
        assert!(matches!(tasklet.join().unwrap(), Err(MigrateError::NotUlt { .. })));
        handle.cancel();
        other.shutdown().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// Also when the ULT ends at once, without another wait.
#[test]
fn set_pool_moves_the_caller_and_the_books_agree() {
    within(|| {
        let all = [
            ("a", PoolKind::FifoWait),
            ("b", PoolKind::PrioWait),
            ("c", PoolKind::EarliestFirst),
            ("d", PoolKind::RandWs),
        ];
        let (runtime, pools) = kinds(&all);
        for start in &pools {
            let targets = pools.clone();
            let moves = Moves::default();
            let name = start.name().to_owned();
            let body = move || {
                for target in &targets {
                    ult::set_pool(target).unwrap();
                    assert_eq!(ult::current().unwrap().pool, target.name());
                    ult::yield_now();
                    assert_eq!(target.total_len(), 1);
                    ult::sleep(Duration::from_micros(50));
                }
                // And away without a wait.
                ult::set_pool(&targets[1]).unwrap();
            };
            start.ult().on_migrate(log_to(&moves)).spawn(body).unwrap().join().unwrap();
            let mut expected = vec!["a", "b", "c", "d", "b"];
            expected.retain({
                let mut first = true;
                move |pool| !(std::mem::take(&mut first) && *pool == name)
            });
            assert_eq!(*moves.lock().unwrap(), expected);
        }
        runtime.shutdown().unwrap();
        let stats: Vec<_> = pools.iter().map(PoolRef::stats).collect();
        assert!(stats.iter().all(|stats| stats.alive() == 0), "{stats:?}");
        assert_eq!(stats.iter().map(|stats| stats.finished).sum::<u64>(), 4);
    });
}

#[test]
fn a_callback_may_spawn() {
    within(|| {
        let (runtime, pools) = private(2);
        let ran = Arc::new(AtomicUsize::new(0));
        let (pool, count) = (pools[0].clone(), ran.clone());
        let callback = move |_: &str| {
            let count = count.clone();
            let body = move || {
                count.fetch_add(1, SeqCst);
            };
            pool.ult().spawn_detached(body).unwrap();
        };
        let handle = while_busy(&pools[0], || {
            let handle = pools[0].ult().on_migrate(callback).spawn(place).unwrap();
            handle.migrate_to(&pools[1]).unwrap();
            handle
        });
        assert_eq!(handle.join().unwrap(), places("p1", "x1"));
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), 1);
    });
}

/// Hops between two xstreams while it also waits in every way.
fn hop(pools: &[PoolRef], rounds: usize) -> usize {
    let mut last = here();
    let mut changes = 0;
    for round in 0..rounds {
        assert!(ult::is_migratable());
        ult::set_pool(&pools[round % 2]).unwrap();
        match round % 4 {
            0 => ult::yield_now(),
            1 => {
                // A wait with a deadline keeps it where it is.
                let before = here();
                ult::park_deadline(Some(Instant::now() + Duration::from_micros(50)));
                drop(before);
                ult::yield_now();
            }
            2 => pools[round % 2].spawn(|| ()).unwrap().join().unwrap(),
            _ => {
                let me = ult::unparker();
                pools[0].ult().spawn_detached(move || me.unpark()).unwrap();
                ult::park();
            }
        }
        let now = here();
        assert_eq!(ult::current().unwrap().pool, pools[round % 2].name());
        changes += usize::from(now != last);
        last = now;
    }
    changes
}

#[test]
fn migratable_ults_change_their_xstream_and_others_do_not() {
    within(|| {
        let (runtime, pools) = private(2);
        assert!(!ult::is_migratable());
        assert!(!on(&pools[0], ult::is_migratable));
        let handles: Vec<_> = (0..8)
            .map(|_| {
                let inner = pools.clone();
                // SAFETY:
                // - nothing that is alive over a wait is bound to its thread: strings, counters
                //   and `PoolRef`s.
                unsafe { pools[0].ult().spawn_migratable(move || hop(&inner, 200)) }.unwrap()
            })
            .collect();
        for handle in handles {
            assert!(handle.join().unwrap() > 100, "it follows its pool");
        }
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
        assert!(runtime.xstreams().iter().all(|xstream| xstream.ults() == 0));
    });
}

#[test]
fn migratable_ults_of_a_shared_pool_are_run_by_whoever_is_free() {
    within(|| {
        let (runtime, pool) = shared(2);
        let count = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..20)
            .map(|_| {
                let count = count.clone();
                let body = move || {
                    let mut homes = Vec::new();
                    for _ in 0..100 {
                        homes.push(here());
                        ult::yield_now();
                        count.fetch_add(1, SeqCst);
                    }
                    ult::sleep(Duration::from_micros(100));
                    homes
                };
                // SAFETY: as above.
                unsafe { pool.ult().spawn_migratable(body) }.unwrap()
            })
            .collect();
        for handle in handles {
            assert_eq!(handle.join().unwrap().len(), 100);
        }
        assert_eq!(count.load(SeqCst), 2000);
        runtime.shutdown().unwrap();
        assert_eq!(pool.total_len(), 0);
    });
}

#[test]
fn cancel_meets_migratable_ults_wherever_they_are() {
    within(|| {
        let (runtime, pools) = private(2);
        for _ in 0..50 {
            let inner = pools.clone();
            let body = move || -> usize { hop(&inner, usize::MAX) };
            // SAFETY: as above.
            let handle = unsafe { pools[0].ult().spawn_migratable(body) }.unwrap();
            on(&pools[1], ult::yield_now);
            handle.cancel();
            assert!(matches!(handle.join(), Err(ult::JoinError::Cancelled)));
        }
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

/// Requests come from outside while the units run.
#[test]
fn requests_race_with_what_they_move() {
    within(|| {
        let (runtime, pools) = private(2);
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let handle = pools[0].spawn(|| (0..3).for_each(|_| ult::yield_now())).unwrap();
            (0..rng.u32(..200)).for_each(|_| std::hint::spin_loop());
            handle.migrate_to(&pools[1]).unwrap();
            handle.migrate_to(&pools[rng.usize(..2)]).unwrap();
            handle.join().unwrap();
        }
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
        let finished: u64 = pools.iter().map(|pool| pool.stats().finished).sum();
        assert_eq!(finished, 500);
    });
}

/// A request that the pool does not live to see is about nothing: nobody would find the unit there.
#[test]
fn a_unit_does_not_move_into_a_pool_that_was_removed_meanwhile() {
    within(|| {
        let (runtime, pools) = private(1);
        let gone = runtime.add_pool(ult::PoolSpec::new("gone")).unwrap();
        let handle = while_busy(&pools[0], || {
            let handle = pools[0].spawn(place).unwrap();
            handle.migrate_to(&gone).unwrap();
            runtime.remove_pool(&gone).unwrap();
            handle
        });
        assert_eq!(handle.join().unwrap(), places("p0", "x0"));
        runtime.shutdown().unwrap();
    });
}

/// While a pool is being removed all the time, each unit ends up somewhere where it runs.
#[test]
fn moves_race_with_removals() {
    within(|| {
        let (runtime, pools) = private(1);
        for round in 0..300 {
            let target = runtime.add_pool(ult::PoolSpec::new(format!("t{round}"))).unwrap();
            let units: Vec<_> = (0..8).map(|_| pools[0].spawn(place).unwrap()).collect();
            let (from, to) = (pools[0].clone(), target.clone());
            let mover = std::thread::spawn(move || from.move_all_to(&to));
            let removed = runtime.remove_pool(&target).is_ok();
            let moved = mover.join().unwrap();
            if removed {
                assert!(!matches!(moved, Ok(1..)), "{moved:?}: into a pool that is gone");
            } else {
                target.move_all_to(&pools[0]).unwrap();
                runtime.remove_pool(&target).unwrap();
            }
            units.into_iter().for_each(|unit| assert_eq!(unit.join().unwrap().0, "p0"));
        }
        runtime.shutdown().unwrap();
    });
}

/// The owner of the pool is asked to move its units, and comes to it when the target is gone.
#[test]
fn a_move_that_comes_too_late_leaves_units_where_they_are() {
    within(|| {
        let (runtime, pools) = private(1);
        let units = while_busy(&pools[0], || {
            let target = runtime.add_pool(ult::PoolSpec::new("target")).unwrap();
            let units: Vec<_> = (0..8).map(|_| pools[0].spawn(place).unwrap()).collect();
            assert_eq!(pools[0].move_all_to(&target), Ok(0), "they are in the owner's hands");
            runtime.remove_pool(&target).unwrap();
            units
        });
        for unit in units {
            assert_eq!(unit.join().unwrap(), places("p0", "x0"));
        }
        runtime.shutdown().unwrap();
    });
}

/// A callback that panics, and one that cannot even be dropped, cost nobody a unit.
#[test]
fn a_callback_that_panics_loses_nothing() {
    struct Rude;
    impl Drop for Rude {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    within(|| {
        let (runtime, pools) = private(2);
        let rude = Rude;
        let handle = while_busy(&pools[0], || {
            let builder = pools[0].ult().on_migrate(move |_| {
                let _ = &rude;
                panic!("told");
            });
            let handle = builder.spawn(place).unwrap();
            handle.migrate_to(&pools[1]).unwrap();
            handle
        });
        assert_eq!(handle.join().unwrap(), places("p1", "x1"));
        for (index, pool) in pools.iter().enumerate() {
            assert_eq!(on(pool, place), places(&format!("p{index}"), &format!("x{index}")));
        }
        runtime.shutdown_timeout(Duration::from_secs(60)).unwrap();
    });
}

/// The outcomes of two attempts to move a ULT while its value is dropped: one by the ULT itself,
/// and one by another ULT that had taken it out of the pool.
type Told = (Result<(), MigrateError>, Option<Result<(), MigrateError>>);

/// The value of a ULT, which wants to move that when it is dropped.
struct Mover {
    from: PoolRef,
    to: PoolRef,
    told: mpsc::Sender<Told>,
}

impl Drop for Mover {
    fn drop(&mut self) {
        let itself = ult::set_pool(&self.to);
        let (from, to) = (self.from.clone(), self.to.clone());
        let other = self.from.spawn(move || {
            let (unit, error) = to.push(from.pop()?).err()?;
            from.push(unit).unwrap();
            Some(Err(error))
        });
        // The other one runs, while this one waits in the pool.
        ult::yield_now();
        self.told.send((itself, other.unwrap().join().unwrap())).unwrap();
    }
}

/// The unit counts as ended when it finds that nobody wants its value any more.
#[test]
fn a_ult_that_drops_its_value_after_its_end_stays_in_the_pool_that_has_counted_it() {
    within(|| {
        let (runtime, pools) = kinds(&[("a", PoolKind::Fifo), ("b", PoolKind::Fifo)]);
        let [a, b] = &pools[..] else { unreachable!() };
        let (ends, is_gone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (says, waits) = (ends.clone(), is_gone.clone());
        // Between the count and the end that its handle would see.
        let sink = runtime.add_sink(EventMask::FINISH, move |event: &Event<'_>| {
            if event.name == Some("mover") {
                says.store(true, SeqCst);
                wait_until("the handle is gone", || waits.load(SeqCst));
            }
        });
        let (told, hears) = mpsc::channel();
        let mover = Mover { from: a.clone(), to: b.clone(), told };
        let handle = a.ult().name("mover").spawn(move || mover).unwrap();
        wait_until("it has ended", || ends.load(SeqCst));
        handle.migrate_to(b).unwrap();
        drop(handle);
        is_gone.store(true, SeqCst);
        let (itself, other) = hears.recv().unwrap();
        assert!(matches!(itself, Err(MigrateError::Ended { .. })), "{itself:?}");
        assert!(matches!(other, Some(Err(MigrateError::Ended { .. }))), "{other:?}");
        let x = runtime.xstream("x0").unwrap();
        wait_until("it is over", || x.ults() == 0);
        assert_eq!((a.total_len(), b.total_len()), (0, 0));
        // Neither has too few.
        for pool in [a, b] {
            let inner = pool.clone();
            assert_eq!(on(pool, move || inner.total_len()), 1);
        }
        sink.remove();
        runtime.shutdown().unwrap();
    });
}
