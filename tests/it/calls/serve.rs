//! The ways to serve an RPC: functions, methods of a provider's object, tasklets, one-way; errors
//! of the application beside those of the runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, bounded, builder, on_each};
use margo::{
    BulkError, CallError, ForwardError, Handle, OneWay, ProviderHandle, ProviderId, RespondError,
    Rpc, bulk_memory::BulkPoolError, bulk_memory::BulkPoolSpec,
};
use serde::{Deserialize, Serialize};
use ult::Eventual;

const DIVIDE: Rpc<(i64, i64), Result<i64, Divided>> = Rpc::new("divide");
const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const ADD: Rpc<u64, u64> = Rpc::new("add");
const TELL: OneWay<u64> = OneWay::new("tell");

#[derive(Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("division of {by} by zero")]
struct Divided {
    by: i64,
}

#[test]
fn a_function_answers_with_what_it_returns() {
    on_each(|pair| {
        pair.service.serve(SUM).function(|(a, b)| a + b).unwrap();
        assert_eq!(pair.client.forward(SUM, &pair.target(), &(40, 2)).unwrap(), 42);
        pair.end();
    });
}

#[test]
fn errors_of_the_application_are_told_from_those_of_the_runtime() {
    fn divide(call: &Handle<(i64, i64), Result<i64, Divided>>) -> Result<i64, Divided> {
        let (a, b) = *call.args();
        assert_ne!(a, 13, "unlucky");
        // With `?`, as anywhere else.
        let quotient = a.checked_div(b).ok_or(Divided { by: a })?;
        Ok(quotient)
    }
    on_each(|pair| {
        pair.service.serve(DIVIDE).returning(divide).unwrap();
        let target = pair.target();
        assert_eq!(pair.client.rpc(DIVIDE, &target, &(42, 6)).call().unwrap(), 7);
        let error = pair.client.rpc(DIVIDE, &target, &(42, 0)).call().unwrap_err();
        assert_eq!(error.to_string(), "division of 42 by zero");
        assert_eq!(error.service(), Some(Divided { by: 42 }));
        let error = pair.client.rpc(DIVIDE, &target, &(13, 1)).call().unwrap_err();
        let CallError::Forward(ForwardError::Panicked { detail, .. }) = &error else {
            panic!("{error}")
        };
        assert!(detail.contains("unlucky"), "{detail}");
        assert_eq!(error.service(), None);
        pair.end();
    });
}

#[test]
fn a_handler_that_returns_may_have_answered_before() {
    on_each(|pair| {
        let answered = Arc::new(Eventual::<()>::new());
        let after = Arc::new(Eventual::<u64>::new());
        let (go, done) = (answered.clone(), after.clone());
        let early = move |call: &Handle<u64, u64>| {
            call.respond(&1).unwrap();
            go.wait();
            done.set(*call.args()).unwrap();
            2
        };
        pair.service.serve(ADD).returning(early).unwrap();
        assert_eq!(pair.client.forward(ADD, &pair.target(), &40).unwrap(), 1);
        answered.set(()).unwrap();
        assert_eq!(*after.wait(), 40);
        pair.end();
    });
}

/// The methods are handlers.
struct Counter {
    sum: AtomicU64,
    dropped: Arc<Eventual<()>>,
    begun: Arc<Eventual<()>>,
    go: Arc<Eventual<()>>,
}

impl Counter {
    fn add(&self, call: &Handle<u64, u64>) -> u64 {
        self.sum.fetch_add(*call.args(), Ordering::SeqCst) + call.args()
    }

    fn hold(&self, handle: Handle<u64, u64>) {
        self.begun.set(()).unwrap();
        self.go.wait();
        handle.respond(&self.sum.load(Ordering::SeqCst)).unwrap();
    }

    fn tell(&self, handle: Handle<u64, margo::NoResponse>) {
        self.sum.fetch_add(*handle.args(), Ordering::SeqCst);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.dropped.set(()).unwrap();
    }
}

