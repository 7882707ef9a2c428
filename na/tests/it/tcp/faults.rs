//! Attacks of a hostile or broken peer on a tcp endpoint: the peer can lose its own connection, and
//! do nothing else.
//!
//! The peers here are plain sockets that write bytes. After each of them, the endpoint still serves
//! an honest peer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use na::conformance::PATIENCE;
use na::{Access, Arrival, Completion, Endpoint, Memory, OpId, OpenOptions, Tag};

use crate::common::{self, test_path};
use proptest::prelude::*;

mod descriptors;
mod grouped;

const MEMORY_BYTES: usize = 1 << 20;

/// A listening endpoint, polled by a thread that answers each unexpected message with an expected
/// one of the same tag and contents.
struct Server {
    endpoint: Arc<dyn Endpoint>,
    key: u64,
    /// The most answers that were given to it and not sent.
    unsent_max: Arc<AtomicUsize>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _memory: na::LocalMem,
}

impl Server {
    fn start() -> Self {
        Self::with(&OpenOptions::listening(true))
    }

    fn with(options: &OpenOptions) -> Self {
        let endpoint = common::open("na+tcp://127.0.0.1:0", options);
        let memory = Memory::from_vec(vec![7; MEMORY_BYTES]);
        let memory = endpoint.register(memory, Access::ReadWrite).unwrap();
        let (stop, stopped) = mpsc::channel();
        let polled = endpoint.clone();
        let unsent_max = Arc::new(AtomicUsize::new(0));
        let most = unsent_max.clone();
        let thread = std::thread::spawn(move || {
            for op in 0..16 {
                polled.recv_unexpected(OpId(op), polled.alloc_msg()).unwrap();
            }
            let mut unsent = 0;
            let mut sink = |completion| match completion {
                Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) } => {
                    unsent += 1;
                    most.fetch_max(unsent, Ordering::Relaxed);
                    polled.send_expected(OpId(1000), &from, tag, buf).unwrap();
                    polled.recv_unexpected(op, polled.alloc_msg()).unwrap();
                }
                Completion::Send { .. } => unsent -= 1,
                _ => {}
            };
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                polled.poll(64, &mut sink).unwrap();
                std::thread::yield_now();
            }
        });
        let key = memory.key();
        let (stop, thread) = (Some(stop), Some(thread));
        Self { endpoint, key, unsent_max, stop, thread, _memory: memory }
    }

    fn connect(&self) -> TcpStream {
        let uri = self.endpoint.self_addr().uri().to_owned();
        let stream = TcpStream::connect(uri.strip_prefix("na+tcp://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connection that has said a correct hello and heard the server's.
    fn greeted(&self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&hello(1, "")).unwrap();
        hear_hello(&mut stream);
        stream
    }

    /// An honest peer is served.
    fn still_serves(&self) {
        let origin = na::open("na+tcp://", &OpenOptions::default()).unwrap();
        let to_server = common::lookup(&origin, self.endpoint.self_addr().uri());
        origin.recv_expected(OpId(1), &to_server, Tag(5), origin.alloc_msg()).unwrap();
        let mut buf = origin.alloc_msg();
        assert!(buf.try_extend(b"still there?"));
        origin.send_unexpected(OpId(2), &to_server, Tag(5), buf).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut answered = false;
        while !answered {
            assert!(Instant::now() < deadline, "the server does not answer any more");
            let mut sink = |completion| match completion {
                Completion::Recv { buf, result, .. } => {
                    result.unwrap();
                    assert_eq!(buf.as_slice(), b"still there?");
                    answered = true;
                }
                Completion::Send { result, .. } => result.unwrap(),
                other => panic!("unexpected {other:?}"),
            };
            origin.poll(64, &mut sink).unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// Bytes of a hello without its address.
const HELLO_BYTES: usize = 32;

fn hello(session: u64, uri: &str) -> Vec<u8> {
    let mut bytes = b"MRGO\x01\x00\x00\x00".to_vec();
    bytes.extend_from_slice(&4096u32.to_le_bytes());
    bytes.extend_from_slice(&(uri.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(uri.as_bytes());
    grouped::wishing(bytes, session)
}

fn hear_hello(stream: &mut TcpStream) {
    let mut fixed = [0; HELLO_BYTES];
    stream.read_exact(&mut fixed).unwrap();
    assert_eq!(fixed[..4], *b"MRGO");
    let uri_len = u16::from_le_bytes([fixed[12], fixed[13]]);
    let extension_len = u16::from_le_bytes([fixed[28], fixed[29]]);
    stream.read_exact(&mut vec![0; usize::from(uri_len + extension_len)]).unwrap();
}

fn header(kind: u8, len: u32, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

fn request(kind: u8, number: u64, key: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = header(kind, 24, number);
    for word in [key, offset, len] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads until the server closes the connection; fails if it does not. Returns what came.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "not closed: {error}");
        }
    }
    bytes
}

/// The server closes the connection on which these bytes are written.
fn is_hung_up_on(server: &Server, mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // It may be closed before we are through.
    let _ = stream.write_all(bytes);
    let answer = until_closed(&mut stream);
    server.still_serves();
    answer
}

#[test]
fn a_stranger_is_hung_up_on() {
    let server = Server::start();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"M", b"MRG\0", &[0; 4096], &[0xFF; 70_000]] {
        let mut stream = server.connect();
        let _ = stream.write_all(bytes);
        if bytes == b"M" {
            // So far it could be a hello.
            stream.shutdown(Shutdown::Write).unwrap();
        }
        assert!(until_closed(&mut stream).is_empty(), "a stranger gets no answer");
        server.still_serves();
    }
}

#[test]
fn another_version_is_answered_and_hung_up_on() {
    let server = Server::start();
    let mut bytes = hello(1, "");
    bytes[4] = 9;
    let answer = is_hung_up_on(&server, server.connect(), &bytes);
    assert_eq!(answer[..6], *b"MRGO\x01\x00", "so that the other side can tell why");
    for (at, value) in [(13, 0xFF), (29, 0xFF)] {
        let mut bytes = hello(1, "");
        bytes[at] = value;
        is_hung_up_on(&server, server.connect(), &bytes);
    }
    let mut bytes = hello(1, "xx");
    bytes[HELLO_BYTES + 1] = 0xFF;
    is_hung_up_on(&server, server.connect(), &bytes);
}

#[test]
fn what_a_later_version_offers_is_passed_over() {
    let server = Server::start();
    let mut bytes = hello(1, "");
    // Capabilities that nobody knows yet, and an extension.
    (bytes[6], bytes[7], bytes[28]) = (0xFF, 0xFF, 3);
    bytes.extend([header(1, 2, 3), b"hi".to_vec()].concat());
    bytes.splice(HELLO_BYTES..HELLO_BYTES, *b"new");
    let mut stream = server.connect();
    stream.write_all(&bytes).unwrap();
    hear_hello(&mut stream);
    let mut answer = [0; 18];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], [header(2, 2, 3), b"hi".to_vec()].concat());
}

#[test]
fn signs_of_life_are_sent_to_who_wants_them() {
    let server = Server::start();
    let mut stream = server.connect();
    let mut bytes = hello(1, "");
    (bytes[6], bytes[24]) = (bytes[6] | 1, 1);
    stream.write_all(&bytes).unwrap();
    hear_hello(&mut stream);
    let mut beats = [0; 3 * 16];
    stream.read_exact(&mut beats).unwrap();
    assert_eq!(beats[..], header(9, 0, 0).repeat(3));
    // Ours are welcome too, and mean nothing.
    stream.write_all(&[header(9, 0, 0), header(1, 0, 4)].concat()).unwrap();
    let mut frame = [0; 16];
    while frame[0] != 2 {
        stream.read_exact(&mut frame).unwrap();
    }
}

/// Returns whether this process may have so many descriptors, after raising its limit if need be.
pub(super) fn may_have_descriptors(wanted: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused at most where it is not needed: the soft limit may always be raised to the hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.is_none_or(|limit| limit >= wanted)
}

#[test]
fn connections_without_a_hello_do_not_keep_others_out() {
    // Both ends are here.
    if !may_have_descriptors(800) {
        return println!("SKIPPED: too few file descriptors are allowed");
    }
    let server = Server::start();
    let mut silent: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    server.still_serves();
    // The oldest gave way.
    until_closed(&mut silent[0]);
    // A hello that never ends is one of them.
    let mut slow = server.connect();
    for byte in &hello(1, "")[..20] {
        slow.write_all(&[*byte]).unwrap();
    }
    server.still_serves();
}

#[test]
fn frames_that_break_a_rule_are_the_last() {
    let server = Server::start();
    let key = server.key;
    let data = |kind, number, len: u32| {
        let mut bytes = header(kind, len, number);
        bytes.resize(bytes.len() + len as usize, 1);
        bytes
    };
    let mut reserved = header(1, 0, 1);
    reserved[2] = 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("unknown kind", header(0, 0, 0)),
        ("unknown kind", header(10, 0, 0)),
        ("sign of life with a payload", header(9, 1, 0)),
        ("reserved byte", reserved),
        ("huge message", header(1, u32::MAX, 1)),
        ("message beyond the limit", header(2, 4097, 1)),
        ("tag beyond 32 bits", header(1, 0, 1 << 32)),
        ("short get", header(3, 23, 1)),
        ("long put", header(4, 25, 1)),
        ("empty data", header(6, 0, 1)),
        ("huge data", header(6, u32::MAX, 1)),
        ("data that nobody asked for", data(5, 1, 10)),
        ("data that nobody announced", data(6, 1, 10)),
        ("verdict on nothing", [header(7, 4, 1), vec![0; 4]].concat()),
        ("verdict of unknown status", [header(7, 4, 1), vec![9; 4]].concat()),
        ("cancel with a payload", header(8, 1, 1)),
        ("more data than announced", [request(4, 1, key, 0, 8), data(6, 1, 9)].concat()),
        (
            "more data than announced, in two",
            [request(4, 1, key, 0, 8), data(6, 1, 8), data(6, 1, 1)].concat(),
        ),
        ("a number used twice", [request(4, 1, key, 0, 8), request(4, 1, key, 0, 8)].concat()),
        ("too many puts", (0..65).flat_map(|number| request(4, number, key, 0, 8)).collect()),
    ];
    for (what, bytes) in cases {
        println!("{what}");
        is_hung_up_on(&server, server.greeted(), &bytes);
    }
}

