//! Stacks: their sizes, and memory of the user's. Overflows die in a process of their own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::common::{on, private, shared, test_path, within};
use ult::{JoinError, PoolSpec, Runtime, StartError, UserStack, XstreamSpec};

/// Uses about 1 KiB of stack per level; returns the distance from the first frame to the last.
fn deep(levels: usize, top: usize) -> usize {
    let frame = std::hint::black_box([1u8; 1024]);
    let here = frame.as_ptr().addr();
    if levels == 0 {
        return top.abs_diff(here);
    }
    deep(levels - 1, top) + usize::from(frame[levels % 1024]) - 1
}

fn depth_of(kib: usize) -> usize {
    let mark = std::hint::black_box(0u8);
    deep(kib, (&raw const mark).addr())
}

/// Memory that tells when it is given back.
struct Area {
    memory: Vec<u8>,
    released: Arc<AtomicUsize>,
}

impl Area {
    fn new(bytes: usize) -> Self {
        Self { memory: vec![0; bytes], released: Arc::default() }
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.memory.as_ptr_range().start.addr()..self.memory.as_ptr_range().end.addr()
    }

    fn stack(self) -> UserStack {
        let (start, len) = (NonNull::from(&self.memory[..]).cast(), self.memory.len());
        let Self { mut memory, released } = self;
        let release = move || {
            // The guard is gone: every byte can be written.
            memory.fill(1);
            released.fetch_add(1, SeqCst);
        };
        // SAFETY:
        // - exclusive: the memory moves into `release`, and a vector's buffer stays in its place.
        unsafe { UserStack::from_raw(start, len, release) }.unwrap()
    }
}

