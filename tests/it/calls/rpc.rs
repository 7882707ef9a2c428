//! Calls that work: over both transports, from ULTs and OS threads, small and large.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{self, PATIENCE, Pair, bounded, builder, on_each};
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, Rpc};
use serde::{Deserialize, Serialize};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const ECHO: Rpc<String, String> = Rpc::new("echo");

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle { radius: f64 },
    Polygon(Vec<(i32, i32)>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Drawing {
    name: String,
    shapes: Vec<Shape>,
    tags: BTreeMap<String, Option<u8>>,
    visible: bool,
}

const DRAW: Rpc<Drawing, Result<Drawing, String>> = Rpc::new("draw");

fn serve_sum(service: &Instance) {
    service
        .register(SUM, |request| {
            let (a, b) = *request.args();
            request.respond(&(a + b)).unwrap();
        })
        .unwrap();
}

fn serve_echo(service: &Instance) {
    service.register(ECHO, |request| request.respond(request.args()).unwrap()).unwrap();
}

#[test]
fn a_call_from_an_os_thread() {
    on_each(|pair| {
        serve_sum(&pair.service);
        assert_eq!(pair.client.forward(SUM, &pair.target(), &(40, 2)).unwrap(), 42);
        pair.end();
    });
}

#[test]
fn a_call_from_a_ult() {
    on_each(|pair| {
        serve_sum(&pair.service);
        let (client, target) = (pair.client.clone(), pair.target());
        let ult = pair
            .client
            .layout()
            .rpc_pool()
            .spawn(move || client.forward(SUM, &target, &(-1, 1)).unwrap())
            .unwrap();
        assert_eq!(ult.join().unwrap(), 0);
        pair.end();
    });
}

#[test]
fn structured_arguments_and_results() {
    on_each(|pair| {
        pair.service
            .register(DRAW, |request| {
                let mut drawing = request.args().clone();
                drawing.visible = !drawing.visible;
                request.respond(&Ok(drawing)).unwrap();
            })
            .unwrap();
        let drawing = Drawing {
            name: "häuser".into(),
            shapes: vec![
                Shape::Point,
                Shape::Circle { radius: 2.5 },
                Shape::Polygon(vec![(0, 0), (1, -1)]),
            ],
            tags: [("a".to_owned(), None), ("b".to_owned(), Some(7))].into(),
            visible: false,
        };
        let back = pair.client.forward(DRAW, &pair.target(), &drawing).unwrap().unwrap();
        assert_eq!(back, Drawing { visible: true, ..drawing });
        pair.end();
    });
}

#[test]
fn arguments_and_results_of_every_size_around_the_message_limit() {
    on_each(|pair| {
        serve_echo(&pair.service);
        let target = pair.target();
        for len in [0, 1, 100, 4000, 4050, 4096, 4097, 8192, 100_000, 3_000_000] {
            let text = "x".repeat(len);
            let back = pair.client.forward(ECHO, &target, &text).unwrap();
            assert_eq!(back.len(), len);
            assert!(back == text, "{len} bytes came back changed");
        }
        pair.end();
    });
}

#[test]
fn many_calls_in_flight_from_many_ults_and_threads() {
    on_each(|pair| {
        serve_sum(&pair.service);
        let target = pair.target();
        let ults: Vec<_> = (0..64)
            .map(|i| {
                let (client, target) = (pair.client.clone(), target.clone());
                let calls = move || {
                    for n in 0..50 {
                        assert_eq!(client.forward(SUM, &target, &(i, n)).unwrap(), i + n);
                    }
                };
                pair.client.layout().rpc_pool().spawn(calls).unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (client, target) = (&pair.client, &target);
                scope.spawn(move || {
                    for n in 0..50 {
                        assert_eq!(client.forward(SUM, target, &(i, n)).unwrap(), i + n);
                    }
                });
            }
        });
        for ult in ults {
            ult.join().unwrap();
        }
        let service = pair.service.clone();
        pair.end();
        // The last handlers may have ended after their answers arrived.
        assert_eq!(service.monitoring().stats().handlers_run, 64 * 50 + 4 * 50);
    });
}