#[test]
fn a_peer_that_gets_and_does_not_read_is_bounded() {
    let server = Server::start();
    let mut stream = server.greeted();
    let flood: Vec<u8> = (0..5000)
        .flat_map(|number| request(3, number, server.key, 0, MEMORY_BYTES as u64))
        .collect();
    let _ = stream.write_all(&flood);
    server.still_serves();
    until_closed(&mut stream);
    server.still_serves();
}

#[test]
fn a_peer_that_asks_and_never_reads_the_answers_is_bounded() {
    let server = Server::start();
    let mut stream = server.greeted();
    // Each is answered at once, by a verdict; none is ever read.
    let flood: Vec<u8> =
        (0..10_000).flat_map(|number| request(4, number, server.key ^ 1, 0, 0)).collect();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut rounds = 0;
    while stream.write_all(&flood).is_ok() {
        rounds += 1;
        assert!(rounds < 100_000, "the server takes everything, and keeps every answer");
    }
    server.still_serves();
}

#[test]
fn a_peer_that_calls_and_does_not_read_the_answers_is_held_back() {
    const UNREAD_MAX: usize = 16 << 20;
    let mut options = OpenOptions::listening(true);
    options.unread_answers_max = Some(UNREAD_MAX);
    let server = Server::with(&options);
    let mut stream = server.greeted();
    stream.set_nonblocking(true).unwrap();
    let request = [header(1, 48, 4), vec![1; 48]].concat();
    let flood = request.repeat(64);
    // Others are served meanwhile, and in the end it can send nothing more.
    let (mut written, mut rounds) = (0, 0);
    while rounds < 20 {
        match stream.write(&flood[written % request.len()..]) {
            Ok(bytes) => (written, rounds) = (written + bytes, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "it was not given up");
                server.still_serves();
                rounds += 1;
            }
        }
    }
    // Whose answers wait in buffers of their own, not packed.
    let unsent_max = server.unsent_max.load(Ordering::Relaxed);
    assert!(unsent_max * 4096 <= UNREAD_MAX, "{unsent_max} have waited");
    // It gets them all when it reads.
    stream.set_nonblocking(false).unwrap();
    let mut answer = vec![0; request.len()];
    for _ in 0..written / request.len() {
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[16..], [1; 48]);
    }
    server.still_serves();
}

