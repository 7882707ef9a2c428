//! Lists and stack dumps of suspended ULTs.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{LONG, on, private, shared, wait_until, within};
use ult::{
    Dump, DumpOptions, Eventual, MonitorSpec, PoolSpec, Runtime, StackDump, UltDump, UltState,
    WaitKind, XstreamSpec,
};

type JoinHandle = ult::JoinHandle<u32>;

fn options() -> DumpOptions {
    DumpOptions::new().limit(LONG)
}

/// Dumps until the ULT with this number waits.
fn dump_when_blocked(runtime: &Runtime, id: u64) -> UltDump {
    let is_blocked = |ult: &UltDump| ult.id == id && matches!(ult.state, UltState::Blocked { .. });
    let list = options().stacks(false);
    wait_until("it waits", || runtime.dump(&list).ults.iter().any(is_blocked));
    let dump = runtime.dump(&options());
    dump.ults.into_iter().find(|ult| ult.id == id).unwrap()
}

fn symbols(ult: &UltDump) -> Vec<String> {
    match &ult.stack {
        StackDump::Frames(frames) => {
            frames.iter().map(|frame| frame.symbol.clone().unwrap_or_default()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[inline(never)]
fn inner_function_of_the_test(gate: &Eventual<u32>) -> u32 {
    black_box(*gate.wait()) + 1
}

#[inline(never)]
fn outer_function_of_the_test(gate: &Eventual<u32>) -> u32 {
    black_box(inner_function_of_the_test(gate)) + 1
}

#[test]
fn a_dump_shows_the_functions_of_a_suspended_ult() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let body = move || outer_function_of_the_test(&inner);
        let ult = pool.ult().name("dumped").spawn(body).unwrap();
        let dump = dump_when_blocked(&runtime, ult.id());
        assert_eq!(dump.name.as_deref(), Some("dumped"));
        assert_eq!((&*dump.pool, &*dump.xstream), ("p", "x0"));
        let blocked = UltState::Blocked { kind: WaitKind::Eventual, since: None };
        assert_eq!(dump.state, blocked);
        let symbols = symbols(&dump);
        let place = |name: &str| {
            let at = symbols.iter().position(|symbol| symbol.contains(name));
            at.unwrap_or_else(|| panic!("{name} is missing in {symbols:#?}"))
        };
        let (wait, inner) = (place("wait"), place("inner_function_of_the_test"));
        assert!(wait < inner && inner < place("outer_function_of_the_test"));
        let StackDump::Frames(frames) = &dump.stack else { unreachable!() };
        for (folder, name) in [
            ("ult/src", "engine/xstream/inspect.rs"),
            ("ult/src", "payload.rs"),
            ("std/src", "panicking.rs"),
        ] {
            let is_it = |file: &std::path::PathBuf| {
                file.ends_with(name) && file.to_string_lossy().contains(folder)
            };
            let is_there = |frame: &ult::Frame| frame.file.as_ref().is_some_and(is_it);
            let hidden = format!("{folder}/…/{name}");
            assert!(!frames.iter().any(is_there), "{hidden} in {frames:#?}");
        }
        for hidden in ["__rust_try", "corosensei"] {
            assert!(!symbols.iter().any(|s| s.contains(hidden)), "{hidden} in {symbols:#?}");
        }
        let file = frames[inner].file.as_ref().expect("tests have debug information");
        assert!(file.ends_with("ult/tests/it/observe/backtrace.rs"), "{}", file.display());
        let text = dump.to_string();
        assert!(text.starts_with(&format!(
            "ULT `dumped` (id {}) of pool `p` on xstream `x0`: waits for: eventual\n   0: ",
            dump.id
        )));
        assert!(text.contains("backtrace.rs:"), "{text}");
        gate.set(40).unwrap();
        assert_eq!(ult.join().unwrap(), 42, "it goes on as if nothing had happened");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn smallest_stacks_can_be_dumped() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let body = move || outer_function_of_the_test(&inner);
        let ult = pool.ult().stack_bytes(16 * 1024).spawn(body).unwrap();
        let dump = dump_when_blocked(&runtime, ult.id());
        let symbols = symbols(&dump);
        assert!(symbols.iter().any(|s| s.contains("outer_function_of_the_test")), "{symbols:#?}");
        gate.set(40).unwrap();
        assert_eq!(ult.join().unwrap(), 42);
        runtime.shutdown().unwrap();
    });
}

#[inline(never)]
fn wait_deep<const BYTES: usize>(gate: &Eventual<u32>) -> u8 {
    let mut ballast = [0u8; BYTES];
    black_box(&mut ballast);
    gate.wait();
    ballast[BYTES / 2]
}

#[test]
fn a_stack_that_is_nearly_full_is_not_walked() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let body = move || wait_deep::<10_000>(&inner);
        let ult = pool.ult().stack_bytes(16 * 1024).spawn(body).unwrap();
        let dump = dump_when_blocked(&runtime, ult.id());
        match dump.stack {
            StackDump::NoRoom { free_bytes } => assert!(free_bytes < 8192, "{free_bytes}"),
            ref other => panic!("{other:?}"),
        }
        assert!(dump.to_string().contains("bytes of the stack are left"));
        gate.set(0).unwrap();
        assert_eq!(ult.join().unwrap(), 0);
        runtime.shutdown().unwrap();
    });
}

