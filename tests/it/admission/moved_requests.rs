//! Requests whose handler has ended and left its `Handle` to somebody else: they are in hand, and a
//! shutdown waits for them, until they are answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::{PING, TELL, assert_busy, until};
use crate::common::{self, Pair, TRANSPORTS, bounded, builder};
use margo::config::{Admission, Overload};
use margo::{
    ForwardError, ForwardRequest, Handle, Instance, ProviderId, RegisterError, RespondError, Rpc,
};
use serde::{Deserialize, Serialize, Serializer};
use ult::Semaphore;

const KEEP: Rpc<u32, u32> = Rpc::new("keep");

/// The handles that handlers have left.
type Kept<R> = Arc<Mutex<Vec<Handle<u32, R>>>>;

/// A handler that ends, and leaves the request here.
fn keeping<R: 'static>(kept: &Kept<R>) -> impl Fn(Handle<u32, R>) + Send + Sync + 'static {
    let kept = kept.clone();
    move |handle| kept.lock().unwrap().push(handle)
}

fn serve(service: &Instance, own: Option<Admission>) -> Kept<u32> {
    let kept = Kept::default();
    let serve = service.serve(KEEP);
    let serve = if let Some(own) = own { serve.admission(own) } else { serve };
    serve.handler(keeping(&kept)).unwrap();
    service.register(PING, |handle| handle.respond(&()).unwrap()).unwrap();
    kept
}

fn start(pair: &Pair, numbers: std::ops::Range<u32>) -> Vec<ForwardRequest<u32>> {
    let target = pair.target();
    numbers.map(|n| pair.client.rpc(KEEP, &target, &n).start().unwrap()).collect()
}

/// Waits until so many handlers have ended.
fn until_kept<R>(kept: &Kept<R>, count: usize) {
    until("handles are kept", || kept.lock().unwrap().len() == count);
}

fn answer_all(kept: &Kept<u32>) {
    for handle in std::mem::take(&mut *kept.lock().unwrap()) {
        handle.respond(handle.args()).unwrap();
    }
}

fn assert_answered(requests: Vec<ForwardRequest<u32>>, numbers: std::ops::Range<u32>) {
    let results = bounded("the answers", move || margo::wait_all(requests));
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(results, numbers.collect::<Vec<_>>());
}

/// In the default pool.
fn in_hand(service: &Instance) -> usize {
    service.monitoring().load(&service.layout().rpc_pool()).unwrap().in_hand
}

/// Over each transport, with a bound of the RPC's own and one of its pool.
fn with_a_bound(max: usize, overload: Overload, body: impl Fn(&Pair, &Kept<u32>)) {
    for transport in TRANSPORTS {
        for own in [false, true] {
            let bounds = Admission::new(max).overload(overload);
            let mut pair = Pair::new(transport);
            if !own {
                let wait = if overload == Overload::Wait { "wait" } else { "busy" };
                let document = format!(
                    r#"{{ "margo": {{ "address": "{transport}", "admission":
                        {{ "handlers_max": {max}, "overload": "{wait}" }} }} }}"#
                );
                let first = std::mem::replace(&mut pair.service, margo::init(&document).unwrap());
                first.finalize_and_wait().unwrap();
            }
            let kept = serve(&pair.service, own.then_some(bounds));
            body(&pair, &kept);
            pair.end();
        }
    }
}

#[test]
fn they_are_in_hand_until_they_are_answered() {
    with_a_bound(8, Overload::Busy, |pair, kept| {
        for _ in 0..3 {
            let requests = start(pair, 0..8);
            until_kept(kept, 8);
            for refused in start(pair, 8..12) {
                assert_busy(bounded("a refusal", move || refused.wait()));
            }
            assert_eq!(in_hand(&pair.service), 8);
            answer_all(kept);
            assert_answered(requests, 0..8);
            until("there is room again", || in_hand(&pair.service) == 0);
        }
    });
}

#[test]
fn whoever_answers_lets_in_who_waits() {
    with_a_bound(1, Overload::Wait, |pair, kept| {
        let requests = start(pair, 0..20);
        for _ in 0..20 {
            until_kept(kept, 1);
            answer_all(kept);
        }
        assert_answered(requests, 0..20);
        until("all have left", || in_hand(&pair.service) == 0);
    });
}

