//! Keys of the document: the changes that callers and the wire see.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, bounded};
use margo::{Access, Bulk, ForwardError, Instance, ProviderHandle, Rpc};
use na::{Completion, Endpoint, OpId, OpenOptions};
use ult::Eventual;

const ECHO: Rpc<String, String> = Rpc::new("echo");
const PANIC: Rpc<(), ()> = Rpc::new("panic");

const CRC32C: &str = r#""mercury": { "checksum_level": "rpc_payload" }"#;
const CRC64: &str = r#""mercury": { "checksum_level": "rpc_payload" },
    "margo": { "payload_checksum": "crc64" }"#;

/// A service with such keys, and a client of it.
fn pair(service: &str, client: &str) -> (Instance, Instance, ProviderHandle) {
    let service = margo::init(&format!("{{ {service} }}")).unwrap();
    service.register(ECHO, |request| drop(request.respond(request.args()))).unwrap();
    service.register(PANIC, |_| panic!("{}", "a long reason ".repeat(50))).unwrap();
    let client = margo::init(&format!("{{ {client} }}")).unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    (service, client, target)
}

fn end(service: &Instance, client: &Instance) {
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

/// The first request of an instance with such keys, as bytes.
fn first_request(keys: &str) -> Vec<u8> {
    let endpoint = na::open("na+sm://", &OpenOptions::listening(true)).unwrap();
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    let uri = endpoint.self_addr().uri().to_owned();
    let client = margo::init(&format!("{{ {keys} }}")).unwrap();
    let caller = client.clone();
    let call = std::thread::spawn(move || {
        let target = ProviderHandle::from(caller.lookup(&uri).unwrap());
        caller.forward(ECHO, &target, &"text".to_owned()).unwrap_err();
    });
    let bytes = received(&*endpoint);
    client.finalize_and_wait().unwrap();
    call.join().unwrap();
    bytes
}

fn received(endpoint: &dyn Endpoint) -> Vec<u8> {
    let since = Instant::now();
    let mut message = None;
    while message.is_none() {
        assert!(since.elapsed() < PATIENCE, "no request");
        endpoint
            .poll(1, &mut |completion| {
                if let Completion::Recv { buf, result: Ok(_), .. } = completion {
                    message = Some(buf.as_slice().to_vec());
                }
            })
            .unwrap();
    }
    message.unwrap()
}

/// Version and flags of the header, and what stands where the checksum of the payload would.
#[test]
fn requests_are_written_as_the_document_says() {
    let plain = first_request("");
    assert_eq!((plain[1], plain[10]), (0x05, 0));
    let room = first_request(r#""margo": { "mercury_build": "checksums" }"#);
    assert_eq!((room[1], room[10]), (0x05, 0x80));
    assert_eq!(room.len(), plain.len() + 4);
    let narrow = first_request(CRC32C);
    assert_eq!((narrow[1], narrow[10], narrow.len()), (0x05, 0x80, room.len()));
    assert_ne!(narrow[16..20], [0; 4]);
    let wide = first_request(CRC64);
    assert_eq!((wide[1], wide[10], wide.len()), (0x45, 0x80, room.len() + 4));
}

#[test]
fn checksums_of_both_widths_are_checked_and_taken() {
    bounded("checksums", || {
        for (service, client) in [(CRC64, CRC64), (CRC64, CRC32C), (CRC32C, CRC64)] {
            let (service, client, target) = pair(service, client);
            for len in [0, 10, 100_000] {
                let text = "x".repeat(len);
                assert_eq!(client.forward(ECHO, &target, &text).unwrap(), text);
            }
            end(&service, &client);
        }
    });
}

#[test]
fn without_overflow_long_arguments_and_results_are_refused() {
    let (service, client, target) = pair("", r#""mercury": { "no_overflow": true }"#);
    let long = "x".repeat(100_000);
    let error = client.forward(ECHO, &target, &long).unwrap_err();
    assert!(matches!(error, ForwardError::Encode { .. }), "{error}");
    assert_eq!(client.forward(ECHO, &target, &"short".to_owned()).unwrap(), "short");
    end(&service, &client);
}

#[test]
fn arguments_beyond_the_limit_are_refused_at_either_end() {
    let limit = r#""margo": { "overflow_bytes_max": 50000 }"#;
    let long = "x".repeat(100_000);
    let (service, client, target) = pair("", limit);
    let error = client.forward(ECHO, &target, &long).unwrap_err();
    assert!(matches!(error, ForwardError::Encode { .. }), "{error}");
    end(&service, &client);
    let (service, client, target) = pair(limit, "");
    let error = client.forward_timed(ECHO, &target, &long, PATIENCE).unwrap_err();
    assert!(matches!(error, ForwardError::Failed { .. }), "{error}");
    end(&service, &client);
}

/// The limit on the length of strings applies where they are encoded and where they are decoded.
#[test]
fn the_encoding_is_bounded_at_either_end() {
    let short = r#""margo": { "proc": { "len_max": 10 } }"#;
    let (nine, ten) = ("123456789".to_owned(), "1234567890".to_owned());
    for (service, client) in [("", short), (short, "")] {
        let refuses = if client.is_empty() { "the service" } else { "the client" };
        let (service, client, target) = pair(service, client);
        assert_eq!(client.forward_timed(ECHO, &target, &nine, PATIENCE).unwrap(), nine);
        let error = client.forward_timed(ECHO, &target, &ten, PATIENCE).unwrap_err();
        match refuses {
            "the client" => assert!(matches!(error, ForwardError::Encode { .. }), "{error}"),
            // Without its text, which is longer than it may send.
            _ => assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}"),
        }
        end(&service, &client);
    }
    // A result is decoded within the bounds of who asked for it.
    let (service, client, target) = pair("", short);
    const TELL: Rpc<(), String> = Rpc::new("tell");
    service.register(TELL, move |request| drop(request.respond(&ten))).unwrap();
    let error = client.forward_timed(TELL, &target, &(), PATIENCE).unwrap_err();
    assert!(matches!(error, ForwardError::Decode { .. }), "{error}");
    end(&service, &client);
}

/// The limit applies to the caller's own strings and sequences, and not to bulk handles.
#[test]
fn a_bulk_handle_passes_where_strings_are_short() {
    const LEN: Rpc<Bulk, u64> = Rpc::new("len");
    let short = r#""margo": { "proc": { "len_max": 10 } }"#;
    let (service, client, target) = pair(short, short);
    service.register(LEN, |request| drop(request.respond(&request.args().len()))).unwrap();
    // With its data inside, and without.
    for len in [100, 1 << 20] {
        let exposed = client.expose(vec![1; len], Access::ReadOnly).unwrap();
        let found = client.forward_timed(LEN, &target, exposed.bulk(), PATIENCE).unwrap();
        assert_eq!(found, len as u64);
    }
    end(&service, &client);
}

/// A reason that is too long to be sent leaves what it is the reason of.
#[test]
fn an_error_whose_text_cannot_be_sent_is_told_without_it() {
    for service in [
        r#""margo": { "proc": { "len_max": 9 } }"#,
        r#""mercury": { "no_overflow": true }, "margo": { "eager_size": 256 }"#,
    ] {
        let (service, client, target) = pair(service, "");
        let error = client.forward_timed(PANIC, &target, &(), PATIENCE).unwrap_err();
        let told = matches!(&error, ForwardError::Panicked { detail, .. } if detail.is_empty());
        assert!(told, "{error}");
        end(&service, &client);
    }
}

/// A limit of the transport that only the document sets.
#[test]
fn connections_beyond_the_limit_of_the_document_are_refused() {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let own = transport.split("://").next().unwrap();
        let limit = format!(
            r#""margo": {{ "address": "{transport}", "network": {{ "connections_max": 1 }} }}"#
        );
        let other = format!(r#""margo": {{ "address": "{own}://", "listen": false }}"#);
        let (service, client, target) = pair(&limit, &other);
        client.forward_timed(ECHO, &target, &String::new(), PATIENCE).unwrap();
        let second = margo::init(&format!("{{ {other} }}")).unwrap();
        let refused = ProviderHandle::from(second.lookup(service.self_addr().uri()).unwrap());
        let error = second.forward_timed(ECHO, &refused, &String::new(), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("connections"), "{error}");
        assert!(matches!(error, ForwardError::Network { .. }), "{error}");
        client.forward_timed(ECHO, &target, &String::new(), PATIENCE).unwrap();
        second.finalize_and_wait().unwrap();
        end(&service, &client);
    }
}

/// Sides that take messages of different lengths: what is too long for the other one goes as what
/// is too long for a message, from the very first call on.
#[test]
fn sides_with_different_eager_sizes_understand_each_other() {
    for (transport, short, long) in [
        ("na+sm://", 1024, 16384),
        ("na+sm://", 16384, 1024),
        ("na+tcp://127.0.0.1:0", 1024, 16384),
        ("na+tcp://127.0.0.1:0", 16384, 1024),
    ] {
        let own = transport.split("://").next().unwrap();
        let service = format!(r#""margo": {{ "address": "{transport}", "eager_size": {short} }}"#);
        let client = format!(
            r#""margo": {{ "address": "{own}://", "listen": false, "eager_size": {long} }}"#
        );
        let (service, client, target) = pair(&service, &client);
        for len in [5000, 100, 1000, 1100, 15000, 17000, 5000] {
            let text = "x".repeat(len);
            let back = client.forward_timed(ECHO, &target, &text, PATIENCE);
            assert_eq!(back.unwrap(), text, "{transport} {short} {long}");
        }
        end(&service, &client);
    }
}

/// Transfers in small pieces, few at a time.
#[test]
fn bulk_data_moves_in_pieces_of_the_documents_size() {
    let small = r#""margo": { "bulk": { "chunk_bytes": 4096, "window": 2 } }"#;
    let (service, client, target) = pair("", small);
    let bytes: Vec<u8> = (0..300_001).map(|at| (at % 251) as u8).collect();
    let exposed = service.expose(bytes.clone(), Access::ReadOnly).unwrap();
    let mut buffer = client.memory().bulk_buffer(bytes.len()).unwrap();
    client.pull(target.addr(), exposed.bulk(), 0, &mut buffer, 0..bytes.len()).unwrap();
    assert!(*buffer == *bytes);
    drop((exposed, buffer));
    end(&service, &client);
}

#[test]
fn a_service_that_adds_no_receives_serves_more_requests_than_it_has() {
    let few = r#""mercury": { "request_post_init": 2, "request_post_incr": -1 }"#;
    let (service, client, target) = pair(few, "");
    let calls: Vec<_> = (0..50)
        .map(|n: u32| {
            let (client, target) = (client.clone(), target.clone());
            let call = move || client.forward_timed(ECHO, &target, &n.to_string(), PATIENCE);
            (n, std::thread::spawn(call))
        })
        .collect();
    for (n, call) in calls {
        assert_eq!(call.join().unwrap().unwrap(), n.to_string());
    }
    end(&service, &client);
}

#[test]
fn receives_come_back_when_arguments_are_read_or_with_the_answer() {
    const WAIT: Rpc<(), ()> = Rpc::new("wait");
    for early in [true, false] {
        let keys = format!(
            r#""mercury": {{ "request_post_init": 2, "request_post_incr": -1,
                "release_input_early": {early} }}"#
        );
        let (service, client, target) = pair(&keys, "");
        let (begun, go) = (Arc::new(ult::Semaphore::new(0)), Arc::new(ult::Semaphore::new(0)));
        let (begins, may_go) = (begun.clone(), go.clone());
        let wait = move |()| {
            begins.release(1);
            may_go.acquire(1).forget();
        };
        service.serve(WAIT).function(wait).unwrap();
        let start = |_| client.rpc(WAIT, &target, &()).timeout(PATIENCE).start().unwrap();
        let mut calls: Vec<_> = (0..3).map(start).collect();
        let has_begun = |count: usize| {
            let begun = begun.clone();
            bounded("handlers begin", move || begun.acquire(count).forget());
        };
        if early {
            has_begun(3);
        } else {
            has_begun(2);
            let context = &service.metrics().shards[0];
            assert_eq!((context.requests_held, context.receives_posted), (2, 0));
            go.release(1);
            let (_, first) = margo::wait_any(&mut calls).unwrap();
            first.unwrap();
            has_begun(1);
        }
        go.release(3);
        margo::wait_all(calls).into_iter().for_each(|call| call.unwrap());
        end(&service, &client);
    }
}

#[test]
fn a_traffic_class_and_a_subnet_are_for_networks() {
    let keys = r#""mercury": { "traffic_class": "low_latency", "ip_subnet": "127.0.0.0/8" }"#;
    // Shared memory has neither, which is no error.
    for address in ["na+sm://", "na+tcp://"] {
        let keys = format!(r#"{keys}, "margo": {{ "address": "{address}" }}"#);
        let (service, client, target) = pair(&keys, &keys);
        let sent = "text".to_owned();
        assert_eq!(client.forward_timed(ECHO, &target, &sent, PATIENCE).unwrap(), sent);
        end(&service, &client);
    }
    let nowhere = r#"{ "mercury": { "ip_subnet": "240.0.0.0/4" },
                       "margo": { "address": "na+tcp://",
                           "security": { "tcp": { "beyond_loopback": true } } } }"#;
    let error = margo::init(nowhere).unwrap_err().to_string();
    assert!(error.contains("ip_subnet 240.0.0.0/4"), "{error}");
}

#[test]
fn the_printed_configuration_says_where_it_is_called_and_is_a_document_again() {
    let keys = r#""mercury": { "checksum_level": "rpc_headers" }, "margo": { "eager_size": 900 }"#;
    let (service, client, target) = pair(keys, r#""margo": { "listen": false }"#);
    for (instance, listening) in [(&service, true), (&client, false)] {
        let printed = instance.config();
        let mercury = &serde_json::to_value(&printed).unwrap()["mercury"];
        assert_eq!(mercury["address"], instance.self_addr().uri());
        assert_eq!(mercury["listening"], listening);
        assert_eq!(mercury["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(mercury["checksum_level"], printed_level(listening));
        for size in ["input_eager_size", "output_eager_size"] {
            let size = mercury[size].as_u64().unwrap();
            // Headers go from it.
            if listening {
                assert!((800..900).contains(&size), "{size}");
            } else {
                assert!((3_000..1 << 20).contains(&size), "{size}");
            }
        }
        // Another one of this document has an address of its own, and prints the same otherwise.
        let read = margo::config::Config::from_json(&printed.to_json_pretty()).unwrap();
        let other = Instance::from_config(&read).unwrap();
        let mut again = other.config();
        assert_ne!(again.mercury.address, printed.mercury.address);
        again.mercury.address.clone_from(&printed.mercury.address);
        assert_eq!(again, printed);
        other.finalize_and_wait().unwrap();
    }
    // What is printed is where it is called.
    let printed = service.config().mercury.address.unwrap();
    assert_eq!(client.lookup(&printed).unwrap(), *target.addr());
    // A child has a network of its own.
    let child = service.init_child("{}").unwrap();
    let printed = child.config();
    assert_eq!(printed.mercury.address.as_deref(), Some(child.self_addr().uri()));
    assert!(service.init_child(&printed.to_json()).is_ok());
    end(&service, &client);
}

fn printed_level(is_service: bool) -> &'static str {
    if is_service { "rpc_headers" } else { "none" }
}

#[test]
fn the_grace_period_is_that_of_the_document_or_the_builder() {
    let rounded = Instance::builder("na+sm://").grace(Duration::from_micros(1500));
    for (own, expected) in [
        (Instance::builder("na+sm://").start().unwrap(), 5000),
        (rounded.start().unwrap(), 2),
        (margo::init(r#"{ "margo": { "grace_msec": 50 } }"#).unwrap(), 50),
        (margo::init(r#"{ "margo": { "grace_msec": 0 } }"#).unwrap(), 0),
    ] {
        assert_eq!(own.config().margo.grace_msec, expected);
        let gate = Arc::new(Eventual::<()>::new());
        let opens = gate.clone();
        if expected < 5000 {
            own.on_prefinalize(move |_| opens.wait_ready()).unwrap().keep();
        }
        let started = Instant::now();
        bounded("the end", move || own.finalize_and_wait().unwrap());
        if expected < 5000 {
            assert!(started.elapsed() >= Duration::from_millis(expected.into()));
        }
        gate.set(()).unwrap();
    }
}

/// As in C, where no wait in the network is a busy loop.
#[test]
fn progress_that_is_not_to_wait_in_the_network_polls() {
    let own = margo::init(r#"{ "progress_timeout_ub_msec": 0 }"#).unwrap();
    let xstream = own.layout().xstreams().remove(0);
    let begun = Instant::now();
    let polls = || {
        let before = xstream.stats().executed;
        while xstream.stats().executed < before + 100 {
            assert!(begun.elapsed() < PATIENCE, "it sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
        xstream.stats().sleeps
    };
    // It may have slept before there was an instance; longer than the patience of others.
    let before = polls();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(polls(), before);
    assert_eq!(own.config().progress_timeout_ub_msec, 0);
    own.finalize_and_wait().unwrap();
}

/// Handlers on an xstream of their own, where nothing else runs, with such keys.
fn with_own_xstream(argobots: &str, margo: &str) -> (Instance, ult::XstreamRef) {
    let document = format!(
        r#"{{ "argobots": {{ {argobots}
                "pools": [ {{ "name": "own" }} ],
                "xstreams": [ {{ "name": "own", "scheduler": {{ "pools": ["own"] }} }} ] }},
             "rpc_pool": "own", "margo": {{ {margo} }} }}"#
    );
    let instance = margo::init(&document).unwrap();
    let xstream = instance.runtime().xstream("own").unwrap();
    (instance, xstream)
}

#[test]
fn as_many_stacks_are_kept_as_the_document_says() {
    const ULTS: usize = 40;
    for kept in [0, 3, 1000] {
        let (own, xstream) = with_own_xstream(&format!(r#""abt_mem_max_num_stacks": {kept},"#), "");
        let idle = || {
            let stats = xstream.stats();
            stats.stacks - stats.ults.min(stats.stacks)
        };
        let mut most = 0;
        // What is not used for a second is given back, so that one look may come too late.
        bounded_until("as many are left as are kept", || {
            let go = Arc::new(Eventual::<()>::new());
            let ults: Vec<_> = (0..ULTS)
                .map(|_| {
                    let go = go.clone();
                    own.layout().rpc_pool().spawn(move || *go.wait()).unwrap()
                })
                .collect();
            bounded_until("all have one", || xstream.stats().stacks >= ULTS);
            go.set(()).unwrap();
            ults.into_iter().for_each(|ult| ult.join().unwrap());
            // Whoever has joined the last one may be ahead of its end.
            bounded_until("those beyond go", || idle() <= kept.min(ULTS));
            most = most.max(idle());
            most == kept.min(ULTS)
        });
        own.finalize_and_wait().unwrap();
    }
}

#[test]
fn an_xstream_without_work_looks_for_some_as_long_as_the_document_says() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return println!("SKIPPED: with one processor, who looks keeps others from working");
    }
    for (micros, sleeps) in [(0, true), (u32::MAX, false)] {
        let (own, xstream) = with_own_xstream("", &format!(r#""spin_max_usec": {micros}"#));
        let run = || own.layout().rpc_pool().spawn(|| ()).unwrap().join().unwrap();
        match sleeps {
            true => bounded_until("it sleeps", || {
                run();
                xstream.stats().sleeps > 0
            }),
            // It looks for an hour: however long this takes, it does not sleep. What looks for
            // microseconds would have, while this thread was woken.
            false => {
                (0..2000).for_each(|_| run());
                assert_eq!(xstream.stats().sleeps, 0);
            }
        }
        own.finalize_and_wait().unwrap();
    }
}

#[test]
fn as_many_closures_that_block_run_at_once_as_the_document_says() {
    let own = margo::init(r#"{ "margo": { "blocking_threads_max": 1 } }"#).unwrap();
    let gates: Vec<_> = (0..2).map(|_| std::sync::mpsc::channel::<()>()).collect();
    let (stops, gates): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
    let spawn = |gate: std::sync::mpsc::Receiver<()>| {
        own.layout().rpc_pool().spawn(move || ult::blocking(move || gate.recv().is_err())).unwrap()
    };
    let ults: Vec<_> = gates.into_iter().map(spawn).collect();
    bounded_until("one runs and one waits", || {
        let blocking = own.metrics().blocking;
        (blocking.threads, blocking.running, blocking.queued) == (1, 1, 1)
    });
    let text = own.metrics().prometheus();
    assert!(text.contains("\nmargo_blocking_queued 1\n"), "{text}");
    drop(stops);
    ults.into_iter().for_each(|ult| assert!(ult.join().unwrap()));
    bounded_until("both have ended", || own.metrics().blocking.done == 2);
    own.finalize_and_wait().unwrap();
}

fn bounded_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}