#[test]
fn the_whole_size_can_be_used() {
    within(|| {
        let runtime = Runtime::builder()
            .stack_bytes(64 << 10)
            .pool(PoolSpec::new("default"))
            .pool(PoolSpec::new("large").stack_bytes(1 << 20))
            .xstream(XstreamSpec::new("x").pools(["default", "large"]))
            .start()
            .unwrap();
        let pool = |name| runtime.pool(name).unwrap();
        assert!(on(&pool("default"), || depth_of(40)) >= 40 << 10);
        assert!(on(&pool("large"), || depth_of(900)) >= 900 << 10);
        let own = pool("default").ult().stack_bytes(4 << 20).spawn(|| depth_of(3900)).unwrap();
        assert!(own.join().unwrap() >= 3900 << 10);
        // A size of zero at a spawn is the smallest there is.
        let least = pool("large").ult().stack_bytes(0).spawn(|| depth_of(4)).unwrap();
        assert!(least.join().unwrap() >= 4 << 10);
        // A revived unit keeps its size.
        let first = pool("default").ult().stack_bytes(4 << 20).spawn(|| 1).unwrap();
        let (_, ended) = first.join_keep();
        let again = ended.unwrap().revive(&pool("large"), || depth_of(3900)).unwrap();
        assert!(again.join().unwrap() >= 3900 << 10);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_size_of_zero_is_refused_where_it_is_the_default() {
    let xstream = || XstreamSpec::new("x").pools(["p"]);
    let error = Runtime::builder().stack_bytes(0).pool(PoolSpec::new("p")).xstream(xstream());
    let error = error.start().unwrap_err();
    assert!(matches!(error, StartError::NoStack { pool: None }), "{error}");
    let pool = PoolSpec::new("p").stack_bytes(0);
    let error = Runtime::builder().pool(pool).xstream(xstream()).start().unwrap_err();
    assert!(matches!(&error, StartError::NoStack { pool: Some(pool) } if pool == "p"), "{error}");
    assert!(error.to_string().contains("16384"), "it says what to do: {error}");
}

#[test]
fn a_ult_runs_on_the_users_memory_which_comes_back() {
    within(|| {
        let (runtime, pools) = private(2);
        for bytes in [20 << 10, 64 << 10, (64 << 10) + 4321, 1 << 20] {
            // One page more, so that the area need not begin at a page border.
            let area = Area::new(bytes + 4096);
            let (range, released) = (area.range(), area.released.clone());
            let stack = area.stack();
            assert!(stack.bytes() >= 16 << 10 && stack.bytes() < bytes + 4096);
            let count = released.clone();
            let handle = pools[0].ult().stack(stack).spawn(move || {
                let mark = std::hint::black_box(0u8);
                assert!(range.contains(&(&raw const mark).addr()), "it runs there");
                ult::yield_now();
                assert_eq!(count.load(SeqCst), 0);
                depth_of(4)
            });
            assert!(handle.unwrap().join().unwrap() > 4 << 10);
            crate::common::wait_until("given back", || released.load(SeqCst) == 1);
        }
        // By value, and dropped with everything in it.
        let stack = UserStack::from_vec(vec![0; 128 << 10]).unwrap();
        let handle = pools[1].ult().stack(stack).spawn(|| depth_of(64)).unwrap();
        assert!(handle.join().unwrap() > 64 << 10);
        runtime.shutdown().unwrap();
    });
}

/// However the unit ends, or if it never starts.
#[test]
fn the_users_memory_is_never_lost() {
    within(|| {
        let (runtime, pools) = private(1);
        let pool = pools[0].clone();
        let make = || {
            let area = Area::new(64 << 10);
            (area.released.clone(), area.stack())
        };
        let given_back = |released: &Arc<AtomicUsize>| {
            crate::common::wait_until("given back", || released.load(SeqCst) == 1);
        };
        let (released, stack) = make();
        drop(stack);
        assert_eq!(released.load(SeqCst), 1, "unused");
        let (released, stack) = make();
        let panics = pool.ult().stack(stack).spawn(|| -> () { panic!("on the user's stack") });
        assert!(matches!(panics.unwrap().join(), Err(JoinError::Panicked(_))));
        given_back(&released);
        let (released, stack) = make();
        let parks = pool.ult().stack(stack).spawn(ult::park).unwrap();
        on(&pool, || ());
        assert_eq!(released.load(SeqCst), 0);
        parks.cancel();
        assert!(matches!(parks.join(), Err(JoinError::Cancelled)));
        given_back(&released);
        let (released, stack) = make();
        let inner = pool.clone();
        on(&pool, move || {
            let lost = inner.ult().stack(stack).spawn(|| ()).unwrap();
            drop(inner.pop());
            assert!(matches!(lost.join(), Err(JoinError::Lost)));
        });
        given_back(&released);
        // Without effect on a tasklet, and yet given back.
        let (released, stack) = make();
        pool.tasklet().stack(stack).spawn(|| ()).unwrap().join().unwrap();
        given_back(&released);
        // A revived unit has a stack of the runtime's.
        let (released, stack) = make();
        let (_, ended) = pool.ult().stack(stack).spawn(|| ()).unwrap().join_keep();
        given_back(&released);
        assert_eq!(ended.unwrap().revive(&pool, || 4).unwrap().join().unwrap(), 4);
        let (released, stack) = make();
        runtime.shutdown().unwrap();
        assert!(pool.ult().stack(stack).spawn(|| ()).is_err());
        given_back(&released);
    });
}

#[test]
fn too_little_memory_is_refused_and_comes_back() {
    let released = Arc::new(AtomicUsize::new(0));
    let inner = released.clone();
    let mut memory = vec![0u8; 19 << 10];
    let start = NonNull::from(&mut memory[..]).cast();
    let release = move || {
        inner.fetch_add(1, SeqCst);
    };
    // SAFETY:
    // - exclusive: it is not used, here or there.
    let error = unsafe { UserStack::from_raw(start, memory.len(), release) }.unwrap_err();
    assert_eq!((error.bytes, error.needed), (19 << 10, (16 << 10) + rustix::param::page_size()));
    assert!(error.usable < error.needed, "{error}");
    assert_eq!(released.load(SeqCst), 1);
    assert!(UserStack::from_vec(Vec::new()).is_err());
}

/// Has many ULTs alive at once, and lets them end.
fn burst(pool: &ult::PoolRef, count: usize) {
    let gate = Arc::new(ult::Eventual::new());
    let wait = || {
        let gate = gate.clone();
        pool.spawn(move || gate.wait_ready()).unwrap()
    };
    let units: Vec<_> = (0..count).map(|_| wait()).collect();
    on(pool, || ());
    gate.set(()).unwrap();
    units.into_iter().for_each(|unit| unit.join().unwrap());
}

/// After a burst of ULTs, while one calls `f` again and again, the stacks of the burst go back.
fn idle_stacks_go_back_beside(runtime: Runtime, pool: &ult::PoolRef, f: fn()) {
    let done = Arc::new(AtomicUsize::new(0));
    let seen = done.clone();
    burst(pool, 2000);
    assert!(runtime.stacks() > 1000, "they are kept for the next burst");
    let beside = pool.spawn(move || {
        while seen.load(SeqCst) == 0 {
            f();
        }
    });
    crate::common::wait_until("all but some are unmapped", || runtime.stacks() <= 64 + 1);
    // Those that are left are as good as before.
    burst(pool, 100);
    done.store(1, SeqCst);
    beside.unwrap().join().unwrap();
    runtime.shutdown().unwrap();
}

#[test]
fn idle_stacks_go_back_beside_a_heartbeat() {
    within(|| {
        let (runtime, pools) = private(1);
        let beat = || ult::sleep(std::time::Duration::from_millis(100));
        idle_stacks_go_back_beside(runtime, &pools[0], beat);
    });
}

#[test]
fn idle_stacks_go_back_on_an_xstream_that_is_never_idle() {
    within(|| {
        let (runtime, pools) = private(1);
        idle_stacks_go_back_beside(runtime, &pools[0], ult::yield_now);
    });
}

/// Also under a scheduler that is not the built-in one.
#[test]
fn idle_stacks_go_back_under_any_scheduler() {
    within(|| {
        let xstream =
            XstreamSpec::new("x").pools(["p"]).scheduler(Box::new(ult::RoundRobin::new()));
        let builder = Runtime::builder().pool(PoolSpec::new("p")).xstream(xstream);
        let runtime = builder.start().unwrap();
        let pool = runtime.pool("p").unwrap();
        idle_stacks_go_back_beside(runtime, &pool, ult::yield_now);
    });
}

fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { recurse(depth + 1) + frame[(depth % 64) as usize] }
}

/// Also the guard of the user's memory stops a ULT, and the message names the ULT.
#[test]
fn an_overflow_of_the_users_memory_is_reported() {
    const CHILD: &str = "ULT_TEST_OVERFLOW_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
        let (_runtime, pool) = shared(1);
        let stack = UserStack::from_vec(vec![0; 128 << 10]).unwrap();
        let _ = pool.ult().name("guest").stack(stack).spawn(|| recurse(0)).unwrap().join();
        unreachable!("the stack is not endless");
    }
    crate::common::hear_of_children();
    let output = within(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = test_path!("an_overflow_of_the_users_memory_is_reported");
        command.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
        command.stdin(Stdio::null()).output().unwrap()
    });
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("stack overflow in ULT `guest` (id "), "{text}");
    assert!(text.contains("of pool `p` on xstream `x0`"), "{text}");
}

