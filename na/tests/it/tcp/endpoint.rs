//! The conformance suite over tcp, and tests of what only tcp has to do.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Addr, Completion, Endpoint, Error, MsgBuf, OpId, OpenOptions, Tag};

fn open(listen: bool) -> Arc<dyn Endpoint> {
    na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(listen)).unwrap()
}

mod conformance {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        na::open("na+tcp://127.0.0.1:0", options).unwrap()
    }

    na::conformance! { open; all }
}

// `OpenOptions` is `#[non_exhaustive]`: fields can be set, not listed.
fn options(listen: bool, change: impl FnOnce(&mut OpenOptions)) -> OpenOptions {
    let mut options = OpenOptions::listening(listen);
    change(&mut options);
    options
}

type Done = HashMap<u64, Completion>;

/// Polls all endpoints until the first has completed `ops`.
fn finish(endpoints: &[&Arc<dyn Endpoint>], ops: &[u64]) -> Done {
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let mut done = Done::new();
    while !ops.iter().all(|op| done.contains_key(op)) {
        assert!(Instant::now() < deadline, "only {done:?} completed");
        for (at, endpoint) in endpoints.iter().enumerate() {
            let mut sink = |completion: Completion| {
                let op = match &completion {
                    Completion::Send { op, .. } | Completion::Recv { op, .. } => op.0,
                    Completion::Transfer { op, .. } => op.0,
                };
                if at == 0 {
                    done.insert(op, completion);
                }
            };
            endpoint.poll(64, &mut sink).unwrap();
        }
    }
    done
}

fn message(endpoint: &Arc<dyn Endpoint>, bytes: &[u8]) -> MsgBuf {
    let mut buf = endpoint.alloc_msg();
    assert!(buf.try_extend(bytes));
    buf
}

fn send_error(completion: &Completion) -> &Error {
    match completion {
        Completion::Send { result: Err(error), .. } => error,
        other => panic!("not a failed send: {other:?}"),
    }
}

/// One message from `from` to `to` under the address `name`.
fn deliver(from: &Arc<dyn Endpoint>, to: &Arc<dyn Endpoint>, name: &str) -> Addr {
    to.recv_unexpected(OpId(900), to.alloc_msg()).unwrap();
    let to_addr = from.lookup(name).unwrap();
    from.send_unexpected(OpId(901), &to_addr, Tag(1), message(from, b"x")).unwrap();
    match finish(&[to, from], &[900]).remove(&900) {
        Some(Completion::Recv { result: Ok(arrival), .. }) => arrival.from,
        other => panic!("not received: {other:?}"),
    }
}

#[test]
fn peers_that_call_each_other_at_once_keep_their_order() {
    const COUNT: u64 = 200;
    for _ in 0..20 {
        let (a, b) = (open(true), open(true));
        let to_b = a.lookup(b.self_addr().uri()).unwrap();
        let to_a = b.lookup(a.self_addr().uri()).unwrap();
        // Both dial before either polls.
        for number in 0..COUNT {
            for (from, to) in [(&a, &to_b), (&b, &to_a)] {
                let buf = message(from, &number.to_le_bytes());
                from.send_unexpected(OpId(1000 + number), to, Tag(1), buf).unwrap();
                from.recv_unexpected(OpId(number), from.alloc_msg()).unwrap();
            }
        }
        let ops: Vec<u64> = (0..COUNT).chain(1000..1000 + COUNT).collect();
        let check = |done: Done, from: &Addr| {
            let mut caller = None;
            for number in 0..COUNT {
                match &done[&number] {
                    Completion::Recv { buf, result: Ok(arrival), .. } => {
                        assert_eq!(buf.as_slice(), number.to_le_bytes());
                        assert_eq!(arrival.from.uri(), from.uri());
                        assert_ne!(arrival.from, *from, "the caller may be anybody");
                        let known = caller.get_or_insert_with(|| arrival.from.clone());
                        assert_eq!(arrival.from, *known, "one connection");
                    }
                    other => panic!("not received: {other:?}"),
                }
            }
        };
        std::thread::scope(|scope| {
            let at_b = scope.spawn(|| finish(&[&b], &ops));
            check(finish(&[&a], &ops), &to_b);
            check(at_b.join().unwrap(), &to_a);
        });
    }
}

