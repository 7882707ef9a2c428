//! `idle`: how a ULT that polls something outside sleeps with its xstream.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, on, private, shared, wait_until, within};
use ult::{Eventual, integration::IdleEnd};

fn long_from_now() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

#[test]
fn readable_descriptor_ends_it() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (mut writer, mut reader) = UnixStream::pair().unwrap();
        let armed = Arc::new(AtomicUsize::new(0));
        let inner_armed = armed.clone();
        let handle = pool.spawn(move || {
            for round in 0..100u8 {
                let end = ult::integration::idle(reader.as_fd(), long_from_now(), || {
                    inner_armed.fetch_add(1, Ordering::SeqCst);
                    true
                });
                assert_eq!(end, IdleEnd::Ready);
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                assert_eq!(byte[0], round);
            }
        });
        for round in 0..100u8 {
            // Armed at most once per call, and always before the sleep.
            wait_until("armed", || armed.load(Ordering::SeqCst) == usize::from(round) + 1);
            writer.write_all(&[round]).unwrap();
        }
        handle.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn other_units_run_and_then_it_polls_again() {
    within(|| {
        let (runtime, pools) = private(1);
        let (_writer, reader) = UnixStream::pair().unwrap();
        let armed = Arc::new(Eventual::new());
        let inner_armed = armed.clone();
        let poller = pools[0].spawn(move || {
            let first = ult::integration::idle(reader.as_fd(), long_from_now(), || {
                inner_armed.set(()).unwrap();
                true
            });
            let second = ult::integration::idle(reader.as_fd(), Some(Instant::now()), || true);
            (first, second)
        });
        armed.wait_ready();
        // Wakes the xstream out of its sleep.
        assert_eq!(pools[0].spawn(|| 3).unwrap().join().unwrap(), 3);
        assert_eq!(poller.unwrap().join().unwrap(), (IdleEnd::Ran, IdleEnd::Deadline));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn at_most_thirty_two_others_run_in_between() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let worst = pools[0].spawn(move || {
            let (_writer, reader) = UnixStream::pair().unwrap();
            let runs = Arc::new(AtomicUsize::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            let busy: Vec<_> = (0..3)
                .map(|_| {
                    let (runs, stop) = (runs.clone(), stop.clone());
                    let body = move || {
                        while !stop.load(Ordering::SeqCst) {
                            runs.fetch_add(1, Ordering::SeqCst);
                            ult::yield_now();
                        }
                    };
                    pool.spawn(body).unwrap()
                })
                .collect();
            let mut worst = 0;
            for _ in 0..50 {
                let before = runs.load(Ordering::SeqCst);
                let end = ult::integration::idle(reader.as_fd(), long_from_now(), || true);
                assert_eq!(end, IdleEnd::Ran);
                worst = worst.max(runs.load(Ordering::SeqCst) - before);
            }
            stop.store(true, Ordering::SeqCst);
            busy.into_iter().for_each(|handle| handle.join().unwrap());
            worst
        });
        let worst = worst.unwrap().join().unwrap();
        assert!((1..=32).contains(&worst), "{worst}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn arm_that_finds_work_ends_it() {
    within(|| {
        let (runtime, pools) = private(1);
        let end = pools[0].spawn(|| {
            let (_writer, reader) = UnixStream::pair().unwrap();
            ult::integration::idle(reader.as_fd(), long_from_now(), || false)
        });
        assert_eq!(end.unwrap().join().unwrap(), IdleEnd::Work);
        let panicked = pools[0].spawn(|| {
            let (_writer, reader) = UnixStream::pair().unwrap();
            ult::integration::idle(reader.as_fd(), long_from_now(), || panic!("cannot arm"))
        });
        let error = panicked.unwrap().join().unwrap_err();
        assert_eq!(error.to_string(), "the ULT panicked: cannot arm");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn unpark_ends_it_and_takes_the_token() {
    within(|| {
        let (runtime, pools) = private(1);
        let handed = Arc::new(Eventual::new());
        let inner = handed.clone();
        let ends = pools[0].spawn(move || {
            let (_writer, reader) = UnixStream::pair().unwrap();
            let me = ult::unparker();
            let first = ult::integration::idle(reader.as_fd(), long_from_now(), || {
                inner.set(me).unwrap();
                true
            });
            ult::unparker().unpark();
            let second = ult::integration::idle(reader.as_fd(), long_from_now(), || true);
            let third = ult::integration::idle(reader.as_fd(), Some(Instant::now()), || true);
            [first, second, third]
        });
        handed.wait_ready();
        handed.try_get().unwrap().unpark();
        let expected = [IdleEnd::Unparked, IdleEnd::Unparked, IdleEnd::Deadline];
        assert_eq!(ends.unwrap().join().unwrap(), expected);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn deadline_ends_it() {
    within(|| {
        let (runtime, pools) = private(1);
        let handle = pools[0].spawn(|| {
            let (_writer, reader) = UnixStream::pair().unwrap();
            let deadline = Instant::now() + Duration::from_millis(20);
            let end = ult::integration::idle(reader.as_fd(), Some(deadline), || true);
            assert!(Instant::now() >= deadline);
            end
        });
        assert_eq!(handle.unwrap().join().unwrap(), IdleEnd::Deadline);
        runtime.shutdown().unwrap();
    });
}

/// Two pollers on one xstream must both be served, and must not keep each other awake.
#[test]
fn several_waiters_share_a_sleep() {
    within(|| {
        let (runtime, pools) = private(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let mut writers = Vec::new();
        let pollers: Vec<_> = (0..3)
            .map(|_| {
                let (writer, mut reader) = UnixStream::pair().unwrap();
                writers.push(writer);
                reader.set_nonblocking(true).unwrap();
                let calls = calls.clone();
                let body = move || {
                    let mut seen = 0;
                    while seen < 20 {
                        let mut byte = [0];
                        match reader.read(&mut byte) {
                            Ok(count) => seen += count,
                            Err(_) => {
                                calls.fetch_add(1, Ordering::SeqCst);
                                ult::integration::idle(reader.as_fd(), long_from_now(), || true);
                            }
                        }
                    }
                };
                pools[0].spawn(body).unwrap()
            })
            .collect();
        wait_until("all wait", || calls.load(Ordering::SeqCst) >= 3);
        // Nothing happens: sooner or later the number of polls stands still, however slow the
        // machine is. With a mutual wake-up it never does; it would grow by many thousands in
        // each of these looks.
        wait_until("no more polls", || {
            let before = calls.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            calls.load(Ordering::SeqCst) == before
        });
        for _ in 0..20 {
            writers.iter_mut().for_each(|writer| writer.write_all(&[1]).unwrap());
            std::thread::yield_now();
        }
        pollers.into_iter().for_each(|poller| poller.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// A waiter that leaves from among armed ones makes no other one pass for armed.
#[test]
fn each_of_many_waiters_is_armed_before_a_sleep() {
    const MANY: usize = 64;
    const ROUNDS: usize = 10;
    /// Events that come before `is_armed` write nothing: a waiter that sleeps unarmed sleeps on.
    struct Source {
        events: AtomicUsize,
        is_armed: AtomicBool,
        near: UnixStream,
        far: UnixStream,
    }
    within(|| {
        let (runtime, pools) = private(1);
        let sources: Vec<_> = (0..MANY)
            .map(|_| {
                let (near, far) = UnixStream::pair().unwrap();
                near.set_nonblocking(true).unwrap();
                let (events, is_armed) = (AtomicUsize::new(0), AtomicBool::new(false));
                Arc::new(Source { events, is_armed, near, far })
            })
            .collect();
        let (done, waits) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let pollers = sources.iter().cloned().map(|source| {
            let (done, waits) = (done.clone(), waits.clone());
            let body = move || {
                for round in 1..=ROUNDS {
                    while source.events.load(Ordering::SeqCst) < round {
                        waits.fetch_add(1, Ordering::SeqCst);
                        ult::integration::idle(source.near.as_fd(), long_from_now(), || {
                            source.is_armed.store(true, Ordering::SeqCst);
                            source.events.load(Ordering::SeqCst) < round
                        });
                        source.is_armed.store(false, Ordering::SeqCst);
                        let _ = (&source.near).read(&mut [0; 8]);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            };
            pools[0].spawn(body).unwrap()
        });
        let pollers: Vec<_> = pollers.collect();
        for round in 0..ROUNDS {
            // From a third of them at a time, so that there are armed ones on both sides.
            for start in 0..3 {
                for source in sources.iter().skip(start).step_by(3) {
                    source.events.fetch_add(1, Ordering::SeqCst);
                    if source.is_armed.swap(false, Ordering::SeqCst) {
                        (&source.far).write_all(&[1]).unwrap();
                    }
                }
                let rest = (0..=start).map(|start| (MANY - start).div_ceil(3)).sum::<usize>();
                let expected = round * MANY + rest;
                wait_until("served", || done.load(Ordering::SeqCst) == expected);
            }
        }
        assert!(waits.load(Ordering::SeqCst) >= MANY, "they waited");
        pollers.into_iter().for_each(|poller| poller.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn has_runnable_sees_pools_inbox_and_timers() {
    within(|| {
        let (runtime, pools) = private(1);
        assert!(!ult::integration::has_runnable(), "no xstream here");
        let pool = pools[0].clone();
        let handle = pools[0].spawn(move || {
            let local = pool.spawn(|| ()).unwrap();
            assert!(ult::integration::has_runnable(), "own push");
            local.join().unwrap();
            let thread_pool = pool.clone();
            let thread = std::thread::spawn(move || thread_pool.spawn(|| ()).unwrap());
            // Spins without yielding, as a polling ULT does.
            while !ult::integration::has_runnable() {
                std::thread::yield_now();
            }
            thread.join().unwrap().join().unwrap();
            let sleeper = pool.spawn(|| ult::sleep(Duration::from_millis(2))).unwrap();
            ult::yield_now();
            while !ult::integration::has_runnable() {
                std::hint::spin_loop();
            }
            sleeper.join().unwrap();
        });
        handle.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn works_on_os_threads() {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    assert_eq!(ult::integration::idle(reader.as_fd(), None, || false), IdleEnd::Work);
    let soon = Some(Instant::now() + Duration::from_millis(2));
    assert_eq!(ult::integration::idle(reader.as_fd(), soon, || true), IdleEnd::Deadline);
    writer.write_all(&[1]).unwrap();
    assert_eq!(ult::integration::idle(reader.as_fd(), long_from_now(), || true), IdleEnd::Ready);
}

/// Two ULTs that switch to each other for ever, past the scheduler, do not keep it from its turn.
#[test]
fn a_chain_of_switches_counts_as_other_units() {
    within(|| {
        let (runtime, pools) = private(1);
        let (_writer, reader) = UnixStream::pair().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let switching = |stop: Arc<AtomicBool>| {
            let pool = pools[0].clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    match pool.pop() {
                        Some(unit) => ult::yield_to(unit).unwrap(),
                        None => ult::yield_now(),
                    }
                }
            }
        };
        let ults = [(); 2].map(|()| pools[0].spawn(switching(stop.clone())).unwrap());
        let stopper = stop.clone();
        let poller = pools[0].spawn(move || {
            let end = ult::integration::idle(reader.as_fd(), long_from_now(), || true);
            stopper.store(true, Ordering::Relaxed);
            end
        });
        assert_eq!(poller.unwrap().join().unwrap(), IdleEnd::Ran);
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// How many of a pool are blocked now, seen by one of them that runs.
fn blocked(pool: &ult::PoolRef) -> u64 {
    let stats = pool.stats();
    assert!(stats.blocked() < stats.alive(), "the caller is not blocked: {stats:?}");
    stats.blocked()
}

/// However its waits end, an idle waiter that goes on is not blocked.
#[test]
fn a_pool_counts_those_that_are_blocked_and_no_others() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        on(&pools[0], move || {
            let (mut writer, mut reader) = UnixStream::pair().unwrap();
            let done = Arc::new(Eventual::new());
            let waits = done.clone();
            let waiter = pool.spawn(move || *waits.wait()).unwrap();
            ult::yield_now();
            assert_eq!(blocked(&pool), 1);
            let mut ends = Vec::new();
            for round in 0..20u8 {
                ult::integration::idle(reader.as_fd(), long_from_now(), || false);
                assert_eq!(blocked(&pool), 1, "work was there");
                let poller = pool.spawn({
                    let pool = pool.clone();
                    move || {
                        ult::yield_now();
                        pool.stats().blocked()
                    }
                });
                ends.push(ult::integration::idle(reader.as_fd(), long_from_now(), || true));
                assert_eq!((poller.unwrap().join().unwrap(), blocked(&pool)), (2, 1));
                let soon = Instant::now() + Duration::from_millis(1);
                ends.push(ult::integration::idle(reader.as_fd(), Some(soon), || true));
                assert_eq!(blocked(&pool), 1, "the time was over");
                writer.write_all(&[round]).unwrap();
                ends.push(ult::integration::idle(reader.as_fd(), long_from_now(), || true));
                assert_eq!(blocked(&pool), 1, "the descriptor was readable");
                reader.read_exact(&mut [0]).unwrap();
                let me = ult::unparker();
                pool.spawn(move || me.unpark()).unwrap();
                ends.push(ult::integration::idle(reader.as_fd(), long_from_now(), || true));
                assert_eq!(blocked(&pool), 1, "it was unparked");
            }
            let expected = [IdleEnd::Ran, IdleEnd::Deadline, IdleEnd::Ready, IdleEnd::Unparked];
            assert!(ends.chunks(4).all(|round| *round == expected), "{ends:?}");
            done.set(()).unwrap();
            waiter.join().unwrap();
            assert_eq!(blocked(&pool), 0);
        });
        let stats = pools[0].stats();
        assert!(stats.run_at_once >= 60, "{stats:?}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn who_else_can_run_beside_those_that_are_known() {
    within(|| {
        let (runtime, pool) = shared(1);
        let own = pool.clone();
        let handle = pool.spawn(move || {
            let is_over = Arc::new(AtomicBool::new(false));
            let mut seen = Vec::new();
            let mut known = |count| {
                seen.push((
                    (0..3).map(ult::integration::has_runnable_beyond).collect::<Vec<_>>(),
                    count,
                ));
            };
            known(0);
            let spawn = || {
                let until = is_over.clone();
                let run = move || {
                    while !until.load(Ordering::Relaxed) {
                        ult::yield_now();
                    }
                };
                own.spawn(run).unwrap()
            };
            // One that has not started, then the same one after it has yielded.
            let first = spawn();
            known(1);
            ult::yield_now();
            known(1);
            let second = spawn();
            known(2);
            is_over.store(true, Ordering::Relaxed);
            first.join().unwrap();
            second.join().unwrap();
            known(0);
            seen
        });
        for (beyond, count) in handle.unwrap().join().unwrap() {
            let expected: Vec<bool> = (0..3).map(|known| count > known).collect();
            assert_eq!(beyond, expected, "{count} can run");
        }
        let beside_a_waiter = on(&pool, {
            let pool = pool.clone();
            move || {
                let waiter = pool.spawn(|| {
                    let (_writer, reader) = UnixStream::pair().unwrap();
                    ult::integration::idle(reader.as_fd(), long_from_now(), || true)
                });
                ult::yield_now();
                let seen = [0, 1].map(ult::integration::has_runnable_beyond);
                (seen, waiter.unwrap().join().unwrap())
            }
        });
        assert_eq!(beside_a_waiter, ([true; 2], IdleEnd::Ran));
        assert!(!ult::integration::has_runnable_beyond(0), "an OS thread has no others");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_stack_that_is_left_is_what_is_below_the_caller() {
    within(|| {
        let (runtime, pool) = shared(1);
        let bytes = 64 << 10;
        #[inline(never)]
        fn below() -> usize {
            let mut room = [1u8; 16 << 10];
            std::hint::black_box(&mut room);
            let left = ult::stack_left();
            std::hint::black_box(&mut room);
            left
        }
        let handle = pool.ult().stack_bytes(bytes).spawn(|| (ult::stack_left(), below()));
        let (here, below) = handle.unwrap().join().unwrap();
        if cfg!(not(ult_thread_context)) {
            assert!((bytes / 2..bytes).contains(&here), "{here}");
            assert!(here >= below + (16 << 10), "{here}, {below} below 16 KiB");
        }
        assert_eq!(pool.tasklet().spawn(ult::stack_left).unwrap().join().unwrap(), 0);
        assert_eq!(ult::stack_left(), 0, "nobody knows of an OS thread");
        runtime.shutdown().unwrap();
    });
}
