//! Calls that do not wait: requests, their deadlines and cancels, and waiting for several.

use std::future::{Future, IntoFuture};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use crate::call_support::{HOLD, Held, NOBODY, SUM, echo_provider};
use crate::common::{self, PATIENCE, Pair, bounded, builder, on_each};
use futures_lite::future::{block_on, or, poll_once, zip};
use margo::{CallError, ForwardError, ForwardRequest, OneWay, ProviderHandle, ProviderId, Rpc};
use ult::{Eventual, Selectable};

/// Long enough for a deadline to be set up, short enough to wait for.
const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3600);

fn with_held(body: impl Fn(&Pair, &ProviderHandle, &Held) + Send + Sync + 'static) {
    bounded("calls in flight", move || {
        on_each(|pair| {
            let held = Held::serve(&pair.service);
            let target = pair.target();
            body(&pair, &target, &held);
            // Handlers that a test has left waiting.
            held.go(1000);
            let client = pair.client.clone();
            assert_eq!(client.forward(SUM, &target, &(40, 2)).unwrap(), 42, "it still works");
            pair.end();
        });
    });
}

#[track_caller]
fn assert_timed_out(result: Result<u32, ForwardError>, expected: Duration) {
    match result {
        Err(ForwardError::TimedOut { rpc: "hold", limit, .. }) => assert_eq!(limit, expected),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_canceled(result: Result<u32, ForwardError>) {
    assert!(matches!(result, Err(ForwardError::Canceled { rpc: "hold", .. })), "{result:?}");
}

#[test]
fn requests_are_waited_for_in_any_order() {
    with_held(|pair, target, held| {
        let first = pair.client.rpc(HOLD, target, &1).start().unwrap();
        let second = pair.client.rpc(HOLD, target, &2).start().unwrap();
        let sum = pair.client.rpc(SUM, target, &(3, 4)).start().unwrap();
        assert_eq!(sum.wait().unwrap(), 7, "while the others are held");
        held.go(2);
        assert_eq!(second.wait().unwrap(), 2);
        assert_eq!(first.wait().unwrap(), 1);
    });
}

/// A waker that panics, as that of an executor that has gone.
struct Rude;

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        panic!("from a waker");
    }
}

#[test]
fn a_waker_that_panics_does_not_end_the_progress() {
    with_held(|pair, target, held| {
        let waker = Waker::from(Arc::new(Rude));
        let mut request =
            Box::pin(pair.client.rpc(HOLD, target, &1).start().unwrap().into_future());
        assert!(request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        held.go(1);
        assert_eq!(pair.client.forward(SUM, target, &(3, 4)).unwrap(), 7);
        assert_eq!(block_on(request).unwrap(), 1);
    });
}

/// Their timers and barriers need the executor, whose runtime nobody enters.
#[test]
fn handlers_wait_for_tasks_of_another_executor_side_by_side() {
    const MEET: Rpc<u64, u64> = Rpc::new("meet");
    const AT_ONCE: usize = 4;
    bounded("handlers that wait for tasks", || {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        on_each(|pair| {
            let (handle, barrier) =
                (tokio.handle().clone(), Arc::new(tokio::sync::Barrier::new(AT_ONCE)));
            let meet = move |request: margo::Handle<u64, u64>| {
                let (n, barrier) = (*request.args(), barrier.clone());
                let task = handle.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(n)).await;
                    // All handlers are suspended in the middle of a task.
                    barrier.wait().await;
                    n * 2
                });
                request.respond(&ult::block_on(task).unwrap()).unwrap();
            };
            pair.service.register(MEET, meet).unwrap();
            let target = pair.target();
            for _ in 0..3 {
                let calls = [3, 1, 2, 0].map(|n| (n, pair.client.rpc(MEET, &target, &n).start()));
                for (n, call) in calls {
                    assert_eq!(call.unwrap().wait().unwrap(), n * 2);
                }
            }
            pair.end();
        });
    });
}

