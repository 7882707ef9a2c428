//! Traces: every process knows which calls belong together, and records them.

use std::fmt::{Debug, Write as _};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, TRANSPORTS, bounded};
use crate::trace_support::{Traced, finish, lies_within, traced};
use margo::trace::{self, TraceContext};
use margo::{Handle, Instance, NoResponse, OneWay, ProviderHandle, Rpc};
use serde_json::json;
use tracing::Level;
use tracing::field::Field;

/// Answers with the id of its trace, as the handler, its unit and a ULT that it spawns know it.
const LEAF: Rpc<(), [Option<String>; 3]> = Rpc::new("leaf");
/// Calls [`LEAF`] at the address, and adds its own.
const RELAY: Rpc<String, Vec<Option<String>>> = Rpc::new("relay");
const UNKNOWN: Rpc<(), ()> = Rpc::new("unknown");

fn id(context: Option<TraceContext>) -> Option<String> {
    context.map(|context| context.trace_id.to_string())
}

fn serve_leaf(service: &Instance) {
    let answer = |handle: Handle<(), [Option<String>; 3]>| {
        let pool = handle.instance().layout().rpc_pool();
        let inside = pool.spawn(trace::current).unwrap().join().unwrap();
        assert_eq!(handle.trace(), trace::current());
        handle.respond(&[id(handle.trace()), id(trace::current()), id(inside)]).unwrap();
    };
    service.register(LEAF, answer).unwrap();
}

fn serve_relay(service: &Instance) {
    let relay = |handle: Handle<String, Vec<Option<String>>>| {
        let to = ProviderHandle::from(handle.instance().lookup(handle.args()).unwrap());
        let found = handle.instance().forward(LEAF, &to, &()).unwrap();
        let own = [id(handle.trace())].into_iter().chain(found).collect();
        handle.respond(&own).unwrap();
    };
    service.register(RELAY, relay).unwrap();
}

fn target(client: &Instance, service: &Instance) -> ProviderHandle {
    ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap())
}

fn untraced(address: &str) -> Instance {
    Instance::builder(address).start().unwrap()
}

#[test]
fn a_chain_of_calls_is_one_trace() {
    for transport in TRANSPORTS {
        bounded(transport, move || {
            let dir = tempfile::tempdir().unwrap();
            let start = |name| traced(transport, dir.path(), name, json!({}));
            let (a, b, c) = (start("a"), start("b"), start("c"));
            serve_relay(&b);
            serve_leaf(&c);
            let seen = a.forward(RELAY, &target(&a, &b), &c.self_addr().to_string()).unwrap();
            assert_eq!(trace::current(), None);
            let (a, b, c) = (finish(a), finish(b), finish(c));
            let root = a.one("call", "relay");
            assert_eq!(root.parent, None);
            assert_eq!(seen, vec![Some(root.trace.clone()); 4]);
            let chain = [
                (&a, root),
                (&b, b.one("handler", "relay")),
                (&b, b.one("call", "leaf")),
                (&c, c.one("handler", "leaf")),
            ];
            for pair in chain.windows(2) {
                let ((_, outer), (_, inner)) = (pair[0], pair[1]);
                assert_eq!(inner.trace, root.trace);
                assert_eq!(inner.parent.as_ref(), Some(&outer.span));
                assert!(lies_within(inner, outer), "{transport}: {inner:?} in {outer:?}");
                assert_eq!(inner.args["outcome"], "ok");
            }
            // An arrow leads from each call over the queue to the handler.
            for calls in [&chain[..2], &chain[2..]] {
                let ((from, call), (to, handler)) = (calls[0], calls[1]);
                let queue = to.one("queue", &handler.name);
                assert!(from.has_arrow("s", call, call.tid), "{:?}", from.arrows);
                assert!(to.has_arrow("t", call, queue.tid), "{:?}", to.arrows);
                assert!(to.has_arrow("f", call, handler.tid), "{:?}", to.arrows);
                assert_eq!(queue.span, handler.span);
                assert_eq!(queue.end_ns, handler.begin_ns);
            }
            // What the handler waited for is drawn inside it.
            assert_eq!(chain[1].1.tid, chain[2].1.tid);
            assert_eq!(
                (&c.end["args"]["lost"], &c.end["args"]["left_out"]),
                (&json!(0), &json!(0))
            );
        });
    }
}

