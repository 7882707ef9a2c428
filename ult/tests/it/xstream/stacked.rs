//! Stacked schedulers over pools that xstreams serve as well, while these come and go.

use std::sync::Arc;

use crate::common::{on, private, wait_until, within};
use ult::{Basic, Eventual, PoolKind, PoolSpec, Runtime, XstreamSpec, XstreamState};

/// `a` and `keep` on `x0`, `b` on `x1`.
fn two_xstreams(kind: PoolKind) -> Runtime {
    Runtime::builder()
        .pool(PoolSpec::new("a").kind(kind))
        .pool(PoolSpec::new("keep"))
        .pool(PoolSpec::new("b"))
        .xstream(XstreamSpec::new("x0").pools(["a", "keep"]))
        .xstream(XstreamSpec::new("x1").pools(["b"]))
        .start()
        .unwrap()
}

const KINDS: [PoolKind; 4] =
    [PoolKind::FifoWait, PoolKind::PrioWait, PoolKind::EarliestFirst, PoolKind::RandWs];

/// An xstream that leaves lets a stacked scheduler elsewhere have their common pool; when that ends
/// first, the xstream takes the pool back.
#[test]
fn an_xstream_that_leaves_serves_its_pools_again_when_the_stacked_scheduler_has_ended() {
    for kind in KINDS {
        within(move || {
            let runtime = two_xstreams(kind);
            let [a, keep, b] = ["a", "keep", "b"].map(|name| runtime.pool(name).unwrap());
            // Keeps `x0` from leaving.
            let (stay, go) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<()>::new()));
            let inner = stay.clone();
            let keeper = keep.spawn(move || inner.wait_ready()).unwrap();
            // Keeps the scheduler from ending.
            let inner = go.clone();
            let child = a.spawn(move || inner.wait_ready()).unwrap();
            let scheduler = b.push_scheduler(Box::new(Basic::new()), [a.clone()]).unwrap();
            on(&b, || ());

            let x0 = runtime.xstream("x0").unwrap();
            let leaving = x0.clone();
            let leaver = std::thread::spawn(move || leaving.join());
            wait_until("leaving", || x0.state() == XstreamState::Joining);
            go.set(()).unwrap();
            child.join().unwrap();
            scheduler.join().unwrap();
            assert_eq!(a.spawn(|| 7).unwrap().join().unwrap(), 7, "{kind:?}");
            stay.set(()).unwrap();
            keeper.join().unwrap();
            leaver.join().unwrap().unwrap();
            runtime.shutdown().unwrap();
        });
    }
}

/// A ULT at home on an xstream that leaves is resumed there, whichever xstream serves its pool
/// meanwhile.
#[test]
fn a_started_ult_goes_on_where_it_is_at_home_beside_a_stacked_scheduler() {
    for kind in KINDS {
        within(move || {
            let runtime = two_xstreams(kind);
            let [a, b] = ["a", "b"].map(|name| runtime.pool(name).unwrap());
            let go = Arc::new(Eventual::<()>::new());
            let inner = go.clone();
            let at_home = a.spawn(move || {
                let home = crate::common::here();
                inner.wait_ready();
                for _ in 0..100 {
                    ult::yield_now();
                }
                assert_eq!(crate::common::here(), home);
                home
            });
            let at_home = at_home.unwrap();
            wait_until("started", || a.stats().executed > 0);
            let scheduler = b.push_scheduler(Box::new(Basic::new()), [a.clone()]).unwrap();
            on(&b, || ());

            let x0 = runtime.xstream("x0").unwrap();
            let leaving = x0.clone();
            let leaver = std::thread::spawn(move || leaving.join());
            wait_until("leaving", || x0.state() == XstreamState::Joining);
            let before = a.stats().pushed;
            go.set(()).unwrap();
            assert_eq!(at_home.join().unwrap(), "x0");
            // One resume and the yields; it was not passed to and fro between the two.
            let pushes = a.stats().pushed - before;
            assert!(pushes <= 101, "{kind:?}: {pushes} pushes for 100 yields");
            scheduler.join().unwrap();
            leaver.join().unwrap().unwrap();
            runtime.shutdown().unwrap();
        });
    }
}