#[test]
fn methods_of_a_provider_keep_its_object_alive_and_end_with_it() {
    const HOLD: Rpc<u64, u64> = Rpc::new("hold");
    on_each(|pair| {
        let (dropped, begun, go) = (Arc::default(), Arc::default(), Arc::default());
        let sum = AtomicU64::new(1);
        let counter = Arc::new(Counter {
            sum,
            dropped: Arc::clone(&dropped),
            begun: Arc::clone(&begun),
            go: Arc::clone(&go),
        });
        let seen: Weak<Counter> = Arc::downgrade(&counter);
        let id = ProviderId::new(4);
        let provider = pair.service.provider_of(id, &pair.service.layout().rpc_pool(), counter);
        provider.serve(ADD).returning_method(Counter::add).unwrap();
        provider.serve(HOLD).method(Counter::hold).unwrap();
        provider.serve(TELL).method(Counter::tell).unwrap();
        provider.register(SUM, |handle| handle.respond(&0).unwrap()).unwrap();
        assert_eq!(provider.object().sum.load(Ordering::SeqCst), 1);
        let target = ProviderHandle::new(pair.target().addr().clone(), id);
        pair.client.send(TELL, &target, &20).unwrap();
        pair.client.forward(SUM, &target, &(0, 0)).unwrap();
        assert_eq!(pair.client.forward(ADD, &target, &21).unwrap(), 42);
        let (client, to) = (pair.client.clone(), target.clone());
        let call = std::thread::spawn(move || client.forward_timed(HOLD, &to, &0, PATIENCE));
        let begins = begun.clone();
        bounded("the handler begins", move || begins.wait_ready());
        drop(provider);
        for rpc in [ADD, HOLD] {
            let error = pair.client.forward(rpc, &target, &0).unwrap_err();
            assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
        }
        assert!(seen.upgrade().is_some() && !dropped.is_ready(), "dropped under its handler");
        go.set(()).unwrap();
        assert_eq!(call.join().unwrap().unwrap(), 42);
        bounded("the object is dropped", move || dropped.wait_ready());
        pair.end();
    });
}

#[test]
fn a_tasklet_runs_without_a_stack_and_cannot_wait() {
    const KIND: Rpc<bool, (bool, String)> = Rpc::new("kind");
    on_each(|pair| {
        pair.service.serve(SUM).function(|(a, b)| a + b).unwrap();
        let own = ProviderHandle::from(pair.service.self_addr());
        pair.service
            .serve(KIND)
            .tasklet()
            .returning(move |call| {
                let error = if *call.args() {
                    let error = call.instance().forward(SUM, &own, &(1, 2)).unwrap_err();
                    assert!(error.never_ran());
                    error.to_string()
                } else {
                    let mut buffer = call.instance().memory().bulk_buffer(8).unwrap();
                    let error = call.pull(&margo::Bulk::null(), 0, &mut buffer, 0..8).unwrap_err();
                    assert!(matches!(error, BulkError::Tasklet));
                    error.to_string()
                };
                (ult::is_tasklet(), error)
            })
            .unwrap();
        for wait in [true, false] {
            let (is_tasklet, error) = pair.client.forward(KIND, &pair.target(), &wait).unwrap();
            assert!(is_tasklet && error.contains("a tasklet cannot wait for"), "{error}");
        }
        let service = pair.service.clone();
        let unit = pair.service.layout().rpc_pool().tasklet().spawn(move || {
            let own = ProviderHandle::from(service.self_addr());
            service.send(TELL, &own, &1).unwrap_err().to_string()
        });
        assert!(unit.unwrap().join().unwrap().contains("a tasklet cannot wait for `tell`"));
        pair.end();
    });
}