#[test]
fn names_and_numbers_of_one_address_are_one_peer() {
    let (target, origin) = (open(true), open(false));
    let uri = target.self_addr().uri().to_owned();
    let port = uri.rsplit(':').next().unwrap();
    assert_eq!(origin.lookup(&format!("tcp://127.0.0.1:{port}")).unwrap().uri(), uri);
    assert_eq!(
        origin.lookup(&format!("na+tcp://:{port}")).unwrap(),
        origin.lookup(&uri).unwrap(),
        "no host is this host"
    );
    // However `localhost` resolves here, it leads to the target.
    deliver(&origin, &target, &format!("na+tcp://localhost:{port}"));
}

#[test]
fn an_endpoint_on_all_interfaces_names_an_address_that_works() {
    let listening = OpenOptions::listening(true);
    let target = na::open("na+tcp://0.0.0.0:0", &listening).unwrap();
    assert!(!target.self_addr().uri().contains("0.0.0.0"), "{}", target.self_addr());
    deliver(&open(false), &target, target.self_addr().uri());

    // A machine without IPv6 says so; with it, it has to work.
    if TcpListener::bind("[::1]:0").is_ok() {
        for uri in ["na+tcp://[::1]:0", "na+tcp://[::]:0"] {
            let target = na::open(uri, &listening).unwrap();
            deliver(&open(false), &target, target.self_addr().uri());
        }
    }
}

#[test]
fn a_port_in_use_and_a_bad_address_are_told() {
    let target = open(true);
    let error = na::open(target.self_addr().uri(), &OpenOptions::listening(true)).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    for uri in ["na+tcp://127.0.0.1:x", "na+tcp://no-such-host.invalid:1", "tcp://1:2:3"] {
        let error = na::open(uri, &OpenOptions::listening(true)).unwrap_err();
        assert!(matches!(error, Error::BadUri { .. }), "{error}");
    }
    let huge = options(false, |options| options.message_bytes_max = 1 << 30);
    assert!(matches!(na::open("na+tcp://", &huge), Err(Error::BadOption { .. })));
}

#[test]
fn the_smaller_message_limit_counts() {
    let wide = options(false, |options| options.message_bytes_max = 100_000);
    let origin = na::open("na+tcp://", &wide).unwrap();
    let target = open(true);
    let to_target = origin.lookup(target.self_addr().uri()).unwrap();
    // Not yet known when it is queued.
    origin.send_unexpected(OpId(1), &to_target, Tag(1), message(&origin, &[1; 5000])).unwrap();
    origin.send_unexpected(OpId(2), &to_target, Tag(2), message(&origin, &[2; 4096])).unwrap();
    let done = finish(&[&origin, &target], &[1, 2]);
    assert!(matches!(send_error(&done[&1]), Error::TooLong { len: 5000, max: 4096 }));
    assert!(matches!(done[&2], Completion::Send { result: Ok(()), .. }));
    // Known.
    let refused = origin.send_unexpected(OpId(3), &to_target, Tag(1), message(&origin, &[1; 5000]));
    assert!(matches!(refused.unwrap_err().error, Error::TooLong { len: 5000, max: 4096 }));

    // Large messages between two that take them.
    let wide_target =
        na::open("na+tcp://", &options(true, |options| options.message_bytes_max = 1 << 20));
    let wide_target = wide_target.unwrap();
    let to_target = origin.lookup(wide_target.self_addr().uri()).unwrap();
    for op in 0..20 {
        wide_target.recv_unexpected(OpId(op), wide_target.alloc_msg()).unwrap();
        let bytes = vec![op as u8; 100_000 - op as usize];
        origin.send_unexpected(OpId(op), &to_target, Tag(1), message(&origin, &bytes)).unwrap();
    }
    let done = finish(&[&wide_target, &origin], &(0..20).collect::<Vec<_>>());
    for op in 0..20 {
        match &done[&op] {
            Completion::Recv { buf, result: Ok(_), .. } => {
                assert_eq!(buf.len(), 100_000 - op as usize);
                assert!(buf.as_slice().iter().all(|byte| *byte == op as u8));
            }
            other => panic!("not received: {other:?}"),
        }
    }
}

