//! Deadlines that travel with a call, and cancels that reach its handler.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{PATIENCE, Pair, TRANSPORTS, bounded, builder, on_each_with_extensions};
use margo::hg::{
    Core, ForwardOptions, HgError, HgOptions, RequestHandle, Response, Sink, margo as prefix, proc,
};
use margo::{
    Access, Bulk, BulkError, CallError, ForwardError, Handle, Instance, OneWay, ProviderHandle,
    Rpc, cancel::CancelReason, cancel::CancelToken, errors::IdentityError,
    errors::ShutdownRemoteError,
};
use ult::{Eventual, Semaphore, channel};

const HOLD: Rpc<u32, u32> = Rpc::new("hold");
const LEFT: Rpc<(), Option<Duration>> = Rpc::new("left");
const START: Rpc<String, ()> = Rpc::new("start");

/// Short beside `PATIENCE`; what it ends would not end by itself.
const SOON: Duration = Duration::from_millis(50);

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// Handlers of `HOLD` hand out their token and their handle.
fn hold(service: &Instance) -> channel::Receiver<(CancelToken, Handle<u32, u32>)> {
    let (sender, receiver) = channel::unbounded();
    service
        .register(HOLD, move |handle| {
            let token = handle.cancel_token();
            sender.send((token, handle)).unwrap();
        })
        .unwrap();
    receiver
}

fn next<T: Send + 'static>(receiver: &channel::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).unwrap()
}

fn reason_of(token: &CancelToken) -> CancelReason {
    token.wait_timeout(PATIENCE).unwrap()
}

/// Calls `HOLD` with a short limit until a handler has begun in time, which `begun` tells: on a
/// loaded machine the time may be over before that.
fn call_until_deadline(pair: &Pair, begun: impl Fn() -> bool) {
    // Connects: a request whose time is over before there is a connection is not sent.
    let unknown = pair.client.forward(Rpc::<(), ()>::new("unknown"), &pair.target(), &());
    assert!(matches!(unknown, Err(ForwardError::NotRegistered { .. })), "{unknown:?}");
    for calls in 1.. {
        match pair.client.forward_timed(HOLD, &pair.target(), &1, SOON) {
            Err(ForwardError::TimedOut { .. }) => {}
            // A handler that ends at its deadline, with an answer or without, may do so before its
            // origin's timer fires.
            Ok(_) | Err(ForwardError::Failed { .. }) if begun() => {}
            other => panic!("{other:?}"),
        }
        until("it is handled or dropped", || {
            begun() || pair.service.monitoring().stats().requests_abandoned == calls
        });
        if begun() {
            return;
        }
    }
}

#[test]
fn a_handler_knows_the_time_that_is_left() {
    on_each_with_extensions(|pair| {
        let left = |handle: &Handle<(), Option<Duration>>| {
            assert_eq!(handle.deadline().is_some(), handle.remaining().is_some());
            assert!(!handle.is_canceled());
            handle.remaining()
        };
        pair.service.serve(LEFT).returning(left).unwrap();
        let own = ProviderHandle::from(pair.service.self_addr());
        for (from, to) in [(&pair.client, &pair.target()), (&pair.service, &own)] {
            assert_eq!(from.forward(LEFT, to, &()).unwrap(), None);
            let left = from.forward_timed(LEFT, to, &(), PATIENCE).unwrap().unwrap();
            assert!(left <= PATIENCE && left > Duration::ZERO, "{left:?}");
            assert_eq!(from.forward_timed(LEFT, to, &(), Duration::MAX).unwrap(), None);
        }
        pair.end();
    });
}

#[test]
fn a_deadline_fires_the_token() {
    on_each_with_extensions(|pair| {
        let held = hold(&pair.service);
        call_until_deadline(&pair, || !held.is_empty());
        let (token, handle) = next(&held);
        assert_eq!(reason_of(&token), CancelReason::DeadlinePassed);
        assert!(handle.is_canceled());
        assert_eq!(handle.remaining(), Some(Duration::ZERO));
        // It may answer all the same.
        handle.respond(&1).unwrap();
        pair.end();
    });
}