/// Progress runs on the same execution stream: a wait would hold it up for ever.
#[test]
fn a_tasklet_does_not_wait_for_what_was_started() {
    const HELD: Rpc<(), ()> = Rpc::new("held");
    bounded("tasklets that try to wait", || {
        on_each(|pair| {
            let held = Arc::new(std::sync::Mutex::new(Vec::new()));
            let keep = held.clone();
            let hold = move |handle| keep.lock().unwrap().push(handle);
            pair.service.serve(HELD).handler(hold).unwrap();
            let own = ProviderHandle::from(pair.service.self_addr());
            let over = pair.service.rpc(ADD, &own, &1).start().unwrap();
            ult::wait_any(&[over.ready()], None);
            let service = pair.service.clone();
            let unit = pair.service.layout().rpc_pool().tasklet().spawn(move || {
                let error = over.wait().unwrap_err();
                assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
                let start = || service.rpc(HELD, &own, &()).start().unwrap();
                let mut errors = vec![start().wait().unwrap_err()];
                errors.push(start().wait_timeout(PATIENCE).unwrap().unwrap_err());
                let mut two = vec![start(), start()];
                // To look is not to wait.
                assert!(margo::wait_any_deadline(&mut two, Instant::now()).is_none());
                assert!(start().wait_timeout(Duration::ZERO).is_err());
                let (index, result) = margo::wait_any(&mut two).unwrap();
                assert_eq!((index, two.len()), (0, 1));
                errors.push(result.unwrap_err());
                errors.extend(margo::wait_all(two).into_iter().filter_map(Result::err));

                let error = service.memory().expose_ref(&[1], |_| panic!("called")).unwrap_err();
                assert!(matches!(error, BulkError::Tasklet));
                let pool =
                    service.memory().bulk_pool(&BulkPoolSpec::geometric(1, 1, 8, 1)).unwrap();
                let mut buffers = pool.get_up_to(1, 8).unwrap();
                let error = pool.get(8).unwrap_err();
                assert!(matches!(error, BulkPoolError::Tasklet { bytes: 8 }), "{error}");
                let (from, none) = (own.addr(), margo::Bulk::null());
                let chunk = |_, _: &mut [u8]| -> Result<(), BulkError> { panic!("called") };
                let error = service.bulk(from, &none).pull_chunks(0..8, &mut buffers, chunk);
                assert!(matches!(error, Err(BulkError::Tasklet)));
                let error = service.bulk(from, &none).push_chunks(0..8, &mut buffers, chunk);
                assert!(matches!(error, Err(BulkError::Tasklet)));
                assert_eq!(buffers.len(), 1);
                errors
            });
            let errors = unit.unwrap().join().unwrap();
            assert_eq!(errors.len(), 4);
            for error in errors {
                assert!(matches!(error, ForwardError::Tasklet { never_ran: false, .. }), "{error}");
                assert!(!error.never_ran());
            }
            held.lock().unwrap().clear();
            pair.end();
        });
    });
}

#[test]
fn a_one_way_rpc_has_no_response_at_either_end() {
    const WITH_RESPONSE: Rpc<u64, ()> = Rpc::new("tell");
    on_each(|pair| {
        let told = Arc::new(Eventual::new());
        let tell = told.clone();
        pair.service.serve(TELL).handler(move |handle| tell.set(*handle.args()).unwrap()).unwrap();
        let target = pair.target();
        pair.client.send(TELL, &target, &9).unwrap();
        let hears = told.clone();
        assert_eq!(bounded("it is told", move || *hears.wait()), 9);
        // Who waits for a response to it is told that there is none.
        let error = pair.client.forward_timed(WITH_RESPONSE, &target, &1, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("HG_OPNOTSUPPORTED"), "{error}");
        assert_eq!(told.wait(), &9);
        pair.end();
    });
}

