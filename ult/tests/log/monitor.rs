//! The monitor: stalls, suspected deadlocks, and its own life.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{LONG, wait_until, within};
use crate::listen::{LOG, WARNINGS, listen};
use ult::{MonitorSpec, Pool, PoolRef, PoolSpec, PopBy, PushReason, Report, Runtime, StartError};
use ult::{Unit, WaitKind, XstreamSpec, XstreamState};

const MS: Duration = Duration::from_millis(1);

type Reports = Arc<Mutex<Vec<Report>>>;

fn watched(spec: MonitorSpec) -> (Runtime, PoolRef, Reports) {
    listen();
    let reports = Reports::default();
    let inner = reports.clone();
    let spec = spec.on_report(move |report| inner.lock().unwrap().push(report.clone()));
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("p"))
        .xstream(XstreamSpec::new("x").pools(["p"]))
        .monitor(spec)
        .start()
        .unwrap();
    let pool = runtime.pool("p").unwrap();
    (runtime, pool, reports)
}

#[test]
fn a_unit_that_does_not_switch_is_reported_until_it_does() {
    within(|| {
        let spec = MonitorSpec::new().stall_limit(5 * MS).tick(MS).deadlock_limit(None);
        let (runtime, pool, reports) = watched(spec);
        let stop = Arc::new(AtomicBool::new(false));
        let inner = stop.clone();
        let ult = pool.spawn(move || {
            while !inner.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        let ult = ult.unwrap();
        let id = ult.id();
        wait_until("the stall is reported", || !reports.lock().unwrap().is_empty());
        stop.store(true, Ordering::Relaxed);
        ult.join().unwrap();
        wait_until("its end is reported", || reports.lock().unwrap().len() == 2);
        runtime.shutdown().unwrap();
        let reports = reports.lock().unwrap();
        let [Report::Stall(start), Report::StallEnd(end)] = &reports[..] else {
            panic!("{reports:?}");
        };
        for stall in [start, end] {
            assert_eq!(
                (stall.ult, stall.pool.as_deref(), &*stall.xstream),
                (Some(id), Some("p"), "x")
            );
        }
        assert!(5 * MS <= start.lasted && start.lasted < end.lasted);
        let text = reports[0].to_string();
        assert!(text.contains(&format!("xstream `x` is stalled: ULT {id} of pool `p`")), "{text}");
    });
}

#[test]
fn the_system_call_that_blocks_an_xstream_is_named() {
    if std::fs::read_to_string("/proc/thread-self/syscall").is_err() {
        return println!("SKIPPED: the system does not tell what threads are blocked in");
    }
    within(|| {
        let spec = MonitorSpec::new().stall_limit(5 * MS).tick(MS).deadlock_limit(None);
        let (runtime, pool, reports) = watched(spec);
        let stall = || {
            let before = reports.lock().unwrap().len();
            let (stop, gate) = std::sync::mpsc::channel::<()>();
            let blocked = pool.spawn(move || gate.recv().is_err()).unwrap();
            wait_until("the stall is reported", || reports.lock().unwrap().len() > before);
            drop(stop);
            assert!(blocked.join().unwrap());
            wait_until("its end is reported", || reports.lock().unwrap().len() > before + 1);
            reports.lock().unwrap()[before].clone()
        };
        // On a loaded machine the thread may not have come to its wait.
        let report = loop {
            match stall() {
                Report::Stall(stall) if stall.system_call.is_none() => {}
                report => break report,
            }
        };
        let text = report.to_string();
        let advice = "blocked in the system call `futex`: call what blocks in `ult::blocking`";
        assert!(text.contains(advice), "{text}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_that_waits_for_a_closure_is_no_deadlock() {
    within(|| {
        let ticks = Arc::new(AtomicUsize::new(0));
        let counts = ticks.clone();
        let spec = MonitorSpec::new().tick(MS).deadlock_limit(Some(5 * MS));
        let (runtime, pool, reports) = watched(spec.on_tick(move || {
            counts.fetch_add(1, Ordering::Relaxed);
        }));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let waits = pool.spawn(move || ult::blocking(move || gate.recv().unwrap())).unwrap();
        wait_until("it runs", || runtime.blocking_stats().running == 1);
        let now = ticks.load(Ordering::Relaxed);
        wait_until("somebody has looked", || ticks.load(Ordering::Relaxed) > now + 20);
        // Not later: a thread that is woken may not be let run for longer than the limit.
        let is_deadlock = |report: &Report| matches!(report, Report::Deadlock(_));
        let told = reports.lock().unwrap().iter().any(is_deadlock);
        go.send(()).unwrap();
        waits.join().unwrap();
        runtime.shutdown().unwrap();
        assert!(!told, "{reports:?}");
    });
}

#[test]
fn it_is_known_what_runs_who_waits_and_when_somebody_looked() {
    within(|| {
        let ticks = Arc::new(AtomicUsize::new(0));
        let counts = ticks.clone();
        let spec = MonitorSpec::new().tick(MS).deadlock_limit(None).on_tick(move || {
            assert!(counts.fetch_add(1, Ordering::Relaxed) != 1, "the next one comes all the same");
        });
        let (runtime, pool, _) = watched(spec);
        wait_until("three looks", || ticks.load(Ordering::Relaxed) >= 3);
        let xstream = runtime.xstream("x").unwrap();
        assert_eq!((xstream.current_unit(), pool.stats().blocked()), (None, 0));
        let gate = Arc::new(ult::Eventual::new());
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let gate = gate.clone();
                pool.spawn(move || {
                    gate.wait();
                })
            })
            .collect();
        wait_until("three are blocked", || pool.stats().blocked() == 3);
        let stop = Arc::new(AtomicBool::new(false));
        let inner = stop.clone();
        let spin = pool.ult().name("spin").spawn(move || {
            while !inner.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        let spin = spin.unwrap();
        wait_until("it runs", || xstream.current_unit().is_some());
        let unit = xstream.current_unit().unwrap();
        assert_eq!((unit.id, &*unit.pool, unit.name), (spin.id(), "p", Some("spin")));
        stop.store(true, Ordering::Relaxed);
        spin.join().unwrap();
        gate.set(()).unwrap();
        waits.into_iter().for_each(|ult| ult.unwrap().join().unwrap());
        wait_until("nothing runs", || xstream.current_unit().is_none());
        assert_eq!(pool.stats().blocked(), 0);
        let before = xstream.stats().slept;
        wait_until("it sleeps", || xstream.stats().slept > before);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_that_wait_for_each_other_are_reported_with_what_they_wait_for() {
    within(|| {
        let spec = MonitorSpec::new().tick(MS).deadlock_limit(Some(5 * MS));
        let (runtime, pool, reports) = watched(spec);
        let locks = Arc::new((ult::Mutex::new(()), ult::Mutex::new(())));
        let theirs = locks.clone();
        let first = pool.ult().name("first").spawn(move || {
            let _a = theirs.0.lock();
            ult::yield_now();
            drop(ult::park_deadline(None).then(|| theirs.1.lock()));
        });
        let first = first.unwrap();
        let unparker = Arc::new(Mutex::new(None));
        let (theirs, inner) = (locks.clone(), unparker.clone());
        let second = pool.ult().name("second").spawn(move || {
            let _b = theirs.1.lock();
            *inner.lock().unwrap() = Some(ult::unparker());
            drop(theirs.0.lock());
        });
        let second = second.unwrap();
        let is_reported = || !reports.lock().unwrap().is_empty();
        wait_until("the deadlock is reported", is_reported);
        let reports = reports.lock().unwrap().clone();
        let Report::Deadlock(deadlock) = &reports[0] else { panic!("{reports:?}") };
        let waits: Vec<_> = deadlock
            .ults
            .iter()
            .map(|ult| match ult.state {
                ult::UltState::Blocked { kind, since } => {
                    assert!(since.is_some());
                    (ult.name.clone().unwrap(), kind)
                }
                other => panic!("{other}"),
            })
            .collect();
        let expected =
            [("first".to_owned(), WaitKind::Park), ("second".to_owned(), WaitKind::Mutex)];
        assert_eq!(waits, expected);
        assert!(reports[0].to_string().starts_with("perhaps a deadlock: 2 ULTs are suspended"));
        // They stay as they are: the threads sleep until the process ends.
        drop((first, second));
        drop(runtime);
    });
}

/// Blocks the xstream until somebody has reported so.
fn block_until_reports(pool: &PoolRef, reports: &Reports, count: usize) {
    let reports = reports.clone();
    let blocks = move || wait_until("a report", || reports.lock().unwrap().len() >= count);
    pool.ult().name("blocks").spawn(blocks).unwrap().join().unwrap();
}

#[test]
fn a_lazy_monitor_knows_the_last_unit_that_announced_itself() {
    within(|| {
        let spec = MonitorSpec::new().lazy().stall_limit(5 * MS).tick(MS);
        let (runtime, pool, reports) = watched(spec);
        // Nothing is told to anybody by other threads.
        ult::integration::announce();
        let begins =
            |name| pool.ult().name(name).spawn(ult::integration::announce).unwrap().join().unwrap();
        begins("before");
        begins("last");
        block_until_reports(&pool, &reports, 1);
        wait_until("its end", || reports.lock().unwrap().len() == 2);
        runtime.shutdown().unwrap();
        let reports = reports.lock().unwrap();
        let [Report::Stall(stall), Report::StallEnd(end)] = &reports[..] else {
            panic!("{reports:?}");
        };
        for stall in [stall, end] {
            assert_eq!((stall.ult, stall.perhaps.clone()), (None, Some(("last", "p".to_owned()))));
        }
        let text = reports[0].to_string();
        let expected =
            "xstream `x` is stalled: a unit (perhaps `last` of pool `p`, the last to begin there)";
        assert!(text.starts_with(expected), "{text}");
    });
}

#[test]
fn a_lazy_monitor_knows_no_name_at_the_first_stall_and_does_afterwards() {
    within(|| {
        let spec = MonitorSpec::new().lazy().stall_limit(5 * MS).tick(MS);
        let (runtime, pool, reports) = watched(spec);
        // Idle, or switching: no stall.
        let busy = pool.spawn(|| (0..20).for_each(|_| ult::sleep(MS))).unwrap();
        busy.join().unwrap();
        assert!(reports.lock().unwrap().is_empty(), "{reports:?}");
        block_until_reports(&pool, &reports, 1);
        wait_until("its end", || reports.lock().unwrap().len() == 2);
        block_until_reports(&pool, &reports, 3);
        wait_until("its end", || reports.lock().unwrap().len() == 4);
        runtime.shutdown().unwrap();
        let reports = reports.lock().unwrap();
        let [Report::Stall(first), Report::StallEnd(_), Report::Stall(next), _] = &reports[..]
        else {
            panic!("{reports:?}");
        };
        assert_eq!((first.ult, first.name, first.pool.as_deref()), (None, None, None));
        assert!(reports[0].to_string().contains("xstream `x` is stalled: a unit has run"));
        assert_eq!((next.name, next.pool.as_deref()), (Some("blocks"), Some("p")));
        let text = reports[2].to_string();
        assert!(text.contains("`blocks` of pool `p` has run for"), "{text}");
    });
}

#[test]
fn an_xstream_that_is_to_leave_is_held_by_its_unit_until_that_switches() {
    within(|| {
        let ticks = Arc::new(AtomicUsize::new(0));
        let counts = ticks.clone();
        let spec = MonitorSpec::new().lazy().stall_limit(5 * MS).tick(MS);
        let (runtime, _, reports) = watched(spec.on_tick(move || {
            counts.fetch_add(1, Ordering::Relaxed);
        }));
        let pool = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let leaves = runtime.add_xstream(XstreamSpec::new("leaves").pools(["late"])).unwrap();
        let (hold, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (holds, goes) = (hold.clone(), go.clone());
        let body = move || {
            while !holds.load(Ordering::Relaxed) {
                ult::yield_now();
            }
            while !goes.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        let unit = pool.spawn(body).unwrap();
        let joined = leaves.clone();
        let joins = std::thread::spawn(move || joined.join());
        wait_until("it is to leave", || leaves.state() == XstreamState::Joining);
        // A loaded machine may have held it up before.
        reports.lock().unwrap().clear();
        hold.store(true, Ordering::Relaxed);
        let of = |report: &Report, is_end: bool| match report {
            Report::Stall(stall) => !is_end && stall.xstream == "leaves",
            Report::StallEnd(stall) => is_end && stall.xstream == "leaves",
            _ => false,
        };
        let is_told =
            |is_end| reports.lock().unwrap().iter().any(|report: &Report| of(report, is_end));
        wait_until("the stall is reported", || is_told(false));
        reports.lock().unwrap().clear();
        let seen = ticks.load(Ordering::Relaxed);
        wait_until("further looks", || ticks.load(Ordering::Relaxed) > seen + 3);
        assert!(!is_told(true), "{reports:?}");
        go.store(true, Ordering::Relaxed);
        unit.join().unwrap();
        joins.join().unwrap().unwrap();
        wait_until("its end", || is_told(true));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_idle_xstream_that_spins_is_no_stall() {
    within(|| {
        let (ticks, stalls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counts, reported) = (ticks.clone(), stalls.clone());
        let spec = MonitorSpec::new().lazy().stall_limit(5 * MS).tick(MS);
        let spec = spec.on_tick(move || _ = counts.fetch_add(1, Ordering::Relaxed));
        let spec = spec.on_report(move |_| _ = reported.fetch_add(1, Ordering::Relaxed));
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            // For longer than the test takes.
            .spin_max(2 * LONG)
            .monitor(spec)
            .start()
            .unwrap();
        let xstream = runtime.xstreams().remove(0);
        wait_until("it is idle", || xstream.state() == XstreamState::Idle);
        let looks = |count| {
            let seen = ticks.load(Ordering::Relaxed);
            wait_until("looks", || ticks.load(Ordering::Relaxed) > seen + count);
        };
        // On a loaded machine its start may have been one, which the next look may report.
        looks(2);
        let before = stalls.load(Ordering::Relaxed);
        looks(50);
        assert_eq!(stalls.load(Ordering::Relaxed), before);
        assert_eq!(xstream.state(), XstreamState::Idle);
        runtime.pool("p").unwrap().spawn(|| ()).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn units_that_nobody_runs_are_reported() {
    within(|| {
        let spec = MonitorSpec::new().lazy().tick(MS).starve_limit(Some(5 * MS));
        let (runtime, pool, reports) = watched(spec.stall_limit(Duration::from_secs(3600)));
        let unserved = runtime.add_pool(PoolSpec::new("unserved")).unwrap();
        let waits = unserved.spawn(|| 1).unwrap();
        wait_until("a report", || !reports.lock().unwrap().is_empty());
        runtime.add_xstream(XstreamSpec::new("late").pools(["unserved"])).unwrap();
        assert_eq!(waits.join().unwrap(), 1);
        assert!(pool.is_empty());
        runtime.shutdown().unwrap();
        let reports = reports.lock().unwrap();
        let [Report::Starvation(starved)] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((&*starved.pool, starved.waiting), ("unserved", 1));
        assert!(starved.xstreams.is_empty() && starved.lasted >= 5 * MS);
        let text = reports[0].to_string();
        assert!(text.contains("1 units of pool `unserved` wait: none has run for"), "{text}");
        assert!(text.ends_with("no xstream serves the pool"), "{text}");
    });
}

/// A pool that says how often the monitor has asked it, and panics then.
struct Panicking(Arc<AtomicUsize>);

impl Pool for Panicking {
    fn push(&self, _unit: Unit, _why: PushReason) {
        unreachable!("nobody spawns here");
    }

    fn pop(&self, _who: PopBy) -> Option<Unit> {
        None
    }

    fn len(&self) -> usize {
        if std::thread::current().name() == Some("ult-monitor") {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::panic::panic_any(PanicsAgain);
        }
        0
    }
}

/// A payload of a panic whose destructor panics.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_pool_that_panics_is_asked_once_and_the_others_are_watched() {
    within(|| {
        let (asked, ticks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = ticks.clone();
        let spec =
            MonitorSpec::new().lazy().tick(MS).starve_limit(Some(5 * MS)).on_tick(move || {
                counts.fetch_add(1, Ordering::SeqCst);
                std::panic::resume_unwind(Box::new(PanicsAgain));
            });
        let (runtime, _, reports) = watched(spec.stall_limit(Duration::from_secs(3600)));
        let broken = PoolSpec::custom("broken", Box::new(Panicking(asked.clone())));
        runtime.add_pool(broken).unwrap();
        wait_until("it is asked", || asked.load(Ordering::SeqCst) > 0);
        let unserved = runtime.add_pool(PoolSpec::new("unserved")).unwrap();
        let waits = unserved.spawn(|| ()).unwrap();
        wait_until("a report of another pool", || !reports.lock().unwrap().is_empty());
        let before = ticks.load(Ordering::SeqCst);
        wait_until("three looks", || ticks.load(Ordering::SeqCst) >= before + 3);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        runtime.add_xstream(XstreamSpec::new("late").pools(["unserved"])).unwrap();
        waits.join().unwrap();
        runtime.shutdown().unwrap();
        let told = LOG.lock().unwrap().clone();
        let of_broken: Vec<_> = told.iter().filter(|line| line.contains("broken")).collect();
        assert!(
            matches!(of_broken[..], [line] if line.contains("`len` of a pool panicked")),
            "{told:?}"
        );
    });
}

#[test]
fn a_sleeping_ult_is_no_deadlock() {
    within(|| {
        let spec = MonitorSpec::new().tick(MS).deadlock_limit(Some(MS));
        let (runtime, pool, reports) = watched(spec);
        pool.spawn(|| ult::sleep(200 * MS)).unwrap().join().unwrap();
        runtime.shutdown().unwrap();
        assert!(reports.lock().unwrap().is_empty(), "{reports:?}");
    });
}

#[test]
fn the_monitor_ends_with_the_runtime_and_does_not_keep_it() {
    within(|| {
        let dropped = Arc::new(());
        let inner = dropped.clone();
        let spec = MonitorSpec::new().tick(Duration::from_secs(3600)).on_report(move |_| {
            let _ = &inner;
        });
        let builder = |spec| {
            Runtime::builder()
                .pool(PoolSpec::new("p"))
                .xstream(XstreamSpec::new("x").pools(["p"]))
                .monitor(spec)
        };
        let runtime = builder(spec.clone()).start().unwrap();
        runtime.shutdown().unwrap();
        assert_eq!(Arc::strong_count(&dropped), 2, "its thread has been joined");
        // Dropped without a shutdown.
        drop(builder(spec).start().unwrap());
        wait_until("its thread ends", || Arc::strong_count(&dropped) == 1);
    });
}

#[test]
fn a_running_runtime_can_be_given_a_monitor_once() {
    within(|| {
        for spec in [MonitorSpec::new(), MonitorSpec::new().lazy()] {
            let runtime = Runtime::builder()
                .pool(PoolSpec::new("p").stack_bytes(1 << 20))
                .xstream(XstreamSpec::new("x").pools(["p"]))
                .start()
                .unwrap();
            let pool = runtime.pool("p").unwrap();
            assert_eq!(pool.stack_bytes(), 1 << 20);
            let reports = Reports::default();
            let inner = reports.clone();
            let spec = spec.stall_limit(5 * MS).tick(MS).deadlock_limit(None);
            let spec = spec.on_report(move |report| inner.lock().unwrap().push(report.clone()));
            assert!(matches!(
                runtime.watch(MonitorSpec::new().tick(Duration::ZERO)),
                Err(StartError::MonitorZero { what: "tick" })
            ));
            runtime.watch(spec.clone()).unwrap();
            assert!(matches!(runtime.watch(spec.clone()), Err(StartError::Monitored)));
            block_until_reports(&pool, &reports, 1);
            assert!(matches!(&reports.lock().unwrap()[0], Report::Stall(s) if s.xstream == "x"));
            runtime.shutdown().unwrap();
            let left = Arc::downgrade(&reports);
            runtime.watch(spec).unwrap();
            drop(reports);
            assert_eq!(left.strong_count(), 0, "no thread is left that could report");
        }
    });
}

#[test]
fn a_report_may_panic_and_may_shut_the_runtime_down() {
    within(|| {
        let (calls, slot) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None::<Runtime>)));
        let (inner, inner_slot) = (calls.clone(), slot.clone());
        let spec = MonitorSpec::new().tick(MS).stall_limit(2 * MS).on_report(move |_| {
            if inner.fetch_add(1, Ordering::SeqCst) == 0 {
                std::panic::resume_unwind(Box::new("a callback that panics"));
            }
            if let Some(runtime) = inner_slot.lock().unwrap().take() {
                runtime.shutdown().unwrap();
                inner.fetch_add(100, Ordering::SeqCst);
            }
        });
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .monitor(spec)
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let inner = calls.clone();
        pool.ult()
            .spawn_detached(move || {
                while inner.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
            })
            .unwrap();
        *slot.lock().unwrap() = Some(runtime);
        wait_until("the end of the stall shut it down", || calls.load(Ordering::SeqCst) >= 102);
        assert!(pool.spawn(|| ()).is_err());
    });
}

#[test]
fn zero_times_are_refused() {
    let start = |spec| {
        let builder = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .monitor(spec);
        builder.start().expect_err("must be refused")
    };
    let spec = MonitorSpec::new;
    for (spec, name) in [
        (spec().tick(Duration::ZERO), "tick"),
        (spec().stall_limit(Duration::ZERO), "stall_limit"),
        (spec().deadlock_limit(Some(Duration::ZERO)), "deadlock_limit"),
    ] {
        let error = start(spec);
        assert!(matches!(error, StartError::MonitorZero { what } if what == name), "{error}");
    }
}

#[test]
fn an_xstream_added_later_is_watched_and_one_that_left_is_at_rest() {
    within(|| {
        let spec = MonitorSpec::new().stall_limit(5 * MS).tick(MS).deadlock_limit(Some(5 * MS));
        let (runtime, pool, reports) = watched(spec);
        let late = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let added = runtime.add_xstream(XstreamSpec::new("added").pools(["late"])).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let inner = stop.clone();
        let tasklet = late.tasklet().spawn(move || {
            while !inner.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        let tasklet = tasklet.unwrap();
        let id = tasklet.id();
        let is_reported = |test: &dyn Fn(&Report) -> bool| reports.lock().unwrap().iter().any(test);
        wait_until("the stall is reported", || {
            is_reported(&|report| {
                matches!(report, Report::Stall(stall)
                    if stall.ult == Some(id)
                        && stall.xstream == "added"
                        && stall.pool.as_deref() == Some("late"))
            })
        });
        stop.store(true, Ordering::Relaxed);
        tasklet.join().unwrap();
        added.join().unwrap();
        let gate = Arc::new(ult::Eventual::new());
        let inner = gate.clone();
        let waits = pool.spawn(move || *inner.wait()).unwrap();
        wait_until("the other xstream alone makes a deadlock", || {
            is_reported(&|report| matches!(report, Report::Deadlock(_)))
        });
        gate.set(()).unwrap();
        waits.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_unit_that_runs_others_does_not_stall() {
    within(|| {
        let spec = MonitorSpec::new().stall_limit(20 * MS).tick(MS).deadlock_limit(None);
        let (runtime, pool, reports) = watched(spec);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let body = move || {
            let end = std::time::Instant::now() + 200 * MS;
            while std::time::Instant::now() < end {
                let child = side.spawn(|| ()).unwrap();
                ult::run_unit(side.pop().unwrap()).unwrap();
                child.join().unwrap();
            }
        };
        let parent = pool.spawn(body).unwrap();
        let id = parent.id();
        parent.join().unwrap();
        runtime.shutdown().unwrap();
        // On a loaded machine the thread itself may stand still for long, which looks the same.
        let reports = reports.lock().unwrap();
        let is_long = |report: &Report| {
            matches!(report, Report::StallEnd(stall)
                if stall.ult == Some(id) && stall.lasted > 190 * MS)
        };
        assert!(!reports.iter().any(is_long), "{reports:?}");
    });
}

#[test]
fn the_primary_xstream_can_be_watched() {
    within(|| {
        let spec = MonitorSpec::new().tick(Duration::from_secs(3600));
        let builder = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .monitor(spec);
        let value = builder.run(|runtime| runtime.pools().len()).unwrap();
        assert_eq!(value, 1);
    });
}

#[test]
fn of_many_short_stalls_few_are_logged_and_all_are_reported() {
    const STALLS: usize = 40;
    within(|| {
        let spec = MonitorSpec::new().stall_limit(5 * MS).tick(MS).deadlock_limit(None);
        let (runtime, pool, reports) = watched(spec);
        let ends = || {
            let is_end = |report: &&Report| matches!(report, Report::StallEnd(_));
            reports.lock().unwrap().iter().filter(is_end).count()
        };
        let name = "stalls again and again";
        for done in 0..STALLS {
            let seen = reports.clone();
            let ult = pool.ult().name(name).spawn(move || {
                let before = seen.lock().unwrap().len();
                wait_until("the stall is reported", || seen.lock().unwrap().len() > before);
            });
            ult.unwrap().join().unwrap();
            wait_until("its end is reported", || ends() > done);
        }
        runtime.shutdown().unwrap();
        assert_eq!(reports.lock().unwrap().len(), 2 * STALLS);
        let log = WARNINGS.lock().unwrap();
        let lines: Vec<_> = log.iter().filter(|line| line.contains(name)).collect();
        assert_eq!(lines.len(), 2 * 12, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("(so far 32 like this)")), "{lines:#?}");
    });
}