#[test]
fn a_handler_that_never_waits_sees_its_deadline_too() {
    on_each_with_extensions(|pair| {
        let rounds = |handle: &Handle<u32, u32>| {
            // Nobody else runs on this xstream, no timer either.
            let start = Instant::now();
            while !handle.is_canceled() && start.elapsed() < PATIENCE {}
            u32::from(handle.is_canceled())
        };
        let done = Arc::new(Eventual::new());
        let tell = done.clone();
        pair.service
            .serve(HOLD)
            .returning(move |handle| {
                let seen = rounds(handle);
                tell.set(seen).unwrap();
                seen
            })
            .unwrap();
        call_until_deadline(&pair, || done.is_ready());
        assert_eq!(done.wait(), &1);
        pair.end();
    });
}

#[test]
fn a_token_can_be_selected_on_and_has_an_end_with_its_request() {
    on_each_with_extensions(|pair| {
        let chosen = Arc::new(Eventual::new());
        let tell = chosen.clone();
        let work = Arc::new(Eventual::<()>::new());
        let never = work.clone();
        pair.service
            .register(HOLD, move |handle| {
                let token = handle.cancel_token();
                let first = ult::wait_any(&[&*never, token.event()], None);
                tell.set((first, token.reason())).unwrap();
            })
            .unwrap();
        call_until_deadline(&pair, || chosen.is_ready());
        assert_eq!(*chosen.wait(), (Some(1), Some(CancelReason::DeadlinePassed)));
        pair.end();
    });
}

/// A service whose only xstream for handlers is kept busy by a first one.
fn blocked() -> (Instance, Arc<Semaphore>, Arc<Eventual<()>>, Arc<AtomicUsize>) {
    let service = builder("na+sm://").use_progress_thread(true).start().unwrap();
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Eventual::<()>::new()));
    let ran = Arc::new(AtomicUsize::new(0));
    let (has_begun, may_go, counted) = (begun.clone(), go.clone(), ran.clone());
    service
        .serve(HOLD)
        .function(move |n| {
            counted.fetch_add(1, Ordering::SeqCst);
            has_begun.release(1);
            if n == 0 {
                // Holds the xstream, so that the next ones cannot start.
                until("it may go on", || may_go.is_ready());
            }
            n
        })
        .unwrap();
    (service, begun, go, ran)
}

