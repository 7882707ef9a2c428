//! Parents of calls: requests tell which handler they come from.

use std::time::Duration;

use crate::common::{Pair, bounded, on_each};
use margo::hg::RpcId;
use margo::{Handle, Instance, Pool, ProviderHandle, ProviderId, Rpc};

/// Answers with its parent.
const WHO: Rpc<(), Option<u64>> = Rpc::new("who");
/// Calls [`WHO`] from its own ULT, or from what it spawns, in so many ways.
const RELAY: Rpc<(), Vec<Option<u64>>> = Rpc::new("relay");

fn who(instance: &Instance, target: &ProviderHandle) -> Option<u64> {
    instance.forward(WHO, target, &()).unwrap()
}

/// Calls from a ULT, a tasklet and a delayed ULT, two generations deep, and with others in between.
fn everywhere(instance: &Instance, pool: &Pool, target: &ProviderHandle) -> Vec<Option<u64>> {
    let call = || {
        let (instance, target) = (instance.clone(), target.clone());
        move || who(&instance, &target)
    };
    let (inner_pool, inner) = (pool.clone(), call());
    let nested = move || inner_pool.spawn(inner).unwrap().join().unwrap();
    let request = {
        let (instance, target) = (instance.clone(), target.clone());
        // Started in a tasklet, which cannot wait.
        move || instance.rpc(WHO, &target, &()).start().unwrap()
    };
    let (sender, receiver) = ult::channel::unbounded();
    let own = instance.clone();
    let (caller, to) = (instance.clone(), target.clone());
    let again = move |_| sender.send(own.forward(WHO, &to, &()).unwrap()).unwrap();
    caller.rpc(WHO, target, &()).call_back(again).unwrap();
    vec![
        call()(),
        pool.spawn(call()).unwrap().join().unwrap(),
        pool.spawn(nested).unwrap().join().unwrap(),
        pool.spawn_after(Duration::from_millis(1), call()).unwrap().join().unwrap(),
        pool.tasklet().spawn(request).unwrap().join().unwrap().wait().unwrap(),
        ult::block_on(instance.rpc(WHO, target, &()).start().unwrap()).unwrap(),
        receiver.recv().unwrap(),
    ]
}

fn serve(service: &Instance) {
    let answer = |handle: Handle<(), Option<u64>>| {
        let parent = handle.parent().map(|id| id.0);
        handle.respond(&parent).unwrap();
    };
    service.register(WHO, answer).unwrap();
    let pool = service.layout().rpc_pool();
    let relay = move |handle: Handle<(), Vec<Option<u64>>>| {
        let instance = handle.instance().clone();
        assert_eq!(handle.parent(), None);
        assert_eq!(margo::monitor::current_rpc_id(), Some(RELAY.id(handle.provider_id())));
        let target = ProviderHandle::from(instance.self_addr());
        handle.respond(&everywhere(&instance, &pool, &target)).unwrap();
    };
    service.register(RELAY, relay.clone()).unwrap();
    let provider = service.provider(ProviderId::new(7), &service.layout().rpc_pool());
    provider.register(RELAY, relay).unwrap();
    // Until the service ends.
    std::mem::forget(provider);
}

fn with_service(body: impl Fn(&Pair, &ProviderHandle) + Send + Sync + 'static) {
    bounded("calls that have parents", move || {
        on_each(|pair| {
            serve(&pair.service);
            let target = pair.target();
            body(&pair, &target);
            pair.end();
        });
    });
}

#[test]
fn calls_outside_of_handlers_have_no_parent() {
    with_service(|pair, target| {
        assert_eq!(who(&pair.client, target), None);
        let all = everywhere(&pair.client, &pair.client.layout().rpc_pool(), target);
        assert!(all.iter().all(Option::is_none), "{all:?}");
    });
}

#[test]
fn calls_of_a_handler_and_of_what_it_spawns_have_it_as_their_parent() {
    with_service(|pair, target| {
        for provider in [ProviderId::DEFAULT, ProviderId::new(7)] {
            let to = ProviderHandle::new(target.addr().clone(), provider);
            // Twice: ULTs are reused, and nothing is left in them.
            for _ in 0..2 {
                let all = pair.client.forward(RELAY, &to, &()).unwrap();
                let expected = RELAY.id(provider).0;
                assert_eq!(all.len(), 7);
                assert!(all.iter().all(|id| *id == Some(expected)), "{all:?}");
                assert_eq!(who(&pair.client, target), None);
            }
        }
    });
}

#[test]
fn a_ult_or_thread_can_say_on_whose_behalf_it_runs() {
    with_service(|pair, target| {
        let id = RpcId::margo("elsewhere", ProviderId::new(1));
        let (client, to) = (pair.client.clone(), target.clone());
        let call = move || {
            margo::monitor::set_current_rpc_id(Some(id));
            let told = who(&client, &to);
            margo::monitor::set_current_rpc_id(None);
            (told, who(&client, &to), margo::monitor::current_rpc_id())
        };
        let expected = (Some(id.0), None, None);
        assert_eq!(std::thread::spawn(call.clone()).join().unwrap(), expected);
        assert_eq!(pair.client.layout().rpc_pool().spawn(call).unwrap().join().unwrap(), expected);
        assert_eq!(margo::monitor::current_rpc_id(), None, "of this thread");
    });
}
