//! Providers that move to another pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{self, PATIENCE, Pair, builder, on_each};
use margo::ult::{self, Semaphore};
use margo::{Instance, Pool, Priority, ProviderHandle, ProviderId, RegisterError, Rpc};

/// Answers where its handler runs.
const WHERE: Rpc<u64, String> = Rpc::new("where");
const AS_WELL: Rpc<u64, String> = Rpc::new("as_well");
const ID: ProviderId = ProviderId::new(7);

/// A pool with an xstream of its own, both of that name.
fn add(service: &Instance, name: &str, kind: &str) -> Pool {
    let pool = format!(r#"{{ "name": "{name}", "kind": "{kind}" }}"#);
    let pool = service.layout().add_pool_from_json(&pool).unwrap().pool;
    let xstream = format!(r#"{{ "name": "{name}", "scheduler": {{ "pools": ["{name}"] }} }}"#);
    service.layout().add_xstream_from_json(&xstream).unwrap();
    pool
}

fn remove(service: &Instance, pool: &Pool) {
    service.layout().remove_xstream(pool.name()).unwrap();
    service.layout().remove_pool(pool).unwrap();
}

fn here(_: u64) -> String {
    ult::current().unwrap().pool.to_string()
}

fn target(pair: &Pair) -> ProviderHandle {
    ProviderHandle::new(pair.target().addr().clone(), ID)
}

/// Has callers stop, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_provider_moves_under_load_and_its_first_pool_is_removed() {
    on_each(|pair| {
        let (service, to) = (&pair.service, target(&pair));
        let mut pool = add(service, "p0", "fifo_wait");
        let provider = service.provider(ID, &pool);
        provider.serve(WHERE).function(here).unwrap();
        provider.set_identity("test").unwrap();
        let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        pair.client.forward_timed(WHERE, &to, &1, PATIENCE).unwrap();
                        pair.client.network().check_identity_timed(&to, "test", PATIENCE).unwrap();
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let some_more = || {
                let enough = answered.load(Ordering::Relaxed) + 20;
                let start = std::time::Instant::now();
                while answered.load(Ordering::Relaxed) < enough {
                    assert!(start.elapsed() < common::PATIENCE, "nobody is answered any more");
                    std::thread::yield_now();
                }
            };
            for round in 1..=5 {
                some_more();
                let next = add(service, &format!("p{round}"), "fifo_wait");
                provider.set_pool(&next).unwrap();
                assert_eq!(provider.pool(), next);
                some_more();
                remove(service, &pool);
                provider.serve(AS_WELL).function(here).unwrap();
                for rpc in [WHERE, AS_WELL] {
                    let place = pair.client.forward_timed(rpc, &to, &1, PATIENCE).unwrap();
                    assert_eq!(place, next.name());
                }
                assert!(provider.deregister(AS_WELL));
                pool = next;
            }
        });
        drop(provider);
        pair.end();
    });
}

#[test]
fn where_one_rpc_cannot_run_none_goes() {
    let service = builder("na+sm://").start().unwrap();
    let (from, to) = (add(&service, "from", "prio_wait"), add(&service, "to", "fifo_wait"));
    let provider = service.provider(ID, &from);
    provider.serve(WHERE).function(here).unwrap();
    provider.serve(AS_WELL).priority(Priority::High).function(here).unwrap();
    let error = provider.set_pool(&to).unwrap_err();
    let is_it = matches!(error, RegisterError::NoPriorities { rpc: "as_well", .. });
    assert!(is_it, "{error}");
    assert_eq!(provider.pool(), from);
    let pools = [WHERE, AS_WELL].map(|rpc| service.layout().handler_pool(rpc, ID).unwrap());
    assert_eq!(pools, [from.clone(), from.clone()]);
    assert!(service.layout().pool_users(&from).unwrap().contains(&"provider 7".to_owned()));
    remove(&service, &to);
    let error = provider.set_pool(&to).unwrap_err();
    assert!(matches!(error, RegisterError::PoolRemoved { rpc: "where", .. }), "{error}");
    assert!(provider.deregister(AS_WELL));
    let to = add(&service, "to", "fifo_wait");
    provider.set_pool(&to).unwrap();
    remove(&service, &from);
    service.finalize_and_wait().unwrap();
}

