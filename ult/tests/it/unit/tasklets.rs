//! Tasklets: units without a stack of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{here, on, private, shared, wait_until, within};
use ult::{Eventual, JoinError, Mutex};

#[test]
fn tasklets_run_on_the_stack_of_their_xstream() {
    within(|| {
        let (runtime, pools) = private(2);
        let stacks = runtime.stacks();
        let handles: Vec<_> = (0..1000usize)
            .map(|n| pools[n % 2].tasklet().spawn(move || (n, here())).unwrap())
            .collect();
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), (n, format!("x{}", n % 2)));
        }
        assert_eq!(runtime.stacks(), stacks, "no stack has been made");
        runtime.shutdown().unwrap();
        let stats = pools[0].stats();
        assert_eq!((stats.created, stats.finished, stats.yields), (500, 500, 0));
    });
}

/// The kind of the caller: ULT, tasklet, and whether `current` knows it.
fn kind() -> (bool, bool, Option<bool>) {
    (ult::is_ult(), ult::is_tasklet(), ult::current().map(|me| me.is_tasklet))
}

#[test]
fn everybody_knows_what_he_is() {
    within(|| {
        assert_eq!(kind(), (false, false, None));
        let (runtime, pool) = shared(1);
        assert_eq!(kind(), (false, false, None), "an OS thread beside a runtime");
        assert_eq!(on(&pool, kind), (true, false, Some(false)));
        let tasklet = pool.tasklet().spawn(kind).unwrap();
        assert_eq!(tasklet.join().unwrap(), (false, true, Some(true)));
        let primary = ult::Runtime::builder()
            .pool(ult::PoolSpec::new("main"))
            .xstream(ult::XstreamSpec::new("x0").pools(["main"]))
            .run(|_| kind());
        assert_eq!(primary.unwrap(), (true, false, Some(false)));
        runtime.shutdown().unwrap();
        assert_eq!(kind(), (false, false, None));
    });
}

#[test]
fn a_tasklet_is_revived_as_a_tasklet() {
    within(|| {
        let (runtime, pools) = private(2);
        let first = pools[0].tasklet().name("again").spawn(|| 0usize).unwrap();
        let id = first.id();
        let (_, mut ended) = first.join_keep();
        for round in 1..50 {
            let handle = ended.unwrap().revive(&pools[round % 2], move || {
                let me = ult::current().unwrap();
                assert!(me.is_tasklet && me.id == id && me.name.as_deref() == Some("again"));
                round
            });
            let (value, next) = handle.unwrap().join_keep();
            assert_eq!(value.unwrap(), round);
            ended = next;
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_and_tasklets_mixed_are_counted_right() {
    const EACH: usize = 300;
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let counts = on(&pools[0], move || {
            let (ults, tasklets) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            assert_eq!((pool.len(), pool.total_len()), (0, 1), "this ULT runs");
            let mut handles = Vec::new();
            for _ in 0..EACH {
                let (seen, inner) = (ults.clone(), tasklets.clone());
                handles.push(pool.spawn(move || seen.fetch_add(1, SeqCst)).unwrap());
                handles.push(pool.tasklet().spawn(move || inner.fetch_add(1, SeqCst)).unwrap());
            }
            assert_eq!((pool.len(), pool.total_len()), (2 * EACH, 2 * EACH + 1));
            let shown = pool.units();
            assert_eq!(shown.len(), 2 * EACH);
            assert_eq!(shown.iter().filter(|unit| unit.is_tasklet).count(), EACH);
            ult::yield_now();
            assert_eq!((pool.len(), pool.total_len()), (0, 1), "all have run");
            handles.into_iter().for_each(|handle| assert!(handle.join().unwrap() < EACH));
            (ults.load(SeqCst), tasklets.load(SeqCst))
        });
        assert_eq!(counts, (EACH, EACH));
        runtime.shutdown().unwrap();
    });
}

/// It blocks its xstream, so somebody on another one has to do it.
#[test]
fn waiting_in_a_tasklet_blocks_its_xstream_and_works() {
    within(|| {
        let (runtime, pools) = private(2);
        let (gate, lock) = (Arc::new(Eventual::new()), Arc::new(Mutex::new(0)));
        let behind = Arc::new(AtomicBool::new(false));
        let guard = lock.lock();
        let (inner_gate, inner_lock, far) = (gate.clone(), lock.clone(), pools[1].clone());
        let waits = pools[0].tasklet().spawn(move || {
            ult::yield_now();
            let before = Instant::now();
            ult::sleep(Duration::from_millis(2));
            assert!(before.elapsed() >= Duration::from_millis(2));
            *inner_lock.lock() += 1;
            assert_eq!(far.spawn(|| 3).unwrap().join().unwrap(), 3);
            let me = ult::unparker();
            far.spawn(move || me.unpark()).unwrap();
            ult::park();
            assert!(!ult::park_deadline(Some(Instant::now())));
            let never = Eventual::<u8>::new();
            assert!(never.wait_timeout(Duration::from_micros(1)).is_none());
            *inner_gate.wait()
        });
        let seen = behind.clone();
        let next = pools[0].spawn(move || seen.store(true, SeqCst)).unwrap();
        drop(guard);
        on(&pools[1], ult::yield_now);
        assert!(!behind.load(SeqCst), "the xstream is blocked");
        gate.set(8).unwrap();
        assert_eq!(waits.unwrap().join().unwrap(), 8);
        next.join().unwrap();
        assert_eq!(*lock.lock(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn tasklets_panic_exit_and_spawn() {
    within(|| {
        let (runtime, pools) = private(1);
        let panics = pools[0].tasklet().spawn(|| -> u8 { panic!("a tasklet") }).unwrap();
        let text = panics.join().unwrap_err().to_string();
        assert_eq!(text, "the ULT panicked: a tasklet");
        let exits = pools[0].tasklet().spawn(|| -> u8 { ult::exit() }).unwrap();
        assert!(matches!(exits.join(), Err(JoinError::Exited)));
        let ran = Arc::new(AtomicUsize::new(0));
        let (inner, count) = (pools[0].clone(), ran.clone());
        let parent = pools[0].tasklet().spawn(move || {
            for n in 0..10 {
                let count = count.clone();
                let body = move || {
                    count.fetch_add(n, SeqCst);
                };
                if n % 2 == 0 {
                    inner.ult().spawn_detached(body).unwrap();
                } else {
                    inner.tasklet().spawn_detached(body).unwrap();
                }
            }
        });
        parent.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), 45);
    });
}

/// A tasklet cannot be made to wait for itself.
#[test]
fn a_tasklet_that_joins_itself_is_told_so() {
    within(|| {
        let (runtime, pools) = private(1);
        let slot = Arc::new(std::sync::Mutex::new(None::<ult::JoinHandle<bool>>));
        let inner = slot.clone();
        let held = slot.lock().unwrap();
        let handle = pools[0].tasklet().spawn(move || {
            let me = inner.lock().unwrap().take().unwrap();
            matches!(me.join(), Err(JoinError::Deadlock))
        });
        let mut held = held;
        *held = Some(handle.unwrap());
        drop(held);
        wait_until("it has ended", || pools[0].total_len() == 0);
        assert!(slot.lock().unwrap().is_none());
        runtime.shutdown().unwrap();
    });
}
