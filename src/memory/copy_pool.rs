//! Large copies by several execution streams (`margo.bulk.copy_pool`).
//!
//! Shared memory splits a copy of 512 KiB and more into parts of 128 KiB, in user space (where both
//! sides have memory of [`Instance::alloc`](crate::Instance::alloc)) or by cross-memory attach, and
//! calls the [`na::CopyHelper`] that is made here, in its poll. The helper queues a tasklet for
//! each execution stream of the pool, and copies too: each of them takes the next part until none
//! is left.
//!
//! The poll holds locks of the transport, so it must not suspend its ULT. Nor does it have to: when
//! no part is left to take, the parts still missing are being copied by tasklets that run, on other
//! execution streams, and do not wait for anything. A tasklet that comes late finds no part, and
//! does not touch the memory of a copy that is over. While the pool's execution streams are busy
//! with other things, no tasklet comes; then no more are queued than [`LATE_MAX`] for each.
//!
//! # Unsafe code
//!
//! A tasklet outlives the call that queued it, so it gets the borrowed function as a pointer;
//! [`Job::run`] says why that is valid whenever it is used.

use std::sync::Arc;

use na::fork::Process;
use prim::sync::atomic::{AtomicUsize, Ordering};
use ult::PoolRef;

use crate::memory::copy_claims::Claims;

/// Tasklets that may be queued for an execution stream and have not begun: enough for the copies
/// that are over before it wakes up.
const LATE_MAX: usize = 8;

/// The function that copies the part of that number.
type Part<'a> = &'a (dyn Fn(usize) + Sync);

/// A copy in which tasklets take part.
struct Job {
    claims: Claims,
    part: *const (dyn Fn(usize) + Sync),
    process: Process,
}

// SAFETY: `part` points to a function that may be called from any thread; when, see `run`.
unsafe impl Send for Job {}
// SAFETY: as for `Send`.
unsafe impl Sync for Job {}

impl Job {
    /// Copies parts, unless this is a child that was forked off in the middle of it: its memory may
    /// be something else's by now, and the peer's is its parent's business.
    fn help(&self) {
        if !self.process.is_other() {
            self.run();
        }
    }

    /// Copies parts until none is left to take.
    fn run(&self) {
        while let Some(part) = self.claims.claim() {
            // SAFETY:
            // - valid: `copy` does not return before `is_over`, and so not before this claimed
            //   part is finished; the function is borrowed for at least as long;
            // - a shared reference to a `Sync` function.
            let copy = unsafe { &*self.part };
            copy(part);
            self.claims.finish();
        }
    }
}

/// The pool whose xstreams help with a copy.
struct Helpers {
    pool: PoolRef,
    /// Tasklets that are queued and have not begun.
    late: Arc<AtomicUsize>,
}

/// A tasklet that has not begun.
struct QueuedHelper(Arc<AtomicUsize>);

impl QueuedHelper {
    /// `None`: there are `max` already.
    fn one_more(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        // Only the number counts.
        let before = count.fetch_add(1, Ordering::Relaxed);
        let late = Self(count.clone());
        (before < max).then_some(late)
    }
}

