//! Progress that moves to another pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{PATIENCE, bounded, on_each};
use margo::config::{Pool, Xstream};
use margo::ult::Eventual;
use margo::{
    Instance, ProviderHandle, ProviderId, RegisterError, Rpc, elasticity::ElasticityError,
};

use super::elasticity::{ECHO, named, pool, running, started, text};

/// Calls that go on until they are told to stop; all of them must succeed.
struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    callers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn new(client: &Instance, target: &ProviderHandle) -> Self {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let callers = (0..2)
            .map(|_| {
                let (stop, calls) = (stop.clone(), calls.clone());
                let (client, target) = (client.clone(), target.clone());
                std::thread::spawn(move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.forward_timed(ECHO, &target, &number, PATIENCE);
                        assert_eq!(answer.unwrap(), number);
                        calls.fetch_add(1, Ordering::Relaxed);
                        number += 1;
                    }
                })
            })
            .collect();
        Self { stop, calls, callers }
    }

    /// Waits until more calls have been answered.
    fn some_more(&self) {
        let enough = self.calls.load(Ordering::Relaxed) + 20;
        while self.calls.load(Ordering::Relaxed) < enough {
            assert!(self.callers.iter().all(|caller| !caller.is_finished()), "a call failed");
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
}

/// C's own case, under load: new pool and xstream, progress moves there, the old ones go.
#[test]
fn progress_moves_to_another_pool_while_calls_run() {
    on_each(|pair| {
        bounded("migrating progress", move || {
            let service = &pair.service;
            service.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
            let load = Load::new(&pair.client, &pair.target());
            load.some_more();
            for round in 0..3 {
                for side in [&pair.service, &pair.client] {
                    let old = side.layout().progress_pool();
                    let name = format!("net_{round}");
                    side.layout().add_pool(pool(&format!(r#"{{ "name": "{name}" }}"#))).unwrap();
                    let error = side.layout().migrate_progress(&name).unwrap_err();
                    assert!(matches!(error, ElasticityError::Unserved { .. }), "{error}");
                    let xstream = Xstream { name: Some(name.clone()), ..running(&[&name]) };
                    side.layout().add_xstream(xstream).unwrap();
                    side.layout().migrate_progress(&name).unwrap();
                    assert_eq!(side.layout().progress_pool().name(), name);
                    assert_eq!(named(side)["progress_pool"], name);
                    load.some_more();
                    if old.name() != "__primary__" {
                        side.layout().remove_xstream(old.name()).unwrap();
                        side.layout().remove_pool(old.name()).unwrap();
                    }
                }
            }
            load.some_more();
            load.end();
            pair.end();
        });
    });
}

/// The change waits for the tasklet's xstream, so that the tasklet must not wait for the change.
#[test]
fn a_tasklet_that_registers_while_progress_moves_is_refused() {
    const OTHER: Rpc<(), ()> = Rpc::new("other");
    bounded("a tasklet and a move of progress", || {
        let service = started();
        service.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
        let to = service.layout().add_pool(pool(r#"{ "name": "to" }"#)).unwrap().pool;
        service.layout().add_xstream(running(&["to"])).unwrap();
        let (begun, instance) = (Arc::new(Eventual::new()), service.clone());
        let begins = begun.clone();
        let tasklet = to.tasklet().spawn(move || {
            let pool = instance.layout().rpc_pool();
            // Nothing is in its way: that is as everywhere.
            instance.layout().set_handler_pool(ECHO, ProviderId::DEFAULT, &pool).unwrap();
            begins.set(()).unwrap();
            let moves = || instance.layout().set_handler_pool(ECHO, ProviderId::DEFAULT, &pool);
            while !matches!(moves(), Err(RegisterError::Inline { rpc: "echo" })) {}
            instance.register(OTHER, |_| ()).unwrap_err()
        });
        begun.wait();
        service.layout().migrate_progress("to").unwrap();
        let refused = tasklet.unwrap().join().unwrap();
        assert!(matches!(refused, RegisterError::Inline { rpc: "other" }), "{refused}");
        service.register(OTHER, |_| ()).unwrap();
        service.finalize_and_wait().unwrap();
    });
}

#[test]
fn progress_moves_only_where_it_can_run() {
    let margo = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "__primary__" }, { "name": "net1" } ],
             "xstreams": [ { "name": "x1", "scheduler": { "pools": ["net1"] } } ] },
             "margo": { "shards": ["__primary__", "net1"] } }"#,
    )
    .unwrap();
    margo.layout().add_pool(pool(r#"{ "name": "alone", "access": "private" }"#)).unwrap();
    margo.layout().add_xstream(running(&["alone"])).unwrap();
    let error = text(margo.layout().migrate_progress("alone"));
    assert!(error.contains("pool `alone` is private"), "{error}");
    let error = text(margo.layout().migrate_progress("net1"));
    assert!(error.contains("in use by the progress ULT of shard 1"), "{error}");
    assert!(text(margo.layout().migrate_progress("x")).contains("no pool `x`"));
    let error = text(margo.layout().migrate_progress_of(2, "net1"));
    assert!(error.contains("no shard 2: this instance has 2"), "{error}");
    margo.layout().migrate_progress("__primary__").unwrap();

    margo.layout().add_pool(pool(r#"{ "name": "net2" }"#)).unwrap();
    margo.layout().add_xstream(running(&["net2"])).unwrap();
    margo.layout().migrate_progress_of(1, "net2").unwrap();
    margo.layout().remove_xstream("x1").unwrap();
    margo.layout().remove_pool("net1").unwrap();
    let names: Vec<_> =
        margo.layout().progress_pools().map(|pool| pool.name().to_owned()).collect();
    assert_eq!(names, ["__primary__", "net2"]);
    margo.finalize_and_wait().unwrap();
    assert!(matches!(margo.layout().migrate_progress("net2"), Err(ElasticityError::Closing)));
    assert!(matches!(margo.layout().add_pool(Pool::default()), Err(ElasticityError::Closing)));
}

#[test]
fn private_handlers_keep_progress_where_it_is() {
    let margo = margo::init(
        r#"{ "argobots": { "pools": [ { "name": "__primary__", "access": "private" } ] } }"#,
    )
    .unwrap();
    margo.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    margo.layout().add_pool(pool(r#"{ "name": "net" }"#)).unwrap();
    margo.layout().add_xstream(running(&["net"])).unwrap();
    let error = text(margo.layout().migrate_progress("net"));
    assert!(error.contains("private"), "{error}");
    let target = ProviderHandle::from(margo.self_addr());
    assert_eq!(margo.forward_timed(ECHO, &target, &1, PATIENCE).unwrap(), 1);
    margo.finalize_and_wait().unwrap();
}

/// Finalize does not wait for a move, and a move not for an instance that ends.
#[test]
fn a_move_and_the_end_at_the_same_time() {
    bounded("a move at the end", || {
        for _ in 0..20 {
            let margo = started();
            margo.layout().add_pool(pool(r#"{ "name": "net" }"#)).unwrap();
            margo.layout().add_xstream(running(&["net"])).unwrap();
            let mover = margo.clone();
            let moving = std::thread::spawn(move || {
                for to in ["net", "__pool_1__"].iter().cycle() {
                    if let Err(error) = mover.layout().migrate_progress(*to) {
                        return error;
                    }
                }
                unreachable!("it ends with an error")
            });
            margo.finalize_and_wait().unwrap();
            let error = moving.join().unwrap();
            let closing = matches!(error, ElasticityError::Closing | ElasticityError::Spawn(_));
            assert!(closing, "{error}");
        }
    });
}