#[test]
fn who_does_not_record_hands_on_what_it_got() {
    for transport in TRANSPORTS {
        bounded(transport, move || {
            let dir = tempfile::tempdir().unwrap();
            let start = |name| traced(transport, dir.path(), name, json!({}));
            let (a, b, c) = (start("a"), untraced(transport), start("c"));
            assert_eq!(b.monitoring().trace_file(), None);
            serve_relay(&b);
            serve_leaf(&c);
            let seen = a.forward(RELAY, &target(&a, &b), &c.self_addr().to_string()).unwrap();
            let (a, c) = (finish(a), finish(c));
            let (call, leaf) = (a.one("call", "relay"), c.one("handler", "leaf"));
            assert_eq!(seen, vec![Some(call.trace.clone()); 4]);
            assert_eq!((&leaf.trace, leaf.parent.as_ref()), (&call.trace, Some(&call.span)));
            b.finalize_and_wait().unwrap();
        });
    }
}

#[test]
fn a_rate_of_zero_records_and_sends_nothing() {
    bounded("a rate of zero", || {
        let dir = tempfile::tempdir().unwrap();
        let start = |name| traced("na+sm://", dir.path(), name, json!({ "sample_rate": 0 }));
        let (a, b) = (start("a"), start("b"));
        serve_leaf(&b);
        let to = target(&a, &b);
        for _ in 0..50 {
            assert_eq!(a.forward(LEAF, &to, &()).unwrap(), [None, None, None]);
        }
        // What somebody else has sampled is recorded all the same.
        let context = TraceContext::begin();
        let seen = trace::within(Some(context), || a.forward(LEAF, &to, &()).unwrap());
        assert_eq!(seen, [id(Some(context)), id(Some(context)), id(Some(context))]);
        let (a, b) = (finish(a), finish(b));
        assert_eq!(a.one("call", "leaf").parent, Some(context.span_id.to_string()));
        assert_eq!(b.one("handler", "leaf").trace, context.trace_id.to_string());
    });
}

#[test]
fn a_service_whose_clients_say_nothing_begins_traces() {
    bounded("silent clients", || {
        let dir = tempfile::tempdir().unwrap();
        let (a, c) = (untraced("na+sm://"), untraced("na+sm://"));
        let b = traced("na+sm://", dir.path(), "b", json!({}));
        let rate = json!({ "request_sample_rate": 0 });
        let quiet = traced("na+sm://", dir.path(), "quiet", rate);
        serve_relay(&b);
        serve_leaf(&c);
        serve_leaf(&quiet);
        let seen = a.forward(RELAY, &target(&a, &b), &c.self_addr().to_string()).unwrap();
        assert_eq!(a.forward(LEAF, &target(&a, &quiet), &()).unwrap(), [None, None, None]);
        let b = finish(b);
        let handler = b.one("handler", "relay");
        assert_eq!(seen, vec![Some(handler.trace.clone()); 4]);
        assert_eq!(handler.parent, None);
        let user = std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().unwrap());
        assert_eq!(handler.args["caller"], format!("user {user}"));
        assert_eq!(b.one("call", "leaf").parent.as_ref(), Some(&handler.span));
        assert!(finish(quiet).slices.is_empty());
        a.finalize_and_wait().unwrap();
        c.finalize_and_wait().unwrap();
    });
}

#[test]
fn every_way_to_call_belongs_to_the_trace_and_has_its_place() {
    const FAN: Rpc<String, usize> = Rpc::new("fan");
    bounded("ways to call", || {
        let dir = tempfile::tempdir().unwrap();
        let start = |name| traced("na+sm://", dir.path(), name, json!({}));
        let (a, b, c) = (start("a"), start("b"), start("c"));
        serve_leaf(&c);
        let fan = |handle: Handle<String, usize>| {
            let (instance, own) = (handle.instance().clone(), id(handle.trace()));
            let to = ProviderHandle::from(instance.lookup(handle.args()).unwrap());
            // At the same time, with one that waits in between.
            let requests: Vec<_> =
                (0..3).map(|_| instance.rpc(LEAF, &to, &()).start().unwrap()).collect();
            instance.forward(LEAF, &to, &()).unwrap();
            for request in requests {
                assert_eq!(request.wait().unwrap()[0], own);
            }
            // From ULTs of the handler.
            let (inner, there) = (instance.clone(), to.clone());
            let child = move || inner.forward(LEAF, &there, &()).unwrap();
            let pool = instance.layout().rpc_pool();
            let children: Vec<_> = (0..3).map(|_| pool.spawn(child.clone()).unwrap()).collect();
            for child in children {
                assert_eq!(child.join().unwrap()[0], own);
            }
            // With a callback, which is part of it, too.
            let (sender, receiver) = ult::channel::unbounded();
            let call = move |result: Result<[Option<String>; 3], _>| {
                sender.send((result.unwrap(), id(trace::current()))).unwrap();
            };
            instance.rpc(LEAF, &to, &()).call_back(call).unwrap();
            let (leaf, after) = receiver.recv().unwrap();
            assert_eq!((&leaf[0], &after), (&own, &own));
            handle.respond(&8).unwrap();
        };
        b.register(FAN, fan).unwrap();
        let calls = a.forward(FAN, &target(&a, &b), &c.self_addr().to_string()).unwrap();
        let (a, b, c) = (finish(a), finish(b), finish(c));
        let (root, handler) = (a.one("call", "fan"), b.one("handler", "fan"));
        assert_eq!((b.of("call").len(), c.of("handler").len()), (calls, calls));
        for call in b.of("call") {
            assert_eq!((&call.trace, call.parent.as_ref()), (&root.trace, Some(&handler.span)));
            let there: Vec<_> = c
                .of("handler")
                .into_iter()
                .filter(|s| s.parent.as_ref() == Some(&call.span))
                .collect();
            assert_eq!(there.len(), 1);
            assert!(lies_within(there[0], call));
        }
    });
}

