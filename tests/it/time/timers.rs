//! Timers: the cases of C Margo's own tests, and those that they leave out.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, bounded};
use margo::{
    ForwardError, Instance, ProviderHandle, Rpc, errors::TimerError, timers::Timer,
    timers::TimerSpec, ult,
};
use ult::{Eventual, PoolSpec, XstreamSpec};

const MS: Duration = Duration::from_millis(1);
const NEVER: Duration = Duration::from_secs(24 * 3600);

fn instance() -> Instance {
    Instance::builder("na+sm://").start().unwrap()
}

/// A counter, and a callback that counts.
fn counter() -> (Arc<AtomicUsize>, impl FnMut(&mut margo::timers::Tick) + Send + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let own = count.clone();
    (count, move |_: &mut margo::timers::Tick| {
        own.fetch_add(1, Ordering::SeqCst);
    })
}

/// Waits for a state that others bring about.
fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: hangs");
        std::thread::yield_now();
    }
}

/// Something that happens after everything that was due before: a timer of the same pool.
fn let_pass(instance: &Instance, time: Duration) {
    let (sender, receiver) = mpsc::channel();
    let timer = instance.timer(move |_| sender.send(()).unwrap());
    timer.start(time).unwrap();
    receiver.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_timer_runs_once_and_not_before_its_time() {
    let own = instance();
    let (sender, runs) = mpsc::channel();
    let timer = own.timer(move |tick| sender.send((tick.due(), Instant::now())).unwrap());
    assert!(!timer.is_armed());
    timer.start(NEVER).unwrap();
    assert!(timer.is_armed());
    assert!(matches!(timer.start(Duration::ZERO), Err(TimerError::Armed)), "armed already");
    let_pass(&own, 5 * MS);
    assert!(timer.disarm(), "the second start changed nothing");
    let start = Instant::now();
    timer.start(20 * MS).unwrap();
    let (due, ran) = runs.recv_timeout(PATIENCE).unwrap();
    assert!(due >= start + 20 * MS && ran >= due);
    until("disarmed", || !timer.is_armed());
    timer.start(Duration::ZERO).unwrap();
    let (again, _) = runs.recv_timeout(PATIENCE).unwrap();
    assert!(again > due);
    let_pass(&own, 30 * MS);
    assert!(runs.try_recv().is_err(), "a third run");
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_timer_works_armed_by_threads_by_its_own_ults_and_by_those_of_another_instance() {
    let (own, other) = (instance(), instance());
    let (sender, runs) = mpsc::channel();
    let timer = Arc::new(own.timer(move |_| sender.send(ult::current().unwrap().pool).unwrap()));
    for pool in [None, Some(own.layout().rpc_pool()), Some(other.layout().rpc_pool())] {
        let arms = timer.clone();
        match pool {
            None => arms.start(MS).unwrap(),
            Some(pool) => pool.spawn(move || arms.start(MS).unwrap()).unwrap().join().unwrap(),
        }
        assert_eq!(runs.recv_timeout(PATIENCE).unwrap(), own.layout().rpc_pool().name());
        until("disarmed", || !timer.is_armed());
    }
    own.finalize_and_wait().unwrap();
    other.finalize_and_wait().unwrap();
}

#[test]
fn timers_run_in_the_order_of_their_times_also_where_nothing_else_happens() {
    let own = instance();
    let order = Arc::new(Mutex::new(Vec::new()));
    let timers: Vec<Timer> = (0..50)
        .map(|index| {
            let order = order.clone();
            own.timer(move |_| order.lock().unwrap().push(index))
        })
        .collect();
    // One that the execution stream already sleeps for.
    let far = own.timer(|_| ());
    far.start(NEVER).unwrap();
    let mut lead = 10 * MS;
    loop {
        let start = Instant::now() + lead;
        for (index, timer) in timers.iter().enumerate().rev() {
            let due = start + u32::try_from(index).unwrap() * Duration::from_micros(200);
            timer.start_at(due).unwrap();
        }
        if Instant::now() < start {
            break;
        }
        // This thread was held up, and one that was due has run before an earlier one was armed.
        for timer in &timers {
            let _ = timer.cancel().unwrap();
        }
        order.lock().unwrap().clear();
        lead *= 2;
    }
    until("all have run", || order.lock().unwrap().len() == 50);
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "{order:?}");
    assert!(far.is_armed());
    own.finalize_and_wait().unwrap();
}

/// How late the latest of 30 timers ran that a thread arms one after the other, most of them for an
/// execution stream that sleeps then.
fn latest(own: &Instance, spec: TimerSpec) -> Duration {
    let (sender, runs) = mpsc::channel();
    let run = move |tick: &mut margo::timers::Tick| sender.send(tick.due().elapsed()).unwrap();
    let timer = own.timer_with(spec, run);
    let lateness = (0..30).map(|index| {
        until("disarmed", || !timer.is_armed());
        timer.start((1 + index % 7) * MS).unwrap();
        runs.recv_timeout(PATIENCE).unwrap()
    });
    lateness.max().unwrap()
}

/// A progress loop that waits for the network for up to 100 ms, and that nobody wakes, would run
/// them so much later.
#[test]
fn timers_are_not_late_where_nothing_else_happens_wherever_progress_is() {
    let apart = r#"{ "argobots": {
        "pools": [{ "name": "net" }, { "name": "__primary__" }],
        "xstreams": [{ "name": "__primary__", "scheduler": { "pools": ["__primary__", "net"] } }] },
        "progress_pool": "net", "rpc_pool": "__primary__" }"#;
    for document in ["{}", r#"{ "use_progress_thread": true }"#, apart] {
        let own = margo::init(document).unwrap();
        for inline in [false, true] {
            let spec = if inline { TimerSpec::new().inline() } else { TimerSpec::new() };
            // A machine that has too much to do decides nothing: it is not so time and again.
            let mut tries = Vec::new();
            while tries.last().is_none_or(|late| *late > 50 * MS) {
                assert!(tries.len() < 20, "{document}: {tries:?}");
                tries.push(latest(&own, spec.clone()));
            }
        }
        own.finalize_and_wait().unwrap();
    }
}