#[inline(never)]
fn descend(levels: u32, gate: &Eventual<u32>) -> u32 {
    if levels == 0 { *gate.wait() } else { black_box(descend(levels - 1, gate)) + 1 }
}

#[test]
fn the_number_of_frames_is_bounded() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let ult = pool.spawn(move || descend(500, &inner)).unwrap();
        dump_when_blocked(&runtime, ult.id());
        let dump = runtime.dump(&options().frames_max(20));
        let StackDump::Frames(frames) = &dump.ults[0].stack else { panic!("{dump}") };
        let addresses: std::collections::BTreeSet<_> = frames.iter().map(|f| f.address).collect();
        assert!(!frames.is_empty() && addresses.len() <= 20, "{}", frames.len());
        gate.set(0).unwrap();
        assert_eq!(ult.join().unwrap(), 500);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn ults_of_all_xstreams_are_listed_in_every_state() {
    within(|| {
        let (runtime, pools) = private(2);
        let stop = Arc::new(AtomicBool::new(false));
        let mut ults = Vec::new();
        for pool in &pools {
            let stop = stop.clone();
            let body = move || {
                while !stop.load(Ordering::Relaxed) {
                    ult::yield_now();
                }
            };
            ults.push(pool.spawn(body).unwrap());
        }
        let parked = pools[1].spawn(ult::park).unwrap();
        let parked_id = parked.id();
        let unparked = dump_when_blocked(&runtime, parked_id);
        assert_eq!(unparked.state, UltState::Blocked { kind: WaitKind::Park, since: None });
        let dump = runtime.dump(&options());
        assert!(dump.busy.is_empty());
        assert_eq!(dump.ults.len(), 3, "{dump}");
        for ult in &ults {
            let found = dump.ults.iter().find(|found| found.id == ult.id()).unwrap();
            assert_eq!(found.state, UltState::Runnable);
            assert!(symbols(found).iter().any(|symbol| symbol.contains("yield_now")), "{found}");
        }
        stop.store(true, Ordering::Relaxed);
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        assert!(runtime.shutdown_timeout(Duration::from_millis(1)).is_err());
        let text = dump.to_string();
        assert!(text.starts_with("3 ULTs have started\n"), "{text}");
        drop(parked);
    });
}