#[test]
fn transfers_of_a_handler_are_recorded_inside_it() {
    const FETCH: Rpc<(margo::Bulk, u64), ()> = Rpc::new("fetch");
    const BYTES: usize = 100_000;
    for transport in TRANSPORTS {
        bounded(transport, move || {
            let dir = tempfile::tempdir().unwrap();
            let start = |name| traced(transport, dir.path(), name, json!({}));
            let (a, b) = (start("a"), start("b"));
            let fetch = |handle: Handle<(margo::Bulk, u64), ()>| {
                let mut buffer = handle.instance().memory().bulk_buffer(BYTES).unwrap();
                let (bulk, _) = handle.args();
                handle.pull(bulk, 0, &mut buffer, 0..BYTES).unwrap();
                assert!(buffer.iter().all(|byte| *byte == 7));
                handle.respond(&()).unwrap();
            };
            b.register(FETCH, fetch).unwrap();
            let (data, to) = (vec![7; BYTES], target(&a, &b));
            a.memory()
                .expose_ref(&data, |bulk| a.forward(FETCH, &to, &(bulk.clone(), 0)).unwrap())
                .unwrap();
            let (a, b) = (finish(a), finish(b));
            let (handler, pull) = (b.one("handler", "fetch"), b.one("bulk", "pull"));
            assert_eq!((pull.parent.as_ref(), pull.tid), (Some(&handler.span), handler.tid));
            assert!(lies_within(pull, handler));
            assert_eq!((&pull.args["bytes"], &pull.args["outcome"]), (&json!(BYTES), &json!("ok")));
            assert!(a.of("bulk").is_empty(), "who is pulled from does not know");
        });
    }
}

#[test]
fn calls_that_fail_say_so() {
    const TELL: OneWay<u8> = OneWay::new("tell");
    const BAD: Rpc<(), ()> = Rpc::new("bad");
    bounded("failing calls", || {
        let dir = tempfile::tempdir().unwrap();
        let start = |name| traced("na+sm://", dir.path(), name, json!({}));
        let (a, b) = (start("a"), start("b"));
        let (sender, told) = ult::channel::unbounded();
        b.register(BAD, |_handle| panic!("on purpose")).unwrap();
        let tell = move |handle: Handle<u8, NoResponse>| {
            sender.send(id(handle.trace())).unwrap();
        };
        b.serve(TELL).handler(tell).unwrap();
        let to = target(&a, &b);
        assert!(a.forward(UNKNOWN, &to, &()).is_err());
        assert!(a.forward(BAD, &to, &()).is_err());
        a.send(TELL, &to, &1).unwrap();
        let told = told.recv().unwrap();
        let (a, b) = (finish(a), finish(b));
        let outcome = |traced: &Traced, cat: &str, name: &str| {
            traced.one(cat, name).args["outcome"].as_str().unwrap().to_owned()
        };
        assert_eq!(outcome(&a, "call", "unknown"), "not_registered");
        assert_eq!(outcome(&a, "call", "bad"), "panicked");
        assert_eq!(outcome(&b, "handler", "bad"), "panicked");
        assert_eq!(outcome(&a, "call", "tell"), "ok");
        assert_eq!(a.one("call", "tell").args["one_way"], true);
        assert_eq!(told, Some(b.one("handler", "tell").trace.clone()));
    });
}

