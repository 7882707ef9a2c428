//! Acceptance of the RPC core: the cases of Mercury's own unit tests, by name, over every
//! transport: with a target in this process, with one in another process, and with ourselves;
//! polling and sleeping. Over libfabric and UCX where they are asked for (`MARGO_TEST_OFI=1`,
//! `MARGO_TEST_UCX=1`).
//!
//! | case | test |
//! |---|---|
//! | 1 unregistered id | `case_01_unregistered_id` |
//! | 2 NULL RPC | `case_02_null_rpc` |
//! | 3 RPC with response | `case_03_rpc_with_response` |
//! | 4 multiple lookup and free | `case_04_multiple_lookup`, `case_04_a_peer_that_was_forgotten` |
//! | 5 no response | `case_05_no_response` |
//! | 6 registered on the client only | `case_06_registered_on_the_client_only` |
//! | 7 input overflow | `case_07_input_overflow` |
//! | 8 input overflow, one-way | `case_08_input_overflow_one_way` |
//! | 9 output overflow | `case_09_output_overflow` |
//! | 10 cancelation | `case_10_cancelation` |
//! | 11 multiple RPCs | `case_11_multiple_rpcs` |
//! | 12 concurrent multiple RPCs | `case_12_concurrent_multiple_rpcs` |
//! | 13, 14 concurrent progress | `case_13_14_concurrent_progress`, `…_asleep` |
//! | 15 contexts of the target | `case_15_contexts_of_the_target` |
//! | 32 a server that is killed | `tests/it/hg/kill.rs` |
//! | 16 to 31 bulk | `tests/it/bulk/cases.rs`, `tests/it/bulk/processes.rs` |
//! | 33 concurrent lookup | `case_33_concurrent_lookup` |
//! | 34 proc: integers | `case_34_integers` |
//! | 35 proc: strings, checksum, free | `case_35_strings`, `case_35_checksum_and_free` |
//! | 36 two classes in one process | `case_36_two_classes_in_one_process` |

use std::sync::atomic::{AtomicU8, Ordering};

use super::support::*;
use margo::encoding::ConstStr;
use margo::hg::header::{Build, Format, RequestHeader};
use margo::hg::proc::{WriterLimits, Written};
use margo::hg::{
    ChecksumLevel, ForwardOptions, HgError, HgOptions, Registration, ReturnCode, RpcId, proc, wire,
};
use na::{Addr, MsgBuf, PeerLink};

#[test]
fn case_01_unregistered_id() {
    everywhere(|world| {
        let id = world.origin.register(Registration::with_id(RpcId(77), "unknown")).unwrap();
        world.origin.deregister(id).unwrap();
        let before = world.origin.counters();
        let refused = world.origin.forward(
            &world.to,
            id,
            ForwardOptions::default(),
            |_| panic!("nothing is encoded"),
            Token::default(),
        );
        let error = refused.unwrap_err().0;
        assert!(matches!(error, HgError::NotRegistered(found) if found == id), "{error}");
        assert_eq!(world.origin.counters(), before, "no traffic");
    });
}

#[test]
fn case_02_null_rpc() {
    everywhere(|world| {
        assert_eq!(world.call(NULL, &[]).unwrap(), b"");
        assert_eq!(world.call(SIZE, &[]).unwrap(), 0u64.to_le_bytes());
    });
}

#[test]
fn case_03_rpc_with_response() {
    everywhere(|world| {
        let path = "/a/path".to_owned();
        let input = proc::to_vec(&(9u64, &path)).unwrap();
        assert_eq!(input.len(), 8 + 8 + path.len() + 3, "as C");
        let output = world.call(OPEN, &input).unwrap();
        assert_eq!(output.len(), 8);
        assert_eq!(proc::from_slice::<(i32, i32)>(&output).unwrap(), (path.len() as i32, 9));
        let size = world.call(SIZE, &input).unwrap();
        assert_eq!(size, (input.len() as u64).to_le_bytes());
    });
}

#[test]
fn case_04_multiple_lookup() {
    everywhere_remote(&HgOptions::default(), |world| {
        for round in 0..32u8 {
            let again = world.origin.lookup(world.to.uri()).unwrap();
            assert_eq!(again, world.to);
            let token = Token::default();
            let put = |writer: &mut margo::hg::Writer| writer.put(&[round]);
            let options = ForwardOptions::default();
            world.origin.forward(&again, ECHO, options, put, token.clone()).unwrap();
            // Freed while it is used: the call holds what it needs.
            drop(again);
            world.until("a response", || token.is_over());
            assert_eq!(token.take().unwrap(), [round]);
        }
        assert_eq!(known(&world.origin, &world.to), Some(PeerLink::Connected), "one peer, not 33");
    });
}

