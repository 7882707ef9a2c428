//! Recording, trace files and event sinks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{private, shared, wait_until, within};
use serde_json::Value;
use ult::{
    Event, EventKind, EventMask, Eventual, PoolSpec, RecordError, RecordOptions, Runtime, Trace,
    WaitKind, XstreamSpec,
};

fn options() -> RecordOptions {
    RecordOptions::new().events_per_xstream(10_000)
}

/// The kinds of event of one ULT, in order.
fn life_of(trace: &Trace, id: u64) -> Vec<EventKind> {
    trace.events().filter(|event| event.ult == Some(id)).map(|event| event.kind).collect()
}

fn chrome(trace: &Trace) -> Vec<Value> {
    let mut bytes = Vec::new();
    trace.write_chrome(&mut bytes).unwrap();
    let value: Value = serde_json::from_slice(&bytes).expect("valid JSON");
    value["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn a_life_is_recorded_in_order() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let ult = pool.ult().name("walker").spawn(move || {
            ult::yield_now();
            inner.wait();
        });
        let ult = ult.unwrap();
        let id = ult.id();
        wait_until("it waits", || {
            life_of(&recording.snapshot(), id).ends_with(&[EventKind::Block(WaitKind::Eventual)])
        });
        gate.set(()).unwrap();
        ult.join().unwrap();
        wait_until("it has ended", || {
            life_of(&recording.snapshot(), id).ends_with(&[EventKind::Finish])
        });
        let trace = recording.stop();
        use EventKind as E;
        let block = E::Block(WaitKind::Eventual);
        let expected = [E::Create, E::Run, E::Yield, E::Run, block, E::Resume, E::Run, E::Finish];
        assert_eq!(life_of(&trace, id), expected);
        for event in trace.events().filter(|event| event.ult == Some(id)) {
            assert_eq!((event.name, event.pool), (Some("walker"), Some("p")));
            let is_elsewhere = matches!(event.kind, E::Create | E::Resume);
            assert_eq!(event.xstream, (!is_elsewhere).then_some("x0"), "{event}");
        }
        let times: Vec<u64> = trace.events().map(|event| event.at_ns).collect();
        assert!(times.is_sorted());
        assert!(Duration::from_nanos(*times.last().unwrap()) <= trace.duration());
        assert_eq!(trace.dropped(), 0);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn blocking_says_on_what() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let inner = pool.clone();
        let waits = pool.spawn(move || {
            ult::sleep(Duration::from_millis(1));
            inner.spawn(ult::yield_now).unwrap().join().unwrap();
            let mutex = Arc::new(ult::Mutex::new(()));
            let guard = mutex.lock();
            let other = mutex.clone();
            let other = inner.spawn(move || drop(other.lock())).unwrap();
            let other_id = other.id();
            ult::yield_now();
            drop(guard);
            other.join().unwrap();
            let unparker = ult::unparker();
            inner.ult().spawn_detached(move || unparker.unpark()).unwrap();
            ult::park();
            other_id
        });
        let waits = waits.unwrap();
        let id = waits.id();
        let other = waits.join().unwrap();
        let trace = recording.stop();
        let blocks = |id| {
            let kinds = life_of(&trace, id).into_iter();
            kinds.filter(|kind| matches!(kind, EventKind::Block(_))).collect::<Vec<_>>()
        };
        assert_eq!(blocks(other), [EventKind::Block(WaitKind::Mutex)]);
        use WaitKind::{Join, Park, Sleep};
        assert_eq!(blocks(id), [Sleep, Join, Join, Park].map(EventKind::Block));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_newest_events_are_kept_and_the_others_counted() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&RecordOptions::new().events_per_xstream(100)).unwrap();
        pool.spawn(|| (0..10_000).for_each(|_| ult::yield_now())).unwrap().join().unwrap();
        let trace = recording.stop();
        let on_xstream = trace.events().filter(|event| event.xstream == Some("x0")).count();
        // The xstream goes on meanwhile, so the oldest of its 128 places may be in use.
        assert!((100..128).contains(&on_xstream), "{on_xstream}");
        assert!(trace.dropped_on("x0") > 19_000, "{}", trace.dropped_on("x0"));
        assert_eq!(trace.dropped(), trace.dropped_on("x0"));
        assert_eq!(trace.dropped_on("x1"), 0);
        chrome(&trace);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn one_recording_at_a_time_and_none_after_a_drop() {
    within(|| {
        let (runtime, pool) = shared(1);
        let first = runtime.record(&options()).unwrap();
        let error = runtime.record(&options()).unwrap_err();
        assert_eq!(error, RecordError::AlreadyRecording);
        pool.spawn(|| ()).unwrap().join().unwrap();
        drop(first);
        pool.spawn(|| ()).unwrap().join().unwrap();
        wait_until("it has ended", || pool.stats().alive() == 0);
        let second = runtime.record(&options()).unwrap();
        let ult = pool.ult().name("second").spawn(|| ()).unwrap();
        let id = ult.id();
        ult.join().unwrap();
        runtime.shutdown().unwrap();
        let trace = second.stop();
        assert!(trace.events().all(|event| event.ult.is_none_or(|ult| ult == id)), "{trace:?}");
        assert_eq!(life_of(&trace, id).last(), Some(&EventKind::Finish));
        let end = runtime.record(&options()).unwrap().stop();
        assert!(end.is_empty());
    });
}

