//! Cases of Argobots' sync objects that no other file has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{private, shared, wait_until, within};
use ult::{Barrier, Condvar, Eventual, Mutex, PoolSpec, Runtime, XstreamSpec};

/// Waiters that end as soon as they are woken, so that their stacks are used by others at once.
#[test]
fn waiters_of_a_condition_variable_may_end_at_once() {
    within(|| {
        let (runtime, pools) = private(2);
        for _ in 0..50 {
            let pair = Arc::new((Mutex::new((0usize, false)), Condvar::new()));
            let handles: Vec<_> = (0..16)
                .map(|n| {
                    let pair = pair.clone();
                    let body = move || {
                        let mut state = pair.0.lock();
                        state.0 += 1;
                        drop(pair.1.wait_while(state, |state| !state.1));
                        n
                    };
                    pools[n % 2].spawn(body).unwrap()
                })
                .collect();
            wait_until("all wait", || pair.0.lock().0 == 16);
            pair.0.lock().1 = true;
            (0..8).for_each(|_| pair.1.notify_one());
            pair.1.notify_all();
            for (n, handle) in handles.into_iter().enumerate() {
                assert_eq!(handle.join().unwrap(), n);
            }
        }
        runtime.shutdown().unwrap();
    });
}

/// The primary ULT signals one after the other.
#[test]
fn the_primary_ult_signals() {
    within(|| {
        let builder = Runtime::builder()
            .pool(PoolSpec::new("main"))
            .pool(PoolSpec::new("other"))
            .xstream(XstreamSpec::new("x0").pools(["main"]))
            .xstream(XstreamSpec::new("x1").pools(["other"]));
        let woken = builder.run(|runtime| {
            let pair = Arc::new((Mutex::new((0usize, 0usize)), Condvar::new()));
            let handles: Vec<_> = (0..10)
                .map(|n| {
                    let pair = pair.clone();
                    let body = move || {
                        let mut state = pair.0.lock();
                        state.0 += 1;
                        while state.1 == 0 {
                            state = pair.1.wait(state);
                        }
                        state.1 -= 1;
                    };
                    let name = if n % 2 == 0 { "main" } else { "other" };
                    runtime.pool(name).unwrap().spawn(body).unwrap()
                })
                .collect();
            crate::common::yield_until("all wait", || pair.0.lock().0 == 10);
            for left in (0..10).rev() {
                pair.0.lock().1 += 1;
                pair.1.notify_one();
                crate::common::yield_until("one has taken it", || pair.0.lock().1 == 0);
                let ended = || handles.iter().filter(|handle| handle.is_finished()).count();
                crate::common::yield_until("one has ended", || ended() == 10 - left);
            }
            handles.into_iter().map(|handle| handle.join().unwrap()).count()
        });
        assert_eq!(woken.unwrap(), 10);
    });
}

/// Time over, value there in time, value there already.
#[test]
fn a_wait_with_a_deadline_has_three_ends() {
    fn ends() {
        let past = Instant::now();
        let never = Eventual::<u8>::new();
        assert_eq!(never.wait_deadline(past), None);
        assert_eq!(never.wait_timeout(Duration::from_micros(200)), None);
        let pair = (Mutex::new(()), Condvar::new());
        assert!(!pair.1.wait_deadline(pair.0.lock(), past).1);
        let ready = Eventual::new();
        ready.set(3u8).unwrap();
        assert_eq!(ready.wait_deadline(past), Some(&3), "what is there is had, however late");
        let soon = Arc::new(Eventual::new());
        let setter = soon.clone();
        let thread = std::thread::spawn(move || setter.set(4u8).unwrap());
        assert_eq!(soon.wait_timeout(crate::common::LONG), Some(&4));
        thread.join().unwrap();
    }
    within(|| {
        ends();
        let (runtime, pool) = shared(1);
        crate::common::on(&pool, ends);
        pool.tasklet().spawn(ends).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// Values pass between ULTs and tasklets in both directions.
#[test]
fn eventuals_pass_values_between_ults_and_tasklets() {
    within(|| {
        let (runtime, pools) = private(2);
        for round in 0..50u32 {
            let (there, back) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
            let (inner, answer) = (there.clone(), back.clone());
            // A tasklet that waits blocks its xstream, so the other one sets.
            let tasklet = pools[0].tasklet().spawn(move || {
                let value: u32 = *inner.wait();
                answer.set(value + 1).unwrap();
            });
            let ult = pools[1].spawn(move || {
                assert!(back.try_get().is_none());
                there.set(round).unwrap();
                *back.wait()
            });
            assert_eq!(ult.unwrap().join().unwrap(), round + 1);
            tasklet.unwrap().join().unwrap();
        }
        runtime.shutdown().unwrap();
    });
}

/// The second ULT must not run: nobody gives way without need.
#[test]
fn objects_that_are_free_do_not_yield() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        crate::common::on(&pools[0], move || {
            let ran = Arc::new(AtomicUsize::new(0));
            let seen = ran.clone();
            let other = pool.spawn(move || ran.fetch_add(1, SeqCst)).unwrap();
            drop(Mutex::new(0).lock());
            assert!(Barrier::new(1).unwrap().wait());
            let eventual = Eventual::new();
            eventual.set(1).unwrap();
            eventual.wait();
            Condvar::new().notify_all();
            let lock = ult::RwLock::new(0);
            drop(lock.read());
            drop(lock.write());
            drop(ult::ReentrantMutex::new(0).lock());
            ult::CountDown::new(0).wait();
            drop(ult::Semaphore::new(1).acquire(1));
            drop(pool.spawn(|| ()).unwrap());
            assert_eq!(seen.load(SeqCst), 0);
            other.join().unwrap();
        });
        runtime.shutdown().unwrap();
    });
}