#[test]
fn both_sides_call_each_other() {
    for transport in common::TRANSPORTS {
        let a = builder(transport).start().unwrap();
        let b = builder(transport).start().unwrap();
        serve_sum(&a);
        serve_sum(&b);
        let to_a = ProviderHandle::from(b.lookup(a.self_addr().uri()).unwrap());
        let to_b = ProviderHandle::from(a.lookup(b.self_addr().uri()).unwrap());
        for n in 0..100 {
            assert_eq!(b.forward(SUM, &to_a, &(n, 1)).unwrap(), n + 1);
            assert_eq!(a.forward(SUM, &to_b, &(n, 2)).unwrap(), n + 2);
        }
        a.finalize_and_wait().unwrap();
        b.finalize_and_wait().unwrap();
    }
}

#[test]
fn an_instance_calls_itself() {
    on_each(|pair| {
        serve_sum(&pair.service);
        serve_echo(&pair.service);
        let own = ProviderHandle::from(pair.service.self_addr());
        assert_eq!(pair.service.forward(SUM, &own, &(1, 2)).unwrap(), 3);
        let long = "y".repeat(50_000);
        assert_eq!(pair.service.forward(ECHO, &own, &long).unwrap(), long);
        pair.end();
    });
}

#[test]
fn a_handler_calls_on() {
    const RELAY: Rpc<(String, i64), i64> = Rpc::new("relay");
    on_each(|pair| {
        serve_sum(&pair.service);
        pair.service
            .register(RELAY, |request| {
                let (address, n) = request.args();
                let margo = request.instance();
                let next = ProviderHandle::from(margo.lookup(address).unwrap());
                let sum = margo.forward(SUM, &next, &(*n, 1)).unwrap();
                request.respond(&sum).unwrap();
            })
            .unwrap();
        let own = pair.service.self_addr().to_string();
        let answer = pair.client.forward(RELAY, &pair.target(), &(own, 41)).unwrap();
        assert_eq!(answer, 42);
        pair.end();
    });
}

#[test]
fn providers_of_one_instance_are_told_apart() {
    const WHO: Rpc<(), u16> = Rpc::new("who");
    on_each(|pair| {
        let pool = pair.service.layout().rpc_pool();
        let providers: Vec<_> = [1, 2, 65534]
            .map(|id| {
                let provider = pair.service.provider(ProviderId::new(id), &pool);
                provider.register(WHO, move |request| request.respond(&id).unwrap()).unwrap();
                provider
            })
            .into();
        for id in [65534, 1, 2] {
            let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(id));
            assert_eq!(pair.client.forward(WHO, &target, &()).unwrap(), id);
        }
        drop(providers);
        let target = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(1));
        let error = pair.client.forward(WHO, &target, &()).unwrap_err();
        assert!(matches!(error, margo::ForwardError::NotRegistered { .. }), "{error}");
        pair.end();
    });
}

#[test]
fn a_request_may_be_answered_early_and_elsewhere() {
    const EARLY: Rpc<(), u32> = Rpc::new("early");
    const ELSEWHERE: Rpc<(), u32> = Rpc::new("elsewhere");
    on_each(|pair| {
        let after = Arc::new(ult::Eventual::new());
        let seen = after.clone();
        pair.service
            .register(EARLY, move |request| {
                request.respond(&1).unwrap();
                let again = request.respond(&2).unwrap_err();
                let _ = seen.set(again.to_string());
            })
            .unwrap();
        pair.service
            .register(ELSEWHERE, |request| {
                let pool = request.instance().layout().rpc_pool();
                pool.spawn(move || request.respond(&7).unwrap()).unwrap();
            })
            .unwrap();
        assert_eq!(pair.client.forward(EARLY, &pair.target(), &()).unwrap(), 1);
        assert!(after.wait().contains("already answered"), "{}", after.wait());
        assert_eq!(pair.client.forward(ELSEWHERE, &pair.target(), &()).unwrap(), 7);
        pair.end();
    });
}

#[test]
fn handlers_of_one_pool_overlap_while_they_wait() {
    const MEET: Rpc<(), ()> = Rpc::new("meet");
    on_each(|pair| {
        // Each handler waits for the other: with one execution stream this needs ULTs.
        let arrived = Arc::new(AtomicUsize::new(0));
        let both = Arc::new(ult::Eventual::new());
        pair.service
            .register(MEET, move |request| {
                if arrived.fetch_add(1, Ordering::Relaxed) == 1 {
                    let _ = both.set(());
                }
                both.wait();
                request.respond(&()).unwrap();
            })
            .unwrap();
        let target = pair.target();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| pair.client.forward_timed(MEET, &target, &(), PATIENCE).unwrap());
            }
        });
        pair.end();
    });
}

