//! Runtimes that have ended, or never began, leave nothing behind.
#![allow(clippy::unwrap_used, reason = "test code, unknown as such to the lint")]

use ult::{PoolSpec, Runtime, StartError, XstreamSpec};

/// Open file descriptors of this process. This is the only test of its program, so nobody else
/// opens any.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn runtimes_leave_no_descriptor_open() {
    let run = || {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .pool(PoolSpec::new("q"))
            .xstream(XstreamSpec::new("x").pools(["p", "q"]))
            .xstream(XstreamSpec::new("y").pools(["q"]))
            .start()
            .unwrap();
        let (pool, xstream) = (runtime.pool("q").unwrap(), runtime.xstream("y").unwrap());
        assert_eq!(pool.spawn(|| 1).unwrap().join().unwrap(), 1);
        xstream.join().unwrap();
        runtime.shutdown().unwrap();
        // Handles that stay a while keep the rest only as long.
        drop((pool, xstream));
    };
    let fail = || {
        let error = Runtime::builder()
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .xstream(XstreamSpec::new("y").pools(["unknown"]))
            .start()
            .unwrap_err();
        assert!(matches!(error, StartError::UnknownPool { .. }));
    };
    run();
    fail();
    let before = descriptors();
    for _ in 0..20 {
        run();
        fail();
    }
    assert_eq!(descriptors(), before);
}
