//! `join`: where the second half runs, and how both end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::common::{here, kinds, on, private, shared, wait_until, within, yield_until};
use ult::{Eventual, JoinError, PoolKind, PoolRef, PoolSpec, RandWs, Runtime, XstreamSpec};

/// Waits until `test` holds and keeps the xstream meanwhile; its thieves are woken again and again.
fn hold_until(what: &str, test: impl Fn() -> bool) {
    wait_until(what, || {
        ult::join(|| (), || ());
        test()
    });
}

/// Waits likewise, but leaves no jobs.
fn hold(what: &str, flag: &AtomicBool) {
    wait_until(what, || flag.load(SeqCst));
}

/// Calls `join` so that another xstream runs `b`.
fn join_taken<RA, RB: Send>(a: impl FnOnce() -> RA, b: impl FnOnce() -> RB + Send) -> (RA, RB) {
    let begun = AtomicBool::new(false);
    let a = || {
        hold_until("a thief", || begun.load(SeqCst));
        a()
    };
    let b = || {
        begun.store(true, SeqCst);
        b()
    };
    ult::join(a, b)
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (left, right) = ult::join(|| fib(n - 1), || fib(n - 2));
    left + right
}

/// A work-stealing pool for each xstream, each of which steals from all.
fn stealing(count: usize) -> (Runtime, PoolRef) {
    let mut builder = Runtime::builder();
    for place in 0..count {
        let pools = (0..count).map(|next| format!("p{}", (place + next) % count));
        let xstream = XstreamSpec::new(format!("x{place}")).pools(pools);
        builder = builder
            .pool(PoolSpec::new(format!("p{place}")).kind(PoolKind::RandWs))
            .xstream(xstream.scheduler(Box::new(RandWs::new())));
    }
    let runtime = builder.start().unwrap();
    let pool = runtime.pool("p0").unwrap();
    (runtime, pool)
}