#[test]
fn layouts_other_than_the_default() {
    for (progress_thread, rpc_threads) in
        [(false, 0), (true, 0), (true, 2), (false, -1), (false, 1)]
    {
        let service = builder("na+sm://")
            .use_progress_thread(progress_thread)
            .rpc_thread_count(rpc_threads)
            .start()
            .unwrap();
        serve_sum(&service);
        let client =
            builder("na+sm://").listen(false).use_progress_thread(progress_thread).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for n in 0..200 {
            assert_eq!(client.forward(SUM, &target, &(n, n)).unwrap(), 2 * n);
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_handler_knows_the_name_and_the_provider_that_were_called() {
    const NAMES: [Rpc<(), (String, u16)>; 2] = [Rpc::new("first"), Rpc::new("second")];
    on_each(|pair| {
        let tell = |request: margo::Handle<(), (String, u16)>| {
            let told = (request.rpc_name().to_owned(), request.provider_id().get());
            request.respond(&told).unwrap();
        };
        let provider = pair.service.provider(ProviderId::new(9), &pair.service.layout().rpc_pool());
        for rpc in NAMES {
            pair.service.register(rpc, tell).unwrap();
            provider.register(rpc, tell).unwrap();
        }
        let of_provider = ProviderHandle::new(pair.target().addr().clone(), ProviderId::new(9));
        for (target, id) in [(pair.target(), ProviderId::DEFAULT.get()), (of_provider, 9)] {
            for (rpc, name) in NAMES.into_iter().zip(["first", "second"]) {
                let told = pair.client.forward_timed(rpc, &target, &(), PATIENCE).unwrap();
                assert_eq!(told, (name.to_owned(), id));
            }
        }
        drop(provider);
        pair.end();
    });
}

#[test]
fn a_busy_polling_service_with_small_messages() {
    let json = r#"{ "mercury": { "na_no_block": true, "request_post_init": 4,
                                 "na_max_unexpected_size": 512 } }"#;
    let service = margo::init(json).unwrap();
    serve_echo(&service);
    let client = margo::init(json).unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    for len in [0, 400, 500, 600, 10_000] {
        let text = "z".repeat(len);
        assert_eq!(client.forward(ECHO, &target, &text).unwrap(), text);
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn instances_come_and_go_in_one_process() {
    bounded("ten instances", || {
        for transport in common::TRANSPORTS.iter().cycle().take(10) {
            let pair = Pair::new(transport);
            serve_sum(&pair.service);
            assert_eq!(pair.client.forward(SUM, &pair.target(), &(1, 1)).unwrap(), 2);
            pair.end();
        }
    });
}

#[test]
fn calls_with_checksums_of_all_that_is_sent() {
    for transport in common::TRANSPORTS {
        for level in ["none", "rpc_headers", "rpc_payload"] {
            let start = |address: &str, listen: bool| {
                let document = format!(
                    r#"{{ "margo": {{ "address": "{address}", "listen": {listen} }},
                          "mercury": {{ "checksum_level": "{level}" }} }}"#
                );
                margo::init(&document).unwrap_or_else(|error| panic!("{document}: {error}"))
            };
            let client = transport.split("://").next().unwrap();
            let pair = Pair {
                service: start(transport, true),
                client: start(&format!("{client}://"), false),
            };
            serve_echo(&pair.service);
            for text in ["short".to_owned(), "x".repeat(300_000)] {
                assert_eq!(pair.client.forward(ECHO, &pair.target(), &text).unwrap(), text);
            }
            pair.end();
        }
    }
}

#[test]
fn an_origin_sends_what_it_has_borrowed() {
    const LEN: Rpc<(String, Vec<u8>), u64> = Rpc::new("len");
    on_each(|pair| {
        pair.service
            .serve(LEN)
            .function(|(text, bytes)| (text.len() + bytes.len()) as u64)
            .unwrap();
        let (target, long) = (pair.target(), "long".repeat(100_000));
        for text in ["", "text", &long] {
            let args = (text, &[1, 2, 3_u8][..]);
            let answer = pair.client.forward_timed(LEN.sending(), &target, &args, PATIENCE);
            assert_eq!(answer.unwrap(), text.len() as u64 + 3);
            let call = pair.client.rpc(LEN.sending(), &target, &args).start().unwrap();
            assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), text.len() as u64 + 3);
        }
        // What does not encode alike is refused, where that can be seen.
        let error = pair.client.forward_timed(LEN.sending(), &target, &1_u8, PATIENCE).unwrap_err();
        assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}");
        pair.end();
    });
}
