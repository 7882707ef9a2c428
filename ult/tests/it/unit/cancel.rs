//! Cancel and exit, in every state of a unit.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{LONG, on, private, shared, wait_until, within, yield_until};
use ult::{
    Barrier, Condvar, CountDown, Eventual, JoinError, JoinHandle, Mutex, OnceCell, PoolRef, RwLock,
    Semaphore, UltLocal,
};

/// Counts its drops.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Spawns `wait` behind a guard, and returns when it has started to wait.
fn waiting<T: Send + 'static>(
    pool: &PoolRef,
    wait: impl FnOnce() -> T + Send + 'static,
) -> (JoinHandle<T>, Arc<AtomicUsize>) {
    let (dropped, started) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (guard, inner) = (Guard(dropped.clone()), started.clone());
    let handle = pool.spawn(move || {
        let _guard = guard;
        inner.store(true, SeqCst);
        wait()
    });
    wait_until("it waits", || started.load(SeqCst));
    // The pool belongs to one xstream: this unit runs when the other one has suspended.
    on(pool, || ());
    (handle.unwrap(), dropped)
}

fn assert_cancelled<T: std::fmt::Debug>(handle: JoinHandle<T>, dropped: &AtomicUsize) {
    handle.cancel();
    let outcome = handle.join();
    assert!(matches!(outcome, Err(JoinError::Cancelled)), "{outcome:?}");
    assert_eq!(dropped.load(SeqCst), 1, "destructors run, once");
}

