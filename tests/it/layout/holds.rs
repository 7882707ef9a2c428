//! Holds on pools and xstreams that somebody is removing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::bounded;
use margo::{Instance, elasticity::ElasticityError};

/// How many times each is added and removed.
const ROUNDS: usize = 200;
const HOLDERS: usize = 2;

const POOL: &str = r#"{"name": "p"}"#;
const XSTREAM: &str = r#"{"name": "x", "scheduler": {"pools": ["__primary__"]}}"#;

/// The outcome of an attempt to hold. `Gone`: the pool or xstream does not exist any more.
enum Held<T> {
    Yes(T),
    Leaving,
    Gone,
}

fn held<T>(hold: Result<T, ElasticityError>) -> Held<T> {
    match hold {
        Ok(hold) => Held::Yes(hold),
        Err(ElasticityError::NoSuchPool { .. } | ElasticityError::NoSuchXstream { .. }) => {
            Held::Gone
        }
        Err(error) => {
            assert!(error.to_string().contains("somebody who is removing it"), "{error}");
            Held::Leaving
        }
    }
}

/// Adds, has threads hold and release, and removes until it succeeds; checks that `is_there` as
/// long as somebody holds. How often there was a hold.
fn race<T>(
    own: &Instance,
    add: impl Fn(&Instance),
    hold: impl Fn(&Instance) -> Result<T, ElasticityError> + Send + Sync + 'static,
    is_there: impl Fn(&Instance, &T) -> bool + Send + Sync + 'static,
    remove: impl Fn(&Instance) -> Result<(), ElasticityError>,
) -> usize {
    let (hold, is_there) = (Arc::new(hold), Arc::new(is_there));
    let holds = Arc::new(AtomicUsize::new(0));
    for _ in 0..ROUNDS {
        add(own);
        let before = holds.load(Ordering::Relaxed);
        let threads: Vec<_> = (0..HOLDERS)
            .map(|_| {
                let (own, holds) = (own.clone(), holds.clone());
                let (hold, is_there) = (hold.clone(), is_there.clone());
                std::thread::spawn(move || {
                    loop {
                        match held(hold(&own)) {
                            Held::Yes(hold) => {
                                holds.fetch_add(1, Ordering::Relaxed);
                                // Time enough for a removal that has overlooked it.
                                for _ in 0..5 {
                                    assert!(is_there(&own, &hold), "removed under a hold");
                                    std::thread::yield_now();
                                }
                                drop(hold);
                            }
                            Held::Leaving => {}
                            Held::Gone => return,
                        }
                        // Mostly nobody holds it, so that the removal succeeds in the end.
                        (0..20).for_each(|_| std::thread::yield_now());
                    }
                })
            })
            .collect();
        while holds.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        while let Err(error) = remove(own) {
            let in_use = matches!(
                error,
                ElasticityError::PoolInUse { .. } | ElasticityError::XstreamInUse { .. }
            );
            assert!(in_use, "{error}");
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    holds.load(Ordering::Relaxed)
}

// Slow: threads race for as many holds as there are rounds.
#[test]
fn a_pool_is_not_removed_under_a_hold() {
    bounded("a pool that is held and removed", || {
        let own = Instance::builder("na+sm://").start().unwrap();
        let holds = race(
            &own,
            |own| drop(own.layout().add_pool_from_json(POOL).unwrap()),
            |own| own.layout().hold_pool("p", "a test"),
            |own, hold| own.layout().find_pool(hold.pool()).is_ok(),
            |own| own.layout().remove_pool("p"),
        );
        assert!(holds >= ROUNDS);
        own.finalize_and_wait().unwrap();
    });
}

#[test]
fn an_xstream_is_not_removed_under_a_hold() {
    bounded("an xstream that is held and removed", || {
        let own = Instance::builder("na+sm://").start().unwrap();
        let holds = race(
            &own,
            |own| drop(own.layout().add_xstream_from_json(XSTREAM).unwrap()),
            |own| own.layout().hold_xstream("x", "a test"),
            |own, hold| own.layout().find_xstream(hold.xstream()).is_ok(),
            |own| own.layout().remove_xstream("x"),
        );
        assert!(holds >= ROUNDS);
        own.finalize_and_wait().unwrap();
    });
}

#[test]
fn what_could_not_be_removed_can_be_held() {
    let own = Instance::builder("na+sm://").start().unwrap();
    own.layout().add_pool_from_json(POOL).unwrap();
    let waiting = own.layout().pool("p").unwrap().spawn(|| 7).unwrap();
    let error = own.layout().remove_pool("p").unwrap_err();
    assert!(matches!(error, ElasticityError::PoolNotEmpty { units: 1, .. }), "{error}");
    drop(own.layout().hold_pool("p", "a test").unwrap());
    own.layout().transfer_pool_content("p", "__primary__").unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
    own.layout().remove_pool("p").unwrap();
    own.finalize_and_wait().unwrap();
}