#[test]
fn work_that_nobody_waits_for_is_not_started() {
    let (service, begun, go, ran) = blocked();
    let client = builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let (caller, to) = (client.clone(), target.clone());
    let first = std::thread::spawn(move || caller.forward(HOLD, &to, &0));
    begun.acquire(1).forget();
    for n in 1..=3 {
        let error = client.forward_timed(HOLD, &target, &n, SOON).unwrap_err();
        assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
    }
    until("all are there", || service.monitoring().stats().requests_received == 4);
    // The target's clock began when the requests arrived, at the latest.
    let passed = Instant::now() + SOON;
    until("the deadlines are over there, too", || Instant::now() > passed);
    go.set(()).unwrap();
    assert_eq!(first.join().unwrap().unwrap(), 0);
    until("they are counted", || service.monitoring().stats().requests_abandoned == 3);
    assert_eq!(client.forward(HOLD, &target, &9).unwrap(), 9);
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    until("the handler has ended", || service.monitoring().stats().handlers_run == 2);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn nested_calls_have_the_deadline_of_the_call_that_they_serve() {
    const OUTER: Rpc<bool, Result<Option<Duration>, String>> = Rpc::new("outer");
    on_each_with_extensions(|pair| {
        pair.service.serve(LEFT).returning(Handle::remaining).unwrap();
        let held = hold(&pair.service);
        let own = ProviderHandle::from(pair.service.self_addr());
        let outer = move |handle: &Handle<bool, Result<Option<Duration>, String>>| {
            let instance = handle.instance();
            let ask = || instance.forward(LEFT, &own, &()).map_err(|error| error.to_string());
            if *handle.args() { ask() } else { margo::cancel::without_deadline(ask) }
        };
        pair.service.serve(OUTER).returning(outer).unwrap();
        let target = pair.target();
        let call = |inherit| pair.client.forward_timed(OUTER, &target, &inherit, PATIENCE);
        let left = call(true).unwrap().unwrap().unwrap();
        assert!(left <= PATIENCE && left > Duration::ZERO, "{left:?}");
        assert_eq!(call(false).unwrap(), Ok(None));
        // A limit of its own counts if it is the shorter one; else the inherited one ends the call.
        const LIMITED: Rpc<Duration, bool> = Rpc::new("limited");
        let own = ProviderHandle::from(pair.service.self_addr());
        let limited = move |handle: &Handle<Duration, bool>| {
            let instance = handle.instance();
            let error = instance.forward_timed(HOLD, &own, &1, *handle.args()).unwrap_err();
            matches!(error, ForwardError::TimedOut { limit, .. } if limit <= *handle.args())
        };
        pair.service.serve(LIMITED).returning(limited).unwrap();
        assert!(pair.client.forward_timed(LIMITED, &target, &SOON, PATIENCE).unwrap());
        // The answer may be faster than our own clock.
        match pair.client.forward_timed(LIMITED, &target, &PATIENCE, SOON) {
            Ok(in_time) => assert!(in_time),
            Err(ForwardError::TimedOut { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        // What is held is in hand for as long.
        until("the nested call has ended as well", || {
            while held.try_recv().is_ok() {}
            pair.service.monitoring().load(&pair.service.layout().rpc_pool()).unwrap().in_hand == 0
        });
        pair.end();
    });
}

#[test]
fn an_origin_that_leaves_fires_the_token() {
    on_each_with_extensions(|pair| {
        let held = hold(&pair.service);
        let (caller, to) = (pair.client.clone(), pair.target());
        let call = std::thread::spawn(move || caller.forward(HOLD, &to, &1));
        let (token, handle) = next(&held);
        assert!(!token.is_canceled() && token.reason().is_none());
        pair.client.finalize_and_wait().unwrap();
        assert!(call.join().unwrap().is_err());
        assert_eq!(reason_of(&token), CancelReason::OriginGone);
        drop(handle);
        pair.service.finalize_and_wait().unwrap();
    });
}

/// Not a test of its own: the origin that is killed.
#[test]
fn service_process() {
    serve_if_asked(|own| {
        own.register(START, |handle| {
            let instance = handle.instance().clone();
            let target = ProviderHandle::from(instance.lookup(handle.args()).unwrap());
            let pool = instance.layout().rpc_pool();
            drop(pool.spawn(move || instance.forward(HOLD, &target, &1)).unwrap());
            handle.respond(&()).unwrap();
        })
        .unwrap();
        std::io::stdout().flush().unwrap();
    });
}

#[test]
fn an_origin_that_is_killed_fires_the_token() {
    for transport in TRANSPORTS {
        let service = builder(transport).start().unwrap();
        let held = hold(&service);
        let mut origin = Service::start(module_path!(), transport);
        let other = ProviderHandle::from(service.lookup(&origin.address).unwrap());
        let own = service.self_addr().uri().to_owned();
        // Twice: a token for a peer that is watched already, and after that watch has ended.
        for _ in 0..2 {
            service.forward_timed(START, &other, &own, PATIENCE).unwrap();
        }
        let tokens = [next(&held), next(&held)];
        origin.kill();
        for (token, handle) in tokens {
            assert_eq!(reason_of(&token), CancelReason::OriginGone);
            assert!(handle.is_canceled());
        }
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_shutdown_fires_the_tokens_of_handlers_that_outlast_its_grace() {
    let service = builder("na+sm://").grace(SOON).start().unwrap();
    let seen = Arc::new(Eventual::new());
    let tell = seen.clone();
    service
        .register(HOLD, move |handle| {
            let reason = handle.cancel_token().wait();
            let after = handle.cancel_token().reason();
            tell.set((reason, after)).unwrap();
        })
        .unwrap();
    let own = ProviderHandle::from(service.self_addr());
    let (caller, to) = (service.clone(), own);
    let call = std::thread::spawn(move || caller.forward_timed(HOLD, &to, &1, PATIENCE));
    until("it runs", || service.metrics().handlers_running == 1);
    service.finalize();
    let outcome = bounded("the handler ends", move || *seen.wait());
    assert_eq!(outcome, (CancelReason::Closing, Some(CancelReason::Closing)));
    assert!(call.join().unwrap().is_err());
    service.wait_for_finalize().unwrap();
}

/// An origin that drives the RPC layer itself.
struct Origin {
    core: Arc<Core<u32>>,
    ended: Ended,
}

#[derive(Default)]
struct Ended(Vec<(u32, Result<(), HgError>)>);

impl Sink<u32> for Ended {
    fn request(&mut self, _request: RequestHandle<u32>) {}

    fn response(&mut self, token: u32, result: Result<Response, HgError>) {
        self.0.push((token, result.map(drop)));
    }

    fn responded(&mut self, _token: u32, _result: Result<(), HgError>) {}

    fn bulk(&mut self, _token: u32, _result: Result<u64, HgError>) {}
}

impl Origin {
    fn new(service: &Instance) -> (Self, na::Addr) {
        let uri = service.self_addr().uri().to_owned();
        let own = format!("{}://", uri.split("://").next().unwrap());
        let endpoint = na::open(&own, &na::OpenOptions::listening(false)).unwrap();
        let mut options = HgOptions::default();
        options.listen = false;
        let core = Core::new(endpoint, options).unwrap();
        let to = core.lookup(&uri).unwrap();
        (Self { core, ended: Ended::default() }, to)
    }

    fn call(&self, to: &na::Addr, n: u32) -> margo::hg::OpRef {
        let encode = |writer: &mut margo::hg::Writer| {
            prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
            proc::to_writer(writer, &n)
        };
        let id = HOLD.id(margo::ProviderId::DEFAULT);
        let options = ForwardOptions::default().undeclared();
        self.core.forward(to, id, options, encode, n).unwrap()
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.core.poll(16, &mut self.ended).unwrap();
            assert!(start.elapsed() < PATIENCE, "{what}: does not happen");
        }
    }
}

#[test]
fn a_call_that_its_origin_cancels_fires_the_token() {
    on_each_with_extensions(|Pair { service, client }| {
        let held = hold(&service);
        let (mut origin, to) = Origin::new(&service);
        let calls = [1, 2].map(|n| origin.call(&to, n));
        origin.until("they arrive", |_| held.len() == 2);
        let (mut first, mut second) = (next(&held), next(&held));
        if *first.1.args() == 2 {
            std::mem::swap(&mut first, &mut second);
        }
        origin.core.cancel_call(calls[0], &to);
        origin.until("the call ends", |origin| !origin.ended.0.is_empty());
        assert!(matches!(origin.ended.0.pop(), Some((1, Err(HgError::Canceled)))));
        origin.until("the token fires", |_| first.0.is_canceled());
        assert_eq!(first.0.reason(), Some(CancelReason::Canceled));
        assert!(!second.0.is_canceled(), "the other call goes on");
        drop(first.1);
        second.1.respond(&2).unwrap();
        origin.until("the other one ends", |origin| !origin.ended.0.is_empty());
        assert!(matches!(origin.ended.0.pop(), Some((2, Ok(())))));
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    });
}

#[test]
fn a_request_that_is_canceled_while_it_waits_is_not_started() {
    let (service, begun, go, ran) = blocked();
    let (mut origin, to) = Origin::new(&service);
    origin.call(&to, 0);
    let waits = begun.clone();
    origin.until("the first one runs", |_| waits.try_acquire(1).map(ult::Permit::forget).is_some());
    let canceled = origin.call(&to, 1);
    origin.call(&to, 2);
    origin.until("they are here", |_| service.monitoring().stats().requests_received == 3);
    origin.core.cancel_call(canceled, &to);
    origin.until("it has ended here", |origin| !origin.ended.0.is_empty());
    // Whatever comes behind the cancel on the same connection tells that it is there, too.
    origin.call(&to, 3);
    origin.until("the last one is here", |_| service.monitoring().stats().requests_received == 4);
    go.set(()).unwrap();
    origin.until("the others end", |origin| origin.ended.0.len() == 4);
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    assert_eq!(service.monitoring().stats().requests_abandoned, 1);
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_request_that_is_canceled_or_dropped_fires_the_token() {
    on_each_with_extensions(|pair| {
        let held = hold(&pair.service);
        for dropped in [false, true] {
            let request = pair.client.rpc(HOLD, &pair.target(), &1).start().unwrap();
            let (token, handle) = next(&held);
            assert!(!token.is_canceled());
            if dropped {
                drop(request);
            } else {
                request.cancel();
                assert!(matches!(request.wait(), Err(ForwardError::Canceled { .. })));
            }
            assert_eq!(reason_of(&token), CancelReason::Canceled);
            drop(handle);
        }
        pair.end();
    });
}

/// Transfers of a handler end at its deadline, as nobody waits for their outcome after it.
#[test]
fn transfers_of_a_handler_end_at_its_deadline() {
    const MOVE: Rpc<(Bulk, bool), ()> = Rpc::new("move");
    on_each_with_extensions(|pair| {
        let (sender, results) = channel::unbounded();
        let transfer = move |handle: &Handle<(Bulk, bool), ()>| {
            let (remote, later) = handle.args();
            let mut buffer = handle.instance().memory().bulk_buffer(8).unwrap();
            let early = handle.pull(remote, 0, &mut buffer, 0..8);
            if !later {
                let _ = sender.send((early.is_ok(), None));
                return;
            }
            handle.cancel_token().wait_timeout(PATIENCE).unwrap();
            let (started, buffer) = handle.bulk(remote).start_pull(0, buffer, 0..8).wait();
            let mut buffers = vec![buffer];
            let chunks =
                handle.bulk(remote).pull_chunks(0..8, &mut buffers, |_, _| panic!("called"));
            let mut buffer = buffers.remove(0);
            let pushed = handle.push(remote, 0, &mut buffer, 0..8);
            let pulled = handle.pull(remote, 0, &mut buffer, 0..8);
            let free =
                margo::cancel::without_deadline(|| handle.pull(remote, 0, &mut buffer, 0..8));
            assert_eq!((free.is_ok(), &buffer[..]), (true, &[7; 8][..]));
            let late: [Result<(), BulkError>; 4] = [started, chunks, pushed, pulled];
            let _ = sender.send((early.is_ok(), Some(late)));
        };
        pair.service.serve(MOVE).returning(transfer).unwrap();
        let lent = pair.client.expose(vec![7; 8], Access::ReadWrite).unwrap();
        let call = |later, limit| {
            let args = (lent.bulk().clone(), later);
            pair.client.forward_timed(MOVE, &pair.target(), &args, limit)
        };
        call(false, PATIENCE).unwrap();
        assert!(matches!(next(&results), (true, None)), "there is time");
        // On a loaded machine it may be over before the handler begins.
        for calls in 1.. {
            // The handler may end before its origin's timer fires.
            let result = call(true, SOON);
            assert!(matches!(result, Ok(()) | Err(ForwardError::TimedOut { .. })), "{result:?}");
            until("it is handled or dropped", || {
                !results.is_empty() || pair.service.monitoring().stats().requests_abandoned == calls
            });
            if !results.is_empty() {
                break;
            }
        }
        let (_, late) = next(&results);
        for result in late.unwrap() {
            assert!(matches!(result, Err(BulkError::TimedOut { .. })), "{result:?}");
        }
        pair.end();
    });
}

/// Handlers of one-way requests have no deadline, as nobody waits for them; their sender has one.
#[test]
fn what_a_handler_sends_has_the_deadline_of_its_request() {
    const TELL: OneWay<u32> = OneWay::new("tell");
    on_each_with_extensions(|pair| {
        let (sender, told) = channel::unbounded();
        let tell = move |handle: Handle<u32, _>| {
            sender.send((*handle.args(), handle.deadline())).unwrap();
        };
        pair.service.serve(TELL).handler(tell).unwrap();
        pair.client.rpc(TELL, &pair.target(), &1).timeout(PATIENCE).send().unwrap();
        assert_eq!(next(&told), (1, None));

        let (sender, results) = channel::unbounded();
        let own = ProviderHandle::from(pair.service.self_addr());
        let late = move |handle: &Handle<u32, u32>| {
            handle.cancel_token().wait_timeout(PATIENCE).unwrap();
            let margo = handle.instance();
            let late =
                [margo.send(TELL, &own, &2), margo.rpc(TELL, &own, &3).start_send().map(drop)];
            margo::cancel::without_deadline(|| margo.send(TELL, &own, &4)).unwrap();
            sender.send(late).unwrap();
            0
        };
        pair.service.serve(HOLD).returning(late).unwrap();
        call_until_deadline(&pair, || !results.is_empty());
        for result in next(&results) {
            let error = result.unwrap_err();
            assert!(matches!(error, ForwardError::TimedOut { rpc: "tell", .. }), "{error}");
            assert!(error.never_ran());
        }
        assert_eq!(next(&told), (4, None), "and neither of the others");
        pair.end();
    });
}

#[test]
fn all_that_waits_for_a_peer_has_a_form_with_a_limit() {
    const LONG: OneWay<Vec<u8>> = OneWay::new("long");
    const PARSE: Rpc<(), Result<(), String>> = Rpc::new("parse");
    bounded("calls to a stopped process", || {
        for transport in TRANSPORTS {
            let service = Service::start(module_path!(), transport);
            let client = client_for(transport);
            let network = client.network();
            let addr = client.lookup(&service.address).unwrap();
            let target = ProviderHandle::from(addr.clone());
            let answers = || {
                assert_eq!(network.identity_of_timed(&target, PATIENCE).unwrap(), None);
                let checked = network.check_identity_timed(&target, "kv", PATIENCE).unwrap_err();
                assert!(matches!(checked, IdentityError::None { .. }), "{checked}");
                let refused = network.shutdown_remote_timed(&addr, PATIENCE).unwrap_err();
                assert!(matches!(refused, ShutdownRemoteError::NotEnabled { .. }), "{refused}");
                let unknown = client.rpc(PARSE, &target, &()).timeout(PATIENCE).call().unwrap_err();
                let is_unknown =
                    matches!(unknown, CallError::Forward(ForwardError::NotRegistered { .. }));
                assert!(is_unknown, "{unknown}");
            };
            answers();
            service.stop();
            let started = Instant::now();
            let IdentityError::Forward(checked) =
                network.check_identity_timed(&target, "kv", SOON).unwrap_err()
            else {
                panic!("it has answered");
            };
            let Err(ShutdownRemoteError::Forward(shut)) =
                network.shutdown_remote_timed(&addr, SOON)
            else {
                panic!("it has answered");
            };
            let Err(CallError::Forward(called)) =
                client.rpc(PARSE, &target, &()).timeout(SOON).call()
            else {
                panic!("it has answered");
            };
            // It does not fetch the arguments.
            let long = vec![7; 1 << 20];
            let send = || client.rpc(LONG, &target, &long).timeout(SOON);
            let errors = [
                network.identity_of_timed(&target, SOON).unwrap_err(),
                checked,
                shut,
                called,
                send().send().unwrap_err(),
                send().start_send().unwrap().wait().unwrap_err(),
            ];
            assert!(started.elapsed() >= 6 * SOON);
            for error in errors {
                let is_late =
                    matches!(&error, ForwardError::TimedOut { limit, .. } if *limit == SOON);
                assert!(is_late, "{transport}: {error}");
            }
            // A ULT that is cancelled while it sends takes its request back.
            let (from, to, sends) = (client.clone(), target.clone(), Arc::new(Eventual::new()));
            let begins = sends.clone();
            let send = move || {
                begins.set(()).unwrap();
                from.send(LONG, &to, &long)
            };
            let ult = client.layout().rpc_pool().spawn(send).unwrap();
            sends.wait();
            ult.cancel();
            assert!(matches!(ult.join(), Err(ult::JoinError::Cancelled)));
            service.signal(rustix::process::Signal::CONT);
            answers();
            client.finalize_and_wait().unwrap();
        }
    });
}
