//! Tests that need a process of their own: stack overflow, and running out of memory.
//!
//! Each test starts this program again with an environment variable that names what to do.

use std::io::{BufRead, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{LONG, on, private, shared, test_path, wait_until};
use ult::{
    JoinError, PoolRef, PoolSpec, Runtime, ShutdownError, SpawnError, StartError, XstreamSpec,
};

const TASK: &str = "ULT_TEST_CHILD_TASK";

/// The named test of this program as a child that takes the branch for `task`.
fn child_command(test: &str, task: &str) -> Command {
    crate::common::hear_of_children();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = test_path!(test);
    command.args(["--exact", &test, "--nocapture", "--test-threads=1"]).env(TASK, task);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: `prepare_child` makes system calls only, which is allowed between fork and exec.
    unsafe { command.pre_exec(prepare_child) };
    command
}

/// Runs it to its end.
fn run_child(test: &str, task: &str) -> Output {
    let mut child = child_command(test, task).spawn().unwrap();
    let deadline = Instant::now() + LONG;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the child does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let is_run = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(is_run || !output.status.success(), "there is no test `{test}`");
    output
}

/// The child dies with this process and leaves no core file.
fn prepare_child() -> std::io::Result<()> {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a system call without memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: a valid limit.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    Ok(())
}

fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { recurse(depth + 1) + frame[(depth % 64) as usize] }
}

#[test]
fn overflow_names_ult_and_pool() {
    if let Some(task) = task() {
        let (_runtime, pool) = shared(1);
        let ult = pool.ult().stack_bytes(128 * 1024);
        let ult = if task == "named" { ult.name("deep one") } else { ult };
        let _ = ult.spawn(|| recurse(0)).unwrap().join();
        unreachable!("the stack is not endless");
    }
    for (task, name) in [("named", "deep one"), ("unnamed", "(unnamed)")] {
        let output = run_child("overflow_names_ult_and_pool", task);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
        let start = format!("margo: stack overflow in ULT `{name}` (id ");
        assert!(text.contains(&start), "{text}");
        let rest = "of pool `p` on xstream `x0`: stack of 131072 bytes; raise ";
        assert!(text.contains(rest), "{text}");
    }
}

#[test]
fn other_faults_take_their_usual_way() {
    if task().is_some() {
        let (_runtime, pool) = shared(1);
        let handle = pool.spawn(|| {
            let nowhere = std::ptr::without_provenance::<u64>(std::hint::black_box(64));
            // SAFETY: none; the fault is the point of this child process.
            unsafe { nowhere.read_volatile() }
        });
        let _ = handle.unwrap().join();
        unreachable!("there is nothing at that address");
    }
    let output = run_child("other_faults_take_their_usual_way", "read");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
    assert!(!text.contains("stack overflow"), "{text}");
}

#[test]
fn overflow_of_an_os_thread_is_still_reported_by_rust() {
    if task().is_some() {
        let (_runtime, _pool) = shared(1);
        let thread = std::thread::Builder::new().stack_size(128 * 1024).spawn(|| recurse(0));
        let _ = thread.unwrap().join();
        unreachable!("the stack is not endless");
    }
    let output = run_child("overflow_of_an_os_thread_is_still_reported_by_rust", "thread");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("has overflowed its stack"), "{text}");
}