#[test]
fn a_listener_that_never_greets_is_unreachable_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", silent.local_addr().unwrap());
    let hasty = options(false, |options| options.connect_timeout = Duration::from_millis(50));
    let origin = na::open("na+tcp://", &hasty).unwrap();
    let to_silent = origin.lookup(&uri).unwrap();
    origin.recv_expected(OpId(1), &to_silent, Tag(1), origin.alloc_msg()).unwrap();
    origin.send_unexpected(OpId(2), &to_silent, Tag(1), message(&origin, b"hello?")).unwrap();
    let done = finish(&[&origin], &[1, 2]);
    let error = send_error(&done[&2]);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&uri) && error.to_string().contains("50ms"), "{error}");
    let waiting =
        matches!(done[&1], Completion::Recv { result: Err(Error::Unreachable { .. }), .. });
    assert!(waiting, "what waits for the connection ends with it: {:?}", done[&1]);
}

#[test]
fn a_dial_that_is_not_answered_wakes_a_sleeper_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", silent.local_addr().unwrap());
    let hasty = options(false, |options| options.connect_timeout = Duration::from_millis(50));
    let origin = na::open("na+tcp://", &hasty).unwrap();
    let to_silent = origin.lookup(&uri).unwrap();
    origin.send_unexpected(OpId(2), &to_silent, Tag(1), message(&origin, b"hello?")).unwrap();
    let mut failed = false;
    while !failed {
        let mut sink =
            |completion| failed |= matches!(completion, Completion::Send { result: Err(_), .. });
        origin.poll(64, &mut sink).unwrap();
        if !failed && origin.prepare_wait() {
            let fd = origin.wait_fd().unwrap();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let limit = rustix::time::Timespec { tv_sec: 120, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "slept through");
        }
    }
}

#[test]
fn a_stranger_behind_the_port_is_told_apart() {
    // A server of another protocol, which speaks first.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", other.local_addr().unwrap());
    let origin = open(false);
    let to_other = origin.lookup(&uri).unwrap();
    let answers: [&[u8]; 3] = [b"SSH-2.0-OpenSSH\r\n", b"MRGO\x09\x00", b""];
    for (answer, expected) in answers.into_iter().zip(["magic", "version 9", "closed"]) {
        origin.send_unexpected(OpId(1), &to_other, Tag(1), message(&origin, b"hello?")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use std::io::{Read, Write};
                let (mut stream, _): (TcpStream, _) = other.accept().unwrap();
                let mut hello = [0; 32];
                stream.read_exact(&mut hello).unwrap();
                // Its extension; what is left unread would be answered with a reset.
                stream.read_exact(&mut vec![0; usize::from(hello[28])]).unwrap();
                stream.write_all(answer).unwrap();
                if !answer.is_empty() {
                    // Until the origin hangs up.
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
            let done = finish(&[&origin], &[1]);
            let error = send_error(&done[&1]);
            assert_eq!(matches!(error, Error::Protocol { .. }), !answer.is_empty(), "{error}");
            assert!(error.to_string().contains(expected), "{expected}: {error}");
            assert!(error.to_string().contains(&uri), "{error}");
        });
    }
}

#[test]
fn a_target_that_starts_late_is_found() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", taken.local_addr().unwrap());
    drop(taken);
    let patient = options(false, |options| options.tcp.connect_retry = Duration::MAX);
    let origin = na::open("na+tcp://", &patient).unwrap();
    let to_late = origin.lookup(&uri).unwrap();
    origin.send_unexpected(OpId(1), &to_late, Tag(1), message(&origin, b"hello?")).unwrap();
    // Long enough for some refusals; how many does not matter.
    let soon = Instant::now() + Duration::from_millis(60);
    while Instant::now() < soon {
        origin.poll(64, &mut |early| panic!("nobody was there: {early:?}")).unwrap();
    }
    let listening = || na::open(&uri, &OpenOptions::listening(true));
    let target = na::conformance::open_again(listening);
    target.recv_unexpected(OpId(2), target.alloc_msg()).unwrap();
    finish(&[&target, &origin], &[2]);
}

