//! RPCs that are taken back, one by one, while the rest of the instance goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::common::{PATIENCE, Pair, bounded, builder, on_each};
use margo::monitor::{LifeEvent, Monitor};
use margo::ult::{Eventual, Semaphore};
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, RegisterError, Rpc};

const FIRST: Rpc<u64, u64> = Rpc::new("first");
const SECOND: Rpc<u64, u64> = Rpc::new("second");
const ID: ProviderId = ProviderId::new(7);

/// Returns the answer to the client's call; `None`: there is no such RPC.
fn ask(pair: &Pair, rpc: Rpc<u64, u64>, id: ProviderId) -> Option<u64> {
    let to = ProviderHandle::new(pair.target().addr().clone(), id);
    match pair.client.forward_timed(rpc, &to, &1, PATIENCE) {
        Ok(answer) => Some(answer),
        Err(error) => {
            let never_ran = error.never_ran();
            assert!(matches!(error, ForwardError::NotRegistered { .. }) && never_ran, "{error}");
            None
        }
    }
}

/// The RPCs that are deregistered, by number.
#[derive(Default)]
struct Gone(Mutex<Vec<u64>>);

impl Monitor for Gone {
    fn on_event(&self, event: &LifeEvent<'_>) {
        if let LifeEvent::Deregistered { rpc_id } = event {
            self.0.lock().unwrap().push(rpc_id.0);
        }
    }
}

/// A monitor that is busy with the first event until it may go on, and notes each one when it is
/// done with it.
struct Slow {
    begun: Semaphore,
    go: Semaphore,
    told: Mutex<Vec<String>>,
}

impl Monitor for Slow {
    fn on_event(&self, event: &LifeEvent<'_>) {
        let what = match event {
            LifeEvent::Registered { rpc, .. } => format!("{rpc} comes"),
            LifeEvent::Deregistered { .. } => "goes".to_owned(),
            _ => return,
        };
        if self.told.lock().unwrap().is_empty() {
            self.begun.release(1);
            self.go.acquire(1).forget();
        }
        self.told.lock().unwrap().push(what);
    }
}

/// Otherwise a monitor that keeps an account of the RPCs would have it wrong for good.
#[test]
fn what_comes_and_goes_is_told_in_that_order_though_others_make_it_go() {
    let service = builder("na+sm://").start().unwrap();
    let [begun, go] = [0, 0].map(Semaphore::new);
    let slow = Arc::new(Slow { begun, go, told: Mutex::default() });
    let monitor = service.monitoring().add_monitor(slow.clone());
    let comes = || service.serve(FIRST).function(|n| n);
    std::thread::scope(|scope| {
        let first = scope.spawn(comes);
        slow.begun.acquire_timeout(1, PATIENCE).expect("it is told").forget();
        // Does not wait for the monitor, which is told later.
        assert!(service.deregister(FIRST, ProviderId::DEFAULT));
        assert!(slow.told.lock().unwrap().is_empty());
        slow.go.release(1);
        first.join().unwrap().unwrap();
    });
    assert_eq!(*slow.told.lock().unwrap(), ["first comes", "goes"]);
    // Who is alone tells before going on.
    comes().unwrap();
    assert!(service.deregister(FIRST, ProviderId::DEFAULT));
    assert_eq!(slow.told.lock().unwrap()[2..], ["first comes", "goes"]);
    drop(monitor);
    service.finalize_and_wait().unwrap();
}

#[test]
fn an_rpc_of_the_default_provider_goes_and_may_come_again() {
    on_each(|pair| {
        let service = &pair.service;
        let gone = Arc::new(Gone::default());
        service.monitoring().add_monitor(gone.clone()).keep();
        assert!(!service.deregister(FIRST, ProviderId::DEFAULT), "nobody serves it");
        let owned = Arc::new(1);
        let owns = owned.clone();
        service.serve(FIRST).function(move |n| n + *owns).unwrap();
        assert_eq!(ask(&pair, FIRST, ProviderId::DEFAULT), Some(2));
        let twice = service.serve(FIRST).function(|n| n).unwrap_err();
        assert!(matches!(twice, RegisterError::Exists { .. }), "{twice}");
        assert!(twice.to_string().contains("deregister it"), "{twice}");

        assert!(service.deregister(FIRST, ProviderId::DEFAULT));
        assert_eq!(ask(&pair, FIRST, ProviderId::DEFAULT), None);
        assert_eq!(service.layout().handler_pool(FIRST, ProviderId::DEFAULT), None);
        assert!(!service.deregister(FIRST, ProviderId::DEFAULT), "it is gone");
        let id = FIRST.id(ProviderId::DEFAULT).0;
        assert_eq!(*gone.0.lock().unwrap(), [id]);

        service.serve(FIRST).function(|n| n + 10).unwrap();
        assert_eq!(ask(&pair, FIRST, ProviderId::DEFAULT), Some(11));
        pair.end();
        assert_eq!(Arc::strong_count(&owned), 1, "the first handler was dropped");
    });
}

#[test]
fn what_the_runtime_serves_itself_stays() {
    let own = builder("na+sm://").start().unwrap();
    const SHUTDOWN: Rpc<(), i32> = Rpc::new("__shutdown__");
    assert!(!own.deregister(SHUTDOWN, ProviderId::DEFAULT));
    own.network().enable_remote_shutdown();
    let target = ProviderHandle::from(own.self_addr());
    assert_eq!(own.forward(SHUTDOWN, &target, &()).unwrap(), 0);
    own.wait_for_finalize().unwrap();
}