/// A provider without an RPC to move is still bound to its pool, because RPCs that it registers
/// later are to run there.
#[test]
fn a_provider_of_which_nothing_moves_is_refused_as_one_with_rpcs_is() {
    let service = builder("na+sm://").start().unwrap();
    let other = builder("na+sm://").start().unwrap();
    let [from, own, gone] = ["from", "own", "gone"].map(|name| add(&service, name, "fifo_wait"));
    remove(&service, &gone);
    let provider = service.provider(ID, &from);
    for rpc in ["(none)", "where"] {
        let removed = provider.set_pool(&gone).unwrap_err();
        let is_it = matches!(&removed, RegisterError::PoolRemoved { rpc: one, .. } if *one == rpc);
        assert!(is_it, "{removed}");
        let foreign = provider.set_pool(&other.layout().rpc_pool()).unwrap_err();
        assert!(matches!(foreign, RegisterError::OtherRuntime { .. }), "{foreign}");
        assert_eq!(provider.pool(), from);
        assert!(service.layout().pool_users(&from).unwrap().contains(&"provider 7".to_owned()));
        // The other time it has one, which stays where it is.
        if rpc == "(none)" {
            provider.serve(WHERE).pool(&own).function(here).unwrap();
        }
    }
    provider.set_pool(&own).unwrap();
    remove(&service, &from);
    other.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn rpcs_with_a_pool_of_their_own_stay_and_those_to_come_do_not() {
    let service = builder("na+sm://").start().unwrap();
    let [first, own, second] =
        ["first", "own", "second"].map(|name| add(&service, name, "fifo_wait"));
    let provider = service.provider(ID, &first);
    provider.serve(WHERE).pool(&own).function(here).unwrap();
    let to_come = provider.serve(AS_WELL);
    provider.set_pool(&second).unwrap();
    // Described before and registered after the move.
    to_come.function(here).unwrap();
    remove(&service, &first);
    let pools = [WHERE, AS_WELL].map(|rpc| service.layout().handler_pool(rpc, ID).unwrap());
    assert_eq!(pools, [own.clone(), second.clone()]);
    // One by one, and the provider at last.
    for rpc in [WHERE, AS_WELL] {
        service.layout().set_handler_pool(rpc, ID, &own).unwrap();
    }
    provider.set_pool(&own).unwrap();
    remove(&service, &second);
    service.finalize_and_wait().unwrap();
}

/// Also in a pool that no xstream runs, where nothing would ever be dropped.
#[test]
fn nothing_is_left_in_a_pool_that_a_provider_has_left() {
    let service = builder("na+sm://").start().unwrap();
    let pool = service.layout().add_pool_from_json(r#"{ "name": "unserved" }"#).unwrap().pool;
    let provider = service.provider(ID, &pool);
    provider.serve(WHERE).function(here).unwrap();
    service.serve(WHERE).pool(&pool).function(here).unwrap();
    provider.set_pool(&service.layout().rpc_pool()).unwrap();
    service
        .layout()
        .set_handler_pool(WHERE, ProviderId::DEFAULT, &service.layout().rpc_pool())
        .unwrap();
    service.layout().remove_pool(&pool).unwrap();
    service.finalize_and_wait().unwrap();
}

/// The handler has begun; what it does then needs the layout.
#[test]
fn a_handler_moves_its_own_provider() {
    let service = builder("na+sm://").start().unwrap();
    let (from, to) = (add(&service, "from", "fifo_wait"), add(&service, "to", "fifo_wait"));
    let provider = Arc::new(service.provider(ID, &from));
    let (own, next, done) = (Arc::downgrade(&provider), to.clone(), Arc::new(Semaphore::new(0)));
    let tells = done.clone();
    let moves = move |number| {
        own.upgrade().unwrap().set_pool(&next).unwrap();
        tells.release(1);
        here(number)
    };
    provider.serve(WHERE).function(moves).unwrap();
    let target = ProviderHandle::new(service.self_addr(), ID);
    for place in ["from", "to"] {
        let answer = service.forward_timed(WHERE, &target, &1, PATIENCE).unwrap();
        assert_eq!(answer, place);
    }
    done.acquire_timeout(2, PATIENCE).expect("both have moved it").forget();
    remove(&service, &from);
    drop(provider);
    service.finalize_and_wait().unwrap();
}