#[test]
fn many_requests_at_once_are_waited_for_in_order() {
    with_held(|pair, target, _| {
        let client = pair.client.clone();
        let target = target.clone();
        let calls = move || {
            let start = |n| client.rpc(SUM, &target, &(n, 1)).start().unwrap();
            let requests: Vec<_> = (0..128).map(start).collect();
            requests.into_iter().map(|request| request.wait().unwrap()).collect::<Vec<_>>()
        };
        let expected: Vec<i64> = (1..=128).collect();
        assert_eq!(calls.clone()(), expected, "from an OS thread");
        let ult = pair.client.layout().rpc_pool().spawn(calls).unwrap();
        assert_eq!(ult.join().unwrap(), expected, "from a ULT");
    });
}

#[test]
fn a_look_at_a_request_does_not_wait() {
    with_held(|pair, target, held| {
        let request = pair.client.rpc(HOLD, target, &5).start().unwrap();
        held.begun(1);
        assert!(!request.test());
        let request = request.try_wait().expect_err("it is held");
        assert_eq!((request.rpc_name(), request.target()), ("hold", target));
        let request = request.wait_timeout(SHORT).expect_err("it is held");
        let request = request.wait_deadline(Instant::now()).expect_err("it is held");
        held.go(1);
        let request = match request.wait_timeout(PATIENCE) {
            Ok(result) => return assert_eq!(result.unwrap(), 5),
            Err(request) => request,
        };
        panic!("{request:?}");
    });
}

#[test]
fn what_is_over_is_there_at_once() {
    with_held(|pair, target, _| {
        let request = pair.client.rpc(SUM, target, &(1, 1)).start().unwrap();
        assert_eq!(ult::wait_any(&[request.ready()], None), Some(0));
        assert!(request.test());
        assert_eq!(request.try_wait().unwrap().unwrap(), 2);
    });
}

#[test]
fn a_deadline_passes_while_somebody_waits() {
    with_held(|pair, target, _| {
        for limit in [Duration::ZERO, Duration::from_micros(50), SHORT] {
            let started = Instant::now();
            let request = pair.client.rpc(HOLD, target, &1).timeout(limit).start().unwrap();
            assert_timed_out(request.wait(), limit);
            assert!(started.elapsed() >= limit);
            assert_timed_out(pair.client.forward_timed(HOLD, target, &1, limit), limit);
            let request = pair.client.rpc(HOLD, target, &1).timeout(limit).start().unwrap();
            assert_timed_out(request.wait_timeout(PATIENCE).unwrap(), limit);
        }
    });
}

#[test]
fn a_deadline_passes_while_nobody_waits() {
    with_held(|pair, target, _| {
        let timed = || pair.client.rpc(HOLD, target, &1).timeout(SHORT).start().unwrap();
        // Nobody looks, and there is no answer.
        let request = timed();
        let started = Instant::now();
        while !format!("{request:?}").contains("is_over: true") {
            assert!(started.elapsed() < PATIENCE, "it outlives its deadline");
            std::thread::yield_now();
        }
        assert_timed_out(request.wait(), SHORT);
        // Somebody looks.
        let request = timed();
        while !request.test() {
            std::thread::yield_now();
        }
        assert_timed_out(request.wait(), SHORT);
        // An executor that knows nothing of ULTs polls.
        assert_timed_out(block_on(timed()), SHORT);
        // A ULT polls.
        let request = timed();
        let ult = pair.client.layout().rpc_pool().spawn(|| ult::block_on(request)).unwrap();
        assert_timed_out(ult.join().unwrap(), SHORT);
        // It is one of several things.
        let (request, never) = (timed(), Eventual::<()>::new());
        let objects: [&dyn Selectable; 2] = [&never, request.ready()];
        assert_eq!(ult::wait_any(&objects, None), Some(1));
        assert_timed_out(request.wait(), SHORT);
    });
}

