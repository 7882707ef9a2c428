//! Calls that fail: each in its own way, none with a hang, and the service goes on.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, Pair, bounded, builder, on_each};
use margo::hg::{HgError, ReturnCode};
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, RegisterError, RespondError, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");

/// The service still answers.
fn still_serves(pair: &Pair) {
    assert_eq!(pair.client.forward_timed(SUM, &pair.target(), &(2, 3), PATIENCE).unwrap(), 5);
}

fn with_sum(body: impl Fn(Pair)) {
    on_each(|pair| {
        pair.service
            .register(SUM, |request| {
                let (a, b) = *request.args();
                request.respond(&(a + b)).unwrap();
            })
            .unwrap();
        body(pair);
    });
}

#[test]
fn an_unknown_rpc() {
    const NONE: Rpc<(), ()> = Rpc::new("nobody_serves_this");
    with_sum(|pair| {
        let error = pair.client.forward_timed(NONE, &pair.target(), &(), PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
        assert!(error.never_ran());
        assert!(error.to_string().contains("nobody_serves_this"), "{error}");
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn an_unknown_provider() {
    with_sum(|pair| {
        let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(43));
        let error = pair.client.forward_timed(SUM, &target, &(1, 1), PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error}");
        assert!(error.to_string().contains("43"), "{error}");
        pair.end();
    });
}

#[test]
fn arguments_of_the_wrong_type() {
    const WRONG: Rpc<String, i64> = Rpc::new("sum");
    const SHORT: Rpc<u8, i64> = Rpc::new("sum");
    with_sum(|pair| {
        let target = pair.target();
        let text = "not two numbers".to_owned();
        let error = pair.client.forward_timed(WRONG, &target, &text, PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}");
        let error = pair.client.forward_timed(SHORT, &target, &1, PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}");
        assert_eq!(pair.service.monitoring().stats().arguments_undecodable, 2);
        still_serves(&pair);
        // Those two handlers were not run, which is known when the last one has ended.
        let begun = std::time::Instant::now();
        while pair.service.monitoring().stats().handlers_run < 1
            || pair.service.metrics().handlers_running > 0
        {
            assert!(begun.elapsed() < PATIENCE, "{:?}", pair.service.monitoring().stats());
            std::thread::yield_now();
        }
        assert_eq!(pair.service.monitoring().stats().handlers_run, 1);
        pair.end();
    });
}

#[test]
fn a_result_of_the_wrong_type() {
    const WRONG: Rpc<(i64, i64), String> = Rpc::new("sum");
    with_sum(|pair| {
        let error =
            pair.client.forward_timed(WRONG, &pair.target(), &(1, 1), PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::Decode { .. }), "{error}");
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn a_handler_that_panics() {
    const PANIC: Rpc<u32, ()> = Rpc::new("panic");
    with_sum(|pair| {
        pair.service
            .register(PANIC, |request| {
                let n = *request.args();
                if n == 0 {
                    panic!("the handler's own words");
                }
                request.respond(&()).unwrap();
                panic!("after the answer");
            })
            .unwrap();
        let target = pair.target();
        let error = pair.client.forward_timed(PANIC, &target, &0, PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
        assert!(error.to_string().contains("the handler's own words"), "{error}");
        pair.client.forward_timed(PANIC, &target, &1, PATIENCE).unwrap();
        still_serves(&pair);
        pair.end();
    });
}

/// A payload whose destructor panics with another one, so many times.
struct Nested(u32);

impl Drop for Nested {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::resume_unwind(Box::new(Self(self.0 - 1)));
        }
    }
}

#[test]
fn a_handler_that_panics_with_something_that_panics() {
    const PANIC: Rpc<u32, ()> = Rpc::new("panic_nested");
    with_sum(|pair| {
        let panics = |request: margo::Handle<u32, ()>| -> () {
            std::panic::resume_unwind(Box::new(Nested(*request.args())))
        };
        pair.service.register(PANIC, panics).unwrap();
        for depth in 0..4 {
            let target = pair.target();
            let error = pair.client.forward_timed(PANIC, &target, &depth, PATIENCE).unwrap_err();
            assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
            still_serves(&pair);
        }
        pair.end();
    });
}

/// A lock on a value in another process; its destructor calls that process.
struct Lock {
    here: Instance,
    at: ProviderHandle,
    limit: Option<Duration>,
    ended: mpsc::Sender<Result<(), ForwardError>>,
}

const UNLOCK: Rpc<(), ()> = Rpc::new("unlock");

impl Drop for Lock {
    fn drop(&mut self) {
        let ended = match self.limit {
            Some(limit) => self.here.forward_timed(UNLOCK, &self.at, &(), limit),
            None => self.here.forward(UNLOCK, &self.at, &()),
        };
        self.ended.send(ended).unwrap();
    }
}

/// While it unwinds it holds up the execution stream that progress is on.
#[test]
fn a_destructor_that_calls_while_a_handler_panics() {
    const PANIC: Rpc<Option<Duration>, ()> = Rpc::new("panic_with_a_lock");
    let short = Duration::from_millis(50);
    with_sum(|pair| {
        let transport = pair.service.self_addr().uri().split("://").next().unwrap().to_owned();
        let rest = if transport.ends_with("sm") { "" } else { "127.0.0.1:0" };
        let keeper = builder(format!("{transport}://{rest}")).start().unwrap();
        let answers = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let release = Arc::new(ult::Eventual::new());
        let (kept, held) = (answers.clone(), release.clone());
        keeper
            .register(UNLOCK, move |request| {
                // Longer than anybody polls in the stead of progress.
                ult::sleep(Duration::from_millis(20));
                match kept.load(std::sync::atomic::Ordering::Relaxed) {
                    true => _ = request.respond(&()),
                    false => _ = held.wait(),
                }
            })
            .unwrap();
        let (ended, ends) = mpsc::channel();
        let at = ProviderHandle::from(pair.service.lookup(keeper.self_addr().uri()).unwrap());
        pair.service
            .register(PANIC, move |request| {
                let (here, at) = (request.instance().clone(), at.clone());
                let _lock = Lock { here, at, limit: *request.args(), ended: ended.clone() };
                panic!("with the lock");
            })
            .unwrap();
        let call = |limit| pair.client.forward_timed(PANIC, &pair.target(), &limit, PATIENCE);
        for limit in [None, Some(PATIENCE)] {
            let error = call(limit).unwrap_err();
            assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
            ends.recv().unwrap().unwrap();
            still_serves(&pair);
        }
        answers.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(call(Some(short)), Err(ForwardError::Panicked { .. })));
        let error = ends.recv().unwrap().unwrap_err();
        assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
        still_serves(&pair);
        release.set(()).unwrap();
        keeper.finalize_and_wait().unwrap();
        pair.end();
    });
}

#[test]
fn a_handler_that_moves_the_request_into_a_ult_that_panics() {
    const PANIC: Rpc<(), ()> = Rpc::new("panic_elsewhere");
    with_sum(|pair| {
        pair.service
            .register(PANIC, |request| {
                let pool = request.instance().layout().rpc_pool();
                let ult = pool
                    .spawn(move || {
                        let _request = request;
                        panic!("elsewhere");
                    })
                    .unwrap();
                let _ = ult.join();
            })
            .unwrap();
        let error = pair.client.forward_timed(PANIC, &pair.target(), &(), PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn a_handler_that_returns_without_an_answer() {
    const SILENT: Rpc<(), ()> = Rpc::new("silent");
    const FAILS: Rpc<(), ()> = Rpc::new("fails");
    with_sum(|pair| {
        pair.service.register(SILENT, drop).unwrap();
        pair.service
            .register(FAILS, |request| request.fail("no space on the tape").unwrap())
            .unwrap();
        let target = pair.target();
        let error = pair.client.forward_timed(SILENT, &target, &(), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("without an answer"), "{error}");
        let error = pair.client.forward_timed(FAILS, &target, &(), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("no space on the tape"), "{error}");
        pair.end();
    });
}

/// It has not panicked; but what it has not answered nobody will, unless it has left that to
/// others.
#[test]
fn a_handler_that_leaves_by_exit() {
    const LEAVES: Rpc<u32, u32> = Rpc::new("leaves");
    const ENDS: Rpc<(), ()> = Rpc::new("ends");
    with_sum(|pair| {
        let later = Arc::new(std::sync::Mutex::new(None));
        let keep = later.clone();
        pair.service
            .register(LEAVES, move |request| {
                match *request.args() {
                    0 => {}
                    1 => request.respond(&1).unwrap(),
                    _ => *keep.lock().unwrap() = Some(request),
                }
                ult::exit();
            })
            .unwrap();
        let target = pair.target();
        pair.service.serve(ENDS).function(|()| ult::exit()).unwrap();
        let call = |n| pair.client.forward_timed(LEAVES, &target, &n, PATIENCE);
        let error = call(0).unwrap_err();
        assert!(error.to_string().contains("the handler ended without an answer"), "{error}");
        assert_eq!(call(1).unwrap(), 1);
        let error = pair.client.forward_timed(ENDS, &target, &(), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("the handler ended without an answer"), "{error}");
        let left = pair.client.rpc(LEAVES, &target, &2).start().unwrap();
        let answers = loop {
            if let Some(request) = later.lock().unwrap().take() {
                break request;
            }
            std::thread::yield_now();
        };
        answers.respond(&2).unwrap();
        assert_eq!(bounded("what was left to others", move || left.wait()).unwrap(), 2);
        assert_eq!(pair.service.monitoring().stats().handlers_panicked, 0);
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn what_is_dropped_with_a_refused_registration_may_register() {
    const OTHER: Rpc<(), u32> = Rpc::new("other");
    struct Registers(Instance);
    impl Drop for Registers {
        fn drop(&mut self) {
            self.0.register(OTHER, |request| _ = request.respond(&7)).unwrap();
        }
    }
    with_sum(|pair| {
        let (service, at_drop) = (pair.service.clone(), Registers(pair.service.clone()));
        let refused = bounded("the second registration", move || {
            let again = move |_| _ = &at_drop;
            service.register(SUM, again).unwrap_err()
        });
        assert!(matches!(refused, RegisterError::Exists { .. }), "{refused}");
        let target = pair.target();
        assert_eq!(pair.client.forward_timed(OTHER, &target, &(), PATIENCE).unwrap(), 7);
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn a_handler_that_never_answers() {
    const STUCK: Rpc<(), ()> = Rpc::new("stuck");
    with_sum(|pair| {
        let release = Arc::new(ult::Eventual::new());
        let begun = Arc::new(ult::Eventual::new());
        let (held, begins) = (release.clone(), begun.clone());
        pair.service
            .register(STUCK, move |request| {
                let _ = begins.set(());
                held.wait();
                // Too late for the origin; that must harm neither side.
                let _ = request.respond(&());
            })
            .unwrap();
        let mut limit = Duration::from_millis(50);
        loop {
            let error = pair.client.forward_timed(STUCK, &pair.target(), &(), limit).unwrap_err();
            assert!(matches!(error, ForwardError::TimedOut { .. }), "{error}");
            if !error.never_ran() {
                break;
            }
            // On a machine that is very busy it came too late to begin.
            assert!(!begun.is_ready(), "it ran: {error}");
            limit *= 2;
        }
        still_serves(&pair);
        release.set(()).unwrap();
        still_serves(&pair);
        pair.end();
    });
}

#[test]
fn nobody_listens_at_the_address() {
    for (own, nobody) in [("na+sm://", "na+sm://1-999"), ("na+tcp://", "na+tcp://127.0.0.1:1")] {
        let client = builder(own).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(nobody).unwrap());
        let error = client.forward_timed(SUM, &target, &(1, 1), PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::Network { .. }), "{error}");
        assert!(error.never_ran(), "{error:?}");
        assert!(error.to_string().contains(nobody), "{error}");
        client.finalize_and_wait().unwrap();
    }
}

#[test]
fn addresses_that_are_none() {
    let client = builder("na+sm://").listen(false).start().unwrap();
    for text in ["", "nonsense://x", "na+tcp://127.0.0.1:1", "://"] {
        let error = client.lookup(text).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    client.finalize_and_wait().unwrap();
    for text in ["na+smm://", "ofi+verbs://", "na+tcp://host:notaport"] {
        let error = builder(text).start().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn an_rpc_registered_twice() {
    with_sum(|pair| {
        let error = pair.service.register(SUM, drop).unwrap_err();
        assert!(matches!(error, RegisterError::Exists { .. }), "{error}");
        still_serves(&pair);
        let error = pair.client.register(SUM, drop).unwrap_err();
        assert!(matches!(error, RegisterError::NotListening { .. }), "{error}");
        pair.end();
    });
}

#[test]
fn a_peer_that_shuts_down() {
    const STUCK: Rpc<(), ()> = Rpc::new("stuck");
    bounded("shutdown of a service with a waiting handler", || {
        for transport in common::TRANSPORTS {
            let service = builder(transport).grace(Duration::from_millis(200)).start().unwrap();
            let own = transport.split("://").next().unwrap();
            let client = builder(format!("{own}://")).listen(false).start().unwrap();
            let entered = Arc::new(ult::Eventual::new());
            let release = Arc::new(ult::Eventual::new());
            let (enter, held) = (entered.clone(), release.clone());
            service
                .register(STUCK, move |_request| {
                    let _ = enter.set(());
                    held.wait();
                })
                .unwrap();
            let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
            std::thread::scope(|scope| {
                let call = scope.spawn(|| client.forward(STUCK, &target, &()));
                entered.wait();
                service.finalize();
                let error = call.join().unwrap().unwrap_err();
                assert!(matches!(error, ForwardError::Network { .. }), "{error}");
            });
            // The handler's ULT still waits: finalize says so rather than hang.
            let error = service.wait_for_finalize().unwrap_err();
            assert!(error.to_string().contains("stuck"), "{error}");
            release.set(()).unwrap();
            // The same address answers nobody now.
            let error = client.forward(STUCK, &target, &()).unwrap_err();
            assert!(matches!(error, ForwardError::Network { .. }), "{error}");
            client.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn a_handler_that_blocks_its_execution_stream() {
    const BLOCK: Rpc<(), ()> = Rpc::new("block");
    bounded("shutdown of a service whose only execution stream is blocked", || {
        let grace = Duration::from_millis(100);
        let service = builder("na+sm://").grace(grace).start().unwrap();
        let client = builder("na+sm://").listen(false).start().unwrap();
        let entered = Arc::new(ult::Eventual::new());
        let enter = entered.clone();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = std::sync::Mutex::new(blocked);
        service
            .register(BLOCK, move |request| {
                let _ = enter.set(());
                // Not a wait that margo knows of: the whole OS thread stands still.
                let _ = blocked.lock().unwrap().recv();
                let _ = request.respond(&());
            })
            .unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        std::thread::scope(|scope| {
            let call = scope.spawn(|| client.forward(BLOCK, &target, &()));
            entered.wait();
            let error = service.finalize_and_wait().unwrap_err();
            assert!(matches!(error, margo::errors::FinalizeError::Stuck(_)), "{error}");
            // Unblocked, the handler answers or the network closes: the caller is told either way.
            drop(release);
            let _told = call.join().unwrap();
        });
        client.finalize_and_wait().unwrap();
    });
}

/// Has the client's execution stream do nothing until the sender is dropped: what is called waits.
fn hold_up(client: &Instance) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (enter, entered) = mpsc::channel();
    let held = move || {
        enter.send(()).unwrap();
        let _ = released.recv();
    };
    drop(client.layout().rpc_pool().spawn(held).unwrap());
    entered.recv_timeout(PATIENCE).unwrap();
    release
}

#[test]
fn who_holds_too_many_long_arguments_says_so() {
    const LEN: Rpc<String, usize> = Rpc::new("len");
    bounded("long arguments", || {
        for transport in common::TRANSPORTS {
            let limits = r#""eager_size": 512, "overflow_held_max": 150000"#;
            let json = format!(
                r#"{{ "rpc_thread_count": 1, "margo": {{ "address": "{transport}", {limits} }} }}"#
            );
            let service = margo::init(&json).unwrap();
            let own = transport.split("://").next().unwrap();
            let client = builder(format!("{own}://")).listen(false).start().unwrap();
            service.serve(LEN).function(|text: String| text.len()).unwrap();
            let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
            let release = hold_up(&service);
            let long = "x".repeat(100_000);
            let calls = [(); 2].map(|()| client.rpc(LEN, &target, &long).start().unwrap());
            let start = Instant::now();
            while !calls.iter().any(|call| call.test()) {
                assert!(start.elapsed() < PATIENCE, "none is refused");
                std::thread::yield_now();
            }
            drop(release);
            let mut ends = calls.map(|call| call.wait());
            ends.sort_by_key(Result::is_err);
            let [Ok(100_000), Err(error)] = ends else { panic!("{ends:?}") };
            let ForwardError::Busy { detail, .. } = &error else { panic!("{error:?}") };
            assert!(detail.contains("`margo.overflow_held_max`"), "{detail}");
            assert!(error.to_string().ends_with(detail.as_str()) && error.never_ran(), "{error}");
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        }
    });
}

fn is_too_much(result: Result<String, ForwardError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, ForwardError::Failed { code: ReturnCode::NoMem, .. }), "{error}");
    assert!(error.to_string().contains("overflow_held_max"), "{error}");
    assert!(!error.never_ran());
}

#[test]
fn a_client_that_fetches_no_results_takes_a_bounded_part_of_the_service() {
    if common::one_shard_alone("its other shards fetch them while one is held up") {
        return;
    }
    const LONG: Rpc<bool, String> = Rpc::new("long");
    const PANIC: Rpc<(), ()> = Rpc::new("panic_at_length");
    bounded("a client that fetches nothing", || {
        for transport in common::TRANSPORTS {
            let limits = r#""eager_size": 512, "overflow_held_max": 100500"#;
            let json = format!(r#"{{ "margo": {{ "address": "{transport}", {limits} }} }}"#);
            let service = margo::init(&json).unwrap();
            let own = transport.split("://").next().unwrap();
            let client = || builder(format!("{own}://")).listen(false).start().unwrap();
            let (lazy, pair) = (client(), Pair { service, client: client() });
            let (enter, entered) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let go = Arc::new(ult::Eventual::new());
            let held = go.clone();
            pair.service
                .register(LONG, move |request| {
                    if *request.args() {
                        enter.send(()).unwrap();
                        held.wait();
                    }
                    tell.send(request.respond(&"x".repeat(100_000))).unwrap();
                })
                .unwrap();
            pair.service.network().enable_remote_metrics();
            pair.service.register(SUM, |request| drop(request.respond(&5))).unwrap();
            pair.service.register(PANIC, |_| panic!("{}", "why ".repeat(200))).unwrap();
            let target = ProviderHandle::from(lazy.lookup(pair.service.self_addr().uri()).unwrap());
            let calls = [(); 3].map(|()| lazy.rpc(LONG, &target, &true).start().unwrap());
            calls.iter().for_each(|_| entered.recv_timeout(PATIENCE).unwrap());
            let release = hold_up(&lazy);
            go.set(()).unwrap();
            let sent = calls.each_ref().map(|_| told.recv_timeout(PATIENCE).unwrap());
            let unfetched = sent.iter().filter(|sent| match sent {
                Err(RespondError::Network { source, .. }) => {
                    matches!(source, HgError::Unfetched { .. })
                }
                _ => false,
            });
            assert_eq!(unfetched.count(), 2, "one is kept: {sent:?}");
            still_serves(&pair);
            is_too_much(pair.client.forward_timed(LONG, &pair.target(), &false, PATIENCE));
            // Who looks why can see it, though that answer is a long result, too.
            let service = pair.client.lookup(pair.service.self_addr().uri()).unwrap();
            let metrics = pair.client.network().metrics_of_timed(&service, PATIENCE).unwrap();
            assert!(metrics.memory.result_bytes_kept >= 100_000, "{:?}", metrics.memory);
            // Its text would have to be kept as well, so only the code is sent.
            let failed = pair.client.forward_timed(PANIC, &pair.target(), &(), PATIENCE);
            let alone =
                matches!(&failed, Err(ForwardError::Panicked { detail, .. }) if detail.is_empty());
            assert!(alone, "{failed:?}");
            drop(release);
            let (results, errors): (Vec<_>, Vec<_>) =
                calls.into_iter().map(|call| call.wait()).partition(Result::is_ok);
            assert_eq!((results.len(), errors.len()), (1, 2));
            errors.into_iter().for_each(is_too_much);
            // As soon as the service has heard that its result was fetched.
            while pair.client.forward_timed(LONG, &pair.target(), &false, PATIENCE).is_err() {}
            still_serves(&pair);
            lazy.finalize_and_wait().unwrap();
            pair.end();
        }
    });
}

#[test]
fn own_shutdown_ends_own_calls() {
    const STUCK: Rpc<(), ()> = Rpc::new("stuck");
    bounded("shutdown of a client with a call in flight", || {
        with_sum(|pair| {
            let entered = Arc::new(ult::Eventual::new());
            let release = Arc::new(ult::Eventual::new());
            let (enter, held) = (entered.clone(), release.clone());
            pair.service
                .register(STUCK, move |_request| {
                    let _ = enter.set(());
                    held.wait();
                })
                .unwrap();
            let target = pair.target();
            std::thread::scope(|scope| {
                let call = scope.spawn(|| pair.client.forward(STUCK, &target, &()));
                entered.wait();
                pair.client.finalize_and_wait().unwrap();
                let error = call.join().unwrap().unwrap_err();
                assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
            });
            let error = pair.client.forward(SUM, &target, &(1, 1)).unwrap_err();
            assert!(matches!(error, ForwardError::Closing { .. }), "{error}");
            release.set(()).unwrap();
            pair.service.finalize_and_wait().unwrap();
        });
    });
}

#[test]
fn finalize_from_everywhere_at_once() {
    const END: Rpc<(), ()> = Rpc::new("end");
    bounded("concurrent finalize", || {
        for transport in common::TRANSPORTS {
            let pair = Pair::new(transport);
            pair.service
                .register(END, |request| {
                    request.instance().finalize();
                    request.respond(&()).unwrap();
                })
                .unwrap();
            pair.client.forward(END, &pair.target(), &()).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| pair.service.finalize_and_wait().unwrap());
                }
            });
            pair.client.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn a_wrong_configuration_is_explained() {
    let error = margo::init(r#"{ "progres_pool": "x" }"#).unwrap_err().to_string();
    assert!(error.contains("progress_pool") && error.contains("line 1"), "{error}");
    let error = margo::init(r#"{ "margo": { "address": "na+nothing://" } }"#).unwrap_err();
    assert!(error.to_string().contains("na+nothing"), "{error}");
    let error = margo::init(r#"{ "mercury": { "request_post_init": 4000000000 } }"#).unwrap_err();
    assert!(error.to_string().contains("mercury.request_post_init"), "{error}");
    let json = r#"{ "argobots": { "xstreams": [
        { "name": "__primary__", "cpubind": 100000, "scheduler": { "pools": ["__primary__"] } } ],
        "pools": [ { "name": "__primary__" } ] } }"#;
    let error = margo::init(json).unwrap_err();
    assert!(error.to_string().contains("100000"), "{error}");
}