/// The kernel marks no guard pages in locked memory; what it does there instead is undone.
#[test]
fn locked_memory_comes_back_whole() {
    within(|| {
        let (runtime, pools) = private(1);
        // A stack of the runtime's: it is known how this kernel makes guards.
        on(&pools[0], || depth_of(4));
        let area = Area::new(64 << 10);
        let start = area.memory.as_ptr().cast_mut().cast();
        // SAFETY: memory that lives; to lock it changes no byte.
        if let Err(error) = unsafe { rustix::mm::mlock(start, area.memory.len()) } {
            println!("SKIPPED: cannot lock 64 KiB ({error}); see `ulimit -l`");
            return;
        }
        let released = area.released.clone();
        let handle = pools[0].ult().stack(area.stack()).spawn(|| depth_of(4)).unwrap();
        assert!(handle.join().unwrap() > 4 << 10);
        crate::common::wait_until("given back", || released.load(SeqCst) == 1);
        runtime.shutdown().unwrap();
    });
}

/// A panic in `release` loses nothing of the runtime.
#[test]
fn a_panic_of_who_gets_the_memory_back_is_no_harm() {
    within(|| {
        let (runtime, pools) = private(1);
        let memory: &'static mut [u8] = vec![0; 64 << 10].leak();
        let (start, len) = (NonNull::from(&memory[..]).cast(), memory.len());
        // SAFETY: memory that lives for ever, and that nobody else uses.
        let stack = unsafe { UserStack::from_raw(start, len, || panic!("given back")) }.unwrap();
        pools[0].ult().stack(stack).spawn(|| ()).unwrap().join().unwrap();
        assert_eq!(on(&pools[0], || 5), 5);
        runtime.shutdown_timeout(std::time::Duration::from_secs(60)).unwrap();
    });
}