#[test]
fn an_answer_after_the_deadline_is_none() {
    with_held(|pair, target, held| {
        let start = |limit| pair.client.rpc(HOLD, target, &1).timeout(limit).start().unwrap();
        let requests = [start(LONG), start(SHORT)];
        let due = Instant::now() + SHORT;
        while Instant::now() < due {
            std::thread::yield_now();
        }
        held.go(2);
        let [first, second] = margo::wait_all(requests).try_into().unwrap();
        assert_eq!(first.unwrap(), 1);
        assert_timed_out(second, SHORT);
    });
}

#[test]
fn an_answer_in_time_is_an_answer() {
    with_held(|pair, target, _| {
        let timed = || pair.client.rpc(SUM, target, &(2, 3)).timeout(LONG).start().unwrap();
        assert_eq!(timed().wait().unwrap(), 5);
        assert_eq!(block_on(timed()).unwrap(), 5);
        let request = timed();
        assert_eq!(ult::wait_any(&[request.ready()], None), Some(0));
        assert_eq!(request.wait().unwrap(), 5);
        // A limit that no clock can count is none.
        let request = pair.client.rpc(SUM, target, &(2, 3)).timeout(Duration::MAX).start().unwrap();
        assert_eq!(request.wait().unwrap(), 5);
    });
}

/// The alarms of all of them are units of the client's runtime, which waits for its units.
#[test]
fn deadlines_far_away_do_not_hold_up_the_end() {
    bounded("the end", || {
        on_each(|pair| {
            let held = Held::serve(&pair.service);
            let target = pair.target();
            let timed = || pair.client.rpc(HOLD, &target, &1).timeout(LONG).start().unwrap();
            let (watched, dropped, detached) = (timed(), timed(), timed());
            for request in [&watched, &dropped, &detached] {
                assert_eq!(ult::wait_any(&[request.ready()], Some(Instant::now())), None);
            }
            drop(dropped);
            detached.detach();
            let begun = Instant::now();
            pair.client.finalize_and_wait().unwrap();
            assert!(begun.elapsed() < PATIENCE);
            assert!(matches!(watched.wait(), Err(ForwardError::Closing { rpc: "hold" })));
            held.go(1000);
            pair.service.finalize_and_wait().unwrap();
        });
    });
}

#[test]
fn a_cancelled_call_ends_and_its_late_answer_is_dropped() {
    with_held(|pair, target, held| {
        let request = pair.client.rpc(HOLD, target, &1).start().unwrap();
        held.begun(1);
        request.cancel();
        request.cancel();
        assert_canceled(request.wait());
        held.go(1);
        held.ended(1);
        // Not the late answer to the first one.
        let next = pair.client.rpc(HOLD, target, &2).start().unwrap();
        held.go(1);
        assert_eq!(next.wait().unwrap(), 2);
    });
}

#[test]
fn a_cancel_is_no_timeout_and_a_timeout_no_cancel() {
    with_held(|pair, target, held| {
        let request = pair.client.rpc(HOLD, target, &1).timeout(LONG).start().unwrap();
        held.begun(1);
        request.cancel();
        assert_canceled(request.wait());
        let request = pair.client.rpc(HOLD, target, &1).timeout(Duration::ZERO).start().unwrap();
        // Whoever is first has said why.
        while !request.test() {
            std::thread::yield_now();
        }
        request.cancel();
        assert_timed_out(request.wait(), Duration::ZERO);
    });
}

#[test]
fn a_cancel_after_the_end_changes_nothing() {
    with_held(|pair, target, _| {
        let request = pair.client.rpc(SUM, target, &(1, 2)).start().unwrap();
        let canceler = request.canceler();
        assert_eq!(ult::wait_any(&[request.ready()], None), Some(0));
        request.cancel();
        canceler.cancel();
        assert_eq!(request.wait().unwrap(), 3);
        canceler.cancel();
    });
}