/// Set in a process of this program that is the child of a test.
const CHILD: &str = "NA_TCP_FAULTS_CHILD";

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// In a process of its own, whose memory is measured.
#[test]
fn what_a_crowd_leaves_unread_is_bounded_and_given_back() {
    if std::env::var_os(CHILD).is_some() {
        return leave_much_unread();
    }
    na::conformance::hear_of_children();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            test_path!("what_a_crowd_leaves_unread_is_bounded_and_given_back"),
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let is_run = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && is_run, "{output:?}");
}

fn leave_much_unread() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    const ANSWER_BYTES: usize = 1000;
    let endpoint = na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(true)).unwrap();
    for op in 0..64 {
        endpoint.recv_unexpected(OpId(op), endpoint.alloc_msg()).unwrap();
    }
    let serve = || {
        let mut done = Vec::new();
        endpoint.poll(64, &mut |completion| done.push(completion)).unwrap();
        for completion in done {
            let Completion::Recv { op, mut buf, result: Ok(Arrival { from, tag }) } = completion
            else {
                continue;
            };
            if tag == Tag(0) {
                // Who is awaited is read on.
                endpoint.recv_expected(OpId(99), &from, Tag(1), endpoint.alloc_msg()).unwrap();
            }
            buf.set_len(ANSWER_BYTES);
            endpoint.send_expected(OpId(98), &from, tag, buf).unwrap();
            endpoint.recv_unexpected(op, endpoint.alloc_msg()).unwrap();
        }
    };
    let before = resident();
    let address = endpoint.self_addr().uri().strip_prefix("na+tcp://").unwrap().to_owned();
    let connect = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(&[hello(1, ""), header(1, 0, 0)].concat()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut crowd: Vec<TcpStream> = (0..6).map(connect).collect();
    let flood = header(1, 0, 1).repeat(1024);
    let (deadline, mut most) = (Instant::now() + 2 * PATIENCE, 0);
    // Only whole requests are written by each, or none: it is given up anyway.
    let mut written = [0; 6];
    let mut given_up = 0;
    while given_up < 3 {
        assert!(Instant::now() < deadline, "{} MiB, {given_up} given up", most >> 20);
        for (stream, written) in crowd.iter_mut().zip(&mut written) {
            if *written == usize::MAX {
                continue;
            }
            match stream.write(&flood[*written % 16..]) {
                Ok(bytes) => *written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => (*written, given_up) = (usize::MAX, given_up + 1),
            }
        }
        serve();
        most = most.max(resident());
        // 64 MiB of one peer, 128 MiB of a host.
        assert!(most < before + (300 << 20), "{} MiB", most >> 20);
    }
    assert!(most > before + (60 << 20), "{} MiB", most >> 20);
    crowd.clear();
    let after = before + (40 << 20);
    while resident() > after {
        assert!(Instant::now() < deadline, "{} MiB stay", resident() >> 20);
        serve();
        std::thread::yield_now();
    }
}