#[test]
fn an_unstarted_unit_never_starts() {
    within(|| {
        let (runtime, pools) = private(1);
        let (go, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let inner = go.clone();
        let block = pools[0].spawn(move || wait_until("go", || inner.load(SeqCst))).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let unit = |is_tasklet: bool| {
            let (guard, seen) = (Guard(dropped.clone()), seen.clone());
            let body = move || {
                let _guard = guard;
                seen.store(true, SeqCst);
            };
            let builder = if is_tasklet { pools[0].tasklet() } else { pools[0].ult() };
            builder.spawn(body).unwrap()
        };
        let (ult, tasklet) = (unit(false), unit(true));
        ult.cancel();
        tasklet.cancel();
        go.store(true, SeqCst);
        block.join().unwrap();
        assert!(matches!(ult.join(), Err(JoinError::Cancelled)));
        assert!(matches!(tasklet.join(), Err(JoinError::Cancelled)));
        assert!(!seen.load(SeqCst));
        assert_eq!(dropped.load(SeqCst), 2);
        runtime.shutdown().unwrap();
        let stats = pools[0].stats();
        assert_eq!((stats.dropped, stats.alive()), (2, 0));
    });
}

#[test]
fn every_wait_that_is_a_cancellation_point_ends() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = &pools[0];
        let far = || Instant::now() + LONG;
        let check = |(handle, dropped): (JoinHandle<()>, Arc<AtomicUsize>)| {
            assert_cancelled(handle, &dropped);
        };
        check(waiting(pool, ult::park));
        check(waiting(pool, move || {
            ult::park_deadline(Some(far()));
        }));
        check(waiting(pool, || ult::sleep(LONG)));
        check(waiting(pool, || {
            loop {
                ult::yield_now();
            }
        }));
        let never = Arc::new(Eventual::<u8>::new());
        let inner = never.clone();
        check(waiting(pool, move || {
            inner.wait();
        }));
        let inner = never.clone();
        check(waiting(pool, move || {
            inner.wait_timeout(LONG);
        }));
        let release = Arc::new(Eventual::<u8>::new());
        let inner = release.clone();
        let (other, _keep) = waiting(pool, move || inner.wait_ready());
        let (joins, dropped) = waiting(pool, move || other.join().unwrap());
        assert_cancelled(joins, &dropped);
        let condvar = Arc::new((Mutex::new(()), Condvar::new()));
        let inner = condvar.clone();
        check(waiting(pool, move || drop(inner.1.wait(inner.0.lock()))));
        assert!(condvar.0.try_lock().is_some(), "the mutex is free");
        let barrier = Barrier::new(2).unwrap();
        check(waiting(pool, move || {
            barrier.wait();
        }));
        let countdown = CountDown::new(1);
        check(waiting(pool, move || countdown.wait()));
        let semaphore = Semaphore::new(0);
        check(waiting(pool, move || drop(semaphore.acquire(1))));
        let (sender, receiver) = ult::channel::bounded::<u8>(1);
        check(waiting(pool, move || {
            let _ = receiver.recv();
        }));
        drop(sender);
        let (sender, receiver) = ult::channel::bounded::<u8>(1);
        check(waiting(pool, move || {
            sender.send(1).unwrap();
            sender.send(2).unwrap();
        }));
        assert_eq!(receiver.try_recv().unwrap(), 1);
        let inner = never.clone();
        check(waiting(pool, move || {
            ult::wait_any(&[&*inner], None);
        }));
        // The one that was joined is still there.
        assert_eq!(pools[0].total_len(), 1);
        release.set(1).unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A ULT that waits for a lock is not cancelled in the wait, but at the next cancellation point.
#[test]
fn waits_for_locks_are_no_cancellation_points() {
    within(|| {
        let (runtime, pools) = private(1);
        let lock = Arc::new(Mutex::new(0));
        let guard = lock.lock();
        let inner = lock.clone();
        let (handle, dropped) = waiting(&pools[0], move || {
            *inner.lock() += 1;
            ult::yield_now();
        });
        handle.cancel();
        on(&pools[0], || ());
        assert!(!handle.is_finished());
        drop(guard);
        assert_cancelled(handle, &dropped);
        assert_eq!(*lock.lock(), 1);

        let lock = Arc::new(RwLock::new(0));
        let guard = lock.write();
        let inner = lock.clone();
        let (handle, dropped) = waiting(&pools[0], move || {
            drop(inner.read());
            *inner.write() += 1;
            ult::is_cancelled()
        });
        handle.cancel();
        drop(guard);
        assert!(handle.join().unwrap(), "it has met no cancellation point");
        assert_eq!((dropped.load(SeqCst), *lock.read()), (1, 1));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_initialisation_in_progress_is_waited_for_or_left() {
    within(|| {
        let (runtime, pools) = private(1);
        let cell = Arc::new(OnceCell::<u8>::new());
        let inner = cell.clone();
        let (init, dropped) = waiting(&pools[0], move || {
            inner.get_or_init(|| {
                ult::park();
                1
            });
        });
        let inner = cell.clone();
        let second = pools[0].spawn(move || *inner.get_or_init(|| 2)).unwrap();
        on(&pools[0], || ());
        assert_cancelled(init, &dropped);
        assert_eq!(second.join().unwrap(), 2, "the next one takes over");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_that_never_waits_asks() {
    within(|| {
        let (runtime, pools) = private(1);
        let started = Arc::new(AtomicBool::new(false));
        let inner = started.clone();
        let handle = pools[0].spawn(move || {
            inner.store(true, SeqCst);
            wait_until("cancelled", ult::is_cancelled);
            7
        });
        let handle = handle.unwrap();
        wait_until("started", || started.load(SeqCst));
        handle.cancel();
        assert_eq!(handle.join().unwrap(), 7);
        assert!(!ult::is_cancelled());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn cancel_of_a_finished_unit_changes_nothing() {
    within(|| {
        let (runtime, pools) = private(1);
        let handle = pools[0].spawn(|| 5).unwrap();
        wait_until("finished", || handle.is_finished());
        handle.cancel();
        handle.cancel();
        let (value, ended) = handle.join_keep();
        assert_eq!(value.unwrap(), 5);
        let again = ended.unwrap().revive(&pools[0], || {
            ult::yield_now();
            6
        });
        assert_eq!(again.unwrap().join().unwrap(), 6, "the revived unit was not cancelled");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn scope_holds_a_cancel_until_the_borrowers_have_ended() {
    within(|| {
        let (runtime, pool) = shared(2);
        let gate = Arc::new(Eventual::<u8>::new());
        let inner_gate = gate.clone();
        let (inner_pool, ended) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
        let inner_ended = ended.clone();
        let started = Arc::new(AtomicBool::new(false));
        let inner_started = started.clone();
        let outer = pool.spawn(move || {
            let local = AtomicUsize::new(0);
            ult::scope(|scope| {
                let handle = scope.spawn(&inner_pool, || {
                    inner_started.store(true, SeqCst);
                    inner_gate.wait_ready();
                    local.fetch_add(1, SeqCst);
                    inner_ended.fetch_add(1, SeqCst);
                });
                drop(handle);
            });
            ult::yield_now();
            unreachable!("the yield is a cancellation point");
        });
        let outer: JoinHandle<()> = outer.unwrap();
        wait_until("started", || started.load(SeqCst));
        outer.cancel();
        on(&pool, || ());
        assert!(!outer.is_finished());
        gate.set(1).unwrap();
        assert!(matches!(outer.join(), Err(JoinError::Cancelled)));
        assert_eq!(ended.load(SeqCst), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn code_that_catches_the_unwinding_meets_it_again() {
    within(|| {
        let (runtime, pools) = private(1);
        let caught = Arc::new(AtomicUsize::new(0));
        let inner = caught.clone();
        let (handle, dropped) = waiting(&pools[0], move || {
            for _ in 0..2 {
                assert!(catch_unwind(ult::park).is_err());
                inner.fetch_add(1, SeqCst);
            }
            ult::park();
        });
        assert_cancelled(handle, &dropped);
        assert_eq!(caught.load(SeqCst), 2);
        // One that catches it and returns has a value.
        let (handle, dropped) = waiting(&pools[0], || catch_unwind(ult::park).is_err());
        handle.cancel();
        assert!(handle.join().unwrap());
        assert_eq!(dropped.load(SeqCst), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_wait_in_a_destructor_during_unwinding_works() {
    struct Slow(PoolRef);
    impl Drop for Slow {
        fn drop(&mut self) {
            // Blocks the xstream, so somebody else has to do it.
            assert_eq!(on(&self.0, || 3), 3);
            ult::sleep(Duration::from_millis(1));
            ult::yield_now();
        }
    }
    within(|| {
        let (runtime, pools) = private(2);
        let slow = Slow(pools[1].clone());
        let (handle, dropped) = waiting(&pools[0], move || {
            let _slow = slow;
            ult::park();
        });
        assert_cancelled(handle, &dropped);
        assert_eq!(on(&pools[0], || 1), 1);
        runtime.shutdown().unwrap();
    });
}

/// The destructors of a cancelled ULT's own values run after the unwinding, and may wait.
#[test]
fn locals_of_a_cancelled_ult_may_wait_in_their_destructors() {
    struct Waits(Arc<AtomicUsize>);
    impl Drop for Waits {
        fn drop(&mut self) {
            ult::yield_now();
            ult::sleep(Duration::from_millis(1));
            self.0.fetch_add(1, SeqCst);
        }
    }
    static LOCAL: UltLocal<std::cell::RefCell<Option<Waits>>> =
        UltLocal::new(|| std::cell::RefCell::new(None));
    within(|| {
        let (runtime, pools) = private(1);
        let done = Arc::new(AtomicUsize::new(0));
        let inner = done.clone();
        let (handle, dropped) = waiting(&pools[0], move || {
            LOCAL.with(|local| *local.borrow_mut() = Some(Waits(inner)));
            ult::park();
        });
        assert_cancelled(handle, &dropped);
        assert_eq!(done.load(SeqCst), 1, "the destructor ran to its end");
        runtime.shutdown().unwrap();
    });
}

/// Nothing hangs because the destructor of a closure that never runs is at fault.
#[test]
fn a_closure_that_panics_when_it_is_dropped_unstarted_ends_its_unit() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("dropped unstarted");
        }
    }
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let handle = on(&pools[0], move || {
            let bad = Bad;
            let handle = pool.spawn(move || std::mem::forget(bad)).unwrap();
            handle.cancel();
            handle
        });
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert_eq!(on(&pools[0], || 1), 1);
        runtime.shutdown().unwrap();
        assert_eq!(pools[0].total_len(), 0);
    });
}

/// The closure of a unit that never runs may use the runtime when it is dropped, wherever that is.
#[test]
fn a_closure_that_waits_when_it_is_dropped_unstarted_harms_nobody() {
    struct Curious(Arc<AtomicUsize>);
    impl Drop for Curious {
        fn drop(&mut self) {
            if ult::is_ult() {
                self.0.fetch_add(1, SeqCst);
            }
            ult::yield_now();
            drop(ult::current());
        }
    }
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let inside = Arc::new(AtomicUsize::new(0));
        let seen = inside.clone();
        on(&pools[0], move || {
            for _ in 0..10 {
                let curious = Curious(inside.clone());
                let handle = pool.spawn(move || std::mem::forget(curious)).unwrap();
                handle.cancel();
                // It is dropped on the stack of the xstream, right after this ULT has left.
                ult::yield_to(pool.pop().unwrap()).unwrap();
                assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
            }
        });
        assert_eq!(seen.load(SeqCst), 0, "no ULT runs there");
        runtime.shutdown().unwrap();
    });
}

/// The winner of a race between a cancel and what ends the wait is one of the two.
#[test]
fn cancel_races_with_unpark_and_set() {
    within(|| {
        let (runtime, pools) = private(2);
        for round in 0..300 {
            let gate = Arc::new(Eventual::new());
            let inner = gate.clone();
            let waiter = pools[0].spawn(move || {
                let value = *inner.wait();
                ult::park_deadline(Some(Instant::now()));
                value
            });
            let waiter = waiter.unwrap();
            let setter = pools[1].spawn(move || gate.set(round).unwrap()).unwrap();
            (0..round % 40).for_each(|_| std::hint::spin_loop());
            waiter.cancel();
            setter.join().unwrap();
            match waiter.join() {
                Ok(value) => assert_eq!(value, round),
                Err(JoinError::Cancelled) => {}
                Err(other) => panic!("{other}"),
            }
        }
        runtime.shutdown().unwrap();
        assert!(pools.iter().all(|pool| pool.total_len() == 0));
    });
}

#[test]
fn exit_unwinds_and_is_no_panic() {
    within(|| {
        let (runtime, pools) = private(1);
        for is_tasklet in [false, true] {
            let dropped = Arc::new(AtomicUsize::new(0));
            let guard = Guard(dropped.clone());
            let body = move || -> u8 {
                let _guard = guard;
                if !is_tasklet {
                    ult::yield_now();
                }
                ult::exit()
            };
            let builder = if is_tasklet { pools[0].tasklet() } else { pools[0].ult() };
            let outcome = builder.spawn(body).unwrap().join();
            assert!(matches!(outcome, Err(JoinError::Exited)));
            assert_eq!(dropped.load(SeqCst), 1);
        }
        let rethrown = pools[0].spawn(|| -> u8 {
            let caught = catch_unwind(AssertUnwindSafe(|| -> () { ult::exit() })).unwrap_err();
            resume_unwind(caught)
        });
        assert!(matches!(rethrown.unwrap().join(), Err(JoinError::Exited)));
        // It passes through a scope, which waits for its units.
        let (inner, ran) = (pools[0].clone(), Arc::new(AtomicUsize::new(0)));
        let inner_ran = ran.clone();
        let scoped = pools[0].spawn(move || -> u8 {
            ult::scope(|scope| {
                drop(scope.spawn(&inner, || inner_ran.fetch_add(1, SeqCst)));
                ult::exit()
            })
        });
        assert!(matches!(scoped.unwrap().join(), Err(JoinError::Exited)));
        assert_eq!(ran.load(SeqCst), 1);
        // On an OS thread it is a panic.
        assert!(catch_unwind(|| -> () { ult::exit() }).is_err());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_ult_with_children_leaves_them_running() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (inner, ran) = (pool.clone(), Arc::new(AtomicUsize::new(0)));
        let inner_ran = ran.clone();
        let go = Arc::new(AtomicBool::new(false));
        let inner_go = go.clone();
        let parent = pool.spawn(move || {
            let child = inner.spawn(move || {
                yield_until("go", || inner_go.load(SeqCst));
                inner_ran.fetch_add(1, SeqCst);
            });
            child.unwrap().join().unwrap();
        });
        let parent = parent.unwrap();
        wait_until("both are there", || pool.total_len() == 2);
        parent.cancel();
        // It may have been cancelled before it had a child.
        assert!(matches!(parent.join(), Err(JoinError::Cancelled)));
        go.store(true, SeqCst);
        runtime.shutdown().unwrap();
        assert_eq!(ran.load(SeqCst), 1);
    });
}