#[test]
fn trying_again_ends_in_time_or_on_cancel_or_close() {
    // Bound, so that nobody else has its port, and not listening, so that who connects is refused.
    let family = rustix::net::AddressFamily::INET;
    let taken = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&taken, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let own = SocketAddr::try_from(rustix::net::getsockname(&taken).unwrap()).unwrap();
    let uri = format!("na+tcp://{own}");
    let tried = options(false, |options| {
        options.connect_timeout = Duration::from_millis(100);
        options.tcp.connect_retry = Duration::from_secs(3600);
    });
    let origin = na::open("na+tcp://", &tried).unwrap();
    let to_nobody = origin.lookup(&uri).unwrap();
    let ask = |op| {
        origin.send_unexpected(OpId(op), &to_nobody, Tag(1), message(&origin, b"?")).unwrap();
    };
    ask(1);
    let done = finish(&[&origin], &[1]);
    let error = send_error(&done[&1]);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    // In a pause between two attempts.
    ask(2);
    let soon = Instant::now() + Duration::from_millis(20);
    while Instant::now() < soon {
        origin.poll(64, &mut |_| ()).unwrap();
    }
    ask(3);
    origin.cancel(OpId(2));
    let done = finish(&[&origin], &[2]);
    assert!(matches!(send_error(&done[&2]), Error::Canceled));
    origin.close();
    let done = finish(&[&origin], &[3]);
    let error = send_error(&done[&3]);
    assert!(matches!(error, Error::Closed | Error::Unreachable { .. }), "{error}");
}

#[test]
fn connections_beyond_the_limit_are_refused_and_told_why() {
    let narrow = options(true, |options| options.tcp.connections_max = 2);
    let target = na::open("na+tcp://", &narrow).unwrap();
    let uri = target.self_addr().uri().to_owned();
    let welcome = [open(false), open(false)];
    // Neither those that it made itself count, nor those of who knows nothing to say.
    let called = [open(true), open(true)];
    for other in &called {
        deliver(&target, other, other.self_addr().uri());
    }
    let address = uri.strip_prefix("na+tcp://").unwrap();
    let strangers = [(); 3].map(|()| TcpStream::connect(address).unwrap());
    for origin in &welcome {
        deliver(origin, &target, &uri);
    }
    let third = open(false);
    let to_target = third.lookup(&uri).unwrap();
    third.send_unexpected(OpId(1), &to_target, Tag(1), message(&third, b"me too")).unwrap();
    let done = finish(&[&third, &target], &[1]);
    let error = send_error(&done[&1]);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("as many connections as it takes"), "{error}");
    drop(strangers);
    // The others are still served, and room that they leave is given away.
    deliver(&welcome[1], &target, &uri);
    welcome[0].close();
    let mut left = false;
    while !left {
        third.send_unexpected(OpId(1), &to_target, Tag(1), message(&third, b"now?")).unwrap();
        let done = finish(&[&third, &target], &[1]);
        left = matches!(done[&1], Completion::Send { result: Ok(()), .. });
    }
    let none = options(true, |options| options.tcp.connections_max = 0);
    assert!(matches!(na::open("na+tcp://", &none), Err(Error::BadOption { .. })));
}

#[test]
fn who_hangs_up_before_it_greets_is_tried_again() {
    let closer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closer.local_addr().unwrap();
    let uri = format!("na+tcp://{address}");
    let patient = options(false, |options| options.tcp.connect_retry = Duration::MAX);
    let origin = na::open("na+tcp://", &patient).unwrap();
    let to_late = origin.lookup(&uri).unwrap();
    origin.send_unexpected(OpId(1), &to_late, Tag(1), message(&origin, b"hello?")).unwrap();
    closer.set_nonblocking(true).unwrap();
    let mut closed = 0;
    while closed < 2 {
        closed += usize::from(closer.accept().is_ok());
        origin.poll(64, &mut |early| panic!("nobody was there: {early:?}")).unwrap();
    }
    drop(closer);
    let listening = || na::open(&uri, &OpenOptions::listening(true));
    let target = na::conformance::open_again(listening);
    target.recv_unexpected(OpId(2), target.alloc_msg()).unwrap();
    finish(&[&target, &origin], &[2]);
}