#[test]
fn no_memory_for_a_stack_is_an_error_and_drops_the_closure() {
    if task().is_some() {
        let (runtime, pool) = shared(1);
        // Room for everything but the stack that is asked for below.
        let limit = libc::rlimit { rlim_cur: 8 << 30, rlim_max: 8 << 30 };
        // SAFETY: a valid limit for this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let held = Arc::new(());
        let inner = held.clone();
        let handle = pool.ult().stack_bytes(16 << 30).spawn(move || drop(inner)).unwrap();
        let error = handle.join().unwrap_err();
        assert!(matches!(error, JoinError::NoStack { bytes, .. } if bytes == 16 << 30), "{error}");
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(pool.spawn(|| 5).unwrap().join().unwrap(), 5, "others still work");
        runtime.shutdown().unwrap();
        return;
    }
    let output = run_child("no_memory_for_a_stack_is_an_error_and_drops_the_closure", "limit");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Leaves so many bytes of address space beside those in use.
fn limit_address_space(rest: u64) {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let bytes = pages * 4096 + rest;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a valid limit for this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Spawns tasklets that count in `ran` until there is no memory for another one. How many.
fn spawn_to_the_limit(pool: &PoolRef, ran: &Arc<AtomicUsize>) -> usize {
    let held = Arc::strong_count(ran);
    for count in 0.. {
        let inner = ran.clone();
        let spawned = pool.tasklet().spawn_detached(move || _ = inner.fetch_add(1, SeqCst));
        let Err(error) = spawned else { continue };
        assert!(matches!(&error, SpawnError::NoMemory { pool } if pool == "p"));
        let text = error.to_string();
        assert!(text.contains("(RLIMIT_AS, ulimit -v)"), "{text}");
        assert_eq!(Arc::strong_count(ran), held + count, "the closure was dropped");
        return count;
    }
    unreachable!("memory is not endless")
}

#[test]
fn no_memory_for_a_unit_is_an_error_of_the_spawn() {
    if task().is_some() {
        let (runtime, pool) = shared(1);
        let (ran, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let has_run = |count| {
            wait_until("those that wait", || Arc::strong_count(&ran) == 1);
            assert_eq!(ran.load(SeqCst), count);
        };
        // By an OS thread, while the only xstream is busy.
        let (stop, held) = (go.clone(), Arc::new(AtomicBool::new(false)));
        let begins = held.clone();
        let holds = pool.spawn(move || {
            begins.store(true, SeqCst);
            while !stop.load(SeqCst) {}
        });
        wait_until("the xstream is busy", || held.load(SeqCst));
        limit_address_space(4 << 20);
        let foreign = spawn_to_the_limit(&pool, &ran);
        assert!(foreign > 1_000, "{foreign}");
        go.store(true, SeqCst);
        holds.unwrap().join().unwrap();
        has_run(foreign);
        // By a ULT of the xstream, into its own pool, and after that there is room again.
        let (own, inner) = (pool.clone(), ran.clone());
        let more = pool.spawn(move || spawn_to_the_limit(&own, &inner)).unwrap().join().unwrap();
        assert!(more > 1_000, "{more}");
        has_run(foreign + more);
        assert_eq!(pool.spawn(|| 5).unwrap().join().unwrap(), 5);
        runtime.shutdown().unwrap();
        return;
    }
    let output = run_child("no_memory_for_a_unit_is_an_error_of_the_spawn", "units");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn thread_that_cannot_start_undoes_the_others() {
    const XSTREAMS: usize = 64;
    if task().is_some() {
        limit_threads();
        let mut builder = Runtime::builder().pool(PoolSpec::new("p"));
        for index in 0..XSTREAMS {
            builder = builder.xstream(XstreamSpec::new(format!("undo{index}")).pools(["p"]));
        }
        match builder.start() {
            Err(error @ StartError::System { what: "start its thread", .. }) => {
                let cause = std::error::Error::source(&error).unwrap().to_string();
                assert!(cause.contains("os error 11"), "{cause}");
                assert!(error.to_string().contains("(raise the limit on threads"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        wait_until("no thread is left", || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("undo")).count() == 0
        });
        return;
    }
    let output = run_child("thread_that_cannot_start_undoes_the_others", "threads");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// A service that grows and shrinks with its load does so for months.
#[test]
fn xstreams_that_come_and_go_leave_no_descriptor_open() {
    const CYCLES: u64 = 1000;
    if task().is_some() {
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        // SAFETY: a valid limit for this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let (runtime, pool) = shared(1);
        let own = runtime.add_pool(PoolSpec::new("own")).unwrap();
        for _ in 0..CYCLES {
            let x = runtime.add_xstream(XstreamSpec::new("x").pools(["p", "own"])).unwrap();
            own.spawn(ult::yield_now).unwrap().join().unwrap();
            x.remove().unwrap();
            assert_eq!((x.stats().finished, x.stats().yields), (1, 1), "it can still be read");
        }
        let stats = own.stats();
        assert_eq!((stats.created, stats.finished, stats.yields), (CYCLES, CYCLES, CYCLES));
        assert_eq!((own.total_len(), own.len()), (0, 0));
        assert_eq!(pool.spawn(|| 5).unwrap().join().unwrap(), 5);
        runtime.remove_pool(&own).unwrap();
        runtime.shutdown().unwrap();
        return;
    }
    let output = run_child("xstreams_that_come_and_go_leave_no_descriptor_open", "cycles");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// Uses about `kib` KiB of stack.
fn use_stack(kib: usize) -> usize {
    let frame = std::hint::black_box([1u8; 1024]);
    if kib == 0 { 0 } else { use_stack(kib - 1) + usize::from(frame[kib % 1024]) }
}

const UNITS: usize = 200_000;

/// Has many units alive at once, and joins them in an order of its own, so that the memory of
/// neighbours comes back at different times. Returns the memory that was there.
fn burst(pool: &PoolRef) -> usize {
    let mut handles: Vec<_> =
        (0..UNITS).map(|_| Some(pool.tasklet().spawn(|| ()).unwrap())).collect();
    let peak = resident_bytes();
    for first in 0..7 {
        let some = handles.iter_mut().skip(first).step_by(7);
        some.for_each(|handle| handle.take().unwrap().join().unwrap());
    }
    peak
}

#[test]
fn many_units_leave_no_memory_behind() {
    const SLACK: usize = 24 << 20;
    if task().is_some() {
        let (runtime, pools) = private(2);
        let before = resident_bytes();
        let is_back = || resident_bytes() < before + SLACK;
        let burst_at = |at: usize, pool: &PoolRef| {
            let pool = pool.clone();
            on(&pools[at], move || burst(&pool))
        };
        let first = burst_at(0, &pools[0]);
        assert!(first > before + UNITS * 256, "one of {UNITS} takes memory");
        assert!(burst_at(0, &pools[0]) < first + SLACK, "it is used again");
        // Also beside a unit that never lets its xstream rest.
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let beside = pools[0].spawn(move || {
            while !seen.load(SeqCst) {
                ult::yield_now();
            }
        });
        wait_until("given back beside another unit", is_back);
        stop.store(true, SeqCst);
        beside.unwrap().join().unwrap();
        burst_at(0, &pools[1]);
        wait_until("given back after a burst for another xstream", is_back);
        burst(&pools[0]);
        wait_until("given back after a burst of another thread", is_back);
        let spare = runtime.add_pool(PoolSpec::new("spare")).unwrap();
        let x = runtime.add_xstream(XstreamSpec::new("x").pools(["spare"])).unwrap();
        let inner = spare.clone();
        on(&spare, move || burst(&inner));
        x.remove().unwrap();
        wait_until("given back by an xstream that leaves", is_back);
        // What is kept for a unit outlives the runtime, and goes then.
        let kept = on(&pools[0], ult::unparker);
        burst_at(0, &pools[0]);
        drop(spare);
        runtime.shutdown().unwrap();
        assert!(is_back(), "given back at the end");
        kept.unpark();
        return;
    }
    let output = run_child("many_units_leave_no_memory_behind", "units");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn idle_stacks_give_their_pages_back() {
    const ULTS: usize = 16;
    if task().is_some() {
        let (runtime, pool) = shared(1);
        pool.spawn(|| use_stack(1)).unwrap().join().unwrap();
        let before = resident_bytes();
        let gate = Arc::new(ult::Eventual::new());
        // Half of the stacks are returned by the xstream, half by this thread.
        let mut joined = Vec::new();
        for at in 0..ULTS {
            let gate = gate.clone();
            let body = move || {
                assert_eq!(use_stack(1024), 1024);
                gate.wait_ready();
            };
            if at % 2 == 0 {
                joined.push(pool.spawn(body).unwrap());
            } else {
                pool.ult().spawn_detached(body).unwrap();
            }
        }
        wait_until("all have been deep", || resident_bytes() > before + ULTS * (1 << 20));
        gate.set(()).unwrap();
        joined.into_iter().for_each(|handle| handle.join().unwrap());
        wait_until("trimmed", || resident_bytes() < before + ULTS * (1 << 18));
        assert!(runtime.stacks() >= ULTS, "the stacks themselves are kept");
        assert_eq!(pool.spawn(|| use_stack(1024)).unwrap().join().unwrap(), 1024);
        runtime.shutdown().unwrap();
        return;
    }
    let output = run_child("idle_stacks_give_their_pages_back", "trim");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A pause of the process is nobody's fault: a wait with a limit goes on afterwards.
#[test]
fn a_stopped_process_does_not_give_up_when_it_goes_on() {
    const LIMIT: Duration = Duration::from_secs(2);
    if task().is_some() {
        let (runtime, pool) = shared(1);
        let end = Arc::new(ult::Eventual::new());
        let inner = end.clone();
        let ult = pool.spawn(move || inner.wait_ready()).unwrap();
        let other = runtime.clone();
        std::thread::spawn(move || {
            let is_waiting = || match other.shutdown_timeout(Duration::ZERO) {
                Err(ShutdownError::StillAlive(report)) => report.in_progress,
                result => panic!("{result:?}"),
            };
            wait_until("the main thread waits", is_waiting);
            println!("ready");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            end.set(()).unwrap();
        });
        runtime.shutdown_timeout(LIMIT).unwrap();
        ult.join().unwrap();
        return;
    }
    let test = "a_stopped_process_does_not_give_up_when_it_goes_on";
    let mut command = child_command(test, "wait");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the child ended early");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let options = rustix::process::WaitOptions::UNTRACED;
    let (_, status) = rustix::process::waitpid(Some(pid), options).unwrap().unwrap();
    assert!(status.stopped());
    // Not a guess: this is the span that must not count.
    std::thread::sleep(LIMIT + Duration::from_secs(1));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes the system refuse threads after a few.
fn limit_threads() {
    // SAFETY: system calls without memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        // The limit does not hold for root. A user that runs nothing else has room for a few.
        //
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(54_321) }, 0);
        // SAFETY: as above; the change of user has reset both.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: as above; without it, /proc/self would belong to root.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    }
    let count = if is_root { 10 } else { 1 };
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: a valid limit for this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) }, 0);
}