#[test]
fn ticks_come_at_a_fixed_period_and_missed_ones_are_left_out() {
    let own = instance();
    let (sender, ticks) = mpsc::channel();
    let gate = Arc::new(Eventual::new());
    let opens = gate.clone();
    let timer = own.timer(move |tick| {
        sender.send((tick.due(), tick.missed())).unwrap();
        opens.wait();
    });
    assert!(matches!(timer.start_every(Duration::ZERO), Err(TimerError::ZeroPeriod)));
    timer.start_every(5 * MS).unwrap();
    let (first, missed) = ticks.recv_timeout(PATIENCE).unwrap();
    assert_eq!(missed, 0);
    // The first run lasts until some ticks are over.
    until("ticks pass", || Instant::now() > first + 23 * MS);
    gate.set(()).unwrap();
    let mut seen = 0;
    for _ in 0..4 {
        let (due, missed) = ticks.recv_timeout(PATIENCE).unwrap();
        seen += 1 + u32::try_from(missed).unwrap();
        assert_eq!(due - first, seen * 5 * MS, "ticks keep their phase");
        assert!(seen >= 5, "those of the first run are left out");
    }
    assert!(timer.is_armed());
    assert!(timer.cancel().unwrap());
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_callback_decides_what_comes_next() {
    let own = instance();
    let (sender, runs) = mpsc::channel();
    let mut left = 3;
    let backoff = own.timer(move |tick| {
        left -= 1;
        sender.send(left).unwrap();
        if left > 0 {
            tick.again_after(MS);
        }
    });
    backoff.start(MS).unwrap();
    let seen: Vec<_> = (0..3).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(seen, [2, 1, 0]);
    until("the last run", || !backoff.is_armed());

    let (sender, runs) = mpsc::channel();
    let mut count = 0;
    let periodic = own.timer(move |tick| {
        count += 1;
        if count == 3 {
            tick.stop();
        }
        sender.send(count).unwrap();
    });
    periodic.start_every(MS).unwrap();
    until("it stops itself", || !periodic.is_armed());
    let_pass(&own, 5 * MS);
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_panic_is_contained_and_the_period_goes_on() {
    let own = instance();
    let (sender, runs) = mpsc::channel();
    let mut count = 0;
    let timer = own.timer(move |_| {
        count += 1;
        sender.send(count).unwrap();
        assert!(count != 1, "the first run panics");
    });
    timer.start_every(MS).unwrap();
    for expected in 1..4 {
        assert_eq!(runs.recv_timeout(PATIENCE).unwrap(), expected);
    }
    drop(timer);
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_restart_replaces_what_was_armed_earlier_or_later() {
    let own = instance();
    let (count, callback) = counter();
    let timer = own.timer(callback);
    timer.start(NEVER).unwrap();
    timer.restart(MS).unwrap();
    until("brought forward", || count.load(Ordering::SeqCst) == 1);
    // A watchdog: pushed out before it bites, again and again.
    for _ in 0..1000 {
        timer.restart(NEVER).unwrap();
    }
    assert!(timer.disarm());
    assert_eq!(count.load(Ordering::SeqCst), 1);
    // Pushed out while its unit waits, which comes too early and has another one made.
    let (sender, runs) = mpsc::channel();
    let timer = own.timer(move |tick| sender.send((tick.due(), Instant::now())).unwrap());
    timer.restart(5 * MS).unwrap();
    let due = Instant::now() + 20 * MS;
    timer.restart(20 * MS).unwrap();
    loop {
        let (at, ran) = runs.recv_timeout(PATIENCE).unwrap();
        assert!(ran >= at);
        if at >= due {
            break;
        }
    }
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_cancel_before_the_time_prevents_the_run() {
    let own = instance();
    let (count, callback) = counter();
    let timer = own.timer(callback);
    let mut came_in_time = false;
    while !came_in_time {
        let before = count.load(Ordering::SeqCst);
        timer.start(10 * MS).unwrap();
        came_in_time = timer.cancel().unwrap();
        assert!(!timer.cancel().unwrap(), "there is nothing left");
        let_pass(&own, 20 * MS);
        let expected = before + usize::from(!came_in_time);
        assert_eq!(count.load(Ordering::SeqCst), expected);
    }
    let before = count.load(Ordering::SeqCst);
    timer.start(MS).unwrap();
    until("armed anew", || count.load(Ordering::SeqCst) == before + 1);
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_cancel_prevents_a_run_that_is_queued_where_nobody_runs_it() {
    let own = instance();
    let pool = own.runtime().add_pool(PoolSpec::new("unserved")).unwrap();
    let (count, callback) = counter();
    let timer = Arc::new(own.timer_with(TimerSpec::new().pool(&pool), callback));
    let arms = timer.clone();
    own.layout().rpc_pool().spawn(move || arms.start(MS).unwrap()).unwrap().join().unwrap();
    until("queued", || pool.len() == 1);
    assert!(timer.cancel().unwrap(), "it has not begun");
    own.runtime().add_xstream(XstreamSpec::new("late").pools(["unserved"])).unwrap();
    until("the unit is over", || pool.stats().alive() == 0);
    assert_eq!(count.load(Ordering::SeqCst), 0);
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_cancel_waits_for_a_callback_that_runs() {
    let own = Instance::builder("na+sm://").rpc_thread_count(2).start().unwrap();
    let (sender, begun) = mpsc::channel();
    let (gate, ended) = (Arc::new(Eventual::new()), Arc::new(AtomicBool::new(false)));
    let (opens, ends) = (gate.clone(), ended.clone());
    let timer = Arc::new(own.timer(move |_| {
        sender.send(()).unwrap();
        opens.wait();
        ends.store(true, Ordering::SeqCst);
    }));
    timer.start(Duration::ZERO).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    // From a thread and from a ULT at once.
    let cancel = |timer: &Arc<Timer>, ended: &Arc<AtomicBool>| {
        let (timer, ended) = (timer.clone(), ended.clone());
        move || {
            assert!(!timer.cancel().unwrap(), "too late to prevent it");
            assert!(ended.load(Ordering::SeqCst), "cancel returned before the callback");
        }
    };
    let thread = std::thread::spawn(cancel(&timer, &ended));
    let on_ult = own.layout().rpc_pool().spawn(cancel(&timer, &ended)).unwrap();
    gate.set(()).unwrap();
    thread.join().unwrap();
    on_ult.join().unwrap();
    own.finalize_and_wait().unwrap();
}

#[test]
fn many_are_cancelled_together() {
    let own = instance();
    let (ran, callback) = counter();
    let completed = own.timer(callback);
    completed.start(Duration::ZERO).unwrap();
    until("the first", || ran.load(Ordering::SeqCst) == 1);
    let (count, far) = counter();
    let far = own.timer(far);
    far.start(NEVER).unwrap();
    let never_armed = own.timer(|_| panic!("never armed"));
    let (gate, begun) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (opens, begins, ended) = (gate.clone(), begun.clone(), Arc::new(AtomicBool::new(false)));
    let ends = ended.clone();
    let running = own.timer(move |_| {
        let _ = begins.set(());
        opens.wait();
        ends.store(true, Ordering::SeqCst);
    });
    running.start(Duration::ZERO).unwrap();
    begun.wait();
    let opener = std::thread::spawn(move || gate.set(()).unwrap());
    let all = [&completed, &far, &never_armed, &running];
    assert_eq!(Timer::cancel_many(all).unwrap(), 1);
    assert!(ended.load(Ordering::SeqCst), "the one that ran was waited for");
    assert_eq!((ran.load(Ordering::SeqCst), count.load(Ordering::SeqCst)), (1, 0));
    opener.join().unwrap();
    own.finalize_and_wait().unwrap();
}

#[test]
fn a_callback_that_cancels_its_own_timer_is_told_and_does_not_hang() {
    for inline in [false, true] {
        let own = instance();
        let place = Arc::new(Mutex::new(None::<Timer>));
        let (sender, results) = mpsc::channel();
        let inside = place.clone();
        let spec = if inline { TimerSpec::new().inline() } else { TimerSpec::new() };
        let timer = own.timer_with(spec, move |_| {
            let place = inside.lock().unwrap();
            sender.send(place.as_ref().unwrap().cancel()).unwrap();
        });
        let mut hold = place.lock().unwrap();
        timer.start_every(MS).unwrap();
        *hold = Some(timer);
        drop(hold);
        let result = results.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(result, Err(TimerError::OwnCallback)), "{result:?}");
        until("disarmed all the same", || !place.lock().unwrap().as_ref().unwrap().is_armed());
        // Dropped by its own callback's thread or ours: neither waits.
        drop(place.lock().unwrap().take());
        own.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_timer_that_is_dropped_does_not_run_and_drops_what_its_callback_owns() {
    let own = instance();
    let value = Arc::new(());
    let owned = value.clone();
    let timer = own.timer(move |_| {
        let _ = &owned;
        panic!("it does not run");
    });
    timer.start(NEVER).unwrap();
    drop(timer);
    assert_eq!(Arc::strong_count(&value), 1, "dropped with the timer");

    // While it runs: the callback goes on to its end, and is dropped there.
    let (gate, begun) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (opens, begins, owned) = (gate.clone(), begun.clone(), value.clone());
    let timer = own.timer(move |_| {
        let _ = &owned;
        let _ = begins.set(());
        opens.wait();
    });
    timer.start_every(MS).unwrap();
    begun.wait();
    drop(timer);
    assert_eq!(Arc::strong_count(&value), 2, "it runs");
    gate.set(()).unwrap();
    until("dropped after its run", || Arc::strong_count(&value) == 1);
    own.finalize_and_wait().unwrap();
}

#[test]
fn an_inline_callback_may_not_wait_and_is_told_so() {
    const PING: Rpc<(), ()> = Rpc::new("ping");
    bounded("an inline callback that tries to wait", || {
        let own = instance();
        own.register(PING, |request| request.respond(&()).unwrap()).unwrap();
        let target = ProviderHandle::from(own.self_addr());
        let (sender, results) = mpsc::channel();
        let caller = own.clone();
        let timer = own.timer_with(TimerSpec::new().inline().name("inline"), move |_| {
            let forward = caller.forward(PING, &target, &());
            let started = caller.rpc(PING, &target, &()).start().unwrap().wait();
            assert!(matches!(started, Err(ForwardError::Tasklet { never_ran: false, .. })));
            let wait = caller.wait_for_finalize();
            sender.send((ult::is_tasklet(), forward, wait)).unwrap();
        });
        assert_eq!(timer.name(), "inline");
        timer.start(MS).unwrap();
        let (is_tasklet, forward, wait) = results.recv_timeout(PATIENCE).unwrap();
        assert!(is_tasklet);
        let forward = forward.unwrap_err();
        assert!(
            matches!(forward, ForwardError::Tasklet { .. }) && forward.never_ran(),
            "{forward}"
        );
        assert!(matches!(wait, Err(margo::errors::FinalizeError::Inline)));
        // It owns a clone of its instance, which therefore does not end by itself.
        drop(timer);
        own.finalize_and_wait().unwrap();
    });
}

#[test]
fn an_inline_callback_does_not_wait_for_another_ones_callback() {
    let own = instance();
    let (gate, begun) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (opens, begins) = (gate.clone(), begun.clone());
    let running = Arc::new(own.timer(move |_| {
        let _ = begins.set(());
        opens.wait();
    }));
    running.start(Duration::ZERO).unwrap();
    begun.wait();
    let (sender, results) = mpsc::channel();
    let other = running.clone();
    let inline = own.timer_with(TimerSpec::new().inline(), move |_| {
        sender.send((other.cancel(), other.disarm())).unwrap();
    });
    inline.start(MS).unwrap();
    let (cancel, disarm) = results.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(cancel, Err(TimerError::Inline)), "{cancel:?}");
    assert!(!disarm);
    gate.set(()).unwrap();
    own.finalize_and_wait().unwrap();
}

#[test]
fn finalize_disarms_without_running_and_refuses_further_starts() {
    let own = instance();
    let (count, callback) = counter();
    let armed = own.timer(callback);
    armed.start(NEVER).unwrap();
    let mut far: Vec<Timer> = Vec::new();
    for _ in 0..100 {
        let timer = own.timer(|_| ());
        timer.start_every(NEVER).unwrap();
        far.push(timer);
    }
    bounded("finalize with armed timers", {
        let own = own.clone();
        move || own.finalize_and_wait().unwrap()
    });
    assert!(!armed.is_armed());
    assert_eq!(count.load(Ordering::SeqCst), 0, "a timer is not run early");
    assert!(matches!(armed.start(MS), Err(TimerError::Closing)));
    assert!(matches!(own.timer(|_| ()).start(MS), Err(TimerError::Closing)));
    assert!(!armed.cancel().unwrap());
    drop(far);
}

#[test]
fn timers_work_while_handlers_end() {
    let own = instance();
    const HOLD: Rpc<(), ()> = Rpc::new("hold");
    let (begun, ticked) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let (begins, waits) = (begun.clone(), ticked.clone());
    own.register(HOLD, move |request| {
        let _ = begins.set(());
        waits.wait();
        request.respond(&()).unwrap();
    })
    .unwrap();
    let (caller, target) = (own.clone(), ProviderHandle::from(own.self_addr()));
    let call = std::thread::spawn(move || caller.forward(HOLD, &target, &()));
    begun.wait();
    own.finalize();
    // Only this ends the handler, before its grace period of seconds is over.
    let timer = own.timer(move |_| ticked.set(()).unwrap());
    timer.start(MS).unwrap();
    own.wait_for_finalize().unwrap();
    call.join().unwrap().unwrap();
}

#[test]
fn a_timer_does_not_keep_its_instance_running() {
    let own = instance();
    let timer = own.timer(|_| ());
    timer.start_every(NEVER).unwrap();
    drop(own);
    until("the instance ends", || matches!(timer.restart(NEVER), Err(TimerError::Closing)));
}

/// Whatever many threads do with some timers at once: a callback never runs beside itself, and
/// after the last cancel nothing runs.
#[test]
fn callbacks_never_overlap_whoever_arms_and_cancels() {
    let own = Instance::builder("na+sm://").rpc_thread_count(2).start().unwrap();
    for inline in [false, true] {
        let (inside, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (enters, counts) = (inside.clone(), runs.clone());
        let spec = if inline { TimerSpec::new().inline() } else { TimerSpec::new() };
        let timer = own.timer_with(spec, move |tick| {
            assert_eq!(enters.fetch_add(1, Ordering::SeqCst), 0, "two at the same time");
            if !inline {
                ult::yield_now();
            }
            match counts.fetch_add(1, Ordering::SeqCst) % 3 {
                0 => tick.again_after(Duration::ZERO),
                1 => tick.stop(),
                _ => (),
            }
            enters.fetch_sub(1, Ordering::SeqCst);
        });
        std::thread::scope(|scope| {
            for seed in 0..4u32 {
                let timer = &timer;
                scope.spawn(move || {
                    for step in 0..2000u32 {
                        let time = Duration::from_micros(u64::from(step * 7 % 50));
                        match (seed + step) % 4 {
                            0 => drop(timer.start(time)),
                            1 => timer.restart(time).unwrap(),
                            2 => drop(timer.start_every(time.max(MS / 100))),
                            _ => drop(timer.cancel().unwrap()),
                        }
                    }
                });
            }
        });
        timer.cancel().unwrap();
        let at_end = runs.load(Ordering::SeqCst);
        let_pass(&own, MS);
        assert_eq!(runs.load(Ordering::SeqCst), at_end, "it runs after a cancel");
        assert_eq!(inside.load(Ordering::SeqCst), 0);
    }
    own.finalize_and_wait().unwrap();
}