#[test]
fn a_connection_that_ends_anywhere_ends_alone() {
    let server = Server::start();
    let mut bytes = hello(1, "");
    bytes.extend(header(1, 5, 7));
    bytes.extend(b"hello");
    bytes.extend(request(4, 0, server.key, 0, 100));
    bytes.extend(header(6, 100, 0));
    bytes.extend([9; 100]);
    for end in 0..bytes.len() {
        let mut stream = server.connect();
        stream.write_all(&bytes[..end]).unwrap();
        if end % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
            until_closed(&mut stream);
        }
    }
    server.still_serves();
}

#[test]
fn a_long_message_that_never_ends_gives_its_receive_back() {
    let server = Server::start();
    // More often than the server has receives posted.
    for sent in 0..40 {
        let mut stream = server.greeted();
        stream.write_all(&header(1, 4096, 7)).unwrap();
        stream.write_all(&vec![1; 100 * sent]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        until_closed(&mut stream);
    }
    server.still_serves();
}

#[test]
fn long_messages_that_do_not_go_on_leave_receives_for_others() {
    let server = Server::start();
    // More than the server has receives posted, all at once.
    let begun = (0..40).map(|_| {
        let mut stream = server.greeted();
        stream.write_all(&header(1, 4096, 7)).unwrap();
        stream
    });
    let begun: Vec<_> = begun.collect();
    // The first of these connections is accepted after the others were read.
    server.still_serves();
    server.still_serves();
    for mut stream in begun {
        stream.write_all(&[1; 4096]).unwrap();
        let mut answer = vec![0; 16 + 4096];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[16..], [1; 4096]);
    }
}