#[test]
fn a_first_half_that_waits_for_the_second_does_not_spin_beside_it() {
    within(|| {
        // It would spin for an hour.
        let runtime = Runtime::builder()
            .spin_max(Duration::from_secs(3600))
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        on(&runtime.pool("p").unwrap(), || {
            for _ in 0..100 {
                let there = Eventual::new();
                let wait = || *there.wait();
                let set = || {
                    there.set(7).unwrap();
                    // The caller waits for its end, too.
                    ult::yield_now();
                };
                assert_eq!(ult::join(wait, set).0, 7);
            }
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn both_values_come_back_from_every_layout() {
    within(|| {
        let layouts = [shared(1), shared(4), stealing(3)];
        for (runtime, pool) in layouts {
            let more = pool.clone();
            let several = pool.spawn(move || {
                let roots: Vec<_> = (0..4).map(|_| more.spawn(|| fib(16)).unwrap()).collect();
                roots.into_iter().map(|root| root.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(several.unwrap().join().unwrap(), [987; 4]);
            runtime.shutdown().unwrap();
        }
        for kind in [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::EarliestFirst] {
            let (runtime, pools) = kinds(&[("p", kind)]);
            assert_eq!(on(&pools[0], || fib(12)), 144);
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_fork_that_nobody_takes_makes_no_unit() {
    within(|| {
        let (runtime, pool) = shared(1);
        let order = on(&pool, || {
            let order = std::cell::RefCell::new(Vec::new());
            let borrowed = AtomicUsize::new(0);
            ult::join(|| order.borrow_mut().push('a'), || borrowed.fetch_add(1, SeqCst));
            assert_eq!(borrowed.load(SeqCst), 1);
            fib(10);
            order.into_inner()
        });
        assert_eq!(order, ['a']);
        assert_eq!(pool.stats().created, 1);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_idle_xstream_takes_the_second_half_and_counts_a_unit() {
    within(|| {
        let (runtime, pool) = shared(2);
        let (mine, (other, is_ult)) = on(&pool, || join_taken(here, || (here(), ult::is_ult())));
        assert_ne!(mine, other);
        assert!(is_ult);
        assert!(pool.stats().created >= 2);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn without_another_xstream_the_second_half_begins_when_the_first_one_waits() {
    within(|| {
        let (runtime, pool) = shared(1);
        let value = on(&pool, || {
            let there = Eventual::new();
            let (got, ()) = ult::join(|| *there.wait(), || there.set(7).unwrap());
            got
        });
        assert_eq!(value, 7);
        assert_eq!(pool.stats().created, 2);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn both_halves_may_wait_for_each_other_elsewhere() {
    within(|| {
        let (runtime, pool) = shared(2);
        let sum = on(&pool, || {
            let (ping, pong) = (Eventual::new(), Eventual::new());
            let (left, right) = join_taken(
                || {
                    ping.set(1).unwrap();
                    pong.wait()
                },
                || {
                    let got = ping.wait();
                    ult::yield_now();
                    pong.set(got + 1).unwrap();
                    ult::sleep(Duration::from_millis(2));
                    got
                },
            );
            left + right
        });
        assert_eq!(sum, 3);
        runtime.shutdown().unwrap();
    });
}

/// Many ULTs of one xstream are in the middle of their first halves at once, and go on in every
/// order.
#[test]
fn ults_that_wait_in_their_first_halves_get_their_own_jobs_back() {
    within(|| {
        for xstreams in [1, 3] {
            let (runtime, pool) = shared(xstreams);
            let units: Vec<_> = (0..60usize)
                .map(|n| {
                    let body = move || {
                        let nested = || {
                            let first = || (0..n * 7 % 11).for_each(|_| ult::yield_now());
                            let ((), right) = ult::join(first, || {
                                (0..n % 3).for_each(|_| ult::yield_now());
                                n
                            });
                            (0..n * 3 % 7).for_each(|_| ult::yield_now());
                            right
                        };
                        let (left, right) = ult::join(nested, || n * 2);
                        left + right
                    };
                    pool.spawn(body).unwrap()
                })
                .collect();
            for (n, unit) in units.into_iter().enumerate() {
                assert_eq!(unit.join().unwrap(), 3 * n);
            }
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn a_second_half_whose_unit_is_dropped_is_run_by_the_caller() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (first, second) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (inner, flags) = (pool.clone(), (first.clone(), second.clone()));
        let lower = pool.spawn(move || {
            let (first, second) = flags;
            // The job of the other ULT lies above, so taking this one back makes a unit of it.
            let drops = || {
                let dropped = inner.pop().is_some_and(|unit| !unit.is_started());
                second.set(()).unwrap();
                dropped
            };
            ult::join(|| yield_until("the other fork", || first.is_ready()), drops).1
        });
        let upper = pool.spawn(move || {
            let waits = || {
                first.set(()).unwrap();
                second.wait();
                ult::integration::current_ids()
            };
            ult::join(waits, ult::integration::current_ids)
        });
        assert!(lower.unwrap().join().unwrap());
        let (waited, ran) = upper.unwrap().join().unwrap();
        assert_eq!(waited, ran);
        let stats = pool.stats();
        assert_eq!((stats.created, stats.dropped), (3, 1));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn outside_of_a_ult_the_halves_run_one_after_the_other() {
    within(|| {
        let both = || {
            let order = std::sync::Mutex::new(Vec::new());
            ult::join(|| order.lock().unwrap().push(1), || order.lock().unwrap().push(2));
            order.into_inner().unwrap()
        };
        assert_eq!(both(), [1, 2]);
        let (runtime, pool) = shared(2);
        assert_eq!(pool.tasklet().spawn(both).unwrap().join().unwrap(), [1, 2]);
        let second = AtomicBool::new(false);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            ult::join(|| panic!("first"), || second.store(true, SeqCst))
        }));
        assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "first");
        assert!(second.load(SeqCst));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_destructor_during_unwinding_may_fork() {
    struct Forks(Arc<AtomicUsize>);
    impl Drop for Forks {
        fn drop(&mut self) {
            let (left, right) = ult::join(|| 1, || 2);
            self.0.fetch_add(left + right, SeqCst);
        }
    }
    within(|| {
        let (runtime, pool) = shared(2);
        let sum = Arc::new(AtomicUsize::new(0));
        let forks = Forks(sum.clone());
        let unit = pool.spawn(move || {
            let _forks = forks;
            resume_unwind(Box::new("a panic"));
        });
        assert!(matches!(unit.unwrap().join(), Err(JoinError::Panicked(_))));
        assert_eq!(sum.load(SeqCst), 3);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_migratable_ult_stays_where_it_forked() {
    within(|| {
        let (runtime, pool) = shared(3);
        let units: Vec<_> = (0..20)
            .map(|_| {
                let body = || {
                    for _ in 0..20 {
                        let before = here();
                        let (inside, ()) = ult::join(
                            || {
                                (0..3).for_each(|_| ult::yield_now());
                                here()
                            },
                            ult::yield_now,
                        );
                        assert_eq!(before, inside);
                        ult::yield_now();
                    }
                };
                // SAFETY: no thread-locals and nothing that is not `Send`.
                unsafe { pool.ult().spawn_migratable(body) }.unwrap()
            })
            .collect();
        units.into_iter().for_each(|unit| unit.join().unwrap());
        runtime.shutdown().unwrap();
    });
}

/// Panics without the hook.
fn fail(with: &'static str) {
    resume_unwind(Box::new(with));
}

fn panic_of<T>(result: Result<T, Box<dyn std::any::Any + Send>>) -> &'static str {
    *result.err().expect("a panic").downcast::<&str>().unwrap()
}

#[test]
fn a_panic_goes_on_when_both_halves_have_ended() {
    within(|| {
        let (runtime, pool) = shared(2);
        on(&pool, || {
            for taken in [false, true] {
                let ended = AtomicUsize::new(0);
                let end = |with: Option<&'static str>| {
                    if let Some(with) = with {
                        fail(with);
                    }
                    ended.fetch_add(1, SeqCst);
                };
                let both = |left, right| {
                    let (a, b) = (|| end(left), || end(right));
                    let fork = || if taken { join_taken(a, b) } else { ult::join(a, b) };
                    panic_of(catch_unwind(AssertUnwindSafe(fork)))
                };
                assert_eq!(both(Some("a"), None), "a");
                assert_eq!(ended.load(SeqCst), 1, "the second one has run");
                assert_eq!(both(None, Some("b")), "b");
                assert_eq!(ended.load(SeqCst), 2, "the first one has run");
                assert_eq!(both(Some("a"), Some("b")), "a");
            }
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn the_value_of_one_half_is_dropped_when_the_other_panics() {
    within(|| {
        let (runtime, pool) = shared(2);
        on(&pool, || {
            let value = Arc::new(());
            for taken in [false, true] {
                let panics = catch_unwind(AssertUnwindSafe(|| {
                    let (a, b) = (|| fail("a"), || value.clone());
                    if taken { join_taken(a, b) } else { ult::join(a, b) }
                }));
                assert!(panics.is_err());
                let panics = catch_unwind(AssertUnwindSafe(|| {
                    let (a, b) = (|| value.clone(), || fail("b"));
                    if taken { join_taken(a, b) } else { ult::join(a, b) }
                }));
                assert!(panics.is_err());
                assert_eq!(Arc::strong_count(&value), 1);
            }
        });
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_caller_drops_a_second_half_that_nobody_has_taken() {
    within(|| {
        let (runtime, pool) = shared(1);
        let (begun, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (begins, runs) = (begun.clone(), ran.clone());
        let unit = pool.spawn(move || {
            ult::join(
                || {
                    begins.store(true, SeqCst);
                    // Always runnable, so that the xstream never comes to the job.
                    yield_until("a cancel", || false);
                },
                || runs.store(true, SeqCst),
            )
        });
        let unit = unit.unwrap();
        wait_until("the first half", || begun.load(SeqCst));
        unit.cancel();
        assert!(matches!(unit.join(), Err(JoinError::Cancelled)));
        assert!(!ran.load(SeqCst));
        assert_eq!((Arc::strong_count(&ran), pool.stats().created), (1, 1));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_cancelled_caller_waits_for_a_second_half_that_runs() {
    within(|| {
        let (runtime, pool) = shared(2);
        let flags = || Arc::new(AtomicBool::new(false));
        let (first, go, ended) = (flags(), flags(), flags());
        let inner = (first.clone(), go.clone(), ended.clone());
        let unit = pool.spawn(move || {
            let (first, go, ended) = inner;
            join_taken(
                || {
                    first.store(true, SeqCst);
                    ult::park();
                },
                || {
                    hold("leave to end", &go);
                    ended.store(true, SeqCst);
                },
            );
        });
        let unit = unit.unwrap();
        wait_until("the first half", || first.load(SeqCst));
        unit.cancel();
        assert!(!unit.is_finished());
        go.store(true, SeqCst);
        assert!(matches!(unit.join(), Err(JoinError::Cancelled)));
        assert!(ended.load(SeqCst));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn an_exit_in_either_half_ends_the_caller() {
    within(|| {
        let (runtime, pool) = shared(2);
        for taken in [false, true] {
            for first in [false, true] {
                let unit = pool.spawn(move || {
                    let end = |ends: bool| {
                        if ends {
                            ult::exit();
                        }
                    };
                    let (a, b) = (|| end(first), || end(!first));
                    if taken {
                        join_taken(a, b)
                    } else {
                        ult::join(a, b)
                    };
                });
                assert!(matches!(unit.unwrap().join(), Err(JoinError::Exited)));
            }
        }
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_second_half_elsewhere_inherits_what_the_caller_had() {
    static KEY: ult::integration::Inherited<u32> = ult::integration::Inherited::new();
    within(|| {
        let (runtime, pool) = shared(2);
        let inherited = on(&pool, || {
            ult::integration::set_inherited_word(5);
            KEY.set(Some(6));
            let change = || ult::integration::set_inherited_word(0);
            join_taken(change, || (ult::integration::inherited_word(), KEY.get())).1
        });
        assert_eq!(inherited, (5, Some(6)));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_caller_that_moves_to_another_pool_gets_its_job_back() {
    within(|| {
        for waits in [false, true] {
            let (runtime, pools) = kinds(&[("p", PoolKind::FifoWait), ("q", PoolKind::FifoWait)]);
            let q = pools[1].clone();
            let (moved, removed) = (Arc::new(AtomicBool::new(false)), Arc::default());
            let flags: (_, Arc<AtomicBool>) = (moved.clone(), Arc::clone(&removed));
            let unit = pools[0].spawn(move || {
                let (moved, removed) = flags;
                let moves = || {
                    ult::set_pool(&q).unwrap();
                    moved.store(true, SeqCst);
                    yield_until("the removal", || removed.load(SeqCst));
                    if waits {
                        // Then the job is run, although the pool where it lies is gone.
                        ult::sleep(Duration::from_millis(1));
                    }
                    ult::current().unwrap().pool
                };
                ult::join(moves, || (ult::current().unwrap().pool, fib(5)))
            });
            wait_until("the move", || moved.load(SeqCst));
            let xstream = runtime.xstream("x0").unwrap();
            xstream.set_scheduler(Box::new(ult::Basic::new()), ["q"]).unwrap();
            runtime.remove_pool(&pools[0]).unwrap();
            removed.store(true, SeqCst);
            let q = || "q".to_owned();
            assert_eq!(unit.unwrap().join().unwrap(), (q(), (q(), 5)));
            assert_eq!(pools[1].stats().created, if waits { 2 } else { 1 });
            runtime.shutdown().unwrap();
        }
    });
}

#[test]
fn xstreams_come_and_go_while_all_of_them_fork() {
    within(|| {
        let (runtime, pool) = shared(2);
        let roots: Vec<_> = (0..8).map(|_| pool.spawn(|| fib(18)).unwrap()).collect();
        for round in 0..6 {
            let spec = XstreamSpec::new(format!("y{round}")).pools(["p"]);
            let xstream = runtime.add_xstream(spec).unwrap();
            let more = pool.spawn(|| fib(14)).unwrap();
            assert_eq!(more.join().unwrap(), 377);
            xstream.join().unwrap();
            xstream.revive().unwrap();
            assert_eq!(on(&pool, || fib(14)), 377);
            xstream.remove().unwrap();
        }
        roots.into_iter().for_each(|root| assert_eq!(root.join().unwrap(), 2584));
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_shutdown_waits_for_both_halves() {
    within(|| {
        let (runtime, pools) = private(2);
        let unit =
            pools[0].spawn(|| ult::join(|| ult::sleep(Duration::from_millis(20)), || fib(12)).1);
        let unit = unit.unwrap();
        drop(pools);
        runtime.shutdown().unwrap();
        assert_eq!(unit.join().unwrap(), 144);
    });
}