/// A peer that greets and then reads nothing.
fn greeted_by(listener: &TcpListener, origin: &Arc<dyn Endpoint>) -> TcpStream {
    greeted_by_one_of(listener, origin, 1)
}

/// A peer that greets with those capabilities, and then reads nothing.
fn greeted_by_one_of(
    listener: &TcpListener,
    origin: &Arc<dyn Endpoint>,
    capabilities: u8,
) -> TcpStream {
    use std::io::Write;
    listener.set_nonblocking(true).unwrap();
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => assert!(origin.poll(64, &mut |_| ()).is_ok()),
        }
    };
    let mut hello = b"MRGO\x01\x00\x01\x00\x00\x10\x00\x00".to_vec();
    hello[6] = capabilities;
    hello.resize(32, 0);
    stream.write_all(&hello).unwrap();
    stream
}

#[test]
fn a_peer_that_reads_nothing_is_given_up_after_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
    let limited = options(false, |options| {
        options.tcp.slow_reader_limit = Duration::from_millis(200);
    });
    let origin = na::open("na+tcp://", &limited).unwrap();
    let to_slow = origin.lookup(&uri).unwrap();
    // More than the sockets hold.
    let count = 8192;
    for op in 0..count {
        origin.send_unexpected(OpId(op), &to_slow, Tag(1), message(&origin, &[1; 4096])).unwrap();
    }
    let _slow = greeted_by(&listener, &origin);
    let done = finish(&[&origin], &(0..count).collect::<Vec<_>>());
    let error = send_error(&done[&(count - 1)]);
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
    assert!(error.to_string().contains("taken nothing for 200ms"), "{error}");
}

#[test]
fn a_silent_peer_that_owes_an_answer_is_given_up_after_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
    let limited = options(false, |options| options.liveness_limit = Duration::from_millis(200));
    let origin = na::open("na+tcp://", &limited).unwrap();
    let to_silent = origin.lookup(&uri).unwrap();
    origin.send_unexpected(OpId(1), &to_silent, Tag(1), message(&origin, b"hello?")).unwrap();
    let _silent = greeted_by(&listener, &origin);
    finish(&[&origin], &[1]);
    origin.recv_expected(OpId(2), &to_silent, Tag(1), origin.alloc_msg()).unwrap();
    let done = finish(&[&origin], &[2]);
    match &done[&2] {
        Completion::Recv { result: Err(error @ Error::PeerGone { .. }), .. } => {
            assert!(error.to_string().contains("no sign of life"), "{error}");
        }
        other => panic!("not given up: {other:?}"),
    }
}

#[test]
fn a_peer_that_knows_no_signs_of_life_is_not_given_up_for_its_silence() {
    use std::io::Write;
    const LIMIT: Duration = Duration::from_millis(200);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
    let origin = na::open("na+tcp://", &options(false, |o| o.liveness_limit = LIMIT)).unwrap();
    let to_peer = origin.lookup(&uri).unwrap();
    origin.send_unexpected(OpId(1), &to_peer, Tag(1), message(&origin, b"hello?")).unwrap();
    origin.recv_expected(OpId(2), &to_peer, Tag(1), origin.alloc_msg()).unwrap();
    let mut peer = greeted_by_one_of(&listener, &origin, 0);
    finish(&[&origin], &[1]);
    let late = Instant::now() + 2 * LIMIT;
    while Instant::now() < late {
        origin.poll(64, &mut |early| panic!("it still works: {early:?}")).unwrap();
    }
    peer.write_all(&[&[2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], b"done"].concat())
        .unwrap();
    match finish(&[&origin], &[2]).remove(&2) {
        Some(Completion::Recv { buf, result: Ok(_), .. }) => assert_eq!(buf.as_slice(), b"done"),
        other => panic!("not received: {other:?}"),
    }
}