/// The connection with a peer, if the endpoint knows it; it is there once.
fn known(node: &Node, peer: &Addr) -> Option<PeerLink> {
    let stats = node.endpoint().stats();
    let mut found = stats.peers.iter().filter(|known| known.uri == peer.uri());
    let link = found.next().map(|known| known.link);
    assert!(found.next().is_none(), "known twice: {:?}", stats.peers);
    link
}

/// The counterpart of `HG_Addr_set_remove` and `HG_Addr_free`: nothing has to be removed, for a
/// peer is forgotten with the last address of it and its connection. An address that was dropped is
/// looked up again, also when somebody else listens there by then.
#[test]
fn case_04_a_peer_that_was_forgotten() {
    for transport in BETWEEN_PROCESSES {
        let origin = open(&uri(transport, false), false, HgOptions::default());
        register(&origin, false);
        let service = Service::default();
        let (mut own, mut address) = (uri(transport, true), None::<String>);
        for round in 0..4u8 {
            let target = open(&own, true, HgOptions::default());
            register(&target, true);
            own = target.self_addr().uri().to_owned();
            // The same URI, another endpoint.
            assert_eq!(address.get_or_insert_with(|| own.clone()), &own);
            let to = origin.lookup(&own).unwrap();
            let token = Token::default();
            let put = |writer: &mut margo::hg::Writer| writer.put(&[round]);
            origin.forward(&to, ECHO, ForwardOptions::default(), put, token.clone()).unwrap();
            turn_until("a response", &[&origin, &target], &service, || token.is_over());
            assert_eq!(token.take().unwrap(), [round]);
            assert_eq!(known(&origin, &to), Some(PeerLink::Connected));
            target.close();
            drain(&target, &service);
            drop(target);
            // Its address is kept, so it is known, without a connection.
            let idle = || known(&origin, &to) == Some(PeerLink::Idle);
            turn_until("the end of the connection", &[&origin], &service, idle);
            if round % 2 == 1 {
                drop(to);
                let forgotten = || origin.endpoint().stats().peers.is_empty();
                turn_until("its end", &[&origin], &service, forgotten);
            }
        }
        origin.close();
    }
}

/// Lets nodes of this thread act until `done`. They poll: the end of a peer is no event to wait
/// for.
fn turn_until(what: &str, nodes: &[&Node], service: &Service, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        nodes.iter().for_each(|node| step(node, Wait::Poll, service));
        assert!(start.elapsed() < PATIENCE, "{what}: does not happen");
    }
}

#[test]
fn case_05_no_response() {
    everywhere(|world| {
        // Registered so: the caller need not say it.
        for n in 1..=3 {
            let (token, _) = world.start(NEWS, ForwardOptions::default(), &[]);
            world.until("the end", || token.is_over());
            assert_eq!(token.take().unwrap(), b"");
            world.until_news(n);
        }
    });
}

impl World {
    /// Waits until the target has seen so much news; asks it, because it may be anywhere.
    fn until_news(&self, news: u64) {
        while self.seen().0 < news {}
        assert_eq!(self.seen().0, news);
    }
}

#[test]
fn case_06_registered_on_the_client_only() {
    everywhere_remote(&HgOptions::default(), |world| {
        let result = world.call(CLIENT_ONLY, b"arguments");
        assert!(is_remote_code(&result, ReturnCode::NoEntry), "{result:?}");
        // A one-way call of it is dropped, and the target goes on.
        let (token, _) = world.start(CLIENT_ONLY, ForwardOptions::one_way(), b"");
        world.until("the end", || token.is_over());
        token.take().unwrap();
        assert_eq!(world.call(ECHO, b"x").unwrap(), b"x");
    });
    // Registered at the target, but not served.
    let world = World::own("sm", Wait::Poll, &HgOptions::default());
    world.origin.register(Registration::mercury("client only").client_only()).unwrap();
    let result = world.call(CLIENT_ONLY, b"");
    assert!(is_remote_code(&result, ReturnCode::InvalidArg), "{result:?}");
    assert_eq!(world.origin.counters().not_registered, 1);
    world.finish();
}

