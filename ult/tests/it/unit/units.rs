//! Lives of ULTs: when and where they run, under which number, and how they end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::common::{here, on, private, shared, wait_until, within, yield_until};
use ult::{JoinError, PoolRef, SpawnError, Unparker};

type Log = Arc<Mutex<Vec<String>>>;

fn say(log: &Log, what: impl Into<String>) {
    log.lock().unwrap().push(what.into());
}

/// How a node of a tree makes its children.
#[derive(Clone, Copy)]
enum Birth {
    Joined,
    Detached,
    SwitchedTo,
}

/// A binary tree of ULTs; each node counts itself.
fn grow(pool: &PoolRef, levels: u32, birth: Birth, count: &Arc<AtomicUsize>) {
    count.fetch_add(1, SeqCst);
    if levels == 0 {
        return;
    }
    let child = || {
        let (inner, count) = (pool.clone(), count.clone());
        move || grow(&inner, levels - 1, birth, &count)
    };
    match birth {
        Birth::Joined => {
            let children = [pool.spawn(child()).unwrap(), pool.spawn(child()).unwrap()];
            children.into_iter().for_each(|child| child.join().unwrap());
        }
        Birth::Detached => {
            pool.ult().spawn_detached(child()).unwrap();
            pool.ult().spawn_detached(child()).unwrap();
        }
        Birth::SwitchedTo => {
            let children = [pool.ult().spawn_to(child()), pool.ult().spawn_to(child())];
            children.into_iter().for_each(|child| child.unwrap().join().unwrap());
        }
    }
}

#[test]
fn trees_of_joined_detached_and_switched_to_ults_are_complete() {
    const LEVELS: u32 = 8;
    within(|| {
        for birth in [Birth::Joined, Birth::Detached, Birth::SwitchedTo] {
            let (runtime, pools) = private(2);
            let count = Arc::new(AtomicUsize::new(0));
            for pool in &pools {
                let (inner, count) = (pool.clone(), count.clone());
                on(pool, move || grow(&inner, LEVELS, birth, &count));
            }
            runtime.shutdown().unwrap();
            assert_eq!(count.load(SeqCst), 2 * ((2 << LEVELS) - 1));
            assert!(pools.iter().all(|pool| pool.total_len() == 0));
        }
    });
}

