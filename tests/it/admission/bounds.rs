//! Bounds on requests in hand: of pools, of RPCs, of peers; refused or waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::support::{Client, HOLD, Held, PING, TELL, assert_busy, join, until};
use crate::common::{PATIENCE, TRANSPORTS, bounded, builder, one_shard_alone};
use margo::config::{Admission, Overload};
use margo::{Access, Bulk, BulkError, ForwardError, Handle, ProviderHandle, ProviderId, Rpc};
use ult::Eventual;

#[test]
fn beyond_the_bound_of_a_pool_callers_are_told_busy_at_once() {
    let pools = r#"{ "pools": [{ "pool": "slow", "handlers_max": 3 }] }"#;
    for (transport, admission) in TRANSPORTS.iter().zip([r#"{ "handlers_max": 3 }"#, pools]) {
        let held = Held::new(transport, admission, None);
        let client = held.client();
        let calls = client.start(0..3);
        held.begun(3);
        for _ in 0..10 {
            assert_busy(client.call());
        }
        // Another pool is not concerned.
        client.ping();
        let load =
            held.service.monitoring().load(&held.service.layout().pool("slow").unwrap()).unwrap();
        assert_eq!((load.in_hand, load.waiting, load.refused), (3, 0, 10));
        assert_eq!(load.bounds.handlers_max, 3);
        held.go.release(3);
        assert_eq!(join(calls).into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
        until("room again", || {
            held.service
                .monitoring()
                .load(&held.service.layout().pool("slow").unwrap())
                .unwrap()
                .in_hand
                == 0
        });
        held.go.release(1);
        assert_eq!(client.call().unwrap(), 7);
        let stats = held.service.monitoring().stats();
        assert_eq!((stats.requests_busy, stats.requests_refused), (10, 0));
        client.end();
        held.end();
    }
}

#[test]
fn an_rpc_can_have_a_bound_of_its_own() {
    let held = Held::new(TRANSPORTS[0], "{}", Some(Admission::new(2)));
    let client = held.client();
    let calls = client.start(0..2);
    held.begun(2);
    assert_busy(client.call());
    let load = held.service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap();
    assert_eq!((load.in_hand, load.refused), (2, 1));
    // What was refused by the RPC has left no trace in the pool.
    let pool =
        held.service.monitoring().load(&held.service.layout().pool("slow").unwrap()).unwrap();
    assert_eq!((pool.in_hand, pool.refused), (2, 0));
    assert!(held.service.monitoring().rpc_load(PING, ProviderId::DEFAULT).is_none());
    held.go.release(2);
    join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
    // Handlers leave after their answers.
    until("both have left", || held.service.monitoring().stats().handlers_run == 2);
    client.end();
    held.end();
}

#[test]
fn requests_that_may_wait_are_all_handled_and_never_more_than_allowed_at_once() {
    let wait = r#"{ "handlers_max": 4, "overload": "wait" }"#;
    let of_rpc = Admission::new(4).overload(Overload::Wait);
    for (transport, (admission, own)) in TRANSPORTS.iter().zip([(wait, None), ("{}", Some(of_rpc))])
    {
        let held = Held::new(transport, admission, own);
        let (one, two) = (held.client(), held.client());
        let (first, second) = (one.start(0..200), two.start(0..200));
        held.begun(4);
        held.go.release(400);
        for calls in [first, second] {
            let results: Vec<_> = join(calls).into_iter().map(Result::unwrap).collect();
            assert_eq!(results, (0..200).collect::<Vec<_>>());
        }
        assert_eq!(held.most.load(Ordering::SeqCst), 4);
        assert_eq!(held.waiting(), 0);
        one.end();
        two.end();
        held.end();
    }
}

#[test]
fn peers_that_wait_take_turns() {
    let held = Held::new(TRANSPORTS[0], r#"{ "handlers_max": 1, "overload": "wait" }"#, None);
    let (many, few) = (held.client(), held.client());
    let flood = many.start(0..50);
    held.begun(1);
    until("the flood waits", || held.waiting() == 49);
    let polite = few.start(0..1);
    until("the other one waits", || held.waiting() == 50);
    // The handler that runs, then one of the flood at most, then the polite peer's.
    held.go.release(3);
    assert!(join(polite)[0].is_ok());
    held.go.release(48);
    join(flood).into_iter().for_each(|call| assert!(call.is_ok()));
    many.end();
    few.end();
    held.end();
}

#[test]
fn one_peer_cannot_take_the_share_of_others() {
    for overload in ["busy", "wait"] {
        let admission =
            format!(r#"{{ "handlers_max": 3, "peer_handlers_max": 2, "overload": "{overload}" }}"#);
        let held = Held::new(TRANSPORTS[0], &admission, None);
        let (many, few) = (held.client(), held.client());
        let flood = many.start(0..2);
        held.begun(2);
        let beyond = many.start(2..4);
        let beyond = if overload == "busy" {
            join(beyond).into_iter().for_each(assert_busy);
            Vec::new()
        } else {
            until("it waits", || held.waiting() == 2);
            beyond
        };
        let polite = few.start(0..1);
        held.begun(1);
        held.go.release(5);
        for calls in [flood, polite, beyond] {
            join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
        }
        many.end();
        few.end();
        held.end();
    }
}

/// Default bounds: of 256 places one client gets seven sixteenths, all clients of its host or user
/// half, and others the rest. They hold in a pool and in an RPC.
#[test]
fn by_default_nobody_takes_all_places() {
    for transport in TRANSPORTS {
        for (admission, own) in
            [(r#"{ "handlers_max": 256 }"#, None), ("{}", Some(Admission::new(256)))]
        {
            let held = Held::new(transport, admission, own);
            let clients = [(); 3].map(|()| held.client());
            let [many, few, late] = &clients;
            let mut calls = many.start(0..112);
            held.begun(112);
            assert_busy(many.call());
            // A second connection of the same host or user has the rest of the half.
            calls.extend(few.start(0..16));
            held.begun(16);
            assert_busy(few.call());
            assert_busy(late.call());
            // The service's own calls are not theirs.
            let own = Client {
                instance: held.service.clone(),
                target: ProviderHandle::from(held.service.self_addr()),
            };
            calls.extend(own.start(0..10));
            held.begun(10);
            held.go.release(138);
            join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
            let in_hand = || {
                held.service
                    .monitoring()
                    .load(&held.service.layout().pool("slow").unwrap())
                    .unwrap()
                    .in_hand
            };
            until("all have left", || in_hand() == 0);
            held.go.release(1);
            assert_eq!(late.call().unwrap(), 7);
            clients.into_iter().for_each(Client::end);
            held.end();
        }
    }
}

/// However many connections a host or user has, they have one share of what was set for it, and in
/// "wait" they take turns behind it.
#[test]
fn a_crowd_of_one_host_has_the_share_of_one() {
    for transport in TRANSPORTS {
        for overload in ["busy", "wait"] {
            let admission = format!(
                r#"{{ "handlers_max": 9, "peer_handlers_max": 2, "host_handlers_max": 5,
                     "overload": "{overload}" }}"#
            );
            let held = Held::new(transport, &admission, None);
            let clients = [(); 4].map(|()| held.client());
            let mut calls = clients[0].start(0..2);
            held.begun(2);
            calls.extend(clients[1].start(0..2));
            held.begun(2);
            calls.extend(clients[2].start(0..1));
            held.begun(1);
            let beyond = clients[3].start(0..2);
            match overload {
                "busy" => join(beyond).into_iter().for_each(assert_busy),
                _ => {
                    until("they wait", || held.waiting() == 2);
                    calls.extend(beyond);
                }
            }
            assert_eq!(held.now.load(Ordering::SeqCst), 5);
            held.go.release(7);
            join(calls).into_iter().for_each(|call| assert!(call.is_ok()));
            assert_eq!(held.most.load(Ordering::SeqCst), 5);
            clients.into_iter().for_each(Client::end);
            held.end();
        }
    }
}

/// Requests of one client to a pool that is stuck do not take all places of those that wait to be
/// decoded: others are served, and it is told that we are busy.
#[test]
fn by_default_nobody_holds_all_requests_that_wait_to_be_decoded() {
    for transport in TRANSPORTS {
        let document = format!(
            r#"{{ "margo": {{ "address": "{transport}", "requests_max": 512 }},
                 "argobots": {{ "pools": [{{ "name": "stuck" }}],
                     "xstreams": [{{ "name": "s", "scheduler": {{ "pools": ["stuck"] }} }}] }} }}"#
        );
        let service = margo::init(&document).unwrap();
        let stuck = service.layout().pool("stuck").unwrap();
        service.serve(HOLD).pool(&stuck).function(|n| n).unwrap();
        service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        // Holds the execution stream itself.
        let holder = stuck.spawn(move || wait.recv().unwrap()).unwrap();
        let client = || {
            let own = transport.split("://").next().unwrap();
            let instance = builder(format!("{own}://")).listen(false).start().unwrap();
            let target = ProviderHandle::from(instance.lookup(service.self_addr().uri()).unwrap());
            Client { instance, target }
        };
        let (many, few) = (client(), client());
        let start = |n: u32| many.instance.rpc(HOLD, &many.target, &n).start().unwrap();
        let calls: Vec<_> = (0..600).map(start).collect();
        // 192 for anybody and 32 more of one peer, of 512 in all.
        until("the rest is refused", || calls.iter().filter(|call| call.test()).count() == 376);
        few.ping();
        go.send(()).unwrap();
        holder.join().unwrap();
        let results = bounded("the answers", move || margo::wait_all(calls));
        let (good, bad): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(good.len(), 224);
        bad.into_iter().for_each(assert_busy);
        assert_eq!(service.monitoring().stats().requests_busy, 376);
        // Its share is whole again.
        let calls: Vec<_> = (0..224).map(start).collect();
        let results = bounded("the answers", move || margo::wait_all(calls));
        results.into_iter().for_each(|result| assert!(result.is_ok()));
        many.end();
        few.end();
        service.finalize_and_wait().unwrap();
    }
}

/// An origin that is there and serves nothing does not hold a handler that pulls from it.
#[test]
fn a_handler_is_not_held_by_an_origin_that_serves_nothing() {
    if one_shard_alone("its other shards serve while one is held up") {
        return;
    }
    const PULL: Rpc<Bulk, String> = Rpc::new("pull");
    // Over shared memory the origin has nothing to do.
    let document = r#"{ "margo": { "address": "na+tcp://127.0.0.1:0",
                                   "bulk": { "timeout_msec": 100 } } }"#;
    let service = margo::init(document).unwrap();
    let ends = Arc::new(Eventual::<String>::new());
    let end = ends.clone();
    let pull = move |handle: &Handle<Bulk, String>| {
        let mut buffer = handle.instance().memory().bulk_buffer(100_000).unwrap();
        let error = handle.pull(handle.args(), 0, &mut buffer, 0..100_000).unwrap_err();
        assert!(matches!(error, BulkError::StoodStill { .. }), "{error}");
        end.set(error.to_string()).unwrap();
        String::new()
    };
    service.serve(PULL).returning(pull).unwrap();
    service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
    let client = builder("na+tcp://").start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    // They are connected: from then on a call goes without progress.
    client.forward_timed(PING, &target, &(), PATIENCE).unwrap();
    let exposed = client.expose(vec![1_u8; 100_000], Access::ReadOnly).unwrap();
    // Its progress stands still from here on.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let begun = Arc::new(std::sync::Barrier::new(2));
    let begins = begun.clone();
    let hold = move || {
        begins.wait();
        wait.recv().unwrap();
    };
    let holder = client.layout().progress_pool().spawn(hold).unwrap();
    begun.wait();
    let call = client.rpc(PULL, &target, exposed.bulk()).start().unwrap();
    let error = bounded("the transfer ends", move || ends.wait().clone());
    assert!(error.contains("`margo.bulk.timeout_msec`") && error.contains("100ms"), "{error}");
    go.send(()).unwrap();
    holder.join().unwrap();
    assert_eq!(bounded("the answer", move || call.wait()).unwrap(), "");
    until("they have left", || service.monitoring().stats().handlers_run == 2);
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_shutdown_refuses_what_waits_and_lets_end_what_is_in_hand() {
    let held = Held::new(TRANSPORTS[0], r#"{ "handlers_max": 1, "overload": "wait" }"#, None);
    let client = held.client();
    let inside = client.start(0..1);
    held.begun(1);
    let waiting = client.start(0..5);
    until("they wait", || held.waiting() == 5);
    held.service.finalize();
    for call in join(waiting) {
        let error = call.unwrap_err();
        assert!(matches!(error, ForwardError::PeerClosing { .. }), "{error}");
    }
    held.go.release(1);
    assert_eq!(join(inside).pop().unwrap().unwrap(), 0);
    client.end();
    held.end();
}

#[test]
fn a_call_that_comes_during_a_shutdown_is_refused_and_what_is_in_hand_is_answered() {
    let of_rpc = Admission::new(2);
    for (admission, own) in [
        // A gate where nobody waits, and three that look more closely.
        ("{}", None),
        (r#"{ "handlers_max": 2 }"#, None),
        (r#"{ "handlers_max": 2, "overload": "wait" }"#, None),
        (r#"{ "peer_handlers_max": 2 }"#, None),
        ("{}", Some(of_rpc)),
    ] {
        for transport in TRANSPORTS {
            let held = Held::new(transport, admission, own);
            let client = held.client();
            let inside = client.start(0..1);
            held.begun(1);
            held.service.finalize();
            for refused in 1..4 {
                let error = client.call().unwrap_err();
                assert!(matches!(error, ForwardError::PeerClosing { .. }), "{admission}: {error}");
                assert!(error.never_ran());
                assert_eq!(held.service.monitoring().stats().requests_refused, refused);
            }
            // Those that were refused have given their places back.
            let slow = held.service.layout().pool("slow").unwrap();
            until("one is in hand", || held.service.monitoring().load(&slow).unwrap().in_hand == 1);
            assert_eq!(held.begun.available(), 0, "none of them has run");
            assert!(!held.service.is_finalized());
            held.go.release(1);
            assert_eq!(join(inside).pop().unwrap().unwrap(), 0, "{admission}");
            client.end();
            held.end();
        }
    }
}

/// Requests that wait for their RPC are nobody's burden but its own: of a pool with room for 4, six
/// of an RPC that has room for one take one place.
#[test]
fn who_waits_for_its_rpc_leaves_the_pool_to_others() {
    const OUTER: Rpc<u32, u32> = Rpc::new("outer");
    const INNER: Rpc<u32, u32> = Rpc::new("inner");
    let own = Admission::new(1).overload(Overload::Wait);
    for overload in ["busy", "wait"] {
        let admission = format!(r#"{{ "handlers_max": 4, "overload": "{overload}" }}"#);
        for transport in TRANSPORTS {
            let held = Held::new(transport, &admission, Some(own));
            let slow = held.service.layout().pool("slow").unwrap();
            held.service.serve(INNER).pool(&slow).function(|n| n + 1).unwrap();
            let nested = ProviderHandle::from(held.service.self_addr());
            let outer = move |handle: &Handle<u32, u32>| {
                handle.instance().forward_timed(INNER, &nested, handle.args(), PATIENCE).unwrap()
            };
            held.service.serve(OUTER).pool(&slow).admission(own).returning(outer).unwrap();
            let client = held.client();
            let calls = client.start(0..6);
            held.begun(1);
            let waiting = || {
                held.service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap().waiting == 5
            };
            until("five wait", waiting);
            assert_eq!(held.service.monitoring().load(&slow).unwrap().in_hand, 1);
            assert_eq!(held.waiting(), 0);
            // Another RPC of the pool, and one that calls it.
            let ask = |rpc, n: u32| {
                client.instance.forward_timed(rpc, &client.target, &n, PATIENCE).unwrap()
            };
            assert_eq!(ask(INNER, 1), 2);
            let nested: Vec<_> = (0..6)
                .map(|n| client.instance.rpc(OUTER, &client.target, &n).start().unwrap())
                .collect();
            let nested = bounded("nested calls", move || margo::wait_all(nested));
            for (n, result) in (1..).zip(nested) {
                assert_eq!(result.unwrap(), n);
            }
            held.go.release(6);
            let results: Vec<_> = join(calls).into_iter().map(Result::unwrap).collect();
            assert_eq!(results, [0, 1, 2, 3, 4, 5]);
            assert_eq!(held.most.load(Ordering::SeqCst), 1);
            let empty = || held.service.monitoring().load(&slow).unwrap().in_hand == 0;
            until("all have left", empty);
            // 6 each of both, one and those that were nested.
            assert_eq!(held.service.monitoring().stats().handlers_run, 6 + 6 + 1 + 6, "{overload}");
            client.end();
            held.end();
        }
    }
}

/// A request that waits for a place of its RPC, then for one of the pool, is let in when another
/// one leaves the pool.
#[test]
fn who_has_waited_for_its_rpc_waits_for_the_pool_next() {
    const OTHER: Rpc<u32, u32> = Rpc::new("other");
    let own = Admission::new(1).overload(Overload::Wait);
    for transport in TRANSPORTS {
        let held = Held::new(transport, r#"{ "handlers_max": 1, "overload": "wait" }"#, Some(own));
        let slow = held.service.layout().pool("slow").unwrap();
        held.service.serve(OTHER).pool(&slow).function(|n| n).unwrap();
        let client = held.client();
        let calls = client.start(0..3);
        held.begun(1);
        let rpc = || held.service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap();
        until("two wait for their RPC", || rpc().waiting == 2);
        let other = client.instance.rpc(OTHER, &client.target, &7).start().unwrap();
        until("one waits for the pool", || held.waiting() == 1);
        held.go.release(1);
        // It was there before the next of the RPC.
        assert_eq!(bounded("the other one", move || other.wait()).unwrap(), 7);
        held.begun(1);
        held.go.release(2);
        let results: Vec<_> = join(calls).into_iter().map(Result::unwrap).collect();
        assert_eq!(results, [0, 1, 2]);
        until("all have left", || rpc().in_hand == 0 && held.waiting() == 0);
        client.end();
        held.end();
    }
}

/// A request that waits for a place of its RPC is refused at a shutdown, wherever it waits.
#[test]
fn a_shutdown_refuses_who_waits_for_its_rpc() {
    let own = Admission::new(2).overload(Overload::Wait);
    for admission in ["{}", r#"{ "handlers_max": 1, "overload": "wait" }"#] {
        let held = Held::new(TRANSPORTS[0], admission, Some(own));
        let client = held.client();
        let inside = client.start(0..1);
        held.begun(1);
        let second = client.start(1..2);
        let in_hand =
            || held.service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap().in_hand;
        until("the second is in", || in_hand() == 2);
        let waiting = client.start(2..6);
        let waits =
            || held.service.monitoring().rpc_load(HOLD, ProviderId::DEFAULT).unwrap().waiting;
        until("they wait", || waits() == 4);
        held.service.finalize();
        for call in join(waiting) {
            let error = call.unwrap_err();
            assert!(matches!(error, ForwardError::PeerClosing { .. }), "{error}");
        }
        held.go.release(2);
        assert_eq!(join(inside).pop().unwrap().unwrap(), 0);
        // In hand if its pool had room for it.
        assert_eq!(join(second).pop().unwrap().is_ok(), admission == "{}");
        client.end();
        held.end();
    }
}

#[test]
fn one_way_requests_beyond_the_bound_are_dropped_and_counted() {
    for transport in TRANSPORTS {
        let service = builder(transport).start().unwrap();
        let (go, sum) = (Arc::new(Eventual::<()>::new()), Arc::new(AtomicUsize::new(0)));
        let (may_go, total) = (go.clone(), sum.clone());
        service
            .serve(TELL)
            .admission(Admission::new(1))
            .handler(move |handle| {
                may_go.wait();
                total.fetch_add(*handle.args() as usize, Ordering::SeqCst);
            })
            .unwrap();
        service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for n in [5, 10, 20] {
            client.send(TELL, &target, &n).unwrap();
        }
        // Behind them on the same connection.
        client.forward_timed(PING, &target, &(), PATIENCE).unwrap();
        assert_eq!(service.monitoring().stats().requests_busy, 2);
        go.set(()).unwrap();
        until("the first is handled", || sum.load(Ordering::SeqCst) > 0);
        assert_eq!(sum.load(Ordering::SeqCst), 5);
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn an_rpc_moves_to_another_pool_while_requests_run() {
    const WHERE: Rpc<(), String> = Rpc::new("where");
    let held = Held::new(TRANSPORTS[0], "{}", None);
    let (service, client) = (&held.service, held.client());
    let where_am_i = |()| ult::current().unwrap().pool.to_string();
    service.serve(WHERE).function(where_am_i).unwrap();
    let default = service.layout().rpc_pool();
    let slow = service.layout().pool("slow").unwrap();
    let ask = || client.instance.forward_timed(WHERE, &client.target, &(), PATIENCE).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (instance, target, stopped) =
        (client.instance.clone(), client.target.clone(), stop.clone());
    let asking = client.instance.layout().rpc_pool().spawn(move || {
        let mut answers = 0;
        while !stopped.load(Ordering::Relaxed) {
            instance.forward_timed(WHERE, &target, &(), PATIENCE).unwrap();
            answers += 1;
        }
        answers
    });
    for _ in 0..50 {
        for pool in [&slow, &default] {
            service.layout().set_handler_pool(WHERE, ProviderId::DEFAULT, pool).unwrap();
            assert_eq!(
                service.layout().handler_pool(WHERE, ProviderId::DEFAULT).as_ref(),
                Some(pool)
            );
            assert_eq!(ask(), pool.name());
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(asking.unwrap().join().unwrap() > 0);
    let unknown = service.layout().set_handler_pool(WHERE, ProviderId::new(3), &slow).unwrap_err();
    assert!(unknown.to_string().contains("`where` is not registered for provider 3"), "{unknown}");
    assert_eq!(service.layout().handler_pool(WHERE, ProviderId::new(3)), None);
    client.end();
    held.end();
}

/// Requests for the metrics or the end of a service pass while the service is at its bounds.
#[test]
fn a_service_at_its_bound_can_be_looked_at_and_ended_by_others() {
    for (transport, overload) in TRANSPORTS.iter().zip(["busy", "wait"]) {
        let admission = format!(r#"{{ "handlers_max": 1, "overload": "{overload}" }}"#);
        let document = format!(
            r#"{{ "margo": {{ "address": "{transport}", "admission": {admission},
                 "remote_shutdown": true, "metrics": {{ "remote": true }} }} }}"#
        );
        let service = margo::init(&document).unwrap();
        assert_eq!(
            service.layout().rpc_pool(),
            service.layout().progress_pool(),
            "all of them share one pool"
        );
        let (begun, go) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<()>::new()));
        let (here, wait) = (begun.clone(), go.clone());
        let hold = move |n| {
            here.set(()).unwrap();
            wait.wait();
            n
        };
        service.serve(HOLD).function(hold).unwrap();
        let own = transport.split("://").next().unwrap();
        let client = builder(format!("{own}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let held = client.rpc(HOLD, &target, &1).start().unwrap();
        bounded("the handler begins", move || *begun.wait());
        let metrics = client.network().metrics_of_timed(target.addr(), PATIENCE).unwrap();
        assert_eq!(metrics.handlers_running, 2, "{overload}: that one, and this one");
        client.network().shutdown_remote_timed(target.addr(), PATIENCE).unwrap();
        until("it ends", || service.is_finalizing());
        go.set(()).unwrap();
        assert_eq!(bounded("the answer", move || held.wait()).unwrap(), 1);
        service.wait_for_finalize().unwrap();
        until("both are counted", || service.monitoring().stats().handlers_run == 3);
        assert_eq!(service.monitoring().stats().requests_busy, 0);
        client.finalize_and_wait().unwrap();
    }
}
