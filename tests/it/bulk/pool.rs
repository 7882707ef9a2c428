//! Pools of registered buffers: which buffer a taker gets, which takers wait, and that no buffer is
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, bounded, builder, on_each};
use margo::{
    Access, Instance, bulk_memory::BulkPool, bulk_memory::BulkPoolError, bulk_memory::BulkPoolSpec,
};
use ult::Eventual;

fn with_pool(spec: BulkPoolSpec, body: impl FnOnce(&Instance, BulkPool) + Send + 'static) {
    bounded("a pool", move || {
        // One execution stream: whoever blocked it would block everybody.
        let instance = builder("na+sm://").start().unwrap();
        let pool = instance.memory().bulk_pool(&spec).unwrap();
        body(&instance, pool);
        instance.finalize_and_wait().unwrap();
    });
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !done() {
        assert!(std::time::Instant::now() < deadline, "{what} does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn the_smallest_class_that_fits() {
    with_pool(BulkPoolSpec::geometric(3, 2, 1024, 2), |_, pool| {
        assert_eq!(pool.bytes_max(), 1024 * 2 * 2);
        for (len, bytes) in [(0, 1024), (1024, 1024), (1025, 2048), (2048, 2048), (4096, 4096)] {
            assert_eq!(pool.get(len).unwrap().len(), bytes);
            assert_eq!(pool.try_get(len).unwrap().unwrap().len(), bytes);
        }
        for refused in [pool.get(4097), pool.try_get(usize::MAX).map(Option::unwrap)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, BulkPoolError::TooLarge { max: 4096, .. }), "{error}");
        }
        let both = [pool.get(1).unwrap(), pool.get(1).unwrap()];
        assert!(pool.try_get(1).unwrap().is_none());
        let larger = pool.try_get_any(1).unwrap().unwrap();
        assert_eq!(larger.len(), 2048);
        drop(both);
        let [small, middle, large] = pool.stats().try_into().unwrap();
        assert_eq!((small.bytes, small.buffers, small.free, small.in_use_max), (1024, 2, 2, 2));
        assert_eq!((small.gets, small.waits, small.spills), (6, 0, 0));
        assert_eq!((middle.free, middle.gets, middle.spills), (1, 5, 1));
        assert_eq!((large.gets, large.in_use_max, large.given_up), (2, 1, 0));
    });
}

