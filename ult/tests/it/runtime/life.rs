//! Start and end of a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{private, shared, wait_until, within};
use ult::{Eventual, PoolSpec, Runtime, RuntimeBuilder, ShutdownError, StartError, XstreamSpec};

fn error_of(builder: RuntimeBuilder) -> StartError {
    builder.start().expect_err("must be refused")
}

fn stuck(error: ShutdownError) -> ult::StillAlive {
    match error {
        ShutdownError::StillAlive(report) => *report,
        other => panic!("{other}"),
    }
}

#[test]
fn wrong_descriptions_are_refused() {
    use StartError as E;
    let pool = |name: &str| Runtime::builder().pool(PoolSpec::new(name));
    let xs = |name: &str| XstreamSpec::new(name);
    assert!(matches!(error_of(pool("p")), E::NoXstream));
    assert!(matches!(error_of(pool("p").xstream(xs("x"))), E::NoPool { .. }));
    let error = error_of(pool("p").xstream(xs("x").pools(["q"])));
    assert_eq!(error.to_string(), "xstream `x` serves pool `q`, which is not defined (have: p)");
    let error = error_of(pool("p").xstream(xs("x").pools(["p", "p"])));
    assert!(matches!(error, E::RepeatedPool { .. }));
    let error = error_of(pool("p").pool(PoolSpec::new("p")).xstream(xs("x").pools(["p"])));
    assert!(matches!(error, E::DuplicatePool { .. }));
    let error = error_of(pool("p").pool(PoolSpec::new("q")).xstream(xs("x").pools(["p"])));
    assert!(matches!(error, E::UnservedPool { pool } if pool == "q"));
    let twice = pool("p").xstream(xs("x").pools(["p"])).xstream(xs("x").pools(["p"]));
    assert!(matches!(error_of(twice), E::DuplicateXstream { .. }));
    let error = error_of(pool("p").xstream(xs("x").pools(["p"]).cpubind(100_000)));
    assert!(matches!(error, E::Cpu { cpu: 100_000, .. }), "{error}");
}