#[test]
fn case_07_input_overflow() {
    everywhere(|world| {
        let input = pattern(2 * world.origin.input_eager_bytes());
        assert_eq!(world.call(ECHO, &input).unwrap(), input);
        assert_eq!(world.call(SIZE, &input).unwrap(), (input.len() as u64).to_le_bytes());
    });
}

#[test]
fn case_08_input_overflow_one_way() {
    everywhere(|world| {
        let input = pattern(2 * world.origin.input_eager_bytes());
        let (token, _) = world.start(NEWS, ForwardOptions::one_way(), &input);
        world.until("the acknowledgement", || token.is_over());
        token.take().unwrap();
        world.until_news(1 + input.len() as u64);
    });
}

#[test]
fn case_09_output_overflow() {
    everywhere(|world| {
        let len = 2 * world.origin.output_eager_bytes();
        let output = world.call(MAKE, &(len as u64).to_le_bytes()).unwrap();
        // A string as in C, and a number.
        assert_eq!(output.len(), 8 + len + 3 + 8);
        let (text, number): (String, u64) = proc::from_slice(&output).unwrap();
        assert!(text.len() == len && text.bytes().all(|byte| byte == b'x') && number == 7);
    });
}

#[test]
fn case_10_cancelation() {
    everywhere(|world| {
        let (token, op) = world.start(STUCK, ForwardOptions::default(), b"");
        // Whatever came before it has arrived.
        world.call(NULL, &[]).unwrap();
        world.origin.cancel(op);
        world.until("the end", || token.is_over());
        assert!(matches!(token.take(), Err(HgError::Canceled)));
        world.origin.cancel(op);
        // The late answer goes nowhere, also a long one.
        assert_eq!(world.seen().1, 1);
        world.call(DROP_HELD, &[]).unwrap();
        assert_eq!(world.seen().1, 0);
        assert_eq!(world.call(ECHO, b"next").unwrap(), b"next");
        assert!(!token.is_over());
    });
}

#[test]
fn case_11_multiple_rpcs() {
    everywhere(|world| many_in_flight(world, 32));
}

fn many_in_flight(world: &World, count: u32) {
    let calls: Vec<_> = (0..count)
        .map(|n| (n, world.start(ECHO, ForwardOptions::default(), &n.to_le_bytes()).0))
        .collect();
    world.until("all responses", || calls.iter().all(|(_, token)| token.is_over()));
    for (n, token) in calls {
        assert_eq!(token.take().unwrap(), n.to_le_bytes());
    }
}

#[test]
fn ten_thousand_handles_in_flight() {
    for transport in TRANSPORTS {
        let world = World::remote(transport, Wait::Poll, &HgOptions::default());
        let calls: Vec<_> =
            (0..10_000).map(|_| world.start(STUCK, ForwardOptions::default(), b"x").0).collect();
        world.until("their arrival", || world.service.held.lock().unwrap().len() == 10_000);
        assert_eq!(world.origin.in_hand().tokens, 10_000);
        let held = std::mem::take(&mut *world.service.held.lock().unwrap());
        for request in held {
            answer(request, |writer| writer.put(b"y"));
        }
        for token in calls {
            world.until("a response", || token.is_over());
            assert_eq!(token.take().unwrap(), b"y");
        }
        world.finish();
    }
}

