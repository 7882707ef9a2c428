//! Closures that block, beside the ULTs of an xstream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use ult::{
    JoinError, PoolRef, PoolSpec, Runtime, XstreamSpec, blocking, integration::blocking_reserved,
};

use crate::common::{shared, wait_until, within};

fn with_threads(count: usize) -> (Runtime, PoolRef) {
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("p"))
        .xstream(XstreamSpec::new("x").pools(["p"]))
        .blocking_threads_max(count)
        .start()
        .unwrap();
    let pool = runtime.pool("p").unwrap();
    (runtime, pool)
}

/// Something to be seen dropped.
struct Held(#[expect(dead_code, reason = "its count is looked at")] Arc<()>);

#[test]
fn others_run_on_the_xstream_while_a_ult_waits_for_a_closure() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (go, gate) = mpsc::channel::<()>();
        let waits = pool.spawn(move || {
            blocking(move || {
                gate.recv().unwrap();
                assert!(!ult::is_ult() && ult::current().is_none());
                thread::current().name().map(str::to_owned)
            })
        });
        let works = pool.spawn(|| (0..100).map(|_| ult::yield_now()).count());
        assert_eq!(works.unwrap().join().unwrap(), 100, "beside it");
        wait_until("it runs", || runtime.blocking_stats().running == 1);
        go.send(()).unwrap();
        assert_eq!(waits.unwrap().join().unwrap().as_deref(), Some("ult-blocking"));
        wait_until("it is counted", || runtime.blocking_stats().done == 1);
        let stats = runtime.blocking_stats();
        assert_eq!((stats.threads, stats.running, stats.queued), (1, 0, 0));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn so_many_closures_run_at_once_and_the_rest_in_its_turn() {
    within(|| {
        let (runtime, pool) = with_threads(2);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ults: Vec<_> = (0..40)
            .map(|n| {
                let (now, most) = (now.clone(), most.clone());
                let work = move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    n
                };
                pool.spawn(move || blocking(work)).unwrap()
            })
            .collect();
        let sum: usize = ults.into_iter().map(|ult| ult.join().unwrap()).sum();
        assert_eq!(sum, (0..40).sum::<usize>());
        assert!(most.load(Ordering::SeqCst) <= 2);
        assert!(runtime.blocking_stats().threads <= 2);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn closures_that_never_return_hold_up_neither_names_nor_files() {
    within(|| {
        let (runtime, pool) = with_threads(1);
        let (stop, gate) = mpsc::channel::<()>();
        let hangs = pool.spawn(move || blocking(move || gate.recv().is_err())).unwrap();
        let queued = pool.spawn(|| blocking(|| 7)).unwrap();
        wait_until("one runs, one waits", || {
            let stats = runtime.blocking_stats();
            (stats.running, stats.queued) == (1, 1)
        });
        let reserved: Vec<_> =
            (0..20).map(|n| pool.spawn(move || blocking_reserved(move || n)).unwrap()).collect();
        let sum: usize = reserved.into_iter().map(|ult| ult.join().unwrap()).sum();
        assert_eq!(sum, (0..20).sum::<usize>());
        assert!(!queued.is_finished(), "it has no thread yet");
        drop(stop);
        assert!(hangs.join().unwrap());
        assert_eq!(queued.join().unwrap(), 7);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_panic_comes_back_and_the_thread_stays() {
    within(|| {
        let (runtime, pool) = with_threads(1);
        for _ in 0..3 {
            let panics = pool.spawn(|| blocking(|| panic!("of the work"))).unwrap();
            let error = panics.join().unwrap_err();
            assert!(error.to_string().contains("of the work"), "{error}");
        }
        let thread = || pool.spawn(|| blocking(|| thread::current().id())).unwrap().join().unwrap();
        assert_eq!(thread(), thread());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn it_runs_in_place_where_nobody_can_be_suspended() {
    struct InDrop(mpsc::Sender<bool>);
    impl Drop for InDrop {
        fn drop(&mut self) {
            let here = thread::current().id();
            let is_here = blocking(move || thread::current().id() == here);
            self.0.send(is_here).unwrap();
        }
    }
    within(|| {
        let (runtime, pool) = shared(1);
        let is_here = || {
            let here = thread::current().id();
            blocking(move || thread::current().id() == here)
        };
        assert!(is_here(), "an OS thread");
        assert!(pool.tasklet().spawn(is_here).unwrap().join().unwrap(), "a tasklet");
        let nested = pool.spawn(move || blocking(move || (is_here(), blocking(|| 7)))).unwrap();
        assert_eq!(nested.join().unwrap(), (true, 7), "one of the threads");
        let (said, heard) = mpsc::channel();
        let unwinds = pool.spawn(move || {
            let _dropped = InDrop(said);
            panic!("to unwind");
        });
        assert!(unwinds.unwrap().join().is_err());
        assert!(heard.recv().unwrap(), "a destructor during unwinding");
        assert!(!pool.spawn(is_here).unwrap().join().unwrap(), "but not a ULT");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_ult_leaves_and_its_closure_goes_on_or_never_begins() {
    within(|| {
        let (runtime, pool) = with_threads(1);
        let ((go, gate), held, queued_held) = (mpsc::channel::<()>(), Arc::new(()), Arc::new(()));
        let (inner, ran) = (Held(held.clone()), Arc::new(AtomicUsize::new(0)));
        let counts = ran.clone();
        let running = pool
            .spawn(move || {
                blocking(move || {
                    gate.recv().unwrap();
                    counts.fetch_add(1, Ordering::SeqCst);
                    inner
                })
            })
            .unwrap();
        wait_until("it runs", || runtime.blocking_stats().running == 1);
        let (inner, counts) = (Held(queued_held.clone()), ran.clone());
        let queued = pool
            .spawn(move || {
                blocking(move || {
                    counts.fetch_add(1, Ordering::SeqCst);
                    inner
                })
            })
            .unwrap();
        wait_until("the other waits", || runtime.blocking_stats().queued == 1);
        queued.cancel();
        assert!(matches!(queued.join(), Err(JoinError::Cancelled)));
        assert_eq!((runtime.blocking_stats().queued, Arc::strong_count(&queued_held)), (0, 1));
        running.cancel();
        assert!(matches!(running.join(), Err(JoinError::Cancelled)));
        assert_eq!((runtime.blocking_stats().running, Arc::strong_count(&held)), (1, 2));
        // The runtime ends without it.
        runtime.shutdown().unwrap();
        go.send(()).unwrap();
        wait_until("its value is dropped", || Arc::strong_count(&held) == 1);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        wait_until("no thread stays", || runtime.blocking_stats().threads == 0);
    });
}

#[test]
fn a_destructor_or_a_closure_that_panics_when_nobody_waits_harms_no_thread() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("of a destructor");
        }
    }
    within(|| {
        let (runtime, pool) = with_threads(1);
        for case in 0..3 {
            let (go, gate) = mpsc::channel::<()>();
            let held = Panics;
            let ult = pool
                .spawn(move || {
                    blocking(move || {
                        gate.recv().unwrap();
                        match case {
                            0 => Some(held),
                            1 => std::panic::panic_any(held),
                            _ => {
                                drop(held);
                                None
                            }
                        }
                    })
                })
                .unwrap();
            wait_until("it runs", || runtime.blocking_stats().running == 1);
            ult.cancel();
            assert!(matches!(ult.join(), Err(JoinError::Cancelled)));
            go.send(()).unwrap();
            wait_until("it has ended", || runtime.blocking_stats().running == 0);
        }
        assert_eq!(pool.spawn(|| blocking(|| 7)).unwrap().join().unwrap(), 7);
        let stats = runtime.blocking_stats();
        assert_eq!(stats.threads, 1, "{stats:?}");
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_shutdown_waits_for_a_ult_that_waits_for_a_closure() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (go, gate) = mpsc::channel::<()>();
        let waits = pool.spawn(move || blocking(move || gate.recv().unwrap())).unwrap();
        wait_until("it runs", || runtime.blocking_stats().running == 1);
        let report = runtime.shutdown_timeout(std::time::Duration::from_millis(1)).unwrap_err();
        assert!(report.to_string().contains("waits for: blocking"), "{report}");
        go.send(()).unwrap();
        runtime.shutdown().unwrap();
        waits.join().unwrap();
    });
}

#[test]
fn a_child_that_was_forked_off_runs_it_in_place() {
    crate::common::hear_of_children();
    within(|| {
        let (runtime, pool) = shared(1);
        // There are threads, which the child does not have.
        pool.spawn(|| blocking(|| ())).unwrap().join().unwrap();
        let status = pool.spawn(|| {
            // SAFETY: the child makes system calls only, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: asks for a number; no memory is involved.
                let thread = || unsafe { libc::gettid() }.unsigned_abs();
                let is_only = blocking(move || thread() == std::process::id());
                // SAFETY: ends the process.
                unsafe { libc::_exit(if is_only { 7 } else { 1 }) };
            }
            blocking(move || {
                let mut status = 0;
                // SAFETY: the status is written to a variable that lives.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
            })
        });
        assert_eq!(status.unwrap().join().unwrap(), Some(7));
        runtime.shutdown().unwrap();
    });
}