#[test]
fn pools_that_make_no_sense_are_refused() {
    let instance = builder("na+sm://").start().unwrap();
    for (spec, says) in [
        (BulkPoolSpec::new(), "no classes"),
        (BulkPoolSpec::new().class(0, 1), "of no use"),
        (BulkPoolSpec::new().class(64, 0), "of no use"),
        (BulkPoolSpec::new().class(64, 1).class(128, 1).class(64, 2), "two classes"),
        (BulkPoolSpec::geometric(2, 1, 64, 1), "two classes"),
        (BulkPoolSpec::geometric(9, 1, 1 << 40, 1 << 10), "address space"),
    ] {
        let error = instance.memory().bulk_pool(&spec).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    instance.finalize_and_wait().unwrap();
}

/// The ULTs that wait, and the one that gives back, share one execution stream.
#[test]
fn an_empty_pool_suspends_ults_and_serves_them_in_their_order() {
    with_pool(BulkPoolSpec::new().class(64, 1), |instance, pool| {
        let held = pool.get(1).unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let ults: Vec<_> = (0..5u8)
            .map(|number| {
                let (mine, order) = (pool.clone(), order.clone());
                let ult = instance.layout().rpc_pool().spawn(move || {
                    let mut buffer = mine.get(1).unwrap();
                    order.lock().unwrap().push((number, buffer[0]));
                    buffer[0] = number;
                    ult::yield_now();
                });
                wait_until("a wait", || pool.stats()[0].waiting == usize::from(number) + 1);
                ult.unwrap()
            })
            .collect();
        // Nobody passes them.
        assert!(pool.try_get(1).unwrap().is_none());
        let giver = instance.layout().rpc_pool().spawn(move || {
            let mut held = held;
            held[0] = 77;
        });
        giver.unwrap().join().unwrap();
        ults.into_iter().for_each(|ult| ult.join().unwrap());
        let expected = [(0, 77), (1, 0), (2, 1), (3, 2), (4, 3)];
        assert_eq!(*order.lock().unwrap(), expected);
        let stats = pool.stats()[0];
        assert_eq!((stats.gets, stats.waits, stats.free, stats.in_use_max), (6, 5, 1, 1));
    });
}

#[test]
fn waits_end_by_time_by_cancel_and_with_their_ult() {
    with_pool(BulkPoolSpec::new().class(64, 1), |instance, pool| {
        let held = pool.get(1).unwrap();
        for limit in [Duration::ZERO, Duration::from_millis(5)] {
            let error = pool.get_timed(1, limit).unwrap_err();
            assert!(matches!(error, BulkPoolError::TimedOut { bytes: 64, .. }), "{error}");
        }
        let cancel = Arc::new(Eventual::new());
        let (mine, until) = (pool.clone(), cancel.clone());
        let waits =
            instance.layout().rpc_pool().spawn(move || mine.get_unless(1, &until, None).map(drop));
        wait_until("a wait", || pool.stats()[0].waiting == 1);
        cancel.set(()).unwrap();
        let error = waits.unwrap().join().unwrap().unwrap_err();
        assert!(matches!(error, BulkPoolError::Canceled), "{error}");

        let mine = pool.clone();
        let ends = instance.layout().rpc_pool().spawn(move || mine.get(1).map(drop)).unwrap();
        let mine = pool.clone();
        let stays = instance.layout().rpc_pool().spawn(move || mine.get(1).map(drop)).unwrap();
        wait_until("two waits", || pool.stats()[0].waiting == 2);
        ends.cancel();
        assert!(matches!(ends.join(), Err(ult::JoinError::Cancelled)));
        drop(held);
        stays.join().unwrap().unwrap();
        // A cancel that comes too late takes nothing away.
        pool.get_unless(1, &cancel, Some(Duration::MAX)).unwrap();
        let stats = pool.stats()[0];
        assert_eq!((stats.free, stats.waiting, stats.given_up), (1, 0, 4));
    });
}

#[test]
fn a_closed_pool_ends_waits_and_keeps_what_is_in_use() {
    with_pool(BulkPoolSpec::new().class(64, 1).class(128, 2), |instance, pool| {
        let mut held = pool.get(1).unwrap();
        let mine = pool.clone();
        let waits = instance.layout().rpc_pool().spawn(move || mine.get(1).map(drop)).unwrap();
        wait_until("a wait", || pool.stats()[0].waiting == 1);
        pool.close();
        pool.close();
        assert!(matches!(waits.join().unwrap(), Err(BulkPoolError::Closed)));
        assert!(matches!(pool.get(1), Err(BulkPoolError::Closed)));
        assert!(matches!(pool.try_get_any(100), Err(BulkPoolError::Closed)));
        drop(pool);
        held.fill(3);
        assert_eq!(held[63], 3);
    });
}

#[test]
fn pooled_buffers_move_data() {
    on_each(|pair| {
        let pool =
            pair.client.memory().bulk_pool(&BulkPoolSpec::geometric(2, 1, 1000, 100)).unwrap();
        let peer = pair.target().addr().clone();
        for len in [10usize, 1000, 100_000] {
            let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let exposed = pair.service.expose(data.clone(), Access::ReadWrite).unwrap();
            let mut buffer = pool.get(len).unwrap();
            pair.client.pull(&peer, exposed.bulk(), 0, &mut buffer, 0..len).unwrap();
            assert!(buffer[..len] == data[..]);
            buffer[..len].reverse();
            pair.client.push(&peer, exposed.bulk(), 0, &mut buffer, 0..len).unwrap();
            assert!(exposed.release().unwrap().iter().eq(data.iter().rev()));
        }
        assert!(pool.stats().iter().all(|class| class.free == 1));
        pair.end();
    });
}

/// Many parties, few buffers, ends of every kind: a buffer has one user at a time, and all of them
/// are there in the end.
#[test]
fn no_buffer_is_lost_or_shared() {
    bounded("the end of all users", || {
        // Two streams share the pool of the handlers.
        let instance = builder("na+sm://").rpc_thread_count(2).start().unwrap();
        let pool = instance.memory().bulk_pool(&BulkPoolSpec::geometric(2, 2, 8, 2)).unwrap();
        let got = Arc::new(AtomicU64::new(0));
        let user = |number: u64| {
            let (pool, got) = (pool.clone(), got.clone());
            move || {
                let cancel = Eventual::new();
                cancel.set(()).unwrap();
                for round in 0..200u64 {
                    let len = ((number + round) % 2 * 8 + 1) as usize;
                    let buffer = match (number * 7 + round) % 4 {
                        0 => pool.get(len),
                        1 => pool.get_timed(len, Duration::from_micros(round)),
                        2 => pool.get_unless(len, &cancel, None),
                        _ => pool.try_get_any(len).and_then(|b| b.ok_or(BulkPoolError::Canceled)),
                    };
                    let Ok(mut buffer) = buffer else { continue };
                    got.fetch_add(1, Ordering::Relaxed);
                    buffer[..8].copy_from_slice(&number.to_le_bytes());
                    ult::yield_now();
                    assert_eq!(buffer[..8], number.to_le_bytes());
                }
            }
        };
        let ults: Vec<_> =
            (0..24).map(|n| instance.layout().rpc_pool().spawn(user(n)).unwrap()).collect();
        let threads: Vec<_> = (24..28).map(|n| std::thread::spawn(user(n))).collect();
        // Some end in the middle of whatever they do.
        ults.iter().step_by(5).for_each(ult::JoinHandle::cancel);
        for ult in ults {
            assert!(matches!(ult.join(), Ok(()) | Err(ult::JoinError::Cancelled)));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let stats = pool.stats();
        assert!(stats.iter().all(|class| (class.free, class.waiting) == (2, 0)), "{stats:?}");
        // What was handed to a ULT that was cancelled counts as well.
        let gets: u64 = stats.iter().map(|class| class.gets).sum();
        assert!(gets >= got.load(Ordering::Relaxed));
        instance.finalize_and_wait().unwrap();
    });
}