#[test]
fn case_12_concurrent_multiple_rpcs() {
    everywhere(|world| {
        // Several threads call; one drives.
        let tokens = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u32)
                .map(|thread| {
                    scope.spawn(move || {
                        let start = |n: u32| {
                            let bytes = (thread * 1000 + n).to_le_bytes();
                            (bytes, world.start(ECHO, ForwardOptions::default(), &bytes).0)
                        };
                        (0..64).map(start).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        world.until("all responses", || tokens.iter().all(|(_, token)| token.is_over()));
        for (bytes, token) in tokens {
            assert_eq!(token.take().unwrap(), bytes);
        }
    });
}

/// Several threads drive one context, and look the target up for each call. They poll; those that
/// sleep have a context each, see below.
// Slow: more threads than processors poll, for each transport and place of the target.
#[test]
fn case_13_14_concurrent_progress() {
    for (transport, make) in pairs() {
        {
            let world = make(transport, Wait::Poll, &HgOptions::default());
            std::thread::scope(|scope| {
                for thread in 0..4u32 {
                    let world = &world;
                    scope.spawn(move || {
                        for n in 0..100 {
                            let bytes = (thread * 1000 + n).to_le_bytes();
                            let to = match world.is_remote() {
                                true => world.origin.lookup(world.to.uri()).unwrap(),
                                false => world.origin.self_addr(),
                            };
                            assert_eq!(to, world.to);
                            let (token, _) = world.start(ECHO, ForwardOptions::default(), &bytes);
                            while !token.is_over() {
                                world.origin.progress(16).unwrap();
                                world.origin.trigger(&mut Handlers(&world.service));
                            }
                            assert_eq!(token.take().unwrap(), bytes);
                        }
                    });
                }
            });
            world.finish();
        }
    }
}

#[test]
fn case_33_concurrent_lookup() {
    everywhere_remote(&HgOptions::default(), |world| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..32 {
                        let addr = world.origin.lookup(world.to.uri()).unwrap();
                        assert_eq!(addr, world.to);
                    }
                });
            }
        });
        assert_eq!(world.call(ECHO, b"x").unwrap(), b"x");
    });
}

#[test]
fn case_34_integers() {
    everywhere(|world| {
        // As in C: the number of bytes of each, little endian, one behind the other.
        let all = (u8::MAX - 1, 0x1122u16, 0x1122_3344u32, u64::MAX - 7);
        let signed = (i8::MIN, -2i16, i32::MIN, i64::MIN + 1);
        let bytes = proc::to_vec(&(all, signed)).unwrap();
        assert_eq!(bytes.len(), 2 * (1 + 2 + 4 + 8));
        assert_eq!(bytes[..7], [0xfe, 0x22, 0x11, 0x44, 0x33, 0x22, 0x11]);
        let back = world.call(ECHO, &bytes).unwrap();
        assert_eq!(proc::from_slice::<(_, _)>(&back).unwrap(), (all, signed));
        // One that is cut is refused, and so is one with something behind it.
        for len in 0..8 {
            assert!(proc::from_slice::<u64>(&bytes[..len]).is_err(), "{len}");
        }
        assert!(proc::from_slice::<u8>(&bytes[..2]).is_err());
    });
}

#[test]
fn case_35_strings() {
    everywhere(|world| {
        for text in ["", "a", "Hello", "Grüße", &"x".repeat(10_000)] {
            for (is_const, bytes) in
                [(0, proc::to_vec(text).unwrap()), (1, proc::to_vec(&ConstStr(text)).unwrap())]
            {
                assert_eq!(bytes.len(), 8 + text.len() + 3, "as C");
                assert_eq!(bytes[8 + text.len()..], [0, is_const, 0]);
                let back = world.call(ECHO, &bytes).unwrap();
                assert_eq!(proc::from_slice::<String>(&back).unwrap(), text);
                assert_eq!(proc::from_slice::<&str>(&back).unwrap(), text);
            }
        }
        let null = world.call(ECHO, &0u64.to_le_bytes()).unwrap();
        assert_eq!(proc::from_slice::<String>(&null).unwrap(), "", "C's NULL");
    });
}

/// Checksums, as `hg_proc_checksum_get` and `…_verify` check them. Decoded values are released: in
/// C by another pass of the same routine (`HG_FREE`), here with the value, and also when decoding
/// fails.
#[test]
fn case_35_checksum_and_free() {
    let format = Format::new(Build::Checksum, ChecksumLevel::Payload);
    let put = |writer: &mut margo::hg::Writer| writer.put(b"123456789");
    let (header, buf) = (RequestHeader::in_format(ECHO, format), MsgBuf::with_capacity(64));
    let written = wire::encode_request(header, buf, 64, WriterLimits::default(), put);
    let Ok(Written::Fits(message)) = written else { panic!("does not fit") };
    let mut message = message.as_slice().to_vec();
    // CRC-32C's check value.
    assert_eq!(message[16..20], 0xE306_9283u32.to_be_bytes());
    assert!(wire::decode_request(format, &message).is_ok());
    for at in 16..message.len() {
        message[at] ^= 1;
        assert!(wire::decode_request(format, &message).is_err(), "{at}");
        message[at] ^= 1;
    }

    static ALIVE: AtomicU8 = AtomicU8::new(0);
    #[derive(Debug)]
    struct Counted;
    impl<'de> serde::Deserialize<'de> for Counted {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            String::deserialize(from)?;
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Ok(Self)
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let two = proc::to_vec(&("one", "two")).unwrap();
    let decoded: (Counted, Counted) = proc::from_slice(&two).unwrap();
    assert_eq!(ALIVE.load(Ordering::Relaxed), 2);
    drop(decoded);
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    assert!(proc::from_slice::<(Counted, Counted)>(&two[..two.len() - 1]).is_err());
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0, "the first of the two");
}