#[test]
fn names_may_be_odd() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p\0"))
            .xstream(XstreamSpec::new("x\0 and much longer than the system allows").pools(["p\0"]))
            .start()
            .unwrap();
        assert!(runtime.pool("p").is_none());
        assert_eq!(runtime.pool("p\0").unwrap().spawn(|| 1).unwrap().join().unwrap(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn xstreams_are_pinned() {
    within(|| {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..1024).rev().find(|cpu| allowed.is_set(*cpu)).unwrap();
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]).cpubind(cpu))
            .start()
            .unwrap();
        assert_eq!(runtime.xstreams()[0].cpus(), [cpu]);
        assert_eq!(runtime.xstreams()[0].pools(), ["p"]);
        let pool = runtime.pool("p").unwrap();
        let set = pool.spawn(|| rustix::thread::sched_getaffinity(None).unwrap());
        let set = set.unwrap().join().unwrap();
        assert_eq!(set.count(), 1);
        assert!(set.is_set(cpu));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn shutdown_waits_for_ults_and_may_be_repeated() {
    within(|| {
        let (runtime, pool) = shared(2);
        let ended = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (ended, inner) = (ended.clone(), pool.clone());
            let body = move || {
                ult::sleep(Duration::from_millis(5));
                // A ULT that ends may still leave children.
                let body = move || {
                    ended.fetch_add(1, Ordering::SeqCst);
                };
                inner.ult().spawn_detached(body).unwrap();
            };
            pool.ult().spawn_detached(body).unwrap();
        }
        let others: Vec<_> = (0..3)
            .map(|_| {
                let runtime = runtime.clone();
                std::thread::spawn(move || runtime.shutdown())
            })
            .collect();
        runtime.shutdown().unwrap();
        assert_eq!(ended.load(Ordering::SeqCst), 100);
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn shutdown_from_its_own_ult_is_an_error() {
    within(|| {
        let (runtime, pool) = shared(1);
        let inner = runtime.clone();
        let error = pool.spawn(move || inner.shutdown().unwrap_err()).unwrap().join().unwrap();
        assert!(matches!(error, ShutdownError::FromUlt));
        // A ULT of another runtime may.
        let (other, other_pool) = shared(1);
        other_pool.spawn(move || runtime.shutdown()).unwrap().join().unwrap().unwrap();
        other.shutdown().unwrap();
    });
}

#[test]
fn stuck_ults_are_reported_and_the_runtime_stays_valid() {
    within(|| {
        let (runtime, pools) = private(2);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let one = pools[0].ult().name("stuck one").spawn(move || *inner.wait()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let two = pools[1].spawn(move || {
            sender.send(ult::unparker()).unwrap();
            ult::park();
        });
        let unparker = receiver.recv().unwrap();
        let error = runtime.shutdown_timeout(Duration::from_millis(20)).unwrap_err();
        let text = error.to_string();
        let expected = format!("`stuck one` (id {}) of pool `p0` on xstream `x0`", one.id());
        assert!(text.contains(&expected), "{text}");
        let report = stuck(error);
        assert_eq!(report.suspended.len(), 2, "{report}");
        assert!(report.suspended.iter().any(|ult| ult.pool == "p1" && ult.name.is_none()));
        assert!(report.busy_xstreams.is_empty() && report.queued == 0 && !report.in_progress);

        assert_eq!(pools[0].spawn(|| 8).unwrap().join().unwrap(), 8, "spawns work again");
        gate.set(1u8).unwrap();
        one.join().unwrap();
        let report = stuck(runtime.shutdown_timeout(Duration::from_millis(20)).unwrap_err());
        assert_eq!(report.suspended.len(), 1);
        unparker.unpark();
        two.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn xstream_that_never_yields_is_reported() {
    within(|| {
        let (runtime, pools) = private(2);
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, started) = (stop.clone(), Arc::new(Eventual::new()));
        let inner_started = started.clone();
        let busy = pools[0].spawn(move || {
            inner_started.set(()).unwrap();
            while !seen.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        started.wait_ready();
        let begin = Instant::now();
        let report = stuck(runtime.shutdown_timeout(Duration::from_millis(10)).unwrap_err());
        assert!(begin.elapsed() < crate::common::LONG);
        assert_eq!(report.busy_xstreams, ["x0"]);
        stop.store(true, Ordering::SeqCst);
        busy.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn concurrent_shutdowns_keep_their_own_limits() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::<u8>::new());
        let inner = gate.clone();
        pool.ult().spawn_detached(move || inner.wait_ready()).unwrap();
        let patient = {
            let runtime = runtime.clone();
            std::thread::spawn(move || runtime.shutdown_timeout(crate::common::LONG))
        };
        // Whether it comes first or second, this one ends.
        for _ in 0..5 {
            stuck(runtime.shutdown_timeout(Duration::from_millis(5)).unwrap_err());
        }
        gate.set(0).unwrap();
        patient.join().unwrap().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// Spawns from many threads while the runtime ends: each either runs or is refused.
#[test]
fn spawns_race_with_shutdown() {
    within(|| {
        for _ in 0..30 {
            let (runtime, pool) = shared(2);
            let (ran, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (pool, ran, stop) = (pool.clone(), ran.clone(), stop.clone());
                    std::thread::spawn(move || {
                        let mut accepted = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let ran = ran.clone();
                            let body = move || {
                                ran.fetch_add(1, Ordering::SeqCst);
                            };
                            match pool.ult().spawn_detached(body) {
                                Ok(()) => accepted += 1,
                                Err(_) => break,
                            }
                        }
                        accepted
                    })
                })
                .collect();
            let result = runtime.shutdown_timeout(Duration::from_millis(50));
            stop.store(true, Ordering::Relaxed);
            let accepted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            if result.is_err() {
                runtime.shutdown().unwrap();
            }
            assert_eq!(ran.load(Ordering::SeqCst), accepted);
        }
    });
}

#[test]
fn handles_outlive_the_runtime() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (sender, receiver) = std::sync::mpsc::channel();
        let handle = pool.spawn(move || {
            sender.send(ult::unparker()).unwrap();
            String::from("still here")
        });
        let unparker = receiver.recv().unwrap();
        runtime.shutdown().unwrap();
        drop((runtime, pool));
        let handle = handle.unwrap();
        assert!(handle.is_finished());
        assert_eq!(handle.join().unwrap(), "still here");
        unparker.clone().unpark();
        drop(unparker);
    });
}

#[test]
fn dropping_the_runtime_lets_ults_finish() {
    within(|| {
        let (runtime, pool) = shared(2);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let handle = pool.spawn(move || *inner.wait()).unwrap();
        drop(runtime);
        assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1, "still open");
        gate.set(7).unwrap();
        assert_eq!(handle.join().unwrap(), 7);
        wait_until("closed", || pool.spawn(|| ()).is_err());

        // By one of its own ULTs.
        let (runtime, pool) = shared(1);
        pool.spawn(move || drop(runtime)).unwrap().join().unwrap();
        wait_until("closed", || pool.spawn(|| ()).is_err());
    });
}

#[test]
fn idle_runtime_uses_no_processor() {
    within(|| {
        let (runtime, pools) = private(2);
        let (_writer, reader) = std::os::unix::net::UnixStream::pair().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let poller = pools[0].spawn(move || {
            use std::os::fd::AsFd;
            sender.send(ult::unparker()).unwrap();
            while ult::integration::idle(reader.as_fd(), None, || true)
                != ult::integration::IdleEnd::Unparked
            {}
        });
        let unparker = receiver.recv().unwrap();
        // Processor time of the two xstreams only: other tests run in this process.
        let clock = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` has room for the answer.
            unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
            Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
        };
        let used = || -> Duration {
            pools.iter().map(|pool| pool.spawn(clock).unwrap().join().unwrap()).sum()
        };
        // An observation, not a wait: a sleeping xstream uses no processor time however long the
        // pause becomes on a slow or stopped machine, so it cannot fail by timing. A spinning one
        // would use 1.5 s of a free processor.
        let before = used();
        std::thread::sleep(Duration::from_millis(1500));
        let spent = used() - before;
        assert!(spent < Duration::from_millis(150), "{spent:?}");
        unparker.unpark();
        poller.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// The waker of the last ULT may still be at it when the runtime is gone. (What it would touch then
/// is found by the address sanitizer.)
#[test]
fn a_waker_may_outlive_the_runtime() {
    within(|| {
        for _ in 0..200 {
            let (runtime, pools) = private(1);
            let gate = Arc::new(ult::Eventual::<()>::new());
            let inner = gate.clone();
            let waits = pools[0].spawn(move || inner.wait_ready()).unwrap();
            let x0 = runtime.xstream("x0").unwrap();
            wait_until("it waits", || x0.stats().parked == 1);
            let waker = std::thread::spawn(move || gate.set(()).unwrap());
            waits.join().unwrap();
            runtime.shutdown().unwrap();
            drop((runtime, pools, x0));
            waker.join().unwrap();
        }
    });
}