#[test]
fn what_is_too_much_is_counted_and_the_file_stays_whole() {
    bounded("too much", || {
        let dir = tempfile::tempdir().unwrap();
        let warned = Arc::new(AtomicUsize::new(0));
        let counts = warned.clone();
        common::log::listen(Level::WARN, move |event| {
            let mut said = String::new();
            event.record(&mut |_: &Field, value: &dyn Debug| _ = write!(said, "{value:?}"));
            counts.fetch_add(usize::from(said.contains("file is full")), Ordering::Relaxed);
        });
        let small = json!({ "file_bytes_max": 65_536 });
        let (a, b) = (traced("na+sm://", dir.path(), "a", small), untraced("na+sm://"));
        let few = json!({ "queue_max": 16 });
        let c = traced("na+sm://", dir.path(), "c", few);
        serve_leaf(&b);
        const CALLS: usize = 2_000;
        let to = target(&c, &b);
        (0..CALLS).for_each(|_| _ = c.forward(LEAF, &to, &()).unwrap());
        let (to, begun) = (target(&a, &b), Instant::now());
        let mut sampled = 0;
        while a.forward(LEAF, &to, &()).unwrap() != [None, None, None] {
            sampled += 1;
            assert!(begun.elapsed() < PATIENCE, "calls go on to be recorded, {sampled} by now");
        }
        // Nothing is begun any more, and what others have begun is handed on.
        (0..100).for_each(|_| assert_eq!(a.forward(LEAF, &to, &()).unwrap(), [None, None, None]));
        let context = TraceContext::begin();
        let seen = trace::within(Some(context), || a.forward(LEAF, &to, &()).unwrap());
        assert_eq!(seen, [id(Some(context)), id(Some(context)), id(Some(context))]);
        let (a, c) = (finish(a), finish(c));
        let sum = |traced: &Traced| {
            let end = &traced.end["args"];
            let (lost, left) = (end["lost"].as_u64().unwrap(), end["left_out"].as_u64().unwrap());
            (traced.of("call").len(), lost as usize, left as usize)
        };
        let (written, lost, left_out) = sum(&a);
        // The last one may have seen that it is over when it had been sampled.
        let recorded = written + lost + left_out;
        assert!(recorded <= sampled && recorded + 1 >= sampled, "{recorded} {sampled}");
        assert!(left_out > 0 && written > 10, "{written} {left_out}");
        assert_eq!(warned.load(Ordering::Relaxed), 1);
        assert!(std::fs::metadata(&a.path).unwrap().len() <= 65_536);
        let (written, lost, left_out) = sum(&c);
        assert_eq!((written + lost, left_out), (CALLS, 0));
        b.finalize_and_wait().unwrap();
    });
}

#[test]
fn the_files_of_an_earlier_run_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (host, pid) = (rustix::system::uname(), std::process::id());
    let host = host.nodename().to_str().unwrap();
    // More than other tests of this process may have passed.
    let name = |number: u32| match number {
        1 => format!("x.{host}.{pid}.trace.json"),
        number => format!("x.{host}.{pid}.{number}.trace.json"),
    };
    let before: Vec<_> = (1..=200).map(|number| dir.path().join(name(number))).collect();
    before.iter().for_each(|path| std::fs::write(path, "of a crash").unwrap());
    let own = traced("na+sm://", dir.path(), "x", json!({}));
    let written = own.monitoring().trace_file().unwrap().to_owned();
    assert!(!before.contains(&written) && written.parent() == Some(dir.path()), "{written:?}");
    finish(own);
    assert_ne!(std::fs::read_to_string(written).unwrap(), "of a crash");
    for path in before {
        assert_eq!(std::fs::read_to_string(path).unwrap(), "of a crash");
    }
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let trace = json!({ "enable": true, "filename_prefix": dir.path().join("none/x") });
    let error = margo::init(&json!({ "margo": { "trace": trace } }).to_string()).unwrap_err();
    assert!(matches!(&error, margo::InitError::Trace { path, .. } if path.starts_with(dir.path())));
    assert!(error.to_string().contains("none/x"), "{error}");
}