/// Any thread may answer, but only the xstream of a private pool may spawn into that pool.
#[test]
fn whoever_answers_lets_in_who_waits_for_a_pool_that_is_said_to_be_private() {
    for transport in TRANSPORTS {
        let mut pair = Pair::new(transport);
        let private = format!(
            r#"{{ "rpc_pool": "own", "progress_pool": "net",
                "margo": {{ "address": "{transport}", "admission": {{
                    "pools": [{{ "pool": "own", "handlers_max": 1, "overload": "wait" }}] }} }},
                "argobots": {{
                    "pools": [{{ "name": "net" }}, {{ "name": "own", "access": "private" }},
                        {{ "name": "private", "access": "private" }}],
                    "xstreams": [{{ "name": "x",
                        "scheduler": {{ "pools": ["net", "own", "private"] }} }}] }} }}"#
        );
        let first = std::mem::replace(&mut pair.service, margo::init(&private).unwrap());
        first.finalize_and_wait().unwrap();
        let service = &pair.service;
        let kept = serve(service, None);
        let requests = start(&pair, 0..5);
        for _ in 0..5 {
            until_kept(&kept, 1);
            // On this thread, which is none of the service's.
            answer_all(&kept);
        }
        assert_answered(requests, 0..5);
        until("all have left", || in_hand(service) == 0);

        // With bounds of an RPC's own it cannot be known before it is registered.
        const OWN: Rpc<u32, u32> = Rpc::new("own");
        let pool = service.layout().pool("private").unwrap();
        let serve = |bounds| service.serve(OWN).pool(&pool).admission(bounds).function(|n| n);
        let waits = Admission::new(1).overload(Overload::Wait);
        let error = serve(waits).unwrap_err();
        assert!(matches!(error, RegisterError::PrivateWait { rpc: "own", .. }), "{error}");
        assert!(error.to_string().contains("pool `private`"), "{error}");
        assert_eq!(service.monitoring().load(&pool), None, "nothing is served there");
        serve(Admission::new(1)).unwrap();
        let elsewhere = service.layout().rpc_pool();
        let provider = ProviderId::new(1);
        let other = service.provider(provider, &elsewhere);
        other.serve(OWN).admission(waits).function(|n| n).unwrap();
        let error = service.layout().set_handler_pool(OWN, provider, &pool).unwrap_err();
        assert!(matches!(error, RegisterError::PrivateWait { rpc: "own", .. }), "{error}");
        drop(other);
        pair.end();
    }
}

#[test]
fn one_that_is_answered_and_kept_is_not_in_hand() {
    common::on_each(|pair| {
        let kept = Kept::default();
        let keep = keeping(&kept);
        pair.service
            .serve(KEEP)
            .admission(Admission::new(1))
            .handler(move |handle| {
                handle.respond(handle.args()).unwrap();
                keep(handle);
            })
            .unwrap();
        for n in 0..3 {
            assert_answered(start(&pair, n..n + 1), n..n + 1);
            let load = || pair.service.monitoring().rpc_load(KEEP, ProviderId::DEFAULT).unwrap();
            until("it has left", || load().in_hand == 0);
        }
        until_kept(&kept, 3);
        drop(std::mem::take(&mut *kept.lock().unwrap()));
        pair.end();
    });
}

#[test]
fn a_one_way_request_is_in_hand_until_its_handler_ends() {
    common::on_each(|pair| {
        let kept = Kept::default();
        pair.service.serve(TELL).admission(Admission::new(1)).handler(keeping(&kept)).unwrap();
        for n in 1..4 {
            pair.client.send(TELL, &pair.target(), &n).unwrap();
            until_kept(&kept, n as usize);
            until("it has left", || in_hand(&pair.service) == 0);
        }
        pair.service.finalize_and_wait().unwrap();
        drop(std::mem::take(&mut *kept.lock().unwrap()));
        pair.client.finalize_and_wait().unwrap();
    });
}

/// A result whose encoding panics.
#[derive(Debug, Deserialize)]
struct Bad;

impl Serialize for Bad {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("a test")
    }
}

#[test]
fn dropped_or_answered_by_a_panic_they_leave() {
    const BAD: Rpc<u32, Bad> = Rpc::new("bad");
    common::on_each(|pair| {
        let kept = Kept::default();
        pair.service.serve(BAD).admission(Admission::new(2)).handler(keeping(&kept)).unwrap();
        let target = pair.target();
        let call = |n| pair.client.rpc(BAD, &target, &n).start().unwrap();
        let requests = vec![call(0), call(1)];
        until_kept(&kept, 2);
        drop(kept.lock().unwrap().pop());
        assert_eq!(in_hand(&pair.service), 1);
        let panics = kept.lock().unwrap().pop().unwrap();
        std::thread::spawn(move || panics.respond(&Bad)).join().unwrap_err();
        until("both have left", || in_hand(&pair.service) == 0);
        let results = bounded("errors", move || margo::wait_all(requests));
        let errors = results.into_iter().map(Result::unwrap_err);
        let (panicked, failed): (Vec<_>, Vec<_>) = errors.partition(|error| match error {
            ForwardError::Panicked { detail, .. } => detail.contains("a test"),
            _ => false,
        });
        assert!(matches!(failed[..], [ForwardError::Failed { .. }]), "{failed:?}");
        assert_eq!(panicked.len(), 1, "{panicked:?}");
        pair.end();
    });
}