#[test]
fn a_busy_xstream_is_named_and_not_waited_for() {
    within(|| {
        let builder = Runtime::builder().pool(PoolSpec::new("p0")).pool(PoolSpec::new("p1"));
        let builder = builder.monitor(MonitorSpec::new().stall_limit(LONG).deadlock_limit(None));
        let runtime = builder
            .xstream(XstreamSpec::new("x0").pools(["p0"]))
            .xstream(XstreamSpec::new("x1").pools(["p1"]))
            .start()
            .unwrap();
        let pools = runtime.pools();
        let (stop, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (inner, inner_runs) = (stop.clone(), runs.clone());
        let body = move || {
            inner_runs.store(true, Ordering::Relaxed);
            while !inner.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        let busy = pools[0].spawn(body).unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let waits = pools[1].spawn(move || *inner.wait()).unwrap();
        wait_until("it runs", || runs.load(Ordering::Relaxed));
        let is_there = |dump: &Dump| dump.ults.iter().any(|ult| ult.id == waits.id());
        let short = DumpOptions::new().limit(Duration::from_millis(20));
        // The other xstream answers sooner or later, also on a loaded machine.
        let mut last = Dump::default();
        while !is_there(&last) {
            last = runtime.dump(&short);
        }
        let named = last.busy.iter().find(|busy| busy.xstream == "x0").unwrap();
        assert_eq!((named.ult, named.pool.as_deref()), (Some(busy.id()), Some("p0")));
        assert!(last.to_string().contains("xstream `x0` did not answer"), "{last}");
        stop.store(true, Ordering::Relaxed);
        gate.set(1).unwrap();
        busy.join().unwrap();
        waits.join().unwrap();
        let after = runtime.dump(&options());
        assert!(after.busy.is_empty() && after.ults.is_empty(), "{after}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_may_dump_its_own_runtime() {
    within(|| {
        let (runtime, pool) = shared(1);
        let inner = runtime.clone();
        let body = move || (ult::current().unwrap().id, inner.dump(&options()));
        let (id, dump) = pool.ult().stack_bytes(64 * 1024).spawn(body).unwrap().join().unwrap();
        assert!(dump.busy.is_empty());
        assert_eq!(dump.ults.len(), 1);
        assert_eq!(dump.ults[0].id, id);
        let StackDump::Frames(frames) = &dump.ults[0].stack else { panic!("{dump}") };
        let is_own = |path: &std::path::PathBuf| path.ends_with(file!());
        assert!(frames.iter().any(|frame| frame.file.as_ref().is_some_and(is_own)), "{frames:#?}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn concurrent_dumps_each_get_everything() {
    within(|| {
        let (runtime, pool) = shared(2);
        let gate = Arc::new(Eventual::new());
        let ults: Vec<_> = (0..20)
            .map(|_| {
                let gate = gate.clone();
                pool.spawn(move || *gate.wait()).unwrap()
            })
            .collect();
        ults.iter().for_each(|ult| drop(dump_when_blocked(&runtime, ult.id())));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(runtime.dump(&options()).ults.len(), 20);
                    }
                });
            }
        });
        gate.set(1).unwrap();
        ults.into_iter().for_each(|ult| assert_eq!(ult.join().unwrap(), 1));
        runtime.shutdown().unwrap();
    });
}

/// Spawns so many ULTs that wait at the gate.
fn many_blocked(pool: &ult::PoolRef, gate: &Arc<Eventual<u32>>, count: usize) -> Vec<JoinHandle> {
    let one = |_| {
        let gate = gate.clone();
        pool.ult().stack_bytes(16 * 1024).spawn(move || *gate.wait()).unwrap()
    };
    let ults: Vec<_> = (0..count).map(one).collect();
    wait_until("all wait", || pool.stats().blocked() == count as u64);
    ults
}

fn open(gate: &Eventual<u32>, ults: Vec<JoinHandle>) {
    gate.set(1).unwrap();
    ults.into_iter().for_each(|ult| assert_eq!(ult.join().unwrap(), 1));
}

#[test]
fn stacks_beyond_the_bound_are_left_out_and_their_ults_listed() {
    within(|| {
        let (runtime, pools) = private(2);
        let gate = Arc::new(Eventual::new());
        let mut ults = many_blocked(&pools[0], &gate, 50);
        ults.extend(many_blocked(&pools[1], &gate, 3));
        let dump = runtime.dump(&options().stacks_max(20));
        assert!(dump.busy.is_empty() && dump.partial.is_empty());
        let stacks = |xstream: &str, is: fn(&StackDump) -> bool| {
            let of = dump.ults.iter().filter(|ult| ult.xstream == xstream);
            of.filter(|ult| is(&ult.stack)).count()
        };
        let walked: fn(&StackDump) -> bool = |stack| matches!(stack, StackDump::Frames(_));
        let left_out: fn(&StackDump) -> bool = |stack| *stack == StackDump::LeftOut;
        assert_eq!(["x0", "x1"].map(|xstream| stacks(xstream, walked)), [10, 3]);
        assert_eq!(["x0", "x1"].map(|xstream| stacks(xstream, left_out)), [40, 0]);
        assert!(dump.to_string().contains("(no stack dump: there are too many)"));
        let list = runtime.dump(&options().stacks(false).stacks_max(20));
        assert!(list.ults.iter().all(|ult| ult.stack == StackDump::NotAsked));
        open(&gate, ults);
        runtime.shutdown().unwrap();
    });
}

/// More than ten slices of a list.
const MANY: usize = 4000;

#[test]
fn units_run_while_an_xstream_lists_its_ults() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let ults = many_blocked(&pool, &gate, MANY);
        let (rounds, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, stops) = (rounds.clone(), over.clone());
        let runs = pool.spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                counts.fetch_add(1, Ordering::Relaxed);
                ult::yield_now();
            }
        });
        // The one that asks is on the same xstream: nothing but slices lies between its two looks.
        // It is woken at each, and looks, so every other turn is its own.
        let inner = runtime.clone();
        let asks = move || {
            let before = rounds.load(Ordering::Relaxed);
            let dump = inner.dump(&options().stacks(false));
            (dump, rounds.load(Ordering::Relaxed) - before)
        };
        let (dump, rounds) = on(&pool, asks);
        assert!(rounds >= 5, "{rounds} rounds beside a list of {MANY} ULTs");
        assert!(dump.ults.len() >= MANY && dump.busy.is_empty() && dump.partial.is_empty());
        over.store(true, Ordering::Relaxed);
        runs.unwrap().join().unwrap();
        open(&gate, ults);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn what_was_listed_in_time_is_told() {
    within(|| {
        let (runtime, pool) = shared(1);
        let gate = Arc::new(Eventual::new());
        let ults = many_blocked(&pool, &gate, MANY);
        // The time that it takes depends on the machine: look for one that is over midway.
        let mut limit = Duration::from_micros(100);
        let part = loop {
            let dump = runtime.dump(&DumpOptions::new().stacks(false).limit(limit));
            if !dump.partial.is_empty() {
                break dump;
            }
            let is_short = !dump.busy.is_empty();
            assert!(is_short == dump.ults.is_empty(), "busy: nothing; else everything");
            limit = if is_short { limit * 21 / 20 } else { limit * 19 / 20 };
        };
        assert_eq!(part.partial, ["x0"]);
        assert!(part.busy.is_empty() && (1..MANY).contains(&part.ults.len()));
        assert!(part.to_string().contains("xstream `x0` had not listed all"));
        assert_eq!(runtime.dump(&options().stacks(false)).ults.len(), MANY);
        open(&gate, ults);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_dump_after_the_end_is_empty() {
    within(|| {
        let (runtime, _) = shared(1);
        runtime.shutdown().unwrap();
        let dump = runtime.dump(&DumpOptions::new().limit(Duration::from_millis(1)));
        assert!(dump.ults.is_empty() && dump.busy.is_empty(), "{dump}");
    });
}

#[test]
fn with_a_monitor_a_dump_says_since_when() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .monitor(MonitorSpec::new().tick(Duration::from_millis(1)).deadlock_limit(None))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let ult = pool.spawn(move || *inner.wait()).unwrap();
        let since = |ult: UltDump| match ult.state {
            UltState::Blocked { since: Some(since), .. } => since,
            other => panic!("{other}"),
        };
        let first = since(dump_when_blocked(&runtime, ult.id()));
        let second = since(dump_when_blocked(&runtime, ult.id()));
        assert!(first < second && second < LONG, "{first:?} {second:?}");
        gate.set(1).unwrap();
        ult.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_backtrace_ends_at_the_first_frame_of_the_ult() {
    #[inline(never)]
    fn innermost() -> String {
        black_box(std::backtrace::Backtrace::force_capture().to_string())
    }
    within(|| {
        let (runtime, pool) = shared(1);
        // Naming frames takes more stack than the capture itself.
        let text = pool.ult().stack_bytes(1 << 20).spawn(innermost).unwrap().join().unwrap();
        assert!(text.contains("innermost"), "{text}");
        // What the ULT runs on, and what runs the ULT.
        assert!(text.contains("ult::stack::context::"), "{text}");
        for beyond in ["run_loop", "xstream_thread", "clone"] {
            assert!(!text.contains(beyond), "{beyond} in {text}");
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_xstream_that_has_left_is_not_waited_for_and_a_new_one_is_asked() {
    within(|| {
        let (runtime, _pool) = shared(1);
        let late = runtime.add_pool(PoolSpec::new("late")).unwrap();
        let added = runtime.add_xstream(XstreamSpec::new("added").pools(["late"])).unwrap();
        let gate = Arc::new(Eventual::new());
        let inner = gate.clone();
        let waits = late.spawn(move || *inner.wait()).unwrap();
        let dump = dump_when_blocked(&runtime, waits.id());
        assert_eq!((&*dump.pool, &*dump.xstream), ("late", "added"));
        gate.set(1).unwrap();
        waits.join().unwrap();
        added.join().unwrap();
        let dump = runtime.dump(&options());
        assert!(dump.busy.is_empty() && dump.ults.is_empty(), "{dump}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_ult_that_runs_others_as_its_children_can_be_dumped_between_them() {
    within(|| {
        let (runtime, pool) = shared(1);
        let children = runtime.add_pool(PoolSpec::new("children")).unwrap();
        let gate = Arc::new(Eventual::new());
        let (inner, outer_gate) = (gate.clone(), gate.clone());
        let child = children.spawn(move || outer_function_of_the_test(&inner)).unwrap();
        let id = child.id();
        let parent = pool.spawn(move || {
            let unit = children.pop().unwrap();
            ult::run_unit(unit).unwrap();
            outer_gate.wait();
            child.join().unwrap()
        });
        let parent = parent.unwrap();
        let dump = dump_when_blocked(&runtime, parent.id());
        assert!(!symbols(&dump).iter().any(|s| s.contains("outer_function_of_the_test")));
        let dump = dump_when_blocked(&runtime, id);
        let symbols = symbols(&dump);
        assert!(symbols.iter().any(|s| s.contains("outer_function_of_the_test")), "{symbols:#?}");
        assert!(!symbols.iter().any(|s| s.contains("run_unit")), "{symbols:#?}");
        gate.set(40).unwrap();
        assert_eq!(parent.join().unwrap(), 42);
        runtime.shutdown().unwrap();
    });
}