#[test]
fn peers_that_live_are_never_given_up() {
    let limited = |listen| {
        let options = options(listen, |options| {
            options.liveness_limit = Duration::from_millis(200);
            options.tcp.slow_reader_limit = Duration::from_millis(200);
        });
        na::open("na+tcp://", &options).unwrap()
    };
    let (target, origin) = (limited(true), limited(false));
    let to_target = origin.lookup(target.self_addr().uri()).unwrap();
    origin.send_unexpected(OpId(1), &to_target, Tag(1), message(&origin, b"slowly")).unwrap();
    origin.recv_expected(OpId(2), &to_target, Tag(1), origin.alloc_msg()).unwrap();
    // The target owes an answer for five times the limit, then gives it.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        origin
            .poll(64, &mut |completion| {
                assert!(matches!(completion, Completion::Send { result: Ok(()), .. }));
            })
            .unwrap();
        target.poll(64, &mut |early| panic!("nothing was asked for: {early:?}")).unwrap();
        std::thread::yield_now();
    }
    target.recv_unexpected(OpId(3), target.alloc_msg()).unwrap();
    let from = match finish(&[&target, &origin], &[3]).remove(&3) {
        Some(Completion::Recv { result: Ok(arrival), .. }) => arrival.from,
        other => panic!("not received: {other:?}"),
    };
    target.send_expected(OpId(4), &from, Tag(1), message(&target, b"here")).unwrap();
    let done = finish(&[&origin, &target], &[2]);
    assert!(matches!(done[&2], Completion::Recv { result: Ok(_), .. }), "{:?}", done[&2]);
}

#[test]
fn a_receive_is_canceled_while_its_long_message_arrives() {
    use std::io::Write;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
    let origin = open(false);
    let to_peer = origin.lookup(&uri).unwrap();
    for op in [1, 2] {
        origin.recv_expected(OpId(op), &to_peer, Tag(7), origin.alloc_msg()).unwrap();
    }
    origin.send_unexpected(OpId(3), &to_peer, Tag(7), message(&origin, b"?")).unwrap();
    let mut peer = greeted_by(&listener, &origin);
    let header = |len: u32| [&[2, 0, 0, 0][..], &len.to_le_bytes(), &7u64.to_le_bytes()].concat();
    peer.write_all(&header(4096)).unwrap();
    finish(&[&origin], &[3]);
    // Until the header has surely been read.
    for _ in 0..1000 {
        origin.poll(64, &mut |early| panic!("nothing is complete: {early:?}")).unwrap();
    }
    peer.write_all(&[1; 1000]).unwrap();
    origin.poll(64, &mut |early| panic!("nothing is complete: {early:?}")).unwrap();
    origin.cancel(OpId(1));
    let done = finish(&[&origin], &[1]);
    assert!(matches!(done[&1], Completion::Recv { result: Err(Error::Canceled), .. }));
    peer.write_all(&[&[1; 3096][..], &header(4096), &[2; 4096]].concat()).unwrap();
    let done = finish(&[&origin], &[2]);
    match &done[&2] {
        Completion::Recv { buf, result: Ok(_), .. } => assert_eq!(buf.as_slice(), [2; 4096]),
        other => panic!("not received: {other:?}"),
    }
}

#[test]
fn an_interface_can_be_listened_on() {
    let target = na::open("tcp://lo:0", &OpenOptions::listening(true)).unwrap();
    let uri = target.self_addr().uri().to_owned();
    assert!(uri.contains("127.0.0.1") || uri.contains("::1"), "{uri}");
    deliver(&open(false), &target, &uri);
    let port = uri.rsplit(':').next().unwrap();
    let other = open(false);
    let by_interface = other.lookup(&format!("tcp://lo:{port}")).unwrap();
    assert_eq!(by_interface, other.lookup(&uri).unwrap());
    let error = na::open("tcp://no-such-interface:0", &OpenOptions::listening(true)).unwrap_err();
    assert!(error.to_string().contains("no interface here"), "{error}");
}

#[test]
fn busy_polling_is_set_or_refused_with_its_reason() {
    let busy = options(true, |options| options.tcp.busy_poll = Duration::from_micros(50));
    match na::open("na+tcp://", &busy) {
        Ok(target) => {
            deliver(&na::open("na+tcp://", &busy).unwrap(), &target, target.self_addr().uri());
        }
        Err(error) => {
            println!("not tested further: {error}");
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        }
    }
}