/// A handler that has given its request away may go on for long.
#[test]
fn one_that_is_lost_to_a_panic_elsewhere_is_answered_while_its_handler_runs() {
    common::on_each(|pair| {
        let go = Arc::new(Semaphore::new(0));
        let may_go = go.clone();
        let give_away = move |handle: Handle<u32, u32>| {
            let pool = handle.instance().layout().rpc_pool();
            let in_thread = *handle.args() == 0;
            let loses = move || {
                let _lost = handle;
                panic!("a test");
            };
            if in_thread {
                std::thread::spawn(loses);
            } else {
                drop(pool.spawn(loses).unwrap());
            }
            may_go.acquire(1).forget();
        };
        pair.service.serve(KEEP).handler(give_away).unwrap();
        for request in start(&pair, 0..2) {
            let result = bounded("an answer", move || request.wait());
            assert!(matches!(result, Err(ForwardError::Panicked { .. })), "{result:?}");
        }
        assert_eq!(in_hand(&pair.service), 2, "their handlers run on");
        go.release(2);
        until("they have ended", || in_hand(&pair.service) == 0);
        pair.end();
    });
}

#[test]
fn a_shutdown_waits_for_their_answers() {
    common::on_each(|pair| {
        let kept = serve(&pair.service, None);
        let requests = start(&pair, 0..3);
        until_kept(&kept, 3);
        let answered = Arc::new(AtomicBool::new(false));
        let (seen, in_time) = (answered.clone(), Arc::new(AtomicBool::new(false)));
        let tell = in_time.clone();
        let callback = pair.service.on_prefinalize(move |_| {
            tell.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
        });
        callback.unwrap().keep();
        pair.service.finalize();
        // Time for a shutdown that would not wait.
        for _ in 0..100 {
            let error = pair.client.forward(PING, &pair.target(), &()).unwrap_err();
            assert!(matches!(error, ForwardError::PeerClosing { .. }), "{error}");
        }
        answered.store(true, Ordering::SeqCst);
        answer_all(&kept);
        assert_answered(requests, 0..3);
        pair.service.wait_for_finalize().unwrap();
        assert!(in_time.load(Ordering::SeqCst), "handlers were taken for ended");
        pair.client.finalize_and_wait().unwrap();
    });
}

#[test]
fn what_is_left_after_the_grace_period_is_answered_with_an_error() {
    for transport in TRANSPORTS {
        let mut pair = Pair::new(transport);
        let brief = builder(transport).grace(Duration::from_millis(1)).start().unwrap();
        std::mem::replace(&mut pair.service, brief).finalize_and_wait().unwrap();
        let kept = serve(&pair.service, None);
        let requests = start(&pair, 0..50);
        until_kept(&kept, 50);
        pair.service.finalize_and_wait().unwrap();
        for result in bounded("the answers", move || margo::wait_all(requests)) {
            let error = result.unwrap_err();
            assert!(matches!(error, ForwardError::Failed { .. }), "{transport}: {error}");
            assert!(error.to_string().contains("shut down before it was answered"), "{error}");
            assert!(!error.never_ran(), "its handler has");
        }
        for handle in std::mem::take(&mut *kept.lock().unwrap()) {
            let error = handle.respond(&1).unwrap_err();
            assert!(matches!(error, RespondError::Answered { .. }), "{error}");
        }
        pair.client.finalize_and_wait().unwrap();
    }
}

#[test]
fn who_waits_goes_on_in_the_pool_to_which_its_rpc_was_moved() {
    common::on_each(|pair| {
        let service = &pair.service;
        let [from, to] = ["from", "to"].map(|name| {
            let pool =
                service.layout().add_pool_from_json(&format!(r#"{{ "name": "{name}" }}"#)).unwrap();
            let xstream =
                format!(r#"{{ "name": "{name}", "scheduler": {{ "pools": ["{name}"] }} }}"#);
            service.layout().add_xstream_from_json(&xstream).unwrap();
            pool.pool
        });
        let kept = Kept::default();
        let bounds = Admission::new(1).overload(Overload::Wait);
        service.serve(KEEP).pool(&from).admission(bounds).handler(keeping(&kept)).unwrap();
        let waiting = || service.monitoring().rpc_load(KEEP, ProviderId::DEFAULT).unwrap().waiting;
        let before = start(&pair, 0..10);
        until("all but one wait", || waiting() == 9);
        service.layout().set_handler_pool(KEEP, ProviderId::DEFAULT, &to).unwrap();
        let after = start(&pair, 10..12);
        until("all but one wait", || waiting() == 11);
        service.layout().remove_xstream("from").unwrap();
        service.layout().remove_pool(&from).unwrap();
        for _ in 0..12 {
            until_kept(&kept, 1);
            answer_all(&kept);
        }
        assert_answered(before, 0..10);
        assert_answered(after, 10..12);
        until("all have left", || service.monitoring().load(&to).unwrap().in_hand == 0);
        let load = service.monitoring().rpc_load(KEEP, ProviderId::DEFAULT).unwrap();
        assert_eq!((load.in_hand, load.waiting, load.refused), (0, 0, 0));
        pair.end();
    });
}
