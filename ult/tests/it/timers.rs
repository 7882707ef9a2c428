//! Units that start at a given time, sleeps with deadlines, intervals.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{LONG, private, shared, wait_until, within};
use ult::{Eventual, JoinError, PoolRef, PoolSpec, Runtime, TimerHandle, XstreamSpec, block_on};

const HOUR: Duration = Duration::from_secs(3600);

/// Runs `f` on a ULT of `pool` and, once more, here.
fn everywhere(pool: &PoolRef, f: impl Fn(&PoolRef) + Send + Clone + 'static) {
    f(pool);
    let inner = pool.clone();
    pool.spawn(move || f(&inner)).unwrap().join().unwrap();
}

/// Sets the flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_timer_runs_its_closure_at_its_time() {
    within(|| {
        let (runtime, pool) = shared(2);
        everywhere(&pool, |pool| {
            let start = Instant::now();
            let timer = pool.spawn_after(Duration::from_millis(5), Instant::now).unwrap();
            assert_eq!(timer.deadline().duration_since(start).as_millis(), 5);
            let due = timer.deadline();
            assert!(timer.join().unwrap() >= due, "never early");
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_time_that_has_passed_is_now() {
    within(|| {
        let (runtime, pool) = shared(1);
        everywhere(&pool, |pool| {
            let past = Instant::now().checked_sub(HOUR).unwrap();
            assert_eq!(pool.ult().spawn_at(past, || 1).unwrap().join().unwrap(), 1);
            assert_eq!(pool.spawn_after(Duration::ZERO, || 2).unwrap().join().unwrap(), 2);
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_time_beyond_the_clock_never_comes() {
    within(|| {
        let (runtime, pool) = shared(1);
        everywhere(&pool, |pool| {
            let timer = pool.spawn_after(Duration::MAX, || ()).unwrap();
            assert!(timer.cancel());
            assert!(matches!(timer.join(), Err(JoinError::Cancelled)));
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn tasklets_and_named_ults_can_be_timed() {
    within(|| {
        let (runtime, pool) = shared(1);
        everywhere(&pool, |pool| {
            let soon = Duration::from_millis(1);
            let tasklet = pool.tasklet().spawn_after(soon, ult::is_tasklet).unwrap();
            assert!(tasklet.join().unwrap());
            let name = || ult::current().unwrap().name;
            let named = pool.ult().name("alarm").spawn_after(soon, name).unwrap();
            assert_eq!(named.join().unwrap().as_deref(), Some("alarm"));
        });
        runtime.shutdown().unwrap();
    });
}

/// A timer must not depend on the xstream being idle.
#[test]
fn a_timer_fires_on_a_busy_xstream() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let unit = pools[0].spawn(move || {
            let fired = Arc::new(AtomicBool::new(false));
            let sets = fired.clone();
            let set = move || sets.store(true, Ordering::SeqCst);
            let timer = pool.spawn_after(Duration::from_millis(1), set).unwrap();
            while !fired.load(Ordering::SeqCst) {
                ult::yield_now();
            }
            timer.join().unwrap();
        });
        unit.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn timers_start_in_the_order_of_their_times() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let unit = pools[0].spawn(move || {
            let order = Arc::new(Mutex::new(Vec::new()));
            let start = Instant::now();
            let timers: Vec<_> = [3u64, 1, 2, 0, 2]
                .into_iter()
                .enumerate()
                .map(|(place, at)| {
                    let order = order.clone();
                    let push = move || order.lock().unwrap().push((at, place));
                    pool.ult().spawn_at(start + Duration::from_millis(at), push).unwrap()
                })
                .collect();
            timers.into_iter().for_each(|timer| timer.join().unwrap());
            Arc::try_unwrap(order).unwrap().into_inner().unwrap()
        });
        let order = unit.unwrap().join().unwrap();
        assert_eq!(order, [(0, 3), (1, 1), (2, 2), (2, 4), (3, 0)]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_timer_never_runs_and_drops_its_closure() {
    within(|| {
        let (runtime, pool) = shared(2);
        everywhere(&pool, |pool| {
            let (ran, dropped) = (Arc::new(AtomicBool::new(false)), Arc::default());
            let (sets, value) = (ran.clone(), OnDrop(Arc::clone(&dropped)));
            let timer = pool.spawn_after(HOUR, move || {
                sets.store(true, Ordering::SeqCst);
                drop(value);
            });
            let timer = timer.unwrap();
            assert!(!timer.is_finished());
            assert!(timer.cancel());
            assert!(timer.cancel(), "it still has not run, and never will");
            assert!(matches!(timer.join(), Err(JoinError::Cancelled)));
            assert!(dropped.load(Ordering::SeqCst));
            assert!(!ran.load(Ordering::SeqCst));
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancel_after_the_start_is_too_late() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (started, go) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (tells, waits) = (started.clone(), go.clone());
        let timer = pool.spawn_after(Duration::ZERO, move || {
            tells.set(()).unwrap();
            *waits.wait()
        });
        let timer = timer.unwrap();
        started.wait();
        assert!(!timer.cancel());
        go.set(6).unwrap();
        wait_until("it ends", || timer.is_finished());
        assert!(!timer.cancel());
        assert_eq!(timer.join().unwrap(), 6);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_dropped_handle_lets_the_timer_run() {
    within(|| {
        let (runtime, pool) = shared(1);
        everywhere(&pool, |pool| {
            let fired = Arc::new(Eventual::new());
            let sets = fired.clone();
            drop(pool.spawn_after(Duration::from_millis(1), move || sets.set(()).unwrap()));
            fired.wait();
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_shutdown_waits_for_timers_and_goes_on_when_they_are_cancelled() {
    within(|| {
        let (runtime, pool) = shared(2);
        let timer = pool.spawn_after(HOUR, || ()).unwrap();
        assert!(runtime.shutdown_timeout(Duration::from_millis(10)).is_err());
        assert!(timer.cancel());
        runtime.shutdown().unwrap();
        assert!(matches!(timer.join(), Err(JoinError::Cancelled)));
    });
}

#[test]
fn after_a_shutdown_no_timer_is_made() {
    within(|| {
        let (runtime, pool) = shared(1);
        runtime.shutdown().unwrap();
        assert!(pool.spawn_after(HOUR, || ()).is_err());
    });
}

/// Each timer either runs or is cancelled, and the two parties agree which.
fn race(pool: &PoolRef, rounds: u32, make: impl Fn(&PoolRef, Duration) -> TimerHandle<u32>) {
    let mut random = 7u32;
    let mut cancelled = 0;
    for _ in 0..rounds {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let timer = make(pool, Duration::from_micros(u64::from(random >> 26)));
        let start = Instant::now();
        let wait = Duration::from_micros(u64::from((random >> 20) % 64));
        while start.elapsed() < wait {
            ult::yield_now();
        }
        let prevented = timer.cancel();
        match timer.join() {
            Ok(1) => assert!(!prevented, "it ran although the cancel said that it would not"),
            Err(JoinError::Cancelled) => assert!(prevented, "nobody has run it"),
            other => unreachable!("{other:?}"),
        }
        cancelled += u32::from(prevented);
    }
    // No assertion on `cancelled`: timing never decides a test.
    let _ = cancelled;
}

#[test]
fn a_cancel_races_with_the_clock() {
    within(|| {
        let (runtime, pool) = shared(2);
        everywhere(&pool, |pool| {
            race(pool, 1000, |pool, delay| pool.spawn_after(delay, || 1).unwrap());
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancel_from_another_xstream_races_with_the_clock() {
    within(|| {
        let (runtime, pools) = private(2);
        let (here, there) = (pools[0].clone(), pools[1].clone());
        let unit = here.spawn(move || {
            race(&there, 500, |there, delay| {
                let pool = there.clone();
                // The timer is one of the other xstream.
                let made = there.spawn(move || pool.spawn_after(delay, || 1).unwrap());
                made.unwrap().join().unwrap()
            });
        });
        unit.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn many_timers_run_once_each() {
    const COUNT: u64 = 20_000;
    within(|| {
        let (runtime, pool) = shared(2);
        let runs = Arc::new(AtomicUsize::new(0));
        let inner = pool.clone();
        let counts = runs.clone();
        let unit = pool.spawn(move || {
            let start = Instant::now();
            (0..COUNT)
                .map(|n| {
                    let counts = counts.clone();
                    let at = start + Duration::from_micros((n * 7919) % 50_000);
                    let count = move || counts.fetch_add(1, Ordering::Relaxed);
                    inner.ult().spawn_at(at, count).unwrap()
                })
                .collect::<Vec<_>>()
        });
        for (n, timer) in unit.unwrap().join().unwrap().into_iter().enumerate() {
            if n % 2 == 0 {
                timer.join().unwrap();
            }
        }
        wait_until("the detached ones run, too", || runs.load(Ordering::Relaxed) == 20_000);
        runtime.shutdown().unwrap();
    });
}

/// Cancels from elsewhere leave stale entries behind, which must not pile up or hide live ones.
#[test]
fn many_cancels_from_elsewhere_leave_the_others_alone() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        for _ in 0..20 {
            let made = pool.clone();
            let timers = pool.spawn(move || {
                let hours = (0..200).map(|_| made.spawn_after(HOUR, || 0).unwrap());
                let soon = made.spawn_after(Duration::from_millis(1), || 9).unwrap();
                (hours.collect::<Vec<_>>(), soon)
            });
            let (hours, soon) = timers.unwrap().join().unwrap();
            assert!(hours.iter().all(TimerHandle::cancel));
            assert_eq!(soon.join().unwrap(), 9);
            for timer in hours {
                assert!(matches!(timer.join(), Err(JoinError::Cancelled)));
            }
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_timers_of_an_xstream_that_leaves_go_to_others() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .pool(PoolSpec::new("q"))
            .xstream(XstreamSpec::new("x0").pools(["p"]))
            .xstream(XstreamSpec::new("x1").pools(["q", "p"]))
            .start()
            .unwrap();
        let (p, q) = (runtime.pool("p").unwrap(), runtime.pool("q").unwrap());
        let inner = p.clone();
        let unit = q.spawn(move || {
            let make = |delay| inner.spawn_after(delay, || 5).unwrap();
            [make(Duration::from_millis(50)), make(HOUR), make(HOUR)]
        });
        let [soon, late, other] = unit.unwrap().join().unwrap();
        assert!(late.cancel());
        runtime.xstream("x1").unwrap().join().unwrap();
        assert_eq!(soon.join().unwrap(), 5);
        assert!(other.cancel());
        assert!(matches!(other.join(), Err(JoinError::Cancelled)));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_timer_can_be_awaited_and_selected() {
    within(|| {
        let (runtime, pool) = shared(1);
        let soon = Duration::from_millis(1);
        assert_eq!(ult::block_on(pool.spawn_after(soon, || 3).unwrap()).unwrap(), 3);
        let late = pool.spawn_after(HOUR, || 4).unwrap();
        let timer = pool.spawn_after(soon, || 4).unwrap();
        assert_eq!(ult::wait_any(&[&late, &timer], None), Some(1));
        assert!(late.cancel());
        let late = late.join_deadline(Instant::now() + LONG).unwrap();
        assert!(matches!(late, Err(JoinError::Cancelled)));
        assert!(format!("{timer:?}").contains("is_finished: true"));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_deadline_gives_the_timer_back() {
    within(|| {
        let (runtime, pool) = shared(1);
        let timer = pool.spawn_after(HOUR, || ()).unwrap();
        let timer = timer.join_deadline(Instant::now()).unwrap_err();
        assert!(timer.cancel());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn no_sleep_of_many_is_short_or_for_ever() {
    within(|| {
        let (runtime, pools) = private(1);
        let start = Instant::now();
        let units: Vec<_> = (0..200u64)
            .map(|n| {
                let at = start + Duration::from_micros((n * 37) % 200 * 50);
                let body = move || {
                    ult::sleep_until(at);
                    assert!(Instant::now() >= at);
                };
                pools[0].spawn(body).unwrap()
            })
            .collect();
        units.into_iter().for_each(|unit| unit.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_interval_ticks_in_a_ult_and_on_a_thread() {
    within(|| {
        let (runtime, pool) = shared(1);
        let body = || {
            let start = Instant::now();
            let mut every = ult::interval_at(start, Duration::from_millis(1));
            for n in 0..5 {
                let due = every.tick();
                assert_eq!(due, start + Duration::from_millis(n));
                assert!(Instant::now() >= due);
            }
        };
        body();
        pool.spawn(body).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_between_two_ticks_can_be_cancelled() {
    within(|| {
        let (runtime, pool) = shared(1);
        let ticked = Arc::new(Eventual::new());
        let tells = ticked.clone();
        let unit = pool.spawn(move || {
            let mut every = ult::interval(HOUR);
            every.tick();
            tells.set(()).unwrap();
            every.tick();
        });
        ticked.wait();
        let unit = unit.unwrap();
        unit.cancel();
        assert!(matches!(unit.join(), Err(JoinError::Cancelled)));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_future_of_a_timer_cancels_it_at_once() {
    within(|| {
        let (runtime, pool) = shared(1);
        everywhere(&pool, |pool| {
            let alive = Arc::new(());
            let inner = alive.clone();
            let late = pool.spawn_after(HOUR, move || drop(inner)).unwrap().into_future();
            late.cancel();
            assert!(matches!(block_on(late), Err(JoinError::Cancelled)));
            assert_eq!(Arc::strong_count(&alive), 1);
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_future_of_a_timer_cancels_what_has_started() {
    within(|| {
        let (runtime, pool) = shared(1);
        let started = Arc::new(Eventual::new());
        let inner = started.clone();
        let timer = pool.spawn_after(Duration::ZERO, move || {
            inner.set(()).unwrap();
            Eventual::<()>::new().wait_ready();
        });
        let future = timer.unwrap().into_future();
        started.wait_ready();
        future.cancel();
        assert!(matches!(block_on(future), Err(JoinError::Cancelled)));
        runtime.shutdown().unwrap();
    });
}

/// Counts, and takes no time for an answer: before all that is due has fired, a unit that was
/// runnable before has its turn.
#[test]
fn many_timers_at_once_let_others_run_in_between() {
    const TIMERS: usize = 5_000;
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let run = move || {
            let looks_at = pool.clone();
            // Behind the caller in its queue. The first that it sees of the timers is one batch.
            let sees = pool.spawn(move || {
                while looks_at.is_empty() {
                    ult::yield_now();
                }
                looks_at.len()
            });
            // All are due when the caller ends, and not before, since it does not wait.
            let due = Instant::now();
            let timer = |_| pool.ult().spawn_at(due, || ()).unwrap();
            let timers: Vec<_> = (0..TIMERS).map(timer).collect();
            (sees.unwrap(), timers)
        };
        let (sees, timers) = pools[0].spawn(run).unwrap().join().unwrap();
        let seen = sees.join().unwrap();
        assert!((1..TIMERS / 2).contains(&seen), "{seen} of {TIMERS} fired before it ran");
        for timer in timers {
            timer.join().unwrap();
        }
        runtime.shutdown().unwrap();
    });
}
