//! Helpers for the tests of this crate.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses some of them")]
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

pub(crate) mod wakers;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ult::{PoolKind, PoolRef, PoolSpec, Runtime, XstreamSpec};

/// Far beyond what any test needs, also on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Lets this process hear of the ends of its children where it was started to ignore SIGCHLD, as
/// some daemons and build systems do: the kernel would forget them, and nobody could wait for one.
pub(crate) fn hear_of_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the default action is no function of ours, and is what tests expect.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    });
}

/// Runs `f` on a thread of its own and fails if it has not returned after [`LONG`].
pub(crate) fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (put, value) = mpsc::channel();
    run_within(Box::new(move || put.send(f()).unwrap()));
    value.recv().unwrap()
}

/// Without the types of [`within`], of which a program would have hundreds of copies.
fn run_within(f: Box<dyn FnOnce() + Send>) {
    let (done, end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done;
        f();
    });
    if end.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("no end after {LONG:?}");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// One pool `p`, served by `count` xstreams `x0`, `x1`, ...
pub(crate) fn shared(count: usize) -> (Runtime, PoolRef) {
    let mut builder = Runtime::builder().pool(PoolSpec::new("p"));
    for index in 0..count {
        builder = builder.xstream(XstreamSpec::new(format!("x{index}")).pools(["p"]));
    }
    let runtime = builder.start().unwrap();
    let pool = runtime.pool("p").unwrap();
    (runtime, pool)
}

/// Pools `p0`, `p1`, ..., each served by an xstream of its own.
pub(crate) fn private(count: usize) -> (Runtime, Vec<PoolRef>) {
    let mut builder = Runtime::builder();
    for index in 0..count {
        let pool = format!("p{index}");
        builder = builder
            .pool(PoolSpec::new(pool.clone()))
            .xstream(XstreamSpec::new(format!("x{index}")).pools([pool]));
    }
    let runtime = builder.start().unwrap();
    let pools = runtime.pools();
    (runtime, pools)
}

/// Waits until `test` holds, without help from what is being tested.
pub(crate) fn wait_until(what: &str, test: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !test() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `f` as a ULT of `pool` and returns its value.
pub(crate) fn on<T: Send + 'static>(pool: &PoolRef, f: impl FnOnce() -> T + Send + 'static) -> T {
    pool.spawn(f).unwrap().join().unwrap()
}

/// Yields until `test` holds: [`wait_until`] for a ULT.
pub(crate) fn yield_until(what: &str, test: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !test() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        ult::yield_now();
    }
}

/// Name of the xstream that the caller runs on.
pub(crate) fn here() -> String {
    ult::current().expect("the caller is a unit").xstream
}

/// Pools of these names and kinds, all served by one xstream `x0`, in this order.
pub(crate) fn kinds(pools: &[(&str, PoolKind)]) -> (Runtime, Vec<PoolRef>) {
    let names = pools.iter().map(|(name, _)| *name);
    let mut builder = Runtime::builder().xstream(XstreamSpec::new("x0").pools(names));
    for (name, kind) in pools {
        builder = builder.pool(PoolSpec::new(*name).kind(*kind));
    }
    let runtime = builder.start().unwrap();
    let pools = runtime.pools();
    (runtime, pools)
}

/// The name by which libtest knows a test of the calling module, for a child process that is to
/// run this test alone (`--exact`).
macro_rules! test_path {
    ($test:expr) => {
        $crate::common::within_program(module_path!(), $test)
    };
}
pub(crate) use test_path;

/// The test `test` of `module`, without the name of the program, with which `module_path!` begins
/// and libtest does not.
pub(crate) fn within_program(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_program, inside)) => format!("{inside}::{test}"),
        None => test.to_owned(),
    }
}