impl Drop for QueuedHelper {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets the execution streams of `pool` take part in large copies.
pub(crate) fn helper(pool: PoolRef) -> na::CopyHelper {
    let helpers = Helpers { pool, late: Arc::default() };
    na::CopyHelper::new(move |parts, part| helpers.copy(parts, part))
}

impl Helpers {
    fn copy(&self, parts: usize, part: Part<'_>) {
        // SAFETY: only the lifetime changes; nothing is read here.
        let part = unsafe { std::mem::transmute::<Part<'_>, Part<'static>>(part) };
        let job = Arc::new(Job { claims: Claims::new(parts), part, process: Process::current() });
        let xstreams = self.pool.xstreams().len();
        for _ in 0..xstreams.min(parts.saturating_sub(1)) {
            let Some(late) = QueuedHelper::one_more(&self.late, LATE_MAX * xstreams) else { break };
            let job = job.clone();
            let help = move || {
                drop(late);
                job.help();
            };
            // Without helpers, as in a runtime that ends, the caller copies alone.
            if self.pool.tasklet().name("margo copy").spawn_detached(help).is_err() {
                break;
            }
        }
        job.run();
        let mut spins = 0u32;
        while !job.claims.is_over() {
            spins += 1;
            // The operating system may have stopped a helper in the midst of its part.
            if spins.is_multiple_of(256) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use ult::{PoolSpec, Runtime, XstreamSpec};

    use super::*;

    fn runtime(xstreams: usize) -> (Runtime, Helpers) {
        let names = ["x0", "x1", "x2"];
        let mut builder = Runtime::builder().pool(PoolSpec::new("copy"));
        for name in &names[..xstreams] {
            builder = builder.xstream(XstreamSpec::new(*name).pools(["copy"]));
        }
        let runtime = builder.start().unwrap();
        let pool = runtime.pool("copy").unwrap();
        (runtime, Helpers { pool, late: Arc::default() })
    }

    /// No part ends before all are being copied at the same time.
    #[test]
    fn every_xstream_of_the_pool_copies_at_the_same_time() {
        let (runtime, helpers) = runtime(2);
        for _ in 0..50 {
            let all = Barrier::new(3);
            helpers.copy(3, &|_| {
                all.wait();
            });
        }
        runtime.shutdown().unwrap();
    }

    #[test]
    fn every_part_is_copied_once_whoever_comes() {
        let (runtime, helpers) = runtime(3);
        for parts in [0, 1, 2, 8, 100] {
            for _ in 0..50 {
                let copied: Vec<_> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                helpers.copy(parts, &|part| {
                    copied[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(copied.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
        runtime.shutdown().unwrap();
        // Nobody helps any more.
        let alone = AtomicUsize::new(0);
        helpers.copy(8, &|_| {
            alone.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(alone.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn nobody_helps_in_a_child() {
        let copied = AtomicUsize::new(0);
        let copy = |_: usize| _ = copied.fetch_add(1, Ordering::Relaxed);
        let part: Part<'_> = &copy;
        // SAFETY: only the lifetime changes; `copy` outlives the job.
        let part = unsafe { std::mem::transmute::<Part<'_>, Part<'static>>(part) };
        let job = Job { claims: Claims::new(3), part, process: Process::current() };
        let of_child = na::conformance::in_forked_child(&mut || {
            job.help();
            if copied.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(1) }
        });
        assert_eq!(of_child, 0, "it has copied");
        job.help();
        assert_eq!(copied.load(Ordering::Relaxed), 3);
    }

    /// On the only xstream of the pool: its tasklet cannot run before the copy is over.
    #[test]
    fn a_copy_does_not_wait_for_its_own_xstream() {
        let (runtime, helpers) = runtime(1);
        let pool = helpers.pool.clone();
        let copied = pool.spawn(move || {
            let count = AtomicUsize::new(0);
            helpers.copy(8, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            count.into_inner()
        });
        assert_eq!(copied.unwrap().join().unwrap(), 8);
        runtime.shutdown().unwrap();
    }

    /// As long as its xstream is busy with something else.
    #[test]
    fn copies_leave_few_tasklets_behind() {
        let (runtime, helpers) = runtime(1);
        let (begun, over) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (first, last) = (begun.clone(), over.clone());
        let busy = helpers.pool.spawn(move || {
            first.wait();
            last.wait();
        });
        begun.wait();
        let before = helpers.pool.stats().created;
        let count = AtomicUsize::new(0);
        for _ in 0..1000 {
            helpers.copy(8, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.load(Ordering::Relaxed), 8000);
        assert_eq!(helpers.pool.stats().created - before, LATE_MAX as u64);
        over.wait();
        busy.unwrap().join().unwrap();
        // They run, and others can be queued.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while helpers.late.load(Ordering::Relaxed) > 0 {
            assert!(std::time::Instant::now() < deadline, "they do not begin");
            std::thread::yield_now();
        }
        let both = Barrier::new(2);
        helpers.copy(2, &|_| {
            both.wait();
        });
        runtime.shutdown().unwrap();
    }
}