#[test]
fn one_of_two_rpcs_of_a_provider() {
    on_each(|pair| {
        let service = &pair.service;
        let provider = service.provider(ID, &service.layout().rpc_pool());
        provider.serve(FIRST).function(|n| n).unwrap();
        provider.serve(SECOND).function(|n| n + 1).unwrap();
        assert!(provider.deregister(FIRST) && !provider.deregister(FIRST));
        assert_eq!(ask(&pair, FIRST, ID), None);
        assert_eq!(ask(&pair, SECOND, ID), Some(2));

        // The provider of that id is another one now, as far as this RPC goes.
        let other = service.provider(ID, &service.layout().rpc_pool());
        other.serve(FIRST).function(|n| n + 2).unwrap();
        assert!(!provider.deregister(FIRST), "it is the other one's");
        assert_eq!(ask(&pair, FIRST, ID), Some(3));

        // Whoever has registered it.
        assert!(service.deregister(SECOND, ID));
        other.serve(SECOND).function(|n| n + 3).unwrap();
        drop(provider);
        assert_eq!([FIRST, SECOND].map(|rpc| ask(&pair, rpc, ID)), [Some(3), Some(4)]);
        drop(other);
        assert_eq!([FIRST, SECOND].map(|rpc| ask(&pair, rpc, ID)), [None, None]);
        pair.end();
    });
}

#[test]
fn a_handler_that_runs_goes_on_and_keeps_what_is_its() {
    on_each(|pair| {
        let service = &pair.service;
        let (begun, go) = (Arc::new(Eventual::new()), Arc::new(Eventual::<()>::new()));
        let owned = Arc::new(7);
        let (begins, waits, owns) = (begun.clone(), go.clone(), Arc::downgrade(&owned));
        let held = owned.clone();
        let hold = move |_| {
            begins.set(()).unwrap();
            waits.wait();
            *held
        };
        service.serve(FIRST).function(hold).unwrap();
        drop(owned);
        let call = pair.client.rpc(FIRST, &pair.target(), &1).start().unwrap();
        begun.wait_timeout(PATIENCE).expect("the handler begins");
        assert!(service.deregister(FIRST, ProviderId::DEFAULT));
        assert_eq!(ask(&pair, FIRST, ProviderId::DEFAULT), None);
        service.serve(FIRST).function(|n| n).unwrap();
        assert_eq!(ask(&pair, FIRST, ProviderId::DEFAULT), Some(1), "beside the one that runs");
        assert!(owns.upgrade().is_some(), "dropped under its handler");
        go.set(()).unwrap();
        assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), 7);
        pair.end();
        assert!(owns.upgrade().is_none());
    });
}

#[test]
fn its_pool_can_be_removed_then() {
    let own = builder("na+sm://").start().unwrap();
    let to = ProviderHandle::from(own.self_addr());
    let pool = own.layout().add_pool_from_json(r#"{ "name": "p" }"#).unwrap().pool;
    let json = r#"{ "name": "x", "scheduler": { "pools": ["p"] } }"#;
    for runs in [true, false] {
        if runs {
            own.layout().add_xstream_from_json(json).unwrap();
        }
        own.serve(FIRST).pool(&pool).function(|n| n).unwrap();
        if runs {
            assert_eq!(own.forward(FIRST, &to, &1).unwrap(), 1);
            let needed = own.layout().remove_xstream("x").unwrap_err().to_string();
            assert!(needed.contains("RPC `first`"), "{needed}");
        } else {
            let used = own.layout().remove_pool(&pool).unwrap_err().to_string();
            assert!(used.contains("RPC `first`"), "{used}");
        }
        assert!(own.deregister(FIRST, ProviderId::DEFAULT));
        if runs {
            own.layout().remove_xstream("x").unwrap();
        }
    }
    own.layout().remove_pool(&pool).unwrap();
    own.finalize_and_wait().unwrap();
}

/// Has callers stop, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn it_comes_and_goes_while_it_is_called() {
    const ROUNDS: usize = 200;
    on_each(|pair| {
        let service = pair.service.clone();
        let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        let run = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(answer) = ask(&pair, FIRST, ID) {
                            assert_eq!(answer, 1);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..ROUNDS {
                let provider = service.provider(ID, &service.layout().rpc_pool());
                let (enough, runs) = (answered.load(Ordering::Relaxed) + 2, run.clone());
                let counted = move |n| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    n
                };
                provider.serve(FIRST).function(counted).unwrap();
                let start = Instant::now();
                while answered.load(Ordering::Relaxed) < enough {
                    assert!(start.elapsed() < PATIENCE, "nobody is answered any more");
                    std::thread::yield_now();
                }
                assert!(provider.deregister(FIRST));
            }
        });
        assert_eq!(ask(&pair, FIRST, ID), None);
        assert_eq!(run.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
        pair.end();
        assert_eq!(Arc::strong_count(&run), 1, "no handler was kept");
    });
}

/// Registering holds the layout still, for which what is dropped with a handler must not wait.
#[test]
fn what_is_dropped_with_a_handler_may_register() {
    struct Registers(Instance, Arc<Semaphore>);
    impl Drop for Registers {
        fn drop(&mut self) {
            self.0.serve(SECOND).function(|n| n + 1).unwrap();
            self.1.release(1);
        }
    }
    on_each(|pair| {
        let (service, dropped) = (pair.service.clone(), Arc::new(Semaphore::new(0)));
        let at_drop = Registers(service.clone(), dropped.clone());
        let first = move |n| {
            let _kept = &at_drop;
            n
        };
        service.serve(FIRST).function(first).unwrap();
        bounded("deregistering", move || {
            assert!(service.deregister(FIRST, ProviderId::DEFAULT));
        });
        dropped.acquire_timeout(1, PATIENCE).expect("it is dropped").forget();
        assert_eq!(ask(&pair, SECOND, ProviderId::DEFAULT), Some(2));
        pair.end();
    });
}
