//! ULTs in the pools of an instance, as in C Margo's own tests: eventuals among many of them, and
//! each kind of pool that finishes what it has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::bounded;
use margo::{Instance, ult};
use ult::Eventual;

/// ULTs of each kind.
const ULTS: usize = 64;
/// Eventuals that each of them makes.
const ITERATIONS: usize = 1000;
/// Execution streams of the handlers, beside that of progress; 0: they have the primary one.
const LAYOUTS: [i32; 4] = [0, 2, 4, 8];

fn in_each_layout(test: fn(&Instance)) {
    for threads in LAYOUTS {
        bounded(&format!("{threads} execution streams"), move || {
            let own = Instance::builder("na+sm://").use_progress_thread(true);
            let own = own.rpc_thread_count(threads).start().unwrap();
            let xstreams = own.layout().rpc_pool().xstreams();
            assert_eq!(xstreams.len(), usize::try_from(threads).unwrap().max(1));
            test(&own);
            own.finalize_and_wait().unwrap();
        });
    }
}

/// `eventual_per_ult`.
#[test]
fn each_of_many_ults_is_resumed_by_another_one() {
    in_each_layout(|own| {
        let pool = own.layout().rpc_pool();
        let before = pool.stats().blocked();
        let events: Vec<_> = (0..ULTS).map(|_| Arc::new(Eventual::new())).collect();
        let waits = |event: &Arc<Eventual<usize>>| {
            let event = event.clone();
            pool.spawn(move || *event.wait()).unwrap()
        };
        let waiters: Vec<_> = events.iter().map(waits).collect();
        while pool.stats().blocked() < before + ULTS as u64 {
            std::thread::yield_now();
        }
        let sets = |(number, event): (usize, Arc<Eventual<usize>>)| {
            pool.spawn(move || event.set(number).unwrap()).unwrap()
        };
        let setters: Vec<_> = events.into_iter().enumerate().map(sets).collect();
        for (number, waiter) in waiters.into_iter().enumerate() {
            assert_eq!(waiter.join().unwrap(), number);
        }
        setters.into_iter().for_each(|setter| setter.join().unwrap());
    });
}

/// `eventual_per_fn_iteration`, with as many ULTs that set. Each eventual goes as soon as its
/// waiter has seen it, while the setter may still be in `set`.
#[test]
fn eventuals_of_one_use_are_made_set_and_dropped_all_the_time() {
    in_each_layout(|own| {
        let pool = own.layout().rpc_pool();
        let (sender, receiver) = ult::channel::unbounded::<(usize, Arc<Eventual<usize>>)>();
        let set = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..ULTS)
            .map(|ult| {
                let sender = sender.clone();
                let waits = move || {
                    for n in 0..ITERATIONS {
                        let (number, event) = (ult * ITERATIONS + n, Arc::new(Eventual::new()));
                        sender.send((number, event.clone())).unwrap();
                        assert_eq!(*event.wait(), number);
                    }
                };
                pool.spawn(waits).unwrap()
            })
            .collect();
        // What is left are the waiters'.
        drop(sender);
        let setters: Vec<_> = (0..ULTS)
            .map(|_| {
                let (receiver, set) = (receiver.clone(), set.clone());
                let sets = move || {
                    for (number, event) in receiver.iter() {
                        event.set(number).unwrap();
                        set.fetch_add(1, Ordering::Relaxed);
                    }
                };
                pool.spawn(sets).unwrap()
            })
            .collect();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        setters.into_iter().for_each(|setter| setter.join().unwrap());
        assert_eq!(set.load(Ordering::Relaxed), ULTS * ITERATIONS);
    });
}

/// `abt-pool/rpc-pool-kind`.
#[test]
fn ults_that_yield_often_and_once_all_end_and_the_kind_is_printed() {
    for kind in ["prio_wait", "earliest_first"] {
        let own = margo::init(&format!(
            r#"{{ "rpc_thread_count": 0, "argobots": {{
                "pools": [{{ "name": "my_pool", "kind": "{kind}" }}],
                "xstreams": [{{ "name": "my_xstream",
                    "scheduler": {{ "type": "basic_wait", "pools": ["my_pool"] }} }}] }} }}"#
        ))
        .unwrap();
        let printed = serde_json::to_string(&own.config()).unwrap();
        assert_eq!(printed.matches("my_pool").count(), 1, "{printed}");
        assert_eq!(printed.matches(kind).count(), 1, "{printed}");
        let pool = own.layout().pool("my_pool").unwrap();
        let yields = |n: u64| {
            let count = if n.is_multiple_of(2) { 64 } else { 1 };
            (0..count).for_each(|_| ult::yield_now());
        };
        let ults: Vec<_> = (0..64).map(|n| pool.spawn(move || yields(n)).unwrap()).collect();
        bounded(kind, move || ults.into_iter().for_each(|ult| ult.join().unwrap()));
        assert_eq!(pool.stats().yields, 32 * 64 + 32);
        own.finalize_and_wait().unwrap();
    }
}