#[test]
fn what_outlives_a_request_is_no_part_of_it() {
    const ARM: Rpc<(), ()> = Rpc::new("arm");
    bounded("what outlives a request", || {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (traced("na+sm://", dir.path(), "a", json!({})), untraced("na+sm://"));
        let (sender, fired) = ult::channel::unbounded();
        let (started, made) = ult::channel::unbounded();
        // Arms a timer, and starts an instance, whose progress ULT is spawned here.
        let arm = move |handle: Handle<(), ()>| {
            assert!(trace::current().is_some());
            let told = sender.clone();
            let timer = handle.instance().timer(move |_| told.send(id(trace::current())).unwrap());
            timer.start(Duration::from_millis(1)).unwrap();
            started.send((untraced("na+sm://"), timer)).unwrap();
            handle.respond(&()).unwrap();
        };
        b.register(ARM, arm).unwrap();
        a.forward(ARM, &target(&a, &b), &()).unwrap();
        assert_eq!(fired.recv().unwrap(), None);
        let (inner, timer) = made.recv().unwrap();
        serve_leaf(&inner);
        let silent = untraced("na+sm://");
        let to = target(&silent, &inner);
        assert_eq!(silent.forward(LEAF, &to, &()).unwrap(), [None, None, None]);
        drop(timer);
        finish(a);
        for instance in [silent, inner, b] {
            instance.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn statistics_count_and_time_what_they_would_without_a_trace() {
    bounded("statistics", || {
        let dir = tempfile::tempdir().unwrap();
        // Times one call in so many, or none, while each is recorded.
        for every in [0, 7] {
            let start = |name| traced("na+sm://", dir.path(), name, json!({}));
            let (a, b) = (start("a"), start("b"));
            a.monitoring().start_statistics(every);
            b.monitoring().start_statistics(every);
            serve_leaf(&b);
            let to = target(&a, &b);
            const CALLS: u64 = 300;
            for _ in 0..CALLS {
                a.forward(LEAF, &to, &()).unwrap();
            }
            let (origin, at_target) = (a.clone(), b.clone());
            let (a, b) = (finish(a), finish(b));
            assert_eq!(a.of("call").len() as u64, CALLS);
            assert_eq!(b.of("handler").len() as u64, CALLS);
            let (origin, at_target) =
                (origin.monitoring().statistics(), at_target.monitoring().statistics());
            assert_eq!((origin.origin[0].calls, at_target.target[0].requests), (CALLS, CALLS));
            let timed = origin.origin[0].figures.total.count;
            let timed_at_target = at_target.target[0].figures.bytes_in.count;
            if every == 0 {
                assert_eq!((timed, timed_at_target), (0, 0));
            } else {
                // Each that is timed stands for those before it.
                assert!((1..=CALLS).contains(&timed), "{timed}");
                assert!((1..=CALLS).contains(&timed_at_target), "{timed_at_target}");
            }
        }
    });
}

#[test]
fn a_forked_child_does_not_repeat_the_ids_of_its_parent() {
    // So that there is something of which a child has a copy.
    let _ = TraceContext::begin();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child uses only what the C library keeps usable after a fork (memory), and ends
    // by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let drawn = TraceContext::begin().to_string();
        let code = i32::from(writer.write_all(drawn.as_bytes()).is_err());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "cannot fork");
    drop(writer);
    let own = TraceContext::begin();
    let mut drawn = String::new();
    reader.read_to_string(&mut drawn).unwrap();
    let mut status = -1;
    // SAFETY: a child of ours that nobody else waits for; the pointer is to a live variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    let other = TraceContext::from_traceparent(&drawn).unwrap();
    assert!(other.trace_id != own.trace_id && other.span_id != own.span_id, "{own} {other}");
}

#[test]
fn tracks_bear_the_names_of_xstreams_that_came_later() {
    bounded("other xstreams", || {
        let dir = tempfile::tempdir().unwrap();
        let a = untraced("na+sm://");
        let b = traced("na+sm://", dir.path(), "b", json!({}));
        let pool = b.layout().add_pool_from_json(r#"{ "name": "p" }"#).unwrap().pool;
        let add = |name: &str| {
            let json = format!(r#"{{ "name": "{name}", "scheduler": {{ "pools": ["p"] }} }}"#);
            b.layout().add_xstream_from_json(&json).unwrap().xstream
        };
        let rank = add("old").rank();
        b.layout().remove_xstream("old").unwrap();
        assert_eq!(add("new").rank(), rank);
        b.serve(LEAF).pool(&pool).function(|()| [None, None, None]).unwrap();
        a.forward(LEAF, &target(&a, &b), &()).unwrap();
        let b = finish(b);
        let tid = b.one("handler", "leaf").tid;
        assert!(b.tracks.contains(&(tid, "new".to_owned())), "{:?}", b.tracks);
        a.finalize_and_wait().unwrap();
    });
}