#[test]
fn each_xstream_has_its_own_track() {
    within(|| {
        let (runtime, pools) = private(2);
        let recording = runtime.record(&options()).unwrap();
        let ults: Vec<_> = pools.iter().map(|pool| pool.spawn(ult::yield_now).unwrap()).collect();
        let ids: Vec<u64> = ults.iter().map(ult::JoinHandle::id).collect();
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        let trace = recording.stop();
        for (id, (pool, xstream)) in ids.iter().zip([("p0", "x0"), ("p1", "x1")]) {
            let runs: Vec<Event<'_>> = trace
                .events()
                .filter(|event| event.ult == Some(*id) && event.kind == EventKind::Run)
                .collect();
            assert_eq!(runs.len(), 2);
            assert!(runs.iter().all(|e| e.xstream == Some(xstream) && e.pool == Some(pool)));
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_sleep_of_an_xstream_is_recorded() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let kinds = || recording.snapshot().events().map(|event| event.kind).collect::<Vec<_>>();
        pool.spawn(|| ()).unwrap().join().unwrap();
        wait_until("it sleeps", || kinds().last() == Some(&EventKind::Sleep));
        pool.spawn(|| ()).unwrap().join().unwrap();
        assert!(kinds().contains(&EventKind::Wake));
        drop(recording);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn chrome_file_has_tracks_slices_arrows_and_counters() {
    within(|| {
        let odd = "name \"with\" \\ and \n and \u{1f980}";
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p\"q"))
            .xstream(XstreamSpec::new("x\t0").pools(["p\"q"]))
            .start()
            .unwrap();
        let pool = runtime.pool("p\"q").unwrap();
        let recording = runtime.record(&options()).unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let ult = pool.ult().name(odd.to_owned()).spawn(move || {
            inner.wait();
        });
        let ult = ult.unwrap();
        let id = ult.id();
        let is_block = |event: Event<'_>| matches!(event.kind, EventKind::Block(_));
        wait_until("it waits", || recording.snapshot().events().any(is_block));
        gate.set(()).unwrap();
        ult.join().unwrap();
        wait_until("it has ended", || {
            recording.snapshot().events().any(|event| event.kind == EventKind::Finish)
        });
        let events = chrome(&recording.stop());
        let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();

        let tracks: HashMap<u64, &str> = of("M")
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .map(|e| (e["tid"].as_u64().unwrap(), e["args"]["name"].as_str().unwrap()))
            .collect();
        assert_eq!(tracks, HashMap::from([(1, "x\t0"), (2, "(other threads)")]));

        let slices: Vec<&Value> = of("X").into_iter().filter(|e| e["cat"] == "ult").collect();
        assert_eq!(slices.len(), 2);
        for slice in &slices {
            assert_eq!((slice["name"].as_str(), slice["tid"].as_u64()), (Some(odd), Some(1)));
            assert_eq!(slice["args"]["id"], id);
            assert_eq!(slice["args"]["pool"], "p\"q");
            assert!(slice["dur"].as_f64().unwrap() >= 0.0);
        }
        assert_eq!(slices[0]["args"]["ended"], "block");
        assert_eq!(slices[0]["args"]["waits_for"], "eventual");
        assert_eq!(slices[1]["args"]["ended"], "finish");

        let (starts, ends) = (of("s"), of("f"));
        assert_eq!((starts.len(), ends.len()), (1, 1));
        assert_eq!(starts[0]["id"], ends[0]["id"]);
        assert_eq!((starts[0]["tid"].as_u64(), ends[0]["tid"].as_u64()), (Some(2), Some(1)));
        assert_eq!(ends[0]["ts"], slices[1]["ts"], "the arrow ends where the run begins");

        assert!(of("i").iter().any(|e| e["cat"] == "create" && e["args"]["id"] == id));
        let counts = of("C");
        assert!(!counts.is_empty());
        assert!(counts.iter().all(|e| e["name"] == "runnable in p\"q"));
        assert!(counts.iter().all(|e| e["args"]["units"].as_i64().unwrap() >= 0));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_run_in_progress_lasts_until_the_end_of_the_trace() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let inner = stop.clone();
        let ult = pool.spawn(move || {
            while !inner.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        let is_run = |event: Event<'_>| event.kind == EventKind::Run;
        wait_until("it runs", || recording.snapshot().events().any(is_run));
        // The xstream takes no part in this, since its unit does not switch.
        let events = chrome(&recording.stop());
        let is_running = |event: &&Value| event["args"]["ended"] == "running";
        assert_eq!(events.iter().filter(is_running).count(), 1);
        stop.store(true, Ordering::Relaxed);
        ult.unwrap().join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_sink_gets_what_it_asked_for() {
    within(|| {
        let (runtime, pool) = shared(1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inner = seen.clone();
        let sink = move |event: &Event<'_>| {
            inner.lock().unwrap().push((event.kind, event.ult, event.name.map(str::to_owned)));
        };
        let handle = runtime.add_sink(EventMask::CREATE | EventMask::FINISH, sink);
        let ult = pool.ult().name("a").spawn(ult::yield_now).unwrap();
        let id = ult.id();
        ult.join().unwrap();
        wait_until("its end has been told", || seen.lock().unwrap().len() == 2);
        handle.remove();
        assert_eq!(Arc::strong_count(&seen), 1, "the sink is gone");
        pool.spawn(|| ()).unwrap().join().unwrap();
        let seen = seen.lock().unwrap();
        let name = Some("a".to_owned());
        let expected = [EventKind::Create, EventKind::Finish].map(|e| (e, Some(id), name.clone()));
        assert_eq!(*seen, expected);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn after_its_removal_a_sink_is_not_running_any_more() {
    within(|| {
        let (runtime, pool) = shared(2);
        let stop = Arc::new(AtomicBool::new(false));
        let inner = stop.clone();
        let ults: Vec<_> = (0..4)
            .map(|_| {
                let stop = inner.clone();
                let body = move || {
                    while !stop.load(Ordering::Relaxed) {
                        ult::yield_now();
                    }
                };
                pool.spawn(body).unwrap()
            })
            .collect();
        for _ in 0..200 {
            let (calls, is_removed) =
                (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let (sink_calls, sink_removed) = (calls.clone(), is_removed.clone());
            let handle = runtime.add_sink(EventMask::ALL, move |_: &Event<'_>| {
                sink_calls.fetch_add(1, Ordering::SeqCst);
                std::hint::spin_loop();
                assert!(!sink_removed.load(Ordering::SeqCst), "called after its removal");
                sink_calls.fetch_add(1, Ordering::SeqCst);
            });
            wait_until("it is called", || calls.load(Ordering::SeqCst) > 2);
            handle.remove();
            is_removed.store(true, Ordering::SeqCst);
            let at_removal = calls.load(Ordering::SeqCst);
            assert_eq!(at_removal % 2, 0, "a call is still going on, or it panicked");
            pool.spawn(|| ()).unwrap().join().unwrap();
            assert_eq!(calls.load(Ordering::SeqCst), at_removal);
        }
        stop.store(true, Ordering::Relaxed);
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn what_a_sink_spawns_when_its_xstream_goes_to_sleep_is_run() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (spawned, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (inner, inner_ran) = (spawned.clone(), ran.clone());
        let handle = runtime.add_sink(EventMask::SLEEP, move |_: &Event<'_>| {
            if inner.fetch_add(1, Ordering::SeqCst) < 100 {
                let ran = inner_ran.clone();
                let body = move || {
                    ran.fetch_add(1, Ordering::SeqCst);
                };
                pool.ult().spawn_detached(body).unwrap();
            }
        });
        wait_until("all have run", || ran.load(Ordering::SeqCst) == 100);
        handle.remove();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_sink_may_spawn_panic_and_remove_itself() {
    within(|| {
        let (runtime, pool) = shared(1);
        let spawned = Arc::new(AtomicUsize::new(0));
        let (inner, inner_pool) = (spawned.clone(), pool.clone());
        let own = Arc::new(Mutex::new(None::<ult::SinkHandle>));
        let sink_own = own.clone();
        let sink = move |_: &Event<'_>| {
            let inner = inner.clone();
            let body = move || {
                inner.fetch_add(1, Ordering::SeqCst);
            };
            inner_pool.ult().spawn_detached(body).unwrap();
            drop(sink_own.lock().unwrap().take());
            std::panic::resume_unwind(Box::new("a sink that panics"));
        };
        *own.lock().unwrap() = Some(runtime.add_sink(EventMask::RUN, sink));
        pool.spawn(|| ()).unwrap().join().unwrap();
        wait_until("its ULT has run", || spawned.load(Ordering::SeqCst) == 1);
        pool.spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(spawned.load(Ordering::SeqCst), 1);
        runtime.shutdown().unwrap();
    });
}

/// Kinds of event of one unit, once `last` is among them.
fn life_until(recording: &ult::Recording, id: u64, last: EventKind) -> Vec<EventKind> {
    wait_until("it has come so far", || life_of(&recording.snapshot(), id).contains(&last));
    life_of(&recording.snapshot(), id)
}

#[test]
fn tasklets_have_events_of_their_own() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let tasklet = pool.tasklet().name("t").spawn(|| ()).unwrap();
        let id = tasklet.id();
        tasklet.join().unwrap();
        // They are recorded before the outcome can be seen.
        let trace = recording.stop();
        use EventKind::{Create, TaskletFinish, TaskletRun};
        assert_eq!(life_of(&trace, id), [Create, TaskletRun, TaskletFinish]);
        let is_slice = |event: &&Value| event["ph"] == "X" && event["args"]["id"] == id;
        let events = chrome(&trace);
        let slices: Vec<_> = events.iter().filter(is_slice).collect();
        assert_eq!(slices.len(), 1);
        assert_eq!(
            (&slices[0]["name"], &slices[0]["args"]["ended"]),
            (&"t".into(), &"finish".into())
        );
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_end_is_recorded_before_a_join_returns() {
    within(|| {
        let (runtime, pool) = shared(1);
        for _ in 0..200 {
            let recording = runtime.record(&RecordOptions::new().events_per_xstream(100)).unwrap();
            let ult = pool.spawn(|| ()).unwrap();
            let id = ult.id();
            ult.join().unwrap();
            let life = life_of(&recording.stop(), id);
            assert_eq!(life, [EventKind::Create, EventKind::Run, EventKind::Finish]);
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn cancelled_units_end_with_cancel() {
    within(|| {
        let (runtime, pool) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let waits = pool.spawn(ult::park).unwrap();
        let waiting = EventKind::Block(WaitKind::Park);
        let id = waits.id();
        life_until(&recording, id, waiting);
        waits.cancel();
        assert!(matches!(waits.join(), Err(ult::JoinError::Cancelled)));
        use EventKind::{Cancel, Create, Resume, Run};
        let life = life_of(&recording.snapshot(), id);
        assert_eq!(life, [Create, Run, waiting, Resume, Run, Cancel]);

        let inner = pool.clone();
        let body = move || {
            let unstarted = inner.spawn(|| ()).unwrap();
            unstarted.cancel();
            let id = unstarted.id();
            assert!(matches!(unstarted.join(), Err(ult::JoinError::Cancelled)));
            id
        };
        let unstarted = pool.spawn(body).unwrap().join().unwrap();
        let trace = recording.stop();
        assert_eq!(life_of(&trace, unstarted), [Create, Cancel]);
        let events = chrome(&trace);
        let is_end = |event: &&Value| event["args"]["ended"] == "cancel";
        assert_eq!(events.iter().filter(is_end).count(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn switches_to_chosen_units_are_recorded() {
    within(|| {
        let (runtime, pool) = shared(1);
        let side = runtime.add_pool(PoolSpec::new("side")).unwrap();
        let recording = runtime.record(&options()).unwrap();
        let body = move || {
            let first = side.spawn(|| ()).unwrap();
            ult::yield_to(side.pop().unwrap()).unwrap();
            let second = side.spawn(ult::yield_now).unwrap();
            ult::run_unit(side.pop().unwrap()).unwrap();
            let third = side.ult().spawn_to(ult::yield_now).unwrap();
            let ids = [first.id(), second.id(), third.id(), ult::current().unwrap().id];
            first.join().unwrap();
            second.join().unwrap();
            third.join().unwrap();
            ids
        };
        let [first, second, third, me] = pool.spawn(body).unwrap().join().unwrap();
        let trace = recording.stop();
        use EventKind::{Create, Finish, Run, Yield};
        assert_eq!(life_of(&trace, first), [Create, Run, Finish]);
        assert_eq!(life_of(&trace, second), [Create, Run, Yield, Run, Finish]);
        assert_eq!(life_of(&trace, third), [Create, Run, Yield, Run, Finish]);
        assert_eq!(life_of(&trace, me)[..6], [Create, Run, Yield, Run, Yield, Run]);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_move_to_another_pool_and_a_revival_are_recorded() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .pool(PoolSpec::new("q"))
            .xstream(XstreamSpec::new("x").pools(["p", "q"]))
            .start()
            .unwrap();
        let (pool, other) = (runtime.pool("p").unwrap(), runtime.pool("q").unwrap());
        let recording = runtime.record(&options()).unwrap();
        let target = other.clone();
        let body = move || {
            ult::set_pool(&target).unwrap();
            ult::yield_now();
        };
        let ult = pool.spawn(body).unwrap();
        let id = ult.id();
        let (outcome, ended) = ult.join_keep();
        outcome.unwrap();
        ended.unwrap().revive(&pool, || ()).unwrap().join().unwrap();
        let trace = recording.stop();
        use EventKind::{Create, Finish, Migrate, Run, Yield};
        let expected = [Create, Run, Migrate, Yield, Run, Finish, Create, Run, Finish];
        assert_eq!(life_of(&trace, id), expected);
        let of = |kind| trace.events().filter(move |event| event.kind == kind);
        assert!(of(Migrate).all(|event| event.pool == Some("q")));
        assert_eq!(of(Finish).filter(|event| event.pool == Some("q")).count(), 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn xstreams_added_during_a_recording_are_recorded_by_name() {
    within(|| {
        let (runtime, _) = shared(1);
        let recording = runtime.record(&options()).unwrap();
        let late = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let added = runtime.add_xstream(XstreamSpec::new("added").pools(["late"])).unwrap();
        let ult = late.spawn(ult::yield_now).unwrap();
        let id = ult.id();
        ult.join().unwrap();
        added.join().unwrap();
        let trace = recording.stop();
        use EventKind::{Create, Finish, Run, Yield};
        assert_eq!(life_of(&trace, id), [Create, Run, Yield, Run, Finish]);
        for event in trace.events().filter(|event| event.kind == Run) {
            assert_eq!((event.xstream, event.pool), (Some("added"), Some("late")));
        }
        assert_eq!(trace.dropped_on("added"), 0);
        let events = chrome(&trace);
        let name = |event: &Value| event["args"]["name"].as_str().map(str::to_owned);
        let track = events.iter().find(|e| name(e).as_deref() == Some("added")).unwrap();
        let is_slice = |event: &&Value| event["cat"] == "ult" && event["ph"] == "X";
        let slices: Vec<_> = events.iter().filter(is_slice).collect();
        assert_eq!(slices.len(), 2);
        assert!(slices.iter().all(|slice| slice["tid"] == track["tid"]));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn in_a_sink_the_caller_is_no_ult() {
    within(|| {
        let (runtime, pool) = shared(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let inner = calls.clone();
        let handle = runtime.add_sink(EventMask::ALL, move |event: &Event<'_>| {
            if event.xstream.is_some() {
                assert!(!ult::is_ult());
                // Would suspend the ULT whose stack this may be.
                ult::yield_now();
                ult::sleep(Duration::from_nanos(1));
                inner.fetch_add(1, Ordering::SeqCst);
            }
        });
        let body = || {
            ult::yield_now();
            assert!(ult::is_ult());
            ult::sleep(Duration::from_micros(1));
            assert!(ult::is_ult());
        };
        pool.spawn(body).unwrap().join().unwrap();
        handle.remove();
        // Run, yield, run, finish; the sleep may be over before it begins.
        assert!(calls.load(Ordering::SeqCst) >= 4);
        runtime.shutdown().unwrap();
    });
}
