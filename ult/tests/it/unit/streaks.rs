//! New ULTs that run one after the other on one stack: no unit may notice.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{on, private, within, yield_until};
use ult::{Basic, Eventual, JoinError, JoinHandle, PoolRef, PoolSpec, UltLocal};

/// Spawns `count` ULTs from a ULT, so that they stand in a row.
fn in_a_row<T: Send + 'static>(
    pool: &PoolRef,
    count: usize,
    body: impl Fn(usize) -> T + Send + Sync + 'static,
) -> Vec<JoinHandle<T>> {
    let (inner, body) = (pool.clone(), Arc::new(body));
    let spawn = move |n| {
        let body = body.clone();
        inner.spawn(move || body(n)).unwrap()
    };
    on(pool, move || (0..count).map(spawn).collect())
}

#[test]
fn they_run_in_order_and_each_has_its_own_outcome() {
    within(|| {
        let (runtime, pools) = private(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        let inner = log.clone();
        let handles = in_a_row(&pools[0], 500, move |n| {
            inner.lock().unwrap().push(n);
            match n % 5 {
                0 => panic!("{n}"),
                1 => ult::exit(),
                _ => n,
            }
        });
        for (n, handle) in handles.into_iter().enumerate() {
            match (n % 5, handle.join()) {
                (0, Err(JoinError::Panicked(_))) | (1, Err(JoinError::Exited)) => {}
                (_, Ok(value)) => assert_eq!(value, n),
                (_, other) => panic!("{n}: {other:?}"),
            }
        }
        assert!(log.lock().unwrap().iter().copied().eq(0..500));
        let stats = pools[0].stats();
        assert_eq!(stats.finished, stats.created);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_that_wait_or_yield_keep_their_stacks() {
    within(|| {
        let (runtime, pools) = private(1);
        let gate = Arc::new(Eventual::<()>::new());
        let inner = gate.clone();
        let handles = in_a_row(&pools[0], 300, move |n| {
            let mine = std::hint::black_box([n; 64]);
            match n % 7 {
                0 => inner.wait_ready(),
                1 => ult::yield_now(),
                _ => {}
            }
            std::hint::black_box(&mine).iter().sum::<usize>()
        });
        on(&pools[0], ult::yield_now);
        gate.set(()).unwrap();
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), 64 * n);
        }
        runtime.shutdown().unwrap();
    });
}

/// Each unit spawns the next, so there is always one that could follow.
#[test]
fn an_endless_streak_leaves_time_for_mail_timers_and_later_pools() {
    fn next(pool: PoolRef, stop: Arc<AtomicBool>) {
        if !stop.load(SeqCst) {
            let inner = pool.clone();
            pool.ult().spawn_detached(move || next(inner, stop)).unwrap();
        }
    }
    within(|| {
        let (runtime, pools) =
            crate::common::kinds(&[("first", ult::PoolKind::Fifo), ("later", ult::PoolKind::Fifo)]);
        let stop = Arc::new(AtomicBool::new(false));
        let (first, inner) = (pools[0].clone(), stop.clone());
        on(&pools[0], move || next(first, inner));
        // Mail, from this thread, to both pools.
        assert_eq!(on(&pools[0], || 1), 1);
        assert_eq!(on(&pools[1], || 2), 2);
        on(&pools[0], || ult::sleep(Duration::from_millis(1)));
        stop.store(true, SeqCst);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn whoever_runs_a_child_gets_back_from_the_child() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let log = Arc::new(Mutex::new(Vec::new()));
        let inner = log.clone();
        let parent = move || {
            let say = |what: &'static str| inner.lock().unwrap().push(what);
            let spawn = |what: &'static str| {
                let log = inner.clone();
                pool.spawn(move || log.lock().unwrap().push(what)).unwrap()
            };
            let handles = [spawn("child"), spawn("later")];
            say("before");
            ult::run_unit(pool.pop().unwrap()).unwrap();
            say("after");
            handles.into_iter().for_each(|handle| handle.join().unwrap());
        };
        on(&pools[0], parent);
        assert_eq!(*log.lock().unwrap(), ["before", "child", "after", "later"]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_stacked_scheduler_runs_its_own_units_and_nobody_elses() {
    within(|| {
        let (runtime, pools) = private(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let ran = ran.clone();
            side.ult().spawn_detached(move || _ = ran.fetch_add(1, SeqCst)).unwrap();
        }
        let counted = ran.clone();
        let others = in_a_row(&pools[0], 50, move |_| counted.load(SeqCst));
        let scheduler = pools[0].push_scheduler(Box::new(Basic::new()), [side]).unwrap();
        scheduler.join().unwrap();
        assert_eq!(ran.load(SeqCst), 100);
        others.into_iter().for_each(|other| assert!(other.join().unwrap() <= 100));
        runtime.shutdown().unwrap();
    });
}

/// A value that asks, when it is dropped, in whose name that happens.
struct Asks(Arc<Mutex<Vec<Option<u64>>>>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(ult::current().map(|unit| unit.id));
    }
}

static LOCAL: UltLocal<RefCell<Option<Asks>>> = UltLocal::new(|| RefCell::new(None));

#[test]
fn what_a_ult_leaves_is_dropped_in_its_own_name() {
    within(|| {
        let (runtime, pools) = private(1);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let inner = asked.clone();
        let handles = in_a_row(&pools[0], 100, move |_| {
            LOCAL.with(|local| *local.borrow_mut() = Some(Asks(inner.clone())));
            ult::current().unwrap().id
        });
        let ids: Vec<_> = handles.into_iter().map(|handle| Some(handle.join().unwrap())).collect();
        assert_eq!(*asked.lock().unwrap(), ids);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn units_of_other_stack_sizes_get_their_own() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let handles: Vec<_> = on(&pools[0], move || {
            let room =
                || std::hint::black_box([1u8; 512 << 10]).iter().map(|&b| usize::from(b)).sum();
            let spawn = |n: usize| match n % 3 {
                0 => pool.ult().stack_bytes(8 << 20).spawn(move || {
                    let big = std::hint::black_box([1u8; 3 << 20]);
                    big.iter().map(|&byte| usize::from(byte)).sum::<usize>()
                }),
                _ => pool.spawn(room),
            };
            (0..30).map(|n| spawn(n).unwrap()).collect()
        });
        for (n, handle) in handles.into_iter().enumerate() {
            let bytes: usize = if n % 3 == 0 { 3 << 20 } else { 512 << 10 };
            assert_eq!(handle.join().unwrap(), bytes);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn units_that_are_cancelled_while_they_queue_do_not_run() {
    within(|| {
        let (runtime, pools) = private(1);
        let ran = Arc::new(AtomicUsize::new(0));
        let (pool, counted) = (pools[0].clone(), ran.clone());
        on(&pools[0], move || {
            let spawn = |_| {
                let ran = counted.clone();
                pool.spawn(move || _ = ran.fetch_add(1, SeqCst)).unwrap()
            };
            let handles: Vec<_> = (0..100).map(spawn).collect();
            handles.iter().skip(1).step_by(2).for_each(JoinHandle::cancel);
            for (n, handle) in handles.into_iter().enumerate() {
                match handle.join() {
                    Ok(()) => assert_eq!(n % 2, 0),
                    Err(error) => assert!(n % 2 == 1 && matches!(error, JoinError::Cancelled)),
                }
            }
        });
        assert_eq!(ran.load(SeqCst), 50);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_direct_switch_to_a_waiting_ult_may_begin_or_end_a_streak() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        on(&pools[0], move || {
            let parked = Arc::new(AtomicBool::new(false));
            let says = parked.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            let waits = pool.spawn(move || {
                sender.send(ult::unparker()).unwrap();
                says.store(true, SeqCst);
                ult::park();
            });
            let waits = waits.unwrap();
            yield_until("parked", || parked.load(SeqCst));
            ult::yield_now();
            let unparker = receiver.recv().unwrap();
            let row: Vec<_> = (0..20)
                .map(|n| {
                    let unparker = unparker.clone();
                    pool.spawn(move || {
                        if n == 3 {
                            unparker.yield_to();
                        }
                        n
                    })
                })
                .collect();
            for (n, unit) in row.into_iter().enumerate() {
                assert_eq!(unit.unwrap().join().unwrap(), n);
            }
            waits.join().unwrap();
        });
        runtime.shutdown().unwrap();
    });
}
