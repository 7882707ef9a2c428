//! Providers that are closed: when nothing of them runs any more, and not before.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{self, PATIENCE, Pair, builder, on_each};
use margo::ult::Semaphore;
use margo::{
    ForwardError, ForwardRequest, Handle, Instance, Provider, ProviderHandle, ProviderId, Rpc,
};

const HOLD: Rpc<u64, u64> = Rpc::new("hold");
const PING: Rpc<u64, u64> = Rpc::new("ping");
const LEAVE: Rpc<u64, u64> = Rpc::new("leave");
const ID: ProviderId = ProviderId::new(7);

/// The object of the handlers: permits for those that have begun, and for those that may go on.
#[derive(Debug)]
struct Object {
    begun: Semaphore,
    go: Semaphore,
}

impl Object {
    fn hold(&self, handle: &Handle<u64, u64>) -> u64 {
        self.begun.release(1);
        self.go.acquire(1).forget();
        *handle.args()
    }
}

fn provider(service: &Instance) -> Provider<Object> {
    let object = Object { begun: Semaphore::new(0), go: Semaphore::new(0) };
    let provider = service.provider_of(ID, &service.layout().rpc_pool(), object);
    provider.serve(HOLD).returning_method(Object::hold).unwrap();
    provider
}

fn target(pair: &Pair) -> ProviderHandle {
    ProviderHandle::new(pair.target().addr().clone(), ID)
}

/// Calls whose handlers have begun.
fn held(pair: &Pair, object: &Object, count: usize) -> Vec<ForwardRequest<u64>> {
    let call = |n| pair.client.rpc(HOLD, &target(pair), &n).start().unwrap();
    let calls = (0..count as u64).map(call).collect();
    object.begun.acquire_timeout(count, PATIENCE).expect("the handlers begin").forget();
    calls
}

fn all_answered(calls: Vec<ForwardRequest<u64>>) {
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), n as u64);
    }
}

#[test]
fn a_provider_without_requests_is_closed_at_once() {
    let service = builder("na+sm://").start().unwrap();
    let object = provider(&service).close(Duration::ZERO).unwrap();
    assert!(Arc::into_inner(object).is_some(), "nobody else has the object");
    let to = ProviderHandle::new(service.self_addr(), ID);
    let error = service.forward_timed(HOLD, &to, &1, PATIENCE).unwrap_err();
    assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
    service.finalize_and_wait().unwrap();
}

#[test]
fn it_is_closed_when_its_last_handler_has_ended() {
    on_each(|pair| {
        let provider = provider(&pair.service);
        provider.serve(PING).function(|n| n).unwrap();
        let object = provider.object().clone();
        let calls = held(&pair, &object, 2);
        let (sender, closed) = mpsc::channel();
        let closes = std::thread::spawn(move || {
            let object = provider.close(PATIENCE).unwrap();
            sender.send(Arc::strong_count(&object)).unwrap();
        });
        while pair.client.forward_timed(PING, &target(&pair), &1, PATIENCE).is_ok() {}
        object.go.release(1);
        assert!(closed.try_recv().is_err(), "closed under its handler");
        object.go.release(1);
        all_answered(calls);
        assert_eq!(closed.recv_timeout(PATIENCE).unwrap(), 2, "handlers have none any more");
        closes.join().unwrap();
        pair.end();
    });
}

/// The error also counts handlers that were registered in another pool when their requests came.
#[test]
fn the_error_says_how_many_are_left_and_has_the_provider() {
    some_are_left(Pair::of_shards("na+sm://", 3));
    on_each(some_are_left);
}

fn some_are_left(pair: Pair) {
    let provider = provider(&pair.service);
    let object = provider.object().clone();
    let mut calls = held(&pair, &object, 2);
    let pool = pair.service.layout().add_pool_from_json(r#"{ "name": "p" }"#).unwrap().pool;
    let xstream = r#"{ "name": "x", "scheduler": { "pools": ["p"] } }"#;
    pair.service.layout().add_xstream_from_json(xstream).unwrap();
    provider.set_pool(&pool).unwrap();
    calls.push(pair.client.rpc(HOLD, &target(&pair), &2).start().unwrap());
    object.begun.acquire_timeout(1, PATIENCE).expect("in the other pool").forget();

    let error = provider.close(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.requests(), 3);
    let text = error.to_string();
    assert!(text.starts_with("3 requests of provider 7 are still in hand after 1ms"), "{text}");
    let provider = error.into_provider();
    object.go.release(3);
    all_answered(calls);
    assert!(Arc::ptr_eq(&provider.close(PATIENCE).unwrap(), &object));
    pair.end();
}

#[test]
fn a_request_that_was_left_to_others_is_waited_for() {
    on_each(|pair| {
        let (keep, kept) = mpsc::channel();
        let provider = pair.service.provider(ID, &pair.service.layout().rpc_pool());
        provider.register(LEAVE, move |handle| keep.send(handle).unwrap()).unwrap();
        let call = pair.client.rpc(LEAVE, &target(&pair), &5).start().unwrap();
        let handle = kept.recv_timeout(PATIENCE).unwrap();
        let error = provider.close(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.requests(), 1);
        handle.respond(&6).unwrap();
        assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), 6);
        error.into_provider().close(PATIENCE).unwrap();
        assert!(kept.recv().is_err(), "the handler was dropped, with what it owns");
        pair.end();
    });
}

/// It waits for itself; a tasklet would hold up what it waits for.
#[test]
fn who_must_not_wait_does_not() {
    let service = builder("na+sm://").start().unwrap();
    let to = ProviderHandle::new(service.self_addr(), ID);
    for (tasklet, limit) in [(false, Duration::ZERO), (true, PATIENCE)] {
        let provider = service.provider(ID, &service.layout().rpc_pool());
        let place = Arc::new(Mutex::new(None));
        let own = place.clone();
        let close = move |_| {
            let provider: Provider = own.lock().unwrap().take().unwrap();
            provider.close(limit).unwrap_err().requests() as u64
        };
        let serve = provider.serve(HOLD);
        let serve = if tasklet { serve.tasklet() } else { serve };
        serve.function(close).unwrap();
        *place.lock().unwrap() = Some(provider);
        assert_eq!(service.forward_timed(HOLD, &to, &1, PATIENCE).unwrap(), 1);
    }
    service.finalize_and_wait().unwrap();
}

/// The execution stream would stand still, and the handler with it.
#[test]
fn a_destructor_of_a_ult_that_unwinds_does_not_wait() {
    struct Closes(Option<Provider>, Arc<Mutex<Option<usize>>>);
    impl Drop for Closes {
        fn drop(&mut self) {
            let provider = self.0.take().unwrap();
            let error = provider.close(PATIENCE * 10).unwrap_err();
            *self.1.lock().unwrap() = Some(error.requests());
        }
    }
    common::bounded("it is closed without waiting", || {
        let service = builder("na+sm://").start().unwrap();
        let to = ProviderHandle::new(service.self_addr(), ID);
        let provider = service.provider(ID, &service.layout().rpc_pool());
        let (place, seen) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
        let (own, told) = (place.clone(), seen.clone());
        let unwind = move |_| -> u64 {
            let _closes = Closes(own.lock().unwrap().take(), told.clone());
            panic!("as asked")
        };
        provider.serve(HOLD).function(unwind).unwrap();
        *place.lock().unwrap() = Some(provider);
        service.forward_timed(HOLD, &to, &1, PATIENCE).unwrap_err();
        assert_eq!(*seen.lock().unwrap(), Some(1), "the handler itself");
        service.finalize_and_wait().unwrap();
    });
}