#[test]
fn each_call_of_a_two_way_rpc_chooses_whether_it_wants_a_response() {
    const COUNT: Rpc<Vec<u8>, usize> = Rpc::new("count");
    for auto in [false, true] {
        on_each(|pair| {
            let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
            let (own, begun) = (seen.clone(), Arc::new(ult::Semaphore::new(0)));
            let runs = begun.clone();
            let note = move |handle: &Handle<Vec<u8>, usize>| {
                own.lock().unwrap().push((handle.wants_response(), handle.args().len()));
                runs.release(1);
                handle.args().len()
            };
            let serve = pair.service.serve(COUNT);
            if auto {
                serve.returning(note).unwrap();
            } else {
                let answer = move |handle: Handle<Vec<u8>, usize>| {
                    let len = note(&handle);
                    // As if somebody waited, once.
                    handle.respond(&len).unwrap();
                    let again = handle.respond(&len);
                    assert!(matches!(again, Err(RespondError::Answered { .. })), "{again:?}");
                };
                serve.handler(answer).unwrap();
            }
            let own = ProviderHandle::from(pair.service.self_addr());
            let mut expected = Vec::new();
            // Short and long, from a peer and from itself.
            for (n, len) in [5, 1 << 20, 7, 1 << 20].into_iter().enumerate() {
                let remote = (&pair.client, pair.target());
                let (caller, to) = if n < 2 { remote } else { (&pair.service, own.clone()) };
                let args = vec![1; len];
                caller.send(COUNT.without_response(), &to, &args).unwrap();
                let runs = begun.clone();
                bounded("it is handled", move || runs.acquire(1).forget());
                assert_eq!(caller.forward(COUNT, &to, &args).unwrap(), len);
                begun.acquire(1).forget();
                expected.extend([(false, len), (true, len)]);
            }
            assert_eq!(*seen.lock().unwrap(), expected);
            assert_eq!(pair.service.monitoring().stats().handlers_panicked, 0);
            pair.end();
        });
    }
}

#[test]
fn what_goes_wrong_without_a_response_is_seen_at_the_target_only() {
    const FAIL: Rpc<u64, u64> = Rpc::new("fail");
    const NOBODY: Rpc<u64, u64> = Rpc::new("nobody");
    const TEXT: Rpc<String, u64> = Rpc::new("fail");
    on_each(|pair| {
        pair.service.serve(FAIL).function(|_| panic!("on purpose")).unwrap();
        pair.service.serve(SUM).function(|(a, b)| a + b).unwrap();
        let target = pair.target();
        pair.client.send(FAIL.without_response(), &target, &1).unwrap();
        pair.client.send(NOBODY.without_response(), &target, &1).unwrap();
        // Fewer bytes than the arguments need.
        pair.client.send(TEXT.without_response(), &target, &String::new()).unwrap();
        assert_eq!(pair.client.forward(SUM, &target, &(1, 2)).unwrap(), 3);
        let service = pair.service.clone();
        bounded("both are counted", move || {
            while service.monitoring().stats().handlers_panicked
                + service.monitoring().stats().arguments_undecodable
                < 2
            {
                std::thread::yield_now();
            }
        });
        let stats = pair.service.monitoring().stats();
        assert_eq!((stats.handlers_panicked, stats.requests_received), (1, 4));
        pair.end();
    });
}

#[test]
fn long_arguments_of_a_one_way_rpc_arrive() {
    const LONG: OneWay<Vec<u8>> = OneWay::new("long");
    on_each(|pair| {
        let told = Arc::new(Eventual::new());
        let tell = told.clone();
        let sum = |args: &Vec<u8>| args.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        pair.service
            .serve(LONG)
            .handler(move |handle| tell.set(sum(handle.args())).unwrap())
            .unwrap();
        pair.client.send(LONG, &pair.target(), &vec![3; 1 << 20]).unwrap();
        assert_eq!(bounded("it is told", move || *told.wait()), 3 << 20);
        pair.end();
    });
}

#[test]
fn a_clone_of_the_instance_is_not_needed_to_serve() {
    let service = builder("na+sm://").start().unwrap();
    service.serve(SUM).function(|(a, b)| a * b).unwrap();
    let error = service.serve(SUM).function(|(a, b)| a + b).unwrap_err().to_string();
    assert!(error.contains("already registered"), "{error}");
    let own = ProviderHandle::from(service.self_addr());
    assert_eq!(service.forward(SUM, &own, &(6, 7)).unwrap(), 42);
    service.finalize_and_wait().unwrap();
}
