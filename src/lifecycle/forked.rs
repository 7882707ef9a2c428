//! The use that a child process that was forked off can make of its copy of an instance while locks
//! are held that no thread there lets go of. `tests/forks.rs` has the rest.

use std::sync::mpsc;
use std::time::Duration;

use hg::HgError;
use na::conformance::in_forked_child;

use crate::cancel::CancelReason;
use crate::{
    Access, BulkError, BulkPoolError, BulkPoolSpec, ElasticityError, ForwardError, Handle,
    Instance, ProviderHandle, ProviderId, RegisterError, RespondError, ReturnCode, Rpc,
};

const KEEP: Rpc<(), u32> = Rpc::new("keep");
const OTHER: Rpc<(), ()> = Rpc::new("other");

/// Far beyond what a loaded machine needs; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

fn check(holds: bool, code: i32) -> Result<(), i32> {
    if holds { Ok(()) } else { Err(code) }
}

/// The layout, and whatever is looked up in it.
fn use_layout(service: &Instance) -> Result<(), i32> {
    let refused = |result: Result<(), RegisterError>| {
        result.is_err_and(|error| matches!(error, RegisterError::Forked))
    };
    check(refused(service.register(OTHER, |_| ())), 1)?;
    let pool = service.layout().rpc_pool();
    check(refused(service.layout().set_handler_pool(KEEP, ProviderId::DEFAULT, &pool)), 2)?;
    check(refused(service.network().register_identity(ProviderId::new(9), "nine")), 3)?;
    check(!service.network().deregister_identity(ProviderId::new(9)), 4)?;
    let provider = service.provider(ProviderId::new(8), &pool);
    check(refused(provider.register(OTHER, |_| ())), 5)?;
    drop(provider);
    let forked = |result: Result<(), ElasticityError>| {
        result.is_err_and(|error| matches!(error, ElasticityError::Forked))
    };
    check(forked(service.layout().find_pool(0).map(drop)), 6)?;
    check(forked(service.layout().find_xstream(0).map(drop)), 7)?;
    check(forked(service.layout().hold_pool(&pool, "a test").map(drop)), 8)?;
    check(forked(service.layout().hold_xstream(0, "a test").map(drop)), 9)?;
    check(forked(service.layout().add_pool_from_json("{}").map(drop)), 10)?;
    check(
        service.layout().pool("__primary__").is_none() && service.layout().xstreams().is_empty(),
        11,
    )?;
    check(
        service.layout().pools() == [pool.clone()] && service.layout().progress_pool() == pool,
        12,
    )?;
    check(service.layout().progress_pools().eq([pool.clone()]), 13)?;
    check(service.config().argobots.pools.len() == 1, 14)?;
    check(service.layout().handler_pool(KEEP, ProviderId::DEFAULT).is_none(), 15)?;
    check(service.monitoring().load(&pool).is_none(), 16)?;
    check(service.monitoring().rpc_load(KEEP, ProviderId::DEFAULT).is_none(), 17)?;
    check(!service.deregister(KEEP, ProviderId::DEFAULT), 18)
}

/// A request that was in hand at the fork.
fn use_request(handle: Handle<(), u32>) -> Result<(), i32> {
    let forked = |result: Result<(), RespondError>| {
        result.is_err_and(|error| {
            matches!(error, RespondError::Network { source: HgError::Forked, .. })
        })
    };
    check(forked(handle.respond(&1)), 31)?;
    check(forked(handle.respond_timed(&1, PATIENCE)), 32)?;
    check(forked(handle.irespond(&1).map(drop)), 33)?;
    check(forked(handle.crespond(&1, |_| ()).map(drop)), 34)?;
    check(forked(handle.fail("in a child")), 35)?;
    check(handle.cancel_token().reason() == Some(CancelReason::Forked), 36)?;
    check(handle.is_canceled(), 37)?;
    check(forked(handle.fail_with(ReturnCode::Busy, "")), 38)?;
    drop(handle);
    Ok(())
}

/// The network and memory.
fn use_network(service: &Instance, target: &ProviderHandle) -> Result<(), i32> {
    let forwarded = service.forward(KEEP, target, &());
    let is_it = |error: ForwardError| {
        error.never_ran() && matches!(error, ForwardError::Network { source: HgError::Forked, .. })
    };
    check(forwarded.is_err_and(is_it), 51)?;
    check(service.lookup("na+sm://nobody").is_err_and(|e| e.to_string().contains("forked")), 52)?;
    let refused = |result: Result<(), BulkError>| {
        result.is_err_and(|error| matches!(error, BulkError::Register(HgError::Forked)))
    };
    check(refused(service.expose(vec![1], Access::ReadOnly).map(drop)), 53)?;
    check(refused(service.memory().expose_ref(&[1], |_| ())), 54)?;
    check(refused(service.memory().expose_mut(&mut [1], |_| ())), 55)?;
    check(refused(service.memory().bulk_buffer(1).map(drop)), 56)
}

#[test]
fn in_a_child_nothing_waits_for_locks_that_are_held() {
    let service = Instance::builder("na+sm://").start().unwrap();
    let (sender, requests) = mpsc::channel();
    service.register(KEEP, move |handle| sender.send(handle).unwrap()).unwrap();
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let call = client.rpc(KEEP, &target, &()).timeout(PATIENCE).start().unwrap();
    let mut handle: Option<Handle<(), u32>> = Some(requests.recv_timeout(PATIENCE).unwrap());
    let provider = service.provider(ProviderId::new(7), &service.layout().rpc_pool());
    provider.register(OTHER, |_| ()).unwrap();
    let holds = (
        service.layout().hold_pool(0, "a test").unwrap(),
        service.layout().hold_xstream(0, "it").unwrap(),
    );
    let pool = service.memory().bulk_pool(&BulkPoolSpec::new().class(100, 2)).unwrap();
    let buffer = pool.get(100).unwrap();
    let mut of_child = Some((provider, holds, buffer));
    let own = ProviderHandle::from(service.self_addr());
    let (inner, inner_of_client) = (service.inner(), client.inner());
    let code = inner.elastic.while_locked(|| {
        inner.core.while_locked(|| {
            inner_of_client.core.while_locked(|| {
                pool.while_locked(|| {
                    in_forked_child(&mut || {
                        use_layout(&service)?;
                        use_request(handle.take().ok_or(30)?)?;
                        use_network(&service, &own)?;
                        use_network(&client, &target)?;
                        let forked = |error: BulkPoolError| matches!(error, BulkPoolError::Forked);
                        check(pool.get(100).is_err_and(forked), 71)?;
                        pool.close();
                        drop(of_child.take());
                        drop((service.clone(), client.clone()));
                        Ok(())
                    })
                })
            })
        })
    });
    assert_eq!(code, 0, "the step that failed");
    // Nothing of it was the parent's.
    handle.take().unwrap().respond(&5).unwrap();
    assert_eq!(call.wait().unwrap(), 5);
    let seventh = ProviderHandle::new(target.addr().clone(), ProviderId::new(7));
    assert!(service.layout().handler_pool(OTHER, seventh.id()).is_some());
    drop(of_child);
    assert_eq!(pool.stats()[0].free, 2);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