#[test]
fn case_36_two_classes_in_one_process() {
    let transports = TRANSPORTS.into_iter().chain(fabrics());
    for (transport, wait) in transports.flat_map(|t| [(t, Wait::Poll), (t, Wait::Sleep)]) {
        let cores = [(), ()].map(|()| {
            let core = open(&uri(transport, true), true, HgOptions::default());
            register(&core, true);
            core
        });
        let service = Service::default();
        let tokens = [(0, 1), (1, 0)].map(|(from, to): (usize, usize)| {
            let addr = cores[from].lookup(cores[to].self_addr().uri()).unwrap();
            let token = Token::default();
            let bytes = [from as u8];
            let put = |writer: &mut margo::hg::Writer| writer.put(&bytes);
            let options = ForwardOptions::default();
            cores[from].forward(&addr, ECHO, options, put, token.clone()).unwrap();
            token
        });
        let drive = |core: &Node, own: &Token| {
            while !tokens.iter().all(|token| token.is_over()) {
                // Who has its answer only serves the other, and is not told when that has ended.
                step(core, if own.is_over() { Wait::Poll } else { wait }, &service);
            }
        };
        std::thread::scope(|scope| {
            let threads = cores.iter().zip(&tokens);
            threads.for_each(|(core, token)| drop(scope.spawn(|| drive(core, token))));
        });
        for (from, token) in tokens.iter().enumerate() {
            assert_eq!(token.take().unwrap(), [from as u8]);
        }
        cores.iter().for_each(|core| core.close());
    }
}

// Slow: 300 MiB are made and copied once for each transport.
#[test]
fn an_argument_of_300_mib() {
    let mut options = HgOptions::default();
    options.overflow_bytes_max = 320 << 20;
    let input = vec![0xA5; 300 << 20];
    everywhere_remote(&options, |world| {
        assert_eq!(world.call(SIZE, &input).unwrap(), (input.len() as u64).to_le_bytes());
    });
}

#[test]
fn without_overflow_long_arguments_and_results_are_errors() {
    let mut options = HgOptions::default();
    options.overflow = false;
    everywhere_with(&options, |world| {
        let most = world.origin.input_eager_bytes();
        assert_eq!(world.call(SIZE, &pattern(most)).unwrap(), (most as u64).to_le_bytes());
        let long = pattern(most + 1);
        let put = |writer: &mut margo::hg::Writer| writer.put(&long);
        let refused =
            world.origin.forward(&world.to, SIZE, ForwardOptions::default(), put, Token::default());
        let error = refused.unwrap_err().0;
        assert!(matches!(error, HgError::Proc(margo::hg::ProcError::TooLong { .. })), "{error}");
        // A result that is too long: the target cannot answer with it, and says so.
        let result = world.call(MAKE, &10_000u64.to_le_bytes());
        assert!(is_remote_code(&result, ReturnCode::OtherError), "{result:?}");
    });
}

#[test]
fn an_rpc_is_replaced_and_deregistered_while_calls_are_in_flight() {
    in_this_process(|world| {
        let target = world.target();
        let (token, _) = world.start(STUCK, ForwardOptions::default(), b"");
        // Whatever came before it has arrived.
        world.call(NULL, &[]).unwrap();
        assert_eq!(world.service.held.lock().unwrap().len(), 1);
        let (old, new) = (target.registered(STUCK).unwrap(), Registration::mercury("stuck"));
        target.replace(&old, new.data(std::sync::Arc::new(5))).unwrap();
        target.deregister(STUCK).unwrap();
        if world.is_remote() {
            let result = world.call(STUCK, b"");
            assert!(is_remote_code(&result, ReturnCode::NoEntry), "{result:?}");
        }
        // What is in a handler's hands is answered as before.
        let request = world.service.held.lock().unwrap().remove(0);
        answer(request, |writer| writer.put(b"late"));
        world.until("a response", || token.is_over());
        assert_eq!(token.take().unwrap(), b"late");
    });
}