/// A spawn queues the child, `spawn_to` runs it at once; the pool shows what is queued.
#[test]
fn parents_go_first_or_children_do() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let log = on(&pools[0], move || {
            let log = Log::default();
            let child = |name: &'static str| {
                let (log, pool) = (log.clone(), pool.clone());
                move || say(&log, format!("{name} sees {}", pool.len()))
            };
            let first = pool.spawn(child("a")).unwrap();
            say(&log, format!("parent sees {}", pool.len()));
            let (_, ended) = first.join_keep();
            // The parent waits in the pool while its child runs.
            let second = pool.ult().spawn_to(child("b")).unwrap();
            say(&log, format!("parent sees {}", pool.len()));
            second.join().unwrap();
            let again = ended.unwrap().revive(&pool, child("a again")).unwrap();
            say(&log, format!("parent sees {}", pool.len()));
            ult::yield_to(pool.pop().unwrap()).unwrap();
            say(&log, format!("parent sees {}", pool.len()));
            again.join().unwrap();
            log
        });
        let expected = [
            "parent sees 1",
            "a sees 0",
            "b sees 1",
            "parent sees 0",
            "parent sees 1",
            "a again sees 1",
            "parent sees 0",
        ];
        assert_eq!(*log.lock().unwrap(), expected);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_starts_and_stays_on_the_xstream_of_its_pool() {
    within(|| {
        let (runtime, pools) = private(3);
        for (n, pool) in pools.iter().enumerate() {
            let others = pools.clone();
            let homes = on(pool, move || {
                let first = ult::current().unwrap();
                // What a ULT of another xstream does for it does not move it.
                others.iter().for_each(|other| on(other, ult::yield_now));
                [first.xstream, here()]
            });
            assert_eq!(homes, [format!("x{n}"), format!("x{n}")]);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ids_are_unique_among_all_xstreams_and_threads() {
    const EACH: usize = 2000;
    within(|| {
        let (runtime, pools) = private(2);
        let spawn = |pool: PoolRef| {
            move || -> Vec<(u64, u64)> {
                let units = (0..EACH).map(|n| {
                    let builder = if n % 2 == 0 { pool.ult() } else { pool.tasklet() };
                    let handle = builder.spawn(|| ult::current().unwrap().id).unwrap();
                    (handle.id(), handle.join().unwrap())
                });
                units.collect()
            }
        };
        let threads: Vec<_> =
            pools.iter().map(|pool| std::thread::spawn(spawn(pool.clone()))).collect();
        let ults: Vec<_> = [0, 1]
            .map(|n| pools[n].spawn(spawn(pools[1 - n].clone())).unwrap())
            .into_iter()
            .collect();
        let mut seen = HashSet::new();
        let from_threads = threads.into_iter().map(|thread| thread.join().unwrap());
        let from_ults = ults.into_iter().map(|ult| ult.join().unwrap());
        for (outside, inside) in from_threads.chain(from_ults).flatten() {
            assert_eq!(outside, inside);
            assert!(seen.insert(outside), "number {outside} was used twice");
        }
        assert_eq!(seen.len(), 4 * EACH);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_ended_unit_runs_another_closure_elsewhere() {
    within(|| {
        let (runtime, pools) = private(2);
        let first = pools[0].ult().name("phoenix").spawn(|| 1u8).unwrap();
        let id = first.id();
        let (value, mut ended) = first.join_keep();
        assert_eq!(value.unwrap(), 1);
        for round in 0..100usize {
            let unit = ended.take().unwrap();
            assert_eq!((unit.id(), unit.name()), (id, Some("phoenix")));
            let handle = unit.revive(&pools[round % 2], move || {
                ult::yield_now();
                (round, ult::current().unwrap())
            });
            let (outcome, next) = handle.unwrap().join_keep();
            let (value, info) = outcome.unwrap();
            assert_eq!((value, info.id), (round, id));
            assert_eq!(info.name.as_deref(), Some("phoenix"));
            assert_eq!((info.pool, info.xstream), pool_and_xstream(round % 2));
            ended = next;
        }
        // One that panicked, one that was cancelled, and one that left.
        let panics = ended.unwrap().revive(&pools[0], || -> () { panic!("once") }).unwrap();
        let (outcome, ended) = panics.join_keep();
        assert!(matches!(outcome, Err(JoinError::Panicked(_))));
        let parks = ended.unwrap().revive(&pools[0], ult::park).unwrap();
        parks.cancel();
        let (outcome, ended) = parks.join_keep();
        assert!(matches!(outcome, Err(JoinError::Cancelled)));
        let exits = ended.unwrap().revive(&pools[1], || -> () { ult::exit() }).unwrap();
        let (outcome, ended) = exits.join_keep();
        assert!(matches!(outcome, Err(JoinError::Exited)));
        assert_eq!(ended.unwrap().revive(&pools[0], || 7).unwrap().join().unwrap(), 7);
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

fn pool_and_xstream(n: usize) -> (String, String) {
    (format!("p{n}"), format!("x{n}"))
}

#[test]
fn a_unit_is_revived_in_its_own_runtime_only() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (other, other_pool) = shared(1);
        let (_, ended) = pool.spawn(|| ()).unwrap().join_keep();
        let error = ended.unwrap().revive(&other_pool, || ()).unwrap_err();
        assert!(matches!(error, SpawnError::OtherRuntime { .. }), "{error}");
        let (_, ended) = pool.spawn(|| ()).unwrap().join_keep();
        other.shutdown().unwrap();
        runtime.shutdown().unwrap();
        let held = Arc::new(());
        let inner = held.clone();
        let error = ended.unwrap().revive(&pool, move || drop(inner)).unwrap_err();
        assert!(matches!(error, SpawnError::ShutDown { .. }), "{error}");
        assert_eq!(Arc::strong_count(&held), 1, "the closure is dropped");
    });
}

#[test]
fn nothing_after_exit_runs() {
    fn leave(log: &Log, depth: usize) {
        if depth == 0 {
            say(log, "leaves");
            ult::exit();
        }
        leave(log, depth - 1);
        say(log, "goes on");
    }
    within(|| {
        let (runtime, pools) = private(2);
        for pool in &pools {
            let log = Log::default();
            let inner = log.clone();
            let handle = pool.spawn(move || {
                ult::yield_now();
                leave(&inner, 5);
                say(&inner, "goes on");
            });
            assert!(matches!(handle.unwrap().join(), Err(JoinError::Exited)));
            assert_eq!(*log.lock().unwrap(), ["leaves"]);
        }
        runtime.shutdown().unwrap();
    });
}

/// Each ULT parks; one of the next xstream unparks it, round after round.
#[test]
fn parked_ults_are_unparked_from_other_xstreams_in_rotation() {
    const XSTREAMS: usize = 3;
    const ROUNDS: usize = 200;
    within(|| {
        let (runtime, pools) = private(XSTREAMS);
        let sleepers: Arc<Mutex<Vec<Unparker>>> = Arc::default();
        let woken: Arc<Vec<AtomicUsize>> =
            Arc::new((0..XSTREAMS).map(|_| AtomicUsize::new(0)).collect());
        let (mut handles, mut ids) = (Vec::new(), Vec::new());
        for (n, pool) in pools.iter().enumerate() {
            let (all, woken) = (sleepers.clone(), woken.clone());
            let body = move || {
                all.lock().unwrap().push(ult::unparker());
                for round in 0..ROUNDS {
                    ult::park();
                    assert_eq!(here(), format!("x{n}"));
                    assert_eq!(woken[n].fetch_add(1, SeqCst), round, "one park, one unpark");
                }
            };
            handles.push(pool.spawn(body).unwrap());
            wait_until("it has started", || sleepers.lock().unwrap().len() == n + 1);
            ids.push(n);
        }
        let sleepers = Arc::new(sleepers.lock().unwrap().clone());
        for round in 0..ROUNDS {
            for n in 0..XSTREAMS {
                let (sleepers, woken) = (sleepers.clone(), woken.clone());
                on(&pools[(n + 1) % XSTREAMS], move || {
                    sleepers[n].unpark();
                    yield_until("woken", || woken[n].load(SeqCst) == round + 1);
                });
            }
        }
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn join_all_and_spawn_many_keep_the_order() {
    within(|| {
        let (runtime, pool) = shared(2);
        let handles = pool.spawn_many((0..100usize).map(|n| {
            move || {
                (0..n % 7).for_each(|_| ult::yield_now());
                assert!(n % 10 != 3, "fails");
                n
            }
        }));
        let outcomes = ult::join_all(handles.map_err(|(_, error)| error).unwrap());
        assert_eq!(outcomes.len(), 100);
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(value) => assert_eq!(value, n),
                Err(JoinError::Panicked(panic)) => {
                    assert_eq!((n % 10, panic.message()), (3, "fails"));
                }
                Err(other) => panic!("{other}"),
            }
        }
        runtime.shutdown().unwrap();
        let (handles, error) = pool.spawn_many([|| 1, || 2]).unwrap_err();
        assert!(handles.is_empty() && matches!(error, SpawnError::ShutDown { .. }));
    });
}

#[test]
fn a_join_with_a_deadline_gives_the_handle_back() {
    within(|| {
        let (runtime, pools) = private(2);
        let go = Arc::new(AtomicBool::new(false));
        let seen = go.clone();
        let slow = pools[0].spawn(move || {
            yield_until("go", || seen.load(SeqCst));
            4
        });
        let past = || std::time::Instant::now();
        let handle = slow.unwrap().join_deadline(past()).unwrap_err();
        let handle = on(&pools[1], move || handle.join_deadline(past()).unwrap_err());
        go.store(true, SeqCst);
        wait_until("finished", || handle.is_finished());
        // An outcome that is there is returned, however late it is.
        assert_eq!(handle.join_deadline(past()).unwrap().unwrap(), 4);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn every_outcome_and_refusal_has_a_message() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = &pools[0];
        let message = |outcome: Result<(), JoinError>| outcome.unwrap_err().to_string();
        let panics = pool.spawn(|| panic!("number {}", 5)).unwrap();
        assert_eq!(message(panics.join()), "the ULT panicked: number 5");
        let odd = pool.spawn(|| std::panic::panic_any(5u8)).unwrap();
        let text = message(odd.join());
        assert_eq!(text, "the ULT panicked: (the panic payload is not a string)");
        let exits = pool.spawn(|| ult::exit()).unwrap();
        assert_eq!(message(exits.join()), "the unit ended with `exit`, without a value");
        let parks = pool.spawn(ult::park).unwrap();
        parks.cancel();
        assert_eq!(message(parks.join()), "the unit was cancelled");
        let inner = pool.clone();
        let lost = on(pool, move || {
            let handle = inner.spawn(|| ()).unwrap();
            drop(inner.pop());
            handle
        });
        assert_eq!(message(lost.join()), "the ULT was dropped before it started");
        runtime.shutdown().unwrap();
        let error = pool.spawn(|| ()).unwrap_err().to_string();
        assert_eq!(error, "cannot spawn into pool `p0`: its runtime has shut down");
    });
}