#[test]
fn denied_transfers_do_not_end_the_connection() {
    let server = Server::start();
    let mut stream = server.greeted();
    let key = server.key;
    let verdict = |stream: &mut TcpStream, number: u64| {
        let mut bytes = [0; 20];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..16], header(7, 4, number)[..]);
        bytes[16]
    };
    let len = MEMORY_BYTES as u64;
    for (number, (key, offset, len, status)) in
        [(key ^ 1, 0, 1, 1), (key, len, 1, 3), (key, u64::MAX, u64::MAX, 3), (key, len, 0, 0)]
            .into_iter()
            .enumerate()
    {
        let number = number as u64 * 2;
        stream.write_all(&request(3, number, key, offset, len)).unwrap();
        assert_eq!(verdict(&mut stream, number), status);
        stream.write_all(&request(4, number + 1, key, offset, len)).unwrap();
        assert_eq!(verdict(&mut stream, number + 1), status);
        // The data of a denied put is skipped; a cancel ends that.
        if len == 1 {
            stream.write_all(&header(6, 1, number + 1)).unwrap();
            stream.write_all(&[1]).unwrap();
        } else {
            stream.write_all(&header(8, 0, number + 1)).unwrap();
        }
    }
    stream.write_all(&request(3, 100, key, 5, 3)).unwrap();
    let mut bytes = [0; 19];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..16], header(5, 3, 100)[..]);
    assert_eq!(bytes[16..], [7; 3]);
}

#[test]
fn who_announces_an_address_ends_nobody_of_that_address() {
    let server = Server::start();
    let uri = "na+tcp://127.0.0.1:9";
    let announce = |session| {
        let mut stream = server.connect();
        stream.write_all(&hello(session, uri)).unwrap();
        hear_hello(&mut stream);
        stream
    };
    let echo = |stream: &mut TcpStream, text: &[u8; 2]| {
        stream.write_all(&[header(1, 2, 3), text.to_vec()].concat()).unwrap();
        let mut bytes = [0; 18];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..], [header(2, 2, 3), text.to_vec()].concat());
    };
    let mut first = announce(1);
    echo(&mut first, b"ab");
    // Another session, and the same again: each is a caller of its own.
    let (mut second, mut third) = (announce(2), announce(1));
    for (stream, text) in [(&mut third, b"cd"), (&mut first, b"ef"), (&mut second, b"gh")] {
        echo(stream, text);
    }
    second.write_all(&[0xff; 16]).unwrap();
    until_closed(&mut second);
    drop(third);
    server.still_serves();
    echo(&mut first, b"ij");
}