#[test]
fn another_thread_cancels_while_a_ult_waits() {
    with_held(|pair, target, held| {
        let request = pair.client.rpc(HOLD, target, &1).start().unwrap();
        let canceler = request.canceler();
        let waiting = pair.client.layout().rpc_pool().spawn(move || request.wait()).unwrap();
        held.begun(1);
        canceler.clone().cancel();
        assert_canceled(waiting.join().unwrap());
        canceler.cancel();
    });
}

#[test]
fn a_call_to_oneself_can_be_cancelled() {
    bounded("a call to oneself", || {
        for transport in common::TRANSPORTS {
            let own = builder(transport).start().unwrap();
            let held = Held::serve(&own);
            let target = ProviderHandle::from(own.self_addr());
            let request = own.rpc(HOLD, &target, &1).start().unwrap();
            held.begun(1);
            request.cancel();
            assert_canceled(request.wait());
            let limit = Duration::from_millis(1);
            assert_timed_out(own.forward_timed(HOLD, &target, &1, limit), limit);
            held.go(2);
            own.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn a_detached_call_goes_on() {
    with_held(|pair, target, held| {
        let request = pair.client.rpc(HOLD, target, &1).start().unwrap();
        held.begun(1);
        request.detach();
        held.go(1);
        held.ended(1);
    });
}

#[test]
fn the_first_of_several_requests() {
    with_held(|pair, target, held| {
        // A provider whose handlers answer at once; the default one holds.
        let quick = ProviderHandle::new(target.addr().clone(), ProviderId::new(9));
        let provider = echo_provider(&pair.service, 9);
        let start = |to, n: u32| pair.client.rpc(HOLD, to, &n).start().unwrap();
        let mut requests = vec![start(target, 10), start(&quick, 11), start(target, 12)];
        let (at, result) = margo::wait_any(&mut requests).unwrap();
        assert_eq!((at, result.unwrap(), requests.len()), (1, 11, 2));
        assert!(margo::wait_any_deadline(&mut requests, Instant::now() + SHORT).is_none());
        assert_eq!(requests.len(), 2);
        requests[1].cancel();
        let (at, result) = margo::wait_any(&mut requests).unwrap();
        assert_eq!(at, 1);
        assert_canceled(result);
        held.go(2);
        let (at, result) = margo::wait_any(&mut requests).unwrap();
        assert_eq!((at, result.unwrap()), (0, 10));
        assert!(margo::wait_any(&mut requests).is_none());
        assert!(margo::wait_any_deadline(&mut requests, Instant::now() + LONG).is_none());
        drop(provider);
    });
}

#[test]
fn each_of_several_requests_has_its_own_deadline() {
    with_held(|pair, target, _| {
        let start = |limit| pair.client.rpc(HOLD, target, &1).timeout(limit).start().unwrap();
        let mut limit = SHORT;
        loop {
            let (later, mut requests) = (10 * limit, vec![start(LONG)]);
            let started = Instant::now();
            requests.push(start(later));
            requests.push(start(limit));
            let (at, result) = margo::wait_any(&mut requests).unwrap();
            if started.elapsed() >= later {
                // This thread was held up: both may have been over.
                limit *= 2;
                continue;
            }
            assert_eq!(at, 2);
            assert_timed_out(result, limit);
            let until = Instant::now() + PATIENCE;
            let (at, result) = margo::wait_any_deadline(&mut requests, until).unwrap();
            assert_eq!(at, 1);
            assert_timed_out(result, later);
            assert_eq!(requests.len(), 1);
            break;
        }
    });
}

#[test]
fn all_of_several_requests() {
    with_held(|pair, target, held| {
        let mut requests: Vec<ForwardRequest<u32>> = Vec::new();
        for n in 0..40 {
            let rpc = if n == 20 { NOBODY } else { HOLD };
            requests.push(pair.client.rpc(rpc, target, &n).start().unwrap());
        }
        held.begun(39);
        held.go(39);
        for (result, n) in margo::wait_all(requests).into_iter().zip(0..) {
            match result {
                Err(ForwardError::NotRegistered { rpc: "nobody", .. }) => assert_eq!(n, 20),
                result => assert_eq!(result.unwrap(), n),
            }
        }
        // An iterator that starts them: all before the first wait, or they would wait for ever.
        let start = |n| pair.client.rpc(HOLD, target, &n).start().unwrap();
        let opener = {
            let held = held.clone();
            std::thread::spawn(move || {
                held.begun(3);
                held.go(3);
            })
        };
        assert_eq!(margo::wait_all((0..3).map(start)).len(), 3);
        opener.join().unwrap();
    });
}

#[test]
fn calls_of_different_types_and_a_channel() {
    with_held(|pair, target, _| {
        let (sender, receiver) = ult::channel::unbounded();
        let held = pair.client.rpc(HOLD, target, &1).start().unwrap();
        let sum = pair.client.rpc(SUM, target, &(1, 1)).start().unwrap();
        let objects: [&dyn Selectable; 3] = [held.ready(), sum.ready(), &receiver];
        assert_eq!(ult::wait_any(&objects, None), Some(1));
        sender.send(3).unwrap();
        let objects: [&dyn Selectable; 2] = [held.ready(), &receiver];
        assert_eq!(ult::wait_any(&objects, None), Some(1));
        assert_eq!(ult::wait_any(&[held.ready()], Some(Instant::now() + SHORT)), None);
        assert_eq!(sum.wait().unwrap(), 2);
    });
}

#[test]
fn the_first_of_a_call_and_a_timer() {
    with_held(|pair, target, held| {
        let pool = pair.client.layout().rpc_pool();
        let request = pair.client.rpc(HOLD, target, &1).start().unwrap();
        let timer = pool.spawn_after(SHORT, || {}).unwrap();
        let objects: [&dyn Selectable; 2] = [request.ready(), &timer];
        assert_eq!(ult::wait_any(&objects, None), Some(1));
        held.go(1);
        let timer = pool.spawn_after(LONG, || {}).unwrap();
        let objects: [&dyn Selectable; 2] = [&timer, request.ready()];
        assert_eq!(ult::wait_any(&objects, None), Some(1));
        // Else the end would wait for it.
        assert!(timer.cancel());
        assert_eq!(request.wait().unwrap(), 1);
    });
}

#[test]
fn requests_without_a_response_are_over_when_they_are_sent() {
    const TELL: OneWay<Vec<u8>> = OneWay::new("tell");
    const LONG: usize = 1 << 20;
    with_held(|pair, target, _| {
        let (sender, told) = ult::channel::unbounded();
        let tell = move |handle: margo::Handle<Vec<u8>, _>| {
            sender.send(handle.args().len()).unwrap();
        };
        pair.service.serve(TELL).handler(tell).unwrap();
        let start = |len| pair.client.rpc(TELL, target, &vec![1; len]).start_send().unwrap();
        for sent in margo::wait_all([5, LONG].map(start)) {
            sent.unwrap();
        }
        start(7).detach();
        block_on(start(LONG + 1)).unwrap();
        let (client, to) = (pair.client.clone(), target.clone());
        let send = move || client.rpc(TELL, &to, &vec![1; 9]).start_send().unwrap().detach();
        pair.client.layout().rpc_pool().tasklet().spawn(send).unwrap().join().unwrap();
        let mut lens: Vec<_> = (0..5).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
        lens.sort_unstable();
        assert_eq!(lens, [5, 7, 9, LONG, LONG + 1]);

        let late = pair
            .client
            .rpc(TELL, target, &vec![])
            .timeout(Duration::ZERO)
            .start_send()
            .unwrap_err();
        assert!(matches!(late, ForwardError::TimedOut { never_ran: true, .. }), "{late}");
        let in_time =
            pair.client.rpc(TELL, target, &vec![1; 3]).timeout(PATIENCE).start_send().unwrap();
        in_time.wait().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(3), "and nothing of the late one");
    });
}

#[test]
fn errors_of_a_service_are_told_apart_however_it_is_called() {
    const HALF: Rpc<u32, Result<u32, String>> = Rpc::new("half");
    with_held(|pair, target, _| {
        let half = |n: u32| match n.is_multiple_of(2) {
            true => Ok(n / 2),
            false => Err(format!("{n} is odd")),
        };
        pair.service.serve(HALF).function(half).unwrap();
        let client = &pair.client;
        let requests: Vec<_> =
            [8, 7].map(|n| client.rpc(HALF, target, &n).start().unwrap()).into_iter().collect();
        let halves: Vec<_> =
            margo::wait_all(requests).into_iter().map(CallError::flatten).collect();
        assert!(matches!(halves[0], Ok(4)), "{:?}", halves[0]);
        assert!(matches!(&halves[1], Err(CallError::Service(text)) if text == "7 is odd"));
        assert!(matches!(client.rpc(HALF, target, &6).timeout(PATIENCE).call(), Ok(3)));
        let (sender, receiver) = ult::channel::unbounded();
        let nobody = ProviderHandle::new(target.addr().clone(), ProviderId::new(43));
        for to in [target, &nobody] {
            let sender = sender.clone();
            let callback = move |result| sender.send(CallError::flatten(result)).unwrap();
            client.rpc(HALF, to, &9).call_back(callback).unwrap();
            let error = receiver.recv_timeout(PATIENCE).unwrap().unwrap_err();
            assert_eq!(error.service().is_some(), to == target);
        }
    });
}

#[test]
fn requests_are_futures() {
    with_held(|pair, target, held| {
        let start = |n| pair.client.rpc(HOLD, target, &n).start().unwrap();
        let both = zip(start(1), start(2));
        held.go(2);
        let (first, second) = block_on(both);
        assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
        // The loser of a race is dropped, and so cancelled; it moves after it was polled.
        let (slow, quick) = (start(1), pair.client.rpc(SUM, target, &(1, 1)).start().unwrap());
        let mut slow = slow;
        assert!(block_on(poll_once(&mut slow)).is_none());
        let race = or(async { slow.await.map(i64::from) }, quick);
        assert_eq!(ult::block_on(race).unwrap(), 2);
    });
}

#[test]
fn a_ult_that_is_cancelled_cancels_its_call() {
    with_held(|pair, target, held| {
        let waits: [fn(&margo::Instance, &ProviderHandle); 3] = [
            |client, target| drop(client.forward(HOLD, target, &1)),
            |client, target| drop(client.forward_timed(HOLD, target, &1, LONG)),
            |client, target| drop(client.rpc(HOLD, target, &1).start().unwrap().wait()),
        ];
        for wait in waits {
            let (client, target) = (pair.client.clone(), target.clone());
            let ult =
                pair.client.layout().rpc_pool().spawn(move || wait(&client, &target)).unwrap();
            held.begun(1);
            ult.cancel();
            assert!(matches!(ult.join(), Err(ult::JoinError::Cancelled)));
        }
    });
}

/// 64 calls with a deadline; the handler of the 17th removes the RPC, when half of them have been
/// sent.
#[test]
fn an_rpc_is_deregistered_while_it_is_called() {
    bounded("calls of an RPC that goes", || {
        on_each(|pair| {
            let provider = Arc::new(Mutex::new(None));
            let gone = Arc::new(Eventual::new());
            let served = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let (own, has_gone, count) = (provider.clone(), gone.clone(), served.clone());
            let new = pair.service.provider(ProviderId::new(3), &pair.service.layout().rpc_pool());
            new.register(HOLD, move |handle| {
                if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 16 {
                    drop(own.lock().unwrap().take());
                    has_gone.set(()).unwrap();
                }
                handle.respond(handle.args()).unwrap();
            })
            .unwrap();
            *provider.lock().unwrap() = Some(new);
            let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(3));
            let start = |n| pair.client.rpc(HOLD, &target, &n).timeout(PATIENCE).start().unwrap();
            let mut requests: Vec<_> = (0..32).map(start).collect();
            gone.wait();
            requests.extend((32..64).map(start));
            let mut failed = 0;
            for (result, n) in margo::wait_all(requests).into_iter().zip(0..) {
                match result {
                    Ok(value) => assert_eq!(value, n),
                    Err(ForwardError::NotRegistered { .. }) => failed += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert!((32..=47).contains(&failed), "{failed} calls failed");
            assert_eq!(served.load(std::sync::atomic::Ordering::SeqCst), 64 - failed);
            pair.end();
        });
    });
}

#[test]
fn the_end_of_the_instance_ends_requests() {
    bounded("the end of an instance", || {
        on_each(|pair| {
            let held = Held::serve(&pair.service);
            let target = pair.target();
            let request = pair.client.rpc(HOLD, &target, &1).start().unwrap();
            held.begun(1);
            pair.client.finalize_and_wait().unwrap();
            assert!(matches!(request.wait(), Err(ForwardError::Closing { rpc: "hold" })));
            let late = pair.client.rpc(HOLD, &target, &1).start();
            assert!(matches!(late, Err(ForwardError::Closing { rpc: "hold" })), "{late:?}");
            held.go(1);
            pair.service.finalize_and_wait().unwrap();
        });
    });
}

#[test]
fn what_nobody_serves_is_told_however_it_is_called() {
    with_held(|pair, target, _| {
        // Of a peer, and of oneself.
        for (caller, addr) in
            [(&pair.client, target.addr().clone()), (&pair.service, pair.service.self_addr())]
        {
            for (rpc, id) in [(NOBODY, ProviderId::DEFAULT), (HOLD, ProviderId::new(43))] {
                let to = ProviderHandle::new(addr.clone(), id);
                let (sender, receiver) = ult::channel::unbounded();
                let callback = move |result| sender.send(result).unwrap();
                caller.rpc(rpc, &to, &1).call_back(callback).unwrap();
                for result in [
                    caller.forward(rpc, &to, &1),
                    caller.forward_timed(rpc, &to, &1, PATIENCE),
                    caller.rpc(rpc, &to, &1).start().unwrap().wait(),
                    caller.rpc(rpc, &to, &1).timeout(PATIENCE).start().unwrap().wait(),
                    receiver.recv().unwrap(),
                ] {
                    match result {
                        Err(ForwardError::NotRegistered { rpc: name, provider, .. }) => {
                            assert_eq!((name, provider), (rpc.name(), id));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    });
}

#[test]
fn long_arguments_and_results_are_in_flight_like_short_ones() {
    const ECHO: margo::Rpc<String, String> = margo::Rpc::new("echo");
    with_held(|pair, target, _| {
        let client = &pair.client;
        pair.service.register(ECHO, |handle| handle.respond(handle.args()).unwrap()).unwrap();
        let texts: Vec<_> = [0, 100, 10_000, 1_000_000].map(|len| "x".repeat(len)).into();
        let requests: Vec<_> = texts
            .iter()
            // The arguments are not needed after this.
            .map(|text| client.rpc(ECHO, target, &text.clone()).start().unwrap())
            .collect();
        for (result, text) in margo::wait_all(requests).into_iter().zip(&texts) {
            assert!(result.unwrap() == *text);
        }
        // Ended early, in whatever phase.
        for text in texts.iter().cycle().take(40) {
            drop(client.rpc(ECHO, target, text).start().unwrap());
            let limit = Duration::from_micros(30);
            let timed = client.rpc(ECHO, target, text).timeout(limit).start().unwrap().wait();
            let in_time = matches!(&timed, Ok(back) if back == text);
            assert!(in_time || matches!(timed, Err(ForwardError::TimedOut { .. })), "{timed:?}");
        }
    });
}