/// Two xstreams that leave do not leave their common pool to each other.
#[test]
fn of_two_xstreams_that_leave_one_keeps_the_common_pool() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("common"))
            .pool(PoolSpec::new("keep"))
            .xstream(XstreamSpec::new("x0").pools(["common", "keep"]))
            .xstream(XstreamSpec::new("x1").pools(["common"]))
            .start()
            .unwrap();
        let [common, keep] = ["common", "keep"].map(|name| runtime.pool(name).unwrap());
        let (stay, inner) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<()>::new()));
        let (wait, started) = (stay.clone(), inner.clone());
        let keeper = keep.spawn(move || {
            started.set(()).unwrap();
            wait.wait_ready();
        });
        let keeper = keeper.unwrap();
        inner.wait_ready();
        let x0 = runtime.xstream("x0").unwrap();
        let leaving = x0.clone();
        let leaver = std::thread::spawn(move || leaving.join());
        wait_until("leaving", || x0.state() == XstreamState::Joining);
        // Nothing calls it home, so it goes, and `x0`, which must stay, has to serve the pool.
        runtime.xstream("x1").unwrap().join().unwrap();
        assert_eq!(common.spawn(|| 5).unwrap().join().unwrap(), 5);
        stay.set(()).unwrap();
        keeper.join().unwrap();
        leaver.join().unwrap().unwrap();
        runtime.shutdown().unwrap();
    });
}

/// A work-stealing pool changes its owner while a stacked scheduler of the former owner uses it.
#[test]
fn a_stacked_scheduler_notices_that_its_xstream_does_not_own_the_pool_any_more() {
    within(|| {
        let runtime = Runtime::builder()
            .pool(PoolSpec::new("deque").kind(PoolKind::RandWs))
            .pool(PoolSpec::new("b"))
            .xstream(XstreamSpec::new("x0").pools(["deque", "b"]))
            .start()
            .unwrap();
        let [deque, b] = ["deque", "b"].map(|name| runtime.pool(name).unwrap());
        let go = Arc::new(Eventual::<()>::new());
        let inner = go.clone();
        let waits = deque.spawn(move || inner.wait_ready()).unwrap();
        let scheduler = b.push_scheduler(Box::new(Basic::new()), [deque.clone()]).unwrap();
        on(&b, || ());
        let x0 = runtime.xstream("x0").unwrap();
        x0.set_scheduler(Box::new(Basic::new()), ["b"]).unwrap();
        let x1 = runtime.add_xstream(XstreamSpec::new("x1").pools(["deque"])).unwrap();
        // Both take from it: `x1`, which has its private end now, and the scheduler.
        let units: Vec<_> = (0..2_000).map(|n| deque.spawn(move || n).unwrap()).collect();
        let spread = on(&deque, {
            let deque = deque.clone();
            move || (0..2_000).map(|n| deque.spawn(move || n).unwrap()).collect::<Vec<_>>()
        });
        for (n, unit) in units.into_iter().enumerate().chain(spread.into_iter().enumerate()) {
            assert_eq!(unit.join().unwrap(), n);
        }
        go.set(()).unwrap();
        waits.join().unwrap();
        scheduler.join().unwrap();
        x1.join().unwrap();
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_pool_that_nobody_serves_is_its_stacked_schedulers_alone() {
    within(|| {
        let (runtime, pools) = private(1);
        let side = runtime.add_pool(PoolSpec::new("side").kind(PoolKind::PrioWait)).unwrap();
        let inner = side.clone();
        let last = side.spawn(move || {
            let units: Vec<_> = (0..50)
                .map(|_| {
                    let body = || {
                        for _ in 0..20 {
                            ult::yield_now();
                        }
                    };
                    inner.spawn(body).unwrap()
                })
                .collect();
            units.into_iter().for_each(|unit| unit.join().unwrap());
        });
        let scheduler = pools[0].push_scheduler(Box::new(Basic::new()), [side]).unwrap();
        last.unwrap().join().unwrap();
        scheduler.join().unwrap();
        runtime.shutdown().unwrap();
    });
}