#[test]
fn a_liveness_limit_is_accepted_by_the_system() {
    for limit in [Duration::from_millis(1), Duration::from_secs(5), Duration::from_secs(1 << 30)] {
        let with_limit = |listen| {
            let options = options(listen, |options| {
                options.liveness_limit = limit;
                options.connect_timeout = Duration::MAX;
            });
            na::open("na+tcp://", &options).unwrap()
        };
        let target = with_limit(true);
        deliver(&with_limit(false), &target, target.self_addr().uri());
    }
}

#[test]
fn an_answer_leaves_though_its_sender_only_takes_what_it_has_left() {
    let (target, origin) = (open(true), open(false));
    let to_target = origin.lookup(target.self_addr().uri()).unwrap();
    let to_origin = deliver(&origin, &target, target.self_addr().uri());
    for op in 0..3 {
        target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap();
        let buf = message(&origin, b"call");
        origin.send_unexpected(OpId(op), &to_target, Tag(op as u32), buf).unwrap();
    }
    finish(&[&origin], &[0, 1, 2]);
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let mut arrived = 0;
    while arrived == 0 {
        assert!(Instant::now() < deadline, "nothing arrived");
        target.poll(1, &mut |_| arrived += 1).unwrap();
    }
    origin.recv_expected(OpId(9), &to_target, Tag(5), origin.alloc_msg()).unwrap();
    target.send_expected(OpId(9), &to_origin, Tag(5), message(&target, b"answer")).unwrap();
    let mut answered = false;
    while !answered {
        assert!(Instant::now() < deadline, "the answer does not leave");
        // Takes nothing, so the target has the other calls left.
        target.poll(0, &mut |_| ()).unwrap();
        let mut sink = |done| answered |= matches!(done, Completion::Recv { result: Ok(_), .. });
        origin.poll(8, &mut sink).unwrap();
    }
}

/// Sends what keeps `wanted` messages of each origin under way, and polls `target` for one
/// completion at a time, until each origin's `each` messages have come. Returns how many came of
/// all of them.
fn messages_until_each_has_come(
    target: &Arc<dyn Endpoint>,
    origins: &[Arc<dyn Endpoint>],
    wanted: &[u64],
    each: u64,
) -> u64 {
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let (mut sent, mut came) = (vec![0; origins.len()], vec![0; origins.len()]);
    let to: Vec<_> =
        origins.iter().map(|origin| origin.lookup(target.self_addr().uri()).unwrap()).collect();
    (0..512).for_each(|op| target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap());
    while came.iter().any(|came| *came < each) {
        assert!(Instant::now() < deadline, "{came:?} have come");
        for (at, origin) in origins.iter().enumerate() {
            while sent[at] < came[at] + wanted[at] {
                let tag = Tag(u32::try_from(at).unwrap());
                origin
                    .send_unexpected(OpId(sent[at]), &to[at], tag, message(origin, b"x"))
                    .unwrap();
                sent[at] += 1;
            }
            origin.poll(64, &mut drop).unwrap();
        }
        let mut sink = |completion| {
            let Completion::Recv { op, result: Ok(arrival), .. } = completion else { panic!() };
            came[arrival.tag.0 as usize] += 1;
            target.recv_unexpected(op, target.alloc_msg()).unwrap();
        };
        assert!(target.poll(1, &mut sink).unwrap() <= 1);
    }
    came.iter().sum()
}

#[test]
fn no_connection_is_left_unread_while_others_spend_the_budget() {
    const EACH: u64 = 30;
    // More than are read in every poll; one after the other, with as much under way.
    let origins: Vec<_> = (0..6).map(|_| open(false)).collect();
    let all = messages_until_each_has_come(&open(true), &origins, &[2; 6], EACH);
    assert!(all <= 6 * EACH * 20, "{all} came before the last one's {EACH}");
    // Of those that are, the first one has always something.
    let all = messages_until_each_has_come(&open(true), &origins[..2], &[64, 1], EACH);
    assert!(all <= 64 * EACH * 10, "{all} came before the last one's {EACH}");
}