/// Polls until `stream` has brought `len` bytes.
fn read_while_polled(
    stream: &mut TcpStream,
    len: usize,
    endpoint: &dyn Endpoint,
    sink: &mut dyn FnMut(Completion),
) -> Vec<u8> {
    let (mut bytes, mut got) = (vec![0; len], 0);
    let deadline = Instant::now() + PATIENCE;
    stream.set_nonblocking(true).unwrap();
    while got < len {
        assert!(Instant::now() < deadline, "{got} of {len} bytes have come");
        endpoint.poll(64, sink).unwrap();
        match stream.read(&mut bytes[got..]) {
            Ok(0) => panic!("closed after {got} of {len} bytes"),
            Ok(more) => got += more,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    stream.set_nonblocking(false).unwrap();
    bytes
}

/// Polls until operation `op` has ended, and returns what was received and from whom.
fn received(endpoint: &dyn Endpoint, op: u64) -> (Vec<u8>, na::Addr) {
    let deadline = Instant::now() + PATIENCE;
    let mut came = None;
    while came.is_none() {
        assert!(Instant::now() < deadline, "operation {op} does not end");
        let mut sink = |completion| match completion {
            Completion::Recv { op: own, buf, result } => {
                assert_eq!(own, OpId(op), "{:?}", buf.as_slice());
                came = Some((buf.as_slice().to_vec(), result.unwrap().from));
            }
            Completion::Send { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        };
        endpoint.poll(64, &mut sink).unwrap();
    }
    came.unwrap()
}

#[test]
fn what_is_sent_to_an_address_reaches_who_listens_there() {
    // Whether the stranger is there before the peer.
    for strangers_first in [true, false] {
        let endpoint = na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(true)).unwrap();
        let endpoint = &*endpoint;
        let message = |bytes: &[u8]| {
            let mut buf = endpoint.alloc_msg();
            assert!(buf.try_extend(bytes));
            buf
        };
        let sends_only = &mut |completion| match completion {
            Completion::Send { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("na+tcp://{}", listener.local_addr().unwrap());
        let there = endpoint.lookup(&uri).unwrap();
        let own_uri = endpoint.self_addr().uri().to_owned();
        // Both begin, and the hello of the endpoint has its address and an extension.
        let hello_bytes = HELLO_BYTES + own_uri.len() + 16;
        let claim = || {
            let mut stream = TcpStream::connect(&own_uri["na+tcp://".len()..]).unwrap();
            stream.write_all(&hello(9, &uri)).unwrap();
            read_while_polled(&mut stream, hello_bytes, endpoint, &mut drop);
            stream
        };
        let early = strangers_first.then(claim);

        endpoint.recv_expected(OpId(1), &there, Tag(5), endpoint.alloc_msg()).unwrap();
        endpoint.send_unexpected(OpId(2), &there, Tag(5), message(b"secret")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut peer = loop {
            assert!(Instant::now() < deadline, "the listener is not called");
            endpoint.poll(64, sends_only).unwrap();
            if let Ok((stream, _)) = listener.accept() {
                break stream;
            }
        };
        read_while_polled(&mut peer, hello_bytes, endpoint, sends_only);
        let mut says = hello(1, &uri);
        // It understands signs of life.
        says[6] = 1;
        peer.write_all(&says).unwrap();
        let secret = read_while_polled(&mut peer, 22, endpoint, sends_only);
        assert_eq!(secret, [header(1, 6, 5), b"secret".to_vec()].concat());

        let mut stranger = early.unwrap_or_else(|| {
            let stranger = claim();
            // It might be a successor, so the connection is tested.
            let test = read_while_polled(&mut peer, 16, endpoint, sends_only);
            assert_eq!(test, header(9, 0, 0));
            stranger
        });
        // Nor does it answer in the peer's name.
        endpoint.recv_unexpected(OpId(3), endpoint.alloc_msg()).unwrap();
        stranger.write_all(&[header(2, 4, 5), b"fake".to_vec()].concat()).unwrap();
        stranger.write_all(&[header(1, 2, 6), b"it".to_vec()].concat()).unwrap();
        let (bytes, caller) = received(endpoint, 3);
        assert_eq!(bytes, b"it");
        assert_eq!(caller.uri(), uri, "what it calls itself");
        assert_ne!(caller, there);
        // What is for the caller takes the caller's connection.
        endpoint.send_unexpected(OpId(4), &caller, Tag(7), message(b"to caller")).unwrap();
        let bytes = read_while_polled(&mut stranger, 25, endpoint, sends_only);
        assert_eq!(bytes, [header(1, 9, 7), b"to caller".to_vec()].concat());
        drop(stranger);
        let deadline = Instant::now() + PATIENCE;
        while !endpoint.is_gone(&caller) {
            assert!(Instant::now() < deadline, "the end of the stranger is not seen");
            endpoint.poll(64, sends_only).unwrap();
        }
        peer.write_all(&[header(2, 4, 5), b"real".to_vec()].concat()).unwrap();
        let (bytes, from) = received(endpoint, 1);
        assert_eq!((&bytes[..], &from), (&b"real"[..], &there));
    }
}

#[test]
fn an_address_of_another_host_is_not_believed() {
    let server = Server::start();
    let uri = "na+tcp://192.0.2.7:9";
    let announce = |session| {
        let mut stream = server.connect();
        stream.write_all(&hello(session, uri)).unwrap();
        hear_hello(&mut stream);
        stream
    };
    let mut streams = [announce(1), announce(2)];
    // Two origins, neither of which replaces the other.
    for stream in &mut streams {
        stream.write_all(&[header(1, 2, 3), b"hi".to_vec()].concat()).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Sent {
    Frame { kind: u8, len: u32, number: u64, payload: Vec<u8> },
    Request { kind: u8, number: u64, good_key: bool, offset: u64, len: u64 },
    Bytes(Vec<u8>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let near = (MEMORY_BYTES - 100) as u64..(MEMORY_BYTES + 100) as u64;
    prop_oneof![
        6 => (1..9u8, 0..4u64, bytes(300)).prop_map(|(kind, number, payload)| Sent::Frame {
            kind, len: payload.len() as u32, number, payload
        }),
        1 => (0..12u8, any::<u32>(), any::<u64>(), bytes(300))
            .prop_map(|(kind, len, number, payload)| Sent::Frame { kind, len, number, payload }),
        8 => (3..5u8, 0..4u64, prop::bool::weighted(0.8), 0..2000u64, 0..600u64).prop_map(
            |(kind, number, good_key, offset, len)| Sent::Request {
                kind, number, good_key, offset, len
            }
        ),
        1 => (3..5u8, 0..4u64, near, any::<u64>()).prop_map(|(kind, number, offset, len)| {
            Sent::Request { kind, number, good_key: true, offset, len }
        }),
        1 => bytes(100).prop_map(Sent::Bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_frames_harm_nobody_else(rounds in prop::collection::vec(
        prop::collection::vec(sent(), 1..12), 1..12)
    ) {
        let server = Server::start();
        for round in rounds {
            let mut stream = server.greeted();
            for sent in round {
                let bytes = match sent {
                    Sent::Frame { kind, len, number, payload } => {
                        [header(kind, len, number), payload].concat()
                    }
                    Sent::Request { kind, number, good_key, offset, len } => {
                        let key = if good_key { server.key } else { server.key ^ 1 };
                        request(kind, number, key, offset, len)
                    }
                    Sent::Bytes(bytes) => bytes,
                };
                if stream.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Write);
            until_closed(&mut stream);
        }
        server.still_serves();
    }
}
